"""Values: what goes into modules and comes out of them, checked and replaced for the view."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import signature
from math import nan
from typing import Any

import torch
from torch import Tensor, nn

from faudit.errors import NetworkError

Change = Callable[[Tensor], Tensor]


def call(module: nn.Module, x: Any, **options: Any) -> Any:
    """``module(x)``; a mapping becomes keyword arguments, as language models take them.

    >>> import torch
    >>> call(nn.Identity(), {"input": torch.ones(1)})
    tensor([1.])
    """
    with taking(module, x), _uncompiled():
        if isinstance(x, Mapping):
            return module(**x, **options)
        return module(x, **options)


def _uncompiled() -> AbstractContextManager[Any]:
    """Compiled parts as they were written, for compiled code runs past the hooks of its modules."""
    if "torch._dynamo" not in sys.modules:  # nothing was compiled, and loading it takes seconds
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


FORWARD_ERRORS = (
    RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError,
)  # fmt: skip
"""What layers and forwards raise on an input that is not theirs."""

OF_THE_MACHINE = ("memory", "bad_alloc", "CUDA error")
"""What the machine could not do says nothing of the input, and may be tried again."""


@contextmanager
def taking(module: nn.Module, x: Any) -> Iterator[None]:
    """Say which input a module was given when its forward fails on it, and how it failed."""
    try:
        yield
    except FORWARD_ERRORS as error:
        if any(word in str(error) for word in OF_THE_MACHINE):
            raise
        parts = x.items() if isinstance(x, Mapping) else [("", x)]
        given = ", ".join(f"{name} {kind(part)}".strip() for name, part in parts)
        why = " ".join(str(error).split())
        raise NetworkError(
            f"the forward of {type(module).__name__} fails on {given}:"
            f" {type(error).__name__}: {why:.300}"
        ) from error


def map_tensors(x: Any, change: Change) -> Any:
    """An input with ``change`` applied to its tensors; a mapping keeps its keys.

    >>> import torch
    >>> map_tensors({"x": torch.ones(1)}, torch.neg)
    {'x': tensor([-1.])}
    """
    if isinstance(x, Mapping):
        return {key: map_tensors(value, change) for key, value in x.items()}
    return change(x) if isinstance(x, Tensor) else x


def copied(x: Any) -> Any:
    """An input that a forward may overwrite, and that autograd may keep."""
    return map_tensors(x, Tensor.clone)


def logits_of(output: Any) -> Tensor:
    """The logits in what a forward returned: a tensor, a tuple's first element, or ``.logits``.

    >>> import torch
    >>> tuple(logits_of((torch.zeros(2, 3), "cache")).shape)
    (2, 3)
    """
    found = getattr(output, "logits", output)
    if isinstance(found, (tuple, list)) and found:
        found = found[0]
    if not isinstance(found, Tensor) or found.ndim < 1:
        raise NetworkError(
            f"the forward returned {kind(found)}; faudit needs logits of shape (samples, classes):"
            " a tensor, a tuple that begins with one, or an object with .logits"
        )
    return found


def classes(logits: Tensor) -> int:
    """How many outputs a sample has, for rules that send its error back from them.

    >>> import torch
    >>> classes(torch.zeros(8, 3))
    3
    """
    if logits.ndim < 2:
        raise NetworkError(
            f"a rule needs outputs of shape (samples, outputs), and the forward returned"
            f" {kind(logits)}; return one number per sample as (samples, 1)"
        )
    return logits.shape[-1]


def right(logits: Tensor, labels: Tensor) -> Tensor:
    """Where the largest logit is the label's; NaN chooses nothing, though argmax says class 0.

    >>> import torch
    >>> right(torch.tensor([[1.0, 0.0], [torch.nan, 0.0]]), torch.tensor([0, 0]))
    tensor([ True, False])
    """
    return (logits.argmax(-1) == labels) & ~logits.isnan().any(-1)


def marks(logits: Tensor, labels: Tensor) -> Tensor:
    """One row per sample: 1 where the largest logit is the label's, 0 where not, NaN at padding.

    Padding is a negative label, as cross-entropy's -100 is. The tokens of a sample stay together,
    for they are no independent examples.

    >>> import torch
    >>> marks(torch.eye(2).expand(2, 2, 2), torch.tensor([[0, -100], [1, 1]]))
    tensor([[1., nan],
            [0., 1.]], dtype=torch.float64)
    """
    found = right(logits, labels).double().masked_fill(labels < 0, nan)
    return found.reshape(len(labels), -1)


def as_state(value: Any, name: str) -> Tensor:
    """``value``, if it can be the state at ``name``."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        raise NetworkError(
            f"the state at {name!r} is {kind(value)}; name blocks that pass on a tensor of floats"
        )
    return value


def check_batch(index: int, h: Tensor, logits: Tensor) -> None:
    """Refuse a state that has something other than the samples first."""
    if h.shape[:1] != logits.shape[:1]:
        raise NetworkError(
            f"h_{index} is {kind(h)} and the logits are {kind(logits)}; both must have the"
            " samples first, so that every sample has a state of its own"
        )


def replace_output(output: Any, change: Change, name: str) -> Any:
    """A block's output with its state changed: the tensor, or the first element of a tuple.

    >>> import torch
    >>> replace_output((torch.ones(1), "cache"), torch.neg, "blocks.0")
    (tensor([-1.]), 'cache')
    """
    if isinstance(output, tuple) and output:
        first = change(as_state(output[0], name))
        rest = output[1:]
        return type(output)(first, *rest) if hasattr(output, "_fields") else (first, *rest)
    return change(as_state(output, name))


def replace_input(
    block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], change: Change, name: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A block's arguments with its state changed: the first positional one, or first by name."""
    if args:
        return (change(as_state(args[0], name)), *args[1:]), kwargs
    declared = signature(block.forward).parameters
    key = next((k for k in (*declared, *kwargs) if isinstance(kwargs.get(k), Tensor)), None)
    if key is None:
        raise NetworkError(f"block {name!r} receives no tensor; name blocks that pass a tensor on")
    return args, {**kwargs, key: change(as_state(kwargs[key], name))}


def kind(value: Any) -> str:
    """What a message calls ``value``.

    >>> import torch
    >>> kind(torch.zeros(2, 3)), kind([])
    ('a float32 tensor of shape (2, 3)', 'list')
    """
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
