"""Effects: nudges and forecasts of losses that are known in closed form."""

from __future__ import annotations

import math
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from faudit.measures.effects import Correlation, Perturbations, loss_at, nudges
from faudit.networks.scene import cross_entropy
from faudit.networks.view import Network
from tests import reference, toys

SLOPE = torch.tensor([3.0, -4.0], dtype=torch.float64)


def linear(_: int, h: Tensor) -> Tensor:
    """A loss whose gradient is the same everywhere."""
    return h.double().reshape(len(h), -1) @ SLOPE


H = torch.tensor([[1.0, 2.0], [0.5, -1.0]], dtype=torch.float64)


def test_a_nudge_against_the_gradient_lowers_the_loss_by_eta_times_its_norm():
    credit = SLOPE.expand(2, 2)
    found = nudges(linear, 0, H, credit, linear(0, H), eta=0.01)
    assert found.tolist() == pytest.approx([-0.05, -0.05])
    assert nudges(linear, 0, H, -credit, linear(0, H), 0.01).tolist() == pytest.approx([0.05] * 2)


def test_the_length_of_a_credit_makes_no_nudge_longer():
    credit = 1e-30 * SLOPE.expand(2, 2).float()
    found = nudges(linear, 0, H, credit, linear(0, H), eta=0.01)
    assert found.tolist() == pytest.approx([-0.05, -0.05])


def test_without_credit_there_is_no_nudge():
    credit = torch.stack([SLOPE, 0 * SLOPE])
    one, other = nudges(linear, 0, H, credit, linear(0, H), eta=0.01)
    assert one == pytest.approx(-0.05)
    assert other.isnan()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_nudge_that_rounding_swallows_is_undefined(dtype):
    h = torch.full((1, 2), 1e8, dtype=dtype)
    found = nudges(linear, 0, h, SLOPE[None].to(dtype), linear(0, h), eta=0.01)
    assert found.isnan().all()


RAN: Counter[int] = Counter()
"""How often a block ran; kept apart from the blocks, for one that notes anything is not skipped."""


class Counting(toys.Step):
    """A block that is counted, and may fail."""

    fails = False

    def forward(self, h: Tensor) -> Tensor:
        RAN[id(self)] += 1
        if self.fails:
            raise ZeroDivisionError
        return super().forward(h)


class Detour(toys.Plain):
    """Every block also gets what went into the one before it."""

    def __init__(self) -> None:
        super().__init__(Counting, depth=4)

    def forward(self, x: Tensor) -> Tensor:
        before, h = 0, self.stem(x)
        for block in self.blocks:
            before, h = h, block(h + before)
        return self.head(h)


def test_what_stands_before_a_state_is_not_computed_again_and_still_heard():
    network, (x, y) = Network.of(toys.built(Detour)), toys.batch()
    network.blocks[1].forward = lambda h, own=network.blocks[1].forward: 2 * own(h)
    for block in network.blocks:
        block.register_forward_hook(lambda _, __, output: output + 1)
    kept = [dict(vars(block)) for block in network.blocks]
    at = loss_at(network, x, y, cross_entropy)
    for index, h in enumerate(network.trace(x).states):
        expected = cross_entropy(network.logits_from(x, index, h + 1), y)
        RAN.clear()
        assert torch.equal(at(index, h + 1), expected)
        assert [RAN[id(block)] for block in network.blocks] == [0] * index + [1] * (4 - index)
    network.blocks[3].fails = True
    with pytest.raises(ZeroDivisionError):
        at(2, h)
    for block, attributes in zip(network.blocks, kept, strict=True):
        assert vars(block).keys() - {"fails"} == attributes.keys()
        assert vars(block).get("forward") is attributes.get("forward")


class Noting(toys.Step):
    """A block that leaves a note for the next one where no argument carries it."""

    def forward(self, h: Tensor) -> Tensor:
        heard = self.desk[-1] if self.desk else 0
        self.desk[:] = [h] if self.replaces else [*self.desk, h]
        return super().forward(h + heard)


