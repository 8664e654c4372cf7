"""The store: a folder that many write and anybody reads."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from filelock import SoftFileLease

from faudit.bundle import Outcome, Parts, pack_correct, write
from faudit.errors import RecipeError
from faudit.studies import store as store_module
from faudit.studies.store import Store, StoreError
from tests.studies.tools import ended, forked, kill, powerless, read_only, tiny


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


def outcome(digest: str, **values: Any) -> Outcome:
    return Outcome(**{"digest": digest, "status": "done", "accuracy": 0.5, **values})


def finished(store: Store, seed: int, **values: object) -> Path:
    """An attempt that is ready to be published."""
    recipe = tiny(f"seed={seed}")
    attempt = store.attempt(recipe.digest)
    failed = {"status": "failed", "reason": "crash", **values}
    write(attempt, Parts(recipe, outcome(recipe.digest, **failed)))
    return attempt


def digest(seed: int) -> str:
    return tiny(f"seed={seed}").digest


# -- reading ------------------------------------------------------------------------------------


def test_five_thousand_runs_are_listed_in_a_second(store: Store) -> None:
    bits = pack_correct([True] * 10_000)
    for number in range(5000):
        name = f"{number:020x}"
        folder = store.path / "runs" / name
        folder.mkdir()
        (folder / "outcome.json").write_text(outcome(name, tests=10_000, correct=bits).to_json())
    began = time.process_time()
    listed = [entry for entry in store if entry.outcome and entry.outcome.done]
    assert time.process_time() - began < 1.0
    assert len(listed) == 5000


def test_a_listing_shows_damage_and_goes_on(store: Store) -> None:
    for number, text in enumerate(["", "{", '{"digest": 1}']):
        folder = store.path / "runs" / f"{number:020x}"
        folder.mkdir()
        (folder / "outcome.json").write_text(text)
    (store.path / "runs" / f"{3:020x}").mkdir()
    assert [bool(entry.damage) for entry in store] == [True] * 4
    assert "DAMAGED" in str(next(iter(store)))


def test_what_is_no_run_is_not_listed(store: Store) -> None:
    for name in ("notes", ".hidden", "0" * 19, "G" * 20):
        (store.path / "runs" / name).mkdir()
    assert list(store) == []


@pytest.mark.parametrize("name", ["../runs", "/etc", "", "a/../../b", "0" * 21, "..", "\x00"])
def test_no_name_leads_out_of_the_store(store: Store, name: str) -> None:
    for use in (store.folder, store.claim, store.room, store.recipe, store.supersede, store.entry):
        with pytest.raises(StoreError, match="not the name of a run"):
            use(name)


def test_a_store_of_another_format_is_refused(store: Store) -> None:
    (store.path / "faudit-store.json").write_text('{"format": 2}')
    with pytest.raises(StoreError, match="says format 2, and this faudit reads 1"):
        Store(store.path)


def test_there_must_be_a_store_to_read(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no store"):
        Store(tmp_path / "nowhere")


def test_a_read_only_store_is_read_and_says_no_to_work(store: Store) -> None:
    store.publish(digest(1), finished(store, 1))

    def look() -> None:
        powerless()
        found = Store(store.path)
        assert [str(entry.outcome) for entry in found] == ["FAILED(crash, epoch 0)"]
        assert found[digest(1)].recipe.seed == 1
        with pytest.raises(StoreError, match="cannot write to the store"):
            Store.open(store.path)
        with pytest.raises(StoreError, match="cannot claim runs"):
            found.claim(digest(2))

    with read_only(store.path):
        assert ended(forked(look)) == 0


# -- asking ---------------------------------------------------------------------------------------


def test_what_was_asked_for_is_wanted_until_it_is_there(store: Store) -> None:
    store.want([tiny("seed=1"), tiny("seed=2"), tiny("seed=1")])
    assert store.wanted() == sorted([digest(1), digest(2)])
    store.publish(digest(1), finished(store, 1))
    assert store.wanted() == [digest(2)]


def test_a_recipe_under_a_false_name_is_refused(store: Store) -> None:
    (store.path / "wanted" / f"{'0' * 20}.json").write_text(tiny().to_json())
    with pytest.raises(StoreError, match=f"holds the recipe {tiny().digest}"):
        store.recipe("0" * 20)


def test_a_damaged_recipe_is_refused(store: Store) -> None:
    (store.path / "wanted" / f"{'0' * 20}.json").write_text("{")
    with pytest.raises(RecipeError, match="not valid JSON"):
        store.recipe("0" * 20)


# -- claims ---------------------------------------------------------------------------------------


def test_one_run_has_one_holder(store: Store) -> None:
    claim = store.claim(digest(1))
    assert claim is not None
    assert Store(store.path).claim(digest(1)) is None
    assert f"process {os.getpid()} on" in store.holder(digest(1))
    assert store.claimed() == [digest(1)]
    claim.release()
    assert store.claimed() == []
    assert Store(store.path).claim(digest(1)) is not None


def test_a_holder_that_was_killed_is_replaced_at_once(store: Store) -> None:
    def hold() -> None:
        kept = Store(store.path).claim(digest(1))
        time.sleep(60 if kept else 0)

    holder = forked(hold)
    while not store.holder(digest(1)):
        time.sleep(0.005)
    assert store.claim(digest(1)) is None
    kill(holder)
    assert store.claim(digest(1)) is not None


def test_a_holder_that_was_killed_before_it_signed_is_replaced_after_the_lease(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hold() -> None:
        monkeypatch.setattr(
            SoftFileLease, "_write_lock_info", lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        )
        store.claim(digest(1))

    assert ended(forked(hold)) == -signal.SIGKILL
    assert store.claimed() == [digest(1)]
    assert store.holder(digest(1)) == ""
    monkeypatch.setattr(store_module, "LEASE_SECONDS", 0.3)
    assert store.claim(digest(1)) is None
    time.sleep(0.2)
    assert store.claim(digest(1)) is None
    time.sleep(0.2)
    assert store.claim(digest(1)) is not None


def test_a_lease_that_was_signed_since_it_was_looked_at_stays(store: Store) -> None:
    lease = store._lease(digest(1))
    lease.acquire()
    marker = store.path / "claims" / digest(1)
    text = marker.read_text()
    store_module._remove_unsigned(marker)
    assert marker.read_text() == text
    assert store.claim(digest(1)) is None
    lease.release()
    marker.touch()
    store_module._remove_unsigned(marker)
    assert os.listdir(marker.parent) == []


def test_a_holder_that_is_slow_to_sign_keeps_its_lease(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "LEASE_SECONDS", 0.3)
    lease = store._lease(digest(1))
    lease.acquire()
    marker = store.path / "claims" / digest(1)
    text = marker.read_text()
    marker.write_text("")
    assert store.claim(digest(1)) is None
    marker.write_text(text)
    time.sleep(0.4)
    os.utime(marker)
    assert store.claim(digest(1)) is None
    lease.release()


def test_a_holder_elsewhere_is_replaced_once_it_has_been_silent_here_long_enough(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "LEASE_SECONDS", 0.4)
    marker = foreign_marker(store, monkeypatch)
    assert store.claim(digest(1)) is None
    time.sleep(0.25)
    os.utime(marker)  # a heartbeat
    assert store.claim(digest(1)) is None
    time.sleep(0.25)
    assert store.claim(digest(1)) is None
    time.sleep(0.25)
    assert store.claim(digest(1)) is not None


@pytest.mark.parametrize("hours", [-24, 24])
def test_a_wrong_clock_ends_no_lease(
    store: Store, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """Neither a holder whose heartbeats are dated wrongly nor a reader whose own clock is wrong."""
    marker = foreign_marker(store, monkeypatch)
    wrong = time.time() + hours * 3600
    os.utime(marker, (wrong, wrong))
    monkeypatch.setattr(time, "time", lambda: wrong + hours * 3600)
    for _ in range(3):
        assert store.claim(digest(1)) is None


def foreign_marker(store: Store, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lease whose holder lives on another machine, as its file shows it."""
    lease = store._lease(digest(1))
    lease.acquire()
    path = store.path / "claims" / digest(1)
    text = path.read_text()
    lease.release()
    host = next(line for line in text.splitlines() if line.startswith("host="))
    path.write_text(text.replace(host, "host=elsewhere"))
    assert isinstance(lease, SoftFileLease)
    return path


