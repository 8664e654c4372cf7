"""The figures: each function takes what was measured and returns a plate; none needs torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, log10
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.path import Path

from faudit.measures.evidence import Evidence
from faudit.protocol import PAPER, STRATEGIES, Case, Thresholds, decision_table, replay
from faudit.report import axes as on
from faudit.report.axes import Band, Limit, number, short
from faudit.report.cells import Value
from faudit.report.plate import Panel, Plate
from faudit.report.style import Look, colour, looks

Curves = Mapping[str, Sequence[Evidence]]
"""Per method, the evidence of each seed."""
Histories = Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]
"""Per method, the history of each seed, as bundles keep it."""
Values = Mapping[str, Value]
Runs = Sequence[Sequence[tuple[float, float]]]

PUBLISHED = Thresholds()
WIDEST = 56
NARROW = 24
"""Characters of a name beside the end of a curve."""
CROWD = 12
"""More dots than this are named by their rule, each rule once."""
RANGE = "Lines are means over seeds; shades reach from the lowest to the highest seed."


# -- what is usually reported ---------------------------------------------------------------------


def reporting_pair(accuracy: Values, gamma: Values, frozen: Value | Values | None = None) -> Plate:
    """Accuracy and aggregate cosine: the pair that looks fine either way; the paper, Figure 1.

    ``frozen`` is what frozen blocks reach: for all methods, or of each method's own baseline.

    >>> plate = reporting_pair({"DFA": Value(0.306)}, {"DFA": Value(0.10)}, Value(0.349))
    >>> plate.panels[0].words
    'DFA 0.306; frozen blocks 0.349'
    """
    height = 0.9 + 0.3 * max(len(accuracy), len(gamma), 2)
    return Plate(
        "reporting-pair",
        "What is usually reported",
        "Test accuracy and the aggregate cosine Γ. Whiskers are one standard deviation over seeds."
        " Accuracy left of the line is less than the same network reaches with random blocks.",
        (
            _bars("Test accuracy", accuracy, frozen, height),
            _bars("Aggregate cosine Γ", gamma, None, height),
        ),
    )


def _bars(title: str, values: Values, frozen: Value | Values | None, height: float) -> Panel:
    shared = frozen if isinstance(frozen, Value) else None
    own = frozen if isinstance(frozen, Mapping) else {}
    words = [_bar_told(name, value, own.get(name)) for name, value in values.items()]
    words += [f"frozen blocks {shared}"] if shared else []

    def draw(ax: Axes) -> None:
        on.rows(ax, list(values))
        lines = [v.mean for v in (*own.values(), *([shared] if shared else ()))]
        ends = [v.mean + (v.spread or 0) for v in values.values()]
        low = min([v.mean - (v.spread or 0) for v in values.values()] + [0.0])
        ax.set_xlim(low * 1.15, 1.28 * max([*ends, *lines, 0.05]))
        for row, (name, look) in enumerate(looks(values).items()):
            _bar(ax, row, values[name], look, own.get(name))
        ax.axvline(0, color=colour("faint"), lw=0.8)
        if shared:
            on.upright(ax, _frozen_limit(shared))
        elif own:
            ax.annotate("dashed: own frozen blocks", (1, 1), (0, 2), xycoords="axes fraction",
                        textcoords="offset points", color=colour("alarm"), fontsize=7.5,
                        ha="right", va="bottom")  # fmt: skip

    return Panel(title, draw, "; ".join(words), (3.6, height), 17)


def _bar_told(name: str, value: Value, frozen: Value | None) -> str:
    return f"{name} {value}" + (f" against frozen blocks {frozen}" if frozen else "")


def _frozen_limit(frozen: Value) -> Limit:
    return Limit(frozen.mean, f"frozen blocks {frozen.mean:.3f}")


def _bar(ax: Axes, row: int, value: Value, look: Look, frozen: Value | None) -> None:
    ax.barh(row, value.mean, height=0.52, color=look.colour, alpha=0.85, zorder=2)
    if value.spread:
        ax.errorbar(
            value.mean, row, xerr=value.spread, color=colour("ink"), lw=1, capsize=2.5, zorder=3
        )
    end = max(value.mean + (value.spread or 0), 0.0)
    if frozen:
        ax.plot([frozen.mean] * 2, [row - 0.45, row + 0.45], color=colour("alarm"), lw=1.1,
                dashes=(3, 1.5), zorder=4)  # fmt: skip
        end = max(end, frozen.mean)
    label = str(Value(value.mean, style=value.style))
    ground = {"facecolor": colour("ground"), "edgecolor": "none", "pad": 0.8}
    ax.annotate(
        label, (end, row), (6, 0), textcoords="offset points", va="center", bbox=ground, zorder=5
    )


# -- per layer ------------------------------------------------------------------------------------


def per_layer(evidence: Curves, thresholds: Thresholds = PUBLISHED) -> Plate:
    """State norm, reference norm and cosine at every depth; the paper, Figure 3.

    >>> dfa = Evidence(layers=1, samples=8, state_norm=(1.0, 9.0), reference_norm=(1.0, 0.1))
    >>> [panel.title for panel in per_layer({"DFA": [dfa]}).panels]
    ['State norm ‖h‖', 'Reference norm ‖g‖']
    """
    batch = thresholds.reference_batch
    panels = []
    if any(e.state_norm for e in _all(evidence)):
        states = {name: [e.state_norm for e in runs] for name, runs in evidence.items()}
        panels.append(_depth_panel("State norm ‖h‖", states))
    if any(e.reference_norm for e in _all(evidence)):
        norms = {n: [e.reference_norm_at(batch) for e in runs] for n, runs in evidence.items()}
        panels.append(_depth_panel("Reference norm ‖g‖", norms, thresholds))
    if any(e.cosine for e in _all(evidence)):
        panels.append(_cosine_panel(evidence))
    return Plate(
        "per-layer",
        "Layer by layer",
        f"How large the states are, how large the exact gradient is (at a mean loss over {batch}"
        " samples), and how far credit points the same way. The diamonds are the aggregate Γ: one"
        f" number in place of a whole line. {RANGE}",
        tuple(panels),
    )


def _all(evidence: Curves) -> Iterable[Evidence]:
    return (e for runs in evidence.values() for e in runs)


def _by_depth(runs: Iterable[Sequence[float]]) -> Runs:
    return [list(enumerate(values)) for values in runs if values]


def _depth_panel(
    title: str, values: Mapping[str, Sequence[Sequence[float]]], limits: Thresholds | None = None
) -> Panel:
    bands = {n: Band.over(_by_depth(runs), logarithmic=True) for n, runs in values.items()}

    def draw(ax: Axes) -> None:
        _lines(ax, bands, _reference_limits(limits), markers=True)
        ax.set_xlabel("depth l   (0: after the embedding)")

    return Panel(title, draw, _told(bands))


def _reference_limits(limits: Thresholds | None) -> list[Limit]:
    if limits is None:
        return []
    return [
        Limit(limits.reference, f"D2 limit {number(limits.reference)}"),
        Limit(limits.eps, f"cosine's clamp {number(limits.eps)}", "soft"),
    ]


def _lines(
    ax: Axes,
    bands: Mapping[str, Band],
    limits: Sequence[Limit] = (),
    *,
    markers: bool = False,
    remarks: Mapping[str, str] | None = None,
) -> None:
    """Logarithmic curves and limits with their names at their right ends."""
    drawn = {name: band for name, band in bands.items() if band}
    values = [v for band in drawn.values() for v in (*band.low, *band.high)]
    on.decades(ax, "y", [*values, *(limit.value for limit in limits)])
    last = max((band.places[-1] for band in drawn.values()), default=1.0)
    first = min((band.places[0] for band in drawn.values()), default=0.0)
    ax.set_xlim(first - 0.02 * (last - first), last + 0.02 * (last - first or 1))
    on.whole_numbers(ax)
    _named_curves(ax, drawn, looks(bands), limits, markers, remarks or {})


def _named_curves(
    ax: Axes,
    bands: Mapping[str, Band],
    styles: Mapping[str, Look],
    limits: Sequence[Limit],
    markers: bool,
    remarks: Mapping[str, str],
) -> None:
    for limit in limits:
        on.threshold(ax, limit)
    for name, band in bands.items():
        on.curve(ax, band, styles[name], markers=markers)
    names = on.told_apart(bands, NARROW)
    ends = [
        (f"{names[name]}{remarks.get(name, '')}", band.mean[-1], styles[name].colour)
        for name, band in bands.items()
    ]
    on.label_ends(ax, [*ends, *((limit.name, limit.value, limit.colour) for limit in limits)])


def _told(bands: Mapping[str, Band]) -> str:
    return "; ".join(
        f"{name} from {number(band.mean[0])} to {number(band.mean[-1])}"
        for name, band in bands.items()
        if band
    )


def _cosine_panel(evidence: Curves) -> Panel:
    bands = {
        n: Band.over(_by_depth(e.cosine for e in runs), logarithmic=False)
        for n, runs in evidence.items()
    }
    gamma = {n: Value.of_runs([e.gamma for e in runs], "signed") for n, runs in evidence.items()}
    words = [
        f"{name} {', '.join(f'{m:+.2f}' for m in band.mean)}, Γ {gamma[name] or 'undefined'}"
        for name, band in bands.items()
        if band
    ]

    def draw(ax: Axes) -> None:
        _draw_cosines(ax, {n: b for n, b in bands.items() if b}, gamma)

    return Panel("Cosine of credit and gradient", draw, "; ".join(words))


def _draw_cosines(ax: Axes, bands: Mapping[str, Band], gamma: Mapping[str, Value | None]) -> None:
    found = looks(gamma)
    last = max((band.places[-1] for band in bands.values()), default=1.0)
    aside = last * 1.22 + 0.4
    on.linear(ax, [v for b in bands.values() for v in (*b.low, *b.high)] + [0.0, 1.0])
    ax.set_xlim(-0.04 * last, aside + 0.04 * last)
    ax.axhline(0, color=colour("soft"), lw=0.8, zorder=1)
    ax.axvspan((last + aside) / 2, aside + last, color=colour("faint"), alpha=0.35, lw=0)
    for name, band in bands.items():
        on.curve(ax, band, found[name], markers=True)
    names, ends = on.told_apart(gamma, NARROW), []
    for name, value in gamma.items():
        if value is not None and isfinite(value.mean):
            ax.plot(aside, value.mean, marker="D", ms=6, color=found[name].colour, zorder=4)
            ends.append((names[name], value.mean, found[name].colour))
    on.label_ends(ax, ends)
    ticks = list(range(0, int(last) + 1, max(1, int(last) // 6)))
    ax.set_xticks([*ticks, aside], [*map(str, ticks), "Γ"])
    ax.set_xlabel("depth l, and the aggregate Γ")


# -- over epochs ----------------------------------------------------------------------------------


def trajectories(
    histories: Histories, thresholds: Thresholds = PUBLISHED, frozen: Value | None = None
) -> Plate:
    """State norm, reference norm and accuracy over epochs, and when each check first fires.

    The paper, Figures 4 and 5; the second draft, Figure 2.

    >>> history = [{"epoch": e, "reference_norm": [10.0**-e]} for e in range(9)]
    >>> trajectories({"DFA": [history]}).panels[0].words
    'DFA from 0.00781 to 7.8×10⁻¹¹; D2 fires for DFA at epoch 5'
    """
    batch = thresholds.reference_batch
    panels = []
    for key, title, scale in (
        ("state_norm", "Last state ‖h‖", 1),
        ("reference_norm", "Last reference ‖g‖", batch),
    ):
        bands = {n: _last_band(runs, key, scale) for n, runs in histories.items()}
        if any(bands.values()):
            code = "D1" if key == "state_norm" else "D2"
            fires = firing(histories, thresholds, code)
            panels.append(_course_panel(title, bands, fires, code, thresholds))
    accuracies = {n: _accuracy_band(runs) for n, runs in histories.items()}
    if any(accuracies.values()):
        panels.append(_accuracy_panel(accuracies, frozen))
    return Plate(
        "trajectories",
        "Over training",
        "The last state, the last exact gradient and test accuracy after every epoch. A ring marks"
        f" the epoch at which a check first fires, D1 on growth and D2 on the gradient. {RANGE}",
        tuple(panels),
    )


def _last_band(runs: Iterable[Sequence[Mapping[str, Any]]], key: str, scale: float) -> Band:
    return Band.over(
        [[(r["epoch"], r[key][-1] / scale) for r in run if r.get(key)] for run in runs],
        logarithmic=True,
    )


def _accuracy_band(runs: Iterable[Sequence[Mapping[str, Any]]]) -> Band:
    found = [[(r["epoch"], r["accuracy"]) for r in run if r.get("accuracy")] for run in runs]
    return Band.over(found, logarithmic=False)


def firing(
    histories: Histories, thresholds: Thresholds = PUBLISHED, trigger: str = "any"
) -> dict[str, tuple[int | None, ...]]:
    """Per method and seed the first epoch at which a check fires, or None.

    >>> firing({"DFA": [[{"epoch": 0}, {"epoch": 1, "growth": [99.0]}]]}, trigger="D1")
    {'DFA': (1,)}
    """
    batch = thresholds.reference_batch
    return {
        name: tuple(
            replay((_reduced(r, batch) for r in run), thresholds).first[trigger]
            for run in runs
            if run
        )
        for name, runs in histories.items()
    }


def _reduced(record: Mapping[str, Any], batch: int) -> dict[str, Any]:
    norms = record.get("reference_norm") or []
    return {**record, "reference_norm": [norm / batch for norm in norms]}


def epochs_told(epochs: Iterable[int | None]) -> str:
    """When a check fired over seeds.

    >>> epochs_told([8, 11, None]), epochs_told([3, 3]), epochs_told([None])
    ('epoch 8–11 in 2 of 3', 'epoch 3', 'never')
    """
    seen = list(epochs)
    fired = sorted(epoch for epoch in seen if epoch is not None)
    if not fired:
        return "never"
    span = f"{fired[0]}" if fired[0] == fired[-1] else f"{fired[0]}–{fired[-1]}"
    share = "" if len(fired) == len(seen) else f" in {len(fired)} of {len(seen)}"
    return f"epoch {span}{share}"


def _course_panel(
    title: str,
    bands: Mapping[str, Band],
    fires: Mapping[str, tuple[int | None, ...]],
    code: str,
    limits: Thresholds,
) -> Panel:
    fired = {n: epochs for n, epochs in fires.items() if any(e is not None for e in epochs)}
    words = [_told(bands), *(f"{code} fires for {n} at {epochs_told(e)}" for n, e in fired.items())]
    remarks = {n: f", {code} at {_span(epochs)}" for n, epochs in fired.items()}

    def draw(ax: Axes) -> None:
        _lines(ax, bands, _reference_limits(limits if code == "D2" else None), remarks=remarks)
        for name, epochs in fired.items():
            _ring(ax, bands[name], epochs, looks(bands)[name])
        ax.set_xlabel("epoch")

    return Panel(title, draw, "; ".join(w for w in words if w))


def _span(epochs: tuple[int | None, ...]) -> str:
    return epochs_told(epochs).removeprefix("epoch ").partition(" in ")[0]


def _ring(ax: Axes, band: Band, epochs: tuple[int | None, ...], look: Look) -> None:
    fired = sorted(e for e in epochs if e is not None)
    at = fired[len(fired) // 2]
    if at in band.places:
        height = band.mean[band.places.index(at)]
        ax.plot(at, height, "o", ms=6.5, mfc=colour("ground"), mec=look.colour, mew=1.6, zorder=5)


def _accuracy_panel(bands: Mapping[str, Band], frozen: Value | None) -> Panel:
    words = _told(bands) + (f"; frozen blocks {frozen}" if frozen else "")

    limits = [_frozen_limit(frozen)] if frozen else []

    def draw(ax: Axes) -> None:
        drawn = {n: b for n, b in bands.items() if b}
        values = [v for b in drawn.values() for v in (*b.low, *b.high)]
        on.linear(ax, [*values, *(limit.value for limit in limits)], floor_at=0.0)
        last = max(b.places[-1] for b in drawn.values())
        ax.set_xlim(-0.02 * last, 1.02 * last or 1)
        on.whole_numbers(ax)
        _named_curves(ax, drawn, looks(bands), limits, False, {})
        ax.set_xlabel("epoch")

    return Panel("Test accuracy", draw, words)


Heads = Mapping[str, str] | None
"""For figures with a row per name: the heading a name stands under, as "DFA, ViT" under "ViT"."""


def _wide(names: Iterable[str], plot: float, heads: Heads = None) -> float:
    """Inches for a plot with row names beside it."""
    shown = (name.removesuffix(f", {(heads or {}).get(name, '')}") for name in names)
    return plot + 0.082 * max((min(len(name), WIDEST) for name in shown), default=0)


def _lines_of(names: Iterable[str], heads: Heads) -> int:
    """How many lines the rows and their headings take."""
    given = list(names)
    above = {(heads or {}).get(name, "") for name in given} - {""}
    return max(len(given) + len(above), 3)


# -- under a penalty ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dose:
    """One strength of the penalty: what was measured there, and the accuracies."""

    penalty: float
    evidence: Sequence[Evidence] = ()
    accuracies: Sequence[float] = ()


def penalty_response(
    doses: Mapping[str, Sequence[Dose]],
    frozen: Value | None = None,
    thresholds: Thresholds = PUBLISHED,
) -> Plate:
    """What a penalty on ||f||^2 mends, dose by dose; the paper, Figure 6, second draft, Figure 3.

    >>> dose = Dose(0.01, [Evidence(layers=1, samples=8, deep_cosine=0.15)], [0.36])
    >>> penalty_response({"DFA": [dose]}).panels[-1].words
    'DFA 0.36 at λ = 0.01'
    """
    given = sorted({dose.penalty for series in doses.values() for dose in series})
    batch = thresholds.reference_batch
    quantities: tuple[tuple[str, Callable[[Dose], list[float]], str], ...] = (
        ("Last state ‖h‖", lambda d: [e.state_norm[-1] for e in d.evidence if e.state_norm], "log"),
        ("Last reference ‖g‖", lambda d: _references(d, batch), "reference"),
        ("Deep cosine", lambda d: [e.deep_cosine for e in d.evidence], "cosine"),
        ("Test accuracy", lambda d: list(d.accuracies), "accuracy"),
    )
    panels = [
        _dose_panel(title, _dose_bands(doses, given, take), given, kind, thresholds, frozen)
        for title, take, kind in quantities
    ]
    return Plate(
        "penalty",
        "Dose and response",
        "The same training with a penalty λ‖f‖² on every block. Scale and reference are mended by a"
        " small dose, the direction of credit only by a larger one, or not at all. Whiskers reach"
        " from the lowest to the highest seed.",
        tuple(p for p in panels if p.words),
        columns=2,
    )


def _references(dose: Dose, batch: int) -> list[float]:
    found = (e.deepest_reference(batch) for e in dose.evidence)
    return [norm for norm in found if norm is not None]


def _dose_bands(
    doses: Mapping[str, Sequence[Dose]], given: Sequence[float], take: Callable[[Dose], list[float]]
) -> dict[str, list[tuple[int, list[float]]]]:
    found = {
        name: [(given.index(d.penalty), [v for v in take(d) if isfinite(v)]) for d in series]
        for name, series in doses.items()
    }
    kept = {n: sorted((x, v) for x, v in points if v) for n, points in found.items()}
    return {name: points for name, points in kept.items() if points}


def _dose_panel(
    title: str,
    found: Mapping[str, list[tuple[int, list[float]]]],
    given: Sequence[float],
    kind: str,
    thresholds: Thresholds,
    frozen: Value | None,
) -> Panel:
    words = [
        f"{name} " + ", ".join(f"{number(fmean(v))} at λ = {given[x]:g}" for x, v in points)
        for name, points in found.items()
    ]

    limits = _dose_limits(kind, thresholds, frozen)

    def draw(ax: Axes) -> None:
        values = [v for points in found.values() for _, each in points for v in each]
        _dose_axes(ax, [*values, *(limit.value for limit in limits)], kind)
        ax.set_xlim(-0.15, max(len(given) - 1, 1) + 0.1)
        styles = looks(found)
        bands = {name: _dose_band(points, kind) for name, points in found.items()}
        for name, band in bands.items():
            _whiskers(ax, band, styles[name])
        lines = {n: Band(b.places, b.mean, b.mean, b.mean) for n, b in bands.items()}
        _named_curves(ax, lines, styles, limits, True, {})
        ax.set_xticks(range(len(given)), [_dose_name(penalty) for penalty in given])
        ax.set_xlabel("penalty λ")

    return Panel(title, draw, "; ".join(words))


def _dose_limits(kind: str, thresholds: Thresholds, frozen: Value | None) -> list[Limit]:
    if kind == "reference":
        return _reference_limits(thresholds)
    return [_frozen_limit(frozen)] if kind == "accuracy" and frozen else []


def _dose_name(penalty: float) -> str:
    exponent = log10(penalty) if penalty > 0 else 0.5
    return on.power(penalty) if exponent == round(exponent) and exponent < 0 else f"{penalty:g}"


def _dose_axes(ax: Axes, values: Sequence[float], kind: str) -> None:
    if kind in ("log", "reference"):
        on.decades(ax, "y", values)
    else:
        on.linear(ax, [*values, *([0.0] if kind == "cosine" else [])])
    if kind == "cosine":
        ax.axhline(0, color=colour("soft"), lw=0.8, zorder=1)


def _dose_band(points: Sequence[tuple[int, list[float]]], kind: str) -> Band:
    runs = [[(x, v) for v in values] for x, values in points]
    return Band.over(runs, logarithmic=kind in ("log", "reference"))


def _whiskers(ax: Axes, band: Band, look: Look) -> None:
    for x, low, high in zip(band.places, band.low, band.high, strict=True):
        ax.plot([x, x], [low, high], color=look.colour, lw=3.2, alpha=0.35, zorder=2)


# -- calibration ----------------------------------------------------------------------------------


def null_calibration(evidence: Curves, heads: Heads = None) -> Plate:
    """The deep cosine beside what fresh feedback would give by chance; the paper, Appendix C.2.

    >>> from faudit.measures.evidence import NullCalibration
    >>> null = NullCalibration(draws=20, mean=-0.005, std=0.018, value=0.166, z=9.5)
    >>> plate = null_calibration({"DFA": [Evidence(layers=1, samples=8, null=null)]})
    >>> plate.panels[0].words
    'DFA +0.166 against -0.005 ± 0.018 by chance, 9.5 deviations'
    """
    found = {n: [e.null for e in runs if e.null] for n, runs in evidence.items()}
    found = {name: nulls for name, nulls in found.items() if nulls}
    words = [
        f"{name} {n.value:+.3f} against {n.mean:+.3f} ± {n.std:.3f} by chance, {n.z:.1f} deviations"
        for name, nulls in found.items()
        for n in nulls
    ]

    def draw(ax: Axes) -> None:
        places = on.rows(ax, list(found), WIDEST, heads)
        ax.axvline(0, color=colour("soft"), lw=0.8, zorder=1)
        for row, (name, look) in zip(places, looks(found).items(), strict=True):
            _null_row(ax, row, found[name], look)
        ends = [x for nulls in found.values() for n in nulls for x in (n.value, n.mean + 2 * n.std)]
        reach = max([abs(x) for x in ends if isfinite(x)], default=0.1)
        ax.set_xlim(min(0.0, *ends) - 0.12 * reach, max(0.0, *ends) + 0.3 * reach)
        ax.grid(axis="x")
        ax.set_xlabel("deep cosine")

    height = 1.0 + 0.34 * _lines_of(found, heads)
    return Plate(
        "null",
        "Deep cosine and its null",
        "Dots: the deep cosine with the feedback a run was trained with, one per seed. Grey bars:"
        " two standard deviations around what freshly drawn feedback gives on the same network."
        " Only a dot outside the bar is alignment that training made.",
        (Panel("", draw, "; ".join(words), (_wide(found, 3.2, heads), height)),),
    )


def _null_row(ax: Axes, row: float, nulls: Sequence[Any], look: Look) -> None:
    mean, std = fmean(n.mean for n in nulls), fmean(n.std for n in nulls)
    ax.barh(row, 4 * std, left=mean - 2 * std, height=0.5, color=colour("stone"), alpha=0.4, lw=0)
    ax.plot([n.value for n in nulls], [row] * len(nulls), ls="", marker=look.marker,
            color=look.colour, zorder=3)  # fmt: skip
    scores = [n.z for n in nulls if isfinite(n.z)]
    if scores:
        ax.annotate(
            f"{fmean(scores):+.1f} σ",
            (max(*(n.value for n in nulls), mean + 2 * std), row),
            (7, 0),
            textcoords="offset points",
            va="center",
            color=colour("soft"),
        )


def controls(evidence: Curves, heads: Heads = None) -> Plate:
    """Does credit predict the loss? With exact gradients above and random vectors below it.

    The first draft, 5.1; the second draft, Table 2.

    >>> e = Evidence(layers=1, samples=8, perturbation_correlation=(0.0, 0.08),
    ...              perturbation_controls={"bp": (0.99, 0.99), "random": (0.0, 0.01)})
    >>> controls({"DFA": [e]}).panels[0].words
    'DFA +0.080 between random +0.010 and exact +0.990'
    """
    named = {"credit": "", "random": "random", "bp": "exact"}
    found = {n: _three(runs) for n, runs in evidence.items()}
    found = {name: values for name, values in found.items() if values.get("credit")}
    words = [
        f"{name} {v['credit']} between random {v.get('random')} and exact {v.get('bp')}"
        for name, v in found.items()
    ]

    def draw(ax: Axes) -> None:
        places = on.rows(ax, list(found), WIDEST, heads)
        for row, (name, look) in zip(places, looks(found).items(), strict=True):
            for kind, value in found[name].items():
                own = kind == "credit"
                ax.plot(value.mean, row, marker=look.marker if own else "|", ms=6 if own else 11,
                        color=look.colour if own else colour("soft"), zorder=3)  # fmt: skip
                if named[kind] and row == places[0]:
                    ax.annotate(
                        named[kind],
                        (value.mean, row),
                        (0, 11),
                        ha="center",
                        textcoords="offset points",
                        color=colour("soft"),
                        fontsize=7.5,
                    )
        ax.set_xlim(-0.15, 1.1)
        ax.grid(axis="x")
        ax.set_xlabel("correlation with the true change of loss")

    height = 1.1 + 0.34 * _lines_of(found, heads)
    return Plate(
        "controls",
        "Perturbation correlation, deep layers",
        "Correlation between what credit says a small random move will do to the loss and what it"
        " does, mean over deep layers. Exact gradients are the ceiling, random vectors the floor.",
        (Panel("", draw, "; ".join(words), (_wide(found, 3.2, heads), height)),),
    )


def _three(runs: Sequence[Evidence]) -> dict[str, Value]:
    kinds = {"credit": [_deep(e.perturbation_correlation) for e in runs]}
    for kind in ("random", "bp"):
        kinds[kind] = [_deep(e.perturbation_controls.get(kind, ())) for e in runs]
    found = {kind: Value.of_runs(values, "signed") for kind, values in kinds.items()}
    return {kind: value for kind, value in found.items() if value is not None}


def _deep(values: Sequence[float]) -> float | None:
    known = [v for v in values[1:] if isfinite(v)]
    return fmean(known) if known else None


# -- the checks -----------------------------------------------------------------------------------


def diagnostics(
    cases: Mapping[str, Sequence[Case]],
    thresholds: Thresholds = PUBLISHED,
    heads: Heads = None,
) -> Plate:
    """Every run beside every threshold; the second draft, Figure 1.

    >>> plate = diagnostics({"DFA": [Case(name="DFA", growth=237.0)]})
    >>> [panel.title for panel in plate.panels]
    ['D1: largest growth of a block']
    """
    kinds: tuple[tuple[str, Callable[[Case], float | None], float, str, bool], ...] = (
        ("D1: largest growth of a block", lambda c: c.growth, thresholds.growth, "log", True),
        ("D2: last reference ‖g‖", lambda c: c.reference_norm, thresholds.reference, "log", False),
        ("D3: points above frozen blocks", _points, 100 * thresholds.margin, "linear", False),
        ("(c): reference alike across batches", lambda c: c.stability, thresholds.stability,
         "linear", True),
    )  # fmt: skip
    panels = [_strip(cases, *kind, heads) for kind in kinds]
    return Plate(
        "diagnostics",
        "Every run beside every threshold",
        "One dot per seed. The shaded side of a line is where the check flags. Gaps between the"
        " dots on either side say how much the choice of threshold matters.",
        tuple(panel for panel in panels if panel.words),
        columns=2,
    )


def _points(case: Case) -> float | None:
    return None if case.margin is None else 100 * case.margin


def _strip(
    cases: Mapping[str, Sequence[Case]],
    title: str,
    take: Callable[[Case], float | None],
    limit: float,
    scale: str,
    high_fails: bool,
    heads: Heads,
) -> Panel:
    found = {n: [v for c in runs if (v := take(c)) is not None] for n, runs in cases.items()}
    words = [f"{n} {', '.join(map(number, values))}" for n, values in found.items() if values]

    def draw(ax: Axes) -> None:
        places = on.rows(ax, list(found), WIDEST, heads)
        every = [v for values in found.values() for v in values if abs(v) < on.LARGEST] + [limit]
        _strip_axis(ax, every, scale)
        side = (limit, ax.get_xlim()[1]) if high_fails else (ax.get_xlim()[0], limit)
        ax.axvspan(*side, color=colour("alarm"), alpha=0.07, lw=0)
        on.upright(ax, Limit(limit, number(limit)))
        for row, (name, look) in zip(places, looks(found).items(), strict=True):
            values = _within(ax, found[name])
            ax.plot(values, [row] * len(values), look.marker, color=look.colour, alpha=0.85,
                    zorder=3)  # fmt: skip

    size = (_wide(found, 3.2, heads), 1.0 + 0.27 * _lines_of(found, heads))
    return Panel(title, draw, "; ".join(words), size, 17)


def _within(ax: Axes, values: Iterable[float]) -> list[float]:
    low, high = ax.get_xlim()
    return [value for value in values if low < value < high]


def _strip_axis(ax: Axes, values: Sequence[float], scale: str) -> None:
    if scale == "log":
        on.decades(ax, "x", values)
    else:
        room = 0.08 * (max(values) - min(values)) or 0.1
        ax.set_xlim(min(values) - room, max(values) + room)
        ax.grid(axis="x")


Grid = Mapping[str, Mapping[str, bool | None]]
"""Per row and column: True flagged, False fine, None not evaluated."""


def cross_architecture(grid: Grid, columns: Sequence[str] = ()) -> Plate:
    """Which check flags where; the paper, Table 2, and the second draft, Figure 4.

    >>> cross_architecture({"ViT-Mini": {"DFA D1": True, "DFA D2": None}}).panels[0].words
    'ViT-Mini: DFA D1 flagged, DFA D2 not evaluated'
    """
    shown = list(dict.fromkeys([*columns, *(name for row in grid.values() for name in row)]))
    return Plate(
        "cross-architecture",
        "Which check flags where",
        "A cross where any seed flags, a tick where none does, a dot where the check was not"
        " evaluated. Growth may flag on every architecture; the reference collapses only where"
        " something, such as a terminal normalisation, turns growth into a vanishing gradient.",
        (_matrix(grid, shown, {True: "flagged", False: "ok", None: "not evaluated"}),),
    )


def decision_utility(
    cases: Mapping[str, Sequence[Case]],
    strategies: Sequence[str] = PAPER,
    heads: Heads = None,
) -> Plate:
    """Which way of reporting is right about which method; second draft, Figure 5.

    >>> fa = Case(name="FA", accuracy=0.3, gamma=0.4, failing=True)
    >>> decision_utility({"FA": [fa]}, ["S1"]).panels[0].words
    'FA: S1 accuracy and aggregate Gamma misjudged'
    """
    grid = {
        name: {f"{s} {STRATEGIES[s].reads}": _misjudged(runs, s) for s in strategies}
        for name, runs in cases.items()
    }
    columns = [f"{s} {STRATEGIES[s].reads}" for s in strategies]
    return Plate(
        "decision-utility",
        "Which report would have caught it",
        "From accuracy alone to the full protocol. A tick where the report is right about a method"
        " in every seed, a cross where it lets a failure stand or walks back a success, a dot where"
        " a number is missing.",
        (_matrix(grid, columns, {True: "misjudged", False: "right", None: "open"}, heads),),
    )


def _misjudged(runs: Sequence[Case], strategy: str) -> bool | None:
    right = decision_table(runs, [strategy]).right(strategy)
    return True if False in right else None if None in right else False


def _matrix(
    grid: Grid, columns: Sequence[str], words: Mapping[bool | None, str], heads: Heads = None
) -> Panel:
    told = [
        f"{row}: " + ", ".join(f"{column} {words[cell]}" for column, cell in cells.items())
        for row, cells in grid.items()
    ]

    def draw(ax: Axes) -> None:
        places = on.rows(ax, list(grid), WIDEST, heads)
        ax.set_xlim(-0.5, len(columns) - 0.5)
        ax.set_xticks(range(len(columns)), [short(c, 34) for c in columns], rotation=40, ha="left")
        ax.xaxis.tick_top()
        ax.tick_params(axis="x", length=0, labelcolor=colour("ink"))
        ax.spines["bottom"].set_visible(False)
        spots: dict[bool | None, list[tuple[int, float]]] = {}
        for y, cells in zip(places, grid.values(), strict=True):
            for column, cell in cells.items():
                spots.setdefault(cell, []).append((columns.index(column), y))
        for cell, at in spots.items():
            _cells(ax, at, cell)

    size = (_wide(grid, 1.6 + 0.42 * len(columns), heads), 1.6 + 0.32 * _lines_of(grid, heads))
    return Panel("", draw, "; ".join(told), size)


TICK = Path([(-0.9, 0.0), (-0.25, -0.7), (1.0, 0.8)], [Path.MOVETO, Path.LINETO, Path.LINETO])


def _cells(ax: Axes, at: Sequence[tuple[int, float]], flagged: bool | None) -> None:
    x, y = zip(*at, strict=True)
    shade = colour({True: "alarm", False: "fine", None: "soft"}[flagged])
    glyph = {True: "x", False: TICK, None: "."}[flagged]
    ax.plot(x, y, ls="", marker="s", ms=17, color=shade, alpha=0.13, mew=0)
    ax.plot(x, y, ls="", marker=glyph, ms=7, color=shade, mew=1.8, mfc="none")


# -- depth ----------------------------------------------------------------------------------------


def depth_ladder(rungs: Mapping[str, Mapping[int, Sequence[float]]]) -> Plate:
    """Accuracy when only the last k blocks learn; a rule that uses depth climbs.

    >>> depth_ladder({"BP": {0: [0.35], 1: [0.45], 2: [0.6]}}).panels[0].words
    'BP from 0.35 to 0.6'
    """
    bands = {
        name: Band.over(
            [[(k, v) for v in values] for k, values in steps.items()], logarithmic=False
        )
        for name, steps in rungs.items()
    }

    def draw(ax: Axes) -> None:
        found = looks(bands)
        drawn = {n: b for n, b in bands.items() if b}
        on.linear(ax, [v for b in drawn.values() for v in (*b.low, *b.high)])
        for name, band in drawn.items():
            on.curve(ax, band, found[name], markers=True)
        on.whole_numbers(ax)
        on.label_ends(ax, [(n, b.mean[-1], found[n].colour) for n, b in drawn.items()])
        ax.set_xlabel("trainable blocks k, counted from the readout")

    return Plate(
        "ladder",
        "One more block at a time",
        "Test accuracy when only the last k blocks learn and the others stay random. Where credit"
        f" is of use in depth, the line climbs. {RANGE}",
        (Panel("Test accuracy", draw, _told(bands), (5.0, 3.0)),),
    )


def cosine_against_utility(settings: Mapping[str, tuple[Values, Values]]) -> Plate:
    """Alignment beside what trained depth is worth, per setting; the paper, Table 3.

    >>> here = ({"CB": Value(0.68)}, {"CB": Value(0.01, style="points")})
    >>> cosine_against_utility({"ResMLP": here}).panels[0].words
    'CB deep cosine 0.680, +1.0 pp'
    """
    return Plate(
        "cosine-utility",
        "Alignment is not utility",
        "Deep cosine against the accuracy that trained blocks add to random ones. If alignment"
        " predicted utility the dots would lie on a rising line.",
        tuple(_utility_panel(name, *values) for name, values in settings.items()),
    )


def _one_of_each(
    dots: Sequence[tuple[str, float, float, str]],
) -> list[tuple[str, float, float, str]]:
    """The highest dot of each rule, under the rule's name."""
    highest = sorted(dots, key=lambda dot: dot[2])
    found = {name.partition(", ")[0]: (x, y, shade) for name, x, y, shade in highest}
    return [(rule, *where) for rule, where in found.items()]


def _utility_panel(title: str, cosine: Values, margin: Values) -> Panel:
    names = [name for name in cosine if name in margin]
    words = "; ".join(f"{n} deep cosine {cosine[n]}, {margin[n]}" for n in names)

    def draw(ax: Axes) -> None:
        ax.axhline(0, color=colour("soft"), lw=0.8, zorder=1)
        ax.axvline(0, color=colour("soft"), lw=0.8, zorder=1)
        dots = []
        for name, look in looks(names).items():
            x, y = cosine[name].mean, 100 * margin[name].mean
            ax.plot(x, y, marker=look.marker, ms=7, color=look.colour, zorder=3)
            dots.append((name, x, y, look.colour))
        ax.margins(x=0.25, y=0.15)
        ax.grid()
        ax.set_axisbelow(True)
        ax.autoscale_view()
        on.beside(ax, dots if len(dots) <= CROWD else _one_of_each(dots))
        ax.set_xlabel("deep cosine")
        ax.set_ylabel("points above frozen blocks")

    return Panel(short(title, 44), draw, words, (4.0, 2.9))
