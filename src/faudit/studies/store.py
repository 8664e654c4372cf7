"""Store: a plain folder of runs, written by any number of processes on any number of machines.

    runs/<digest>/      published bundles; each appears whole, by one rename
    wanted/<digest>.json   recipes somebody asked for and nobody has published yet
    work/<digest>/      runs under way: attempts, checkpoints, progress, log
    claims/<digest>     leases: who is at it; a lapsed lease costs a double run, never a wrong one
    superseded/         what a newer run of the same recipe has replaced

A run's name is its recipe's digest. There is no index to go stale and nothing to repair: every
file is written whole, and every answer is read off the folders.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from shutil import rmtree
from typing import Any

from filelock import SoftFileLease, Timeout

from faudit import atomic
from faudit.bundle import LOG, Bundle, Outcome, read_manifest, unline
from faudit.errors import BundleError, FauditError
from faudit.recipe import Recipe

MARK = "faudit-store.json"
FORMAT = 1
FOLDERS = ("runs", "wanted", "work", "claims", "superseded")
LEASE_SECONDS = 30.0
LOG_TAIL_BYTES = 20_000

_DIGEST = re.compile(r"[0-9a-f]{20}")


class StoreError(FauditError):
    """A store that cannot be read or written, or a name that is not a run's."""


@dataclass(frozen=True)
class Entry:
    """One published run as a listing shows it; ``damage`` says what is wrong with it, if anything.

    Only ``outcome.json`` has been read, and nothing verified: ``bundle()`` does that. ``code``
    (which code made the run) is known after ``Store.standing``.
    """

    digest: str
    folder: Path
    outcome: Outcome | None
    damage: str = ""
    code: str = ""

    @cached_property
    def recipe(self) -> Recipe:
        """The run's recipe, read when asked for."""
        return Recipe.load(self.folder / "recipe.json")

    def bundle(self, *, tensors: bool = True) -> Bundle:
        """The run, verified."""
        return Bundle.load(self.folder, tensors=tensors)

    def __str__(self) -> str:
        return f"{self.digest} {self.outcome or 'DAMAGED: ' + self.damage}"


class Claim:
    """The right to work on one run, renewed in the background until it is released."""

    def __init__(self, digest: str, lease: SoftFileLease) -> None:
        self.digest = digest
        self._lease = lease

    def release(self) -> None:
        """Let others have the run."""
        with suppress(OSError):
            self._lease.release()


