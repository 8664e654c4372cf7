"""Toy networks: small modules that are awkward in one way each, for tests to look into.

Every one takes inputs of shape (N, WIDTH) and gives (N, CLASSES) logits, unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from faudit.networks.view import Residual, Staged

WIDTH, CLASSES = 4, 3


def batch(count: int = 5, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Any:
    """Inputs and labels for a toy."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, WIDTH, generator=generator, dtype=dtype)
    return x, torch.randint(0, CLASSES, (count,), generator=generator)


def built(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """A toy in float64 and eval mode, its weights drawn from ``seed``."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make().double().eval()


class Step(nn.Module):
    """A residual block that does not say so: h + tanh(W h)."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        return h + torch.tanh(self.linear(h))


class KnownStep(Residual):
    """The same block, showing its update."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def split(self, h: Tensor) -> tuple[Tensor, Tensor]:
        return h, torch.tanh(self.linear(h))


class Plain(nn.Module):
    """A forward of its own and ``.blocks``: the usual third-party module."""

    def __init__(self, block: Callable[[], nn.Module] = Step, depth: int = 2) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(depth))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Any:
        h = self.stem(x)
        for block in self.blocks:
            h = self.apply_block(block, h)
        return self.head(h)

    def apply_block(self, block: nn.Module, h: Tensor) -> Tensor:
        return block(h)


class Stages(Staged):
    """The same network, written as stages."""

    def __init__(self, block: Callable[[], nn.Module] = KnownStep, depth: int = 2) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(depth))
        self.head = nn.Linear(WIDTH, CLASSES)

    def embed(self, x: Tensor) -> Tensor:
        return self.stem(x)

    def readout(self, h: Tensor) -> Tensor:
        return self.head(h)


class Rewired(Stages):
    """Stages with a forward that does something else."""

    def forward(self, x: Tensor) -> Tensor:
        return -super().forward(x)


class Parts(nn.Module):
    """The parts of a network and no forward, as published code has it."""

    def __init__(self, embed: str = "embed", head: str = "out_head", norm: bool = True) -> None:
        super().__init__()
        self.add_module(embed, nn.Linear(WIDTH, WIDTH))
        self.blocks = nn.ModuleList(Step() for _ in range(2))
        if norm:
            self.out_ln = nn.LayerNorm(WIDTH)
        self.add_module(head, nn.Linear(WIDTH, CLASSES))


class Lacking(nn.Module):
    """No forward, and no head either."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList([Step()])


class Hidden(Plain):
    """Published code's ``model(x, return_hidden=True)``, with blocks that can be found."""

    def forward(self, x: Tensor, return_hidden: bool = False) -> Any:
        states = [self.stem(x)]
        for block in self.blocks:
            states.append(block(states[-1]))
        logits = self.head(states[-1])
        return (logits, states) if return_hidden else logits


class Reporting(nn.Module):
    """The same interface where the blocks are not modules: one weight, used at every depth."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.depth = depth
        self.stem, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 2)

    def forward(self, x: Tensor, return_hidden: bool = False) -> Any:
        states = [self.stem(x)]
        for _ in range(self.depth):
            states.append(states[-1] + torch.tanh(states[-1] @ self.weight))
        logits = self.head(states[-1])
        return (logits, states) if return_hidden else logits


class TupleStep(Step):
    """A block that returns its state first and something else after it."""

    def forward(self, h: Tensor) -> Any:
        return super().forward(h), "cache"


class StepOutput(NamedTuple):
    """What a ``NamedStep`` returns."""

    state: Tensor
    weights: Tensor


class NamedStep(Step):
    """A block that returns a named tuple."""

    def forward(self, h: Tensor) -> Any:
        return StepOutput(super().forward(h), h.detach())


class Unpacking(Plain):
    """A forward that takes the first element of what its blocks return."""

    def __init__(self) -> None:
        super().__init__(TupleStep)

    def apply_block(self, block: nn.Module, h: Tensor) -> Tensor:
        return block(h)[0]


class Naming(Plain):
    """A forward that takes what its blocks return by name."""

    def __init__(self) -> None:
        super().__init__(NamedStep)

    def apply_block(self, block: nn.Module, h: Tensor) -> Tensor:
        return block(h).state


class MaskedStep(Step):
    """A block that takes a second tensor."""

    def forward(self, h: Tensor, mask: Tensor) -> Tensor:
        return super().forward(h) * mask


class ByKeyword(Plain):
    """A forward that passes everything by keyword, the state last."""

    def __init__(self) -> None:
        super().__init__(MaskedStep)

    def apply_block(self, block: nn.Module, h: Tensor) -> Tensor:
        return block(mask=torch.ones_like(h) / 2, h=h)


class InPlaceStep(Step):
    """A block that overwrites what it was given."""

    def forward(self, h: Tensor) -> Tensor:
        return self.linear(F.relu_(h))


class InPlace(Plain):
    """A network that overwrites its states everywhere, also on their way to the head."""

    def __init__(self) -> None:
        super().__init__(InPlaceStep)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h.mul_(2))


class InPlaceStages(Stages):
    """The same in stages."""

    def __init__(self) -> None:
        super().__init__(InPlaceStep)

    def readout(self, h: Tensor) -> Tensor:
        return self.head(h.mul_(2))


class Tied(nn.Module):
    """Tokens (N, T) in, token logits (N, T, 7) out, through one matrix used at both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, WIDTH)
        self.blocks = nn.Sequential(Step(), Step())
        self.head = nn.Linear(WIDTH, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.embedding(tokens)))


