"""Evidence to findings: one number each for D1, D2, D3 and (c), beside its declared threshold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import isfinite, isnan, nan, sqrt
from typing import Self

from pydantic import Field, model_validator

from faudit.errors import FauditError, unknown
from faudit.measures.evidence import Evidence, Record
from faudit.protocol.interval import Interval

CLAMP = 1e-8
DTYPES = ("float64", "float32", "bfloat16", "float16")
# A reference further than this from its float64 twin is mostly rounding: cosine < 0.985.
NOISY_ANGLE = 10.0
# The relative error that such an angle makes by itself; more is length lost to underflow.
NOISY_ERROR = 0.17
# Accuracies are decimal fractions, so 0.349 - 0.329 is a hair under 0.02; it must not be flagged.
ROUNDING = 1e-9
DRIFT, NOISE = 0.5, 0.1


def both(a: bool | None, b: bool | None) -> bool | None:
    """Kleene's *and*: None (not evaluated) decides nothing, but False settles it.

    >>> both(None, False), both(None, True)
    (False, None)
    """
    if a is False or b is False:
        return False
    return None if a is None or b is None else True


def any_of(values: Iterable[bool | None]) -> bool | None:
    """Kleene's *or*: one True settles it, otherwise one None leaves it open.

    >>> any_of([None, True]), any_of([None, False]), any_of([False])
    (True, None, False)
    """
    seen = list(values)
    if any(v is True for v in seen):
        return True
    return None if any(v is None for v in seen) else False


class Thresholds(Record):
    """The declared limits of the protocol; the defaults are the published ones.

    ``growth``            D1 flags a block that multiplies the state's norm by more than this
    ``reference_factor``  D2 flags ||g_L|| below this many times ``eps``
    ``eps``               the norm below which number format or clamp decides the cosine
    ``reference_batch``   the reduction D2 is read at: the mean loss over so many samples
    ``margin``            D3 flags an accuracy less than this above frozen blocks
    ``stability``         (c) calls a reference more alike across minibatches than this a drift

    >>> Thresholds().reference
    1e-07
    >>> Thresholds().collapses(5e-10), Thresholds().collapses(None)
    (True, None)
    """

    growth: float = 50.0
    reference_factor: float = 10.0
    eps: float = CLAMP
    reference_batch: int = 128
    margin: float = 0.02
    stability: float = 0.30

    @model_validator(mode="after")
    def _check(self) -> Self:
        positive = ("growth", "reference_factor", "eps", "reference_batch")
        for name in (*positive, "margin", "stability"):
            value = getattr(self, name)
            if not isfinite(value) or (name in positive and value <= 0):
                raise FauditError(
                    f"Thresholds: {name} is {value}; give a finite "
                    f"{'positive ' if name in positive else ''}number"
                )
        return self

    @classmethod
    def for_dtype(cls, dtype: str, *, eps: float = CLAMP, width: int = 256) -> Self:
        """Thresholds whose D2 follows the number format the reference was computed in.

        D2 asks whether something other than the reference supplies a tenth of its cosine. In
        float32 and float64 that is the cosine's clamp, 1e-8: the formats themselves reach far
        lower. bfloat16 has float32's exponents, so its floor is the clamp too; its coarse digits
        turn every vector by about a tenth of a degree whatever the scale. In float16 the clamp
        rounds to zero and the format decides: entries are multiples of 2**-24, whose rounding
        leaves a noise of norm 2**-24 * sqrt(width / 12) on a vector of ``width`` entries.

        >>> Thresholds.for_dtype("bfloat16").reference
        1e-07
        >>> f"{Thresholds.for_dtype('float16', width=256).reference:.2g}"
        '2.8e-06'
        """
        name = dtype.removeprefix("torch.")
        if name not in DTYPES:
            raise FauditError(unknown("dtype", dtype, DTYPES))
        if width < 1:
            raise FauditError(f"width is {width}; a state has at least one entry")
        noise = 2.0**-24 * sqrt(width / 12) if name == "float16" else 0.0
        return cls(eps=max(eps, noise))

    @classmethod
    def for_evidence(cls, evidence: Evidence) -> Self:
        """The published thresholds at this evidence's dtype, clamp and, where known, width."""
        width = evidence.facts.get("width", 256)
        known = int(width) if isinstance(width, float) and width >= 1 else 256
        return cls.for_dtype(evidence.dtype, eps=evidence.eps, width=known)

    @property
    def reference(self) -> float:
        """The norm D2 compares ||g_L|| with."""
        return self.reference_factor * self.eps

    def explodes(self, growth: float | None) -> bool | None:
        """D1: a block multiplies the state's norm by more than the limit."""
        return _tested("D1", growth, self.growth)

    def collapses(self, norm: float | None) -> bool | None:
        """D2: ||g_L|| at the declared reduction is within reach of the floor."""
        return _tested("D2", norm, self.reference)

    def idles(self, margin: float | None) -> bool | None:
        """D3: the trained blocks gain less than the margin over frozen ones."""
        return _tested("D3", margin, self.margin)

    def drifts(self, stability: float | None) -> bool | None:
        """(c): the reference points the same way whatever the minibatch."""
        return _tested("c", stability, self.stability)

    def mode_one(self, growth: float | None, norm: float | None) -> bool | None:
        """Mode 1, measurement degeneracy: D1 and D2 both flag; neither does alone."""
        return both(self.explodes(growth), self.collapses(norm))


