"""Dossier: what a report is about, read from bundles: settings, their groups of runs, and gaps."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite, nan
from pathlib import Path
from typing import Any, Literal

from faudit import baselines
from faudit.bundle import MANIFEST, Bundle, Manifest, Outcome
from faudit.errors import BundleError, FauditError
from faudit.measures.evidence import Evidence
from faudit.protocol import Case, Thresholds, Verdict, diagnose
from faudit.provenance import NO_PLUGINS
from faudit.recipe import Named, Recipe, Training
from faudit.report import labels
from faudit.report.cells import Check, Style, Tone, Value
from faudit.studies import results
from faudit.studies.ledger import NOT_RUN, Ledger, ledger
from faudit.studies.store import Store

Source = str | os.PathLike[str] | Iterable[Bundle]
Role = Literal["method", "frozen", "shallow", "rung"]
LOCAL = ("local_lr", "local_schedule", "block_steps", "idle_steps", "normalise", "penalty_over")
"""What a recipe says of the local step, which exact gradients do not take."""
TONES: dict[str, Tone] = {"PASS": "good", "FAIL": "bad"}


@dataclass(frozen=True)
class Problem:
    """Something the reader has to know before the numbers: what, and what would mend it."""

    what: str
    where: str
    mend: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}. {self.mend}"


@dataclass(frozen=True)
class Run:
    """One run with the baseline found for it.

    ``baseline`` is the outcome of the same seed with frozen blocks, ``baseline_rule`` names the
    rule that taught its embedding, ``bp_accuracy`` what exact gradients reach there.
    """

    recipe: Recipe
    outcome: Outcome
    history: tuple[Mapping[str, Any], ...] = ()
    measured: Evidence | None = None
    manifest: Manifest | None = None
    baseline: Outcome | None = None
    baseline_rule: str = ""
    bp_accuracy: float | None = None

    @property
    def seed(self) -> int:
        """The seed, which names a run within its group."""
        return self.recipe.seed

    @cached_property
    def evidence(self) -> Evidence | None:
        """What was measured; a run that broke says so, whatever its last numbers look like."""
        found, outcome = self.measured, self.outcome
        if outcome.reason != "non-finite" or (found and found.invalid):
            return found
        where = outcome.layer or "training"
        return (found or Evidence(layers=0, samples=1)).replace(nonfinite=where)

    @cached_property
    def verdict(self) -> Verdict | None:
        """The protocol's verdict; None where the run left nothing to judge."""
        return self.judged()

    def judged(self, thresholds: Thresholds | None = None) -> Verdict | None:
        """The verdict at other thresholds than the published ones."""
        if self.evidence is None:
            return None
        return diagnose(
            self.evidence,
            **self._accuracies(),
            bp_accuracy=self.bp_accuracy,
            thresholds=thresholds,
        )

    def _accuracies(self) -> dict[str, Any]:
        own, frozen = self.outcome, self.baseline
        if frozen and own.correct and frozen.correct and own.tests == frozen.tests:
            own_correct, frozen_correct = own.correct_examples(), frozen.correct_examples()
            return {"correct": own_correct, "frozen_correct": frozen_correct}
        samples = own.tests or None
        frozen_accuracy = frozen.accuracy if frozen else None
        return {
            "accuracy": own.accuracy,
            "frozen_accuracy": frozen_accuracy,
            "test_samples": samples,
        }

    @property
    def standing(self) -> str:
        """The verdict, or how the run failed."""
        return str(self.outcome) if self.verdict is None else str(self.verdict)

    @property
    def margin(self) -> float | None:
        """Accuracy above frozen blocks."""
        if self.baseline is None or None in (self.outcome.accuracy, self.baseline.accuracy):
            return None
        return float(self.outcome.accuracy or 0) - float(self.baseline.accuracy or 0)

    def case(self, name: str) -> Case:
        """This run in the numbers that reporting strategies read.

        The truth they are held against is the paper's: a method fails where its trained blocks do
        not beat frozen ones.
        """
        evidence = self.evidence or Evidence(layers=0, samples=1)
        verdict = self.verdict
        d3 = verdict.finding("D3").flagged if verdict else None
        return Case.from_evidence(
            name,
            evidence,
            accuracy=self.outcome.accuracy,
            frozen_accuracy=self.baseline.accuracy if self.baseline else None,
            failing=d3,
            chance=1 / self.outcome.classes if self.outcome.classes else 0.1,
        )


