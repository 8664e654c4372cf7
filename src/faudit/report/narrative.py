"""What the numbers come to, in sentences: the headline, and each claim walked back step by step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import nan
from typing import Any

from faudit.measures.evidence import Evidence
from faudit.protocol import STRATEGIES, Case, Thresholds, Verdict, WalkBack, replay, walk_back
from faudit.report.dossier import Dossier, Group, Run

USUAL = STRATEGIES["S1"]
DECISIONS = {
    "stands": "stands",
    "measurement degeneracy": "degenerate measurement",
    "low credit quality": "poor credit",
    "both": "degenerate measurement and poor credit",
    "undecided": "undecided",
}
ELSEWHERE = 3


def headline(dossier: Dossier) -> str:
    """What happened, in two or three sentences."""
    methods = dossier.methods
    failing = [group for group in methods if group.fails]
    if not methods:
        return "There are baselines here, and no method to hold against them."
    if not failing:
        one = len(methods) == 1
        said = (
            "The one audited case does not fail." if one else f"None of {len(methods)} cases fails."
        )
        return " ".join([said, *_open(methods)])
    verb = "fails" if len(failing) == 1 else "fail"
    said = f"{len(failing)} of {len(methods)} audited cases {verb} the protocol."
    return " ".join([said, _missed(failing), *_open(methods)])


def _missed(failing: list[Group]) -> str:
    passed = [group for group in failing if not _objects(group)]
    usual = "The usual report, accuracy and aggregate cosine,"
    if len(passed) == len(failing):
        which = "it" if len(failing) == 1 else "every one of them"
        return f"{usual} would have let {which} stand."
    if not passed:
        return f"{usual} objects to {'it' if len(failing) == 1 else 'them'} too."
    return f"{usual} would have let {len(passed)} of them stand."


def _objects(group: Group) -> bool:
    """Whether the two means that are usually printed would raise a doubt."""
    accuracy, gamma = group.value("accuracy"), group.value("gamma")
    case = Case(
        name=group.label,
        accuracy=accuracy.mean if accuracy else None,
        gamma=gamma.mean if gamma else None,
        chance=1 / max(run.outcome.classes or 10 for run in group.runs),
    )
    return USUAL.walks_back(case, Thresholds()) is True


def _open(methods: Iterable[Group]) -> list[str]:
    judged = [{_outcome(run) for run in group.runs} for group in methods]
    cases = "case" if len(judged) == 1 else "cases"
    undecided = sum(bool(kinds & {"INCOMPLETE", "INVALID", "FAILED"}) for kinds in judged)
    if not undecided:
        return []
    verb = "lacks" if undecided == 1 else "lack"
    return [f"{undecided} of all {len(judged)} {cases} {verb} something to judge; see below."]


def _outcome(run: Run) -> str:
    return run.verdict.outcome if run.verdict else "FAILED"


@dataclass(frozen=True)
class Story:
    """A claim about one run, walked back as far as the evidence goes."""

    group: Group
    run: Run
    chain: WalkBack

    @property
    def decision(self) -> str:
        """What is left of the claim, in words."""
        return DECISIONS[self.chain.decision]


def stories(dossier: Dossier) -> list[Story]:
    """One story per method and setting, told of its first seed that can be judged."""
    found = []
    for group in dossier.methods:
        run = next((r for r in group.runs if r.verdict and r.verdict.outcome != "INVALID"), None)
        if run is not None:
            found.append(Story(group, run, story(run, group, dossier)))
    return found


def story(run: Run, group: Group, dossier: Dossier) -> WalkBack:
    """The four steps for one run, with whatever else in the dossier bears on it."""
    verdict, evidence = run.verdict, run.evidence
    assert verdict is not None
    assert evidence is not None
    records = [_reduced(r) for r in run.history]
    return walk_back(
        evidence,
        verdict,
        early=early_evidence(run),
        penalised=_penalised(run, dossier),
        timeline=replay(records) if len(records) > 1 else None,
        elsewhere=_elsewhere(group, dossier),
    )


def _reduced(record: Mapping[str, Any]) -> dict[str, Any]:
    norms = record.get("reference_norm") or ()
    return {**record, "reference_norm": [norm / 128 for norm in norms]}


def early_evidence(run: Run) -> Evidence | None:
    """What was seen after the first epoch of training that was measured."""
    if run.evidence is None:
        return None
    seen = (r for r in run.history if r.get("epoch", 0) > 0 and r.get("reference_norm"))
    record = next(seen, None)
    if record is None or len(record["reference_norm"]) != run.evidence.layers + 1:
        return None
    return Evidence(
        layers=run.evidence.layers,
        samples=run.evidence.samples,
        dtype=run.evidence.dtype,
        growth=tuple(record.get("growth") or ()),
        reference_norm=tuple(record["reference_norm"]),
        deep_cosine=record.get("deep_cosine", nan),
    )


def _penalised(run: Run, dossier: Dossier) -> Evidence | None:
    """The same run under the strongest penalty that was tried."""
    twins = [
        other
        for other in dossier.runs
        if other.recipe.training.penalty > run.recipe.training.penalty
        and other.evidence is not None
        and _without_penalty(other) == _without_penalty(run)
    ]
    strongest = max(twins, key=lambda r: r.recipe.training.penalty, default=None)
    return strongest.evidence if strongest else None


def _without_penalty(run: Run) -> str:
    return run.recipe.changed({"training.penalty": 0.0}).digest


def _elsewhere(group: Group, dossier: Dossier) -> dict[str, Verdict]:
    found = {
        other.setting: other.runs[0].verdict
        for other in dossier.methods
        if other.label == group.label
        and other.recipe.network != group.recipe.network
        and other.recipe.training.penalty == group.recipe.training.penalty
    }
    known = [(setting, verdict) for setting, verdict in found.items() if verdict is not None]
    return dict(known[:ELSEWHERE])
