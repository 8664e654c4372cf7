"""Network: any ``nn.Module`` seen as embed -> blocks -> readout.

Everything above asks a network three things only: its states h_0..h_L, its logits, and the logits
it would give if one state were another. h_0 is what enters the first block and h_{l+1} what
leaves block l. A view never changes the module: hooks live for one forward pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor, nn

from faudit.errors import NetworkError, RuleError
from faudit.networks.finding import check_made, find_blocks, sequence_at
from faudit.networks.values import (
    as_state,
    call,
    check_batch,
    classes,
    copied,
    logits_of,
    map_tensors,
    replace_input,
    replace_output,
    taking,
)

Boundary = Callable[[int, Tensor], Tensor]
"""Called with (l, h_l) where a state passes from one stage to the next; returns what goes on."""


class Stages(Protocol):
    """What stands before the blocks and what stands after them."""

    def embed(self, x: Any) -> Tensor:
        """The input as the first state, h_0."""

    def readout(self, h: Tensor) -> Any:
        """The last state, h_L, as logits."""


class Staged(nn.Module, ABC):
    """A module that is written as its three stages; the zoo's networks are of this kind."""

    blocks: nn.ModuleList

    @abstractmethod
    def embed(self, x: Tensor) -> Tensor:
        """The input as the first state, h_0; it writes nothing into ``x``."""

    @abstractmethod
    def readout(self, h: Tensor) -> Tensor:
        """The last state, h_L, as logits."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return self.readout(h)


class Residual(nn.Module, ABC):
    """A block ``h -> skip + f`` that can show its update f apart from the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.tap = nn.Identity()  # the update passes here, where a hook can see it

    @abstractmethod
    def split(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """The skip path and the update, before they are added."""

    def forward(self, h: Tensor) -> Tensor:
        skip, update = self.split(h)
        return skip + self.tap(update)


@dataclass(frozen=True)
class Pass:
    """What one forward pass showed: states h_0..h_L, updates f_0..f_{L-1} where known, logits."""

    states: tuple[Tensor, ...]
    updates: tuple[Tensor | None, ...]
    logits: Tensor


@dataclass(frozen=True)
class Layout:
    """The shapes a credit rule builds its state from; no sample, no weight, no name.

    ``shapes[l]`` is the shape of h_l without its batch dimension, ``weights[l]`` holds the shapes
    of block l's weight tensors, and ``classes`` is the width of the logits.
    """

    shapes: tuple[tuple[int, ...], ...]
    weights: tuple[tuple[tuple[int, ...], ...], ...]
    classes: int

    @property
    def depth(self) -> int:
        """The number of blocks, L."""
        return len(self.shapes) - 1

    @property
    def features(self) -> tuple[int, ...]:
        """The width of every state: channels of an image, features of a vector or a token."""
        return tuple(shape[0] if len(shape) == 3 else shape[-1] for shape in self.shapes)

    def check(self, here: Layout) -> None:
        """Refuse a network other than the one a rule was made for; tokens may be more or fewer."""
        if (self.features, self.classes) != (here.features, here.classes):
            raise RuleError(
                f"the rule was made for states of widths {self.features} and {self.classes}"
                f" classes; this network has {here.features} and {here.classes}: make it from"
                " network.layout(x)"
            )


class Network(ABC):
    """A module seen as h_0 = embed(x), h_{l+1} = block_l(h_l), logits = readout(h_L).

    >>> from faudit.networks.zoo import ResMLP
    >>> net = Network.of(ResMLP(inputs=12, width=8, depth=3, classes=4))
    >>> seen = net.trace(torch.zeros(5, 12))
    >>> len(seen.states), tuple(seen.logits.shape)
    (4, (5, 4))
    """

    whole = True
    """Whether asking for one block runs the whole forward."""

    def __init__(
        self, module: nn.Module, blocks: Sequence[nn.Module], names: Sequence[str]
    ) -> None:
        self.module = module
        self.blocks = tuple(blocks)
        self.names = tuple(names)
        self.proven: set[int | str] = set()
        """The checks that this network has passed, so that no step repeats them."""

    @staticmethod
    def of(model: nn.Module | Network, blocks: str | Sequence[str] | None = None) -> Network:
        """See ``model`` as a network.

        Args:
            model: any module. Without ``blocks`` it must have a ``.blocks`` sequence of modules,
                or report its states itself: ``model(x, return_hidden=True)`` gives
                ``(logits, [h_0, .., h_L])``, which can be measured but not taught. Of a compiled
                or parallel module the one inside is seen, which has the same weights.
            blocks: the dotted name of a sequence of blocks, or one dotted name per block.

        >>> mlp = nn.Sequential(nn.Linear(3, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU()),
        ...                     nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 2))
        >>> Network.of(mlp, blocks=["1", "2"]).depth
        2
        """
        if isinstance(model, Network):
            return model if blocks is None else Network.of(model.module, blocks)
        if not isinstance(model, nn.Module):
            raise NetworkError(f"a network is made from a torch.nn.Module, not from {model!r:.80}")
        if isinstance(model, torch.jit.ScriptModule):
            raise NetworkError("a scripted module hides its states; give the module it came from")
        check_made(model)
        model, blocks = _unwrapped(model, blocks)
        known = sequence_at(model, "blocks")
        if blocks is None and not known and _reports(model):
            return ReportedNetwork(model)
        shallow = isinstance(model, Staged) and blocks is None and not _blocks_of(model)
        found = [] if shallow else find_blocks(model, blocks)
        names, modules = [name for name, _ in found], [module for _, module in found]
        stages = _stages_of(model)
        if stages is not None and found == known:
            return StagedNetwork(model, modules, names, stages)
        _check_forward(model)
        return HookedNetwork(model, modules, names)

    @property
    def depth(self) -> int:
        """The number of blocks, L."""
        return len(self.blocks)

    @abstractmethod
    def run(self, x: Any, at: Boundary) -> Tensor:
        """The logits of ``x``, passing every state h_l through ``at(l, h_l)`` on its way.

        A module that is not ``Staged`` is given a copy of ``x``, and what ``at`` returns goes on as
        a copy, so a forward that writes into what it gets changes neither.
        """

    def block(self, x: Any, index: int, h: Tensor) -> Tensor:
        """What leaves block ``index`` when ``h`` enters it; ``x`` gives the rest of the context."""
        self._check_index(index, self.depth - 1, "block")
        left: list[Tensor] = []

        def at(boundary: int, state: Tensor) -> Tensor:
            if boundary == index + 1:
                left.append(state)
            return h if boundary == index else state

        self.run(x, at)
        return left[0]

    def logits_from(self, x: Any, index: int, h: Tensor) -> Tensor:
        """The logits of ``x`` if its state h_index were ``h``."""
        self._check_index(index, self.depth, "state")
        return self.run(x, lambda boundary, state: h if boundary == index else state)

    def trace(self, x: Any, at: Boundary | None = None) -> Pass:
        """One forward pass with every state recorded, each safe from in-place operations.

        >>> net = Network.of(nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True)), ["0", "1"])
        >>> [len(net.trace(torch.ones(7, 2)).states), net.depth]
        [3, 2]
        """
        states: list[Tensor] = []

        def record(index: int, h: Tensor) -> Tensor:
            states.append(h if at is None else at(index, h))
            return states[-1]

        with _updates(self.blocks) as updates:
            logits = self.run(x, record)
        for index, h in enumerate(states):
            check_batch(index, h, logits)
        return Pass(tuple(states), tuple(updates), logits)

    def rooted(self, x: Any) -> Pass:
        """A trace whose graph starts at h_0, so every state has a gradient even if all is frozen.

        >>> net = Network.of(nn.Sequential(nn.Linear(2, 2)).requires_grad_(False), ["0"])
        >>> [h.requires_grad for h in net.rooted(torch.ones(7, 2)).states]
        [True, True]
        """

        def start(index: int, h: Tensor) -> Tensor:
            return h.detach().clone().requires_grad_() if index == 0 else h

        return self.trace(x, start)

    def layout(self, x: Any) -> Layout:
        """The shapes of states, block weights and logits, read off one batch in eval mode."""
        weights = tuple(tuple(tuple(w.shape) for w in self.weights(i)) for i in range(self.depth))
        with torch.no_grad(), evaluating(self.module):
            seen = self.trace(x)
        shapes = tuple(tuple(h.shape[1:]) for h in seen.states)
        return Layout(shapes, weights, classes(seen.logits))

    def weights(self, index: int) -> list[nn.Parameter]:
        """The matrices and kernels of block ``index``, the tensors a backward pass transposes."""
        return [p for p in self.blocks[index].parameters() if p.ndim >= 2]

    def _check_index(self, index: int, last: int, kind: str) -> None:
        if not 0 <= index <= last:
            raise NetworkError(f"there is no {kind} {index}; this network has {kind}s 0 to {last}")


class StagedNetwork(Network):
    """A network whose stages can be called one by one; nothing is computed twice."""

    whole = False

    def __init__(
        self, module: nn.Module, blocks: Sequence[nn.Module], names: Sequence[str], stages: Stages
    ) -> None:
        super().__init__(module, blocks, names)
        self._stages = stages

    def run(self, x: Any, at: Boundary) -> Tensor:
        # A module that is written as its stages keeps to their contract; others may not know it.
        own = x if isinstance(self.module, Staged) else copied(x)
        with taking(self.module, x):
            h = self._stages.embed(own)
        h = at(0, as_state(h, "the embedding"))
        for index in range(self.depth):
            h = at(index + 1, self._through(index, h))
        return self._readout(h)

    def block(self, x: Any, index: int, h: Tensor) -> Tensor:
        self._check_index(index, self.depth - 1, "block")
        return self._through(index, h)

    def logits_from(self, x: Any, index: int, h: Tensor) -> Tensor:
        self._check_index(index, self.depth, "state")
        for later in range(index, self.depth):
            h = self._through(later, h)
        return self._readout(h)

    def _through(self, index: int, h: Tensor) -> Tensor:
        return as_state(self.blocks[index](h.clone()), self.names[index])

    def _readout(self, h: Tensor) -> Tensor:
        return logits_of(self._stages.readout(h.clone()))


class HookedNetwork(Network):
    """A network known only by its forward: states are caught, and replaced, as they pass."""

    def run(self, x: Any, at: Boundary) -> Tensor:
        calls = [0] * self.depth

        def enter(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return replace_input(block, args, kwargs, lambda h: at(0, h).clone(), self.names[0])

        def leave(index: int) -> Callable[..., Any]:
            def hook(_: nn.Module, __: Any, output: Any) -> Any:
                calls[index] += 1
                self._check_order(index, calls)
                return replace_output(output, lambda h: at(index + 1, h).clone(), self.names[index])

            return hook

        with ExitStack() as hooks:
            hooks.enter_context(self.blocks[0].register_forward_pre_hook(enter, with_kwargs=True))
            for index, block in enumerate(self.blocks):
                hooks.enter_context(block.register_forward_hook(leave(index)))
            output = call(self.module, copied(x))
        self._check_all_ran(calls)
        return logits_of(output)

    def _check_order(self, index: int, calls: list[int]) -> None:
        if calls[index] > 1:
            raise NetworkError(
                f"block {self.names[index]!r} ran twice in one forward pass, so its state is not"
                " one tensor; name blocks that run once"
            )
        if 0 in calls[:index]:
            raise NetworkError(
                f"block {self.names[index]!r} ran before {self.names[calls.index(0)]!r}; name the"
                " blocks in the order they run"
            )

    def _check_all_ran(self, calls: list[int]) -> None:
        if 0 in calls:
            raise NetworkError(
                f"block {self.names[calls.index(0)]!r} never ran in a forward pass; name the"
                " blocks that the forward calls"
            )


class ReportedNetwork(Network):
    """A network that reports its states itself and hides its blocks.

    ``model(x, return_hidden=True)`` gives ``(logits, [h_0, .., h_L])``. States, logits and exact
    gradients can be measured. No state can be replaced and no block taught.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module, (), ())

    @property
    def depth(self) -> int:
        """Unknown before a pass; ``len(trace(x).states) - 1``."""
        self._refuse("count or teach its blocks")

    def run(self, x: Any, at: Boundary) -> Tensor:
        logits, states = self._reported(x)
        for index, h in enumerate(states):
            if at(index, as_state(h, f"h_{index}")) is not h:
                self._refuse("replace a state")
        return logits_of(logits)

    def trace(self, x: Any, at: Boundary | None = None) -> Pass:
        seen = super().trace(x, at)
        return Pass(seen.states, (None,) * (len(seen.states) - 1), seen.logits)

    def rooted(self, x: Any) -> Pass:
        """A trace with gradients in every state; the graph starts at the input."""

        def start(t: Tensor) -> Tensor:
            return t.detach().clone().requires_grad_() if t.is_floating_point() else t

        return self.trace(map_tensors(x, start))

    def _reported(self, x: Any) -> tuple[Any, Sequence[Any]]:
        output = call(self.module, copied(x), return_hidden=True)
        if isinstance(output, tuple) and len(output) == 2 and isinstance(output[1], (list, tuple)):
            return output
        raise NetworkError(
            f"{type(self.module).__name__}(x, return_hidden=True) must return"
            " (logits, [h_0, .., h_L])"
        )

    def _refuse(self, what: str) -> NoReturn:
        raise NetworkError(
            f"{type(self.module).__name__} only reports its states; to {what} faudit needs modules:"
            " keep them in .blocks or name them with blocks=['layer1', ...]"
        )


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put ``module`` in eval mode and give every submodule its own mode back afterwards.

    The modes are set directly: a ``train`` of a module's own may do more, such as merging weights.

    >>> layer = nn.Dropout().train()
    >>> with evaluating(layer):
    ...     layer.training
    False
    >>> layer.training
    True
    """
    modes = [(m, m.training) for m in module.modules()]
    for m, _ in modes:
        m.training = False
    try:
        yield
    finally:
        for m, training in modes:
            m.training = training


@contextmanager
def _updates(blocks: Sequence[nn.Module]) -> Iterator[list[Tensor | None]]:
    """A list that fills with the update of every residual block that runs meanwhile."""
    seen: list[Tensor | None] = [None] * len(blocks)

    def keep(index: int) -> Callable[..., None]:
        return lambda _, __, update: seen.__setitem__(index, update)

    with ExitStack() as hooks:
        for index, block in enumerate(blocks):
            if isinstance(block, Residual):
                hooks.enter_context(block.tap.register_forward_hook(keep(index)))
        yield seen


def _blocks_of(model: Staged) -> Sized:
    try:
        return model.blocks
    except AttributeError as error:
        raise NetworkError(
            f"{type(model).__name__} is Staged and has no .blocks; keep them there in a ModuleList"
        ) from error


def _unwrapped(model: nn.Module, blocks: Any) -> tuple[nn.Module, Any]:
    """The module inside torch.compile and parallel wrappers, and its blocks by the names there."""
    parallel = isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel)
    name = "module" if parallel else "_orig_mod"
    inside = model._modules.get(name)
    if inside is None:
        return model, blocks
    if isinstance(blocks, str):
        return _unwrapped(inside, blocks.removeprefix(f"{name}."))
    if isinstance(blocks, list | tuple):
        blocks = [b.removeprefix(f"{name}.") if isinstance(b, str) else b for b in blocks]
    return _unwrapped(inside, blocks)


def _reports(model: nn.Module) -> bool:
    return _has_forward(model) and "return_hidden" in signature(model.forward).parameters


def _has_forward(model: nn.Module) -> bool:
    return _forward_of(model) is not nn.Module.forward


def _forward_of(model: nn.Module) -> Any:
    """The function that runs: the module's own if it was given one, else its class's."""
    return vars(model).get("forward", type(model).forward)


def _check_forward(model: nn.Module) -> None:
    if not _has_forward(model):
        raise NetworkError(
            f"{type(model).__name__} has no forward of its own; give it one, or the parts that"
            " stand for it: .embed or .patch_embed, .blocks, and .out_head or .head"
        )


class _Parts:
    """The stages of a module that has the parts but no forward of its own."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def embed(self, x: Any) -> Any:
        return self._part("embed", "patch_embed")(x)

    def readout(self, h: Tensor) -> Any:
        norm, head = self._part("out_ln"), self._part("out_head", "head")
        return head(h if norm is None else norm(h))

    def _part(self, *names: str) -> Any:
        return next((getattr(self._model, n) for n in names if hasattr(self._model, n)), None)

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return None not in (self._part("embed", "patch_embed"), self._part("out_head", "head"))


def _stages_of(model: nn.Module) -> Stages | None:
    """The stages that a model is sure to be; None where only its forward knows."""
    if isinstance(model, Staged):
        return model if _forward_of(model) is Staged.forward else None
    parts = _Parts(model)
    return parts if parts.complete and not _has_forward(model) else None
