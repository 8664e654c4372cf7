"""What may be measured: batches, losses and credits, each checked before anything is computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from faudit.errors import DataError, FauditError
from faudit.networks.scene import Loss, Scene, cross_entropy


def batches_of(x: Any, y: Any) -> Iterator[tuple[Any, Tensor]]:
    """(x, y) batches from one batch, from two matching lists, or from an iterable of pairs.

    >>> len(list(batches_of([(torch.zeros(2), torch.zeros(2))] * 3, None)))
    3
    """
    if y is None:
        yield from _pairs(x)
    elif isinstance(y, Tensor):
        _same_length(x, y)
        yield x, y
    else:
        for one_x, one_y in zip(x, y, strict=True):
            yield from batches_of(one_x, torch.as_tensor(one_y))


def _pairs(batches: Iterable[Any]) -> Iterator[tuple[Any, Tensor]]:
    if isinstance(batches, (Tensor, Mapping)) or not isinstance(batches, Iterable):
        raise DataError("targets are missing; give measure(network, x, y) or an iterable of (x, y)")
    for pair in batches:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise DataError("every batch must be a pair (x, y)")
        yield from batches_of(*pair)


def _same_length(x: Any, y: Tensor) -> None:
    for part in x.values() if isinstance(x, Mapping) else [x]:
        if not isinstance(part, Tensor):
            raise DataError(f"inputs must be tensors, not {type(part).__name__}")
        if len(part) != len(y):
            raise DataError(
                f"inputs of shape {tuple(part.shape)} and targets of shape {tuple(y.shape)} do"
                " not have the same number of samples"
            )
    if len(y) == 0:
        raise DataError("there is no sample to measure; the batch is empty")


def checked_loss(loss: Loss) -> Loss:
    """The same loss, refusing first what would be broadcast or ignored in silence."""

    def checked(logits: Tensor, targets: Tensor) -> Tensor:
        if loss is cross_entropy:
            _check_classes(logits, targets)
        values = loss(logits, targets)
        if values.shape != targets.shape[:1]:
            raise FauditError(
                f"the loss returned shape {tuple(values.shape)} for {len(targets)} samples; it"
                " must return one loss per sample (reduction='none', averaged over the rest)"
            )
        return values

    return checked


def _check_classes(logits: Tensor, targets: Tensor) -> None:
    if targets.is_floating_point() or targets.dtype == torch.bool:
        raise DataError(f"cross-entropy needs class indices, not {targets.dtype}; give loss=")
    if logits.shape[:-1] != targets.shape:
        raise DataError(
            f"logits of shape {tuple(logits.shape)} need targets of shape"
            f" {tuple(logits.shape[:-1])}, not {tuple(targets.shape)}"
        )
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= logits.shape[-1]:
        raise DataError(
            f"targets run from {low} to {high}, but the network has {logits.shape[-1]} classes:"
            f" 0 to {logits.shape[-1] - 1}"
        )


def credits_of(credits: Any, seen: Scene, *, first: bool) -> list[Tensor]:
    told = _ask(credits, seen, first=first)
    if len(told) != len(seen.states):
        raise FauditError(
            f"{len(told)} credits for {len(seen.states)} states; give a_0..a_L, one per state"
        )
    for layer, (a, h) in enumerate(zip(told, seen.states, strict=True)):
        if a.shape != h.shape:
            raise FauditError(
                f"credit a_{layer} has shape {tuple(a.shape)}, its state {tuple(h.shape)}"
            )
    return [a.detach() for a in told]


def _ask(credits: Any, seen: Scene, *, first: bool) -> list[Tensor]:
    if hasattr(credits, "credits"):
        return list(credits.credits(seen))
    if callable(credits):
        return list(credits(seen))
    if isinstance(credits, Sequence):
        if not first:
            raise FauditError("a list of credits belongs to one batch; give a rule or a callable")
        return list(credits)
    raise FauditError(
        f"credits must be a credit rule, a callable or a list, not {type(credits).__name__}"
    )


def as_double(x: Any) -> Any:
    if isinstance(x, Mapping):
        return {key: as_double(value) for key, value in x.items()}
    return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x


def keepable(x: Any) -> Any:
    """A tensor that autograd may keep, even if it was made under inference mode."""
    if isinstance(x, Mapping):
        return {key: keepable(value) for key, value in x.items()}
    return x.clone() if isinstance(x, Tensor) and x.is_inference() else x
