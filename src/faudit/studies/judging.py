"""From runs to verdicts: each published run is held against its own published baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from faudit.baselines import frozen
from faudit.bundle import Bundle, Outcome
from faudit.errors import BundleError
from faudit.protocol import Thresholds, Verdict, diagnose
from faudit.recipe import Recipe
from faudit.studies.store import Store


@dataclass(frozen=True)
class Judged:
    """One run with the baseline it was held against, if that was there, and the verdict."""

    bundle: Bundle
    baseline: Outcome | None
    verdict: Verdict


def judge_bundle(
    bundle: Bundle,
    baseline: Outcome | None = None,
    *,
    bp_accuracy: float | None = None,
    thresholds: Thresholds | None = None,
) -> Judged:
    """The verdict on one run from what its bundle holds; nothing is measured or trained again."""
    if bundle.evidence is None:
        raise BundleError(f"{bundle.folder} cannot be judged: the run {bundle.outcome}")
    held = baseline or bundle.baseline
    verdict = diagnose(
        bundle.evidence,
        correct=_correct(bundle.outcome),
        frozen_correct=None if held is None else _correct(held),
        bp_accuracy=bp_accuracy,
        thresholds=thresholds,
    )
    return Judged(bundle, held, verdict)


def _correct(outcome: Outcome) -> NDArray[np.bool_] | None:
    """Which examples a run had right; None for one that broke before it was tested."""
    return outcome.correct_examples() if outcome.tests else None


def judge_store(
    store: Store,
    recipes: Iterable[Recipe],
    *,
    baseline_of: Callable[[Recipe], Recipe] = frozen,
    thresholds: Thresholds | None = None,
) -> Iterator[Judged]:
    """The verdict on every recipe that is no baseline itself and whose run is there and done."""
    for recipe in recipes:
        if recipe.training.trainable_blocks is None and recipe in store:
            bundle = store[recipe]
            if bundle.outcome.done:
                held = _outcome(store, baseline_of(recipe))
                control = _outcome(store, recipe.set("rule.name=bp", "rule.options={}"))
                accuracy = None if control is None else control.accuracy
                bundle = bundle if held is None else _with_baseline(bundle, held)
                yield judge_bundle(bundle, held, bp_accuracy=accuracy, thresholds=thresholds)


def _with_baseline(bundle: Bundle, baseline: Outcome) -> Bundle:
    """The bundle with its baseline inside, so that it alone gives the verdict elsewhere."""
    try:
        return bundle.with_baseline(baseline)
    except OSError:
        return bundle  # a store that cannot be written can still be judged


def _outcome(store: Store, recipe: Recipe) -> Outcome | None:
    outcome = store.entry(recipe.digest).outcome if recipe in store else None
    return outcome if outcome is not None and outcome.done else None
