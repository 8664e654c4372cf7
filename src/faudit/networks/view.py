"""Network: any ``nn.Module`` seen as embed -> blocks -> readout.

Everything above asks a network three things only: its states h_0..h_L, its logits, and the logits
it would give if one state were another. h_0 is what enters the first block and h_{l+1} what
leaves block l. A view never changes the module: hooks live for one forward pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, cast

import torch
from torch import Tensor, nn

from faudit.errors import NetworkError

Boundary = Callable[[int, Tensor], Tensor]
"""Called with (l, h_l) where a state passes from one stage to the next; returns what goes on."""


class Staged(nn.Module, ABC):
    """A module that is written as its three stages; the zoo's networks are of this kind."""

    blocks: nn.ModuleList

    @abstractmethod
    def embed(self, x: Tensor) -> Tensor:
        """The input as the first state, h_0."""

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

    @abstractmethod
    def split(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """The skip path and the update, before they are added."""

    def forward(self, h: Tensor) -> Tensor:
        skip, update = self.split(h)
        return skip + update


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


class Network(ABC):
    """A module seen as h_0 = embed(x), h_{l+1} = block_l(h_l), logits = readout(h_L).

    >>> from faudit.networks.zoo import ResMLP
    >>> net = Network.of(ResMLP(inputs=12, width=8, depth=3, classes=4))
    >>> seen = net.trace(torch.zeros(5, 12))
    >>> len(seen.states), tuple(seen.logits.shape)
    (4, (5, 4))
    """

    def __init__(
        self, module: nn.Module, blocks: Sequence[nn.Module], names: Sequence[str]
    ) -> None:
        self.module = module
        self.blocks = tuple(blocks)
        self.names = tuple(names)

    @staticmethod
    def of(model: nn.Module | Network, blocks: str | Sequence[str] | None = None) -> Network:
        """See ``model`` as a network.

        Args:
            model: any module. Without ``blocks`` it must have a ``.blocks`` sequence of modules.
            blocks: the dotted name of a sequence of blocks, or one dotted name per block.

        >>> mlp = nn.Sequential(nn.Linear(3, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU()),
        ...                     nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 2))
        >>> Network.of(mlp, blocks=["1", "2"]).depth
        2
        """
        if isinstance(model, Network):
            return model
        if not isinstance(model, nn.Module):
            raise NetworkError(
                f"a network is made from a torch.nn.Module, not from {type(model).__name__}"
            )
        names = _block_names(model, "blocks" if blocks is None else blocks, guessed=blocks is None)
        found = [model.get_submodule(name) for name in names]
        _refuse_repeats(names, found)
        staged = model if isinstance(model, Staged) else _composed(model)
        if staged is not None and names == _children(model, "blocks"):
            return StagedNetwork(model, found, names, staged)
        return HookedNetwork(model, found, names)

    @property
    def depth(self) -> int:
        """The number of blocks, L."""
        return len(self.blocks)

    @abstractmethod
    def run(self, x: Any, at: Boundary, see: Callable[[int, Tensor], None] | None = None) -> Tensor:
        """The logits of ``x``, passing every state h_l through ``at(l, h_l)`` on its way.

        ``see(l, f_l)`` is shown the update of every block that can tell it from its sum.
        """

    @abstractmethod
    def block(self, x: Any, index: int, h: Tensor) -> Tensor:
        """What leaves block ``index`` when ``h`` enters it; ``x`` gives the rest of the context."""

    @abstractmethod
    def logits_from(self, x: Any, index: int, h: Tensor) -> Tensor:
        """The logits of ``x`` if its state h_index were ``h``."""

    def trace(self, x: Any, at: Boundary | None = None) -> Pass:
        """One forward pass with every state recorded, each safe from in-place operations.

        >>> net = Network.of(nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True)), ["0", "1"])
        >>> [len(net.trace(torch.ones(7, 2)).states), net.depth]
        [3, 2]
        """
        states: list[Tensor] = []
        updates: list[Tensor | None] = [None] * self.depth

        def record(index: int, h: Tensor) -> Tensor:
            h = h if at is None else at(index, h)
            states.append(h)
            return h.clone()

        logits = self.run(x, record, updates.__setitem__)
        return Pass(tuple(states), tuple(updates), logits)

    def layout(self, x: Any) -> Layout:
        """The shapes of states, block weights and logits, read off one batch in eval mode."""
        with torch.no_grad(), evaluating(self.module):
            seen = self.trace(x)
        weights = tuple(tuple(tuple(w.shape) for w in self.weights(i)) for i in range(self.depth))
        shapes = tuple(tuple(h.shape[1:]) for h in seen.states)
        return Layout(shapes, weights, seen.logits.shape[-1])

    def weights(self, index: int) -> list[nn.Parameter]:
        """The matrices and kernels of block ``index``, the tensors a backward pass transposes."""
        return [p for p in self.blocks[index].parameters() if p.ndim >= 2]


class StagedNetwork(Network):
    """A network whose stages can be called one by one; nothing is computed twice."""

    def __init__(
        self, module: nn.Module, blocks: Sequence[nn.Module], names: Sequence[str], stages: Staged
    ) -> None:
        super().__init__(module, blocks, names)
        self._stages = stages

    def run(self, x: Any, at: Boundary, see: Callable[[int, Tensor], None] | None = None) -> Tensor:
        h = at(0, _tensor(self._stages.embed(x), "the embedding"))
        for index, block in enumerate(self.blocks):
            h = at(index + 1, self._through(index, block, h, see))
        return logits_of(self._stages.readout(h))

    def _through(
        self, index: int, block: nn.Module, h: Tensor, see: Callable[[int, Tensor], None] | None
    ) -> Tensor:
        if see is None or not isinstance(block, Residual):
            return _tensor(block(h), self.names[index])
        skip, update = block.split(h)
        see(index, update)
        return skip + update

    def block(self, x: Any, index: int, h: Tensor) -> Tensor:
        return _tensor(self.blocks[index](h), self.names[index])

    def logits_from(self, x: Any, index: int, h: Tensor) -> Tensor:
        for block in self.blocks[index:]:
            h = _tensor(block(h), "a block")
        return logits_of(self._stages.readout(h))


class HookedNetwork(Network):
    """A network known only by its forward: states are caught, and replaced, as they pass."""

    def run(self, x: Any, at: Boundary, see: Callable[[int, Tensor], None] | None = None) -> Tensor:
        calls = [0] * self.depth

        def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return _replace_input(args, kwargs, lambda h: at(0, h), self.names[0])

        def leave(index: int) -> Callable[..., Any]:
            def hook(_: nn.Module, __: Any, output: Any) -> Any:
                calls[index] += 1
                self._check_order(index, calls)
                return _replace_output(output, lambda h: at(index + 1, h), self.names[index])

            return hook

        with _hooks(self.blocks, enter, [leave(i) for i in range(self.depth)]):
            output = _call(self.module, x)
        for index, count in enumerate(calls):
            if count == 0:
                raise NetworkError(
                    f"block {self.names[index]!r} never ran in a forward pass; name the blocks"
                    " that the forward calls"
                )
        return logits_of(output)

    def block(self, x: Any, index: int, h: Tensor) -> Tensor:
        result: list[Tensor] = []

        def at(boundary: int, state: Tensor) -> Tensor:
            if boundary == index + 1:
                result.append(state)
            return h if boundary == index else state

        self.run(x, at)
        return result[0]

    def logits_from(self, x: Any, index: int, h: Tensor) -> Tensor:
        return self.run(x, lambda boundary, state: h if boundary == index else state)

    def _check_order(self, index: int, calls: list[int]) -> None:
        name = self.names[index]
        if calls[index] > 1:
            raise NetworkError(
                f"block {name!r} ran twice in one forward pass; its state is not one tensor."
                " Name blocks that run once"
            )
        if any(count == 0 for count in calls[:index]):
            raise NetworkError(
                f"block {name!r} ran before an earlier one; name the blocks in the order they run"
            )


def logits_of(output: Any) -> Tensor:
    """The logits in what a forward returned: a tensor, a tuple's first element, or ``.logits``.

    >>> tuple(logits_of((torch.zeros(2, 3), "cache")).shape)
    (2, 3)
    """
    found = getattr(output, "logits", output)
    if isinstance(found, (tuple, list)) and found:
        found = found[0]
    if not isinstance(found, Tensor):
        raise NetworkError(
            f"the forward returned {type(output).__name__}; faudit needs a logits tensor, a tuple"
            " that begins with one, or an object with .logits"
        )
    return found


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put ``module`` in eval mode and give every submodule its own mode back afterwards.

    >>> layer = nn.Dropout().train()
    >>> with evaluating(layer):
    ...     layer.training
    False
    >>> layer.training
    True
    """
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for m, training in modes:
            m.training = training


def _call(module: nn.Module, x: Any) -> Any:
    if isinstance(x, Mapping):
        return module(**x)
    return module(x)


def _tensor(value: Any, name: str) -> Tensor:
    if not isinstance(value, Tensor):
        raise NetworkError(
            f"the state at {name!r} is {type(value).__name__}, not a tensor; name blocks that pass"
            " a tensor on"
        )
    return value


def _replace_output(output: Any, change: Callable[[Tensor], Tensor], name: str) -> Any:
    if isinstance(output, tuple) and output:
        first = change(_tensor(output[0], name))
        rest = output[1:]
        return type(output)(first, *rest) if hasattr(output, "_fields") else (first, *rest)
    return change(_tensor(output, name))


def _replace_input(
    args: tuple[Any, ...], kwargs: dict[str, Any], change: Callable[[Tensor], Tensor], name: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if args:
        return (change(_tensor(args[0], name)), *args[1:]), kwargs
    key = next((k for k, v in kwargs.items() if isinstance(v, Tensor)), None)
    if key is None:
        raise NetworkError(f"block {name!r} receives no tensor; name blocks that pass a tensor on")
    return args, {**kwargs, key: change(kwargs[key])}


@contextmanager
def _hooks(
    blocks: Sequence[nn.Module], enter: Callable[..., Any], leave: Sequence[Callable[..., Any]]
) -> Iterator[None]:
    handles = [blocks[0].register_forward_pre_hook(enter, with_kwargs=True)]
    try:
        handles += [b.register_forward_hook(h) for b, h in zip(blocks, leave, strict=True)]
        yield
    finally:
        for handle in handles:
            handle.remove()


def _children(model: nn.Module, name: str) -> list[str]:
    """The dotted names of the modules in the sequence called ``name``; empty if it is not one."""
    try:
        owner = model.get_submodule(name)
    except AttributeError:
        return []
    if not isinstance(owner, (nn.ModuleList, nn.Sequential)):
        return []
    return [f"{name}.{child}" for child, _ in owner.named_children()]


def _block_names(model: nn.Module, blocks: str | Sequence[str], *, guessed: bool) -> list[str]:
    if not isinstance(blocks, str):
        names = [str(name) for name in blocks]
    else:
        names = _children(model, blocks) or [blocks]
    known = [name for name, _ in model.named_modules() if name]
    for name in names:
        if name not in known:
            raise NetworkError(_unknown_block(model, name, known, guessed=guessed))
    if not names:
        raise NetworkError("no block was named; give blocks=['layer1', 'layer2', ...]")
    return names


def _unknown_block(model: nn.Module, name: str, known: list[str], *, guessed: bool) -> str:
    if guessed:
        return (
            f"{type(model).__name__} has no .blocks; say where they are with blocks='dotted.name'."
            f" It has: {', '.join(known[:12]) or 'no submodule'}"
        )
    near = get_close_matches(name, known, n=3, cutoff=0.5) or known[:8]
    return f"{type(model).__name__} has no module {name!r}; near: {', '.join(near) or 'none'}"


def _refuse_repeats(names: Sequence[str], blocks: Sequence[nn.Module]) -> None:
    seen: dict[int, str] = {}
    for name, block in zip(names, blocks, strict=True):
        if id(block) in seen:
            raise NetworkError(
                f"blocks {seen[id(block)]!r} and {name!r} are the same module, so it runs twice in"
                " a forward pass; give each block a module of its own"
            )
        seen[id(block)] = name


class _Composed:
    """The stages of a module that has the parts but no forward of its own."""

    def __init__(self, module: nn.Module, embed: nn.Module) -> None:
        self._module, self._embed = module, embed

    def embed(self, x: Any) -> Any:
        return self._embed(x)

    def readout(self, h: Tensor) -> Any:
        h = self._part("out_ln")(h) if hasattr(self._module, "out_ln") else h
        return self._part("out_head" if hasattr(self._module, "out_head") else "head")(h)

    def _part(self, name: str) -> nn.Module:
        return self._module.get_submodule(name)


def _composed(model: nn.Module) -> Staged | None:
    embed = getattr(model, "embed", None) or getattr(model, "patch_embed", None)
    has_forward = type(model).forward is not nn.Module.forward
    has_head = hasattr(model, "out_head") or hasattr(model, "head")
    if has_forward or embed is None or not has_head or not _children(model, "blocks"):
        return None
    return cast(Staged, _Composed(model, embed))