@dataclass(frozen=True)
class Group:
    """The runs that differ only in their seeds."""

    recipe: Recipe
    runs: tuple[Run, ...]
    label: str = ""
    setting: str = ""

    @property
    def digest(self) -> str:
        """Eight digits that name the recipe without its seeds."""
        return self.recipe.digest[:8]

    @property
    def name(self) -> str:
        """Method and setting."""
        return f"{self.label}, {self.setting}"

    @property
    def role(self) -> Role:
        """A method to judge, or one of the things methods are held against."""
        if self.recipe.network.options.get("depth") == 0:
            return "shallow"
        blocks = self.recipe.training.trainable_blocks
        return "method" if blocks is None else "rung" if blocks else "frozen"

    @property
    def done(self) -> tuple[Run, ...]:
        """The runs that came to their end."""
        return tuple(run for run in self.runs if run.outcome.done)

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """What was measured on the runs that came to their end."""
        return tuple(run.evidence for run in self.done if run.evidence is not None)

    @property
    def histories(self) -> tuple[tuple[Mapping[str, Any], ...], ...]:
        """The history of every run that has one."""
        return tuple(run.history for run in self.runs if run.history)

    def value(self, name: str, style: Style = "share") -> Value | None:
        """One number over seeds: ``accuracy``, ``frozen``, ``margin`` or a number of evidence."""
        found = (_number(run, name) for run in self.runs)
        return Value.of_runs(found, style)

    def check(self, code: str, style: Style) -> Check:
        """One diagnostic over seeds."""
        findings = [run.verdict.finding(code) if run.verdict else None for run in self.runs]
        value = Value.of_runs([f.value if f else None for f in findings], style)
        return Check(value, tuple(f.flagged if f else None for f in findings))

    @cached_property
    def verdict(self) -> str:
        """The verdict all seeds share, or how many have which."""
        return standing(run.standing for run in self.runs)

    @property
    def tone(self) -> Tone:
        """Good or bad only where all seeds agree."""
        return tone(run.standing for run in self.runs)

    @property
    def fails(self) -> bool:
        """Whether any seed fails the protocol."""
        return any(run.verdict is not None and run.verdict.outcome == "FAIL" for run in self.runs)

    @property
    def cases(self) -> tuple[Case, ...]:
        """One case per run that can be judged."""
        return tuple(r.case(f"{self.label} seed {r.seed}") for r in self.runs if r.verdict)

    @property
    def frozen_rule(self) -> str:
        """Which rule taught the embedding of the frozen blocks this group is held against."""
        return ", ".join(dict.fromkeys(run.baseline_rule for run in self.runs if run.baseline_rule))


def standing(verdicts: Iterable[str]) -> str:
    """Several verdicts in one phrase.

    >>> standing(["PASS", "PASS"]), standing(["PASS", "FAIL(D3)", "PASS"])
    ('PASS', 'PASS in 2 of 3, FAIL(D3) in 1')
    """
    counts = Counter(verdicts)
    if len(counts) == 1:
        return next(iter(counts))
    total = sum(counts.values())
    first, *others = (f"{verdict} in {count}" for verdict, count in counts.most_common())
    return ", ".join([f"{first} of {total}", *others])


def tone(verdicts: Iterable[str]) -> Tone:
    """The tone all verdicts share.

    >>> tone(["FAIL(D3)", "FAIL(D1+D2)"]), tone(["PASS", "FAIL(D3)"])
    ('bad', 'open')
    """
    tones = {TONES.get(verdict.partition("(")[0], "open") for verdict in verdicts}
    return tones.pop() if len(tones) == 1 else "open"


def _number(run: Run, name: str) -> float | None:
    if name == "accuracy":
        return run.outcome.accuracy
    if name == "frozen":
        return run.baseline.accuracy if run.baseline else None
    if name == "margin":
        return run.margin
    return _measured(run.evidence, name)


def _measured(evidence: Evidence | None, name: str) -> float | None:
    if evidence is None:
        return None
    if name == "state_norm":
        return evidence.state_norm[-1] if evidence.state_norm else None
    if name in ("nudging", "perturbation_correlation"):
        return _deep_mean(getattr(evidence, name))
    value = {
        "reference_norm": evidence.deepest_reference(128),
        "growth": evidence.largest_growth,
    }.get(name, getattr(evidence, name, nan))
    return None if value is None or not isinstance(value, float) or value != value else value


def _deep_mean(values: tuple[float, ...]) -> float | None:
    known = [v for v in values[1:] if isfinite(v)]
    return sum(known) / len(known) if known else None


