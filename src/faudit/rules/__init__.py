"""Credit rules: what each block is told. ``RULES`` is the registry; one line adds a rule."""

from __future__ import annotations

import torch

from faudit.errors import RuleError, unknown
from faudit.networks.view import Layout
from faudit.rules.base import CreditRule
from faudit.rules.bridge import CreditBridge, StateBridge
from faudit.rules.feedback import (
    BP,
    DFA,
    DRTP,
    FA,
    FixedRandomSign,
    KolenPollack,
    RedrawnRandomSign,
    UniformSign,
)
from faudit.rules.relaxation import EquilibriumPropagation

RULES: dict[str, type[CreditRule]] = {
    "bp": BP,
    "fa": FA,
    "dfa": DFA,
    "drtp": DRTP,
    "usf": UniformSign,
    "brsf": RedrawnRandomSign,
    "frsf": FixedRandomSign,
    "kp": KolenPollack,
    "sb": StateBridge,
    "cb": CreditBridge,
    "ep": EquilibriumPropagation,
}


def make_rule(name: str, layout: Layout, *, seed: int = 0, **options: object) -> CreditRule:
    """The rule called ``name`` for a network of this layout, its state drawn from ``seed``.

    >>> layout = Layout(shapes=((8,), (8,), (8,)), weights=((), ()), classes=3)
    >>> [tuple(matrix.shape) for matrix in make_rule("dfa", layout, seed=1).matrices]
    [(3, 8), (3, 8), (3, 8)]
    """
    if name not in RULES:
        raise RuleError(unknown("rule", name, RULES))
    try:
        rule = RULES[name](layout, torch.Generator().manual_seed(seed), **options)
    except TypeError as error:
        raise RuleError(f"rule {name!r}: {error}") from error
    rule.options = options
    return rule


__all__ = ["RULES", "CreditRule", "make_rule"]
