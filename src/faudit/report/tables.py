"""The tables of a report: each function takes groups of runs and returns a ``Table``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite, nan
from typing import Any

from faudit.measures.evidence import Evidence
from faudit.protocol import (
    PAPER,
    STRATEGIES,
    Case,
    Replay,
    Sensitivity,
    Thresholds,
    replay,
    threshold_sensitivity,
)
from faudit.protocol.ablation import DETECTORS
from faudit.report import labels
from faudit.report.cells import Cell, Mark, Style, Tone, Value
from faudit.report.dossier import Dossier, Group, Problem, Run, Setting
from faudit.report.figures import epochs_told
from faudit.report.table import Row, Table

__all__ = [
    "Table",
    "Value",
    "baselines_table",
    "credit_table",
    "cross_table",
    "decided_by",
    "decision_table",
    "firing_table",
    "flags_table",
    "layers_table",
    "null_table",
    "penalty_table",
    "problems_table",
    "provenance_table",
    "runs_table",
    "sensitivity_table",
    "stamp",
    "verdict_table",
]

CHECKS: tuple[tuple[str, Style], ...] = (("D1", "size"), ("D2", "size"), ("D3", "points"))
ABSENT = "–"
BRIEF = ("accuracy", "D1 growth", "D2 ‖g_L‖", "D3 above frozen", "verdict")
"""The columns of a verdict table that fit a terminal."""


# -- the verdict ----------------------------------------------------------------------------------


def verdict_table(groups: Sequence[Group]) -> Table:
    """Method by diagnostics, with the evidence that decided."""
    columns = (
        "setting",
        "method",
        "verdict",
        "D1 growth",
        "D2 ‖g_L‖",
        "D3 above frozen",
        "what decided",
        "accuracy",
        "Γ",
        "seeds",
        "recipe",
    )
    return Table(
        "Method by diagnostics",
        columns,
        tuple(map(_verdict_row, groups)),
        "Mean ± standard deviation over seeds. D1 flags above 50, D2 below 10⁻⁷ (the clamp of the"
        " cosine times ten, at a mean loss over 128 samples), D3 below +2 points.",
        (stamp(groups),),
        grouped=True,
    )


def _verdict_row(group: Group) -> Row:
    return (
        group.setting,
        group.label,
        Mark(group.verdict, group.tone),
        *(group.check(code, style) for code, style in CHECKS),
        decided_by(group),
        group.value("accuracy"),
        group.value("gamma", "signed"),
        len(group.runs),
        group.digest,
    )


def decided_by(group: Group) -> str:
    """Why a group's verdict is what it is, in words; the numbers stand beside them."""
    failing = [run for run in group.runs if run.verdict and run.verdict.outcome == "FAIL"]
    codes = {code for run in failing if run.verdict for code in run.verdict.codes}
    reasons = []
    if "D1" in codes:
        modes = dict.fromkeys(
            r.verdict.sub_mode for r in failing if r.verdict and r.verdict.sub_mode
        )
        named = f" ({', '.join(modes)})" if modes else ""
        reasons.append(f"the reference is lost in an exploding stream{named}")
    if "D3" in codes:
        margin = group.value("margin", "points")
        worse = margin is not None and margin.mean < 0
        reasons.append(
            f"trained blocks are {'worse' if worse else 'hardly better'} than random ones"
        )
    if not reasons and group.verdict == "PASS":
        return "no check fails"
    return "; ".join(reasons or dict.fromkeys(_open_reason(run) for run in group.runs))


def _open_reason(run: Run) -> str:
    verdict = run.verdict
    if verdict is None:
        return run.outcome.message or f"the run ended with {run.outcome.reason}"
    if verdict.invalid:
        return verdict.invalid
    if verdict.outcome == "INCOMPLETE":
        return "; ".join(f"{c}: {verdict.finding(c).reason}" for c in verdict.codes)
    return "no check failed"


def cross_table(settings: Iterable[Setting]) -> Table:
    """Which checks flag where; the paper, Table 2."""
    rows: list[Row] = [
        (
            setting.label,
            group.label,
            *(Mark(state, tone) for state, tone in _states(group)),
            Mark(group.verdict, group.tone),
        )
        for setting in settings
        for group in setting.methods
    ]
    columns = ("setting", "method", "scale stable", "reference valid", "depth of use", "verdict")
    return Table("Across architectures", columns, tuple(rows), grouped=True)