@dataclass(frozen=True)
class Setting:
    """Network, data and length of training, with every group of runs made there."""

    recipe: Recipe
    label: str
    groups: tuple[Group, ...]

    @property
    def methods(self) -> tuple[Group, ...]:
        """The groups that are judged."""
        return tuple(group for group in self.groups if group.role == "method")

    @property
    def one_baseline(self) -> bool:
        """Whether all methods here are held against the same frozen blocks, seed by seed."""
        held = [run for group in self.methods for run in group.runs if run.baseline]
        pairs = {(run.seed, run.baseline.digest) for run in held if run.baseline}
        same = len(pairs) == len({seed for seed, _ in pairs})
        return same and len({run.baseline_rule for run in held}) < 2

    @property
    def frozen(self) -> Value | None:
        """What the frozen blocks reach that the methods here are held against."""
        found = [run.baseline for group in self.methods for run in group.runs if run.baseline]
        unique = {outcome.digest: outcome.accuracy for outcome in found}
        return Value.of_runs(unique.values())


@dataclass(frozen=True)
class Dossier:
    """All that a report says is computed from this."""

    settings: tuple[Setting, ...]
    problems: tuple[Problem, ...] = ()
    source: str = ""
    claims: Ledger | None = None
    """The published claims that some of the runs are about."""
    groups: tuple[Group, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(g for s in self.settings for g in s.groups))

    def _repr_html_(self) -> str:
        from faudit.report.tables import verdict_table

        return verdict_table(self.methods)._repr_html_()

    @property
    def methods(self) -> tuple[Group, ...]:
        """Every group that is judged."""
        return tuple(group for group in self.groups if group.role == "method")

    @property
    def runs(self) -> tuple[Run, ...]:
        """Every run."""
        return tuple(run for group in self.groups for run in group.runs)


def read(source: Source) -> Dossier:
    """The dossier of a store, a folder of bundles or of results, or of bundles already loaded.

    Only the small JSON parts are read. A run that cannot be read becomes a problem that is named.

    >>> read([])
    Traceback (most recent call last):
    ...
    faudit.errors.BundleError: there are no finished runs to report on; make some with faudit train,
    or give another folder
    """
    if isinstance(source, str | os.PathLike):
        bundles, problems = _from_folder(Path(source))
    else:
        bundles, problems = list(source), []
    if not bundles:
        seen = f" ({problems[0]})" if problems else ""
        raise BundleError(
            "there are no finished runs to report on; make some with faudit train, or give"
            f" another folder{seen}"
        )
    settings = tuple(_settings(_runs(bundles)))
    named = source if isinstance(source, str | os.PathLike) else f"{len(bundles)} bundles"
    problems += namesakes(bundles) + _gaps(settings) + _mixtures(bundles)
    return Dossier(settings, tuple(problems), Path(named).name or str(named), _claims(bundles))


def _claims(bundles: Iterable[Bundle]) -> Ledger | None:
    """The rows of the ledger that these runs decide; None where they decide none."""
    found = ledger({bundle.recipe: bundle for bundle in bundles})
    decided = {row.claim.id for row in found.rows if row.standing != NOT_RUN}
    rows = tuple(row for row in found.rows if row.claim.id in decided)
    return Ledger(rows) if rows else None


def _from_folder(folder: Path) -> tuple[list[Bundle], list[Problem]]:
    if not folder.is_dir():
        raise BundleError(f"there is no folder {folder}; give a store or a folder of bundles")
    if (folder / MANIFEST).is_file():
        return _load([folder])
    if not (folder / "runs").is_dir():
        return _load(sorted(p.parent for p in folder.glob(f"*/{MANIFEST}")))
    if files := sorted((folder / "runs").glob("*.json")):
        return _load(files, results.load)
    store = Store(folder)
    bundles, problems = _load([store.folder(digest) for digest in store.digests()])
    waiting = store.wanted()
    if waiting:
        what = f"{len(waiting)} run{'s' * (len(waiting) > 1)} asked for and not finished"
        problems.append(Problem(what, "store", "Finish the study and write the report again."))
    return bundles, problems


def _small_parts(folder: Path) -> Bundle:
    return Bundle.load(folder, tensors=False)


def _load(
    folders: Iterable[Path], load: Callable[[Path], Bundle] = _small_parts
) -> tuple[list[Bundle], list[Problem]]:
    bundles, problems = [], []
    for folder in folders:
        try:
            bundles.append(load(folder))
        except FauditError as error:
            what = str(error).replace(f"{folder}/", "").replace(str(folder), folder.name)
            problems.append(Problem(what, folder.name, "It is left out of every number here."))
    return bundles, problems


