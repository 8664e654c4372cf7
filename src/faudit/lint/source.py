"""Source: one Python file as a rule sees it: its tree, who stands in whom, what a name stands for.

Nothing in the file is imported or run.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections import deque
from collections.abc import Iterator
from functools import cached_property

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef

# How PyTorch's modules are called by those who did not import them in the file that is read.
USUAL = {
    "F": "torch.nn.functional",
    "nn": "torch.nn",
    "torch": "torch",
    "np": "numpy",
    "numpy": "numpy",
}
COSINE_MODULE = "torch.nn.CosineSimilarity"
IGNORE = re.compile(r"#\s*faudit:\s*ignore(?:\[(?P<codes>[^\]]*)\])?(?![-\w])", re.IGNORECASE)


class Source:
    """A parsed file.

    >>> source = Source("from torch.nn import functional as G\\nG.cosine_similarity(a, b)")
    >>> [source.called(node) for node in source.calls(source.tree)]
    ['torch.nn.functional.cosine_similarity']
    """

    def __init__(self, text: str, raw: bytes | None = None) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the file's own author would be warned of
            self.tree = ast.parse(text if raw is None else raw)
        self.text = text
        # As Python counts lines; str.splitlines() also splits at form feeds and other marks.
        self.lines = re.split(r"\r\n|\r|\n", text)

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """Every node's parent."""
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def aliases(self) -> dict[str, str]:
        """What the file's own names stand for, as its imports say."""
        found: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for one in node.names:
                    whole = one.name if one.asname else one.name.partition(".")[0]
                    found[one.asname or whole] = whole
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for one in node.names:
                    found[one.asname or one.name] = f"{node.module}.{one.name}"
        return found

    def full_name(self, node: ast.AST) -> str:
        """The dotted name of an expression, imports resolved; empty where it has none."""
        if isinstance(node, ast.Attribute):
            before = self.full_name(node.value)
            return f"{before}.{node.attr}" if before else ""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id, USUAL.get(node.id, node.id))
        return ""

    def called(self, node: ast.AST) -> str:
        """The full name of what a call calls; empty for anything else."""
        return self.full_name(node.func) if isinstance(node, ast.Call) else ""

    def calls(self, within: ast.AST) -> Iterator[ast.Call]:
        """Every call in a part of the file, in the order it is written."""
        found = (node for node in ast.walk(within) if isinstance(node, ast.Call))
        yield from sorted(found, key=lambda node: (node.lineno, node.col_offset))

    def scopes(self) -> Iterator[Scope]:
        """The module and every function."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
                yield node

    def scope_of(self, node: ast.AST) -> Scope:
        """The innermost function around a node, or the module."""
        above = self.parents[node]
        while not isinstance(above, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
            above = self.parents[above]
        return above

    @cached_property
    def cosines(self) -> frozenset[str]:
        """Names that the file gives to a ``torch.nn.CosineSimilarity``.

        >>> Source("import torch.nn as nn\\nsim = nn.CosineSimilarity(dim=0)").cosines
        frozenset({'sim'})
        """
        made = (
            target
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Assign | ast.AnnAssign)
            and node.value is not None
            and self.called(node.value) == COSINE_MODULE
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        )
        names = (getattr(target, "id", getattr(target, "attr", "")) for target in made)
        return frozenset(filter(None, names))

    @cached_property
    def ignored(self) -> dict[int, frozenset[str]]:
        """Line number -> the codes a comment there silences; none named means all.

        >>> Source("x = 1  # faudit: ignore[FA001, FA002]").ignored[1] == {"FA001", "FA002"}
        True
        """
        found = {}
        for line, comment in _comments(self.text):
            if match := IGNORE.search(comment):
                codes = (match["codes"] or "").upper().split(",")
                found[line] = frozenset(code.strip() for code in codes if code.strip())
        return found


def _comments(text: str) -> Iterator[tuple[int, str]]:
    """Comments, and not what only looks like one inside a string."""
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
    except (tokenize.TokenError, SyntaxError):
        return


def words(name: str) -> frozenset[str]:
    """The lower-case words of an identifier.

    >>> sorted(words("bpGrads_l0"))
    ['bp', 'grads', 'l0']
    """
    return frozenset(
        part.lower() for part in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name) if part
    )


def identifiers(node: ast.AST) -> Iterator[str]:
    """Every name and attribute in an expression."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr


def mentions(node: ast.AST, known: frozenset[str]) -> bool:
    """Whether an identifier in an expression contains one of these words.

    >>> mentions(ast.parse("f(bp_grads[0])"), frozenset({"grads"}))
    True
    """
    return any(words(name) & known for name in identifiers(node))


def own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope, without those of functions and classes defined inside it."""
    waiting = deque(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.popleft()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            waiting.extend(ast.iter_child_nodes(node))


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """A keyword argument of a call."""
    return next((k.value for k in call.keywords if k.arg == name), None)


def open_ended(call: ast.Call) -> bool:
    """Whether a call passes arguments on that are not written out (``*a``, ``**k``)."""
    starred = any(isinstance(a, ast.Starred) for a in call.args)
    return starred or any(k.arg is None for k in call.keywords)


def whole(node: ast.expr | None) -> int | None:
    """The whole number an expression writes out; None for anything else.

    >>> whole(ast.parse("-1", mode="eval").body)
    -1
    """
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        sign, node = -1, node.operand
    value = node.value if isinstance(node, ast.Constant) else None
    return sign * value if isinstance(value, int) and not isinstance(value, bool) else None
