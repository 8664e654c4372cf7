"""What every rule owes every network: one contract, walked over all pairs."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from math import inf, nan
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from faudit.errors import FauditError, RuleError
from faudit.rules import RULES, CreditRule, make_rule, rule_options

NETWORKS = ("vector", "token", "image", "pooled", "hooked")
RANDOM = ("fa", "dfa", "drtp", "brsf", "frsf", "kp", "sb", "cb")
BRIDGES = ("sb", "cb")
PAIRS = [(r, n) for r in RULES for n in NETWORKS if not (r in BRIDGES and n == "pooled")]

pairs = pytest.mark.parametrize(("name", "kind"), PAIRS)
Toys = Callable[..., Any]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def lived(toy: Any, rule: CreditRule) -> CreditRule:
    """The rule after a little of the life that training gives it."""
    for _ in range(2):
        rule.fit(toy.seen)
        rule.after_step(toy.network)
    return rule


@pairs
def test_credits_have_the_states_shapes_and_are_finite(toys: Toys, name: str, kind: str) -> None:
    toy = toys(kind)
    credits = toy.rule(name).credits(toy.seen)
    assert [a.shape for a in credits] == [h.shape for h in toy.seen.states]
    assert all(a.dtype == torch.float64 and not a.requires_grad for a in credits)
    assert all(bool(a.isfinite().all()) and bool(a.any()) for a in credits)


@pairs
def test_making_a_rule_draws_nothing_from_the_global_stream(
    toys: Toys, name: str, kind: str
) -> None:
    toy, chance = toys(kind), torch.get_rng_state()
    toy.rule(name).fresh(3)
    assert torch.equal(chance, torch.get_rng_state())


@pairs
def test_a_seed_decides_the_credits(toys: Toys, name: str, kind: str) -> None:
    toy = toys(kind)
    first, again, other = (toy.rule(name, seed).credits(toy.seen) for seed in (1, 1, 2))
    assert same(first, again)
    assert same(first, other) == (name not in RANDOM)


@pairs
def test_a_saved_rule_gives_the_same_credits(toys: Toys, name: str, kind: str) -> None:
    toy = toys(kind)
    rule, restored = lived(toy, toy.rule(name, 1)), toy.rule(name, 2)
    restored.load_state_dict(load(save(rule.state_dict())))
    assert same(rule.credits(toy.seen), restored.credits(toy.seen))


@pairs
def test_credits_change_nothing(toys: Toys, name: str, kind: str) -> None:
    toy = toys(kind)
    rule, seen = toy.rule(name), toy.seen
    parts = (rule, toy.network.module)
    before = deepcopy([part.state_dict() for part in parts])
    chance = torch.get_rng_state()
    rule.credits(seen)
    after = [part.state_dict() for part in parts]
    for old, new in zip(before, after, strict=True):
        assert list(old) == list(new)
        assert same(list(old.values()), list(new.values()))
    assert all(p.grad is None for part in parts for p in part.parameters())
    assert torch.equal(chance, torch.get_rng_state())


@pairs
def test_a_fresh_rule_is_drawn_anew(toys: Toys, name: str, kind: str) -> None:
    toy = toys(kind)
    rule = lived(toy, toy.rule(name))
    own, one, two = (r.credits(toy.seen) for r in (rule, rule.fresh(5), rule.fresh(6)))
    assert same(one, two) == same(own, one) == (name not in RANDOM)
    assert same(one, rule.fresh(5).credits(toy.seen))


@pairs
def test_no_sample_depends_on_the_others(toys: Toys, name: str, kind: str) -> None:
    toy = toys(kind)
    toy.network.module.eval()
    rule = lived(toy, toy.rule(name))
    whole, part = rule.credits(toy.seen), rule.credits(toy.part(slice(2, 5)).seen)
    for a, b in zip(whole, part, strict=True):
        torch.testing.assert_close(a[2:5], b, rtol=1e-9, atol=1e-14)


@pairs
def test_credits_need_neither_grad_mode_nor_trainable_weights(
    toys: Toys, name: str, kind: str
) -> None:
    toy = toys(kind)
    rule = toy.rule(name)
    expected = rule.credits(toy.seen)
    toy.network.module.requires_grad_(False)
    with torch.no_grad():
        assert same(rule.credits(toy.seen), expected)


@pytest.mark.parametrize("name", BRIDGES)
def test_a_bridge_refuses_states_of_several_shapes(toys: Toys, name: str) -> None:
    with pytest.raises(RuleError, match=r"one shape.*\(4, 8, 8\).*\(8, 4, 4\)"):
        toys("pooled").rule(name)


def test_unknown_names_are_refused_with_the_nearest_one(toys: Toys) -> None:
    with pytest.raises(RuleError, match="unknown rule 'dfaa'; did you mean 'dfa'"):
        toys("vector").rule("dfaa")
    with pytest.raises(RuleError, match="option of rule 'dfa' 'scal'; did you mean 'scale'"):
        toys("vector").rule("dfa", scal=2.0)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fa", {"scale": 0.0}),
        ("dfa", {"scale": "big"}),
        ("kp", {"decay": 1.0}),
        ("fa", {"scale": inf}),
        ("usf", {"scale": -1.0}),
        ("frsf", {"scale": nan}),
        ("brsf", {"scale": "big"}),
        ("sb", {"inputs": "cooked"}),
        ("sb", {"lr": -1.0}),
        ("sb", {"lr": 0.0}),
        ("sb", {"hidden": 0}),
        ("sb", {"hidden": -3}),
        ("sb", {"hidden": True}),
        ("cb", {"hidden": 2.5}),
        ("cb", {"sees": "everything"}),
        ("ep", {"beta": 0.0}),
        ("ep", {"beta": nan}),
        ("ep", {"beta": "0.1"}),
        ("ep", {"steps": 0}),
        ("ep", {"steps": 2.5}),
        ("ep", {"steps": True}),
        ("ep", {"centred": "False"}),
        ("ep", {"settle": "never"}),
    ],
)
def test_impossible_options_are_refused(toys: Toys, name: str, options: dict[str, Any]) -> None:
    with pytest.raises(RuleError):
        toys("vector").rule(name, **options)


def test_a_whole_number_of_numpy_is_one(toys: Toys) -> None:
    one, other = (toys("vector").rule("sb", hidden=kind(5)) for kind in (int, np.int64))
    assert [p.shape for p in one.parameters()] == [p.shape for p in other.parameters()]


def test_a_word_is_not_taken_for_true(toys: Toys) -> None:
    with pytest.raises(RuleError, match="centred must be true or false, not 'False'"):
        toys("vector").rule("ep", centred="False")


def test_a_rule_is_made_for_a_layout_and_a_seed(toys: Toys) -> None:
    toy = toys("vector")
    with pytest.raises(RuleError, match=r"made for network\.layout\(x\), not for a StagedNetwork"):
        make_rule("dfa", toy.network)
    for seed in (-1, 2**63, "one", 1.5):
        with pytest.raises(FauditError, match="seed is"):
            toy.rule("dfa", seed)
    one = toy.rule("dfa", np.int64(1)).state_dict()
    assert all(torch.equal(t, one[name]) for name, t in toy.rule("dfa", 1).state_dict().items())


def test_a_fresh_rule_keeps_the_options_however_it_was_made(toys: Toys) -> None:
    toy = toys("vector")
    layout = toy.network.layout(toy.x)
    made = (
        make_rule("fa", layout, scale=100.0),
        RULES["fa"](layout, torch.Generator().manual_seed(1), scale=100.0),
    )
    for rule in made:
        assert rule.fresh(3).options == {"scale": 100.0}
        assert float(rule.fresh(3).matrices[0].std()) > 10  # type: ignore[union-attr]


@pytest.mark.parametrize("name", RULES)
def test_a_rule_can_be_made_from_its_own_defaults(toys: Toys, name: str) -> None:
    toy = toys("vector")
    explicit = toy.rule(name, **rule_options(name))
    assert same(explicit.credits(toy.seen), toy.rule(name).credits(toy.seen))


@pytest.mark.parametrize("name", RULES)
def test_a_rule_can_be_copied(toys: Toys, name: str) -> None:
    toy = toys("vector")
    rule = toy.rule(name)
    assert same(deepcopy(rule).credits(toy.seen), rule.credits(toy.seen))
