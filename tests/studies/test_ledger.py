"""The ledger: rules decide as stated, missing runs are said to be missing, replays agree."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from faudit.bundle import Bundle
from faudit.errors import FauditError
from faudit.recipe import Data, Named, Recipe
from faudit.studies import audits
from faudit.studies.audits import Arm, Setting
from faudit.studies.claims import (
    CLAIMS,
    FITTED,
    REPEATED,
    RULES,
    Claim,
    Line,
    accuracy,
    find,
    margin,
    word,
)
from faudit.studies.engines import Inline
from faudit.studies.ledger import (
    FARTHEST,
    NOT_REPRODUCED,
    NOT_RUN,
    REPRODUCED,
    SAME_VERDICT,
    Row,
    again,
    claims_of,
    decision_tables,
    ledger,
    near,
    needed,
    reproduce,
    rerun,
    search,
    status,
)
from faudit.studies.progress import Silent
from faudit.studies.quantities import PER_RUN, TEXTS, Quantity
from faudit.studies.results import export
from faudit.studies.runner import measure_again
from faudit.studies.store import Store
from faudit.studies.study import train
from tests.studies.fabricated import Everything, bundle, history, outcome


def row(id: str, source: Any) -> Row:
    """One claim's row under the paper's recipe."""
    return ledger(source, claims=[find(id)], variants=["paper"]).rows[0]


def only(arm: Arm, **numbers: Any) -> dict[Recipe, Bundle]:
    """A source with the runs of one arm, and frozen blocks at 0.35."""
    frozen = {recipe: bundle(recipe, 0.35) for recipe in arm.baseline.recipes()}
    return frozen | {recipe: bundle(recipe, **numbers) for recipe in arm.recipes()}


# -- the claims as data ---------------------------------------------------------------------------


def test_every_claim_has_an_id_of_its_own() -> None:
    assert len({claim.id for claim in CLAIMS}) == len(CLAIMS) > 200


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_a_claim_reproduces_itself(claim: Claim) -> None:
    if isinstance(claim.published, float):
        assert near(claim, claim.published)
        if claim.line and claim.line.quantity is None:
            assert (claim.published >= claim.line.limit) is claim.line.above
    assert str(claim.quantity)
    assert claim.source
    assert claim.kind in RULES


@pytest.mark.parametrize(
    ("total", "own", "base"),
    [
        ("t1-bp-margin", "t1-bp-accuracy", "t1-frozen-accuracy"),
        ("t1-fa-margin", "t1-fa-accuracy", "t1-frozen-accuracy"),
        ("t1-dfa-margin", "t1-dfa-accuracy", "t1-frozen-accuracy"),
        ("t6-bp-margin", "t6-bp-accuracy", "t6-frozen-accuracy"),
        ("t6-fa-margin", "t6-fa-accuracy", "t6-frozen-accuracy"),
        ("t6-dfa-margin", "t6-dfa-accuracy", "t6-frozen-accuracy"),
        ("f3-fa-margin", "f3-fa-accuracy", "v1-frozen-accuracy"),
        ("f6-bp-cost", "f6-bp-1e-2-accuracy", "f6-bp-0-accuracy"),
        ("f6-bp-1e-2-margin", "f6-bp-1e-2-accuracy", "f6-frozen-accuracy"),
        ("f6-dfa-gain", "t3-dfa-accuracy", "f6-dfa-0-accuracy"),
        ("f6-dfa-1e-2-margin", "t3-dfa-accuracy", "f6-frozen-accuracy"),
        ("v3-bp-change", "v3-bp-with", "v3-bp-without"),
        ("v3-dfa-change", "v3-dfa-with", "v3-dfa-without"),
    ],
)
def test_the_published_numbers_agree_with_each_other(total: str, own: str, base: str) -> None:
    difference = number(own) - number(base)
    assert number(total) == pytest.approx(difference, abs=0.0011)


def number(id: str) -> float:
    """A claim's published number."""
    found = find(id).published
    assert isinstance(found, float)
    return found


def test_the_drafts_reduction_is_eight_times_the_papers() -> None:
    assert number("f3-dfa-gL") / number("v1-dfa-g") == pytest.approx(1024 / 128)
    reductions = [find(id).quantity.batch for id in ("f3-dfa-gL", "v1-dfa-g")]
    assert reductions == [128, 1024]