def _states(group: Group) -> Iterable[tuple[str, Tone]]:
    for code, style in CHECKS:
        check = group.check(code, style)
        words = {"ok": "yes", "flagged": "no", "not evaluated": "open"}
        yield words.get(check.state, check.state), check.tone


# -- credit ---------------------------------------------------------------------------------------

_CREDIT: tuple[tuple[str, str, Style], ...] = (
    ("deep cosine", "deep_cosine", "signed"),
    ("Γ", "gamma", "signed"),
    ("perturbation correlation", "perturbation_correlation", "signed"),
    ("nudging", "nudging", "size"),
    ("stability (c)", "stability", "signed"),
    ("above frozen", "margin", "points"),
)


def credit_table(groups: Sequence[Group]) -> Table:
    """What credit looks like beside what it does; the paper, Table 3."""
    rows = [
        (
            group.setting,
            group.label,
            *(group.value(name, style) for _, name, style in _CREDIT),
            Value.of_runs([_loss_change(run) for run in group.runs], "signed"),
        )
        for group in groups
    ]
    return Table(
        "Credit quality",
        ("setting", "method", *(title for title, _, _ in _CREDIT), "change of train loss"),
        tuple(rows),
        "Deep: mean over h_1..h_L. Nudging: change of the loss after a step of 0.01 along the"
        " credit. A method may rank high by cosine and low by what its credit achieves.",
        (stamp(groups),),
        grouped=True,
    )


def _loss_change(run: Run) -> float | None:
    losses = [r["train_loss"] for r in run.history if isinstance(r.get("train_loss"), float)]
    return losses[-1] - losses[0] if len(losses) > 1 else None


def layers_table(groups: Sequence[Group]) -> Table:
    """Everything that was measured at every depth, mean over seeds."""
    kinds: tuple[tuple[str, str, Style], ...] = (
        ("state norm", "state_norm", "size"),
        ("growth into it", "growth", "size"),
        ("reference norm per sample", "reference_norm", "size"),
        ("cosine", "cosine", "signed"),
        ("clamped cosine", "cosine_clamped", "signed"),
        ("perturbation correlation", "perturbation_correlation", "signed"),
        ("degrees from float64", "reference_angle", "size"),
    )
    rows = [
        (
            group.setting,
            group.label,
            depth,
            *(_at_depth(group.evidence, name, depth, style) for _, name, style in kinds),
        )
        for group in groups
        for depth in range(max((e.layers for e in group.evidence), default=-1) + 1)
    ]
    columns = ("setting", "method", "l", *(title for title, _, _ in kinds))
    return Table("Layer by layer", columns, tuple(rows), notes=(stamp(groups),), grouped=True)


def _at_depth(evidence: Sequence[Evidence], name: str, depth: int, style: Style) -> Value | None:
    index = depth - 1 if name == "growth" else depth
    values = [getattr(e, name) for e in evidence]
    known = [v[index] if 0 <= index < len(v) else nan for v in values]
    return Value.of_runs(known, style)


def null_table(groups: Sequence[Group]) -> Table:
    """The deep cosine beside its null of freshly drawn feedback."""
    rows = [_null_row(group) for group in groups if any(e.null for e in group.evidence)]
    return Table(
        "Null calibration",
        ("setting", "method", "deep cosine", "under fresh feedback", "draws", "deviations away"),
        tuple(rows),
        "The same network with feedback drawn anew: what cannot be told from that was not learnt.",
        (stamp(groups),),
        grouped=True,
    )


def _null_row(group: Group) -> Row:
    nulls = [e.null for e in group.evidence if e.null]
    draws = sum(n.draws for n in nulls)
    chance = Value.of_runs([n.mean for n in nulls], "signed")
    spread = Value.of_runs([n.std for n in nulls])
    if chance and spread:
        chance = Value(chance.mean, spread.mean, len(nulls), "signed")
    scores = [n.z if isfinite(n.z) else None for n in nulls]
    value = Value.of_runs([n.value for n in nulls], "signed")
    return group.setting, group.label, value, chance, draws, Value.of_runs(scores, "size")


