"""Plug-ins: rules, networks and data sets that other installed packages offer by name.

A package offers them as entry points: classes in the groups ``faudit.rules`` and
``faudit.networks``, functions from a folder to a ``Dataset`` in ``faudit.data``. They are imported
when their name is asked for and not before, and a recipe can name only what somebody installed.
faudit's own names come first, so none of them can be taken.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, cast

from faudit.errors import FauditError, unknown

RULES, NETWORKS, DATA = "faudit.rules", "faudit.networks", "faudit.data"

T = TypeVar("T")


@dataclass(frozen=True)
class Plugin:
    """One thing that an installed package offers."""

    group: str
    name: str
    package: str
    version: str
    entry: EntryPoint
    rivals: tuple[str, ...] = ()

    def load(self) -> Any:
        """The thing itself; its package is imported for that."""
        try:
            with redirect_stdout(sys.stderr):  # which may be read by a program
                return self.entry.load()
        except (Exception, SystemExit) as error:
            raise FauditError(
                f"{self.name!r} of {self.package} {self.version} cannot be loaded from"
                f" {self.entry.value}: {type(error).__name__}: {error}"
            ) from error

    def sources(self) -> dict[str, Path]:
        """The Python files of the package that brings it, found without importing it."""
        try:
            spec = find_spec(self.entry.module.partition(".")[0])
        except ValueError:  # __main__ has none
            return {}
        if spec is None:
            return {}
        roots = [Path(folder) for folder in spec.submodule_search_locations or ()]
        if not roots:
            path = Path(spec.origin or "")
            return {path.name: path} if path.is_file() else {}
        found = sorted((path, root) for root in roots for path in root.rglob("*.py"))
        return {path.relative_to(root).as_posix(): path for path, root in found}


@cache
def offered(group: str) -> Mapping[str, Plugin]:
    """What the installed packages offer, by name; ``rivals`` are others that offer the same name.

    >>> offered("faudit.rules").get("dfa") is None
    True
    """
    found: dict[str, Plugin] = {}
    for entry in sorted(entry_points(group=group), key=_package):
        version = entry.dist.version if entry.dist else ""
        plugin = Plugin(group, entry.name, _package(entry), version, entry)
        first = found.setdefault(entry.name, plugin)
        if first is not plugin:
            found[entry.name] = replace(first, rivals=(*first.rivals, plugin.package))
    return found


def find(
    group: str, kind: str, name: str, own: Mapping[str, T], error: type[FauditError]
) -> T | Plugin:
    """faudit's own thing of that name, or else the plug-in that offers it.

    >>> find("faudit.rules", "rule", "dfa", {"dfa": 1}, FauditError)
    1
    """
    if name in own:
        return own[name]
    offers = offered(group)
    if name not in offers:
        raise error(unknown(kind, name, dict.fromkeys([*own, *offers])))
    if rivals := offers[name].rivals:
        packages = " and ".join([offers[name].package, *rivals])
        raise error(f"{kind} {name!r} is offered by {packages}; uninstall all but one")
    return offers[name]


def find_class(
    group: str, kind: str, name: str, own: Mapping[str, T], base: type, error: type[FauditError]
) -> T:
    """faudit's own class of that name, or else the one that a package offers, of kind ``base``."""
    found = find(group, kind, name, own, error)
    if not isinstance(found, Plugin):
        return found
    made = found.load()
    if not (isinstance(made, type) and issubclass(made, base)):
        raise error(
            f"{found.entry.value}, offered as {kind} {name!r}, is no class that inherits from"
            f" {base.__name__}"
        )
    return cast(T, made)


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else entry.module
