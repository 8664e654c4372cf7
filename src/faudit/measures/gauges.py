"""Gauges: each fills its own fields of Evidence from the batches it is shown, one at a time.

A gauge keeps sums over samples and nothing else, so batches of any size give what their
concatenation would, and memory is bounded by one batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite, nan
from statistics import fmean, median, stdev
from typing import Any, Protocol

import torch
from torch import Tensor

from faudit.measures.directions import Agreement, angles, clamped_cosines, cosines
from faudit.measures.effects import Perturbations, loss_at, nudges
from faudit.measures.evidence import NullCalibration
from faudit.measures.norms import Mean, Means, distances, nonzero, norms, ratio
from faudit.measures.safety import bad_buffer, bad_weight
from faudit.networks.scene import Loss, detours, gradients, keeping_buffers
from faudit.networks.values import check_batch, map_tensors, marks
from faudit.networks.view import Network, Pass

REDUCTION = 128
"""The batch whose mean loss ``cosine_clamped`` is stated for, and the minibatch of stability."""

NO_BLOCKS = "the network has no blocks"
SUMMED = "batch mean first"
UNEVEN = "samples of different shapes have no sum"

Facts = dict[str, bool | float | str]
Tensors = Sequence[Tensor]


@dataclass(frozen=True)
class Look:
    """One batch as a network shows it: every sample's states, logits, loss and exact gradients."""

    network: Network
    x: Any
    y: Tensor
    states: Tensors
    logits: Tensor
    losses: Tensor
    reference: Tensors

    @classmethod
    def at(cls, network: Network, x: Any, y: Tensor, loss: Loss) -> Look:
        """One forward and one backward pass."""
        seen, reference = gradients(network, x, y, loss)
        with torch.no_grad():
            losses = loss(seen.logits, y)
        return cls(network, x, y, seen.states, seen.logits, losses, reference)


@dataclass(frozen=True)
class Shown:
    """What a gauge is shown of one batch; ``best`` is in float64 where that could be had.

    ``again`` holds the logits of a second forward pass, ``fresh`` the credits of redrawn rules.
    """

    seen: Look
    best: Look
    credits: Tensors | None
    again: Tensor | None = None
    fresh: Sequence[Tensors] = ()


class Gauge:
    """One topic of the evidence: fields, the reasons why some are undefined, raw observations."""

    def add(self, shown: Shown) -> None:
        """Another batch."""
        raise NotImplementedError

    def fields(self) -> dict[str, Any]:
        """Fields of Evidence."""
        return {}

    def undefined(self) -> dict[str, str]:
        """Why a field, or one layer of it, has no meaning."""
        return {}

    def facts(self) -> Facts:
        """Raw observations behind the reliability flags."""
        return {}


class Sizes(Gauge):
    """How big the states and the reference are."""

    def __init__(self) -> None:
        self.states, self.reference = Means(), Means()
        self.width = 0

    def add(self, shown: Shown) -> None:
        self.width = shown.seen.states[-1][0].numel()
        for layer, (h, g) in enumerate(zip(shown.seen.states, shown.seen.reference, strict=True)):
            self.states[layer].add(norms(h))
            self.reference[layer].add(norms(g))

    def fields(self) -> dict[str, Any]:
        sizes = self.states.by_layer
        return {
            "state_norm": sizes,
            "growth": tuple(ratio(after, before) for before, after in pairwise(sizes)),
            "reference_norm": self.reference.by_layer,
        }

    def undefined(self) -> dict[str, str]:
        growth = self.fields()["growth"]
        none = {} if growth else {"growth": NO_BLOCKS}
        return {
            **none,
            **_where_nan("growth", growth, "the state before the block is zero, or not finite"),
        }

    def facts(self) -> Facts:
        return {"width": float(self.width)}


