"""How sure a difference of two accuracies is: intervals from test examples, never from seeds."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from faudit.errors import FauditError
from faudit.measures.evidence import Record, fraction

Shares = NDArray[np.float64]
AT_ONCE = 10_000_000
"""Counts held at once; the draws are the same however they are split."""


class Interval(Record):
    """Where a difference of two accuracies lies with probability ``level``, and how that was found.

    >>> Interval(low=-0.01, high=0.03, method="by hand").straddles(0.02)
    True
    """

    low: float
    high: float
    level: float = 0.95
    method: str

    def straddles(self, value: float) -> bool:
        """Whether the data leave open on which side of ``value`` the difference lies."""
        return self.low < value <= self.high

    def __str__(self) -> str:
        return (
            f"{100 * self.level:g} % interval {100 * self.low:+.1f} to {100 * self.high:+.1f} pp, "
            f"{self.method}"
        )


def paired_interval(
    correct: Any, frozen_correct: Any, *, level: float = 0.95, draws: int = 9999, seed: int = 0
) -> Interval:
    """Bootstrap interval of the accuracy difference of two networks on the same test examples.

    Resampling examples with replacement touches the difference only through three counts (only
    the trained network right, only the frozen one right, both alike), which are multinomial: one
    small draw replaces each resampling of the whole test set. Examples of several labels (a row
    of tokens each) have more outcomes and are resampled whole. Percentile interval, Efron and
    Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13.

    >>> interval = paired_interval([True] * 60 + [False] * 40, [True] * 30 + [False] * 70)
    >>> round(interval.low, 2), round(interval.high, 2)
    (0.21, 0.39)
    """
    trained, frozen = as_correct(correct, "correct"), as_correct(frozen_correct, "frozen_correct")
    if len(trained) != len(frozen):
        raise FauditError(
            f"correct has {len(trained)} examples and frozen_correct {len(frozen)}; "
            "pair them on the same test examples in the same order"
        )
    if draws < 1:
        raise FauditError(f"draws is {draws}; a bootstrap needs at least one")
    _check_level(level)
    tail = (1 - level) / 2
    low, high = np.quantile(_resampled(trained - frozen, draws, seed), [tail, 1 - tail])
    method = f"paired bootstrap over {len(trained)} test examples"
    return Interval(low=float(low), high=float(high), level=level, method=method)


def _resampled(gaps: Shares, draws: int, seed: int) -> Shares:
    """The mean gap of ``draws`` resamplings of the examples, by how often each gap occurs."""
    values, counts = np.unique(gaps, return_counts=True)
    order = np.lexsort((-values, values == 0))  # the commonest, no gap, is what is left over
    values, counts = values[order], counts[order]
    random, size = np.random.default_rng(seed), max(1, AT_ONCE // len(values))
    found = [
        random.multinomial(len(gaps), counts / len(gaps), size=min(size, draws - start)) @ values
        for start in range(0, draws, size)
    ]
    return np.concatenate(found) / len(gaps)


def unpaired_interval(
    accuracy: float,
    frozen_accuracy: float,
    samples: int,
    frozen_samples: int | None = None,
    *,
    level: float = 0.95,
) -> Interval:
    """Interval of the difference when only two accuracies over ``samples`` examples are known.

    It treats the two networks as tested on different examples. On a shared test set their errors
    go together, so this is wider than the paired interval. Newcombe, Statistics in Medicine 17,
    1998, method 10 (Wilson limits combined).

    >>> interval = unpaired_interval(0.6, 0.3, samples=100)
    >>> round(interval.low, 2), round(interval.high, 2)
    (0.16, 0.42)
    """
    _check_level(level)
    p, q = fraction(accuracy, "accuracy"), fraction(frozen_accuracy, "frozen_accuracy")
    p_low, p_high = _wilson(p, samples, level)
    q_low, q_high = _wilson(q, samples if frozen_samples is None else frozen_samples, level)
    low = p - q - sqrt((p - p_low) ** 2 + (q_high - q) ** 2)
    high = p - q + sqrt((p_high - p) ** 2 + (q - q_low) ** 2)
    method = f"unpaired, two accuracies over {samples} examples: wider than a paired one"
    return Interval(low=max(low, -1.0), high=min(high, 1.0), level=level, method=method)


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise FauditError(f"level is {level}; give a probability between 0 and 1, such as 0.95")


def _wilson(share: float, samples: int, level: float) -> tuple[float, float]:
    if samples < 1:
        raise FauditError(f"test_samples is {samples}; an accuracy needs at least one example")
    z2 = NormalDist().inv_cdf((1 + level) / 2) ** 2
    centre = (share + z2 / (2 * samples)) / (1 + z2 / samples)
    half = sqrt(z2 * (share * (1 - share) / samples + z2 / (4 * samples**2))) / (1 + z2 / samples)
    return centre - half, centre + half


def as_correct(values: Any, name: str) -> Shares:
    """The share of each example that is right: booleans, or numbers that are only 0 and 1.

    An example of several labels is a row of them, with NaN where a label does not count.

    >>> as_correct([1, 0, 1], "correct")
    array([1., 0., 1.])
    >>> as_correct([[True, False], [False, False]], "correct")
    array([0.5, 0. ])
    """
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise FauditError(f"{name} cannot be read as an array: {error}") from error
    if array.ndim not in (1, 2) or array.size == 0:
        raise FauditError(
            f"{name} has shape {array.shape}; give one true or false per example, or a row of them"
        )
    rows = array.reshape(len(array), -1)
    counted = rows == rows  # only NaN differs from itself
    if not np.all(np.isin(rows, (0, 1)) | ~counted) or not counted.any(1).all():
        raise FauditError(
            f"{name} holds other values than true and false; compare predictions "
            "with labels first: correct = predictions == labels"
        )
    right: Shares = np.sum((rows == 1) & counted, axis=1) / np.sum(counted, axis=1)
    return right
