"""Running: the same bits however often a run was stopped, and nothing mixed into it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import torch

from faudit.bundle import Bundle
from faudit.errors import DataError, RuleError
from faudit.recipe import Recipe
from faudit.rules import RULES
from faudit.studies import runner
from faudit.studies.checkpoint import checkpoints
from faudit.studies.runner import Interrupted, Progress, run
from faudit.training import Learner
from tests.studies.tools import content, tiny


@pytest.fixture(autouse=True)
def every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints after every epoch, however short."""
    monkeypatch.setattr(runner, "CHECKPOINT_SHARE", float("inf"))


def after(batches: int) -> Callable[[], bool]:
    """Asked to stop after this many batches."""
    count = itertools.count()
    return lambda: next(count) >= batches


def interrupted(recipe: Recipe, folder: Path, *batches: int) -> None:
    """A run that is stopped after so many batches, again and again, and then left in peace."""
    for count in batches:
        with pytest.raises(Interrupted):
            run(recipe, folder, stop=after(count))
    run(recipe, folder)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_a_stopped_run_ends_with_the_same_bits(tmp_path: Path, rule: str) -> None:
    recipe = tiny(f"rule.name={rule}")
    run(recipe, tmp_path / "whole")
    interrupted(recipe, tmp_path / "stopped", 1, 4, 2, 4)
    assert content(tmp_path / "whole") == content(tmp_path / "stopped")
    assert Bundle.load(tmp_path / "stopped").manifest.timing["resumed"] == 2


@pytest.mark.parametrize(
    "change",
    ["network.name=smallresnet", "training.idle_steps=2", "training.penalty=0.01", "dtype=float64"],
)
def test_whatever_the_recipe_holds(tmp_path: Path, change: str) -> None:
    recipe = tiny("data.name=fashion-sample", "training.epochs=2", change)
    if "smallresnet" in change:
        recipe = recipe.changed({"network.options": {"widths": (4, 8)}})
    run(recipe, tmp_path / "whole")
    interrupted(recipe, tmp_path / "stopped", 4)
    assert content(tmp_path / "whole") == content(tmp_path / "stopped")


def test_a_stop_loses_less_than_an_epoch(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        run(tiny(), tmp_path, stop=after(7))  # three batches an epoch: within the third
    (found,) = (tmp_path / "checkpoints").iterdir()
    assert checkpoints(found)[0].name.startswith("epoch-000002-")


def test_checkpoints_cost_little_where_epochs_are_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "CHECKPOINT_SHARE", 1 / 50)
    saved: list[int] = []
    monkeypatch.setattr(runner.checkpoint, "save", lambda folder, epoch, state: saved.append(epoch))
    run(tiny(), tmp_path)
    assert saved == []


def test_no_checkpoint_outlives_its_run(tmp_path: Path) -> None:
    run(tiny(), tmp_path)
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize("change", ["code", "data", "recipe", "versions"])
def test_what_other_code_data_or_recipes_left_is_never_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    kept = tmp_path / "checkpoints"
    with pytest.raises(Interrupted):
        run(tiny(), tmp_path / "first", checkpoints=kept, stop=after(7))
    recipe = tiny("training.lr=0.002") if change == "recipe" else tiny()
    if change == "code":
        monkeypatch.setattr(runner, "code_of", lambda _: "other")
    if change == "versions":
        monkeypatch.setattr(runner, "versions", lambda _: {"torch": "1.0"})
    if change == "data":
        monkeypatch.setattr(runner.data.Dataset, "digest", lambda self: "other")
    run(recipe, tmp_path / "second", checkpoints=kept)
    assert Bundle.load(tmp_path / "second").manifest.timing["resumed"] == 0
    assert len(list(kept.iterdir())) == 2


def test_a_damaged_checkpoint_costs_an_epoch_and_no_bit(tmp_path: Path) -> None:
    run(tiny(), tmp_path / "whole")
    with pytest.raises(Interrupted):
        run(tiny(), tmp_path / "stopped", stop=after(7))
    (found,) = (tmp_path / "stopped" / "checkpoints").iterdir()
    newest = checkpoints(found)[0]
    newest.write_bytes(newest.read_bytes()[:-1])
    warnings: list[str] = []
    run(tiny(), tmp_path / "stopped", warn=warnings.append)
    assert "altered or cut short" in warnings[0]
    assert content(tmp_path / "whole") == content(tmp_path / "stopped")


WEIGHTS = (
    "flat.weight",
    "blocks.0.w1.weight",
    "blocks.1.w2.bias",
    "out_ln.weight",
    "out_head.bias",
)


