"""Files that are there whole or not at all, whatever moment the power or the process goes."""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress
from pathlib import Path

TEMPORARY = ".tmp"

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}


def write(path: str | os.PathLike[str], content: bytes | str, *, durable: bool = True) -> None:
    """Write a file so that a reader sees the old content or the new, never a part.

    ``durable`` also waits until the new content is on the disk; without it a power cut may bring
    the old content back, a killed process never does.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(Path(folder) / "a.txt", "whole")
    ...     (Path(folder) / "a.txt").read_text()
    'whole'
    """
    path = Path(path)
    raw = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}")
    try:
        write_through(temporary, raw, durable=durable)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        sync_folder(path.parent)


def write_through(path: Path, raw: bytes, *, durable: bool = True) -> None:
    """Write a new file and wait for the disk; the caller makes it visible."""
    with open(path, "wb") as file:
        file.write(raw)
        file.flush()
        if durable:
            os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut; some file systems cannot, and say so."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep(folder: Path) -> None:
    """Remove the temporary files that killed writers left; only the folder's one writer may."""
    for left in folder.glob(f".*{TEMPORARY}"):
        with suppress(OSError):
            left.unlink()


def no_room(error: BaseException) -> bool:
    """Whether an error means that the storage refused: full, over quota, read-only, failing.

    >>> no_room(OSError(errno.ENOSPC, "No space left on device")), no_room(ValueError())
    (True, False)
    """
    return isinstance(error, OSError) and error.errno in _NO_ROOM
