"""Slow, obvious twins of every measurement: one sample, one layer and one number at a time.

Nothing here looks into faudit. A network is the list of its stages (embedding, blocks, readout),
written out by hand next to the module; a sample is a batch of one; sums are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import fmean, median, stdev
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Vector = list[float]
Credits = list[list[Tensor]]
"""credits[sample][layer]"""


@dataclass
class Problem:
    """A network, written out, and a few samples."""

    module: nn.Module
    stages: list[Callable[[Any], Tensor]]
    x: Tensor
    y: Tensor
    blocks: list[str] | None = None
    loss: Callable[[Tensor, Tensor], Tensor] | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The format of the weights."""
        return next(self.module.parameters()).dtype

    @property
    def samples(self) -> range:
        """Every sample's number."""
        return range(len(self.y))

    @property
    def layers(self) -> range:
        """Every state's number."""
        return range(len(self.stages) - 1)

    def states(self, sample: int) -> list[Tensor]:
        """h_0..h_L of one sample."""
        h = self.x[sample : sample + 1]
        found = []
        for stage in self.stages[:-1]:
            h = stage(h)
            found.append(h.detach())
        return found

    def loss_from(self, sample: int, layer: int, h: Tensor) -> Tensor:
        """The loss of one sample if its state h_layer were ``h``."""
        for stage in self.stages[layer + 1 :]:
            h = stage(h)
        y = self.y[sample : sample + 1]
        return self.loss(h, y)[0] if self.loss else cross_entropy(h[0], y[0])

    def gradients(self, sample: int) -> list[Tensor]:
        """dL/dh_0..dL/dh_L of one sample's own loss."""
        found = []
        for layer, h in enumerate(self.states(sample)):
            h.requires_grad_()
            found += torch.autograd.grad(self.loss_from(sample, layer, h), h)
        return found


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """-log of the probability of the label; over tokens, the mean."""
    if logits.ndim == 2:
        return torch.stack([cross_entropy(*pair) for pair in zip(logits, y, strict=True)]).mean()
    return -torch.log(torch.softmax(logits, 0)[y])


def numbers(h: Tensor) -> Vector:
    """A tensor's entries as Python's floats."""
    return h.detach().double().flatten().tolist()


def dot(a: Vector, b: Vector) -> float:
    """The inner product."""
    return math.fsum(p * q for p, q in zip(a, b, strict=True))


def norm(a: Vector) -> float:
    """The Euclidean norm."""
    return math.hypot(*a)


def cosine(a: Vector, b: Vector) -> float:
    """The cosine; NaN where a vector is zero."""
    if norm(a) == 0 or norm(b) == 0:
        return math.nan
    return dot(unit(a), unit(b))


def unit(a: Vector) -> Vector:
    """The direction of a vector."""
    return [p / norm(a) for p in a]


def clamped_cosine(a: Vector, b: Vector, eps: float = 1e-8) -> float:
    """The cosine as ``torch.nn.functional.cosine_similarity`` documents it."""
    return dot(a, b) / (max(norm(a), eps) * max(norm(b), eps))


def angle(a: Vector, b: Vector) -> float:
    """Degrees between two vectors, by exact fractions: sin^2 = (|a|^2 |b|^2 - <a,b>^2) / .."""
    exact_a, exact_b = list(map(Fraction, a)), list(map(Fraction, b))

    def product(u: list[Fraction], v: list[Fraction]) -> Fraction:
        return sum((p * q for p, q in zip(u, v, strict=True)), Fraction())

    squares = product(exact_a, exact_a) * product(exact_b, exact_b)
    between = product(exact_a, exact_b)
    sine = math.sqrt(float((squares - between**2) / squares))
    acute = math.degrees(math.asin(min(sine, 1.0)))
    return acute if between >= 0 else 180 - acute


def noise(a: Vector, exact: Vector) -> float:
    """The relative error of ``a``."""
    return norm([p - q for p, q in zip(a, exact, strict=True)]) / norm(exact)


def mean(values: Sequence[float]) -> float:
    """The mean over the values that are defined; NaN where none is."""
    known = [v for v in values if not math.isnan(v)]
    return math.fsum(known) / len(known) if known else math.nan


def pearson(a: Sequence[float], b: Sequence[float]) -> float:
    """Pearson's r."""
    centred_a = [p - fmean(a) for p in a]
    centred_b = [q - fmean(b) for q in b]
    return cosine(centred_a, centred_b)


def sizes(problem: Problem) -> dict[str, list[float]]:
    """How big the states and the reference are."""
    states = [problem.states(s) for s in problem.samples]
    exact = [problem.gradients(s) for s in problem.samples]
    state_norm = [mean([norm(numbers(h[layer])) for h in states]) for layer in problem.layers]
    return {
        "state_norm": state_norm,
        "growth": [state_norm[i + 1] / state_norm[i] for i in problem.layers[:-1]],
        "reference_norm": [
            mean([norm(numbers(g[layer])) for g in exact]) for layer in problem.layers
        ],
    }


