"""Scene: exact references, cuts that let nothing through, and a module left as it was."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from faudit.errors import DataError, NetworkError, RuleError
from faudit.networks.scene import cross_entropy, gradients, grading, keeping_buffers, scene
from faudit.networks.view import Network
from faudit.networks.zoo import ResMLP, SmallResNet, StudentNet, ViTMini
from faudit.rules import make_rule
from tests import toys
from tests.networks.checks import (
    by_backward,
    check_local_backpropagation,
    check_reference,
    check_view,
)

TOYS = {
    "stages": toys.Stages,
    "plain": toys.Plain,
    "parts": toys.Parts,
    "tuples": toys.Unpacking,
    "named tuples": toys.Naming,
    "keywords": toys.ByKeyword,
    "in place": toys.InPlace,
    "in place in stages": toys.InPlaceStages,
    "BatchNorm": lambda: toys.Plain(toys.NormStep),
    "dropout": lambda: toys.Plain(toys.DropStep),
}
ZOO = {
    "resmlp": (lambda: ResMLP(12, 6, 3, 4), (3, 2, 2)),
    "resmlp without terminal norm": (lambda: ResMLP(12, 6, 2, 4, terminal_norm=False), (3, 2, 2)),
    "studentnet": (lambda: StudentNet(8, 6, 2, 4), (8,)),
    "vitmini": (lambda: ViTMini(8, 4, 8, 2, 4, heads=2), (3, 8, 8)),
    "smallresnet": (lambda: SmallResNet((3, 4), 4), (3, 4, 4)),
}


def zoo(name, count=3):
    make, shape = ZOO[name]
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, *shape, generator=generator, dtype=torch.float64)
    return Network.of(toys.built(make)), x, torch.arange(count) % 4


@pytest.mark.parametrize("name", TOYS)
@pytest.mark.parametrize("training", [False, True])
def test_local_credit_from_bp_is_backpropagation_in_toys(name, training):
    network = Network.of(toys.built(TOYS[name]).train(training))
    if name == "parts":
        network.module.forward = lambda x: network.run(x, lambda _, h: h)
    check_local_backpropagation(network, *toys.batch())


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("training", [False, True])
def test_local_credit_from_bp_is_backpropagation_in_the_zoo(name, training):
    network, x, y = zoo(name)
    network.module.train(training)
    check_local_backpropagation(network, x, y)


@pytest.mark.parametrize("name", TOYS)
def test_the_reference_is_the_slope_of_the_loss_in_toys(name):
    check_reference(Network.of(toys.built(TOYS[name])), *toys.batch())


@pytest.mark.parametrize("name", ZOO)
def test_the_reference_is_the_slope_of_the_loss_in_the_zoo(name):
    network, x, y = zoo(name)
    check_view(network, x)
    check_reference(network, x, y)


def test_tied_weights_learn_from_both_ends():
    network = Network.of(toys.built(toys.Tied))
    tokens = torch.tensor([[1, 2, 3], [4, 5, 6]])
    check_view(network, tokens)
    check_local_backpropagation(network, tokens, tokens.flip(1))
    check_reference(network, tokens, tokens.flip(1))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 5), st.integers(0, 99))
def test_the_reference_is_autograd_through_the_whole_network(depth, width, count, seed):
    torch.manual_seed(seed)
    model = ResMLP(4, width, depth, 3).double()
    x, y = toys.batch(count, seed=seed)
    h = model.embed(x)
    states = [h]
    for block in model.blocks:
        states.append(block(states[-1]))
    total = F.cross_entropy(model.readout(states[-1]), y, reduction="sum")
    expected = torch.autograd.grad(total, states)
    seen, exact = gradients(Network.of(model), x, y)
    assert all(map(torch.equal, seen.states, states))
    torch.testing.assert_close(exact, expected, rtol=1e-12, atol=1e-15)
    credits = make_rule("bp", Network.of(model).layout(x)).credits(scene(Network.of(model), x, y))
    torch.testing.assert_close(tuple(credits), expected, rtol=1e-12, atol=1e-15)


def test_every_sample_has_its_own_gradient():
    network, (x, y) = Network.of(toys.built(toys.Plain)), toys.batch()
    _, together = gradients(network, x, y)
    for i in range(len(x)):
        _, alone = gradients(network, x[i : i + 1], y[i : i + 1])
        for g, one in zip(together, alone, strict=True):
            torch.testing.assert_close(g[i], one[0])


def test_a_scene_says_what_the_output_is_told():
    network, (x, y) = Network.of(toys.built(toys.Plain)), toys.batch()
    seen = scene(network, x, y)
    expected = seen.logits.softmax(1) - F.one_hot(y, toys.CLASSES)
    torch.testing.assert_close(seen.error, expected)
    torch.testing.assert_close(seen.output_credit, seen.error @ network.module.head.weight)
    torch.testing.assert_close(seen.readout(seen.states[-1]), seen.logits)
    torch.testing.assert_close(seen.losses(seen.states[-1]), cross_entropy(seen.logits, y))
    torch.testing.assert_close(seen.block(0, seen.states[0]), seen.states[1])
    assert seen.depth == 2
    assert not any(t.requires_grad for t in (*seen.states, seen.logits, seen.error))


def test_no_gradient_crosses_a_state():
    network, (x, y) = Network.of(toys.built(toys.Plain)), toys.batch()
    outputs = [*scene(network, x, y).local.outputs, scene(network, x, y).local.logits]
    owners = ["stem", "blocks.0", "blocks.1", "head"]
    for output, owner in zip(outputs, owners, strict=True):
        reached = torch.autograd.grad(
            output.sum(), list(network.module.parameters()), allow_unused=True
        )
        names = [name for name, _ in network.module.named_parameters()]
        found = {n for n, g in zip(names, reached, strict=True) if g is not None}
        assert found == {n for n in names if n.startswith(owner)}


class _Whole(nn.Module):
    """A zoo network behind a forward, so that it is hooked."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = ResMLP(toys.WIDTH, 4, 2, toys.CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


