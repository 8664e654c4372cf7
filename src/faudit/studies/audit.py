"""audit(): train the matched frozen-blocks baseline of a trained network, measure it, judge it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from math import isnan
from typing import Any

import torch
from torch import Tensor, nn

from faudit.errors import DataError, FauditError, NetworkError, unknown
from faudit.measures.evidence import Evidence
from faudit.measures.gauges import Facts
from faudit.measures.inputs import batches_of, check_rule
from faudit.measures.measure import measure
from faudit.measures.safety import differentiable, untouched
from faudit.networks.anew import redrawn
from faudit.networks.scene import Loss, check_labels, cross_entropy
from faudit.networks.values import kind, map_tensors
from faudit.networks.view import Network
from faudit.protocol import Finding, Thresholds, Verdict, diagnose
from faudit.recipe import Training
from faudit.rules import CreditRule, make_rule, rule_class
from faudit.seeds import check_seed, derive
from faudit.studies.kept import Keeper
from faudit.training import Learner, Score, evaluate
from faudit.training import train as train_epochs

Samples = tuple[Any, Tensor]
"""Inputs (a tensor, or a mapping of tensors) and their targets."""

BASELINE = Training(epochs=10)
HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Audit:
    """A verdict with all that it rests on."""

    verdict: Verdict
    evidence: Evidence
    trained: Score
    frozen: Score

    def __str__(self) -> str:
        return f"{self.verdict.explain()}\n\n{self.evidence}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values: verdict, evidence and both accuracies."""
        return {
            "verdict": self.verdict.to_dict(),
            "evidence": self.evidence.to_dict(),
            "accuracy": self.trained.accuracy,
            "frozen_accuracy": self.frozen.accuracy,
        }

    def _repr_html_(self) -> str:
        return self.verdict._repr_html_() + self.evidence._repr_html_()


