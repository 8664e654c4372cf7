"""Baselines: matched in everything but the number of blocks that learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from faudit.baselines import depth, frozen, ladder, shallow
from faudit.bundle import Bundle
from faudit.errors import RecipeError
from faudit.networks.view import Network
from faudit.networks.zoo import make_network
from faudit.recipe import Named, Recipe, Training
from faudit.rules import RULES, make_rule
from faudit.studies.runner import run
from faudit.training import Learner

RUN = Recipe(
    network=Named(name="resmlp", options={"width": 8, "depth": 3}),
    rule=Named(name="fa", options={"scale": 2.0}),
    training=Training(epochs=7, penalty=0.01, normalise="sample"),
    seed=5,
    rule_seed=6,
)


def differences(one: Recipe, other: Recipe) -> dict[str, Any]:
    """The dotted fields in which two recipes differ, with the second's values."""
    a, b = (flat(recipe.model_dump()) for recipe in (one, other))
    return {key: b.get(key) for key in a | b if a.get(key) != b.get(key)}


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found = {}
    for key, value in values.items():
        inner = flat(value, f"{prefix}{key}.") if isinstance(value, dict) else None
        found |= {f"{prefix}{key}": value} if inner is None else inner
    return found


def test_frozen_differs_in_the_trainable_blocks_alone() -> None:
    assert differences(RUN, frozen(RUN)) == {"training.trainable_blocks": 0}


def test_one_rule_can_teach_the_embedding_of_every_baseline() -> None:
    for rule in ("bp", "fa", "sb"):
        assert frozen(RUN.changed({"rule": rule}), "dfa") == frozen(RUN.changed({"rule": "dfa"}))
    named = Named(name="dfa", options={"scale": 3.0})
    assert frozen(RUN, taught_by=named).rule == named


def test_shallow_differs_in_the_depth_alone() -> None:
    assert differences(RUN, shallow(RUN)) == {"network.options.depth": 0}
    assert shallow(frozen(RUN)) == shallow(RUN)


def test_the_ladder_leads_from_frozen_blocks_to_the_run_itself() -> None:
    rungs = ladder(RUN)
    assert len({rung.digest for rung in rungs}) == 4
    assert (rungs[0], rungs[-1]) == (frozen(RUN), RUN)
    for k, rung in enumerate(rungs[1:-1], start=1):
        assert differences(RUN, rung) == {"training.trainable_blocks": k}


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"depth": 2}, 2), ({"widths": (4, 4, 8)}, 3), ({"depth": 1, "widths": (4, 4)}, 1)],
)
def test_depth_is_read_off_the_options(options: dict[str, Any], expected: int) -> None:
    assert depth(Recipe(network=Named(name="x", options=options))) == expected


@pytest.mark.parametrize("options", [{}, {"depth": "deep"}, {"depth": True}])
def test_a_recipe_that_does_not_say_its_depth_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=r"set network\.options\.depth"):
        ladder(Recipe(network=Named(name="vitmini", options=options)))


def test_a_network_without_a_depth_option_has_no_shallow_twin() -> None:
    with pytest.raises(RecipeError, match="smallresnet"):
        shallow(Recipe(network=Named(name="smallresnet", options={"widths": (4, 8)})))


@pytest.mark.parametrize("rung", range(4))
def test_a_rungs_other_blocks_keep_their_initialisation(rung: int) -> None:
    recipe = ladder(RUN)[rung]
    options = dict(recipe.network.options)
    module = make_network("resmlp", (6,), 3, seed=recipe.seed, **options)
    start = make_network("resmlp", (6,), 3, seed=RUN.seed, **options)
    x, y = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])
    network = Network.of(module)
    learner = Learner(network, make_rule("fa", network.layout(x)), recipe.training, x, seed=0)
    for _ in range(2):
        learner.step(x, y)
    pairs = zip(module.blocks, start.blocks, strict=True)
    kept = [bool((a.w1.weight == b.w1.weight).all()) for a, b in pairs]
    assert kept == [True] * (3 - rung) + [False] * rung
    assert not torch.equal(module.flat.weight, start.flat.weight)


@pytest.mark.parametrize("name", sorted(RULES))
def test_a_shallow_baseline_trains_and_is_measured_under_every_rule(
    name: str, tmp_path: Path
) -> None:
    sizes = {"data.train_limit": 64, "data.test_limit": 32, "measuring.samples": 32}
    tiny = {"data.name": "fashion-sample", "training.epochs": 1, "network.options.width": 8}
    recipe = shallow(Recipe().changed({**sizes, **tiny, "rule": name}))
    assert run(recipe, tmp_path).done
    evidence = Bundle.load(tmp_path).evidence
    assert evidence is not None
    assert (evidence.layers, evidence.growth) == (0, ())
    assert not evidence.defined["deep_cosine"]
