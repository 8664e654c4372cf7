"""Thresholds from runs whose outcome is known, with how much the choice could have varied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isnan, nan, sqrt
from typing import Any

from faudit.errors import FauditError
from faudit.measures.evidence import Evidence, Record
from faudit.protocol.ablation import DETECTORS, Case, Detector, gap_factor
from faudit.protocol.findings import Thresholds


class Proposal(Record):
    """A threshold between the healthy and the failing runs, or NaN and why there is none.

    ``low`` and ``high`` bound the threshold when any single run is left out: with a wide gap and
    many runs they agree, with one run holding up the gap they do not.
    """

    code: str
    threshold: float = nan
    healthy_extreme: float = nan
    failing_extreme: float = nan
    gap: float = nan
    low: float = nan
    high: float = nan
    reason: str

    @property
    def separable(self) -> bool:
        """Whether a threshold was found."""
        return not isnan(self.threshold)

    def __str__(self) -> str:
        if not self.separable:
            return f"{self.code}: no threshold: {self.reason}"
        alone = isnan(self.low)
        span = "range unknown: a lone run" if alone else f"{self.low:.3g} to {self.high:.3g}"
        return f"{self.code}: {self.threshold:.3g} ({span}): {self.reason}"


class Calibration(Record):
    """One proposal per check."""

    proposals: tuple[Proposal, ...]

    def proposal(self, code: str) -> Proposal:
        """The proposal of "D1", "D2" or "D3"."""
        return next(p for p in self.proposals if p.code == code)

    def thresholds(self, base: Thresholds | None = None) -> Thresholds:
        """``base`` with every separable proposal put in; the others keep their limits."""
        limits = base or Thresholds()
        for proposal in self.proposals:
            if proposal.separable:
                limits = DETECTORS[proposal.code].place(limits, proposal.threshold)
        return limits

    def __str__(self) -> str:
        return "\n".join(map(str, self.proposals))


Run = Case | Evidence | Mapping[str, Any]


def calibrate(healthy: Iterable[Run], failing: Iterable[Run]) -> Calibration:
    """Propose D1, D2 and D3 thresholds half-way between healthy and failing runs.

    A run is a ``Case``, a mapping with a case's fields (a row of a table), or ``Evidence``, which
    knows nothing of frozen blocks and so counts for D1 and D2 only. Half-way is geometric for D1
    and D2, whose values span decades, and arithmetic for D3. Where the two kinds overlap no
    threshold separates them, and none is proposed. A run that is not finite counts for neither.

    >>> good = [Case(name="BP", growth=1.3), Case(name="EP", growth=11)]
    >>> bad = [Case(name="DFA", growth=2000), Case(name="CB", growth=694)]
    >>> print(calibrate(good, bad).proposal("D1"))
    D1: 87.4 (30 to 148): a factor 63.1 between 11 (healthy) and 694 (failing)
    """
    cases = [*_cases("healthy", healthy), *_cases("failing", failing)]
    if not cases:
        raise FauditError("there are no runs to calibrate on; give healthy and failing cases")
    return Calibration(proposals=tuple(_propose(d, cases) for d in DETECTORS.values()))


def _cases(label: str, runs: Iterable[Run]) -> list[Case]:
    if isinstance(runs, str | Mapping | Record) or not isinstance(runs, Iterable):
        raise FauditError(f"{label} is of type {type(runs).__name__}; give a list of runs")
    return [
        _case(f"{label} {i}", run).replace(failing=label == "failing") for i, run in enumerate(runs)
    ]


def _case(name: str, run: Run) -> Case:
    if isinstance(run, Case):
        return run
    if isinstance(run, Evidence):
        return Case.from_evidence(name, run)
    if isinstance(run, Mapping):
        return Case.from_dict({"name": name, **run})
    raise FauditError(
        f"{name} is of type {type(run).__name__}; a run is a Case, a mapping with a case's fields,"
        " or Evidence"
    )


def _propose(detector: Detector, cases: Sequence[Case]) -> Proposal:
    healthy, failing = (detector.extreme(cases, truth) for truth in (False, True))
    if isnan(healthy) or isnan(failing):
        lacking = "healthy" if isnan(healthy) else "failing"
        return Proposal(code=detector.code, reason=f"no {lacking} run has a finite number here")
    found = Proposal(
        code=detector.code,
        healthy_extreme=healthy,
        failing_extreme=failing,
        gap=gap_factor(detector.code, healthy, failing),
        reason=f"the kinds overlap: healthy reaches {healthy:.3g}, failing {failing:.3g}",
    )
    if not _apart(detector, healthy, failing):
        return found
    middle = _middle(detector, healthy, failing)
    if middle == 0 and detector.code != "D3":
        # Any positive threshold separates exact zeros, so the runs do not say which.
        return found.replace(
            reason=f"one kind is exactly zero, the other reaches {max(healthy, failing):.3g}"
        )
    low, high = _leave_one_out(detector, cases)
    return found.replace(threshold=middle, low=low, high=high, reason=_between(found))


def _apart(detector: Detector, healthy: float, failing: float) -> bool:
    return healthy < failing if detector.high_fails else failing < healthy


def _middle(detector: Detector, healthy: float, failing: float) -> float:
    if detector.code == "D3":
        return (healthy + failing) / 2
    return sqrt(healthy) * sqrt(failing)


def _between(p: Proposal) -> str:
    width = f"{100 * p.gap:.1f} pp" if p.code == "D3" else f"a factor {p.gap:.3g}"
    return (
        f"{width} between {p.healthy_extreme:.3g} (healthy) and {p.failing_extreme:.3g} (failing)"
    )


def _leave_one_out(detector: Detector, cases: Sequence[Case]) -> tuple[float, float]:
    """The range of thresholds with each run left out in turn; NaN with a lone run of its kind."""
    middles = []
    for left in range(len(cases)):
        rest = [case for i, case in enumerate(cases) if i != left]
        healthy, failing = (detector.extreme(rest, truth) for truth in (False, True))
        middles.append(_middle(detector, healthy, failing))
    return (nan, nan) if any(map(isnan, middles)) else (min(middles), max(middles))
