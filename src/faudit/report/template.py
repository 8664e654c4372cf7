"""Template: the paragraph, tables and checklist that a paper should have, filled in from runs.

What no run supplies stays as ``TODO`` or ``TODO(what belongs here)``, so that a search finds it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from faudit import __version__
from faudit.bundle import Bundle
from faudit.errors import FauditError, unknown
from faudit.protocol import Thresholds
from faudit.protocol.diagnosis import MEANING
from faudit.recipe import Recipe
from faudit.report import escape, labels
from faudit.report.card import AuditCard, make_card
from faudit.report.cells import Cell, Check, Mark, Style, Value
from faudit.report.table import Row, Table
from faudit.tensors import pack

Format = Literal["markdown", "latex"]
FORMATS: tuple[Format, ...] = ("markdown", "latex")
Runs = Bundle | AuditCard | Sequence[Bundle | AuditCard] | None


def template(bundle: Runs = None, format: str = "markdown") -> str:
    """What a paper should say of a run, or of one setting's runs that differ by seed.

    Args:
        bundle: a bundle, a card, several of one setting, or None for a form to fill in.
        format: "markdown", or "latex" for a document that uses booktabs and amssymb.

    >>> print(template().splitlines()[0])
    ### Scale stability, reference validity and depth utility
    >>> "TODO(seeds)" in template(format="latex")
    True
    """
    if format not in FORMATS:
        raise FauditError(unknown("format", format, FORMATS))
    cards = _cards(bundle)
    section = Section(_paragraphs(cards), _tables(cards), _checklist(cards))
    return section.to_markdown() if format == "markdown" else section.to_latex()


def todo(what: str = "") -> str:
    """What stands where something is missing.

    >>> todo("seeds"), todo()
    ('TODO(seeds)', 'TODO')
    """
    return f"TODO({what})" if what else "TODO"


# -- the form -------------------------------------------------------------------------------------

TITLE = "Scale stability, reference validity and depth utility"


@dataclass(frozen=True)
class Item:
    """One line of the checklist: what to report, and what was reported, if it was."""

    asked: str
    answer: str = ""


@dataclass(frozen=True)
class Section:
    """Paragraphs, tables and checklist, before a medium decides how they look."""

    paragraphs: tuple[str, ...]
    tables: tuple[Table, ...]
    checklist: tuple[Item, ...]

    def to_markdown(self) -> str:
        """A section of a Markdown document."""
        parts = [f"### {TITLE}", *map(prose, self.paragraphs)]
        parts += [table.to_markdown() for table in self.tables]
        lines = [
            f"- [{'x' if item.answer else ' '}] {prose(f'{item.asked}: {item.answer or todo()}')}"
            for item in self.checklist
        ]
        return "\n\n".join([*parts, "**Checklist**", "\n".join(lines)]) + "\n"

    def to_latex(self) -> str:
        r"""A subsection of a LaTeX document; it needs \usepackage{booktabs,amssymb}."""
        lines = [r"% needs \usepackage{booktabs,amssymb}", rf"\subsection{{{TITLE}}}"]
        for text in self.paragraphs:
            lines += ["", escape.latex(text)]
        lines += ["", *(table.to_latex() for table in self.tables)]
        lines += [r"\paragraph{Checklist}", r"\begin{itemize}"]
        lines += [_latex_item(item) for item in self.checklist]
        return mathematics("\n".join([*lines, r"\end{itemize}"])) + "\n"


def prose(text: str) -> str:
    """Running text as Markdown: what would be obeyed is escaped, and nothing else.

    >>> prose("g_l of *x* <b> _y")
    'g_l of \\\\*x\\\\* &lt;b&gt; \\\\_y'
    """
    safe = escape.plain(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"[\\`*\[\]~$@|]|(?<!\w)_|_(?!\w)", lambda found: f"\\{found[0]}", safe)


_SYMBOLS = {
    r"g\_l = dL/dh\_l": r"$g_l = \partial L / \partial h_l$",
    r"$\|$g\_L$\|$": r"$\|g_L\|$",
    r"$\|$g\_l$\|$": r"$\|g_l\|$",
    r"$\|$h\_l$\|$": r"$\|h_l\|$",
    "l = 0..L": r"$l = 0, \dots, L$",
    "l = 1..L": r"$l = 1, \dots, L$",
}


def mathematics(latex: str) -> str:
    r"""The template's own symbols, which came through escaping letter by letter, as formulas.

    >>> mathematics(r"a $\|$g\_L$\|$ below 1e-07")
    'a $\\|g_L\\|$ below $10^{-7}$'
    """
    for spelled, formula in _SYMBOLS.items():
        latex = latex.replace(spelled, formula)
    return re.sub(r"\b1e-0*(\d+)\b", r"$10^{-\1}$", latex)


def _latex_item(item: Item) -> str:
    box = r"$\boxtimes$" if item.answer else r"$\square$"
    return rf"\item[{box}] {escape.latex(f'{item.asked}: {item.answer or todo()}')}"


# -- the runs -------------------------------------------------------------------------------------


def _cards(runs: Runs) -> tuple[AuditCard, ...]:
    if runs is None:
        return ()
    given = [runs] if isinstance(runs, Bundle | AuditCard) else list(runs)
    cards = [run if isinstance(run, AuditCard) else make_card(run) for run in given]
    if len({_setting(card.recipe).digest for card in cards}) > 1:
        raise FauditError("these runs differ by more than their seed; make one template for each")
    if len({card.digest for card in cards}) < len(cards):
        raise FauditError(
            "two of these runs are one by their recipe and seed; name each once, or audit models"
            " of your own with a seed= of their own"
        )
    return tuple(sorted(cards, key=lambda card: card.recipe.seed))


def _setting(recipe: Recipe) -> Recipe:
    return recipe.changed({"seed": 0, "rule_seed": None})


def _join(values: Iterable[object], what: str) -> str:
    """Each value once, or what is still to be filled in."""
    shown = list(dict.fromkeys(str(v) for v in values if v not in (None, "")))
    return ", ".join(shown) if shown else todo(what)


# -- the paragraphs -------------------------------------------------------------------------------


def _paragraphs(cards: tuple[AuditCard, ...]) -> tuple[str, ...]:
    return (_training(cards), _measuring(cards), _baseline(cards), _verdict(cards))


def _training(cards: tuple[AuditCard, ...]) -> str:
    if not cards:
        return (
            f"We trained {todo('network')} with {todo('credit rule')} on {todo('data')} for"
            f" {todo('epochs')} epochs ({todo('optimiser, learning rate, schedule, batch')}) in"
            f" {todo('dtype')}, seeds {todo('seeds')}."
        )
    recipe, t = cards[0].recipe, cards[0].recipe.training
    seeds = f"seed{'s' * (len(cards) > 1)} {_join((c.recipe.seed for c in cards), 'seeds')}"
    if recipe.data.own:
        return (
            f"We trained {_network(recipe)} with {labels.rule(recipe)}"
            f"{_options(recipe.rule.options)} on {todo('data')} for {todo('epochs')} epochs"
            f" ({todo('optimiser, learning rate, schedule, batch')}) in {recipe.dtype}, {seeds}."
        )
    credit = "credit normalised per sample" if t.normalise == "sample" else "credit as it is"
    further = _further(recipe)
    return (
        f"We trained {_network(recipe)} with {labels.rule(recipe)}{_options(recipe.rule.options)}"
        f" on {labels.data(recipe)} for {t.epochs} epochs ({_optimised(recipe)}, {credit}, residual"
        f" penalty {t.penalty:g}{further}) in {recipe.dtype}, {seeds}."
    )


def _optimised(recipe: Recipe) -> str:
    t = recipe.training
    return (
        f"AdamW, learning rate {t.lr:g}, weight decay {t.weight_decay:g}, {t.schedule} schedule,"
        f" batch {t.batch}"
    )


SAID = frozenset({"epochs", "batch", "lr", "weight_decay", "schedule", "normalise", "penalty"})


def _further(recipe: Recipe) -> str:
    """Every other choice of training and data that is not the usual one."""
    usual = Recipe()
    pairs = [
        (name, value, getattr(there, name))
        for here, there in ((recipe.training, usual.training), (recipe.data, usual.data))
        for name, value in here
    ]
    told = [f"{n} {v}" for n, v, u in pairs if n not in SAID and n != "name" and v != u]
    return f"; {', '.join(told)}" if told else ""


def _network(recipe: Recipe) -> str:
    name = labels.NETWORKS.get(recipe.network.name, recipe.network.name)
    return f"{name}{_options(recipe.network.options)}"


def _options(options: Mapping[str, object]) -> str:
    given = [f"{name} {value}" for name, value in options.items()]
    return f" ({', '.join(given)})" if given else ""


def _measuring(cards: tuple[AuditCard, ...]) -> str:
    limits = _limits(cards)
    samples = _join((c.evidence.samples for c in cards), "evaluation batch")
    dtype = _join((c.evidence.dtype for c in cards), "dtype")
    return (
        f"The exact gradient g_l = dL/dh_l (the reference) and the credit were taken in evaluation"
        f" mode from one forward pass over {samples} test examples in {dtype}; cosines are computed"
        " in float64 without a clamp, per sample, and averaged over samples at every layer. ‖g_l‖"
        " is that of one sample's loss (sum reduction); D2 reads ‖g_L‖ at a mean loss over"
        f" {limits.reference_batch} samples. Thresholds: D1 flags a growth above {limits.growth:g},"
        f" D2 a ‖g_L‖ below {limits.reference:g}, D3 less than {100 * limits.margin:g} percentage"
        f" points above frozen blocks; direction stability above {limits.stability:g} is reported."
    )


def _baseline(cards: tuple[AuditCard, ...]) -> str:
    held = [card.baseline for card in cards if card.baseline is not None]
    if not held:
        return (
            "Baseline: the same network with all blocks frozen at their random initialisation and"
            f" embedding, terminal norm and head trained; {todo('baseline recipe')}."
        )
    matched = all(one.matched for one in held)
    how = "the run's own recipe, except that" if matched else "another recipe, in which"
    recipe = cards[0].recipe
    if recipe.data.own:
        how = (
            f"the same network trained for {recipe.training.epochs} epochs ({_optimised(recipe)}),"
            f" its embedding taught by {labels.rule(recipe) if matched else 'exact gradients'};"
        )
    return (
        f"Baseline: {how} all blocks stay frozen at their random initialisation while embedding,"
        f" terminal norm and head train (recipes {_join((b.digest for b in held), 'digest')})."
    )


def _verdict(cards: tuple[AuditCard, ...]) -> str:
    if not cards:
        return f"Verdict: {todo('verdict of every seed')}."
    told = "; ".join(f"seed {card.recipe.seed}: {card.verdict}" for card in cards)
    outcomes = dict.fromkeys(card.verdict.partition("(")[0] for card in cards)
    meanings = " ".join(MEANING[o] for o in MEANING if o in outcomes)
    return f"Verdict: {told}. {meanings}"


# -- the tables -----------------------------------------------------------------------------------

LAYERS = ("run", "layer", "‖h_l‖", "growth", "‖g_l‖", "cosine", "clamped", "nudging", "pert. corr.")
PER_LAYER: tuple[tuple[str, Style], ...] = (
    ("state_norm", "size"),
    ("growth", "size"),
    ("reference_norm", "size"),
    ("cosine", "signed"),
    ("cosine_clamped", "signed"),
    ("nudging", "size"),
    ("perturbation_correlation", "signed"),
)


def _tables(cards: tuple[AuditCard, ...]) -> tuple[Table, ...]:
    columns = tuple(f"seed {card.recipe.seed}" for card in cards) or (todo("seed"),)
    layers = tuple(row for card in cards for row in _layer_rows(card)) or _empty_layers()
    return (
        Table(
            "Verdict with its raw values",
            ("quantity", "flagged", *columns),
            _verdict_rows(cards),
            "Γ is the mean cosine over l = 0..L, the deep cosine over l = 1..L.",
        ),
        Table("Per layer", LAYERS, layers, "‖g_l‖ of one sample's loss.", grouped=True),
    )


def _verdict_rows(cards: tuple[AuditCard, ...]) -> tuple[Row, ...]:
    """One row per quantity and one column per run: it fits a page however many there are."""
    limits = _limits(cards)
    rows: tuple[tuple[str, str, Callable[[AuditCard], Cell]], ...] = (
        ("D1 growth", f"above {limits.growth:g}", lambda c: _check(c, "D1", "size")),
        (
            f"D2 ‖g_L‖, mean over {limits.reference_batch}",
            f"below {limits.reference:g}",
            lambda c: _check(c, "D2", "size"),
        ),
        ("‖g_L‖ per sample", "", lambda c: _value(_last(c.evidence.reference_norm), "size")),
        (
            "D3 accuracy above frozen",
            f"below {100 * limits.margin:g} pp",
            lambda c: _check(c, "D3", "points"),
        ),
        ("accuracy", "", lambda c: _value(c.accuracy, "share")),
        ("frozen-blocks accuracy", "", lambda c: _value(_frozen(c), "share")),
        ("Γ", "", lambda c: _value(c.evidence.gamma, "signed")),
        ("deep cosine", "", lambda c: _value(c.evidence.deep_cosine, "signed")),
        ("verdict", "", _told),
    )
    return tuple(
        (name, limit, *([value(card) for card in cards] or [todo()])) for name, limit, value in rows
    )


def _limits(cards: tuple[AuditCard, ...]) -> Thresholds:
    return cards[0].thresholds if cards else Thresholds()


def _told(card: AuditCard) -> Cell:
    return Mark(card.verdict, "bad" if card.verdict.startswith("FAIL") else "quiet")


def _last(values: tuple[float, ...]) -> float | None:
    return values[-1] if values else None


def _frozen(card: AuditCard) -> float | None:
    return None if card.baseline is None else card.baseline.accuracy


def _check(card: AuditCard, code: str, style: Style) -> Cell:
    found = card.finding(code)
    if found is None or found.flagged is None:
        return todo(code)
    return Check(Value(found.value, style=style), (found.flagged,))


def _value(value: float | None, style: Style) -> Cell:
    """A number; one that was measured and has no meaning is NaN and says so."""
    return todo() if value is None else Value(value, style=style)


def _layer_rows(card: AuditCard) -> list[Row]:
    evidence = card.evidence
    columns = [
        _column(getattr(evidence, name), style, evidence.layers, shifted=name == "growth")
        for name, style in PER_LAYER
    ]
    heading = f"seed {card.recipe.seed}"
    return [(heading, f"{layer}", *cells) for layer, cells in enumerate(zip(*columns, strict=True))]


def _column(values: tuple[float, ...], style: Style, layers: int, *, shifted: bool) -> list[Cell]:
    """One cell per state; a block's growth stands beside the state that it produced."""
    if not values:
        return ["not measured"] * (layers + 1)
    cells: list[Cell] = [Value(value, style=style) for value in values]
    return ["", *cells] if shifted else cells


