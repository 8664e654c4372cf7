"""Variants: what the papers leave open, the candidates for it, and what the search chose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import product
from typing import Any

from faudit.errors import RecipeError, unknown

PENALTY_ONLY = ("penalty_over",)
"""Training choices that are about the penalty and so bear on penalised runs, BP's too."""


@dataclass(frozen=True)
class Variant:
    """Changes of the training's defaults, and options of rules by the rule's name.

    >>> both = Variant({"normalise": "batch"}) | Variant({"idle_steps": 4}, {"ep": {"beta": 1.0}})
    >>> both.training
    {'normalise': 'batch', 'idle_steps': 4}
    """

    training: Mapping[str, Any] = field(default_factory=dict)
    rules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __or__(self, later: Variant) -> Variant:
        return Variant({**self.training, **later.training}, {**self.rules, **later.rules})

    def training_of(self, *, exact: bool, penalised: bool) -> dict[str, Any]:
        """The changes for one run: exact credit has nothing to scale, no penalty nothing to sum."""
        return {
            key: value
            for key, value in self.training.items()
            if (penalised if key in PENALTY_ONLY else not exact)
        }


@dataclass(frozen=True)
class Stage:
    """One question of the search, and its candidate answers; they build on what came before."""

    question: str
    candidates: Mapping[str, Variant]


def _local() -> dict[str, Variant]:
    """Every scale of the credit with every way to step farther."""
    scales = {"plain": {}, "batch": {"normalise": "batch"}, "sample": {"normalise": "sample"}}
    ways: dict[str, dict[str, Any]] = {
        "": {},
        "-constant": {"local_schedule": "constant"},
        "-lr2.5": {"local_lr": 2.5},
        "-lr5": {"local_lr": 5.0},
        "-idle4": {"idle_steps": 4},
        "-steps2": {"block_steps": 2},
        "-steps4": {"block_steps": 4},
    }
    pairs = product(scales.items(), ways.items())
    return {scale + way: Variant({**one, **other}) for (scale, one), (way, other) in pairs}


def _penalty() -> dict[str, Variant]:
    """What the penalty sums over, and how large the credit is that it works against."""
    found = {over: Variant({"penalty_over": over}) for over in ("sum", "mean")}
    for scale in (0.25, 4.0):
        options = {"scale": scale}
        found[f"sum-scale{scale:g}"] = Variant(
            {"penalty_over": "sum"}, {"fa": options, "dfa": options}
        )
    return found


def _state_bridge() -> dict[str, Variant]:
    return {inputs: Variant({}, {"sb": {"inputs": inputs}}) for inputs in ("raw", "normalised")}


def _credit_bridge() -> dict[str, Variant]:
    return {
        f"{inputs}-{sees}": Variant({}, {"cb": {"inputs": inputs, "sees": sees}})
        for inputs, sees in product(("raw", "normalised"), ("label", "error", "nothing"))
    }


def _equilibrium() -> dict[str, Variant]:
    return {
        f"{credit}-beta{beta:g}-steps{steps}": Variant(
            {}, {"ep": {"credit": credit, "beta": beta, "steps": steps}}
        )
        for credit, beta, steps in product(("error", "state"), (0.1, 1.0), (5, 20))
    }


SEARCH: dict[str, Stage] = {
    "local": Stage("How is credit scaled, and how often and how far does a block step?", _local()),
    "penalty": Stage("What does the penalty sum over, against credit of what size?", _penalty()),
    "sb": Stage("What does a State Bridge read?", _state_bridge()),
    "cb": Stage("What does a Credit Bridge read, and what else is it told?", _credit_bridge()),
    "ep": Stage(
        "How strong is the nudge, how long does it settle, what is credit?", _equilibrium()
    ),
}
"""The search, stage by stage; the last three stand beside each other."""

BEFORE: dict[str, tuple[str, ...]] = {
    "local": (),
    "penalty": ("local",),
    **dict.fromkeys(("sb", "cb", "ep"), ("local", "penalty")),
}
"""Whose answers a stage builds on."""

CHOSEN: dict[str, str] = {
    "local": "batch-steps2",
    "penalty": "sum",
    "sb": "normalised",
    "cb": "normalised-error",
    "ep": "error-beta0.1-steps5",
}
"""The candidate on top of every stage; together they are the variant ``paper``."""

VARIANTS = ("paper", "plain")
"""What the ledger reports: the recipe that came out of the search, and the plain one."""


def variant(name: str) -> Variant:
    """A variant by name: paper, plain, or a candidate of the search as ``stage/candidate``.

    >>> variant("plain") == Variant()
    True
    >>> variant("local/batch-idle4").training
    {'normalise': 'batch', 'idle_steps': 4}
    """
    if name == "plain":
        return Variant()
    if name == "paper":
        return _chosen(CHOSEN)
    stage, _, candidate = name.partition("/")
    known = [*VARIANTS, *(f"{s}/{c}" for s, found in SEARCH.items() for c in found.candidates)]
    if name not in known:
        raise RecipeError(unknown("variant", name, known))
    return _chosen(BEFORE[stage]) | SEARCH[stage].candidates[candidate]


def _chosen(stages: Iterable[str]) -> Variant:
    found = (SEARCH[stage].candidates[CHOSEN[stage]] for stage in stages)
    return reduce(Variant.__or__, found, Variant())
