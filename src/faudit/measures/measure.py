"""measure(): everything that is known about one network on some samples, as Evidence."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from math import nan
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from faudit.errors import DataError
from faudit.measures.directions import (
    angles,
    clamped_cosines,
    cosines,
    pairwise_mean,
)
from faudit.measures.effects import Perturbations, loss_at, mean_of, nudges
from faudit.measures.evidence import Evidence, NullCalibration
from faudit.measures.inputs import as_double, batches_of, checked_loss, credits_of, keepable
from faudit.measures.norms import distances, flat, norms
from faudit.networks.scene import Loss, cross_entropy, gradients, keeping_buffers, scene
from faudit.networks.view import Network, evaluating

REDUCTION = 128
"""The batch whose mean loss ``cosine_clamped`` is stated for, and the minibatch of stability."""


@dataclass(frozen=True)
class Plan:
    """How much to measure; the defaults are the papers' where they say."""

    loss: Loss = cross_entropy
    eta: float = 0.01
    perturbations: int = 8
    perturbation_size: float = 1e-4
    precise: bool = True
    nulls: int = 20
    seed: int = 0


def measure(
    network: Network | nn.Module,
    x: Any,
    y: Any = None,
    credits: Any = None,
    *,
    blocks: str | Sequence[str] | None = None,
    loss: Loss = cross_entropy,
    eta: float = 0.01,
    perturbations: int = 8,
    perturbation_size: float = 1e-4,
    precise: bool = True,
    nulls: int = 20,
    seed: int = 0,
) -> Evidence:
    """Measure a network on one batch, or on an iterable of (x, y) batches; change nothing in it.

    Args:
        network: a network or any module; ``blocks`` as in ``Network.of``.
        x, y: inputs and targets, or an iterable of such pairs as ``x`` alone.
        credits: a credit rule, a callable from a scene to the credits, or the list a_0..a_L.
        loss: (logits, targets) -> one loss per sample.
        eta: length of the nudge along the credit.
        perturbations: random moves per sample and state; 0 leaves the correlation out.
        perturbation_size: their length relative to the state's.
        precise: also compute the reference in float64 on a copy, and take effects there.
        nulls: fresh draws of a rule's feedback for its null; 0 leaves the null out.

    >>> from faudit.networks.zoo import ResMLP
    >>> net = Network.of(ResMLP(inputs=6, width=8, depth=2, classes=3))
    >>> evidence = measure(net, torch.randn(32, 6), torch.arange(32) % 3)
    >>> len(evidence.state_norm), evidence.defined["gamma"]
    (3, False)
    """
    view = Network.of(network, blocks)
    plan = Plan(loss, eta, perturbations, perturbation_size, precise, nulls, seed)
    facts: dict[str, bool | float | str] = {
        "was_training": any(m.training for m in view.module.modules())
    }
    with _untouched(view.module, facts):
        tally = Tally(view, credits, plan)
        for batch_x, batch_y in batches_of(x, y):
            tally.add(keepable(batch_x), keepable(batch_y))
        return tally.evidence(facts)