def penalty_table(groups: Sequence[Group]) -> Table:
    """Dose and response, one row per method and penalty; the paper, Appendix A."""
    rows = [
        (
            group.label,
            group.recipe.training.penalty,
            group.value("accuracy"),
            group.value("margin", "points"),
            group.value("deep_cosine", "signed"),
            group.value("perturbation_correlation", "signed"),
            group.value("state_norm", "size"),
            group.value("reference_norm", "size"),
            Mark(group.verdict, group.tone),
        )
        for group in groups
    ]
    columns = (
        "method", "λ", "accuracy", "above frozen", "deep cosine", "perturbation correlation",
        "‖h_L‖", "‖g_L‖", "verdict",
    )  # fmt: skip
    return Table("Dose by dose", columns, tuple(rows), notes=(stamp(groups),), grouped=True)


# -- over time ------------------------------------------------------------------------------------


def firing_table(groups: Sequence[Group], thresholds: Thresholds | None = None) -> Table:
    """When each check first fired, and what stopping there would have cost and saved."""
    limits = thresholds or Thresholds()
    rows = [
        _firing_row(g, [_replayed(h, limits) for h in g.histories]) for g in groups if g.histories
    ]
    columns = (
        "setting", "method", "D1", "D2", "Mode 1", "epochs", "compute saved",
        "accuracy then", "accuracy at the end",
    )  # fmt: skip
    return Table(
        "First firing",
        columns,
        tuple(rows),
        "Saved: what stopping at the first firing of Mode 1 (D1 and D2 together) leaves untrained.",
        (stamp(groups),),
        grouped=True,
    )


def _firing_row(group: Group, replays: Sequence[Replay]) -> Row:
    times = [epochs_told(r.first[code] for r in replays) for code in ("D1", "D2", "mode 1")]
    saved = [r.saved["mode 1"] for r in replays]
    then = [r.accuracy["mode 1"] for r in replays]
    percent = [100 * s if s is not None else None for s in saved]
    mean = Value.of_runs(percent, "count")
    return (
        group.setting,
        group.label,
        *times,
        max(r.total for r in replays),
        "" if mean is None else f"{mean.mean:.0f} %",
        Value.of_runs(then),
        Value.of_runs([r.final_accuracy for r in replays]),
    )


def _replayed(history: Sequence[Mapping[str, Any]], limits: Thresholds) -> Replay:
    batch = limits.reference_batch
    reduced = (
        {**r, "reference_norm": [n / batch for n in r.get("reference_norm") or ()]} for r in history
    )
    return replay(reduced, limits)


# -- strategies and thresholds --------------------------------------------------------------------


def decision_table(groups: Sequence[Group], strategies: Sequence[str] = PAPER) -> Table:
    """What each way of reporting says of each method; the paper, Tables 4 and 5."""
    rows: list[Row] = [
        (
            group.setting,
            group.label,
            *(_decision(group.cases, s) for s in strategies),
            _truth(group),
        )
        for group in groups
    ]
    columns = tuple(f"{name}: {STRATEGIES[name].reads}" for name in strategies)
    return Table(
        "Decision utility",
        ("setting", "method", *columns, "trained blocks beat frozen ones"),
        tuple(rows),
        "Walked back: the strategy objects to the claim that the method trained the depth. Missed:"
        " it lets a claim stand although the trained blocks do not beat frozen ones by the margin."
        " That truth is D3's own, so the last strategy cannot miss by it.",
        (stamp(groups),),
        grouped=True,
    )


def _decision(cases: Sequence[Case], strategy: str) -> Mark:
    said = [STRATEGIES[strategy].walks_back(case, Thresholds()) for case in cases]
    if not said or None in said:
        return Mark("open", "open")
    back = sum(s is True for s in said)
    missed = any(s is False and case.failing for s, case in zip(said, cases, strict=True))
    if missed:
        return Mark("missed" if not back else f"missed in {len(said) - back} of {len(said)}", "bad")
    share = "" if back in (0, len(said)) else f" in {back} of {len(said)}"
    return Mark(f"walked back{share}" if back else "stands", "good")


def _truth(group: Group) -> str:
    truths = [case.failing for case in group.cases]
    if not truths or None in truths:
        return "unknown"
    beats = sum(t is False for t in truths)
    if beats in (0, len(truths)):
        return "yes" if beats else "no"
    return f"in {beats} of {len(truths)}"


