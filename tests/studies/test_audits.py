"""Named studies: the search is exactly what was run, variants differ in training alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from faudit.baselines import frozen
from faudit.errors import RecipeError
from faudit.networks.view import Network
from faudit.networks.zoo import make_network
from faudit.recipe import Recipe
from faudit.rules import make_rule
from faudit.studies import audits
from faudit.studies.audits import PUBLISHED, SEARCHED, SETTINGS, STUDIES, VARIANTS, Arm
from faudit.studies.claims import CLAIMS
from faudit.studies.ledger import needed
from faudit.studies.runner import run


def differences(one: Recipe, other: Recipe) -> set[str]:
    """The dotted keys at which two recipes differ."""

    def flat(values: dict[str, Any], start: str = "") -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in values.items():
            inner = isinstance(value, dict)
            found |= flat(value, f"{start}{key}.") if inner else {f"{start}{key}": value}
        return found

    a, b = (flat(json.loads(recipe.to_json())) for recipe in (one, other))
    return {key for key in a.keys() | b.keys() if a.get(key) != b.get(key)}


def test_the_search_is_spelled_out_the_same_way_by_hand() -> None:
    base = Recipe().set("training.epochs=30", "measuring.every=5")
    changes = {
        "plain": [],
        "batch": ["training.normalise=batch"],
        "sample": ["training.normalise=sample"],
        "batch-constant": ["training.normalise=batch", "training.local_schedule=constant"],
        "batch-lr2.5": ["training.normalise=batch", "training.local_lr=2.5"],
        "plain-lr2.5": ["training.local_lr=2.5"],
        "batch-idle4": ["training.normalise=batch", "training.idle_steps=4"],
    }
    by_hand = []
    for assignments in changes.values():
        by_hand += [base.set(f"rule.name={rule}", *assignments) for rule in ("dfa", "fa")]
        by_hand.append(frozen(base.set("rule.name=dfa", *assignments)))
    assert [r.digest for r in audits.search()] == [r.digest for r in by_hand]
    assert list(changes) == list(SEARCHED)


def test_variants_are_candidates_of_the_search() -> None:
    assert VARIANTS["plain"] == {}
    assert all(changes in SEARCHED.values() for changes in VARIANTS.values())


@pytest.mark.parametrize("name", PUBLISHED)
def test_variants_differ_in_training_alone_and_leave_bp_alone(name: str) -> None:
    pairs = list(zip(PUBLISHED[name]("paper"), PUBLISHED[name]("plain"), strict=True))
    allowed = {f"training.{key}" for key in VARIANTS["paper"]}
    for paper, plain in pairs:
        assert differences(paper, plain) == (set() if paper.rule.name == "bp" else allowed)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_study_runs_all_that_its_claims_need(name: str) -> None:
    runs = set(PUBLISHED[name]("paper"))
    about = [claim for claim in CLAIMS if claim.study == name]
    lacking = {c.id: a for c in about for a in c.all_arms if not runs.issuperset(a.recipes())}
    assert about
    assert not lacking
    for claim in about:
        reads_frozen = claim.quantity.name in ("margin", "verdict", "outcome", "decisions")
        if reads_frozen:
            assert runs.issuperset(needed(claim)), claim.id


def test_no_study_has_a_run_that_nothing_is_decided_by() -> None:
    decided = {recipe for claim in CLAIMS for recipe in needed(claim)}
    assert set(audits.published()) <= decided


def test_a_study_sees_every_arm_before_a_second_seed() -> None:
    seeds = [recipe.seed for recipe in audits.t6()]
    assert seeds == [42] * 4 + [123] * 4 + [456] * 4


def test_all_is_every_study_once() -> None:
    everything = STUDIES["all"]()
    assert len(set(everything)) == len(everything)
    assert set(everything) == {r for study in PUBLISHED.values() for r in study("paper")}


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_can_be_built_with_every_rule_it_is_asked_for(setting: str) -> None:
    asked = [r for r in audits.published() if Arm(setting, "bp").place.network == r.network]
    shape = {"cifar100": (3, 32, 32), "student": (128,)}.get(setting, (3, 32, 32))
    options: dict[str, Any] = dict(SETTINGS[setting].network.options)
    import torch

    module = make_network(SETTINGS[setting].network.name, shape, 10, seed=0, **options)
    layout = Network.of(module).layout(torch.zeros(2, *shape))
    for name in {recipe.rule.name for recipe in asked}:
        assert make_rule(name, layout, seed=1).layout == layout


def test_one_epoch_is_the_first_epoch_of_a_long_run(tmp_path: Path) -> None:
    tiny = Recipe().set(
        "data.name=fashion-sample", "data.train_limit=256", "data.test_limit=64",
        "network.options.width=16", "rule.name=dfa", "training.normalise=batch",
    )  # fmt: skip
    records = []
    for epochs in (1, 3):
        run(tiny.set(f"training.epochs={epochs}"), tmp_path / str(epochs))
        lines = (tmp_path / str(epochs) / "history.jsonl").read_text().splitlines()
        records.append(lines[1])
    assert records[0] == records[1]


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: audits.study("t11"), "did you mean 't1'"),
        (lambda: audits.published(["f33"]), "did you mean 'f3'"),
        (lambda: Arm("d25", "fa").recipes(), "did you mean 'd256"),
        (lambda: Arm("d256", "fa").recipes("papr"), "did you mean 'paper'"),
    ],
)
def test_an_unknown_name_is_refused_with_a_near_match(ask: Any, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        ask()
