"""Sizes: the memory that a run's network takes, counted before it is made, and what there is."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from faudit.networks.zoo import make_network
from faudit.recipe import Recipe

LARGE = 2048
"""An option above this makes counting worth its second."""

COPIES = 4
"""Weights, gradients, and AdamW's two moments."""

CONTAINER_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


def training_bytes(recipe: Recipe, shape: tuple[int, ...], classes: int) -> float:
    """What training takes without activations; 0 where no option of the network is large.

    >>> training_bytes(Recipe(), (3, 32, 32), 10)
    0.0
    >>> wide = Recipe().set("network.options.width=4096", "network.options.depth=1000000")
    >>> f"{training_bytes(wide, (3, 32, 32), 10):.2g}"
    '5.4e+14'
    """
    options: dict[str, Any] = dict(recipe.network.options)
    if not any(size > LARGE for size in _numbers(options.values())):
        return 0.0
    weights = _weights(recipe.network.name, shape, classes, options)
    return float(COPIES * weights * getattr(torch, recipe.dtype).itemsize)


def _weights(name: str, shape: tuple[int, ...], classes: int, options: dict[str, Any]) -> int:
    """How many weights, counted where they take no memory; a deep network is not built for it."""
    depth = options.get("depth")
    if isinstance(depth, int) and depth > 2:
        one, two = (_weights(name, shape, classes, {**options, "depth": d}) for d in (1, 2))
        return one + (depth - 1) * (two - one)
    with torch.device("meta"):
        module = make_network(name, shape, classes, seed=0, **options)
    return sum(weight.numel() for weight in module.parameters())


def _numbers(values: Iterable[Any]) -> Iterator[float]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _numbers(value)
        elif isinstance(value, int | float):
            yield value


def memory_here() -> float:
    """The bytes that processes on this machine, or in this container, may use.

    >>> memory_here() > 1e8
    True
    """
    found = [float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))]
    for path in CONTAINER_LIMITS:
        with suppress(OSError, ValueError):
            found.append(float(Path(path).read_text()))
    return min(found)
