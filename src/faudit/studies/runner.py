"""The only place where training meets measuring: a recipe goes in, a bundle comes out.

Every random choice depends on the recipe and the epoch alone, so a run that was stopped and taken
up again ends with the same bits as one that was not (same machine, same number of threads).
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch
from torch import Tensor

from faudit import bundle, data, routes
from faudit.bundle import Bundle, Outcome, Parts
from faudit.data import Split
from faudit.errors import BundleError, FauditError, NonFiniteError, RecipeError
from faudit.measures.evidence import Evidence
from faudit.measures.measure import measure
from faudit.networks.view import Network
from faudit.networks.zoo import make_network, network_class
from faudit.provenance import absent_plugins, code_of, versions
from faudit.recipe import Recipe
from faudit.rules import make_rule, rule_class
from faudit.rules.base import CreditRule
from faudit.seeds import derive
from faudit.studies import checkpoint
from faudit.studies.sizes import memory_here, training_bytes
from faudit.training import Epoch, Learner, Score, evaluate, train

EVALUATED_AT_ONCE = 1000
REPORTED_EVERY = 0.5
CHECKPOINT_SHARE = 1 / 50
LONG_RUN = 5.0


@dataclass(frozen=True)
class Progress:
    """Where a run stands; ``rate`` is in training samples per second."""

    epoch: int
    epochs: int
    share: float
    rate: float
    train_loss: float | None = None
    accuracy: float | None = None
    record: Mapping[str, Any] | None = None
    """The epoch's history record, when an epoch has just ended."""


class Interrupted(Exception):  # noqa: N818
    """The run was asked to stop; its last finished epoch is in a checkpoint."""


Watch = Callable[[Progress], None]


def run(
    recipe: Recipe,
    folder: str | os.PathLike[str],
    *,
    checkpoints: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 0.0,
    on_progress: Watch | None = None,
    stop: Callable[[], bool] = lambda: False,
    warn: Callable[[str], None] = lambda _: None,
    root: str | os.PathLike[str] | None = None,
) -> Outcome:
    """Train and measure one run, and write its bundle into ``folder``.

    Called again after an interruption it goes on from the newest checkpoint that is whole and was
    made by this code, on these data. Training that meets a number that is not finite ends as
    FAILED, with its history kept.

    Args:
        checkpoints: where checkpoints are kept, and left to the caller; if None they are kept
            inside ``folder`` until the bundle is whole.
        checkpoint_seconds: the least time between two checkpoints. They follow epochs, and are
            also never so frequent that writing them takes more than a fiftieth of the time.
        stop: asked between batches; once it says True the last whole epoch is saved and
            ``Interrupted`` is raised.
        root: the folder with the data files.

    >>> import tempfile
    >>> recipe = Recipe().set("data.name=student-teacher", "data.train_limit=64",
    ...     "data.test_limit=32", "training.epochs=1", "network.options.width=8",
    ...     "measuring.samples=16")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     outcome = run(recipe, folder)
    ...     sorted(path.name for path in Path(folder).iterdir())
    ['evidence.json', 'history.jsonl', 'manifest.json', 'outcome.json', 'recipe.json',
     'rule.safetensors', 'weights.safetensors']
    """
    folder = Path(folder)
    kept = Path(checkpoints) if checkpoints is not None else folder / "checkpoints"
    with _threads(recipe.threads):
        work, learner = prepare(recipe, root)
        saver = Saver(kept / work.origin, checkpoint_seconds)
        course = Course(work, learner, saver, on_progress or (lambda _: None), stop)
        course.resume(warn)
        parts = course.finish()
        bundle.write(folder, parts, course.timing(), route=work.route)
    if checkpoints is None:
        rmtree(kept, ignore_errors=True)
    return parts.outcome


