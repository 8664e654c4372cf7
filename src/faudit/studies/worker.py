"""The process that makes runs: warmed up once, it forks one process for every run.

``python -m faudit.studies.worker STORE`` reads one JSON line per order, ``{"run": DIGEST}``, and
answers ``{"ended": DIGEST, "code": N}``. It imports PyTorch and computes nothing, so a fork costs
milliseconds instead of an import, and a run that crashes takes nothing with it. When its orders
end (also because whoever gave them was killed) it lets every run save its state and leaves.
``python -m faudit.studies.worker STORE DIGEST`` makes one run in this very process; where forking
is not safe (outside Linux), the server starts one of these for every run.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn

from faudit.studies.attempt import CRASH, Signals, attempt, output_to
from faudit.studies.store import Store

GRACE = 30.0


@dataclass(frozen=True)
class Settings:
    """What every run of this worker is told."""

    checkpoint_seconds: float = 0.0
    memory: int | None = None
    fork: bool = sys.platform == "linux"

    @classmethod
    def of(cls, text: str) -> Settings:
        """Settings from JSON."""
        return cls(**json.loads(text))

    def to_json(self) -> str:
        """Settings as JSON."""
        return json.dumps(asdict(self))


def main(arguments: list[str]) -> int:
    """Serve orders, or make one run."""
    store, *rest = arguments
    settings = Settings.of(os.environ.get("FAUDIT_WORKER", "{}"))
    if rest:
        return one_run(Store(store), rest[0], settings)
    Server(Store(store), settings).serve()
    return 0


def one_run(store: Store, digest: str, settings: Settings) -> int:
    """Make one run in this process; returns its exit code.

    The run stops as if asked to when the process that started it is no longer there.
    """
    parent = os.getppid()
    if settings.memory is not None:
        resource.setrlimit(resource.RLIMIT_AS, (settings.memory, settings.memory))
    with Signals() as stopped, output_to(store.log(digest)):
        faulthandler.enable(2)
        return attempt(
            store,
            digest,
            stop=lambda: stopped() or os.getppid() != parent,
            checkpoint_seconds=settings.checkpoint_seconds,
        )


@dataclass
class Server:
    """Forks a process per order and reports how each ended."""

    store: Store
    settings: Settings
    orders: int = 0
    answers: int = 1
    children: dict[int, str] = field(default_factory=dict)
    rest: bytes = b""

    def serve(self) -> None:
        """Until the orders end."""
        if self.settings.fork:
            warm_up()
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: self.dismiss())
        self.say({"ready": os.getpid()})
        while True:
            ready, _, _ = select.select([self.orders, woken], [], [])
            if woken in ready:
                os.read(woken, 4096)
            self.reap()
            if self.orders in ready and not self.obey():
                self.dismiss()

    def obey(self) -> bool:
        """Carry out the orders that have come; False when there will be no more."""
        came = os.read(self.orders, 65536)
        *lines, self.rest = (self.rest + came).split(b"\n")
        for line in lines:
            digest = json.loads(line)["run"]
            self.children[self._start(digest)] = digest
        return bool(came)

    def _start(self, digest: str) -> int:
        if not self.settings.fork:
            command = [sys.executable, "-P", "-m", __spec__.name, str(self.store.path), digest]
            return os.posix_spawn(sys.executable, command, os.environ)
        return os.fork() or self._be_child(digest)

    def _be_child(self, digest: str) -> NoReturn:
        code = CRASH
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_RDONLY), self.orders)
            _first_to_go()
            code = one_run(self.store, digest, self.settings)
        finally:
            with suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def reap(self) -> None:
        """Report the children that have ended."""
        for pid, status in _ended():
            digest = self.children.pop(pid, None)
            if digest is not None:
                self.say({"ended": digest, "code": os.waitstatus_to_exitcode(status)})

    def say(self, answer: dict[str, Any]) -> None:
        """One line to whoever gave the orders, if they still listen."""
        with suppress(OSError):
            os.write(self.answers, json.dumps(answer).encode() + b"\n")

    def dismiss(self) -> NoReturn:
        """Ask all children to save and leave, and make sure that they do."""
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE
        while self.children and time.monotonic() < deadline:
            time.sleep(0.01)
            self.reap()
        self._signal(signal.SIGKILL)
        os._exit(0)

    def _signal(self, number: int) -> None:
        for pid in self.children:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def warm_up() -> None:
    """Import what every run needs, and compute nothing: a forked process must not have threads.

    PyTorch imports its compiler with the first optimiser, which takes longer than a small run.
    """
    import safetensors.torch  # noqa: F401

    from faudit.provenance import code_of, versions
    from faudit.recipe import Recipe
    from faudit.studies import runner

    code_of(Recipe())
    versions()
    runner.torch.set_num_threads(1)
    runner.torch.optim.AdamW([runner.torch.zeros(1, requires_grad=True)])


def _ended() -> Iterator[tuple[int, int]]:
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield pid, status


def _first_to_go() -> None:
    """If memory runs out, the kernel should end this run rather than the process that keeps it."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("700")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