class Outputs(Gauge):
    """What the network says, and whether it says the same when asked again."""

    def __init__(self) -> None:
        self.loss, self.accuracy = Mean(), Mean()
        self.spread, self.softmax, self.classes = 0.0, True, 0

    def add(self, shown: Shown) -> None:
        logits, y = shown.seen.logits, shown.seen.y
        self.loss.add(shown.seen.losses)
        if y.dtype == torch.int64 and y.shape == logits.shape[:-1] and logits.shape[-1] > 1:
            self.accuracy.add_defined(marks(logits, y).nanmean(1))
        self.classes = logits.shape[-1] if logits.ndim > 1 else 0
        self.softmax = self.softmax and _softmax_like(logits)
        if shown.again is not None:
            self.spread = max(self.spread, _spread(logits, shown.again))

    def fields(self) -> dict[str, Any]:
        accuracy = self.accuracy.value if self.accuracy.count else None
        return {"loss": self.loss.value, "accuracy": accuracy}

    def facts(self) -> Facts:
        chosen: Facts = {"classes": self.classes} if self.classes else {}
        return {"softmax_like": self.softmax, "nondeterministic_spread": self.spread, **chosen}


class Independence(Gauge):
    """Whether a sample keeps its logits beside others; only then has it a gradient of its own."""

    def __init__(self) -> None:
        self.asked, self.spread = False, 0.0

    def add(self, shown: Shown) -> None:
        if self.asked:
            return
        self.asked, best = True, shown.best
        count = 2 if len(best.y) != 2 else 3  # another number of samples than there were
        try:
            passed = _repeated(best, count)
        except Exception:  # a forward may insist on its number of samples
            return
        for index, h in enumerate(passed.states):
            check_batch(index, h, passed.logits)
        spread = _spread(best.logits[:1], passed.logits[:1])
        # A forward may compute in less than it keeps, and kernels differ by the size of a batch.
        least = torch.finfo(torch.float32).eps
        coarsest = max(least, *(torch.finfo(t.dtype).eps for t in (best.logits, *best.states)))
        self.spread = spread if spread > coarsest**0.5 else 0.0

    def facts(self) -> Facts:
        return {"batch_spread": self.spread} if self.spread else {}


class Detours(Gauge):
    """Whether a way leads around the blocks; what leaves them is then not the whole stream."""

    def __init__(self) -> None:
        self.asked, self.readers = False, ""

    def add(self, shown: Shown) -> None:
        if self.asked:
            return
        self.asked = True
        try:
            few = map_tensors(shown.seen.x, lambda t: t[:2])
            self.readers = ", ".join(detours(shown.seen.network, few))
        except Exception:  # a forward may insist on its number of samples, or hide its blocks
            return

    def facts(self) -> Facts:
        return {"detours": self.readers} if self.readers else {}


class Finiteness(Gauge):
    """The first place that holds a number that is not finite; a broken weight is the cause."""

    def __init__(self, network: Network) -> None:
        self.found = bad_weight(network.module)

    def add(self, shown: Shown) -> None:
        self.found = self.found or _first_bad(shown.seen)

    def fields(self) -> dict[str, Any]:
        return {"nonfinite": self.found}


