"""Files from others, read without trusting them: every byte is checked before it is used."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, cast

import numpy as np

from faudit.errors import DataError

Stats = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True)
class Part:
    """One published file: its name, and the length and SHA-256 of its uncompressed bytes."""

    name: str
    size: int
    sha256: str
    packed: str = ""  # SHA-256 of the .gz, where the file is published alone
    record: int = 0  # bytes per record
    unordered: str = ""  # digest of the records in any order; some copies of CIFAR-100 are shuffled

    def check(self, raw: bytes, where: object) -> None:
        """Refuse bytes that are not the published ones."""
        if len(raw) != self.size:
            held = f"more than {self.size}" if len(raw) > self.size else len(raw)
            raise DataError(
                f"{where} holds {held} bytes; expected {self.size}. It is cut short or another "
                "file: delete it and fetch it again."
            )
        found = hashlib.sha256(raw).hexdigest()
        if found != self.sha256 and not self._is_reordered(raw):
            raise DataError(
                f"{where} differs from the published file: its SHA-256 is {found}, expected "
                f"{self.sha256}. Delete it and fetch it again."
            )

    def _is_reordered(self, raw: bytes) -> bool:
        return bool(self.unordered) and unordered_digest(raw, self.record) == self.unordered


@dataclass(frozen=True)
class Cifar:
    """Where a CIFAR set lies, and what its records are: label bytes, then 3 x 32 x 32 pixels."""

    name: str
    classes: int
    url: str
    sha256: str
    folder: str  # on disk and inside the archive
    pickled: str
    labels: tuple[bytes, ...]  # the label bytes of a record in order; the last one is used
    train: tuple[Part, ...]
    test: tuple[Part, ...]
    stats: Stats


@dataclass(frozen=True)
class Idx:
    """Where an idx set of 28 x 28 grey images lies: (images, labels) of each split."""

    name: str
    classes: int
    url: str
    folders: tuple[str, ...]
    train: tuple[Part, Part]
    test: tuple[Part, Part]
    stats: Stats


def read_part(path: Path, part: Part) -> bytes:
    raw = read_some(path, part.size + 1)
    part.check(raw, path)
    return raw


def read_some(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(limit)
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}. Put the published file there."
        ) from error


def read_idx(folder: Path, part: Part) -> bytes:
    packed = folder / f"{part.name}.gz"
    if not packed.exists():
        return read_part(folder / part.name, part)
    _check_packed(packed)
    try:
        with gzip.open(packed) as stream:
            raw = stream.read(part.size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{packed} cannot be unpacked to its {part.size} bytes ({error}). Delete it and "
            "fetch it again."
        ) from error
    part.check(raw, packed)
    return raw


def read_archive(path: Path, folder: str, parts: Sequence[Part]) -> dict[str, bytes]:
    """Read exactly the named regular files from the tar stream; nothing is extracted to disk."""
    _check_packed(path)
    wanted = {f"{folder}/{part.name}.bin": part for part in parts}
    found: dict[str, bytes] = {}
    most = 2 * sum(part.size for part in parts) + 2**20
    try:
        with gzip.open(path) as packed, _tar(packed, most) as tar:
            for member in tar:
                if (part := wanted.pop(member.name, None)) is not None:
                    found[part.name] = read_member(tar, member, part, path)
                if not wanted:
                    return found
    except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"{path} is damaged ({error}). Delete it and fetch it again.") from error
    raise DataError(f"{path} has no member {next(iter(wanted))}; fetch the binary version again.")


def _tar(packed: gzip.GzipFile, most: int) -> tarfile.TarFile:
    return tarfile.open(fileobj=cast(BinaryIO, _Bounded(packed, most)), mode="r|")


class _Bounded:
    """A stream that ends in an error past ``most`` bytes: tarfile reads long headers whole."""

    def __init__(self, stream: gzip.GzipFile, most: int) -> None:
        self.stream, self.most, self.left = stream, most, most

    def read(self, count: int) -> bytes:
        raw = self.stream.read(count)
        self.left -= len(raw)
        if self.left < 0:
            raise OSError(f"unpacks to more than {self.most} bytes")
        return raw


def read_member(stream: tarfile.TarFile, member: tarfile.TarInfo, part: Part, path: Path) -> bytes:
    where = f"{member.name} in {path}"
    content = stream.extractfile(member) if member.isreg() else None
    if content is None:
        raise DataError(f"{where} is not a regular file; fetch the archive again.")
    raw = content.read(part.size + 1)
    part.check(raw, where)
    return raw


def _check_packed(path: Path) -> None:
    head = read_some(path, 16)
    if not head.startswith(b"\x1f\x8b"):
        raise DataError(
            f"{path} is not gzip data: it begins {head!r}. A web page may have been saved under "
            "this name: delete it and fetch it again."
        )


def read_pickled(path: Path, part: Part, source: Cifar) -> bytes:
    """The records of a pickled batch, rebuilt as the binary version has them."""
    content = _unpickle(path, limit=2 * part.size + 1024)
    try:
        _, shape, _, is_fortran, raw = content[b"data"].state
        pixels = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if is_fortran else "C")
        # bytes of an iterator: a number would be a length, and nested lists have any size
        labels = [np.frombuffer(bytes(iter(content[key])), np.uint8) for key in source.labels]
        rows = np.column_stack([*labels, pixels]).tobytes()
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{path} is not a CIFAR batch ({error}); fetch it again.") from error
    part.check(rows, path)
    return rows


def _unpickle(path: Path, limit: int) -> Any:
    try:
        return _Unpickler(io.BytesIO(read_some(path, limit)), encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except Exception as error:  # a damaged pickle may raise almost anything
        raise DataError(f"{path} is damaged ({error!r}). Fetch it again.") from error


class _Recorder:
    """Stands in for numpy's array and dtype in a pickle: keeps its state, runs nothing."""

    def __init__(self, *arguments: object) -> None:
        self.state: Any = ()

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle._Unpickler):  # the C one fills memory when told a large memo index
    """Knows three names of numpy, as stand-ins: even those can corrupt memory when misused."""

    # A bytearray is made at the length that the file claims, before a byte of it is read.
    dispatch: ClassVar[dict[int, Any]] = {
        code: load
        for code, load in pickle._Unpickler.dispatch.items()
        if code != pickle.BYTEARRAY8[0]
    }
    known = frozenset(
        {
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
        }
    )

    def find_class(self, module: str, name: str) -> type[_Recorder]:
        if (module, name) not in self.known:
            raise DataError(
                f"refused to load {module}.{name}: a CIFAR batch holds only numpy arrays and "
                "lists. Delete the file and use the binary version."
            )
        return _Recorder


def unordered_digest(raw: bytes, record: int) -> str:
    records = memoryview(raw)
    starts = range(0, len(raw), record)
    digests = sorted(hashlib.sha256(records[i : i + record]).digest() for i in starts)
    return hashlib.sha256(b"".join(digests)).hexdigest()


def fetch(url: str, sha256: str, path: Path) -> None:
    """Fetch one file; pooch checks the digest before the file gets its name."""
    import pooch

    try:
        pooch.retrieve(url, known_hash=f"sha256:{sha256}", fname=path.name, path=path.parent)
    except (OSError, ValueError) as error:
        raise DataError(
            f"could not fetch {url} ({error}). Without a network, put that file at {path}."
        ) from error
