"""Tables say the same in every medium, and nothing in them can command one."""

from __future__ import annotations

import csv
import io
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Console

from faudit.errors import FauditError
from faudit.report import escape
from faudit.report.cells import Check, Mark, Value
from faudit.report.table import Table
from tests.report.test_escape import TEXT, Texts

FULL = Table(
    "Runs",
    ("setting", "method", "accuracy", "D1", "note"),
    (
        ("A", "BP", Value(0.609, 0.004, 3), Check(Value(1.3, style="size"), (False,)), None),
        ("A", "FA", Value(0.4, None, 1), Check(Value(4e8, 1e7, 2, "size"), (True, True)), 7),
        ("B", "BP", None, Check(None, (None,)), Mark("FAIL(D3)", "bad")),
    ),
    "A caption",
    ("A note.",),
    grouped=True,
)


def rows(text: str) -> list[list[str]]:
    """What a CSV reader sees."""
    return list(csv.reader(io.StringIO(text)))


def test_the_same_numbers_stand_in_every_medium() -> None:
    text, html = FULL.to_text(), Texts(FULL.to_html()).text
    for digits in ("0.609 ± 0.004", "1.30", "0.400"):
        assert digits in text
        assert digits in html
        assert digits in FULL.to_markdown()
    assert r"$0.609 \pm 0.004$" in FULL.to_latex()
    assert r"$(4.0 \pm 0.1) \times 10^{8}$ (flagged)" in FULL.to_latex()
    assert "4.0 ± 0.1 ×108" in html


def test_csv_keeps_full_precision_in_columns_of_its_own() -> None:
    head, *body = rows(Table("t", ("m", "a"), (("x", Value(1 / 3, 1 / 7, 3)),)).to_csv())
    assert head == ["m", "a", "a spread", "a n"]
    assert [float(body[0][1]), float(body[0][2]), int(body[0][3])] == [1 / 3, 1 / 7, 3]


def test_csv_has_a_state_for_every_check() -> None:
    head, *body = rows(FULL.to_csv())
    assert [row[head.index("D1 state")] for row in body] == ["ok", "flagged", "not evaluated"]
    assert [row[head.index("D1")] for row in body] == ["1.3", "400000000.0", ""]


def test_negative_numbers_are_numbers_and_text_is_disarmed_in_csv() -> None:
    table = Table("t", ("a", "b", "c"), ((-0.5, Value(-2.0), "-0.5"),))
    assert rows(table.to_csv())[1][:2] + rows(table.to_csv())[1][-1:] == ["-0.5", "-2.0", "'-0.5"]


def test_a_row_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(FauditError, match=r"row 1 of table 't' has 1 cells for 2 columns"):
        Table("t", ("a", "b"), (("x", 1), ("y",)))


def test_groups_head_their_rows() -> None:
    assert FULL.to_html().count('scope="rowgroup"') == 2
    assert FULL.to_latex().count(r"\multicolumn{4}") == 2
    firsts = [
        line.split()[0] for line in FULL.to_text().splitlines() if "0." in line or "BP" in line
    ]
    assert firsts == ["A", "FA", "B"]


def test_numbers_are_set_to_the_right_in_every_medium() -> None:
    assert r"\begin{tabular}{@{}lrrl@{}}" in FULL.to_latex()
    assert "| --" not in FULL.to_markdown()
    assert FULL.to_markdown().splitlines()[3].count("-:|") == 2


def test_colour_only_repeats_what_words_say() -> None:
    html = FULL.to_html()
    assert "<small>flagged</small>" in html
    assert '<small class="unseen">ok</small>' in html
    assert "not evaluated" in html


def test_cells_know_their_column_where_rows_become_cards() -> None:
    assert 'data-label="accuracy"' in FULL.to_html(cards=True)
    assert "data-label" not in FULL.to_html()


def test_rich_takes_names_as_text_and_never_as_markup() -> None:
    table = Table("[b]t[/b]", ("net[/x]",), (("[red]a[/red]\x1b[2J",),), notes=("[/]",))
    console = Console(file=io.StringIO(), width=100)
    console.print(table.to_rich())
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for name in ("[b]t[/b]", "net[/x]", "[red]a[/red]?[2J", "[/]"):
        assert name in shown
    assert "\x1b" not in shown


@given(TEXT, TEXT, TEXT)
def test_hostile_names_pass_every_exporter_escaped(title: str, column: str, cell: str) -> None:
    table = Table(title, (column, "n"), ((cell, 1), (Mark(cell, "bad"), 2)), title, (cell,))
    plain = escape.plain(cell)
    assert all(c.isprintable() for c in table.to_text().replace("\n", ""))
    page = Texts(table.to_html())
    assert set(page.tags) <= {"div", "table", "caption", "small", "thead", "tbody", "tr", "th",
                              "td", "span", "p"}  # fmt: skip
    assert plain in page.text
    read = rows(table.to_csv())
    assert [len(row) for row in read] == [2, 2, 2]
    assert table.to_latex().isascii()
    assert table.to_latex().count(r"\\" + "\n") == 3
    html = MarkdownIt("gfm-like", {"linkify": False}).render(table.to_markdown())
    assert html.count("<td") == 4
    assert "<script" not in html


@given(TEXT)
def test_grouped_headings_are_escaped_too(head: str) -> None:
    table = Table("t", ("group", "a"), ((head, "x"), (head, "y")), grouped=True)
    assert escape.plain(head) in Texts(table.to_html()).text
    assert table.to_latex().isascii()


@given(st.floats(-1e300, 1e300), st.floats(0, 1e300))
def test_a_value_reads_back_within_the_digits_it_shows(mean: float, spread: float) -> None:
    shown = Value(mean, spread, 3, "size").spelled()
    scale = 10.0 ** (shown.exponent or 0)
    if scale > 0:
        assert float(shown.mean) * scale == pytest.approx(mean, rel=0.06, abs=0.06)


@pytest.mark.parametrize(
    ("mean", "text"),
    [(nan, "undefined"), (inf, "inf"), (-inf, "-inf"), (0.0, "0.00"), (1e-310, "1.0e-310")],
)
def test_numbers_beyond_the_usual_are_named(mean: float, text: str) -> None:
    value = Value(mean, style="size")
    assert str(value) == text
    table = Table("t", ("a",), ((value,),))
    assert text in table.to_text()
    assert table.to_latex()


def test_a_value_counts_the_runs_it_lacks() -> None:
    assert str(Value.of_runs([0.5, None, nan])) == "0.500 (n = 1 of 3)"
    assert Value.of_runs([None, nan]) is None


def test_a_check_says_how_runs_differ() -> None:
    assert Check(None, ()).state == "not evaluated"
    assert Check(None, (True, None)).state == "flagged in 1 of 2"
    assert Check(None, (False, None)).state == "not evaluated in 1 of 2"
    assert [Check(None, f).tone for f in ((True, False), (False,), (False, None), ())] == [
        "bad",
        "good",
        "open",
        "open",
    ]


def test_a_table_longer_than_a_page_becomes_several_floats_with_every_row() -> None:
    table = Table("Runs", ("setting", "n"), tuple(("one", n) for n in range(100)), grouped=True)
    text = table.to_latex()
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 3
    assert "Runs (3 of 3)" in text
    assert text.count(r"\textit{one}") == 3
    assert all(f"\n{n} \\\\" in text for n in range(100))
