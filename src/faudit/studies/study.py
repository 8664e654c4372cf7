"""A study: recipes in, runs in a store out. What is there is never run again."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from faudit.baselines import frozen
from faudit.bundle import BASELINE, LOG, Bundle, Outcome, read_manifest
from faudit.errors import BundleError, FauditError
from faudit.provenance import code_of
from faudit.recipe import Recipe
from faudit.studies.attempt import standing
from faudit.studies.costs import Costs
from faudit.studies.engines import Engine, Local
from faudit.studies.progress import Board, Running, Status, board, duration, label, running
from faudit.studies.store import LEASE_SECONDS, Entry, Store, StoreError
from faudit.studies.trackers import Tracker, tracker

LOOK_EVERY = 0.5
PATIENCE = 2 * LEASE_SECONDS
"""Long enough for a worker that fell silent to be replaced."""


@dataclass(frozen=True)
class Planned:
    """One run of a plan: whether it is there, what there is to say of it, what it may cost."""

    recipe: Recipe
    cached: bool
    note: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        state = "cached" if self.cached else f"to run, about {duration(self.seconds)}"
        note = f" ({self.note})" if self.note else ""
        return f"{self.recipe.digest} {label(self.recipe)}: {state}{note}"


@dataclass(frozen=True)
class Plan:
    """What ``train`` would do.

    >>> print(plan([Recipe(), Recipe()], "no-store-yet").runs[0].cached)
    False
    """

    runs: tuple[Planned, ...]

    @property
    def todo(self) -> list[Planned]:
        """The runs that are not there."""
        return [run for run in self.runs if not run.cached]

    @property
    def cached(self) -> list[Planned]:
        """The runs that are."""
        return [run for run in self.runs if run.cached]

    @property
    def seconds(self) -> float:
        """Estimated seconds of one core for what is to run."""
        return sum(run.seconds for run in self.todo)

    def summary(self) -> str:
        """The plan in one line."""
        count = f"{len(self.runs)} run{'s' * (len(self.runs) != 1)}"
        cost = f", about {duration(self.seconds)} of one core" if self.todo else ""
        return f"{count}: {len(self.cached)} cached, {len(self.todo)} to run{cost}"

    def __str__(self) -> str:
        return "\n".join([*map(str, self.runs), self.summary()])


def plan(
    recipes: Iterable[Recipe], store: str | os.PathLike[str] | Store, *, same_code: bool = False
) -> Plan:
    """Which runs are there, which are not, and what they may cost; changes nothing.

    A run is there if it ended for good and its files are whole. One that other code made is there
    too, and says so, unless ``same_code`` asks for a new one.
    """
    found = _existing(store)
    unique = list({recipe.digest: recipe for recipe in recipes}.values())
    here = {} if found is None else {r.digest: found.standing(r) for r in unique}
    costs = Costs.of(found if found is not None else ())
    return Plan(tuple(_planned(r, here.get(r.digest), costs, same_code) for r in unique))


def _existing(store: str | os.PathLike[str] | Store) -> Store | None:
    if isinstance(store, Store):
        return store
    return Store(store) if Path(store).exists() else None


def _planned(recipe: Recipe, entry: Entry | None, costs: Costs, same_code: bool) -> Planned:
    note, cached = _judge(recipe, entry, same_code)
    return Planned(recipe, cached, note, 0.0 if cached else costs.estimate(recipe))


def _judge(recipe: Recipe, entry: Entry | None, same_code: bool) -> tuple[str, bool]:
    """What there is to say of a published run, and whether it can stay."""
    if entry is None:
        return "", False
    if entry.damage or entry.outcome is None:
        return f"the one that is there is damaged: {entry.damage}", False
    if not entry.outcome.final:
        return f"the last try was {entry.outcome}", False
    if entry.code != code_of(recipe):
        return f"made by other code, {entry.code}", not same_code
    return "" if entry.outcome.done else str(entry.outcome), True


@dataclass(frozen=True)
class Summary:
    """What a study came to."""

    store: Store
    plan: Plan
    outcomes: dict[str, Outcome]

    @property
    def failed(self) -> list[Outcome]:
        """The runs that did not end well."""
        return [outcome for outcome in self.outcomes.values() if not outcome.done]

    def __str__(self) -> str:
        failed = f", {len(self.failed)} failed" if self.failed else ""
        made = len(self.plan.todo)
        return f"{made} run{'s' * (made != 1)} made, {len(self.plan.cached)} were there{failed}"


def train(
    recipes: Iterable[Recipe],
    store: str | os.PathLike[str] | Store,
    *,
    engine: Engine | None = None,
    show: Board | None = None,
    same_code: bool = False,
    baseline_of: Callable[[Recipe], Recipe] = frozen,
    track: str | None = None,
) -> Summary:
    """Make every run that is not there; can be stopped and started again at will.

    Args:
        engine: who makes the runs; ``Local()`` by default, one process per run on all cores.
        show: where progress goes; the terminal, or plain lines, by default.
        same_code: also make again what other code made.
        baseline_of: a run's baseline; where both are there, the run's bundle is given its outcome.
        track: "wandb", "trackio" or "tensorboard": also show every run there once it is published.

    >>> import tempfile
    >>> from faudit.studies.engines import Inline
    >>> from faudit.studies.progress import Silent
    >>> tiny = Recipe().set("data.name=student-teacher", "data.train_limit=64",
    ...     "data.test_limit=32", "training.epochs=1", "network.options.width=8",
    ...     "measuring.samples=16")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(train([tiny], folder, engine=Inline(), show=Silent()))
    ...     print(train([tiny], folder, engine=Inline(), show=Silent()))
    1 run made, 0 were there
    0 runs made, 1 were there
    """
    store = store if isinstance(store, Store) else Store.open(store)
    planned = plan(recipes, store, same_code=same_code)
    shown = board() if show is None else show
    sent = None if track is None else tracker(track, store.path / "tensorboard", shown.note)
    try:
        _announce(planned, shown)
        _ask(planned, store, same_code)
        lookout = Lookout(store, planned, shown, sent)
        digests = [run.recipe.digest for run in planned.todo]
        (engine or Local()).work(store, digests, lookout)
        lookout.look()
        attach_baselines(store, _held(store, planned), baseline_of)
        store.collect(run.recipe.digest for run in planned.runs)
    except OSError as error:
        raise StoreError(f"the study has paused: {error}; start again to go on") from error
    finally:
        if sent is not None:
            sent.close()
        shown.close()
    everything = {run.recipe.digest: store.entry(run.recipe.digest) for run in planned.runs}
    ended = {digest: entry.outcome for digest, entry in everything.items() if entry.outcome}
    return Summary(store, planned, ended)


def _held(store: Store, planned: Plan) -> list[Recipe]:
    """The planned runs, and where baselines are among them also those that still lack one."""
    recipes = [run.recipe for run in planned.runs]
    baselines = any(recipe.training.trainable_blocks == 0 for recipe in recipes)
    for entry in store if baselines else ():
        with suppress(FauditError):
            if BASELINE not in read_manifest(entry.folder).files:
                recipes.append(entry.recipe)
    return list(dict.fromkeys(recipes))


def attach_baselines(
    store: Store, recipes: Iterable[Recipe], baseline_of: Callable[[Recipe], Recipe] = frozen
) -> None:
    """Put every baseline's outcome into the bundles held against it, so that each stands alone."""
    for recipe in recipes:
        baseline = baseline_of(recipe)
        if recipe != baseline and _is_done(store, recipe) and _is_done(store, baseline):
            outcome = store[baseline].outcome
            # Somebody who has done the same, and collects, may come between; damage is the plan's.
            for _ in range(2):
                with suppress(FileNotFoundError, BundleError):
                    Bundle.load(store.folder(recipe), tensors=False).with_baseline(outcome)
                    break


