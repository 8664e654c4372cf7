"""Runs that take milliseconds, and processes that are killed in the middle of them."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from faudit.recipe import Recipe

TINY = Recipe().set(
    "data.name=student-teacher",
    "data.train_limit=96",
    "data.test_limit=40",
    "training.epochs=3",
    "training.batch=32",
    "network.options.width=8",
    "network.options.depth=2",
    "measuring.samples=16",
    "rule.name=dfa",
)


def tiny(*assignments: str) -> Recipe:
    """A run of a few milliseconds."""
    return TINY.set(*assignments)


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a bundle whose bits a run determines: all but the manifest."""
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "manifest.json"}


def table(folder: Path) -> dict[str, dict[str, bytes]]:
    """Every published run of a store, to the last bit."""
    return {run.name: content(run) for run in (folder / "runs").iterdir()}


def forked(action: Callable[[], object]) -> int:
    """Start a process of our own that does this; returns its number."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        result = action()
        code = result if isinstance(result, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def ended(child: int) -> int:
    """Wait for a process; its exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """A folder in which nobody may write, for a moment."""
    subprocess.run(["chmod", "-R", "a-w", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["chmod", "-R", "u+w", str(folder)], check=True)


def powerless() -> None:
    """From here on this process, though it be root's, may do no more than files permit."""
    version_and_self = (ctypes.c_uint32 * 2)(0x20080522, 0)
    no_capability = (ctypes.c_uint32 * 6)()
    if os.getuid() == 0:
        assert ctypes.CDLL(None).capset(version_and_self, no_capability) == 0


def kill(child: int) -> int:
    """kill -9."""
    os.kill(child, signal.SIGKILL)
    return ended(child)
