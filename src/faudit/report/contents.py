"""Which tables and figures a dossier gives rise to, under the names their files will have."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from faudit.protocol import DRAFT
from faudit.recipe import Recipe
from faudit.report import figures, labels, tables
from faudit.report.cells import Value
from faudit.report.dossier import Dossier, Group, Setting
from faudit.report.ledger import ledger_table, totals_table
from faudit.report.plate import Plate
from faudit.report.table import Table

CURVES = 8
"""As many curves as one pair of axes can name beside their ends."""


def all_tables(dossier: Dossier) -> dict[str, Table]:
    """Every table with something in it."""
    methods, groups = dossier.methods, dossier.groups
    found = {
        "verdicts": tables.verdict_table(methods),
        "across": tables.cross_table(dossier.settings),
        "baselines": tables.baselines_table(groups),
        "layers": tables.layers_table(methods),
        "firing": tables.firing_table(methods),
        "penalty": tables.penalty_table([g for f in families(dossier) for g in f]),
        "null": tables.null_table(methods),
        "credit": tables.credit_table(methods),
        "decisions": tables.decision_table(methods),
        "checks": replace(tables.decision_table(methods, DRAFT), title="Each check by itself"),
        "sensitivity": tables.sensitivity_table(methods),
        "flags": tables.flags_table(methods),
        **_claims(dossier),
        "problems": tables.problems_table(dossier.problems),
        "provenance": tables.provenance_table(groups),
        "recipes": tables.recipe_table(dossier),
        "runs": tables.runs_table(groups),
    }
    return {name: table for name, table in found.items() if len(table)}


def _claims(dossier: Dossier) -> dict[str, Table]:
    """What the runs say of published claims, where they are runs of those."""
    if dossier.claims is None:
        return {}
    made = {"standings": totals_table(dossier.claims), "claims": ledger_table(dossier.claims)}
    stamp = tables.stamp(dossier.groups)
    return {name: replace(table, notes=(*table.notes, stamp)) for name, table in made.items()}


def all_plates(dossier: Dossier) -> dict[str, list[Plate]]:
    """Every figure with something in it, by the section of the page it belongs to."""
    methods = dossier.methods
    evidence = {_short_name(g, dossier): g.evidence for g in methods if g.evidence}
    cases = {_short_name(g, dossier): g.cases for g in methods if g.cases}
    heads = {group.name: group.setting for group in methods}
    made: dict[str, list[Plate]] = {
        "verdicts": [*_each(dossier, _pair, 2), *_across(dossier)],
        "ladder": _each(dossier, _ladder),
        "layers": _each(dossier, lambda s: figures.per_layer(_evidence(s.methods)), parts=crowds),
        "training": _each(dossier, _trajectories, parts=crowds),
        "penalty": _penalties(dossier),
        "null": [figures.null_calibration(evidence, heads), figures.controls(evidence, heads)],
        "credit": [figures.cosine_against_utility(_utilities(dossier))],
        "decisions": [figures.decision_utility(cases, heads=heads)],
        "thresholds": [figures.diagnostics(cases, heads=heads)],
    }
    stamp = tables.stamp(methods)
    return {
        section: [
            plate if plate.stamp else replace(plate, stamp=stamp)
            for plate in plates
            if _worth(plate)
        ]
        for section, plates in made.items()
    }


def _worth(plate: Plate) -> bool:
    return any(panel.words for panel in plate.panels)


def _short_name(group: Group, dossier: Dossier) -> str:
    return group.label if len(dossier.settings) == 1 else group.name


def _whole(setting: Setting) -> list[Setting]:
    return [setting]


def crowds(setting: Setting) -> list[Setting]:
    """The setting itself, or parts of it with no more methods than curves can be told apart."""
    parts = shares(setting.methods)
    if len(parts) < 2:
        return [replace(setting, label=f"{setting.label}{_of_one_rule(setting.methods)}")]
    return [
        replace(
            setting,
            groups=part,
            label=f"{setting.label}{_of_one_rule(part)} ({number} of {len(parts)})",
        )
        for number, part in enumerate(parts, 1)
    ]


def shares(methods: Sequence[Group]) -> list[tuple[Group, ...]]:
    """All methods where they are few; else the plainest of each rule, then the variants by rule."""
    if len(methods) <= CURVES:
        return [tuple(methods)] if methods else []
    by_rule: dict[str, list[Group]] = {}
    for group in sorted(methods, key=lambda group: (len(group.label), group.label)):
        by_rule.setdefault(group.recipe.rule.name, []).append(group)
    plainest = [own.pop(0) for own in by_rule.values()] if len(by_rule) > 1 else []
    chunks = [plainest[i : i + CURVES] for i in range(0, len(plainest), CURVES)]
    for variants in by_rule.values():
        ordered = sorted(variants, key=lambda group: group.label)
        chunks += [ordered[i : i + CURVES] for i in range(0, len(ordered), CURVES)]
    return [tuple(chunk) for chunk in chunks]


def _of_one_rule(groups: Sequence[Group]) -> str:
    """What the names of variants leave to the title."""
    rules = {group.label.partition(", ")[0] for group in groups}
    return f": {rules.pop()}" if len(groups) > 1 and len(rules) == 1 else ""


def _each(
    dossier: Dossier,
    draw: Callable[[Setting], Plate],
    least: int = 1,
    parts: Callable[[Setting], list[Setting]] = _whole,
) -> list[Plate]:
    """One plate per setting with enough methods, named after it, then what else settings have."""
    found = []
    for number, setting in enumerate(dossier.settings, 1):
        for place, part in enumerate(parts(setting) if len(setting.methods) >= least else ()):
            plate = draw(part)
            name = _numbered(plate.name, number, place, part.label)
            stamp = tables.stamp(part.groups)
            found.append((place > 0, replace(plate, name=name, title=part.label, stamp=stamp)))
    return [plate for _, plate in sorted(found, key=lambda item: item[0])]


def _numbered(kind: str, number: int, place: int, label: str) -> str:
    """A file's name; the numbers keep two labels apart that begin alike."""
    part = f"-part-{place + 1}" if place else ""
    return f"{kind}-{number:02d}{part}-{slug(label)}"


