"""The look of every figure: one palette for light and dark, told apart without colour as well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import matplotlib as mpl

from faudit.report.labels import RULES

# Light and dark shade of each named colour. Figures are drawn in the light ones; the page swaps.
# The shades of a mode lie as far apart as a search could bring them for the least favoured of full
# sight, protanopia, deuteranopia and tritanopia, while each stands out from its ground.
PALETTE: dict[str, tuple[str, str]] = {
    "ink": ("#1c2127", "#e8eaed"),
    "soft": ("#5b6470", "#a3abb6"),
    "faint": ("#d9dde2", "#3a424c"),
    "ground": ("#ffffff", "#14181d"),
    "alarm": ("#b3261e", "#ff8a80"),
    "fine": ("#1a6b47", "#6fd3a3"),
    "blue": ("#154cb6", "#5c9dff"),
    "vermilion": ("#c25a06", "#e07c22"),
    "green": ("#0f8050", "#25e187"),
    "purple": ("#a352a0", "#c57ec5"),
    "sky": ("#146dc8", "#a0d6ff"),
    "ochre": ("#603503", "#efd000"),
    "stone": ("#707070", "#929498"),
}
SERIES = ("ink", "blue", "vermilion", "green", "purple", "ochre", "sky", "stone")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES: tuple[tuple[float, ...], ...] = ((), (4, 1.5), (1, 1.2), (5, 1.2, 1, 1.2))
OF_RULE = {
    "bp": "ink",
    "fa": "blue",
    "dfa": "vermilion",
    "sb": "green",
    "cb": "purple",
    "ep": "ochre",
}

RC = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 9,
    "axes.labelsize": 8.5,
    "axes.labelcolor": PALETTE["soft"][0],
    "axes.edgecolor": PALETTE["faint"][0],
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "axes.unicode_minus": True,
    "axes.facecolor": "none",
    "grid.color": PALETTE["faint"][0],
    "grid.linewidth": 0.6,
    "xtick.color": PALETTE["faint"][0],
    "ytick.color": PALETTE["faint"][0],
    "xtick.labelcolor": PALETTE["soft"][0],
    "ytick.labelcolor": PALETTE["soft"][0],
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "text.color": PALETTE["ink"][0],
    # A name with dollars in it is a name, not mathematics.
    "text.parse_math": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "lines.solid_capstyle": "round",
    "figure.facecolor": PALETTE["ground"][0],
    "savefig.facecolor": "auto",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "path.simplify": True,
}


def colour(name: str) -> str:
    """The light shade of a named colour.

    >>> colour("ground")
    '#ffffff'
    """
    return PALETTE[name][0]


@contextmanager
def drawing(salt: str = "faudit") -> Iterator[None]:
    """Matplotlib with this look, and as it was before afterwards."""
    # The backend is the user's, and the one setting that rc_context would not put back.
    default = {name: value for name, value in mpl.rcParamsDefault.items() if name != "backend"}
    with mpl.rc_context({**default, **RC, "svg.hashsalt": salt}):
        yield


@dataclass(frozen=True)
class Look:
    """How one series is drawn: colour, marker and dashes all tell it apart."""

    name: str
    marker: str
    dashes: tuple[float, ...] = ()

    @property
    def colour(self) -> str:
        """The light shade."""
        return colour(self.name)


def looks(labels: Iterable[str]) -> dict[str, Look]:
    """A look per label: a rule keeps its colour on every figure, variants differ in dashes.

    >>> found = looks(["BP", "DFA", "DFA, lr 0.01", "mine"])
    >>> [look.name for look in found.values()]
    ['ink', 'vermilion', 'vermilion', 'blue']
    """
    found: dict[str, Look] = {}
    given = list(labels)
    taken = {name for label in given if (name := _own_colour(label))}
    spare = [name for name in SERIES if name not in taken] or list(SERIES)
    following = count()
    for label in given:
        name = _own_colour(label) or spare[next(following) % len(spare)]
        before = sum(look.name == name for look in found.values())
        marker = MARKERS[(SERIES.index(name) + before) % len(MARKERS)]
        found[label] = Look(name, marker, DASHES[before % len(DASHES)])
    return found


def _own_colour(label: str) -> str | None:
    first = label.partition(",")[0]
    return next(
        (OF_RULE[rule] for rule, name in RULES.items() if name == first and rule in OF_RULE), None
    )
