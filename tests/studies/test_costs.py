"""Costs: what a plan says a run takes is what runs take, within a few times."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from faudit.recipe import Recipe
from faudit.studies import costs
from faudit.studies.costs import Costs, by_size
from faudit.studies.engines import Inline
from faudit.studies.progress import Silent
from faudit.studies.runner import run
from faudit.studies.study import train
from tests.studies.tools import tiny

VIT = ("network.name=vitmini", 'network.options={"width": 128, "depth": 4}')
CNN = ("network.name=smallresnet", "network.options={}")
MEASURED = [
    (8.5, ()),
    (9.0, ("rule.name=dfa",)),
    (9.6, ("rule.name=fa",)),
    (5.1, ("rule.name=dfa", "training.batch=32")),
    (19.7, ("rule.name=dfa", "training.block_steps=2")),
    (14.7, ("rule.name=dfa", "training.idle_steps=4")),
    (14.9, ("rule.name=dfa", "network.options.width=512", "network.options.depth=2")),
    (17.9, ("rule.name=brsf",)),
    (18.5, ("rule.name=kp",)),
    (25.0, ("rule.name=sb",)),
    (20.5, ("rule.name=cb",)),
    (106.8, ("rule.name=ep",)),
    (281.9, VIT),
    (300.1, (*VIT, "rule.name=dfa")),
    (413.7, CNN),
]
"""Milliseconds of a step on CIFAR-10, on the core that ``costs.CORE`` describes."""


@pytest.mark.parametrize(("milliseconds", "change"), MEASURED)
def test_the_size_of_a_run_gives_its_time_within_half_and_twice(
    milliseconds: float, change: tuple[str, ...]
) -> None:
    recipe = Recipe().set(*change)
    steps = -(-50_000 // recipe.training.batch)
    assert 0.5 < by_size(recipe) / steps * 1000 / milliseconds < 2


def test_an_option_left_out_counts_as_its_default() -> None:
    named = Recipe().set("network.options={}")
    assert by_size(named) == by_size(Recipe())


def test_a_store_without_runs_is_estimated_from_how_fast_a_core_is(tmp_path: Path) -> None:
    recipe = Recipe().set(
        "data.name=fashion-sample",
        "data.train_limit=2560",
        "data.test_limit=64",
        "measuring.samples=16",
        "training.epochs=4",
        "rule.name=dfa",
    )
    began = time.process_time()
    run(recipe, tmp_path)
    assert 1 / 20 < Costs().estimate(recipe) / (time.process_time() - began) < 20


def test_runs_of_another_kind_are_estimated_from_how_fast_those_that_are_there_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = train([tiny()], tmp_path, engine=Inline(), show=Silent()).store
    monkeypatch.setattr(costs, "core_speed", lambda: pytest.fail("there were runs to go by"))
    found, other = Costs.of(store), tiny("training.batch=16")
    ratio = found.known[costs._kind(tiny())] / by_size(tiny())
    assert found.ratios == {"cpu": pytest.approx(ratio)}
    assert found.estimate(other) == pytest.approx(3 * ratio * by_size(other))


def test_what_a_core_does_says_nothing_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "core_speed", lambda: pytest.fail("nothing here is a CPU's"))
    on_gpu = Costs({}, {"cpu": 100.0}).estimate(Recipe(device="cuda:1"))
    # 3.7 s an epoch were measured, of which measuring is two thirds.
    assert 50 < on_gpu < 400


def test_a_faster_core_takes_less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "core_speed", lambda: 4.0)
    assert Costs().estimate(Recipe()) == pytest.approx(100 * by_size(Recipe()) / 4)
