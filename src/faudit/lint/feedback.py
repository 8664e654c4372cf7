"""FA004: feedback matrices that are drawn at random and then saved nowhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from faudit.lint.source import Source, identifiers, words

DRAWS = frozenset({"randn", "rand", "randn_like", "rand_like", "randint", "normal", "uniform"})
INITIALISERS = "torch.nn.init."
FILLED = frozenset({"normal_", "uniform_", "kaiming_uniform_", "xavier_uniform_", "orthogonal_"})
WRAPPERS = frozenset({"Parameter", "ParameterList", "ParameterDict", "Buffer"})
REGISTERS = frozenset({"register_buffer", "register_parameter", "ParameterList", "ParameterDict"})
MATRIX = re.compile(r"_?B(s|_\w+|\d+)?_?|fb|_?[Bb]_mat(rix|rices)?")
COLLECTIONS = ast.List | ast.ListComp | ast.Dict | ast.DictComp
SAVING = frozenset({"state_dict", "__getstate__", "get_extra_state"})


def unsaved_feedback(source: Source) -> Iterator[ast.AST]:
    """``self.B = torch.randn(...)`` in a class that neither registers nor saves it.

    >>> text = "class Rule(nn.Module):\\n  def __init__(self):\\n    self.B = torch.randn(3, 4)"
    >>> [node.lineno for node in unsaved_feedback(Source(text))]
    [3]
    """
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ClassDef) and not _saves(node):
            kept, anything = _registered(node)
            for statement, name, value in _attributes(node):
                listed = isinstance(value, COLLECTIONS)
                registered = name in kept or (anything if listed else _wrapped(value))
                told = is_feedback(name) or (is_random(name) and "feedback" in source.text.lower())
                if told and not registered and _drawn(source, value):
                    yield statement


def is_feedback(name: str) -> bool:
    """Whether an attribute's name says feedback.

    >>> [n for n in ("B", "Bs", "feedback_weight", "bias", "batch", "buffer") if is_feedback(n)]
    ['B', 'Bs', 'feedback_weight']
    """
    found = words(name)
    backward = "backward" in found and found & {"weight", "weights", "matrix", "matrices"}
    return bool(MATRIX.fullmatch(name)) or "feedback" in found or bool(backward)


def is_random(name: str) -> bool:
    """Whether a name says random matrix: feedback, in a file that speaks of feedback.

    >>> is_random("random_matrix"), is_random("random_state")
    (True, False)
    """
    found = words(name)
    return "random" in found and bool(found & {"matrix", "matrices", "weight", "weights"})


def _saves(node: ast.ClassDef) -> bool:
    return any(isinstance(part, ast.FunctionDef) and part.name in SAVING for part in node.body)


def _attributes(node: ast.ClassDef) -> Iterator[tuple[ast.stmt, str, ast.expr]]:
    """(statement, name, value) of every ``self.name = value`` in a class."""
    for part in ast.walk(node):
        if isinstance(part, ast.Assign):
            targets = part.targets
        elif isinstance(part, ast.AnnAssign) and part.value is not None:
            targets = [part.target]
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Attribute) and part.value is not None and _own(target):
                yield part, target.attr, part.value


def _own(target: ast.Attribute) -> bool:
    return isinstance(target.value, ast.Name) and target.value.id == "self"


def _registered(node: ast.ClassDef) -> tuple[frozenset[str], bool]:
    """What a class registers by name, and whether it registers under names made at run time."""
    names: set[str] = set()
    anything = False
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and _last(call.func) in REGISTERS:
            first = call.args[0] if call.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                names.add(first.value)
            elif first is not None:
                anything = anything or _last(call.func).startswith("register")
                names |= set(identifiers(first))
    return frozenset(names), anything


def _last(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _drawn(source: Source, value: ast.expr) -> bool:
    """Whether a value is made of random numbers."""
    for call in source.calls(value):
        name = source.called(call)
        root, _, last = name.partition(".")[0], "", name.rpartition(".")[2]
        if root in ("torch", "numpy") and last in DRAWS:
            return True
        if name.startswith(INITIALISERS) or (_last(call.func) in FILLED):
            return True
    return False


def _wrapped(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and _last(value.func) in WRAPPERS