class Beside:
    """One layer's credit beside its reference."""

    def __init__(self) -> None:
        self.credit, self.reference, self.cosine, self.clamped = Mean(), Mean(), Mean(), Mean()
        self.sums: tuple[Tensor | float, Tensor | float] = (0.0, 0.0)
        self.shapes: set[torch.Size] = set()

    def add(self, a: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Another batch; gives back every sample's ||a||, ||g|| and cosine."""
        found = norms(a), norms(g), cosines(a, g)
        self.credit.add(found[0])
        self.reference.add(found[1])
        self.cosine.add_defined(found[2])
        self.clamped.add_defined(clamped_cosines(a, g, REDUCTION))
        self.shapes.add(a.shape[1:])
        if not self.mixed:
            self.sums = (self.sums[0] + _total(a), self.sums[1] + _total(g))
        return found

    @property
    def mixed(self) -> bool:
        """Whether samples came in different shapes."""
        return len(self.shapes) > 1

    @property
    def value(self) -> float:
        """The mean cosine; NaN where ``why`` is not empty."""
        return nan if self.why else self.cosine.value

    @property
    def of_sums(self) -> float:
        """The cosine of the summed vectors, as if there were one loss for all samples."""
        if self.mixed:
            return nan
        a, g = map(torch.as_tensor, self.sums)
        return float(cosines(a, g))

    @property
    def why(self) -> str:
        """Why the cosine has no meaning; empty when it has one."""
        for name, size in (("credit", self.credit.value), ("reference", self.reference.value)):
            if not isfinite(size):
                return f"the {name} is not finite"
            if size == 0:
                return f"the {name} is zero at every sample"
        return "" if self.cosine.count else "no sample has both a credit and a reference"


class Alignment(Gauge):
    """Which way the credit points beside the reference, and every way to say it in one number.

    A mean over layers needs every layer: where one cosine is undefined, so is the mean.
    """

    def __init__(self) -> None:
        self.layers: list[Beside] = []
        self.whole = Mean()

    def add(self, shown: Shown) -> None:
        credits = shown.credits or ()
        self.layers = self.layers or [Beside() for _ in credits]
        trios = zip(self.layers, credits, shown.seen.reference, strict=True)
        found = [layer.add(a, g) for layer, a, g in trios]
        self.whole.add_defined(_concatenated(*map(torch.stack, zip(*found, strict=True))))

    def fields(self) -> dict[str, Any]:
        cosine = [layer.value for layer in self.layers]
        return {
            "cosine": tuple(cosine),
            "cosine_clamped": tuple(layer.clamped.value for layer in self.layers),
            "deep_cosine": _over(cosine[1:]),
            "gamma": fmean(cosine),
            "cosine_aggregates": self._aggregates(cosine),
        }

    def _aggregates(self, cosine: list[float]) -> dict[str, float]:
        """The same cosines aggregated in the ways papers do, side by side."""
        weights = [layer.reference.value for layer in self.layers]
        weighted = sum(c * w for c, w in zip(cosine, weights, strict=True))
        return {
            "mean over layers": fmean(cosine),
            "median over layers": nan if any(c != c for c in cosine) else median(cosine),
            "deep layers": _over(cosine[1:]),
            "weighted by ||g||": ratio(weighted, sum(weights)),
            "layers concatenated": self.whole.value,
            SUMMED: fmean(layer.of_sums for layer in self.layers),
        }

    def undefined(self) -> dict[str, str]:
        clamped = [layer.clamped.value for layer in self.layers]
        why = {f"cosine[{i}]": layer.why for i, layer in enumerate(self.layers) if layer.why}
        needs = f"a mean over layers needs every layer; {', '.join(why)} has no meaning"
        return {
            **why,
            **_where_nan("cosine_clamped", clamped, "0 / 0: in this dtype the clamp is zero too"),
            **({"gamma": needs} if why else {}),
            **({"deep_cosine": needs} if set(why) - {"cosine[0]"} else {}),
            **({} if len(self.layers) > 1 else {"deep_cosine": NO_BLOCKS}),
            **({SUMMED: UNEVEN} if any(layer.mixed for layer in self.layers) else {}),
        }

    def facts(self) -> Facts:
        zero = [f"h_{i}" for i, layer in enumerate(self.layers) if layer.credit.value == 0]
        return {"zero_credit_layers": ", ".join(zero)} if zero else {}


class Stability(Gauge):
    """Does the deepest reference point the same way whatever the samples?"""

    def __init__(self) -> None:
        self.agreement, self.layer = Agreement(REDUCTION), 0

    def add(self, shown: Shown) -> None:
        self.layer = len(shown.seen.reference) - 1
        self.agreement.add(shown.seen.reference[-1])

    def fields(self) -> dict[str, Any]:
        mode = f"dL/dh_{self.layer}, minibatches of {REDUCTION}"
        return {"stability": self.agreement.value, "stability_mode": mode}

    def undefined(self) -> dict[str, str]:
        if self.agreement.mixed:
            return {"stability": UNEVEN}
        if self.agreement.count < 2:
            return {"stability": f"needs two minibatches of {REDUCTION} samples"}
        if self.agreement.value != self.agreement.value:
            return {"stability": "the reference of a minibatch has no direction"}
        return {}


class HasReason(Protocol):
    """Something that may not be available, and then says why."""

    why: str


class Precision(Gauge):
    """How far the reference in the network's own dtype is from the same in float64."""

    def __init__(self, twin: HasReason) -> None:
        self.twin = twin
        self.angle, self.noise = Means(), Means()

    def add(self, shown: Shown) -> None:
        pairs = zip(shown.seen.reference, shown.best.reference, strict=True)
        for layer, (g, exact) in enumerate(pairs):
            self.angle[layer].add_defined(angles(g, exact))
            self.noise[layer].add_defined(distances(g, exact))

    def fields(self) -> dict[str, Any]:
        if self.twin.why:
            return {}
        return {"reference_angle": self.angle.by_layer, "reference_noise": self.noise.by_layer}

    def undefined(self) -> dict[str, str]:
        if self.twin.why:
            return dict.fromkeys(("reference_angle", "reference_noise"), self.twin.why)
        return {
            **_where_nan("reference_angle", self.angle.by_layer, "the reference is zero"),
            **_where_nan("reference_noise", self.noise.by_layer, "the float64 reference is zero"),
        }


class Nudging(Gauge):
    """What a small step against the credit does to the loss."""

    def __init__(self, loss: Loss, eta: float) -> None:
        self.loss, self.eta = loss, eta
        self.change = Means()

    def add(self, shown: Shown) -> None:
        best = shown.best
        at, base = loss_at(best.network, best.x, best.y, self.loss), best.losses.double()
        for layer, (h, a) in enumerate(zip(best.states, shown.credits or (), strict=True)):
            self.change[layer].add_defined(nudges(at, layer, h, a, base, self.eta))

    def fields(self) -> dict[str, Any]:
        return {"nudging": self.change.by_layer}

    def undefined(self) -> dict[str, str]:
        why = "at every sample the credit has no direction, or the step is lost in rounding"
        return _where_nan("nudging", self.change.by_layer, why)


class Forecasts(Gauge):
    """Do the credit, the exact gradient and a random vector tell how the loss will change?"""

    def __init__(self, loss: Loss, count: int, size: float, seed: int) -> None:
        self.loss, self.count, self.size, self.seed = loss, count, size, seed
        self.moves: dict[int, Perturbations] = {}
        self.credited = False

    def add(self, shown: Shown) -> None:
        best = shown.best
        at, base = loss_at(best.network, best.x, best.y, self.loss), best.losses.double()
        for layer, (h, g) in enumerate(zip(best.states, best.reference, strict=True)):
            credits = {"bp": g}
            if shown.credits is not None:
                credits["credit"], self.credited = shown.credits[layer], True
            self._moves(layer).try_on(at, h, base, credits)

    def _moves(self, layer: int) -> Perturbations:
        if layer not in self.moves:
            self.moves[layer] = Perturbations(layer, self.count, self.size, self.seed)
        return self.moves[layer]

    def _values(self, name: str) -> tuple[float, ...]:
        return tuple(self.moves[layer].value(name) for layer in sorted(self.moves))

    def fields(self) -> dict[str, Any]:
        return {
            "perturbation_correlation": self._values("credit") if self.credited else (),
            "perturbation_controls": {name: self._values(name) for name in ("random", "bp")},
        }

    def undefined(self) -> dict[str, str]:
        why = "the forecast, or the loss itself, does not vary under the perturbations"
        return _where_nan(
            "perturbation_correlation", self._values("credit") if self.credited else (), why
        )


class Null(Gauge):
    """The deep cosine beside the deep cosines of the same rule with redrawn feedback."""

    def __init__(self, draws: int) -> None:
        self.own = Means()
        self.drawn = [Means() for _ in range(draws)]

    def add(self, shown: Shown) -> None:
        told = [shown.credits or (), *shown.fresh]
        for means, credits in zip([self.own, *self.drawn], told, strict=True):
            for layer, (a, g) in enumerate(zip(credits, shown.seen.reference, strict=True)):
                means[layer].add_defined(cosines(a, g))

    def fields(self) -> dict[str, Any]:
        value, drawn = _deep(self.own), [_deep(means) for means in self.drawn]
        if not all(map(isfinite, (value, *drawn))):
            return {}
        mean, spread = fmean(drawn), stdev(drawn)
        z = ratio(value - mean, spread)
        null = NullCalibration(draws=len(drawn), mean=mean, std=spread, value=value, z=z)
        return {"null": null}


class Unavailable(Gauge):
    """Stands where quantities cannot be measured, and says why."""

    def __init__(self, *names: str, why: str) -> None:
        self.why = dict.fromkeys(names, why)

    def add(self, shown: Shown) -> None:
        pass

    def undefined(self) -> dict[str, str]:
        return self.why


def _where_nan(name: str, values: Sequence[float], why: str) -> dict[str, str]:
    return {f"{name}[{layer}]": why for layer, value in enumerate(values) if value != value}


def _total(h: Tensor) -> Tensor:
    return h.sum(0, keepdim=True, dtype=torch.float64)


def _concatenated(lengths: Tensor, truths: Tensor, cosine: Tensor) -> Tensor:
    """Every sample's cosine with the layers (the rows here) laid end to end."""
    one, other = (side / nonzero(side.amax(0)) for side in (lengths, truths))
    dots = (one * other * cosine.nan_to_num()).sum(0)
    return dots / (one.norm(dim=0) * other.norm(dim=0))


def _over(layers: Sequence[float]) -> float:
    """A mean over layers; NaN where the network has no block and so no such layer."""
    return fmean(layers) if layers else nan


def _deep(cosine: Means) -> float:
    return _over(cosine.by_layer[1:])


def _repeated(seen: Look, count: int) -> Pass:
    """The first sample ``count`` times over, as a batch."""
    x = map_tensors(seen.x, lambda t: torch.cat([t[:1]] * count))
    states: list[Tensor] = []

    def keep(_: int, h: Tensor) -> Tensor:
        states.append(h)
        return h

    with torch.no_grad(), keeping_buffers(seen.network.module):
        logits = seen.network.run(x, keep)
    return Pass(tuple(states), (), logits)


def _softmax_like(logits: Tensor) -> bool:
    rows = logits.double()
    return bool((rows >= 0).all()) and bool(((rows.sum(-1) - 1).abs() < 1e-3).all())


def _spread(logits: Tensor, again: Tensor) -> float:
    """The largest change of the logits when asked again, relative to their size."""
    size = float(logits.double().abs().max())
    return ratio(float((again.double() - logits.double()).abs().max()), size)


def _first_bad(seen: Look) -> str | None:
    parts = list(seen.x.items()) if isinstance(seen.x, Mapping) else [("", seen.x)]
    inputs = {f"input {name}".strip(): part for name, part in parts if isinstance(part, Tensor)}
    states = {f"state h_{layer}": h for layer, h in enumerate(seen.states)}
    rest = {"logits": seen.logits, "loss": seen.losses}
    reference = {f"reference g_{layer}": g for layer, g in enumerate(seen.reference)}
    for name, value in {**inputs, **states, **rest, **reference}.items():
        if not bool(value.isfinite().all()):
            return name if name in inputs else bad_buffer(seen.network.module) or name
    return None
