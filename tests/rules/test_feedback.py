"""Feedback rules against explicit matrix products, and against backpropagation where they meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from faudit.errors import RuleError
from faudit.networks.scene import scene
from faudit.networks.view import Network
from faudit.rules import make_rule
from faudit.rules.base import broadcast, carry
from faudit.rules.feedback import BackwardWeights

Toys = Callable[..., Any]
SIGNS = ("usf", "brsf", "frsf")


class Sham(BackwardWeights):
    """Backward weights that are the forward ones."""

    def backward_weight(self, index: int, position: int, weight: Tensor) -> Tensor:
        return weight


class Recording(BackwardWeights):
    """Asks another rule for its backward weights and keeps them."""

    def __init__(self, rule: BackwardWeights) -> None:
        super().__init__(rule.layout, torch.Generator())
        self.rule, self.pairs = rule, []

    def backward_weight(self, index: int, position: int, weight: Tensor) -> Tensor:
        self.pairs.append((self.rule.backward_weight(index, position, weight), weight))
        return self.pairs[-1][0]


def backward_weights(toy: Any, rule: Any) -> list[tuple[Tensor, Tensor]]:
    """Every (backward, forward) pair of weights that one pass over the toy uses."""
    recording = Recording(rule)
    recording.credits(toy.seen)
    return recording.pairs


def close(credits: list[Tensor], expected: Any) -> None:
    for a, b in zip(credits, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-13)


def error(toy: Any) -> Tensor:
    """softmax - onehot, the slow and obvious way."""
    return toy.seen.logits.softmax(-1) - F.one_hot(toy.y, 4)


# -- BP -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["vector", "token", "image", "pooled", "hooked"])
def test_bp_is_the_gradient(toys: Toys, kind: str) -> None:
    toy = toys(kind)
    close(toy.rule("bp").credits(toy.seen), toy.exact)


# -- FA, DFA, DRTP --------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("kind", ["vector", "token"])
def test_fa_is_a_chain_of_its_matrices(toys: Toys, kind: str, depth: int) -> None:
    toy = toys(kind, depth=depth)
    rule = toy.rule("fa")
    expected = [toy.exact[-1]]
    for matrix in reversed(list(rule.matrices)):
        expected.append(expected[-1] @ matrix)
    assert len(rule.matrices) == depth
    close(rule.credits(toy.seen), expected[::-1])


@pytest.mark.parametrize("depth", [1, 3])
def test_dfa_projects_the_error_to_every_state(toys: Toys, depth: int) -> None:
    toy = toys("vector", depth=depth)
    rule = toy.rule("dfa")
    assert len(rule.matrices) == depth + 1
    close(rule.credits(toy.seen), [error(toy) @ matrix for matrix in rule.matrices])


def test_drtp_projects_the_target_uphill(toys: Toys) -> None:
    toy = toys("vector")
    rule = toy.rule("drtp")
    onehot = F.one_hot(toy.y, 4).double()
    close(rule.credits(toy.seen), [-onehot @ matrix for matrix in rule.matrices])


def test_dfa_shares_a_sample_equally_among_its_positions(toys: Toys) -> None:
    for kind, spatial in (("token", (1,)), ("image", (2, 3))):
        toy = toys(kind)
        rule = toy.rule("dfa")
        for credit, matrix in zip(rule.credits(toy.seen), rule.matrices, strict=True):
            assert bool((credit.amax(spatial) == credit.amin(spatial)).all())
            torch.testing.assert_close(credit.sum(spatial), error(toy) @ matrix)


def test_fa_through_a_pooling_block_is_the_transpose_of_average_pooling(toys: Toys) -> None:
    torch.manual_seed(0)
    matrix, fine = torch.randn(8, 4).double(), torch.randn(2, 4, 8, 8, requires_grad=True).double()
    credit = torch.randn(2, 8, 4, 4).double()
    forward = F.avg_pool2d(torch.einsum("nchw,oc->nohw", fine, matrix), 2)
    (expected,) = torch.autograd.grad(forward, fine, credit)
    torch.testing.assert_close(carry(credit, matrix, fine), expected)


def test_one_error_per_token_goes_to_its_own_token() -> None:
    told, matrix, state = torch.randn(2, 5, 3), torch.randn(3, 8), torch.zeros(2, 5, 8)
    assert torch.equal(broadcast(told, matrix, state), told @ matrix)
    with pytest.raises(RuleError, match="per position"):
        broadcast(told, matrix, torch.zeros(2, 8))


def test_fa_refuses_states_with_other_positions() -> None:
    with pytest.raises(RuleError, match="same positions"):
        carry(torch.zeros(2, 5, 8), torch.zeros(8, 8), torch.zeros(2, 6, 8))


def test_drtp_refuses_targets_that_are_not_labels(toys: Toys) -> None:
    toy = toys("vector")
    soft = torch.full((6, 4), 0.25, dtype=torch.float64)
    rule, seen = toy.rule("drtp"), scene(toy.network, toy.x, soft)
    with pytest.raises(RuleError, match="class indices"):
        rule.credits(seen)
    assert toy.rule("dfa").credits(seen)


def test_scale_multiplies_direct_feedback(toys: Toys) -> None:
    toy = toys("vector")
    one, three = (toy.rule("dfa", scale=s).credits(toy.seen) for s in (1.0, 3.0))
    torch.testing.assert_close(three[1], 3 * one[1], rtol=1e-6, atol=1e-7)


# -- backward weights -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["vector", "token", "image", "pooled", "hooked"])
def test_forward_weights_sent_back_are_backpropagation(toys: Toys, kind: str) -> None:
    toy = toys(kind)
    rule = Sham(toy.network.layout(toy.x), torch.Generator())
    close(rule.credits(toy.seen), toy.exact)


@pytest.mark.parametrize("kind", ["vector", "token", "image", "hooked"])
def test_usf_of_sign_weights_is_backpropagation(toys: Toys, kind: str) -> None:
    toy = toys(kind)
    with torch.no_grad():
        for index in range(toy.network.depth):
            for weight in toy.network.weights(index):
                weight.copy_(weight.sign())
    close(toy.rule("usf", scale=1.0).credits(toy.seen), toy.exact)


def test_usf_is_the_sign_at_the_size_of_a_glorot_weight(toys: Toys) -> None:
    for kind in ("vector", "pooled"):
        toy = toys(kind)
        for back, weight in backward_weights(toy, toy.rule("usf")):
            receptive = weight[0, 0].numel()
            glorot = (2 / (weight.shape[0] + weight.shape[1]) / receptive) ** 0.5
            torch.testing.assert_close(back, weight.sign() * glorot, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", SIGNS)
def test_sign_symmetric_feedback_has_the_forward_signs_at_all_times(toys: Toys, name: str) -> None:
    toy = toys("vector")
    rule = toy.rule(name)
    for _ in range(2):
        assert all(torch.equal(b.sign(), w.sign()) for b, w in backward_weights(toy, rule))
        with torch.no_grad():
            toy.network.blocks[0].w1.weight.neg_()


def test_random_magnitudes_are_uniform_about_usfs(toys: Toys) -> None:
    layout = Network.of(nn.Sequential(nn.Linear(300, 300), nn.Identity()), ["0"])
    rule = make_rule("frsf", layout.layout(torch.zeros(1, 300)), scale=0.5)
    sizes = rule.magnitude(0, 0, torch.ones(300, 300))  # type: ignore[operator]
    assert 0 <= float(sizes.min()) < 0.001 < 0.999 < float(sizes.max()) <= 1
    assert float(sizes.mean()) == pytest.approx(0.5, abs=0.005)
    assert float(sizes.var()) == pytest.approx(1 / 12, abs=0.002)


def test_only_brsf_draws_again_after_an_update(toys: Toys) -> None:
    toy = toys("vector")
    for name, stays in (("usf", True), ("frsf", True), ("brsf", False)):
        rule = toy.rule(name)
        before = [back for back, _ in backward_weights(toy, rule)]
        rule.after_step(toy.network)
        after = [back for back, _ in backward_weights(toy, rule)]
        assert [torch.equal(a, b) for a, b in zip(before, after, strict=True)] == [stays] * 6


def test_every_weight_has_magnitudes_of_its_own(toys: Toys) -> None:
    toy = toys("vector")
    backs = [back.abs() for back, _ in backward_weights(toy, toy.rule("frsf"))]
    assert all(not torch.equal(a, b) for i, a in enumerate(backs) for b in backs[:i])


def test_weights_that_no_layer_owns_are_refused() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.eye(4))

        def forward(self, h: Tensor) -> Tensor:
            return h @ self.w

    network = Network.of(nn.Sequential(nn.Linear(4, 4), Bare(), nn.Linear(4, 4)), ["1"])
    x, y = torch.randn(2, 4), torch.tensor([0, 1])
    with pytest.raises(RuleError, match=r"block '1' uses weights of shape \(4, 4\)"):
        make_rule("usf", network.layout(x)).credits(scene(network, x, y))


# -- Kolen-Pollack --------------------------------------------------------------------------------


def test_kolen_pollack_with_mirrored_weights_is_backpropagation(toys: Toys) -> None:
    for kind in ("vector", "token", "image"):
        toy = toys(kind)
        rule = toy.rule("kp")
        with torch.no_grad():
            for weight, mirror in rule.mirrors(toy.network):
                mirror.copy_(weight)
        close(rule.credits(toy.seen), toy.exact)


def test_kolen_pollack_gaps_shrink_by_the_decay_under_plain_steps(toys: Toys) -> None:
    toy = toys("vector")
    rule = toy.rule("kp", decay=0.1)
    pairs = rule.mirrors(toy.network)
    first = [(w - b).detach().clone() for w, b in pairs]
    for step in range(3):
        torch.manual_seed(step)
        with torch.no_grad():
            for weight, mirror in pairs:
                update = torch.randn_like(weight)
                weight.sub_(update)
                mirror.sub_(update)
        rule.after_step(toy.network)
    for (weight, mirror), gap in zip(pairs, first, strict=True):
        torch.testing.assert_close(weight - mirror, 0.9**3 * gap, rtol=1e-12, atol=1e-14)


def test_kolen_pollack_leaves_frozen_weights_alone(toys: Toys) -> None:
    toy = toys("vector")
    rule = toy.rule("kp", decay=0.1)
    toy.network.blocks[0].requires_grad_(False)
    before = [(w.detach().clone(), b.detach().clone()) for w, b in rule.mirrors(toy.network)]
    rule.after_step(toy.network)
    after = rule.mirrors(toy.network)
    untouched = [torch.equal(b[0], a[0]) for a, b in zip(after, before, strict=True)]
    assert untouched == [True, True, False, False, False, False]
