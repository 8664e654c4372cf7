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
from faudit.studies.audits import PUBLISHED, SETTINGS, STUDIES, Arm
from faudit.studies.claims import CLAIMS, SEARCH_CLAIMS, SEARCHED_AT, find
from faudit.studies.ledger import needed
from faudit.studies.runner import run
from faudit.studies.variants import BEFORE, CHOSEN, SEARCH, Variant, variant


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


def test_the_first_stage_is_spelled_out_the_same_way_by_hand() -> None:
    base = Recipe().set("training.epochs=30", "measuring.every=5")
    scales = {"plain": "none", "batch": "batch", "sample": "sample"}
    ways = {
        "": "training.block_steps=1",
        "-constant": "training.local_schedule=constant",
        "-lr2.5": "training.local_lr=2.5",
        "-lr5": "training.local_lr=5.0",
        "-idle4": "training.idle_steps=4",
        "-steps2": "training.block_steps=2",
        "-steps4": "training.block_steps=4",
    }
    by_hand, names = [], []
    for scale, normalise in scales.items():
        for way, assignment in ways.items():
            changed = base.set(f"training.normalise={normalise}", assignment)
            by_hand += [changed.set(f"rule.name={rule}") for rule in ("dfa", "fa")]
            by_hand.append(frozen(changed.set("rule.name=dfa")))
            names.append(scale + way)
    assert [r.digest for r in audits.search(stages=["local"])] == [r.digest for r in by_hand]
    assert names == list(SEARCH["local"].candidates)


@pytest.mark.parametrize("stage", SEARCH)
def test_a_stage_makes_all_that_it_is_scored_by(stage: str) -> None:
    runs = set(audits.search(stages=[stage]))
    for id in SEARCH_CLAIMS[stage]:
        for arm in find(id).on(setting=SEARCHED_AT, seeds=(42,)).arms:
            for candidate in SEARCH[stage].candidates:
                assert runs.issuperset(arm.recipes(f"{stage}/{candidate}")), (id, candidate)


@pytest.mark.parametrize("stage", SEARCH)
def test_candidates_differ_and_build_on_what_was_chosen_before(stage: str) -> None:
    assert CHOSEN[stage] in SEARCH[stage].candidates
    found = {name: variant(f"{stage}/{name}") for name in SEARCH[stage].candidates}
    for one in found.values():
        for earlier in BEFORE[stage]:
            chosen = SEARCH[earlier].candidates[CHOSEN[earlier]]
            own = [name for name in SEARCH[stage].candidates if found[name] == one]
            assert len(own) == 1
            assert chosen.training.items() <= {**one.training, **chosen.training}.items()
    assert variant("plain") == Variant()


@pytest.mark.parametrize("name", PUBLISHED)
def test_variants_differ_in_what_is_open_alone_and_leave_bp_alone(name: str) -> None:
    pairs = list(zip(PUBLISHED[name]("paper"), PUBLISHED[name]("plain"), strict=True))
    paper_variant = variant("paper")
    for paper, plain in pairs:
        options = paper_variant.rules.get(paper.rule.name, {})
        allowed = {f"training.{key}" for key in paper_variant.training if paper.rule.name != "bp"}
        allowed |= {f"rule.options.{key}" for key in options} | {"training.penalty_over"}
        assert differences(paper, plain) <= allowed
        if paper.rule.name == "bp" and paper.training.penalty == 0:
            assert paper == plain


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_study_runs_all_that_its_claims_need(name: str) -> None:
    runs = set(PUBLISHED[name]("paper"))
    about = [claim for claim in CLAIMS if claim.study == name]
    lacking = {c.id: a for c in about for a in c.all_arms if not runs.issuperset(a.recipes())}
    assert about
    assert not lacking
    for claim in about:
        reads_frozen = claim.quantity.name in (
            *("margin", "verdict", "outcome", "decisions", "draft decisions", "margins"),
        )
        if reads_frozen:
            assert runs.issuperset(needed(claim)), claim.id


def test_no_study_has_a_run_that_nothing_is_decided_by() -> None:
    decided = {recipe for claim in CLAIMS for recipe in needed(claim)}
    assert set(audits.published()) <= decided


def test_a_study_sees_every_arm_before_a_second_seed() -> None:
    seeds = [recipe.seed for recipe in audits.t6()]
    assert seeds == [42] * 6 + [123] * 6 + [456] * 6


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
