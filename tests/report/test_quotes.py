"""Documents say what the committed results say, and nothing in them was typed."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from faudit.bundle import pack_correct
from faudit.errors import FauditError
from faudit.report.ledger import totals_table
from faudit.report.quotes import (
    fill,
    fill_document,
    ledger_page,
    publish,
    quotes,
    write_ledger,
)
from faudit.studies.audits import on
from faudit.studies.claims import CLAIMS, find
from faudit.studies.ledger import DEVICES, ledger, search, status
from faudit.studies.results import Results, written
from faudit.studies.store import Store
from faudit.studies.variants import CHOSEN, SEARCH

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
PAGES = (ROOT / "README.md", RESULTS / "README.md", *sorted(ROOT.glob("docs/*.md")))


def test_a_ledger_of_nothing_says_that_nothing_was_run(tmp_path: Path) -> None:
    path = write_ledger(tmp_path)
    assert path.read_text() == ledger_page(tmp_path)
    assert f"| not run                           |     {len(CLAIMS)} |" in path.read_text()
    assert "0 runs, made with nothing yet" in path.read_text()


@pytest.mark.parametrize(
    "quote", ["<!-- results: sums --><!-- end -->", "<!-- ours: x --><!-- / -->"]
)
def test_a_document_that_quotes_something_else_is_refused(quote: str) -> None:
    with pytest.raises(FauditError, match="which the results do not have"):
        fill(quote, {"totals": ""})


def test_quotes_in_a_line_keep_the_line() -> None:
    text = (
        "a <!-- ours: t1-fa-margin -->1<!-- / --> b <!-- published: t1-fa-margin -->2<!-- / --> c"
    )
    filled = fill(text, {"ours: t1-fa-margin": "+4 pp", "published: t1-fa-margin": "-0 pp"})
    assert filled.count("\n") == 0
    assert "-->+4 pp<!-- / --> b" in filled
    assert "-->-0 pp<!-- / --> c" in filled


def test_filling_a_document_twice_changes_nothing(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- results: totals --><!-- end -->\nb <!-- told: runs --><!-- / -->\n")
    assert fill_document(page, tmp_path)
    assert not fill_document(page, tmp_path)
    assert "reproduced" in page.read_text()
    assert "-->0<!--" in page.read_text()


def test_publishing_writes_results_their_page_and_the_quotes(tmp_path: Path) -> None:
    page, folder = tmp_path / "page.md", tmp_path / "results"
    page.write_text("<!-- results: totals --><!-- end -->")
    assert publish(Store.open(tmp_path / "store"), folder, [page]).runs == 0
    assert (folder / "LEDGER.md").read_text() == ledger_page(folder)
    assert totals_table(ledger({})).to_markdown() in page.read_text()


@pytest.mark.skipif(not RESULTS.is_dir(), reason="an installed package")
def test_every_claim_and_every_count_can_be_quoted() -> None:
    quoted, found = quotes(RESULTS), status(RESULTS)
    for claim in CLAIMS:
        assert quoted[f"ours: {claim.id}"]
        assert quoted[f"published: {claim.id}"]
        assert quoted[f"ours: {claim.id} plain"]
    counts = ("reproduced", "same-verdict", "not-reproduced", "not-run")
    assert sum(int(quoted[f"told: {name} paper"]) for name in counts) == len(found.of("paper"))


@pytest.mark.skipif(not RESULTS.is_dir(), reason="an installed package")
@pytest.mark.parametrize("stage", SEARCH)
def test_the_recipe_is_the_one_on_top_of_the_committed_search(stage: str) -> None:
    ranked = search(Results(RESULTS), stage)
    chosen = next(candidate for candidate in ranked if candidate.name == CHOSEN[stage])
    assert chosen.run
    assert (chosen.met, chosen.miss) == (ranked[0].met, ranked[0].miss)


@pytest.mark.skipif(not RESULTS.is_dir(), reason="an installed package")
def test_a_run_that_changes_is_seen_in_all_that_quotes_it(tmp_path: Path) -> None:
    folder, before = tmp_path / "results", quotes(RESULTS)
    shutil.copytree(RESULTS, folder)
    results, arm = Results(folder), find("t6-bp-accuracy").arms[0]
    there = (on(device, recipe) for recipe in arm.recipes() for device in DEVICES)
    made = results[next(recipe for recipe in there if recipe in results)]
    worse = made.outcome.replace(accuracy=0.0, correct=pack_correct([False] * made.outcome.tests))
    changed = replace(made, outcome=worse, history=made.history)
    results.path(made.recipe).write_text(written(changed), encoding="utf-8")
    after = quotes(folder)
    moved = {name for name in before if before[name] != after[name]}
    assert {"totals", "not reproduced", "ours: t6-bp-accuracy", "ours: t6-bp-margin"} <= moved
    assert not {name for name in moved if name.startswith(("published:", "ours: t1-"))}
    page = tmp_path / "page.md"
    page.write_text(fill((RESULTS / "README.md").read_text(encoding="utf-8"), before))
    assert fill_document(page, folder), "the page is stale"


@pytest.mark.skipif(not RESULTS.is_dir(), reason="an installed package")
def test_no_measured_number_on_the_page_of_results_was_typed() -> None:
    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    by_hand = re.sub(r"<!-- results: .*?<!-- end -->|<!-- \w+: .*?<!-- / -->", "", text, flags=re.S)
    assert not re.findall(r"[^\n]*(?:\d\.\d|\de-\d|\d ?%|\d ?pp\b)[^\n]*", by_hand)


@pytest.mark.skipif(not RESULTS.is_dir(), reason="an installed package")
def test_the_committed_pages_say_what_the_committed_results_say() -> None:
    assert (RESULTS / "LEDGER.md").read_text(encoding="utf-8") == ledger_page(RESULTS)
    quoted = quotes(RESULTS)
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert fill(text, quoted) == text, f"{page.name} is not up to date"
