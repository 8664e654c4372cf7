"""The ledger on paper: tables say what the rows say."""

from __future__ import annotations

import pytest

from faudit.report.ledger import (
    decisions_table,
    ledger_table,
    open_table,
    ours,
    published,
    search_table,
    totals_table,
)
from faudit.studies.claims import CLAIMS, find
from faudit.studies.ledger import STANDINGS, decision_tables, ledger, search
from tests.studies.fabricated import Everything, bundle


def test_totals_are_counted_from_the_rows() -> None:
    found = ledger(Everything())
    table = totals_table(found)
    counts = table.column("paper")
    assert list(counts[: len(STANDINGS)]) == list(found.totals().values())
    assert counts[len(STANDINGS)] == len(CLAIMS)


def test_every_claim_has_a_row_with_its_own_number() -> None:
    table = ledger_table(ledger(Everything()), full=True)
    assert list(table.column("claim")) == [claim.id for claim in CLAIMS]
    for medium in (table.to_text(), table.to_markdown(), table.to_html()):
        assert "f6-dfa-1e-2-cosine" in medium


@pytest.mark.parametrize(
    ("id", "said"),
    [
        ("t1-fa-accuracy", "0.345"),
        ("t1-frozen-accuracy", "0.349 ± 0.002"),
        ("t1-fa-margin", "-0.4 pp"),
        ("f6-dfa-gain", "+5.9 pp"),
        ("f4-dfa-d2-epoch", "3 to 4"),
        ("f4-vit-dfa-d1-epoch", "1"),
        ("t2-no-ln-fa-g", "at least 1.0e-04"),
        ("t3-order-accuracy", "SB > FA = CB = DFA"),
        ("t6-fa-verdict", "FAIL(D3)"),
    ],
)
def test_what_was_published_is_written_as_it_was(id: str, said: str) -> None:
    assert str(published(find(id))) == said


def test_our_number_says_how_many_seeds_it_has() -> None:
    arm = find("t1-fa-gamma").arms[0]
    source = {recipe: bundle(recipe) for recipe in arm.recipes()[:2]}
    row = ledger(source, claims=[find("t1-fa-gamma")], variants=["paper"]).rows[0]
    assert str(ours(row)) == "+0.500 ± 0.000 (n = 2 of 3)"


def test_what_never_happens_is_not_written_as_infinity() -> None:
    arm = find("f4-dfa-d2-epoch").arms[0]
    source = {recipe: bundle(recipe) for recipe in arm.recipes()}
    row = ledger(source, claims=[find("f4-dfa-d2-epoch")], variants=["paper"]).rows[0]
    assert ours(row) == "not in every run"


def test_only_what_was_run_is_listed_as_not_reproduced() -> None:
    assert len(open_table(ledger({}))) == 0
    found = ledger(Everything())
    assert len(open_table(found)) == found.totals()["not reproduced"] > 0


def test_decisions_stand_side_by_side() -> None:
    table = decisions_table(*decision_tables({}))
    assert table.column("FA, ResMLP d512 L2") == (
        "pass / open",
        "pass / open",
        "pass / open",
        "fail / open",
    )


def test_the_search_shows_what_was_published_first() -> None:
    table = search_table(search(Everything()))
    assert table.column("candidate")[0] == "published"
    assert table.column("values met")[0] == 9
