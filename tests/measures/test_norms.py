"""Norms: equal to their slow twin at any magnitude, and means that do not care how data arrive."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from faudit.measures.norms import Mean, Means, distances, flat, norms, ratio, scaled
from tests import reference

MAGNITUDES = st.integers(-38, 37)
SHAPES = [(3, 5), (2, 3, 4), (2, 2, 2, 2), (4,), (1, 1)]


def drawn(shape: tuple[int, ...], seed: int, magnitude: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64) * 10.0**magnitude


@given(st.sampled_from(SHAPES), MAGNITUDES, st.integers(0, 99), st.booleans())
def test_a_norm_is_the_root_of_the_sum_of_squares(shape, magnitude, seed, single):
    h = drawn(shape, seed, magnitude).to(torch.float32 if single else torch.float64)
    expected = [reference.norm(reference.numbers(row)) for row in h]
    assert norms(h).tolist() == pytest.approx(expected, rel=1e-12, abs=0)
    assert norms(h).dtype == torch.float64


@pytest.mark.parametrize("magnitude", [-300, -200, 150, 300])
def test_float64_states_reach_further_than_their_squares(magnitude):
    h = drawn((3, 4), 0, magnitude)
    expected = [math.hypot(*row) for row in h.tolist()]
    assert norms(h).tolist() == pytest.approx(expected, rel=1e-12, abs=0)


def test_the_smallest_number_has_a_norm():
    smallest = torch.tensor([[2.0**-149, 0.0]])
    assert float(norms(smallest)) == 2.0**-149
    assert float(norms(smallest.double())) == 2.0**-149


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_zero_is_zero_and_what_is_not_finite_stays_so(dtype):
    h = torch.tensor([[0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0]], dtype=dtype)
    zero, nan, inf = norms(h)
    assert zero == 0
    assert nan.isnan()
    assert not inf.isfinite()


def test_half_precision_does_not_overflow():
    assert float(norms(torch.full((1, 1024), 3000.0).half())) == 3000 * 32
    assert float(norms(torch.full((1, 4), 2.0**-24).half())) == 2.0**-23


@given(MAGNITUDES, st.integers(0, 99))
def test_scaling_takes_nothing_away(magnitude, seed):
    h = drawn((3, 4), seed, magnitude)
    rows, sizes = scaled(h)
    torch.testing.assert_close(rows * sizes[:, None], h, rtol=1e-15, atol=0)


@given(MAGNITUDES, st.integers(0, 99))
def test_a_distance_is_relative(magnitude, seed):
    a, b = drawn((3, 4), seed, magnitude), drawn((3, 4), seed + 1, magnitude)
    pairs = zip(a, b, strict=True)
    expected = [reference.noise(reference.numbers(p), reference.numbers(q)) for p, q in pairs]
    assert distances(a, b).tolist() == pytest.approx(expected, rel=1e-12)
    assert distances(b, b).tolist() == [0, 0, 0]


def test_there_is_no_distance_relative_to_nothing():
    zero, one = torch.zeros(1, 2), torch.ones(1, 2)
    assert distances(one, zero).isnan().all()
    assert distances(zero, one).tolist() == [1.0]


def test_rows_are_samples_and_the_tensor_is_left_alone():
    h = torch.ones(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert flat(h).shape == (2, 12)
    assert not flat(h).requires_grad
    norms(h)
    assert h.detach().eq(1).all()


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), st.integers(1, 5))
def test_a_mean_does_not_care_how_the_samples_arrive(values, size):
    mean = Mean()
    for part in torch.tensor(values, dtype=torch.float64).split(size):
        mean.add(part)
    assert mean.value == pytest.approx(math.fsum(values) / len(values), rel=1e-9, abs=1e-6)


def test_a_mean_over_nothing_is_undefined():
    mean = Mean()
    mean.add_defined(torch.tensor([math.nan]))
    assert math.isnan(mean.value)
    mean.add_defined(torch.tensor([math.nan, 3.0]))
    assert mean.value == 3.0
    mean.add(torch.tensor([math.nan]))
    assert math.isnan(mean.value)


def test_means_are_in_the_order_of_the_layers():
    means = Means()
    for layer in (2, 0, 1):
        means[layer].add(torch.tensor([float(layer)]))
    assert means.by_layer == (0.0, 1.0, 2.0)


def test_growth_from_nothing_is_undefined():
    assert math.isnan(ratio(1.0, 0.0))
    assert ratio(0.0, 2.0) == 0.0
