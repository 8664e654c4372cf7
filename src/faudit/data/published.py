"""The published sets: where their files lie, what they must be, and how they become a Dataset."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path

import numpy as np
import torch

from faudit import plugins
from faudit.data.files import (
    Cifar,
    Idx,
    Part,
    Stats,
    fetch,
    read_archive,
    read_idx,
    read_part,
    read_pickled,
)
from faudit.data.sets import Dataset, Split
from faudit.data.synthetic import student_teacher
from faudit.errors import DataError, FauditError
from faudit.plugins import Plugin

# Per-channel mean and standard deviation of the training pixels, scaled to [0, 1].
CIFAR10_STATS: Stats = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
CIFAR100_STATS: Stats = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
FASHION_STATS: Stats = (0.2860,), (0.3530,)


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
    ``fashion-sample`` and ``student-teacher`` need no files. Sets that an installed package offers
    (``faudit.plugins``) are read by what it brings.

    >>> load("fashion-sample", train_limit=100).train.images.shape
    torch.Size([100, 1, 28, 28])
    >>> load("cifar-10")
    Traceback (most recent call last):
    faudit.errors.DataError: unknown data set 'cifar-10'; did you mean 'cifar10'? ...
    """
    folder = Path(root or os.environ.get("FAUDIT_DATA") or Path.home() / ".cache" / "faudit")
    return reader(name)(folder.expanduser(), download).first(train_limit, test_limit)


def reader(name: str) -> Callable[[Path, bool], Dataset]:
    """What reads the data set ``name``, ours or one that an installed package offers.

    >>> reader("cifar10") is READERS["cifar10"]
    True
    """
    found = plugins.find(plugins.DATA, "data set", name, READERS, DataError)
    return partial(_offered, found) if isinstance(found, Plugin) else found


def _offered(plugin: Plugin, root: Path, download: bool) -> Dataset:
    """What a package reads from ``root``; fetching files is its own affair."""
    read = plugin.load()
    try:
        found = read(root)
    except FauditError:
        raise
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        raise DataError(f"{plugin.name!r} of {plugin.package} was not read: {told}") from error
    if not isinstance(found, Dataset):
        raise DataError(
            f"{plugin.entry.value}, offered as {plugin.name!r}, gave no faudit.data.Dataset but a"
            f" {type(found).__name__}"
        )
    return found


def _cifar(source: Cifar, root: Path, download: bool) -> Dataset:
    contents = _cifar_contents(source, root, download)
    train, test = (
        _cifar_split(source, [contents[part.name] for part in parts])
        for parts in (source.train, source.test)
    )
    return Dataset(train, test, source.classes, source.name, *source.stats)


def _cifar_contents(source: Cifar, root: Path, download: bool) -> dict[str, bytes]:
    """The checked bytes of every part, from the first form of the set that exists under root."""
    parts = source.train + source.test
    archive = root / source.url.rpartition("/")[2]
    if (root / source.folder).is_dir():
        return {p.name: read_part(root / source.folder / f"{p.name}.bin", p) for p in parts}
    if (root / source.pickled).is_dir():
        return {p.name: read_pickled(root / source.pickled / p.name, p, source) for p in parts}
    if download and not archive.exists():
        fetch(source.url, source.sha256, archive)
    if archive.is_file():
        return read_archive(archive, source.folder, parts)
    raise DataError(
        f"{source.name} is not under {root}. Put {archive.name} from {source.url} there (or a "
        f"folder {source.folder} or {source.pickled}), name another place with root= or "
        "FAUDIT_DATA, or fetch it: faudit.data.load(..., download=True)."
    )


def _cifar_split(source: Cifar, contents: Sequence[bytes]) -> Split:
    skip = len(source.labels)
    rows = np.frombuffer(b"".join(contents), np.uint8).reshape(-1, skip + 3 * 32 * 32)
    return _split(rows[:, skip:].reshape(-1, 3, 32, 32), rows[:, skip - 1])


def _idx(source: Idx, root: Path, download: bool) -> Dataset:
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


def _idx_split(folder: Path, images: Part, labels: Part) -> Split:
    """Images follow a header of 16 bytes, labels one of 8; the digest has vouched for both."""
    pixels, classes = (np.frombuffer(read_idx(folder, p), np.uint8) for p in (images, labels))
    return _split(pixels[16:].reshape(-1, 1, 28, 28), classes[8:])


def _fetch_missing(source: Idx, folder: Path) -> None:
    for part in source.train + source.test:
        packed = folder / f"{part.name}.gz"
        if not packed.exists() and not (folder / part.name).exists():
            fetch(f"{source.url}{packed.name}", part.packed, packed)


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


_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_CIFAR10 = Cifar(
    name="cifar10",
    classes=10,
    url=_TORONTO + "cifar-10-binary.tar.gz",
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    folder="cifar-10-batches-bin",
    pickled="cifar-10-batches-py",
    labels=(b"labels",),
    train=tuple(
        Part(f"data_batch_{number}", 10_000 * 3073, digest)
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
        Part(
            "test_batch",
            10_000 * 3073,
            "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        ),
    ),
    stats=CIFAR10_STATS,
)
_CIFAR100 = Cifar(
    name="cifar100",
    classes=100,
    url=_TORONTO + "cifar-100-binary.tar.gz",
    sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    folder="cifar-100-binary",
    pickled="cifar-100-python",
    labels=(b"coarse_labels", b"fine_labels"),
    train=(
        Part(
            "train",
            50_000 * 3074,
            "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
            record=3074,
            unordered="7077d87fc363f92dbf1245f13ba80561d7b33a96c79ad57168d49dc172aaa92b",
        ),
    ),
    test=(
        Part(
            "test",
            10_000 * 3074,
            "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
            record=3074,
            unordered="96adb3db8da7632dbb350559a17b9f585fab5b17675de5fc8f6761384196b294",
        ),
    ),
    stats=CIFAR100_STATS,
)
_FASHION = Idx(
    name="fashion-mnist",
    classes=10,
    url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    folders=("fashion-mnist", "FashionMNIST/raw"),
    train=(
        Part(
            "train-images-idx3-ubyte",
            16 + 60_000 * 784,
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            packed="3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        ),
        Part(
            "train-labels-idx1-ubyte",
            8 + 60_000,
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            packed="a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        ),
    ),
    test=(
        Part(
            "t10k-images-idx3-ubyte",
            16 + 10_000 * 784,
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            packed="346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        ),
        Part(
            "t10k-labels-idx1-ubyte",
            8 + 10_000,
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            packed="67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    ),
    stats=FASHION_STATS,
)
_SAMPLE = Part(
    "sample.npz", 3_543_948, "9a01409b15bf79e2b3a706729715047bdb5886a4e52c6ae4374d81cb6b8ed3a7"
)
READERS: Mapping[str, Callable[[Path, bool], Dataset]] = {
    "fashion-sample": _fashion_sample,
    "fashion-mnist": partial(_idx, _FASHION),
    "cifar10": partial(_cifar, _CIFAR10),
    "cifar100": partial(_cifar, _CIFAR100),
    "student-teacher": lambda root, download: student_teacher(),
}