def _is_done(store: Store, recipe: Recipe) -> bool:
    outcome = store.entry(recipe.digest).outcome if recipe in store else None
    return outcome is not None and outcome.done


def _announce(planned: Plan, shown: Board) -> None:
    for run in planned.cached:
        other = f" ({run.note}; --same-code makes it again)" if "other code" in run.note else ""
        shown.note(f"skipped, is there: {run.recipe.digest} {label(run.recipe)}{other}")
    shown.note(planned.summary())


def _ask(planned: Plan, store: Store, same_code: bool) -> None:
    for run in planned.cached:
        store.tidy(run.recipe.digest)
    for run in planned.todo:
        # Looked at again, for somebody may have made the run since the plan.
        entry = store.standing(run.recipe)
        if entry is not None and not _judge(run.recipe, entry, same_code)[1]:
            store.supersede(run.recipe.digest)
        store.forgive(run.recipe.digest)
    store.want(run.recipe for run in planned.todo)


@dataclass
class Lookout:
    """Sees how a study stands by reading the store, whoever is at work on it."""

    store: Store
    planned: Plan
    board: Board
    tracker: Tracker | None = None
    ended: dict[str, Outcome | None] = field(default_factory=dict)
    found: dict[str, float] = field(default_factory=dict)
    last: float = float("-inf")

    @cached_property
    def recipes(self) -> dict[str, Recipe]:
        """The runs that are to be made, by name."""
        return {run.recipe.digest: run.recipe for run in self.planned.todo}

    @cached_property
    def sizes(self) -> dict[str, float]:
        """What each run may cost beside the mean, so that long runs count for more than short."""
        mean = self.planned.seconds / max(1, len(self.recipes))
        todo = self.planned.todo
        return {run.recipe.digest: run.seconds / mean if mean > 0 else 1.0 for run in todo}

    def __call__(self) -> None:
        """Look, if it is time to."""
        if time.monotonic() - self.last >= LOOK_EVERY:
            self.look()

    def look(self) -> None:
        """Report what has ended and show what is under way."""
        self.last = time.monotonic()
        for digest in set(self.store.digests()) & (self.recipes.keys() - self.ended.keys()):
            self._ended(self.store.entry(digest), label(self.recipes[digest]))
        self.board.show(self._status())

    def _ended(self, entry: Entry, name: str) -> None:
        self.ended[entry.digest] = entry.outcome
        why = f": {entry.outcome.message}" if entry.outcome and entry.outcome.message else ""
        log = entry.folder / LOG
        more = f" (log: {log})" if log.exists() else ""
        self.board.note(f"{entry.digest} {name}: {entry.outcome}{why}{more}")
        if self.tracker is not None:
            with suppress(FauditError):
                self.tracker.offer(entry.bundle(tensors=False))

    def _status(self) -> Status:
        failed = sum(outcome is None or not outcome.done for outcome in self.ended.values())
        busy = [d for d in self.store.claimed() if d in self.recipes and d not in self.ended]
        under_way = [self._running(digest) for digest in busy]
        for digest, run in zip(busy, under_way, strict=True):
            self.found.setdefault(digest, run.done * run.size)
        return Status(
            total=len(self.planned.runs),
            cached=len(self.planned.cached),
            finished=len(self.ended) - failed,
            failed=failed,
            running=under_way,
            found=sum(self.found.values()),
            made=sum(self.sizes[digest] for digest in self.ended),
        )

    def _running(self, digest: str) -> Running:
        recipe = self.recipes[digest]
        return running(recipe, standing(self.store, digest), self.sizes[digest])


def work(
    store: str | os.PathLike[str] | Store, *, slots: int | None = 1, patience: float = PATIENCE
) -> int:
    """Make wanted runs until none is left that nobody is at; returns how many got published.

    This is all a cluster's worker does: start as many as there are machines, anywhere that sees
    the store, and stop them at will.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     work(Store.open(folder), patience=0)
    0
    """
    store = store if isinstance(store, Store) else Store.open(store)
    wanted = [digest for digest in store.wanted() if _can_be_read(store, digest)]
    Local(slots=slots, patience=patience).work(store, wanted, lambda: None)
    return sum(digest in store for digest in wanted)


def _can_be_read(store: Store, digest: str) -> bool:
    """Whether a wanted recipe is whole and can be made here; others must not wait for it.

    What this machine has no plug-in for is left to machines that have it.
    """
    from faudit.studies.runner import check_names

    try:
        check_names(store.recipe(digest))
        return True
    except FauditError as error:
        if digest not in store:
            print(f"passed over: {error}", file=sys.stderr, flush=True)
        return False
