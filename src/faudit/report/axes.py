"""What several figures need on a pair of axes: direct labels, bands, decades, thresholds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, exp, isfinite, log, log10
from statistics import fmean
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from faudit.report.escape import plain
from faudit.report.style import Look, colour

LONGEST = 28
# What an axis can still show with room around it; the rest lies outside.
SMALLEST, LARGEST = 1e-250, 1e250
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def short(text: str, longest: int = LONGEST) -> str:
    """A name fit to stand beside a line.

    >>> short("a" * 40, longest=9)
    'aaaaaaaa…'
    """
    safe = plain(text)
    return safe if len(safe) <= longest else f"{safe[: longest - 1]}…"


def told_apart(
    names: Iterable[str], longest: int = LONGEST, *, whole: bool = False
) -> dict[str, str]:
    """Each name as it stands beside a line: shortened, and still no two alike.

    What all of several variants of one rule begin with is left out, unless ``whole``.

    >>> told_apart(["DFA", "DFA, steps 4"])
    {'DFA': 'DFA', 'DFA, steps 4': 'DFA, steps 4'}
    >>> list(told_apart(["DFA, constant lr per batch", "DFA, constant lr per sample"], 15).values())
    ['constan…r batch', 'constan… sample']
    """
    given = list(dict.fromkeys(names))
    first = {name.partition(", ")[0] for name in given}
    start = f"{first.pop()}, " if len(given) > 1 and len(first) == 1 else ""
    drop = "" if whole or not all(name.startswith(start) for name in given) else start
    safe = {name: plain(name.removeprefix(drop)) for name in given}
    shown = {name: short(text, longest) for name, text in safe.items()}
    alike = Counter(shown.values())
    for name, text in safe.items():
        if alike[shown[name]] > 1 and len(text) > longest:
            half = longest // 2
            shown[name] = f"{text[:half]}…{text[half + 1 - longest :]}"
    return _numbered(shown)


def _numbered(shown: Mapping[str, str]) -> dict[str, str]:
    """Whatever is still alike gets a number in place of its last characters."""
    texts = list(shown.values())
    numbers = {name: texts[: i + 1].count(text) for i, (name, text) in enumerate(shown.items())}
    return {
        name: text if texts.count(text) == 1 else f"{text[:-2].rstrip()} {numbers[name]}"
        for name, text in shown.items()
    }


def power(value: float) -> str:
    """A power of ten as people write it.

    >>> power(1e-7), power(10)
    ('10⁻⁷', '10')
    """
    exponent = round(log10(value))
    return {0: "1", 1: "10", 2: "100"}.get(exponent, f"10{str(exponent).translate(_RAISED)}")


def number(value: float) -> str:
    """A number in a figure: few digits, raised powers.

    >>> number(4.13e8), number(0.152), number(4712.0), number(1e-7)
    ('4.1×10⁸', '0.152', '4710', '10⁻⁷')
    """
    if not isfinite(value):
        return f"{value}"
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{float(f'{value:.3g}'):g}"
    mantissa, _, exponent = f"{value:.6e}".partition("e")
    raised = f"10{str(int(exponent)).translate(_RAISED)}"
    return raised if float(mantissa) == 1 else f"{float(mantissa):.1f}×{raised}"


def decades(ax: Axes, axis: Literal["x", "y"] = "y", values: Iterable[float] = ()) -> None:
    """A logarithmic axis with few, readable ticks that has room for ``values``."""
    known = [log10(v) for v in values if SMALLEST < v < LARGEST]
    low, high = (min(known), max(known)) if known else (-1.0, 0.0)
    room = max(0.5, 0.08 * (high - low))
    limits = (10 ** (low - room), 10 ** (high + room))
    (ax.set_yscale if axis == "y" else ax.set_xscale)("log")
    (ax.set_ylim if axis == "y" else ax.set_xlim)(*limits)
    side = ax.yaxis if axis == "y" else ax.xaxis
    side.set_major_locator(LogLocator(numticks=6))
    side.set_minor_locator(NullLocator())
    side.set_major_formatter(FuncFormatter(lambda value, _: power(value)))
    ax.grid(axis=axis)
    ax.set_axisbelow(True)


def linear(ax: Axes, values: Iterable[float], floor_at: float | None = None) -> None:
    """A linear vertical axis that has room for ``values``."""
    known = [v for v in values if abs(v) < LARGEST] or [0.0, 1.0]
    low, high = min(known), max(known)
    room = 0.1 * (high - low) or 0.1 * abs(high) or 0.1
    bottom = low - room if floor_at is None else min(floor_at, low)
    ax.set_ylim(bottom, high + room)
    ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    ax.grid(axis="y")
    ax.set_axisbelow(True)


def whole_numbers(ax: Axes) -> None:
    """Ticks of a horizontal axis that counts."""
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))


@dataclass(frozen=True)
class Band:
    """Several runs along one axis: their mean, and the lowest and highest at each place."""

    places: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    @classmethod
    def over(cls, runs: Iterable[Sequence[tuple[float, float]]], *, logarithmic: bool) -> Band:
        """A band over runs given as (place, value); what is not finite is left out.

        >>> Band.over([[(0, 1.0), (1, 10.0)], [(0, 1.0), (1, 1000.0)]], logarithmic=True).mean
        (1.0, 100.0)
        """
        found: dict[float, list[float]] = {}
        for place, value in (pair for run in runs for pair in run):
            if abs(value) < LARGEST and (value > SMALLEST or not logarithmic):
                found.setdefault(place, []).append(value)
        columns = [found[place] for place in sorted(found)]
        mean = _geometric if logarithmic else fmean
        return cls(
            tuple(sorted(found)),
            tuple(round(mean(c), 12) if mean is fmean else mean(c) for c in columns),
            tuple(map(min, columns)),
            tuple(map(max, columns)),
        )

    def outline(self, most: int = 40) -> tuple[tuple[float, ...], ...]:
        """Places, lowest and highest, thinned to what an eye can tell apart."""
        step = max(1, ceil(len(self.places) / most))
        kept = sorted({*range(0, len(self.places), step), len(self.places) - 1})
        return tuple(tuple(v[i] for i in kept) for v in (self.places, self.low, self.high))

    def __bool__(self) -> bool:
        return bool(self.places)


def _geometric(values: Sequence[float]) -> float:
    if len(set(values)) == 1:
        return values[0]
    return float(f"{exp(fmean(map(log, values))):.12g}")


@dataclass(frozen=True)
class Limit:
    """A value that curves are read against, and what it is called."""

    value: float
    name: str
    shade: str = "alarm"

    @property
    def colour(self) -> str:
        """The light shade."""
        return colour(self.shade)


def curve(ax: Axes, band: Band, look: Look, *, markers: bool = False) -> None:
    """The mean as a line, the range over runs as a shade around it."""
    marker = look.marker if markers else None
    ax.plot(
        band.places,
        band.mean,
        color=look.colour,
        dashes=look.dashes or (None, None),
        marker=marker,
        markeredgecolor=colour("ground"),
        markeredgewidth=0.6,
        zorder=3,
    )
    if band.low != band.high:
        places, low, high = band.outline()
        ax.fill_between(places, low, high, color=look.colour, alpha=0.16, lw=0)


def label_ends(ax: Axes, ends: Sequence[tuple[str, float, str]]) -> None:
    """Names beside the right ends of lines, moved apart where they would overlap.

    Call it when scale and limits are set. ``ends`` holds text, height in data, and colour.
    """
    scale = ax.transScale + ax.transLimits
    left = ax.get_xlim()[0]
    heights = [(float(scale.transform((left, y))[1]), text, shade) for text, y, shade in ends]
    heights.sort(key=lambda item: item[0])
    gap = 10.5 / (72 * 1.9)
    for place, (height, text, shade) in zip(
        spread([h for h, _, _ in heights], gap), heights, strict=True
    ):
        ax.plot(
            [1.0, 1.025],
            [height, place],
            transform=ax.transAxes,
            color=shade,
            lw=0.7,
            clip_on=False,
        )
        ax.text(1.035, place, short(text, 48), transform=ax.transAxes, color=shade, va="center")


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Sorted heights moved so that neighbours lie ``gap`` apart or more, within 0 to 1 if they fit.

    >>> [round(h, 2) for h in spread([0.5, 0.5, 0.9], 0.1)]
    [0.45, 0.55, 0.9]
    """
    clusters: list[tuple[float, int]] = []
    for height in heights:
        centre, size = height, 1
        while clusters and centre - clusters[-1][0] < gap * (size + clusters[-1][1]) / 2:
            other, members = clusters.pop()
            centre = (other * members + centre * size) / (members + size)
            size += members
        clusters.append((centre, size))
    placed = [c + gap * (i - (size - 1) / 2) for c, size in clusters for i in range(size)]
    return _inside(placed, gap)


