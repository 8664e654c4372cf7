"""What a study looks like while it runs: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Protocol

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from faudit.measures.evidence import printable
from faudit.recipe import Recipe


@dataclass(frozen=True)
class Running:
    """One run under way; ``rate`` is in training samples per second, ``size`` in usual runs."""

    label: str
    epoch: int = 0
    epochs: int = 1
    share: float = 0.0
    rate: float = 0.0
    accuracy: float | None = None
    size: float = 1.0

    @property
    def done(self) -> float:
        """The share of the run that is behind it."""
        return min(1.0, (self.epoch + self.share) / self.epochs)


@dataclass(frozen=True)
class Status:
    """A study at one moment.

    Runs differ in size, and work is counted in runs of the study's mean size: ``found`` is what
    checkpoints spared, and ``made`` what the runs that have ended come to, if that is not their
    number.
    """

    total: int
    cached: int = 0
    finished: int = 0
    failed: int = 0
    running: Sequence[Running] = ()
    found: float = 0.0
    made: float | None = None

    @property
    def behind(self) -> float:
        """How many runs' worth of work is behind the study, beyond what was published before."""
        made = self.finished + self.failed if self.made is None else self.made
        return made + sum(run.done * run.size for run in self.running)

    @property
    def ahead(self) -> float:
        """How many runs' worth of work is still to do."""
        return self.total - self.cached - self.behind

    def line(self) -> str:
        """The counts in words.

        >>> Status(total=5, cached=2, finished=1, running=[Running("dfa seed 42")]).line()
        '1 of 3 runs finished, 1 running, 2 were there'
        """
        parts = [f"{self.finished} of {self.total - self.cached} runs finished"]
        parts += [f"{self.failed} failed"] if self.failed else []
        parts += [f"{len(self.running)} running"] if self.running else []
        parts += [f"{self.cached} were there"] if self.cached else []
        return ", ".join(parts)


class Board(Protocol):
    """Shows a study; engines call it and never wait for it."""

    def show(self, status: Status) -> None:
        """The study as it stands now; called several times a second."""

    def note(self, message: str) -> None:
        """Something happened that should stay readable."""

    def close(self) -> None:
        """The study is over."""


def label(recipe: Recipe) -> str:
    """A run in a few words, safe to print whatever its names hold.

    >>> label(Recipe())
    'resmlp bp cifar10 seed 42'
    """
    words = [recipe.network.name, recipe.rule.name, recipe.data.name]
    training = recipe.training
    words += [f"penalty {training.penalty:g}"] if training.penalty else []
    if training.trainable_blocks is not None:
        words += [f"last {training.trainable_blocks} blocks"]
    return printable(" ".join([*words, f"seed {recipe.seed}"]))[:80]


@dataclass
class Clock:
    """Estimates the time left from the work seen done; monotonic, so a set clock changes nothing.

    >>> clock = Clock(now=iter([0.0, 10.0]).__next__)
    >>> clock.left(Status(total=4, finished=1))
    30.0
    """

    now: Callable[[], float] = time.monotonic
    began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.now()

    def left(self, status: Status) -> float | None:
        """Seconds until the study is over; None while nothing is known."""
        done = status.behind - status.found
        return (self.now() - self.began) * status.ahead / done if done > 0 else None


def time_left(seconds: float | None) -> str:
    """How long a study may still take on the clock on the wall, at the pace it has had so far.

    >>> time_left(5), time_left(None)
    ('about 5 s left', 'time left not known yet')
    """
    return "time left not known yet" if seconds is None else f"about {duration(seconds)} left"


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(5), duration(125), duration(7300)
    ('5 s', '2 min 05 s', '2 h 01 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def rate(running: Sequence[Running]) -> str:
    """The samples trained on per second, over all runs."""
    return f"{sum(run.rate for run in running):,.0f} samples/s"


@dataclass
class Silent:
    """Shows nothing."""

    def show(self, status: Status) -> None: ...

    def note(self, message: str) -> None: ...

    def close(self) -> None: ...


@dataclass
class Lines:
    """Plain lines: one per event, and the state of things every so often."""

    out: IO[str] = field(default_factory=lambda: sys.stderr)
    every: float = 10.0
    clock: Clock = field(default_factory=Clock)
    last: float = field(default_factory=time.monotonic)

    def show(self, status: Status) -> None:
        if time.monotonic() - self.last < self.every:
            return
        self.last = time.monotonic()
        left = time_left(self.clock.left(status))
        self.note(f"{status.line()}; {rate(status.running)}, {left}")

    def note(self, message: str) -> None:
        print("\n".join(map(printable, message.splitlines())), file=self.out, flush=True)

    def close(self) -> None: ...


class Screen:
    """A table that redraws itself."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.clock = Clock()
        self.live = Live(console=console, refresh_per_second=4, transient=True)

    def show(self, status: Status) -> None:
        # Not before there is something to show: a study that is refused never closes its board.
        self.live.start()
        self.live.update(self._table(status))

    def note(self, message: str) -> None:
        text = "\n".join(map(printable, message.splitlines()))
        self.console.print(escape(text), highlight=False, soft_wrap=True)

    def close(self) -> None:
        self.live.stop()

    def _table(self, status: Status) -> Table:
        left = time_left(self.clock.left(status))
        title = f"{status.line()}; {rate(status.running)}, {left}"
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        for name in ("run", "epoch", "done", "samples/s", "accuracy"):
            table.add_column(name, justify="left" if name == "run" else "right")
        for run in status.running:
            table.add_row(*map(escape, _row(run)))
        return table


def _row(run: Running) -> list[str]:
    accuracy = "" if run.accuracy is None else f"{run.accuracy:.3f}"
    bar = f"{100 * run.done:.0f} %"
    return [run.label, f"{run.epoch}/{run.epochs}", bar, f"{run.rate:,.0f}", accuracy]


def running(recipe: Recipe, standing: Mapping[str, Any], size: float = 1.0) -> Running:
    """One run under way, from its recipe and what its diary says."""
    known = {name: standing[name] for name in ("epoch", "share", "rate") if name in standing}
    accuracy = standing.get("accuracy")
    epochs = recipe.training.epochs
    return Running(label(recipe), epochs=epochs, accuracy=accuracy, size=size, **known)


def board(quiet: bool = False, out: IO[str] | None = None) -> Board:
    """The board that suits where output goes."""
    if quiet:
        return Silent()
    out = out or sys.stderr
    return Screen(Console(file=out)) if out.isatty() else Lines(out)
