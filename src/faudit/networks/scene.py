"""Scene: what one batch looks like from inside a network; all that a credit rule or a measure sees.

Losses, and so all credit, are per sample: the gradient of the *sum* of the samples' losses. Whoever
trains on a mean divides once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointError

from faudit.errors import DataError, NetworkError, RuleError
from faudit.networks.values import kind, map_tensors
from faudit.networks.view import Network, Pass, evaluating

Loss = Callable[[Tensor, Tensor], Tensor]
"""(logits, targets) -> one loss per sample."""

Backward = Callable[[nn.Parameter], Tensor | None]
"""A forward weight -> the weight that the backward pass uses instead, or None for itself."""


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of every sample; over token logits (N, T, V) the mean over a sample's tokens.

    >>> cross_entropy(torch.zeros(2, 4), torch.tensor([0, 3]))
    tensor([1.3863, 1.3863])
    """
    check_labels(logits, targets, everywhere=False)
    if not targets.is_floating_point():
        targets = targets.long()
    if logits.ndim == 2:
        return F.cross_entropy(logits, targets, reduction="none")
    each = targets.flatten(0, -2 if targets.is_floating_point() else -1)
    tokens = F.cross_entropy(logits.flatten(0, -2), each, reduction="none")
    return tokens.view(len(targets), -1).mean(1)


def check_labels(logits: Tensor, targets: Tensor, *, everywhere: bool = True) -> None:
    """Refuse targets that cross-entropy would broadcast, ignore or crash on.

    Reading a range off a GPU holds it up; a training step leaves that to the data
    (``everywhere=False``).

    >>> check_labels(torch.zeros(2, 4), torch.tensor([0, 4]))
    Traceback (most recent call last):
    ...
    faudit.errors.DataError: targets run from 0 to 4, but the network has 4 classes: 0 to 3
    """
    if not isinstance(targets, Tensor):
        raise DataError(f"targets are a {kind(targets)}; give a tensor, one label per sample")
    if logits.ndim < 2:
        raise DataError(
            f"cross-entropy needs logits of shape (samples, classes), not {kind(logits)}; where a"
            " sample has one number, give loss="
        )
    if targets.is_floating_point() and targets.shape == logits.shape:
        return  # one probability per class
    if targets.dtype.is_floating_point or targets.dtype.is_complex or targets.dtype == torch.bool:
        raise DataError(
            f"cross-entropy needs class indices, not {kind(targets)}; for other targets give loss="
        )
    if logits.shape[:-1] != targets.shape:
        raise DataError(
            f"logits of shape {tuple(logits.shape)} need targets of shape"
            f" {tuple(logits.shape[:-1])}, not {tuple(targets.shape)}"
        )
    if not targets.numel() or not (everywhere or targets.device.type == "cpu"):
        return
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= logits.shape[-1]:
        raise DataError(
            f"targets run from {low} to {high}, but the network has {logits.shape[-1]} classes:"
            f" 0 to {logits.shape[-1] - 1}"
        )


@dataclass(frozen=True)
class Local:
    """A forward pass cut at every state: each stage's output carries only its own graph.

    ``leaves[l]`` is the state that entered stage l and ``outputs[l]`` the state it came from, so
    ``outputs[l + 1]`` is block l's output as a function of ``leaves[l]`` and its own weights.
    ``drawn`` is what the (CPU's) random numbers stood at before the pass and then at every state.
    """

    leaves: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    updates: tuple[Tensor | None, ...]
    logits: Tensor
    drawn: tuple[Tensor, ...]


@dataclass(frozen=True)
class Scene:
    """One batch inside a network: detached values, and callables that ask the network more.

    ``each`` holds every sample's loss and ``error`` its e = dL/dlogits.
    """

    network: Network
    x: Any
    targets: Tensor
    loss: Loss
    states: tuple[Tensor, ...]
    logits: Tensor
    each: Tensor
    error: Tensor
    local: Local

    @property
    def depth(self) -> int:
        """The number of blocks, L."""
        return len(self.states) - 1

    @cached_property
    def output_credit(self) -> Tensor:
        """g_L = dL/dh_L of every sample."""
        last = self.depth
        found = _derivatives(self.local.logits, self.local.leaves[last:], self.error, first=last)
        return found[0]

    def block(self, index: int, h: Tensor) -> Tensor:
        """What leaves block ``index`` when ``h`` enters it, with the dropout masks of the pass.

        A GPU's masks are drawn anew.
        """
        with keeping_buffers(self.network.module), self._as_drawn(index):
            return self.network.block(self.x, index, h)

    def readout(self, h: Tensor) -> Tensor:
        """The logits if the last state were ``h``."""
        with keeping_buffers(self.network.module), self._as_drawn(self.depth):
            return self.network.logits_from(self.x, self.depth, h)

    @contextmanager
    def _as_drawn(self, index: int) -> Iterator[None]:
        """Draw from h_index on the random numbers that the pass drew."""
        now = torch.get_rng_state()
        torch.set_rng_state(self.local.drawn[0 if self.network.whole else index + 1])
        try:
            yield
        finally:
            torch.set_rng_state(now)

    def losses(self, h: Tensor) -> Tensor:
        """The samples' losses if the last state were ``h``."""
        return self.loss(self.readout(h), self.targets)

    def pull(self, index: int, credit: Tensor, backward: Backward | None = None) -> Tensor:
        """The credit at block ``index``'s output, carried to its input by the block's Jacobian.

        With ``backward`` other weights carry it; sign-symmetric and learned feedback are this.
        """
        _refuse_detour(self.network, self.local, index)
        if index == self.depth - 1:
            _refuse_detour(self.network, self.local, self.depth)
        if backward is None:
            start, end = self.local.leaves[index], self.local.outputs[index + 1]
        else:
            start, end = self._rerun(index, backward)
        (carried,) = torch.autograd.grad(end, start, credit, retain_graph=backward is None)
        return carried

    def _rerun(self, index: int, backward: Backward) -> tuple[Tensor, Tensor]:
        with grading():
            start = self.states[index].clone().requires_grad_()
            replaced = _BackwardWeights(self.network.weights(index), backward)
            with replaced:
                end = self.block(index, start)
        replaced.check(self.network.names[index])
        return start, end


