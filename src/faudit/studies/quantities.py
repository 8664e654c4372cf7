"""Quantities: what a published number is called, and how the same number is taken from our runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import exp, inf, isfinite, log, nan
from statistics import fmean
from typing import Any

from faudit.bundle import Bundle, Outcome
from faudit.errors import FauditError, unknown
from faudit.protocol import (
    DRAFT,
    PAPER,
    STRATEGIES,
    Case,
    Epoch,
    Replay,
    Thresholds,
    Verdict,
    replay,
    threshold_sensitivity,
)
from faudit.studies.judging import judge_bundle

Number = float | str | None
"""A number or a word; None where a run it needs is not there, NaN where it has no meaning."""


@dataclass(frozen=True)
class Quantity:
    """Which number.

    Args:
        name: one of ``PER_RUN``, or of ``OF_ARMS`` for what takes the runs of several arms.
        layer: the state it is read at; -1 is the last.
        batch: the reduction of ||g||: a mean loss over so many samples.
        epoch: the epoch it is read at; after training if None.
        of: the check, the control or the strategy it is about.
        limit: the value that ``below from`` waits for.

    >>> str(Quantity("reference norm", batch=1024, epoch=4))
    '||g_L|| at a mean loss over 1024 samples, epoch 4'
    """

    name: str
    layer: int = -1
    batch: int = 128
    epoch: int | None = None
    of: str = ""
    limit: float = nan

    def __post_init__(self) -> None:
        if self.name not in (*PER_RUN, *OF_ARMS):
            raise FauditError(unknown("quantity", self.name, (*PER_RUN, *OF_ARMS)))

    def __str__(self) -> str:
        layer = "L" if self.layer == -1 else str(self.layer)
        text = TEXTS.get(self.name, self.name)
        told = text.format(layer=layer, batch=self.batch, of=self.of, limit=self.limit)
        return told if self.epoch is None else f"{told}, epoch {self.epoch}"


@dataclass(frozen=True)
class Held:
    """A run that has ended, beside the frozen blocks it is held against, where they are there."""

    bundle: Bundle
    frozen: Outcome | None = None

    @property
    def seed(self) -> int:
        """The run's seed, which pairs it with runs of other arms."""
        return self.bundle.recipe.seed

    @property
    def verdict(self) -> Verdict | None:
        """The protocol's verdict; None while the frozen blocks are missing."""
        return None if self.frozen is None else judge_bundle(self.bundle, self.frozen).verdict


def value(run: Held, wanted: Quantity) -> Number:
    """One number of one run; NaN, or how it failed, of a run that did not come to its end."""
    if not run.bundle.outcome.done:
        return str(run.bundle.outcome) if wanted.name in WORDS else nan
    return PER_RUN[wanted.name](run, wanted)


# -- sizes and directions -------------------------------------------------------------------------


def _series(run: Held, wanted: Quantity, name: str) -> Sequence[float] | None:
    """One measurement at every depth; None where that epoch was not measured."""
    if wanted.epoch is None:
        return tuple(getattr(run.bundle.evidence, name))
    record = _record(run, wanted.epoch)
    return None if name not in record else tuple(record[name])


def _record(run: Held, epoch: int) -> Mapping[str, Any]:
    return next((r for r in run.bundle.history if r.get("epoch") == epoch), {})


def _at_layer(name: str) -> Callable[[Held, Quantity], Number]:
    def of(run: Held, wanted: Quantity) -> Number:
        found = _series(run, wanted, name)
        return None if found is None else found[wanted.layer] if found else nan

    return of


def _mean_from(name: str, first: int) -> Callable[[Held, Quantity], Number]:
    """The mean over depths from ``first`` on; a mean over layers needs every layer."""

    def of(run: Held, wanted: Quantity) -> Number:
        found = _series(run, wanted, name)
        return None if found is None else fmean(found[first:]) if found else nan

    return of


def _reference_norm(run: Held, wanted: Quantity) -> Number:
    found = _at_layer("reference_norm")(run, wanted)
    return found / wanted.batch if isinstance(found, float) else found


def _growth(run: Held, wanted: Quantity) -> Number:
    found = _series(run, wanted, "growth")
    return None if found is None else _extreme(max, found)


