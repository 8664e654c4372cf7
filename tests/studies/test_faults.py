"""Faults: whatever kills a study, and wherever, its table ends the same to the last bit."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from faudit import atomic
from faudit.baselines import frozen
from faudit.bundle import Bundle
from faudit.recipe import Recipe
from faudit.report.document import write_report
from faudit.studies import attempt as ends
from faudit.studies import runner
from faudit.studies.attempt import Signals, attempt, last_word
from faudit.studies.checkpoint import newest
from faudit.studies.engines import Inline, Stopped
from faudit.studies.judging import judge_store
from faudit.studies.progress import Silent
from faudit.studies.store import Store, StoreError
from faudit.studies.study import plan, train
from tests.studies.tools import content, ended, forked, powerless, read_only, table, tiny

STUDY = [tiny("training.epochs=6", f"rule.name={rule}") for rule in ("dfa", "kp", "sb")]
SHORT = tiny("training.epochs=2", "network.options.depth=1")


@pytest.fixture(autouse=True)
def every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints after every epoch, however short."""
    monkeypatch.setattr(runner, "CHECKPOINT_SHARE", float("inf"))


def make(recipes: list[Recipe], folder: Path) -> None:
    train(recipes, folder, engine=Inline(), show=Silent())


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """The table that every other way through the study must end with."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    make(STUDY, folder)
    return table(folder)


# -- kill -9 --------------------------------------------------------------------------------------


def test_thirty_kills_at_random_moments(
    tmp_path: Path, uninterrupted: dict[str, dict[str, bytes]]
) -> None:
    moments, span = random.Random(1), duration(tmp_path / "timed")
    store = Store.open(tmp_path / "store")
    killed, resumed = 0, 0
    while killed < 30:
        child = forked(lambda: make(STUDY, store.path))
        time.sleep(moments.uniform(0, span))
        os.kill(child, signal.SIGKILL)
        killed += ended(child) == -signal.SIGKILL
        # Runs that are done are taken away, so that there is always a victim.
        for entry in list(store):
            assert content(entry.folder) == uninterrupted[entry.digest]
            resumed += entry.bundle().manifest.timing["resumed"] > 0
            store.supersede(entry.digest)
    make(STUDY, store.path)
    assert table(store.path) == uninterrupted
    assert resumed > 0
    assert list((store.path / "work").iterdir()) == []


def duration(folder: Path) -> float:
    """How long a study takes that nobody kills."""
    began = time.monotonic()
    assert ended(forked(lambda: make(STUDY, folder))) == 0
    return time.monotonic() - began


EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree"}


def steps_on(root: Path, act: Callable[[int], None]) -> None:
    """Call ``act`` with the number of every step that this process takes on files under ``root``.

    A step is an operation about to happen, a content half written, or a content about to be
    forced to the disk. There is no way back, so this is for a process that ends soon.
    """
    count = iter(range(1_000_000))
    fsync = os.fsync

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        writes = event == "open" and bool(cast(int, arguments[2]) & (os.O_WRONLY | os.O_RDWR))
        if (writes or event in EVENTS) and str(arguments[0]).startswith(str(root)):
            act(next(count))

    def half_written(path: Path, raw: bytes, *, durable: bool = True) -> None:
        with open(path, "wb") as file:
            file.write(raw[: len(raw) // 2])
            file.flush()
            act(next(count))
            file.write(raw[len(raw) // 2 :])

    def forced(descriptor: int) -> None:
        act(next(count))
        fsync(descriptor)

    sys.addaudithook(audit)
    atomic.write_through = half_written
    os.fsync = forced  # type: ignore[assignment]


def test_killed_at_every_single_step_towards_the_disk(tmp_path: Path) -> None:
    make([SHORT], tmp_path / "whole")
    steps = int(counted(tmp_path / "counted"))
    assert steps > 40
    for at in range(steps):
        folder = tmp_path / f"killed-{at}"

        def suicidal(folder: Path = folder, at: int = at) -> None:
            steps_on(folder, lambda n: os.kill(os.getpid(), signal.SIGKILL) if n == at else None)
            make([SHORT], folder)

        # The last steps are only taken where a slow machine has the run report in between.
        assert ended(forked(suicidal)) == -signal.SIGKILL or at > steps - 5, at
        for run in Store(folder) if folder.is_dir() else ():
            run.bundle()  # what is there is whole
        make([SHORT], folder)
        assert table(folder) == table(tmp_path / "whole"), at
        assert list((folder / "work").iterdir()) == [], at
        # Only the store's own mark belongs to no run; whoever dies over it leaves a hidden file.
        assert {path.parent for path in folder.rglob("*.tmp")} <= {folder}, at


def counted(folder: Path) -> str:
    """How many steps an undisturbed study takes."""
    note = folder.with_suffix(".txt")

    def counting() -> None:
        numbers: list[int] = []
        steps_on(folder, numbers.append)
        make([SHORT], folder)
        note.write_text(str(len(numbers)))

    assert ended(forked(counting)) == 0
    return note.read_text()


# -- many processes on one store ------------------------------------------------------------------


@pytest.mark.parametrize("processes", [2, 8])
def test_several_processes_share_a_study_and_make_no_run_twice(
    tmp_path: Path, processes: int, uninterrupted: dict[str, dict[str, bytes]]
) -> None:
    Store.open(tmp_path / "store")
    children = [forked(partial(until_done, tmp_path)) for _ in range(processes)]
    assert [ended(child) for child in children] == [0] * processes
    assert table(tmp_path / "store") == uninterrupted
    made = [line for note in tmp_path.glob("*.txt") for line in note.read_text().split()]
    assert sorted(made) == sorted(uninterrupted)


def until_done(folder: Path) -> None:
    """Take part in the study, noting which runs this process trained."""
    real = runner.run

    def noted(recipe: Recipe, *args: object, **rest: object) -> object:
        with open(folder / f"{os.getpid()}.txt", "a") as note:
            note.write(recipe.digest + "\n")
        return real(recipe, *args, **rest)  # type: ignore[arg-type]

    runner.run = noted  # type: ignore[assignment]
    store = Store(folder / "store")
    while len(store.digests()) < len(STUDY):
        make(STUDY, folder / "store")
        time.sleep(0.01)


# -- storage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [200, 3_000, 9_000])
def test_a_quota_pauses_the_study_and_harms_nothing(
    tmp_path: Path, limit: int, uninterrupted: dict[str, dict[str, bytes]]
) -> None:
    """RLIMIT_FSIZE refuses a write as a full disk does: some recipes, checkpoints or bundles."""

    def crowded() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        with pytest.raises(StoreError, match="the study has paused"):
            make(STUDY, tmp_path)

    assert ended(forked(crowded)) == 0
    for run in Store(tmp_path):
        run.bundle()
    make(STUDY, tmp_path)
    assert table(tmp_path) == uninterrupted


def test_a_full_disk_leaves_the_previous_checkpoint_whole(tmp_path: Path) -> None:
    store, digest = Store.open(tmp_path), SHORT.digest
    store.want([SHORT])

    def fills_up() -> int:
        save = runner.checkpoint.save

        def second_fails(folder: Path, epoch: int, state: dict[str, object]) -> Path:
            if epoch == 2:
                resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
            return save(folder, epoch, state)

        runner.checkpoint.save = second_fails
        return attempt(store, digest)

    assert ended(forked(fills_up)) == ends.STORAGE
    assert "File too large" in last_word(store, digest, ends.STORAGE)
    (origin,) = (store.room(digest) / "checkpoints").iterdir()
    found = newest(origin)
    assert found is not None
    assert found[0] == 1
    assert [p.suffix for p in origin.iterdir()] == [".safetensors"]


def test_a_read_only_store_is_judged_and_reported_and_takes_no_run(tmp_path: Path) -> None:
    recipes = [SHORT, frozen(SHORT)]
    make(recipes, tmp_path / "store")
    before = table(tmp_path / "store")

    def read() -> None:
        powerless()
        (judged,) = judge_store(Store(tmp_path / "store"), recipes)
        assert judged.verdict.finding("D3").value is not None
        page = write_report(tmp_path / "store", tmp_path / "report", formats=["svg"])
        assert judged.verdict.outcome in page.read_text()
        assert len(plan(recipes, tmp_path / "store").cached) == 2
        with pytest.raises(StoreError, match="cannot write to the store"):
            make([tiny()], tmp_path / "store")

    with read_only(tmp_path / "store"):
        assert ended(forked(read)) == 0
    assert table(tmp_path / "store") == before


# -- stopping -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_process_saves_its_state_and_asks_to_be_called_again(
    tmp_path: Path, number: signal.Signals
) -> None:
    long = tiny("training.epochs=400")
    store = Store.open(tmp_path)
    store.want([long])

    def stoppable() -> int:
        with Signals() as stopped:
            return attempt(store, long.digest, stop=stopped)

    child = forked(stoppable)
    while store.checkpointed(long.digest) < 2:
        time.sleep(0.005)
    os.kill(child, number)
    assert ended(child) == ends.REQUEUE == 75
    saved = store.checkpointed(long.digest)
    lived = [record["epoch"] for record in store.live_history(long.digest)]
    assert saved == lived[-1]


def test_a_stopped_study_says_so(tmp_path: Path) -> None:
    def stopped() -> int:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
        try:
            make([tiny("training.epochs=400")], tmp_path)
        except Stopped as error:
            return error.exit_code
        return 0

    assert ended(forked(stopped)) == 75


# -- damage ---------------------------------------------------------------------------------------


def test_a_damaged_run_is_made_again_and_kept_aside(tmp_path: Path) -> None:
    make([SHORT], tmp_path)
    whole = table(tmp_path)
    weights = Store(tmp_path).folder(SHORT) / "outcome.json"
    weights.write_bytes(weights.read_bytes()[:-5])
    make([SHORT], tmp_path)
    assert table(tmp_path) == whole
    assert len(list((tmp_path / "superseded").iterdir())) == 1


def test_no_flipped_bit_or_cut_in_the_workshop_changes_the_table(tmp_path: Path) -> None:
    """Whatever an interrupted run left, damaged anywhere: checkpoints, attempt, diary, request."""
    make([SHORT], tmp_path / "whole")
    left = tmp_path / "left"

    def dies_before_publishing() -> None:
        store = Store.open(left)
        store.want([SHORT])
        store.note_death(SHORT.digest, "crash")
        store.publish = lambda *_: os._exit(9)  # type: ignore[method-assign, return-value]
        attempt(store, SHORT.digest)

    assert ended(forked(dies_before_publishing)) == 9
    files = [p.relative_to(left) for p in sorted(left.rglob("*")) if p.is_file()]
    assert {p.suffix for p in files} >= {".safetensors", ".json", ".jsonl"}
    places = random.Random(1)
    for file in (f for f in files if f.name != "faudit-store.json"):
        for turn in range(4):
            folder = Path(shutil.copytree(left, tmp_path / "damaged"))
            raw = bytearray((folder / file).read_bytes())
            at = places.randrange(len(raw))
            raw[at] ^= 1 << places.randrange(8)
            (folder / file).write_bytes(raw[:at] if turn == 0 else raw)
            make([SHORT], folder)
            assert table(folder) == table(tmp_path / "whole"), (file, at, turn)
            assert list((folder / "work").iterdir()) == []
            shutil.rmtree(folder)


def test_a_damaged_last_word_is_no_word(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    for text in ('{"cod": 70}', "[70]", "{", "", "null"):
        (store.room(SHORT.digest) / "ending.json").write_text(text)
        assert last_word(store, SHORT.digest, ends.CRASH) == "the process ended with exit code 70"


def test_a_false_finished_attempt_is_not_published(tmp_path: Path) -> None:
    """What a killed attempt left is believed only if every hash in it fits."""
    make([SHORT], tmp_path / "whole")
    store = Store.open(tmp_path / "store")
    store.want([SHORT])
    left = store.attempt(SHORT.digest)
    for file in (tmp_path / "whole" / "runs" / SHORT.digest).iterdir():
        (left / file.name).write_bytes(file.read_bytes())
    (left / "weights.safetensors").write_bytes(b"not the weights")
    assert attempt(store, SHORT.digest) == ends.PUBLISHED
    assert table(tmp_path / "store") == table(tmp_path / "whole")
    Bundle.load(store.folder(SHORT))