EXCEEDS: dict[str, Callable[[float, float], bool]] = {
    "D1": lambda value, limit: value > limit,
    "D2": lambda value, limit: value < limit,
    "D3": lambda value, limit: value < limit - ROUNDING,
    "c": lambda value, limit: value > limit,
}
"""When a value flags beside its limit."""


def _tested(code: str, value: float | None, limit: float) -> bool | None:
    return None if value is None or isnan(value) else EXCEEDS[code](value, limit)


class Finding(Record):
    """One check: its number, its threshold, and whether it flags (None: it was not evaluated).

    ``details`` holds the numbers behind ``reason``: the layer, the interval, the single seeds.

    >>> print(Finding(code="D3", name="depth utility", threshold=0.02, reason="no frozen blocks"))
    D3 depth utility: not evaluated: no frozen blocks
    """

    code: str
    name: str
    value: float = nan
    threshold: float
    flagged: bool | None = None
    reason: str
    details: dict[str, float] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _evaluated(self) -> Self:
        if isnan(self.value) and self.flagged is not None:
            raise FauditError(f"Finding {self.code}: without a value, flagged must be None")
        return self

    @property
    def should_flag(self) -> bool | None:
        """What the value says beside the threshold; None where there is no value or no such check.

        >>> Finding(code="D1", name="growth", value=100, threshold=50, reason="").should_flag
        True
        """
        if isnan(self.value) or self.code not in EXCEEDS:
            return None
        return EXCEEDS[self.code](self.value, self.threshold)

    @property
    def state(self) -> str:
        """``flagged``, ``ok`` or ``not evaluated``."""
        return {True: "flagged", False: "ok", None: "not evaluated"}[self.flagged]

    def __str__(self) -> str:
        return f"{self.code} {self.name}: {self.state}: {self.reason}"


def scale_stability(evidence: Evidence, thresholds: Thresholds) -> Finding:
    """D1: does some block blow the residual stream up? Consecutive ratios, the largest counts.

    The ratio of the largest to the smallest state would raise false alarms: a class token starts
    out tiny. The paper, 5.1, diagnostic 1.

    >>> evidence = Evidence(layers=2, samples=8, growth=(1.2, 237.0))
    >>> print(scale_stability(evidence, Thresholds()))
    D1 scale stability: flagged: block 1 multiplies the state's norm by 237 (limit 50)
    """
    known = {layer: g for layer, g in enumerate(evidence.growth) if not isnan(g)}
    limit = thresholds.growth
    if not known:
        return _finding("D1", limit, _no_growth(evidence))
    block, growth = max(known.items(), key=lambda item: item[1])
    flagged = any_of(thresholds.explodes(g) for g in evidence.growth)
    if flagged is None:
        missing = next(layer for layer in range(evidence.layers) if layer not in known)
        return _finding("D1", limit, f"block {missing}: {evidence.why('growth', missing)}")
    reason = f"block {block} multiplies the state's norm by {growth:.4g} (limit {limit:g})"
    return _finding("D1", limit, reason, growth, flagged, {"block": block})


def _no_growth(evidence: Evidence) -> str:
    if evidence.layers == 0:
        return "the network has no blocks"
    return f"growth: {evidence.why('growth', 0)}"


def reference_validity(evidence: Evidence, thresholds: Thresholds) -> Finding:
    """D2: is the gradient that credit is compared with still a direction?

    ||g_L|| depends on the loss's reduction, so it is read at a declared one, with the value per
    sample beside it. Where the angle to float64 was measured the reason says what a small norm
    means: a sound direction that only the cosine's clamp would spoil, or rounding noise. The paper,
    5.1, diagnostic 2.

    >>> evidence = Evidence(layers=1, samples=8, reference_norm=(1e-4, 6.4e-8))
    >>> print(reference_validity(evidence, Thresholds()))
    D2 reference validity: flagged: ||g_L|| = 5e-10 at a mean loss over 128 samples
      (6.4e-08 per sample), under 1e-07
    """
    limit, batch, last = thresholds.reference, thresholds.reference_batch, evidence.layers
    if why := evidence.why("reference_norm", last):
        return _finding("D2", limit, f"||g_L||: {why}")
    norm = evidence.reference_norm_at(batch)[last]
    flagged = thresholds.collapses(norm)
    details = {"batch": batch, "per_sample": evidence.reference_norm[last]}
    reason = (
        f"||g_L|| = {norm:.3g} at a mean loss over {batch} samples "
        f"({details['per_sample']:.3g} per sample), {'under' if flagged else 'above'} {limit:.3g}"
    )
    if not evidence.why("reference_angle", last):
        details["angle"] = evidence.reference_angle[last]
        noise = evidence.reference_noise[last] if evidence.reference_noise else nan
        if not isnan(noise):
            details["noise"] = noise
        reason += f"; {_angle(details['angle'], noise, norm, thresholds)}"
    if rounded := evidence.facts.get("tf32"):
        reason += f"; the GPU rounded {rounded} to TF32"
    return _finding("D2", limit, reason, norm, flagged, details)