class DropStep(Step):
    """A block with dropout."""

    def forward(self, h: Tensor) -> Tensor:
        return h + F.dropout(self.linear(h), 0.5, self.training)


class NormStep(Step):
    """A block with BatchNorm, whose running statistics are buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.linear(torch.relu(self.norm(h)))


class Twice(Plain):
    """A forward that runs its last block twice."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks[1](self.blocks[1](self.blocks[0](self.stem(x)))))


class Skipping(Plain):
    """A forward that never runs its last block."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks[0](self.stem(x)))


class Backwards(Plain):
    """A forward that runs its blocks last to first."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks[0](self.blocks[1](self.stem(x))))


class Skip(Plain):
    """A connection from what enters block ``start`` to what leaves block ``end``, or the head."""

    def __init__(self, start: int = 0, end: int = 3) -> None:
        super().__init__(depth=3)
        self.start, self.end = start, end

    def forward(self, x: Tensor) -> Tensor:
        states = [self.stem(x)]
        for index, block in enumerate(self.blocks):
            h = states[-1] if index != self.end else states[-1] + states[self.start]
            states.append(block(h))
        return self.head(states[-1] + states[self.start] if self.end == 3 else states[-1])


class Failing(Plain):
    """A forward that fails between its blocks."""

    def apply_block(self, block: nn.Module, h: Tensor) -> Tensor:
        if block is self.blocks[-1]:
            raise ZeroDivisionError("from the forward")
        return block(h)


class Listing(Plain):
    """Blocks that pass a dictionary on."""

    class Block(Step):
        """From and to a dictionary."""

        def forward(self, h: Any) -> Any:
            return {"state": super().forward(h["state"] if isinstance(h, dict) else h)}

    def __init__(self) -> None:
        super().__init__(Listing.Block)

    def forward(self, x: Tensor) -> Tensor:
        h: Any = self.stem(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h["state"])


class Detaching(Plain):
    """A forward that cuts its own graph before the last block."""

    def apply_block(self, block: nn.Module, h: Tensor) -> Tensor:
        return block(h.detach() if block is self.blocks[-1] else h)


class Deaf(Plain):
    """A network whose head hears the input and not the blocks."""

    def forward(self, x: Tensor) -> Tensor:
        super().forward(x)
        return self.head(x)


class Constant(Plain):
    """A network that returns something that is no logits."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def forward(self, x: Tensor) -> Any:
        super().forward(x)
        return self.output