def _extreme(pick: Callable[[Iterable[float]], float], values: Sequence[float]) -> float:
    """The largest or smallest; NaN if one is unknown, where Python's answer turns on the order."""
    return pick(values) if values and all(v == v for v in values) else nan


def _stability(run: Held, wanted: Quantity) -> Number:
    return run.bundle.evidence.stability if run.bundle.evidence else nan


def _control(run: Held, wanted: Quantity) -> Number:
    """The mean over h_1..h_L of what a control's forecasts correlate to."""
    controls = run.bundle.evidence.perturbation_controls if run.bundle.evidence else {}
    found = controls.get(wanted.of, ())
    return fmean(found[1:]) if found else nan


def _null(run: Held, wanted: Quantity) -> Number:
    null = run.bundle.evidence.null if run.bundle.evidence else None
    return nan if null is None else float(getattr(null, wanted.of))


def _signs(run: Held, wanted: Quantity) -> Number:
    """Whether ways to aggregate the same cosines disagree in sign."""
    found = run.bundle.evidence.cosine_aggregates.values() if run.bundle.evidence else ()
    signs = {value > 0 for value in found if isfinite(value)}
    return "both" if len(signs) > 1 else "one" if signs else "undefined"


def _aggregate(pick: Callable[[Iterable[float]], float]) -> Callable[[Held, Quantity], Number]:
    def of(run: Held, wanted: Quantity) -> Number:
        found = run.bundle.evidence.cosine_aggregates.values() if run.bundle.evidence else ()
        return _extreme(pick, tuple(found))

    return of


# -- accuracies and losses ------------------------------------------------------------------------


def _accuracy(run: Held, wanted: Quantity) -> Number:
    if wanted.epoch is None:
        return run.bundle.outcome.accuracy
    return _record(run, wanted.epoch).get("accuracy")


def _margin(run: Held, wanted: Quantity) -> Number:
    own, frozen = _accuracy(run, wanted), run.frozen.accuracy if run.frozen else None
    return own - frozen if isinstance(own, float) and frozen is not None else None


def _loss_change(run: Held, wanted: Quantity) -> Number:
    """How far the training loss fell from the first epoch to the last."""
    losses = [r["train_loss"] for r in run.bundle.history if "train_loss" in r]
    return losses[-1] - losses[0] if len(losses) > 1 else nan


# -- the protocol ---------------------------------------------------------------------------------


def _replayed(run: Held, wanted: Quantity) -> Replay:
    history = run.bundle.history_at(wanted.batch)
    return replay(Epoch.of(r) for r in history if "reference_norm" in r)


def _first_epoch(run: Held, wanted: Quantity) -> Number:
    found = _replayed(run, wanted).first[wanted.of]
    return inf if found is None else float(found)


def _fires(run: Held, wanted: Quantity) -> Number:
    found = _replayed(run, wanted).first["any"]
    return "never" if found is None else f"from epoch {found}"


def _order(run: Held, wanted: Quantity) -> Number:
    """D1 and D2 in the order in which they first fire."""
    first = _replayed(run, wanted).first
    fired = sorted((first[code], code) for code in ("D1", "D2") if first[code] is not None)
    tied = len(fired) > 1 and fired[0][0] == fired[1][0]
    return "together" if tied else ", ".join(code for _, code in fired) or "never"


def _saved(run: Held, wanted: Quantity) -> Number:
    found = _replayed(run, wanted).saved[wanted.of]
    return 0.0 if found is None else found


def _below_from(run: Held, wanted: Quantity) -> Number:
    """The first epoch of the last stretch below the limit; one that ends is no stay."""
    measured = [r for r in run.bundle.history_at(wanted.batch) if "reference_norm" in r]
    below = takewhile(lambda r: r["reference_norm"][-1] < wanted.limit, reversed(measured))
    return float(min((r["epoch"] for r in below), default=inf))


def _verdict(run: Held, wanted: Quantity) -> Number:
    return None if run.verdict is None else str(run.verdict)


def _outcome(run: Held, wanted: Quantity) -> Number:
    return None if run.verdict is None else run.verdict.outcome


def _flag(run: Held, wanted: Quantity) -> Number:
    """Whether D1 or D2 flags, which needs no frozen blocks."""
    finding = judge_bundle(run.bundle).verdict.finding(wanted.of)
    return finding.state


