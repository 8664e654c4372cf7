"""Toys for the rules: one batch inside a tiny float64 network of every kind of state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from faudit.networks.scene import Scene, gradients, scene
from faudit.networks.view import Network
from faudit.networks.zoo import ResMLP, SmallResNet, ViTMini
from faudit.rules import CreditRule, make_rule

CLASSES = 4


@dataclass
class Toy:
    """A network, a batch, and short ways to what the tests ask of them."""

    network: Network
    x: Tensor
    y: Tensor

    @property
    def seen(self) -> Scene:
        """The batch inside the network."""
        return scene(self.network, self.x, self.y)

    @property
    def exact(self) -> tuple[Tensor, ...]:
        """dL/dh of every sample, by autograd through the whole network."""
        return gradients(self.network, self.x, self.y)[1]

    def rule(self, name: str, seed: int = 1, **options: object) -> CreditRule:
        """A rule for this network, in float64."""
        return make_rule(name, self.network.layout(self.x), seed=seed, **options).double()

    def part(self, samples: slice) -> Toy:
        """The same network with some samples of the batch."""
        return Toy(self.network, self.x[samples], self.y[samples])


@pytest.fixture
def toys() -> Callable[..., Toy]:
    """Makes the toy of a given name."""
    return make_toy


def make_toy(name: str, *, depth: int = 3) -> Toy:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module, blocks = _module(name, depth)
        shape = (12,) if name in ("vector", "hooked") else (3, 8, 8)
        x = 3 * torch.randn(6, *shape, dtype=torch.float64)
    return Toy(Network.of(module.double(), blocks), x, torch.tensor([0, 1, 2, 3, 0, 1]))


def _module(name: str, depth: int) -> tuple[nn.Module, list[str] | None]:
    if name == "vector":
        module = ResMLP(inputs=12, width=8, depth=depth, classes=CLASSES)
        # Blocks as steep as trained ones: at their initialisation all are almost the identity.
        for block in module.blocks:
            nn.init.normal_(block.w2.weight, std=0.1)
        return module, None
    if name == "token":
        return ViTMini(image=8, width=8, depth=depth, heads=2, classes=CLASSES), None
    if name == "image":
        return SmallResNet(widths=(4,) * depth, classes=CLASSES), None
    if name == "pooled":
        return SmallResNet(widths=(4, 4, 8), classes=CLASSES), None
    layers = [nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True)) for _ in range(depth)]
    module = nn.Sequential(nn.Linear(12, 8), *layers, nn.Linear(8, CLASSES))
    return module, [str(index + 1) for index in range(depth)]
