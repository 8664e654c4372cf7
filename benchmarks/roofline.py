"""Roofline: what a training step's matrix products alone would take at the best rate there is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from benchmarks.clock import Work
from faudit import routes

REPEATS = 8


@dataclass(frozen=True)
class Product:
    """``count`` products in a step of one kind and shape, (rows, inner) times (inner, columns)."""

    kind: str
    rows: int
    inner: int
    columns: int
    count: int

    @property
    def flops(self) -> int:
        """Floating-point operations of one of them."""
        return 2 * self.rows * self.inner * self.columns


def products(
    width: int, depth: int, batch: int, inputs: int = 3072, classes: int = 10
) -> list[Product]:
    """A ResMLP's step: outputs, gradients of weights, and of all layers' inputs but the first's."""
    layers = [(inputs, width, 1), (width, width, 2 * depth), (width, classes, 1)]
    forward = [Product("output", batch, a, b, count) for a, b, count in layers]
    weights = [Product("weight", b, batch, a, count) for a, b, count in layers]
    back = [Product("input", batch, b, a, count) for a, b, count in layers[1:]]
    return forward + weights + back


def contenders(found: list[Product]) -> dict[str, Work]:
    """Every product by every route, a few times each."""
    able = [r for r in routes.ROUTES if r == routes.PLAIN or routes.possible()]
    return {
        _name(index, route): partial(_repeat, *_work(product), route)
        for index, product in enumerate(found)
        for route in able
    }


def floor(found: list[Product], times: dict[str, list[float]]) -> list[float]:
    """Every round's seconds for a step's products, each at its best route's rate."""
    best = [_best(index, times) for index in range(len(found))]
    counts = [product.count for product in found]
    return [sum(c * t for c, t in zip(counts, row, strict=True)) for row in zip(*best, strict=True)]


def peak(found: list[Product], times: dict[str, list[float]]) -> list[float]:
    """Every round's best rate of any product, in floating-point operations a second."""
    best = [_best(index, times) for index in range(len(found))]
    rates = (
        [p.flops / t for p, t in zip(found, row, strict=True)] for row in zip(*best, strict=True)
    )
    return [max(row) for row in rates]


def _best(index: int, times: dict[str, list[float]]) -> list[float]:
    routed = [times[n] for r in routes.ROUTES if (n := _name(index, r)) in times]
    return [min(row) / REPEATS for row in zip(*routed, strict=True)]


def _name(index: int, route: str) -> str:
    return f"product {index} by {route}"


def _work(product: Product) -> tuple[Tensor, Tensor]:
    """The factors as a step meets them: weights lie by output, and gradients are transposed."""
    rows, inner, columns = product.rows, product.inner, product.columns
    if product.kind == "output":
        return torch.randn(rows, inner), torch.randn(columns, inner)
    if product.kind == "input":
        return torch.randn(rows, inner), torch.randn(inner, columns).t()
    return torch.randn(inner, rows).t(), torch.randn(inner, columns).t()


def _repeat(left: Tensor, right: Tensor, route: str) -> None:
    """``left @ right.T`` by a route, some times."""
    multiply = routes.multiply if route == routes.ONEDNN else torch.nn.functional.linear
    for _ in range(REPEATS):
        multiply(left, right)
