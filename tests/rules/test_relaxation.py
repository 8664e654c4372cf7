"""Equilibrium propagation: it tends to backpropagation, and says when it has not settled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from faudit.networks.scene import Scene, gradients, scene
from faudit.networks.view import Network, StagedNetwork
from faudit.networks.zoo import ResMLP
from faudit.rules import make_rule, relaxation
from faudit.rules.relaxation import _error_slopes as relaxation_slopes
from faudit.rules.relaxation import settle_errors, settle_states

Toys = Callable[..., Any]


def cosines(credits: list[Tensor], exact: Any) -> Tensor:
    """Every sample's cosine with the gradient, at every state but h_0."""
    pairs = list(zip(credits, exact, strict=True))[1:]
    return torch.stack([torch.cosine_similarity(a.flatten(1), g.flatten(1)) for a, g in pairs])


def settled(toy: Any, beta: float, **options: Any) -> tuple[Tensor, float]:
    """(cosines with the gradient, residual) of converged equilibrium propagation."""
    rule = toy.rule("ep", beta=beta, settle="converged", tolerance=1e-6, **options)
    return cosines(rule.credits(toy.seen), toy.exact), rule.report["ep_residual"]


@pytest.mark.parametrize("kind", ["vector", "token", "image", "pooled", "hooked"])
def test_a_small_nudge_gives_the_gradient(toys: Toys, kind: str) -> None:
    found, residual = settled(toys(kind), 1e-3)
    assert float(found.min()) > 0.9999
    assert residual < 1e-2


@pytest.mark.parametrize("kind", ["vector", "token"])
def test_a_smaller_nudge_is_nearer_the_gradient(toys: Toys, kind: str) -> None:
    means = [float(settled(toys(kind), beta)[0].mean()) for beta in (1.0, 0.3, 0.1, 0.03, 0.01)]
    assert means == sorted(means)
    assert means[0] < 0.9 < 0.99 < means[-1]


def test_the_error_is_linear_in_the_nudge_and_quadratic_when_centred(toys: Toys) -> None:
    def far(beta: float, centred: bool) -> float:
        toy = toys("vector")
        rule = toy.rule("ep", beta=beta, settle="converged", tolerance=1e-9, centred=centred)
        pairs = zip(rule.credits(toy.seen), toy.exact, strict=True)
        return float(torch.stack([(a - g).norm() / g.norm() for a, g in pairs]).max())

    assert far(1e-2, True) < 0.1 * far(1e-2, False)
    assert far(1e-2, False) / far(1e-3, False) == pytest.approx(10, rel=0.1)
    assert far(1e-2, True) / far(1e-3, True) == pytest.approx(100, rel=0.1)


def test_many_plain_steps_settle_where_the_search_in_the_errors_does(toys: Toys) -> None:
    toy = toys("vector")
    options = {"beta": 0.1, "credit": "state"}
    plain = toy.rule("ep", steps=800, step_size=0.3, **options)
    quick = toy.rule("ep", settle="converged", tolerance=1e-9, **options)
    for a, b in zip(plain.credits(toy.seen), quick.credits(toy.seen), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)
    assert plain.report["ep_residual"] < 1e-6


def test_few_steps_are_plain_gradient_descent_in_the_states(toys: Toys) -> None:
    toy = toys("vector", depth=2)
    seen, beta = toy.seen, 0.5
    first, second = toy.network.blocks
    h0 = seen.states[0]
    h1, h2 = (h.clone().requires_grad_() for h in seen.states[1:])
    for _ in range(3):
        energy = (h1 - first(h0)).square().sum() / 2 + (h2 - second(h1)).square().sum() / 2
        d1, d2 = torch.autograd.grad(energy + beta * seen.losses(h2).sum(), (h1, h2))
        h1, h2 = ((h - 0.2 * d).detach().requires_grad_() for h, d in ((h1, d1), (h2, d2)))
    credits = toy.rule("ep", beta=beta, steps=3).credits(seen)
    expected = -(h1 - first(h0)) / beta, -(h2 - second(h1)) / beta
    torch.testing.assert_close(credits[1:], list(expected), rtol=1e-10, atol=1e-13)


def test_few_steps_report_that_they_have_not_settled(toys: Toys) -> None:
    toy = toys("vector")
    few = toy.rule("ep", steps=3)
    few.credits(toy.seen)
    assert few.report["ep_residual"] > 0.1 > 100 * settled(toy, 0.1)[1]


def test_the_residual_is_what_force_is_left(toys: Toys) -> None:
    toy = toys("vector", depth=1)
    seen, beta, block = toy.seen, 0.5, toy.network.blocks[0]
    rule = toy.rule("ep", beta=beta, steps=2, credit="state")
    moved = (seen.states[1] - beta * rule.credits(seen)[1]).requires_grad_()
    energy = (moved - block(seen.states[0])).square().sum() / 2
    (force,) = torch.autograd.grad(energy + beta * seen.losses(moved).sum(), moved)
    left = force.norm() / (beta * seen.output_credit.norm())
    assert rule.report["ep_residual"] == pytest.approx(float(left), rel=1e-9)


def test_where_plain_steps_diverge_the_search_in_the_errors_settles(toys: Toys) -> None:
    toy = toys("vector")
    for block in toy.network.blocks:
        nn.init.normal_(block.w2.weight, std=3.0)
    few = toy.rule("ep", beta=0.1)
    few.credits(toy.seen)
    assert few.report["ep_residual"] > 100
    assert settled(toy, 0.1)[1] < 1e-3


