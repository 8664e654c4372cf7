"""Safety: whatever is measured, and however it ends, the module is afterwards what it was."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from faudit.errors import FauditError
from faudit.measures.measure import measure
from faudit.measures.safety import bad_buffer, bad_weight, differentiable, untouched
from faudit.networks.view import Network
from faudit.networks.zoo import ResMLP, SmallResNet, ViTMini
from faudit.rules import make_rule
from faudit.rules.base import CreditRule
from tests import toys
from tests.measures.problems import (
    PROBLEMS,
    Problem,
    measured,
    rule_for,
    some_credits,
    stacked,
)
from tests.networks.checks import hook_count


def snapshot(module: nn.Module) -> dict[str, Any]:
    """Everything about a module that measuring might have changed."""
    return {
        "parameters": [(n, id(p), p.requires_grad, p._version) for n, p in _all(module)],
        "weights": [p.detach().clone() for _, p in _all(module)],
        "gradients": [(id(p.grad), p.grad is not None and p.grad.clone()) for _, p in _all(module)],
        "buffers": [(n, id(b), b.clone()) for n, b in module.named_buffers()],
        "modes": [m.training for m in module.modules()],
        "hooks": hook_count(module),
        "attributes": [sorted(vars(m)) for m in module.modules()],
        "random": [torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()],
        "grad mode": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
    }  # fmt: skip


def _all(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return list(module.named_parameters(remove_duplicate=False))


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


def unchanged(module: nn.Module, act: Callable[[], Any]) -> Any:
    """What ``act`` gives, if it leaves the module alone."""
    before = snapshot(module)
    try:
        return act()
    finally:
        for name, value in snapshot(module).items():
            assert alike(before[name], value), f"{name} changed"


def credits_for(problem: Problem, name: str) -> CreditRule | list[Tensor]:
    """A rule, or its credits' like where a sample has no error that a rule could send back."""
    if problem.y.is_floating_point() and problem.y.ndim == 1:
        return stacked(some_credits(problem))
    return rule_for(problem, name)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("training", [True, False])
def test_nothing_changes(name, training):
    problem = PROBLEMS[name]()
    problem.module.train(training)
    kept = problem.x.clone()
    made = credits_for(problem, "dfa" if problem.loss is None else "bp")
    unchanged(problem.module, lambda: measured(problem, made, perturbations=2, nulls=2))
    assert torch.equal(problem.x, kept)


def test_modes_flags_and_gradients_of_every_part_are_kept():
    model = toys.built(lambda: toys.Plain(toys.NormStep)).train()
    model.blocks[0].norm.eval()
    model.head.requires_grad_(False)
    x, y = toys.batch()
    model(x).sum().backward()
    assert model.stem.weight.grad is not None
    assert model.head.weight.grad is None
    rule = make_rule("fa", Network.of(model).layout(x)).double()
    unchanged(model, lambda: measure(model, x, y, rule, perturbations=1, nulls=2))


def careless(scene: Any) -> list[Tensor]:
    """Credits by someone who calls backward, switches flags and draws random numbers."""
    scene.loss(scene.network.module(scene.x), scene.targets).sum().backward()
    scene.network.module.requires_grad_(False)
    scene.network.module.train()
    random.random(), np.random.rand(), torch.rand(1)
    return list(scene.states)


def test_even_careless_credits_harm_nothing():
    model, (x, y) = toys.built(lambda: toys.Plain(toys.NormStep)), toys.batch()
    model(x).sum().backward()
    unchanged(model, lambda: measure(model, x, y, careless, perturbations=1))


class Failing:
    """A rule that fails, at once or when asked for its second batch."""

    has_feedback = False

    def __init__(self, after: int) -> None:
        self.after = after

    def credits(self, scene: Any) -> list[Tensor]:
        self.after -= 1
        if self.after < 0:
            careless(scene)
            raise ZeroDivisionError("from the rule")
        return list(scene.states)


@pytest.mark.parametrize("after", [0, 1])
def test_nothing_changes_when_the_rule_raises(after):
    model, batch = toys.built(lambda: toys.Plain(toys.NormStep)).train(), toys.batch()
    rule = Failing(after)

    def act() -> None:
        with pytest.raises(ZeroDivisionError):
            measure(model, [batch, batch], None, rule, perturbations=1)

    unchanged(model, act)


