"""The worker of faudit.studies, with rules that do to a process what the world does to it."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import torch

from faudit.networks.scene import Scene
from faudit.networks.view import Layout
from faudit.rules import RULES
from faudit.rules.feedback import DFA
from faudit.studies import runner
from faudit.studies.worker import main


class Sabotage(DFA):
    """Learns as DFA does for one epoch of three batches; what has been struck is struck again."""

    batches: torch.Tensor

    def __init__(self, layout: Layout, generator: torch.Generator) -> None:
        super().__init__(layout, generator)
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def credits(self, scene: Scene) -> list[torch.Tensor]:
        if scene.network.module.training:
            self.batches += 1
            if self.batches > 3:
                self.strike()
        return super().credits(scene)

    def strike(self) -> None:
        raise NotImplementedError


class Segfault(Sabotage):
    def strike(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)


class Hog(Sabotage):
    def strike(self) -> None:
        self.hoard = [torch.empty(2**28) for _ in range(64)]  # room asked for, none of it used


class Killed(Sabotage):
    """As if by the kernel, but only at the first attempt."""

    def strike(self) -> None:
        note = f"{os.environ['SABOTAGE']}/killed"
        if not os.path.exists(note):
            open(note, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)


class Bug(Sabotage):
    def strike(self) -> None:
        raise ZeroDivisionError("a bug in a rule")


class Slow(Sabotage):
    def strike(self) -> None:
        time.sleep(0.02)


def install() -> None:
    """Make the rules known."""
    rules: dict[str, Any] = {
        "segfault": Segfault,
        "hog": Hog,
        "killed": Killed,
        "bug": Bug,
        "slow": Slow,
    }
    RULES.update(rules)
    runner.CHECKPOINT_SHARE = float("inf")


if __name__ == "__main__":
    install()
    sys.exit(main(sys.argv[1:]))