def test_every_claim_is_decided_when_all_runs_are_there() -> None:
    found = ledger(Everything())
    assert not [r.claim.id for r in found.rows if r.standing == NOT_RUN]
    assert sum(found.totals(complete=True).values()) == len(CLAIMS)


def test_every_quantity_has_a_text() -> None:
    assert PER_RUN.keys() <= TEXTS.keys()


def test_what_is_said_twice_is_known() -> None:
    assert {"t5-dfa-d256", "t5-fa-d512", "t3-fa-accuracy", "v1-dfa-accuracy"} <= REPEATED
    assert not {"t4-dfa-d256", "v3-dfa-without", "t1-fa-accuracy-fixed"} & REPEATED


def test_every_claim_belongs_to_a_study_that_can_be_asked_for() -> None:
    studies = [claims_of([name]) for name in audits.PUBLISHED]
    assert all(studies)
    assert {c.id for found in studies for c in found} == {c.id for c in CLAIMS}
    with pytest.raises(FauditError, match="did you mean 't1'"):
        claims_of(["t11"])


def test_an_unknown_quantity_or_claim_is_refused_with_a_near_match() -> None:
    with pytest.raises(FauditError, match="did you mean 'growth'"):
        Quantity("grwth")
    with pytest.raises(FauditError, match="did you mean 't1-fa-gamma'"):
        find("t1-fa-gama")


# -- the rules ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("id", "inside", "outside"),
    [
        ("t1-fa-accuracy", 0.364, 0.366),
        ("t1-fa-margin", -0.023, -0.025),
        ("f3-fa-gamma", 0.279, 0.281),
        ("f3-fa-cosine-L", 1.0, 0.89),
        ("f6-fa-0-h", 8.9e5, 9.1e5),
        ("f6-fa-0-h", 9.1e3, 8.9e3),
        ("t3-cb-nudging", -8.5e-4, -8.6e-4),
        ("t3-cb-nudging", -2.2e-4, 4.3e-4),
        ("t2-no-ln-fa-g", 1.0e-4, 0.99e-4),
        ("x1-fa-climb", 0.22, 0.23),
        ("f6-dfa-0-h", 4e8, inf),
    ],
)
def test_the_tolerance_of_a_kind_is_where_it_was_stated(
    id: str, inside: float, outside: float
) -> None:
    assert near(find(id), inside)
    assert not near(find(id), outside)


def test_a_number_off_its_tolerance_on_the_published_side_is_the_same_verdict() -> None:
    fa = find("t1-fa-accuracy").arms[0]
    assert row("t1-fa-accuracy", only(fa, accuracy=0.35)).standing == REPRODUCED
    assert row("t1-fa-accuracy", only(fa, accuracy=0.25)).standing == SAME_VERDICT
    assert row("t1-fa-accuracy", only(fa, accuracy=0.45)).standing == NOT_REPRODUCED


def test_without_frozen_blocks_the_side_is_not_known() -> None:
    fa = find("t1-fa-accuracy").arms[0]
    alone = {recipe: bundle(recipe, 0.25) for recipe in fa.recipes()}
    found = row("t1-fa-accuracy", alone)
    assert found.standing == NOT_REPRODUCED
    assert found.reason.endswith("not known")
    assert row("t1-fa-margin", alone).standing == NOT_RUN
    assert row("t1-fa-verdict", alone).standing == NOT_RUN


def test_frozen_blocks_on_other_data_do_not_count() -> None:
    fa = find("t1-fa-margin").arms[0]
    source = only(fa, accuracy=0.35)
    for recipe in fa.baseline.recipes():
        source[recipe] = replace(source[recipe], outcome=outcome(recipe, 0.35, data="others"))
    assert row("t1-fa-margin", source).standing == NOT_RUN


def test_a_reference_is_read_at_the_reduction_of_its_claim() -> None:
    arm = find("f3-dfa-gL").arms[0]
    source = only(arm, reference_norm=(1.0, 1.0, 1.0, 1.0, 128 * 4e-9))
    at_128, at_1024 = (row(id, source).ours for id in ("f3-dfa-gL", "v1-dfa-g"))
    assert at_128 is not None
    assert at_1024 is not None
    assert at_128.mean == pytest.approx(4e-9)
    assert at_1024.mean == pytest.approx(5e-10)


