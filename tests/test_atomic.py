"""Atomic files: old or new, whatever happens in between."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest

from faudit import atomic
from tests.studies.tools import ended, forked


def steps(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """kill -9 this process at its ``at``-th step towards the disk."""
    count = iter(range(1_000_000))

    def deadly(step: str) -> None:
        real = getattr(os, step)

        def stepped(*args: object) -> object:
            if next(count) == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args)

        monkeypatch.setattr(os, step, stepped)

    for step in ("fsync", "replace", "open"):
        deadly(step)


@pytest.mark.parametrize("at", range(4))
def test_killed_at_any_step_the_file_is_the_old_one_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    path = tmp_path / "file"
    atomic.write(path, "old")

    def killed() -> None:
        steps(monkeypatch, at)
        atomic.write(path, "new")

    assert ended(forked(killed)) == -signal.SIGKILL
    assert path.read_text() == ("old" if at < 2 else "new")
    atomic.sweep(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_disk_that_is_full_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    atomic.write(path, b"o" * 100)

    def crowded() -> int:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            atomic.write(path, b"n" * 5000)
        except OSError as error:
            return 7 if atomic.no_room(error) else 8
        return 9

    assert ended(forked(crowded)) == 7
    assert path.read_bytes() == b"o" * 100
    assert len(list(tmp_path.iterdir())) == 1
