"""Results: what a store found out, as small JSON files that are committed; no weights, no data.

    results/runs/<digest>.json    one run: recipe, outcome, evidence, thinned history, origin

A folder of results reads like a store, so ledger and report take either.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from faudit import atomic
from faudit.bundle import Bundle, Manifest, Outcome, line, unline
from faudit.errors import BundleError, FauditError
from faudit.measures.evidence import Evidence
from faudit.protocol import Thresholds
from faudit.recipe import Recipe
from faudit.studies.store import Store

FORMAT = 1
LARGEST = 20_000_000
"""The most bytes that all results together may take."""

FIELDS = ("format", "digest", "recipe", "outcome", "evidence", "history", "manifest", "seal")
ALL_UNTIL, THEN_EVERY = 10, 5
KEPT_PARTS = ("recipe.json", "outcome.json", "evidence.json")


@dataclass(frozen=True)
class Exported:
    """What an export wrote, and how large the results now are."""

    runs: int
    size: int

    def __str__(self) -> str:
        return f"{self.runs} run{'s' * (self.runs != 1)} written, {self.size / 1e6:.1f} MB in all"


def export(
    store: str | os.PathLike[str] | Store,
    folder: str | os.PathLike[str],
    recipes: Iterable[Recipe] | None = None,
) -> Exported:
    """Write the finished runs of a store, or of some recipes, as results.

    A run that is there already is written anew, to the same bytes if nothing has changed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     print(export(Store.open(Path(folder) / "store"), Path(folder) / "results"))
    0 runs written, 0.0 MB in all
    """
    store = store if isinstance(store, Store) else Store(store)
    runs = Path(folder) / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    digests = store.digests() if recipes is None else [r.digest for r in recipes if r in store]
    found = [store.entry(digest).bundle(tensors=False) for digest in digests]
    final = [bundle for bundle in found if bundle.outcome.final]
    for bundle in final:
        atomic.write(runs / f"{bundle.recipe.digest}.json", written(bundle), durable=False)
    return Exported(len(final), _checked_size(runs))


def _checked_size(runs: Path) -> int:
    size = sum(path.stat().st_size for path in runs.glob("*.json"))
    if size > LARGEST:
        raise FauditError(
            f"the results in {runs} take {size / 1e6:.1f} MB and may take {LARGEST / 1e6:.0f};"
            " export fewer recipes, or measure less often"
        )
    return size


def written(bundle: Bundle) -> str:
    """One run as the text of its file: a line per part and per record of the history.

    The history is thinned to what plots and replays need; every other number is exact.
    """
    evidence = bundle.evidence
    parts: dict[str, Any] = {
        "format": FORMAT,
        "digest": bundle.recipe.digest,
        "recipe": json.loads(bundle.recipe.to_json()),
        "outcome": bundle.outcome.to_dict(),
        "evidence": None if evidence is None else evidence.to_dict(),
        "history": [json.loads(line(record)) for record in thinned(bundle.history)],
        "manifest": bundle.manifest.to_dict(),
    }
    parts["seal"] = _seal(parts)
    return (
        "{\n" + ",\n".join(f'"{name}": {_spelled(part)}' for name, part in parts.items()) + "\n}\n"
    )


def _spelled(part: Any) -> str:
    if not isinstance(part, list):
        return json.dumps(part, allow_nan=False)
    return "[\n" + ",\n".join(json.dumps(record, allow_nan=False) for record in part) + "\n]"


def _seal(parts: Mapping[str, Any]) -> str:
    """The SHA-256 of what a file says, however it is laid out."""
    told = {name: part for name, part in parts.items() if name != "seal"}
    canonical = json.dumps(told, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def thinned(history: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The first epochs, then every fifth, the last, and any at which a check changes its mind.

    So a replay of what is left fires at the same epochs as one of the whole.

    >>> [record["epoch"] for record in thinned([{"epoch": e} for e in range(23)])]
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 20, 22]
    """
    if not history:
        return []
    measured = [record for record in history if "reference_norm" in record]
    turns = {now["epoch"] for before, now in pairwise(measured) if _sides(before) != _sides(now)}
    return [r for r in history if _regular(r["epoch"]) or r["epoch"] in turns or r is history[-1]]


