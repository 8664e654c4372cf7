"""Bundle: one run on disk, from which its verdict can be reproduced on another machine.

A folder with ``recipe.json``, ``weights.safetensors``, ``rule.safetensors``, ``history.jsonl``,
``evidence.json``, ``outcome.json`` and, written last, ``manifest.json`` with the SHA-256 of each. A
run that failed lacks the parts it never came to; one that crashed has ``log.txt``, the end of what
it printed. Everything but manifest and log is the same to the last bit however often the run was
interrupted.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from faudit import atomic
from faudit.errors import BundleError, FauditError
from faudit.measures.evidence import Evidence, Record
from faudit.provenance import code_of, git_commit, machine, versions
from faudit.recipe import Recipe

if TYPE_CHECKING:
    from torch import Tensor

    from faudit.networks.view import Network
    from faudit.rules.base import CreditRule

MANIFEST = "manifest.json"
ALWAYS = ("recipe.json", "history.jsonl", "outcome.json")
WHEN_DONE = ("weights.safetensors", "rule.safetensors", "evidence.json")
BASELINE = "baseline.json"
LOG = "log.txt"
PARTS = (*ALWAYS, *WHEN_DONE, BASELINE, LOG)

Reason = Literal["", "non-finite", "crash", "oom", "storage", "error"]
FINAL: tuple[Reason, ...] = ("", "non-finite")
"""Endings that the recipe brings about; the others are the machine's, and worth another try."""


class Outcome(Record):
    """How a run ended. Nothing in it depends on when or where it ran, or how often it was stopped.

    ``correct`` holds one bit per test example in the data set's order, packed and in base64: what
    the paired comparison with a baseline needs, in 1.7 kB per 10,000 examples.

    >>> str(Outcome(digest="0" * 20, status="failed", reason="non-finite", layer="h_3", epoch=7))
    'FAILED(non-finite, h_3, epoch 7)'
    """

    digest: str
    status: Literal["done", "failed"]
    reason: Reason = ""
    message: str = ""
    layer: str | None = None
    epoch: int = 0
    accuracy: float | None = None
    loss: float | None = None
    tests: int = 0
    correct: str = ""
    classes: int = 0
    shape: tuple[int, ...] = ()
    data: str = ""

    @property
    def done(self) -> bool:
        """Whether training came to its end."""
        return self.status == "done"

    @property
    def final(self) -> bool:
        """Whether running the recipe again would end the same way."""
        return self.reason in FINAL

    def correct_examples(self) -> NDArray[np.bool_]:
        """True where the network was right, one per test example.

        >>> packed = pack_correct([True, False, True])
        >>> outcome = Outcome(digest="0" * 20, status="done", tests=3, correct=packed)
        >>> outcome.correct_examples().tolist()
        [True, False, True]
        """
        packed = np.frombuffer(base64.b64decode(self.correct), np.uint8)
        if len(packed) != (self.tests + 7) // 8:
            raise BundleError(f"{len(packed)} bytes of correctness do not fit {self.tests} tests")
        return np.unpackbits(packed, count=self.tests).astype(np.bool_)

    def __str__(self) -> str:
        if self.done:
            shown = "" if self.accuracy is None else f"accuracy {self.accuracy:.4f}, "
            return f"done({shown}epoch {self.epoch})"
        place = [self.layer] if self.layer else []
        return f"FAILED({', '.join([self.reason, *place, f'epoch {self.epoch}'])})"


def pack_correct(correct: Iterable[bool]) -> str:
    """One bit per example, in base64.

    >>> pack_correct([True] * 8)
    '/w=='
    """
    bits = np.fromiter(correct, dtype=np.bool_)
    return base64.b64encode(np.packbits(bits).tobytes()).decode()


class Manifest(Record):
    """What a bundle consists of and where it comes from; ``seal`` is the manifest's own SHA-256."""

    format: Literal[1] = 1
    digest: str
    files: dict[str, str]
    versions: dict[str, str] = Field(default_factory=dict)
    code: str = ""
    commit: str | None = None
    data: str = ""
    device: str = ""
    machine: str = ""
    threads: int = 1
    timing: dict[str, float] = Field(default_factory=dict)
    seal: str = ""

    def sealed(self) -> Self:
        """The same manifest with the seal that fits it."""
        return self.replace(seal=_sha256(self.replace(seal="").to_json().encode()))


@dataclass(frozen=True)
class Parts:
    """What a run has to show when it ends; a run that failed may lack all but the first three."""

    recipe: Recipe
    outcome: Outcome
    history: Sequence[Mapping[str, Any]] = ()
    evidence: Evidence | None = None
    weights: Mapping[str, Tensor] | None = None
    rule: Mapping[str, Tensor] | None = None
    log: str = ""

    def files(self) -> dict[str, bytes]:
        """The parts as the bytes of their files."""
        files = {
            "recipe.json": self.recipe.to_json().encode(),
            "history.jsonl": "".join(f"{line(r)}\n" for r in self.history).encode(),
            "outcome.json": self.outcome.to_json().encode(),
        }
        if self.log:
            files[LOG] = self.log.encode()
        if self.evidence is not None:
            files["evidence.json"] = self.evidence.to_json(indent=1).encode()
        for name, tensors in (("weights", self.weights), ("rule", self.rule)):
            if tensors is not None:
                from faudit.tensors import pack

                files[f"{name}.safetensors"] = pack(tensors)
        return files


