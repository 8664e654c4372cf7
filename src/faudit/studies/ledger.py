"""The ledger: every published claim beside the same number from our runs, and what that decides."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import isfinite, isnan, log10, nan
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal, Protocol, cast

from faudit.bundle import Bundle, Outcome
from faudit.errors import FauditError, unknown
from faudit.protocol import PAPER, DecisionTable
from faudit.recipe import Recipe
from faudit.studies import audits, study
from faudit.studies.audits import Arm
from faudit.studies.claims import (
    CLAIMS,
    DECIDED,
    FITTED,
    SEARCH_CLAIMS,
    SEARCHED_AT,
    Claim,
    Line,
    Tiers,
    find,
)
from faudit.studies.engines import Engine
from faudit.studies.progress import Board
from faudit.studies.quantities import OF_ARMS, Held, Number, Quantity, decisions, value
from faudit.studies.results import Results
from faudit.studies.store import Store
from faudit.studies.variants import SEARCH, VARIANTS

Standing = Literal["reproduced", "same verdict, different magnitude", "not reproduced", "not run"]
STANDINGS: tuple[Standing, ...] = (
    "reproduced",
    "same verdict, different magnitude",
    "not reproduced",
    "not run",
)
REPRODUCED, SAME_VERDICT, NOT_REPRODUCED, NOT_RUN = STANDINGS

# Accuracies and cosines are decimal fractions, so 1 - 0.95 is a hair over 0.05; it must not count.
ROUNDING = 1e-9
DEVICES = ("cpu", "cuda")
"""Where runs are looked for, in this order."""

FARTHEST = 10.0
"""Tolerances up to which a distance counts, so that one number that ran away is not all."""

NEAR_PERCENT, NEAR_COSINE, NEAR_DECADES, NEAR_FACTOR = 0.02, 0.05, 1.0, 2.0


class Source(Protocol):
    """Anything that has runs by recipe: a store, a folder of results, a dictionary."""

    def __contains__(self, recipe: Any, /) -> bool: ...
    def __getitem__(self, recipe: Any, /) -> Bundle: ...


@dataclass(frozen=True)
class Ours:
    """The claim's number from our runs, seed by seed or for all together.

    ``seeds`` is how many runs of every arm are behind it, ``of`` how many there should be.
    """

    values: tuple[float | str, ...]
    seeds: int
    of: int

    @property
    def numbers(self) -> tuple[float, ...]:
        """The values that are numbers with a meaning."""
        return tuple(v for v in self.values if isinstance(v, float) and not isnan(v))

    @property
    def undefined(self) -> int:
        """How many runs have no such number, because they broke or because it has no meaning."""
        return sum(isinstance(v, float) and isnan(v) for v in self.values)

    @property
    def mean(self) -> float | None:
        """Their mean; None where no value is a number."""
        return fmean(self.numbers) if self.numbers else None

    @property
    def spread(self) -> float | None:
        """Their sample standard deviation; None for a single run."""
        steady = len(self.numbers) > 1 and all(map(isfinite, self.numbers))
        return stdev(self.numbers) if steady else None

    @property
    def word(self) -> str:
        """The values as words, and how many have which where they differ.

        >>> Ours(("PASS", "FAIL(D3)", "PASS"), 3, 3).word
        'PASS in 2 of 3, FAIL(D3) in 1 of 3'
        """
        counts = Counter("undefined" if v != v else str(v) for v in self.values)
        if len(counts) == 1:
            return next(iter(counts))
        total = len(self.values)
        return ", ".join(f"{word} in {k} of {total}" for word, k in counts.most_common())


@dataclass(frozen=True)
class Row:
    """One claim under one variant of the recipe: our number, what it decides, and why."""

    claim: Claim
    variant: str
    standing: Standing
    reason: str
    ours: Ours | None = None

    @property
    def complete(self) -> bool:
        """Whether every seed decided it that it was published for."""
        return self.ours is not None and self.ours.seeds == self.ours.of

    @property
    def fitted(self) -> bool:
        """Whether the recipe was chosen by this very number."""
        return self.variant == "paper" and self.claim.id in FITTED

    @property
    def telling(self) -> bool:
        """Whether it could have come out otherwise: neither chosen by nor true by construction."""
        return not self.fitted and not self.claim.certain

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        ours = self.ours
        return {
            "id": self.claim.id,
            "source": self.claim.source,
            "quantity": str(self.claim.quantity),
            "published": self.claim.published,
            "published_spread": self.claim.spread,
            "variant": self.variant,
            "values": [_plain(v) for v in ours.values] if ours else [],
            "mean": _plain(ours.mean) if ours else None,
            "spread": ours.spread if ours else None,
            "n": ours.seeds if ours else 0,
            "of": ours.of if ours else 0,
            "fitted": self.fitted,
            "certain": self.claim.certain,
            "standing": self.standing,
            "rule": self.claim.rule,
            "reason": self.reason,
        }


def _plain(number: Number) -> Number:
    return str(number) if isinstance(number, float) and not isfinite(number) else number


@dataclass(frozen=True)
class Ledger:
    """All rows, variant by variant."""

    rows: tuple[Row, ...]

    @property
    def variants(self) -> tuple[str, ...]:
        """The recipes that were looked at."""
        return tuple(dict.fromkeys(row.variant for row in self.rows))

    def of(self, variant: str) -> tuple[Row, ...]:
        """The rows of one variant."""
        return tuple(row for row in self.rows if row.variant == variant)

    def row(self, id: str, variant: str = "paper") -> Row:
        """One claim's row."""
        for row in self.of(variant):
            if row.claim.id == id:
                return row
        raise FauditError(f"the ledger has no claim {id!r} under the variant {variant!r}")

    def totals(self, variant: str = "paper", *, complete: bool = False) -> dict[Standing, int]:
        """How many claims ended how; of those that every published seed decided, if ``complete``.

        >>> ledger({}).totals()["reproduced"]
        0
        """
        rows = [row for row in self.of(variant) if row.complete or not complete]
        counts = Counter(row.standing for row in rows)
        return {standing: counts[standing] for standing in STANDINGS}

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "totals": {variant: self.totals(variant) for variant in self.variants},
            "rows": [row.to_dict() for row in self.rows],
        }


