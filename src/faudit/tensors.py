"""Tensor files, read without running anything in them: safetensors, or PyTorch's weights_only."""

from __future__ import annotations

import json
import os
import pickle
import pickletools
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faudit.errors import BundleError

if TYPE_CHECKING:
    from torch import Tensor


def pack(tensors: Mapping[str, Tensor], notes: Mapping[str, str] | None = None) -> bytes:
    """Tensors and text notes as the bytes of a safetensors file; equal tensors give equal bytes.

    >>> import torch
    >>> list(unpack(pack({"w": torch.ones(2)}), "w.safetensors"))
    ['w']
    """
    from safetensors.torch import save

    own = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    return bytes(save(own, dict(notes) if notes else None))


def unpack(raw: bytes, name: object) -> dict[str, Tensor]:
    """The tensors in the bytes of a safetensors file; ``name`` is for the message."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return dict(load(raw))
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise BundleError(f"{name} is not a safetensors file{_what(raw)}: {error}") from error


def notes(raw: bytes) -> dict[str, str]:
    """The text notes in the bytes of a safetensors file that ``unpack`` accepted.

    >>> notes(pack({}, {"epoch": "3"}))
    {'epoch': '3'}
    """
    size = int.from_bytes(raw[:8], "little")
    return dict(json.loads(raw[8 : 8 + size]).get("__metadata__", {}))


def load_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors in a ``.safetensors`` file, or in a PyTorch file that holds nothing but tensors.

    A pickle that names anything else is refused, and what it names is in the message.

    >>> load_weights("no-such-file.pt")
    Traceback (most recent call last):
    faudit.errors.BundleError: cannot read no-such-file.pt: No such file or directory
    """
    path = Path(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror}") from error
    return _from_pickle(raw, path) if looks_pickled(raw) else unpack(raw, path)


def looks_pickled(raw: bytes) -> bool:
    """Whether bytes are a pickle or PyTorch's archive of one.

    >>> looks_pickled(pickle.dumps(1)), looks_pickled(b"{}")
    (True, False)
    """
    return raw[:1] == b"\x80" or raw[:4] == b"PK\x03\x04"


def pickled_names(raw: bytes) -> list[str]:
    """Every global that a pickle (or PyTorch's archive of one) would import; nothing is run.

    >>> pickled_names(pickle.dumps(len))
    ['builtins.len']
    """
    try:
        return sorted({name for stream in _streams(raw) for name in _globals(BytesIO(stream))})
    except zipfile.BadZipFile:
        return []


def _what(raw: bytes) -> str:
    if not looks_pickled(raw):
        return ""
    named = ", ".join(pickled_names(raw)) or "nothing readable"
    return f" but a pickle, which is refused (it names {named})"


def _from_pickle(raw: bytes, path: Path) -> dict[str, Tensor]:
    import torch

    try:
        found = torch.load(BytesIO(raw), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        named = ", ".join(pickled_names(raw)) or "nothing readable"
        raise BundleError(
            f"{path} is refused: it is damaged or needs more than tensors (it names {named}); save"
            " model.state_dict() with safetensors.torch.save_file"
        ) from error
    return _only_tensors(found, path)


def _only_tensors(found: Any, path: Path) -> dict[str, Tensor]:
    import torch

    if isinstance(found, Mapping) and all(isinstance(v, torch.Tensor) for v in found.values()):
        return {str(name): value for name, value in found.items()}
    raise BundleError(
        f"{path} holds {type(found).__name__} with more than tensors; save model.state_dict()"
    )


def _streams(raw: bytes) -> list[bytes]:
    if raw[:2] != b"PK":
        return [raw]
    with zipfile.ZipFile(BytesIO(raw)) as archive:
        return [archive.read(name) for name in archive.namelist() if name.endswith(".pkl")]


def _globals(stream: BytesIO) -> list[str]:
    """The globals named in pickles that follow one another, up to where they end or break."""
    found: list[str] = []
    words: list[str] = []
    with suppress(ValueError, EOFError, IndexError, UnicodeDecodeError):
        while stream.tell() < len(stream.getbuffer()):
            for opcode, argument, _ in pickletools.genops(stream):
                if opcode.name == "GLOBAL":
                    found.append(str(argument).replace(" ", "."))
                elif opcode.name == "STACK_GLOBAL":
                    found.append(".".join(words[-2:]))
                elif isinstance(argument, str):
                    words.append(argument)
    return found
