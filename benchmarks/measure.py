"""What evidence costs: measure() against one forward and backward pass, and its slow twin.

Run from anywhere: ``python benchmarks/measure.py``. One thread; the contenders take turns, so a
slow moment of the machine hits all of them, and the medians' ratios are printed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faudit.measures.measure import measure
from faudit.networks.values import logits_of
from faudit.networks.view import Network
from faudit.networks.zoo import ResMLP, ViTMini
from faudit.rules import make_rule
from tests import reference

ROUNDS = 7
TWIN_SAMPLES = 1
LIMITS = {"float32 only": 3.0, "float64 reference": 8.0}


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
        "forward + backward": once,
        "float32 only": evidence(precise=False),
        "float64 reference": evidence(precise=True),
    }


def interleaved(runs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The median seconds of each run, after one round to warm up."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, run in runs.items():
            start = perf_counter()
            run()
            times[name].append(perf_counter() - start)
    return {name: median(values[1:]) for name, values in times.items()}


def twin_seconds(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """What the slow twin takes per sample for sizes, alignment and nudging."""
    stages = [model.embed, *model.blocks, model.readout]
    problem = reference.Problem(model, stages, x[:TWIN_SAMPLES], y[:TWIN_SAMPLES])
    credits = [problem.gradients(sample) for sample in problem.samples]
    start = perf_counter()
    reference.sizes(problem)
    reference.alignment(problem, credits)
    reference.nudging(problem, credits, eta=0.01)
    return (perf_counter() - start) / TWIN_SAMPLES


def main() -> None:
    torch.set_num_threads(1)
    for title, (model, blocks, x) in cases().items():
        y = torch.arange(len(x)) % 10
        seconds = interleaved(contenders(model, blocks, x, y), ROUNDS)
        print(title)
        for name, value in seconds.items():
            ratio = value / seconds["forward + backward"]
            limit = f" (at most {LIMITS[name]:g})" if name in LIMITS else ""
            print(f"  {name:20} {1000 * value:8.1f} ms   {ratio:5.2f} x{limit}")
        if blocks is None:
            slow = twin_seconds(model.double(), x.double(), y)
            fast = seconds["float64 reference"] / len(x)
            print(
                f"  {'slow twin':20} {1000 * slow:8.1f} ms a sample, {slow / fast:,.0f} x as long"
            )


if __name__ == "__main__":
    main()