class Tally:
    """Sums over samples, so that batches of any size give what their concatenation would."""

    def __init__(self, network: Network, credits: Any, plan: Plan) -> None:
        self.network, self.credits, self.plan = network, credits, plan
        self.twin = _float64_twin(network) if plan.precise else None
        self.samples = 0
        self.dtype = torch.float32
        self.width = 0
        self.spread = 0.0
        self.softmax = True
        self.nonfinite: str | None = None
        self.means: dict[tuple[str, int], _Mean] = {}
        self.sums: dict[tuple[str, int], Tensor] = {}
        self.drift = _Drift(REDUCTION)
        self.moves = [
            Perturbations(layer, plan.perturbations, plan.perturbation_size, plan.seed)
            for layer in range(network.depth + 1)
        ]
        self.nulls = _nulls(credits, plan)
        self.report: dict[str, float] = {}

    def add(self, x: Any, y: Tensor) -> None:
        """Measure one batch."""
        seen, reference = gradients(self.network, x, y, checked_loss(self.plan.loss))
        self._note("loss", 0, self.plan.loss(seen.logits, y))
        self._observe(x, y, seen.logits, seen.states)
        for layer, (h, g) in enumerate(zip(seen.states, reference, strict=True)):
            self._note("state_norm", layer, norms(h))
            self._note("reference_norm", layer, norms(g))
        self.drift.add(reference[-1])
        credit = self._credits(x, y, reference)
        if credit is not None:
            self._compare(credit, reference)
        self._effects(x, y, seen.logits, seen.states, credit, reference)
        self.samples += len(y)

    def _observe(self, x: Any, y: Tensor, logits: Tensor, states: tuple[Tensor, ...]) -> None:
        if self.samples == 0:
            self.dtype, self.width = states[-1].dtype, states[-1][0].numel()
            self.spread = _spread(self.network, x, logits)
        self.softmax = self.softmax and _softmax_like(logits)
        self.nonfinite = self.nonfinite or _first_non_finite(self.network, states, logits)
        if logits.ndim == y.ndim + 1 and not y.is_floating_point():
            self._note("accuracy", 0, (logits.argmax(-1) == y).double().flatten())

    def _credits(self, x: Any, y: Tensor, reference: tuple[Tensor, ...]) -> list[Tensor] | None:
        if self.credits is None:
            return None
        seen = scene(self.network, x, y, self.plan.loss)
        told = credits_of(self.credits, seen, first=self.samples == 0)
        self.report = {**self.report, **getattr(self.credits, "report", {})}
        for null, rule in self.nulls:
            null.add(credits_of(rule, seen, first=True), reference)
        return told

    def _compare(self, credits: list[Tensor], reference: tuple[Tensor, ...]) -> None:
        for layer, (a, g) in enumerate(zip(credits, reference, strict=True)):
            self._note("credit_norm", layer, norms(a))
            self._note("cosine", layer, cosines(a, g))
            self._note("cosine_clamped", layer, clamped_cosines(a, g, REDUCTION))
            self._sum("credit", layer, flat(a).sum(0))
            self._sum("reference", layer, flat(g).sum(0))
        whole = [torch.cat([flat(t) for t in side], 1) for side in (credits, reference)]
        self._note("whole_cosine", 0, cosines(*whole))

    def _effects(
        self,
        x: Any,
        y: Tensor,
        logits: Tensor,
        states: tuple[Tensor, ...],
        credits: list[Tensor] | None,
        reference: tuple[Tensor, ...],
    ) -> None:
        network, exact = self.network, reference
        if self.twin is not None:
            network, x = self.twin, as_double(x)
            y = y.double() if y.is_floating_point() else y
            seen, exact = gradients(network, x, y, self.plan.loss)
            states, logits = seen.states, seen.logits
            self._precision(reference, exact)
        at = loss_at(network, x, y, self.plan.loss)
        base = self.plan.loss(logits, y).double()
        for layer, h in enumerate(states):
            credit = None if credits is None else credits[layer]
            if credit is not None:
                self._note("nudging", layer, nudges(at, layer, h, credit, base, self.plan.eta))
            if self.plan.perturbations:
                self.moves[layer].try_on(at, h, base, {"credit": credit, "bp": exact[layer]})

    def _precision(self, reference: tuple[Tensor, ...], exact: tuple[Tensor, ...]) -> None:
        for layer, (g, truth) in enumerate(zip(reference, exact, strict=True)):
            self._note("reference_angle", layer, angles(g, truth))
            self._note("reference_noise", layer, distances(g, truth))

    def _note(self, name: str, layer: int, values: Tensor) -> None:
        self.means.setdefault((name, layer), _Mean()).add(values)

    def _sum(self, name: str, layer: int, row: Tensor) -> None:
        key = (name, layer)
        self.sums[key] = self.sums[key] + row if key in self.sums else row

    def evidence(self, facts: Mapping[str, bool | float | str]) -> Evidence:
        """What all batches together say."""
        if self.samples == 0:
            raise DataError("there is no sample to measure; give at least one batch")
        state_norm = self._layers("state_norm")
        cosine = self._layers("cosine")
        bad = self.nonfinite is not None
        return Evidence(
            layers=self.network.depth,
            samples=self.samples,
            dtype=str(self.dtype).removeprefix("torch."),
            state_norm=state_norm,
            growth=tuple(_ratio(b, a) for a, b in pairwise(state_norm)),
            reference_norm=self._layers("reference_norm"),
            cosine=cosine,
            cosine_clamped=self._layers("cosine_clamped"),
            deep_cosine=mean_of(cosine[1:]),
            gamma=mean_of(cosine),
            cosine_aggregates={} if bad or not cosine else self._aggregates(cosine),
            nudging=self._layers("nudging"),
            perturbation_correlation=self._correlations("credit") if cosine else (),
            perturbation_controls=self._controls(),
            stability=self.drift.value,
            stability_mode=f"dL/dh_{self.network.depth}, minibatches of {REDUCTION}",
            reference_angle=self._layers("reference_angle"),
            reference_noise=self._layers("reference_noise"),
            null=self._null(mean_of(cosine[1:])),
            accuracy=self._one("accuracy"),
            loss=self._one("loss"),
            nonfinite=self.nonfinite,
            facts={**facts, **self._facts()},
            undefined=self._undefined(cosine),
        )

    def _layers(self, name: str) -> tuple[float, ...]:
        found = [self.means.get((name, layer)) for layer in range(self.network.depth + 1)]
        return tuple(m.value for m in found if m is not None)

    def _one(self, name: str) -> float | None:
        found = self.means.get((name, 0))
        return None if found is None else found.value

    def _aggregates(self, cosine: tuple[float, ...]) -> dict[str, float]:
        """The same cosines aggregated in the ways papers do, side by side."""
        weights = self._layers("reference_norm")
        known = [(c, w) for c, w in zip(cosine, weights, strict=True) if c == c]
        total = sum(w for _, w in known)
        pooled = [
            pooled_cosine(self.sums["credit", layer], self.sums["reference", layer])
            for layer in range(len(cosine))
        ]
        return {
            "mean over layers": mean_of(cosine),
            "median over layers": median(c for c, _ in known) if known else nan,
            "deep layers": mean_of(cosine[1:]),
            "weighted by ||g||": sum(c * w for c, w in known) / total if total else nan,
            "layers concatenated": self._one("whole_cosine") or 0.0,
            "batch mean first": mean_of(pooled),
        }

    def _correlations(self, name: str) -> tuple[float, ...]:
        return tuple(m.value(name) for m in self.moves) if self.plan.perturbations else ()

    def _controls(self) -> dict[str, tuple[float, ...]]:
        if not self.plan.perturbations:
            return {}
        return {name: self._correlations(name) for name in ("random", "bp")}

    def _null(self, value: float) -> NullCalibration | None:
        drawn = [null.deep for null, _ in self.nulls]
        if len(drawn) < 2 or value != value:
            return None
        values = torch.tensor(drawn, dtype=torch.float64)
        mean, std = float(values.mean()), float(values.std())
        z = (value - mean) / std if std > 0 else nan
        return NullCalibration(draws=len(drawn), mean=mean, std=std, value=value, z=z)

    def _facts(self) -> dict[str, bool | float | str]:
        zero = [f"h_{layer}" for layer, n in enumerate(self._layers("credit_norm")) if n == 0]
        return {
            "nondeterministic_spread": self.spread,
            "softmax_like": self.softmax,
            "width": float(self.width),
            **({"zero_credit_layers": ", ".join(zero)} if zero else {}),
            **self.report,
        }

    def _undefined(self, cosine: tuple[float, ...]) -> dict[str, str]:
        reasons = {
            f"{name}[{layer}]": "the credit or the reference has no direction at any sample"
            for name in ("cosine", "nudging")
            for layer, value in enumerate(self._layers(name))
            if value != value
        }
        if self.drift.value != self.drift.value:
            reasons["stability"] = f"needs two minibatches of {REDUCTION} samples"
        if cosine and mean_of(cosine[1:]) != mean_of(cosine[1:]):
            reasons["deep_cosine"] = "no deep layer has a defined cosine"
        return reasons


