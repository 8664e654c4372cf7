"""Loops: the same training steps by faudit, and as a user would write them without it.

Every loop crops, mirrors and normalises CIFAR-shaped uint8 pixels, steps AdamW, and starts from the
same network. A peer keeps PyTorch's defaults, as its users do.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout, suppress
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from faudit.data import augment
from faudit.data.batches import batches
from faudit.data.sets import Dataset, Split
from faudit.networks.view import Network
from faudit.networks.zoo import ResMLP
from faudit.recipe import Training
from faudit.routes import taking
from faudit.rules import make_rule
from faudit.training import Learner

Loop = Callable[[], None]
"""Some steps of training."""

EXAMPLES = 12_800
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
LR = 1e-3
NOTHING: Mapping[str, Any] = MappingProxyType({})


def cifar_shaped() -> Dataset:
    """Random pixels of CIFAR-10's shape; what they show does not matter to the clock."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(256, (EXAMPLES, 3, 32, 32), dtype=torch.uint8, generator=draw)
    split = Split(images, torch.randint(10, (EXAMPLES,), generator=draw))
    return Dataset(split, split.first(1), 10, "cifar-shaped", MEAN, STD)


def resmlp(width: int = 256, depth: int = 4) -> ResMLP:
    """The network that all loops train."""
    torch.manual_seed(0)
    return ResMLP(width=width, depth=depth)


def learning(
    data: Dataset,
    rule: str,
    steps: int,
    *,
    route: str,
    batch: int = 128,
    told: Mapping[str, Any] = NOTHING,
    **shape: int,
) -> Loop:
    """faudit's own loop; ``told`` is what else its training is told."""
    network = Network.of(resmlp(**shape))
    x = data.normalise(data.train.images[:2])
    teacher = make_rule(rule, network.layout(x), seed=1)
    settings = Training(epochs=10**6, batch=batch, **told)
    learner = Learner(network, teacher, settings, x, seed=0)

    def some(generator: torch.Generator) -> islice[tuple[Tensor, Tensor]]:
        every = batches(
            data.train, batch, generator, augment=augment, normalise=data.normalise, drop_last=True
        )
        return islice(every, steps)

    def loop() -> None:
        with taking(route, network.module, teacher):
            learner.run_epoch(some)

    return loop


Step = Callable[[Tensor, Tensor], None]


def by_hand(data: Dataset, step: Step, steps: int, batch: int = 128) -> Loop:
    """A loop over batches that are augmented by tensor operations."""
    images, labels = data.train.images, data.train.labels
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))

    def loop() -> None:
        for rows in islice(torch.randperm(len(labels)).split(batch), steps):
            x = _augmented(images[rows]).float() / 255
            step((x - mean) / std, labels[rows])

    return loop


def _augmented(images: Tensor, padding: int = 4) -> Tensor:
    count, _, height, width = images.shape
    crops = F.pad(images, (padding,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    top, left = torch.randint(2 * padding + 1, (2, count))
    images = crops[torch.arange(count), :, top, left]
    mirrored = torch.rand(count) < 0.5
    images[mirrored] = images[mirrored].flip(-1)
    return images


def plain_step(model: nn.Module, optimiser: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    """Backpropagation as in every tutorial."""
    optimiser.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimiser.step()


def plain(data: Dataset, steps: int, *, fused: bool | None = None, **shape: int) -> Loop:
    """The plain PyTorch loop, with AdamW's defaults unless ``fused`` asks for more."""
    model = resmlp(**shape)
    optimiser = torch.optim.AdamW(model.parameters(), lr=LR, fused=fused)
    return by_hand(data, partial(plain_step, model, optimiser), steps)


class LocalLosses:
    """DFA written down as it is defined: one loss and one backward pass for every block."""

    def __init__(self, model: ResMLP, matrices: list[Tensor]) -> None:
        self.model, self.matrices = model, matrices
        self.optimiser = torch.optim.AdamW(model.parameters(), lr=LR)

    def step(self, x: Tensor, y: Tensor) -> None:
        """One update of everything."""
        self.optimiser.zero_grad()
        self.backward(x, y)
        self.optimiser.step()

    def backward(self, x: Tensor, y: Tensor) -> None:
        """Every parameter's gradient."""
        states, error = self._look(x, y)
        stages = [self.model.embed, *self.model.blocks]
        for stage, h, matrix in zip(stages, [x, *states[:-1]], self.matrices, strict=True):
            (stage(h) * (error @ matrix)).sum().backward()
        F.cross_entropy(self.model.readout(states[-1]), y).backward()

    def _look(self, x: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
        with torch.no_grad():
            states = [self.model.embed(x)]
            for block in self.model.blocks:
                states.append(block(states[-1]))
            error = self.model.readout(states[-1]).softmax(-1) - F.one_hot(y, 10)
        return states, error / len(y)


def local_losses(data: Dataset, steps: int) -> Loop:
    """The straightforward local-loss loop."""
    model = resmlp()
    return by_hand(data, LocalLosses(model, [torch.randn(10, 256) / 16] * 5).step, steps)


def biotorch(data: Dataset, mode: str, steps: int) -> Loop | None:
    """BioTorch's loop for "fa" or "dfa"; None where it is not installed."""
    with suppress(ImportError), redirect_stdout(io.StringIO()):
        from biotorch.module.biomodule import BioModule

        warnings.filterwarnings("ignore", message="Using a non-full backward hook")
        outputs = {"output_dim": 10} if mode == "dfa" else {}
        model = BioModule(resmlp(), mode=mode, **outputs)
        optimiser = torch.optim.AdamW(model.parameters(), lr=LR)

        def step(x: Tensor, y: Tensor) -> None:
            optimiser.zero_grad()
            told = (y, F.cross_entropy) if mode == "dfa" else ()
            F.cross_entropy(model(x, *told), y).backward()
            optimiser.step()

        return by_hand(data, step, steps)
    return None
