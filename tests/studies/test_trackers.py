"""Trackers: told of every run, and free to hang, drop or raise."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from threading import Event
from types import ModuleType
from typing import Any

import pytest

from faudit.bundle import Bundle
from faudit.errors import FauditError
from faudit.recipe import Recipe, grid
from faudit.studies import trackers
from faudit.studies.engines import Inline
from faudit.studies.progress import Silent
from faudit.studies.store import Store
from faudit.studies.study import train
from faudit.studies.trackers import Tracker, tracker
from tests.studies.tools import tiny


class Service(ModuleType):
    """Something with the interface of Weights & Biases."""

    def __init__(self) -> None:
        super().__init__("service")
        self.runs: list[dict[str, Any]] = []

    def init(self, project: str, name: str, config: dict[str, Any]) -> Any:
        run = {"project": project, "name": name, "config": config, "log": [], "finished": False}
        self.runs.append(run)
        logged: list[Any] = []
        run["log"] = logged

        class Run:
            def log(self, values: dict[str, float], step: int) -> None:
                logged.append((step, values))

            def finish(self) -> None:
                run["finished"] = True

        return Run()


class Writers(ModuleType):
    """Something with the interface of torch.utils.tensorboard."""

    def __init__(self) -> None:
        super().__init__("writers")
        self.points: list[tuple[str, str, float, int]] = []
        points = self.points

        class SummaryWriter:
            def __init__(self, folder: str) -> None:
                self.folder = folder

            def add_scalar(self, name: str, value: float, step: int) -> None:
                points.append((Path(self.folder).name, name, value, step))

            def close(self) -> None: ...

        self.SummaryWriter = SummaryWriter


def make(recipes: list[Recipe], folder: Path, track: str) -> Store:
    return train(recipes, folder, engine=Inline(), show=Silent(), track=track).store


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_every_run_is_sent_once_it_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    service = Service()
    monkeypatch.setitem(sys.modules, name, service)
    recipes = list(grid(tiny(), seed=[1, 2]))
    make(recipes, tmp_path, name)
    assert {run["config"]["seed"] for run in service.runs} == {1, 2}
    for run in service.runs:
        assert run["finished"]
        assert [step for step, _ in run["log"]] == [0, 1, 2, 3]
        assert "cosine/1" in run["log"][-1][1]
    make(recipes, tmp_path, name)
    assert len(service.runs) == 2


def test_tensorboard_gets_every_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writers = Writers()
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", writers)
    store = make([tiny()], tmp_path, "tensorboard")
    accuracy = [
        v for run, name, v, _ in writers.points if (run, name) == (tiny().digest, "accuracy")
    ]
    assert accuracy == [record["accuracy"] for record in store[tiny()].history]


def test_a_tracker_that_is_not_installed_is_named_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(FauditError, match="wandb is not installed: pip install wandb"):
        make([tiny()], tmp_path, "wandb")


def test_a_service_that_raises_costs_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service()
    monkeypatch.setattr(service, "init", lambda **_: 1 / 0)
    monkeypatch.setitem(sys.modules, "wandb", service)
    store = make([tiny()], tmp_path, "wandb")
    assert store[tiny()].outcome.done


def bundle(folder: Path) -> Bundle:
    return train([tiny()], folder, engine=Inline(), show=Silent()).store[tiny()]


def test_a_service_that_hangs_is_left_behind(tmp_path: Path) -> None:
    """A black hole: nothing comes back, and nobody waits."""
    hole = Event()
    notes: list[str] = []

    def hang(_: Bundle) -> None:
        hole.wait(60)

    held = Tracker("hole", hang, notes.append, waiting=2)
    run = bundle(tmp_path)
    began = time.monotonic()
    for _ in range(5):
        held.offer(run)
    held.close(patience=0.05)
    assert time.monotonic() - began < 5
    assert any("hole is behind" in note for note in notes)
    assert notes[-1] == "hole does not answer; some runs were not sent"
    hole.set()


def test_after_an_error_the_next_run_is_sent(tmp_path: Path) -> None:
    sent: list[Bundle] = []
    notes: list[str] = []

    def unreliable(run: Bundle) -> None:
        sent.append(run)
        if len(sent) == 1:
            raise ConnectionError("no network")

    held = Tracker("service", unreliable, notes.append)
    for _ in range(2):
        held.offer(bundle(tmp_path))
    held.close()
    assert len(sent) == 2
    assert notes == [f"service failed (ConnectionError: no network): {tiny().digest} was not sent"]


def test_unknown_trackers_are_named() -> None:
    with pytest.raises(FauditError, match="unknown tracker 'tensorbord'; did you mean"):
        tracker("tensorbord", Path(), print)
    assert set(trackers.TRACKERS) == {"wandb", "trackio", "tensorboard"}