def test_published_alignments_are_read_with_the_clamp() -> None:
    arm = find("f3-dfa-gamma").arms[0]
    source = only(arm, cosine=(0.9,) * 5, cosine_clamped=(0.4, 0.0, 0.0, 0.0, 0.0))
    found = row("f3-dfa-gamma", source).ours
    assert found is not None
    assert found.mean == pytest.approx(0.08)


def test_a_verdict_must_be_the_same_for_every_seed() -> None:
    arm = find("t6-fa-verdict").arms[0]
    source = only(arm, accuracy=0.3)
    assert row("t6-fa-verdict", source).standing == REPRODUCED
    source[arm.recipes()[0]] = bundle(arm.recipes()[0], 0.5)
    found = row("t6-fa-verdict", source)
    assert found.standing == NOT_REPRODUCED
    assert found.ours is not None
    assert found.ours.word == "FAIL(D3) in 2 of 3, PASS in 1 of 3"


@pytest.mark.parametrize(
    ("deep", "standing"),
    [
        ({"cb": 0.7, "fa": 0.4, "sb": 0.3, "dfa": 0.1}, REPRODUCED),
        ({"cb": 0.7, "fa": 0.3, "sb": 0.4, "dfa": 0.1}, NOT_REPRODUCED),
    ],
)
def test_a_ranking_is_kept_or_not(deep: dict[str, float], standing: str) -> None:
    arms = find("t3-order-cosine").arms
    source: dict[Recipe, Bundle] = {}
    for arm in arms:
        source |= only(arm, cosine_clamped=(0.9, *(deep[arm.rule],) * 4))
    assert row("t3-order-cosine", source).standing == standing
    del source[arms[0].recipes()[0]]
    found = row("t3-order-cosine", source).ours
    assert found is not None
    assert (found.seeds, found.of) == (2, 3)


@pytest.mark.parametrize(("best", "standing"), [("sb", REPRODUCED), ("fa", NOT_REPRODUCED)])
def test_the_most_negative_nudge_ranks_first(best: str, standing: str) -> None:
    source: dict[Recipe, Bundle] = {}
    for arm in find("t3-order-nudging").arms:
        source |= only(arm, nudging=(-2e-3 if arm.rule == best else -1e-4,) * 5)
    assert row("t3-order-nudging", source).standing == standing


def test_an_epoch_must_lie_in_the_window_for_every_seed() -> None:
    arm = find("f4-dfa-d2-epoch").arms[0]

    def fires_at(*epochs: float) -> dict[Recipe, Bundle]:
        pairs = zip(arm.recipes(), epochs, strict=True)
        return {r: replace(bundle(r), history=shrinking(r, at)) for r, at in pairs}

    def shrinking(recipe: Recipe, at: float) -> tuple[dict[str, Any], ...]:
        return history(recipe, 4, reference_norm=lambda e: [1.0] * 4 + [1e-5 if e >= at else 1.0])

    assert row("f4-dfa-d2-epoch", fires_at(3, 4, 4)).standing == REPRODUCED
    assert row("f4-dfa-d2-epoch", fires_at(3, 4, 9)).standing == SAME_VERDICT
    assert row("f4-dfa-d2-epoch", fires_at(3, 4, inf)).standing == NOT_REPRODUCED


def test_a_difference_is_taken_seed_by_seed() -> None:
    claim = find("f6-dfa-gain")
    assert claim.minus is not None
    pairs = zip(claim.arms[0].recipes(), claim.minus.recipes(), strict=True)
    source: dict[Recipe, Bundle] = {}
    for place, (own, other) in enumerate(pairs):
        base = 0.3 + place / 10
        source |= {own: bundle(own, base + 0.06), other: bundle(other, base)}
    found = row("f6-dfa-gain", source).ours
    assert found is not None
    assert found.values == pytest.approx((0.06,) * 3)
    assert found.spread == pytest.approx(0, abs=1e-9)


