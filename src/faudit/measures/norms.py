"""How big: norms per sample over all other dimensions, in float64, with no floor."""

from __future__ import annotations

import torch
from torch import Tensor


def flat(h: Tensor) -> Tensor:
    """One float64 row per sample.

    >>> flat(torch.ones(2, 3, 4)).shape
    torch.Size([2, 12])
    """
    return h.detach().flatten(1).double()


def norms(h: Tensor) -> Tensor:
    """Each sample's norm; float64 holds what float32 squares to nothing.

    >>> norms(torch.full((1, 4), 1e-24))
    tensor([2.0000e-24], dtype=torch.float64)
    """
    return flat(h).norm(dim=1)


def distances(a: Tensor, b: Tensor) -> Tensor:
    """||a - b|| / ||b|| of each sample; NaN where b is zero.

    >>> distances(torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, 0.0]]))
    tensor([1.], dtype=torch.float64)
    """
    return (flat(a) - flat(b)).norm(dim=1) / _nonzero(norms(b))


def _nonzero(values: Tensor) -> Tensor:
    return torch.where(values > 0, values, torch.nan)
