"""Where a number comes from: the code, the versions and the machine that made it."""

from __future__ import annotations

import ast
import hashlib
import platform
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from faudit import plugins
from faudit.plugins import Plugin
from faudit.recipe import Recipe

HERE = Path(__file__).parent

NUMERIC = (
    "seeds.py",
    "data",
    "routes.py",
    "training.py",
    "recorded.py",
    "networks",
    "rules",
    "measures",
    "studies/runner.py",
)
"""The sources that can change a number; the rest moves numbers about."""

NO_PLUGINS = ("python", "faudit", "torch", "numpy", "matmul")
"""What a manifest tells the version of besides plug-ins."""


@cache
def code_fingerprint(root: Path = HERE) -> str:
    """Twelve digits that change when code that can change a number does; comments never matter.

    >>> len(code_fingerprint())
    12
    """
    return _fingerprint({p.relative_to(root).as_posix(): p for p in sources(root)})


def code_of(recipe: Recipe) -> str:
    """The fingerprints of all code that can change this run: faudit's, and "+" its plug-ins'.

    >>> code_of(Recipe()) == code_fingerprint()
    True
    """
    return "+".join([code_fingerprint(), *map(_plugin_code, plugins_of(recipe))])


def plugins_of(recipe: Recipe) -> list[Plugin]:
    """The plug-ins that a recipe names: its rule, its network and its data may each be one."""
    named = {
        plugins.RULES: recipe.rule.name,
        plugins.NETWORKS: recipe.network.name,
        plugins.DATA: recipe.data.name,
    }
    found = [p for group, name in named.items() if (p := plugins.offered(group).get(name))]
    return [plugin for plugin in found if plugin.name not in _own(plugin.group)]


def absent_plugins(recipe: Recipe, made_with: Mapping[str, str]) -> list[str]:
    """The packages that a run was made with and that do not offer anything to it here.

    >>> absent_plugins(Recipe(), {**versions(), "my-credit": "1.5"})
    ['my-credit 1.5']
    """
    here = {*versions(recipe), *NO_PLUGINS}
    return [f"{name} {told}" for name, told in made_with.items() if name not in here]


def _own(group: str) -> Container[str]:
    """faudit's own names, which no plug-in can take."""
    from faudit.data.published import READERS
    from faudit.networks.zoo import NETWORKS
    from faudit.rules import RULES

    owned: dict[str, Container[str]] = {
        plugins.RULES: RULES,
        plugins.NETWORKS: NETWORKS,
        plugins.DATA: READERS,
    }
    return owned[group]


@cache
def _plugin_code(plugin: Plugin) -> str:
    return _fingerprint(plugin.sources())


def _fingerprint(files: Mapping[str, Path]) -> str:
    return _digits(part for name, path in files.items() for part in (name, *_told(path)))


def _told(path: Path) -> Iterator[str]:
    raw = path.read_bytes()
    try:
        yield from _meaning(ast.parse(raw))
    except (SyntaxError, ValueError):  # a template, or code for another Python
        yield raw.hex()


def _digits(parts: Iterable[str]) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(part.encode())
    return total.hexdigest()[:12]


def sources(root: Path) -> list[Path]:
    """The files that ``code_fingerprint`` reads."""
    found = (root / name for name in NUMERIC)
    return sorted(p for f in found for p in (f.rglob("*.py") if f.is_dir() else [f]) if p.exists())


def _meaning(node: ast.AST) -> Iterator[str]:
    """A syntax tree without positions and docstrings, the same under every Python version."""
    yield f"({type(node).__name__}"
    for name, value in ast.iter_fields(node):
        if name not in ("kind", "type_comment", "type_params", "type_ignores"):
            yield from _part(name, _without_docstring(node, name, value))
    yield ")"


def _part(name: str, value: object) -> Iterator[str]:
    if value is None or value == []:
        return
    yield f" {name}="
    for item in value if isinstance(value, list) else [value]:
        yield from _meaning(item) if isinstance(item, ast.AST) else (repr(item),)


def _without_docstring(node: ast.AST, name: str, value: object) -> object:
    if name != "body" or not isinstance(value, list) or isinstance(node, ast.Lambda):
        return value
    return [v for v in value if not _is_text(v)]


def _is_text(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def git_commit(root: Path = HERE.parents[1]) -> str | None:
    """The commit of the source checkout that is running; None for an installed package.

    Read from git's own files: asking ``git`` would run whatever its configuration names.
    """
    if not (root / "pyproject.toml").is_file():
        return None
    try:
        head = (root / ".git" / "HEAD").read_text().strip()
        reference = head.removeprefix("ref: ")
        return head if reference == head else _resolve(root / ".git", reference)
    except OSError:
        return None


def _resolve(git: Path, reference: str) -> str | None:
    loose = git / reference
    if loose.is_file():
        return loose.read_text().strip()
    packed = (git / "packed-refs").read_text().splitlines()
    return next((line.split()[0] for line in packed if line.endswith(f" {reference}")), None)


def versions(recipe: Recipe | None = None) -> dict[str, str]:
    """The versions that a number depends on; with a recipe, also those of the plug-ins it names.

    >>> sorted(versions())
    ['faudit', 'numpy', 'python', 'torch']
    """
    own = {} if recipe is None else {p.package: p.version for p in plugins_of(recipe)}
    return {**own, "python": platform.python_version(), **dict(_installed())}


@cache
def _installed() -> tuple[tuple[str, str], ...]:
    return tuple((name, _version(name)) for name in ("faudit", "torch", "numpy"))


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"


def machine(device: str) -> str:
    """The processor, or the accelerator, that computed.

    >>> bool(machine("cpu"))
    True
    """
    if device.startswith("cuda"):
        return _accelerator(device)
    return _processor() or platform.processor() or platform.machine()


def _accelerator(device: str) -> str:
    """The name of a GPU that this process uses; to ask for another would take memory there."""
    import torch

    return str(torch.cuda.get_device_name(device)) if torch.cuda.is_initialized() else device


def _processor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, None)
