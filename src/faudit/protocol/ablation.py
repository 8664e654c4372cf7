"""Which report would have caught which failure: the papers' strategies over a set of cases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf, isfinite, isnan, nan
from typing import Self

from pydantic import model_validator

from faudit.errors import FauditError, unknown
from faudit.measures.evidence import Evidence, Record, expect, fraction
from faudit.protocol.findings import Thresholds, any_of


class Case(Record):
    """One run in the numbers the strategies read; None where a number is not known.

    ``growth`` is D1's maximum, ``reference_norm`` is ||g_L|| at the declared reduction,
    ``failing`` the truth where it is known, ``chance`` the accuracy of guessing. ``nonfinite``
    names a place that held a number that is not finite; nothing can be said of such a run.

    >>> case = Case(name="DFA", accuracy=0.306, frozen_accuracy=0.349, gamma=0.10)
    >>> round(case.margin, 3), case.growth
    (-0.043, None)
    """

    name: str
    accuracy: float | None = None
    frozen_accuracy: float | None = None
    gamma: float | None = None
    growth: float | None = None
    reference_norm: float | None = None
    stability: float | None = None
    failing: bool | None = None
    chance: float = 0.1
    nonfinite: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in ("accuracy", "frozen_accuracy"):
            if (value := getattr(self, name)) is not None:
                fraction(value, f"{name} of case {self.name!r}")
        return self

    @property
    def margin(self) -> float | None:
        """Accuracy above frozen blocks, as a fraction."""
        if self.accuracy is None or self.frozen_accuracy is None:
            return None
        return self.accuracy - self.frozen_accuracy

    @classmethod
    def from_evidence(
        cls,
        name: str,
        evidence: Evidence,
        *,
        accuracy: float | None = None,
        frozen_accuracy: float | None = None,
        failing: bool | None = None,
        batch: int = 128,
        chance: float = 0.1,
    ) -> Self:
        """A case from measured evidence, ||g_L|| at a mean loss over ``batch`` samples.

        >>> evidence = Evidence(layers=1, samples=8, growth=(3.0,), reference_norm=(1.0, 0.128))
        >>> Case.from_evidence("mine", evidence).reference_norm
        0.001
        """
        return cls(
            name=name,
            accuracy=evidence.accuracy if accuracy is None else accuracy,
            frozen_accuracy=frozen_accuracy,
            gamma=_known(evidence.gamma),
            growth=evidence.largest_growth,
            reference_norm=evidence.deepest_reference(batch),
            stability=_known(evidence.stability),
            failing=failing,
            chance=chance,
            nonfinite=evidence.invalid,
        )


def _known(value: float) -> float | None:
    return None if value != value else value


Check = Callable[[Case, Thresholds], bool | None]


def below_chance(case: Case, _: Thresholds) -> bool | None:
    """An accuracy no better than guessing: all that accuracy alone can object to.

    >>> below_chance(Case(name="guessing", accuracy=0.1), Thresholds())
    True
    """
    return None if case.accuracy is None else case.accuracy <= case.chance


def no_alignment(case: Case, _: Thresholds) -> bool | None:
    """An aggregate cosine that is not positive: all that Gamma can object to.

    >>> no_alignment(Case(name="DFA", gamma=0.1), Thresholds())
    False
    """
    return None if case.gamma is None else case.gamma <= 0


def explodes(case: Case, thresholds: Thresholds) -> bool | None:
    """D1, called (a) in the drafts.

    >>> explodes(Case(name="DFA", growth=237), Thresholds())
    True
    """
    return thresholds.explodes(case.growth)


def collapses(case: Case, thresholds: Thresholds) -> bool | None:
    """D2, called (b) in the drafts.

    >>> collapses(Case(name="BP", reference_norm=4e-4), Thresholds())
    False
    """
    return thresholds.collapses(case.reference_norm)


def drifts(case: Case, thresholds: Thresholds) -> bool | None:
    """(c), which names the sub-mode and is no detector of its own.

    >>> drifts(Case(name="SB", stability=0.53), Thresholds())
    True
    """
    return thresholds.drifts(case.stability)


def idles(case: Case, thresholds: Thresholds) -> bool | None:
    """D3, called (d) in the drafts.

    >>> idles(Case(name="FA", accuracy=0.345, frozen_accuracy=0.349), Thresholds())
    True
    """
    return thresholds.idles(case.margin)


def mode_one(case: Case, thresholds: Thresholds) -> bool | None:
    """D1 and D2 together: measurement degeneracy.

    >>> mode_one(Case(name="DFA", growth=237, reference_norm=5e-10), Thresholds())
    True
    """
    return thresholds.mode_one(case.growth, case.reference_norm)


@dataclass(frozen=True)
class Strategy:
    """A way of reporting: it walks a claim back when any of its checks objects."""

    name: str
    reads: str
    checks: tuple[Check, ...]

    def walks_back(self, case: Case, thresholds: Thresholds) -> bool | None:
        """True: the claim is walked back; False: it stands; None: a check lacked its number.

        A run with a number that is not finite is open under every strategy.

        >>> case = Case(name="DFA", accuracy=0.306, gamma=0.10, growth=237, reference_norm=5e-10)
        >>> [STRATEGIES[s].walks_back(case, Thresholds()) for s in ("S1", "S2", "S3")]
        [False, True, True]
        """
        if case.nonfinite:
            return None
        return any_of(check(case, thresholds) for check in self.checks)


_PAIR = (below_chance, no_alignment)

# S0..S3: the paper, Tables 4 and 5. The others: the first draft, Table 2, where (a), (b) and (d)
# each suffice and (c) is printed but never decides.
_ALL = (
    Strategy("S0", "accuracy only", (below_chance,)),
    Strategy("S1", "accuracy and aggregate Gamma", _PAIR),
    Strategy("S2", "S1 and Mode 1 (D1 and D2)", (*_PAIR, mode_one)),
    Strategy("S3", "S2 and depth utility (D3)", (*_PAIR, mode_one, idles)),
    Strategy("+(a)", "S1 and residual growth", (*_PAIR, explodes)),
    Strategy("+(b)", "S1 and reference norm", (*_PAIR, collapses)),
    Strategy("+(c)", "S1 and direction stability", (*_PAIR, drifts)),
    Strategy("+(d)", "S1 and frozen blocks", (*_PAIR, idles)),
    Strategy("full", "S1 and (a), (b), (d)", (*_PAIR, explodes, collapses, idles)),
)
STRATEGIES = {strategy.name: strategy for strategy in _ALL}
PAPER = ("S0", "S1", "S2", "S3")
DRAFT = ("S0", "S1", "+(a)", "+(b)", "+(c)", "+(d)", "full")


class DecisionTable(Record):
    """Strategies by cases: True walked back, False let stand, None not decidable.

    ``cells[i][j]`` is strategy i on case j; ``failing`` the truth of each case where known.
    """

    strategies: tuple[str, ...]
    cases: tuple[str, ...]
    failing: tuple[bool | None, ...]
    cells: tuple[tuple[bool | None, ...], ...]

    def row(self, strategy: str) -> tuple[bool | None, ...]:
        """What one strategy says of every case."""
        if strategy not in self.strategies:
            raise FauditError(unknown("strategy", strategy, self.strategies))
        return self.cells[self.strategies.index(strategy)]

    def right(self, strategy: str) -> tuple[bool | None, ...]:
        """Where a strategy agrees with the truth: it walks back what fails, and nothing else."""
        pairs = zip(self.row(strategy), self.failing, strict=True)
        return tuple(None if c is None or f is None else c == f for c, f in pairs)

    def walked_back(self, strategy: str) -> int:
        """How many cases a strategy walks back."""
        return sum(cell is True for cell in self.row(strategy))

    def __str__(self) -> str:
        words = {True: "walked back", False: "stands", None: "open"}
        rows = [["", *self.cases]]
        rows += [[s, *(words[c] for c in self.row(s))] for s in self.strategies]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        aligned = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
        return "\n".join(aligned)


def decision_table(
    cases: Iterable[Case],
    strategies: Sequence[str] = PAPER,
    thresholds: Thresholds | None = None,
) -> DecisionTable:
    """Ask every strategy about every case: the decision-utility ablation.

    >>> cases = [Case(name="FA", accuracy=0.345, frozen_accuracy=0.349, gamma=0.48,
    ...               growth=15.6, reference_norm=9e-7, failing=True)]
    >>> print(decision_table(cases))
        FA
    S0  stands
    S1  stands
    S2  stands
    S3  walked back
    """
    rows = _rows(cases)
    limits = thresholds or Thresholds()
    for name in strategies:
        if name not in STRATEGIES:
            raise FauditError(unknown("strategy", name, STRATEGIES))
    cells = tuple(
        tuple(STRATEGIES[name].walks_back(case, limits) for case in rows) for name in strategies
    )
    names, truth = tuple(c.name for c in rows), tuple(c.failing for c in rows)
    return DecisionTable(strategies=tuple(strategies), cases=names, failing=truth, cells=cells)


def _rows(cases: Iterable[Case]) -> tuple[Case, ...]:
    expect("cases", cases, Iterable, "give a list of cases")
    rows = tuple(cases)
    for index, case in enumerate(rows):
        expect(f"case {index}", case, Case, "give Case(name=..., accuracy=..., ...)")
    return rows


class Sensitivity(Record):
    """One threshold moved: which cases flag at each factor, and how wide the gap around it is.

    ``gap`` is the factor between the extreme healthy and the extreme failing case for D1 and D2
    (above 1: they separate) and a difference of accuracies for D3 (above 0: they separate); NaN
    without both kinds. ``changed`` names the cases whose flag depends on the factor.
    """

    code: str
    threshold: float
    factors: tuple[float, ...]
    flagged: tuple[tuple[str, ...], ...]
    changed: tuple[str, ...]
    healthy_extreme: float
    failing_extreme: float
    gap: float

    @property
    def robust(self) -> bool:
        """Whether no flag depends on the factor."""
        return not self.changed


@dataclass(frozen=True)
class Detector:
    """A threshold check as a number of a case, the side it flags on, and the threshold's place."""

    code: str
    number: Callable[[Case], float | None]
    high_fails: bool
    check: Check
    threshold: Callable[[Thresholds], float]
    place: Callable[[Thresholds, float], Thresholds]

    def extreme(self, cases: Iterable[Case], failing: bool) -> float:
        """The healthy or failing case nearest to the other kind; NaN where there is none."""
        judged = (case for case in cases if case.failing is failing and not case.nonfinite)
        found = map(self.number, judged)
        numbers = [x for x in found if x is not None and isfinite(x)]
        nearest = min if failing is self.high_fails else max
        return nearest(numbers, default=nan)