@dataclass(frozen=True)
class Work:
    """What a recipe stands for: its data, its network, and its rule."""

    recipe: Recipe
    data: data.Dataset
    network: Network
    rule: CreditRule

    @property
    def origin(self) -> str:
        """What a checkpoint must share with a run to be its own: recipe, data, code, versions.

        The route too: a run that was stopped goes on by the one it began with.
        """
        own = (self.recipe.digest, self.data.digest(), self.route)
        made_by = (*own, code_of(self.recipe), versions(self.recipe))
        return hashlib.sha256(repr(made_by).encode()).hexdigest()[:20]

    @cached_property
    def route(self) -> str:
        """How this machine multiplies matrices while training."""
        return routes.chosen(self.recipe.device, self.recipe.dtype)

    @cached_property
    def _train(self) -> Split:
        """The training examples where the network is, so that no batch has to travel."""
        return self.data.train.to(self.recipe.device)

    @cached_property
    def _test(self) -> Split:
        return self.data.test.to(self.recipe.device)

    def epoch_batches(self, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch of training batches, in the order the generator gives."""
        pixels = self.data.train.images.dtype == torch.uint8
        augment = data.augment if self.recipe.data.augment and pixels else None
        batches = data.batches(
            self._train,
            self.recipe.training.batch,
            generator,
            device=self.recipe.device,
            augment=augment,
            normalise=self._inputs,
        )
        return iter(batches)

    def test_batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The whole test set, in order."""
        return data.batches(
            self._test,
            EVALUATED_AT_ONCE,
            device=self.recipe.device,
            normalise=self._inputs,
        )

    def samples(self) -> tuple[Tensor, Tensor]:
        """The test examples that evidence is taken on."""
        first = self.data.test.first(min(self.recipe.measuring.samples, len(self.data.test)))
        device = self.recipe.device
        return self._inputs(first.images.to(device)), first.labels.to(device)

    def _inputs(self, images: Tensor) -> Tensor:
        return self.data.normalise(images).to(getattr(torch, self.recipe.dtype))


def prepare(recipe: Recipe, root: str | os.PathLike[str] | None = None) -> tuple[Work, Learner]:
    """Data, network, rule and learner as the recipe says, before the first step."""
    check_device(recipe.device)
    return _assemble(recipe, _load(recipe, root))


def check(
    recipes: Iterable[Recipe],
    root: str | os.PathLike[str] | None = None,
    *,
    here: bool = True,
) -> None:
    """Refuse, before any of them runs, recipes whose network, rule or data cannot be had.

    Nothing is put on a GPU for that, and ``here=False`` also leaves it to the machines that make
    the runs whether they have one.

    >>> check([Recipe(rule="dfaa").set("data.name=fashion-sample")])
    Traceback (most recent call last):
    faudit.errors.RuleError: unknown rule 'dfaa'; did you mean 'dfa'?...
    """
    found: dict[str, data.Dataset] = {}
    kinds = {r.changed({"seed": 0}).digest: r for r in recipes}
    for recipe in kinds.values():
        key = recipe.data.model_dump_json()
        found[key] = found.get(key) or _load(recipe, root)
        if here:
            check_device(recipe.device)
        needed = training_bytes(recipe, found[key].shape, found[key].classes)
        if needed <= memory_here():
            _assemble(recipe.changed({"device": "cpu"}), found[key])
        elif here:
            raise RecipeError(
                f"weights, gradients and moments of {recipe.network.name!r} with"
                f" {dict(recipe.network.options)} take {needed / 1e9:.3g} GB, and this machine has"
                f" {memory_here() / 1e9:.3g}; make the network smaller, or train it elsewhere"
            )
        else:
            check_names(recipe)


def check_names(recipe: Recipe) -> None:
    """Refuse a rule, a network or data that nobody here has.

    >>> check_names(Recipe(rule="dfaa"))
    Traceback (most recent call last):
    faudit.errors.RuleError: unknown rule 'dfaa'; did you mean 'dfa'?...
    """
    rule_class(recipe.rule.name)
    network_class(recipe.network.name)
    data.reader(recipe.data.name)


def check_device(name: str) -> None:
    """Refuse a device that this machine does not have, without starting to use it.

    >>> check_device("cpu")
    """
    device = torch.device(name)
    kind: Any = getattr(torch, device.type)
    count = 1 if device.type == "cpu" else kind.device_count() * kind.is_available()
    if (device.index or 0) >= count:
        raise RecipeError(
            f"device {name!r} is not here: PyTorch {torch.__version__} sees {count} of its kind;"
            " use another device, or a machine and a PyTorch that have it"
        )


def _assemble(recipe: Recipe, found: data.Dataset) -> tuple[Work, Learner]:
    network = Network.of(_module(recipe, found))
    sample = found.normalise(found.train.first(min(2, len(found.train))).images)
    sample = sample.to(recipe.device, getattr(torch, recipe.dtype))
    if (outputs := network.layout(sample).classes) != found.classes:
        raise RecipeError(
            f"network {recipe.network.name!r} gives {outputs} logits for {found.classes} classes"
        )
    rule = _rule(recipe, network, sample)
    work = Work(recipe, found, network, rule)
    return work, Learner(network, rule, recipe.training, sample, seed=recipe.seed)


def _load(recipe: Recipe, root: str | os.PathLike[str] | None) -> data.Dataset:
    limits = recipe.data.train_limit, recipe.data.test_limit
    found = data.load(recipe.data.name, root, train_limit=limits[0], test_limit=limits[1])
    return found.relabelled() if recipe.data.labels == "random" else found


def _module(recipe: Recipe, found: data.Dataset) -> torch.nn.Module:
    options: dict[str, Any] = dict(recipe.network.options)
    seed = derive(recipe.seed, 3)
    module = make_network(recipe.network.name, found.shape, found.classes, seed=seed, **options)
    return module.to(recipe.device, getattr(torch, recipe.dtype))


def _rule(recipe: Recipe, network: Network, sample: Tensor) -> CreditRule:
    options: dict[str, Any] = dict(recipe.rule.options)
    seed = derive(recipe.seed if recipe.rule_seed is None else recipe.rule_seed, 4)
    rule = make_rule(recipe.rule.name, network.layout(sample), seed=seed, **options)
    return rule.to(recipe.device, getattr(torch, recipe.dtype))


def glance(work: Work) -> dict[str, Any]:
    """What every epoch is asked: accuracy, loss, and how big and which way at every depth.

    ``reference_norm`` is of one sample's own loss, as in ``Evidence``.
    """
    score = evaluate(work.network, work.test_batches())
    seen = measure(
        work.network, *work.samples(), credits=work.rule, perturbations=0, precise=False, nulls=0
    )
    return {
        "accuracy": score.accuracy,
        "loss": score.loss,
        "state_norm": seen.state_norm,
        "growth": seen.growth,
        "reference_norm": seen.reference_norm,
        "cosine": seen.cosine,
        "deep_cosine": seen.deep_cosine,
        "gamma": seen.gamma,
        "nonfinite": seen.invalid,
    }


def full_evidence(network: Network, rule: CreditRule, x: Tensor, y: Tensor) -> Evidence:
    """Everything that is known about a finished run."""
    network.module.eval()
    return measure(network, x, y, credits=rule)


def measure_again(
    found: Bundle, *, root: str | os.PathLike[str] | None = None, device: str = "cpu"
) -> Bundle:
    """The bundle with evidence and accuracy taken anew from its weights, on its own data.

    >>> measure_again(Bundle.load("no-such-run"))
    Traceback (most recent call last):
    faudit.errors.BundleError: no-such-run is not a bundle: manifest.json is missing...
    """
    recipe = found.recipe.changed({"device": device})
    if recipe.data.own:
        raise BundleError(
            f"{found.folder} keeps an audit of a model that only its owner's code can build; judge"
            " its stored evidence instead (measure --no-again, or verify without --again)"
        )
    if absent := absent_plugins(recipe, found.manifest.versions):
        raise BundleError(
            f"{found.folder} was made with {', '.join(absent)}, which is not installed here;"
            " --no-again judges the stored evidence"
        )
    if found.manifest.code.partition("+")[2] != code_of(recipe).partition("+")[2]:
        raise BundleError(
            f"{found.folder} was made by other code of its plug-ins than is installed here;"
            " --no-again judges the stored evidence, --same-code of faudit train makes it anew"
        )
    with _threads(recipe.threads):
        network = found.network()
        rule = found.rule(network).to(device)
        network.module.to(device)
        work = Work(recipe, _same_data(found, root), network, rule)
        evidence = full_evidence(network, rule, *work.samples())
        score = evaluate(network, work.test_batches())
    outcome = found.outcome
    return replace(found, evidence=evidence, outcome=outcome.replace(**_tested(score)))


def _same_data(found: Bundle, root: str | os.PathLike[str] | None) -> data.Dataset:
    here = _load(found.recipe, root)
    if here.digest() != found.outcome.data:
        raise BundleError(
            f"{found.folder} was made on other data: {found.recipe.data.name} is"
            f" {here.digest()[:12]} here and was {found.outcome.data[:12]} there"
        )
    return here


@dataclass
class Saver:
    """Decides when a state is written; between writes the last one waits in memory."""

    folder: Path
    every: float
    waiting: tuple[int, dict[str, Any]] | None = None
    cost: float = 0.02
    last: float = field(default_factory=time.monotonic)

    def offer(self, epoch: int, state: dict[str, Any]) -> None:
        """Keep the state of a finished epoch, on disk if it is time."""
        self.waiting = epoch, state
        if time.monotonic() - self.last >= max(self.every, self.cost / CHECKPOINT_SHARE):
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        if self.waiting is not None:
            began = time.monotonic()
            checkpoint.save(self.folder, *self.waiting)
            self.waiting, self.last = None, time.monotonic()
            self.cost = self.last - began


@dataclass
class Course:
    """One run on its way from first epoch to bundle."""

    work: Work
    learner: Learner
    saver: Saver
    watch: Watch
    stop: Callable[[], bool]
    history: list[dict[str, Any]] = field(default_factory=list)
    resumed: int = 0
    before: float = 0.0
    started: float = field(default_factory=time.monotonic)

    def resume(self, warn: Callable[[str], None]) -> None:
        """Go on from the newest whole checkpoint, or measure the untrained network."""
        found = checkpoint.newest(self.saver.folder, warn)
        if found is None:
            self.history = [{"epoch": 0, **glance(self.work)}]
            return
        _, state = found
        self.learner.load_state_dict(state["learner"])
        self.history = [bundle.unline(text) for text in state["history"]]
        self.resumed, self.before = state["resumed"] + 1, state["seconds"]

    def finish(self) -> Parts:
        """Train to the end, or to where it breaks, and measure what has become of it."""
        try:
            for epoch in self._epochs():
                self._after(epoch)
        except NonFiniteError as error:
            return self._broken(error)
        if self._seconds() > LONG_RUN:
            # Measuring can take long too, and nobody asks ``stop`` meanwhile.
            self.saver.flush()
        return self._done()

    def _epochs(self) -> Iterator[Epoch]:
        """Training by this machine's route; what is done between epochs goes the plain way."""
        epochs = train(self.learner, self._batches)
        return routes.along(self.work.route, epochs, self.work.network.module, self.work.rule)

    def timing(self) -> dict[str, float]:
        """What this run took; nothing else about a run depends on the clock."""
        return {"seconds": round(self._seconds(), 3), "resumed": self.resumed}

    def _seconds(self) -> float:
        return self.before + time.monotonic() - self.started

    def _batches(self, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        size, seen = len(self.work.data.train), 0
        began = told = time.monotonic()
        for x, y in self.work.epoch_batches(generator):
            if self.stop():
                self.saver.flush()
                raise Interrupted
            yield x, y
            seen += len(y)
            if (now := time.monotonic()) - told >= REPORTED_EVERY:
                told = now
                self.watch(self._progress(seen / size, seen / (now - began)))

    def _after(self, epoch: Epoch) -> None:
        settings = self.work.recipe
        record = epoch.to_dict()
        if epoch.epoch % settings.measuring.every == 0 or epoch.epoch == settings.training.epochs:
            record.update(glance(self.work))
        self.history.append(record)
        self.watch(self._progress(0.0, 0.0, record))
        self.saver.offer(epoch.epoch, self._state())

    def _state(self) -> dict[str, Any]:
        return {
            "learner": _copied(self.learner.state_dict()),
            "history": [bundle.line(record) for record in self.history],
            "resumed": self.resumed,
            "seconds": self._seconds(),
        }

    def _progress(
        self, share: float, rate: float, record: dict[str, Any] | None = None
    ) -> Progress:
        last = self.history[-1]
        return Progress(
            epoch=self.learner.epoch,
            epochs=self.work.recipe.training.epochs,
            share=share,
            rate=rate,
            train_loss=last.get("train_loss"),
            accuracy=last.get("accuracy"),
            record=record,
        )

    def _done(self) -> Parts:
        score = evaluate(self.work.network, self.work.test_batches())
        evidence = full_evidence(self.work.network, self.work.rule, *self.work.samples())
        return self._parts(self._outcome("done", score=score), evidence)

    def _broken(self, error: NonFiniteError) -> Parts:
        work = self.work
        outcome = self._outcome(
            "failed",
            reason="non-finite",
            message=str(error),
            layer=error.layer,
            epoch=error.epoch,
        )
        try:
            evidence = full_evidence(work.network, work.rule, *work.samples())
        except (FauditError, RuntimeError, ValueError):
            samples = len(work.samples()[1])
            evidence = Evidence(layers=work.network.depth, samples=samples, nonfinite=error.layer)
        return self._parts(outcome, evidence)

    def _outcome(self, status: Any, *, score: Score | None = None, **rest: Any) -> Outcome:
        about = {
            "digest": self.work.recipe.digest,
            "epoch": self.learner.epoch,
            "classes": self.work.data.classes,
            "shape": self.work.data.shape,
            "data": self.work.data.digest(),
        }
        return Outcome(status=status, **{**about, **_tested(score), **rest})

    def _parts(self, outcome: Outcome, evidence: Evidence) -> Parts:
        return Parts(
            recipe=self.work.recipe,
            outcome=outcome,
            history=self.history,
            evidence=evidence,
            weights=self.work.network.module.state_dict(),
            rule=self.work.rule.state_dict(),
        )


def _tested(score: Score | None) -> dict[str, Any]:
    """What an outcome says of the test set."""
    if score is None:
        return {}
    return {
        "accuracy": score.accuracy,
        "loss": score.loss,
        "tests": len(score.correct),
        "correct": bundle.pack_correct(score.correct.tolist()),
    }


def _copied(value: Any) -> Any:
    """A state that the next step will not change."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list | tuple) else value


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Compute with this many threads, on which sums depend, and in the dtype the recipe names.

    PyTorch lets a GPU's convolutions round float32 to TF32 unless told otherwise.
    """
    before = torch.get_num_threads(), torch.backends.cudnn.allow_tf32
    torch.set_num_threads(count)
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
