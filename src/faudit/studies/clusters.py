"""Clusters: engines that start workers on other machines, over one folder that all of them see.

A worker is ``faudit.studies.study.work``: it claims runs from the store until none is left. What is
sent to a cluster is a path, and nothing comes back but the end of a worker.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from faudit.errors import FauditError
from faudit.studies.attempt import Signals
from faudit.studies.engines import TICK, Look, Stopped, at_least_one
from faudit.studies.store import Store, StoreError
from faudit.studies.study import PATIENCE, work

ROUNDS = 3


@dataclass(frozen=True)
class Chore:
    """What a cluster's worker is told: which store, and how many runs at once.

    ``store_id`` tells a folder that the worker does not share from the store it was sent to.
    """

    path: str
    store_id: str
    cores: int = 1
    patience: float = PATIENCE

    def __call__(self, _: int = 0) -> int:
        """Make wanted runs until none is left; returns how many got published."""
        try:
            found = Store(self.path).id
        except StoreError:
            found = ""
        if found != self.store_id:
            raise StoreError(
                f"{socket.gethostname()} does not see the store {self.path}; keep it in a folder"
                " that is at the same path on every machine"
            )
        return work(self.path, slots=self.cores, patience=self.patience)

    def checkpoint(self, _: int = 0) -> Any:
        """What submitit puts back into the queue when a job is preempted: the same again."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, _)


class Job(Protocol):
    """A worker somewhere on a cluster."""

    def over(self) -> str | None:
        """None while it works, then what went wrong, or "" if nothing did."""

    def cancel(self) -> None:
        """Ask it to stop; its runs save their state."""


def see_through(
    store: Store, digests: Sequence[str], look: Look, launch: Callable[[int], list[Job]]
) -> None:
    """Keep workers at it until every run is published, as long as rounds of workers get on."""
    left, barren = _left(store, digests), 0
    with Signals(insist=True) as stopped:
        while left:
            complaint = _round(launch(len(left)), stopped, look)
            before, left = left, _left(store, left)
            barren = barren + 1 if len(left) == len(before) else 0
            if barren >= ROUNDS:
                raise StoreError(
                    f"{len(left)} runs are left and the cluster's workers made none of them in"
                    f" {ROUNDS} rounds: {complaint or 'somebody else is at them'}"
                )


def _round(jobs: list[Job], stopped: Signals, look: Look) -> str:
    """Wait for one round of workers; returns what the last to fail complained of."""
    complaint = ""
    try:
        while jobs:
            if stopped():
                raise Stopped("stopped; the cluster's workers were cancelled: start again to go on")
            ends = [(job, job.over()) for job in jobs]
            complaint = next((end for _, end in ends if end), complaint)
            jobs = [job for job, end in ends if end is None]
            look()
            time.sleep(TICK)
    except BaseException:
        for job in jobs:
            job.cancel()
        raise
    return complaint


def _left(store: Store, digests: Sequence[str]) -> list[str]:
    return [digest for digest in digests if digest not in store]


def gpus_needed(store: Store, digests: Sequence[str]) -> int:
    """The GPUs that a worker needs for these runs: one, which its runs share, or none."""
    for digest in digests:
        with suppress(FauditError):  # published meanwhile, or a recipe that the worker will name
            if store.recipe(digest).device.startswith("cuda"):
                return 1
    return 0