def sensitivity_table(groups: Sequence[Group]) -> Table:
    """How far each threshold could be moved before a flag changes; second draft, Appendix E."""
    cases = [case for group in groups for case in group.cases]
    found = [_sensitivity(code, cases) for code in DETECTORS] if cases else []
    return Table(
        "Threshold sensitivity",
        (
            "check",
            "threshold",
            "nearest run that is fine",
            "nearest run that flags",
            "gap between them",
            "flags that change within ±50 %",
        ),
        tuple(map(_sensitivity_row, found)),
        "The gap is a factor for D1 and D2 and points for D3: the wider, the less the choice of"
        " threshold matters.",
        (stamp(groups),),
    )


def _sensitivity(code: str, cases: Sequence[Case]) -> Sensitivity:
    """One check's sensitivity, between the runs on either side of its own threshold."""
    flags = [DETECTORS[code].check(case, Thresholds()) for case in cases]
    sides = [case.replace(failing=flag) for case, flag in zip(cases, flags, strict=True)]
    return threshold_sensitivity(sides)[code]


def _sensitivity_row(s: Sensitivity) -> Row:
    style: Style = "points" if s.code == "D3" else "size"
    numbers = (_or_none(v, style) for v in (s.threshold, s.healthy_extreme, s.failing_extreme))
    return s.code, *numbers, _or_none(s.gap, style), len(s.changed)


def _or_none(value: float, style: Style) -> Value | None:
    return Value(value, style=style) if value == value else None


# -- care and origin ------------------------------------------------------------------------------


def flags_table(groups: Sequence[Group]) -> Table:
    """Reasons to read a verdict with care, as the protocol found them by itself."""
    rows = []
    for group in groups:
        found: dict[tuple[str, str], list[tuple[int, str]]] = {}
        for run in group.runs:
            for flag in run.verdict.flags if run.verdict else ():
                found.setdefault((flag.title, flag.anchor), []).append((run.seed, flag.message))
        for (title, anchor), told in found.items():
            share = f"{len(told)} of {len(group.runs)}"
            rows.append((group.setting, group.label, title, share, told[0][1], anchor))
    return Table(
        "Reliability flags",
        ("setting", "method", "flag", "seeds", "what was seen (first seed)", "explained in"),
        tuple(rows),
        "They never change a verdict.",
        grouped=True,
    )


def problems_table(problems: Sequence[Problem]) -> Table:
    """What is missing or broken."""
    rows = tuple((p.where, p.what, p.mend) for p in problems)
    return Table("Missing and broken", ("where", "what", "what to do"), rows)


def baselines_table(groups: Sequence[Group]) -> Table:
    """What methods are held against, and the ladder in between."""
    rows = [
        (g.setting, g.label, g.value("accuracy"), len(g.runs), g.digest)
        for g in groups
        if g.role != "method"
    ]
    columns = ("setting", "baseline", "accuracy", "seeds", "recipe")
    return Table("Baselines", columns, tuple(rows), notes=(stamp(groups),), grouped=True)


def runs_table(groups: Sequence[Group]) -> Table:
    """One row per run, with everything a verdict rests on."""
    columns = (
        "run", "setting", "method", "seed", "status", "verdict", "accuracy", "frozen accuracy",
        "above frozen", "low", "high", "growth", "reference norm", "gamma", "deep cosine",
        "frozen taught by", "device", "threads", "seconds", "made by",
    )  # fmt: skip
    rows = tuple(_run_row(group, run) for group in groups for run in group.runs)
    return Table("Runs", columns, rows)


def _run_row(group: Group, run: Run) -> Row:
    verdict, evidence, manifest = run.verdict, run.evidence, run.manifest
    details = verdict.finding("D3").details if verdict else {}
    return (
        run.recipe.digest,
        group.setting,
        group.label,
        run.seed,
        run.outcome.status,
        run.standing if group.role == "method" else "",
        run.outcome.accuracy,
        run.baseline.accuracy if run.baseline else None,
        run.margin,
        details.get("low"),
        details.get("high"),
        evidence.largest_growth if evidence else None,
        evidence.deepest_reference(128) if evidence else None,
        _finite(evidence.gamma) if evidence else None,
        _finite(evidence.deep_cosine) if evidence else None,
        run.baseline_rule,
        run.recipe.device,
        run.recipe.threads,
        manifest.timing.get("seconds") if manifest else None,
        _made_by(run),
    )


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def _made_by(run: Run) -> str:
    m = run.manifest
    if m is None:
        return ""
    named = [f"{name} {version}" for name, version in sorted(m.versions.items())]
    return ", ".join([*named, f"code {m.code}", *([f"commit {m.commit[:12]}"] if m.commit else [])])