DETECTORS = {
    "D1": Detector(
        "D1", lambda c: c.growth, True, explodes, lambda t: t.growth,
        lambda t, value: t.replace(growth=value),
    ),
    "D2": Detector(
        "D2", lambda c: c.reference_norm, False, collapses, lambda t: t.reference,
        lambda t, value: t.replace(reference_factor=value / t.eps),
    ),
    "D3": Detector(
        "D3", lambda c: c.margin, False, idles, lambda t: t.margin,
        lambda t, value: t.replace(margin=value),
    ),
}  # fmt: skip


def gap_factor(code: str, healthy: float, failing: float) -> float:
    """How far the nearest healthy and failing runs lie apart, in the units of the check.

    >>> round(gap_factor("D1", healthy=11, failing=694))
    63
    >>> round(gap_factor("D3", healthy=0.143, failing=-0.045), 3)
    0.188
    """
    if code == "D3":
        return healthy - failing
    low, high = (healthy, failing) if DETECTORS[code].high_fails else (failing, healthy)
    if isnan(low) or isnan(high):
        return nan
    return high / low if low > 0 else inf


def threshold_sensitivity(
    cases: Iterable[Case],
    factors: Sequence[float] = (0.5, 0.75, 1.0, 1.25, 1.5),
    thresholds: Thresholds | None = None,
) -> dict[str, Sensitivity]:
    """Move each threshold by ``factors`` and see whose flag changes; second draft, Appendix E.

    >>> cases = [Case(name="EP", growth=11, failing=False),
    ...          Case(name="CB", growth=694, failing=True)]
    >>> d1 = threshold_sensitivity(cases)["D1"]
    >>> d1.robust, round(d1.gap)
    (True, 63)
    """
    if not factors or not all(isinstance(f, int | float) and f > 0 for f in factors):
        raise FauditError(f"factors are {list(factors)}; give one or more, all above zero")
    rows, limits = _rows(cases), thresholds or Thresholds()
    return {
        code: _sensitivity(detector, rows, tuple(factors), limits)
        for code, detector in DETECTORS.items()
    }


def _sensitivity(
    detector: Detector, cases: tuple[Case, ...], factors: tuple[float, ...], limits: Thresholds
) -> Sensitivity:
    now = detector.threshold(limits)
    flagged = tuple(_flagged(detector, cases, detector.place(limits, now * k)) for k in factors)
    always = set(flagged[0]).intersection(*flagged)
    healthy, failing = (detector.extreme(cases, truth) for truth in (False, True))
    return Sensitivity(
        code=detector.code,
        threshold=now,
        factors=factors,
        flagged=flagged,
        changed=tuple(sorted(set().union(*flagged) - always)),
        healthy_extreme=healthy,
        failing_extreme=failing,
        gap=gap_factor(detector.code, healthy, failing),
    )


def _flagged(detector: Detector, cases: tuple[Case, ...], limits: Thresholds) -> tuple[str, ...]:
    judged = (case for case in cases if not case.nonfinite)
    return tuple(case.name for case in judged if detector.check(case, limits))