def ledger(
    source: Source,
    *,
    claims: Sequence[Claim] = CLAIMS,
    variants: Sequence[str] = VARIANTS,
) -> Ledger:
    """Hold every claim against the runs that are there; nothing is trained or measured.

    >>> {row.standing for row in ledger({}).rows}
    {'not run'}
    """
    shelf = Shelf(source)
    return Ledger(tuple(shelf.row(claim, v) for v in variants for claim in claims))


# -- what there is to run -------------------------------------------------------------------------


def reproduce(
    names: Iterable[str],
    store: str | os.PathLike[str] | Store,
    *,
    variants: Sequence[str] = ("paper",),
    device: str = "cpu",
    engine: Engine | None = None,
    show: Board | None = None,
    besides: Source | None = None,
) -> Ledger:
    """Make the runs of some studies that are not in the store, and hold their claims against them.

    ``names`` are those of ``audits.PUBLISHED``, or "all". What is in the results ``besides``, from
    whichever device, is not made again and counts.
    """
    names, there = list(names), {} if besides is None else besides
    every = [recipe for variant in variants for recipe in audits.published(names, variant)]
    lacking = [r for r in every if not any(audits.on(d, r) in there for d in DEVICES)]
    made = study.train([audits.on(device, r) for r in lacking], store, engine=engine, show=show)
    source = made.store if besides is None else Either(made.store, besides)
    return ledger(source, claims=claims_of(names), variants=variants)


@dataclass(frozen=True)
class Either:
    """Runs of two sources; where both have one, the first's."""

    first: Source
    second: Source

    def __contains__(self, recipe: Any, /) -> bool:
        return recipe in self.first or recipe in self.second

    def __getitem__(self, recipe: Any, /) -> Bundle:
        return self.first[recipe] if recipe in self.first else self.second[recipe]


def claims_of(names: Iterable[str]) -> list[Claim]:
    """The claims of some studies, or of "all".

    >>> [claim.id for claim in claims_of(["t4"])][0]
    't4-dfa-d256'
    """
    asked = set(names)
    if strange := sorted(asked - {"all", *audits.PUBLISHED}):
        raise FauditError(unknown("study", strange[0], (*audits.PUBLISHED, "all")))
    return [claim for claim in CLAIMS if "all" in asked or claim.study in asked]