def provenance_table(groups: Sequence[Group]) -> Table:
    """Per group: its runs, and what computed them where; what all share is said once."""
    origin = {name: [_each(group, take) for group in groups] for name, take in _ORIGIN.items()}
    differ = [name for name, found in origin.items() if len(set(found)) > 1]
    shared = [
        f"{name}: {found[0]}" for name, found in origin.items() if name not in differ and found
    ]
    rows = [
        (
            group.setting,
            group.label,
            group.digest,
            ", ".join(f"{run.seed}: {run.recipe.digest[:8]}" for run in group.runs),
            *(origin[name][index] for name in differ),
            _seconds(group),
        )
        for index, group in enumerate(groups)
    ]
    columns = ("setting", "method", "recipe", "runs (seed: digest)", *differ, "time")
    caption = f"The same for all. {'. '.join(shared)}." if shared else ""
    return Table("Runs and machines", columns, tuple(rows), caption, grouped=True)


def _each(group: Group, take: Callable[[Run], str | None]) -> str:
    return "; ".join(dict.fromkeys(filter(None, map(take, group.runs)))) or ABSENT


def _threads(run: Run) -> str:
    return f"{run.recipe.threads} thread{'s' * (run.recipe.threads > 1)}"


_ORIGIN: dict[str, Callable[[Run], str | None]] = {
    "data": lambda run: run.outcome.data[:8] or None,
    "device": lambda run: f"{run.recipe.device}, {_threads(run)}, {run.recipe.dtype}",
    "machine": lambda run: run.manifest.machine if run.manifest else None,
    "made by": _made_by,
}


def _seconds(group: Group) -> Cell:
    times = [run.manifest.timing.get("seconds") for run in group.runs if run.manifest]
    total = sum(t for t in times if t)
    if not total:
        return ABSENT
    return (
        f"{total:.0f} s"
        if total < 600
        else f"{total / 60:.0f} min"
        if total < 36000
        else f"{total / 3600:.1f} h"
    )


def recipe_table(dossier: Dossier) -> Table:
    """What every run has in common; what differs is in the names of settings and methods."""
    values = [labels.flat(run.recipe) for run in dossier.runs]
    keys = dict.fromkeys(key for value in values for key in value)
    rows = []
    for key in keys:
        found = dict.fromkeys(str(value.get(key)) for value in values if key in value)
        shown = list(found)[:8]
        more = f" and {len(found) - 8} more" if len(found) > 8 else ""
        rows.append((key, ", ".join(shown) + more))
    return Table("Recipes", ("key", "values among the runs"), tuple(rows))


def stamp(groups: Sequence[Group]) -> str:
    """Where a table's numbers come from, in a line that travels with it."""
    runs = [run for group in groups for run in group.runs]
    manifests = [run.manifest for run in runs if run.manifest]
    versions = dict.fromkeys(
        f"{name} {m.versions[name]}"
        for m in manifests
        for name in ("faudit", "torch")
        if name in m.versions
    )
    codes = dict.fromkeys(f"code {m.code}" for m in manifests if m.code)
    devices = dict.fromkeys(f"{r.recipe.device} with {_threads(r)}" for r in runs)
    recipes = [group.digest for group in groups]
    listed = ", ".join(recipes[:6]) + (f" and {len(recipes) - 6} more" if len(recipes) > 6 else "")
    made = ", ".join([*versions, *codes, *devices])
    sizes = sorted({len(group.runs) for group in groups}) or [0]
    seeds = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    each = f"{seeds} seed{'s' * (sizes[-1] != 1)} in each row"
    return f"{len(runs)} run{'s' * (len(runs) != 1)}, {each}; recipes {listed}; {made}."