def _regular(epoch: int) -> bool:
    return epoch <= ALL_UNTIL or epoch % THEN_EVERY == 0


def _sides(record: Mapping[str, Any]) -> tuple[bool | None, ...]:
    """On which side of every line that a claim is read at an epoch stands."""
    limits, last = Thresholds(), record["reference_norm"][-1]
    norms = (last / batch for batch in (128, 1024))
    collapsed = [norm < limit for norm in norms for limit in (limits.reference, limits.eps)]
    return (limits.explodes(max(record["growth"], default=None)), *collapsed)


class Results:
    """The runs in a folder of results; every file is checked before a number of it is used.

    >>> Results("no-such-folder")
    Traceback (most recent call last):
    faudit.errors.FauditError: there are no results at no-such-folder; name their folder
    (--results, in a checkout it is results), or make them with export
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise FauditError(
                f"there are no results at {self.folder}; name their folder (--results,"
                " in a checkout it is results), or make them with export"
            )

    def digests(self) -> list[str]:
        """The names of the runs."""
        return sorted(path.stem for path in (self.folder / "runs").glob("*.json"))

    def path(self, recipe: Recipe | str) -> Path:
        """Where a run's file is, or would be."""
        digest = recipe if isinstance(recipe, str) else recipe.digest
        return self.folder / "runs" / f"{digest}.json"

    def __len__(self) -> int:
        return len(self.digests())

    def __iter__(self) -> Iterator[Bundle]:
        return (load(self.path(digest)) for digest in self.digests())

    def __contains__(self, recipe: Recipe | str) -> bool:
        return self.path(recipe).is_file()

    def __getitem__(self, recipe: Recipe | str) -> Bundle:
        return load(self.path(recipe))


def load(path: str | os.PathLike[str]) -> Bundle:
    """One run from its file: a bundle without weights, with a thinned history.

    A file that was altered, is incomplete, or names another run is refused.
    """
    path = Path(path)
    parts = _parts(path)
    try:
        recipe, outcome = Recipe.of(parts["recipe"]), Outcome.from_dict(parts["outcome"])
        evidence = parts["evidence"] and Evidence.from_dict(parts["evidence"])
        manifest = Manifest.from_dict(parts["manifest"])
        history = tuple(unline(json.dumps(record)) for record in parts["history"])
    except (FauditError, TypeError, ValueError) as error:
        raise BundleError(f"{path} cannot be read: {error}") from error
    _check_names(path, parts["digest"], recipe, outcome, manifest)
    kept = {name: told for name, told in manifest.files.items() if name in KEPT_PARTS}
    return Bundle(path, manifest.replace(files=kept), recipe, outcome, history, evidence)


def _parts(path: Path) -> dict[str, Any]:
    try:
        parts = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(f"{path} cannot be read: {error}") from error
    if not isinstance(parts, dict) or tuple(parts) != FIELDS:
        raise BundleError(f"{path} is no result: it needs {', '.join(FIELDS)} and nothing else")
    if parts["format"] != FORMAT:
        raise BundleError(f"{path} has format {parts['format']!r}, and this faudit reads {FORMAT}")
    if parts["seal"] != _seal(parts):
        raise BundleError(f"{path} was altered after it was written; export the run again")
    return parts


def _check_names(
    path: Path, digest: str, recipe: Recipe, outcome: Outcome, manifest: Manifest
) -> None:
    named = {
        "the file": path.stem,
        "its digest": digest,
        "its recipe": recipe.digest,
        "its outcome": outcome.digest,
        "its manifest": manifest.digest,
    }
    if len(set(named.values())) > 1:
        told = ", ".join(f"{what} says {name}" for what, name in named.items())
        raise BundleError(f"{path} mixes runs: {told}; export the run again")
