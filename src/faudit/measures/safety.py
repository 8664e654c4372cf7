"""Safety: a network measured under this guard is afterwards exactly what it was."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from faudit.networks.anew import duplicate
from faudit.networks.scene import grading, keeping_buffers
from faudit.networks.view import evaluating

T = TypeVar("T")

Changed = Callable[[], list[str]]
"""() -> the names of the buffers that a forward pass has changed so far."""

CONTAINERS = (list, deque, set, dict, OrderedDict, defaultdict, Counter)
"""Subclasses may not be refilled, or not mean by it what these do."""


@contextmanager
def untouched(module: nn.Module, seed: int) -> Iterator[Changed]:
    """Eval mode and autograd on inside; outside, nothing has happened, also if something raised.

    Weights with their gradients and flags, buffers, submodules, hooks, plain attributes, every
    submodule's mode and the state of all random sources are given back. Inside, random numbers
    follow from ``seed``.

    >>> layer = nn.BatchNorm1d(2)
    >>> with untouched(layer, seed=0) as changed:
    ...     layer.running_mean.add_(1); (layer.training, changed())
    tensor([1., 1.])
    (False, ['running_mean'])
    >>> layer.running_mean, layer.training
    (tensor([0., 0.]), True)
    """
    with (
        grading(),
        _random_kept(module, int(seed)),
        evaluating(module),
        _attributes_kept(module),
        _parameters_kept(module),
        _shortened_kept(module),
        _buffers_kept(module) as changed,
    ):
        yield changed


@contextmanager
def _random_kept(module: nn.Module, seed: int) -> Iterator[None]:
    devices = {p.device for p in module.parameters() if p.device.type == "cuda"}
    python, legacy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=list(devices)):
            # torch.manual_seed would also reach devices that nobody forked
            torch.default_generator.manual_seed(seed)
            for device in devices:
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)


@contextmanager
def _parameters_kept(module: nn.Module) -> Iterator[None]:
    """The same parameters with the same weights, gradients and flags.

    A forward may constrain its weights each time it runs, as EEGNet does. Nobody can add to a
    ``.grad`` that is not there meanwhile.
    """
    before = [(p, p.grad, p.requires_grad) for p in module.parameters()]
    weights = [(p, p.data, p.detach().clone()) for p, _, _ in before]
    for p, _, _ in before:
        p.grad = None
    try:
        yield
    finally:
        for p, held, weight in weights:
            _give_back(p, held, weight)
        for p, grad, flag in before:
            if p.requires_grad != flag:  # weights made in inference mode cannot even be told
                p.requires_grad_(flag)
            p.grad = grad


def _give_back(p: nn.Parameter, held: Tensor, weight: Tensor) -> None:
    """Let ``p`` hold the memory it held, with the numbers that stood there."""
    if not _alike(held, weight):
        held.copy_(weight)
    if p.data_ptr() != held.data_ptr() or p.shape != held.shape or p.dtype != held.dtype:
        p.data = held


@contextmanager
def _attributes_kept(module: nn.Module) -> Iterator[None]:
    """Every submodule's attributes, and what plain containers among them hold.

    That is what a module has registered (weights, buffers, submodules, hooks) and what forwards
    leave behind: activations with their graphs, counters, auxiliary losses. A container inside a
    container, or an object of any other class, stays the same object, whatever was done to it.
    """
    before = [(m, dict(vars(m))) for m in module.modules()]
    values = [value for _, own in before for value in own.values()]
    held = [(c, copy(c)) for c in values if type(c) in CONTAINERS]
    numbers = [(t, t.detach().clone()) for t in values if type(t) is Tensor]
    try:
        yield
    finally:
        for m, own in before:
            vars(m).clear()
            vars(m).update(own)
        for container, content in held:
            _refill(container, content)
        with torch.no_grad():
            for tensor, old in numbers:
                if tensor.shape == old.shape and not _alike(tensor, old):
                    tensor.copy_(old)


def _refill(container: Any, content: Any) -> None:
    container.clear()
    if isinstance(container, list | deque):
        container.extend(content)
    else:
        container.update(content)


@contextmanager
def _shortened_kept(module: nn.Module) -> Iterator[None]:
    """An embedding with a ``max_norm`` shortens its rows when it is called; copies stand in."""
    kinds = (nn.Embedding, nn.EmbeddingBag)
    parts = list(module.modules())
    copies = {
        id(m.weight): nn.Parameter(m.weight.detach().clone(), m.weight.requires_grad)
        for m in parts
        if isinstance(m, kinds) and m.max_norm is not None
    }
    owned = [(m, n, p) for m in parts for n, p in m._parameters.items() if id(p) in copies]
    for owner, name, weight in owned:
        owner._parameters[name] = copies[id(weight)]
    try:
        yield
    finally:
        for owner, name, weight in owned:
            owner._parameters[name] = weight


@contextmanager
def _buffers_kept(module: nn.Module) -> Iterator[Changed]:
    """The same buffers with the same values."""
    before = dict(module.named_buffers())
    with keeping_buffers(module):
        yield lambda: [n for n, b in module.named_buffers() if not _same(b, before.get(n))]


def _same(a: Tensor, b: Tensor | None) -> bool:
    return b is not None and a.shape == b.shape and _alike(a, b)


def _alike(a: Tensor, b: Tensor) -> bool:
    """Equal numbers, NaN to NaN."""
    return torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())


def differentiable(owner: T, module: nn.Module) -> T:
    """``owner`` of ``module``, or a copy where autograd refuses weights made in inference mode."""
    if not any(p.is_inference() for p in module.parameters()):
        return owner
    with grading():
        return duplicate(owner, module)


def bad_weight(module: nn.Module) -> str | None:
    """The first weight that holds a number that is not finite.

    >>> layer = nn.Linear(1, 1); _ = nn.init.constant_(layer.bias, float("inf"))
    >>> bad_weight(layer)
    'weight bias'
    """
    bad = (n for n, weight in module.named_parameters() if not bool(weight.isfinite().all()))
    return next((f"weight {name}" for name in bad), None)


def bad_buffer(module: nn.Module) -> str | None:
    """The first buffer that holds NaN; infinities are what masks are made of."""
    bad = (n for n, buffer in module.named_buffers() if bool(buffer.isnan().any()))
    return next((f"buffer {name}" for name in bad), None)
