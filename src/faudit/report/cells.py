"""What stands in a table's cell: a number with its spread, a check, a marked word, plain text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import floor, isfinite, isnan, log10
from statistics import fmean, stdev
from typing import Literal, Self

Style = Literal["share", "signed", "points", "size", "count"]
Tone = Literal["good", "bad", "open", "quiet"]

# Decimals of the styles that have a fixed number of them, and the sign and unit they carry.
_FORMS: dict[Style, tuple[str, float, str]] = {
    "share": (".3f", 1.0, ""),
    "signed": ("+.3f", 1.0, ""),
    "points": ("+.1f", 100.0, "pp"),
    "count": (".0f", 1.0, ""),
}


@dataclass(frozen=True)
class Spelled:
    """A value in digits, before a medium decides how powers of ten and plus-minus look."""

    mean: str
    spread: str = ""
    exponent: int | None = None
    unit: str = ""
    remark: str = ""

    def __str__(self) -> str:
        digits = f"{self.mean} ± {self.spread}" if self.spread else self.mean
        if self.exponent is not None:
            grouped = f"({digits})" if self.spread else digits
            digits = f"{grouped}e{self.exponent:+03d}"
        return " ".join(filter(None, (digits, self.unit, self.remark)))


@dataclass(frozen=True)
class Value:
    """A number with its spread over ``n`` runs; ``of`` is how many there should have been.

    The spread is the sample standard deviation, and None for a single run.

    >>> print(Value.of_runs([0.34, 0.35, 0.36], "share"))
    0.350 ± 0.010
    >>> print(Value.of_runs([4.1e8, 4.5e8, None], "size"))
    (4.3 ± 0.3)e+08 (n = 2 of 3)
    >>> print(Value(-0.052, style="points"))
    -5.2 pp
    """

    mean: float
    spread: float | None = None
    n: int = 1
    style: Style = "share"
    of: int | None = None

    @classmethod
    def of_runs(cls, values: Iterable[float | None], style: Style = "share") -> Self | None:
        """The mean of the values that are there; None where there is none."""
        given = list(values)
        known = [v for v in given if v is not None and not isnan(v)]
        if not known:
            return None
        steady = len(known) > 1 and all(map(isfinite, known))
        return cls(fmean(known), stdev(known) if steady else None, len(known), style, len(given))

    def spelled(self) -> Spelled:
        """The value in digits."""
        remark = f"(n = {self.n} of {self.of})" if self.of not in (None, self.n) else ""
        if not isfinite(self.mean):
            word = "undefined" if isnan(self.mean) else f"{self.mean:+}".replace("+", "")
            return Spelled(word, remark=remark)
        if self.style == "size":
            return _scientific(self.mean, self.spread, remark)
        form, factor, unit = _FORMS[self.style]
        spread = "" if self.spread is None else format(self.spread * factor, form.lstrip("+"))
        return Spelled(format(self.mean * factor, form), spread, None, unit, remark)

    def __str__(self) -> str:
        return str(self.spelled())


def _scientific(mean: float, spread: float | None, remark: str) -> Spelled:
    if mean == 0 or 0.01 <= abs(mean) < 10_000:
        digits = 2 if mean == 0 else max(0, 2 - floor(log10(abs(mean))))
        second = "" if spread is None else f"{spread:.{digits}f}"
        return Spelled(f"{mean:.{digits}f}", second, remark=remark)
    exponent = floor(log10(abs(mean)))
    scale = 10.0**exponent if exponent > -300 else 0.0
    if not scale:
        return Spelled(f"{mean:.1e}", remark=remark)
    second = "" if spread is None else f"{spread / scale:.1f}"
    return Spelled(f"{mean / scale:.1f}", second, exponent, remark=remark)


@dataclass(frozen=True)
class Check:
    """A diagnostic's number and in how many runs it flagged, was fine, or was not evaluated.

    >>> print(Check(Value(237.0, style="size"), (True, True, False)))
    237 (flagged in 2 of 3)
    """

    value: Value | None
    flagged: tuple[bool | None, ...]

    @property
    def state(self) -> str:
        """``flagged``, ``ok``, ``not evaluated``, or how the runs differ."""
        words = {True: "flagged", False: "ok", None: "not evaluated"}
        found = [words[f] for f in (True, False, None) if f in self.flagged]
        if len(found) == 1:
            return found[0]
        first = words[True] if True in self.flagged else words[None]
        share = f"{sum(words[f] == first for f in self.flagged)} of {len(self.flagged)}"
        return f"{first} in {share}" if found else "not evaluated"

    @property
    def tone(self) -> Tone:
        """``bad`` where any run flagged, ``good`` where all are fine."""
        if any(f is True for f in self.flagged):
            return "bad"
        return "good" if self.flagged and None not in self.flagged else "open"

    def __str__(self) -> str:
        if self.value is None:
            return self.state
        return str(self.value) if self.state == "ok" else f"{self.value} ({self.state})"


@dataclass(frozen=True)
class Mark:
    """A word that matters; its tone only repeats in colour what it says.

    >>> print(Mark("FAIL(D3)", "bad"))
    FAIL(D3)
    """

    text: str
    tone: Tone = "quiet"

    def __str__(self) -> str:
        return self.text


Cell = str | int | float | Value | Check | Mark | None