def test_part_of_the_seeds_is_judged_and_counted() -> None:
    arm = find("t1-fa-gamma").arms[0]
    first = arm.recipes()[0]
    found = row("t1-fa-gamma", {first: bundle(first, cosine_clamped=(0.48, 0.48, 0.48))})
    assert found.standing == REPRODUCED
    assert found.ours is not None
    assert (found.ours.seeds, found.ours.of, found.ours.spread) == (1, 3, None)
    alone = ledger({first: bundle(first)})
    assert sum(alone.totals(complete=True).values()) == 0
    assert alone.totals()[NOT_RUN] < len(CLAIMS)


def test_a_run_that_broke_is_no_missing_run() -> None:
    arm = find("t6-dfa-accuracy").arms[0]
    source = only(arm, accuracy=0.3)
    for recipe in arm.recipes():
        broken = outcome(recipe, 0.0).replace(
            status="failed", reason="non-finite", accuracy=None, correct="", tests=0
        )
        source[recipe] = replace(source[recipe], outcome=broken)
    found = row("t6-dfa-accuracy", source)
    assert found.standing == NOT_REPRODUCED
    assert "3 of 3 runs leave it undefined" in found.reason
    told = row("t6-dfa-verdict", source).ours
    assert told is not None
    assert told.word.startswith("FAILED(non-finite")


@pytest.mark.parametrize("id", ["t6-dfa-accuracy", "t6-dfa-margin", "t6-dfa-growth"])
def test_one_run_that_broke_is_not_left_out_of_the_mean(id: str) -> None:
    claim = find(id)
    source = only(claim.arms[0], accuracy=0.088, growth=(1.0, 1.0, 1.0, 1004.0))
    for recipe in claim.arms[0].baseline.recipes():
        source[recipe] = bundle(recipe, 0.178)
    assert row(id, source).standing == REPRODUCED
    first = claim.arms[0].recipes()[0]
    broken = outcome(first, 0.0).replace(
        status="failed", reason="non-finite", accuracy=None, correct="", tests=0
    )
    source[first] = replace(source[first], outcome=broken)
    found = row(id, source)
    assert found.standing == NOT_REPRODUCED
    assert "1 of 3 runs leave it undefined" in found.reason


@pytest.mark.parametrize("id", ["t3-order-accuracy", "v4-d1-gap", "v4-d1-robust"])
def test_runs_that_speak_together_do_not_leave_out_one_that_broke(id: str) -> None:
    numbers = {"bp": 1.0, "ep": 11.0, "fa": 1.0, "dfa": 694.0, "cb": 800.0, "sb": 9000.0}
    source: dict[Recipe, Bundle] = {}
    for arm in find(id).arms:
        best = 0.6 if arm.rule == "sb" else 0.4
        source |= only(arm, accuracy=best, growth=(1.0, 1.0, 1.0, numbers[arm.rule]))
    assert row(id, source).standing == REPRODUCED
    first = find(id).arms[0].recipes()[0]
    broken = outcome(first, 0.0).replace(
        status="failed", reason="non-finite", accuracy=None, correct="", tests=0
    )
    source[first] = replace(source[first], outcome=broken)
    found = row(id, source)
    assert found.standing == NOT_REPRODUCED
    assert found.reason.endswith("; its runs leave it undefined")


def test_a_ranking_by_a_number_without_a_meaning_is_undefined() -> None:
    source: dict[Recipe, Bundle] = {}
    for arm in find("t3-order-nudging").arms:
        source |= only(arm, nudging=(-2e-3 if arm.rule == "sb" else -1e-4,) * 5)
    assert row("t3-order-nudging", source).standing == REPRODUCED
    first = find("t3-order-nudging").arms[0].recipes()[0]
    source[first] = bundle(first, nudging=(nan,) * 5)
    assert row("t3-order-nudging", source).standing == NOT_REPRODUCED


@pytest.mark.parametrize(
    ("id", "fitted"),
    [
        ("t3-fa-cosine", True),  # the same number as f6-fa-1e-2-cosine
        ("f6-dfa-gain", True),  # a difference of two that were scored
        ("f6-dfa-1e-2-margin", True),
        ("t3-order-cosine", True),
        ("f6-null-trained", True),
        ("t3-order-nudging", False),  # the search did not see FA's and DFA's
        ("f6-bp-cost", False),
        ("f4-dfa-accuracy-100", False),
    ],
)
def test_what_is_made_of_numbers_the_search_has_seen_is_no_surprise(id: str, fitted: bool) -> None:
    found = ledger(Everything(), claims=[find(id)], variants=["paper", "plain"])
    assert [r.fitted for r in found.rows] == [fitted, False]
    assert found.rows[0].telling is not fitted


