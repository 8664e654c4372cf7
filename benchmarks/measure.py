"""What evidence costs: measure() against one forward and backward pass, and its slow twin."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import process_time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.clock import interleaved, ratio, threads
from benchmarks.rows import Row, Section
from faudit.measures.measure import measure
from faudit.networks.values import logits_of
from faudit.networks.view import Network
from faudit.networks.zoo import ResMLP, ViTMini
from faudit.rules import make_rule
from tests import reference

ROUNDS = 7
TWIN_SAMPLES = 1
ONCE = "forward + backward"
MOST = {"float32 only": 3.0, "float64 reference": 8.0}
DEFAULT = "by default: perturbations and nulls too"
MOVES = 2


def cases() -> dict[str, tuple[nn.Module, str | None, Tensor]]:
    """The audited networks at their sizes, and a library's transformer seen through hooks."""
    torch.manual_seed(0)
    found: dict[str, tuple[nn.Module, str | None, Tensor]] = {
        "ResMLP d256 L4, batch 1024": (ResMLP(), None, torch.randn(1024, 3, 32, 32)),
        "ViTMini d128 L4, batch 128": (ViTMini(), None, torch.randn(128, 3, 32, 32)),
    }
    try:
        import transformers
    except ImportError:
        return found
    config = transformers.ViTConfig(
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=256,
        image_size=32,
        patch_size=4,
        num_labels=10,
    )
    model = transformers.ViTForImageClassification(config)
    found["HF ViT d128 L4, batch 128"] = (model, "vit.layers", torch.randn(128, 3, 32, 32))
    return found


def contenders(
    model: nn.Module, blocks: str | None, x: Tensor, y: Tensor
) -> dict[str, Callable[[], Any]]:
    """Every way to spend the time, by name."""
    network = Network.of(model.eval(), blocks)
    rule = make_rule("dfa", network.layout(x), seed=1)

    def once() -> None:
        model.zero_grad()
        F.cross_entropy(logits_of(model(x)), y).backward()

    def evidence(precise: bool) -> Callable[[], Any]:
        return lambda: measure(network, x, y, rule, precise=precise, perturbations=0, nulls=0)

    return {
        ONCE: once,
        "float32 only": evidence(precise=False),
        "float64 reference": evidence(precise=True),
        DEFAULT: lambda: measure(network, x, y, rule),
    }


def twin_seconds(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """What the slow twin takes per sample for sizes, alignment and nudging."""
    stages = [model.embed, *model.blocks, model.readout]
    problem = reference.Problem(model, stages, x[:TWIN_SAMPLES], y[:TWIN_SAMPLES])
    credits = [problem.gradients(sample) for sample in problem.samples]
    start = process_time()
    reference.sizes(problem)
    reference.alignment(problem, credits)
    reference.nudging(problem, credits, eta=0.01)
    return (process_time() - start) / TWIN_SAMPLES


def sections() -> list[Section]:
    """Evidence per network, and the perturbation correlation beside its own forward passes."""
    with threads(1):
        found = [cost(title, *case) for title, case in cases().items()]
        return [*found, forecasts()]


def cost(title: str, model: nn.Module, blocks: str | None, x: Tensor) -> Section:
    """Evidence of every extent over one forward and backward pass.

    What ``measure`` does unasked has no target, and stands beside what has one.
    """
    y = torch.arange(len(x)) % 10
    times = interleaved(contenders(model, blocks, x, y), ROUNDS)
    rows = [
        Row.of(f"evidence, {name}", ratio(times[name], times[ONCE]), **_target(name))
        for name in times
        if name != ONCE
    ]
    if blocks is None:
        slow = twin_seconds(model.double(), x.double(), y)
        fast = median(times["float64 reference"]) / len(x)
        rows.append(Row("slow twin / evidence with float64 reference", slow / fast))
    note = f"over one {ONCE} in float32 on one thread; targets without perturbations and nulls"
    return Section(f"Cost of evidence, {title}", note, tuple(rows))


def _target(name: str) -> dict[str, float]:
    return {"most": MOST[name]} if name in MOST else {}


def forecasts() -> Section:
    """What each random move costs beyond the forward pass that it cannot do without."""
    torch.manual_seed(0)
    x, y = torch.randn(1024, 3, 32, 32), torch.arange(1024) % 10
    network = Network.of(ResMLP().eval())

    def measured(moves: int) -> Callable[[], Any]:
        return lambda: measure(network, x, y, precise=False, perturbations=moves, nulls=0)

    def passes() -> None:
        with torch.no_grad():
            states = network.trace(x).states
            for _ in range(MOVES):
                for index, h in enumerate(states):
                    F.cross_entropy(network.logits_from(x, index, h), y, reduction="none")

    runs = {"with": measured(MOVES), "without": measured(0), "passes": passes}
    times = interleaved(runs, ROUNDS)
    extra = [a - b for a, b in zip(times["with"], times["without"], strict=True)]
    row = Row.of("perturbation correlation / its forward passes", ratio(extra, times["passes"]))
    note = f"ResMLP d256 L4, batch 1024, float32, {MOVES} moves of every state, none of it shared"
    return Section("Cost of the perturbation correlation", note, (row,))


if __name__ == "__main__":
    print(*sections(), sep="\n")
