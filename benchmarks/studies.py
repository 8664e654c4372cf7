"""What a study costs beyond its runs: overhead, two cores against one, small runs, resuming.

Run from anywhere: ``python benchmarks/studies.py``. Contenders take turns, costs are processor time
wherever waiting does not matter, and beside what two cores give a study stands what they gave two
plain processes. Writes ``studies.json`` beside itself.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faudit.bundle import Outcome, pack_correct, read_manifest
from faudit.provenance import machine, versions
from faudit.recipe import Recipe, grid
from faudit.studies import runner
from faudit.studies.engines import Local, cores
from faudit.studies.progress import Silent
from faudit.studies.store import Store
from faudit.studies.study import train
from tests.studies.tools import ended, forked

SMALL = Recipe().set(
    "data.name=student-teacher",
    "data.train_limit=96",
    "data.test_limit=40",
    "training.epochs=1",
    "network.options.width=8",
    "network.options.depth=2",
    "measuring.samples=16",
)
LONG = Recipe().set("data.name=fashion-sample", "network.options.width=256", "rule.name=dfa")
LIMITS = {
    "engine's share of a run of 60 s, %": 5.0,
    "two cores against one": 1.8,
    "engine's cost of a small run, ms": 50.0,
    "epochs lost to kill -9": 1.0,
    "listing 5,000 runs, s": 1.0,
}
AT_LEAST = {"two cores against one"}


def main() -> None:
    torch.set_num_threads(1)
    with TemporaryDirectory() as name:
        folder = Path(name)
        found: dict[str, float] = {}
        for measure in (listing, resuming, two_cores, overhead, small_runs):
            for key, value in measure(folder / measure.__name__).items():
                found[key] = round(value, 3)
                print(f"{key:48} {value:8.2f}{_verdict(key, value)}", flush=True)
    written = Path(__file__).with_suffix(".json")
    load = round(os.getloadavg()[1], 2)
    where = {"machine": machine("cpu"), "cores": cores(), "load": load, "versions": versions()}
    written.write_text(json.dumps({**where, "limits": LIMITS, "found": found}, indent=1) + "\n")


def _verdict(name: str, value: float) -> str:
    if name not in LIMITS:
        return ""
    limit, least = LIMITS[name], name in AT_LEAST
    kept = value >= limit if least else value <= limit
    return f"   ({'at least' if least else 'at most'} {limit:g}{'' if kept else ': MISSED'})"


# -- the five measurements ------------------------------------------------------------------------


def listing(folder: Path) -> dict[str, float]:
    """A store of 5,000 published runs, each with the correctness of 10,000 test examples."""
    store, bits = Store.open(folder), pack_correct([True] * 10_000)
    for number in range(5000):
        run = store.path / "runs" / f"{number:020x}"
        run.mkdir()
        outcome = Outcome(digest=run.name, status="done", accuracy=0.5, tests=10_000, correct=bits)
        (run / "outcome.json").write_text(outcome.to_json())
    seconds = [cpu_of(lambda: list(store)) for _ in range(3)]
    return {"listing 5,000 runs, s": median(seconds)}


def small_runs(folder: Path, count: int = 250) -> dict[str, float]:
    """A study of many runs of milliseconds, against the same runs without any engine."""
    start = cpu_of(partial(study, [SMALL], folder / "one", 1))
    recipes = list(grid(SMALL, seed=range(count)))
    began = time.monotonic()
    whole = cpu_of(partial(study, recipes, folder / "all", 1))
    wall = time.monotonic() - began
    alone = median(
        cpu_of(partial(runner.run, recipe, folder / recipe.digest)) for recipe in recipes[:30]
    )
    return {
        "start-up of a study, s": start - alone,
        "small run without an engine, ms": 1000 * alone,
        "small run within a study, ms": 1000 * (whole - start) / (count - 1),
        "engine's cost of a small run, ms": 1000 * ((whole - start) / (count - 1) - alone),
        "small run within a study, ms on the clock": 1000 * (wall - start) / count,
    }


def overhead(folder: Path, pairs: int = 2) -> dict[str, float]:
    """A run within a study of one against the same run in a process of its own."""
    start = cpu_of(partial(study, [SMALL], folder / "start", 1))
    start -= cpu_of(partial(process, [SMALL], folder / "small"))
    recipe = LONG.set(f"training.epochs={epochs_of(60.0)}")
    alone, within = [], []
    for pair in range(pairs):
        alone.append(cpu_of(partial(process, [recipe], folder / f"alone-{pair}")))
        within.append(cpu_of(partial(study, [recipe], folder / f"within-{pair}", 1)))
    share = (median(within) - start) / median(alone) - 1
    return {
        "engine's share of a run of 60 s, %": 100 * share,
        "start-up of a study of one such run, %": 100 * start / 60,
    }


def two_cores(folder: Path, rounds: int = 2, runs: int = 4) -> dict[str, float]:
    """Independent runs by one slot and by two, and by one plain process and by two.

    The clock runs from the first run's start to the last one's end. What two plain processes gain
    is what the machine had to give in that minute.
    """
    recipes = list(grid(LONG.set(f"training.epochs={epochs_of(0.8)}"), seed=range(runs)))
    contenders: dict[str, Callable[[Path], Any]] = {
        "one process": lambda at: processes([recipes], at),
        "two processes": lambda at: processes([recipes[::2], recipes[1::2]], at),
        "one slot": lambda at: study(recipes, at, 1),
        "two slots": lambda at: study(recipes, at, 2),
    }
    spans: dict[str, list[Span]] = {name: [] for name in contenders}
    for turn in range(rounds):
        for name, contender in contenders.items():
            contender(folder / f"{name}-{turn}")
            spans[name].append(Span.of(folder / f"{name}-{turn}"))
    best = {name: min(span.seconds for span in found) for name, found in spans.items()}
    return {
        "two plain processes against one": best["one process"] / best["two processes"],
        "two cores against one": best["one slot"] / best["two slots"],
        "a slot's pause between two runs, ms": 1000
        * median(span.pause for span in spans["one slot"]),
    }


@dataclass(frozen=True)
class Span:
    """When the runs below a folder were made, as their manifests tell it."""

    seconds: float
    pause: float

    @classmethod
    def of(cls, folder: Path) -> Span:
        made = sorted(
            (
                path.stat().st_mtime - read_manifest(path.parent).timing["seconds"],
                path.stat().st_mtime,
            )
            for path in folder.rglob("manifest.json")
        )
        pauses = [start - end for (_, end), (start, _) in pairwise(made)]
        return cls(max(end for _, end in made) - made[0][0], median(pauses))


def resuming(folder: Path, kills: int = 2) -> dict[str, float]:
    """kill -9 of the whole study at random moments; what had been learnt and is learnt again."""
    recipe = LONG.set("training.epochs=1000", "training.batch=16")
    store, moments, lost = Store.open(folder), random.Random(1), []
    for _ in range(kills):
        before = store.checkpointed(recipe.digest)
        child = forked(partial(study, [recipe], folder, 1))
        while store.checkpointed(recipe.digest) < before + 2:
            time.sleep(0.05)
        time.sleep(moments.uniform(0, 2))
        os.kill(child, signal.SIGKILL)
        ended(child)
        lived = max(record["epoch"] for record in store.live_history(recipe.digest))
        lost.append(lived - store.checkpointed(recipe.digest))
    return {"epochs lost to kill -9": max(lost)}


# -- their tools ----------------------------------------------------------------------------------


def study(recipes: Sequence[Recipe], folder: Path, slots: int) -> None:
    """These runs by the local engine."""
    train(recipes, folder, engine=Local(slots=slots), show=Silent())


def process(recipes: Sequence[Recipe], folder: Path) -> None:
    """These runs one after the other in one plain process, without store or checkpoints."""
    processes([recipes], folder)


def processes(parts: Sequence[Sequence[Recipe]], folder: Path) -> None:
    """Each part's runs in a plain process."""
    children = [forked(partial(plainly, part, folder)) for part in parts]
    assert [ended(child) for child in children] == [0] * len(parts)


def plainly(recipes: Sequence[Recipe], folder: Path) -> None:
    for recipe in recipes:
        runner.run(recipe, folder / recipe.digest, checkpoint_seconds=3600)


def epochs_of(seconds: float) -> int:
    """How many epochs of a long run take so long here."""
    work, learner = runner.prepare(LONG)
    learner.run_epoch(work.epoch_batches)

    def epoch() -> None:
        learner.run_epoch(work.epoch_batches)
        runner.glance(work)

    return max(1, round(seconds / median(cpu_of(epoch) for _ in range(3))))


def cpu_of(action: Callable[[], Any]) -> float:
    """The processor seconds that an action takes, here and in processes that it waits for."""
    before = _cpu()
    action()
    return _cpu() - before


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


if __name__ == "__main__":
    main()