@pytest.mark.parametrize(
    "id", ["f6-null-fresh", "v5-fresh-feedback", "v2-control-bp", "v2-control-random"]
)
def test_a_control_could_not_have_come_out_otherwise(id: str) -> None:
    assert find(id).certain
    assert find(id).note


def test_what_could_not_fail_or_chose_the_recipe_is_set_apart() -> None:
    found = ledger(Everything())
    assert not found.row("f3-fa-cosine-L").telling
    assert not found.row("f6-dfa-0-accuracy").telling
    assert found.row("f6-dfa-0-accuracy", "plain").telling
    assert found.row("t1-fa-accuracy").telling
    assert {claim.id for claim in CLAIMS} >= FITTED


def test_a_reference_is_judged_at_the_declared_reduction_whatever_it_was_printed_at() -> None:
    claim = find("t2-vit-dfa-g")
    assert (claim.quantity.batch, claim.line.quantity.batch) == (1024, 128)
    between = only(claim.arms[0], reference_norm=(1.0,) * 4 + (128 * 2e-7,))
    found = row("t2-vit-dfa-g", between)
    assert found.standing == NOT_REPRODUCED
    assert "128 samples below 1e-07: no" in found.reason


@pytest.mark.parametrize(
    ("grown", "collapsed", "told"),
    [(8, 3, "D2, D1"), (3, 8, "D1, D2"), (4, 4, "together"), (inf, 2, "D2"), (inf, inf, "never")],
)
def test_the_order_in_which_checks_fire(grown: float, collapsed: float, told: str) -> None:
    recipe = find("f4-dfa-order").arms[0].recipes()[0]

    def size(epoch: int) -> list[float]:
        return [1.0, 1.0, 1.0, 99.0 if epoch >= grown else 1.0]

    def reference(epoch: int) -> list[float]:
        return [1.0] * 4 + [1e-5 if epoch >= collapsed else 1.0]

    made = history(recipe, 10, growth=size, reference_norm=reference)
    found = row("f4-dfa-order", {recipe: replace(bundle(recipe), history=made)}).ours
    assert found is not None
    assert found.word == told


def test_who_comes_back_above_the_clamp_did_not_stay_below_it() -> None:
    arm = find("f4-dfa-clamped-by").arms[0]

    def collapsed(*epochs: int) -> Row:
        def size(epoch: int) -> list[float]:
            return [1.0] * 4 + [1e-6 if epoch in epochs else 1.0]

        source = {r: replace(bundle(r), history=history(r, 4, reference_norm=size)) for r in runs}
        return row("f4-dfa-clamped-by", source)

    runs = arm.recipes()
    last = runs[0].training.epochs
    assert collapsed(*range(20, last + 1)).standing == REPRODUCED
    assert collapsed(*range(21, last + 1)).standing == SAME_VERDICT
    assert collapsed(*range(4, last)).standing == NOT_REPRODUCED


def test_an_accuracy_on_the_way_is_held_against_frozen_blocks_as_it_then_was() -> None:
    claim = find("f4-dfa-accuracy-4")
    assert claim.line is not None
    source = only(claim.arms[0], accuracy=0.9)
    for recipe in claim.arms[0].recipes():
        early = history(recipe, 4, accuracy=lambda e: 0.36 if e == 4 else 0.9)
        source[recipe] = replace(source[recipe], history=early)
    assert row("f4-dfa-accuracy-4", source).standing == SAME_VERDICT


def test_an_undefined_aggregate_leaves_the_extremes_undefined() -> None:
    arm = find("v5-aggregate-low").arms[0]
    for ways in ({"a": nan, "b": -0.03}, {"b": -0.03, "a": nan}):
        why = {"a": "no direction"}
        source = only(arm, cosine_aggregates=ways, undefined=why)
        assert row("v5-aggregate-low", source).standing == NOT_REPRODUCED


