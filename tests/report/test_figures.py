"""Figures: drawn from evidence alone, the same bytes every time, readable without colour."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, pairwise
from math import inf, nan
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given, settings
from matplotlib.axes import Axes

from faudit.errors import FauditError
from faudit.measures.evidence import Evidence, NullCalibration
from faudit.protocol import Case, Thresholds
from faudit.report import Dossier, escape, figures
from faudit.report import axes as on
from faudit.report.cells import Value
from faudit.report.contents import all_plates
from faudit.report.inline import Styles
from faudit.report.plate import FORMATS, Panel, Plate
from faudit.report.style import MARKERS, PALETTE, SERIES, colour, looks
from tests.report.samples import SEEDS, bundle, recipe
from tests.report.test_escape import HOSTILE, TEXT

SVG = "{http://www.w3.org/2000/svg}"


def measured(rule: str) -> list[Evidence]:
    return [e for s in SEEDS if (e := bundle(recipe(rule, s, epochs=4)).evidence)]


def axes_of(plate: Plate) -> dict[str, Axes]:
    """The drawn axes by their titles."""
    found = plate.figure().axes
    return {ax.get_title(loc="left"): ax for ax in found}


def words_on(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


# -- the papers' figures --------------------------------------------------------------------------


def test_figure_1_shows_accuracy_beside_frozen_blocks_and_gamma() -> None:
    accuracy = {"BP": Value(0.607, 0.002, 3), "FA": Value(0.345, 0.003, 3)}
    gamma = {"BP": Value(1.0, style="signed"), "FA": Value(0.48, style="signed")}
    axes = axes_of(figures.reporting_pair(accuracy, gamma, Value(0.349)))
    assert [bar.get_width() for bar in axes["Test accuracy"].patches] == [0.607, 0.345]
    assert "frozen blocks 0.349" in words_on(axes["Test accuracy"])
    assert "+0.480" in words_on(axes["Aggregate cosine Γ"])


def test_figure_3_draws_every_layer_the_clamp_and_the_threshold() -> None:
    evidence = measured("dfa")
    axes = axes_of(figures.per_layer({"DFA": evidence}))
    norm = axes["Reference norm ‖g‖"]
    curve = norm.lines[2]
    expected = np.exp(np.mean(np.log([e.reference_norm_at(128) for e in evidence]), axis=0))
    assert np.allclose(curve.get_ydata(), expected, rtol=1e-6)
    assert [line.get_ydata()[0] for line in norm.lines[:2]] == [1e-7, 1e-8]
    assert {"D2 limit 10⁻⁷", "cosine's clamp 10⁻⁸"} <= set(words_on(norm))
    assert len(axes["State norm ‖h‖"].lines[0].get_xdata()) == 5


def test_figure_3_sets_the_aggregate_apart_from_the_layers_it_hides() -> None:
    evidence = measured("dfa")
    ax = axes_of(figures.per_layer({"DFA": evidence}))["Cosine of credit and gradient"]
    (diamond,) = [line for line in ax.lines if line.get_marker() == "D"]
    assert diamond.get_ydata()[0] == pytest.approx(np.mean([e.gamma for e in evidence]))
    assert diamond.get_xdata()[0] > 4
    assert ax.get_xticklabels()[-1].get_text() == "Γ"


def test_figures_4_and_5_ring_the_epoch_at_which_a_check_first_fires() -> None:
    norms = [9.8e-4, 1.4e-6, 3.1e-7, 1.3e-7, 6.7e-8, 1e-9]
    history = [
        {"epoch": e, "state_norm": [9.0, 10.0 ** (2 + e)], "growth": [10.0**e],
         "reference_norm": [1.0, 128 * n], "accuracy": 0.3}
        for e, n in enumerate(norms)
    ]  # fmt: skip
    axes = axes_of(figures.trajectories({"DFA": [history]}, frozen=Value(0.349)))
    assert set(axes) == {"Last state ‖h‖", "Last reference ‖g‖", "Test accuracy"}
    rings = {
        title: [line.get_xdata()[0] for line in ax.lines if line.get_markersize() == 6.5]
        for title, ax in axes.items()
    }
    assert rings == {"Last state ‖h‖": [2], "Last reference ‖g‖": [4], "Test accuracy": []}
    assert "DFA, D2 at 4" in words_on(axes["Last reference ‖g‖"])


def test_figure_6_answers_a_dose_in_four_ways() -> None:
    doses = [
        figures.Dose(p, [e.replace(deep_cosine=c)], [a])
        for p, c, a, e in zip((0.0, 1e-4, 1e-2), (0.0, -0.016, 0.152), (0.3, 0.35, 0.36),
                              measured("dfa"), strict=True)
    ]  # fmt: skip
    axes = axes_of(figures.penalty_response({"DFA": doses}, Value(0.349)))
    assert list(axes) == ["Last state ‖h‖", "Last reference ‖g‖", "Deep cosine", "Test accuracy"]
    lines = [line for line in axes["Deep cosine"].lines if len(line.get_xdata()) == 3]
    assert lines[0].get_ydata() == pytest.approx([0.0, -0.016, 0.152])
    ticks = [label.get_text() for label in axes["Deep cosine"].get_xticklabels()]
    assert ticks == ["0", "10⁻⁴", "10⁻²"]


def test_the_null_is_a_bar_of_two_deviations_and_the_value_a_dot() -> None:
    null = NullCalibration(draws=20, mean=-0.005, std=0.018, value=0.166, z=9.5)
    plate = figures.null_calibration({"DFA": [Evidence(layers=1, samples=8, null=null)]})
    (ax,) = plate.figure().axes
    (bar,) = ax.patches
    assert (bar.get_x(), bar.get_width()) == pytest.approx((-0.041, 0.072))
    assert "+9.5 σ" in words_on(ax)


def test_every_run_stands_beside_every_threshold() -> None:
    case = Case(name="DFA", growth=237.0, reference_norm=5e-10, stability=0.16,
                accuracy=0.306, frozen_accuracy=0.349)  # fmt: skip
    axes = axes_of(figures.diagnostics({"DFA": [case]}))
    drawn = {title[:2]: ax.lines[-1].get_xdata()[0] for title, ax in axes.items()}
    assert drawn == pytest.approx({"D1": 237.0, "D2": 5e-10, "D3": -4.3, "(c": 0.16})
    assert words_on(axes["D2: last reference ‖g‖"]) == ["10⁻⁷"]


def test_a_cross_means_a_misjudged_case() -> None:
    fails = Case(name="x", accuracy=0.3, gamma=0.1, growth=1.0, reference_norm=1e-3,
                 frozen_accuracy=0.35, failing=True)  # fmt: skip
    (panel,) = figures.decision_utility({"FA": [fails, fails.replace(failing=False)]}).panels
    assert panel.words.startswith("FA: S0 accuracy only misjudged")
    (panel,) = figures.decision_utility({"FA": [fails]}, ["S1", "S3"]).panels
    assert re.search(r"S1 .* misjudged, S3 .* right", panel.words)


# -- what holds for all ---------------------------------------------------------------------------


def test_every_plate_of_a_study_says_in_words_what_it_shows(dossier: Dossier) -> None:
    plates = [plate for found in all_plates(dossier).values() for plate in found]
    assert {p.name.split("-0")[0] for p in plates} == {
        "reporting-pair", "cross-architecture", "ladder", "per-layer", "trajectories", "penalty",
        "null", "controls", "cosine-utility", "decision-utility", "diagnostics",
    }  # fmt: skip
    assert len({plate.name for plate in plates}) == len(plates)
    for plate in plates:
        assert plate.caption
        assert all(panel.words for panel in plate.panels)


def one_plate() -> Plate:
    return figures.per_layer({"DFA": measured("dfa"), "BP": measured("bp")})


def test_vector_files_are_the_same_bytes_every_time() -> None:
    first, second = (one_plate().files(("svg", "pdf")) for _ in range(2))
    assert first == second
    assert one_plate().inline(1) == one_plate().inline(1)


def test_files_have_the_format_their_name_says() -> None:
    files = figures.depth_ladder({"BP": {0: [0.3], 1: [0.5]}}).files()
    assert list(files) == list(FORMATS)
    heads = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}
    assert all(raw.startswith(heads[form]) for form, raw in files.items())
    with pytest.raises(FauditError, match="did you mean 'png'"):
        figures.depth_ladder({}).files(["pgn"])


def test_drawing_leaves_matplotlib_as_it_was() -> None:
    before = dict(mpl.rcParams)
    one_plate().files(("svg",))
    one_plate().figure()
    assert dict(mpl.rcParams) == before


def test_what_matplotlib_was_set_to_does_not_show() -> None:
    expected = one_plate().to_svg()
    with mpl.rc_context({"font.size": 30, "axes.grid": True, "svg.fonttype": "path"}):
        assert one_plate().to_svg() == expected


def test_a_panel_for_the_page_has_a_name_and_takes_the_pages_colours() -> None:
    styles = Styles()
    picture = one_plate().inline(1, styles)
    root = ElementTree.fromstring(picture)
    assert root.get("role") == "img"
    assert "DFA from" in root.get("aria-label", "")
    assert not re.search(r"#[0-9a-f]{6}", picture + styles.sheet)
    assert "var(--vermilion)" in styles.sheet
    assert "DejaVu" not in picture + styles.sheet
    assert "style=" not in picture
    used = set(re.findall(r'class="(f\d+)"', picture))
    assert used == set(styles.names.values())


def test_ids_within_a_page_are_unique_and_referred_to() -> None:
    plate = one_plate()
    pictures = [plate.inline(i) for i in range(len(plate.panels))]
    ids = [name for p in pictures for name in re.findall(r'\bid="([^"]+)"', p)]
    assert len(ids) == len(set(ids))
    for picture in pictures:
        known = set(re.findall(r'\bid="([^"]+)"', picture))
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', picture)) == known


PLATES: tuple[Callable[[str], Plate], ...] = (
    lambda n: figures.reporting_pair({n: Value(0.3)}, {n: Value(0.1, style="signed")}),
    lambda n: figures.per_layer({n: measured("fa")[:1]}),
    lambda n: figures.diagnostics({n: [Case(name=n, growth=2.0)]}, heads={n: n}),
    lambda n: figures.cross_architecture({n: {n: True, "b": None}}),
    lambda n: figures.cosine_against_utility({n: ({n: Value(0.1)}, {n: Value(0.2)})}),
)


@given(TEXT)
@settings(max_examples=8)
def test_hostile_names_are_only_ever_text(name: str) -> None:
    check_hostile(PLATES[0](name), name)


@pytest.mark.parametrize("draw", PLATES)
def test_the_worst_names_are_only_ever_text(draw: Callable[[str], Plate]) -> None:
    for name in HOSTILE[:7:2]:
        check_hostile(draw(name), name)


def check_hostile(plate: Plate, name: str) -> None:
    """The figure is well-formed, holds no element that acts, and no style from the name."""
    root = ElementTree.fromstring(plate.to_svg())
    own = {e.tag.removeprefix(SVG) for e in root.iter() if e.tag.startswith(SVG)}
    assert own <= {
        "svg",
        "metadata",
        "defs",
        "style",
        "g",
        "path",
        "use",
        "text",
        "clipPath",
        "rect",
    }
    styles = Styles()
    page = plate.inline(0, styles)
    assert ElementTree.fromstring(page) is not None
    label = ElementTree.fromstring(page).get("aria-label", "")
    assert escape.plain(name).strip() in label
    assert set(re.findall(r"[\w-]+(?=:)", styles.sheet)) <= {
        "fill", "stroke", "stroke-width", "stroke-linecap", "stroke-linejoin", "stroke-dasharray",
        "stroke-dashoffset", "fill-opacity", "stroke-opacity", "opacity", "font-size",
        "font-weight", "text-anchor", "font", "font-family",
    }  # fmt: skip


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [nan, inf, -inf, 0.0, 1e308, 5e-324])
def test_numbers_that_cannot_be_drawn_are_left_out(value: float) -> None:
    size = abs(value)
    evidence = Evidence(
        layers=1,
        samples=8,
        state_norm=(1.0, size),
        growth=(size,),
        reference_norm=(size, 1.0),
        cosine=(nan, 0.5),
        deep_cosine=0.5,
        gamma=nan,
    )
    assert figures.per_layer({"a": [evidence]}).to_svg()
    case = Case(name="a", growth=value, reference_norm=value, stability=value)
    assert figures.diagnostics({"a": [case]}).to_svg()


def test_a_method_without_evidence_is_no_obstacle() -> None:
    assert figures.per_layer({"a": [], "b": measured("bp")}).to_svg()
    assert figures.trajectories({"a": [], "b": [[]]}).panels == ()
    assert figures.per_layer({"a": [Evidence(layers=2, samples=8)]}).panels == ()


def test_names_beside_lines_never_overlap() -> None:
    for heights in ([0.5] * 9, [0.0, 0.0, 1.0, 1.0], [0.2, 0.21, 0.9]):
        placed = on.spread(heights, 0.1)
        assert min((b - a for a, b in pairwise(placed)), default=1) > 0.0999
        assert -1e-9 <= placed[0] <= placed[-1] <= 1 + 1e-9


def test_a_thinned_outline_keeps_both_ends() -> None:
    band = on.Band.over([[(i, 1.0 + i) for i in range(101)]] * 2, logarithmic=False)
    places, low, _ = band.outline(40)
    assert (places[0], places[-1], low[-1]) == (0, 100, 101.0)
    assert len(places) <= 42


# -- colours --------------------------------------------------------------------------------------

# Machado, Oliveira and Fernandes, IEEE TVCG 15, 2009: full protanopia, deuteranopia, tritanopia.
BLIND = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
               [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
               [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
               [0.004733, 0.691367, 0.303900]],
    "full": np.eye(3).tolist(),
}  # fmt: skip


def linear(shade: str) -> np.ndarray:
    values = np.array([int(shade[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    xyz = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(one: str, other: str) -> float:
    bright = sorted(float(np.array([0.2126, 0.7152, 0.0722]) @ linear(c)) for c in (one, other))
    return (bright[1] + 0.05) / (bright[0] + 0.05)


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("sight", BLIND)
def test_the_main_methods_colours_differ_for_every_eye(sight: str, mode: int) -> None:
    shades = [PALETTE[name][mode] for name in SERIES[:6]]
    seen = [lab(np.array(BLIND[sight]) @ linear(shade)) for shade in shades]
    distances = [float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2)]
    assert min(distances) > 15


@pytest.mark.parametrize("mode", [0, 1])
def test_everything_drawn_stands_out_from_the_ground(mode: int) -> None:
    ground = PALETTE["ground"][mode]
    for name in (*SERIES, "soft", "alarm", "fine"):
        assert contrast(PALETTE[name][mode], ground) >= 4.4, name


def test_series_differ_in_more_than_colour() -> None:
    found = looks(["BP", "FA", "DFA", "State Bridge", "Credit Bridge", "EP"])
    assert len({look.marker for look in found.values()}) == 6
    variants = looks(["DFA", "DFA, lr 0.1", "DFA, lr 0.2"])
    assert len({look.colour for look in variants.values()}) == 1
    assert len({(look.marker, look.dashes) for look in variants.values()}) == 3
    assert len(MARKERS) == len(SERIES)


def test_limits_follow_the_thresholds_given() -> None:
    plate = figures.per_layer({"DFA": measured("dfa")}, Thresholds(eps=1e-6))
    assert "D2 limit 10⁻⁵" in words_on(axes_of(plate)["Reference norm ‖g‖"])


def test_a_plate_of_ones_own_needs_only_something_to_draw() -> None:
    plate = Plate("mine", "Mine", "A line.", (Panel("p", lambda ax: ax.plot([1, 2])),))
    assert "<figcaption>" in plate._repr_html_()
    assert plate.inline(0).startswith("<svg")


def test_each_bar_is_marked_with_its_own_baseline_where_they_differ() -> None:
    accuracy = {"BP": Value(0.7), "DFA": Value(0.5)}
    own = {"BP": Value(0.6), "DFA": Value(0.65)}
    plate = figures.reporting_pair(accuracy, {}, own)
    assert plate.panels[0].words == (
        "BP 0.700 against frozen blocks 0.600; DFA 0.500 against frozen blocks 0.650"
    )
    lines = [line for line in plate.figure(0).axes[0].lines if line.get_color() == colour("alarm")]
    assert [line.get_xdata()[0] for line in lines] == [0.6, 0.65]
    shared = figures.reporting_pair(accuracy, {}, Value(0.6)).figure(0).axes[0]
    assert sum(line.get_color() == colour("alarm") for line in shared.lines) == 1


def test_where_the_numbers_come_from_travels_inside_every_file() -> None:
    plate = replace(figures.reporting_pair({"BP": Value(0.7)}, {}), stamp="3 runs <b> of torch")
    files = plate.files()
    assert b"3 runs &lt;b&gt; of torch" in files["svg"]
    assert b"3 runs <b> of torch" in files["png"]
    assert b"Subject" in files["pdf"]
    assert "torch" not in plate.inline(0)  # the page says it once, in words
    assert plate.files() == files


def test_names_beside_curves_stay_apart_when_they_are_cut() -> None:
    names = [f"Credit Bridge, inputs {kind}, sees {what}" for kind in ("raw", "normalised")
             for what in ("label", "error", "nothing")]  # fmt: skip
    for longest in (16, 24, 34):
        for curves in (names, ["BP", *names]):
            shown = on.told_apart(curves, longest)
            assert len(set(shown.values())) == len(curves)
            assert max(map(len, shown.values())) <= longest