@dataclass
class _Mean:
    """A mean over the defined values of all batches."""

    total: float = 0.0
    count: int = 0

    def add(self, values: Tensor) -> None:
        known = values.detach().double()
        known = known[~known.isnan()]
        self.total += float(known.sum())
        self.count += known.numel()

    @property
    def value(self) -> float:
        return self.total / self.count if self.count else nan


@dataclass
class _Drift:
    """Does the reference point the same way whatever the samples? Disjoint minibatches tell."""

    size: int
    rows: list[Tensor] = field(default_factory=list)
    waiting: Tensor | None = None

    def add(self, reference: Tensor) -> None:
        """Fill minibatches of ``size`` in sample order, however the samples arrive."""
        rows = flat(reference)
        rows = rows if self.waiting is None else torch.cat([self.waiting, rows])
        full = len(rows) // self.size * self.size
        self.rows += [part.sum(0) for part in rows[:full].split(self.size) if len(part)]
        self.waiting = rows[full:]

    @property
    def value(self) -> float:
        """The mean cosine between minibatches."""
        return pairwise_mean(torch.stack(self.rows)) if len(self.rows) > 1 else nan


@dataclass
class _Null:
    """The deep cosine of one redrawn rule, over all batches."""

    means: dict[int, _Mean] = field(default_factory=dict)

    def add(self, credits: list[Tensor], reference: tuple[Tensor, ...]) -> None:
        for layer, (a, g) in enumerate(zip(credits, reference, strict=True)):
            self.means.setdefault(layer, _Mean()).add(cosines(a, g))

    @property
    def deep(self) -> float:
        return mean_of([mean.value for layer, mean in self.means.items() if layer > 0])


