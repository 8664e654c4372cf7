"""Runs that were never made: bundles with chosen numbers, for what only reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from faudit.baselines import depth
from faudit.bundle import Bundle, Manifest, Outcome, pack_correct
from faudit.measures.evidence import Evidence, NullCalibration
from faudit.recipe import Recipe

TESTS = 1000


def evidence(layers: int, **changes: Any) -> Evidence:
    """Everything measured on a healthy network, but for the changes."""
    states = layers + 1
    fields: dict[str, Any] = {
        "layers": layers,
        "samples": 1024,
        "state_norm": (10.0,) * states,
        "growth": (1.0,) * layers,
        "reference_norm": (0.05,) * states,
        "cosine": (0.5,) * states,
        "cosine_clamped": (0.5,) * states,
        "deep_cosine": 0.5,
        "gamma": 0.5,
        "cosine_aggregates": {"one way": -0.1, "another": 0.2},
        "nudging": (-1e-3,) * states,
        "perturbation_correlation": (0.1,) * states,
        "perturbation_controls": {"bp": (0.99,) * states, "random": (0.0,) * states},
        "stability": 0.1,
        "null": NullCalibration(draws=20, mean=0.0, std=0.1, value=0.5, z=5.0),
    }
    return Evidence(**{**fields, **changes})


def history(recipe: Recipe, layers: int, **changes: Any) -> tuple[dict[str, Any], ...]:
    """One record per epoch from the untrained network on; ``changes`` may depend on the epoch."""
    return tuple(record(epoch, layers, changes) for epoch in range(recipe.training.epochs + 1))


def record(epoch: int, layers: int, changes: Mapping[str, Any]) -> dict[str, Any]:
    """One epoch's record."""
    found: dict[str, Any] = {
        "epoch": epoch,
        "accuracy": 0.3,
        "state_norm": [10.0] * (layers + 1),
        "growth": [1.0] * layers,
        "reference_norm": [0.05] * (layers + 1),
        "cosine": [0.5] * (layers + 1),
        **({"train_loss": 2.0 / epoch} if epoch else {}),
    }
    return {**found, **{k: v(epoch) if callable(v) else v for k, v in changes.items()}}


def outcome(recipe: Recipe, accuracy: float, **changes: Any) -> Outcome:
    """A run that came to its end with this accuracy."""
    right = round(accuracy * TESTS)
    fields: dict[str, Any] = {
        "digest": recipe.digest,
        "status": "done",
        "epoch": recipe.training.epochs,
        "accuracy": right / TESTS,
        "tests": TESTS,
        "correct": pack_correct([i < right for i in range(TESTS)]),
        "classes": 10,
        "data": "the same data",
    }
    return Outcome(**{**fields, **changes})


def bundle(recipe: Recipe, accuracy: float = 0.5, **measured: Any) -> Bundle:
    """A finished run with this accuracy and this evidence."""
    layers = 4 if recipe.network.name == "smallresnet" else depth(recipe)
    return Bundle(
        folder=Path("nowhere"),
        manifest=Manifest(digest=recipe.digest, files={}),
        recipe=recipe,
        outcome=outcome(recipe, accuracy),
        history=history(recipe, layers),
        evidence=evidence(layers, **measured),
    )


class Everything:
    """A source that has every run; ``make`` says which numbers it has."""

    def __init__(self, make: Callable[[Recipe], Bundle] = bundle) -> None:
        self.make = make

    def __contains__(self, recipe: Recipe) -> bool:
        return True

    def __getitem__(self, recipe: Recipe) -> Bundle:
        return self.make(recipe)
