"""Growth: how a step's cost grows with depth, width and batch, and a study's with its runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.clock import Work, exponent, interleaved, ratio, threads
from benchmarks.loops import cifar_shaped, learning
from benchmarks.rows import Row, Section
from faudit.data.sets import Dataset
from faudit.recipe import Recipe, grid
from faudit.routes import chosen
from faudit.studies.runner import run

STEPS, ROUNDS = 2, 7
LINEAR = 1.05
"""The largest exponent that counts as linear."""
ALIKE = 1.2
"""The most that a deep block may cost over an early one; at quadratic cost it would be 2.7."""

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
    """The exponent along one axis; along depth also what a deep block costs over an early one.

    A step's fixed part keeps the exponent low whatever a block costs, so blocks are also compared.
    """
    works: dict[str, Work] = {
        str(size): learning(data, "dfa", STEPS, route=route, **{axis: size}) for size in sizes
    }
    times = interleaved(works, ROUNDS)
    target = {"most": LINEAR} if axis == "depth" else {}
    what = f"exponent of {axis}, {sizes[0]} to {sizes[-1]}"
    middle = [median(times[str(size)]) for size in sizes]
    rows = [Row(what, exponent(sizes, middle), "", **target)]
    if axis == "depth":
        late, early = added(times, 16, 32), added(times, 2, 16)
        rows.append(Row.of(DEEP, ratio(late, early), most=ALIKE))
    return rows


DEEP = "a block at depth 17 to 32 / one at 3 to 16"


def added(times: dict[str, list[float]], low: int, high: int) -> list[float]:
    """Every round's cost of one of the blocks between two depths."""
    pairs = zip(times[str(low)], times[str(high)], strict=True)
    return [(more - less) / (high - low) for less, more in pairs]


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
