"""Training: the golden identity with backpropagation, isolation of blocks, and exact resumption."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from faudit import training
from faudit.errors import (
    DataError,
    FauditError,
    NetworkError,
    NonFiniteError,
    RecipeError,
    RuleError,
)
from faudit.networks.scene import cross_entropy, scene
from faudit.networks.view import Network, Staged
from faudit.networks.zoo import ResMLP, SmallResNet, ViTMini
from faudit.recipe import Training
from faudit.rules import RULES, CreditRule, make_rule
from faudit.training import (
    Learner,
    evaluate,
    local_gradients,
    parameter_parts,
    penalty_roots,
    scheduled,
    train,
    unit,
)
from tests import toys

CLASSES = 4
Y = torch.tensor([0, 1, 2, 3, 0, 1])


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().double()


def inputs(*shape: int, count: int = 6) -> Tensor:
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(1)).double()


def mlp(depth: int = 3) -> nn.Module:
    return ResMLP(inputs=12, width=8, depth=depth, classes=CLASSES)


def vit() -> nn.Module:
    return ViTMini(image=8, width=8, depth=2, heads=2, classes=CLASSES)


def conv() -> nn.Module:
    return SmallResNet(widths=(4, 4, 8), classes=CLASSES)


def layers(width: int = 8) -> nn.Module:
    def block(before: int, after: int) -> nn.Module:
        return nn.Sequential(nn.Linear(before, after), nn.ReLU(inplace=True))

    return nn.Sequential(
        nn.Linear(12, 8), block(8, width), block(width, 8), nn.LayerNorm(8), nn.Linear(8, CLASSES)
    )


class Tied(Staged):
    """One matrix embeds the input and reads the last state out."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = mlp().blocks  # type: ignore[assignment]
        self.shared = nn.Parameter(torch.randn(8, 12) / 4)

    def embed(self, x: Tensor) -> Tensor:
        return x @ self.shared.T

    def readout(self, h: Tensor) -> Tensor:
        return (h @ self.shared)[:, :CLASSES]


class Dropping(Staged):
    """A network whose every forward pass draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(12, 8), nn.Linear(8, CLASSES)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Dropout(0.2), nn.Linear(8, 8), nn.Tanh()) for _ in range(2)
        )

    def embed(self, x: Tensor) -> Tensor:
        return self.stem(x)

    def readout(self, h: Tensor) -> Tensor:
        return self.head(h)


def without_skips() -> nn.Module:
    return ResMLP(inputs=12, width=8, depth=3, classes=CLASSES, skip=False)


VIEWS: dict[str, tuple[Callable[[], nn.Module], Any, tuple[int, ...]]] = {
    "resmlp": (mlp, None, (12,)),
    "resmlp without skips": (without_skips, None, (12,)),
    "vitmini": (vit, None, (3, 8, 8)),
    "smallresnet": (conv, None, (3, 8, 8)),
    "tied": (Tied, None, (12,)),
    "hooked": (layers, ["1", "2"], (12,)),
    "hooked, changing width": (lambda: layers(5), ["1", "2"], (12,)),
    "some blocks of a zoo network": (mlp, ["blocks.0", "blocks.2"], (12,)),
}


def view(name: str, seed: int = 0) -> tuple[Network, Tensor]:
    make, blocks, shape = VIEWS[name]
    return Network.of(seeded(make, seed), blocks), inputs(*shape)


def rule_for(network: Network, x: Tensor, name: str, **options: Any) -> CreditRule:
    return make_rule(name, network.layout(x), seed=3, **options).double()


def gradients_of(module: nn.Module) -> dict[str, Tensor | None]:
    """Every parameter's gradient, which is then cleared."""
    found = {name: p.grad for name, p in module.named_parameters()}
    module.zero_grad(set_to_none=True)
    return found


def taught(
    network: Network, x: Tensor, rule: CreditRule | list[Tensor], **settings: Any
) -> dict[str, Tensor | None]:
    """Every parameter's local gradient."""
    seen = scene(network, x, Y)
    credits = rule.credits(seen) if isinstance(rule, CreditRule) else rule
    local_gradients(seen, credits, Training(**settings), list(network.module.parameters()))
    return gradients_of(network.module)