@pytest.mark.parametrize("sizes", [(nan, 1.0, 1.0, 237.0), (237.0, 1.0, 1.0, nan)])
def test_an_undefined_growth_leaves_the_largest_undefined(sizes: tuple[float, ...]) -> None:
    source = only(find("v1-dfa-growth").arms[0], growth=sizes)
    assert row("v1-dfa-growth", source).standing == NOT_REPRODUCED


def test_the_early_cosines_are_those_of_every_seed() -> None:
    arm = find("v2-early-highest").arms[0]
    source = only(arm)
    for place, recipe in enumerate(arm.recipes()):
        high = 0.03 if place else 0.01
        early = history(recipe, 4, cosine=[0.9, high, nan if place == 2 else 0.0, -0.02, -0.03])
        source[recipe] = replace(source[recipe], history=early)
    assert row("v2-early-highest", source).standing == NOT_REPRODUCED
    last = arm.recipes()[2]
    source[last] = replace(source[last], history=history(last, 4, cosine=[0.9, 0.0, 0, 0, 0]))
    found = row("v2-early-highest", source)
    assert found.standing == REPRODUCED
    assert found.ours is not None
    assert found.ours.mean == 0.03
    source[last] = replace(source[last], history=())
    assert row("v2-early-highest", source).standing == NOT_RUN


def test_an_undefined_layer_leaves_the_mean_undefined() -> None:
    arm = find("t3-cb-nudging").arms[0]
    source = only(arm, nudging=(-1e-3, nan, -1e-3, -1e-3, -1e-3))
    assert row("t3-cb-nudging", source).standing == NOT_REPRODUCED


# -- what takes several arms ----------------------------------------------------------------------

# One line per case of Table 5: accuracy, frozen blocks, growth, ||g_L|| at 128, Gamma.
AUDIT = {
    ("d256", "dfa"): (0.306, 0.349, 237.0, 4e-9, 0.10),
    ("d512", "fa"): (0.345, 0.349, 15.0, 1e-6, 0.48),
    ("vit", "dfa"): (0.256, 0.570, 900.0, 8e-9, 0.02),
    ("vit", "fa"): (0.163, 0.570, 900.0, 8e-9, 0.02),
    ("d256", "bp"): (0.609, 0.349, 1.3, 4e-4, 1.0),
}


def as_published(setting: str, rule: str) -> dict[Recipe, Bundle]:
    """The runs of one arm with the numbers that were published of them."""
    accuracy, frozen, growth, reference, gamma = AUDIT[setting, rule]
    arm = Arm(setting, rule)
    layers = 2 if setting == "d512" else 4
    seen = {
        "growth": (1.0,) * (layers - 1) + (growth,),
        "reference_norm": (1.0,) * layers + (reference * 128,),
        "cosine_clamped": (gamma,) * (layers + 1),
    }
    own = {recipe: bundle(recipe, accuracy, **seen) for recipe in arm.recipes()}
    return {recipe: bundle(recipe, frozen) for recipe in arm.baseline.recipes()} | own


def test_the_published_numbers_give_the_published_decisions() -> None:
    source: dict[Recipe, Bundle] = {}
    for setting, rule in AUDIT:
        source |= as_published(setting, rule)
    published, ours = decision_tables(source)
    assert ours == published
    found = ledger(source, variants=["paper"])
    decided = [r for r in found.rows if r.claim.study in ("t4", "t5")]
    assert {r.standing for r in decided} == {REPRODUCED}


def test_a_decision_must_be_the_same_for_every_seed() -> None:
    source = as_published("d512", "fa")
    assert row("t5-fa-d512", source).standing == REPRODUCED
    one = find("t5-fa-d512").arms[0].recipes()[0]
    source[one] = replace(source[one], outcome=outcome(one, 0.375))
    found = row("t5-fa-d512", source)
    assert found.standing == NOT_REPRODUCED
    assert found.ours is not None
    assert found.ours.word.startswith("pass pass pass fail in 2 of 3")


def test_without_runs_the_decisions_are_open() -> None:
    _, ours = decision_tables({})
    assert {cell for cells in ours.cells for cell in cells} == {None}
    assert row("t5-bp-d256", {}).standing == NOT_RUN


