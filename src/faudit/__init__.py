"""faudit: did a network trained without backpropagation learn in depth?

Names are loaded when they are first used, so that ``faudit --help`` does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from faudit.data import load as load_data
    from faudit.errors import FauditError
    from faudit.measures.evidence import Evidence
    from faudit.measures.measure import measure
    from faudit.networks.view import Network
    from faudit.protocol import EarlyStop, Thresholds, Verdict, calibrate, diagnose, walk_back
    from faudit.recipe import Recipe, Training, grid
    from faudit.rules import RULES, CreditRule, make_rule
    from faudit.studies.audit import Audit, FAProtocol, audit
    from faudit.training import Learner, evaluate, train

_HOMES = {
    "faudit.data": {"load_data": "load"},
    "faudit.errors": ("FauditError",),
    "faudit.measures.evidence": ("Evidence",),
    "faudit.measures.measure": ("measure",),
    "faudit.networks.view": ("Network",),
    "faudit.protocol": (
        "EarlyStop",
        "Thresholds",
        "Verdict",
        "calibrate",
        "diagnose",
        "walk_back",
    ),
    "faudit.recipe": ("Recipe", "Training", "grid"),
    "faudit.rules": ("RULES", "CreditRule", "make_rule"),
    "faudit.studies.audit": ("Audit", "FAProtocol", "audit"),
    "faudit.training": ("Learner", "evaluate", "train"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "RULES",
    "Audit",
    "CreditRule",
    "EarlyStop",
    "Evidence",
    "FAProtocol",
    "FauditError",
    "Learner",
    "Network",
    "Recipe",
    "Thresholds",
    "Training",
    "Verdict",
    "__version__",
    "audit",
    "calibrate",
    "diagnose",
    "evaluate",
    "grid",
    "load_data",
    "make_rule",
    "measure",
    "train",
    "walk_back",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'faudit' has no attribute {name!r}")
    names = _HOMES[_HOME[name]]
    original = names[name] if isinstance(names, dict) else name
    value = getattr(import_module(_HOME[name]), original)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
