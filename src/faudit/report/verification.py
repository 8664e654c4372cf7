"""Verification: a card held against the bundle it claims to come from, number by number."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from math import isnan
from pathlib import Path
from typing import Any, Literal

from faudit import __version__
from faudit.bundle import MANIFEST, Bundle
from faudit.errors import BundleError
from faudit.measures.evidence import Evidence, Record, printable
from faudit.protocol import Thresholds
from faudit.report.card import NOT_A_NUMBER, AuditCard, make_card, read_card

Level = Literal["evidence", "weights"]

RECOMPUTED = 1e-9
"""What is computed from the same evidence may differ in its last digits between platforms."""

TOLERANCES = {
    "size": (1e-3, 0.0),
    "cosine": (0.0, 1e-3),
    "correlation": (0.0, 1e-2),
    "effect": (1e-2, 1e-6),
    "share": (0.0, 2e-3),
}
"""Kind of quantity -> (relative, absolute) change that another machine may make to it.

Where the reference itself is partly rounding, its own relative error against float64 is allowed on
top, for no two machines round alike.
"""

KINDS = {
    "state_norm": "size",
    "growth": "size",
    "reference_norm": "size",
    "cosine": "cosine",
    "cosine_clamped": "cosine",
    "nudging": "effect",
    "perturbation_correlation": "correlation",
}
SINGLES = {"deep_cosine": "cosine", "gamma": "cosine", "loss": "size", "accuracy": "share"}
EXACT = frozenset({"state_norm", "growth", "loss", "accuracy"})
"""Quantities that do not depend on the reference, and so not on its rounding."""

SAME = ("layers", "samples", "dtype", "nonfinite")


class Difference(Record):
    """One place where a card and what it claims to describe disagree.

    >>> print(Difference(place="evidence.cosine[2]", card="0.3", found="0.1"))
    evidence.cosine[2]: the card says 0.3, the bundle 0.1
    """

    place: str
    card: str
    found: str
    tolerance: float = 0.0
    again: bool = False

    def __str__(self) -> str:
        there = "measured again it is" if self.again else "the bundle"
        within = f" (tolerance {self.tolerance:.2g})" if self.tolerance else ""
        return printable(f"{self.place}: the card says {self.card}, {there} {self.found}{within}")


class Verification(Record):
    """What came of holding a card against a bundle.

    ``level``        "evidence": recomputed from the bundle's numbers; "weights": also measured anew
    ``compared``     how many values were compared
    ``differences``  every one that does not agree
    ``notes``        what is worth knowing although it agrees

    >>> print(Verification(digest="0" * 20, level="evidence", compared=212))
    VERIFIED: 212 values of run 00000000000000000000, recomputed from its evidence
    """

    digest: str
    level: Level
    compared: int
    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether everything agrees."""
        return not self.differences

    @property
    def exit_code(self) -> int:
        """For a shell: 0 verified, 1 not."""
        return 0 if self.passed else 1

    def __str__(self) -> str:
        how = "recomputed from its evidence"
        how += " and measured again" if self.level == "weights" else ""
        head = "VERIFIED" if self.passed else f"NOT VERIFIED, {len(self.differences)} differ"
        lines = [f"{head}: {self.compared} values of run {self.digest}, {how}"]
        lines += [f"  {difference}" for difference in self.differences]
        return "\n".join([*map(printable, lines), *(f"  note: {note}" for note in self.notes)])


def verify(
    card: AuditCard | str | os.PathLike[str],
    bundle: Bundle | str | os.PathLike[str],
    *,
    again: bool = False,
    root: str | os.PathLike[str] | None = None,
    device: str = "cpu",
) -> Verification:
    """Recompute a card from a bundle and compare every value; nothing that it says is believed.

    Args:
        card, bundle: objects, or the paths of a file and a folder. The bundle is read from disk
            again, so that what is published is what is verified.
        again: also load weights and rule, take all evidence anew on the recipe's data, and compare
            that within this module's tolerances.
        root: the folder with the data files, for ``again``.
        device: where to measure again.

    >>> verify("no-such-card.json", "no-such-run")
    Traceback (most recent call last):
    faudit.errors.FauditError: cannot read the card no-such-card.json: No such file or directory
    """
    told = card if isinstance(card, AuditCard) else read_card(card)
    level: Level = "weights" if again else "evidence"
    folder = bundle.folder if isinstance(bundle, Bundle) else Path(bundle)
    try:
        held = Bundle.load(folder)
    except BundleError as error:
        if not (folder / MANIFEST).exists():
            raise
        altered = Difference(place="bundle", card="it is whole", found=f"is not: {error}")
        return Verification(digest=told.digest, level=level, compared=0, differences=(altered,))
    pairs = list(_recomputed(told, held))
    if again:
        pairs += _measured(told, held, root, device)
    return Verification(
        digest=told.digest,
        level=level,
        compared=len(pairs),
        differences=tuple(pair.difference() for pair in pairs if not pair.agrees()),
        notes=tuple(_notes(told, held)),
    )