# -- publishing -----------------------------------------------------------------------------------


def test_a_run_appears_whole_and_its_workshop_goes(store: Store) -> None:
    store.want([tiny("seed=1")])
    attempt = finished(store, 1)
    assert digest(1) not in store
    assert store.publish(digest(1), attempt)
    assert store[digest(1)].recipe.seed == 1
    assert not (store.path / "work" / digest(1)).exists()
    assert store.wanted() == []


def test_a_run_is_published_once(store: Store) -> None:
    first = finished(store, 1, reason="non-finite", message="first")
    second = finished(store, 1, reason="non-finite", message="second")
    assert store.publish(digest(1), first)
    assert not store.publish(digest(1), second)
    assert store[digest(1)].outcome.message == "first"


def test_a_run_that_only_the_machine_failed_gives_way(store: Store) -> None:
    store.publish(digest(1), finished(store, 1, reason="crash"))
    assert store.publish(digest(1), finished(store, 1, reason="non-finite"))
    assert store[digest(1)].outcome.reason == "non-finite"
    assert len(list((store.path / "superseded").iterdir())) == 1


def test_eight_processes_that_publish_one_run_leave_one_whole_run(store: Store) -> None:
    attempts = [finished(store, 1, reason="non-finite", message=str(n)) for n in range(8)]
    gate = time.monotonic() + 0.3

    def publish(attempt: Path) -> int:
        while time.monotonic() < gate:
            pass
        return 10 if Store(store.path).publish(digest(1), attempt) else 11

    codes = [ended(child) for child in [forked(partial(publish, a)) for a in attempts]]
    assert sorted(codes) == [10] + [11] * 7
    assert store[digest(1)].outcome.message in map(str, range(8))


def test_killed_between_finishing_and_publishing_nothing_is_lost(store: Store) -> None:
    attempt = finished(store, 1)
    assert store.finished_attempt(digest(1)) == attempt
    (attempt / "manifest.json").unlink()
    assert store.finished_attempt(digest(1)) is None
    store.sweep(digest(1))
    assert not attempt.exists()


def test_deaths_count_only_without_progress(store: Store) -> None:
    kept = store.room(digest(1)) / "checkpoints" / "origin"
    kept.mkdir(parents=True)
    assert [store.note_death(digest(1), "crash") for _ in range(2)] == [1, 2]
    (kept / f"epoch-000004-{'0' * 64}.safetensors").touch()
    assert store.checkpointed(digest(1)) == 4
    assert store.note_death(digest(1), "crash") == 1
    store.forgive(digest(1))
    assert store.note_death(digest(1), "crash") == 1


def test_a_killed_writer_leaves_nothing_that_is_read(store: Store) -> None:
    """kill -9 while an attempt is written: the store shows no trace of it."""

    def write_forever() -> None:
        while True:
            finished(Store(store.path), 1)

    child = forked(write_forever)
    time.sleep(0.15)
    os.kill(child, signal.SIGKILL)
    assert ended(child) == -signal.SIGKILL
    assert list(store) == []
    store.sweep(digest(1))
    assert list(store.room(digest(1)).glob("attempt-*")) == []
