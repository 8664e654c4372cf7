"""Which expressions hold gradients, as far as names and assignments in one function tell."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from faudit.lint.source import Scope, Source, identifiers, keyword, open_ended, own_nodes, words

WORDS = frozenset(
    {"grad", "grads", "gradient", "gradients", "credit", "credits", "bp", "dfa", "backprop"}
)
# These contain "grad" and hold none.
SWITCHES = frozenset(
    {
        "requires_grad",
        "requires_grad_",
        "no_grad",
        "enable_grad",
        "retain_grad",
        "retains_grad",
        "zero_grad",
        "set_grad_enabled",
        "is_grad_enabled",
        "clip_grad_norm_",
        "clip_grad_value_",
    }
)
COSINES = frozenset({"torch.nn.functional.cosine_similarity", "torch.cosine_similarity"})


def is_autograd(source: Source, node: ast.AST) -> bool:
    """Whether a node asks autograd for gradients."""
    return source.called(node).endswith("autograd.grad")


def about_gradients(node: ast.AST, known: frozenset[str] = frozenset()) -> bool:
    """Whether an expression speaks of gradients, by its words or by names known to hold some.

    >>> about_gradients(ast.parse("bp_grad[0]")), about_gradients(ast.parse("x.requires_grad_()"))
    (True, False)
    """
    return any(
        name in known or (name not in SWITCHES and words(name) & WORDS)
        for name in identifiers(node)
    )


def gradient_names(source: Source, scope: Scope) -> frozenset[str]:
    """The names that a function fills with gradients, followed through its assignments."""
    known: frozenset[str] = frozenset()
    for target, value in bindings(scope):
        if about_gradients(value, known) and not _calls_model(value):
            known |= {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
    return known


def _calls_model(value: ast.AST) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and not value.args


def bindings(scope: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(target, value) of what a scope assigns or loops over, in the order it is written."""
    found: list[tuple[ast.expr, ast.expr]] = []
    for node in own_nodes(scope):
        if isinstance(node, ast.Assign):
            found += [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            found.append((node.target, node.value))
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            found.append((node.target, node.iter))
    yield from sorted(found, key=lambda pair: (pair[0].lineno, pair[0].col_offset))


def is_cosine(source: Source, node: ast.AST) -> bool:
    """Whether a node computes a cosine, PyTorch's or one of the file's own."""
    name = source.called(node)
    last = name.rpartition(".")[2]
    return (
        name in COSINES
        or last in source.cosines
        or bool(words(last) & {"cosine", "cosines"})
        or "cos_sim" in last
    )


def eps_open(call: ast.Call, position: int) -> bool:
    """Whether a call leaves ``eps`` at its default."""
    decided = keyword(call, "eps") is not None or len(call.args) > position
    return not decided and not open_ended(call)