def test_nothing_changes_when_the_forward_the_loss_or_the_data_raise():
    x, y = toys.batch()

    def loss(z: Tensor, t: Tensor) -> Tensor:
        raise ZeroDivisionError

    def data() -> Any:
        yield x, y
        raise ZeroDivisionError

    for make, args, options in (
        (toys.Failing, (x, y), {}),
        (toys.Plain, (x, y), {"loss": loss}),
        (toys.Plain, (data(),), {}),
    ):
        model = toys.built(lambda make=make: make(toys.NormStep)).train()

        def act(model: Any = model, args: Any = args, options: Any = options) -> None:
            with pytest.raises(ZeroDivisionError):
                measure(model, *args, **options)

        unchanged(model, act)
    bad = toys.built(toys.Plain).train()
    with pytest.raises(FauditError):
        unchanged(bad, lambda: measure(bad, x, y + 9))


class Counting(toys.Step):
    """A block that counts its calls in a buffer and caches another, in eval mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, h: Tensor) -> Tensor:
        self.calls += 1
        if not hasattr(self, "cache"):
            self.register_buffer("cache", torch.ones(3))
        return super().forward(h)


@pytest.mark.parametrize("credited", [False, True])
def test_buffers_that_change_in_eval_mode_are_reported_and_restored(credited):
    model, (x, y) = toys.built(lambda: toys.Plain(Counting)), toys.batch()
    names = list(model.state_dict())
    rule = make_rule("dfa", toys_layout(x)).double() if credited else None
    found = unchanged(model, lambda: measure(model, x, y, rule, perturbations=0))
    assert set(found.facts["buffers_changed"].split(", ")) >= {"blocks.0.calls", "blocks.1.calls"}
    assert list(model.state_dict()) == names
    assert "buffers_changed" not in measured(PROBLEMS["batch norm"]()).facts


def toys_layout(x: Tensor) -> Any:
    return Network.of(toys.built(toys.Plain)).layout(x)


class Overwriting(toys.Plain):
    """A forward that normalises its input in place."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x.mul_(0.5))


def test_an_input_that_the_forward_overwrites_is_left_alone():
    x, y = toys.batch()
    model, kept = toys.built(Overwriting), x.clone()
    rule = make_rule("dfa", toys_layout(x)).double()
    found = measure(model, x, y, rule, perturbations=2)
    assert torch.equal(x, kept)
    plain = measure(toys.built(toys.Plain), x / 2, y, rule, perturbations=2)
    assert found.replace(facts={}) == plain.replace(facts={})


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", ["resmlp", "in place", "batch norm", "language model"])
@pytest.mark.parametrize("rule", ["bp", "dfa", "usf"])
def test_autograd_switched_off_outside_changes_no_number(off, name, rule):
    problem = PROBLEMS[name]()
    made = rule_for(problem, rule)
    options = {"perturbations": 1, "nulls": 2}
    expected = measured(problem, made, **options)
    with off():
        assert measured(problem, made, **options) == expected
        problem.x, problem.y = problem.x.clone(), problem.y.clone()
        assert problem.x.is_inference() == (off is torch.inference_mode)
        assert unchanged(problem.module, lambda: measured(problem, made, **options)) == expected


@pytest.mark.parametrize("name", ["resmlp", "batch norm", "language model"])
def test_a_model_made_in_inference_mode_is_measured_as_a_copy(name):
    expected = measured(PROBLEMS[name](), perturbations=1)
    with torch.inference_mode():
        problem = PROBLEMS[name]()
        weights = [p.clone() for p in problem.module.parameters()]
        found = measured(problem, perturbations=1)
    assert found == expected
    assert all(map(torch.equal, problem.module.parameters(), weights))


@pytest.mark.parametrize("name", PROBLEMS)
def test_frozen_parameters_change_no_number(name):
    problem = PROBLEMS[name]()
    made = credits_for(problem, "bp")
    expected = measured(problem, made, perturbations=1)
    problem.module.requires_grad_(False)
    assert unchanged(problem.module, lambda: measured(problem, made, perturbations=1)) == expected


def test_tied_weights_stay_tied():
    problem = PROBLEMS["language model"]()
    unchanged(problem.module, lambda: measured(problem, perturbations=1))
    assert problem.module.head.weight is problem.module.embedding.weight


