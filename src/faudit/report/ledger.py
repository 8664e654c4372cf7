"""The ledger on paper: its tables."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import cast

from faudit.protocol import DecisionTable
from faudit.report import labels
from faudit.report.cells import Cell, Mark, Style, Tone, Value
from faudit.report.table import Row as TableRow
from faudit.report.table import Table
from faudit.studies.claims import Claim, Tiers
from faudit.studies.ledger import (
    NOT_REPRODUCED,
    NOT_RUN,
    REPRODUCED,
    SAME_VERDICT,
    STANDINGS,
    Candidate,
    Ledger,
    Ours,
    Row,
)

TONES: dict[str, Tone] = {
    REPRODUCED: "good",
    SAME_VERDICT: "open",
    NOT_REPRODUCED: "bad",
    NOT_RUN: "quiet",
}
STYLES: dict[str, Style] = {
    "accuracy": "share",
    "cosine": "signed",
    "norm": "size",
    "effect": "size",
    "epoch": "count",
}
WORDS = {True: "fail", False: "pass", None: "open"}
TRUST = (
    "Every seed: only rows with as many seeds as were published. Could have failed: without what"
    " is true by construction and what the recipe was chosen by."
)


def totals_table(ledger: Ledger) -> Table:
    """How many claims ended how under each variant of the recipe, and how far to trust that."""
    kinds = [(variant, every) for variant in ledger.variants for every in (False, True)]
    totals = [ledger.totals(variant, complete=every) for variant, every in kinds]
    rows: list[TableRow] = [(Mark(s, TONES[s]), *(t[s] for t in totals)) for s in STANDINGS]
    rows.append(("all", *(sum(total.values()) for total in totals)))
    telling = [
        reproduced(ledger, variant, complete=every, telling=True) for variant, every in kinds
    ]
    rows.append(("reproduced, and could have failed", *telling))
    columns = ("standing", *(f"{v}, every seed" if every else v for v, every in kinds))
    return Table("Published claims", columns, tuple(rows), TRUST)


def reproduced(ledger: Ledger, variant: str, *, complete: bool, telling: bool) -> int:
    """How many rows are reproduced, of those that are complete or telling if that is asked."""
    rows = [row for row in ledger.of(variant) if row.standing == REPRODUCED]
    return sum((row.complete or not complete) and (row.telling or not telling) for row in rows)


def ledger_table(ledger: Ledger, *, full: bool = False) -> Table:
    """Every claim beside our numbers; ``full`` also says which number, where, and by which rule."""
    about = ("number", "setting", "source", "rule") if full else ()
    ours = [name for v in ledger.variants for name in (f"ours ({v})", f"standing ({v})")]
    by_claim = zip(*(ledger.of(variant) for variant in ledger.variants), strict=True)
    rows = tuple(_claim_row(rows, full) for rows in by_claim)
    columns = ("study", "claim", *about, "published", *ours)
    return Table("Ledger of published claims", columns, rows, grouped=True)


def _claim_row(rows: Sequence[Row], full: bool) -> tuple[Cell, ...]:
    claim = rows[0].claim
    rule = f"{claim.rule}{_care(rows)}"
    about = (str(claim.quantity), setting(claim), claim.source, rule) if full else ()
    found = [cell for row in rows for cell in (ours(row), Mark(row.standing, TONES[row.standing]))]
    return (claim.study, claim.id, *about, published(claim), *found)


def _care(rows: Sequence[Row]) -> str:
    """Why a row says less than it seems to."""
    if rows[0].claim.certain:
        return "; true by construction"
    return "; the recipe was chosen by it" if any(row.fitted for row in rows) else ""


def setting(claim: Claim) -> str:
    """Which runs a claim is about.

    >>> from faudit.studies.claims import find
    >>> setting(find("f6-dfa-gain"))
    'DFA, ResMLP d256 L4, CIFAR-10, 30 epochs, λ = 0.01 minus DFA, ... 30 epochs'
    """
    first = claim.arms[0].recipes()[0]
    who = ", ".join(dict.fromkeys(labels.method(arm.recipes()[0]) for arm in claim.arms))
    told = f"{who}, {labels.setting(first)}"
    if claim.minus is None:
        return told
    other = claim.minus.recipes()[0]
    return f"{told} minus {labels.method(other)}, {labels.setting(other)}"


def published(claim: Claim) -> Cell:
    """What was published, as it is written."""
    found = claim.published
    if claim.kind == "ranking":
        return " > ".join(" = ".join(tier) for tier in cast(Tiers, found))
    if isinstance(found, tuple):
        low, high = found
        return f"{low}" if low == high else f"{low} to {high}"
    if isinstance(found, str):
        return found
    value = Value(found, claim.spread, style=_style(claim))
    return f"{claim.bound} {value}" if claim.bound else value


def _style(claim: Claim) -> Style:
    difference = claim.minus is not None or claim.quantity.name == "margin"
    return "points" if difference else STYLES[claim.kind]


def ours(row: Row) -> Cell:
    """Our number with its spread and the number of seeds, or our word."""
    if row.ours is None:
        return None
    if row.claim.kind in ("verdict", "ranking") or row.ours.mean is None:
        return row.ours.word + _share(row.ours)
    if row.claim.kind == "epoch" and not isfinite(row.ours.mean):
        return f"not in every run{_share(row.ours)}"
    found = row.ours
    return Value(row.ours.mean, found.spread, found.seeds, _style(row.claim), found.of)


def _share(found: Ours) -> str:
    return f" (n = {found.seeds} of {found.of})" if found.seeds < found.of else ""


def open_table(ledger: Ledger, variant: str = "paper") -> Table:
    """What was run and did not reproduce, and what decided that."""
    missed = [row for row in ledger.of(variant) if row.standing == NOT_REPRODUCED]
    rows = tuple(
        (row.claim.id, published(row.claim), ours(row), row.reason, row.claim.note or None)
        for row in missed
    )
    columns = ("claim", "published", "ours", "what decided", "note")
    return Table(f"Not reproduced ({variant})", columns, rows)


def decisions_table(told: DecisionTable, found: DecisionTable) -> Table:
    """Tables 4 and 5 of the paper: published verdict / verdict replayed from our evidence."""
    rows = [
        (strategy, *(f"{WORDS[a]} / {WORDS[b]}" for a, b in zip(own, other, strict=True)))
        for strategy, own, other in zip(told.strategies, told.cells, found.cells, strict=True)
    ]
    return Table("Decision utility, published / ours", ("strategy", *told.cases), tuple(rows))


def search_table(candidates: Sequence[Candidate], question: str = "") -> Table:
    """One stage of the search for the papers' recipe: all candidates beside what is published."""
    asked = [row.claim for row in candidates[0].rows]
    names = [claim.id for claim in asked]
    rows = [
        (c.name, c.met if c.run else None, c.miss if c.run else None, *map(ours, c.rows))
        for c in candidates
    ]
    first = ("published", len(asked), 0.0, *map(published, asked))
    return Table(
        question or "Search for the recipe",
        ("candidate", "values met", "mean distance", *names),
        (first, *rows),
        "One seed, 30 epochs. A value is met by the ledger's own rules; the distance is in their"
        " tolerances, and 1 is the limit.",
    )
