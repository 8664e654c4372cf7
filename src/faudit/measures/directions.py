"""Which way: cosines and angles per sample, in float64 and undefined where a vector is zero."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from faudit.measures.norms import _nonzero, flat


def cosines(a: Tensor, b: Tensor) -> Tensor:
    """cos(a, b) of each sample; NaN where either has no direction.

    >>> cosines(torch.tensor([[1e-30, 0.0], [0.0, 0.0]]), torch.tensor([[1.0, 1.0], [1.0, 0.0]]))
    tensor([0.7071,    nan], dtype=torch.float64)
    """
    return (directions(a) * directions(b)).sum(1).clamp(-1, 1)


def directions(h: Tensor) -> Tensor:
    """Each sample as a unit vector; NaN where it is zero.

    >>> directions(torch.tensor([[0.0, 1e-38]]))
    tensor([[0., 1.]], dtype=torch.float64)
    """
    rows = flat(h)
    rows = rows / _nonzero(rows.abs().amax(1, keepdim=True))
    return rows / rows.norm(dim=1, keepdim=True)


def clamped_cosines(a: Tensor, b: Tensor, batch: int) -> Tensor:
    """What ``F.cosine_similarity`` says of the same gradients under a mean over ``batch`` samples.

    It clamps each norm at 1e-8 in the tensors' own dtype, so a short reference looks unaligned.

    >>> g = torch.tensor([[3e-9, 4e-9]])
    >>> round(float(clamped_cosines(g, g, batch=1)), 2)
    0.25
    """
    return F.cosine_similarity((a / batch).flatten(1), (b / batch).flatten(1), dim=1).double()


def angles(a: Tensor, b: Tensor) -> Tensor:
    """The angle between each pair in degrees, exact for small angles where acos is not.

    >>> angles(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1.0]]))
    tensor([45.], dtype=torch.float64)
    """
    u, v = directions(a), directions(b)
    return 2 * torch.atan2((u - v).norm(dim=1), (u + v).norm(dim=1)).rad2deg()


def pairwise_mean(rows: Tensor) -> float:
    """The mean cosine over all pairs of rows; NaN for fewer than two.

    >>> pairwise_mean(torch.eye(3))
    0.0
    """
    count = len(rows)
    if count < 2:
        return float("nan")
    units = directions(rows)
    return float(((units @ units.T).sum() - (units * units).sum()) / (count * (count - 1)))