def pooled_cosine(a: Tensor, b: Tensor) -> float:
    """The cosine of two summed vectors.

    >>> pooled_cosine(torch.ones(3), torch.ones(3))
    1.0
    """
    return float(cosines(a[None], b[None])[0])


def _nulls(credits: Any, plan: Plan) -> list[tuple[_Null, Any]]:
    if not getattr(credits, "has_feedback", False):
        return []
    return [(_Null(), credits.fresh(plan.seed + 1 + k)) for k in range(plan.nulls)]


def _float64_twin(network: Network) -> Network | None:
    """A copy of the network that computes in float64; None where a module cannot be copied."""
    try:
        return Network.of(copy.deepcopy(network.module).double(), network.names)
    except Exception:
        return None


def _spread(network: Network, x: Any, logits: Tensor) -> float:
    """The largest change of the logits when asked again, relative to their size."""
    with torch.no_grad():
        again = network.run(x, lambda _, h: h)
    size = float(logits.double().abs().max())
    return float((again.double() - logits.double()).abs().max()) / size if size else 0.0


def _softmax_like(logits: Tensor) -> bool:
    rows = logits.double()
    return bool((rows >= 0).all()) and bool(((rows.sum(-1) - 1).abs() < 1e-3).all())


def _first_non_finite(network: Network, states: Iterable[Tensor], logits: Tensor) -> str | None:
    for layer, h in enumerate(states):
        if not bool(h.isfinite().all()):
            return _weight_before(network) or f"state h_{layer}"
    return None if bool(logits.isfinite().all()) else _weight_before(network) or "logits"


def _weight_before(network: Network) -> str | None:
    for name, weight in network.module.named_parameters():
        if not bool(weight.isfinite().all()):
            return f"weight {name}"
    return None


def _ratio(after: float, before: float) -> float:
    return after / before if before else nan


@contextmanager
def _untouched(module: nn.Module, facts: dict[str, bool | float | str]) -> Iterator[None]:
    """Eval mode, autograd on, no random number drawn, and every buffer and mode given back."""
    before = dict(module.named_buffers())
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.random.fork_rng(),
        evaluating(module),
        keeping_buffers(module),
    ):
        yield
        changed = [n for n, b in module.named_buffers() if not _same(b, before[n])]
        if changed:
            facts["buffers_changed"] = ", ".join(changed)


def _same(a: Tensor, b: Tensor) -> bool:
    return bool(((a == b) | (a.isnan() & b.isnan())).all()) if a.shape == b.shape else False
