"""Findings to a verdict: the one place that says PASS, FAIL, INCOMPLETE or INVALID."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose, isfinite
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from faudit.errors import FauditError
from faudit.measures.evidence import Evidence, Record, expect, fraction, html_table, printable
from faudit.protocol.findings import (
    NAMES,
    Finding,
    Thresholds,
    both,
    depth_utility,
    direction_stability,
    reference_validity,
    scale_stability,
    sub_mode,
)
from faudit.protocol.flags import Flag, Situation, reliability
from faudit.protocol.interval import Interval, as_correct, paired_interval, unpaired_interval

Outcome = Literal["PASS", "FAIL", "INCOMPLETE", "INVALID"]
Seeds = Mapping[int | str, tuple[float, float]]

DECISIVE = ("D1", "D2", "D3")
# An accuracy printed with three decimals agrees with the examples that it was counted from.
SAME = 5e-4
EXIT_CODES: dict[Outcome, int] = {"PASS": 0, "FAIL": 1, "INCOMPLETE": 3, "INVALID": 3}
MEANING: dict[Outcome, str] = {
    "PASS": "The audited failures are ruled out; that does not certify the method.",
    "FAIL": "What accuracy and alignment seem to show about depth does not hold.",
    "INCOMPLETE": "A check was not evaluated, and what was not evaluated does not pass.",
    "INVALID": "The network holds numbers that are not finite; nothing can be judged.",
}


def judge(findings: Mapping[str, bool | None]) -> tuple[Outcome, tuple[str, ...]]:
    """The verdict rule: FAIL when Mode 1 (D1 and D2) or D3 flags; the paper, 5.1.

    The codes are the causes of a failure: D1 or D2 alone is a finding but no cause, so D1 and D3
    without D2 reads FAIL(D3). Otherwise every decisive check must have been evaluated to pass.

    >>> judge({"D1": True, "D2": False, "D3": True})
    ('FAIL', ('D3',))
    >>> judge({"D1": True, "D2": False})
    ('INCOMPLETE', ('D3',))
    """
    mode_one = both(findings.get("D1"), findings.get("D2"))
    causes = (("D1", "D2") if mode_one else ()) + (("D3",) if findings.get("D3") else ())
    if causes:
        return "FAIL", causes
    missing = tuple(code for code in DECISIVE if findings.get(code) is None)
    return ("INCOMPLETE", missing) if missing else ("PASS", ())


class Verdict(Record):
    """What the protocol says of one run; ``str()`` is the verdict, ``explain()`` the reasons.

    ``codes`` names the causes of a FAIL, or the checks an INCOMPLETE still lacks. A verdict whose
    outcome does not follow from its own findings, or whose findings do not follow from their own
    numbers, cannot be built, nor read from a file.

    >>> evidence = Evidence(layers=1, samples=512, growth=(1.3,), reference_norm=(0.05, 0.05))
    >>> verdict = diagnose(evidence, accuracy=0.61, frozen_accuracy=0.35)
    >>> str(verdict), verdict.passed, verdict.exit_code
    ('PASS', True, 0)
    >>> str(diagnose(evidence, accuracy=0.61))
    'INCOMPLETE(D3)'
    """

    outcome: Outcome
    codes: tuple[str, ...] = ()
    invalid: str | None = None
    findings: tuple[Finding, ...]
    flags: tuple[Flag, ...] = ()
    evidence_summary: dict[str, float] = Field(default_factory=dict)
    thresholds: Thresholds = Thresholds()
    protocol: int = 1

    @model_validator(mode="after")
    def _follows(self) -> Self:
        _check_findings(self.findings, self.thresholds)
        expected = _outcome(self.findings, self.invalid)
        if (self.outcome, self.codes) != expected:
            raise FauditError(
                f"Verdict: {self.outcome} with codes {self.codes} does not follow "
                f"from its findings, which give {expected[0]} {expected[1]}"
            )
        return self

    @classmethod
    def of(cls, findings: tuple[Finding, ...], invalid: str | None = None, **rest: Any) -> Self:
        """The verdict these findings lead to."""
        outcome, codes = _outcome(findings, invalid)
        return cls(outcome=outcome, codes=codes, invalid=invalid, findings=findings, **rest)

    @property
    def passed(self) -> bool:
        """Only a PASS has passed: not INCOMPLETE, not INVALID."""
        return self.outcome == "PASS"

    @property
    def exit_code(self) -> int:
        """For a shell: 0 pass, 1 fail, 3 incomplete or invalid."""
        return EXIT_CODES[self.outcome]

    @property
    def mode_one(self) -> bool | None:
        """Measurement degeneracy: D1 and D2 both flag; None while that is open."""
        return both(self.finding("D1").flagged, self.finding("D2").flagged)

    @property
    def sub_mode(self) -> str | None:
        """What the reference is made of, named only where Mode 1 has corrupted it."""
        return sub_mode(self.finding("c").value) if self.mode_one else None

    def finding(self, code: str) -> Finding:
        """The finding of one check: "D1", "D2", "D3" or "c"."""
        for finding in self.findings:
            if finding.code == code:
                return finding
        return Finding(code=code, name=NAMES.get(code, code), threshold=0.0, reason="not evaluated")

    def __str__(self) -> str:
        inside = self.invalid if self.invalid else "+".join(self.codes)
        return printable(f"{self.outcome}({inside})") if inside else self.outcome

    def explain(self) -> str:
        """Everything behind the verdict, one line each.

        >>> evidence = Evidence(layers=1, samples=512, growth=(1.3,), reference_norm=(0.05, 0.05))
        >>> print(diagnose(evidence, accuracy=0.345, frozen_accuracy=0.349).explain())
        FAIL(D3)
          What accuracy and alignment seem to show about depth does not hold.
          D1 scale stability: ok: block 0 multiplies the state's norm by 1.3 (limit 50)
          D2 reference validity: ok: ||g_L|| = 0.000391 at a mean loss over 128 samples
            (0.05 per sample), above 1e-07
          D3 depth utility: flagged: accuracy 0.345 is 0.4 pp below frozen blocks at 0.349
            (2 pp above needed)
          c direction stability: not evaluated: stability: not measured
        """
        lines = [MEANING[self.outcome], *map(str, self.findings)]
        if self.sub_mode:
            lines.append(f"Mode 1, {self.sub_mode} reference")
        lines += [f"Careful: {flag}" for flag in self.flags]
        return "\n  ".join(map(printable, [str(self), *lines]))

    def _repr_html_(self) -> str:
        columns = [
            ("check", [f"{f.code} {f.name}" for f in self.findings]),
            ("state", [f.state for f in self.findings]),
            ("value", [f"{f.value:.3g}" if f.flagged is not None else "" for f in self.findings]),
            ("threshold", [f"{f.threshold:.3g}" for f in self.findings]),
            ("reason", [f.reason for f in self.findings]),
        ]
        return html_table(f"{self}. {MEANING[self.outcome]}", columns, list(map(str, self.flags)))


def _check_findings(findings: tuple[Finding, ...], thresholds: Thresholds) -> None:
    """Refuse findings that contradict each other, their own values or the declared limits."""
    limits = {
        "D1": thresholds.growth,
        "D2": thresholds.reference,
        "D3": thresholds.margin,
        "c": thresholds.stability,
    }
    codes = [finding.code for finding in findings]
    for finding in findings:
        told = f"Verdict: finding {finding.code}"
        if codes.count(finding.code) > 1:
            raise FauditError(f"{told} is given twice; a verdict has one finding of each check")
        if finding.flagged is None:
            continue
        limit = limits.get(finding.code, finding.threshold)
        if not isclose(finding.threshold, limit):
            raise FauditError(f"{told} has limit {finding.threshold:g}, the thresholds {limit:g}")
        if finding.should_flag not in (None, finding.flagged):
            raise FauditError(
                f"{told} is {finding.state}, which {finding.value:g} beside {limit:g} is not"
            )


def _outcome(findings: tuple[Finding, ...], invalid: str | None) -> tuple[Outcome, tuple[str, ...]]:
    return ("INVALID", ()) if invalid else judge({f.code: f.flagged for f in findings})


def diagnose(
    evidence: Evidence,
    *,
    accuracy: float | None = None,
    frozen_accuracy: float | None = None,
    correct: Any = None,
    frozen_correct: Any = None,
    test_samples: int | None = None,
    seeds: Seeds | None = None,
    bp_accuracy: float | None = None,
    thresholds: Thresholds | None = None,
) -> Verdict:
    """Judge one run: D1 and D2 from its evidence, D3 from accuracies against frozen blocks.

    ``correct`` and ``frozen_correct`` (one true or false per test example, same order; for
    examples of several labels a row of them, NaN at padding) give the accuracies and D3's paired
    interval. Two accuracies with ``test_samples`` give a wider one, two accuracies alone none.
    Without an accuracy the evidence's own stands in, over the evidence's samples. ``seeds`` maps a
    seed to (accuracy, frozen accuracy); its mean is judged and every seed is shown.
    ``bp_accuracy``, the positive control, tells whether D3 can mean anything. Thresholds default
    to the published ones at the evidence's dtype.

    >>> evidence = Evidence(layers=1, samples=512, growth=(1004.0,), reference_norm=(1e-3, 1e-6))
    >>> str(diagnose(evidence, accuracy=0.088, frozen_accuracy=0.178))
    'FAIL(D1+D2+D3)'
    """
    expect("evidence", evidence, Evidence, "measure() makes it")
    thresholds = thresholds or Thresholds.for_evidence(evidence)
    expect("thresholds", thresholds, Thresholds, "give Thresholds(growth=50, ...)")
    tests = _tests(
        evidence, accuracy, frozen_accuracy, correct, frozen_correct, test_samples, seeds
    )
    findings = _findings(evidence, tests, thresholds)
    situation = Situation(
        evidence,
        thresholds,
        {finding.code: finding for finding in findings},
        None if bp_accuracy is None else fraction(bp_accuracy, "bp_accuracy"),
        tests.interval,
        tests.samples,
    )
    return Verdict.of(
        findings,
        evidence.invalid and f"non-finite {evidence.invalid}",
        flags=reliability(situation),
        evidence_summary=_summary(evidence, tests),
        thresholds=thresholds,
    )


@dataclass(frozen=True)
class _Tests:
    """The accuracies D3 compares, and what is known of their uncertainty."""

    accuracy: float | None
    frozen_accuracy: float | None
    interval: Interval | None
    samples: int | None
    seeds: Seeds
    measured_on: str


def _tests(
    evidence: Evidence,
    accuracy: float | None,
    frozen_accuracy: float | None,
    correct: Any,
    frozen_correct: Any,
    samples: int | None,
    seeds: Seeds | None,
) -> _Tests:
    pairs = _checked(seeds or {})
    own = _accuracy("accuracy", accuracy, correct, [a for a, _ in pairs.values()])
    measured_on = ""
    if own is None and evidence.accuracy is not None:
        own = evidence.accuracy
        samples = evidence.samples if samples is None else samples
        measured_on = f"on the evidence's {evidence.samples} samples"
    frozen = _accuracy(
        "frozen_accuracy", frozen_accuracy, frozen_correct, [f for _, f in pairs.values()]
    )
    samples = samples if correct is None else len(correct)
    frozen_samples = samples if frozen_correct is None else len(frozen_correct)
    interval = None
    if correct is not None and frozen_correct is not None:
        interval = paired_interval(correct, frozen_correct)
    elif own is not None and frozen is not None and samples is not None:
        interval = unpaired_interval(own, frozen, samples, frozen_samples)
    return _Tests(own, frozen, interval, samples, pairs, measured_on)


def _findings(evidence: Evidence, tests: _Tests, thresholds: Thresholds) -> tuple[Finding, ...]:
    findings: tuple[Finding, ...] = (
        scale_stability(evidence, thresholds),
        reference_validity(evidence, thresholds),
        depth_utility(
            tests.accuracy,
            tests.frozen_accuracy,
            thresholds,
            interval=tests.interval,
            seeds=tests.seeds,
            measured_on=tests.measured_on,
        ),
        direction_stability(evidence, thresholds),
    )
    if evidence.invalid is None:
        return findings
    why = f"withdrawn, for {evidence.invalid} is not finite"
    return tuple(
        Finding(code=f.code, name=f.name, threshold=f.threshold, reason=why) for f in findings
    )


def _checked(seeds: Seeds) -> Seeds:
    expect("seeds", seeds, Mapping, "give {seed: (accuracy, frozen accuracy), ...}")
    for seed, pair in seeds.items():
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise FauditError(f"seed {seed}: give (accuracy, frozen accuracy), not {pair!r}")
        fraction(pair[0], f"accuracy of seed {seed}")
        fraction(pair[1], f"frozen accuracy of seed {seed}")
    return seeds


def _accuracy(name: str, given: float | None, correct: Any, single: list[float]) -> float | None:
    """The one accuracy that everything given for it agrees on."""
    told = {} if given is None else {"number": fraction(given, name)}
    if correct is not None:
        counted = as_correct(correct, name.replace("accuracy", "correct")).mean()
        told["examples"] = float(counted)
    if single:
        told["seeds"] = sum(single) / len(single)
    if told and max(told.values()) - min(told.values()) > SAME:
        means = ", ".join(f"{mean:g} by its {source}" for source, mean in told.items())
        raise FauditError(f"{name} is {means}; give one of them, or values that agree")
    return next(iter(told.values()), None)


def _summary(evidence: Evidence, tests: _Tests) -> dict[str, float]:
    numbers = {
        "layers": evidence.layers,
        "samples": evidence.samples,
        "accuracy": tests.accuracy,
        "frozen_accuracy": tests.frozen_accuracy,
        "gamma": evidence.gamma,
        "deep_cosine": evidence.deep_cosine,
        "state_norm": evidence.state_norm[-1] if evidence.state_norm else None,
        "growth": evidence.largest_growth,
        "reference_norm": evidence.reference_norm[-1] if evidence.reference_norm else None,
        "stability": evidence.stability,
    }
    return {name: float(v) for name, v in numbers.items() if v is not None and isfinite(v)}
