"""Trackers: published runs shown elsewhere, if that is installed; never a reason for a run to fail.

A run is sent once, when it is published, by a thread that nobody waits for: a service that hangs,
drops or raises costs the study a note and nothing else. The store stays the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from math import isfinite
from pathlib import Path
from queue import Full, Queue
from threading import Thread
from typing import Any

from faudit.bundle import Bundle
from faudit.errors import FauditError, unknown
from faudit.studies.progress import label

WAITING = 256
PATIENCE = 10.0

Send = Callable[[Bundle], None]


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """A history record as named numbers, one per layer; what is not finite is left out.

    >>> scalars({"epoch": 3, "loss": 0.5, "cosine": [0.25, float("nan")], "nonfinite": None})
    {'epoch': 3.0, 'loss': 0.5, 'cosine/0': 0.25}
    """
    return {name: value for name, value in _numbers(record) if isfinite(value)}


def _numbers(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in record.items():
        if isinstance(value, list | tuple):
            yield from ((f"{name}/{layer}", float(v)) for layer, v in enumerate(value))
        elif isinstance(value, int | float):
            yield name, float(value)


def to_service(module: Any, project: str = "faudit") -> Send:
    """Send to Weights & Biases, or to anything with its ``init``, ``log`` and ``finish``."""

    def send(bundle: Bundle) -> None:
        config = bundle.recipe.model_dump(mode="json")
        name = f"{label(bundle.recipe)} {bundle.recipe.digest}"
        run = module.init(project=project, name=name, config=config)
        for record in bundle.history:
            run.log(scalars(record), step=record["epoch"])
        run.finish()

    return send


def to_tensorboard(module: Any, folder: Path) -> Send:
    """Write one event file per run below ``folder``."""

    def send(bundle: Bundle) -> None:
        writer = module.SummaryWriter(str(folder / bundle.recipe.digest))
        for record in bundle.history:
            for name, value in scalars(record).items():
                writer.add_scalar(name, value, record["epoch"])
        writer.close()

    return send


TRACKERS = {"wandb": "wandb", "trackio": "trackio", "tensorboard": "torch.utils.tensorboard"}


def tracker(name: str, folder: Path, note: Callable[[str], None]) -> Tracker:
    """The tracker called ``name``, if it is installed.

    >>> tracker("wanbd", Path("."), print)
    Traceback (most recent call last):
    faudit.errors.FauditError: unknown tracker 'wanbd'; did you mean 'wandb'?...
    """
    if name not in TRACKERS:
        raise FauditError(unknown("tracker", name, TRACKERS))
    try:
        module = import_module(TRACKERS[name])
    except ImportError as error:
        raise FauditError(f"{name} is not installed: pip install {name}") from error
    send = to_tensorboard(module, folder) if name == "tensorboard" else to_service(module)
    return Tracker(name, send, note)


@dataclass
class Tracker:
    """A thread between a study and a service that may hang."""

    name: str
    send: Send
    note: Callable[[str], None]
    waiting: int = WAITING

    def __post_init__(self) -> None:
        self.queue: Queue[Bundle | None] = Queue(self.waiting)
        self.thread = Thread(target=self._work, name=f"faudit-{self.name}", daemon=True)
        self.thread.start()

    def offer(self, bundle: Bundle) -> None:
        """Send a run some time; dropped if the service is too far behind or has failed."""
        try:
            self.queue.put_nowait(bundle)
        except Full:
            self.note(f"{self.name} is behind: {bundle.recipe.digest} was not sent")

    def close(self, patience: float = PATIENCE) -> None:
        """Give the service a moment to take what waits, and leave it."""
        try:
            self.queue.put_nowait(None)
            self.thread.join(patience)
        except Full:
            pass
        if self.thread.is_alive():
            self.note(f"{self.name} does not answer; some runs were not sent")

    def _work(self) -> None:
        while (bundle := self.queue.get()) is not None:
            try:
                self.send(bundle)
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
                self.note(f"{self.name} failed ({said}): {bundle.recipe.digest} was not sent")
