"""Which way: cosines and angles per sample, in float64 and undefined where a vector is zero."""

from __future__ import annotations

from math import nan

import torch
from torch import Tensor
from torch.nn import functional as F

from faudit.measures.norms import flat, nonzero, scaled


def cosines(a: Tensor, b: Tensor) -> Tensor:
    """cos(a, b) of each sample; NaN where either has no direction.

    >>> cosines(torch.tensor([[1e-30, 0.0], [0.0, 0.0]]), torch.tensor([[1.0, 1.0], [1.0, 0.0]]))
    tensor([0.7071,    nan], dtype=torch.float64)
    """
    u, v = scaled(a)[0], scaled(b)[0]
    found = torch.linalg.vecdot(u, v) / nonzero(u.norm(dim=1) * v.norm(dim=1))
    return found.clamp(-1, 1)  # rounding alone leaves this range


def directions(h: Tensor) -> Tensor:
    """Each sample as a unit vector; NaN where it is zero.

    >>> directions(torch.tensor([[0.0, 1e-38]]))
    tensor([[0., 1.]], dtype=torch.float64)
    """
    rows = scaled(h)[0]
    return rows / nonzero(rows.norm(dim=1, keepdim=True))


def clamped_cosines(a: Tensor, b: Tensor, batch: int) -> Tensor:
    """What ``F.cosine_similarity`` says of the same gradients under a mean over ``batch`` samples.

    It clamps each norm at 1e-8 in the tensors' own dtype, so a short reference looks unaligned.
    In float16 the clamp itself is zero, and a vector that underflowed gives NaN.

    >>> g = torch.tensor([[3e-9, 4e-9]])
    >>> round(float(clamped_cosines(g, g, batch=1)), 2)
    0.25
    """
    u, v = ((side / batch).reshape(len(side), -1) for side in (a, b))
    return F.cosine_similarity(u, v, dim=1).double()


def angles(a: Tensor, b: Tensor) -> Tensor:
    """The angle between each pair in degrees, exact for small angles where acos is not.

    >>> angles(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1.0]]))
    tensor([45.], dtype=torch.float64)
    """
    u, v = directions(a), directions(b)
    return 2 * torch.atan2((u - v).norm(dim=1), (u + v).norm(dim=1)).rad2deg()


class Agreement:
    """Do disjoint minibatches point the same way? The mean cosine between all pairs of them.

    Samples fill minibatches of ``size`` in the order they come, however they are split into
    batches; what does not fill one is left out. Only the sum of the directions is kept, for
    sum_{i != j} <u_i, u_j> = ||sum_i u_i||^2 - n. Samples of different sizes have no sum.

    >>> agreement = Agreement(size=2)
    >>> agreement.add(torch.tensor([[1.0, 0.0], [1.0, 0.0], [2.0, 2.0]])); agreement.value
    nan
    >>> agreement.add(torch.tensor([[2.0, 2.0]])); round(agreement.value, 4)
    0.7071
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.count = self.inside = 0
        self.filling: Tensor | float = 0.0
        self.directions: Tensor | float = 0.0
        self.shapes: set[torch.Size] = set()

    @property
    def mixed(self) -> bool:
        """Whether samples came in different shapes."""
        return len(self.shapes) > 1

    def add(self, vectors: Tensor) -> None:
        """Another batch of samples."""
        self.shapes.add(vectors.shape[1:])
        rows = flat(vectors)
        while len(rows) and not self.mixed:
            taken, rows = rows.tensor_split([self.size - self.inside])
            self.filling = self.filling + taken.sum(0, keepdim=True)
            self.inside += len(taken)
            if self.inside == self.size:
                self._close(self.filling)

    def _close(self, full: Tensor) -> None:
        self.directions = self.directions + directions(full)
        self.count += 1
        self.filling, self.inside = 0.0, 0

    @property
    def value(self) -> float:
        """The mean cosine; NaN for fewer than two minibatches, or where they have no direction."""
        if self.count < 2 or self.mixed:
            return nan
        square = float(torch.as_tensor(self.directions).square().sum())
        return (square - self.count) / (self.count * (self.count - 1))