def alignment(problem: Problem, credits: Credits) -> dict[str, Any]:
    """Which way the credit points."""
    exact = [problem.gradients(s) for s in problem.samples]

    def over_samples(compare: Callable[[Vector, Vector], float], layer: int) -> float:
        pairs = [(numbers(credits[s][layer]), numbers(exact[s][layer])) for s in problem.samples]
        return mean([compare(*pair) for pair in pairs])

    def clamped(a: Vector, g: Vector) -> float:
        return clamped_cosine([p / 128 for p in a], [q / 128 for q in g])

    cosines = [over_samples(cosine, layer) for layer in problem.layers]
    return {
        "cosine": cosines,
        "cosine_clamped": [over_samples(clamped, layer) for layer in problem.layers],
        "deep_cosine": sum(cosines[1:]) / len(cosines[1:]),
        "gamma": sum(cosines) / len(cosines),
        "cosine_aggregates": aggregates(cosines, credits, exact),
    }


def aggregates(cosines: list[float], credits: Credits, exact: Credits) -> dict[str, float]:
    """The same cosines in one number, six ways."""
    layers, samples = range(len(cosines)), range(len(exact))
    weights = [mean([norm(numbers(g[layer])) for g in exact]) for layer in layers]

    def long(side: list[Tensor]) -> Vector:
        return [value for layer in layers for value in numbers(side[layer])]

    def total(sides: Credits, layer: int) -> Vector:
        return [
            math.fsum(column) for column in zip(*(numbers(s[layer]) for s in sides), strict=True)
        ]

    return {
        "mean over layers": fmean(cosines),
        "median over layers": median(cosines),
        "deep layers": fmean(cosines[1:]),
        "weighted by ||g||": dot(weights, cosines) / math.fsum(weights),
        "layers concatenated": mean([cosine(long(credits[s]), long(exact[s])) for s in samples]),
        "batch mean first": fmean(
            cosine(total(credits, layer), total(exact, layer)) for layer in layers
        ),
    }


def nudging(problem: Problem, credits: Credits, eta: float) -> list[float]:
    """The change of the loss after a step of length eta against the credit."""

    def change(sample: int, layer: int) -> float:
        h, a = problem.states(sample)[layer], credits[sample][layer].double()
        if not bool(a.any()):
            return math.nan
        before = problem.loss_from(sample, layer, h)
        return (problem.loss_from(sample, layer, h - eta * a / a.norm()) - before).item()

    return [mean([change(s, layer) for s in problem.samples]) for layer in problem.layers]


def forecasts(
    problem: Problem, credits: Credits, count: int, size: float, seed: int
) -> list[float]:
    """Pearson's r between <a, move> and the true change of loss, over all samples and moves."""
    found = []
    for layer in problem.layers:
        shape = torch.stack([problem.states(s)[layer][0] for s in problem.samples]).shape
        told, happened = [], []
        for draw in range(count):
            moves = np.random.default_rng((seed, layer, draw)).standard_normal(tuple(shape))
            for s in problem.samples:
                h = problem.states(s)[layer]
                v = torch.from_numpy(moves[s : s + 1])
                move = v / v.norm() * size * h.norm()
                told.append(dot(numbers(credits[s][layer]), numbers(move)))
                change = problem.loss_from(s, layer, h + move) - problem.loss_from(s, layer, h)
                happened.append(change.item())
        found.append(pearson(told, happened))
    return found


def stability(problem: Problem, size: int = 128) -> float:
    """The mean cosine between all pairs of disjoint minibatches' mean gradients at h_L."""
    deepest = [numbers(problem.gradients(s)[-1]) for s in problem.samples]
    groups = [deepest[i : i + size] for i in range(0, len(deepest) - size + 1, size)]
    means = [[fmean(column) for column in zip(*group, strict=True)] for group in groups]
    pairs = [(a, b) for i, a in enumerate(means) for b in means[i + 1 :]]
    return mean([cosine(a, b) for a, b in pairs])


def precision(problem: Problem, exact: Problem) -> dict[str, list[float]]:
    """How far one problem's gradients are from another's: degrees, and relative error."""
    pairs = [(problem.gradients(s), exact.gradients(s)) for s in problem.samples]

    def over_samples(compare: Callable[[Vector, Vector], float], layer: int) -> float:
        return mean([compare(numbers(g[layer]), numbers(e[layer])) for g, e in pairs])

    return {
        "reference_angle": [over_samples(angle, layer) for layer in problem.layers],
        "reference_noise": [over_samples(noise, layer) for layer in problem.layers],
    }


def null(problem: Problem, credits: Credits, drawn: list[Credits]) -> dict[str, float]:
    """The deep cosine beside those of redrawn rules."""
    value = alignment(problem, credits)["deep_cosine"]
    others = [alignment(problem, other)["deep_cosine"] for other in drawn]
    z = (value - fmean(others)) / stdev(others)
    return {"mean": fmean(others), "std": stdev(others), "value": value, "z": z}


def outputs(problem: Problem) -> dict[str, float]:
    """The mean loss, and how many labels (or tokens) the largest logit hits."""
    last = problem.layers[-1]
    deepest = [problem.states(s)[last] for s in problem.samples]
    losses = [problem.loss_from(s, last, deepest[s]).item() for s in problem.samples]
    logits = torch.cat([problem.stages[-1](h) for h in deepest])
    hits = [p == t for p, t in zip(numbers(logits.argmax(-1)), numbers(problem.y), strict=True)]
    return {"loss": mean(losses), "accuracy": sum(hits) / len(hits)}
