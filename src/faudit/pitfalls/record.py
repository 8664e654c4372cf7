"""Pitfall: what one experiment found: the wrong number beside the right one, and the fix."""

from __future__ import annotations

from html import escape

from pydantic import Field

from faudit.measures.evidence import Record

PAGE = "docs/pitfalls.md"


class Pitfall(Record):
    """One pitfall as it was just reproduced; both numbers were computed, neither is typed.

    ``quantity``             what both numbers claim to be
    ``wrong``, ``right``     the numbers, and in ``*_way`` how each was obtained
    ``details``              further numbers of the same experiment

    >>> print(Pitfall(code="a", title="T", quantity="cosine", wrong=1.0, wrong_way="guessed",
    ...               right=0.25, right_way="measured", explanation="Why.", fix="Measure."))
    T (a)
      cosine: 1 guessed, 0.25 measured
      Why.
      Fix: Measure.
    """

    code: str
    title: str
    quantity: str
    wrong: float
    wrong_way: str
    right: float
    right_way: str
    explanation: str
    fix: str
    details: dict[str, float] = Field(default_factory=dict)

    @property
    def anchor(self) -> str:
        """Where it is explained."""
        return f"{PAGE}#{self.code}"

    def _repr_html_(self) -> str:
        rows = ((self.wrong, self.wrong_way), (self.right, self.right_way))
        cells = "".join(
            f"<tr><td>{value:.3g}</td><td>{escape(way)}</td></tr>" for value, way in rows
        )
        return (
            f"<table><caption>{escape(self.title)}: {escape(self.quantity)}</caption>"
            f"{cells}</table>"
            f"<p>{escape(self.explanation)} Fix: {escape(self.fix)}.</p>"
        )

    def __str__(self) -> str:
        lines = [
            f"{self.title} ({self.code})",
            f"{self.quantity}: {self.wrong:.3g} {self.wrong_way},"
            f" {self.right:.3g} {self.right_way}",
            self.explanation,
            f"Fix: {self.fix}",
        ]
        return "\n  ".join(lines)