# -- from bundles to groups -----------------------------------------------------------------------


def _runs(bundles: Iterable[Bundle]) -> list[Run]:
    found = list({bundle.recipe.digest: bundle for bundle in bundles}.values())
    done = {b.recipe.digest: b for b in found if b.outcome.done}
    rules = {b.recipe.rule.name: b.recipe.rule for b in found}
    exact = {_twin_key(b.recipe): b.outcome.accuracy for b in done.values() if _is_exact(b)}
    return [_run(bundle, done, [*rules.values()], exact) for bundle in found]


def _run(
    bundle: Bundle,
    done: Mapping[str, Bundle],
    rules: Iterable[Any],
    exact: Mapping[str, float | None],
) -> Run:
    baseline, taught_by = _baseline(bundle, done, rules)
    return Run(
        bundle.recipe,
        bundle.outcome,
        tuple(bundle.history),
        bundle.evidence,
        bundle.manifest,
        baseline,
        taught_by,
        exact.get(_twin_key(bundle.recipe)),
    )


def _baseline(
    bundle: Bundle, done: Mapping[str, Bundle], rules: Iterable[Any]
) -> tuple[Outcome | None, str]:
    """The baseline the bundle carries, or else the best match among the runs at hand."""
    if bundle.recipe.training.trainable_blocks == 0:
        return None, ""
    if bundle.baseline is not None:
        twins = {twin.digest: twin for twin in _frozen_twins(bundle.recipe, rules)}
        twin = twins.get(bundle.baseline.digest)
        return bundle.baseline, labels.rule(twin) if twin else "another rule"
    for recipe in _frozen_twins(bundle.recipe, rules):
        match = done.get(recipe.digest)
        if match is not None and match.outcome.data == bundle.outcome.data:
            return match.outcome, labels.rule(recipe)
    if _is_exact(bundle) and (match := _only_frozen(bundle, done.values())) is not None:
        return match.outcome, labels.rule(match.recipe)
    return None, ""


def _only_frozen(bundle: Bundle, done: Iterable[Bundle]) -> Bundle | None:
    """The one frozen run like this one but for how a local step is taken, if there is just one.

    Exact gradients take none, so their recipe leaves open what their baseline's says.
    """
    found = [
        other
        for other in done
        if other.recipe.training.trainable_blocks == 0
        and other.outcome.data == bundle.outcome.data
        and _but_for_local_steps(other.recipe) == _but_for_local_steps(bundle.recipe)
    ]
    return found[0] if len(found) == 1 else None


def _but_for_local_steps(recipe: Recipe) -> Recipe:
    usual = Training()
    open_there = {f"training.{name}": getattr(usual, name) for name in LOCAL}
    free = {"training.trainable_blocks": None, "training.penalty": 0.0, "rule_seed": None}
    return recipe.changed({**open_there, **free, "rule": Named(name="bp")})


def _frozen_twins(recipe: Recipe, rules: Iterable[Any]) -> Iterator[Recipe]:
    """Frozen twins from the closest on: taught by the same rule, by DFA, by any other.

    A penalty falls on what blocks learn, so frozen blocks are the same with and without it.
    """
    teachers = [None, "dfa", *rules]
    for teacher in teachers:
        twin = baselines.frozen(recipe, teacher)
        yield twin
        if recipe.training.penalty:
            yield twin.changed({"training.penalty": 0.0})


def _is_exact(bundle: Bundle) -> bool:
    return bundle.recipe.rule.name == "bp" and bundle.recipe.training.trainable_blocks is None


def _twin_key(recipe: Recipe) -> str:
    return f"{_setting_of(recipe).digest} {recipe.seed}"


def _setting_of(recipe: Recipe) -> Recipe:
    """What stands at the head of a table: the recipe but for rule, seeds and fine tuning."""
    training = Training(
        epochs=recipe.training.epochs,
        penalty=recipe.training.penalty,
        penalty_over=recipe.training.penalty_over,
    )
    return Recipe(network=recipe.network, data=recipe.data, training=training, dtype=recipe.dtype)


def _seedless(recipe: Recipe) -> Recipe:
    return recipe.changed({"seed": 0, "rule_seed": None})