@pytest.mark.parametrize("rule", ["bp", "usf", "fa", "dfa"])
@pytest.mark.parametrize("blocks", ["inner.blocks", None])
def test_autograd_switched_off_outside_changes_no_number(rule, blocks):
    whole = toys.built(_Whole)
    network = Network.of(whole, blocks) if blocks else Network.of(whole.inner)
    x, y = toys.batch()
    made = make_rule(rule, network.layout(x), seed=1).double()
    expected = [*gradients(network, x, y)[1], *made.credits(scene(network, x, y))]
    for off in (torch.no_grad, torch.inference_mode):
        with off():
            x, y = toys.batch()
            found = [*gradients(network, x, y)[1], *made.credits(scene(network, x, y))]
        assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("make", [toys.Stages, toys.Plain])
def test_frozen_parameters_change_no_gradient(make):
    model, (x, y) = toys.built(make), toys.batch()
    expected = gradients(Network.of(model), x, y)[1]
    network = Network.of(model.requires_grad_(False))
    assert all(map(torch.equal, gradients(network, x, y)[1], expected))
    credits = make_rule("bp", network.layout(x)).credits(scene(network, x, y))
    torch.testing.assert_close(tuple(credits), expected)


def test_frozen_blocks_still_carry_credit():
    network, (x, y) = Network.of(toys.built(toys.Plain)), toys.batch()
    network.module.blocks.requires_grad_(False)
    check_local_backpropagation(network, x, y)
    assert by_backward(network, x, y).keys() == {
        "stem.weight", "stem.bias", "head.weight", "head.bias",
    }  # fmt: skip


def test_a_language_models_input_needs_no_gradient():
    network = Network.of(toys.built(toys.Tied).requires_grad_(False))
    tokens = torch.tensor([[1, 2, 3]])
    assert all(g.any() for g in gradients(network, tokens, tokens)[1])


