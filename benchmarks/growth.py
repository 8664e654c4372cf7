"""Growth: how a step's cost grows with depth, width and batch, and a study's with its runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.clock import Work, exponent, interleaved, threads
from benchmarks.loops import cifar_shaped, learning
from benchmarks.rows import Row, Section
from faudit.data.sets import Dataset
from faudit.recipe import Recipe, grid
from faudit.routes import chosen
from faudit.studies.runner import run

STEPS, ROUNDS = 2, 7
LINEAR = 1.05
"""The largest exponent that counts as linear."""

AXES = {"depth": (2, 4, 8, 16, 32), "width": (64, 128, 256, 512, 1024), "batch": (32, 128, 512)}
RUNS = (1, 2, 4, 8)
SMALL = Recipe(rule="dfa").set(
    "data.name=fashion-sample", "data.train_limit=1280", "training.epochs=2", "data.test_limit=200"
)


def sections() -> list[Section]:
    """Fitted exponents; the embedding is a fixed part of a step and keeps them low."""
    with threads(1):
        data, route = cifar_shaped(), chosen()
        rows = [row for axis, sizes in AXES.items() for row in along(data, route, axis, sizes)]
        rows += over_runs()
    note = f"DFA, ResMLP d256 L4 batch 128 but for the axis, one thread, processor time, {route}"
    return [Section("Growth of cost", note, tuple(rows))]


def along(data: Dataset, route: str, axis: str, sizes: tuple[int, ...]) -> list[Row]:
    """The exponent along one axis, and whether the last block costs what the first did."""
    works: dict[str, Work] = {
        str(size): learning(data, "dfa", STEPS, route=route, **{axis: size}) for size in sizes
    }
    found = {int(name): median(times) for name, times in interleaved(works, ROUNDS).items()}
    target = {"most": LINEAR} if axis == "depth" else {}
    what = f"exponent of {axis}, {sizes[0]} to {sizes[-1]}"
    rows = [Row(what, exponent(sizes, list(found.values())), "", **target)]
    if axis == "depth":
        late, early = (found[32] - found[16]) / 16, (found[16] - found[2]) / 14
        rows.append(Row("a block at depth 17 to 32 / one at 3 to 16", late / early))
    return rows


def over_runs() -> list[Row]:
    """The exponent of the number of runs, one after the other in one process."""
    works: dict[str, Work] = {str(count): partial(_study, count) for count in RUNS}
    times = interleaved(works, 3)
    found = [median(times[str(count)]) for count in RUNS]
    return [Row("exponent of runs, 1 to 8", exponent(RUNS, found), "", most=LINEAR)]


def _study(count: int) -> None:
    with TemporaryDirectory() as folder:
        for recipe in grid(SMALL, seed=range(count)):
            run(recipe, Path(folder) / recipe.digest)


if __name__ == "__main__":
    print(*sections(), sep="\n")
