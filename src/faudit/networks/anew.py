"""Draw a network's weights anew: what a frozen-blocks baseline starts from."""

from __future__ import annotations

import copy

import torch
from torch import nn

from faudit.errors import NetworkError


def redrawn(module: nn.Module, seed: int) -> nn.Module:
    """A copy of ``module`` at a fresh random initialisation; the original is not touched.

    Every submodule that owns parameters must have ``reset_parameters`` (PyTorch's layers do);
    children are reset before their parents, so a parent can refine what they drew.

    >>> layer = nn.Linear(3, 3)
    >>> bool((redrawn(layer, seed=1).weight == layer.weight).all())
    False
    """
    fresh = copy.deepcopy(module)
    _refuse_unknown(fresh)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        for part in reversed(list(fresh.modules())):
            _reset(part)
    for parameter in fresh.parameters():
        parameter.requires_grad_(True)
    return fresh


def _reset(part: nn.Module) -> None:
    for name in ("reset_parameters", "_reset_parameters"):
        if hasattr(part, name):
            getattr(part, name)()
            return


def _refuse_unknown(module: nn.Module) -> None:
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