def slug(text: str) -> str:
    """A file name's part; nothing in it can lead anywhere.

    >>> slug("ResMLP d256 L4, λ = 1e-4 ../x")
    'resmlp-d256-l4-1e-4-x'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "setting"


def _evidence(groups: Sequence[Group]) -> figures.Curves:
    return {group.label: group.evidence for group in groups if group.evidence}


def _values(groups: Sequence[Group], name: str, style: tables.Style) -> dict[str, Value]:
    found = {group.label: group.value(name, style) for group in groups}
    return {label: value for label, value in found.items() if value is not None}


def _pair(setting: Setting) -> Plate:
    methods = setting.methods
    own = _values(methods, "frozen", "share")
    frozen = setting.frozen if setting.one_baseline else own
    gamma = _values(methods, "gamma", "signed")
    return figures.reporting_pair(_values(methods, "accuracy", "share"), gamma, frozen)


def _across(dossier: Dossier) -> Iterator[Plate]:
    seen = Counter(group.label for group in dossier.methods)
    shared = [label for label, settings in seen.items() if settings > 1]
    order = [f"{label} {code}" for code, _ in tables.CHECKS for label in shared]
    grid = {
        setting.label: {
            f"{group.label} {code}": _any_flag(group.check(code, style).flagged)
            for code, style in tables.CHECKS
            for group in setting.methods
            if group.label in shared
        }
        for setting in dossier.settings
        if any(group.label in shared for group in setting.methods)
    }
    if len(grid) > 1:
        yield figures.cross_architecture(grid, order)


def _any_flag(flagged: tuple[bool | None, ...]) -> bool | None:
    if True in flagged:
        return True
    return None if None in flagged else False


def _trajectories(setting: Setting) -> Plate:
    histories = {group.label: group.histories for group in setting.methods if group.histories}
    return figures.trajectories(histories, frozen=_shared(setting))


def _shared(setting: Setting) -> Value | None:
    # Where every method has a baseline of its own there is no one line to draw.
    return setting.frozen if setting.one_baseline else None


def _utilities(dossier: Dossier) -> dict[str, tuple[figures.Values, figures.Values]]:
    return {
        setting.label: (
            _values(setting.methods, "deep_cosine", "signed"),
            _values(setting.methods, "margin", "points"),
        )
        for setting in dossier.settings
        if len(setting.methods) > 2
    }


# -- penalties ------------------------------------------------------------------------------------


def families(dossier: Dossier) -> list[list[Group]]:
    """Methods that were trained under more than one penalty, otherwise alike, by setting.

    A setting names its methods by what differs there, and so by other words at another dose. Here
    whatever differs only by the dose has one name.
    """
    found: dict[str, list[Group]] = {}
    for group in dossier.methods:
        found.setdefault(_plain_setting(group), []).append(group)
    kept = []
    for groups in found.values():
        doses = {(_plain(g), g.recipe.training.penalty) for g in groups}
        several = {plain for plain, _ in doses if sum(plain == other for other, _ in doses) > 1}
        family = [g for g in groups if _plain(g) in several]
        if family:
            named = _named_alike(family)
            kept.append(sorted(named, key=lambda g: (g.label, g.recipe.training.penalty)))
    return kept


def _named_alike(family: Sequence[Group]) -> list[Group]:
    plain = {_plain(group): _undosed(group) for group in family}
    names = labels.distinct([(labels.method(recipe), recipe) for recipe in plain.values()])
    name_of = dict(zip(plain, names, strict=True))
    return [replace(group, label=name_of[_plain(group)]) for group in family]


def _undosed(group: Group) -> Recipe:
    return group.recipe.changed({"training.penalty": 0.0})


def _plain(group: Group) -> str:
    return _undosed(group).digest


def _plain_setting(group: Group) -> str:
    recipe = group.recipe
    return repr((recipe.network, recipe.data, recipe.training.epochs, recipe.dtype))


def _penalties(dossier: Dossier) -> list[Plate]:
    settings = {setting.label: setting for setting in dossier.settings}
    made = []
    for number, family in enumerate(families(dossier), 1):
        setting = settings[family[0].setting]
        parts = shares([*{group.label: group for group in family}.values()])
        for place, part in enumerate(parts):
            names = {group.label for group in part}
            doses = _doses(group for group in family if group.label in names)
            plate = figures.penalty_response(doses, _shared(setting))
            count = f" ({place + 1} of {len(parts)})" if len(parts) > 1 else ""
            title = f"{setting.label.partition(', λ')[0]}{_of_one_rule(part)}{count}"
            made.append(
                replace(plate, name=_numbered(plate.name, number, place, title), title=title)
            )
    return made


def _doses(groups: Iterable[Group]) -> dict[str, list[figures.Dose]]:
    doses: dict[str, list[figures.Dose]] = {}
    for group in groups:
        dose = figures.Dose(group.recipe.training.penalty, group.evidence, _accuracies(group))
        doses.setdefault(group.label, []).append(dose)
    return doses


# -- the ladder -----------------------------------------------------------------------------------


def _ladder(setting: Setting) -> Plate:
    rules = dict.fromkeys(g.recipe.rule.name for g in setting.groups if g.role == "rung")
    rungs = {}
    for rule in rules:
        own = [g for g in setting.groups if g.recipe.rule.name == rule and g.role != "shallow"]
        top = next((g.label for g in own if g.role == "method"), rule)
        rungs[top] = {k: v for g in own if (v := _accuracies(g)) and (k := _taught(g)) is not None}
    return figures.depth_ladder(rungs)


def _accuracies(group: Group) -> list[float]:
    return [r.outcome.accuracy for r in group.done if r.outcome.accuracy is not None]


def _taught(group: Group) -> int | None:
    """How many blocks learn: as many as there are, unless the recipe says less."""
    blocks = group.recipe.training.trainable_blocks
    known = next((e.layers for e in group.evidence), None)
    return known if blocks is None else blocks
