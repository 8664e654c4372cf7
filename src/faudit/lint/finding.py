"""Finding: one place in one file, and every form it is shown in."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from faudit import __version__
from faudit.errors import FauditError, unknown
from faudit.lint.rules import RULES, UNREADABLE
from faudit.measures.evidence import printable

Format = Literal["text", "json", "sarif"]
FORMATS: tuple[Format, ...] = ("text", "json", "sarif")
SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
PAGE = "docs/pitfalls.md"


@dataclass(frozen=True, order=True)
class Finding:
    """A pitfall that a file seems to fall into; lines and columns count from 1.

    >>> print(Finding("a.py", 3, 5, 3, 15, "FA001", "norm(-1) is ...", "write norm(dim=-1)"))
    a.py:3:5: FA001 norm(-1) is ...; write norm(dim=-1)
    """

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    code: str
    message: str
    fix: str = ""

    @property
    def pitfall(self) -> str:
        """The experiment that shows what the mistake does: a code of ``faudit.pitfalls``."""
        return RULES[self.code].pitfall if self.code in RULES else ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "pitfall": self.pitfall}

    def __str__(self) -> str:
        fix = f"; {self.fix}" if self.fix else ""
        place = f"{self.path}:{self.line}:{self.column}"
        return printable(f"{place}: {self.code} {self.message}{fix}")


def exit_code(findings: Sequence[Finding]) -> int:
    """For a shell: 0 without findings, 1 with some; wrong use is raised before and ends with 2.

    >>> exit_code([])
    0
    """
    return 1 if findings else 0


def render(findings: Sequence[Finding], form: str = "text") -> str:
    """Findings as text, JSON or SARIF 2.1.0.

    >>> render([])
    'no findings'
    """
    if form == "text":
        return _text(findings)
    if form == "json":
        return json.dumps([finding.to_dict() for finding in findings], indent=1)
    if form == "sarif":
        return json.dumps(sarif(findings), indent=1)
    raise FauditError(unknown("format", form, FORMATS))


def _text(findings: Sequence[Finding]) -> str:
    if not findings:
        return "no findings"
    count, files = len(findings), len({finding.path for finding in findings})
    last = f"{count} finding{'s' * (count != 1)} in {files} file{'s' * (files != 1)}"
    return "\n".join([*map(str, findings), last])


def sarif(findings: Sequence[Finding]) -> dict[str, Any]:
    """Findings in the form that code hosts and editors read (OASIS, SARIF 2.1.0).

    >>> sarif([])["version"]
    '2.1.0'
    """
    driver = {
        "name": "faudit",
        "version": __version__,
        "semanticVersion": __version__,
        "rules": [{"id": UNREADABLE, **_texts("unreadable", "the file cannot be read")}]
        + [{"id": r.code, **_texts(r.name, f"{r.message}; {r.fix}")} for r in RULES.values()],
    }
    order = [UNREADABLE, *RULES]
    return {
        "$schema": SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "columnKind": "unicodeCodePoints",
                "results": [_result(finding, order.index(finding.code)) for finding in findings],
            }
        ],
    }


def _texts(name: str, text: str) -> dict[str, Any]:
    return {"name": name, "shortDescription": {"text": text}, "help": {"text": f"{text} ({PAGE})"}}


def _result(finding: Finding, index: int) -> dict[str, Any]:
    region = {
        "startLine": finding.line,
        "startColumn": finding.column,
        "endLine": finding.end_line,
        "endColumn": finding.end_column,
    }
    fix = f"; {finding.fix}" if finding.fix else ""
    place = {"artifactLocation": {"uri": uri(finding.path)}, "region": region}
    return {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": "error" if finding.code == UNREADABLE else "warning",
        "message": {"text": f"{finding.message}{fix}"},
        "locations": [{"physicalLocation": place}],
    }


def uri(path: str) -> str:
    """A path as SARIF wants it: relative to the working folder where it is inside, else absolute.

    >>> uri("my files/a.py")
    'my%20files/a.py'
    """
    absolute = Path(os.path.abspath(path))
    here = Path.cwd()
    if absolute.is_relative_to(here):
        return quote(os.fsencode(absolute.relative_to(here).as_posix()))
    return "file://" + quote(os.fsencode(absolute.as_posix()))
