"""What every view of every network must satisfy, stated once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from faudit.networks.scene import cross_entropy, gradients, scene
from faudit.networks.values import call, logits_of
from faudit.networks.view import Network
from faudit.recipe import Training
from faudit.rules import make_rule
from faudit.training import local_gradients

Gradients = dict[str, Tensor]


def hook_count(module: nn.Module) -> int:
    """Every hook on every submodule."""
    return sum(
        len(hooks)
        for m in module.modules()
        for name, hooks in vars(m).items()
        if name.endswith("_hooks") and isinstance(hooks, Mapping)
    )


def check_view(network: Network, x: Any) -> None:
    """The view gives the module's own logits, and a state put back changes nothing."""
    hooks = hook_count(network.module)
    with torch.no_grad():
        plain = logits_of(call(network.module, x))
        seen = network.trace(x)
        assert len(seen.states) == network.depth + 1 == len(network.names) + 1
        torch.testing.assert_close(seen.logits, plain, rtol=0, atol=0)
        for index, h in enumerate(seen.states):
            check_state(network, x, index, h, plain)
        for index in range(network.depth):
            after = network.block(x, index, seen.states[index])
            torch.testing.assert_close(after, seen.states[index + 1])
    assert hook_count(network.module) == hooks


def check_state(network: Network, x: Any, index: int, h: Tensor, plain: Tensor) -> None:
    """h_index put back changes nothing, another one changes the logits, neither is written to."""
    kept = h.clone()
    torch.testing.assert_close(network.logits_from(x, index, h), plain)
    generator = torch.Generator().manual_seed(index)
    other = h + torch.randn(h.shape, generator=generator, dtype=h.dtype)
    assert not torch.allclose(network.logits_from(x, index, other), plain)
    assert torch.equal(h, kept), f"h_{index} was overwritten"


def by_backward(network: Network, x: Any, y: Tensor) -> Gradients:
    """Every parameter's gradient of the mean loss, by plain autograd and without a view."""
    module = network.module
    module.zero_grad()
    cross_entropy(logits_of(call(module, x)), y).mean().backward()
    return _taken(module)


def by_local_credit(network: Network, x: Any, y: Tensor) -> Gradients:
    """The same from local objectives, each block told its exact credit."""
    module = network.module
    module.zero_grad()
    seen = scene(network, x, y)
    credits = make_rule("bp", network.layout(x)).credits(seen)
    inputs = [p for p in module.parameters() if p.requires_grad]
    local_gradients(seen, credits, Training(), inputs)
    return _taken(module)


def _taken(module: nn.Module) -> Gradients:
    named = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    module.zero_grad()
    return named


def check_local_backpropagation(network: Network, x: Any, y: Tensor) -> None:
    """Local learning from exact credit is backpropagation, parameter by parameter."""
    torch.manual_seed(0)
    local = by_local_credit(network, x, y)
    torch.manual_seed(0)
    expected = by_backward(network, x, y)
    assert local.keys() == expected.keys()
    largest = max(float(g.norm()) for g in expected.values())
    assert largest > 0
    for name, gradient in expected.items():
        gap, size = float((local[name] - gradient).norm()), float(gradient.norm())
        # the floor is for gradients that are zero but for rounding, such as attention's key bias
        assert gap <= 1e-10 * size + 1e-16 * largest, f"{name}: {gap} against {size}"


def check_reference(network: Network, x: Any, y: Tensor) -> None:
    """Each g_l is the slope of the loss when h_l moves: central differences, and no autograd."""
    seen, exact = gradients(network, x, y)
    generator = torch.Generator().manual_seed(0)
    for index, (h, g) in enumerate(zip(seen.states, exact, strict=True)):
        v = torch.randn(h.shape, generator=generator, dtype=h.dtype)
        ahead, behind = (_loss(network, x, y, index, h + s * 1e-6 * v) for s in (1, -1))
        slope = (ahead - behind) / 2e-6
        torch.testing.assert_close((g * v).flatten(1).sum(1), slope, rtol=1e-6, atol=1e-7)


def _loss(network: Network, x: Any, y: Tensor, index: int, h: Tensor) -> Tensor:
    with torch.no_grad():
        return cross_entropy(network.logits_from(x, index, h), y)
