"""Batches of a split, shuffled, augmented and normalised in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from faudit.data.sets import Split
from faudit.errors import DataError

Augment = Callable[[Tensor, Generator], Tensor]
Normalise = Callable[[Tensor], Tensor]


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

    >>> from faudit.data import load
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
    # index_select copies whole examples where indexing would copy byte by byte.
    images, labels = (
        part.index_select(0, index).to(device) for part in (split.images, split.labels)
    )
    if augment is not None and generator is not None:
        images = augment(images, generator)
    return (images if normalise is None else normalise(images)), labels


def augment(images: Tensor, generator: Generator, padding: int = 4, flip: bool = True) -> Tensor:
    """Crop each image at random out of itself framed in black, and mirror half of them.

    The usual CIFAR augmentation, one draw per image, on raw pixels: after normalising, a zero
    would be a grey frame, so float images are refused.

    >>> from faudit.data import load
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
    top, left = torch.randint(2 * padding + 1, (2, count), generator=generator).to(images.device)
    framed = F.pad(images, (padding,) * 4)
    # A view of every possible crop; picking then copies only the chosen one per image.
    crops = framed.unfold(2, height, 1).unfold(3, width, 1).permute(0, 2, 3, 1, 4, 5)
    return _pick(crops, torch.arange(count, device=images.device), top, left)


def _pick(crops: Tensor, *index: Tensor) -> Tensor:
    """``crops[index]``; NumPy copies it row by row, four times as fast as PyTorch on a CPU."""
    if crops.device.type != "cpu":
        return crops[index]
    return torch.from_numpy(crops.numpy()[tuple(part.numpy() for part in index)])


def _random_mirror(images: Tensor, generator: Generator) -> Tensor:
    chosen = torch.randint(2, (len(images),), generator=generator).to(images.device)
    both = torch.cat([images, images.flip(-1)])
    own = torch.arange(len(images), device=images.device)
    return both.index_select(0, own + len(images) * chosen)
