"""The rules: each sees one pitfall in the syntax tree. ``RULES`` is the registry.

A rule prefers silence to a false alarm: where a file leaves open what it does, no finding is made.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from faudit.lint.feedback import unsaved_feedback
from faudit.lint.gradients import (
    COSINES,
    about_gradients,
    eps_open,
    gradient_names,
)
from faudit.lint.measuring import forgotten_eval, half_precision, lost_layers
from faudit.lint.source import COSINE_MODULE, Source, keyword, open_ended, whole

Check = Callable[[Source], Iterator[ast.AST]]

UNREADABLE = "FA000"


@dataclass(frozen=True)
class Rule:
    """One rule; ``pitfall`` names the experiment that shows what the mistake does.

    ``needs`` is a text without which a file cannot break the rule; most files are done by that.
    """

    code: str
    name: str
    message: str
    fix: str
    pitfall: str
    needs: str
    check: Check

    def nodes(self, source: Source) -> Iterator[ast.AST]:
        """The places in a file that break the rule."""
        return self.check(source) if self.needs in source.text.lower() else iter(())


NORMS = frozenset({"torch.norm", "torch.linalg.norm", "torch.linalg.vector_norm"})
ALL_NORMS = NORMS | {"numpy.linalg.norm"}


def negative_norm(source: Source) -> Iterator[ast.AST]:
    """``x.norm(-1)``: a negative first argument is the order of the norm, not a dimension.

    >>> [node.lineno for node in negative_norm(Source("x.norm(-1)"))]
    [1]
    >>> list(negative_norm(Source("x.norm(dim=-1); x.norm(2, -1); x.norm(p=-1, dim=0)")))
    []
    """
    for call in source.calls(source.tree):
        order = _order(source, call)
        if order is not None and order < 0:
            yield call


def _order(source: Source, call: ast.Call) -> int | None:
    """The order of the norm that a call writes without a name and without a dimension."""
    if not isinstance(call.func, ast.Attribute | ast.Name) or open_ended(call):
        return None
    if keyword(call, "dim") is not None or keyword(call, "axis") is not None:
        return None
    if source.called(call) in ALL_NORMS:
        return whole(call.args[1]) if len(call.args) == 2 else None
    if isinstance(call.func, ast.Attribute) and call.func.attr == "norm":
        return whole(call.args[0]) if len(call.args) == 1 else None
    return None


def default_eps(source: Source) -> Iterator[ast.AST]:
    """PyTorch's cosine of gradients with ``eps`` left at 1e-8, which clamps each norm.

    >>> [n.lineno for n in default_eps(Source("F.cosine_similarity(bp_grad, credit)"))]
    [1]
    >>> list(default_eps(Source("F.cosine_similarity(bp_grad, credit, eps=0.0)")))
    []
    """
    modules = _cosine_modules(source)
    for scope in source.scopes():
        known = gradient_names(source, scope)
        for call in source.calls(scope):
            mine = source.scope_of(call) is scope and _is_clamped(source, call, modules)
            if mine and any(about_gradients(a, known) for a in call.args):
                yield call


def _is_clamped(source: Source, call: ast.Call, modules: frozenset[str]) -> bool:
    if source.called(call) in COSINES:
        return eps_open(call, 3)
    if isinstance(call.func, ast.Call):
        return _is_open_module(source, call.func)
    last = call.func.attr if isinstance(call.func, ast.Attribute) else source.full_name(call.func)
    return last in modules


def _is_open_module(source: Source, node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and source.called(node) == COSINE_MODULE and eps_open(node, 1)


def _cosine_modules(source: Source) -> frozenset[str]:
    """Names that the file gives to ``nn.CosineSimilarity()`` without an eps."""
    found = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Assign) and _is_open_module(source, node.value):
            for target in node.targets:
                if isinstance(target, ast.Name | ast.Attribute):
                    found.add(target.id if isinstance(target, ast.Name) else target.attr)
    return frozenset(found)


_ALL = (
    Rule(
        "FA001",
        "norm-minus-one",
        "norm(-1) is the norm of order -1 of the whole tensor, not one norm per row",
        "write norm(dim=-1)",
        "norm-minus-one",
        "norm(",
        negative_norm,
    ),
    Rule(
        "FA002",
        "cosine-eps",
        "the cosine of gradients is left to eps=1e-8, which clamps each norm and shrinks"
        " the cosine of short gradients",
        "compute it in float64 without a clamp (faudit.measure does), or pass eps on purpose",
        "cosine-clamp",
        "cosine",
        default_eps,
    ),
    Rule(
        "FA003",
        "fp16-gradients",
        "gradients are measured under float16 autocast, where entries below 6e-8 become zero",
        "measure outside autocast in float32, or use dtype=torch.bfloat16",
        "fp16-underflow",
        "autocast",
        half_precision,
    ),
    Rule(
        "FA004",
        "feedback-not-saved",
        "a random feedback matrix is neither a parameter nor a buffer, so state_dict() leaves it"
        " out and a reloaded model draws another one",
        'keep it with register_buffer("B", ...) or nn.Parameter(..., requires_grad=False)',
        "missing-rule-state",
        "self.",
        unsaved_feedback,
    ),
    Rule(
        "FA005",
        "aggregate-only",
        "cosines of several layers are averaged at once, and the value of each layer is lost",
        "keep and report the list, one cosine per layer, beside any mean",
        "first-layer",
        "cos",
        lost_layers,
    ),
    Rule(
        "FA006",
        "missing-eval",
        "gradients are measured without model.eval(); dropout and batch statistics act on them",
        "call model.eval() before the forward pass of the measurement",
        "train-mode",
        "grad",
        forgotten_eval,
    ),
)
RULES: dict[str, Rule] = {rule.code: rule for rule in _ALL}
