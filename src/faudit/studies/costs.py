"""What a run may cost, before it is run: from runs like it in the store, else from its size."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from math import inf
from statistics import median
from typing import Any

from faudit.bundle import read_manifest
from faudit.errors import FauditError
from faudit.recipe import Recipe
from faudit.studies.store import Entry

TRAINING_SETS = {"cifar10": 50_000, "cifar100": 50_000, "fashion-mnist": 60_000}
OTHER_SETS = 6_000
INPUTS = {"cifar10": 3072, "cifar100": 3072, "student-teacher": 64}
OTHER_INPUTS = 784


@dataclass(frozen=True)
class Pace:
    """What a step of training takes: seconds per step, per weight, and operations per second."""

    step: float
    weight: float
    operations: float


CORE = Pace(step=1e-3, weight=3e-9, operations=2.9e11)
"""Measured on one core of an AMD EPYC of 2024; ``core_speed`` says what another core makes of it.

A weight costs whatever the batch is, for the optimiser moves all of them in every step."""

GPU = Pace(step=2e-3, weight=0.0, operations=3e12)
"""Measured on an NVIDIA H200 that eight runs share; networks this small wait for their launches."""

RULES = {"usf": 2.0, "brsf": 2.0, "frsf": 2.0, "kp": 2.0, "sb": 3.0, "cb": 3.0, "ep": 12.0}
"""What a step by a rule takes in steps by BP, FA or DFA, which differ little."""


@dataclass(frozen=True)
class Costs:
    """Seconds per epoch of the runs that are there, by what decides them.

    ``ratios`` says by device how much longer those runs took than runs of their size should.
    """

    known: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Costs:
        """What the finished runs of a store took."""
        seen: dict[str, list[float]] = {}
        ratios: dict[str, list[float]] = {}
        for recipe, seconds in _timed(entries):
            seen.setdefault(_kind(recipe), []).append(seconds)
            ratios.setdefault(_device(recipe), []).append(seconds / by_size(recipe))
        return cls(_medians(seen), _medians(ratios))

    def estimate(self, recipe: Recipe) -> float:
        """Seconds of this run on one core, or on a GPU that others share.

        A run unlike any that is there is estimated from its size and from how fast the others
        were, or how fast a core here is.

        >>> 60 < Costs().estimate(Recipe()) < 60_000
        True
        """
        per_epoch = self.known.get(_kind(recipe))
        if per_epoch is None:
            ratio = self.ratios.get(_device(recipe))
            per_epoch = by_size(recipe) * (_usual(recipe) if ratio is None else ratio)
        return per_epoch * recipe.training.epochs


def _timed(entries: Iterable[Entry]) -> Iterator[tuple[Recipe, float]]:
    """Finished runs with their seconds per epoch."""
    for entry in entries:
        with suppress(FauditError):
            if entry.outcome is not None and entry.outcome.done:
                seconds = read_manifest(entry.folder).timing.get("seconds", 0.0)
                if seconds > 0:
                    yield entry.recipe, seconds / max(1, entry.outcome.epoch)


def _medians(found: dict[str, list[float]]) -> dict[str, float]:
    return {name: median(values) for name, values in found.items()}


def _device(recipe: Recipe) -> str:
    return recipe.device.partition(":")[0]


def _usual(recipe: Recipe) -> float:
    return 1 / core_speed() if _device(recipe) == "cpu" else 1.0


def _kind(recipe: Recipe) -> str:
    """What decides the time of an epoch."""
    training = recipe.training
    parts: tuple[Any, ...] = (
        recipe.network,
        recipe.rule,
        recipe.data,
        training.batch,
        training.block_steps,
        training.idle_steps,
        training.trainable_blocks,
        recipe.measuring.every,
        recipe.device,
        recipe.dtype,
        recipe.threads,
    )
    return repr(parts)


def by_size(recipe: Recipe) -> float:
    """Seconds per epoch by the size of network and data, right within a few times.

    >>> by_size(Recipe(rule="ep")) > by_size(Recipe(rule="dfa"))
    True
    """
    data, training = recipe.data, recipe.training
    samples = TRAINING_SETS.get(data.name, OTHER_SETS)
    samples = min(data.train_limit or samples, samples)
    pace = CORE if _device(recipe) == "cpu" else GPU
    weights, products = _size(recipe)
    fixed = pace.step + pace.weight * weights * (1 + training.idle_steps / 3)
    each = 6 * products / pace.operations
    steps = -(-samples // training.batch)
    scale = RULES.get(recipe.rule.name, 1.0) * training.block_steps
    return scale * (steps * fixed + samples * each)


def _size(recipe: Recipe) -> tuple[float, float]:
    """A network's weights, and how often one sample multiplies by one, or might as well."""
    options = recipe.network.options
    usual = 256 if recipe.network.name == "resmlp" else 128
    width, depth = _number(options.get("width"), usual), _number(options.get("depth"), 4)
    if recipe.network.name == "vitmini":
        tokens = (_number(options.get("image"), 32) / max(_number(options.get("patch"), 4), 1)) ** 2
        weights = depth * 8 * width**2
        return weights, 3 * tokens * weights  # attention takes longer than its products do
    if recipe.network.name == "smallresnet":
        return 18 * 64**2 * 2, 2 * 4 * 18 * 64**2 * 16**2
    weights = INPUTS.get(recipe.data.name, OTHER_INPUTS) * width + depth * 2 * width**2
    return weights, weights


def _number(value: object, otherwise: float) -> float:
    with suppress(OverflowError):
        return float(value) if isinstance(value, int | float) else otherwise
    return inf


TRIAL_BATCH, TRIAL_STEPS = 128, 10


@cache
def core_speed() -> float:
    """How fast a core of this machine trains, beside the one that ``CORE`` was measured on.

    A tenth of a second of training on noise, in processor time, so that others' work on the same
    machine counts for little.

    >>> 0.01 < core_speed() < 100
    True
    """
    import torch

    from faudit import routes
    from faudit.networks.view import Network
    from faudit.networks.zoo import make_network
    from faudit.rules import make_rule
    from faudit.training import Learner, train

    recipe = Recipe(rule="dfa").set("training.epochs=1000")  # type: ignore[arg-type]
    with _one_thread():
        draw = torch.Generator().manual_seed(0)
        x = torch.randn(TRIAL_BATCH, 3, 32, 32, generator=draw)
        y = torch.arange(TRIAL_BATCH) % 10
        module = make_network("resmlp", (3, 32, 32), 10, seed=0, width=256, depth=4)
        network = Network.of(module)
        rule = make_rule("dfa", network.layout(x), seed=0)
        learner = Learner(network, rule, recipe.training, x, seed=0)
        route = routes.chosen("cpu", "float32")
        epochs = routes.along(route, train(learner, lambda _: iter([(x, y)])), module, rule)
        times = [_processor_seconds(epochs) for _ in range(TRIAL_STEPS)]
    steps = TRAINING_SETS["cifar10"] / TRIAL_BATCH
    return by_size(recipe) / steps / median(times[2:])


def _processor_seconds(epochs: Iterator[object]) -> float:
    began = time.process_time()
    next(epochs)
    return max(time.process_time() - began, 1e-6)


@contextmanager
def _one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