def backpropagated(network: Network, x: Tensor) -> dict[str, Tensor | None]:
    cross_entropy(network.module(x), Y).mean().backward()
    return gradients_of(network.module)


def assert_equal(one: dict[str, Any], other: dict[str, Any], tolerance: float = 1e-10) -> None:
    assert list(one) == list(other)
    for name, value in one.items():
        assert float((value - other[name]).norm()) <= tolerance * float(value.norm()), name


# -- the golden identity --------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", VIEWS)
def test_bp_credit_gives_backpropagations_gradients(name: str, seed: int) -> None:
    network, x = view(name, seed)
    exact = backpropagated(network, x)
    assert all(g is not None and bool(g.any()) for g in exact.values())
    assert_equal(exact, taught(network, x, rule_for(network, x, "bp")))


@given(st.integers(1, 5), st.integers(2, 9), st.integers(0, 10_000))
def test_the_identity_holds_for_any_depth_and_width(depth: int, width: int, seed: int) -> None:
    def make() -> nn.Module:
        return ResMLP(inputs=12, width=width, depth=depth, classes=CLASSES)

    network, x = Network.of(seeded(make, seed)), inputs(12)
    assert_equal(backpropagated(network, x), taught(network, x, rule_for(network, x, "bp")))


def by_credits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let even backpropagation learn through its credits."""
    monkeypatch.setattr(training, "_learns_whole", lambda rule, settings: False)


def stepped(name: str, dtype: torch.dtype = torch.float64, **settings: Any) -> dict[str, Tensor]:
    """The weights after some steps of backpropagation."""
    network, x = view(name)
    network.module.to(dtype)
    rule = rule_for(network, x.to(dtype), "bp").to(dtype)
    learner = Learner(network, rule, Training(**settings), x.to(dtype), seed=0)
    network.module.train()
    for _ in range(3):
        learner.step(x.to(dtype), Y)
    return {n: p.detach() for n, p in network.module.named_parameters()}


@pytest.mark.parametrize("settings", [{}, {"trainable_blocks": 0}, {"idle_steps": 1}])
@pytest.mark.parametrize("name", VIEWS)
def test_one_uncut_pass_trains_as_bp_credit_does(
    monkeypatch: pytest.MonkeyPatch, name: str, settings: dict[str, Any]
) -> None:
    whole = stepped(name, **settings)
    by_credits(monkeypatch)
    assert_equal(whole, stepped(name, **settings), 1e-9)


def test_in_float32_it_is_as_near_to_float64_as_credits_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exact, whole = stepped("resmlp"), stepped("resmlp", torch.float32)
    by_credits(monkeypatch)
    cut = stepped("resmlp", torch.float32)

    def far(found: dict[str, Tensor]) -> float:
        return max(float((found[n] - exact[n]).norm() / exact[n].norm()) for n in exact)

    assert far(whole) <= max(4 * far(cut), 1e-6)


@pytest.mark.parametrize("settings", [{"penalty": 0.1}, {"normalise": "sample"}])
def test_what_an_uncut_pass_would_leave_out_is_not_left_out(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    found, plain = stepped("resmlp", **settings), stepped("resmlp")
    assert any(not torch.equal(found[n], plain[n]) for n in found)
    by_credits(monkeypatch)
    assert_equal(found, stepped("resmlp", **settings))


def test_bp_still_refuses_a_network_that_its_credit_would_miss_a_way_through() -> None:
    network = Network.of(toys.built(lambda: toys.Skip(1, 3)))
    x, _ = toys.batch()
    with pytest.raises(NetworkError, match="would miss a way"):
        Learner(network, rule_for(network, x, "bp"), Training(), x, seed=0)


# -- isolation ------------------------------------------------------------------------------------


def stage_of(name: str, depth: int) -> int | None:
    """The index of the credit that teaches a parameter of the ResMLP; None for the readout."""
    if name.startswith("flat"):
        return 0
    return int(name.split(".")[1]) + 1 if name.startswith("blocks") else None


@pytest.mark.parametrize("name", ["fa", "dfa", "bp"])
@pytest.mark.parametrize("only", range(4))
def test_a_credit_teaches_one_stage_and_no_other(name: str, only: int) -> None:
    network, x = view("resmlp")
    credits = rule_for(network, x, name).credits(scene(network, x, Y))
    alone = [a if index == only else torch.zeros_like(a) for index, a in enumerate(credits)]
    for parameter, grad in taught(network, x, alone).items():
        stage = stage_of(parameter, network.depth)
        assert bool(grad.any()) == (stage in (only, None)), parameter  # type: ignore[union-attr]


def batches_of(x: Tensor, y: Tensor, size: int = 3) -> Any:
    def batches(generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in torch.randperm(len(y), generator=generator).split(size):
            yield x[rows], y[rows]

    return batches


@pytest.mark.parametrize("trainable", [0, 1, 2, 3])
@pytest.mark.parametrize("name", RULES)
def test_frozen_blocks_do_not_change_by_a_bit(name: str, trainable: int) -> None:
    network, x = view("resmlp")
    before = {n: p.detach().clone() for n, p in network.module.named_parameters()}
    settings = Training(epochs=3, trainable_blocks=trainable, penalty=0.01, idle_steps=1)
    learner = Learner(network, rule_for(network, x, name), settings, x, seed=0)
    list(train(learner, batches_of(x, Y)))
    for parameter, value in network.module.named_parameters():
        stage = stage_of(parameter, 3)
        frozen = stage is not None and 1 <= stage <= 3 - trainable
        assert torch.equal(value, before[parameter]) == frozen, parameter


@pytest.mark.parametrize("name", ["bp", "fa", "kp", "ep"])
@pytest.mark.parametrize("kind", ["vitmini", "smallresnet", "hooked"])
def test_frozen_blocks_of_every_kind_do_not_change_by_a_bit(kind: str, name: str) -> None:
    network, x = view(kind)
    frozen = [p for block in network.blocks[:-1] for p in block.parameters()]
    before = [p.detach().clone() for p in frozen]
    settings = Training(epochs=2, trainable_blocks=1, block_steps=2, idle_steps=1)
    learner = Learner(network, rule_for(network, x, name), settings, x, seed=0)
    list(train(learner, batches_of(x, Y)))
    assert frozen
    assert all(map(torch.equal, frozen, before))
    assert any(p.grad is not None for p in network.blocks[-1].parameters())


@pytest.mark.parametrize("name", ["bp", "dfa", "kp", "ep"])
def test_a_rule_made_for_another_network_is_refused(name: str) -> None:
    network, x = view("resmlp")
    other = Network.of(seeded(lambda: mlp(depth=2)))
    with pytest.raises(RuleError, match=r"made for states of widths \(8, 8, 8\) and 4 classes"):
        Learner(network, rule_for(other, x, name), Training(), x, seed=0)


def test_more_trainable_blocks_than_there_are_is_refused() -> None:
    network, x = view("resmlp")
    with pytest.raises(RecipeError, match="last 4 blocks of a network with 3"):
        Learner(network, rule_for(network, x, "bp"), Training(trainable_blocks=4), x, seed=0)


# -- the local objective --------------------------------------------------------------------------


@pytest.mark.parametrize("over", ["sum", "mean"])
@pytest.mark.parametrize("name", ["resmlp", "vitmini", "smallresnet"])
def test_the_penalty_is_that_of_the_written_objective(name: str, over: str) -> None:
    network, x = view(name)
    rule = rule_for(network, x, "dfa")
    credits = rule.credits(scene(network, x, Y))
    found = taught(network, x, rule, penalty=0.3, penalty_over=over)
    for index, h in enumerate(scene(network, x, Y).states[:-1]):
        skip, f = network.blocks[index].split(h)  # type: ignore[operator]
        size = f.square().flatten(1)
        penalty = size.sum(1) if over == "sum" else size.mean(1)
        told = ((skip + f) * credits[index + 1]).flatten(1).sum(1)
        (told + 0.3 * penalty).mean().backward()
    expected = gradients_of(network.module)
    names = [n for n in expected if n.startswith("blocks")]
    assert_equal({n: expected[n] for n in names}, {n: found[n] for n in names})


def test_the_penalty_of_a_small_update_survives_a_large_stream() -> None:
    """block(h) - h would be all rounding here: float32 has no digit left for the update."""
    network = Network.of(seeded(mlp).float())
    x = inputs(12).float()
    with torch.no_grad():
        network.module.flat.weight.mul_(1e9)  # type: ignore[operator, union-attr]
    seen = scene(network, x, Y)
    assert float(seen.states[0].norm()) > 1e8
    for index, (f, grad) in enumerate(penalty_roots(seen, 0.5, "sum")):
        _, update = network.blocks[index].split(seen.states[index])  # type: ignore[operator]
        assert torch.equal(f, update)
        assert torch.equal(grad, update)
        lost = network.blocks[index](seen.states[index]) - seen.states[index]
        assert float((lost - update).detach().norm() / update.detach().norm()) > 0.5


@pytest.mark.parametrize("over", ["sum", "mean"])
def test_a_hooked_networks_penalty_uses_the_difference(over: str) -> None:
    network, x = view("hooked")
    found = taught(network, x, rule_for(network, x, "dfa"), penalty=0.3, penalty_over=over)
    plain = taught(network, x, rule_for(network, x, "dfa"))
    for index, h in enumerate(scene(network, x, Y).states[:-1]):
        size = (network.blocks[index](h.clone()) - h).square().flatten(1)
        (0.3 * (size.sum(1) if over == "sum" else size.mean(1))).mean().backward()
    added = gradients_of(network.module)
    for name, grad in added.items():
        difference = found[name] - plain[name]  # type: ignore[operator]
        expected = torch.zeros_like(difference) if grad is None else grad
        torch.testing.assert_close(difference, expected, rtol=1e-9, atol=1e-12)


def test_a_penalty_on_a_block_that_changes_shape_is_refused() -> None:
    network, x = view("hooked, changing width")
    with pytest.raises(NetworkError, match=r"block '1' turns \(6, 8\) into \(6, 5\)"):
        taught(network, x, rule_for(network, x, "bp"), penalty=0.1)


@given(st.integers(-30, 30), st.integers(-30, 30), st.integers(0, 1000))
def test_normalised_credits_have_norm_one_at_any_magnitude(a: int, b: int, seed: int) -> None:
    credit = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(seed))
    scaled = credit * torch.tensor([10.0**a, 10.0**b]).view(2, 1, 1)
    torch.testing.assert_close(unit(scaled).flatten(1).norm(dim=1), torch.ones(2))
    torch.testing.assert_close(unit(scaled), unit(credit), rtol=1e-4, atol=1e-6)


def test_normalising_a_batch_divides_all_its_credit_by_its_samples_mean_norm() -> None:
    network, x = view("vitmini")
    rule = rule_for(network, x, "dfa")
    credits = rule.credits(scene(network, x, Y))
    norms = [torch.stack([a.norm() for a in credit]) for credit in credits]
    assert all(float(norm.max() / norm.min()) > 1.1 for norm in norms)
    scaled = [credit / norm.mean() for credit, norm in zip(credits, norms, strict=True)]
    assert_equal(taught(network, x, scaled), taught(network, x, rule, normalise="batch"))


def test_normalising_divides_every_samples_credit() -> None:
    network, x = view("resmlp")
    rule = rule_for(network, x, "dfa")
    credits = [unit(a) for a in rule.credits(scene(network, x, Y))]
    assert_equal(taught(network, x, credits), taught(network, x, rule, normalise="sample"))
    assert not bool(unit(torch.zeros(2, 3)).any())


# -- parts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "readout"),
    [
        ("resmlp", {"out_ln.weight", "out_ln.bias", "out_head.weight", "out_head.bias"}),
        ("vitmini", {"out_ln.weight", "out_ln.bias", "out_head.weight", "out_head.bias"}),
        ("smallresnet", {"out_head.weight", "out_head.bias"}),
        ("hooked", {"3.weight", "3.bias", "4.weight", "4.bias"}),
        ("tied", {"shared"}),
    ],
)
def test_parameters_are_local_or_the_readouts(name: str, readout: set[str]) -> None:
    network, x = view(name)
    parts = parameter_parts(network, x)
    names = {id(p): n for n, p in network.module.named_parameters()}
    assert {names[id(p)] for p in parts.readout} == readout
    assert {names[id(p)] for p in parts.local} == set(names.values()) - readout
    assert all(p.grad is None for p in network.module.parameters())


def test_a_network_with_nothing_to_train_is_refused() -> None:
    network, x = view("resmlp")
    network.module.requires_grad_(False)
    with pytest.raises(NetworkError, match="frozen"):
        parameter_parts(network, x)


def test_an_output_that_is_not_a_number_is_never_right() -> None:
    network, x = view("resmlp")
    with torch.no_grad():
        network.module.out_head.bias[0] = torch.nan  # type: ignore[operator, union-attr, index]
    score = evaluate(network, [(x, torch.zeros_like(Y))])
    assert score.accuracy == 0
    assert not bool(score.correct.any())


# -- the optimiser --------------------------------------------------------------------------------


class AdamW:
    """The published update of one parameter, written out (Loshchilov & Hutter 2019)."""

    def __init__(self) -> None:
        self.m, self.v, self.t = 0.0, 0.0, 0

    def step(self, p: Tensor, grad: Any, lr: float, decay: float) -> None:
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * grad
        self.v = 0.999 * self.v + 0.001 * grad**2
        m, v = self.m / (1 - 0.9**self.t), self.v / (1 - 0.999**self.t)
        with torch.no_grad():
            p.mul_(1 - lr * decay).sub_(lr * m / (v**0.5 + 1e-8))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"lr": 0.05, "weight_decay": 0.3},
        {"local_lr": 2.5},
        {"block_steps": 3},
        {"idle_steps": 2},
        {"block_steps": 2, "idle_steps": 1, "local_lr": 0.5, "normalise": "sample"},
    ],
)
def test_steps_are_those_of_adamw_written_out(settings: dict[str, Any]) -> None:
    recipe = Training(epochs=1, **settings)
    (network, x), (twin, _) = view("resmlp"), view("resmlp")
    rule = rule_for(network, x, "dfa")
    learner = Learner(network, rule, recipe, x, seed=0)
    adam = {name: AdamW() for name, _ in twin.module.named_parameters()}
    for _ in range(3):
        learner.step(x, Y)
        for repeat in range(recipe.block_steps):
            grads = taught(twin, x, rule, normalise=recipe.normalise)
            for name, p in twin.module.named_parameters():
                local = not name.startswith("out")
                if repeat and not local:
                    continue
                lr = recipe.lr * (recipe.local_lr if local else 1.0)
                for grad in [grads[name], *[0.0] * recipe.idle_steps]:
                    adam[name].step(p, grad, lr, recipe.weight_decay)
    assert_equal(twin.module.state_dict(), network.module.state_dict())


def test_learning_rates_follow_their_schedules() -> None:
    def rates(**settings: Any) -> tuple[list[float], list[float]]:
        network, x = view("resmlp")
        rule, recipe = rule_for(network, x, "bp"), Training(epochs=4, lr=1.0, **settings)
        learner = Learner(network, rule, recipe, x, seed=0)
        local = learner.optimiser.param_groups[0]
        pairs = [(local["lr"], r.lr) for r in train(learner, lambda generator: [(x, Y)])]
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    half = 0.5**0.5
    cosine, constant = [1.0, (1 + half) / 2, 0.5, (1 - half) / 2], [1.0] * 4
    for settings, local, readout in (
        ({}, cosine, cosine),
        ({"schedule": "constant"}, constant, constant),
        ({"local_schedule": "constant"}, constant, cosine),
        ({"schedule": "constant", "local_schedule": "cosine"}, cosine, constant),
        ({"local_lr": 3.0}, [3 * rate for rate in cosine], cosine),
    ):
        found = rates(**settings)
        assert found[0] == pytest.approx(local)
        assert found[1] == pytest.approx(readout)
    assert (scheduled("cosine", 0.0), scheduled("cosine", 1.0)) == (1.0, 0.0)


@pytest.mark.parametrize("decay", [1e-3, 0.2])
def test_kolen_pollack_gaps_shrink_exactly_through_the_learner(decay: float) -> None:
    network, x = view("resmlp")
    rule = rule_for(network, x, "kp", decay=decay)
    settings = Training(epochs=1, lr=0.01, weight_decay=0.5, penalty=0.01)
    learner = Learner(network, rule, settings, x, seed=0)
    pairs = rule.mirrors(network)
    first = [(w - b).detach().clone() for w, b in pairs]
    for _ in range(5):
        learner.step(x, Y)
    shrunk = ((1 - decay) * (1 - 0.01 * 0.5)) ** 5
    for (weight, mirror), gap in zip(pairs, first, strict=True):
        torch.testing.assert_close((weight - mirror).detach(), shrunk * gap, rtol=1e-9, atol=1e-13)


# -- the life of a run ----------------------------------------------------------------------------


def learner_for(name: str, *, seed: int = 0, start: int = 0) -> tuple[Learner, Any]:
    """A learner on a network with dropout, its weights and rule drawn from ``start``."""
    network, x = Network.of(seeded(Dropping, start)), inputs(12, count=8)
    rule = make_rule(name, network.layout(x), seed=start).double()
    learner = Learner(network, rule, Training(epochs=4, lr=0.01), x, seed=seed)
    return learner, batches_of(x, torch.arange(8) % CLASSES)


def flat(state: Any) -> list[Any]:
    """Every leaf of a state dictionary, tensors as bytes."""
    if isinstance(state, dict):
        return [leaf for key in state for leaf in (key, *flat(state[key]))]
    if isinstance(state, (list, tuple)):
        return [leaf for part in state for leaf in flat(part)]
    return [state.numpy().tobytes()] if isinstance(state, Tensor) else [state]


@pytest.mark.parametrize("name", ["bp", "dfa", "sb", "cb", "kp", "brsf"])
def test_a_resumed_run_is_the_same_to_the_last_bit(name: str) -> None:
    whole, batches = learner_for(name)
    records = list(train(whole, batches))
    first, _ = learner_for(name)
    resumed, _ = learner_for(name, start=9)
    for record in train(first, batches):
        if record.epoch == 2:
            break
    torch.rand(5)  # what else happens between the two must not matter
    resumed.load_state_dict(deepcopy(first.state_dict()))
    assert [r.to_dict() for r in train(resumed, batches)] == [r.to_dict() for r in records[2:]]
    assert flat(resumed.state_dict()) == flat(whole.state_dict())


def test_the_seed_decides_the_run() -> None:
    runs = []
    for seed in (0, 0, 1):
        learner, batches = learner_for("dfa", seed=seed)
        list(train(learner, batches))
        runs.append(flat(learner.state_dict()))
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_the_seed_decides_the_order_of_the_data() -> None:
    def order(seed: int) -> list[float]:
        network, x = view("resmlp")
        learner = Learner(network, rule_for(network, x, "bp"), Training(epochs=2), x, seed=seed)
        return [record.train_loss for record in train(learner, batches_of(x, Y))]

    assert order(0) == order(0)
    assert order(0) != order(1)


def test_every_epoch_has_an_order_of_its_own() -> None:
    learner, _ = learner_for("dfa")
    orders, masks = [], []

    def batches(generator: torch.Generator) -> list[tuple[Tensor, Tensor]]:
        orders.append(torch.randperm(8, generator=generator).tolist())
        masks.append(float(torch.rand(())))  # the stream that dropout draws from
        return [(inputs(12, count=8), torch.arange(8) % CLASSES)]

    list(train(learner, batches))
    assert len({tuple(order) for order in orders}) == len(set(masks)) == 4


def test_training_leaves_the_global_generator_alone() -> None:
    learner, batches = learner_for("dfa")
    before = torch.get_rng_state()
    learner.run_epoch(batches)
    assert torch.equal(before, torch.get_rng_state())


def test_an_epoch_tells_its_mean_loss_and_what_the_rule_reports() -> None:
    network, x = view("resmlp")
    learner = Learner(network, rule_for(network, x, "ep"), Training(epochs=1), x, seed=0)
    before = evaluate(network, [(x, Y)]).loss
    (record,) = train(learner, lambda generator: [(x, Y)])
    assert record.train_loss == pytest.approx(before)
    assert 0 < record.to_dict()["ep_residual"] < 1


@pytest.mark.parametrize("name", ["bp", "dfa"])
def test_an_epoch_is_run_in_training_mode(name: str) -> None:
    network, x = view("smallresnet")
    network.module.eval()
    before = network.blocks[0].bn1.running_mean.clone()  # type: ignore[operator, union-attr]
    learner = Learner(network, rule_for(network, x, name), Training(epochs=1), x, seed=0)
    list(train(learner, batches_of(x, Y)))
    assert all(module.training for module in network.module.modules())
    assert not torch.equal(network.blocks[0].bn1.running_mean, before)  # type: ignore[arg-type]


def test_a_rule_learns_from_a_batch_before_it_gives_credit(monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = view("resmlp")
    rule, order = rule_for(network, x, "sb"), []
    for name in ("fit", "credits"):
        own = getattr(rule, name)
        monkeypatch.setattr(rule, name, lambda s, n=name, own=own: (order.append(n), own(s))[1])
    Learner(network, rule, Training(block_steps=2), x, seed=0).step(x, Y)
    assert order == ["fit", "credits", "credits"]


@pytest.mark.parametrize("name", ["bp", "dfa", "kp"])
def test_training_lowers_the_loss(name: str) -> None:
    network, x = view("resmlp")
    learner = Learner(network, rule_for(network, x, name), Training(epochs=40, lr=0.01), x, seed=0)
    records = list(train(learner, batches_of(x, Y)))
    assert records[-1].train_loss < 0.6 * records[0].train_loss


def test_evaluating_counts_and_averages_over_samples() -> None:
    network, x = view("resmlp")
    score = evaluate(network, [(x[:4], Y[:4]), (x[4:], Y[4:])])
    logits = network.module(x)
    assert score.accuracy == float((logits.argmax(1) == Y).double().mean())
    assert score.loss == pytest.approx(cross_entropy(logits, Y).mean().item())
    assert len(score.correct) == 6
    with pytest.raises(DataError, match="no sample"):
        evaluate(network, [])


# -- what goes wrong ------------------------------------------------------------------------------


def failing(network: Network, x: Tensor, epochs: int = 1) -> NonFiniteError:
    learner = Learner(network, rule_for(network, inputs(12), "dfa"), Training(), x, seed=0)
    learner.epoch = epochs - 1
    with pytest.raises(NonFiniteError) as caught:
        learner.run_epoch(lambda generator: [(inputs(12), Y), (x, Y)])
    return caught.value


def test_a_weight_that_is_not_finite_is_named() -> None:
    network, x = view("resmlp")
    with torch.no_grad():
        network.blocks[1].w1.weight[0, 0] = torch.nan  # type: ignore[index,union-attr]
    error = failing(network, x, epochs=7)
    assert (error.layer, error.epoch) == ("the weights blocks.1.w1.weight", 7)
    assert "blocks.1.w1.weight, epoch 7" in str(error)


def test_an_input_that_is_not_finite_is_named_before_it_spoils_the_weights() -> None:
    network, x = view("resmlp")
    x[2, 3] = torch.nan
    error = failing(network, x)
    assert (error.layer, error.epoch) == ("the input", 1)
    assert all(bool(p.isfinite().all()) for p in network.module.parameters())


def test_a_stream_that_overflows_is_named_where_it_does() -> None:
    network, x = view("resmlp")
    with torch.no_grad():
        network.blocks[1].w2.weight.fill_(1e308)  # type: ignore[union-attr]
    assert failing(network, x).layer == "the state h_2"


def test_an_epoch_without_a_batch_is_refused() -> None:
    learner, _ = learner_for("bp")
    with pytest.raises(DataError, match="no batch"):
        learner.run_epoch(lambda generator: [])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"network": nn.Linear(2, 2)}, r"give Network.of\(model\), not a Linear"),
        ({"rule": "dfa"}, r"give make_rule\(name, network.layout\(x\)\), not 'dfa'"),
        ({"settings": {"epochs": 3}}, "give a Training"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": None}, "seed is None"),
    ],
)
def test_what_is_no_part_of_a_learner_is_refused(change: dict[str, Any], message: str) -> None:
    network, x = view("resmlp")
    parts = {"network": network, "rule": rule_for(network, x, "dfa"), "settings": Training()}
    with pytest.raises(FauditError, match=message):
        Learner(**{**parts, "x": x, "seed": 0, **change})


@pytest.mark.parametrize("name", ["fa", "dfa", "drtp", "kp", "sb", "cb"])
def test_a_rule_in_another_format_than_its_network_is_refused(name: str) -> None:
    network, x = view("resmlp")
    with pytest.raises(
        RuleError, match=r"torch.float32 on cpu .* torch.float64 on cpu; use rule.to"
    ):
        Learner(network, rule_for(network, x, name).float(), Training(), x, seed=0)


def test_a_network_without_weights_has_nothing_to_train() -> None:
    network = Network.of(nn.Sequential(nn.Tanh(), nn.Tanh()), ["0", "1"])
    x = inputs(12)
    with pytest.raises(NetworkError, match="nothing can be trained"):
        Learner(network, rule_for(network, x, "dfa"), Training(), x, seed=0)


@pytest.mark.parametrize("batches", [[(inputs(12), Y)], iter([(inputs(12), Y)])])
def test_batches_that_are_not_made_per_epoch_are_refused(batches: Any) -> None:
    network, x = view("resmlp")
    learner = Learner(network, rule_for(network, x, "dfa"), Training(), x, seed=0)
    with pytest.raises(DataError, match="batches is a function of the epoch's generator"):
        learner.run_epoch(batches)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (Y + 1, "targets run from 1 to 4, but the network has 4 classes: 0 to 3"),
        (Y - 1, "targets run from -1 to 2"),
        (Y[:, None], r"need targets of shape \(6,\), not \(6, 1\)"),
        (Y[:4], r"need targets of shape \(6,\), not \(4,\)"),
        (Y.double(), "class indices, not a float64 tensor"),
        (Y.tolist(), "targets are a list; give a tensor"),
        (Y.numpy(), "targets are a ndarray; give a tensor"),
    ],
)
@pytest.mark.parametrize("name", ["bp", "dfa"])
def test_labels_that_cannot_be_learned_from_are_refused(name: str, y: Any, message: str) -> None:
    network, x = view("resmlp")
    learner = Learner(network, rule_for(network, x, name), Training(), x, seed=0)
    with pytest.raises(DataError, match=message):
        learner.run_epoch(lambda generator: [(x, y)])


def test_a_batch_without_samples_is_refused() -> None:
    learner, _ = learner_for("dfa")
    with pytest.raises(DataError, match="a batch holds no sample"):
        learner.run_epoch(lambda generator: [(inputs(12, count=0), Y[:0])])


@pytest.mark.parametrize("name", ["bp", "dfa"])
def test_a_network_whose_readout_is_frozen_can_be_trained(name: str) -> None:
    network, x = view("resmlp")
    network.module.out_head.requires_grad_(False)  # type: ignore[operator, union-attr]
    network.module.out_ln.requires_grad_(False)  # type: ignore[operator, union-attr]
    before = {n: p.detach().clone() for n, p in network.module.named_parameters()}
    learner = Learner(network, rule_for(network, x, name), Training(epochs=1), x, seed=0)
    list(train(learner, batches_of(x, Y)))
    for parameter, value in network.module.named_parameters():
        assert torch.equal(value, before[parameter]) == parameter.startswith("out"), parameter