def audit(
    model: nn.Module | Network,
    train: Samples,
    test: Samples,
    *,
    rule: str | CreditRule | None = None,
    blocks: str | Sequence[str] | None = None,
    fresh: Callable[[], nn.Module] | None = None,
    training: Training = BASELINE,
    samples: int = 1024,
    evaluation: Samples | None = None,
    bp_accuracy: float | None = None,
    loss: Loss = cross_entropy,
    thresholds: Thresholds | None = None,
    seed: int = 0,
    keep: str | os.PathLike[str] | None = None,
    name: str | None = None,
    **measuring: Any,
) -> Audit:
    """Audit a trained model: its own frozen-blocks baseline, its evidence, the verdict.

    Args:
        model: the trained network; neither it nor the data are changed.
        train, test: (X, y) as the model takes them. The baseline trains on ``train``; both are
            scored on ``test``, example by example.
        rule: what trained the model. A name says how the baseline's embedding is taught. Give the
            rule object itself, with the very matrices that trained the model, to have its credit
            measured: matrices drawn anew would say nothing about it. Without a rule exact
            gradients teach the baseline, which a flag then tells.
        fresh: makes an untrained model; by default the model's own layers are reset.
        training: how the baseline is trained, by AdamW; match it to how the model was trained, or
            train frozen blocks as you trained the model and give ``diagnose`` both outcomes. Blocks
            in half precision are trained in float32 and then rounded, as trained models are:
            updates lost in rounding would only make the baseline weaker.
        samples: how many test samples the evidence is measured on.
        evaluation: other samples to measure all of the evidence on.
        bp_accuracy: what exact gradients reach, for the flag that D3 is at its ceiling; the model's
            own accuracy where they trained it.
        keep: a new folder for the audit as a bundle, weights included. ``faudit report``, ``card``
            and ``template`` work on it, and ``report`` on a folder of many; they judge by the
            published thresholds and know no ``bp_accuracy``.
        name: what the model is called there; its class by default. Models of one name, rule and
            test set are seeds of one another, so audit each with a ``seed`` of its own.
        measuring: further options of ``measure``.

    >>> from faudit.networks.zoo import ResMLP
    >>> x, y = torch.randn(256, 6), torch.arange(256) % 3
    >>> result = audit(ResMLP(6, 8, 2, 3), (x, y), (x, y), training=Training(epochs=1))
    >>> result.verdict.finding("D3").flagged is None
    False
    """
    network = Network.of(model, blocks)
    network = differentiable(network, network.module)
    _check_options(measuring, measure)
    if not isinstance(training, Training):
        raise FauditError(f"training is of type {type(training).__name__}; give Training(...)")
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise FauditError(f"samples is {samples!r}; give a whole number from 1")
    check_seed(seed)
    facts: Facts = {"was_training": any(m.training for m in network.module.modules())}
    if narrow := {t.dtype for t in _tensors(network.module)} & set(HALF):
        facts["frozen_rounded"] = ", ".join(sorted(str(t).removeprefix("torch.") for t in narrow))
    _check_rule(rule)
    if rule is None:
        facts["rule_unnamed"] = True
    with untouched(network.module, seed):
        train, test = (_checked(network, part, rule, loss) for part in (train, test))
    keeper = None
    if keep is not None:
        with untouched(network.module, seed):
            keeper = Keeper.of(network, keep, name, rule, training, seed, test)
    with untouched(network.module, seed):
        teacher = rule if isinstance(rule, CreditRule) else _named_rule(rule, network, train, seed)
        exact = rule is not None and teacher.exact
        frozen = frozen_score(network, teacher, train, test, fresh, training, loss, seed)
        trained = evaluate(network, _in_order(test), loss)
        known = isinstance(rule, CreditRule) or exact
        shown = (_first(test, samples),) if evaluation is None else batches_of(*evaluation)
        evidence = measure(
            network,
            (part for batch in shown for part in _in_order(batch)),
            None,
            teacher if known else None,
            loss=loss,
            seed=seed,
            **measuring,
        )
        evidence = evidence.replace(facts={**evidence.facts, **facts})
        if keeper is not None:
            keeper.write(evidence, trained, frozen)
    verdict = diagnose(
        evidence,
        correct=trained.correct.cpu().numpy(),
        frozen_correct=frozen.correct.cpu().numpy(),
        bp_accuracy=trained.accuracy if bp_accuracy is None and exact else bp_accuracy,
        thresholds=thresholds,
    )
    return Audit(verdict, evidence, trained, frozen)


