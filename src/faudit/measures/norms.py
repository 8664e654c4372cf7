"""How big: norms per sample over all other dimensions, in float64, with no floor."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

import torch
from torch import Tensor


def flat(h: Tensor) -> Tensor:
    """One float64 row per sample.

    >>> flat(torch.ones(2, 3, 4)).shape
    torch.Size([2, 12])
    """
    return h.detach().reshape(len(h), -1).double()


def scaled(h: Tensor) -> tuple[Tensor, Tensor]:
    """Rows whose squares float64 can hold, and what each row was divided by.

    It holds the squares of every smaller format, so only float64's own values need scaling.

    >>> rows, sizes = scaled(torch.tensor([[3e-200, 4e-200]], dtype=torch.float64))
    >>> rows.norm(dim=1) * sizes
    tensor([5.0000e-200], dtype=torch.float64)
    """
    rows = flat(h)
    if h.dtype != torch.float64 or not rows.numel():
        return rows, rows.new_ones(len(rows))
    sizes = rows.abs().amax(1)
    sizes = torch.where(sizes > 0, sizes, 1.0)
    return rows / sizes[:, None], sizes


def norms(h: Tensor) -> Tensor:
    """Each sample's norm; float32 would square 1e-24 to nothing.

    >>> norms(torch.full((1, 4), 1e-24))
    tensor([2.0000e-24], dtype=torch.float64)
    """
    rows, sizes = scaled(h)
    return rows.norm(dim=1) * sizes


def distances(a: Tensor, b: Tensor) -> Tensor:
    """||a - b|| / ||b|| of each sample; NaN where b is zero.

    >>> distances(torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, 0.0]]))
    tensor([1.], dtype=torch.float64)
    """
    return norms(flat(a) - flat(b)) / nonzero(norms(b))


def nonzero(values: Tensor) -> Tensor:
    """Positive values as they are; NaN for the others, since nothing can be divided by them."""
    return torch.where(values > 0, values, torch.nan)


def ratio(after: float, before: float) -> float:
    """How many times larger; NaN from nothing.

    >>> ratio(3.0, 2.0), ratio(1.0, 0.0)
    (1.5, nan)
    """
    return after / before if before else nan


@dataclass
class Mean:
    """A mean over samples that arrive in batches.

    >>> mean = Mean()
    >>> mean.add(torch.tensor([1.0, 2.0])); mean.add(torch.tensor([6.0])); mean.value
    3.0
    """

    total: float = 0.0
    count: int = 0

    def add(self, values: Tensor) -> None:
        """Another batch."""
        self.total += float(values.detach().double().sum())
        self.count += values.numel()

    def add_defined(self, values: Tensor) -> None:
        """Another batch, without the samples at which the quantity has no meaning (NaN)."""
        self.add(values[~values.isnan()])

    @property
    def value(self) -> float:
        """The mean; NaN over no samples."""
        return ratio(self.total, self.count)


class Means(dict[int, Mean]):
    """One mean for every layer, made when the layer is first seen.

    >>> means = Means()
    >>> means[0].add(torch.ones(2)); means[1].add(torch.zeros(2)); means.by_layer
    (1.0, 0.0)
    """

    def __missing__(self, layer: int) -> Mean:
        return self.setdefault(layer, Mean())

    @property
    def by_layer(self) -> tuple[float, ...]:
        """The means, from the first layer to the last."""
        return tuple(self[layer].value for layer in sorted(self))
