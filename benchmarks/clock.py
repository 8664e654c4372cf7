"""Clock: contenders take turns, so a slow moment of the machine hits all of them.

Processor time counts only what this process did, which is what matters where others compute too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import log
from statistics import median, quantiles
from time import process_time
from typing import Any

import torch

Work = Callable[[], Any]


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles."""

    value: float
    low: float
    high: float


def interleaved(
    works: Mapping[str, Work], rounds: int, *, clock: Callable[[], float] = process_time
) -> dict[str, list[float]]:
    """The seconds of every contender in every round, after one round to warm up."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds + 1):
        for name, work in works.items():
            start = clock()
            work()
            times[name].append(clock() - start)
    return {name: values[1:] for name, values in times.items()}


def spread(values: Sequence[float]) -> Spread:
    """The median and the quartiles."""
    low, _, high = quantiles(values, n=4) if len(values) > 1 else values * 3
    return Spread(median(values), low, high)


def ratio(over: Sequence[float], under: Sequence[float]) -> Spread:
    """The spread of the rounds' own ratios."""
    return spread([a / b for a, b in zip(over, under, strict=True)])


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """The slope of log time over log size."""
    xs, ys = [log(size) for size in sizes], [log(time) for time in times]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum(
        (a - x) ** 2 for a in xs
    )


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute with this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
