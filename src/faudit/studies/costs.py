"""What a run may cost, before it is run: from runs like it in the store, else from its size."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Any

from faudit.bundle import read_manifest
from faudit.errors import FauditError
from faudit.recipe import Recipe
from faudit.studies.store import Entry

FLOPS = 1.5e10
"""Of one core of a common server, as these small networks use it; right within a few times."""

TRAINING_SETS = {"cifar10": 50_000, "cifar100": 50_000, "fashion-mnist": 60_000}
OTHER_SETS = 6_000
INPUTS = {"cifar10": 3072, "cifar100": 3072, "student-teacher": 64}
OTHER_INPUTS = 784


@dataclass(frozen=True)
class Costs:
    """Seconds per epoch of the runs that are there, by what decides them."""

    known: dict[str, float]

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Costs:
        """What the finished runs of a store took."""
        seen: dict[str, list[float]] = {}
        for entry in entries:
            with suppress(FauditError):
                if entry.outcome is not None and entry.outcome.done:
                    recipe, epochs = entry.recipe, max(1, entry.outcome.epoch)
                    seconds = read_manifest(entry.folder).timing.get("seconds", 0.0)
                    seen.setdefault(_kind(recipe), []).append(seconds / epochs)
        return cls({kind: median(values) for kind, values in seen.items()})

    def estimate(self, recipe: Recipe) -> float:
        """Seconds of this run on one core.

        >>> 60 < Costs({}).estimate(Recipe()) < 60_000
        True
        """
        per_epoch = self.known.get(_kind(recipe))
        if per_epoch is None:
            per_epoch = work_per_epoch(recipe) / FLOPS
        return per_epoch * recipe.training.epochs


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
        recipe.device,
        recipe.dtype,
        recipe.threads,
    )
    return repr(parts)


def work_per_epoch(recipe: Recipe) -> float:
    """Floating-point operations of an epoch: six per weight, sample and position."""
    data = recipe.data
    samples = data.train_limit or TRAINING_SETS.get(data.name, OTHER_SETS)
    return 6.0 * samples * _weights(recipe) * recipe.training.block_steps


def _weights(recipe: Recipe) -> float:
    options = recipe.network.options
    width, depth = _number(options.get("width"), 128), _number(options.get("depth"), 4)
    if recipe.network.name == "vitmini":
        tokens = (_number(options.get("image"), 32) / _number(options.get("patch"), 4)) ** 2
        return tokens * depth * 8 * width**2
    if recipe.network.name == "smallresnet":
        return 4 * 18 * 64**2 * 16**2
    return INPUTS.get(recipe.data.name, OTHER_INPUTS) * width + depth * 2 * width**2


def _number(value: object, otherwise: float) -> float:
    return float(value) if isinstance(value, int | float) else otherwise
