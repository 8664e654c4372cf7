"""The ledger on paper: tables say what the rows say, and documents quote what the results say."""

from __future__ import annotations

from pathlib import Path

import pytest

from faudit.errors import FauditError
from faudit.report.ledger import (
    decisions_table,
    fill,
    fill_document,
    ledger_table,
    open_table,
    ours,
    publish,
    published,
    quotes,
    readme,
    search_table,
    totals_table,
    write_readme,
)
from faudit.studies.claims import CLAIMS, find
from faudit.studies.ledger import STANDINGS, decision_tables, ledger, search
from faudit.studies.store import Store
from tests.studies.fabricated import Everything, bundle

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"


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


def test_a_page_of_results_says_that_nothing_was_run(tmp_path: Path) -> None:
    path = write_readme(tmp_path)
    assert path.read_text() == readme(tmp_path)
    assert f"| not run                           |     {len(CLAIMS)} |" in path.read_text()


def test_a_document_that_quotes_something_else_is_refused() -> None:
    with pytest.raises(FauditError, match="quotes 'sums'"):
        fill("<!-- results: sums --><!-- end -->", {"totals": ""})


def test_filling_a_document_twice_changes_nothing(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- results: totals --><!-- end -->\nb <!-- other -->\n")
    assert fill_document(page, tmp_path)
    assert not fill_document(page, tmp_path)
    assert "reproduced" in page.read_text()


def test_publishing_writes_results_their_page_and_the_quotes(tmp_path: Path) -> None:
    page, folder = tmp_path / "page.md", tmp_path / "results"
    page.write_text("<!-- results: totals --><!-- end -->")
    assert publish(Store.open(tmp_path / "store"), folder, [page]).runs == 0
    assert (folder / "README.md").read_text() == readme(folder)
    assert totals_table(ledger({})).to_markdown() in page.read_text()


@pytest.mark.skipif(not (RESULTS / "README.md").exists(), reason="an installed package")
def test_the_committed_pages_say_what_the_committed_results_say() -> None:
    assert (RESULTS / "README.md").read_text() == readme(RESULTS)
    quoted = quotes(RESULTS)
    for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))):
        if page.exists():
            text = page.read_text(encoding="utf-8")
            assert fill(text, quoted) == text, f"{page.name} is not up to date"