def _settings(runs: list[Run]) -> Iterator[Setting]:
    grouped: dict[Recipe, dict[Recipe, list[Run]]] = {}
    for run in runs:
        inner = grouped.setdefault(_setting_of(run.recipe), {})
        inner.setdefault(_seedless(run.recipe), []).append(run)
    heads = sorted(grouped, key=_setting_order)
    names = labels.distinct([(labels.setting(head), head) for head in heads])
    for head, name in zip(heads, names, strict=True):
        yield Setting(head, name, tuple(_groups(grouped[head], name)))


def _groups(found: Mapping[Recipe, list[Run]], setting: str) -> Iterator[Group]:
    order = labels.in_order({recipe.rule.name for recipe in found})
    recipes = sorted(found, key=lambda recipe: recipe.digest)
    names = labels.distinct([(labels.method(recipe), recipe) for recipe in recipes])
    named = sorted(
        zip(recipes, names, strict=True),
        key=lambda pair: (_role_order(pair[0]), order.index(pair[0].rule.name), pair[1]),
    )
    for recipe, name in named:
        runs = sorted(found[recipe], key=lambda run: run.recipe.seed)
        yield Group(recipe, tuple(runs), name, setting)


def _role_order(recipe: Recipe) -> tuple[int, int]:
    blocks = recipe.training.trainable_blocks
    return (0, 0) if blocks is None else (1, -blocks)


def _setting_order(recipe: Recipe) -> tuple[Any, ...]:
    training = recipe.training
    # d64 comes before d128: of two numbers the one with fewer digits is the smaller.
    parts = re.split(r"(\d+)", labels.setting(recipe))
    natural = [(len(part) if part.isdecimal() else 0, part) for part in parts]
    return (training.penalty, recipe.data.name, recipe.network.name, natural)


# -- what is missing ------------------------------------------------------------------------------


def _gaps(settings: Iterable[Setting]) -> list[Problem]:
    problems = []
    for group in (group for setting in settings for group in setting.groups):
        for run in group.runs:
            if not run.outcome.done:
                told = f"{run.outcome}. {run.outcome.message}".strip().rstrip(".")
                where = f"{group.name}, seed {run.seed}"
                problems.append(Problem(told, where, "Its numbers count in no mean."))
        lacking = [r.seed for r in group.runs if r.outcome.done and r.baseline is None]
        if group.role == "method" and lacking:
            problems.append(_no_baseline(group, lacking))
    return problems


def namesakes(bundles: Iterable[Bundle]) -> list[Problem]:
    """Kept audits of different models that nothing tells apart, so that only one is shown."""
    found: dict[str, set[str]] = {}
    for bundle in bundles:
        found.setdefault(bundle.recipe.digest, set()).add(bundle.outcome.correct)
    return [
        Problem(
            f"{len(outcomes)} different models are kept as one run, {digest}",
            "folder",
            "Audit each with a seed= or a name= of its own; only one of them is shown.",
        )
        for digest, outcomes in found.items()
        if len(outcomes) > 1
    ]


def _no_baseline(group: Group, seeds: list[int]) -> Problem:
    listed = ", ".join(map(str, seeds))
    what = f"no frozen-blocks run for seed{'s' * (len(seeds) > 1)} {listed}"
    return Problem(
        what,
        group.name,
        "D3 is not evaluated there; train the same recipe with --set training.trainable_blocks=0.",
    )


def _mixtures(bundles: Iterable[Bundle]) -> list[Problem]:
    """More than one code or version behind the numbers of one report."""
    manifests = [bundle.manifest for bundle in bundles]
    codes = {m.code.partition("+")[0] for m in manifests}  # plug-ins differ on purpose
    torches = {m.versions.get("torch", "unknown") for m in manifests}
    told = []
    if len(codes) > 1:
        told.append(f"{len(codes)} versions of the code made these runs")
    for packages, count in _plugin_codes(manifests).items():
        if count > 1:
            told.append(f"{count} versions of the code of {', '.join(packages)} made these runs")
    if len(torches) > 1:
        told.append(f"{len(torches)} versions of torch made these runs")
    return [Problem(t, "store", "Compare across them with care.") for t in told]


def _plugin_codes(manifests: Iterable[Manifest]) -> dict[tuple[str, ...], int]:
    """How many versions of the code of every plug-in there are."""
    found: dict[tuple[str, ...], set[str]] = {}
    for manifest in manifests:
        packages = tuple(sorted(set(manifest.versions) - set(NO_PLUGINS)))
        if packages:
            found.setdefault(packages, set()).add(manifest.code.partition("+")[2])
    return {packages: len(codes) for packages, codes in found.items()}
