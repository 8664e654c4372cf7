"""Problems for the measures: tiny networks of every kind, each with its stages written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from faudit.measures.evidence import Evidence
from faudit.measures.measure import measure
from faudit.networks.view import Network, Staged
from faudit.networks.zoo import ResMLP, SmallResNet, StudentNet, ViTMini
from faudit.rules import CreditRule, make_rule
from tests import toys
from tests.reference import Credits, Problem


def rule_for(problem: Problem, name: str = "dfa", seed: int = 1, **options: Any) -> CreditRule:
    """A rule for a problem, in the problem's dtype."""
    layout = Network.of(problem.module, problem.blocks).layout(problem.x)
    return make_rule(name, layout, seed=seed, **options).to(problem.dtype)


def measured(problem: Problem, credits: Any = None, **options: Any) -> Evidence:
    """What faudit says of a problem."""
    known = {"loss": problem.loss} if problem.loss else {}
    options = {"blocks": problem.blocks, "perturbations": 0, "nulls": 0, **known, **options}
    return measure(problem.module, problem.x, problem.y, credits, **options)


def some_credits(problem: Problem, seed: int = 3) -> Credits:
    """credits[sample][layer]: half the truth and half noise, for rules are not what is tested."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for s in problem.samples:
        exact = problem.gradients(s)
        noise = [torch.randn(g.shape, generator=generator, dtype=g.dtype) for g in exact]
        found.append([g + g.norm() * n / n.norm() for g, n in zip(exact, noise, strict=True)])
    return found


def stacked(credits: Credits) -> list[Tensor]:
    """The same credits as one batch."""
    return [torch.cat(layer) for layer in zip(*credits, strict=True)]


def staged(make: Callable[[], Staged], *shape: int, count: int = 5) -> Problem:
    """A network of the zoo."""
    module = toys.built(make)
    for name, weight in module.named_parameters():
        if name.endswith("w2.weight"):
            # as steep as trained blocks: at their initialisation all are almost the identity
            nn.init.normal_(weight, std=0.3, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(count, *shape, generator=generator, dtype=torch.float64)
    stages = [module.embed, *module.blocks, module.readout]
    return Problem(module, stages, x, torch.arange(count) % 3)


def toy(make: Callable[[], nn.Module], step: Callable[..., Any] | None = None) -> Problem:
    """A toy known only by its forward."""
    module = toys.built(make)
    steps = [(lambda h, b=block: step(b, h)) if step else block for block in module.blocks]
    return Problem(module, [module.stem, *steps, module.head], *toys.batch())


def exploded() -> Problem:
    """A stream of 1e8, where a step of 0.01 is the last thing that float32 would see."""
    problem = staged(lambda: ResMLP(12, 6, 3, 3), 12)
    with torch.no_grad():
        problem.module.blocks[1].w2.weight.mul_(1e8)
    return problem


def in_place() -> Problem:
    problem = toy(toys.InPlace, lambda block, h: block.linear(torch.relu(h)))
    problem.stages[-1] = lambda h: problem.module.head(2 * h)
    return problem


def dropout() -> Problem:
    """Dropout, handed over in training mode."""
    problem = toy(lambda: toys.Plain(toys.DropStep), lambda block, h: h + block.linear(h))
    problem.module.train()
    return problem


def batch_norm() -> Problem:
    """BatchNorm with statistics of its own, handed over in training mode."""
    problem = toy(lambda: toys.Plain(toys.NormStep))
    with torch.no_grad():
        problem.module.train()(3 * problem.x + 1)

    def step(block: nn.Module, h: Tensor) -> Tensor:
        norm = block.norm
        scaled = (h - norm.running_mean) / torch.sqrt(norm.running_var + norm.eps)
        return h + block.linear(torch.relu(scaled * norm.weight + norm.bias))

    steps = [lambda h, b=block: step(b, h) for block in problem.module.blocks]
    problem.stages = [problem.module.stem, *steps, problem.module.head]
    return problem


def language() -> Problem:
    module = toys.built(toys.Tied)
    generator = torch.Generator().manual_seed(4)
    tokens, labels = torch.randint(0, 7, (2, 4, 3), generator=generator)
    stages = [module.embedding, *module.blocks, module.head]
    return Problem(module, stages, tokens, labels, blocks="blocks")


def regression() -> Problem:
    problem = toy(toys.Plain)
    problem.y = problem.x[:, :3].sin()
    problem.loss = lambda z, y: (z - y).square().mean(1)
    return problem


class Squeezed(toys.Plain):
    """A forward that returns one number per sample, without a dimension for it."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x)[:, 0]


def one_number() -> Problem:
    problem = toy(Squeezed)
    head = problem.module.head
    problem.stages[-1] = lambda h: head(h)[:, 0]
    problem.y = problem.x[:, 0].sin()
    problem.loss = lambda z, y: (z - y).square()
    return problem


class Answer(NamedTuple):
    """What models of some libraries return."""

    logits: Tensor
    cache: None = None


class Answering(toys.Plain):
    """A forward that returns an object with logits."""

    def forward(self, x: Tensor) -> Any:
        return Answer(super().forward(x))


class Listing(toys.Plain):
    """A forward that returns a tuple with the logits first."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x), None


def reporting() -> Problem:
    module = toys.built(toys.Reporting)
    steps = [lambda h: h + torch.tanh(h @ module.weight)] * module.depth
    return Problem(module, [module.stem, *steps, module.head], *toys.batch())


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "resmlp": lambda: staged(lambda: ResMLP(12, 6, 3, 3), 12),
    "resmlp without norms": lambda: staged(
        lambda: ResMLP(12, 6, 2, 3, terminal_norm=False, block_norm=False), 12
    ),
    "resmlp without skips": lambda: staged(lambda: ResMLP(12, 6, 2, 3, skip=False), 12),
    "studentnet": lambda: staged(lambda: StudentNet(8, 6, 2, 3), 8),
    "vitmini": lambda: staged(lambda: ViTMini(8, 4, 8, 2, 3, heads=2), 3, 8, 8, count=4),
    "smallresnet": lambda: staged(lambda: SmallResNet((3, 4), 3), 3, 4, 4, count=4),
    "exploded": exploded,
    "plain": lambda: toy(toys.Plain),
    "object with logits": lambda: toy(Answering),
    "tuple of logits": lambda: toy(Listing),
    "blocks give tuples": lambda: toy(toys.Unpacking, lambda block, h: block(h)[0]),
    "in place": in_place,
    "dropout": dropout,
    "batch norm": batch_norm,
    "language model": language,
    "regression": regression,
    "one number a sample": one_number,
}
