"""Pitfalls of alignment: whose feedback, which layers, which samples, which mode."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from faudit.measures.directions import cosines
from faudit.networks.scene import gradients, scene
from faudit.networks.view import Network, evaluating
from faudit.pitfalls.record import Pitfall
from faudit.pitfalls.tiny import CLASSES, INPUTS, Trained, learn, network, task
from faudit.seeds import derive


def foreign_feedback(seed: int = 0) -> Pitfall:
    """Alignment measured with feedback that did not train the network.

    >>> found = foreign_feedback()
    >>> found.right > 0.15, found.wrong < found.right / 2
    (True, True)
    """
    run = _trained_dfa(seed)
    own = run.evidence(nulls=20)
    null = own.null
    return Pitfall(
        code="foreign-feedback",
        title="Feedback matrices belong to one training run",
        quantity="deep cosine of a network trained by DFA",
        wrong=run.evidence(run.rule.fresh(derive(seed, 9))).deep_cosine,
        wrong_way="with matrices drawn again",
        right=own.deep_cosine,
        right_way="with the matrices that trained it",
        explanation=(
            "The network adapts to its own B. Other matrices of the same distribution find no"
            " alignment, so Gamma says nothing without saying whose B it is."
        ),
        fix="save B with the weights, and report the null under fresh draws beside the cosine",
        details={} if null is None else {"null mean": null.mean, "null std": null.std, "z": null.z},
    )


def aggregation(seed: int = 0) -> Pitfall:
    """One run, several valid aggregates of the same cosines.

    >>> found = aggregation()
    >>> found.wrong > found.right
    True
    """
    evidence = learn(task(seed), "dfa", epochs=20, width=64, depth=4, trainable_blocks=0).evidence()
    values = evidence.cosine_aggregates
    best = max(values, key=values.__getitem__)
    return Pitfall(
        code="aggregation",
        title="The aggregate is chosen, not measured",
        quantity="alignment of one run in one number",
        wrong=values[best],
        wrong_way=f"by the kindest aggregate ({best})",
        right=evidence.deep_cosine,
        right_way="by the declared one (mean over l = 1..L)",
        explanation=(
            "Mean or median over layers, weighted by norm, layers concatenated, batch averaged"
            f" first: here they run from {min(values.values()):+.3f} to {values[best]:+.3f}."
        ),
        fix="declare the aggregate before measuring, and report the cosine of every layer",
        details=dict(values),
    )


def first_layer(seed: int = 0) -> Pitfall:
    """A Gamma that the embedding alone supplies: no block of this network ever learned.

    >>> found = first_layer()
    >>> found.details["l = 0"] > 0.3, abs(found.right) < 0.1
    (True, True)
    """
    evidence = learn(task(seed), "dfa", epochs=20, width=64, depth=4, trainable_blocks=0).evidence()
    return Pitfall(
        code="first-layer",
        title="One layer carries Gamma",
        quantity="cosine of a network whose blocks never learned",
        wrong=evidence.gamma,
        wrong_way="as Gamma, the mean over all layers",
        right=evidence.deep_cosine,
        right_way="over the layers behind a block",
        explanation=(
            "All blocks are frozen at random; only the embedding is aligned with its feedback."
            " The mean spreads that one value over a depth that has none."
        ),
        fix="report the cosine of every layer, and the mean over l = 1..L apart from l = 0",
        details={f"l = {layer}": value for layer, value in enumerate(evidence.cosine)},
    )


def missing_rule_state(seed: int = 0) -> Pitfall:
    """A checkpoint without the feedback, and a script that falls back to the exact gradient.

    >>> found = missing_rule_state()
    >>> round(found.wrong, 6), found.right < 0.9
    (1.0, True)
    """
    run = _trained_dfa(seed)
    weights = {"network": run.network.module.state_dict()}
    return Pitfall(
        code="missing-rule-state",
        title="Without saved feedback the gradient is compared with itself",
        quantity="deep cosine of a reloaded checkpoint",
        wrong=_reloaded_cosine(run, weights),
        wrong_way="from weights alone",
        right=_reloaded_cosine(run, {**weights, "rule": run.rule.state_dict()}),
        right_way="from weights and the rule's state",
        explanation=(
            "A script that finds no feedback and uses the reference instead reports"
            " cos(g, g) = 1: perfect alignment, of nothing."
        ),
        fix="save the rule's state with the weights, and let its absence be an error",
    )


def _reloaded_cosine(run: Trained, checkpoint: dict[str, Any]) -> float:
    """What a post-hoc script measures; its fallback is the mistake."""
    x, y = run.task.train
    view = network(run.task.seed)
    view.module.load_state_dict(checkpoint["network"])
    with evaluating(view.module):
        _, exact = gradients(view, x, y)
        told: list[Tensor] = list(exact)
        if "rule" in checkpoint:
            rule = run.rule.fresh(derive(run.task.seed, 9))
            rule.load_state_dict(checkpoint["rule"])
            told = rule.credits(scene(view, x, y))
    pairs = zip(told[1:], exact[1:], strict=True)
    return fmean([float(cosines(a, g).mean()) for a, g in pairs])


def other_batch(seed: int = 0) -> Pitfall:
    """Credit of one minibatch compared with the gradient of another.

    >>> found = other_batch()
    >>> found.wrong < 0.5, round(found.right, 6)
    (True, 1.0)
    """
    view, (x, y) = network(seed), task(seed).train
    half = len(y) // 2
    with evaluating(view.module):
        _, here = gradients(view, x[:half], y[:half])
        _, there = gradients(view, x[half:], y[half:])
    return Pitfall(
        code="other-batch",
        title="Reference and candidate from different batches",
        quantity="cosine of backpropagation with backpropagation at h_L",
        wrong=float(cosines(there[-1], here[-1]).mean()),
        wrong_way="from two batches",
        right=float(cosines(here[-1], here[-1]).mean()),
        right_way="from one forward pass",
        explanation=(
            "Every sample has a gradient of its own. Two data loaders, another augmentation or"
            " another dropout mask compare different questions, and the cosine is theirs."
        ),
        fix="take both vectors from one forward pass over the same samples",
    )


def train_mode(seed: int = 0) -> Pitfall:
    """Credit taken in training mode, reference in evaluation mode, dropout in between.

    >>> found = train_mode()
    >>> found.wrong < 0.95, round(found.right, 6)
    (True, 1.0)
    """
    x, y = task(seed).train
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, 5))
        view = _with_dropout()
        _, training = gradients(view, x, y)
    with evaluating(view.module):
        _, exact = gradients(view, x, y)
    return Pitfall(
        code="train-mode",
        title="Training mode changes what is measured",
        quantity="cosine of backpropagation with backpropagation at h_0",
        wrong=float(cosines(training[0], exact[0]).mean()),
        wrong_way="between train() and eval()",
        right=float(cosines(exact[0], exact[0]).mean()),
        right_way="in eval() for both",
        explanation=(
            "Dropout and batch statistics change states and gradients. A credit taken while"
            " training does not belong to a reference taken while evaluating."
        ),
        fix="call model.eval() before measuring, once for both",
    )


def _trained_dfa(seed: int) -> Trained:
    return learn(task(seed), "dfa", epochs=20, penalty=1e-2)


def _with_dropout(width: int = 32) -> Network:
    blocks = [
        nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Dropout(0.5))
        for _ in range(3)
    ]
    module = nn.Sequential(nn.Linear(INPUTS, width), *blocks, nn.Linear(width, CLASSES))
    return Network.of(module.train(), blocks=["1", "2", "3"])