# -- Ray ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ray:
    """Ray Core tasks, each a worker with its own cores; joins the cluster at ``address``.

    Args:
        address: of a running cluster ("auto", "host:port", "ray://..."); None starts or finds one
            on this machine, as ``ray.init`` does.
        workers: how many at most; as many as the cluster has room for if None.
        cores: that each worker takes, one run per core.
        gpus: that each worker takes, or the share of one; if None, one where a run needs it.
    """

    address: str | None = None
    workers: int | None = None
    cores: int = 1
    gpus: float | None = None
    patience: float = PATIENCE

    def __post_init__(self) -> None:
        at_least_one(workers=self.workers, cores=self.cores)

    def work(self, store: Store, digests: Sequence[str], look: Look) -> None:
        ray = _extra("ray")
        if not ray.is_initialized():
            ray.init(address=self.address, log_to_driver=False, configure_logging=False)
        chore = Chore(str(store.path.resolve()), store.id, self.cores, self.patience)
        gpus = gpus_needed(store, digests) if self.gpus is None else self.gpus
        task = ray.remote(num_cpus=self.cores, num_gpus=gpus, max_retries=0)(_do)

        def launch(runs: int) -> list[Job]:
            count = self._count(runs, ray.cluster_resources(), gpus)
            return [_RayJob(task.remote(chore)) for _ in range(count)]

        see_through(store, digests, look, launch)

    def _count(self, runs: int, room: Mapping[str, float], gpus: float) -> int:
        """How many workers: as many as find room, but no more than the runs need."""
        fit = room.get("CPU", 1) / self.cores
        if gpus:
            fit = min(fit, room.get("GPU", 0) / gpus)
        most = self.workers or max(1, int(fit))
        return min(most, -(-runs // self.cores))


def _do(chore: Chore) -> int:
    return chore()


@dataclass(frozen=True)
class _RayJob:
    reference: Any

    def over(self) -> str | None:
        ray = _extra("ray")
        if not ray.wait([self.reference], timeout=0)[0]:
            return None
        try:
            ray.get(self.reference)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def cancel(self) -> None:
        _extra("ray").cancel(self.reference)


# -- Slurm ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slurm:
    """One Slurm array of workers, sent by submitit; preempted workers go back into the queue.

    Args:
        workers: how many at most.
        cores: that each worker takes, one run per core.
        gpus: that each worker takes, and its runs share; if None, one where a run needs it.
        minutes: that each worker may take.
        options: further submitit parameters, such as ``{"slurm_partition": "gpu"}``.
        cluster: "slurm"; "local" and "debug" are submitit's own, for trying things out.
    """

    workers: int = 16
    cores: int = 1
    gpus: int | None = None
    minutes: int = 24 * 60
    options: dict[str, Any] = field(default_factory=dict)
    cluster: str = "slurm"
    patience: float = PATIENCE

    def __post_init__(self) -> None:
        at_least_one(workers=self.workers, cores=self.cores, minutes=self.minutes)

    def work(self, store: Store, digests: Sequence[str], look: Look) -> None:
        executor = self._executor(store, self._resources(store, digests))
        chore = Chore(str(store.path.resolve()), store.id, self.cores, self.patience)

        def launch(runs: int) -> list[Job]:
            count = min(self.workers, -(-runs // self.cores))
            return [_SlurmJob(job) for job in executor.map_array(chore, range(count))]

        see_through(store, digests, look, launch)

    def _resources(self, store: Store, digests: Sequence[str]) -> dict[str, Any]:
        gpus = gpus_needed(store, digests) if self.gpus is None else self.gpus
        return {"gpus_per_node": gpus} if gpus else {}

    def _executor(self, store: Store, resources: Mapping[str, Any]) -> Any:
        submitit = _extra("submitit", "slurm")
        folder = store.path / "slurm"
        try:
            executor = submitit.AutoExecutor(folder=str(folder), cluster=self.cluster)
        except RuntimeError as error:
            raise FauditError(f"Slurm cannot be reached from here: {error}") from error
        executor.update_parameters(
            name="faudit",
            timeout_min=self.minutes,
            cpus_per_task=self.cores,
            slurm_array_parallelism=self.workers,
            **{**resources, **self.options},
        )
        return executor


@dataclass(frozen=True)
class _SlurmJob:
    job: Any

    def over(self) -> str | None:
        if not self.job.done():
            return None
        error = self.job.exception()
        return "" if error is None else f"{type(error).__name__}: {error}"

    def cancel(self) -> None:
        self.job.cancel()


def _extra(module: str, extra: str | None = None) -> Any:
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError as error:
        wanted = extra or module
        raise FauditError(
            f"the {wanted} engine needs {module}: pip install 'faudit[{wanted}]'"
        ) from error