def _empty_layers() -> tuple[Row, ...]:
    blanks = (todo(),) * (len(LAYERS) - 2)
    return tuple((todo("seed"), layer, *blanks) for layer in ("0", "1", "...", "L"))


# -- the checklist --------------------------------------------------------------------------------


def _checklist(cards: tuple[AuditCard, ...]) -> tuple[Item, ...]:
    answers = (
        ("Cosine of every layer beside any mean", _per_layer(cards)),
        ("Raw value beside every verdict", "in the table" if cards else ""),
        ("Thresholds", _thresholds(cards)),
        ("Reduction of ‖g_l‖", _reduction(cards)),
        ("Evaluation batch", _each(cards, lambda c: f"{c.evidence.samples} samples")),
        ("dtype, and the reference's angle to float64", _precision(cards)),
        ("Null with fresh feedback", _null(cards)),
        ("Seeds, each shown", _each(cards, lambda c: f"{c.recipe.seed}")),
        ("Baseline recipe", _each(cards, _baseline_recipe)),
        ("Interval of D3 over test examples", _each(cards, _interval)),
        ("Feedback saved with the weights", _each(cards, _saved)),
        ("Data, by SHA-256", _each(cards, lambda c: c.data.digest[:16])),
        ("Recipe, by digest", _each(cards, lambda c: c.digest)),
        ("Code and versions", _each(cards, _versions)),
        ("Reasons to read the verdict with care", _flags(cards)),
    )
    return tuple(Item(asked, answer) for asked, answer in answers)


