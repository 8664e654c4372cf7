"""measure(): everything that is known about one network on some samples, as Evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from faudit.errors import DataError, FauditError, RuleError
from faudit.measures.evidence import Evidence
from faudit.measures.gauges import (
    Alignment,
    Detours,
    Facts,
    Finiteness,
    Forecasts,
    Gauge,
    Independence,
    Look,
    Nudging,
    Null,
    Outputs,
    Precision,
    Shown,
    Sizes,
    Stability,
    Unavailable,
)
from faudit.measures.inputs import (
    as_double,
    batches_of,
    check_rule,
    checked_credits,
    checked_loss,
    checked_source,
)
from faudit.measures.safety import differentiable, untouched
from faudit.networks.anew import duplicate
from faudit.networks.scene import Loss, Scene, cross_entropy, scene
from faudit.networks.view import Network, ReportedNetwork
from faudit.seeds import check_seed, derive

FRESH = 6
"""Sets the seeds of redrawn rules apart from every other seed derived from the same number."""


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

    def __post_init__(self) -> None:
        for name in ("eta", "perturbation_size"):
            if not getattr(self, name) > 0:
                raise FauditError(f"{name} is {getattr(self, name)!r}; a step has a length above 0")
        check_seed(self.seed)
        for name in ("perturbations", "nulls"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 0:
                raise FauditError(f"{name} is {getattr(self, name)!r}; give a whole number from 0")
        if self.nulls == 1:
            raise FauditError("nulls is 1; a null needs two draws to have a spread (0 leaves it)")
        if not callable(self.loss):
            raise FauditError(f"loss is {self.loss!r}; give a function of (logits, targets)")


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

    Everything is measured in eval mode and in the network's own dtype, the loss too; norms, dot
    products and means are then taken in float64. Every sample counts by its own loss, so nothing
    is divided by a batch size, and half precision underflows no earlier than it must. A quantity
    is averaged over the samples where it is defined and over nothing else; where it is defined
    nowhere it is NaN, and ``Evidence.undefined`` says why.

    Batches give what their concatenation would, in bounded memory, unless the network's samples
    depend on each other, which a flag then tells. Two things need whole batches
    or an order: ``stability`` compares minibatches of 128 in the order the samples come, and
    what a rule reports of itself (equilibrium propagation's residual) is the batches' worst.

    Args:
        network: a network or any module; ``blocks`` as in ``Network.of``.
        x, y: inputs and targets, two matching iterables of batches, or an iterable of (x, y).
        credits: a credit rule, a callable from a scene to the credits, or the list a_0..a_L.
        loss: (logits, targets) -> one loss per sample.
        eta: length of the nudge along the credit.
        perturbations: random moves per sample and state; 0 leaves the correlation out.
        perturbation_size: their length relative to the state's.
        precise: also compute the reference in float64 on a copy, and take effects there.
        nulls: fresh draws of a rule's feedback for its null; 0 leaves the null out.
        seed: of the perturbations, of the fresh draws, and of a network that draws noise.

    >>> from faudit.networks.zoo import ResMLP
    >>> net = Network.of(ResMLP(inputs=6, width=8, depth=2, classes=3))
    >>> evidence = measure(net, torch.randn(32, 6), torch.arange(32) % 3)
    >>> len(evidence.state_norm), evidence.defined["gamma"]
    (3, False)
    """
    view = Network.of(network, blocks)
    view = differentiable(view, view.module)
    plan = Plan(loss, eta, perturbations, perturbation_size, precise, nulls, seed)
    was_training = any(m.training for m in view.module.modules())
    with untouched(view.module, seed) as changed:
        tally = Tally(view, credits, plan)
        for batch_x, batch_y in batches_of(x, y):
            tally.add(batch_x, batch_y)
        buffers = ", ".join(changed())
    found = {"buffers_changed": buffers, "tf32": tensor_float(view.module)}
    return tally.evidence(
        {"was_training": was_training, **{name: told for name, told in found.items() if told}}
    )


def tensor_float(module: nn.Module, device: str | None = None) -> str:
    """What a GPU computes with the ten bits of TF32 though it is called float32; empty if nothing.

    >>> tensor_float(nn.Linear(1, 1))
    ''
    """
    devices = {p.device.type for p in module.parameters() if p.dtype == torch.float32}
    if "cuda" not in (devices if device is None else {device}):
        return ""
    convolves = any(isinstance(m, nn.modules.conv._ConvNd) for m in module.modules())
    rounded = {
        "matrix products": torch.get_float32_matmul_precision() != "highest",
        "convolutions": convolves and torch.backends.cudnn.allow_tf32,
    }
    return " and ".join(name for name, so in rounded.items() if so)


