"""Devices: GPUs are left alone until a run needs one, shared by runs, and never guessed at."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from faudit.bundle import Bundle
from faudit.errors import RecipeError
from faudit.provenance import machine
from faudit.recipe import Recipe, grid
from faudit.studies import runner
from faudit.studies.clusters import Ray, Slurm, gpus_needed
from faudit.studies.engines import Inline, Local
from faudit.studies.progress import Silent
from faudit.studies.runner import check, measure_again, run
from faudit.studies.store import Store
from faudit.studies.study import train
from tests.studies.test_runner import interrupted
from tests.studies.tools import content, table, tiny

with_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")


@pytest.fixture(autouse=True)
def every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints after every epoch, however short."""
    monkeypatch.setattr(runner, "CHECKPOINT_SHARE", float("inf"))


# -- anywhere -------------------------------------------------------------------------------------

WARM = """
import torch, faudit.studies.worker
def touched(*_):
    raise SystemExit("a GPU was touched before the fork")
torch.cuda._lazy_init = torch.cuda.is_available = torch.cuda.device_count = touched
faudit.studies.worker.warm_up()
"""


def test_the_process_that_forks_runs_touches_no_gpu() -> None:
    """A process that was forked from one that uses CUDA cannot use it."""
    subprocess.run([sys.executable, "-c", WARM], check=True)


def test_naming_a_machine_does_not_start_to_use_its_gpu() -> None:
    code = "from faudit.provenance import machine; import torch; print(machine('cuda:0'));"
    code += "assert not torch.cuda.is_initialized()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "cuda:0\n"


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cuda\n", "", "cpu; rm"])
def test_what_is_no_device_is_refused(device: str) -> None:
    with pytest.raises(RecipeError, match="device: "):
        Recipe().changed({"device": device})


@without_gpu
@pytest.mark.parametrize("device", ["cuda", "cuda:3", "mps", "cpu:1"])
def test_a_device_that_is_not_here_is_named_before_anything_runs(device: str) -> None:
    elsewhere = tiny(f"device={device}")
    with pytest.raises(RecipeError, match=f"device '{device}' is not here"):
        check([tiny(), elsewhere])
    check([elsewhere], here=False)


@without_gpu
@pytest.mark.parametrize("engine", [Inline(), Local(slots=1)])
def test_a_run_without_its_device_fails_alone(tmp_path: Path, engine: Inline | Local) -> None:
    summary = train([tiny("device=cuda"), tiny()], tmp_path, engine=engine, show=Silent())
    assert [(o.digest, o.reason) for o in summary.failed] == [
        (tiny("device=cuda").digest, "error"),
    ]
    assert "device 'cuda' is not here" in summary.failed[0].message
    assert summary.store[tiny("device=cuda")].manifest.machine == "cuda"


def test_workers_ask_a_cluster_for_a_gpu_where_a_run_needs_one(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    plain, fast = tiny(), tiny("device=cuda:0")
    store.want([plain, fast])
    assert gpus_needed(store, [plain.digest]) == 0
    assert gpus_needed(store, ["0" * 20, plain.digest, fast.digest]) == 1
    digests = [plain.digest, fast.digest]
    assert Slurm()._resources(store, digests) == {"gpus_per_node": 1}
    assert Slurm()._resources(store, digests[:1]) == {}
    assert Slurm(gpus=2)._resources(store, digests[:1]) == {"gpus_per_node": 2}


def test_ray_has_as_many_workers_as_find_room_and_work() -> None:
    room = {"CPU": 16.0, "GPU": 2.0}
    assert Ray()._count(100, room, gpus=0) == 16
    assert Ray()._count(100, room, gpus=1) == 2
    assert Ray()._count(100, room, gpus=0.25) == 8
    assert Ray(cores=4)._count(100, room, gpus=0) == 4
    assert Ray(cores=4)._count(6, room, gpus=0) == 2
    assert Ray(workers=3)._count(100, room, gpus=0) == 3
    assert Ray()._count(100, {"CPU": 4.0}, gpus=1) == 1


# -- on a GPU -------------------------------------------------------------------------------------


@with_gpu
def test_runs_share_a_gpu_and_end_as_they_would_alone(tmp_path: Path) -> None:
    recipes = list(grid(tiny("device=cuda"), seed=[1, 2, 3, 4]))
    together = train(recipes, tmp_path / "4", engine=Local(slots=4), show=Silent())
    alone = train(recipes, tmp_path / "1", engine=Local(slots=1), show=Silent())
    assert not together.failed
    assert table(together.store.path) == table(alone.store.path)
    assert together.store[recipes[0]].manifest.machine == torch.cuda.get_device_name()


@with_gpu
@pytest.mark.parametrize("rule", ["bp", "dfa", "sb", "kp", "ep"])
def test_a_stopped_run_ends_with_the_same_bits_on_a_gpu(tmp_path: Path, rule: str) -> None:
    recipe = tiny(f"rule.name={rule}", "device=cuda")
    run(recipe, tmp_path / "whole")
    interrupted(recipe, tmp_path / "stopped", 4, 2)
    assert content(tmp_path / "whole") == content(tmp_path / "stopped")


@with_gpu
@pytest.mark.parametrize("rule", ["bp", "dfa"])
def test_numbers_that_are_not_finite_end_a_run_on_a_gpu(tmp_path: Path, rule: str) -> None:
    outcome = run(tiny(f"rule.name={rule}", "device=cuda", "training.lr=1e30"), tmp_path)
    assert outcome.reason == "non-finite"
    assert outcome.layer
    assert Bundle.load(tmp_path).history[0]["epoch"] == 0


@with_gpu
def test_a_loaded_state_is_where_the_network_is() -> None:
    recipe = tiny("rule.name=sb", "device=cuda")
    work, learner = runner.prepare(recipe)
    learner.run_epoch(work.epoch_batches)
    raw = runner.checkpoint.to_bytes(learner.state_dict())
    _, other = runner.prepare(recipe)
    other.load_state_dict(runner.checkpoint.from_bytes(raw, "x"))
    for optimiser in (other.optimiser, other.rule.optimiser):
        assert optimiser is not None
        found = [value for state in optimiser.state.values() for value in state.values()]
        assert found
        assert {value.device.type for value in found if value.dim()} == {"cuda"}
    assert runner.checkpoint.to_bytes(other.state_dict()) == raw


@with_gpu
def test_what_a_gpu_made_is_measured_again_elsewhere(tmp_path: Path) -> None:
    run(tiny("device=cuda"), tmp_path)
    found = Bundle.load(tmp_path)
    again = measure_again(found)
    assert again.outcome.accuracy == found.outcome.accuracy
    assert found.evidence is not None
    assert again.evidence is not None
    assert again.evidence.state_norm == pytest.approx(found.evidence.state_norm, rel=1e-4)
    assert machine("cuda") == found.manifest.machine