def test_the_search_in_the_errors_shortens_steps_that_overshoot(toys: Toys) -> None:
    toy = toys("vector")
    with torch.no_grad():
        toy.network.module.out_head.weight.mul_(10)  # curvature beyond what a full step stands
    assert settled(toy, 0.1)[1] < 1e-3


def test_the_forces_of_both_searches_are_the_energys(toys: Toys) -> None:
    toy = toys("vector")
    seen, beta = toy.seen, 0.5
    for found in (settle_states(seen, beta, 2, 0.2), settle_errors(seen, beta, 1e-9, 2)):
        states = [h.clone().requires_grad_() for h in found.states]
        blocks = zip(toy.network.blocks, states[:-1], states[1:], strict=True)
        errors = [after - block(before) for block, before, after in blocks]
        energy = torch.stack([e.square().sum() / 2 for e in errors]).sum()
        forces = torch.autograd.grad(energy + beta * seen.losses(states[-1]).sum(), states)
        torch.testing.assert_close(found.forces, forces, rtol=1e-8, atol=1e-12)
        torch.testing.assert_close(found.errors, tuple(e.detach() for e in errors))


def test_an_error_is_not_drowned_by_a_huge_stream() -> None:
    torch.manual_seed(0)
    module = ResMLP(inputs=12, width=8, depth=3, classes=4)
    for block in module.blocks:
        nn.init.normal_(block.w2.weight, std=1e8)
    network, x, y = Network.of(module), torch.randn(6, 12), torch.tensor([0, 1, 2, 3, 0, 1])
    exact = gradients(network, x, y)[1]
    rule = make_rule("ep", network.layout(x), settle="converged")
    credits = rule.credits(scene(network, x, y))
    for a, g in list(zip(credits, exact, strict=True))[1:]:
        torch.testing.assert_close(a, g, rtol=1e-3, atol=0)


def test_states_and_errors_agree_at_the_first_block_and_nowhere_deeper(toys: Toys) -> None:
    toy = toys("vector")
    for settle in ("few", "converged"):
        state, error = (
            toy.rule("ep", credit=credit, settle=settle).credits(toy.seen)
            for credit in ("state", "error")
        )
        torch.testing.assert_close(state[1], error[1], rtol=1e-9, atol=1e-12)
        for deeper in (2, 3):
            assert float((state[deeper] - error[deeper]).norm() / error[deeper].norm()) > 0.1


def test_the_first_credit_is_the_energys_or_nothing(toys: Toys) -> None:
    toy = toys("vector")
    energy, clamped = (
        toy.rule("ep", beta=1e-4, settle="converged", embedding=e).credits(toy.seen)[0]
        for e in ("energy", "clamped")
    )
    torch.testing.assert_close(energy, toy.exact[0], rtol=1e-2, atol=1e-6)
    assert not bool(clamped.any())


def test_samples_settle_each_for_itself(toys: Toys) -> None:
    toy = toys("vector")
    rule = toy.rule("ep", beta=1.0, settle="converged", max_steps=20)
    whole = rule.credits(toy.seen)
    for sample in range(6):
        part = rule.credits(toy.part(slice(sample, sample + 1)).seen)
        for a, b in zip(whole, part, strict=True):
            torch.testing.assert_close(a[sample : sample + 1], b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("settle", ["few", "converged"])
def test_without_blocks_the_embedding_gets_the_gradient(settle: str) -> None:
    module = ResMLP(inputs=12, width=8, depth=1, classes=4).double()
    network = StagedNetwork(module, [], [], module)
    x, y = torch.randn(3, 12).double(), torch.tensor([0, 1, 2])
    rule = make_rule("ep", network.layout(x), settle=settle)
    (credit,) = rule.credits(scene(network, x, y))
    torch.testing.assert_close(credit, gradients(network, x, y)[1][0])


def searched(
    monkeypatch: pytest.MonkeyPatch, seen: Scene, tolerance: float, max_steps: int
) -> list[Tensor]:
    """How steep every try of the search in the errors was, relative to its sample's nudge."""
    beta, nudge = 0.1, 0.1 * seen.output_credit.norm(dim=1)
    tries: list[Tensor] = []

    def slopes(*given: Any) -> Any:
        found = relaxation_slopes(*given)
        tries.append(torch.cat(found[1][1:], 1).norm(dim=1) / nudge)
        return found

    monkeypatch.setattr(relaxation, "_error_slopes", slopes)
    settle_errors(seen, beta, tolerance, max_steps)
    return tries


@pytest.mark.parametrize("tolerance", [1e-1, 1e-2, 1e-4])
def test_the_search_goes_on_to_its_tolerance_and_no_further(
    monkeypatch: pytest.MonkeyPatch, toys: Toys, tolerance: float
) -> None:
    tries = searched(monkeypatch, toys("vector").seen, tolerance, 200)
    assert len(tries) < 200
    assert float(torch.stack(tries).amin(0).max()) <= tolerance
    assert float(torch.stack(tries[:-1]).amin(0).max()) > tolerance


@pytest.mark.parametrize("most", [1, 4])
def test_the_search_takes_no_more_steps_than_it_may(
    monkeypatch: pytest.MonkeyPatch, toys: Toys, most: int
) -> None:
    assert len(searched(monkeypatch, toys("vector").seen, 1e-12, most)) == 1 + most
