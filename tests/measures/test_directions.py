"""Directions: equal to their slow twins at any magnitude; a zero vector has none."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.nn import functional as F

from faudit.measures.directions import Agreement, angles, clamped_cosines, cosines, directions
from tests import reference

MAGNITUDES = st.integers(-38, 37)


def pair(seed: int, left: int = 0, right: int = 0, shape: tuple[int, ...] = (3, 2, 4)):
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    return (a * 10.0**left).float(), (b * 10.0**right).float()


def by_twin(compare, a, b):
    rows = zip(a, b, strict=True)
    return [compare(reference.numbers(p), reference.numbers(q)) for p, q in rows]


@given(st.integers(0, 99), MAGNITUDES, MAGNITUDES)
def test_a_cosine_has_no_scale(seed, left, right):
    a, b = pair(seed, left, right)
    expected = by_twin(reference.cosine, a, b)
    assert cosines(a, b).tolist() == pytest.approx(expected, rel=1e-12, abs=1e-15)
    assert cosines(a.double(), b.double()).tolist() == pytest.approx(expected, rel=1e-12, abs=1e-15)
    torch.testing.assert_close(directions(a).norm(dim=1), torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("magnitude", [-300, -160, 160, 300])
def test_float64_cosines_reach_further_than_their_squares(magnitude):
    a = torch.tensor([[3.0, 4.0]], dtype=torch.float64) * 10.0**magnitude
    b = torch.tensor([[4.0, 3.0]], dtype=torch.float64)
    assert cosines(a, b).item() == pytest.approx(0.96, rel=1e-12)


def test_a_vector_and_itself():
    a, _ = pair(0, shape=(1000, 7))
    assert cosines(a, a).tolist() == pytest.approx([1.0] * 1000, abs=1e-14)
    assert cosines(a, -a).tolist() == pytest.approx([-1.0] * 1000, abs=1e-14)
    assert (cosines(a, a) <= 1).all()
    assert (cosines(a, -a) >= -1).all()


@pytest.mark.parametrize("compare", [cosines, angles])
def test_zero_has_no_direction(compare):
    zero, one = torch.zeros(1, 3), torch.ones(1, 3)
    for sides in ((zero, one), (one, zero), (zero, zero), (one * math.nan, one)):
        assert compare(*sides).isnan().all()


@given(st.integers(0, 99), st.integers(-12, 3))
def test_the_clamped_cosine_is_what_torch_says(seed, magnitude):
    a, b = pair(seed, magnitude, magnitude)
    found = clamped_cosines(a, b, batch=128)
    torch.testing.assert_close(
        found, F.cosine_similarity((a / 128).flatten(1), (b / 128).flatten(1)).double()
    )
    expected = by_twin(
        lambda p, q: reference.clamped_cosine([v / 128 for v in p], [v / 128 for v in q]), a, b
    )
    assert found.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_a_short_reference_looks_unaligned_only_to_the_clamped_cosine():
    g = torch.tensor([[6e-10, 8e-10]])
    assert clamped_cosines(g, g, batch=1).item() == pytest.approx(0.01)
    assert cosines(g, g).item() == pytest.approx(1.0)


def test_in_float16_the_clamp_protects_nothing():
    g = torch.tensor([[2.0**-20, 0.0]]).half()
    assert clamped_cosines(g, g, batch=128).isnan().all()
    assert cosines(g, g).item() == 1.0


@given(st.floats(1e-9, 179.99), st.integers(-30, 30))
def test_an_angle_is_exact_however_small(degrees, magnitude):
    turn = math.radians(degrees)
    a = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    b = torch.tensor([[math.cos(turn), math.sin(turn)]], dtype=torch.float64) * 10.0**magnitude
    assert angles(a, b).item() == pytest.approx(degrees, rel=1e-6)


@given(st.integers(0, 99))
def test_an_angle_equals_its_twin(seed):
    a, b = pair(seed)
    expected = by_twin(reference.angle, a, b)
    assume(all(1 < e < 179 for e in expected))
    assert angles(a, b).tolist() == pytest.approx(expected, rel=1e-9)
    near = a * (1 + 1e-6 * b)
    assert angles(a, near).tolist() == pytest.approx(by_twin(reference.angle, a, near), rel=1e-6)


@given(st.integers(2, 4), st.integers(1, 4), st.integers(0, 3), st.integers(1, 9))
def test_agreement_is_the_mean_over_all_pairs_however_samples_arrive(size, groups, rest, split):
    generator = torch.Generator().manual_seed(size)
    rows = torch.randn(size * groups + rest % size, 3, generator=generator, dtype=torch.float64)
    agreement = Agreement(size)
    for part in rows.split(split):
        agreement.add(part)
    sums = [rows[i * size : (i + 1) * size].sum(0).tolist() for i in range(groups)]
    pairs = [reference.cosine(a, b) for i, a in enumerate(sums) for b in sums[i + 1 :]]
    assert agreement.value == pytest.approx(reference.mean(pairs), abs=1e-12, nan_ok=True)
    assert agreement.count == groups


def test_agreement_has_its_two_ends():
    same, opposite = Agreement(2), Agreement(1)
    same.add(torch.ones(8, 3))
    opposite.add(torch.tensor([[1.0, 0.0], [-2.0, 0.0]]))
    assert same.value == pytest.approx(1.0)
    assert opposite.value == pytest.approx(-1.0)


def test_a_minibatch_without_direction_agrees_with_nothing():
    agreement = Agreement(1)
    agreement.add(torch.tensor([[1.0], [0.0]]))
    assert math.isnan(agreement.value)
