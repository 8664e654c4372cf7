"""Recipes: a digest names a run, text gives the recipe back, and mistakes are named."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faudit.errors import RecipeError
from faudit.recipe import Data, Measuring, Named, Recipe, Training, grid

ODD = {
    "nan": nan,
    "inf": inf,
    "minus": -inf,
    "tiny": 5e-324,
    "third": 1 / 3,
    "whole": 3,
    "float": 3.0,
    "yes": True,
    "widths": (4, 8),
    "text": 'a "quoted" \\ line\n\twith é',
    "odd key.": 1,
}
FULL = Recipe(
    network=Named(name="smallresnet", options={"widths": (4, 8)}),
    rule=Named(name="ep", options={"beta": 0.01, "centred": True}),
    data=Data(name="fashion-sample", train_limit=100, augment=False),
    training=Training(epochs=3, penalty=1e-4, trainable_blocks=0),
    measuring=Measuring(samples=64),
    rule_seed=7,
)

options = st.dictionaries(
    st.text(max_size=8),
    st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8).filter(lambda t: t not in ("NaN", "Infinity", "-Infinity"))
    | st.lists(st.integers()).map(tuple),
    max_size=4,
)

ROUND_TRIPS: dict[str, Callable[[Recipe], Recipe]] = {
    "json": lambda recipe: Recipe.from_json(recipe.to_json()),
    "toml": lambda recipe: Recipe.of(tomllib.loads(recipe.to_toml())),
    "values": lambda recipe: Recipe.of(recipe.model_dump()),
}


# -- digest ---------------------------------------------------------------------------------------


def test_the_digest_is_pinned() -> None:
    """Runs on disk are found by it: a change that alters it must raise ``version``."""
    assert Recipe().digest == "661b20d37d1e0651257f"
    assert FULL.digest == "889b059a3a7287cd37b8"


OTHERS: dict[str, Any] = {
    "network.name": "vitmini",
    "network.options": {"width": 256},
    "network.options.depth": 5,
    "rule.name": "fa",
    "rule.options": {"scale": 1},
    "data.name": "fashion-sample",
    "data.train_limit": 10,
    "data.test_limit": 10,
    "data.augment": False,
    "data.labels": "random",
    "training.epochs": 99,
    "training.batch": 129,
    "training.lr": 2e-3,
    "training.weight_decay": 0.0,
    "training.schedule": "constant",
    "training.local_lr": 2.0,
    "training.local_schedule": "cosine",
    "training.block_steps": 2,
    "training.idle_steps": 1,
    "training.normalise": "sample",
    "training.penalty": 1e-300,
    "training.penalty_over": "mean",
    "training.trainable_blocks": 4,
    "measuring.samples": 2,
    "measuring.every": 2,
    "seed": 43,
    "rule_seed": 42,
    "device": "cuda",
    "dtype": "float64",
    "threads": 2,
}


def test_every_field_counts() -> None:
    digests = [Recipe().changed({key: value}).digest for key, value in OTHERS.items()]
    assert len({Recipe().digest, *digests}) == len(OTHERS) + 1


def test_every_field_is_among_those_tried() -> None:
    found = set()
    for name, part in Recipe().model_dump().items():
        found |= {f"{name}.{key}" for key in part} if isinstance(part, dict) else {name}
    assert found - {"version"} <= set(OTHERS)


def test_equal_recipes_are_one_key() -> None:
    odd = Recipe(rule=Named(name="x", options={"a": nan}))
    assert odd == Recipe.from_json(odd.to_json())
    assert len({Recipe(), Recipe(seed=42), Recipe(seed=1), odd}) == 3
    assert Recipe() != "recipe"


# -- text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ROUND_TRIPS)
@pytest.mark.parametrize("recipe", [Recipe(), FULL, Recipe(rule=Named(name="x", options=ODD))])
def test_text_gives_the_same_recipe_back(recipe: Recipe, kind: str) -> None:
    back = ROUND_TRIPS[kind](recipe)
    assert back.digest == recipe.digest
    assert repr(back) == repr(recipe)


@pytest.mark.parametrize("kind", ROUND_TRIPS)
@given(options, st.floats(1e-300, 1e300), st.integers(0, 10**30))
def test_any_recipe_survives_text(
    kind: str, options: dict[str, Any], penalty: float, seed: int
) -> None:
    recipe = Recipe(
        rule=Named(name="x", options=options), training=Training(penalty=penalty), seed=seed
    )
    back = ROUND_TRIPS[kind](recipe)
    assert (back.digest, repr(back)) == (recipe.digest, repr(recipe))


def test_json_is_strict() -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    text = Recipe(rule=Named(name="x", options=ODD)).to_json()
    assert json.loads(text, parse_constant=refuse)["rule"]["options"]["nan"] == "NaN"


def test_toml_cannot_say_none_among_options() -> None:
    recipe = Recipe(rule=Named(name="sb", options={"hidden": None}))
    assert Recipe.from_json(recipe.to_json()).digest == recipe.digest
    with pytest.raises(RecipeError, match="use JSON"):
        recipe.to_toml()


def test_files_are_loaded_by_their_suffix(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text('seed = 7\nrule = "dfa"\n[network]\nname = "vitmini"\n')
    (tmp_path / "r.json").write_text(FULL.to_json())
    loaded = Recipe.load(tmp_path / "r.toml")
    assert (loaded.seed, loaded.rule, loaded.network) == (
        7,
        Named(name="dfa"),
        Named(name="vitmini"),
    )
    assert Recipe.load(str(tmp_path / "r.json")) == FULL


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("r.toml", b"seed = ", "is not valid TOML"),
        ("r.json", b"{", "is not valid JSON"),
        ("r.json", b"[1]", "a recipe: .*dictionary"),
        ("r.json", b'{"seed": ' + b"9" * 5000 + b"}", "is not valid JSON"),
        ("r.json", b"[" * 100_000, "is not valid JSON"),
        ("r.json", b'{"sed": 1}', "unknown key 'sed'; did you mean 'seed'"),
        ("r.toml", b"sed = 1", "unknown key 'sed'; did you mean 'seed'"),
        ("r.json", b"\xff\xfe", "cannot read the recipe"),
        ("missing.toml", None, "cannot read the recipe .*missing.toml"),
    ],
)
def test_unreadable_files_are_named(
    tmp_path: Path, name: str, content: bytes | None, problem: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(RecipeError, match=problem) as caught:
        Recipe.load(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


# -- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("assignment", "problem"),
    [
        ("rules=dfa", "unknown key 'rules'; did you mean 'rule'?"),
        ("training.epoch=3", "unknown key 'training.epoch'; did you mean 'training.epochs'?"),
        ("epochs=3", "unknown key 'epochs'; did you mean 'training.epochs'?"),
        ("data.epoch=3", "unknown key 'data.epoch'; did you mean 'training.epochs'?"),
        ("network.depth=3", "'network.depth'; did you mean 'network.options.depth'?"),
        ("colour=red", "unknown key 'colour'"),
        ("training.epochs=many", r"training.epochs: .*integer.*\(got 'many'\)"),
        ("training.epochs=true", "training.epochs: .*true and false"),
        ("training.lr=true", "training.lr: .*true and false"),
        ("data.augment=maybe", "data.augment: .*boolean"),
        ("network.options=3", "network.options: "),
        ("rule=[1]", "rule: "),
        ("device=gpu", "device: "),
        ("training.epochs=0", "training.epochs: .*greater than or equal to 1"),
        ("training.lr=Infinity", "training.lr: .*finite"),
        ("training.lr=NaN", "training.lr"),
        ("training.schedule=linear", "training.schedule: .*'cosine'"),
        ("training=fast", "training: "),
        ("rule.options.scale=[0.5]", "rule.options.scale: must be a number, a string"),
        ('rule.options.scale={"a": 1}', "rule.options.scale: must be a number, a string"),
        ("version=2", "version: "),
        ("seed.x=1", "'seed' has no parts"),
        ("seed", "not of the form key=value"),
        ("=1", "not of the form key=value"),
        ("seed=" + "[" * 100_000, "seed: "),
        ("seed=" + "9" * 5000, "seed: "),
    ],
)
def test_mistakes_are_named(assignment: str, problem: str) -> None:
    with pytest.raises(RecipeError, match=problem):
        Recipe().set(assignment)


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(RecipeError) as caught:
        Recipe.of({"sed": 1, "training": {"lr": -1}, "data": {"augment": "perhaps"}})
    assert all(part in str(caught.value) for part in ("'sed'", "training.lr", "data.augment"))


def test_a_part_refuses_as_a_recipe_does() -> None:
    for make in (lambda: Training(lr=-1), lambda: Recipe(seed=-1), lambda: Named()):
        with pytest.raises(RecipeError):
            make()


def test_a_recipe_cannot_be_changed_in_place() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Recipe().seed = 1  # type: ignore[misc]


# -- set and grid ---------------------------------------------------------------------------------


def test_set_reads_values_as_json_where_it_can() -> None:
    recipe = Recipe().set(
        "rule=dfa",
        "rule.options.scale=2",
        "network.options.widths=[4, 8]",
        "data.augment=false",
        "rule_seed=null",
        "device=cuda:0",
        " seed = 5 ",
    )
    assert recipe.rule == Named(name="dfa", options={"scale": 2})
    assert recipe.network.options["widths"] == (4, 8)
    assert (recipe.data.augment, recipe.rule_seed) == (False, None)
    assert (recipe.device, recipe.seed) == ("cuda:0", 5)


def test_set_leaves_the_original_alone() -> None:
    base = Recipe()
    base.set("network.options.depth=9")
    assert base.network.options["depth"] == 4


def test_a_grid_is_every_combination_in_order() -> None:
    found = list(
        grid(Recipe(), rule=["fa", Named(name="dfa", options={"scale": 2.0})], seed=[1, 2])
    )
    assert [(r.rule.name, r.seed) for r in found] == [("fa", 1), ("fa", 2), ("dfa", 1), ("dfa", 2)]
    assert found[2].rule.options == {"scale": 2.0}
    assert list(grid(Recipe())) == [Recipe()]
    assert [r.training.penalty for r in grid(Recipe(), training__penalty=[0, 0.1])] == [0.0, 0.1]
    with pytest.raises(RecipeError, match=r"did you mean 'training\.epochs'"):
        list(grid(Recipe(), training__epoch=[1]))
