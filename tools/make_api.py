"""Write docs/api.md from docstrings and the command line's own help: python tools/make_api.py"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import faudit
from faudit.cli import app

PAGE = Path(__file__).parent.parent / "docs" / "api.md"
HEAD = """# API reference

Generated from docstrings by `python tools/make_api.py`; the examples are run by the tests.
What is not on this page may change without notice.
"""
# Module -> names; an empty tuple means all public names that are defined there.
MODULES: dict[str, tuple[str, ...]] = {
    "faudit.baselines": (),
    "faudit.networks.zoo": ("ResMLP", "ViTMini", "SmallResNet", "StudentNet", "make_network"),
    "faudit.networks.view": ("Staged", "Residual"),
    "faudit.protocol": ("Case", "decision_table", "replay", "threshold_sensitivity"),
    "faudit.bundle": ("Bundle",),
    "faudit.studies.store": ("Store",),
    "faudit.studies.study": ("plan", "train", "work"),
    "faudit.report": ("read", "write_report", "Table", "Plate", "Value"),
    "faudit.report.figures": (),
    "faudit.report.tables": (),
    "faudit.report.card": ("make_card", "read_card"),
    "faudit.report.verification": ("verify",),
    "faudit.report.template": ("template",),
    "faudit.pitfalls": ("reproduce",),
    "faudit.lint": ("lint_paths", "lint_source", "render"),
}


def page() -> str:
    """The whole page."""
    parts = [HEAD, "## faudit\n"]
    names = sorted(set(faudit.__all__) - {"__version__"}, key=_order)
    parts += [_entry(name, getattr(faudit, name)) for name in names]
    for module, names in MODULES.items():
        parts.append(f"## {module}\n")
        parts.append(_list(module, names))
    return "\n".join([*parts, "## Command line\n", _verbs()])


def _order(name: str) -> tuple[bool, str]:
    return name[0].isupper(), name.lower()


def _entry(name: str, thing: Any) -> str:
    if not callable(thing):
        return (
            f"### `{name}`\n\n{_first(type(thing).__doc__) if name != 'RULES' else _rules(thing)}\n"
        )
    text = inspect.getdoc(thing) or ""
    prose, _, example = text.partition(">>>")
    code = f"```pycon\n>>>{_one_example(example)}```\n" if example else ""
    return f"### `{name}{_signature(thing)}`\n\n{_prose(prose)}\n{code}"


def _rules(rules: dict[str, Any]) -> str:
    return "The registry of credit rules: " + ", ".join(f"`{name}`" for name in rules) + "."


def _one_example(example: str) -> str:
    return re.split(r"\n\s*\n(?!>>>)", example)[0].rstrip() + "\n"


def _prose(text: str) -> str:
    """A docstring's words; arguments and fields become lists."""
    lines: list[str] = []
    items = False
    for line in text.splitlines():
        if re.fullmatch(r"(Args|Returns|Raises|Yields):", line.strip()):
            lines += [f"**{line.strip()[:-1]}**", ""]
            items = True
        elif items and (found := re.match(r" {4}(\S[\w, *]*): (.*)", line)):
            lines.append(f"- `{found[1]}`: {_code(found[2])}")
        elif found := re.match(r"((?:``\w+``(?:, )?)+) +(\S.*)", line):
            lines.append(f"- {_code(found[1])}: {_code(found[2])}" if "  " in line else _code(line))
        else:
            lines.append(_code(f"  {line.strip()}" if items else line).rstrip())
    return "\n".join(lines).strip() + "\n"


def _code(text: str) -> str:
    return re.sub(r"``([^`]+)``", r"`\1`", text)


def _signature(thing: Any) -> str:
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    kept = [p.replace(annotation=p.empty) for p in found.parameters.values() if p.name != "self"]
    shown = str(found.replace(parameters=kept, return_annotation=found.empty))
    return re.sub(r"<(?:class|function) ['\w.]*?(\w+)'?(?: at 0x\w+)?>", r"\1", _short(shown))


def _short(signature: str) -> str:
    # Defaults that are objects print at length; their presence is what matters here.
    return signature if len(signature) <= 120 else re.sub(r"=[A-Z]\w*\([^()]*\)", "=...", signature)


def _list(module: str, names: tuple[str, ...]) -> str:
    found = import_module(module)
    shown = names or tuple(_public(found))
    rows = [f"| `{name}` | {_first(inspect.getdoc(getattr(found, name)))} |" for name in shown]
    return "\n".join(
        [f"{_first(found.__doc__)}\n", "| name | what it is |", "|---|---|", *rows, ""]
    )


def _public(module: Any) -> Iterator[str]:
    for name, thing in vars(module).items():
        if not name.startswith("_") and getattr(thing, "__module__", "") == module.__name__:
            yield name


def _first(text: str | None) -> str:
    """A docstring's first paragraph in one line."""
    line = " ".join((text or "").strip().partition("\n\n")[0].split())
    return _code(line).replace("|", "\\|")


def _verbs() -> str:
    verbs = [name for name in app if not name.startswith("-")]
    rows = [f"| `faudit {name}` | {_first(app[name].help)} |" for name in sorted(verbs)]
    return "\n".join(["| verb | what it does |", "|---|---|", *rows, ""])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE} written")