def test_gaps_and_robustness_are_those_of_the_runs() -> None:
    numbers = {"bp": 1.0, "ep": 11.0, "dfa": 694.0, "cb": 800.0, "sb": 9000.0}
    source: dict[Recipe, Bundle] = {}
    for arm in find("v4-d1-gap").arms:
        source |= only(arm, growth=(1.0, 1.0, 1.0, numbers[arm.rule]))
    found = row("v4-d1-gap", source)
    assert found.standing == REPRODUCED
    assert found.ours is not None
    assert found.ours.mean == pytest.approx(694 / 11)
    assert row("v4-d1-robust", source).standing == REPRODUCED
    extremes = [row(f"v4-d1-{kind}", source).ours for kind in ("healthy", "failing")]
    assert [ours.mean for ours in extremes if ours] == pytest.approx([11.0, 694.0])
    near_it = find("v4-d1-gap").arms[1]
    source |= only(near_it, growth=(1.0, 1.0, 1.0, 40.0))
    assert row("v4-d1-robust", source).standing == NOT_REPRODUCED


def test_a_margin_between_one_and_two_points_is_fragile() -> None:
    arm = find("v4-d3-fragile").arms[0]
    assert row("v4-d3-fragile", only(arm, accuracy=0.365)).standing == REPRODUCED
    assert row("v4-d3-fragile", only(arm, accuracy=0.385)).standing == NOT_REPRODUCED


def test_the_drafts_word_comes_from_a_and_b_alone() -> None:
    ep = find("v1-ep-trust").arms[0]
    assert row("v1-ep-trust", only(ep, accuracy=0.316)).standing == REPRODUCED
    exploded = only(ep, accuracy=0.316, growth=(1.0, 1.0, 1.0, 60.0))
    assert row("v1-ep-trust", exploded).standing == NOT_REPRODUCED
    unmeasured = only(ep, accuracy=0.316, growth=())
    assert row("v1-ep-trust", unmeasured).standing == NOT_REPRODUCED


def test_a_dose_response_ranks_the_penalties() -> None:
    def under(*sizes: float) -> str:
        source: dict[Recipe, Bundle] = {}
        for arm, size in zip(find("f6-dfa-order-h").arms, sizes, strict=True):
            source |= only(arm, state_norm=(size,) * 5)
        return row("f6-dfa-order-h", source).standing

    assert under(4e8, 2.3e4, 1e4) == REPRODUCED
    assert under(4e8, 2.4e4, 4e4) == NOT_REPRODUCED


# -- the search -----------------------------------------------------------------------------------


def test_the_search_puts_the_candidate_that_meets_most_first() -> None:
    def make(recipe: Recipe) -> Bundle:
        good = (recipe.training.idle_steps, recipe.training.normalise) == (4, "batch")
        if recipe.training.trainable_blocks == 0:
            return bundle(recipe, 0.349)
        return bundle(recipe, 0.372 if good and recipe.rule.name == "fa" else 0.1)

    ranked = search(Everything(make))
    assert ranked[0].name == "batch-idle4"
    assert ranked[0].met == ranked[1].met + 1
    assert all(candidate.run for candidate in ranked)
    assert {r.ours.of for c in ranked for r in c.rows if r.ours} == {1}


def test_a_candidate_without_all_its_runs_comes_last() -> None:
    recipes = audits.search(stages=["local"])
    source = {recipe: bundle(recipe, 0.1) for recipe in recipes}
    for recipe in recipes[:3]:
        source[recipe] = bundle(recipe, 0.3)
    assert search(source)[0].name == "plain"
    del source[recipes[2]]
    ranked = search(source)
    assert (ranked[-1].name, ranked[-1].run) == ("plain", False)
    assert ranked[-1].met > ranked[0].met


def test_without_runs_no_candidate_has_a_distance() -> None:
    ranked = search({})
    assert not any(candidate.run for candidate in ranked)
    assert {candidate.miss for candidate in ranked} == {FARTHEST}


# -- from end to end ------------------------------------------------------------------------------

