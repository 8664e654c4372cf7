"""Engines: who brings runs to their end. No engine owns state; the store does.

The seam is one method, ``work(store, digests, look)``: return once every run is published, calling
``look`` now and then so that somebody can see; raise ``Stopped`` when asked to stop. ``Local``
does the work; every other engine only starts ``Local`` elsewhere, over the same folder.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from faudit.errors import FauditError
from faudit.studies import attempt as ends
from faudit.studies.attempt import Signals, attempt, fail, last_word
from faudit.studies.store import Claim, Store, StoreError
from faudit.studies.worker import GRACE, Settings

TICK = 0.2
ATTEMPTS = 3

MEMORY = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.trim_threshold=1073741824"
    ":glibc.malloc.mmap_threshold=33554432"
}
"""Large pages, and freed memory kept for the next step; a C library other than glibc ignores it."""

Look = Callable[[], None]


class Stopped(FauditError):  # noqa: N818
    """The study was asked to stop; every run has saved its state and can be taken up again."""

    exit_code = ends.REQUEUE


class Engine(Protocol):
    """Brings wanted runs to their end."""

    def work(self, store: Store, digests: Sequence[str], look: Look) -> None:
        """Return once every run is published."""


@dataclass(frozen=True)
class Inline:
    """One run after the other in this process: for notebooks, debuggers and odd platforms.

    Nothing isolates a run here, so a run that crashes takes the caller with it. Runs that others
    are at are left to them.
    """

    checkpoint_seconds: float = 0.0

    def work(self, store: Store, digests: Sequence[str], look: Look) -> None:
        with Signals(insist=True) as stopped:
            for digest in digests:
                self._one(store, digest, stopped)
                look()

    def _one(self, store: Store, digest: str, stopped: Signals) -> None:
        claim = store.claim(digest)
        if claim is None:
            return
        try:
            if digest not in store:
                every = self.checkpoint_seconds
                code = attempt(store, digest, stop=stopped, checkpoint_seconds=every)
                self._settle(store, digest, code)
        finally:
            claim.release()

    def _settle(self, store: Store, digest: str, code: int) -> None:
        if code == ends.REQUEUE:
            raise Stopped("stopped; the run has saved its state: start again to go on")
        if code == ends.STORAGE:
            raise no_room(store, digest)
        if code != ends.PUBLISHED:
            fail(store, digest, code)


@dataclass(frozen=True)
class Local:
    """As many runs at once as there are cores, each in a process of its own.

    Args:
        slots: how many threads all runs together may use; the cores this process may use if None.
        attempts: after so many deaths in a row without a new checkpoint a run is FAILED.
        memory: the address space each run may use, in bytes.
        fork: fork every run from one process that has imported PyTorch; else start it anew.
        patience: how many seconds to wait for runs that only others are at, in case they fall
            silent and the runs can be taken over; until the study is over if None.
        command: the process that makes runs.
    """

    slots: int | None = None
    attempts: int = ATTEMPTS
    checkpoint_seconds: float = 0.0
    memory: int | None = None
    fork: bool = sys.platform == "linux"
    patience: float | None = None
    command: tuple[str, ...] = (sys.executable, "-P", "-m", "faudit.studies.worker")

    def __post_init__(self) -> None:
        at_least_one(slots=self.slots, attempts=self.attempts, memory=self.memory)

    def work(self, store: Store, digests: Sequence[str], look: Look) -> None:
        settings = Settings(self.checkpoint_seconds, self.memory, self.fork)
        worker = Worker(store, settings, self.command)
        slots = self.slots or cores()
        study = Supervision(store, deque(digests), worker, slots, self.attempts, self.patience)
        with Signals(insist=True) as stopped, worker:
            study.supervise(stopped, look)


def at_least_one(**counts: int | None) -> None:
    """Refuse a number of workers or tries with which nothing would ever be done.

    >>> at_least_one(slots=0)
    Traceback (most recent call last):
    faudit.errors.FauditError: slots must be at least 1, not 0
    """
    for name, count in counts.items():
        if count is not None and count < 1:
            raise FauditError(f"{name} must be at least 1, not {count}")


def cores() -> int:
    """How many cores this process may use.

    >>> cores() >= 1
    True
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def no_room(store: Store, digest: str) -> StoreError:
    """Why a study pauses when the disk refuses."""
    return StoreError(
        f"the study has paused, because {store.path} could not be written to"
        f" ({last_word(store, digest, ends.STORAGE)}). Make room and start again: every run goes"
        " on from its last checkpoint"
    )


