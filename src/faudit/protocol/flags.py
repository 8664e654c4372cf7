"""Reasons to distrust a verdict, found without being asked; they never change the verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite

from faudit.measures.evidence import Evidence, Record
from faudit.protocol.findings import NOISY_ANGLE, Finding, Thresholds
from faudit.protocol.interval import Interval

DOCUMENT = "docs/reliability-flags.md"

# What the measuring side may observe and leave in Evidence.facts.
FACTS = {
    "nondeterministic_spread": "largest relative change of the logits when evaluated again",
    "was_training": "the network was handed over in training mode; it is measured in eval mode",
    "softmax_like": "the outputs are non-negative and sum to one for every sample",
    "buffers_changed": "buffers that changed while the network was measured, and were given back",
    "batch_spread": "relative change of a sample's logits when other samples stand beside it",
    "zero_credit_layers": "layers whose credit is zero for every sample, named or counted",
    "ep_residual": "force left at the nudged state, as a share of the nudge (0: converged)",
    "frozen_rounded": "half precision that the frozen baseline was rounded to after training",
    "rule_unnamed": "nobody said what trained the model, so exact gradients taught its baseline",
    "detours": "who uses earlier states besides what left the block before",
    "tf32": "what a GPU rounded to TF32 though the network is in float32",
    "classes": "outputs per sample, which are as many classes where there are classes",
    "width": "entries per state, which float16's rounding floor depends on",
}

# Kernels that sum in varying order move the last digits; dropout moves far more than this.
SAME = 1e-5
# Below 128 samples the evidence is smaller than the batch D2 is declared at; below 1000 test
# examples the standard error of an accuracy near a third is as large as D3's whole margin.
FEW_SAMPLES, FEW_TESTS = 128, 1000
# Published aggregations of one run differ up to 3.45-fold; below FAINT a sign is only noise.
SPREAD, FAINT = 2.5, 0.02
CARRIED, WORTH_CARRYING = 0.6, 0.05
UNCONVERGED = 0.01
# Exact gradients foretell small moves: above 0.999 in all but one of 160 audited runs.
FORETOLD = 0.9
NEAR = 2.0
# Standard errors above 1 / classes that guessing reaches in one of forty cases.
GUESSED = 1.96


class Flag(Record):
    """One reason to read a verdict with care, explained at ``anchor``.

    >>> Flag(code="borderline", title="Borderline", message="...").anchor
    'docs/reliability-flags.md#borderline'
    """

    code: str
    title: str
    message: str

    @property
    def anchor(self) -> str:
        """Where the flag is explained."""
        return f"{DOCUMENT}#{self.code}"

    def __str__(self) -> str:
        return f"{self.title}: {self.message} ({self.anchor})"


@dataclass(frozen=True)
class Situation:
    """Everything the flags look at."""

    evidence: Evidence
    thresholds: Thresholds = field(default_factory=Thresholds)
    findings: Mapping[str, Finding] = field(default_factory=dict)
    bp_accuracy: float | None = None
    interval: Interval | None = None
    test_samples: int | None = None

    def fact(self, name: str) -> bool | float | str:
        """A raw observation; False where it was not made."""
        return self.evidence.facts.get(name, False)

    def number(self, name: str) -> float:
        """A raw observation as a number; 0 where it was not made or is text."""
        fact = self.fact(name)
        return 0.0 if isinstance(fact, str) else float(fact)

    def value(self, code: str) -> float | None:
        """The value of a finding that was evaluated."""
        finding = self.findings.get(code)
        return finding.value if finding and finding.flagged is not None else None

    def frozen_accuracy(self) -> float | None:
        """The frozen-blocks accuracy D3 was evaluated with."""
        return self.findings["D3"].details.get("frozen_accuracy") if "D3" in self.findings else None


def reliability(situation: Situation) -> tuple[Flag, ...]:
    """All flags that apply, in the order of ``CHECKS``.

    In the spirit of AutoAttack's warnings (Croce and Hein, ICML 2020): the protocol says by
    itself when its own answer may not mean what it seems to mean.

    >>> evidence = Evidence(layers=1, samples=64, facts={"was_training": True})
    >>> [flag.code for flag in reliability(Situation(evidence))]
    ['training-mode', 'too-few-samples']
    """
    found = ((code, title, check(situation)) for code, (title, check) in CHECKS.items())
    return tuple(Flag(code=c, title=t, message=message) for c, t, message in found if message)


def _non_deterministic(s: Situation) -> str:
    spread = s.number("nondeterministic_spread")
    if not spread > SAME:
        return ""
    return f"the same inputs gave logits that differ by {spread:.2g} relative to their size"


def _training_mode(s: Situation) -> str:
    if not s.fact("was_training"):
        return ""
    return (
        "the network was handed over in training mode and measured in eval mode; an accuracy or"
        " a credit taken in training mode belongs to another network"
    )


def _softmax_outputs(s: Situation) -> str:
    if not s.fact("softmax_like"):
        return ""
    return "the outputs look like probabilities; a loss on top squashes every gradient once more"


def _buffers_changed(s: Situation) -> str:
    changed = s.fact("buffers_changed")
    named = f" ({changed})" if isinstance(changed, str) else ""
    if not changed:
        return ""
    return f"the forward changes the network's buffers{named}, which were given back afterwards"


def _batch_dependent(s: Situation) -> str:
    spread = s.number("batch_spread")
    if not spread or s.number("nondeterministic_spread") > SAME:
        return ""
    return (
        f"a sample's logits change by {spread:.2g} of their size with the samples beside it; no"
        " gradient belongs to one sample alone, and other batches give other numbers"
    )


def _depth_ceiling(s: Situation) -> str:
    frozen = s.frozen_accuracy()
    if frozen is None:
        return ""
    if s.bp_accuracy is not None and frozen >= s.bp_accuracy:
        return (
            f"frozen blocks reach {frozen:.3f}, exact gradients only {s.bp_accuracy:.3f}: "
            "no rule can show depth on this task, D3 says nothing"
        )
    if frozen + s.thresholds.margin > 1:
        return f"frozen blocks reach {frozen:.3f}: there is no room left for D3's margin"
    return ""


def _unmatched_baseline(s: Situation) -> str:
    if not s.fact("rule_unnamed"):
        return ""
    return (
        "no rule was named, so exact gradients taught the embedding of the frozen baseline; name"
        " what trained the model (rule=), for the baseline is to be taught the same way"
    )


def _around_blocks(s: Situation) -> str:
    readers = s.fact("detours")
    if not readers:
        return ""
    return (
        f"a way leads around blocks to {readers}; D1 compares what leaves the blocks, which is not"
        " the stream where the sum h + f(h) is made outside them"
    )


def _at_chance(s: Situation) -> str:
    d3, classes = s.findings.get("D3"), s.number("classes")
    accuracy = d3.details.get("accuracy") if d3 else None
    if accuracy is None or not classes:
        return ""
    chance, samples = 1 / classes, s.test_samples or FEW_TESTS
    if accuracy > chance + GUESSED * (chance * (1 - chance) / samples) ** 0.5:
        return ""
    return (
        f"the accuracy {accuracy:.3f} is no more than guessing among {classes:g} equally frequent"
        " classes reaches; frozen blocks that do worse make no depth useful"
    )


def _half_precision(s: Situation) -> str:
    rounded = s.fact("frozen_rounded")
    if not rounded:
        return ""
    return (
        f"the frozen baseline was trained in float32 and then rounded to {rounded}; a model that"
        " was itself trained in half precision is held to a stronger one"
    )


def _too_few_samples(s: Situation) -> str:
    parts = []
    if s.evidence.samples < FEW_SAMPLES:
        parts.append(f"evidence from {s.evidence.samples} samples (at least {FEW_SAMPLES})")
    if s.test_samples is not None and s.test_samples < FEW_TESTS:
        parts.append(f"accuracies from {s.test_samples} examples (at least {FEW_TESTS})")
    return "; ".join(parts)


def _borderline(s: Situation) -> str:
    parts = []
    if s.interval and s.interval.straddles(s.thresholds.margin):
        parts.append(f"D3: {s.interval} contains the margin of {100 * s.thresholds.margin:g} pp")
    for code, limit in (("D1", s.thresholds.growth), ("D2", s.thresholds.reference)):
        value = s.value(code)
        if value is not None and limit / NEAR < value < limit * NEAR:
            parts.append(f"{code}: {value:.3g} is within a factor {NEAR:g} of {limit:.3g}")
    return "; ".join(parts)


def _aggregates_disagree(s: Situation) -> str:
    own = {"Gamma": s.evidence.gamma, "deep cosine": s.evidence.deep_cosine}
    values = {n: v for n, v in {**s.evidence.cosine_aggregates, **own}.items() if isfinite(v)}
    if len(values) < 2 or max(map(abs, values.values())) < FAINT:
        return ""
    low, high = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
    sizes = sorted(map(abs, values.values()))
    ratio = sizes[-1] / sizes[0] if sizes[0] else inf
    if values[low] < 0 < values[high]:
        how = "they differ in sign"
    elif ratio > SPREAD:
        how = f"they differ {ratio:.1f}-fold"
    else:
        return ""
    return f"{low} {values[low]:+.3f}, {high} {values[high]:+.3f}: {how}"


def _one_end(s: Situation) -> str:
    cosine = [c for c in s.evidence.cosine if isfinite(c)]
    total = sum(map(abs, cosine))
    if len(cosine) < 3 or abs(sum(cosine)) / len(cosine) < WORTH_CARRYING:
        return ""
    end, value = max((("shallow", cosine[0]), ("deep", cosine[-1])), key=lambda e: abs(e[1]))
    share = abs(value) / total
    if share < CARRIED:
        return ""
    return f"the {end} end ({value:+.3f}) supplies {share:.0%} of all alignment; read it per layer"


def _ep_unconverged(s: Situation) -> str:
    residual = s.number("ep_residual")
    if residual <= UNCONVERGED:  # a relaxation that diverged to NaN has not converged
        return ""
    return f"{residual:.2g} of the nudging force is left at the nudged state (converged: 0.01)"


def _zero_credit(s: Situation) -> str:
    layers = s.fact("zero_credit_layers")
    if not layers:
        return ""
    named = layers if isinstance(layers, str) else f"{layers:g} in number"
    return f"credit of zero norm reaches some layers ({named}); cosine is undefined there, not low"


def _reference_noise(s: Situation) -> str:
    noisy = {layer: a for layer, a in enumerate(s.evidence.reference_angle) if a > NOISY_ANGLE}
    if not noisy:
        return ""
    layer, angle = max(noisy.items(), key=lambda item: item[1])
    return (
        f"in {s.evidence.dtype} the reference at h_{layer} lies {angle:.0f} degrees from the same "
        "gradient in float64; cosines there compare with rounding noise"
    )


def _control_fails(s: Situation) -> str:
    control = s.evidence.perturbation_controls.get("bp", ()) if s.evidence.reference_angle else ()
    known = {layer: r for layer, r in enumerate(control) if isfinite(r)}
    if not known:
        return ""
    layer, r = min(known.items(), key=lambda item: item[1])
    if r >= FORETOLD:
        return ""
    return (
        f"the reference at h_{layer} foretells small changes of the loss with r = {r:+.2f} only;"
        " a layer has a backward pass of its own, or kinks (max pooling) lie within small moves"
    )


Check = Callable[[Situation], str]

CHECKS: dict[str, tuple[str, Check]] = {
    "non-deterministic": ("Non-deterministic network", _non_deterministic),
    "training-mode": ("Training mode", _training_mode),
    "softmax-outputs": ("Probabilities instead of logits", _softmax_outputs),
    "buffers-changed": ("Buffers changed", _buffers_changed),
    "batch-dependent": ("Samples depend on each other", _batch_dependent),
    "depth-ceiling": ("D3 at its ceiling", _depth_ceiling),
    "at-chance": ("No better than guessing", _at_chance),
    "unmatched-baseline": ("Baseline without a rule", _unmatched_baseline),
    "around-blocks": ("A way around the blocks", _around_blocks),
    "half-precision": ("Baseline trained in float32", _half_precision),
    "too-few-samples": ("Too few samples", _too_few_samples),
    "borderline": ("Borderline", _borderline),
    "aggregates-disagree": ("Aggregates disagree", _aggregates_disagree),
    "one-end-carries": ("One end carries the aggregate", _one_end),
    "ep-unconverged": ("Relaxation not converged", _ep_unconverged),
    "zero-credit": ("Credit of zero norm", _zero_credit),
    "reference-noise": ("Reference is rounding noise", _reference_noise),
    "control-fails": ("Positive control fails", _control_fails),
}