HALF = {
    "resmlp": (lambda: ResMLP(12, 8, 2, 3), (12,)),
    "vitmini": (lambda: ViTMini(8, 4, 8, 2, 3, heads=2), (3, 8, 8)),
    "smallresnet": (lambda: SmallResNet((4, 4), 3), (3, 8, 8)),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", HALF)
@pytest.mark.parametrize("rule", ["bp", "dfa", "fa"])
def test_half_precision_is_measured(dtype, name, rule):
    make, shape = HALF[name]
    model = toys.built(make).to(dtype).train()
    x, y = (
        torch.linspace(-2, 2, 8 * int(np.prod(shape))).sin().view(8, *shape).to(dtype),
        toys.batch(8)[1],
    )
    made = make_rule(rule, Network.of(model).layout(x)).to(dtype)
    found = unchanged(model, lambda: measure(model, x, y, made, perturbations=4, nulls=2))
    assert found.dtype == str(dtype).removeprefix("torch.")
    assert found.invalid is None
    assert all(found.defined["cosine"])
    assert all(0 < angle < 45 for angle in found.reference_angle)
    if rule == "bp":
        assert all(c > 0.9 for c in found.cosine)
        assert all(r > 0.9 for r in found.perturbation_correlation)


def test_a_shuffling_loader_is_walked_with_the_measures_own_random_numbers():
    model, (x, y) = toys.built(toys.Plain), toys.batch(8)
    loader = DataLoader(TensorDataset(x, y), batch_size=3, shuffle=True)
    found = unchanged(model, lambda: measure(model, loader, perturbations=2))
    torch.rand(5)
    assert measure(model, loader, perturbations=2) == found


def test_measuring_between_two_steps_changes_no_training():
    x, y = toys.batch(32)
    ends = []
    for looks in (False, True):
        model = toys.built(lambda: toys.Plain(toys.DropStep)).train()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(0)
        for _ in range(3):
            nn.functional.cross_entropy(model(x), y).backward()
            if looks:
                measure(model, x, y, perturbations=1)
            optimiser.step()
        ends.append([p.detach().clone() for p in model.parameters()])
    assert all(map(torch.equal, *ends))


def meddled(model: nn.Module) -> None:
    with untouched(model, seed=7) as changed:
        assert not any(m.training for m in model.modules())
        assert changed() == []
        model.blocks[0].norm.running_mean.add_(1)
        model.blocks[1].norm.running_mean = torch.zeros(4).double() - 1
        assert changed() == ["blocks.0.norm.running_mean", "blocks.1.norm.running_mean"]
        model.requires_grad_(False)
        torch.rand(1), random.random(), np.random.rand()
        raise KeyError


def test_the_guard_gives_everything_back():
    model = toys.built(lambda: toys.Plain(toys.NormStep)).train()

    def act() -> None:
        with pytest.raises(KeyError):
            meddled(model)

    unchanged(model, act)


def test_random_numbers_inside_follow_from_the_seed():
    def drawn(seed: int) -> tuple[float, ...]:
        with untouched(nn.Identity(), seed):
            return torch.rand(1).item(), random.random(), float(np.random.rand())

    assert drawn(1) == drawn(1)
    assert all(a != b for a, b in zip(drawn(1), drawn(2), strict=True))


def test_only_weights_made_in_inference_mode_are_copied():
    model = nn.Linear(2, 2)
    assert differentiable(model, model) is model
    with torch.inference_mode():
        model = nn.Linear(2, 2)
        other = differentiable(model, model)
    assert other is not model
    assert not other.weight.is_inference()


def test_a_bad_buffer_is_one_with_nan():
    model = nn.BatchNorm1d(2)
    model.register_buffer("mask", torch.full((2,), -torch.inf))
    assert bad_buffer(model) is None
    model.running_var[1] = torch.nan
    assert bad_buffer(model) == "buffer running_var"
    with untouched(model, seed=0) as changed:
        assert changed() == []
    assert bad_weight(model) is None


class Merging(nn.Linear):
    """Weights that are merged when the layer is told to evaluate, as LoRA does it."""

    def train(self, mode: bool = True) -> Merging:
        if mode != self.training:
            self.weight.data += 1.0
        return super().train(mode)


def test_a_modules_own_train_is_not_called():
    model = nn.Sequential(nn.Linear(4, 4), Merging(4, 4), nn.Linear(4, 3)).train()
    x, y = toys.batch(dtype=torch.float32)
    unchanged(model, lambda: measure(model, x, y, blocks=["1"]))


def test_embeddings_that_shorten_their_rows_are_given_back():
    class Shortened(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(9, 4, max_norm=1.0)
            self.blocks = nn.ModuleList([nn.Linear(4, 4)])
            self.head = nn.Linear(4, 9)
            self.head.weight = self.table.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.blocks[0](self.table(x).mean(1)))

    model = Shortened()
    with torch.no_grad():
        model.table.weight.mul_(9)
    x = torch.randint(0, 9, (12, 5))
    unchanged(model, lambda: measure(model, x, x[:, 0]))
    assert model.head.weight is model.table.weight


class Constrained(toys.Step):
    """A block that keeps its weights short each time it runs, in place."""

    def forward(self, h: Tensor) -> Tensor:
        with torch.no_grad():
            self.linear.weight.mul_(0.9)
        return super().forward(h)


class Rebound(toys.Step):
    """The same in other memory, as EEGNet's layers do it."""

    def forward(self, h: Tensor) -> Tensor:
        self.linear.weight.data = torch.renorm(self.linear.weight.data, p=2, dim=0, maxnorm=0.1)
        return super().forward(h)


class Replaced(toys.Step):
    """A block that makes itself another weight."""

    def forward(self, h: Tensor) -> Tensor:
        self.linear.weight = nn.Parameter(self.linear.weight.detach() * 0.9)
        return super().forward(h)


class Hidden(toys.Step):
    """A block that puts a tensor where its weight was."""

    def forward(self, h: Tensor) -> Tensor:
        weight = self.linear.weight
        if isinstance(weight, nn.Parameter):
            del self.linear.weight
            self.linear.weight = weight.detach() * 0.9
        return super().forward(h)


class Growing(toys.Step):
    """A block that registers a weight, a layer and a hook when it first runs."""

    def forward(self, h: Tensor) -> Tensor:
        if not hasattr(self, "scale"):
            self.scale = nn.Parameter(torch.ones(4).double())
            self.more = nn.Linear(4, 4).double()
            self.register_forward_hook(lambda *_: None)
        return super().forward(h) * self.scale + self.more(h)


@pytest.mark.parametrize("make", [Constrained, Rebound, Replaced, Hidden, Growing])
def test_weights_that_a_forward_changes_are_given_back(make):
    model, (x, y) = toys.built(lambda: toys.Plain(make)), toys.batch()
    before = [(id(p), p.data_ptr(), p.detach().clone()) for p in model.parameters()]
    hooks, names = hook_count(model), [n for n, _ in model.named_modules()]
    measure(model, x, y, make_rule("dfa", toys_layout(x)).double(), perturbations=1, nulls=2)
    after = [(id(p), p.data_ptr(), p) for p in model.parameters()]
    assert [p[:2] for p in after] == [p[:2] for p in before]
    assert all(torch.equal(a[2], b[2]) for a, b in zip(after, before, strict=True))
    assert (hook_count(model), [n for n, _ in model.named_modules()]) == (hooks, names)
    assert all(block.linear.weight is dict(block.named_parameters())["linear.weight"]
               for block in model.blocks)  # fmt: skip


class Keeping(toys.Step):
    """A block that leaves behind what it saw, as many libraries' blocks do."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.last, self.losses, self.seen, self.kinds = 0, None, [0.5], {}, {"start"}
        self.latest, self.total = deque([1], maxlen=3), torch.zeros(1)

    def forward(self, h: Tensor) -> Tensor:
        self.calls += 1
        self.last = super().forward(h)
        self.losses.append(self.last.mean())
        self.seen[self.calls] = self.last
        self.kinds.add(self.calls)
        self.latest.append(self.last)
        self.total += 1
        self.attention = self.last.detach()
        return self.last


def test_what_a_forward_leaves_behind_is_cleared_away():
    model, (x, y) = toys.built(lambda: toys.Plain(Keeping)), toys.batch()
    model(x)
    blocks = list(model.blocks)
    before = [dict(vars(block)) for block in blocks]
    contents = [(list(b.losses), dict(b.seen), set(b.kinds)) for b in blocks]
    measure(model, x, y, make_rule("dfa", toys_layout(x)).double(), perturbations=1, nulls=2)
    for block, own, content in zip(blocks, before, contents, strict=True):
        assert vars(block).keys() == own.keys()
        assert all(vars(block)[name] is value for name, value in own.items())
        assert list(map(id, block.losses)) == list(map(id, content[0]))
        assert (block.seen, block.kinds) == content[1:]
        assert len(block.latest) == 2
        assert float(block.total) == 1


@pytest.mark.parametrize("seed", [2**64, True, -1])
def test_a_seed_that_no_source_takes_is_named(seed):
    with pytest.raises(FauditError, match=r"give a whole number from 0 to 2\*\*63 - 1"):
        measure(toys.built(toys.Plain), *toys.batch(), seed=seed)
