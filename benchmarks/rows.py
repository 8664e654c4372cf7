"""Rows: one figure each, with its spread, its target, and whether the target is met."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.clock import Spread


@dataclass(frozen=True)
class Row:
    """A figure; ``least`` or ``most`` is its target, and a figure without one only informs."""

    what: str
    value: float
    unit: str = "x"
    low: float | None = None
    high: float | None = None
    least: float | None = None
    most: float | None = None

    @classmethod
    def of(cls, what: str, found: Spread, unit: str = "x", **targets: float) -> Row:
        """A row from a median with its quartiles."""
        return cls(what, found.value, unit, found.low, found.high, **targets)

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where there is none."""
        if self.least is not None:
            return self.value >= self.least
        return None if self.most is None else self.value <= self.most

    @property
    def target(self) -> str:
        """The target in words."""
        if self.least is not None:
            return f"at least {self.least:g}"
        return "" if self.most is None else f"at most {self.most:g}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**{k: _short(v) for k, v in vars(self).items()}, "met": self.met}

    def __str__(self) -> str:
        band = "" if self.low is None else f"[{self.low:.3g}, {self.high:.3g}]"
        verdict = {None: "", True: "met", False: "NOT MET"}[self.met]
        value = f"{self.value:.3g} {self.unit}"
        return f"  {self.what:58} {value:>14} {band:18} {self.target:13} {verdict}".rstrip()


@dataclass(frozen=True)
class Section:
    """Rows under one heading; ``note`` says what is compared with what."""

    title: str
    note: str
    rows: tuple[Row, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        rows = [row.to_dict() for row in self.rows]
        return {"title": self.title, "note": self.note, "rows": rows}

    def __str__(self) -> str:
        return "\n".join([self.title, f"  ({self.note})", *map(str, self.rows), ""])


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value
