"""Proposed thresholds separate what can be separated and refuse what cannot."""

from __future__ import annotations

from math import inf, isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faudit.errors import FauditError
from faudit.measures.evidence import Evidence
from faudit.protocol import Calibration, Case, Thresholds, calibrate

HEALTHY = [
    Case(name="BP", accuracy=0.609, frozen_accuracy=0.349, growth=1.3, reference_norm=4e-4),
    Case(name="EP", accuracy=0.420, frozen_accuracy=0.349, growth=11, reference_norm=1e-4),
]
FAILING = [
    Case(name="DFA", accuracy=0.306, frozen_accuracy=0.349, growth=2e3, reference_norm=5e-10),
    Case(name="CB", accuracy=0.289, frozen_accuracy=0.349, growth=694, reference_norm=4.2e-9),
]


def test_midpoints_of_the_published_gaps() -> None:
    found = calibrate(HEALTHY, FAILING)
    assert found.proposal("D1").threshold == pytest.approx((11 * 694) ** 0.5)
    assert found.proposal("D2").threshold == pytest.approx((1e-4 * 4.2e-9) ** 0.5)
    assert found.proposal("D3").threshold == pytest.approx((0.071 - 0.043) / 2)
    # The published thresholds lie inside the same gaps.
    for code, published in (("D1", 50), ("D2", 1e-7), ("D3", 0.02)):
        p = found.proposal(code)
        low, high = sorted((p.healthy_extreme, p.failing_extreme))
        assert low < published < high


def test_leaving_one_run_out_bounds_the_threshold() -> None:
    d1 = calibrate(HEALTHY, FAILING).proposal("D1")
    by_hand = [(1.3 * 694) ** 0.5, (11 * 2000) ** 0.5]  # without EP, without CB
    assert (d1.low, d1.high) == pytest.approx((min(by_hand), max(by_hand)))
    assert d1.low <= d1.threshold <= d1.high


def test_a_lone_run_of_a_kind_leaves_the_range_unknown() -> None:
    d1 = calibrate(HEALTHY[:1], FAILING).proposal("D1")
    assert d1.separable
    assert isnan(d1.low)
    assert isnan(d1.high)
    assert "range unknown" in str(d1)


def test_overlap_proposes_nothing_and_says_so() -> None:
    bad = [*FAILING, Case(name="mild", growth=5, reference_norm=1e-3)]
    found = calibrate(HEALTHY, bad)
    assert not found.proposal("D1").separable
    assert "overlap" in found.proposal("D1").reason
    assert found.proposal("D1").gap < 1
    assert found.thresholds().growth == Thresholds().growth  # kept, not invented


def test_missing_numbers_are_named() -> None:
    found = calibrate([Case(name="BP", growth=1.0)], [Case(name="DFA", reference_norm=1e-9)])
    assert "no failing run" in found.proposal("D1").reason
    assert "no healthy run" in found.proposal("D2").reason
    assert "no healthy run" in found.proposal("D3").reason
    with pytest.raises(FauditError, match="no runs to calibrate on"):
        calibrate([], [])


def test_proposals_become_thresholds_that_sort_the_runs() -> None:
    found = calibrate(HEALTHY, FAILING)
    limits = found.thresholds()
    assert limits.reference == pytest.approx(found.proposal("D2").threshold)
    for case in HEALTHY:
        assert not limits.explodes(case.growth)
        assert not limits.collapses(case.reference_norm)
        assert not limits.idles(case.margin)
    for case in FAILING:
        assert limits.explodes(case.growth)
        assert limits.collapses(case.reference_norm)
        assert limits.idles(case.margin)
    assert Calibration.from_json(found.to_json()) == found
    assert str(found).count("\n") == 2


def test_a_table_may_hold_mappings_and_evidence() -> None:
    rows = [{"growth": 1.3, "reference_norm": 4e-4}, {"growth": 11, "reference_norm": 1e-4}]
    measured = [
        Evidence(layers=1, samples=8, growth=(2e3,), reference_norm=(1.0, 128 * 5e-10)),
        Evidence(layers=1, samples=8, growth=(694.0,), reference_norm=(1.0, 128 * 4.2e-9)),
    ]
    found, by_hand = calibrate(rows, measured), calibrate(HEALTHY, FAILING)
    for code in ("D1", "D2"):
        assert found.proposal(code).threshold == pytest.approx(by_hand.proposal(code).threshold)
    assert not found.proposal("D3").separable


@pytest.mark.parametrize(
    ("healthy", "failing", "message"),
    [
        (["BP"], [], "healthy 0 is of type str; a run is a Case"),
        (HEALTHY, [None], "failing 0 is of type NoneType"),
        (None, FAILING, "healthy is of type NoneType; give a list of runs"),
        (HEALTHY, FAILING[0], "failing is of type Case; give a list"),
        (HEALTHY, {"growth": 3}, "failing is of type dict; give a list"),
        (HEALTHY, [{"grwth": 3}], "unknown field 'grwth'; did you mean 'growth'"),
        (HEALTHY, [{"growth": "much"}], "growth: "),
    ],
)
def test_what_is_no_table_of_runs_is_refused(healthy, failing, message) -> None:
    with pytest.raises(FauditError, match=message):
        calibrate(healthy, failing)


def test_zeros_and_infinities_are_refused_as_evidence_for_a_threshold() -> None:
    vanished = [Case(name="DFA", growth=inf, reference_norm=0.0)]
    found = calibrate(HEALTHY, vanished)
    assert not found.proposal("D2").separable
    assert "exactly zero" in found.proposal("D2").reason
    assert "no failing run has a finite number" in found.proposal("D1").reason
    assert found.thresholds() == Thresholds()


sizes = st.lists(st.floats(1e-30, 1e30), min_size=1, max_size=5)


@given(sizes, sizes)
def test_a_proposal_lies_strictly_between_the_kinds_or_is_none(healthy, failing) -> None:
    found = calibrate(
        [Case(name="h", growth=g) for g in healthy], [Case(name="f", growth=g) for g in failing]
    ).proposal("D1")
    assert found.separable is (max(healthy) < min(failing))
    if found.separable:
        assert max(healthy) <= found.threshold <= min(failing)


def test_a_run_that_is_not_finite_is_no_healthy_run() -> None:
    broken = Evidence(
        layers=1, samples=9, growth=(1.3,), reference_norm=(1.0, 1.0), nonfinite="weight w"
    )
    found = calibrate([broken], [{"growth": 900}]).proposal("D1")
    assert not found.separable
    assert "no healthy run" in found.reason
