"""What it does: how the loss really changes when a state moves along its credit or at random."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from faudit.measures.directions import directions
from faudit.measures.norms import flat, norms
from faudit.networks.scene import Loss
from faudit.networks.view import Network

LossAt = Callable[[int, Tensor], Tensor]
"""(l, h) -> the samples' losses if h_l were h."""


def loss_at(network: Network, x: Any, targets: Tensor, loss: Loss) -> LossAt:
    """How the samples' losses depend on one state."""

    def at(index: int, h: Tensor) -> Tensor:
        with torch.no_grad():
            return loss(network.logits_from(x, index, h), targets).double()

    return at


def nudges(at: LossAt, index: int, h: Tensor, credit: Tensor, base: Tensor, eta: float) -> Tensor:
    """The change of each sample's loss after ``h <- h - eta * credit / ||credit||``.

    Useful credit gives negative numbers; a sample without credit gives NaN.

    >>> def square(_, h): return h.double().square().sum(1)
    >>> h = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    >>> round(float(nudges(square, 0, h, 2 * h, square(0, h), eta=0.1)), 3)
    -0.19
    """
    step = directions(credit).to(h).view_as(h)
    moved = at(index, h - eta * step.nan_to_num()) - base
    return torch.where(step.flatten(1).isnan().any(1), torch.nan, moved)


@dataclass
class Correlation:
    """Pearson's r of pairs that arrive in pieces; undefined when either side does not vary.

    >>> r = Correlation()
    >>> r.add(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 4.0])); r.add(torch.tensor([3.0]),
    ...     torch.tensor([6.0])); round(r.value, 6)
    1.0
    """

    predicted: list[Tensor] = field(default_factory=list)
    actual: list[Tensor] = field(default_factory=list)

    def add(self, predicted: Tensor, actual: Tensor) -> None:
        """Another piece."""
        self.predicted.append(predicted.double().cpu())
        self.actual.append(actual.double().cpu())

    @property
    def value(self) -> float:
        """r over all pieces; NaN where it has no meaning."""
        if not self.predicted:
            return float("nan")
        p, a = (_standard(torch.cat(side)) for side in (self.predicted, self.actual))
        return float((p * a).sum())


def _standard(values: Tensor) -> Tensor:
    """Centred and of unit length, safe at any magnitude; NaN where nothing varies."""
    centred = values - values.mean()
    largest = centred.abs().max()
    if not largest > 1e-12 * values.abs().max():
        return torch.full_like(values, torch.nan)
    centred = centred / largest
    return centred / centred.norm()


class Perturbations:
    """Random moves of one state, the same for any split of the samples into batches.

    Each move is ``size * ||h||`` long, for one of fixed size is lost in a stream of 1e8. Credit
    that tells how the loss will change correlates with what the loss really does.
    """

    def __init__(self, layer: int, count: int, size: float, seed: int) -> None:
        self.layer, self.size = layer, size
        self.sources = [np.random.default_rng((seed, layer, draw)) for draw in range(count)]
        self.random = np.random.default_rng((seed, layer, count, 1))
        self.found: dict[str, Correlation] = {}

    def try_on(
        self, at: LossAt, h: Tensor, base: Tensor, credits: dict[str, Tensor | None]
    ) -> None:
        """Move one batch's states and compare every credit's forecast with what happened."""
        told = {name: a for name, a in credits.items() if a is not None}
        told["random"] = _normal(self.random, h)
        for source in self.sources:
            move = directions(_normal(source, h)) * (self.size * norms(h))[:, None]
            actual = at(self.layer, h + move.to(h).view_as(h)) - base
            for name, credit in told.items():
                forecast = (flat(credit) * move).sum(1)
                self.found.setdefault(name, Correlation()).add(forecast, actual)

    def value(self, name: str) -> float:
        """The correlation of one credit's forecasts."""
        return self.found[name].value if name in self.found else float("nan")


def _normal(source: np.random.Generator, like: Tensor) -> Tensor:
    return torch.from_numpy(source.standard_normal(tuple(like.shape))).to(like.device)


def mean_of(values: Sequence[float]) -> float:
    """The mean of the values that are defined; NaN if none is.

    >>> mean_of([1.0, float("nan"), 3.0])
    2.0
    """
    known = [v for v in values if v == v]
    return sum(known) / len(known) if known else float("nan")
