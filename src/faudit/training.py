"""Training: one local step for every rule, and ``train``, which yields one record per epoch.

The step is one backward call. Every stage's output is a root with its credit as gradient, so no
gradient crosses a state: block k learns from ``credits[k + 1]`` and from nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from math import cos, isfinite, nan, pi
from typing import Any

import torch
from torch import Tensor, nn

from faudit.errors import DataError, NetworkError, NonFiniteError, RecipeError, RuleError
from faudit.networks.scene import (
    Loss,
    Scene,
    check_series,
    cross_entropy,
    grading,
    mean_loss,
    scene,
)
from faudit.networks.values import copied, marks
from faudit.networks.view import Network, evaluating
from faudit.recipe import Training
from faudit.recorded import Recorded, Report
from faudit.rules.base import CreditRule
from faudit.seeds import check_seed, derive, seeded

Batches = Callable[[torch.Generator], Iterable[tuple[Any, Tensor]]]
"""Given the epoch's own generator, the batches (x, y) of one epoch."""


@dataclass(frozen=True)
class Epoch:
    """What training says of one epoch; what the network became is for others to measure."""

    epoch: int
    train_loss: float
    lr: float
    extra: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, one level deep."""
        values = asdict(self)
        return {**values.pop("extra"), **values}


class Learner:
    """A network, its rule and their optimiser: all that an interrupted run has to get back.

    >>> from faudit.networks.zoo import ResMLP
    >>> from faudit.rules import make_rule
    >>> net = Network.of(ResMLP(inputs=6, width=8, depth=2, classes=3))
    >>> x, y = torch.randn(16, 6), torch.arange(16) % 3
    >>> rule = make_rule("dfa", net.layout(x), seed=1)
    >>> learner = Learner(net, rule, Training(epochs=2, batch=16), x, seed=0)
    >>> [record.epoch for record in train(learner, lambda generator: [(x, y)])]
    [1, 2]
    """

    def __init__(
        self,
        network: Network,
        rule: CreditRule,
        settings: Training,
        x: Any,
        *,
        seed: int,
        loss: Loss = cross_entropy,
    ) -> None:
        self.network, self.rule, self.settings = network, rule, settings
        self.seed, self.loss = seed, loss
        self.epoch = 0
        _check_given(network, rule, settings)
        check_seed(seed)
        rule.layout.check(network.layout(x))
        freeze_blocks(network, settings.trainable_blocks)
        self.parts = parameter_parts(network, x)
        self.mirrors = [pair for pair in rule.mirrors(network) if pair[0].requires_grad]
        self.whole = _learns_whole(rule, settings)
        if self.whole:
            check_series(network, x)
        local = self.parts.local + [mirror for _, mirror in self.mirrors]
        self.optimiser = torch.optim.AdamW(
            [{"params": local, "local": True}, {"params": self.parts.readout, "local": False}],
            lr=settings.lr,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self.recorded = self._recorded()
        self._set_rates()

    def _recorded(self) -> Recorded | None:
        """The step as one launch, where there is a GPU to record it and a rule that allows it."""
        device = (self.parts.readout + self.parts.local)[0].device
        if device.type != "cuda" or not self.rule.steady:
            return None
        for group in (group for o in self._optimisers() for group in o.param_groups):
            group.update(capturable=True, lr=torch.tensor(float(group["lr"]), device=device))
        return Recorded(self.step)

    def _optimisers(self) -> list[torch.optim.Optimizer]:
        return [o for o in (self.optimiser, self.rule.optimiser) if o is not None]

    def step(self, x: Any, y: Tensor) -> tuple[Tensor, Report]:
        """Learn from one batch; returns its mean loss before that, and what the rule reports."""
        if self.whole:
            return self._backpropagate(x, y), {}
        seen, loss = self._see(x, y)
        report = self.rule.fit(seen)
        self._update(seen, self.parts.local + self.parts.readout)
        for _ in range(self.settings.block_steps - 1 if self.parts.local else 0):
            self._update(self._see(x, y)[0], self.parts.local)
        return loss, {**report, **self.rule.report}

    def _backpropagate(self, x: Any, y: Tensor) -> Tensor:
        """One plain backward pass: what credit teaches that is the gradient itself."""
        self._forget()
        loss = mean_loss(self.network, x, y, self.loss)
        self._check(loss, x)
        loss.backward(inputs=self.parts.local + self.parts.readout)
        self._apply()
        return loss.detach()

    def _see(self, x: Any, y: Tensor) -> tuple[Scene, Tensor]:
        self._forget()
        seen = scene(self.network, x, y, self.loss)
        loss = seen.each.mean()
        self._check(loss, x)
        return seen, loss

    def _check(self, loss: Tensor, x: Any) -> None:
        # Asking a GPU holds it up at every step; there the whole epoch is asked at its end.
        if self.recorded is None and not bool(loss.isfinite()):
            raise self._non_finite(x)

    def _update(self, seen: Scene, inputs: list[nn.Parameter]) -> None:
        local_gradients(seen, self.rule.credits(seen), self.settings, inputs)
        for weight, mirror in self.mirrors:
            mirror.grad = None if weight.grad is None else weight.grad.clone()
        self._apply()

    def _forget(self) -> None:
        """Make room before the forward pass; ``zero_grad`` also reports to a profiler, slowly."""
        for group in self.optimiser.param_groups:
            for p in group["params"]:
                p.grad = None

    def _apply(self) -> None:
        self.optimiser.step()
        for _ in range(self.settings.idle_steps):
            self._idle_step()
        self.rule.after_step(self.network)

    def _idle_step(self) -> None:
        for group in self.optimiser.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.zero_()
        self.optimiser.step()

    def run_epoch(self, batches: Batches) -> Epoch:
        """Learn from one epoch's batches, in an order that depends on seed and epoch alone."""
        lr = self._set_rates()
        losses: list[Tensor] = []
        extra: Report = {}
        step = self.recorded or self.step
        if not callable(batches):
            raise DataError(
                f"batches is a function of the epoch's generator, not a {type(batches).__name__};"
                " give lambda generator: loader, or faudit.data.batches"
            )
        self.network.module.train()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(self.seed, 1, self.epoch))
            for x, y in batches(seeded(self.seed, 2, self.epoch)):
                loss, extra = step(x, y)
                losses.append(loss)
        if not losses:
            raise DataError("an epoch had no batch; the data are empty or smaller than one batch")
        mean = float(torch.stack(losses).double().mean())
        if not isfinite(mean):
            raise self._non_finite(x)
        self.epoch += 1
        return Epoch(self.epoch, mean, lr, {name: float(value) for name, value in extra.items()})

    def _set_rates(self) -> float:
        settings = self.settings
        local = settings.schedule if settings.local_schedule == "same" else settings.local_schedule
        share = self.epoch / settings.epochs
        for group in self.optimiser.param_groups:
            kind, scale = (local, settings.local_lr) if group["local"] else (settings.schedule, 1.0)
            _set_rate(group, settings.lr * scale * scheduled(kind, share))
        return float(self.optimiser.param_groups[1]["lr"])

    def _non_finite(self, x: Any) -> NonFiniteError:
        if any(not len(part) for part in _tensors(x)):
            raise DataError("a batch holds no sample, so it has no mean loss to learn from")
        layer, epoch = first_non_finite(self.network, x) or "the loss", self.epoch + 1
        return NonFiniteError(
            f"training met a number that is not finite in {layer}, epoch {epoch};"
            " clean the data if it is the input, else lower the learning rate or add a penalty",
            layer=layer,
            epoch=epoch,
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes while training."""
        own = self.rule.optimiser
        return {
            "epoch": self.epoch,
            "network": self.network.module.state_dict(),
            "rule": self.rule.state_dict(),
            "optimiser": _optimiser_state(self.optimiser),
            "rule_optimiser": None if own is None else _optimiser_state(own),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where ``state`` was taken; the next epoch is the same to the last bit."""
        self.network.module.load_state_dict(state["network"])
        self.rule.load_state_dict(state["rule"])
        self.optimiser.load_state_dict(state["optimiser"])
        if self.rule.optimiser is not None:
            self.rule.optimiser.load_state_dict(state["rule_optimiser"])
        self.recorded = self._recorded()
        self.epoch = state["epoch"]


def _check_given(network: Network, rule: CreditRule, settings: Training) -> None:
    """Refuse what is no network, rule or settings, and a rule that lies or counts elsewhere."""
    if not isinstance(network, Network):
        raise NetworkError(f"give Network.of(model), not a {type(network).__name__}")
    if not isinstance(rule, CreditRule):
        raise RuleError(f"give make_rule(name, network.layout(x)), not {rule!r:.60}")
    if not isinstance(settings, Training):
        raise RecipeError(f"give a Training, such as recipe.training, not {settings!r:.60}")
    theirs = {(p.dtype, p.device) for p in network.module.parameters() if p.is_floating_point()}
    others = {(p.dtype, p.device) for p in rule.parameters()} - theirs
    for dtype, device in others if theirs else ():
        told = " or ".join(sorted(f"{kind} on {place}" for kind, place in theirs))
        raise RuleError(
            f"the rule is {dtype} on {device} and the network {told}; use rule.to(device, dtype)"
        )


def _optimiser_state(optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """An optimiser's state with its rates as numbers, wherever they are kept."""
    state = optimiser.state_dict()
    groups = [{**group, "lr": float(group["lr"])} for group in state["param_groups"]]
    return {**state, "param_groups": groups}


def _set_rate(group: dict[str, Any], rate: float) -> None:
    """A recorded step reads its rate from a tensor, which has to stay the same one."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def _learns_whole(rule: CreditRule, settings: Training) -> bool:
    """Whether local gradients are those of one uncut backward pass, which is cheaper."""
    as_told = settings.normalise == "none" and not settings.penalty and settings.block_steps == 1
    return rule.exact and rule.optimiser is None and as_told


def train(learner: Learner, batches: Batches) -> Iterator[Epoch]:
    """Train to the last epoch, yielding a record after each; stop early with ``break``."""
    while learner.epoch < learner.settings.epochs:
        yield learner.run_epoch(batches)


def local_gradients(
    seen: Scene, credits: list[Tensor], settings: Training, inputs: list[nn.Parameter]
) -> None:
    """Add to every parameter's ``.grad`` that of its local objective, a mean over the batch.

    A block's is ``<f_l(h_l), credits[l+1]> + penalty * ||f_l(h_l)||^2``, the embedding's is
    ``<h_0, credits[0]>``, and the readout's is the loss itself.
    """
    credits = [NORMALISED[settings.normalise](credit) for credit in credits]
    count = len(seen.targets)
    roots = list(zip(seen.local.outputs, credits, strict=True))
    roots += [(seen.local.logits, seen.error)]
    if settings.penalty:
        roots += penalty_roots(seen, settings.penalty, settings.penalty_over)
    live = [(root, credit / count) for root, credit in roots if root.requires_grad]
    tensors, grads = zip(*live, strict=True)
    torch.autograd.backward(tensors, grads, inputs=inputs)


def penalty_roots(seen: Scene, penalty: float, over: str) -> list[tuple[Tensor, Tensor]]:
    """Each block's update f with the gradient 2 * penalty * f of its squared norm."""
    roots = []
    for index, update in enumerate(seen.local.updates):
        f = _difference(seen, index) if update is None else update
        scale = 2 * penalty / (f[0].numel() if over == "mean" else 1)
        roots.append((f, scale * f.detach()))
    return roots


def _difference(seen: Scene, index: int) -> Tensor:
    """A block's update where only its sum is known; rounds off once the stream dwarfs it."""
    before, after = seen.local.leaves[index].detach(), seen.local.outputs[index + 1]
    if before.shape != after.shape:
        raise NetworkError(
            f"block {seen.network.names[index]!r} turns {tuple(before.shape)} into"
            f" {tuple(after.shape)}, so its update cannot be penalised; make the block a"
            " faudit.networks.view.Residual"
        )
    return after - before


def unit(credit: Tensor) -> Tensor:
    """Every sample's credit divided by its norm; a credit of zero stays zero.

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    flat = credit.flatten(1)
    scaled = flat / _or_one(flat.abs().amax(1, keepdim=True))
    return (scaled / _or_one(scaled.norm(dim=1, keepdim=True))).view_as(credit)


def unit_mean(credit: Tensor) -> Tensor:
    """A batch's credit divided by the mean of its samples' norms; no credit stays no credit.

    >>> unit_mean(torch.tensor([[3.0, 4.0], [0.0, 15.0]]))
    tensor([[0.3000, 0.4000],
            [0.0000, 1.5000]])
    """
    scaled = credit / _or_one(credit.abs().amax())
    return scaled / _or_one(scaled.flatten(1).norm(dim=1).mean())


def _or_one(divisor: Tensor) -> Tensor:
    return torch.where(divisor > 0, divisor, torch.ones_like(divisor))


NORMALISED: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda credit: credit,
    "sample": unit,
    "batch": unit_mean,
}


def scheduled(kind: str, share: float) -> float:
    """The learning rate's factor after this share of the epochs.

    >>> scheduled("cosine", 0.5), scheduled("constant", 0.5)
    (0.5, 1.0)
    """
    # Rounded, so that every platform's cosine gives the same rates.
    return 1.0 if kind == "constant" else round((1 + cos(pi * share)) / 2, 15)


@dataclass(frozen=True)
class Parts:
    """The trainable parameters: those taught by local credit, and the readout's."""

    local: list[nn.Parameter]
    readout: list[nn.Parameter]


def parameter_parts(network: Network, x: Any) -> Parts:
    """Which trainable parameters the readout uses, found by asking autograd; the rest are local.

    A parameter used on both sides (tied embeddings) counts as the readout's.
    """
    trainable = [p for p in network.module.parameters() if p.requires_grad]
    if not trainable:
        raise NetworkError("every parameter of the network is frozen, so nothing can be trained")
    cut: list[Tensor] = []

    def at(index: int, h: Tensor) -> Tensor:
        cut.append(h.detach().requires_grad_())
        return cut[-1]

    with grading(), evaluating(network.module):
        logits = network.trace(copied(x), at).logits
        reached = torch.autograd.grad(logits.sum(), trainable, allow_unused=True)
    used = {id(p) for p, g in zip(trainable, reached, strict=True) if g is not None}
    return Parts(
        [p for p in trainable if id(p) not in used], [p for p in trainable if id(p) in used]
    )


def freeze_blocks(network: Network, trainable: int | None) -> None:
    """Leave only the last ``trainable`` blocks to be trained; None leaves all.

    Frozen weights do not change by a bit. Running statistics (BatchNorm) still follow the data:
    they are measurements of the random block, not something it learned.
    """
    if trainable is None:
        return
    if trainable > network.depth:
        raise RecipeError(
            f"cannot train the last {trainable} blocks of a network with {network.depth}"
        )
    for block in network.blocks[: network.depth - trainable]:
        block.requires_grad_(False)


def first_non_finite(network: Network, x: Any) -> str | None:
    """Where the first number that is not finite stands, from input to logits; None if nowhere."""
    if not all(bool(part.isfinite().all()) for part in _tensors(x)):
        return "the input"
    for name, weight in network.module.named_parameters():
        if not bool(weight.isfinite().all()):
            return f"the weights {name}"
    with torch.no_grad(), evaluating(network.module):
        seen = network.trace(x)
    for index, h in enumerate(seen.states):
        if not bool(h.isfinite().all()):
            return f"the state h_{index}"
    return None if bool(seen.logits.isfinite().all()) else "the logits"


def _tensors(x: Any) -> list[Tensor]:
    parts = x.values() if isinstance(x, Mapping) else x if isinstance(x, (tuple, list)) else [x]
    return [part for part in parts if isinstance(part, Tensor)]


@dataclass(frozen=True)
class Score:
    """How a network does on one split: share right, mean loss, and which samples were right.

    Where a sample has several labels (tokens), ``accuracy`` is the mean over samples of the share
    that is right, and ``correct`` has a row per sample, NaN at padding. Samples that are nothing
    but padding are left out of both.
    """

    accuracy: float
    loss: float
    correct: Tensor


def evaluate(
    network: Network, batches: Iterable[tuple[Any, Tensor]], loss: Loss = cross_entropy
) -> Score:
    """Accuracy and mean loss in eval mode.

    >>> net = Network.of(nn.Sequential(nn.Linear(2, 2), nn.Identity()), blocks=["0"])
    >>> evaluate(net, [(torch.eye(2), torch.tensor([0, 1]))]).correct.shape
    torch.Size([2])
    """
    correct, losses = [], []
    with torch.no_grad(), evaluating(network.module):
        for x, y in batches:
            logits = network.run(x, lambda _, h: h)
            losses.append(loss(logits, y))
            correct.append(marks(logits, y))
    found = _stacked(correct)
    if not len(found):
        raise DataError("there is no sample to evaluate on; a negative label is padding")
    # Summed, because a GPU's mean of the same bits is another number in the last digit.
    accuracy = float(found.nanmean(1).sum()) / len(found)
    single = found.squeeze(1).bool() if found.shape[1] == 1 else found
    return Score(accuracy, float(torch.cat(losses).double().mean()), single)


def _stacked(rows: list[Tensor]) -> Tensor:
    """Batches of marks as one table, without the rows that are padding alone."""
    width = max((part.shape[1] for part in rows), default=1)
    wide = [nn.functional.pad(part, (0, width - part.shape[1]), value=nan) for part in rows]
    found = torch.cat(wide) if wide else torch.empty(0, 1)
    return found[~found.isnan().all(1)]