def _each(cards: tuple[AuditCard, ...], told: Callable[[AuditCard], str]) -> str:
    """One answer per run, once where they agree; none unless every run has one."""
    answers = [told(card) for card in cards]
    return ", ".join(dict.fromkeys(answers)) if all(answers) else ""


def _per_layer(cards: tuple[AuditCard, ...]) -> str:
    known = bool(cards) and all(card.evidence.cosine for card in cards)
    return "in the table; Γ over l = 0..L, deep cosine over l = 1..L" if known else ""


def _thresholds(cards: tuple[AuditCard, ...]) -> str:
    if not cards:
        return ""
    limits = cards[0].thresholds
    return (
        f"D1 {limits.growth:g}; D2 {limits.reference_factor:g} x {limits.eps:g}; "
        f"D3 {100 * limits.margin:g} pp; direction stability {limits.stability:g}"
    )


def _reduction(cards: tuple[AuditCard, ...]) -> str:
    batch = cards[0].thresholds.reference_batch if cards else 0
    return f"sum; D2 at a mean over {batch} samples" if cards else ""


def _precision(cards: tuple[AuditCard, ...]) -> str:
    def told(card: AuditCard) -> str:
        angles = [a for a in card.evidence.reference_angle if a == a]
        return f"{card.evidence.dtype}, at most {max(angles):.2g} degrees" if angles else ""

    return _each(cards, told)