@pytest.mark.parametrize("name", ["detaching", "deaf"])
def test_logits_that_do_not_hear_a_state_are_refused(name):
    network = Network.of(toys.built({"detaching": toys.Detaching, "deaf": toys.Deaf}[name]))
    x, y = toys.batch()
    with pytest.raises(NetworkError, match="the logits have no gradient in h_0"):
        gradients(network, x, y)
    if name == "deaf":
        with pytest.raises(NetworkError, match="the logits have no gradient in h_2"):
            scene(network, x, y)


@pytest.mark.parametrize(
    ("start", "end", "message"),
    [
        (1, 3, "the readout uses h_1 besides h_3"),
        (2, 3, "the readout uses h_2 besides h_3"),
        (1, 2, r"'blocks\.2' uses h_1 besides h_2"),
    ],
)
def test_credit_is_not_carried_through_blocks_that_are_not_the_only_way(start, end, message):
    network = Network.of(toys.built(lambda: toys.Skip(start, end)))
    x, y = toys.batch()
    check_view(network, x)
    check_reference(network, x, y)
    for rule in ("bp", "usf"):
        made = make_rule(rule, network.layout(x)).double()
        with pytest.raises(NetworkError, match=message):
            made.credits(scene(network, x, y))
    whole = Network.of(network.module, ["blocks.0"])
    check_local_backpropagation(whole, x, y)


def test_logits_without_a_graph_are_refused():
    network = Network.of(toys.built(lambda: toys.Constant(torch.zeros(5, 3))))
    with pytest.raises(NetworkError, match="the logits have no gradient in h_0"):
        gradients(network, *toys.batch())


def test_measuring_gradients_leaves_running_statistics_alone():
    model, (x, y) = toys.built(lambda: toys.Plain(toys.NormStep)).train(), toys.batch()
    before = {n: b.clone() for n, b in model.named_buffers()}
    gradients(Network.of(model), x, y)
    assert all(torch.equal(b, before[n]) for n, b in model.named_buffers())


def test_a_scene_updates_running_statistics_once_and_questions_never():
    x, y = toys.batch()
    asked, plain = (toys.built(lambda: toys.Plain(toys.NormStep)).train() for _ in range(2))
    seen = scene(Network.of(asked), x, y)
    seen.pull(0, seen.states[1], lambda w: w.detach())
    seen.block(1, seen.states[1])
    seen.losses(seen.states[-1])
    plain(x)
    for (name, b), (_, expected) in zip(asked.named_buffers(), plain.named_buffers(), strict=True):
        torch.testing.assert_close(b, expected, msg=name)
    assert int(asked.blocks[0].norm.num_batches_tracked) == 1


def test_buffers_are_the_same_tensors_after_keeping_them():
    model = toys.built(lambda: toys.Plain(toys.NormStep)).train()
    model.register_buffer("nothing", None)
    before = dict(model.named_buffers())
    with suppress(KeyError), keeping_buffers(model):
        model(toys.batch()[0])
        assert int(model.blocks[0].norm.num_batches_tracked) == 1
        raise KeyError
    assert all(b is before[n] for n, b in model.named_buffers())
    assert int(model.blocks[0].norm.num_batches_tracked) == 0


def test_dropout_is_the_same_forward_and_back():
    network = Network.of(toys.built(lambda: toys.Plain(toys.DropStep)).train())
    x, y = toys.batch()
    torch.manual_seed(3)
    seen = scene(network, x, y)
    torch.manual_seed(3)
    assert torch.equal(seen.logits, network.module(x))
    once = seen.pull(0, seen.states[1])
    assert torch.equal(seen.pull(0, seen.states[1]), once)


@pytest.mark.parametrize("kind", [toys.Plain, toys.Stages])
def test_who_runs_a_block_again_meets_the_masks_of_the_pass(kind):
    network = Network.of(toys.built(lambda: kind(toys.DropStep, depth=3)).train())
    x, y = toys.batch()
    seen, before = scene(network, x, y), torch.get_rng_state()
    assert torch.equal(seen.readout(seen.states[-1]), seen.logits)
    for index in range(3):
        credit = torch.randn_like(seen.states[index + 1])
        torch.set_rng_state(before)
        assert torch.equal(seen.block(index, seen.states[index]), seen.states[index + 1])
        again = seen.pull(index, credit, lambda w: w.detach())
        torch.testing.assert_close(again, seen.pull(index, credit))
        assert torch.equal(torch.get_rng_state(), before)


