"""From a verdict to a short story: what would have been claimed, and what is left of it."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Literal

from faudit.measures.evidence import Evidence, Record, expect
from faudit.protocol.diagnosis import Verdict
from faudit.protocol.findings import NOISY_ANGLE, Finding
from faudit.protocol.replay import Replay

Decision = Literal["stands", "measurement degeneracy", "low credit quality", "both", "undecided"]

# Fresh feedback leaves deep cosines of 0 +- 0.02; less than this, or within two deviations of a
# measured null, is no alignment.
ALIGNED, DEVIATIONS = 0.05, 2.0


class Step(Record):
    """One question of the chain, its answer, and whether the claim survives it (None: open)."""

    question: str
    answer: str
    survives: bool | None = None


class WalkBack(Record):
    """The four steps and the decision they lead to."""

    steps: tuple[Step, ...]
    decision: Decision

    def __str__(self) -> str:
        told = (f"{i}. {s.question} {s.answer}" for i, s in enumerate(self.steps, 1))
        return "\n".join([*told, f"Decision: {self.decision}."])


def walk_back(
    evidence: Evidence,
    verdict: Verdict,
    *,
    early: Evidence | None = None,
    penalised: Evidence | None = None,
    timeline: Replay | None = None,
    elsewhere: Mapping[str, Verdict] | None = None,
) -> WalkBack:
    """Walk a headline claim through the four steps of the second draft, Appendix C.

    A degenerate reference hides the quality of the credit, so step 4 looks where the reference can
    be read: here if float64 confirms it, ``early`` in the same training, on a ``penalised`` twin.
    ``timeline`` says when the measurement broke, ``elsewhere`` how the rule fares on other
    networks. The chain is asymmetric: passing never certifies a method, failing a step is enough.

    >>> from faudit.protocol.diagnosis import diagnose
    >>> dfa = Evidence(layers=1, samples=512, gamma=0.10, deep_cosine=-0.02, growth=(237.0,),
    ...                reference_norm=(5e-5, 6.4e-8), cosine=(0.42, -0.02))
    >>> verdict = diagnose(dfa, accuracy=0.306, frozen_accuracy=0.349)
    >>> print(walk_back(dfa, verdict))
    1. What would be claimed? Accuracy 0.306 with Gamma +0.100: credit seems to reach the network.
    2. Is the reference meaningful? No: ||g_L|| = 5e-10 at a mean loss over 128 samples
       (6.4e-08 per sample), under 1e-07. Alignment at depth is walked back as ungrounded.
    3. Do trained blocks beat random blocks? No: accuracy 0.306 is 4.3 pp below frozen blocks at
       0.349 (2 pp above needed). The claim of trained depth is walked back.
    4. Which failure is it? The reference is degenerate, which hides credit quality from a clamped
       cosine; measure early in training, under a penalty or against float64 to see it.
    Decision: measurement degeneracy.
    """
    expect("evidence", evidence, Evidence, "measure() makes it")
    expect("verdict", verdict, Verdict, "diagnose() makes it")
    quality = _low_quality(evidence, verdict, early, penalised)
    decision = _decide(verdict, quality)
    steps = (
        _claim(evidence, verdict),
        _check(
            "Is the reference meaningful?",
            verdict.finding("D2"),
            " Alignment at depth is walked back as ungrounded.",
        ),
        _check(
            "Do trained blocks beat random blocks?",
            verdict.finding("D3"),
            " The claim of trained depth is walked back.",
        ),
        Step(
            question="Which failure is it?",
            answer=" ".join([_quality(verdict, quality), *_context(timeline, elsewhere)]),
            survives={"stands": True, "undecided": None}.get(decision, False),
        ),
    )
    return WalkBack(steps=steps, decision=decision)


def _claim(evidence: Evidence, verdict: Verdict) -> Step:
    accuracy = verdict.evidence_summary.get("accuracy")
    known = f"Accuracy {accuracy:.3f}" if accuracy is not None else "An accuracy not given"
    if evidence.why("gamma"):
        answer = f"{known} and no aggregate cosine: nothing is claimed about credit."
    elif evidence.gamma <= 0:
        answer = f"{known} with Gamma {evidence.gamma:+.3f}: no alignment is claimed."
    else:
        answer = f"{known} with Gamma {evidence.gamma:+.3f}: credit seems to reach the network."
    return Step(question="What would be claimed?", answer=answer)


def _check(question: str, finding: Finding, if_flagged: str) -> Step:
    start = {True: "No:", False: "Yes:", None: "Open:"}[finding.flagged]
    answer = f"{start} {finding.reason}.{if_flagged if finding.flagged else ''}"
    survives = None if finding.flagged is None else not finding.flagged
    return Step(question=question, answer=answer, survives=survives)


def _low_quality(
    evidence: Evidence, verdict: Verdict, early: Evidence | None, penalised: Evidence | None
) -> tuple[bool | None, str]:
    """Whether credit is poor where it can be read at all, and what shows it."""
    places = {"on this network": evidence, "early in training": early, "under a penalty": penalised}
    readable = {where: e for where, e in places.items() if e and _readable(e, verdict)}
    seen = {where: e.deep_cosine for where, e in readable.items() if _aligned(e) is not None}
    for where, cosine in seen.items():
        if not _aligned(readable[where]):
            return True, f"{where}, where the reference can be read, deep cosine is {cosine:+.3f}"
    if _valid(evidence, verdict) and verdict.finding("D3").flagged:
        return True, "the reference is valid and yet the trained blocks add nothing"
    for where, cosine in seen.items():
        return False, f"{where} deep cosine is {cosine:+.3f}"
    return None, ""


def _readable(evidence: Evidence, verdict: Verdict) -> bool:
    """Whether cosines at depth mean something: D2 does not flag, or float64 shows it need not."""
    return _valid(evidence, verdict) or _sound(evidence)


def _valid(evidence: Evidence, verdict: Verdict) -> bool:
    norm = evidence.deepest_reference(verdict.thresholds.reference_batch)
    return verdict.thresholds.collapses(norm) is False


def _sound(evidence: Evidence) -> bool:
    # Cosines here are exact, so a small reference spoils them only where rounding turned it.
    angles = evidence.reference_angle[1:]
    return bool(angles) and all(angle <= NOISY_ANGLE for angle in angles)


def _aligned(evidence: Evidence) -> bool | None:
    if not isfinite(evidence.deep_cosine):
        return None
    if evidence.null and evidence.null.z < DEVIATIONS:
        return False
    return evidence.deep_cosine >= ALIGNED


def _decide(verdict: Verdict, quality: tuple[bool | None, str]) -> Decision:
    if verdict.outcome in ("INVALID", "INCOMPLETE"):
        return "undecided"
    if verdict.mode_one:
        return "both" if quality[0] else "measurement degeneracy"
    if verdict.passed:
        return "stands"
    return "low credit quality" if quality[0] else "undecided"


def _quality(verdict: Verdict, quality: tuple[bool | None, str]) -> str:
    low, why = quality
    if verdict.outcome in ("INVALID", "INCOMPLETE"):
        return f"Open: the verdict is {verdict}."
    if verdict.mode_one:
        start = "The reference is degenerate, which hides credit quality from a clamped cosine;"
        if low is None:
            return (
                f"{start} measure early in training, under a penalty or against float64 to see it."
            )
        return f"{start} {why}."
    if verdict.passed:
        return "Neither was found; that does not certify the method."
    return f"The measurement holds: {why}." if low else "The evidence given does not tell."


def _context(timeline: Replay | None, elsewhere: Mapping[str, Verdict] | None) -> list[str]:
    told = []
    if timeline and (epoch := timeline.first.get("any")) is not None:
        told.append(f"A check first fired at epoch {epoch} of {timeline.total}.")
    if elsewhere:
        verdicts = ", ".join(f"{name} {verdict}" for name, verdict in elsewhere.items())
        told.append(f"On other networks: {verdicts}.")
    return told
