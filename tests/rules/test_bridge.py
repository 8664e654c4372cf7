"""Bridges against perfect predictors: what they would say if they had nothing left to learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from faudit.networks.scene import Scene
from faudit.networks.view import Network
from faudit.rules.bridge import CreditBridge, StateBridge

Toys = Callable[..., Any]


class PerfectState(StateBridge):
    """Predicts h_L with the rest of the true network."""

    network: Any

    def predict(self, index: int, h: Tensor) -> Tensor:
        for block in self.network.blocks[index:]:
            h = block(h)
        return h


class PerfectCredit(CreditBridge):
    """Predicts the loss with the rest of the true network."""

    network: Any
    x: Tensor

    def value(self, scene: Scene, index: int, h: Tensor) -> Tensor:
        return scene.loss(self.network.logits_from(self.x, index, h), scene.targets)


@pytest.mark.parametrize("rule", [PerfectState, PerfectCredit])
@pytest.mark.parametrize("kind", ["vector", "token", "image"])
def test_a_perfect_bridge_gives_the_gradient(toys: Toys, rule: Any, kind: str) -> None:
    toy = toys(kind)
    toy.network.module.eval()
    perfect = rule(toy.network.layout(toy.x), torch.Generator())
    perfect.network, perfect.x = toy.network, toy.x
    for a, g in zip(perfect.credits(toy.seen), toy.exact, strict=True):
        torch.testing.assert_close(a, g, rtol=1e-10, atol=1e-13)


class RestOfTheNetwork(nn.Module):
    """A bridge's own net with nothing left to learn: it reads off the depth where it stands.

    Given a state and t_l it gives h_L; given the label, or the error, as well, it gives the loss.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, told: Tensor) -> Tensor:
        h, depth, context = told.split([8, 1, told.shape[1] - 9], 1)
        (share,) = set(depth.flatten().tolist())
        for block in self.network.blocks[round(share * self.network.depth) :]:
            h = block(h)
        if not context.shape[1]:
            return h
        # a label is 1 where all else is 0; an error is below 0 there alone
        label = context.argmax(1) if bool((context >= 0).all()) else context.argmin(1)
        logits = self.network.module.readout(h)  # type: ignore[operator]
        return F.cross_entropy(logits, label, reduction="none")[:, None]


@pytest.mark.parametrize("depth", [1, 3, 5])
@pytest.mark.parametrize(
    ("name", "options"), [("sb", {}), ("cb", {"sees": "label"}), ("cb", {"sees": "error"})]
)
def test_a_bridges_net_that_has_learned_all_gives_the_gradient(
    toys: Toys, name: str, options: dict[str, str], depth: int
) -> None:
    """All of the rule but the net is its own: what the net is told, at which depth, and the sum."""
    toy = toys("vector", depth=depth)
    rule = toy.rule(name, **options)
    rule.net = RestOfTheNetwork(toy.network)
    for a, g in zip(rule.credits(toy.seen), toy.exact, strict=True):
        torch.testing.assert_close(a, g, rtol=1e-10, atol=1e-13)


def test_a_credit_bridge_misses_by_the_mean_square_of_the_loss(toys: Toys) -> None:
    toy = toys("token")
    rule, seen = toy.rule("cb"), toy.seen
    losses = F.cross_entropy(seen.logits, toy.y, reduction="none")
    told = F.one_hot(toy.y, 4).double()[:, None].expand(-1, 5, -1)
    gaps = []
    for index, h in enumerate(seen.states):
        depth = torch.full_like(h[..., :1], index / 3)
        values = rule.net(torch.cat([h, depth, told], -1))[..., 0].mean(1)
        gaps.append((values - losses).square().mean())
    expected = float(torch.stack(gaps).mean().detach())
    assert rule.fit(seen)["bridge_loss"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("inputs", ["raw", "normalised"])
@pytest.mark.parametrize("kind", ["vector", "token", "image"])
@pytest.mark.parametrize("name", ["sb", "cb"])
def test_fitting_lowers_the_bridges_own_loss(toys: Toys, name: str, kind: str, inputs: str) -> None:
    toy = toys(kind)
    rule, seen = toy.rule(name, lr=3e-3, inputs=inputs), toy.seen
    first, *_, last = [rule.fit(seen)["bridge_loss"] for _ in range(60)]
    assert last < 0.9 * first


def test_fitting_teaches_the_bridge_and_nothing_else(toys: Toys) -> None:
    toy = toys("vector")
    rule = toy.rule("sb")
    before = [p.detach().clone() for p in rule.parameters()]
    rule.fit(toy.seen)
    assert all(p.grad is None for p in toy.network.module.parameters())
    assert all(p.grad is None for p in rule.parameters())
    assert not any(torch.equal(p, b) for p, b in zip(rule.parameters(), before, strict=True))


def test_a_state_bridge_misses_by_the_mean_square(toys: Toys) -> None:
    toy = toys("vector")
    rule, seen = toy.rule("sb"), toy.seen
    gaps = [rule.predict(i, h) - seen.states[-1] for i, h in enumerate(seen.states)]
    expected = torch.stack([gap.square().mean() for gap in gaps]).mean().detach()
    assert rule.fit(seen)["bridge_loss"] == pytest.approx(float(expected), rel=1e-12)


def test_a_bridge_knows_the_depth_it_stands_at(toys: Toys) -> None:
    rule, h = toys("vector").rule("sb"), torch.randn(2, 8).double()
    assert not torch.equal(rule.predict(0, h), rule.predict(1, h))


def test_a_credit_bridge_sees_what_it_is_given(toys: Toys) -> None:
    toy = toys("token")
    shifted = type(toy)(toy.network, toy.x, (toy.y + 1) % 4)
    for sees, differs in (("nothing", False), ("label", True), ("error", True)):
        rule = toy.rule("cb", sees=sees)
        one, other = rule.credits(toy.seen)[0], rule.credits(shifted.seen)[0]
        assert torch.equal(one, other) != differs


def test_normalised_inputs_hide_the_size_of_a_state(toys: Toys) -> None:
    h = torch.randn(2, 8).double()
    for inputs, differs in (("raw", True), ("normalised", False)):
        rule = toys("vector").rule("sb", inputs=inputs)
        assert torch.allclose(rule.predict(0, h), rule.predict(0, 1e4 * h), atol=1e-3) != differs