def status(
    results: str | os.PathLike[str] = "results",
    *,
    claims: Sequence[Claim] = CLAIMS,
    variants: Sequence[str] = VARIANTS,
) -> Ledger:
    """The ledger of the committed results; needs neither data nor training."""
    return ledger(Results(results), claims=claims, variants=variants)


def rerun(
    claim: str | Claim,
    store: str | os.PathLike[str] | Store,
    *,
    variant: str = "paper",
    device: str = "cpu",
    engine: Engine | None = None,
    show: Board | None = None,
) -> Row:
    """Make the runs of one claim, with their frozen blocks, and judge it by them alone.

    Give an empty store to have everything made again.
    """
    about = find(claim) if isinstance(claim, str) else claim
    wanted = [audits.on(device, recipe) for recipe in needed(about, variant)]
    made = study.train(wanted, store, engine=engine, show=show)
    return ledger(made.store, claims=[about], variants=[variant]).rows[0]


def again(
    claim: str | Claim,
    store: str | os.PathLike[str],
    *,
    variant: str = "paper",
    device: str = "cpu",
) -> Path:
    """Where one claim's runs are made anew: a store inside the store that has none of them whole.

    One that was stopped early is gone on with; one that has them all is left as it is.

    >>> again("t1-fa-accuracy", "faudit-runs").as_posix()
    'faudit-runs/again/t1-fa-accuracy-paper-1'
    """
    about = find(claim) if isinstance(claim, str) else claim
    wanted = [audits.on(device, recipe) for recipe in needed(about, variant)]
    places = (Path(store) / "again" / f"{about.id}-{variant}-{n}" for n in count(1))
    return next(place for place in places if study.plan(wanted, place).todo)


def needed(claim: Claim, variant: str = "paper") -> list[Recipe]:
    """The runs that decide a claim: those of its arms and their frozen blocks.

    >>> [recipe.training.trainable_blocks for recipe in needed(find("t1-fa-margin"))]
    [None, 0, None, 0, None, 0]
    """
    pairs = [kind for arm in claim.all_arms for kind in (arm, arm.baseline)]
    return audits.recipes(pairs, variant)


# -- from runs to rows ----------------------------------------------------------------------------


@dataclass
class Shelf:
    """The runs of a source, each read once."""

    source: Source
    read: dict[str, Bundle | None] = field(default_factory=dict)

    def bundle(self, recipe: Recipe) -> Bundle | None:
        """A recipe's run, where it is there, on whichever device it was made."""
        if recipe.digest not in self.read:
            there = (r for device in DEVICES if (r := audits.on(device, recipe)) in self.source)
            found = next(there, None)
            self.read[recipe.digest] = None if found is None else self.source[found]
        return self.read[recipe.digest]

    def runs(self, arm: Arm, variant: str) -> list[Held]:
        """The runs of an arm that are there, each with its frozen blocks if those are."""
        pairs = zip(arm.recipes(variant), arm.baseline.recipes(variant), strict=True)
        found = [(self.bundle(own), self.bundle(frozen)) for own, frozen in pairs]
        return [Held(own, _outcome(own, frozen)) for own, frozen in found if own is not None]

    def row(self, claim: Claim, variant: str) -> Row:
        """What our runs say of a claim."""
        ours, missing = self.number(claim, claim.quantity, variant)
        if ours is None:
            return Row(claim, variant, NOT_RUN, missing)
        elsewhere = claim.line.quantity if claim.line else None
        shown = self.number(claim, elsewhere, variant)[0] if elsewhere else ours
        standing, reason = _judge(claim, ours, shown)
        whose = "its" if _is_joint(claim, claim.quantity) else f"{ours.undefined} of {ours.seeds}"
        broken = f"; {whose} runs leave it undefined" if ours.undefined else ""
        return Row(claim, variant, standing, f"{reason}{broken}", ours)

    def number(self, claim: Claim, quantity: Quantity, variant: str) -> tuple[Ours | None, str]:
        """Our number, or None and what it lacks."""
        held = [self.runs(arm, variant) for arm in claim.all_arms]
        for arm, runs in zip(claim.all_arms, held, strict=True):
            if not runs:
                return None, f"no run of {arm.rule} in {arm.setting}"
        values = _values(claim, quantity, held)
        if not values:
            return None, "the frozen blocks, or the epochs it is read at, are missing"
        of = max(len(arm.recipes(variant)) for arm in claim.all_arms)
        seeds = min(map(len, held)) if _is_joint(claim, quantity) else len(values)
        return Ours(tuple(values), seeds, of), ""