@pytest.mark.parametrize("replaces", [True, False])
def test_a_block_that_leaves_notes_is_not_skipped(replaces):
    network, (x, y) = Network.of(toys.built(partial(toys.Plain, Noting, depth=3))), toys.batch()
    desk = []
    for block in network.blocks:
        block.desk, block.replaces = desk, replaces
    network.blocks[0].register_forward_pre_hook(lambda *_: desk.clear())
    at = loss_at(network, x, y, cross_entropy)
    for index, h in enumerate(network.trace(x).states):
        desk.clear()
        expected = cross_entropy(network.logits_from(x, index, h + 1), y)
        at(0, h - 1)
        assert torch.equal(at(index, h + 1), expected)


class Nested(toys.Step):
    """A block whose note lies deeper than its attributes, and stays there."""

    def forward(self, h: Tensor) -> Tensor:
        heard = self.desk["notes"][0]
        self.desk["notes"][0] = h
        return super().forward(h + heard)


class Stacking(toys.Plain):
    """Blocks that pile what they see on what they are given, as the two halves of a U-Net do."""

    class Block(toys.Step):
        def forward(self, h: Tensor, pile: list[Tensor]) -> Tensor:
            pile.append(h)
            return super().forward(h + pile[-2])

    def __init__(self) -> None:
        super().__init__(self.Block, depth=3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        pile = [torch.zeros_like(h)]
        for block in self.blocks:
            h = block(h, pile)
        return self.head(h + sum(pile))


class Popping(Stacking):
    """The last half takes off what the first half piled up, and fails where nothing lies."""

    class Block(toys.Step):
        piles = True

        def forward(self, h: Tensor, pile: list[Tensor]) -> Tensor:
            if self.piles:
                pile.append(h)
                return super().forward(h)
            return super().forward(h + pile.pop())

    def __init__(self) -> None:
        super().__init__()
        self.blocks[2].piles = False

    def forward(self, x: Tensor) -> Tensor:
        h, pile = self.stem(x), list[Tensor]()
        for block in self.blocks:
            h = block(h, pile)
        return self.head(h)


class Overwriting(Stacking):
    """Every block writes into the sum that the one before it returned."""

    class Block(toys.Step):
        def forward(self, h: Tensor, pile: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
            pile[0].add_(h)
            return super().forward(h), pile

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        pile = [torch.zeros_like(h)]
        for block in self.blocks:
            h, pile = block(h, pile)
        return self.head(h + pile[0])


def nested() -> toys.Plain:
    model = toys.Plain(Nested, depth=3)
    desk = {"notes": [0]}
    for block in model.blocks:
        block.desk = desk
    model.register_forward_pre_hook(lambda *_: desk["notes"].__setitem__(0, 0))
    return model


@pytest.mark.parametrize("make", [nested, Stacking, Popping, Overwriting])
def test_what_blocks_tell_each_other_beside_what_they_return_is_heard(make):
    network, (x, y) = Network.of(toys.built(make)), toys.batch()
    at = loss_at(network, x, y, cross_entropy)
    for index, h in enumerate(network.trace(x).states):
        expected = cross_entropy(network.logits_from(x, index, h + 1), y)
        at(0, h - 1)
        assert torch.equal(at(index, h + 1), expected)


def test_the_loss_at_a_state_is_the_loss_with_that_state():
    network, (x, y) = Network.of(toys.built(toys.InPlace)), toys.batch()
    at = loss_at(network, x, y, cross_entropy)
    states = network.trace(x).states
    expected = cross_entropy(network.module(x.clone()), y)
    for index, h in enumerate(states):
        kept = h.clone()
        torch.testing.assert_close(at(index, h), expected)
        assert torch.equal(h, kept)
    assert not at(0, states[0]).requires_grad


# Correlation


WHOLE = st.integers(-1000, 1000)


@given(
    st.lists(st.tuples(WHOLE, WHOLE), min_size=2, max_size=30),
    st.integers(1, 7),
    st.integers(-90, 90),
    st.integers(-90, 90),
)
def test_a_correlation_equals_its_twin_however_the_pairs_arrive(pairs, split, left, right):
    predicted, actual = torch.tensor(pairs, dtype=torch.float64).T
    found = Correlation()
    for p, a in zip(predicted.split(split), actual.split(split), strict=True):
        found.add(p * 10.0**left, a * 10.0**right)
    expected = reference.pearson(predicted.tolist(), actual.tolist())
    assert found.value == pytest.approx(expected, abs=1e-9, nan_ok=True)


def test_a_correlation_far_from_zero_keeps_its_digits():
    generator = torch.Generator().manual_seed(0)
    p, noise = torch.randn(2, 1000, generator=generator, dtype=torch.float64)
    a = p + noise
    near, far = Correlation(), Correlation()
    near.add(p, a)
    for one, other in zip(p.split(13), a.split(13), strict=True):
        far.add(one + 1e6, other - 1e6)
    assert far.value == pytest.approx(near.value, abs=1e-7)
    assert near.value == pytest.approx(reference.pearson(p.tolist(), a.tolist()), abs=1e-12)


@pytest.mark.parametrize("constant", [0.0, 1.0, 0.1, 1e8])
def test_what_does_not_vary_does_not_correlate(constant):
    found = Correlation()
    for _ in range(3):
        found.add(torch.full((7,), constant), torch.arange(7.0))
    assert math.isnan(found.value)
    assert math.isnan(Correlation().value)


def test_perfect_correlations_are_one():
    for sign in (1, -1):
        found = Correlation()
        found.add(torch.arange(5.0), sign * torch.arange(5.0))
        assert found.value == pytest.approx(sign)
        assert abs(found.value) <= 1


# Perturbations


def tried(h: Tensor, credit: Tensor, parts: int, **options: int) -> Perturbations:
    moves = Perturbations(**{"layer": 0, "count": 4, "size": 1e-3, "seed": 0, **options})
    for state, told in zip(h.split(parts), credit.split(parts), strict=True):
        moves.try_on(linear, state, linear(0, state), {"credit": told})
    return moves


STATES = torch.from_numpy(np.random.default_rng(0).standard_normal((200, 2)))
EXACT = SLOPE.expand(200, 2)


def test_the_gradient_forecasts_a_linear_loss_perfectly():
    assert tried(STATES, EXACT, 200).value("credit") == pytest.approx(1.0)
    assert tried(STATES, -EXACT, 200).value("credit") == pytest.approx(-1.0)


def test_a_random_vector_forecasts_nothing():
    assert abs(tried(STATES, EXACT, 200).value("random")) < 5 / math.sqrt(800)


@pytest.mark.parametrize("parts", [1, 7, 64])
def test_moves_do_not_depend_on_the_batches(parts):
    credit = EXACT + STATES
    whole, split = tried(STATES, credit, 200), tried(STATES, credit, parts)
    for name in ("credit", "random"):
        assert split.value(name) == pytest.approx(whole.value(name), abs=1e-12)


def test_moves_follow_from_the_seed_and_the_layer():
    credit = EXACT + STATES
    first, again = tried(STATES, credit, 50), tried(STATES, credit, 50)
    assert first.value("credit") == again.value("credit")
    for other in ({"seed": 1}, {"layer": 1}):
        assert tried(STATES, credit, 50, **other).value("credit") != first.value("credit")


def test_a_move_is_as_long_as_its_state_says():
    lengths = []

    def recording(_: int, h: Tensor) -> Tensor:
        lengths.append((h - STATES).norm(dim=1) / STATES.norm(dim=1))
        return linear(0, h)

    moves = Perturbations(layer=0, count=2, size=1e-3, seed=0)
    moves.try_on(recording, STATES, linear(0, STATES), {})
    torch.testing.assert_close(torch.cat(lengths), torch.full((400,), 1e-3, dtype=torch.float64))


def test_what_was_not_tried_has_no_value():
    assert math.isnan(tried(STATES, EXACT, 200).value("bp"))