def _null(cards: tuple[AuditCard, ...]) -> str:
    def told(card: AuditCard) -> str:
        null = card.evidence.null
        if null is None:
            return f"does not apply to {labels.rule(card.recipe)}" if card.evidence.cosine else ""
        return (
            f"{null.value:+.3f} against {null.mean:+.3f} ± {null.std:.3f} over {null.draws} draws"
        )

    return _each(cards, told)


def _baseline_recipe(card: AuditCard) -> str:
    held = card.baseline
    return f"{held.digest}{'' if held.matched else ' (not matched)'}" if held else ""


def _interval(card: AuditCard) -> str:
    details = found.details if (found := card.finding("D3")) else {}
    if not {"low", "high", "level"} <= details.keys():
        return ""
    low, high = 100 * details["low"], 100 * details["high"]
    return f"{100 * details['level']:g} %: {low:+.1f} to {high:+.1f} pp"


@cache
def _no_tensors() -> str:
    return hashlib.sha256(pack({})).hexdigest()


def _saved(card: AuditCard) -> str:
    found = card.origin.files.get("rule.safetensors", "")
    if found != _no_tensors():
        return f"sha256 {found[:16]}" if found else ""
    known = not card.recipe.data.own
    return "the rule has no state of its own" if known else ""


def _versions(card: AuditCard) -> str:
    shown = ", ".join(f"{name} {version}" for name, version in card.origin.versions.items())
    return f"{shown}, code {card.origin.code}, judged by faudit {__version__}"


def _flags(cards: tuple[AuditCard, ...]) -> str:
    if not cards:
        return ""
    found = dict.fromkeys(flag.title for card in cards for flag in card.flags)
    return ", ".join(found) if found else "none found"