def frozen_score(
    network: Network,
    rule: CreditRule,
    train_on: Samples,
    test_on: Samples,
    fresh: Callable[[], nn.Module] | None,
    training: Training,
    loss: Loss,
    seed: int,
) -> Score:
    """How the same architecture does when its blocks stay at their random initialisation."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, 3))
        module = fresh() if fresh else redrawn(network.module, derive(seed, 3))
    other = Network.of(module, network.names)
    if {id(p) for p in module.parameters()} & {id(p) for p in network.module.parameters()}:
        raise FauditError("fresh() returned the trained model; it must build a new, untrained one")
    _check_matched(network.module, other.module)
    settings = training.model_copy(update={"trainable_blocks": 0})
    teacher = rule.fresh(derive(seed, 4))
    with _in_float32(module, teacher) as widened:
        first = widened(_first(train_on, 2)[0])
        learner = Learner(other, teacher, settings, first, seed=seed, loss=loss)

        def batches(generator: torch.Generator) -> Iterator[Samples]:
            for x, y in _shuffled(train_on, settings.batch, generator):
                yield widened(x), y

        for _ in train_epochs(learner, batches):
            pass
    return evaluate(other, _in_order(test_on), loss)


def _check_matched(trained: nn.Module, untrained: nn.Module) -> None:
    """Refuse a baseline of another size: a deeper or narrower one says nothing of these blocks."""
    ours, theirs = (
        {name: tuple(p.shape) for name, p in module.named_parameters()}
        for module in (trained, untrained)
    )
    other = [n for n in {**ours, **theirs} if ours.get(n) != theirs.get(n)]
    if other:
        shapes = [of.get(other[0], "missing") for of in (ours, theirs)]
        raise FauditError(
            f"fresh() built another network: weight {other[0]} is {shapes[0]} in the trained model"
            f" and {shapes[1]} in the fresh one; a matched baseline has the same weights untrained"
        )


@contextmanager
def _in_float32(*modules: nn.Module) -> Iterator[Callable[[Any], Any]]:
    """Weights in half precision as float32 meanwhile, and what makes their inputs fit.

    Half precision cannot hold the sum of a weight and a small update, so training in it would
    make a straw man of the baseline.
    """
    held = [(t, t.dtype) for m in modules for t in _tensors(m) if t.dtype in HALF]
    for t, _ in held:
        t.data = t.data.float()
    try:
        yield _widened if held else lambda x: x
    except NetworkError as error:
        raise (_no_float32(error) if held else error) from error
    finally:
        for t, dtype in held:
            t.data = t.data.to(dtype)


def _no_float32(error: NetworkError) -> NetworkError:
    return NetworkError(
        f"the baseline of a network in half precision trains in float32, but {error}; let the"
        " forward follow the dtype of its weights"
    )


def _widened(x: Any) -> Any:
    return map_tensors(x, lambda t: t.float() if t.dtype in HALF else t)


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


class FAProtocol:
    """The three diagnostics as one object: ``FAProtocol(model, x_eval, y_eval).run()``.

    D3 needs an accuracy on test data and that of frozen blocks: give both, or ``train`` and
    ``test`` data so that the baseline is trained here, and scored on ``x_eval`` where there is no
    ``test``. Without them the verdict is incomplete. The evidence is measured on all of ``x_eval``.

    >>> from faudit.networks.zoo import ResMLP
    >>> x, y = torch.randn(256, 6), torch.arange(256) % 3
    >>> report = FAProtocol(ResMLP(6, 8, 2, 3), x, y).run()
    >>> report["verdict"], sorted(report["diagnostics"])
    ('INCOMPLETE(D3)', ['D1_scale_growth', 'D2_ref_validity', 'D3_depth_utility'])
    """

    NAMES = (("D1", "D1_scale_growth"), ("D2", "D2_ref_validity"), ("D3", "D3_depth_utility"))

    def __init__(
        self,
        model: nn.Module | Network,
        x_eval: Any,
        y_eval: Tensor,
        *,
        accuracy: float | None = None,
        frozen_accuracy: float | None = None,
        train: Samples | None = None,
        test: Samples | None = None,
        bp_accuracy: float | None = None,
        rule: str | CreditRule | None = None,
        blocks: str | Sequence[str] | None = None,
        thresholds: Thresholds | None = None,
        **options: Any,
    ) -> None:
        if train is not None and (accuracy is not None or frozen_accuracy is not None):
            raise FauditError("give accuracies, or train= data to obtain them, not both")
        if train is None and test is not None:
            raise FauditError("test= scores what train= data trained; give both or neither")
        if isinstance(rule, str):
            rule_class(rule)
        _check_options(options, measure, FAProtocol, *([] if train is None else [audit]))
        if {"samples", "evaluation"} & set(options):
            raise FauditError("FAProtocol measures on x_eval, y_eval; give fewer samples there")
        self.network = Network.of(model, blocks)
        self.samples, self.train, self.test = (x_eval, y_eval), train, test
        self.accuracy, self.frozen_accuracy = accuracy, frozen_accuracy
        self.bp_accuracy = bp_accuracy
        self.rule, self.thresholds, self.options = rule, thresholds, options

    def run(self) -> dict[str, Any]:
        """Measure and judge; ``verdict`` is the string, ``diagnostics`` the three findings."""
        evidence, verdict = self._judged()
        return {
            "verdict": str(verdict),
            "diagnostics": {name: _plain(verdict.finding(code)) for code, name in self.NAMES},
            "flags": [flag.to_dict() for flag in verdict.flags],
            "explanation": verdict.explain(),
            "evidence": evidence.to_dict(),
        }

    def _judged(self) -> tuple[Evidence, Verdict]:
        if self.train is not None:
            done = audit(
                self.network,
                self.train,
                self.test or self.samples,
                evaluation=self.samples,
                bp_accuracy=self.bp_accuracy,
                rule=self.rule,
                thresholds=self.thresholds,
                **self.options,
            )
            return done.evidence, done.verdict
        credits = self.rule if isinstance(self.rule, CreditRule) else None
        evidence = measure(self.network, *self.samples, credits, **self.options)
        verdict = diagnose(
            evidence,
            accuracy=self.accuracy,
            frozen_accuracy=self.frozen_accuracy,
            bp_accuracy=self.bp_accuracy,
            thresholds=self.thresholds,
        )
        return evidence, verdict


def _plain(finding: Finding) -> dict[str, Any]:
    """A finding whose value is a number to compare, or None where there is none."""
    value = None if isnan(finding.value) else finding.value
    return {**finding.to_dict(), "value": value}


def _check_rule(rule: object) -> None:
    if rule is not None and not isinstance(rule, str | CreditRule):
        raise FauditError(
            f"rule is a rule's name or a CreditRule, not {type(rule).__name__}; for credits of your"
            " own, measure(credits=...) and diagnose(correct=..., frozen_correct=...)"
        )


def _named_rule(name: str | None, network: Network, train_on: Samples, seed: int) -> CreditRule:
    example = _first(train_on, 2)[0]
    rule = make_rule(name or "bp", network.layout(example), seed=seed)
    weight = next(network.module.parameters(), None)
    return rule if weight is None else rule.to(weight.device, weight.dtype)


def _check_options(options: Mapping[str, Any], *taken_by: Callable[..., Any]) -> None:
    """Refuse a misspelt option here, before anything has been trained."""
    parameters = [p for function in taken_by for p in signature(function).parameters.values()]
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            raise FauditError(unknown("option", option, dict.fromkeys(known)))


def _checked(
    network: Network, samples: Samples, rule: str | CreditRule | None, loss: Loss
) -> Samples:
    """The samples, class indices as int64, if network, loss and rule can do something with them.

    The whole of y is looked at here, once: where it lies on a GPU no step can afford to.
    """
    if not isinstance(samples, tuple) or len(samples) != 2 or not isinstance(samples[1], Tensor):
        raise DataError("give train=(X, y) and test=(X, y), with y a tensor")
    x, y = next(batches_of(*samples))
    with torch.no_grad():
        seen = network.trace(_take(x, slice(1)))
    if isinstance(rule, CreditRule):
        check_rule(rule, seen.states, seen.logits)
    _check_choices(seen.logits, y)
    if loss is cross_entropy:
        check_labels(seen.logits.expand(len(y), *seen.logits.shape[1:]), y)
    return x, y


def _check_choices(logits: Tensor, y: Tensor) -> None:
    """Refuse targets that no choice of a class can be right about: D3 compares accuracies."""
    if y.dtype == torch.int64 and y.shape[1:] == logits.shape[1:-1] and logits.shape[-1] > 1:
        return
    if logits.ndim < 2:
        raise DataError(
            "an audit compares accuracies, and this network gives one number per sample, which"
            " chooses no class; measure() the evidence and give diagnose() two accuracies of your"
            " own"
        )
    raise DataError(
        f"an audit compares accuracies, so {kind(logits)} needs class indices of shape"
        f" {(len(y), *logits.shape[1:-1])}, not {kind(y)}; for other targets measure() the"
        " evidence and give diagnose() two accuracies of your own"
    )


def _take(x: Any, rows: Any) -> Any:
    return {k: v[rows] for k, v in x.items()} if isinstance(x, Mapping) else x[rows]


def _first(samples: Samples, count: int) -> Samples:
    return _take(samples[0], slice(count)), samples[1][:count]


def _in_order(samples: Samples, size: int = 256) -> Iterator[Samples]:
    for start in range(0, len(samples[1]), size):
        rows = slice(start, start + size)
        yield _take(samples[0], rows), samples[1][rows]


def _shuffled(samples: Samples, size: int, generator: torch.Generator) -> Iterator[Samples]:
    order = torch.randperm(len(samples[1]), generator=generator).to(samples[1].device)
    for rows in order.split(size):
        yield _take(samples[0], rows), samples[1][rows]