def _trust(run: Held, wanted: Quantity) -> Number:
    """The drafts' word for a method: it is walked back where (a) or (b) flags."""
    verdict = judge_bundle(run.bundle).verdict
    states = {verdict.finding(code).state for code in ("D1", "D2")}
    return "walked back" if "flagged" in states else "trusted" if states == {"ok"} else "open"


def _decided_by(strategies: Sequence[str]) -> Callable[[Held, Quantity], Number]:
    def of(run: Held, wanted: Quantity) -> Number:
        found = decisions([run], strategies)
        return None if "open" in found else found

    return of


def _margins(run: Held, wanted: Quantity) -> Number:
    margin = case("", [run]).margin
    if margin is None:
        return None
    words = {True: "flagged", False: "ok", None: "open"}
    return ", ".join(words[Thresholds(margin=limit).idles(margin)] for limit in (0.02, 0.01))


PER_RUN: dict[str, Callable[[Held, Quantity], Number]] = {
    "accuracy": _accuracy,
    "margin": _margin,
    "loss change": _loss_change,
    "state norm": _at_layer("state_norm"),
    "reference norm": _reference_norm,
    "growth": _growth,
    "cosine": _at_layer("cosine"),
    "clamped cosine": _at_layer("cosine_clamped"),
    "deep cosine": _mean_from("cosine", 1),
    "clamped deep cosine": _mean_from("cosine_clamped", 1),
    "gamma": _mean_from("cosine", 0),
    "clamped gamma": _mean_from("cosine_clamped", 0),
    "lowest aggregate": _aggregate(min),
    "highest aggregate": _aggregate(max),
    "aggregate signs": _signs,
    "stability": _stability,
    "nudging": _mean_from("nudging", 1),
    "perturbation correlation": _mean_from("perturbation_correlation", 1),
    "control": _control,
    "null": _null,
    "first epoch": _first_epoch,
    "below from": _below_from,
    "fires": _fires,
    "fires in order": _order,
    "saved": _saved,
    "verdict": _verdict,
    "outcome": _outcome,
    "flag": _flag,
    "trust": _trust,
    "decisions": _decided_by(PAPER),
    "draft decisions": _decided_by(DRAFT),
    "margins": _margins,
}
WORDS = (
    *("fires", "fires in order", "verdict", "outcome", "flag", "trust", "aggregate signs"),
    *("decisions", "draft decisions", "margins"),
)
"""The quantities that are words."""

TEXTS = {
    "accuracy": "test accuracy",
    "margin": "test accuracy above frozen blocks",
    "loss change": "training loss, last epoch minus first",
    "state norm": "||h_{layer}||",
    "reference norm": "||g_{layer}|| at a mean loss over {batch} samples",
    "growth": "largest growth of a block",
    "cosine": "cosine at h_{layer}",
    "clamped cosine": "cosine at h_{layer}, as torch clamps it",
    "deep cosine": "deep cosine",
    "clamped deep cosine": "deep cosine, as torch clamps it",
    "gamma": "Gamma",
    "clamped gamma": "Gamma, as torch clamps it",
    "lowest early cosine": "lowest cosine at h_1..h_L of any seed, epochs 1 and 2",
    "highest early cosine": "highest cosine at h_1..h_L of any seed, epochs 1 and 2",
    "lowest aggregate": "lowest of the ways to aggregate the cosine",
    "highest aggregate": "highest of the ways to aggregate the cosine",
    "aggregate signs": "signs among the ways to aggregate the cosine",
    "stability": "stability (c) of the reference",
    "nudging": "change of test loss under a nudge, mean over h_1..h_L",
    "perturbation correlation": "perturbation correlation of the credit, mean over h_1..h_L",
    "control": "perturbation correlation of the control {of!r}, mean over h_1..h_L",
    "null": "fresh-feedback null: {of}",
    "first epoch": "first epoch at which {of} fires (||g_L|| over {batch} samples)",
    "below from": "epoch from which ||g_L|| stays below {limit:g} (over {batch} samples)",
    "fires": "whether D1 or D2 ever fires while training (||g_L|| over {batch} samples)",
    "fires in order": "D1 and D2 as they first fire (||g_L|| over {batch} samples)",
    "saved": "training saved by stopping when {of} fires (||g_L|| over {batch} samples)",
    "verdict": "verdict",
    "outcome": "pass or fail",
    "flag": "{of}",
    "trust": "the drafts' word",
    "decisions": "S0, S1, S2, S3",
    "draft decisions": "S0, S1, +(a), +(b), +(c), +(d), full",
    "gap": "{of}: factor between the nearest healthy and failing run",
    "nearest healthy": "{of}: the healthy run that is nearest to a failing one",
    "nearest failing": "{of}: the failing run that is nearest to a healthy one",
    "robust": "{of}: cases whose flag changes within 50 % of the threshold",
    "margins": "D3 at 2 pp and at 1 pp",
}


