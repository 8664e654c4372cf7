"""The fast interval agrees with resampling the test set; the unpaired one is never narrower."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faudit.errors import FauditError
from faudit.protocol.interval import Interval, as_correct, paired_interval, unpaired_interval


def outcomes(n: int, seed: int, gained: float = 0.15, lost: float = 0.10):
    """Correctness of two networks that agree on most examples."""
    u = np.random.default_rng(seed).random(n)
    base = np.random.default_rng(seed + 1).random(n) < 0.3
    return np.where(u < gained, True, np.where(u < gained + lost, False, base)), np.where(
        u < gained, False, np.where(u < gained + lost, True, base)
    )


def slow_interval(trained, frozen, draws: int, seed: int) -> tuple[float, float]:
    """The obvious twin: draw whole test sets with replacement."""
    rng = np.random.default_rng(seed)
    picks = rng.integers(len(trained), size=(draws, len(trained)))
    gaps = trained[picks].mean(axis=1) - frozen[picks].mean(axis=1)
    return tuple(np.quantile(gaps, [0.025, 0.975]))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("n", [200, 1500])
def test_agrees_with_resampling_every_example(n: int, seed: int) -> None:
    trained, frozen = outcomes(n, seed)
    fast = paired_interval(trained, frozen)
    low, high = slow_interval(trained, frozen, draws=4000, seed=9)
    width = high - low
    assert fast.low == pytest.approx(low, abs=0.08 * width)
    assert fast.high == pytest.approx(high, abs=0.08 * width)


def test_agrees_with_all_resamples_of_a_tiny_test_set() -> None:
    trained, frozen = np.array([1, 1, 0, 0]) == 1, np.array([0, 1, 1, 0]) == 1
    every = [
        (trained[list(pick)].mean() - frozen[list(pick)].mean())
        for pick in itertools.product(range(4), repeat=4)
    ]
    low, high = np.quantile(every, [0.05, 0.95])
    fast = paired_interval(trained, frozen, level=0.9, draws=40_000)
    assert (fast.low, fast.high) == (low, high)


def test_the_seed_matters_and_repeats() -> None:
    trained, frozen = outcomes(500, 3)
    assert paired_interval(trained, frozen, seed=1) == paired_interval(trained, frozen, seed=1)
    few = {paired_interval(trained, frozen, seed=s, draws=50).low for s in range(5)}
    assert len(few) > 1


def test_pairing_is_what_makes_it_narrow() -> None:
    trained, frozen = outcomes(2000, 5)
    paired = paired_interval(trained, frozen)
    unpaired = unpaired_interval(trained.mean(), frozen.mean(), 2000)
    assert paired.high - paired.low < unpaired.high - unpaired.low
    shuffled = np.random.default_rng(0).permutation(frozen)
    assert paired_interval(trained, shuffled).high != paired.high


def test_networks_that_never_differ_have_no_width() -> None:
    same = paired_interval([True, False] * 50, [True, False] * 50)
    assert (same.low, same.high) == (0.0, 0.0)


def test_covers_the_truth_about_as_often_as_it_says() -> None:
    hits = 0
    for seed in range(300):
        trained, frozen = outcomes(400, 1000 + 7 * seed)
        interval = paired_interval(trained, frozen, draws=999, seed=seed)
        hits += interval.low <= 0.05 <= interval.high
    assert 0.90 <= hits / 300 <= 0.99


def test_newcombe_example() -> None:
    # Newcombe 1998, Table II, contrast (a), method 10: 56/70 against 48/80.
    interval = unpaired_interval(56 / 70, 48 / 80, 70, 80)
    assert (round(interval.low, 4), round(interval.high, 4)) == (0.0524, 0.3339)


@settings(max_examples=50, deadline=None)
@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 10**5))
def test_unpaired_contains_the_difference(p: float, q: float, n: int) -> None:
    interval = unpaired_interval(p, q, n)
    assert -1 <= interval.low <= p - q + 1e-9
    assert p - q - 1e-9 <= interval.high <= 1


def test_straddling_leaves_both_sides_open() -> None:
    interval = Interval(low=0.01, high=0.03, method="by hand")
    assert interval.straddles(0.02)
    assert not interval.straddles(0.01)  # every value in it is at least 0.01
    assert not interval.straddles(0.04)


@pytest.mark.parametrize(
    ("correct", "frozen", "message"),
    [
        ([True], [True, False], "1 examples and frozen_correct 2"),
        ([], [], "shape"),
        ([[[True]]], [[[True]]], "shape"),
        ([0.3, 0.4], [1, 0], "labels first"),
        ([3, 1], [3, 1], "labels first"),
        ([float("nan"), 1], [1, 0], "labels first"),
    ],
)
def test_bad_correctness_is_refused(correct, frozen, message: str) -> None:
    with pytest.raises(FauditError, match=message):
        paired_interval(correct, frozen)


def test_unreadable_arrays_are_named() -> None:
    class Broken:
        def __array__(self, *args: object, **kwargs: object) -> None:
            raise TypeError("on another device")

    with pytest.raises(FauditError, match="correct cannot be read"):
        as_correct(Broken(), "correct")
    with pytest.raises(FauditError, match="test_samples is 0"):
        unpaired_interval(0.5, 0.5, 0)


def test_tokens_of_one_example_are_resampled_together() -> None:
    rng = np.random.default_rng(0)
    right = rng.random(40) < 0.5
    frozen = rng.random(40) < 0.4
    tokens = np.repeat(right[:, None], 50, axis=1)
    whole = paired_interval(tokens, np.repeat(frozen[:, None], 50, axis=1))
    assert whole == paired_interval(right, frozen)
    assert "over 40 test examples" in whole.method


def test_uneven_examples_resample_to_the_spread_of_their_shares() -> None:
    rng = np.random.default_rng(1)
    rows = (rng.random((400, 7)) < 0.6).astype(float)
    rows[:, 5:] = np.nan
    frozen = np.zeros((400, 7))
    found = paired_interval(rows, frozen)
    shares = rows[:, :5].mean(1)
    half = 1.96 * shares.std() / 20
    assert found.low == pytest.approx(shares.mean() - half, abs=0.004)
    assert found.high == pytest.approx(shares.mean() + half, abs=0.004)
    assert paired_interval(rows, frozen, draws=50, seed=3) == paired_interval(
        rows, frozen, draws=50, seed=3
    )