class Store:
    """The runs in one folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = Store.open(folder)
    ...     store.want([Recipe(seed=1), Recipe(seed=2)])
    ...     len(list(store.wanted())), len(list(store))
    (2, 0)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """See an existing store, for reading; ``Store.open`` makes one where there is none."""
        self.path = Path(path)
        if not self.path.is_dir():
            why = "which is a file" if self.path.exists() else "make one with faudit train"
            raise StoreError(f"there is no store at {self.path}, {why}")
        self._check_format()
        self._leases: dict[str, SoftFileLease] = {}
        self._unsigned: dict[str, tuple[tuple[int, int] | None, float]] = {}

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Store:
        """The store at ``path``, made if it is not there; it must be writable."""
        path = Path(path)
        try:
            for name in FOLDERS:
                (path / name).mkdir(parents=True, exist_ok=True)
            if not (path / MARK).exists():
                mark = {"format": FORMAT, "id": secrets.token_hex(8)}
                atomic.write(path / MARK, json.dumps(mark))
            if not os.access(path / "runs", os.W_OK):
                raise PermissionError(13, "Permission denied")
        except OSError as error:
            raise StoreError(f"cannot write to the store {path}: {error.strerror}") from error
        return cls(path)

    def _check_format(self) -> None:
        mark = self.path / MARK
        found = _read_json(mark) if mark.exists() else {"format": FORMAT}
        if found.get("format") != FORMAT:
            raise StoreError(
                f"{mark} says format {found.get('format')!r}, and this faudit reads {FORMAT};"
                " use the faudit that made the store, or another folder"
            )

    @property
    def id(self) -> str:
        """What tells this store from another at the same path on another machine."""
        return str(_read_json(self.path / MARK).get("id", ""))

    # -- reading ----------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Entry]:
        """Every published run, in the order of their digests; safe while others write."""
        for digest in self.digests():
            yield self.entry(digest)

    def digests(self) -> list[str]:
        """The names of the published runs."""
        with suppress(FileNotFoundError):
            return sorted(name for name in os.listdir(self.path / "runs") if _is_digest(name))
        return []

    def __contains__(self, run: Recipe | str) -> bool:
        return self.folder(run).is_dir()

    def __getitem__(self, run: Recipe | str) -> Bundle:
        """A published run, verified."""
        if run not in self:
            raise StoreError(f"the store {self.path} has no run {_digest(run)}")
        return Bundle.load(self.folder(run))

    def folder(self, run: Recipe | str) -> Path:
        """Where a run is, or would be, published."""
        return self.path / "runs" / _digest(run)

    def entry(self, digest: str) -> Entry:
        """One published run as listings show it."""
        folder = self.folder(digest)
        try:
            outcome = Outcome.from_json((folder / "outcome.json").read_bytes())
            return Entry(digest, folder, outcome)
        except FauditError as error:
            return Entry(digest, folder, None, f"outcome.json cannot be read: {error}")
        except OSError as error:
            return Entry(digest, folder, None, f"outcome.json: {error.strerror}")

    def standing(self, recipe: Recipe) -> Entry | None:
        """The published run of a recipe, after a quick check that its small parts are whole."""
        if recipe not in self:
            return None
        entry = self.entry(recipe.digest)
        try:
            found = Bundle.load(entry.folder, tensors=False)
            _check_tensor_files(found)
        except FauditError as error:
            return replace(entry, damage=str(error))
        return replace(entry, code=found.manifest.code)

    def codes(self) -> dict[str, int]:
        """How many runs each version of the code made; more than one should not share a table."""
        found: dict[str, int] = {}
        for digest in self.digests():
            with suppress(BundleError):
                code = read_manifest(self.folder(digest)).code
                found[code] = found.get(code, 0) + 1
        return found

    # -- asking -----------------------------------------------------------------------------------

    def want(self, recipes: Iterable[Recipe]) -> None:
        """Ask for runs; whoever works on this store will find them."""
        for recipe in recipes:
            path, text = self._wanted(recipe.digest), recipe.to_json()
            if recipe not in self and _read_text(path) != text:
                self._ask(recipe, path, text)

    def _ask(self, recipe: Recipe, path: Path, text: str) -> None:
        try:
            atomic.write(path, text, durable=False)
        except FileNotFoundError:
            if recipe not in self:  # else published meanwhile, and ``collect`` came past
                raise

    def wanted(self) -> list[str]:
        """The runs that were asked for and are not published."""
        names = sorted(p.stem for p in (self.path / "wanted").glob("*.json"))
        return [name for name in names if _is_digest(name) and name not in self]

    def recipe(self, digest: str) -> Recipe:
        """The recipe that was asked for under this digest; one under a false name is refused."""
        recipe = Recipe.load(self._wanted(digest))
        if recipe.digest != digest:
            raise StoreError(
                f"{self._wanted(digest)} holds the recipe {recipe.digest}; it was altered, or made"
                " by a faudit with another recipe format. Delete it and ask again"
            )
        return recipe

    def _wanted(self, digest: str) -> Path:
        return self.path / "wanted" / f"{_digest(digest)}.json"

    # -- working ----------------------------------------------------------------------------------

    def claim(self, digest: str) -> Claim | None:
        """The right to work on a run, or None while somebody else has it.

        A holder that died on this machine is replaced at once; one that fell silent elsewhere,
        after ``LEASE_SECONDS`` on this process's own monotonic clock, counted over all calls.
        """
        lease = self._leases.get(digest) or self._lease(digest)
        try:
            self._drop_unsigned(digest)
            lease.acquire(timeout=0)
        except Timeout:
            self._leases[digest] = lease
            return None
        except OSError as error:
            raise StoreError(f"cannot claim runs in {self.path}: {error.strerror}") from error
        self._leases.pop(digest, None)
        return Claim(digest, lease)

    def _lease(self, digest: str) -> SoftFileLease:
        return SoftFileLease(
            self._marker(digest),
            lease_duration=LEASE_SECONDS,
            thread_local=False,
            is_singleton=False,
        )

    def _marker(self, digest: str) -> Path:
        return self.path / "claims" / _digest(digest)

    def _drop_unsigned(self, digest: str) -> None:
        """Remove a lease whose holder died after making the file and before signing it.

        Such a file names nobody, so filelock would respect it for ever.
        """
        unsigned = _identity_if_empty(self._marker(digest))
        identity, since = self._unsigned.get(digest, (None, 0.0))
        if unsigned is None or unsigned != identity:
            self._unsigned[digest] = (unsigned, time.monotonic())
        elif time.monotonic() - since >= LEASE_SECONDS:
            _remove_unsigned(self._marker(digest))

    def holder(self, digest: str) -> str:
        """Who is at a run, for people to read; empty if nobody is."""
        owner = self._lease(digest).owner
        return f"process {owner.pid} on {owner.hostname}" if owner else ""

    def claimed(self) -> list[str]:
        """The runs that somebody is at."""
        with suppress(FileNotFoundError):
            return sorted(name for name in os.listdir(self.path / "claims") if _is_digest(name))
        return []

    def room(self, digest: str) -> Path:
        """Where a run under way keeps attempts, checkpoints, progress and log."""
        path = self.path / "work" / _digest(digest)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def attempt(self, digest: str) -> Path:
        """A new folder that one attempt at a run has to itself."""
        path = self.room(digest) / f"attempt-{secrets.token_hex(6)}"
        path.mkdir()
        return path

    def publish(self, digest: str, attempt: Path) -> bool:
        """Make a finished attempt the run, whole and at once; False if another came first."""
        target = self.folder(digest)
        if self._worth_replacing(digest):
            self.supersede(digest)
        try:
            os.rename(attempt, target)
        except OSError:
            if not target.is_dir():
                raise
            rmtree(attempt, ignore_errors=True)
            return False
        finally:
            self.tidy(digest)
        atomic.sync_folder(target.parent)
        return True

    def tidy(self, digest: str) -> None:
        """Once a run is published nothing but the run is of use; a killed process leaves more."""
        if digest in self:
            rmtree(self.path / "work" / _digest(digest), ignore_errors=True)
            with suppress(OSError):
                self._wanted(digest).unlink()

    def collect(self, digests: Iterable[str]) -> None:
        """Remove the temporary files that killed writers left in and for published runs."""
        published = [digest for digest in digests if digest in self]
        for digest in published:
            atomic.sweep(self.folder(digest))
        names = {f".{self._wanted(digest).name}" for digest in published}
        for left in (self.path / "wanted").glob(f".*{atomic.TEMPORARY}"):
            if left.name.removesuffix(atomic.TEMPORARY).rpartition(".")[0] in names:
                with suppress(OSError):
                    left.unlink()

    def _worth_replacing(self, digest: str) -> bool:
        if digest not in self:
            return False
        entry = self.entry(digest)
        return entry.outcome is None or not entry.outcome.final

    def supersede(self, digest: str) -> None:
        """Move a published run out of the way, so that it can be run again."""
        aside = self.path / "superseded" / f"{_digest(digest)}-{secrets.token_hex(4)}"
        with suppress(FileNotFoundError):
            os.rename(self.folder(digest), aside)

    def note_death(self, digest: str, reason: str) -> int:
        """Record that an attempt died; how many in a row have now died without a new checkpoint."""
        path = self.room(digest) / "deaths.jsonl"
        with suppress(OSError), open(path, "a") as file:
            file.write(json.dumps({"epoch": self.checkpointed(digest), "reason": reason}) + "\n")
        deaths = _read_lines(path)
        return sum(1 for death in deaths if death.get("epoch") == self.checkpointed(digest))

    def forgive(self, digest: str) -> None:
        """Forget earlier deaths: somebody asked for the run again."""
        with suppress(OSError):
            (self.path / "work" / _digest(digest) / "deaths.jsonl").unlink()

    def checkpointed(self, digest: str) -> int:
        """The last epoch that a run under way has saved."""
        names = (p.name for p in self.room(digest).glob("checkpoints/*/epoch-*.safetensors"))
        return max((int(name[6:12]) for name in names if name[6:12].isdigit()), default=0)

    def live_history(self, digest: str) -> list[dict[str, Any]]:
        """The history of a run under way, as far as it has come."""
        records = _read_lines(self.path / "work" / _digest(digest) / "live.jsonl")
        return list({r["epoch"]: r for r in records if "epoch" in r}.values())

    def log(self, digest: str) -> Path:
        """Where the attempts at a run write what they print."""
        return self.room(digest) / LOG

    def log_tail(self, digest: str) -> str:
        """The end of that, long enough for any traceback."""
        with suppress(OSError), open(self.log(digest), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            return file.read().decode(errors="replace")
        return ""

    def finished_attempt(self, digest: str) -> Path | None:
        """An attempt that was killed after its bundle was whole and before it was published."""
        for attempt in self.room(digest).glob("attempt-*"):
            with suppress(FauditError):
                if Bundle.load(attempt).manifest.digest == digest:
                    return attempt
        return None

    def sweep(self, digest: str) -> None:
        """Remove what dead attempts left; only the holder of the claim may."""
        for attempt in self.room(digest).glob("attempt-*"):
            rmtree(attempt, ignore_errors=True)
        for folder in self.room(digest).glob("checkpoints/*"):
            atomic.sweep(folder)


def _digest(run: Recipe | str) -> str:
    """A run's name; anything else could lead out of the store."""
    name = run.digest if isinstance(run, Recipe) else run
    if not _is_digest(name):
        raise StoreError(f"{name!r} is not the name of a run: 20 hexadecimal digits")
    return name


