"""The one family of errors raised at faudit's public boundary; every layer may import it."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


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
    return f"unknown {kind} {str(name)!r}{hint} Known: {', '.join(names[:MOST_NAMED])}{more}"
