"""Draw a network's weights anew: what a frozen-blocks baseline starts from."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from faudit.errors import NetworkError

T = TypeVar("T")


def duplicate(owner: T, module: nn.Module) -> T:
    """A deep copy of ``owner`` of ``module``, though a past forward left activations in the module.

    PyTorch refuses to copy what has a graph behind it; the copy holds the same numbers without.

    >>> layer = nn.Linear(2, 2)
    >>> layer.last = layer(torch.ones(1, 2))
    >>> duplicate(layer, layer).last.requires_grad
    False
    """
    left = (t for part in module.modules() for t in _tensors_in(vars(part)))
    return copy.deepcopy(owner, {id(t): t.detach().clone() for t in left if not t.is_leaf})


def _tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in nested containers."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors_in(item)


def redrawn(module: nn.Module, seed: int) -> nn.Module:
    """A copy of ``module`` at a fresh random initialisation; the original is not touched.

    Every submodule that owns parameters must have ``reset_parameters`` (PyTorch's layers do);
    children are reset before their parents, so a parent can refine what they drew.

    >>> layer = nn.Linear(3, 3)
    >>> bool((redrawn(layer, seed=1).weight == layer.weight).all())
    False
    """
    fresh = _copied(module)
    _refuse_unknown(fresh)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        for part in reversed(list(fresh.modules())):
            _reset(part)
    for parameter in fresh.parameters():
        parameter.requires_grad_(True)
    return fresh


def _copied(module: nn.Module) -> nn.Module:
    try:
        return duplicate(module, module)
    except Exception as error:  # anything may stand in a module
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise NetworkError(
            f"{type(module).__name__} cannot be copied to be drawn anew ({why:.150});"
            " pass fresh=lambda: YourModel()"
        ) from error


def _reset(part: nn.Module) -> None:
    for name in ("reset_parameters", "_reset_parameters"):
        if hasattr(part, name):
            getattr(part, name)()
            return


def _initialises_itself(part: nn.Module) -> bool:
    """Whether a module says, as models of Hugging Face and timm do, how its layers begin."""
    resets = hasattr(part, "reset_parameters") or hasattr(part, "_reset_parameters")
    return not resets and any(hasattr(part, name) for name in ("init_weights", "_init_weights"))


def _refuse_unknown(module: nn.Module) -> None:
    own = next((p for p in module.modules() if _initialises_itself(p)), None)
    if own is not None:
        raise NetworkError(
            f"{type(own).__name__} initialises itself (init_weights), so its layers drawn anew"
            " would not be what training started from; pass fresh=lambda: YourModel()"
        )
    unknown = [
        f"{name}.{parameter}".lstrip(".")
        for name, part in module.named_modules()
        for parameter in part._parameters
        if not hasattr(part, "reset_parameters") and not hasattr(part, "_reset_parameters")
    ]
    if unknown:
        raise NetworkError(
            f"{', '.join(unknown[:6])} cannot be drawn anew: the modules that own them have no"
            " reset_parameters(); give them one, or pass fresh=lambda: YourModel()"
        )