def _is_digest(name: str) -> bool:
    return _DIGEST.fullmatch(name) is not None


def _check_tensor_files(bundle: Bundle) -> None:
    for name in bundle.manifest.files:
        if name.endswith(".safetensors") and not _has_content(bundle.folder / name):
            raise BundleError(f"{bundle.folder / name} is missing or empty")


def _has_content(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _remove_unsigned(marker: Path) -> None:
    """Aside first: another contender may have taken and signed the lease since it was looked at."""
    aside = marker.with_name(f".{marker.name}-{secrets.token_hex(4)}")
    with suppress(FileNotFoundError):
        os.rename(marker, aside)
        if aside.stat().st_size:
            with suppress(FileExistsError):
                os.link(aside, marker)
        aside.unlink()


def _identity_if_empty(path: Path) -> tuple[int, int] | None:
    """What tells this empty file from any other; None if it is not there, or says something."""
    with suppress(FileNotFoundError):
        found = path.stat()
        return None if found.st_size else (found.st_ino, found.st_ctime_ns)
    return None


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines that can be read; the last may still be under way."""
    found = []
    with suppress(OSError):
        for text in path.read_text(errors="replace").splitlines():
            with suppress(ValueError, FauditError):
                found.append(unline(text))
    return found


def _read_text(path: Path) -> str:
    """What a file says; nothing if it is not there."""
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise StoreError(f"{path} holds {type(found).__name__}, not a mapping")
    return found
