"""Each check flags on the right side of its threshold and says what it saw."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest

from faudit.errors import FauditError
from faudit.measures.evidence import Evidence
from faudit.protocol.findings import (
    Finding,
    Thresholds,
    any_of,
    both,
    depth_utility,
    direction_stability,
    reference_validity,
    scale_stability,
    sub_mode,
)
from faudit.protocol.interval import Interval

LIMITS = Thresholds()


def measured(**fields: object) -> Evidence:
    return Evidence(**{"layers": 2, "samples": 512, **fields})


def test_defaults_are_the_published_thresholds() -> None:
    assert (LIMITS.growth, LIMITS.reference, LIMITS.margin, LIMITS.stability) == (
        50.0,
        1e-7,
        0.02,
        0.30,
    )
    assert LIMITS.reference_batch == 128


@pytest.mark.parametrize(
    ("check", "edge", "beyond"),
    [
        (LIMITS.explodes, 50.0, 50.001),
        (LIMITS.collapses, 1e-7, 0.999e-7),
        (LIMITS.idles, 0.02, 0.0199),
        (LIMITS.drifts, 0.30, 0.301),
    ],
)
def test_a_check_flags_beyond_its_threshold_not_on_it(check, edge: float, beyond: float) -> None:
    assert check(edge) is False
    assert check(beyond) is True
    assert check(None) is None
    assert check(nan) is None


def test_a_margin_of_exactly_two_points_is_not_lost_to_rounding() -> None:
    assert 0.349 - 0.329 < 0.02  # the trap
    assert LIMITS.idles(0.349 - 0.329) is False


@pytest.mark.parametrize("a", [True, False, None])
@pytest.mark.parametrize("b", [True, False, None])
def test_three_valued_logic_agrees_with_every_completion(a, b) -> None:
    completions = [
        (x, y) for x in (True, False) for y in (True, False) if a in (x, None) and b in (y, None)
    ]
    for fast, slow in (
        (both(a, b), {x and y for x, y in completions}),
        (any_of([a, b]), {x or y for x, y in completions}),
    ):
        assert fast is (slow.pop() if len(slow) == 1 else None)


def test_mode_one_needs_both_checks() -> None:
    assert LIMITS.mode_one(1004, 9.1e-9) is True
    assert LIMITS.mode_one(1004, 1e-3) is False
    assert LIMITS.mode_one(None, 1e-3) is False
    assert LIMITS.mode_one(None, 9.1e-9) is None


def test_scale_stability_takes_the_largest_consecutive_ratio() -> None:
    finding = scale_stability(measured(growth=(1.1, 1004.0)), LIMITS)
    assert (finding.flagged, finding.value, finding.details["block"]) == (True, 1004.0, 1.0)
    # A tiny first state followed by ordinary growth must not be compounded over the depth.
    assert scale_stability(measured(growth=(30.0, 30.0)), LIMITS).flagged is False


def test_scale_stability_is_open_when_an_unknown_block_could_decide() -> None:
    gone = {"undefined": {"growth[0]": "h_0 is zero"}}
    assert scale_stability(measured(growth=(nan, 60.0), **gone), LIMITS).flagged is True
    finding = scale_stability(measured(growth=(nan, 1.0), **gone), LIMITS)
    assert finding.flagged is None
    assert "h_0 is zero" in finding.reason
    assert scale_stability(measured(growth=(inf, 1.0)), LIMITS).flagged is True
    assert scale_stability(measured(), LIMITS).flagged is None
    assert "no blocks" in scale_stability(measured(layers=0), LIMITS).reason


def test_reference_validity_reads_the_deepest_state_at_the_declared_reduction() -> None:
    evidence = measured(reference_norm=(1e-12, 1e-12, 2e-6))
    assert reference_validity(evidence, LIMITS).flagged is True  # 1.6e-8 at 128
    single = Thresholds(reference_batch=1)
    assert reference_validity(evidence, single).flagged is False
    finding = reference_validity(evidence, LIMITS)
    assert finding.value == pytest.approx(2e-6 / 128)
    assert finding.details["per_sample"] == 2e-6
    assert "2e-06 per sample" in finding.reason


@pytest.mark.parametrize(
    ("angle", "norm", "words"),
    [
        (0.01, 6.4e-8, "sound, but a cosine clamped at 1e-08 shrinks"),  # 5e-10 at 128
        (0.01, 6.4e-6, "sound, though close to the floor of 1e-08"),  # 5e-8 at 128
        (84.0, 6.4e-8, "mostly rounding noise"),
        (0.01, 6.4e-2, "sound"),
    ],
)
def test_the_angle_to_float64_tells_clamped_from_noisy(
    angle: float, norm: float, words: str
) -> None:
    evidence = measured(reference_norm=(1.0, 1.0, norm), reference_angle=(0.0, 0.0, angle))
    finding = reference_validity(evidence, LIMITS)
    assert finding.reason.endswith(words)
    assert finding.details["angle"] == angle
    assert finding.flagged is (norm < 1e-3)  # the angle explains, it does not decide


def test_depth_utility_shows_the_interval_and_every_seed() -> None:
    interval = Interval(low=-0.06, high=-0.03, method="by hand")
    seeds = {42: (0.13, 0.18), 123: (0.14, 0.18)}
    finding = depth_utility(0.135, 0.18, LIMITS, interval=interval, seeds=seeds)
    assert finding.flagged is True
    assert finding.value == pytest.approx(-0.045)
    assert "-6.0 to -3.0 pp" in finding.reason
    assert "seed 42 -5.0 pp, seed 123 -4.0 pp" in finding.reason
    assert finding.details["seed 123"] == pytest.approx(-0.04)
    assert depth_utility(0.135, None, LIMITS).flagged is None
    assert "frozen" in depth_utility(0.135, None, LIMITS).reason
    assert "no test accuracy" in depth_utility(None, 0.18, LIMITS).reason


@pytest.mark.parametrize(
    ("stability", "flagged", "mode"),
    [
        (0.992, True, "drift-dominated"),
        (0.53, True, "drift-dominated"),
        (0.37, True, "mixed"),
        (0.16, False, "mixed"),
        (0.047, False, "noise-dominated"),
        (-0.03, False, "noise-dominated"),
        (nan, None, None),
    ],
)
def test_stability_names_the_sub_mode(stability: float, flagged: object, mode: object) -> None:
    assert direction_stability(measured(stability=stability), LIMITS).flagged is flagged
    assert sub_mode(stability) == mode


def test_a_finding_without_a_value_cannot_claim_to_be_evaluated() -> None:
    with pytest.raises(FauditError, match="must be None"):
        Finding(code="D3", name="depth utility", threshold=0.02, flagged=False, reason="")


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "torch.float32"])
def test_formats_that_reach_below_the_clamp_keep_the_published_floor(dtype: str) -> None:
    assert Thresholds.for_dtype(dtype) == Thresholds()


@pytest.mark.parametrize("width", [64, 256, 1024])
def test_float16_at_its_threshold_turns_a_vector_by_a_tenth(width: int) -> None:
    # The published criterion: at the threshold, a tenth of the cosine is not the reference's.
    limit = Thresholds.for_dtype("float16", width=width).reference
    vectors = np.random.default_rng(0).normal(size=(400, width))
    vectors *= limit / np.linalg.norm(vectors, axis=1, keepdims=True)
    stored = vectors.astype(np.float16).astype(np.float64)
    noise = np.linalg.norm(stored - vectors, axis=1) / limit
    assert noise.mean() == pytest.approx(0.1, rel=0.05)
    assert float(np.float16(1e-8)) == 0.0  # so the clamp itself does nothing there


def test_bfloat16_loses_no_direction_far_below_the_clamp() -> None:
    # bfloat16 is float32 with the last 16 bits rounded away.
    vector = (1e-20 * np.random.default_rng(0).normal(size=256)).astype(np.float32)
    bits = vector.view(np.uint32) + np.uint32(0x7FFF)
    stored = (bits & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)
    exact = vector.astype(np.float64)
    cosine = exact @ stored / np.linalg.norm(exact) / np.linalg.norm(stored)
    assert np.degrees(np.arccos(min(1.0, cosine))) < 0.2


def test_thresholds_follow_the_evidence() -> None:
    assert Thresholds.for_evidence(measured(eps=1e-6)).reference == pytest.approx(1e-5)
    half = measured(dtype="float16", facts={"width": 1024.0})
    assert Thresholds.for_evidence(half) == Thresholds.for_dtype("float16", width=1024)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Thresholds(growth=0.0), "growth is 0"),
        (lambda: Thresholds(margin=nan), "margin is nan"),
        (lambda: Thresholds(eps=inf), "eps is inf"),
        (lambda: Thresholds(groth=3.0), "did you mean 'growth'"),  # type: ignore[call-arg]
        (lambda: Thresholds.for_dtype("float8"), "unknown dtype 'float8'"),
        (lambda: Thresholds.for_dtype("float16", width=0), "width is 0"),
    ],
)
def test_impossible_thresholds_are_refused(make, message: str) -> None:
    with pytest.raises(FauditError, match=message):
        make()


def test_d2_tells_a_reference_that_underflowed_at_some_samples() -> None:
    evidence = Evidence(
        layers=1,
        samples=8,
        reference_norm=(1.0, 1.0),
        reference_angle=(0.0, 2.0),
        reference_noise=(0.0, 0.62),
    )
    finding = reference_validity(evidence, LIMITS)
    assert "relative error of 0.62 with what underflowed: mostly rounding noise" in finding.reason
    assert finding.details["noise"] == 0.62
