"""What it does: how the loss really changes when a state moves along its credit or at random."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from math import nan
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from faudit.measures.directions import directions
from faudit.measures.norms import flat, norms
from faudit.networks.scene import Loss
from faudit.networks.values import map_tensors
from faudit.networks.view import HookedNetwork, Network

LossAt = Callable[[int, Tensor], Tensor]
"""(l, h) -> the samples' losses if h_l were h."""

SAYS_ALL = "says all"
"""The proof that what a network's blocks return is all that they tell each other."""


def loss_at(network: Network, x: Any, targets: Tensor, loss: Loss) -> LossAt:
    """How the samples' losses depend on one state; what stands before it is not computed again."""
    repeats = isinstance(network, HookedNetwork) and _say_all(network, x)
    outputs = _said(network, x).outputs if repeats else []

    def at(index: int, h: Tensor) -> Tensor:
        with torch.no_grad(), _repeating(network.blocks, outputs[:index]):
            return loss(network.logits_from(x, index, h), targets).double()

    return at


@dataclass(frozen=True)
class Said:
    """All that every block of a network returned, so also what goes round the next one."""

    outputs: list[Any]
    states: list[Tensor]
    logits: Tensor


def _said(network: Network, x: Any) -> Said:
    outputs: list[Any] = []
    states: list[Tensor] = []

    def keep(_: nn.Module, __: Any, output: Any) -> None:
        outputs.append(output)

    def see(_: int, h: Tensor) -> Tensor:
        states.append(h)
        return h

    with ExitStack() as hooks, torch.no_grad():
        for block in network.blocks:
            hooks.enter_context(block.register_forward_hook(keep, prepend=True))
        logits = network.run(x, see)
    return Said(outputs, states, logits)


def _say_all(network: Network, x: Any) -> bool:
    """Whether a state gives its logits though the blocks before it only repeat their outputs.

    What they leave elsewhere, in a module or in what they are given, is then missing, or that of
    a pass with other states. Two samples show it, once for each network.
    """
    if SAYS_ALL in network.proven:
        return True
    try:
        few = map_tensors(x, lambda t: t[:2])
        said = _said(network, few)
        with torch.no_grad():
            network.logits_from(few, 0, 1 - 2 * said.states[0])
        again = (_again(network, few, said, i) for i in range(network.depth, 0, -1))
        found = all(torch.equal(logits, said.logits) for logits in again)
    except Exception:  # a block may fail where something is missing
        return False
    if found:
        network.proven.add(SAYS_ALL)
    return found


def _again(network: Network, x: Any, said: Said, index: int) -> Tensor:
    with torch.no_grad(), _repeating(network.blocks, said.outputs[:index]):
        return network.logits_from(x, index, said.states[index])


@contextmanager
def _repeating(blocks: Sequence[nn.Module], outputs: Sequence[Any]) -> Iterator[None]:
    """The first blocks say again what they said, and compute nothing."""
    said = list(zip(blocks, outputs, strict=False))
    own = [(vars(block), vars(block).get("forward")) for block, _ in said]
    for block, output in said:
        vars(block)["forward"] = wraps(block.forward)(lambda *_, said=output, **__: said)
    try:
        yield
    finally:
        for members, forward in own:
            members.pop("forward")
            members.update({} if forward is None else {"forward": forward})


def nudges(at: LossAt, index: int, h: Tensor, credit: Tensor, base: Tensor, eta: float) -> Tensor:
    """The change of each sample's loss after ``h <- h - eta * credit / ||credit||``.

    Useful credit gives negative numbers. A sample without credit gives NaN, and so does one whose
    state is so large that the step is lost in its rounding.

    >>> def square(_, h): return h.double().square().sum(1)
    >>> h = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    >>> round(float(nudges(square, 0, h, 2 * h, square(0, h), eta=0.1)), 3)
    -0.19
    """
    step = directions(credit).nan_to_num().to(h).view_as(h)
    moved = h - eta * step
    still = (moved == h).reshape(len(h), -1).all(1)
    return torch.where(still, torch.nan, at(index, moved) - base)


class Correlation:
    """Pearson's r of pairs that arrive in batches; NaN where either side does not vary.

    Means and scatter are merged batch by batch (Chan, Golub & LeVeque 1983), so nothing is kept
    of the pairs. float64 holds the scatter of everything that float32 gradients can forecast.

    >>> r = Correlation()
    >>> r.add(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 4.0]))
    >>> r.add(torch.tensor([3.0]), torch.tensor([6.0]))
    >>> round(r.value, 12)
    1.0
    """

    VARIES = 1e-12
    """A spread below this share of the values is the rounding of a constant."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = torch.zeros(2, dtype=torch.float64)
        self.scatter = torch.zeros(2, 2, dtype=torch.float64)

    def add(self, predicted: Tensor, actual: Tensor) -> None:
        """Another batch of pairs."""
        pairs = torch.stack([predicted.double(), actual.double()]).cpu()
        total, share = self.count + pairs.shape[1], pairs.shape[1] / (self.count + pairs.shape[1])
        centre = pairs.mean(1)
        centred, gap = pairs - centre[:, None], centre - self.mean
        self.scatter += centred @ centred.T + torch.outer(gap, gap) * (self.count * share)
        self.mean += gap * share
        self.count = total

    @property
    def value(self) -> float:
        """r over all pairs."""
        spread = self.scatter.diagonal().sqrt()
        if not bool((spread > self.VARIES * self.count**0.5 * self.mean.abs()).all()):
            return nan
        return float((self.scatter[0, 1] / spread[0] / spread[1]).clamp(-1, 1))


class Perturbations:
    """Random moves of one state, the same for any split of the samples into batches.

    Each move is ``size * ||h||`` long, for one of fixed size is lost in a stream of 1e8. Credit
    that tells how the loss will change correlates with what the loss really does; a random vector
    (the negative control, always tried too) does not. Every sample has moves of its own, drawn in
    the order the samples come: in another order the correlation changes within its sampling error.
    """

    def __init__(self, layer: int, count: int, size: float, seed: int) -> None:
        self.layer, self.size = layer, size
        self.sources = [np.random.default_rng((seed, layer, draw)) for draw in range(count)]
        self.random = np.random.default_rng((seed, layer, count, 1))
        self.found: dict[str, Correlation] = {}

    def try_on(self, at: LossAt, h: Tensor, base: Tensor, credits: Mapping[str, Tensor]) -> None:
        """Move one batch's states and compare every credit's forecast with what happened."""
        told = {**credits, "random": _normal(self.random, h)}
        for source in self.sources:
            move = directions(_normal(source, h)) * (self.size * norms(h))[:, None]
            actual = at(self.layer, h + move.to(h).view_as(h)) - base
            for name, credit in told.items():
                forecast = torch.linalg.vecdot(flat(credit), move)
                self.found.setdefault(name, Correlation()).add(forecast, actual)

    def value(self, name: str) -> float:
        """The correlation of one credit's forecasts."""
        return self.found[name].value if name in self.found else nan


def _normal(source: np.random.Generator, like: Tensor) -> Tensor:
    return torch.from_numpy(source.standard_normal(tuple(like.shape))).to(like.device)
