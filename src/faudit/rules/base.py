"""CreditRule, and the one convention that every rule, trainer and measure shares.

``credits[l]`` estimates g_l = dL/dh_l of every sample (no mean over the batch), for l = 0..L, with
the shape of ``states[l]``. ``credits[l + 1]`` stands at block l's OUTPUT and so teaches block l;
``credits[0]`` teaches the embedding; the readout learns from its own exact gradient. A credit
points UPHILL, as a gradient does: training steps against it. The sign appears nowhere else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from faudit.errors import RuleError
from faudit.networks.scene import Scene
from faudit.networks.view import Layout, Network
from faudit.routes import product


class CreditRule(nn.Module, ABC):
    """What each block is told. All state lives in ``state_dict``, so it is saved with a network.

    A rule sees a scene (states, targets, callables), never an architecture's name.
    """

    exact = False
    """True where the credits are the gradient itself."""

    has_feedback = False
    """True where the credits depend on matrices drawn at random, so that others could be drawn."""

    steady = True
    """False where a step makes decisions or draws on the host, so that a GPU cannot replay it."""

    optimiser: torch.optim.Optimizer | None = None
    """Of a rule that learns by its own loss."""

    options: dict[str, Any]
    """What the rule was made with beyond its layout; ``fresh`` makes another with the same."""

    def __new__(cls, *_: Any, **options: Any) -> Self:
        """Remember the options, so that no rule has to and no ``fresh`` draws from other ones."""
        rule = super().__new__(cls)
        rule.options = options
        return rule

    def __init__(self, layout: Layout, generator: torch.Generator) -> None:
        super().__init__()
        self.layout = layout
        self.report: dict[str, Tensor | float] = {}

    @abstractmethod
    def credits(self, scene: Scene) -> list[Tensor]:
        """Estimates of dL/dh_0 .. dL/dh_L for every sample; changes nothing in the rule."""

    def fit(self, scene: Scene) -> dict[str, Tensor | float]:
        """Learn from one batch by the rule's own loss, if it has one; returns what to record."""
        return {}

    def fresh(self, seed: int) -> CreditRule:
        """The same rule with its state drawn anew: the null that trained credit is held against."""
        other = type(self)(self.layout, torch.Generator().manual_seed(int(seed)), **self.options)
        like = next(self.parameters(), None)
        return other if like is None else other.to(like.device, like.dtype)

    def mirrors(self, network: Network) -> list[tuple[nn.Parameter, nn.Parameter]]:
        """(weight, mirror) pairs; a mirror gets its weight's gradient in the same optimiser."""
        return []

    def after_step(self, network: Network) -> None:
        """Called once after every update, when the optimiser has stepped."""


def gaussian(rows: int, columns: int, scale: float, generator: torch.Generator) -> Tensor:
    """A matrix with N(0, scale^2 / columns) entries: row vectors keep their length on average.

    >>> m = gaussian(200, 400, 1.0, torch.Generator().manual_seed(0))
    >>> round(float(m.norm(dim=1).mean()), 1)
    1.0
    """
    return torch.randn(rows, columns, generator=generator) * (scale / max(columns, 1) ** 0.5)


def features_last(h: Tensor) -> Tensor:
    """A state with its features last: (N, C, H, W) images turn, vectors and tokens stay."""
    return h.movedim(1, -1) if h.ndim == 4 else h


def features_back(h: Tensor) -> Tensor:
    """The inverse of :func:`features_last`."""
    return h.movedim(-1, 1) if h.ndim == 4 else h


def carry(credit: Tensor, matrix: Tensor, like: Tensor) -> Tensor:
    """``credit @ matrix`` at every position, brought to the positions of the state ``like``.

    Where a block pooled positions, each coarse position shares its credit equally among the fine
    ones it covers: the transpose of average pooling.
    """
    carried = features_back(product(features_last(credit), matrix))
    if carried.shape == like.shape:
        return carried
    if like.ndim != 4 or carried.ndim != 4:
        raise RuleError(
            f"credit of shape {tuple(carried.shape)} cannot be carried to a state of shape"
            f" {tuple(like.shape)}; sequential feedback needs the same positions on both sides"
        )
    shared = carried.shape[2:].numel() / like.shape[2:].numel()
    return F.interpolate(carried, like.shape[2:], mode="nearest") * shared


def broadcast(error: Tensor, matrix: Tensor, like: Tensor) -> Tensor:
    """``error @ matrix`` for a state of any kind.

    One error per sample is shared equally by the sample's positions; one error per token (a
    language model) goes to its own token.
    """
    told = error @ matrix
    if told.shape == like.shape:
        return told
    if told.ndim != 2:
        raise RuleError(
            f"errors of shape {tuple(error.shape)} do not match a state of shape"
            f" {tuple(like.shape)}; direct feedback needs one error per sample or per position"
        )
    last = features_last(like)
    positions = last.shape[1:-1].numel()
    told = told.view(len(told), *[1] * (last.ndim - 2), -1) / positions
    return features_back(told.expand(last.shape))


def one_hot(targets: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """Integer labels as one-hot rows.

    >>> one_hot(torch.tensor([1]), 3, torch.float32)
    tensor([[0., 1., 0.]])
    """
    if targets.is_floating_point():
        raise RuleError("this rule sees labels, so the targets must be class indices, not floats")
    return F.one_hot(targets, classes).to(dtype)
