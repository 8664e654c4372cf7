"""The studies that have names: functions returning recipes, never results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from faudit.baselines import frozen
from faudit.errors import RecipeError, unknown
from faudit.recipe import Data, Measuring, Named, Recipe, Training

# Why these numbers: docs/first-audit.md. In short, 2,800 steps on 6,000 images must take seconds
# and still separate the methods the way 39,000 steps on CIFAR-10 do. Augmentation keeps a linear
# readout of random blocks from solving the task, and credit normalised per sample with a constant
# learning rate brings the growth that the audited runs show late into a short run.
FIRST = Recipe(
    network=Named(name="resmlp", options={"width": 128, "depth": 4}),
    data=Data(name="fashion-sample"),
    training=Training(epochs=15, batch=32, lr=2e-3, schedule="constant", normalise="sample"),
    measuring=Measuring(samples=1024, every=5),
)


def first(methods: Iterable[str] = ("bp", "fa", "dfa"), seed: int = 42) -> list[Recipe]:
    """The first audit: BP, FA and DFA on the embedded sample, each with its frozen blocks.

    >>> [recipe.rule.name for recipe in first()]
    ['bp', 'bp', 'fa', 'fa', 'dfa', 'dfa']
    """
    trained = [FIRST.set(f"rule.name={name}", f"seed={seed}") for name in methods]
    return list(with_baselines(trained))


def with_baselines(recipes: Iterable[Recipe]) -> Iterator[Recipe]:
    """Every recipe and, right after it, the frozen blocks it is held against."""
    for recipe in recipes:
        yield recipe
        if recipe.training.trainable_blocks is None:
            yield frozen(recipe)


STUDIES: dict[str, Callable[[], list[Recipe]]] = {"first": first}


def study(name: str) -> list[Recipe]:
    """The recipes of a study.

    >>> len(study("first"))
    6
    """
    if name not in STUDIES:
        raise RecipeError(unknown("study", name, STUDIES))
    return STUDIES[name]()
