"""A task and networks so small that every pitfall is shown by a real experiment within a second."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from faudit.measures.evidence import Evidence
from faudit.measures.measure import measure
from faudit.networks.view import Network
from faudit.networks.zoo import make_network
from faudit.recipe import Training
from faudit.rules import make_rule
from faudit.rules.base import CreditRule
from faudit.seeds import derive, seeded
from faudit.training import Learner, evaluate, train

INPUTS, CLASSES, BATCH = 16, 5, 64


@dataclass(frozen=True)
class Task:
    """Labels that a random linear map gives to Gaussian inputs, some of them wrong by ``noise``."""

    seed: int
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def task(seed: int, samples: int = 512, noise: float = 0.0, tests: int = 2000) -> Task:
    """A task of its own for every seed.

    >>> [tuple(part.shape) for part in task(0).train]
    [(512, 16), (512,)]
    """
    teacher = torch.randn(INPUTS, CLASSES, generator=seeded(seed, 0))

    def drawn(count: int, stream: int) -> tuple[Tensor, Tensor]:
        source = seeded(seed, stream)
        x = torch.randn(count, INPUTS, generator=source)
        return x, (x @ teacher + noise * torch.randn(count, CLASSES, generator=source)).argmax(1)

    return Task(seed, drawn(samples, 1), drawn(tests, 2))


@dataclass(frozen=True)
class Trained:
    """A network with the rule that taught it."""

    task: Task
    network: Network
    rule: CreditRule

    def accuracy(self) -> float:
        """The share of test examples it gets right."""
        return evaluate(self.network, [self.task.test]).accuracy

    def evidence(self, rule: CreditRule | None = None, nulls: int = 0) -> Evidence:
        """What measuring it on training data says, by its own rule or another."""
        x, y = (part[:256] for part in self.task.train)
        options: dict[str, Any] = {"perturbations": 0, "precise": False, "nulls": nulls}
        return measure(self.network, x, y, rule or self.rule, seed=self.task.seed, **options)


def network(seed: int, width: int = 32, depth: int = 3) -> Network:
    """An untrained residual MLP.

    >>> network(0).depth
    3
    """
    options = {"width": width, "depth": depth}
    return Network.of(make_network("resmlp", (INPUTS,), CLASSES, seed=derive(seed, 3), **options))


def learn(
    on: Task, rule: str, *, epochs: int, width: int = 32, depth: int = 3, **training: Any
) -> Trained:
    """A residual MLP taught by a rule.

    >>> learn(task(0), "dfa", epochs=1).network.depth
    3
    """
    view = network(on.seed, width, depth)
    x, y = on.train
    teacher = make_rule(rule, view.layout(x[:2]), seed=derive(on.seed, 4))
    settings = {"batch": BATCH, "lr": 3e-3, "schedule": "constant", **training}
    learner = Learner(view, teacher, Training(epochs=epochs, **settings), x[:2], seed=on.seed)

    def batches(generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in torch.randperm(len(y), generator=generator).split(settings["batch"]):
            yield x[rows], y[rows]

    for _ in train(learner, batches):
        pass
    return Trained(on, view, teacher)


def stretched(view: Network, factor: float) -> Network:
    """The same network with a stream ``factor`` times as large: what exploding blocks leave.

    >>> g = stretched(network(0), 1e6).trace(torch.ones(2, INPUTS)).states[-1].norm(dim=-1)
    >>> bool((g > 1e5).all())
    True
    """
    with torch.no_grad():
        for parameter in view.module.flat.parameters():  # type: ignore[union-attr]
            parameter.mul_(factor)
    return view
