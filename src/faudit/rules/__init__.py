"""Credit rules: what each block is told. ``RULES`` is the registry; one line adds a rule.

Other installed packages may add some too, see ``faudit.plugins``.
"""

from __future__ import annotations

from inspect import signature

import torch

from faudit import plugins
from faudit.errors import RuleError, unfit, unknown
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
from faudit.seeds import check_seed

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
    made = rule_class(name)
    if not isinstance(layout, Layout):
        raise RuleError(f"a rule is made for network.layout(x), not for a {type(layout).__name__}")
    check_seed(seed)
    _check_options(name, options)
    try:
        return made(layout, torch.Generator().manual_seed(int(seed)), **options)
    except (TypeError, ValueError) as error:
        raise RuleError(f"rule {name!r} cannot be made with {options}: {error}") from error


def rule_class(name: str) -> type[CreditRule]:
    """The rule called ``name``: one of ``RULES``, or one that an installed package offers.

    >>> rule_class("dfa").__name__
    'DFA'
    """
    return plugins.find_class(plugins.RULES, "rule", name, RULES, CreditRule, RuleError)


def _check_options(name: str, options: dict[str, object]) -> None:
    kind, known = f"option of rule {name!r}", rule_options(name)
    for option, value in options.items():
        if option not in known:
            raise RuleError(unknown(kind, option, known))
        if problem := unfit(kind, option, value, known[option]):
            raise RuleError(problem)


def rule_options(name: str) -> dict[str, object]:
    """The options that the rule called ``name`` takes, and their defaults.

    >>> rule_options("kp")
    {'decay': 0.001}
    """
    parameters = signature(rule_class(name).__init__).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


__all__ = ["RULES", "CreditRule", "make_rule", "rule_class", "rule_options"]
