"""Split and Dataset: verified images and labels in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from faudit.errors import DataError


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

        >>> from faudit.data import load
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

    def to(self, device: torch.device | str) -> Split:
        """The same examples in another device's memory."""
        return Split(self.images.to(device), self.labels.to(device))


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training and a test split, with the constants that normalise their pixels.

    >>> from faudit.data import load
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

        >>> from faudit.data import load
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

        >>> from faudit.data import load
        >>> small = load("fashion-sample").first(train=100, test=10)
        >>> len(small.train), len(small.test)
        (100, 10)
        """
        return replace(self, train=self.train.first(train), test=self.test.first(test))

    def relabelled(self, seed: int = 0) -> Dataset:
        """The same data with training labels drawn at random: nothing is left to learn.

        >>> from faudit.data import load
        >>> data = load("fashion-sample")
        >>> other = data.relabelled()
        >>> bool((other.train.labels == data.train.labels).float().mean() < 0.2)
        True
        """
        draw = torch.Generator().manual_seed(seed)
        labels = torch.randint(self.classes, (len(self.train),), generator=draw)
        return replace(self, train=Split(self.train.images, labels))

    def digest(self) -> str:
        """SHA-256 of all that a number can depend on: pixels, labels, classes, normalisation.

        >>> from faudit.data import load
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
