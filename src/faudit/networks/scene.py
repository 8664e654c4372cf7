"""Scene: what one batch looks like from inside a network; all that a credit rule or a measure sees.

Losses, and so all credit, are per sample: the gradient of the *sum* of the samples' losses. Whoever
trains on a mean divides once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from faudit.errors import RuleError
from faudit.networks.view import Network, Pass

Loss = Callable[[Tensor, Tensor], Tensor]
"""(logits, targets) -> one loss per sample."""

Backward = Callable[[nn.Parameter], Tensor | None]
"""A forward weight -> the weight that the backward pass uses instead, or None for itself."""


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of every sample; over token logits (N, T, V) the mean over a sample's tokens.

    >>> cross_entropy(torch.zeros(2, 4), torch.tensor([0, 3]))
    tensor([1.3863, 1.3863])
    """
    if logits.ndim == 3:
        return (
            F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
            .view(targets.shape)
            .mean(1)
        )
    return F.cross_entropy(logits, targets, reduction="none")


@dataclass(frozen=True)
class Local:
    """A forward pass cut at every state: each stage's output carries only its own graph.

    ``leaves[l]`` is the state that entered stage l and ``outputs[l]`` the state it came from, so
    ``outputs[l + 1]`` is block l's output as a function of ``leaves[l]`` and its own weights.
    """

    leaves: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    updates: tuple[Tensor | None, ...]
    logits: Tensor


@dataclass(frozen=True)
class Scene:
    """One batch inside a network: detached values, and callables that ask the network more.

    ``error`` is e = dL/dlogits and ``output_credit`` is g_L = dL/dh_L, both per sample.
    """

    network: Network
    x: Any
    targets: Tensor
    loss: Loss
    states: tuple[Tensor, ...]
    logits: Tensor
    error: Tensor
    output_credit: Tensor
    local: Local

    @property
    def depth(self) -> int:
        """The number of blocks, L."""
        return len(self.states) - 1

    def block(self, index: int, h: Tensor) -> Tensor:
        """What leaves block ``index`` when ``h`` enters it."""
        with keeping_buffers(self.network.module):
            return self.network.block(self.x, index, h)

    def readout(self, h: Tensor) -> Tensor:
        """The logits if the last state were ``h``."""
        with keeping_buffers(self.network.module):
            return self.network.logits_from(self.x, self.depth, h)

    def losses(self, h: Tensor) -> Tensor:
        """The samples' losses if the last state were ``h``."""
        return self.loss(self.readout(h), self.targets)

    def pull(self, index: int, credit: Tensor, backward: Backward | None = None) -> Tensor:
        """The credit at block ``index``'s output, carried to its input by the block's Jacobian.

        With ``backward`` other weights carry it; sign-symmetric and learned feedback are this.
        """
        if backward is None:
            start, end = self.local.leaves[index], self.local.outputs[index + 1]
        else:
            start, end = self._rerun(index, backward)
        (carried,) = torch.autograd.grad(end, start, credit, retain_graph=backward is None)
        return carried

    def _rerun(self, index: int, backward: Backward) -> tuple[Tensor, Tensor]:
        start = self.states[index].clone().requires_grad_()
        replaced = _BackwardWeights(backward)
        with torch.enable_grad(), replaced:
            end = self.block(index, start)
        replaced.check(self.network.weights(index), self.network.names[index])
        return start, end


def scene(network: Network, x: Any, targets: Tensor, loss: Loss = cross_entropy) -> Scene:
    """One forward pass over (x, targets), cut at every state.

    >>> from faudit.networks.zoo import ResMLP
    >>> net = Network.of(ResMLP(inputs=6, width=4, depth=2, classes=3))
    >>> seen = scene(net, torch.randn(5, 6), torch.zeros(5, dtype=torch.long))
    >>> seen.depth, tuple(seen.error.shape), tuple(seen.output_credit.shape)
    (2, (5, 3), (5, 4))
    """
    with torch.enable_grad():
        local = _cut_pass(network, x)
        error, credit = _output_gradients(local, targets, loss)
    states = tuple(h.detach() for h in local.leaves)
    return Scene(network, x, targets, loss, states, local.logits.detach(), error, credit, local)


