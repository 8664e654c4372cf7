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
    width: int,
    depth: int,
    batch: int,
    inputs: int = 3072,
    classes: int = 10,
    *,
    rule: str = "bp",
    repeats: int = 1,
) -> list[Product]:
    """A ResMLP's step by a rule: outputs, gradients of weights and inputs, and fixed feedback.

    No step needs the gradient of the first layer's input. With ``repeats`` everything but the
    readout learns so often from one batch; only FA then asks the readout again for its credit.
    """
    embed, blocks, head = (inputs, width), (width, width), (width, classes)
    passes = {embed: repeats, blocks: 2 * depth * repeats, head: repeats}
    taught = {**passes, head: 1}
    heard = {blocks: passes[blocks], head: repeats if rule == "fa" else 1}
    found = [Product("output", batch, a, b, n) for (a, b), n in passes.items()]
    found += [Product("weight", b, batch, a, n) for (a, b), n in taught.items()]
    found += [Product("input", batch, b, a, n) for (a, b), n in heard.items()]
    return found + _feedback(width, depth, batch, classes, rule, repeats)


def _feedback(
    width: int, depth: int, batch: int, classes: int, rule: str, repeats: int
) -> list[Product]:
    """What a rule's own matrices carry: from block to block, or from the output to every state."""
    if rule == "fa":
        return [Product("feedback", batch, width, width, depth * repeats)]
    if rule == "dfa":
        return [Product("feedback", batch, classes, width, (depth + 1) * repeats)]
    return []


def contenders(found: list[Product]) -> dict[str, Work]:
    """Every product by every route, a few times each."""
    able = [r for r in routes.ROUTES if r == routes.PLAIN or routes.possible()]
    return {
        _name(product, route): partial(_repeat, *_work(product), route)
        for product in found
        for route in able
    }


def floor(found: list[Product], times: dict[str, list[float]]) -> list[float]:
    """Every round's seconds for a step's products, each at its best route's rate."""
    best = [_best(product, times) for product in found]
    counts = [product.count for product in found]
    return [sum(c * t for c, t in zip(counts, row, strict=True)) for row in zip(*best, strict=True)]


def peak(found: list[Product], times: dict[str, list[float]]) -> list[float]:
    """Every round's best rate of any product, in floating-point operations a second."""
    best = [_best(product, times) for product in found]
    rates = (
        [p.flops / t for p, t in zip(found, row, strict=True)] for row in zip(*best, strict=True)
    )
    return [max(row) for row in rates]


def _best(product: Product, times: dict[str, list[float]]) -> list[float]:
    routed = [times[n] for r in routes.ROUTES if (n := _name(product, r)) in times]
    return [min(row) / REPEATS for row in zip(*routed, strict=True)]


def _name(product: Product, route: str) -> str:
    shape = f"{product.rows} x {product.inner} x {product.columns}"
    return f"product {product.kind} {shape} by {route}"


def _work(product: Product) -> tuple[Tensor, Tensor]:
    """The factors as a step meets them: weights lie by output, and gradients are transposed."""
    rows, inner, columns = product.rows, product.inner, product.columns
    if product.kind == "output":
        return torch.randn(rows, inner), torch.randn(columns, inner)
    if product.kind in ("input", "feedback"):
        return torch.randn(rows, inner), torch.randn(inner, columns).t()
    return torch.randn(inner, rows).t(), torch.randn(inner, columns).t()


def _repeat(left: Tensor, right: Tensor, route: str) -> None:
    """``left @ right.T`` by a route, some times."""
    multiply = routes.multiply if route == routes.ONEDNN else torch.nn.functional.linear
    for _ in range(REPEATS):
        multiply(left, right)
