"""The one family of errors raised at faudit's public boundary; every layer may import it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from math import isfinite
from numbers import Integral, Real


class FauditError(Exception):
    """Something the user gave cannot be used; the message names it and says what would fix it."""


class NetworkError(FauditError):
    """A module cannot be seen as embed -> blocks -> readout."""


class DataError(FauditError):
    """Images, labels or files that cannot be measured or trained on."""


class RuleError(FauditError):
    """A credit rule that is unknown, or that does not fit the network."""


class RecipeError(FauditError):
    """A run described with unknown keys or impossible values."""


class BundleError(FauditError):
    """A run on disk with a missing, altered or foreign part."""


class NonFiniteError(FauditError):
    """Training met a number that is not finite; ``layer`` and ``epoch`` say where."""

    def __init__(self, message: str, *, layer: str, epoch: int) -> None:
        super().__init__(message)
        self.layer = layer
        self.epoch = epoch


MOST_NAMED = 24


def unknown(kind: str, name: object, known: Iterable[str]) -> str:
    """Say that ``name`` is not a known ``kind``, with near matches.

    >>> unknown("rule", "dfaa", ["bp", "fa", "dfa"])
    "unknown rule 'dfaa'; did you mean 'dfa'? Known: bp, fa, dfa"
    """
    names = list(known)
    near = get_close_matches(str(name), names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    more = f", ... ({len(names)} in all)" if len(names) > MOST_NAMED else ""
    listed = ", ".join(names[:MOST_NAMED]) or "none"
    return f"unknown {kind} {str(name)!r}{hint} Known: {listed}{more}"


def unfit(kind: str, name: object, value: object, default: object) -> str:
    """Say what an option with this default must be, if ``value`` is not that; else nothing.

    A word would silently count as true, and a number that is not finite as one that is.

    >>> unfit("option of rule 'ep'", "centred", "False", default=False)
    "centred must be true or false, not 'False' (option of rule 'ep')"
    >>> unfit("option of rule 'ep'", "beta", 1, default=0.1)
    ''
    """
    wanted = _wanted(value, default)
    return f"{name} must be {wanted}, not {value!r:.80} ({kind})" if wanted else ""


def _wanted(value: object, default: object) -> str:
    """What stands where ``default`` did, if it is not ``value``; a default of None says nothing."""
    if isinstance(default, bool):
        return "" if isinstance(value, bool) else "true or false"
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if isinstance(default, int):
        return "" if whole else "a whole number"
    if isinstance(default, float):
        return "" if whole or _is_finite(value) else "a finite number"
    return ""


def _is_finite(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)
