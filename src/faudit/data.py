"""Data, where everything starts: verified images and labels in memory, and batches of them.

Three published sets (Fashion-MNIST, of which a sample is embedded, CIFAR-10, CIFAR-100) and one
synthetic task. Files are looked for under ``root``, else ``$FAUDIT_DATA``, else
``~/.cache/faudit``; what is read is checked against the published length and
SHA-256 before it is used.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from faudit.errors import DataError, unknown

Augment = Callable[[Tensor, Generator], Tensor]
Normalise = Callable[[Tensor], Tensor]

Stats = tuple[tuple[float, ...], tuple[float, ...]]

# Per-channel mean and standard deviation of the training pixels, scaled to [0, 1].
CIFAR10_STATS: Stats = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
CIFAR100_STATS: Stats = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
FASHION_STATS: Stats = (0.2860,), (0.3530,)


@dataclass(frozen=True, eq=False)
class Split:
    """Images (uint8 ``(N, C, H, W)``) or features (float ``(N, ...)``) with one label each.

    >>> len(Split(torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 0])))
    3
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        check_images(self.images)
        _check_label_form(self.labels)
        if len(self.images) != len(self.labels):
            raise DataError(
                f"{len(self.images)} images but {len(self.labels)} labels; every image needs one."
            )

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, count: int | None) -> Split:
        """The first ``count`` examples, or all of them.

        >>> len(load("fashion-sample").test.first(50))
        50
        """
        if count is None:
            return self
        if not 1 <= count <= len(self):
            raise DataError(
                f"cannot take {count} examples of {len(self)}; ask for 1 to {len(self)}."
            )
        return Split(self.images[:count], self.labels[:count])


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training and a test split, with the constants that normalise their pixels.

    >>> data = load("fashion-sample")
    >>> len(data.train), len(data.test), data.classes, data.shape
    (6000, 2000, 10, (1, 28, 28))
    """

    train: Split
    test: Split
    classes: int
    name: str
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_labels(self.train.labels, self.classes)
        check_labels(self.test.labels, self.classes)
        _check_same_form(self.train.images, self.test.images)
        _check_stats(self.train.images, self.mean, self.std)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self.train.images.shape[1:])

    def normalise(self, images: Tensor) -> Tensor:
        """Scale uint8 pixels to [0, 1] and standardise each channel; features pass unchanged.

        >>> data = load("fashion-sample")
        >>> pixels = data.normalise(data.train.images)
        >>> pixels.dtype, abs(pixels.mean().item()) < 0.05
        (torch.float32, True)
        """
        if images.is_floating_point():
            return images
        mean, std = (_per_channel(values, images.device) for values in (self.mean, self.std))
        return images.to(torch.float32).div_(255).sub_(mean).div_(std)

    def first(self, train: int | None = None, test: int | None = None) -> Dataset:
        """The same data set with only the first examples of each split.

        >>> small = load("fashion-sample").first(train=100, test=10)
        >>> len(small.train), len(small.test)
        (100, 10)
        """
        return replace(self, train=self.train.first(train), test=self.test.first(test))

    def digest(self) -> str:
        """SHA-256 of all that a number can depend on: pixels, labels, classes, normalisation.

        >>> load("fashion-sample").digest()[:12]
        '552d95656160'
        """
        return self._digest

    @cached_property
    def _digest(self) -> str:
        total = hashlib.sha256(repr((self.classes, self.mean, self.std)).encode())
        for split in (self.train, self.test):
            for tensor in (split.images, split.labels):
                total.update(repr((tensor.dtype, tuple(tensor.shape))).encode())
                total.update(tensor.cpu().contiguous().view(torch.uint8).numpy().data)
        return total.hexdigest()


def _per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=device).view(-1, 1, 1)


# -- checks ---------------------------------------------------------------------------------------


def check_images(images: Tensor) -> None:
    """Refuse anything but uint8 pixels ``(N, C, H, W)`` or finite float features ``(N, ...)``.

    >>> check_images(torch.zeros(2, 28, 28, 1, dtype=torch.uint8))
    Traceback (most recent call last):
    faudit.errors.DataError: images of shape (2, 28, 28, 1) have the channel last; ...
    """
    if not isinstance(images, Tensor):
        raise DataError(f"images must be a torch tensor, not {type(images).__name__}.")
    if images.numel() == 0:
        raise DataError(f"images of shape {tuple(images.shape)} are empty; give at least one.")
    if images.dtype == torch.uint8:
        _check_pixels(images)
    elif images.is_floating_point():
        _check_features(images)
    else:
        raise DataError(f"images are {images.dtype}; give uint8 pixels or float features.")


def check_labels(labels: Tensor, classes: int) -> None:
    """Refuse labels that are not int64 class numbers 0 .. classes - 1, one per example.

    >>> check_labels(torch.tensor([0, 9, -100]), 10)
    Traceback (most recent call last):
    faudit.errors.DataError: label -100 at row 2 is not a class 0..9. ...
    """
    _check_label_form(labels)
    wrong = ((labels < 0) | (labels >= classes)).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"label {int(labels[row])} at row {row} is not a class 0..{classes - 1}. Drop such "
            f"rows or correct the number of classes; no label means 'ignore', not even -100."
        )


def _check_pixels(images: Tensor) -> None:
    shape = tuple(images.shape)
    if images.ndim != 4:
        raise DataError(f"uint8 images have shape {shape}; expected (N, C, H, W).")
    if shape[3] in (1, 3) and shape[1] not in (1, 3):
        raise DataError(
            f"images of shape {shape} have the channel last; use images.permute(0, 3, 1, 2)."
        )


def _check_features(images: Tensor) -> None:
    if images.ndim < 2:
        raise DataError(f"features have shape {tuple(images.shape)}; expected (N, ...).")
    wrong = (~torch.isfinite(images.flatten(1)).all(1)).nonzero()
    if len(wrong):
        raise DataError(
            f"{len(wrong)} examples hold NaN or infinity, the first at row {int(wrong[0])}; "
            "repair or drop them."
        )


def _check_label_form(labels: Tensor) -> None:
    if not isinstance(labels, Tensor):
        raise DataError(f"labels must be a torch tensor, not {type(labels).__name__}.")
    if labels.ndim != 1:
        cure = "labels.squeeze(1)" if labels.shape[1:] == (1,) else "labels.argmax(1) if one-hot"
        raise DataError(f"labels have shape {tuple(labels.shape)}; expected (N,): use {cure}.")
    if labels.dtype != torch.int64:
        raise DataError(f"labels are {labels.dtype}; expected torch.int64: use labels.long().")
    if len(labels) == 0:
        raise DataError("labels are empty; give at least one.")


def _check_same_form(train: Tensor, test: Tensor) -> None:
    if (train.shape[1:], train.dtype) != (test.shape[1:], test.dtype):
        raise DataError(
            f"training examples are {train.dtype} {tuple(train.shape[1:])} but test examples are "
            f"{test.dtype} {tuple(test.shape[1:])}; they must be alike."
        )


def _check_stats(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> None:
    channels = images.shape[1] if images.dtype == torch.uint8 else 0
    if channels and not (len(mean) == len(std) == channels and min(std) > 0):
        raise DataError(
            f"pixels of {channels} channels need as many means and positive standard deviations; "
            f"got mean {tuple(mean)}, std {tuple(std)}."
        )


# -- batches --------------------------------------------------------------------------------------


def batches(
    split: Split,
    size: int,
    generator: Generator | None = None,
    *,
    device: torch.device | str | None = None,
    augment: Augment | None = None,
    normalise: Normalise | None = None,
    drop_last: bool = False,
) -> Iterator[tuple[Tensor, Tensor]]:
    """One epoch of ``(images, labels)``: shuffled by a generator, in order without one.

    All draws come from the (CPU) generator, so a seed gives the same batches on every device.
    Pixels stay uint8 until ``normalise``, after the augmentation.

    >>> data = load("fashion-sample")
    >>> epoch = batches(data.test, 128, normalise=data.normalise)
    >>> sizes = [len(labels) for images, labels in epoch]
    >>> len(sizes), sizes[-1]
    (16, 80)
    """
    if size < 1:
        raise DataError(f"batch size {size} is impossible; use at least 1.")
    if augment is not None and generator is None:
        raise DataError("augmentation is random: pass a seeded torch.Generator.")
    rows = _order(len(split), generator).split(size)
    kept = rows[:-1] if drop_last and len(rows[-1]) < size else rows
    return (_batch(split, index, generator, device, augment, normalise) for index in kept)


def _order(count: int, generator: Generator | None) -> Tensor:
    return torch.arange(count) if generator is None else torch.randperm(count, generator=generator)


def _batch(
    split: Split,
    index: Tensor,
    generator: Generator | None,
    device: torch.device | str | None,
    augment: Augment | None,
    normalise: Normalise | None,
) -> tuple[Tensor, Tensor]:
    index = index.to(split.images.device)
    images, labels = (part[index].to(device) for part in (split.images, split.labels))
    if augment is not None and generator is not None:
        images = augment(images, generator)
    return (images if normalise is None else normalise(images)), labels


def augment(images: Tensor, generator: Generator, padding: int = 4, flip: bool = True) -> Tensor:
    """Crop each image at random out of itself framed in black, and mirror half of them.

    The usual CIFAR augmentation, one draw per image, on raw pixels: after normalising, a zero
    would be a grey frame, so float images are refused.

    >>> images = load("fashion-sample").train.images[:4]
    >>> augment(images, torch.Generator().manual_seed(0)).shape
    torch.Size([4, 1, 28, 28])
    """
    if images.dtype != torch.uint8 or images.ndim != 4 or padding < 0:
        raise DataError(
            f"augment takes uint8 pixels (N, C, H, W) and a padding of 0 or more, not "
            f"{images.dtype} {tuple(images.shape)} and {padding}; normalise afterwards."
        )
    cropped = _random_crop(images, generator, padding)
    return _random_mirror(cropped, generator) if flip else cropped


def _random_crop(images: Tensor, generator: Generator, padding: int) -> Tensor:
    count, _, height, width = images.shape
    corners = torch.randint(2 * padding + 1, (2, count), generator=generator).to(images.device)
    framed = F.pad(images, (padding,) * 4)
    # A view of every possible crop; indexing then copies only the chosen one per image.
    crops = framed.unfold(2, height, 1).unfold(3, width, 1)
    return crops[torch.arange(count, device=images.device), :, corners[0], corners[1]]


def _random_mirror(images: Tensor, generator: Generator) -> Tensor:
    """Mirror in place: the images are the fresh copy that cropping made."""
    chosen = torch.randint(2, (len(images),), generator=generator).bool().to(images.device)
    images[chosen] = images[chosen].flip(-1)
    return images


# -- the synthetic task ---------------------------------------------------------------------------


def student_teacher(
    seed: int = 0,
    *,
    train: int = 10_000,
    test: int = 2_000,
    inputs: int = 128,
    hidden: int = 64,
    classes: int = 10,
    label_noise: float = 0.02,
) -> Dataset:
    """Gaussian inputs labelled by a fixed random teacher, ``argmax(tanh(x A / 4) B)``.

    The teacher is two seeded matrices and nearly linear (its tanh sees a standard deviation of
    1/4), so a readout of random features solves the task, while ``label_noise``, the share of
    training labels that are redrawn, is there to be memorised. With the defaults a residual
    network of four blocks trained in full ends near 0.80 and one with frozen blocks near 0.91
    (30 epochs of AdamW): on this task, D3 says nothing about depth.

    >>> data = student_teacher(seed=0, train=500, test=100)
    >>> data.shape, data.classes, data.train.images.dtype
    ((128,), 10, torch.float32)
    """
    if min(train, test, inputs, hidden) < 1 or classes < 2 or not 0 <= label_noise <= 1:
        raise DataError("student_teacher needs positive sizes, 2+ classes, label_noise in [0, 1].")
    draw = np.random.default_rng(seed)
    first = draw.standard_normal((inputs, hidden)) / (4 * np.sqrt(inputs))
    second = draw.standard_normal((hidden, classes))
    features = draw.standard_normal((train + test, inputs)).astype(np.float32)
    labels = (np.tanh(features @ first) @ second).argmax(1)
    noisy = np.flatnonzero(draw.random(train) < label_noise)
    labels[noisy] = draw.integers(classes, size=len(noisy))
    x, y = torch.from_numpy(features), torch.from_numpy(labels.astype(np.int64))
    splits = Split(x[:train], y[:train]), Split(x[train:], y[train:])
    return Dataset(*splits, classes=classes, name="student-teacher")


# -- published sets -------------------------------------------------------------------------------


def load(
    name: str = "fashion-sample",
    root: str | os.PathLike[str] | None = None,
    download: bool = False,
    *,
    train_limit: int | None = None,
    test_limit: int | None = None,
) -> Dataset:
    """Load a data set by name; ``download`` fetches the official files where there are none.

    Under ``root``, CIFAR is read from ``cifar-10-batches-bin/`` (``cifar-100-binary/``), from
    ``cifar-10-batches-py/`` (``cifar-100-python/``), or from the binary ``.tar.gz``; Fashion-MNIST
    from the idx files, packed or not, in ``fashion-mnist/`` or ``FashionMNIST/raw/``.
    ``fashion-sample`` and ``student-teacher`` need no files.

    >>> load("fashion-sample", train_limit=100).train.images.shape
    torch.Size([100, 1, 28, 28])
    >>> load("cifar-10")
    Traceback (most recent call last):
    faudit.errors.DataError: unknown data set 'cifar-10'; did you mean 'cifar10'? ...
    """
    if name not in _READERS:
        raise DataError(unknown("data set", name, _READERS))
    folder = Path(root or os.environ.get("FAUDIT_DATA") or Path.home() / ".cache" / "faudit")
    return _READERS[name](folder.expanduser(), download).first(train_limit, test_limit)


@dataclass(frozen=True)
class _Part:
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
        return bool(self.unordered) and _unordered_digest(raw, self.record) == self.unordered


@dataclass(frozen=True)
class _Cifar:
    """Where a CIFAR set lies, and what its records are: label bytes, then 3 x 32 x 32 pixels."""

    name: str
    classes: int
    url: str
    sha256: str
    folder: str  # on disk and inside the archive
    pickled: str
    labels: tuple[bytes, ...]  # the label bytes of a record in order; the last one is used
    train: tuple[_Part, ...]
    test: tuple[_Part, ...]
    stats: Stats


@dataclass(frozen=True)
class _Idx:
    """Where an idx set of 28 x 28 grey images lies: (images, labels) of each split."""

    name: str
    classes: int
    url: str
    folders: tuple[str, ...]
    train: tuple[_Part, _Part]
    test: tuple[_Part, _Part]
    stats: Stats


def _cifar(source: _Cifar, root: Path, download: bool) -> Dataset:
    contents = _cifar_contents(source, root, download)
    train, test = (
        _cifar_split(source, [contents[part.name] for part in parts])
        for parts in (source.train, source.test)
    )
    return Dataset(train, test, source.classes, source.name, *source.stats)


def _cifar_contents(source: _Cifar, root: Path, download: bool) -> dict[str, bytes]:
    """The checked bytes of every part, from the first form of the set that exists under root."""
    parts = source.train + source.test
    archive = root / source.url.rpartition("/")[2]
    if (root / source.folder).is_dir():
        return {p.name: _read_part(root / source.folder / f"{p.name}.bin", p) for p in parts}
    if (root / source.pickled).is_dir():
        return {p.name: _read_pickled(root / source.pickled / p.name, p, source) for p in parts}
    if download and not archive.exists():
        _fetch(source.url, source.sha256, archive)
    if archive.is_file():
        return _read_archive(archive, source.folder, parts)
    raise DataError(
        f"{source.name} is not under {root}. Put {archive.name} from {source.url} there (or a "
        f"folder {source.folder} or {source.pickled}), name another place with root= or "
        "FAUDIT_DATA, or pass download=True."
    )


def _cifar_split(source: _Cifar, contents: Sequence[bytes]) -> Split:
    skip = len(source.labels)
    rows = np.frombuffer(b"".join(contents), np.uint8).reshape(-1, skip + 3 * 32 * 32)
    return _split(rows[:, skip:].reshape(-1, 3, 32, 32), rows[:, skip - 1])


def _idx(source: _Idx, root: Path, download: bool) -> Dataset:
    folder = next((root / f for f in source.folders if (root / f).is_dir()), None)
    if folder is None and not download:
        raise DataError(
            f"{source.name} is not under {root}. Put the four idx files from {source.url} into "
            f"{root / source.folders[0]}, name another place with root= or FAUDIT_DATA, or pass "
            "download=True."
        )
    folder = folder or root / source.folders[0]
    if download:
        _fetch_missing(source, folder)
    train, test = (_idx_split(folder, *parts) for parts in (source.train, source.test))
    return Dataset(train, test, source.classes, source.name, *source.stats)


def _idx_split(folder: Path, images: _Part, labels: _Part) -> Split:
    """Images follow a header of 16 bytes, labels one of 8; the digest has vouched for both."""
    pixels, classes = (np.frombuffer(_read_idx(folder, p), np.uint8) for p in (images, labels))
    return _split(pixels[16:].reshape(-1, 1, 28, 28), classes[8:])


def _fetch_missing(source: _Idx, folder: Path) -> None:
    for part in source.train + source.test:
        packed = folder / f"{part.name}.gz"
        if not packed.exists() and not (folder / part.name).exists():
            _fetch(f"{source.url}{packed.name}", part.packed, packed)


def _fashion_sample(root: Path, download: bool) -> Dataset:
    """The embedded sample; it needs neither a folder nor a network."""
    asset = resources.files("faudit") / "assets" / "fashion_mnist" / _SAMPLE.name
    raw = asset.read_bytes()
    _SAMPLE.check(raw, f"the embedded {_SAMPLE.name}")
    with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:
        train, test = (
            _split(arrays[f"{part}_images"][:, None], arrays[f"{part}_labels"])
            for part in ("train", "test")
        )
    return Dataset(train, test, 10, "fashion-sample", *FASHION_STATS)


def _split(images: np.ndarray, labels: np.ndarray) -> Split:
    owned = np.require(images, requirements=["C", "W"])  # bytes are read-only, tensors are not
    return Split(torch.from_numpy(owned), torch.from_numpy(labels.astype(np.int64)))


# -- reading without trusting ---------------------------------------------------------------------


def _read_part(path: Path, part: _Part) -> bytes:
    raw = _read_some(path, part.size + 1)
    part.check(raw, path)
    return raw


def _read_some(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(limit)
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}. Put the published file there."
        ) from error


def _read_idx(folder: Path, part: _Part) -> bytes:
    packed = folder / f"{part.name}.gz"
    if not packed.exists():
        return _read_part(folder / part.name, part)
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


def _read_archive(path: Path, folder: str, parts: Sequence[_Part]) -> dict[str, bytes]:
    """Read exactly the named regular files from the tar stream; nothing is extracted to disk."""
    _check_packed(path)
    wanted = {f"{folder}/{part.name}.bin": part for part in parts}
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r|gz") as stream:
            for member in stream:
                if (part := wanted.pop(member.name, None)) is not None:
                    found[part.name] = _read_member(stream, member, part, path)
                if not wanted:
                    return found
    except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"{path} is damaged ({error}). Delete it and fetch it again.") from error
    raise DataError(f"{path} has no member {next(iter(wanted))}; fetch the binary version again.")


def _read_member(
    stream: tarfile.TarFile, member: tarfile.TarInfo, part: _Part, path: Path
) -> bytes:
    where = f"{member.name} in {path}"
    content = stream.extractfile(member) if member.isreg() else None
    if content is None:
        raise DataError(f"{where} is not a regular file; fetch the archive again.")
    raw = content.read(part.size + 1)
    part.check(raw, where)
    return raw


def _check_packed(path: Path) -> None:
    head = _read_some(path, 16)
    if not head.startswith(b"\x1f\x8b"):
        raise DataError(
            f"{path} is not gzip data: it begins {head!r}. A web page may have been saved under "
            "this name: delete it and fetch it again."
        )


def _read_pickled(path: Path, part: _Part, source: _Cifar) -> bytes:
    """The records of a pickled batch, rebuilt as the binary version has them."""
    content = _unpickle(path, limit=2 * part.size + 1024)
    try:
        _, shape, _, is_fortran, raw = content[b"data"].state
        pixels = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if is_fortran else "C")
        labels = [np.array(content[key], np.uint8) for key in source.labels]
        rows = np.column_stack([*labels, pixels]).tobytes()
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{path} is not a CIFAR batch ({error}); fetch it again.") from error
    part.check(rows, path)
    return rows


def _unpickle(path: Path, limit: int) -> Any:
    try:
        return _Unpickler(io.BytesIO(_read_some(path, limit)), encoding="bytes").load()
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


def _unordered_digest(raw: bytes, record: int) -> str:
    records = memoryview(raw)
    starts = range(0, len(raw), record)
    digests = sorted(hashlib.sha256(records[i : i + record]).digest() for i in starts)
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _fetch(url: str, sha256: str, path: Path) -> None:
    """Fetch one file; pooch checks the digest before the file gets its name."""
    import pooch

    try:
        pooch.retrieve(url, known_hash=f"sha256:{sha256}", fname=path.name, path=path.parent)
    except (OSError, ValueError) as error:
        raise DataError(
            f"could not fetch {url} ({error}). Without a network, put that file at {path}."
        ) from error


# -- what is published where ----------------------------------------------------------------------

_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_CIFAR10 = _Cifar(
    name="cifar10",
    classes=10,
    url=_TORONTO + "cifar-10-binary.tar.gz",
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    folder="cifar-10-batches-bin",
    pickled="cifar-10-batches-py",
    labels=(b"labels",),
    train=tuple(
        _Part(f"data_batch_{number}", 10_000 * 3073, digest)
        for number, digest in enumerate(
            (
                "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            ),
            start=1,
        )
    ),
    test=(
        _Part(
            "test_batch",
            10_000 * 3073,
            "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        ),
    ),
    stats=CIFAR10_STATS,
)
_CIFAR100 = _Cifar(
    name="cifar100",
    classes=100,
    url=_TORONTO + "cifar-100-binary.tar.gz",
    sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    folder="cifar-100-binary",
    pickled="cifar-100-python",
    labels=(b"coarse_labels", b"fine_labels"),
    train=(
        _Part(
            "train",
            50_000 * 3074,
            "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
            record=3074,
            unordered="7077d87fc363f92dbf1245f13ba80561d7b33a96c79ad57168d49dc172aaa92b",
        ),
    ),
    test=(
        _Part(
            "test",
            10_000 * 3074,
            "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
            record=3074,
            unordered="96adb3db8da7632dbb350559a17b9f585fab5b17675de5fc8f6761384196b294",
        ),
    ),
    stats=CIFAR100_STATS,
)
_FASHION = _Idx(
    name="fashion-mnist",
    classes=10,
    url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    folders=("fashion-mnist", "FashionMNIST/raw"),
    train=(
        _Part(
            "train-images-idx3-ubyte",
            16 + 60_000 * 784,
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            packed="3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        ),
        _Part(
            "train-labels-idx1-ubyte",
            8 + 60_000,
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            packed="a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        ),
    ),
    test=(
        _Part(
            "t10k-images-idx3-ubyte",
            16 + 10_000 * 784,
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            packed="346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        ),
        _Part(
            "t10k-labels-idx1-ubyte",
            8 + 10_000,
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            packed="67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    ),
    stats=FASHION_STATS,
)
_SAMPLE = _Part(
    "sample.npz", 3_543_948, "9a01409b15bf79e2b3a706729715047bdb5886a4e52c6ae4374d81cb6b8ed3a7"
)
_READERS: Mapping[str, Callable[[Path, bool], Dataset]] = {
    "fashion-sample": _fashion_sample,
    "fashion-mnist": partial(_idx, _FASHION),
    "cifar10": partial(_cifar, _CIFAR10),
    "cifar100": partial(_cifar, _CIFAR100),
    "student-teacher": lambda root, download: student_teacher(),
}
