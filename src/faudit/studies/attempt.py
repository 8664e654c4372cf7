"""One attempt at one claimed run: train it in a folder of its own and publish the folder once.

How an attempt ended is an exit code, because the process that made it may not live to say more.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from faudit import atomic, bundle
from faudit.bundle import Outcome, Parts, Reason
from faudit.errors import FauditError
from faudit.studies.store import Store

if TYPE_CHECKING:
    from faudit.studies.runner import Progress

PUBLISHED = 0
ERROR = 65  # sysexits.h: the input was wrong
CRASH = 70  # an internal error
OOM = 71  # the system gave no memory
STORAGE = 74  # the disk refused
REQUEUE = 75  # stopped on request: try again

REASONS: dict[int, Reason] = {ERROR: "error", CRASH: "crash", OOM: "oom", STORAGE: "storage"}


def attempt(
    store: Store,
    digest: str,
    *,
    stop: Callable[[], bool] = lambda: False,
    on_progress: Callable[[Progress], None] = lambda _: None,
    checkpoint_seconds: float = 0.0,
) -> int:
    """Bring a claimed run to its end and publish it; returns the exit code that says how it went.

    Whatever goes wrong is written to the run's room, for ``fail`` to tell.
    """
    try:
        _bring_to_end(store, digest, stop, on_progress, checkpoint_seconds)
    except Exception as error:
        code = exit_code(error)
        if code != REQUEUE:
            _leave_word(store, digest, code, error)
        return code
    return PUBLISHED


def _bring_to_end(
    store: Store,
    digest: str,
    stop: Callable[[], bool],
    on_progress: Callable[[Progress], None],
    checkpoint_seconds: float,
) -> None:
    from faudit.studies.runner import run

    folder = store.finished_attempt(digest)
    if folder is None:
        store.sweep(digest)
        folder, room = store.attempt(digest), store.room(digest)
        run(
            store.recipe(digest),
            folder,
            checkpoints=room / "checkpoints",
            checkpoint_seconds=checkpoint_seconds,
            on_progress=Diary(room, on_progress),
            stop=stop,
            warn=_say,
        )
    store.publish(digest, folder)


def _say(message: str) -> None:
    with suppress(OSError):
        print(message, flush=True)


def exit_code(error: BaseException) -> int:
    """The exit code for what ended an attempt.

    >>> exit_code(MemoryError()) == OOM, exit_code(FauditError("no such rule")) == ERROR
    (True, True)
    """
    if type(error).__name__ == "Interrupted":
        return REQUEUE
    if atomic.no_room(error):
        return STORAGE
    if isinstance(error, FauditError):
        return ERROR
    return OOM if _out_of_memory(error) else CRASH


def _out_of_memory(error: BaseException) -> bool:
    text = str(error).lower()
    told = "allocate memory" in text or "out of memory" in text or "bad_alloc" in text
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError | OSError) and told)


def _leave_word(store: Store, digest: str, code: int, error: Exception) -> None:
    import traceback

    with suppress(OSError):
        # The log may be on the same full disk as everything else.
        traceback.print_exception(error)
    with suppress(OSError):
        word = {"code": code, "message": f"{type(error).__name__}: {error}"}
        atomic.write(store.room(digest) / "ending.json", json.dumps(word), durable=False)


def last_word(store: Store, digest: str, code: int) -> str:
    """What an attempt that ended with this code had to say."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        word = json.loads((store.room(digest) / "ending.json").read_text())
        if word["code"] == code:
            return str(word["message"])
    return _signal_message(-code) if code < 0 else f"the process ended with exit code {code}"


def _signal_message(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    hint = " (out of memory, or killed by hand)" if number == signal.SIGKILL else ""
    return f"the process was ended by {name}{hint}"


def fail(store: Store, digest: str, code: int) -> Outcome:
    """Publish that a run could not be brought to its end, with the history and log it left."""
    reason: Reason = REASONS.get(code, "oom" if code == -signal.SIGKILL else "crash")
    outcome = Outcome(
        digest=digest,
        status="failed",
        reason=reason,
        message=last_word(store, digest, code),
        epoch=store.checkpointed(digest),
    )
    folder = store.attempt(digest)
    history, log = store.live_history(digest), store.log_tail(digest)
    bundle.write(folder, Parts(store.recipe(digest), outcome, history, log=log))
    store.publish(digest, folder)
    return outcome


@dataclass
class Diary:
    """Writes down where a run stands, for whoever looks at the store; never fatal."""

    room: Path
    also: Callable[[Progress], None]
    every: float = 0.5
    last: float = field(default_factory=time.monotonic)

    def __call__(self, progress: Progress) -> None:
        with suppress(OSError):
            if progress.record is not None:
                self._append(bundle.line(progress.record))
            if time.monotonic() - self.last >= self.every:
                self.last = time.monotonic()
                self._now(progress)
        self.also(progress)

    def _append(self, text: str) -> None:
        with open(self.room / "live.jsonl", "a") as file:
            file.write(text + "\n")

    def _now(self, progress: Progress) -> None:
        values = {
            "epoch": progress.epoch,
            "epochs": progress.epochs,
            "share": progress.share,
            "rate": progress.rate,
            "train_loss": progress.train_loss,
            "accuracy": progress.accuracy,
        }
        atomic.write(self.room / "progress.json", bundle.line(values), durable=False)


def standing(store: Store, digest: str) -> dict[str, Any]:
    """What the diary last said of a run under way; empty if it said nothing."""
    with suppress(OSError, ValueError, FauditError):
        path = store.path / "work" / digest / "progress.json"
        return bundle.unline(path.read_text())
    return {}


class Signals:
    """While in use, SIGINT and SIGTERM raise a flag; with ``insist`` a second one interrupts.

    >>> with Signals() as stopped:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     stopped()
    True
    """

    def __init__(self, *, insist: bool = False) -> None:
        self._insist = insist
        self._raised = 0
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        return self._raised > 0

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._raised += 1
        if self._insist and self._raised > 1:
            raise KeyboardInterrupt


@contextmanager
def output_to(path: Path) -> Iterator[None]:
    """Send this process's stdout and stderr, and those of its C code, to the end of a file."""
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(target, 1)
        os.dup2(target, 2)
        yield
    finally:
        os.close(target)