def check_series(network: Network, x: Any) -> None:
    """Refuse a network in which credit carried back from block to block would miss a way.

    >>> from faudit.networks.zoo import ResMLP
    >>> check_series(Network.of(ResMLP(inputs=6, width=4, depth=2, classes=3)), torch.zeros(2, 6))
    """
    with grading(), evaluating(network.module):
        local = _cut_pass(network, _ordinary(x))
    for index in range(network.depth + 1):
        _refuse_detour(network, local, index)


def detours(network: Network, x: Any) -> list[str]:
    """The blocks, and perhaps the readout, that use earlier states besides the one before them.

    >>> from faudit.networks.zoo import ResMLP
    >>> detours(Network.of(ResMLP(inputs=6, width=4, depth=2, classes=3)), torch.zeros(2, 6))
    []
    """
    with grading():
        local = _cut_pass(network, _ordinary(x))
    readers = range(network.depth + 1)
    return [_reader(network, index) for index in readers if _around(local, index)]


def _refuse_detour(network: Network, local: Local, index: int) -> None:
    """Refuse a block, or the readout, that uses other states than h_index; asked once for each."""
    if index in network.proven:
        return
    if around := _around(local, index):
        raise NetworkError(
            f"{_reader(network, index)} uses {', '.join(around)} besides h_{index}, so credit"
            " carried back from block to block would miss a way; name blocks that hold both ends"
            " of it"
        )
    network.proven.add(index)


def _around(local: Local, index: int) -> list[str]:
    """The states before h_index that what reads h_index uses too."""
    output = (*local.outputs, local.logits)[index + 1]
    earlier = local.leaves[:index]
    if not earlier or not output.requires_grad:
        return []
    heard = torch.autograd.grad(
        output, earlier, output.detach(), retain_graph=True, allow_unused=True
    )
    return [f"h_{i}" for i, g in enumerate(heard) if g is not None]


def _reader(network: Network, index: int) -> str:
    """Who reads h_index."""
    return "the readout" if index == network.depth else f"{network.names[index]!r}"


def scene(network: Network, x: Any, targets: Tensor, loss: Loss = cross_entropy) -> Scene:
    """One forward pass over (x, targets), cut at every state.

    >>> from faudit.networks.zoo import ResMLP
    >>> net = Network.of(ResMLP(inputs=6, width=4, depth=2, classes=3))
    >>> seen = scene(net, torch.randn(5, 6), torch.zeros(5, dtype=torch.long))
    >>> seen.depth, tuple(seen.error.shape), tuple(seen.output_credit.shape)
    (2, (5, 3), (5, 4))
    """
    with grading():
        x, targets = _ordinary(x), _ordinary(targets)
        local = _cut_pass(network, x)
        each, error = _judged(local.logits, targets, loss)
    states = tuple(h.detach() for h in local.leaves)
    logits = local.logits.detach()
    return _heard(Scene(network, x, targets, loss, states, logits, each, error, local))


def _heard(seen: Scene) -> Scene:
    """The scene, once it is known that the network's logits depend on its last state."""
    if "heard" not in seen.network.proven:
        _ = seen.output_credit
        seen.network.proven.add("heard")
    return seen


def mean_loss(network: Network, x: Any, targets: Tensor, loss: Loss = cross_entropy) -> Tensor:
    """A batch's mean loss, with one graph behind it that no state cuts.

    >>> from faudit.networks.zoo import ResMLP
    >>> net = Network.of(ResMLP(inputs=6, width=4, depth=2, classes=3))
    >>> mean_loss(net, torch.randn(5, 6), torch.zeros(5, dtype=torch.long)).requires_grad
    True
    """
    with grading():
        logits = network.run(_ordinary(x), lambda _, h: h)
        return loss(logits, _ordinary(targets)).mean()


