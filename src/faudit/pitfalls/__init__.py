"""pitfalls: every known way to a wrong number, as a small experiment that runs now.

``PITFALLS`` maps a code to a function of a seed; ``reproduce`` runs them. Each is explained in
docs/pitfalls.md under its code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from faudit.errors import FauditError, unknown
from faudit.pitfalls.alignment import (
    aggregation,
    first_layer,
    foreign_feedback,
    missing_rule_state,
    other_batch,
    train_mode,
)
from faudit.pitfalls.comparisons import no_null, unmatched_baseline
from faudit.pitfalls.numbers import (
    cosine_clamp,
    fp16_underflow,
    norm_minus_one,
    normalised_scale,
)
from faudit.pitfalls.record import Pitfall

PITFALLS: dict[str, Callable[[int], Pitfall]] = {
    "norm-minus-one": norm_minus_one,
    "cosine-clamp": cosine_clamp,
    "fp16-underflow": fp16_underflow,
    "foreign-feedback": foreign_feedback,
    "aggregation": aggregation,
    "first-layer": first_layer,
    "missing-rule-state": missing_rule_state,
    "other-batch": other_batch,
    "unmatched-baseline": unmatched_baseline,
    "train-mode": train_mode,
    "normalised-scale": normalised_scale,
    "no-null": no_null,
}


def reproduce(codes: Iterable[str] | None = None, *, seed: int = 0) -> list[Pitfall]:
    """Run the experiments of these pitfalls, or of all.

    >>> [found.code for found in reproduce(["norm-minus-one"])]
    ['norm-minus-one']
    """
    wanted = list(PITFALLS) if codes is None else list(codes)
    for code in wanted:
        if code not in PITFALLS:
            raise FauditError(unknown("pitfall", code, PITFALLS))
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise FauditError(f"seed is {seed!r}; give a whole number of at least 0")
    return [PITFALLS[code](seed) for code in wanted]


__all__ = ["PITFALLS", "Pitfall", "reproduce"]