def poisoned(
    monkeypatch: pytest.MonkeyPatch, at: int, name: str = "blocks.1.w1.weight", value: float = inf
) -> None:
    """A weight is no longer finite at one step."""
    step, count = Learner.step, itertools.count(1)

    def poison(self: Learner, x: Any, y: torch.Tensor) -> Any:
        if next(count) == at:
            with torch.no_grad():
                weights = dict(self.network.module.named_parameters())
                weights[name].view(-1)[0] = value
        return step(self, x, y)

    monkeypatch.setattr(Learner, "step", poison)


def test_numbers_that_are_not_finite_end_the_run_and_keep_its_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned(monkeypatch, at=5)
    outcome = run(tiny(), tmp_path)
    assert str(outcome) == "FAILED(non-finite, the weights blocks.1.w1.weight, epoch 2)"
    found = Bundle.load(tmp_path)
    assert [record["epoch"] for record in found.history] == [0, 1]
    assert found.evidence is not None
    assert found.evidence.invalid is not None
    assert found.outcome.final


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("value", [nan, -inf])
def test_the_layer_where_numbers_stop_being_finite_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: float
) -> None:
    poisoned(monkeypatch, at=5, name=name, value=value)
    assert str(run(tiny(), tmp_path)) == f"FAILED(non-finite, the weights {name}, epoch 2)"
    assert [record["epoch"] for record in Bundle.load(tmp_path).history] == [0, 1]


def test_the_history_has_the_untrained_network_and_every_epoch(tmp_path: Path) -> None:
    run(tiny("measuring.every=2"), tmp_path)
    history = Bundle.load(tmp_path).history
    assert [record["epoch"] for record in history] == [0, 1, 2, 3]
    assert "train_loss" not in history[0]
    # Every second epoch is measured, and so are the first and last states of the network.
    assert [("cosine" in record) for record in history] == [True, False, True, True]
    for name in ("state_norm", "reference_norm", "cosine"):
        assert len(history[-1][name]) == 3
    assert len(history[-1]["growth"]) == 2


def test_measuring_changes_no_trained_number(tmp_path: Path) -> None:
    run(tiny(), tmp_path / "often")
    run(tiny("measuring.every=3", "measuring.samples=8"), tmp_path / "seldom")
    often, seldom = (Bundle.load(tmp_path / name) for name in ("often", "seldom"))
    for name, weight in often.weights().items():
        assert torch.equal(weight, seldom.weights()[name])
    assert often.outcome.correct == seldom.outcome.correct


@pytest.mark.parametrize("change", ["seed=7", "rule_seed=7"])
def test_the_seeds_matter(tmp_path: Path, change: str) -> None:
    run(tiny(), tmp_path / "one")
    run(tiny(change), tmp_path / "two")
    one, two = (Bundle.load(tmp_path / name).rule_state() for name in ("one", "two"))
    assert not torch.equal(one["matrices.0"], two["matrices.0"])


def test_runs_leave_no_trace_in_the_process(tmp_path: Path) -> None:
    """A worker may make one run after another: nothing global decides a number."""
    run(tiny(), tmp_path / "first")
    run(tiny("rule.name=sb", "dtype=float64"), tmp_path / "between")
    torch.manual_seed(99)
    threads = torch.get_num_threads()
    run(tiny(), tmp_path / "again")
    assert content(tmp_path / "first") == content(tmp_path / "again")
    assert torch.get_num_threads() == threads


def test_progress_comes_with_every_record(tmp_path: Path) -> None:
    seen: list[Progress] = []
    run(tiny(), tmp_path, on_progress=seen.append)
    records = [p.record for p in seen if p.record is not None]
    assert [record["epoch"] for record in records] == [1, 2, 3]
    assert seen[-1].epochs == 3
    assert seen[-1].accuracy == records[-1]["accuracy"]


def test_nothing_in_outcome_and_history_tells_the_time(tmp_path: Path) -> None:
    run(tiny(), tmp_path)
    texts = [(tmp_path / n).read_text() for n in ("outcome.json", "history.jsonl", "evidence.json")]
    assert not any("second" in text for text in texts)
    assert "seconds" in json.loads((tmp_path / "manifest.json").read_text())["timing"]


def test_unknown_names_say_what_is_known(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="unknown rule 'dfaa'; did you mean 'dfa'"):
        run(tiny("rule.name=dfaa"), tmp_path)
    with pytest.raises(DataError, match="unknown data set"):
        run(tiny("data.name=cifar11"), tmp_path)
