"""Checkpoints: a training state as one verified file, and the newest one that is still whole.

A file is named after its epoch and its own SHA-256, so a file that was cut short or altered no
longer fits its name. Nothing in it can be run: tensors, and JSON for the rest.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from faudit import atomic
from faudit.errors import BundleError
from faudit.tensors import notes, pack, unpack

KEPT = 2

_NAME = re.compile(r"epoch-(\d{6})-([0-9a-f]{64})\.safetensors")


def save(folder: Path, epoch: int, state: dict[str, Any]) -> Path:
    """Write a state as the folder's newest checkpoint and keep one older; returns its path.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as name:
    ...     path = save(Path(name), 3, {"weights": {"w": torch.ones(2)}, "steps": {0: 1.5}})
    ...     newest(Path(name))
    (3, {'weights': {'w': tensor([1., 1.])}, 'steps': {0: 1.5}})
    """
    raw = to_bytes(state)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"epoch-{epoch:06d}-{hashlib.sha256(raw).hexdigest()}.safetensors"
    atomic.write(path, raw)
    for old in checkpoints(folder)[KEPT:]:
        with suppress(OSError):
            old.unlink()
    return path


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first; the epoch decides, never a clock."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted((p for p in found if _NAME.fullmatch(p.name)), reverse=True)


def newest(
    folder: Path, warn: Callable[[str], None] = lambda _: None
) -> tuple[int, dict[str, Any]] | None:
    """The newest whole checkpoint, as (epoch, state); a damaged one is named to ``warn``."""
    for path in checkpoints(folder):
        try:
            return _epoch(path), load(path)
        except (BundleError, OSError) as error:
            warn(f"checkpoint passed over: {error}")
    return None


def load(path: Path) -> dict[str, Any]:
    """The state in one checkpoint; a file that is not what was written is refused."""
    raw = path.read_bytes()
    named = _NAME.fullmatch(path.name)
    if named is None or hashlib.sha256(raw).hexdigest() != named[2]:
        raise BundleError(
            f"{path} was altered or cut short: its SHA-256 is not the one in its name"
        )
    return from_bytes(raw, path)


def to_bytes(state: dict[str, Any]) -> bytes:
    """Nested dictionaries, lists, numbers, texts and tensors as one safetensors file."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_shape(state, tensors))
    return pack(tensors, {"state": text})


def from_bytes(raw: bytes, name: object) -> dict[str, Any]:
    """What ``to_bytes`` was given."""
    tensors = unpack(raw, name)
    try:
        found = _fill(json.loads(notes(raw)["state"]), tensors)
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise BundleError(f"{name} is no checkpoint: {type(error).__name__} {error}") from error
    if not isinstance(found, dict):
        raise BundleError(f"{name} is no checkpoint: it holds {type(found).__name__}")
    return found


def _epoch(path: Path) -> int:
    named = _NAME.fullmatch(path.name)
    return int(named[1]) if named else 0


def _shape(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The value in JSON's terms; every tensor goes to ``tensors`` and leaves its name behind."""
    if isinstance(value, Tensor):
        tensors[name := f"t{len(tensors):06d}"] = value
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[key, _shape(item, tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [_shape(item, tensors) for item in value]}
    if value is None or isinstance(value, bool | int | float | str):
        return {"plain": value}
    raise TypeError(f"a checkpoint cannot hold {type(value).__name__}")


def _fill(shape: Any, tensors: dict[str, Tensor]) -> Any:
    ((kind, content),) = shape.items()
    if kind == "dict":
        return {key: _fill(item, tensors) for key, item in content}
    if kind in ("list", "tuple"):
        items = [_fill(item, tensors) for item in content]
        return items if kind == "list" else tuple(items)
    return tensors[content] if kind == "tensor" else content