def test_other_weights_carry_credit_back():
    network, (x, y) = Network.of(toys.built(toys.Plain)), toys.batch()
    seen = scene(network, x, y)
    credit = torch.ones_like(seen.states[1])
    same = seen.pull(0, credit, lambda w: w.detach())
    torch.testing.assert_close(same, seen.pull(0, credit))
    block, other = network.module.blocks[0], torch.randn(4, 4, dtype=torch.float64)
    slope = 1 - torch.tanh(block.linear(seen.states[0])) ** 2
    found = seen.pull(0, credit, lambda w: other if w.ndim == 2 else None)
    torch.testing.assert_close(found, credit + (credit * slope) @ other)


def test_weights_that_no_layer_uses_are_refused():
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(4, 4))

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            return h @ self.w

    seen = scene(Network.of(toys.built(lambda: toys.Plain(Bare))), *toys.batch())
    with pytest.raises(RuleError, match=r"'blocks\.0' uses weights of shape \(4, 4\)"):
        seen.pull(0, seen.states[1], lambda w: w.detach())


def test_asking_about_a_state_leaves_it_alone():
    network, (x, y) = Network.of(toys.built(toys.InPlace)), toys.batch()
    seen = scene(network, x, y)
    kept = [h.clone() for h in seen.states]
    seen.block(0, seen.states[0])
    seen.readout(seen.states[-1])
    seen.pull(1, seen.states[2], lambda w: w.detach())
    assert all(map(torch.equal, seen.states, kept))


@given(st.integers(1, 6), st.integers(0, 4), st.integers(2, 5), st.integers(0, 2**31))
def test_the_loss_is_one_number_per_sample(count, tokens, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    shape = (count, tokens) if tokens else (count,)
    logits = torch.randn(*shape, classes, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, classes, shape, generator=generator)
    truth = -logits.log_softmax(-1).gather(-1, labels[..., None])[..., 0]
    expected = truth.mean(1) if tokens else truth
    torch.testing.assert_close(cross_entropy(logits, labels), expected)


def test_labels_may_be_probabilities():
    logits = torch.randn(4, 3)
    labels = torch.tensor([0, 1, 2, 1])
    soft = F.one_hot(labels, 3).float()
    torch.testing.assert_close(cross_entropy(logits, soft), cross_entropy(logits, labels))


@pytest.mark.parametrize("shape", [(5, 1), (4,), (5, 3)])
def test_labels_that_do_not_fit_the_logits_are_refused(shape):
    message = r"logits of shape \(5, 3\) need targets of shape \(5,\), not \("
    with pytest.raises(DataError, match=message):
        cross_entropy(torch.zeros(5, 3), torch.zeros(shape, dtype=torch.long))


@pytest.mark.parametrize("label", [-100, -1, 3])
def test_labels_out_of_range_are_refused_not_ignored(label):
    labels = torch.tensor([0, label])
    with pytest.raises(DataError, match="the network has 3 classes: 0 to 2"):
        cross_entropy(torch.zeros(2, 3), labels)
    with pytest.raises(DataError, match="the network has 3 classes: 0 to 2"):
        cross_entropy(torch.zeros(1, 2, 3), labels[None])


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32])
def test_labels_may_be_whole_numbers_of_any_size(dtype):
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 1])
    assert torch.equal(cross_entropy(logits, labels.to(dtype)), cross_entropy(logits, labels))


def test_token_labels_may_be_probabilities():
    logits, labels = torch.randn(2, 4, 3), torch.tensor([[0, 1, 2, 1], [2, 2, 0, 1]])
    soft = F.one_hot(labels, 3).float()
    torch.testing.assert_close(cross_entropy(logits, soft), cross_entropy(logits, labels))


def test_grading_gives_the_callers_mode_back():
    with torch.inference_mode():
        with grading():
            assert torch.ones(1, requires_grad=True).mul(2).requires_grad
        assert torch.is_inference_mode_enabled()
        assert not torch.is_grad_enabled()
