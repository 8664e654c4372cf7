"""Whole: what a user waits for at the shell: the help page, and a study of twelve runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.clock import Spread, spread
from benchmarks.rows import Row, Section
from faudit.bundle import Bundle
from faudit.recipe import Recipe, grid
from faudit.studies.engines import Local
from faudit.studies.progress import Silent
from faudit.studies.study import train

STARTS = 9
CORES = 2
# As long as a run of the first audit: beside runs of four seconds a study's start is a seventh.
RUN = Recipe().set(
    "data.name=fashion-sample",
    "network.options.width=256",
    "training.epochs=15",
    "data.augment=true",
)


def sections() -> list[Section]:
    """Start-up and a study on two cores."""
    return [start(), study()]


def start() -> Section:
    """The help page, by processor time and on the wall."""
    seconds = [_help() for _ in range(STARTS + 1)][1:]
    rows = (
        Row.of("faudit --help, processor time", spread([cpu for cpu, _ in seconds]), "s", most=0.3),
        Row.of("faudit --help, on the wall", _fastest([wall for _, wall in seconds]), "s"),
    )
    return Section("Start-up", f"{STARTS} starts", rows)


def _help() -> tuple[float, float]:
    program = Path(sys.executable).with_name("faudit")
    began, before = perf_counter(), os.times()
    subprocess.run([program, "--help"], check=True, stdout=subprocess.DEVNULL)
    wall, after = perf_counter() - began, os.times()
    used = after.children_user + after.children_system
    return used - before.children_user - before.children_system, wall


def _fastest(seconds: list[float]) -> Spread:
    """The fastest with the range: on the wall others only ever add."""
    return Spread(min(seconds), min(seconds), max(seconds))


def study() -> Section:
    """Twelve runs by two processes, over half the sum of what each run says it took."""
    recipes = list(grid(RUN, rule=["bp", "fa", "dfa"], seed=[1, 2, 3, 4]))
    with TemporaryDirectory() as folder:
        began = perf_counter()
        done = train(recipes, folder, engine=Local(slots=CORES), show=Silent())
        wall = perf_counter() - began
        found = [Bundle.load(done.store.folder(r), tensors=False).manifest for r in recipes]
    each = [manifest.timing["seconds"] for manifest in found]
    rows = (
        Row(f"{len(each)} runs / (sum of runs / {CORES})", wall / (sum(each) / CORES), most=1.1),
        Row("the study", wall, "s"),
    )
    return Section("A study on two cores", "on the wall, from the first import to the end", rows)


if __name__ == "__main__":
    print(*sections(), sep="\n")