# -- what takes the runs of several arms ----------------------------------------------------------

Arms = Sequence[Sequence[Held]]


def case(name: str, runs: Sequence[Held], failing: bool | None = None) -> Case:
    """An arm as the reporting strategies see it: means over its seeds, of norms the geometric one.

    Gamma is the clamped one, which is what a report would have printed.
    """
    evidence = [run.bundle.evidence for run in runs if run.bundle.evidence is not None]
    classes = runs[0].bundle.outcome.classes
    return Case(
        name=name,
        accuracy=_mean(run.bundle.outcome.accuracy for run in runs),
        frozen_accuracy=_mean(run.frozen.accuracy if run.frozen else None for run in runs),
        gamma=_mean(fmean(e.cosine_clamped) if e.cosine_clamped else None for e in evidence),
        growth=_mean((e.largest_growth for e in evidence), geometric=True),
        reference_norm=_mean((e.deepest_reference(128) for e in evidence), geometric=True),
        stability=_mean(e.stability for e in evidence),
        failing=failing,
        chance=1 / classes if classes else 0.1,
    )


def _mean(values: Iterable[float | None], *, geometric: bool = False) -> float | None:
    known = [v for v in values if v is not None and isfinite(v)]
    if not known:
        return None
    if geometric:
        return exp(fmean(log(v) for v in known)) if min(known) > 0 else 0.0
    return fmean(known)


def decisions(runs: Sequence[Held], strategies: Sequence[str] = PAPER) -> str:
    """What the strategies say of one arm; "open" where a number is missing."""
    words = {True: "fail", False: "pass", None: "open"}
    seen = case("", runs)
    return " ".join(words[STRATEGIES[s].walks_back(seen, Thresholds())] for s in strategies)


def _early_cosine(pick: Callable[[Iterable[float]], float]) -> Callable[[Arms, Quantity], Number]:
    """One of the cosines behind the embedding after epochs 1 and 2, over all seeds."""

    def of(arms: Arms, wanted: Quantity) -> Number:
        records = [_record(run, epoch) for run in arms[0] for epoch in (1, 2)]
        if any("cosine" not in record for record in records):
            return None
        return _extreme(pick, [c for record in records for c in record["cosine"][1:]])

    return of


def _audited(arms: Arms) -> list[Case]:
    """Every run of the drafts' audit as a case: the first two arms are healthy, the others not."""
    return [
        case(f"{run.bundle.recipe.rule.name} seed {run.seed}", [run], failing=place > 1)
        for place, runs in enumerate(arms)
        for run in runs
        if run.bundle.outcome.done
    ]


def _gap(arms: Arms, wanted: Quantity) -> Number:
    return threshold_sensitivity(_audited(arms))[wanted.of].gap


def _nearest(*, healthy: bool) -> Callable[[Arms, Quantity], Number]:
    """The healthy run that is nearest to a failing one, or the other way round."""

    def of(arms: Arms, wanted: Quantity) -> Number:
        found = threshold_sensitivity(_audited(arms))[wanted.of]
        return found.healthy_extreme if healthy else found.failing_extreme

    return of


def _robust(arms: Arms, wanted: Quantity) -> Number:
    return ", ".join(threshold_sensitivity(_audited(arms))[wanted.of].changed) or "none"


OF_ARMS: dict[str, Callable[[Arms, Quantity], Number]] = {
    "lowest early cosine": _early_cosine(min),
    "highest early cosine": _early_cosine(max),
    "gap": _gap,
    "nearest healthy": _nearest(healthy=True),
    "nearest failing": _nearest(healthy=False),
    "robust": _robust,
}