SMALL = Setting(
    Named(name="resmlp", options={"width": 16, "depth": 2}),
    Data(name="fashion-sample", train_limit=512, test_limit=256),
    epochs=2,
    seeds=(42, 7),
)
FA = Arm("small", "fa", base=SMALL)
ABOUT = (
    accuracy("s0-fa-accuracy", "this test", FA, 0.5, useful=False),
    margin("s0-fa-margin", "this test", FA, 0.0),
    word("s0-fa-verdict", "this test", FA, "FAIL(D3)", "verdict"),
    Claim("s0-fa-null", "this test", "cosine", 0.0, Quantity("null", of="mean"), (FA,)),
    Claim(
        "s0-fa-start", "this test", "norm", 1.0, Quantity("state norm", epoch=0), (FA,),
        line=Line(50.0, False, Quantity("growth", epoch=0)),
    ),
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, tuple[Row, ...]]:
    """A store in which every claim about the small setting has been run, and what it says."""
    folder = tmp_path_factory.mktemp("store")
    rows = tuple(rerun(claim, folder, engine=Inline(), show=Silent()) for claim in ABOUT)
    return Store(folder), rows


def test_a_claim_is_trained_measured_and_judged(made: tuple[Store, tuple[Row, ...]]) -> None:
    store, rows = made
    assert len(store.digests()) == 4
    assert all(r.standing != NOT_RUN and r.ours and r.ours.seeds == 2 for r in rows)


def test_the_status_of_the_results_is_that_of_the_store(
    made: tuple[Store, tuple[Row, ...]], tmp_path: Path
) -> None:
    store, rows = made
    export(store, tmp_path)
    committed = status(tmp_path, claims=ABOUT, variants=["paper"])
    assert committed.rows == rows
    assert not list(tmp_path.rglob("*.safetensors"))


def test_measuring_a_bundle_again_gives_the_committed_row(
    made: tuple[Store, tuple[Row, ...]], tmp_path: Path
) -> None:
    store, rows = made
    export(store, tmp_path)
    own, other = FA.recipes()
    measured = {r: store[r] for r in (own, other, *FA.baseline.recipes())}
    measured[own] = measure_again(measured[own])
    assert ledger(measured, claims=ABOUT, variants=["paper"]).rows == rows


def test_training_a_claim_again_gives_the_committed_row(
    made: tuple[Store, tuple[Row, ...]], tmp_path: Path
) -> None:
    place = again(ABOUT[2], tmp_path)
    assert rerun(ABOUT[2], place, engine=Inline(), show=Silent()) == made[1][2]
    assert again(ABOUT[2], tmp_path).name == "s0-fa-verdict-paper-2"


def test_a_claim_that_was_stopped_early_is_gone_on_with(tmp_path: Path) -> None:
    place = again(ABOUT[2], tmp_path)
    train(needed(ABOUT[2])[:1], place, engine=Inline(), show=Silent())
    assert again(ABOUT[2], tmp_path) == place


def test_reproduce_asks_for_the_runs_of_the_named_studies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Recipe] = []
    monkeypatch.setattr(Inline, "work", lambda self, store, digests, look: asked.extend(digests))
    found = reproduce(["t4"], tmp_path, engine=Inline(), show=Silent())
    assert len(asked) == 12
    assert {r.claim.id for r in found.rows} == {c.id for c in CLAIMS if c.id.startswith("t4-")}
    assert {r.standing for r in found.rows} == {NOT_RUN}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_the_results_have_is_not_made_again_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(Inline, "work", lambda self, store, digests, look: asked.extend(digests))
    *most, last = audits.published(["t4"])
    besides = {audits.on(device, recipe): bundle(recipe, 0.5) for recipe in most}
    found = reproduce(["t4"], tmp_path, engine=Inline(), show=Silent(), besides=besides)
    assert asked == [last.digest]
    assert {r.ours.seeds for r in found.rows if r.ours} == {2, 3}


def test_a_run_counts_on_whichever_device_it_was_made() -> None:
    arm = find("t1-fa-accuracy").arms[0]
    gpu = {recipe.changed({"device": "cuda"}): bundle(recipe, 0.345) for recipe in arm.recipes()}
    both = gpu | {recipe: bundle(recipe, 0.2) for recipe in arm.recipes()}
    for source, expected in ((gpu, 0.345), (both, 0.2)):
        ours = row("t1-fa-accuracy", source).ours
        assert ours is not None
        assert set(ours.numbers) == {expected}