def _angle(degrees: float, noise: float, norm: float, thresholds: Thresholds) -> str:
    """What a reference of this norm and angle to float64 is: noise, shrunk, close, or fine."""
    start, eps = f"it lies {degrees:.2g} degrees from its float64 twin", thresholds.eps
    if noise > NOISY_ERROR:
        start += f", a relative error of {noise:.2g} with what underflowed"
    if degrees > NOISY_ANGLE or noise > NOISY_ERROR:
        return f"{start}: mostly rounding noise"
    if norm < eps:
        return f"{start}: sound, but a cosine clamped at {eps:.2g} shrinks"
    if thresholds.collapses(norm):
        return f"{start}: sound, though close to the floor of {eps:.2g}"
    return f"{start}: sound"


def depth_utility(
    accuracy: float | None,
    frozen_accuracy: float | None,
    thresholds: Thresholds,
    *,
    interval: Interval | None = None,
    seeds: Mapping[int | str, tuple[float, float]] | None = None,
    measured_on: str = "",
) -> Finding:
    """D3: do the trained blocks beat the same blocks left at random? The paper, 5.1, diagnostic 3.

    Seeds are shown one by one and never resampled: three seeds bootstrap to their own range.
    ``measured_on`` says where an accuracy comes from that nobody gave.

    >>> print(depth_utility(0.133, 0.178, Thresholds()))
    D3 depth utility: flagged: accuracy 0.133 is 4.5 pp below frozen blocks at 0.178
      (2 pp above needed)
    """
    if accuracy is None or frozen_accuracy is None:
        return _finding("D3", thresholds.margin, _no_accuracy(accuracy))
    margin = accuracy - frozen_accuracy
    side = "above" if margin >= 0 else "below"
    source = f" {measured_on}" if measured_on else ""
    reason = (
        f"accuracy {accuracy:.3f}{source} is {100 * abs(margin):.1f} pp {side} frozen blocks at "
        f"{frozen_accuracy:.3f} ({100 * thresholds.margin:g} pp above needed)"
    )
    details = {"accuracy": accuracy, "frozen_accuracy": frozen_accuracy}
    if interval:
        reason += f"; {interval}"
        details |= {"low": interval.low, "high": interval.high, "level": interval.level}
    if seeds:
        single = {f"seed {seed}": own - frozen for seed, (own, frozen) in seeds.items()}
        reason += "; " + ", ".join(f"{name} {100 * m:+.1f} pp" for name, m in single.items())
        details |= single
    return _finding("D3", thresholds.margin, reason, margin, thresholds.idles(margin), details)


def _no_accuracy(accuracy: float | None) -> str:
    if accuracy is None:
        return "no test accuracy was given"
    return "no frozen-blocks accuracy was given: train the same network with its blocks frozen"


def direction_stability(evidence: Evidence, thresholds: Thresholds) -> Finding:
    """(c): does the reference point the same way for every minibatch? It never decides a verdict.

    >>> print(direction_stability(Evidence(layers=1, samples=8, stability=0.53), Thresholds()))
    c direction stability: flagged: mean pairwise cosine +0.53 across minibatches (ceiling 0.3),
    which fails nothing by itself
    """
    limit = thresholds.stability
    if why := evidence.why("stability"):
        return _finding("c", limit, f"stability: {why}")
    value = evidence.stability
    reason = f"mean pairwise cosine {value:+.2f} across minibatches (ceiling {limit:g})"
    if thresholds.drifts(value):
        reason += ", which fails nothing by itself"
    return _finding("c", limit, reason, value, thresholds.drifts(value))


def sub_mode(stability: float | None) -> str | None:
    """What a degenerate reference is made of; None where stability was not measured.

    >>> sub_mode(0.992), sub_mode(0.047), sub_mode(0.37)
    ('drift-dominated', 'noise-dominated', 'mixed')
    """
    if stability is None or isnan(stability):
        return None
    if stability >= DRIFT:
        return "drift-dominated"
    return "noise-dominated" if abs(stability) < NOISE else "mixed"


NAMES = {
    "D1": "scale stability",
    "D2": "reference validity",
    "D3": "depth utility",
    "c": "direction stability",
}


def _finding(
    code: str,
    threshold: float,
    reason: str,
    value: float = nan,
    flagged: bool | None = None,
    details: Mapping[str, float] | None = None,
) -> Finding:
    return Finding(
        code=code,
        name=NAMES[code],
        value=value,
        threshold=threshold,
        flagged=flagged,
        reason=reason,
        details=dict(details or {}),
    )