def _is_joint(claim: Claim, quantity: Quantity) -> bool:
    """Whether all runs give one value together, instead of one value each."""
    return quantity.name in OF_ARMS or claim.kind == "ranking"


def _outcome(own: Bundle | None, frozen: Bundle | None) -> Outcome | None:
    """The outcome of the frozen blocks, if they were tested on the same data."""
    if own is None or frozen is None or not frozen.outcome.done:
        return None
    return frozen.outcome if frozen.outcome.data == own.outcome.data else None


def _values(claim: Claim, quantity: Quantity, held: list[list[Held]]) -> list[float | str]:
    found: list[Number]
    if _is_joint(claim, quantity) and any(not r.bundle.outcome.done for runs in held for r in runs):
        found = [nan]  # what all runs say together is not said by the others alone
    elif quantity.name in OF_ARMS:
        found = [OF_ARMS[quantity.name](held, quantity)]
    elif claim.kind == "ranking":
        found = [_order(claim, [_mean(runs, quantity) for runs in held])]
    elif claim.minus is not None and quantity is claim.quantity:
        found = _differences(held[0], held[1], quantity)
    else:
        found = [value(run, quantity) for run in held[0]]
    return [v for v in found if v is not None]


def _differences(runs: list[Held], minus: list[Held], quantity: Quantity) -> list[Number]:
    """Seed by seed, so that what the seeds share cancels."""
    off = {run.seed: value(run, quantity) for run in minus}
    pairs = [(value(run, quantity), off.get(run.seed)) for run in runs]
    return [a - b for a, b in pairs if isinstance(a, float) and isinstance(b, float)]


def _mean(runs: list[Held], quantity: Quantity) -> float | None:
    """The mean of an arm; NaN where a run has no such number, which is then not left out."""
    found = [v for run in runs if isinstance(v := value(run, quantity), float)]
    return fmean(found) if found else None


def _order(claim: Claim, means: list[float | None]) -> Number:
    """The arms' names from best to worst; undefined where an arm's mean is."""
    known = [
        (name, mean) for name, mean in zip(names(claim), means, strict=True) if mean is not None
    ]
    if len(known) < len(means):
        return None
    if any(isnan(mean) for _, mean in known):
        return nan
    ranked = sorted(known, key=lambda pair: pair[1], reverse=not claim.lowest_first)
    return " > ".join(name for name, _ in ranked)


def names(claim: Claim) -> list[str]:
    """What tells a ranking's arms apart: the rule, the penalty, or how many blocks learn.

    >>> names(find("t3-order-cosine")), names(find("f6-dfa-order-h"))
    (['SB', 'FA', 'CB', 'DFA'], ['λ 0', 'λ 0.0001', 'λ 0.01'])
    """
    if len({arm.rule for arm in claim.arms}) > 1:
        return [arm.rule.upper() for arm in claim.arms]
    if len({arm.penalty for arm in claim.arms}) > 1:
        return [f"λ {arm.penalty:g}" for arm in claim.arms]
    return ["all" if arm.blocks is None else str(arm.blocks) for arm in claim.arms]


# -- what decides ---------------------------------------------------------------------------------


def _judge(claim: Claim, ours: Ours, shown: Ours | None) -> tuple[Standing, str]:
    """The standing and the rule that decided, in words."""
    met = not ours.undefined and _met(claim, ours)
    told = f"{claim.rule}: {'yes' if met else 'no'}"
    if met:
        return REPRODUCED, told
    if claim.line is None:
        return NOT_REPRODUCED, told
    same = _on_side(claim.line, shown)
    known = "not known" if shown is None else "yes" if same else "no"
    side = f"{told}; {claim.line}: {known}"
    return (SAME_VERDICT if same else NOT_REPRODUCED), side


def _met(claim: Claim, ours: Ours) -> bool:
    if claim.kind == "verdict":
        return all(v == claim.published for v in ours.values)
    if claim.kind == "ranking":
        return in_tiers(str(ours.values[0]).split(" > "), cast(Tiers, claim.published))
    if claim.kind == "epoch":
        low, high = cast(tuple[float, float], claim.published)
        return bool(ours.numbers) and all(low <= v <= high for v in ours.numbers)
    return ours.mean is not None and near(claim, ours.mean)