def write(
    folder: str | os.PathLike[str],
    parts: Parts,
    timing: Mapping[str, float] | None = None,
    *,
    route: str = "torch",
) -> Manifest:
    """Write a bundle; the manifest comes last, so a folder without one is no bundle yet.

    ``route`` names the library that multiplied the matrices of training.

    >>> import tempfile
    >>> run = Recipe()
    >>> outcome = Outcome(digest=run.digest, status="failed", reason="crash", message="signal 9")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     manifest = write(folder, Parts(run, outcome))
    ...     str(Bundle.load(folder).outcome)
    'FAILED(crash, epoch 0)'
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = parts.files()
    for name, raw in files.items():
        atomic.write_through(folder / name, raw)
    manifest = Manifest(
        digest=parts.recipe.digest,
        files={name: _sha256(raw) for name, raw in files.items()},
        versions={**versions(parts.recipe), "matmul": route},
        code=code_of(parts.recipe),
        commit=git_commit(),
        data=parts.outcome.data,
        device=parts.recipe.device,
        machine=machine(parts.recipe.device),
        threads=parts.recipe.threads,
        timing=dict(timing or {}),
    ).sealed()
    atomic.write(folder / MANIFEST, manifest.to_json(indent=1))
    return manifest


@dataclass(frozen=True)
class Bundle:
    """One run as it was published; every part has been checked against the manifest.

    >>> Bundle.load("no-such-run")
    Traceback (most recent call last):
    faudit.errors.BundleError: no-such-run is not a bundle: manifest.json is missing...
    """

    folder: Path
    manifest: Manifest
    recipe: Recipe
    outcome: Outcome
    history: tuple[dict[str, Any], ...]
    evidence: Evidence | None
    baseline: Outcome | None = None

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, tensors: bool = True) -> Self:
        """Read and verify a bundle; a part that is missing, altered or foreign is named.

        ``tensors=False`` leaves the two large files to be verified when they are asked for.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        _check_complete(folder, manifest)
        if tensors:
            for name in manifest.files:
                _verified(folder, manifest, name)
        read = _Reader(folder, manifest)
        recipe = read("recipe.json", lambda raw: Recipe.from_json(raw.decode()))
        outcome = read("outcome.json", Outcome.from_json)
        _check_same_run(folder, manifest, recipe, outcome)
        return cls(
            folder,
            manifest,
            recipe,
            outcome,
            tuple(read("history.jsonl", _lines) or ()),
            read("evidence.json", Evidence.from_json),
            read(BASELINE, Outcome.from_json),
        )

    def weights(self) -> dict[str, Tensor]:
        """The trained network's state, verified."""
        return self._tensors("weights.safetensors")

    def rule_state(self) -> dict[str, Tensor]:
        """The rule's state, without which no credit can be measured again; verified."""
        return self._tensors("rule.safetensors")

    def _tensors(self, name: str) -> dict[str, Tensor]:
        from faudit.tensors import unpack

        if name not in self.manifest.files:
            raise BundleError(f"{self.folder} has no {name}: the run {self.outcome}")
        return unpack(_verified(self.folder, self.manifest, name), self.folder / name)

    def network(self) -> Network:
        """The trained network, rebuilt from recipe and weights."""
        import torch

        from faudit.networks.view import Network
        from faudit.networks.zoo import make_network

        named, outcome = self.recipe.network, self.outcome
        module = make_network(
            named.name, outcome.shape, outcome.classes, seed=0, **named.options
        ).to(getattr(torch, self.recipe.dtype))
        module.load_state_dict(self.weights())
        return Network.of(module)

    def rule(self, network: Network) -> CreditRule:
        """The rule with the state it was trained with, for the network it was trained on."""
        import torch

        from faudit.rules import make_rule

        dtype = getattr(torch, self.recipe.dtype)
        layout = network.layout(torch.zeros(2, *self.outcome.shape, dtype=dtype))
        options: dict[str, Any] = dict(self.recipe.rule.options)
        rule = make_rule(self.recipe.rule.name, layout, **options).to(dtype)
        rule.load_state_dict(self.rule_state())
        return rule

    def history_at(self, batch: int = 128) -> list[dict[str, Any]]:
        """The history with ||g_l|| as a mean loss over ``batch`` samples shows it."""
        return [_reduced(record, batch) for record in self.history]

    def with_baseline(self, baseline: Outcome) -> Bundle:
        """Put the baseline's outcome into the folder, so that this bundle alone gives D3."""
        _check_baseline(self, baseline)
        if self.baseline == baseline:
            return self
        raw = baseline.to_json().encode()
        others = {name: sha for name, sha in self.manifest.files.items() if name != BASELINE}
        if self.baseline is not None:
            # Whoever is killed between two files must not leave one that the manifest denies.
            self._relist(others)
        atomic.write(self.folder / BASELINE, raw)
        manifest = self._relist({**others, BASELINE: _sha256(raw)})
        return replace(self, manifest=manifest, baseline=baseline)

    def _relist(self, files: dict[str, str]) -> Manifest:
        """Give the bundle a manifest of these files."""
        manifest = self.manifest.replace(files=files).sealed()
        atomic.write(self.folder / MANIFEST, manifest.to_json(indent=1))
        return manifest


