"""Which files are read, and how: regular ones of ordinary size, each once, links never looping."""

from __future__ import annotations

import io
import os
import stat
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from sys import version_info

from faudit.errors import FauditError
from faudit.lint.source import Source

LARGEST = 4 * 1024 * 1024
SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})


class LintError(FauditError):
    """A path or a rule that was asked for and is not there."""


class Unreadable(Exception):  # noqa: N818
    """A file that cannot be looked into; the message says why."""

    def __init__(self, why: str, line: int = 1) -> None:
        super().__init__(why)
        self.line = line


def python_files(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Path]:
    """The files at these paths, and the Python files in these folders, each once.

    Inside a folder, links to other folders are not followed, and hidden folders, virtual
    environments and caches are left out.

    >>> list(python_files(["no-such-place"]))
    Traceback (most recent call last):
    ...
    faudit.lint.files.LintError: there is no file or folder no-such-place
    """
    seen: set[tuple[int, int]] = set()
    for path in map(Path, paths):
        if not path.exists() and not path.is_symlink():
            raise LintError(f"there is no file or folder {path}")
        for file in sorted(_walk(path)) if path.is_dir() else [path]:
            if (key := _identity(file)) not in seen:
                seen.add(key)
                yield file


def _walk(folder: Path) -> Iterator[Path]:
    for here, folders, files in os.walk(folder, onerror=_refuse):
        folders[:] = [name for name in folders if not _is_left_out(Path(here) / name)]
        yield from (Path(here) / name for name in files if _is_python(name))


def _refuse(error: OSError) -> None:
    raise LintError(f"cannot look into {error.filename}: {error.strerror}") from error


def _is_left_out(folder: Path) -> bool:
    hidden = folder.name.startswith(".")
    return hidden or folder.name in SKIPPED or (folder / "pyvenv.cfg").exists()


def _is_python(name: str) -> bool:
    return name.endswith((".py", ".pyi")) and not name.startswith(".")


def _identity(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except OSError:
        found = file.lstat()
    return found.st_dev, found.st_ino


def read(path: Path) -> Source:
    """A file as a source; ``Unreadable`` says why there is none."""
    raw = _bytes(path)
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        text = raw.decode(encoding)
        return Source(text.removeprefix("\ufeff"), raw)
    except SyntaxError as error:
        raise Unreadable(invalid(error), error.lineno or 1) from error
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise Unreadable(f"is not text in {error.encoding}", line) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise Unreadable(f"cannot be parsed: {error}") from error


def invalid(error: SyntaxError) -> str:
    """What a file that cannot be parsed is told; a newer Python may know what this one does not.

    >>> invalid(SyntaxError("expected ':'")).partition(" 3.")[0]
    'is not valid Python'
    """
    return f"is not valid Python {version_info.major}.{version_info.minor}: {error.msg}"


def _bytes(path: Path) -> bytes:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise Unreadable("is not a regular file")
        if found.st_size > LARGEST:
            raise Unreadable(f"has {found.st_size} bytes; at most {LARGEST} are read")
        return path.read_bytes()
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from error
