"""Benchmarks: the others do the same work, and the arithmetic on their times is right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import clock, roofline
from benchmarks.growth import added
from benchmarks.loops import LocalLosses, by_hand, cifar_shaped, learning, resmlp
from benchmarks.rows import Row
from faudit.networks.scene import scene
from faudit.networks.view import Network
from faudit.recipe import Training
from faudit.routes import PLAIN
from faudit.rules import make_rule
from faudit.training import Learner, local_gradients

X = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0)).double()
Y = torch.arange(6)


def test_the_local_loss_loop_computes_faudits_dfa_gradients() -> None:
    model, twin = resmlp(width=16).double(), resmlp(width=16).double()
    network = Network.of(model)
    rule = make_rule("dfa", network.layout(X), seed=1).double()
    seen = scene(network, X, Y)
    local_gradients(seen, rule.credits(seen), Training(), list(model.parameters()))
    matrices = [m.detach() for m in rule.matrices]  # type: ignore[union-attr]
    LocalLosses(twin, matrices).backward(X, Y)
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert one.grad is not None
        torch.testing.assert_close(one.grad, other.grad)


def test_every_loop_makes_the_steps_it_says() -> None:
    data, seen = cifar_shaped(), []
    by_hand(data, lambda x, y: seen.append((x.shape, x.mean(), y)), steps=3, batch=8)()
    assert [shape for shape, _, _ in seen] == [(8, 3, 32, 32)] * 3
    assert abs(float(seen[0][1])) < 1.0
    learning(data, "dfa", 2, route=PLAIN, batch=8, width=8, depth=1)()


@pytest.mark.parametrize("told", [{}, {"penalty": 0.01}, {"normalise": "batch", "block_steps": 2}])
@pytest.mark.parametrize("rule", ["bp", "fa", "dfa"])
def test_the_roofline_counts_a_steps_operations(rule: str, told: dict[str, Any]) -> None:
    if rule == "bp" and told:
        pytest.skip("no row trains backpropagation so")
    network = Network.of(resmlp(width=32, depth=3).double())
    teacher = make_rule(rule, network.layout(X), seed=1).double()
    learner = Learner(network, teacher, Training(**told), X, seed=0)
    learner.step(X, Y)  # the first step also checks the network
    with FlopCounterMode(display=False) as counter:
        learner.step(X, Y)
    repeats = told.get("block_steps", 1)
    products = roofline.products(32, 3, len(X), rule=rule, repeats=repeats)
    # FA's credit and the readout's own gradient are the same product, and a floor holds one.
    twice = 2 * len(X) * 10 * 32 if rule == "fa" else 0
    assert sum(p.flops * p.count for p in products) + twice == counter.get_total_flops()


def test_shapes_that_rules_share_are_timed_once() -> None:
    shared = roofline.products(8, 1, 4), roofline.products(8, 1, 4, rule="fa")
    both = roofline.contenders([*shared[0], *shared[1]])
    assert both.keys() == roofline.contenders(shared[1]).keys()


def test_a_block_costs_what_it_adds() -> None:
    times = {"2": [1.0, 2.0], "16": [15.0, 30.0], "32": [31.0, 94.0]}
    assert added(times, 2, 16) == [1.0, 2.0]
    assert added(times, 16, 32) == [1.0, 4.0]


def test_the_floor_takes_every_product_at_its_best_route() -> None:
    products = [roofline.Product("output", 1, 1, 1, 3), roofline.Product("input", 1, 1, 1, 1)]
    output, back = "product output 1 x 1 x 1", "product input 1 x 1 x 1"
    seconds = {f"{output} by torch": [8.0], f"{output} by onednn": [16.0]}
    times = {**seconds, f"{back} by torch": [24.0]}
    assert roofline.floor(products, times) == [(3 * 8.0 + 24.0) / roofline.REPEATS]
    assert roofline.peak(products, times) == [2 / (8.0 / roofline.REPEATS)]


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_exponents_are_slopes(power: float) -> None:
    sizes = [2.0, 4.0, 32.0]
    assert clock.exponent(sizes, [3 * s**power for s in sizes]) == pytest.approx(power)


def test_a_ratio_is_that_of_each_round() -> None:
    found = clock.ratio([2.0, 40.0, 6.0], [1.0, 10.0, 2.0])
    assert found.value == 3.0


def test_a_target_is_met_or_not_or_absent() -> None:
    assert Row("", 3.0, least=2.8).met is True
    assert Row("", 3.0, most=2.8).met is False
    assert Row("", 3.0).met is None
