"""Plate: a figure with caption and words for those who cannot see it; to files and into pages."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from io import BytesIO
from math import ceil

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from faudit.errors import FauditError, unknown
from faudit.report import escape
from faudit.report.inline import Styles, for_page
from faudit.report.style import drawing

FORMATS = ("svg", "pdf", "png")
# Dates would make every file differ from the last.
_METADATA: dict[str, dict[str, str | None]] = {
    "svg": {"Date": None, "Creator": "faudit"},
    "pdf": {"CreationDate": None},
    "png": {},
}
_STAMP = {"svg": "Description", "pdf": "Subject", "png": "Description"}


@dataclass(frozen=True)
class Panel:
    """One pair of axes: its title, what draws it, and its content in words."""

    title: str
    draw: Callable[[Axes], None]
    words: str = ""
    size: tuple[float, float] = (3.6, 2.7)
    above: float = 9.0
    """Points between the axes and the title."""


@dataclass(frozen=True)
class Plate:
    """A figure made of panels, which a page may lay out as its width allows.

    >>> plate = Plate("line", "A line", "It rises.", (Panel("", lambda ax: ax.plot([1, 2])),))
    >>> plate.to_svg() == plate.to_svg()
    True
    """

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    columns: int = 3
    stamp: str = ""
    """Where the numbers come from; it travels inside the file."""

    def figure(self, only: int | None = None) -> Figure:
        """The matplotlib figure of all panels, or of one."""
        with drawing():
            return self._draw(self.panels if only is None else (self.panels[only],))

    def to_svg(self) -> bytes:
        """Vector graphics with text as text; the same bytes every time."""
        return self.files(["svg"])["svg"]

    def files(self, formats: Iterable[str] = FORMATS) -> dict[str, bytes]:
        """The figure as "svg", "pdf" (both the same bytes every time) and "png"."""
        return self._saved(formats, self.panels, self.name)

    def inline(self, index: int, styles: Styles | None = None) -> str:
        """One panel as an ``<svg>`` for a page: labelled, small, in the page's own colours."""
        panel = self.panels[index]
        raw = self._saved(("svg",), (panel,), f"{self.name}-{index}")["svg"]
        title = ": ".join(filter(None, (self.title, panel.title)))
        return for_page(raw, f"{title}. {panel.words}".strip(), styles)

    def _repr_html_(self) -> str:
        picture = self.to_svg().decode().partition("<svg")[2]
        told = f"<strong>{escape.html(self.title)}.</strong> {escape.html(self.caption)}"
        style = "max-width:62em;background:#fff;color:#1c2127;padding:1em"
        return f'<figure style="{style}"><svg{picture}<figcaption>{told}</figcaption></figure>'

    def _draw(self, panels: tuple[Panel, ...]) -> Figure:
        columns = min(self.columns, len(panels))
        rows = ceil(len(panels) / columns)
        width = sum(panel.size[0] for panel in panels[:columns])
        height = sum(
            max(p.size[1] for p in panels[r * columns : (r + 1) * columns]) for r in range(rows)
        )
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        for number, panel in enumerate(panels, 1):
            axes = figure.add_subplot(rows, columns, number)
            panel.draw(axes)
            axes.set_title(escape.plain(panel.title), pad=panel.above)
        return figure

    def _saved(
        self, formats: Iterable[str], panels: tuple[Panel, ...], salt: str
    ) -> dict[str, bytes]:
        with drawing(salt), warnings.catch_warnings():
            # A name in a script that the font lacks shows boxes; that is no reason to fail.
            warnings.filterwarnings("ignore", message="Glyph .* missing")
            figure = self._draw(panels)
            # Every format shares the layout that is found once.
            if (engine := figure.get_layout_engine()) is not None:
                engine.execute(figure)
            figure.set_layout_engine("none")
            return {form: _bytes(figure, form, self.stamp) for form in formats}


def _bytes(figure: Figure, form: str, stamp: str) -> bytes:
    if form not in FORMATS:
        raise FauditError(unknown("figure format", form, FORMATS))
    out = BytesIO()
    told = {_STAMP[form]: escape.plain(stamp)} if stamp else {}
    figure.savefig(out, format=form, dpi=200, metadata={**_METADATA[form], **told})
    return out.getvalue()
