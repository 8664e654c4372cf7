"""Watch: measures a running training on one fixed batch; the adapters only say when to look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from faudit.measures.evidence import Evidence
from faudit.measures.measure import measure
from faudit.networks.scene import Loss, cross_entropy
from faudit.networks.values import map_tensors
from faudit.networks.view import evaluating
from faudit.protocol.findings import Thresholds
from faudit.protocol.replay import EarlyStop, Trigger

PREFIX = "faudit/"


class Watch:
    """One fixed batch, measured whenever asked; nothing in the training changes by it.

    Args:
        x, y: the batch; at least 128 samples make D2 as steady as its published threshold.
        blocks: as in ``Network.of``.
        credits, loss: as in ``measure``; without credits there is no cosine.
        thresholds, on, patience: as in ``EarlyStop``; patience counts measurements.

    ``history`` maps a training step to its evidence, beginning with the network as it was handed
    over; a new training begins a new history. ``reason`` says why the training was stopped.

    >>> from faudit.networks.zoo import ResMLP
    >>> import torch
    >>> watch = Watch(torch.randn(8, 6), torch.arange(8) % 3)
    >>> net = ResMLP(inputs=6, width=4, depth=2, classes=3)
    >>> watch.begin(net)
    >>> sorted(watch.look(net, step=10)), watch.stopped, list(watch.history)
    (['faudit/growth', 'faudit/reference_norm', 'faudit/state_norm'], False, [0, 10])
    """

    def __init__(
        self,
        x: Any,
        y: Tensor,
        *,
        blocks: str | Sequence[str] | None = None,
        credits: Any = None,
        loss: Loss = cross_entropy,
        thresholds: Thresholds | None = None,
        on: Trigger = "mode 1",
        patience: int = 1,
    ) -> None:
        self.x, self.y = x, y
        self.blocks, self.credits, self.loss = blocks, credits, loss
        self.history: dict[int, Evidence] = {}
        self._rule = EarlyStop(thresholds, on=on, patience=patience)

    @property
    def reason(self) -> str:
        """Why training was stopped; empty while nothing has."""
        return self._rule.reason

    @property
    def stopped(self) -> bool:
        """Whether the early stop has spoken, now or earlier in this training."""
        return bool(self.reason)

    def begin(self, module: nn.Module, step: int = 0) -> None:
        """Start over: measure what is handed over, so that a wrong batch or block fails now."""
        old = self._rule
        self._rule = EarlyStop(old.thresholds, on=old.on, patience=old.patience)
        self.history = {step: self._measure(module)}

    def look(self, module: nn.Module, step: int) -> dict[str, float]:
        """Measure after ``step``; the numbers to log, none if that step is already measured."""
        if step in self.history:
            return {}
        self.history[step] = self._measure(module)
        self._rule(self.history[step])
        return self.numbers(self.history[step])

    def numbers(self, evidence: Evidence) -> dict[str, float]:
        """What is worth a curve: largest growth, ||h_L||, ||g_L|| as D2 reads it, deep cosine."""
        deepest = evidence.deepest_reference(self._rule.thresholds.reference_batch)
        known = {
            "growth": evidence.largest_growth,
            "state_norm": evidence.state_norm[-1],
            "reference_norm": deepest,
            "deep_cosine": evidence.deep_cosine,
        }
        return {f"{PREFIX}{n}": v for n, v in known.items() if v is not None and v == v}

    def _measure(self, module: nn.Module) -> Evidence:
        device = next(module.parameters()).device
        x, y = (map_tensors(part, lambda t: t.to(device)) for part in (self.x, self.y))
        # Trainers hand modules over in training mode; that says nothing about the user's care.
        with evaluating(module):
            return measure(
                module,
                x,
                y,
                self.credits,
                blocks=self.blocks,
                loss=self.loss,
                perturbations=0,
                nulls=0,
                precise=False,
            )
