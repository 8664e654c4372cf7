"""Baselines: what a recipe is held against, as recipes; training deep blocks has to beat them.

A baseline is *matched*: same data, schedule, seeds, width, and credit at the embedding. One thing
differs, and it is how many blocks learn. The other blocks keep their random initialisation to the
last bit, so what the network scores above its baseline is what training in depth was worth.
"""

from __future__ import annotations

from faudit.errors import RecipeError
from faudit.recipe import Named, Recipe


def frozen(recipe: Recipe, taught_by: Named | str | None = None) -> Recipe:
    """The same run with every block frozen; embedding, terminal norm and head still train.

    Args:
        recipe: the run to hold against its baseline.
        taught_by: the rule that teaches the embedding; by default the recipe's own. One baseline
            for runs of several rules needs one rule here.

    >>> frozen(Recipe(rule="fa"), taught_by="dfa").rule.name
    'dfa'
    """
    changes: dict[str, object] = {"training.trainable_blocks": 0}
    if taught_by is not None:
        changes["rule"] = taught_by
    return recipe.changed(changes)


def shallow(recipe: Recipe) -> Recipe:
    """The same run without blocks: the embedding goes straight to the readout.

    >>> shallow(Recipe()).network.options["depth"]
    0
    """
    if "depth" not in recipe.network.options:
        raise _no_depth(recipe)
    return recipe.changed({"network.options.depth": 0, "training.trainable_blocks": None})


def ladder(recipe: Recipe) -> list[Recipe]:
    """The last k blocks trainable, for k = 0 (all frozen) to L; the last rung is the plain run.

    A rule that uses depth climbs this ladder; one that peaks at its foot does not.

    >>> [rung.training.trainable_blocks for rung in ladder(Recipe())]
    [0, 1, 2, 3, None]
    """
    rungs = [*range(depth(recipe)), None]
    return [recipe.changed({"training.trainable_blocks": k}) for k in rungs]


def depth(recipe: Recipe) -> int:
    """How many blocks the recipe's network has, as its options say.

    >>> depth(Recipe()), depth(Recipe(network=Named(name="x", options={"widths": (8, 8, 16)})))
    (4, 3)
    """
    options = recipe.network.options
    widths = options.get("widths")
    found = options.get("depth", len(widths) if isinstance(widths, tuple) else None)
    if isinstance(found, bool) or not isinstance(found, int):
        raise _no_depth(recipe)
    return found


def _no_depth(recipe: Recipe) -> RecipeError:
    return RecipeError(
        f"the options of network {recipe.network.name!r} do not say how deep it is;"
        " set network.options.depth"
    )
