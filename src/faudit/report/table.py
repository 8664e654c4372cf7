"""Table: one frozen table that writes itself as text, Markdown, LaTeX, HTML and CSV."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from itertools import groupby
from textwrap import fill
from typing import TYPE_CHECKING

from tabulate import tabulate

from faudit.errors import FauditError
from faudit.report import escape
from faudit.report.cells import Cell, Check, Mark, Spelled, Value

if TYPE_CHECKING:
    from rich.table import Table as RichTable

Row = tuple[Cell, ...]
NUMBERS = (int, float, Value, Check)
MISSING = "–"
LONG = 30
LATEX_ROWS = 36
"""As many rows as a page holds; of text that runs over lines, half as many."""
LATEX_TEXT = r"p{0.28\linewidth}"


@dataclass(frozen=True)
class Table:
    """A table; every way out of it escapes what its medium would obey.

    ``grouped``: rows that share their first cell stand together under it.

    >>> table = Table("Runs", ("method", "accuracy"), (("DFA|<b>", Value(0.3, 0.01, 3)),))
    >>> print(table.to_markdown())
    **Runs**
    <BLANKLINE>
    | method             |      accuracy |
    |:-------------------|--------------:|
    | DFA&#124;&lt;b&gt; | 0.300 ± 0.010 |
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    caption: str = ""
    notes: tuple[str, ...] = ()
    grouped: bool = False

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise FauditError(
                    f"row {number} of table {self.title!r} has {len(row)} cells for"
                    f" {len(self.columns)} columns"
                )

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> tuple[Cell, ...]:
        """One column's cells.

        >>> Table("t", ("a",), ((1,), (2,))).column("a")
        (1, 2)
        """
        index = self.columns.index(name)
        return tuple(row[index] for row in self.rows)

    def only(self, *names: str) -> Table:
        """The same table with these columns alone, in this order.

        >>> Table("t", ("a", "b"), ((1, 2),)).only("b").rows
        ((2,),)
        """
        rows = zip(*(self.column(name) for name in names), strict=True)
        return replace(self, columns=names, rows=tuple(rows), grouped=False)

    def numeric(self, index: int) -> bool:
        """Whether a column holds numbers, which are aligned on the right."""
        cells = [row[index] for row in self.rows if row[index] not in (None, "")]
        return bool(cells) and all(isinstance(cell, NUMBERS) for cell in cells)

    # -- the media --------------------------------------------------------------------------------

    def to_text(self) -> str:
        """For a terminal or a log; nothing in it can drive the terminal."""
        body = self._tabulated("simple", escape.plain)
        width = max(80, *map(len, body.splitlines()))
        below = (fill(escape.plain(text), width) for text in self._below())
        return "\n".join([escape.plain(self.title), "", body, *below])

    def to_rich(self) -> RichTable:
        """For a rich console; names are text to it, never markup."""
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        told = "\n".join(map(escape.plain, self._below()))
        title = Text(escape.plain(self.title), "bold")
        table = RichTable(title=title, caption=Text(told, "dim"), title_justify="left",
                          caption_justify="left", box=box.SIMPLE_HEAD)  # fmt: skip
        for index, name in enumerate(self.columns):
            table.add_column(
                Text(escape.plain(name)),
                justify="right" if self.numeric(index) else "left",
                overflow="fold",
                # A verdict must not lose its end to a narrow terminal.
                no_wrap=any(isinstance(cell, Mark) for cell in self.column(name)),
            )
        for row in self.rows:
            table.add_row(
                *(Text(escape.plain(_written(cell)), _STYLES[_tone(cell)]) for cell in row)
            )
        return table

    def to_markdown(self) -> str:
        """A table as GitHub and others read it."""
        head = f"**{escape.markdown(self.title)}**"
        notes = [f"\n{escape.markdown(note)}" for note in self._below()]
        return "\n".join([head, "", self._tabulated("pipe", escape.markdown), *notes])

    def to_latex(self) -> str:
        """A ``table`` environment for a document that uses the package booktabs.

        A float longer than a page would lose its end, so a long table becomes several.
        """
        shape = "".join(map(self._latex_column, self._body_columns()))
        most = LATEX_ROWS // 2 if "p{" in shape else LATEX_ROWS
        parts = [self.rows[i : i + most] for i in range(0, len(self.rows), most)] or [()]
        floats = []
        for number, rows in enumerate(parts, 1):
            title = f"{self.title} ({number} of {len(parts)})" if len(parts) > 1 else self.title
            floats.append(replace(self, rows=rows, title=title)._latex_float(shape))
        return "\n".join(floats)

    def _latex_float(self, shape: str) -> str:
        lines = [
            r"\begin{table}[htbp]",
            r"\centering\footnotesize\setlength{\tabcolsep}{4pt}",
            rf"\caption{{{escape.latex(self._caption())}}}",
            rf"\begin{{tabular}}{{@{{}}{shape}@{{}}}}",
            r"\toprule",
            _latex_row(escape.latex(self.columns[i]) for i in self._body_columns()),
            r"\midrule",
            *self._latex_body(),
            r"\bottomrule",
            r"\end{tabular}",
            *(rf"\par\smallskip{{\footnotesize {escape.latex(note)}}}" for note in self.notes),
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"

    def to_html(self, *, cards: bool = False) -> str:
        """A ``<table>`` with caption and scoped headers; classes, but no style of its own.

        ``cards``: give every cell its column's name, for a narrow page that stacks them.
        """
        head = "".join(
            f'<th scope="col"{_class(self._classes(i))}>{escape.html(self.columns[i])}</th>'
            for i in self._body_columns()
        )
        label = escape.html(self.title)
        notes = "".join(f'<p class="note">{escape.html(note)}</p>' for note in self.notes)
        return (
            f'<div class="table{" cards" * cards}"><div class="scroll" role="region"'
            f' aria-label="{label}" tabindex="0"><table>'
            f"<caption>{label}{self._html_caption()}</caption>"
            f"<thead><tr>{head}</tr></thead>{self._html_body(cards)}</table></div>{notes}</div>"
        )

    def to_csv(self) -> str:
        """Full precision: a number with spread takes three columns, a check four."""
        out = StringIO()
        writer = csv.writer(out, lineterminator="\n")
        kinds = [_kind(row[i] for row in self.rows) for i in range(len(self.columns))]
        writer.writerow(
            escape.csv(f"{name}{part}")
            for name, kind in zip(self.columns, kinds, strict=True)
            for part in _CSV_PARTS[kind]
        )
        for row in self.rows:
            pairs = zip(row, kinds, strict=True)
            writer.writerow(part for cell, kind in pairs for part in _csv_cells(cell, kind))
        return out.getvalue()

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return f'<div class="faudit"><style>{_NOTEBOOK}</style>{self.to_html()}</div>'

    # -- parts ------------------------------------------------------------------------------------

    def _caption(self) -> str:
        return f"{self.title}. {self.caption}" if self.caption else self.title

    def _below(self) -> tuple[str, ...]:
        return (*((self.caption,) if self.caption else ()), *self.notes)

    def _body_columns(self) -> range:
        return range(1 if self.grouped else 0, len(self.columns))

    def _groups(self) -> Iterator[tuple[str, list[Row]]]:
        """Heading and rows; without grouping one group under no heading."""
        for heading, rows in groupby(self.rows, lambda row: row[0] if self.grouped else ""):
            yield _written(heading), list(rows)

    def _tabulated(self, form: str, safe: Callable[[object], str]) -> str:
        rows = [
            [safe(_written(cell)) if i or not self.grouped else safe(shown)
             for i, cell in enumerate(row)]
            for shown, row in self._with_heading_once()
        ]  # fmt: skip
        sides = ["right" if self.numeric(i) else "left" for i in range(len(self.columns))]
        headers = [safe(name) for name in self.columns]
        return tabulate(rows, headers, tablefmt=form, colalign=sides, disable_numparse=True)

    def _with_heading_once(self) -> Iterator[tuple[str, Row]]:
        for heading, rows in self._groups():
            for position, row in enumerate(rows):
                yield "" if position else heading, row

    def _latex_column(self, index: int) -> str:
        if self.numeric(index):
            return "r"
        return LATEX_TEXT if "long" in self._classes(index) else "l"

    def _latex_body(self) -> Iterator[str]:
        for position, (heading, rows) in enumerate(self._groups()):
            if heading:
                yield from [r"\addlinespace"] if position else []
                yield (
                    rf"\multicolumn{{{len(self.columns) - 1}}}{{@{{}}l}}"
                    rf"{{\textit{{{escape.latex(heading)}}}}} \\"
                )
            for row in rows:
                yield _latex_row(_latex_cell(row[i]) for i in self._body_columns())

    def _classes(self, index: int) -> list[str]:
        """How a column is set: numbers to the right, long text with room."""
        if self.numeric(index):
            return ["number"]
        texts = (row[index] for row in self.rows)
        return ["long"] if any(isinstance(t, str) and len(t) > LONG for t in texts) else []

    def _html_caption(self) -> str:
        return f"<small>{escape.html(self.caption)}</small>" if self.caption else ""

    def _html_body(self, cards: bool) -> str:
        span = len(self._body_columns())
        parts = []
        for heading, rows in self._groups():
            top = (
                f'<tr class="group"><th scope="rowgroup" colspan="{span}">'
                f"<span>{escape.html(heading)}</span></th></tr>"
            )
            body = "".join(self._html_row(row, cards) for row in rows)
            parts.append(f"<tbody>{top if heading else ''}{body}</tbody>")
        return "".join(parts)

    def _html_row(self, row: Row, cards: bool) -> str:
        first, *others = self._body_columns()
        head = f'<th scope="row">{_html_cell(row[first])}</th>'
        cells = []
        for i in others:
            label = f' data-label="{escape.html(self.columns[i])}"' if cards else ""
            cell = row[i]
            kinds = self._classes(i) + ([_tone(cell)] if isinstance(cell, Check | Mark) else [])
            cells.append(f"<td{_class(kinds)}{label}>{_html_cell(cell)}</td>")
        return f"<tr>{head}{''.join(cells)}</tr>"


_STYLES = {"good": "green", "bad": "bold red", "open": "yellow", "quiet": ""}


def _tone(cell: Cell) -> str:
    return cell.tone if isinstance(cell, Check | Mark) else "quiet"


def _written(cell: Cell) -> str:
    if cell is None:
        return MISSING
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


# -- LaTeX ----------------------------------------------------------------------------------------


def _latex_row(cells: Iterator[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_cell(cell: Cell) -> str:
    if isinstance(cell, Value):
        return _latex_number(cell.spelled())
    if isinstance(cell, Check) and cell.value is not None:
        note = "" if cell.state == "ok" else escape.latex(f"({cell.state})")
        return f"{_latex_number(cell.value.spelled())} {note}".strip()
    text = escape.latex(_written(cell))
    return rf"\textbf{{{text}}}" if isinstance(cell, Mark) and cell.tone == "bad" else text


def _latex_number(number: Spelled) -> str:
    if not any(c.isdigit() for c in number.mean):
        return escape.latex(str(number))
    digits = rf"{number.mean} \pm {number.spread}" if number.spread else number.mean
    if number.exponent is not None:
        grouped = f"({digits})" if number.spread else digits
        digits = rf"{grouped} \times 10^{{{number.exponent}}}"
    rest = " ".join(filter(None, (number.unit, number.remark)))
    return f"${digits}$~{escape.latex(rest)}" if rest else f"${digits}$"


# A notebook has its own idea of tables; colours here stand out from light and dark grounds alike.
_NOTEBOOK = (
    ".faudit caption{text-align:left;font-weight:600}"
    ".faudit caption small,.faudit td small{display:block;font-weight:400;opacity:.75}"
    ".faudit :is(th,td){text-align:left;vertical-align:baseline}"
    ".faudit .number{text-align:right;white-space:nowrap}"
    ".faudit .unseen{display:none!important}.faudit .spread,.faudit .note{opacity:.75}"
    ".faudit :is(.bad .value,.mark.bad){color:#d0453c;font-weight:600}"
    ".faudit .mark.good{color:#2c8a5f;font-weight:600}"
)


# -- HTML -----------------------------------------------------------------------------------------


def _class(names: Sequence[str]) -> str:
    return f' class="{" ".join(names)}"' if names else ""


def _html_cell(cell: Cell) -> str:
    if isinstance(cell, Value):
        return _html_number(cell.spelled())
    if isinstance(cell, Check):
        number = "" if cell.value is None else _html_number(cell.value.spelled())
        number = f'<span class="value">{number}</span>' if number else ""
        hidden = ' class="unseen"' if cell.state == "ok" else ""
        return f"{number} <small{hidden}>{escape.html(cell.state)}</small>".strip()
    if isinstance(cell, Mark):
        return f'<span class="mark {cell.tone}">{escape.html(cell.text)}</span>'
    return escape.html(_written(cell))


def _html_number(number: Spelled) -> str:
    digits = escape.html(number.mean).replace("-", "−")
    if number.spread:
        digits += f' <span class="spread">± {escape.html(number.spread)}</span>'
    if number.exponent is not None:
        digits += f" ×10<sup>{str(number.exponent).replace('-', '−')}</sup>"
    unit = f"\N{NO-BREAK SPACE}{escape.html(number.unit)}" if number.unit else ""
    return f"{digits}{unit}" + (
        f" <small>{escape.html(number.remark)}</small>" if number.remark else ""
    )


# -- CSV ------------------------------------------------------------------------------------------

_CSV_PARTS = {
    "plain": ("",),
    "value": ("", " spread", " n"),
    "check": ("", " spread", " n", " state"),
}


def _kind(cells: Iterator[Cell]) -> str:
    kinds = {type(cell) for cell in cells}
    return "check" if Check in kinds else "value" if Value in kinds else "plain"


def _csv_cells(cell: Cell, kind: str) -> list[str]:
    if kind == "plain":
        return [_csv_cell(cell)]
    value = cell.value if isinstance(cell, Check) else cell
    if not isinstance(value, Value):
        numbers = [_csv_cell(value), "", ""]
    else:
        numbers = [repr(value.mean), "" if value.spread is None else repr(value.spread)]
        numbers.append(str(value.n))
    state = [cell.state if isinstance(cell, Check) else ""] if kind == "check" else []
    return [*numbers, *state]


def _csv_cell(cell: Cell) -> str:
    if cell is None:
        return ""
    # Numbers may start with a minus; text that does is disarmed.
    return repr(cell) if isinstance(cell, int | float) else escape.csv(cell)