def _inside(placed: list[float], gap: float) -> list[float]:
    for order in (range(len(placed) - 1, -1, -1), range(len(placed))):
        limit = 1.0 if order.step < 0 else 0.0
        for index in order:
            if order.step < 0:
                placed[index] = min(placed[index], limit)
                limit = placed[index] - gap
            else:
                placed[index] = max(placed[index], limit)
                limit = placed[index] + gap
    return placed


def threshold(ax: Axes, limit: Limit) -> None:
    """A horizontal limit; its name belongs among the line ends."""
    ax.axhline(limit.value, color=limit.colour, lw=0.9, dashes=(4, 2), zorder=1)


def upright(ax: Axes, limit: Limit) -> None:
    """A vertical limit with its name above it."""
    ax.axvline(limit.value, color=limit.colour, lw=0.9, dashes=(4, 2), zorder=4)
    ax.annotate(
        limit.name,
        (limit.value, 1),
        xycoords=("data", "axes fraction"),
        xytext=(0, 2),
        textcoords="offset points",
        color=limit.colour,
        fontsize=7.5,
        ha="center",
        va="bottom",
    )


def rows(
    ax: Axes,
    names: Sequence[str],
    longest: int = 34,
    heads: Mapping[str, str] | None = None,
) -> list[float]:
    """A vertical axis of names, the first on top, under headings where there are any; the heights.

    A name that ends in its heading is shown without it.
    """
    places: list[float] = []
    before, height = "", -1.0
    for name in names:
        head = (heads or {}).get(name, "")
        height += 1.0 if head == before else 2.0
        if head and head != before:
            ax.text(0, height - 0.95, short(head, 60), transform=ax.get_yaxis_transform(),
                    color=colour("soft"), fontsize=8, va="center")  # fmt: skip
        places.append(height)
        before = head
    ax.set_yticks(places, _row_names(names, longest, heads or {}))
    ax.set_ylim((places[-1] if places else 0) + 0.6, min(-0.6, places[0] - 1.5 if before else -0.6))
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", labelcolor=colour("ink"))
    return places


def _row_names(names: Sequence[str], longest: int, heads: Mapping[str, str]) -> list[str]:
    bare = [name.removesuffix(f", {heads.get(name, '')}") for name in names]
    fitting = told_apart(bare, longest, whole=True)
    return [fitting[name] for name in bare]


def beside(ax: Axes, dots: Sequence[tuple[str, float, float, str]]) -> None:
    """Names beside dots, moved apart where they would overlap; text, place, height and colour."""
    scale = ax.transScale + ax.transLimits
    seen = [(scale.transform((x, y)), text, shade) for text, x, y, shade in dots]
    found = [(float(at[0]), float(at[1]), text, shade) for at, text, shade in seen]
    found.sort(key=lambda item: item[1])
    names = told_apart((text for _, _, text, _ in found), whole=True)
    for place, (x, y, text, shade) in zip(spread([f[1] for f in found], 0.075), found, strict=True):
        ax.plot([x, x + 0.035], [y, place], transform=ax.transAxes, color=shade, lw=0.6, zorder=2)
        ax.text(x + 0.045, place, names[text], transform=ax.transAxes, color=shade, va="center")