def near(claim: Claim, ours: float) -> bool:
    """Whether a number is the published one, by the rule of its kind.

    >>> near(find("t1-fa-accuracy"), 0.36), near(find("t1-fa-accuracy"), 0.37)
    (True, False)
    """
    if claim.bound:
        published = cast(float, claim.published)
        return ours >= published if claim.bound == "at least" else ours <= published
    return distance(claim, ours) <= 1 + ROUNDING


def distance(claim: Claim, ours: float) -> float:
    """How far a number is from the published one, in tolerances of its kind: 1 is the limit.

    >>> round(distance(find("f6-fa-0-h"), 9e5), 6)
    1.0
    """
    published = cast(float, claim.published)
    if claim.kind == "accuracy":
        return abs(ours - published) / NEAR_PERCENT
    if claim.kind == "cosine":
        return abs(ours - published) / NEAR_COSINE
    if not ours / published > 0 or not isfinite(ours):
        return float("inf")
    decades = abs(log10(ours / published))
    return decades / (NEAR_DECADES if claim.kind == "norm" else log10(NEAR_FACTOR))


def in_tiers(order: Sequence[str], tiers: Tiers) -> bool:
    """Whether an order keeps the published tiers; within a tier anything goes.

    >>> in_tiers(["SB", "DFA", "FA"], (("SB",), ("FA", "DFA")))
    True
    """
    rank = {name: place for place, tier in enumerate(tiers) for name in tier}
    places = [rank[name] for name in order]
    return places == sorted(places)


def _on_side(line: Line, shown: Ours | None) -> bool:
    """Whether the mean stands where the published number stands, with no run left out of it."""
    if shown is None or shown.mean is None or shown.undefined:
        return False
    return (shown.mean >= line.limit) is line.above


# -- the decision tables --------------------------------------------------------------------------


def decision_tables(source: Source, variant: str = "paper") -> tuple[DecisionTable, DecisionTable]:
    """Table 5 (and so Table 4) as published, and replayed from our own evidence."""
    shelf = Shelf(source)
    published = [told.split() for _, _, told in DECIDED.values()]
    ours = [_decided(shelf.runs(arm, variant)) for arm, _, _ in DECIDED.values()]
    return _decision_table(published), _decision_table(ours)


def _decided(runs: list[Held]) -> list[str]:
    return decisions(runs).split() if runs else ["open"] * len(PAPER)


def _decision_table(columns: list[list[str]]) -> DecisionTable:
    words = {"fail": True, "pass": False, "open": None}
    cells = tuple(tuple(words[word] for word in row) for row in zip(*columns, strict=True))
    cases = tuple(name for _, name, _ in DECIDED.values())
    failing = tuple(told.endswith("fail") for _, _, told in DECIDED.values())
    return DecisionTable(strategies=PAPER, cases=cases, failing=failing, cells=cells)


# -- the search -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """One candidate of the search for the papers' recipe: its rows, on one seed."""

    name: str
    rows: tuple[Row, ...]

    @property
    def met(self) -> int:
        """How many published values it reproduces."""
        return sum(row.standing == REPRODUCED for row in self.rows)

    @property
    def run(self) -> bool:
        """Whether all of its runs are there."""
        return all(row.standing != NOT_RUN for row in self.rows)

    @property
    def miss(self) -> float:
        """The mean distance from the published values, each counted up to ``FARTHEST``."""
        found = [row.ours.mean if row.ours else None for row in self.rows]
        pairs = zip(self.rows, found, strict=True)
        return fmean(
            FARTHEST if m is None else min(distance(r.claim, m), FARTHEST) for r, m in pairs
        )


def search(source: Source, stage: str = "local", seed: int = 42) -> list[Candidate]:
    """Every candidate of one stage of the search, scored by all that is published of its runs.

    Most values reproduced comes first; among equals, the smallest mean distance.
    """
    shelf = Shelf(source)
    asked = [find(id).on(setting=SEARCHED_AT, seeds=(seed,)) for id in SEARCH_CLAIMS[stage]]
    found = [
        Candidate(name, tuple(shelf.row(claim, f"{stage}/{name}") for claim in asked))
        for name in SEARCH[stage].candidates
    ]
    return sorted(found, key=lambda c: (not c.run, -c.met, c.miss))