class Tally:
    """Shows every batch to the gauges and puts together what they found."""

    def __init__(self, network: Network, credits: Any, plan: Plan) -> None:
        self.network, self.plan = network, plan
        self.informant = Informant(network, credits, plan)
        self.twin = Twin(network) if plan.precise else None
        self.samples = self.depth = 0
        self.dtype = ""
        self.gauges = list(self._gauges())

    def _gauges(self) -> Iterator[Gauge]:
        plan, credited = self.plan, self.informant.credits is not None
        yield from (
            Finiteness(self.network),
            Sizes(),
            Outputs(),
            Independence(),
            Detours(),
            Stability(),
        )
        if self.twin:
            yield Precision(self.twin)
        if credited:
            yield Alignment()
        if self.informant.fresh:
            yield Null(len(self.informant.fresh))
        if isinstance(self.network, ReportedNetwork):
            why = "the network only reports its states; none can be moved"
            yield Unavailable("nudging", "perturbation_correlation", why=why)
            return
        if credited:
            yield Nudging(plan.loss, plan.eta)
        if plan.perturbations:
            yield Forecasts(plan.loss, plan.perturbations, plan.perturbation_size, plan.seed)

    def add(self, x: Any, y: Tensor) -> None:
        """Measure one batch."""
        seen = Look.at(self.network, x, y, checked_loss(self.plan.loss))
        best = self.twin.look(seen, self.plan.loss) if self.twin else seen
        shown = Shown(seen, best, **self.informant.tell(seen))
        for gauge in self.gauges:
            gauge.add(shown)
        self.depth, self.dtype = len(seen.states) - 1, str(seen.states[-1].dtype)
        self.samples += len(y)

    def evidence(self, facts: Facts) -> Evidence:
        """What all batches together say."""
        if self.samples == 0:
            raise DataError("there is no sample to measure; give at least one batch")
        fields: dict[str, Any] = {}
        undefined: dict[str, str] = {}
        for gauge in self.gauges:
            fields |= gauge.fields()
            undefined |= gauge.undefined()
            facts = {**facts, **gauge.facts()}
        return Evidence(
            layers=self.depth,
            samples=self.samples,
            dtype=self.dtype.removeprefix("torch."),
            facts={**facts, **self.informant.report},
            undefined=undefined,
            **fields,
        )


class Informant:
    """Asks the rule, and the same rule redrawn, for the credits of every batch."""

    def __init__(self, network: Network, credits: Any, plan: Plan) -> None:
        self.network, self.credits, self.loss = network, checked_source(credits), plan.loss
        redrawn = plan.nulls if getattr(credits, "has_feedback", False) else 0
        self.fresh = [credits.fresh(derive(plan.seed, FRESH, draw)) for draw in range(redrawn)]
        self.report: dict[str, float] = {}
        self.batches = 0

    def tell(self, seen: Look) -> dict[str, Any]:
        """The credits of one batch, those of the redrawn rules, and the logits seen meanwhile."""
        self.batches += 1
        if self.credits is None or isinstance(self.credits, Sequence):
            return {"credits": self._listed(seen), "again": self._again(seen)}
        check_rule(self.credits, seen.states, seen.logits)
        batch = scene(self.network, seen.x, seen.y, self.loss)
        told = [checked_credits(_ask(r, batch), batch.states) for r in (self.credits, *self.fresh)]
        self._keep(getattr(self.credits, "report", {}))
        return {"credits": told[0], "fresh": told[1:], "again": batch.logits}

    def _listed(self, seen: Look) -> list[Tensor] | None:
        if self.credits is None:
            return None
        if self.batches > 1:
            raise RuleError("a list of credits belongs to one batch; give a rule or a callable")
        return checked_credits(self.credits, seen.states)

    def _again(self, seen: Look) -> Tensor | None:
        if self.batches > 1:
            return None
        with torch.no_grad():
            return self.network.run(seen.x, lambda _, h: h)

    def _keep(self, report: Mapping[str, Tensor | float]) -> None:
        for name, told in report.items():
            value = float(told)
            before = self.report.get(name, value)
            self.report[name] = before if before != before or before >= value else value


def _ask(source: Any, batch: Scene) -> Any:
    return source.credits(batch) if hasattr(source, "credits") else source(batch)


class Twin:
    """The network once more, in float64; where that cannot be had, ``why`` says why not."""

    def __init__(self, network: Network) -> None:
        self.why = ""
        try:
            self.network = duplicate(network, network.module)
            self.network.module.double()
        except Exception as error:  # anything may stand in a module
            self.why = f"the network cannot be copied to float64: {_brief(error)}"

    def look(self, seen: Look, loss: Loss) -> Look:
        """The same batch in float64; what was seen already where the copy does not run."""
        if self.why:
            return seen
        y = seen.y.double() if seen.y.is_floating_point() else seen.y
        try:
            return Look.at(self.network, as_double(seen.x), y, loss)
        except Exception as error:  # a forward may insist on its own dtype
            self.why = f"the copy of the network does not run in float64: {_brief(error)}"
            return seen


def _brief(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:150]}"
