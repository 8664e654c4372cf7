"""When each check would first have fired, on a recorded history or inside a running loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from math import isnan
from typing import Any, Literal, Self

from faudit.errors import FauditError, unknown
from faudit.measures.evidence import Evidence, Record, expect
from faudit.protocol.findings import Thresholds, any_of

# D3 is no early check: before training, no network beats its frozen twin.
Trigger = Literal["D1", "D2", "mode 1", "not finite", "any"]
TRIGGERS: tuple[Trigger, ...] = ("D1", "D2", "mode 1", "not finite", "any")


class Epoch(Record):
    """What the early checks read at one epoch: D1's growth, ||g_L|| at the declared reduction.

    >>> Epoch.of({"epoch": 4, "growth": [1.1, 3.0], "reference_norm": [1e-3, 6.7e-8], "lr": 0.1})
    Epoch(epoch=4, growth=3.0, reference_norm=6.7e-08, accuracy=None, nonfinite=None)
    """

    epoch: int
    growth: float | None = None
    reference_norm: float | None = None
    accuracy: float | None = None
    nonfinite: str | None = None

    @classmethod
    def of(cls, record: Self | Mapping[str, Any] | Any) -> Epoch:
        """An epoch from a mapping or object with these names; what else it holds is left aside.

        Per-layer values are welcome: growth counts at its largest, ||g_l|| at its last layer.
        """
        if isinstance(record, Epoch):
            return record
        found = {name: _plain(_get(record, name)) for name in cls.field_names()}
        if found["epoch"] is None:
            raise FauditError(f"a history record of type {type(record).__name__} has no epoch")
        for name in ("growth", "reference_norm"):
            if any(isnan(value) for value in _numbers_in(name, found[name])):
                # A measure that overflowed to NaN is a broken network, not a missing number.
                found["nonfinite"] = found["nonfinite"] or name
        growth = _numbers_in("growth", found["growth"])
        norms = _numbers_in("reference_norm", found["reference_norm"])
        found["growth"] = max((g for g in growth if not isnan(g)), default=None)
        found["reference_norm"] = norms[-1] if norms and not isnan(norms[-1]) else None
        return cls(**found)

    @classmethod
    def from_evidence(cls, epoch: int, evidence: Evidence, batch: int = 128) -> Epoch:
        """An epoch from evidence measured after it.

        >>> evidence = Evidence(layers=1, samples=8, growth=(60.0,), reference_norm=(1.0, 0.128))
        >>> Epoch.from_evidence(3, evidence).reference_norm
        0.001
        """
        return cls(
            epoch=epoch,
            growth=evidence.largest_growth,
            reference_norm=evidence.deepest_reference(batch),
            accuracy=evidence.accuracy,
            nonfinite=evidence.invalid,
        )

    def fires(self, trigger: Trigger, thresholds: Thresholds) -> bool | None:
        """Whether a check flags at this epoch; None where its number is missing."""
        growth, norm = thresholds.explodes(self.growth), thresholds.collapses(self.reference_norm)
        if trigger == "mode 1":
            return thresholds.mode_one(self.growth, self.reference_norm)
        found = {"D1": growth, "D2": norm, "not finite": bool(self.nonfinite)}
        return any_of(found.values()) if trigger == "any" else found[trigger]


def _get(record: Any, name: str) -> Any:
    return record.get(name) if isinstance(record, Mapping) else getattr(record, name, None)


def _plain(value: Any) -> Any:
    """Arrays and tensors as Python numbers and lists, without importing their library."""
    return value.tolist() if hasattr(value, "tolist") else value


def _numbers_in(name: str, value: Any) -> list[float]:
    values = value if isinstance(value, list | tuple) else [] if value is None else [value]
    try:
        return [float(v) for v in values]
    except (TypeError, ValueError) as error:
        raise FauditError(f"{name} holds {value!r}; give a number or one per layer") from error


class Replay(Record):
    """Per trigger, the first epoch it fired at and the compute stopping there would have saved.

    None where it never fired. ``accuracy`` is the test accuracy at that epoch, where recorded;
    ``final_accuracy`` the one training went on to reach.
    """

    total: int
    first: dict[str, int | None]
    saved: dict[str, float | None]
    accuracy: dict[str, float | None]
    final_accuracy: float | None = None

    def __str__(self) -> str:
        lines = [
            f"{name}: epoch {epoch} of {self.total}, {100 * (self.saved[name] or 0):.0f} % saved"
            for name, epoch in self.first.items()
            if epoch is not None
        ]
        return "\n".join(lines) or f"nothing fired in {self.total} epochs"


def replay(history: Iterable[Any], thresholds: Thresholds | None = None) -> Replay:
    """Run a recorded history through the early checks; second draft, section 3.

    Records are ``Epoch`` values or anything ``Epoch.of`` understands, epochs counted from the
    untrained network at 0, so stopping after epoch 4 of 100 saves 96 %.

    >>> norms = [9.8e-4, 1.4e-6, 3.1e-7, 1.3e-7, 6.7e-8] + [1e-9] * 96
    >>> result = replay({"epoch": e, "reference_norm": n} for e, n in enumerate(norms))
    >>> result.first["D2"], result.saved["D2"], result.first["D1"]
    (4, 0.96, None)
    """
    expect("history", history, Iterable, "give one record per epoch")
    limits = thresholds or Thresholds()
    expect("thresholds", limits, Thresholds, "give Thresholds(growth=50, ...)")
    epochs = [Epoch.of(record) for record in history]
    if not epochs:
        raise FauditError("the history is empty; give one record per epoch")
    if any(b.epoch <= a.epoch for a, b in pairwise(epochs)):
        raise FauditError("the history's epochs do not increase; sort it, one record per epoch")
    hits = {t: next((e for e in epochs if e.fires(t, limits)), None) for t in TRIGGERS}
    total = epochs[-1].epoch
    return Replay(
        total=total,
        first={t: hit.epoch if hit else None for t, hit in hits.items()},
        saved={t: _saved(hit.epoch, total) if hit else None for t, hit in hits.items()},
        accuracy={t: hit.accuracy if hit else None for t, hit in hits.items()},
        final_accuracy=epochs[-1].accuracy,
    )


def _saved(epoch: int, total: int) -> float:
    return 1 - epoch / total if total else 0.0


class EarlyStop:
    """Say when a training loop may stop: ``if stop(record): break``.

    It stops when ``on`` has fired ``patience`` times in a row, and at once on a number that is
    not finite. The default waits for Mode 1, which fails the protocol by itself; "any" stops
    sooner and also on growth or a weak reference alone, which do not.

    >>> stop = EarlyStop(patience=2)
    >>> for epoch in range(10):
    ...     if stop({"epoch": epoch, "growth": 80.0, "reference_norm": 1e-8}):
    ...         break
    >>> epoch, stop.reason
    (1, 'mode 1 has fired 2 times in a row: growth 80, ||g_L|| 1e-08')
    """

    def __init__(
        self, thresholds: Thresholds | None = None, *, on: Trigger = "mode 1", patience: int = 1
    ) -> None:
        if on not in TRIGGERS:
            raise FauditError(unknown("trigger", on, TRIGGERS))
        expect("patience", patience, int, "give a whole number from 1")
        if patience < 1:
            raise FauditError(f"patience is {patience}; stopping needs at least one firing")
        self.thresholds = thresholds or Thresholds()
        expect("thresholds", self.thresholds, Thresholds, "give Thresholds(growth=50, ...)")
        self.on, self.patience = on, patience
        self.reason = ""
        self._streak = 0

    def __call__(self, record: Any) -> bool:
        """Look at one epoch, given as ``Evidence`` or as any record ``Epoch.of`` understands."""
        epoch = self._epoch(record)
        if epoch.nonfinite:
            self.reason = f"not finite: {epoch.nonfinite}"
            return True
        self._streak = self._streak + 1 if epoch.fires(self.on, self.thresholds) else 0
        if self._streak < self.patience:
            return False
        self.reason = f"{self.on} has fired {_times(self._streak)}: {_numbers(epoch)}"
        return True

    def _epoch(self, record: Any) -> Epoch:
        if isinstance(record, Evidence):
            return Epoch.from_evidence(0, record, self.thresholds.reference_batch)
        return Epoch.of(record)


def _times(streak: int) -> str:
    return f"{streak} times in a row" if streak > 1 else "once"


def _numbers(epoch: Epoch) -> str:
    known = (("growth", epoch.growth), ("||g_L||", epoch.reference_norm))
    return ", ".join(f"{name} {value:.3g}" for name, value in known if value is not None)
