"""lint: pitfalls that can be seen in Python source. Files are parsed, never imported or run.

A finding is silenced on its own line by ``# faudit: ignore[FA001]``, or by ``# faudit: ignore`` for
all rules.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from faudit.errors import unknown
from faudit.lint.files import LintError, Unreadable, invalid, python_files, read
from faudit.lint.finding import FORMATS, Finding, exit_code, render, sarif
from faudit.lint.rules import RULES, UNREADABLE, Rule
from faudit.lint.source import Source

__all__ = [
    "FORMATS",
    "RULES",
    "Finding",
    "LintError",
    "Rule",
    "exit_code",
    "lint_paths",
    "lint_source",
    "render",
    "sarif",
]

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

COMPOUND = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.With,
    ast.AsyncWith,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.If,
    ast.Try,
    ast.Match,
)


def lint_paths(paths: Paths, *, select: Collection[str] | None = None) -> list[Finding]:
    """The findings in files and folders, in order; what cannot be read is a finding, FA000.

    Args:
        select: only these rules; all by default.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "a.py").write_text("size = grad.norm(-1)")
    ...     [finding.code for finding in lint_paths([folder])]
    ['FA001']
    """
    rules = _selected(select)
    files = list(python_files(_listed(paths)))
    return sorted(finding for file in files for finding in _lint_file(file, rules))


def lint_source(
    text: str, path: str = "<text>", *, select: Collection[str] | None = None
) -> list[Finding]:
    """The findings in a text of Python.

    >>> lint_source("size = grad.norm(-1)  # faudit: ignore[FA001]")
    []
    """
    rules = _selected(select)
    try:
        return sorted(_findings(Source(text), path, rules))
    except SyntaxError as error:
        return [_unreadable(path, Unreadable(invalid(error), error.lineno or 1))]
    except (ValueError, RecursionError, MemoryError) as error:
        return [_unreadable(path, Unreadable(f"cannot be parsed: {error}"))]


def _listed(paths: Paths) -> list[str | os.PathLike[str]]:
    given = list([paths] if isinstance(paths, str | os.PathLike) else paths)
    if not given:
        raise LintError("there is nothing to look at; name at least one file or folder")
    return given


def _selected(select: Collection[str] | None) -> list[Rule]:
    for code in select or ():
        if code not in RULES:
            raise LintError(unknown("rule", code, RULES))
    return [rule for code, rule in RULES.items() if select is None or code in select]


def _lint_file(file: Path, rules: list[Rule]) -> list[Finding]:
    try:
        return list(_findings(read(file), str(file), rules))
    except Unreadable as why:
        return [_unreadable(str(file), why)]
    except (RecursionError, MemoryError) as error:
        return [_unreadable(str(file), Unreadable(f"is nested too deeply: {error}"))]


def _unreadable(path: str, why: Unreadable) -> Finding:
    return Finding(path, why.line, 1, why.line, 1, UNREADABLE, str(why))


def _findings(source: Source, path: str, rules: list[Rule]) -> Iterator[Finding]:
    for rule in rules:
        for node in rule.nodes(source):
            if not _silenced(source, node, rule.code):
                yield Finding(path, *_region(source, node), rule.code, rule.message, rule.fix)


def _silenced(source: Source, node: ast.AST, code: str) -> bool:
    comments = (source.ignored.get(line) for line in _lines(source, node))
    return any(codes is not None and (not codes or code in codes) for codes in comments)


def _lines(source: Source, node: ast.AST) -> range:
    """The lines on which a comment speaks of a node: its statement's, or a header's own."""
    first = last = node
    while not isinstance(first, ast.stmt) and first in source.parents:
        first = source.parents[first]
    if isinstance(first, COMPOUND):
        first = node
        last = node.body[0] if isinstance(node, COMPOUND) and hasattr(node, "body") else node
    else:
        last = first
    start, end = getattr(first, "lineno", 1), getattr(last, "end_lineno", None) or 1
    if last is not first:
        end = max(start, getattr(last, "lineno", 1) - 1)
    return range(start, end + 1)


def _region(source: Source, node: ast.AST) -> tuple[int, int, int, int]:
    line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
    end_line = getattr(node, "end_lineno", None) or line
    end_column = getattr(node, "end_col_offset", None) or column
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        end_line, end_column = line, column + len(f"def {node.name}")
    return (
        line,
        _characters(source, line, column),
        end_line,
        _characters(source, end_line, end_column),
    )


def _characters(source: Source, line: int, offset: int) -> int:
    """A column in characters from 1; the tree counts bytes of UTF-8 from 0."""
    text = source.lines[line - 1] if line <= len(source.lines) else ""
    return len(text.encode()[:offset].decode(errors="replace")) + 1