@dataclass(frozen=True)
class _Pair:
    """What a card says at one place and what was found there, and how far apart they may be."""

    place: str
    card: Any
    found: Any
    relative: float = 0.0
    absolute: float = 0.0
    again: bool = False

    @property
    def tolerance(self) -> float:
        """The distance that is allowed."""
        found = _number(self.found)
        return self.absolute + (0.0 if found is None else self.relative * abs(found))

    def agrees(self) -> bool:
        """Whether both are the same, or near enough."""
        card, found = _number(self.card), _number(self.found)
        if card is None or found is None or isnan(card) or isnan(found):
            return bool(str(self.card) == str(self.found))
        return card == found or abs(card - found) <= self.tolerance

    def difference(self) -> Difference:
        """The pair as it is reported."""
        return Difference(
            place=self.place,
            card=f"{self.card}"[:LONGEST],
            found=f"{self.found}"[:LONGEST],
            tolerance=self.tolerance,
            again=self.again,
        )


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str):
        return float(value) if value in NOT_A_NUMBER else None
    return float(value)


_ABSENT = "nothing"
LONGEST = 200


# -- from the evidence ----------------------------------------------------------------------------


def _recomputed(told: AuditCard, held: Bundle) -> Iterator[_Pair]:
    expected = make_card(held, thresholds=told.thresholds)
    for place, card, found in _leaves("", told.to_dict(), expected.to_dict()):
        yield _Pair(place, card, found, RECOMPUTED if place.startswith("findings") else 0.0)


def _leaves(place: str, card: Any, found: Any) -> Iterator[tuple[str, Any, Any]]:
    """Every place in either of two JSON values, with what each has there."""
    if isinstance(card, dict) and isinstance(found, dict):
        for name in {**found, **card}:
            inner = f"{place}.{name}" if place else name
            yield from _leaves(inner, card.get(name, _ABSENT), found.get(name, _ABSENT))
    elif isinstance(card, list) and isinstance(found, list):
        for index, (one, other) in enumerate(zip_longest(card, found, fillvalue=_ABSENT)):
            yield from _leaves(f"{place}[{index}]", one, other)
    else:
        yield place, card, found


# -- from the weights -----------------------------------------------------------------------------


def _measured(
    told: AuditCard, held: Bundle, root: str | os.PathLike[str] | None, device: str
) -> Iterator[_Pair]:
    from faudit.studies.runner import measure_again

    if not held.outcome.done:
        raise BundleError(f"{held.folder} cannot be measured again: the run {held.outcome}")
    anew = measure_again(held, root=root, device=device)
    if anew.evidence is not None:
        yield from _evidence(told.evidence, anew.evidence)
    for name in ("accuracy", "loss"):
        found = getattr(anew.outcome, name)
        yield _Pair(name, getattr(told, name), found, *_allowed(name, 0.0), again=True)


def _evidence(told: Evidence, anew: Evidence) -> Iterator[_Pair]:
    noise = [value if value == value else 0.0 for value in anew.reference_noise]
    most = max(noise, default=0.0)
    for name in SAME:
        yield _Pair(f"evidence.{name}", getattr(told, name), getattr(anew, name), again=True)
    for name in KINDS:
        values = zip_longest(getattr(told, name), getattr(anew, name), fillvalue=_ABSENT)
        for layer, (card, found) in enumerate(values):
            extra = noise[layer] if layer < len(noise) else 0.0
            place = f"evidence.{name}[{layer}]"
            yield _Pair(place, card, found, *_allowed(name, extra), again=True)
    for name in SINGLES:
        card, found = getattr(told, name), getattr(anew, name)
        yield _Pair(f"evidence.{name}", card, found, *_allowed(name, most), again=True)


def _allowed(name: str, noise: float) -> tuple[float, float]:
    """The (relative, absolute) tolerance of a quantity, at a reference this noisy."""
    relative, absolute = TOLERANCES[{**KINDS, **SINGLES}[name]]
    extra = 0.0 if name in EXACT else min(noise, 2.0)
    return (relative + extra, absolute) if relative else (relative, absolute + extra)


def _notes(told: AuditCard, held: Bundle) -> Iterator[str]:
    # The card's own evidence may be forged, and thresholds depend on its dtype.
    used = told.thresholds
    published = used if held.evidence is None else Thresholds.for_evidence(held.evidence)
    for name in Thresholds.field_names():
        if getattr(used, name) != getattr(published, name):
            yield f"thresholds.{name} is {getattr(used, name)}, not {getattr(published, name)}"
    made_by = told.origin.versions.get("faudit")
    if made_by != __version__:
        yield f"the run was made by faudit {made_by}, this is {__version__}"
