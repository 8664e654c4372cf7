"""Engines: real processes, really killed."""

from __future__ import annotations

import os
import platform
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from faudit.bundle import Bundle
from faudit.recipe import Recipe
from faudit.studies.engines import Inline, Local, Stopped, Worker
from faudit.studies.progress import Silent
from faudit.studies.store import Store, StoreError
from faudit.studies.study import train, work
from faudit.studies.worker import Settings
from tests.studies.tools import content, ended, forked, table, tiny

SABOTEUR = (sys.executable, str(Path(__file__).with_name("saboteur.py")))
SLOW = [tiny("rule.name=slow", "training.epochs=30", f"seed={seed}") for seed in (1, 2)]


def make(recipes: list[Recipe], folder: Path, **options: object) -> Store:
    engine = Local(command=SABOTEUR, **options)  # type: ignore[arg-type]
    return train(recipes, folder, engine=engine, show=Silent()).store


def inline(recipes: list[Recipe], folder: Path) -> Store:
    return train(recipes, folder, engine=Inline(), show=Silent()).store


def wait_until(what: object, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():  # type: ignore[operator]
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def processes(store: Path) -> set[int]:
    """The processes that make runs of this store now, told by their command line."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
            if {SABOTEUR[1].encode(), str(store).encode()} <= set(words):
                found.add(int(path.parent.name))
        except OSError:
            continue
    return found


def test_what_befalls_one_run_costs_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segfault, an out-of-memory, a bug, a false name and a kill -9, beside healthy runs."""
    monkeypatch.setenv("SABOTAGE", str(tmp_path))
    # One of them asks for more threads than there are slots: it runs alone, and runs.
    healthy = [tiny("seed=1"), tiny("threads=4"), tiny("seed=3")]
    rules = ("segfault", "hog", "bug", "dfaa", "killed")
    struck = {name: tiny(f"rule.name={name}") for name in rules}
    recipes = [struck["segfault"], struck["hog"], *healthy, *list(struck.values())[2:]]
    store = make(recipes, tmp_path / "store", slots=2, attempts=2, memory=address_space())
    ends = {name: store.entry(recipe.digest).outcome for name, recipe in struck.items()}
    assert {name: outcome.reason for name, outcome in ends.items() if outcome} == {
        "segfault": "crash",
        "hog": "oom",
        "bug": "crash",
        "dfaa": "error",
        "killed": "",
    }
    messages = {name: outcome.message for name, outcome in ends.items() if outcome}
    assert "SIGSEGV" in messages["segfault"]
    assert "memory" in messages["hog"]
    assert "a bug in a rule" in messages["bug"]
    assert "did you mean 'dfa'" in messages["dfaa"]
    logs = {name: store.folder(recipe) / "log.txt" for name, recipe in struck.items()}
    assert "Fatal Python error: Segmentation fault" in logs["segfault"].read_text()
    assert 'raise ZeroDivisionError("a bug in a rule")' in logs["bug"].read_text()
    assert not logs["killed"].exists()
    alone = inline(healthy, tmp_path / "alone")
    for recipe in healthy:
        assert content(store.folder(recipe)) == content(alone.folder(recipe))
    # What was learnt until then is kept, also of a run that failed.
    assert [r["epoch"] for r in Bundle.load(store.folder(struck["segfault"])).history] == [1]


def address_space() -> int:
    """Enough for a run and far too little for a hog."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize() + 2**32


def test_a_run_started_anew_has_the_same_bits(tmp_path: Path) -> None:
    """Without forking, as outside Linux."""
    forked_store = make([tiny()], tmp_path / "forked")
    anew = make([tiny()], tmp_path / "anew", fork=False)
    assert table(forked_store.path) == table(anew.path)


STUDY = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.studies.test_engines import SLOW, make
from faudit.errors import FauditError
try:
    make(SLOW, Path(sys.argv[1]), slots=int(sys.argv[2]))
except FauditError as error:
    print(error, file=sys.stderr)
    sys.exit(getattr(error, "exit_code", 2))
"""


def study(folder: Path, slots: int = 2) -> subprocess.Popen[bytes]:
    """A supervisor in a process of its own."""
    code = STUDY.format(root=str(Path(__file__).parents[2]))
    return subprocess.Popen([sys.executable, "-c", code, str(folder), str(slots)])


def under_way(folder: Path) -> bool:
    """Whether both runs have come to their second epoch."""
    store = Store(folder) if (folder / "faudit-store.json").exists() else None
    return store is not None and all(store.checkpointed(r.digest) >= 2 for r in SLOW)


def test_killing_the_supervisor_or_the_worker_loses_an_epoch_at_most(tmp_path: Path) -> None:
    first = study(tmp_path)
    wait_until(lambda: under_way(tmp_path))
    first.kill()
    first.wait()
    # Nobody is left who would work on in secret.
    wait_until(lambda: not processes(tmp_path))
    store = Store(tmp_path)
    saved = [store.checkpointed(recipe.digest) for recipe in SLOW]
    assert min(saved) >= 2
    second = study(tmp_path)
    wait_until(lambda: min(store.checkpointed(r.digest) for r in SLOW) > max(saved) + 1)
    for pid in processes(tmp_path):
        os.kill(pid, signal.SIGKILL)
    assert second.wait() == 0
    for recipe in SLOW:
        found = store[recipe]
        assert found.outcome.done
        assert found.manifest.timing["resumed"] >= 2
        assert [record["epoch"] for record in found.history] == list(range(31))


def test_of_two_supervisors_one_is_killed_and_the_other_ends_its_runs(tmp_path: Path) -> None:
    Store.open(tmp_path).want(SLOW)
    pair = [study(tmp_path, slots=1) for _ in range(2)]
    wait_until(lambda: under_way(tmp_path))
    assert len({Store(tmp_path).holder(recipe.digest) for recipe in SLOW}) == 2
    pair[0].kill()
    pair[0].wait()  # a process that nobody buries looks alive until its lease has run out
    assert pair[1].wait() == 0
    for recipe in SLOW:
        assert [r["epoch"] for r in Store(tmp_path)[recipe].history] == list(range(31))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_study_has_saved_every_run(tmp_path: Path, number: signal.Signals) -> None:
    first = study(tmp_path)
    wait_until(lambda: under_way(tmp_path))
    first.send_signal(number)
    assert first.wait() == 75
    assert not processes(tmp_path)
    store = Store(tmp_path)
    for recipe in SLOW:
        lived = [record["epoch"] for record in store.live_history(recipe.digest)]
        assert store.checkpointed(recipe.digest) == lived[-1]
    assert store.claimed() == []


FAULTS = """
import resource, sys
from pathlib import Path
import torch

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

torch.ones(2**20)
before = faults()
for _ in range(20):
    torch.ones(2**20)
Path(sys.argv[1], "faults").write_text(str(faults() - before))
"""


def faults(folder: Path) -> int:
    """Pages that a worker is given anew while it asks twenty times for the same four megabytes."""
    store = Store.open(folder)
    with Worker(store, Settings(), (sys.executable, "-c", FAULTS)) as worker:
        worker.order("nothing")
        wait_until(lambda: (folder / "faults").exists() and (folder / "faults").read_text())
    return int((folder / "faults").read_text())


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told so")
def test_runs_keep_memory_from_step_to_step_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    assert faults(tmp_path / "kept") < 100
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=65536")
    assert faults(tmp_path / "given back") > 10_000


def test_a_worker_that_cannot_start_is_an_error_that_says_how_to_see_why(tmp_path: Path) -> None:
    engine = Local(command=(sys.executable, "-c", "raise SystemExit(3)"))
    with pytest.raises(StoreError, match="died 4 times in a row; start one by hand to see why"):
        train([tiny()], tmp_path, engine=engine, show=Silent())


def test_storage_that_refuses_pauses_the_study(tmp_path: Path) -> None:
    def crowded() -> None:
        Store.open(tmp_path)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
        with pytest.raises(StoreError, match="Make room and start again"):
            make([tiny()], tmp_path)

    assert ended(forked(crowded)) == 0
    assert list(Store(tmp_path)) == []


def test_runs_in_other_hands_are_waited_for_or_left(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    store.want([tiny()])
    claim = store.claim(tiny().digest)
    assert claim is not None
    assert work(tmp_path, patience=0) == 0
    claim.release()
    assert work(tmp_path, patience=0) == 1
    assert work(tmp_path, patience=0) == 0


def test_damaged_requests_keep_nobody_from_the_others_and_are_made_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damages = ["", "{", tiny("seed=9").to_json()]
    damaged = [tiny(f"seed={seed}") for seed in range(len(damages))]
    store = Store.open(tmp_path)
    store.want([*damaged, tiny()])
    for recipe, text in zip(damaged, damages, strict=True):
        (tmp_path / "wanted" / f"{recipe.digest}.json").write_text(text)
    assert work(tmp_path, patience=0) == 1
    assert capsys.readouterr().err.count("passed over: ") == 3
    assert store.digests() == [tiny().digest]
    assert store.claimed() == []
    inline(damaged, tmp_path)
    assert all(store[recipe].outcome.done for recipe in damaged)


def test_stopped_carries_the_exit_code_for_requeueing() -> None:
    assert Stopped("x").exit_code == 75
