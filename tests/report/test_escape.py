"""Every medium gets text that it can only show."""

from __future__ import annotations

import csv as csv_module
import io
import json
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from faudit.report import escape

HOSTILE = (
    "<script>alert(1)</script>",
    "net[/x]",
    "[red]bold[/red]",
    "a|b",
    "50 % of $x_1$ & #2",
    "=cmd|' /C calc'!A0",
    "+1",
    "-1",
    "@SUM(A1)",
    "\x1b[2J\x1b]0;title\x07",
    "\u202egpj.exe\u202c",
    "\u200e\u200f\u2066x\u2069",
    "a\"b'c`d",
    "\\input{/etc/passwd}",
    "--flag ?` !`",
    "line\nbreak\ttab\r\n| x |",
    "</script><!--",
    "{{ 7 * 7 }} {% raw %}",
    "λ ‖h‖ é ñ 漢字 🙂",
    "\ud800 lone",
    "",
    " ",
    "&lt;b&gt;",
    "https://example.org/x",
    "x" * 300,
)
TEXT = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=40))


class Texts(HTMLParser):
    """The text of some HTML, and the tags in it."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.text, self.tags = "", list[str]()
        self.feed(html)
        self.close()

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)


@given(TEXT)
def test_plain_text_has_no_control_characters_and_can_be_written(text: str) -> None:
    safe = escape.plain(text)
    assert safe.isprintable()
    assert "\n" not in safe
    safe.encode("utf-8")


@given(TEXT)
def test_html_reads_back_as_the_plain_text(text: str) -> None:
    found = Texts(f"<p>{escape.html(text)}</p>")
    assert found.text == escape.plain(text)
    assert found.tags == ["p"]


@given(TEXT)
def test_a_markdown_cell_reads_back_as_the_plain_text(text: str) -> None:
    document = f"| a | b |\n|---|---|\n| {escape.markdown(text)} | end |\n"
    html = MarkdownIt("gfm-like", {"linkify": False}).render(document)
    found = Texts(html)
    assert [t for t in found.tags if t not in ("table", "thead", "tbody", "tr", "th", "td")] == []
    assert found.tags.count("td") == 2
    cells = [line.strip() for line in found.text.split("\n") if line.strip()]
    assert cells[2:] == [c for c in (escape.plain(text).strip(), "end") if c]


@given(TEXT)
def test_latex_has_no_character_that_commands(text: str) -> None:
    written = escape.latex(text)
    assert written.isascii()
    for command in (
        *(f"\\{c}" for c in "{}$&#%_"),
        *(f"\\{w}{{}}" for w in ("textbackslash", "textasciicircum", "textasciitilde", "textless",
                                 "textgreater", "textbar", "textquotesingle", "textasciigrave",
                                 "textemdash", "textendash", "dots")),
        *(f"{{{c}}}" for c in "[]*"),
        *(f"$\\{w}$" for w in ("pm", "times", "cdot", "lambda", "Gamma", "varepsilon", "|", "le",
                               "ge")),
        "-{}",
    ):  # fmt: skip
        written = written.replace(command, "")
    assert not set(written) & set('\\{}[]*$&#%_^~<>|"`')


@given(TEXT)
def test_a_csv_cell_never_starts_a_formula(text: str) -> None:
    out = io.StringIO()
    csv_module.writer(out).writerow([escape.csv(text), "end"])
    (row,) = csv_module.reader(io.StringIO(out.getvalue()))
    assert len(row) == 2
    assert not row[0].startswith(("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠"))
    assert escape.plain(text) in row[0]


@given(st.recursive(TEXT, lambda inner: st.lists(inner, max_size=3), max_leaves=5))
def test_script_json_reads_back_and_cannot_close_the_element(value: object) -> None:
    written = escape.script(json.dumps(value))
    assert "<" not in written
    assert json.loads(written) == value


@pytest.mark.parametrize("number", ["0.345", "1e-07", "-5.2 pp", "+25.9 ± 1.7 pp"])
def test_numbers_stay_readable_in_markdown(number: str) -> None:
    assert escape.markdown(number) == number