def gradients(
    network: Network, x: Any, targets: Tensor, loss: Loss = cross_entropy
) -> tuple[Pass, tuple[Tensor, ...]]:
    """The states of one whole forward pass and the exact g_l = dL/dh_l of every sample.

    Works on frozen parameters and under ``no_grad``: the graph starts at h_0.

    >>> from faudit.networks.zoo import ResMLP
    >>> net = Network.of(ResMLP(inputs=6, width=4, depth=2, classes=3))
    >>> seen, exact = gradients(net, torch.randn(5, 6), torch.zeros(5, dtype=torch.long))
    >>> [tuple(g.shape) for g in exact]
    [(5, 4), (5, 4), (5, 4)]
    """

    def start(index: int, h: Tensor) -> Tensor:
        return h.detach().clone().requires_grad_() if index == 0 else h

    with torch.inference_mode(False), torch.enable_grad():
        seen = network.trace(x, start)
        exact = torch.autograd.grad(loss(seen.logits, targets).sum(), seen.states)
    states = tuple(h.detach() for h in seen.states)
    return Pass(states, (None,) * network.depth, seen.logits.detach()), exact


@contextmanager
def keeping_buffers(module: nn.Module) -> Iterator[None]:
    """Let a module's buffers (BatchNorm's running statistics) change only inside this block.

    Copies stand in for them meanwhile, so no graph that saved a buffer sees it change.
    """
    owned = [(m, name, b) for m in module.modules() for name, b in m._buffers.items()]
    for owner, name, buffer in owned:
        owner._buffers[name] = None if buffer is None else buffer.clone()
    try:
        yield
    finally:
        for owner, name, buffer in owned:
            owner._buffers[name] = buffer


def _cut_pass(network: Network, x: Any) -> Local:
    outputs: list[Tensor] = []

    def cut(_: int, h: Tensor) -> Tensor:
        outputs.append(h)
        return h.detach().requires_grad_()

    seen = network.trace(x, cut)
    return Local(seen.states, tuple(outputs), seen.updates, seen.logits)


def _output_gradients(local: Local, targets: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    logits = local.logits.detach().requires_grad_()
    (error,) = torch.autograd.grad(loss(logits, targets).sum(), logits)
    (credit,) = torch.autograd.grad(local.logits, local.leaves[-1], error, retain_graph=True)
    return error, credit


class _BackwardWeights(TorchFunctionMode):
    """Linear and convolutional layers that compute with one weight and derive with another."""

    LAYERS = (F.linear, F.conv1d, F.conv2d, F.conv3d)

    def __init__(self, backward: Backward) -> None:
        super().__init__()
        self.backward = backward
        self.replaced: set[int] = set()

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        other = self._other(args[1]) if func in self.LAYERS and len(args) > 1 else None
        value = func(*args, **kwargs)
        if other is None:
            return value
        self.replaced.add(id(args[1]))
        rest = {key: option for key, option in kwargs.items() if key != "bias"}
        ghost = func(args[0], other, None, *args[3:], **rest)
        return value.detach() + (ghost - ghost.detach())

    def _other(self, weight: Any) -> Tensor | None:
        return self.backward(weight) if isinstance(weight, nn.Parameter) else None

    def check(self, weights: Iterable[nn.Parameter], name: str) -> None:
        """Refuse a block whose weights would silently have carried exact gradients."""
        missed = [w for w in weights if id(w) not in self.replaced and self._other(w) is not None]
        if missed:
            shapes = ", ".join(str(tuple(w.shape)) for w in missed)
            raise RuleError(
                f"block {name!r} uses weights of shape {shapes} outside linear and convolutional"
                " layers, so this rule cannot give them backward weights; build the block from"
                " nn.Linear and nn.Conv layers"
            )