def read_manifest(folder: Path) -> Manifest:
    """A bundle's manifest, if it is there and says what its own seal says."""
    raw = _read(folder, MANIFEST)
    try:
        manifest = Manifest.from_json(raw)
    except FauditError as error:
        raise BundleError(f"{folder / MANIFEST} is damaged: {error}") from error
    if manifest.sealed().seal != manifest.seal:
        raise BundleError(f"{folder / MANIFEST} was altered after it was written")
    return manifest


def line(record: Mapping[str, Any]) -> str:
    """A history record as strict JSON on one line; NaN and infinities become strings.

    >>> line({"epoch": 1, "growth": [1.5, nan]})
    '{"epoch": 1, "growth": [1.5, "NaN"]}'
    """
    return json.dumps(_strict(record), allow_nan=False)


def unline(text: str) -> dict[str, Any]:
    """What ``line`` wrote.

    >>> unline('{"growth": [1.5, "NaN"]}')
    {'growth': [1.5, nan]}
    """
    found = _loose(json.loads(text))
    if not isinstance(found, dict):
        raise BundleError(f"a history record is a mapping, not {type(found).__name__}")
    return found


_WORDS = {"NaN": nan, "Infinity": inf, "-Infinity": -inf}


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    return [_strict(item) for item in value] if isinstance(value, list | tuple) else value


def _loose(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _loose(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_loose(item) for item in value]
    return _WORDS.get(value, value) if isinstance(value, str) else value


def _lines(raw: bytes) -> tuple[dict[str, Any], ...]:
    return tuple(unline(text) for text in raw.decode().splitlines())


def _reduced(record: dict[str, Any], batch: int) -> dict[str, Any]:
    if "reference_norm" not in record:
        return record
    return {**record, "reference_norm": [norm / batch for norm in record["reference_norm"]]}


@dataclass(frozen=True)
class _Reader:
    """Reads parts by name; what the manifest does not list is not there."""

    folder: Path
    manifest: Manifest

    def __call__(self, name: str, parse: Any) -> Any:
        if name not in self.manifest.files:
            return None
        raw = _verified(self.folder, self.manifest, name)
        try:
            return parse(raw)
        except (FauditError, ValueError) as error:
            raise BundleError(f"{self.folder / name} cannot be read: {error}") from error


def _verified(folder: Path, manifest: Manifest, name: str) -> bytes:
    raw = _read(folder, name)
    if _sha256(raw) != manifest.files[name]:
        raise BundleError(
            f"{folder / name} was altered or cut short: its SHA-256 is not the manifest's."
            " Restore the file, or delete the folder and train the run again"
        )
    return raw


def _no_manifest(folder: Path) -> str:
    """Why a folder has no manifest, and what to name instead."""
    if (folder / "runs").is_dir():
        return f"it is a store; name one of its runs, {folder / 'runs' / 'DIGEST'}"
    if not folder.exists():
        return f"{MANIFEST} is missing, and so is the folder"
    return f"{MANIFEST} is missing, so the run never finished"


def _read(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except FileNotFoundError as error:
        if name == MANIFEST:
            raise BundleError(f"{folder} is not a bundle: {_no_manifest(folder)}") from error
        raise BundleError(f"{folder / name} is missing, but the manifest lists it") from error
    except OSError as error:
        raise BundleError(f"cannot read {folder / name}: {error.strerror}") from error


def _check_complete(folder: Path, manifest: Manifest) -> None:
    strange = sorted(set(manifest.files) - set(PARTS))
    if strange:
        # The manifest's names become paths, so only names that are known may be followed.
        raise BundleError(f"{folder / MANIFEST} lists {strange[0]!r}, which is no part of a bundle")
    for name in ALWAYS:
        if name not in manifest.files:
            raise BundleError(f"{folder / MANIFEST} lists no {name}; every bundle has one")


def _check_same_run(folder: Path, manifest: Manifest, recipe: Recipe, outcome: Outcome) -> None:
    for name, digest in (("recipe.json", recipe.digest), ("outcome.json", outcome.digest)):
        if digest != manifest.digest:
            raise BundleError(
                f"{folder / name} belongs to run {digest}, the bundle to {manifest.digest}"
            )
    for name in WHEN_DONE if outcome.done else ():
        if name not in manifest.files:
            raise BundleError(f"{folder / MANIFEST} lists no {name}, but the run is done")


def _check_baseline(bundle: Bundle, baseline: Outcome) -> None:
    if baseline.data != bundle.outcome.data:
        raise BundleError(
            f"the baseline {baseline.digest} was tested on other data than {bundle.outcome.digest}"
        )


def _sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