class Worker:
    """The near end of ``faudit.studies.worker``: orders go in, endings come out."""

    def __init__(self, store: Store, settings: Settings, command: Sequence[str]) -> None:
        self.store, self.settings, self.command = store, settings, command
        self.process: subprocess.Popen[bytes] | None = None
        self.rest = b""

    def order(self, digest: str) -> None:
        """Have one run started; a worker that has died is noticed by ``endings``."""
        process = self.process or self._start()
        with suppress(BrokenPipeError):
            os.write(_pipe(process.stdin), json.dumps({"run": digest}).encode() + b"\n")

    def _start(self) -> subprocess.Popen[bytes]:
        threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
        self.process = subprocess.Popen(
            [*self.command, str(self.store.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**MEMORY, **os.environ, **threads, "FAUDIT_WORKER": self.settings.to_json()},
            # Ctrl-C is for the supervisor, which knows how to stop in order.
            start_new_session=True,
        )
        return self.process

    def endings(self, timeout: float) -> Iterator[tuple[str, int]]:
        """(digest, exit code) of every run that has ended; ``EOFError`` if the worker has."""
        if self.process is None:
            time.sleep(timeout)
            return
        answers = _pipe(self.process.stdout)
        if not select.select([answers], [], [], timeout)[0]:
            return
        came = os.read(answers, 65536)
        if not came:
            raise EOFError
        *lines, self.rest = (self.rest + came).split(b"\n")
        for text in lines:
            answer = json.loads(text)
            if "ended" in answer:
                yield answer["ended"], answer["code"]

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        """End the orders, wait until every run has saved its state, and leave nothing behind."""
        try:
            if self.process is not None:
                self.process.communicate(timeout=GRACE + 5)
        except (subprocess.TimeoutExpired, OSError):
            pass
        finally:
            self.kill()

    def kill(self) -> None:
        """End the worker and all its runs at once."""
        process, self.process, self.rest = self.process, None, b""
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


def _pipe(stream: object) -> int:
    return int(stream.fileno())  # type: ignore[attr-defined]


@dataclass
class Supervision:
    """One session's work on a store: claims runs, has them made, settles how they ended."""

    store: Store
    todo: deque[str]
    worker: Worker
    slots: int
    attempts: int = ATTEMPTS
    patience: float | None = None
    claims: dict[str, tuple[Claim, int]] = field(default_factory=dict)
    pause: StoreError | None = None
    worker_deaths: int = 0
    busy: float = field(default_factory=time.monotonic)

    def supervise(self, stopped: Signals, look: Look) -> None:
        """Until nothing is left to do."""
        try:
            while self.claims or (self.todo and not self.pause):
                if stopped():
                    raise Stopped("stopped; every run has saved its state: start again to go on")
                if not self.pause:
                    self.fill_slots()
                if self._out_of_patience():
                    break
                self.settle_endings()
                look()
        finally:
            self.worker.__exit__()
            for digest in list(self.claims):
                self._release(digest)
        if self.pause:
            raise self.pause

    def fill_slots(self) -> None:
        """Start every run that fits and that nobody else is at."""
        for _ in range(len(self.todo)):
            if self.free <= 0:
                return
            digest = self.todo.popleft()
            if not self._start(digest):
                self.todo.append(digest)

    def _out_of_patience(self) -> bool:
        """Whether others have been at all that is left for too long."""
        now = time.monotonic()
        if self.claims:
            self.busy = now
            return False
        return self.patience is not None and now - self.busy >= self.patience

    @property
    def free(self) -> int:
        """Slots that no run is using."""
        return self.slots - sum(width for _, width in self.claims.values())

    def _start(self, digest: str) -> bool:
        """False if the run has to wait."""
        if digest in self.store:
            return True
        claim = self.store.claim(digest)
        if claim is None:
            return False
        if digest in self.store:  # published between the look and the claim
            claim.release()
            return True
        try:
            width = min(self.store.recipe(digest).threads, self.slots)
        except FauditError:
            claim.release()
            raise
        if width > self.free:
            claim.release()
            return False
        self.claims[digest] = claim, width
        self.worker.order(digest)
        return True

    def settle_endings(self) -> None:
        """Deal with every run that has ended since the last look."""
        try:
            for digest, code in self.worker.endings(TICK):
                self.worker_deaths = 0
                self._settle(digest, code)
        except EOFError:
            self._worker_died()

    def _settle(self, digest: str, code: int) -> None:
        if code == ends.STORAGE:
            self.pause = no_room(self.store, digest)
        elif code == ends.REQUEUE:
            self.todo.append(digest)
        elif digest not in self.store:
            self._died(digest, code)
        self._release(digest)

    def _died(self, digest: str, code: int) -> None:
        """An attempt left no run: try again, unless it has got nowhere too often."""
        reason = ends.REASONS.get(code, f"exit code {code}")
        deaths = self.store.note_death(digest, reason)
        if code == ends.ERROR or deaths >= self.attempts:
            fail(self.store, digest, code)
        else:
            self.todo.append(digest)

    def _worker_died(self) -> None:
        """All runs go on from their checkpoints under a new worker, unless that dies too."""
        self.worker.kill()
        self.worker_deaths += 1
        if self.worker_deaths > self.attempts:
            raise StoreError(
                f"the process that makes runs died {self.worker_deaths} times in a row;"
                f" start one by hand to see why: {' '.join(self.worker.command)}"
                f" {self.store.path} {next(iter(self.claims), 'DIGEST')}"
            )
        for digest in list(self.claims):
            self.todo.append(digest)
            self._release(digest)

    def _release(self, digest: str) -> None:
        claim, _ = self.claims.pop(digest)
        claim.release()
