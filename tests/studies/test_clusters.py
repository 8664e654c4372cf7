"""Clusters: the same table from a real local Ray of two nodes, and from submitit's executors."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from faudit.errors import FauditError
from faudit.recipe import Recipe, grid
from faudit.studies import clusters
from faudit.studies.clusters import Chore, Job, Ray, Slurm, see_through
from faudit.studies.engines import Engine, Inline
from faudit.studies.progress import Silent
from faudit.studies.store import Store, StoreError
from faudit.studies.study import train
from tests.studies.tools import table, tiny

STUDY = list(grid(tiny(), seed=[1, 2, 3]))


def make(recipes: list[Recipe], folder: Path, engine: Engine) -> Store:
    return train(recipes, folder, engine=engine, show=Silent()).store


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    return table(make(STUDY, tmp_path_factory.mktemp("inline"), Inline()).path)


# -- Ray ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster of two nodes with a core each."""
    ray = pytest.importorskip("ray", reason="the Ray engine needs the extra faudit[ray]")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    made.add_node(num_cpus=1)
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


def test_ray_makes_the_same_table_on_two_nodes(
    tmp_path: Path,
    cluster: Any,
    expected: dict[str, dict[str, bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray = pytest.importorskip("ray")
    engine = Ray(address=cluster.address, patience=0.5)
    assert engine._count(10, ray.cluster_resources(), gpus=0) == 2
    notes = tmp_path / "nodes"
    notes.mkdir()

    class Noted(Chore):
        def __call__(self, _: int = 0) -> int:
            (notes / str(ray.get_runtime_context().get_node_id())).touch()
            return super().__call__(_)

    monkeypatch.setattr(clusters, "Chore", Noted)
    store = make(STUDY, tmp_path / "store", engine)
    assert table(store.path) == expected
    assert len(list(notes.iterdir())) == 2


def test_a_ray_node_that_dies_costs_an_epoch(tmp_path: Path, cluster: Any) -> None:
    node = cluster.add_node(num_cpus=1)
    long = list(grid(tiny("training.epochs=300", "measuring.every=300"), seed=[1, 2, 3]))

    def strike() -> None:
        store = Store(tmp_path)
        while len(store.claimed()) < 3 and len(store.digests()) < 1:
            time.sleep(0.02)
        cluster.remove_node(node, allow_graceful=False)

    Store.open(tmp_path)
    striker = Thread(target=strike)
    striker.start()
    store = make(long, tmp_path, Ray(address=cluster.address, patience=0.5))
    striker.join()
    assert len(store.digests()) == 3
    assert all(entry.outcome and entry.outcome.done for entry in store)


# -- Slurm ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["local", "debug"])
def test_submitit_makes_the_same_table(
    tmp_path: Path, executor: str, expected: dict[str, dict[str, bytes]]
) -> None:
    pytest.importorskip("submitit", reason="the Slurm engine needs the extra faudit[slurm]")
    engine = Slurm(workers=2, minutes=5, cluster=executor, patience=0.0)
    assert table(make(STUDY, tmp_path, engine).path) == expected


def test_a_preempted_job_saves_its_run_and_ends_it_when_it_is_back(tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason="the Slurm engine needs the extra faudit[slurm]")
    long = tiny("training.epochs=200", "measuring.every=200")
    store = Store.open(tmp_path)
    store.want([long])
    executor = Slurm(minutes=5, cluster="local")._executor(store, {})
    (job,) = executor.map_array(Chore(str(tmp_path), store.id, patience=0), range(1))
    while not store.live_history(long.digest):
        time.sleep(0.01)
    controller = job._process.pid
    (task,) = Path(f"/proc/{controller}/task/{controller}/children").read_text().split()
    os.kill(int(task), signal.SIGUSR2)  # what Slurm sends before a job has to go
    assert job.result() == 1
    assert store[long].outcome.done
    assert store[long].manifest.timing["resumed"] == 1


def test_a_preempted_worker_goes_back_into_the_queue_as_it_was(tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason="the Slurm engine needs the extra faudit[slurm]")
    chore = Chore(str(tmp_path), Store.open(tmp_path).id, patience=0)
    again = chore.checkpoint(3)
    assert again.function == chore
    assert again.args == (3,)
    assert again.function(*again.args) == 0


def test_without_slurm_the_engine_says_so(tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason="the Slurm engine needs the extra faudit[slurm]")
    with pytest.raises(FauditError, match="Slurm cannot be reached from here"):
        make(STUDY, tmp_path, Slurm())


# -- both -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("engine", "extra"), [(Ray(), "ray"), (Slurm(), "slurm")])
def test_a_missing_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Engine, extra: str
) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(FauditError, match=rf"pip install 'faudit\[{extra}\]'"):
        make(STUDY, tmp_path, engine)


def test_a_machine_that_does_not_share_the_folder_says_so(tmp_path: Path) -> None:
    Store.open(tmp_path / "here")
    for path in (tmp_path / "here", tmp_path / "nowhere"):
        with pytest.raises(StoreError, match="does not see the store"):
            Chore(str(path), "another store's id")()


class Idle:
    """A worker that ends without having done anything."""

    def over(self) -> str | None:
        return "no memory"

    def cancel(self) -> None: ...


class Forever(Idle):
    def __init__(self) -> None:
        self.cancelled = False

    def over(self) -> str | None:
        return None

    def cancel(self) -> None:
        self.cancelled = True


def test_workers_that_get_nowhere_end_the_study_with_their_complaint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "TICK", 0.0)
    rounds: list[int] = []

    def launch(left: int) -> list[Job]:
        rounds.append(left)
        return [Idle()]

    with pytest.raises(StoreError, match=r"1 runs are left .* in 3 rounds: no memory"):
        see_through(Store.open(tmp_path), ["0" * 20], lambda: None, launch)
    assert rounds == [1, 1, 1]


def test_whatever_ends_the_study_cancels_its_workers(tmp_path: Path) -> None:
    worker = Forever()

    def look() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        see_through(Store.open(tmp_path), ["0" * 20], look, lambda left: [worker])
    assert worker.cancelled