def gradients(
    network: Network, x: Any, targets: Tensor, loss: Loss = cross_entropy
) -> tuple[Pass, tuple[Tensor, ...]]:
    """The states of one whole forward pass and the exact g_l = dL/dh_l of every sample.

    Works on frozen parameters and without gradients being recorded, and leaves the module as it
    was, running statistics included.

    >>> from faudit.networks.zoo import ResMLP
    >>> net = Network.of(ResMLP(inputs=6, width=4, depth=2, classes=3))
    >>> seen, exact = gradients(net, torch.randn(5, 6), torch.zeros(5, dtype=torch.long))
    >>> [tuple(g.shape) for g in exact]
    [(5, 4), (5, 4), (5, 4)]
    """
    with grading(), keeping_buffers(network.module):
        seen = network.rooted(_ordinary(x))
        total = loss(seen.logits, _ordinary(targets)).sum()
        exact = _derivatives(total, seen.states)
    states = tuple(h.detach() for h in seen.states)
    return Pass(states, (None,) * len(seen.updates), seen.logits.detach()), exact


@contextmanager
def grading() -> Iterator[None]:
    """Record gradients here, also where the caller switched them off.

    >>> with torch.inference_mode(), grading():
    ...     torch.is_grad_enabled()
    True
    """
    with torch.inference_mode(False), torch.enable_grad():
        yield


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


def _ordinary(x: Any) -> Any:
    """``x`` with inference tensors, which autograd refuses, as ordinary ones."""
    return map_tensors(x, lambda t: t.clone() if t.is_inference() else t)


def _cut_pass(network: Network, x: Any) -> Local:
    outputs: list[Tensor] = []
    drawn = [torch.get_rng_state()]

    def cut(_: int, h: Tensor) -> Tensor:
        outputs.append(h)
        drawn.append(torch.get_rng_state())
        return h.detach().requires_grad_()

    seen = network.trace(x, cut)
    return Local(seen.states, tuple(outputs), seen.updates, seen.logits, tuple(drawn))


def _judged(logits: Tensor, targets: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """Every sample's loss and its gradient in the logits."""
    leaf = logits.detach().requires_grad_()
    each = loss(leaf, targets)
    (error,) = torch.autograd.grad(each.sum(), leaf)
    return each.detach(), error


def _derivatives(
    output: Tensor, states: Sequence[Tensor], credit: Tensor | None = None, *, first: int = 0
) -> tuple[Tensor, ...]:
    """The gradients of ``output`` in ``states``, the first of which is h_first; all must exist."""
    known = [index for index, h in enumerate(states) if h.requires_grad]
    found: dict[int, Tensor | None] = {}
    if output.requires_grad and known:
        grads = _grads(output, [states[i] for i in known], credit)
        found = dict(zip(known, grads, strict=True))
    return tuple(_present(found.get(i), first + i) for i in range(len(states)))


def _grads(
    output: Tensor, states: Sequence[Tensor], credit: Tensor | None
) -> tuple[Tensor | None, ...]:
    try:
        return torch.autograd.grad(output, states, credit, retain_graph=True, allow_unused=True)
    except CheckpointError as error:
        raise NetworkError(
            "the forward is checkpointed (torch.utils.checkpoint), and what is recomputed differs"
            " from what ran; switch checkpointing off to look inside, memory is bounded by a batch"
        ) from error
    except RuntimeError as error:
        if "inplace operation" not in str(error):
            raise
        raise NetworkError(
            "the forward overwrites in place what its own backward pass needs, so the network has"
            " no gradients, not even in training; write h = h + f(h) instead of h += f(h)"
        ) from error


def _present(grad: Tensor | None, index: int) -> Tensor:
    if grad is None:
        raise NetworkError(
            f"the logits have no gradient in h_{index}: the forward detaches it, runs without"
            " gradients, recomputes it in a reentrant checkpoint (torch.utils.checkpoint; switch it"
            " off), or does not use it; name blocks on the path from input to logits"
        )
    return grad


class _BackwardWeights(TorchFunctionMode):
    """Linear and convolutional layers that compute with one weight and derive with another."""

    LAYERS = (F.linear, F.conv1d, F.conv2d, F.conv3d)

    def __init__(self, weights: Iterable[nn.Parameter], backward: Backward) -> None:
        super().__init__()
        others = [(w, backward(w)) for w in weights]
        self.others = {id(w): (w, other) for w, other in others if other is not None}
        self.replaced: set[int] = set()

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        value = func(*args, **kwargs)
        weight = args[1] if func in self.LAYERS and len(args) > 1 else None
        if id(weight) not in self.others:
            return value
        self.replaced.add(id(weight))
        rest = {key: option for key, option in kwargs.items() if key != "bias"}
        ghost = func(args[0], self.others[id(weight)][1], None, *args[3:], **rest)
        return value.detach() + (ghost - ghost.detach())

    def check(self, name: str) -> None:
        """Refuse a block whose weights would silently have carried exact gradients."""
        missed = [w for w, _ in self.others.values() if id(w) not in self.replaced]
        if missed:
            shapes = ", ".join(str(tuple(w.shape)) for w in missed)
            raise RuleError(
                f"block {name!r} uses weights of shape {shapes} outside linear and convolutional"
                " layers, so this rule cannot give them backward weights; build the block from"
                " nn.Linear and nn.Conv layers"
            )
