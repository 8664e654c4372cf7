"""What may be measured: batches, losses and credits, each checked before anything is computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from faudit.errors import DataError, FauditError, RuleError
from faudit.networks.scene import Loss, check_labels, cross_entropy
from faudit.networks.values import classes, kind, map_tensors
from faudit.networks.view import Layout

Batch = tuple[Any, Tensor]


def batches_of(x: Any, y: Any = None) -> Iterator[Batch]:
    """(x, y) batches from one batch, from two matching iterables, or from an iterable of pairs.

    >>> len(list(batches_of([(torch.zeros(2), torch.zeros(2))] * 3)))
    3
    """
    if isinstance(x, np.ndarray):
        raise DataError(f"inputs are an array of shape {x.shape}; give torch.as_tensor(inputs)")
    if y is None:
        yield from map(_pair, _iterable(x))
    elif isinstance(x, (Tensor, Mapping)):
        yield _batch(x, y)
    elif isinstance(y, Tensor):
        raise DataError(f"inputs must be a tensor or a mapping with tensors, not {kind(x)}")
    else:
        yield from map(_pair, _matched(_iterable(x), y))


def _iterable(x: Any) -> Iterable[Any]:
    if isinstance(x, (Tensor, Mapping)) or not isinstance(x, Iterable):
        raise DataError(
            f"{kind(x)} has no targets; give measure(network, x, y) or an iterable of (x, y)"
        )
    return x


def _matched(x: Iterable[Any], y: Any) -> Iterator[Any]:
    try:
        yield from zip(x, y, strict=True)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"inputs in batches need as many batches of targets: {error}; one batch of inputs is"
            " one tensor"
        ) from error


def _pair(pair: Any) -> Batch:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise DataError(f"every batch must be a pair (x, y), not {kind(pair)}")
    return _batch(*pair)


def _batch(x: Any, y: Any) -> Batch:
    targets = _targets(y)
    parts = list(x.values()) if isinstance(x, Mapping) else [x]
    tensors = [part for part in parts if isinstance(part, Tensor)]
    if not tensors:
        raise DataError(f"inputs must be a tensor or a mapping with tensors, not {kind(x)}")
    for part in tensors:
        if part.shape[:1] != targets.shape[:1]:
            raise DataError(
                f"inputs of shape {tuple(part.shape)} and targets of shape {tuple(targets.shape)}"
                " do not have the same number of samples"
            )
    if targets.numel() == 0:
        raise DataError("there is no sample to measure; the batch is empty")
    return x, targets


def _targets(y: Any) -> Tensor:
    """A tensor of its own; whole numbers as int64, as class indices must be."""
    try:
        targets = torch.as_tensor(y).clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"targets must be a tensor, not {kind(y)}") from error
    if targets.ndim == 0:
        raise DataError("targets must have one entry per sample; this is a single number")
    whole = not (targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool)
    return targets.long() if whole else targets


def checked_loss(loss: Loss) -> Loss:
    """The same loss, refusing first what would be broadcast, averaged or ignored in silence."""

    def checked(logits: Tensor, targets: Tensor) -> Tensor:
        if loss is cross_entropy:
            check_labels(logits, targets)
        values = loss(logits, targets)
        if not isinstance(values, Tensor) or values.shape != targets.shape[:1]:
            raise FauditError(
                f"the loss returned {kind(values)} for {len(targets)} samples; it must return one"
                " loss per sample (reduction='none', averaged over the rest)"
            )
        _check_alone(loss, logits, targets, values)
        return values

    return checked


def _check_alone(loss: Loss, logits: Tensor, targets: Tensor, values: Tensor) -> None:
    """(N, 1) outputs against (N,) targets broadcast to (N, N) without a word; one sample tells."""
    with torch.no_grad():
        alone = loss(logits[:1], targets[:1])[0]
    rounding = torch.finfo(values.dtype).eps ** 0.5
    if not torch.allclose(alone, values[0], rtol=rounding, atol=rounding, equal_nan=True):
        raise FauditError(
            f"the loss of a sample depends on the others: {values[0].item():.4g} in its batch,"
            f" {alone.item():.4g} alone; outputs {tuple(logits.shape)} and targets"
            f" {tuple(targets.shape)} may have been broadcast"
        )


def checked_source(credits: Any) -> Any:
    """What can be asked for credits: a rule, a callable, a list for one batch, or nothing."""
    if isinstance(credits, type):
        raise RuleError(
            f"credits is the class {credits.__name__}; give the rule that trained the network, or"
            " make_rule(name, network.layout(x))"
        )
    known = credits is None or callable(credits) or hasattr(credits, "credits")
    if not known and (isinstance(credits, str) or not isinstance(credits, Sequence)):
        raise RuleError(
            f"credits must be a credit rule, a callable or a list a_0..a_L, not {credits!r:.60};"
            " faudit.rules.make_rule makes a rule from its name"
        )
    return credits


def checked_credits(told: Any, states: Sequence[Tensor]) -> list[Tensor]:
    """Credits as a list, one for every state and of its shape."""
    credits = list(told) if isinstance(told, Iterable) else [told]
    if len(credits) != len(states):
        raise RuleError(
            f"{len(credits)} credits for {len(states)} states; give a_0..a_L, one per state"
        )
    for layer, (a, h) in enumerate(zip(credits, states, strict=True)):
        if not isinstance(a, Tensor) or a.shape != h.shape or not a.is_floating_point():
            raise RuleError(f"credit a_{layer} is {kind(a)}; its state is {kind(h)}")
    return [a.detach() for a in credits]


def check_rule(rule: Any, states: Sequence[Tensor], logits: Tensor) -> None:
    """Refuse a rule that was made for another network, or in another dtype."""
    if isinstance(made_for := getattr(rule, "layout", None), Layout):
        shapes = tuple(tuple(h.shape[1:]) for h in states)
        made_for.check(Layout(shapes, (), classes(logits)))
    _check_dtype(rule, (states[-1], logits))


def _check_dtype(rule: Any, tensors: Sequence[Tensor]) -> None:
    """Refuse matrices that could not be multiplied with any of the network's tensors."""
    if torch.is_autocast_enabled(tensors[0].device.type):
        return  # autocast brings the two together
    weights = rule.parameters() if isinstance(rule, nn.Module) else ()
    known = {t.dtype for t in tensors}
    other = next((w.dtype for w in weights if w.dtype not in known), None)
    if other is not None:
        raise RuleError(
            f"the rule computes in {other} and the network in {tensors[0].dtype};"
            f" give rule.to({tensors[0].dtype})"
        )


def as_double(x: Any) -> Any:
    """An input for a network in float64."""
    return map_tensors(x, lambda t: t.double() if t.is_floating_point() else t.clone())
