"""Network: every kind of module seen as stages, and every module that cannot be refused by name."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from faudit.errors import NetworkError
from faudit.networks.scene import gradients, scene
from faudit.networks.values import logits_of
from faudit.networks.view import (
    HookedNetwork,
    Network,
    ReportedNetwork,
    StagedNetwork,
    evaluating,
)
from faudit.networks.zoo import ResMLP
from tests import toys
from tests.networks.checks import check_view, hook_count

SEEN = {
    "stages": (toys.Stages, StagedNetwork),
    "stages with another forward": (toys.Rewired, HookedNetwork),
    "a forward and .blocks": (toys.Plain, HookedNetwork),
    "return_hidden and .blocks": (toys.Hidden, HookedNetwork),
    "tuples": (toys.Unpacking, HookedNetwork),
    "named tuples": (toys.Naming, HookedNetwork),
    "blocks called by keyword": (toys.ByKeyword, HookedNetwork),
    "in-place operations": (toys.InPlace, HookedNetwork),
    "in-place operations in stages": (toys.InPlaceStages, StagedNetwork),
    "BatchNorm": (lambda: toys.Plain(toys.NormStep), HookedNetwork),
    "dropout": (lambda: toys.Plain(toys.DropStep), HookedNetwork),
}


@pytest.mark.parametrize("name", SEEN)
def test_a_view_is_the_module_itself(name):
    make, kind = SEEN[name]
    network = Network.of(toys.built(make))
    x = toys.batch()[0]
    assert type(network) is kind
    check_view(network, x)
    assert torch.equal(network.trace(x).states[0], network.module.stem(x))


@pytest.mark.parametrize("embed", ["embed", "patch_embed"])
@pytest.mark.parametrize("head", ["out_head", "head"])
@pytest.mark.parametrize("norm", [True, False])
def test_a_module_without_a_forward_is_seen_by_its_parts(embed, head, norm):
    model = toys.built(lambda: toys.Parts(embed, head, norm))
    x = toys.batch()[0]
    states = [getattr(model, embed)(x)]
    for block in model.blocks:
        states.append(block(states[-1]))
    logits = getattr(model, head)(model.out_ln(states[-1]) if norm else states[-1])
    network = Network.of(model)
    seen = network.trace(x)
    assert all(map(torch.equal, seen.states, states))
    assert torch.equal(seen.logits, logits)
    assert torch.equal(network.logits_from(x, 1, states[1]), logits)


def test_states_are_what_enters_and_leaves_the_blocks():
    model = toys.built(toys.Plain)
    x = toys.batch()[0]
    seen = Network.of(model).trace(x)
    h = model.stem(x)
    for state, block in zip(seen.states, model.blocks, strict=False):
        assert torch.equal(state, h)
        h = block(h)
    assert torch.equal(seen.states[-1], h)


def test_the_states_reported_by_a_module_are_those_the_view_sees():
    model = toys.built(toys.Hidden)
    x = toys.batch()[0]
    logits, states = model(x, return_hidden=True)
    seen = Network.of(model).trace(x)
    assert all(map(torch.equal, seen.states, states))
    assert torch.equal(seen.logits, logits)


@pytest.mark.parametrize(
    ("blocks", "names"),
    [
        (None, ("blocks.0", "blocks.1", "blocks.2")),
        ("blocks", ("blocks.0", "blocks.1", "blocks.2")),
        (["blocks.0", "blocks.2"], ("blocks.0", "blocks.2")),
        ("blocks.1", ("blocks.1",)),
        (["blocks.1.linear"], ("blocks.1.linear",)),
        (["stem", "blocks.0"], ("stem", "blocks.0")),
    ],
)
def test_blocks_can_be_named(blocks, names):
    network = Network.of(toys.built(lambda: toys.Plain(depth=3)), blocks)
    assert network.names == names
    check_view(network, toys.batch()[0])


def test_a_module_goes_by_all_its_names():
    model = toys.built(toys.Plain)
    model.last = model.blocks[1]
    network = Network.of(model, ["blocks.0", "last"])
    assert network.names == ("blocks.0", "last")
    check_view(network, toys.batch()[0])


@pytest.mark.parametrize("make", [toys.Parts, toys.Stages])
def test_a_forward_given_to_one_module_is_the_one_that_runs(make):
    model = toys.built(make)
    model.forward = lambda x: -model.blocks[1](model.blocks[0](x))
    network = Network.of(model)
    assert isinstance(network, HookedNetwork)
    check_view(network, toys.batch()[0])


def test_some_of_the_stages_blocks_are_enough():
    network = Network.of(toys.built(toys.Stages), ["blocks.1"])
    assert network.depth == 1
    check_view(network, toys.batch()[0])


def test_a_network_is_its_own_view_and_can_be_seen_anew():
    network = Network.of(toys.Plain())
    assert Network.of(network) is network
    assert Network.of(network, ["blocks.1"]).names == ("blocks.1",)


def test_a_module_dictionary_is_a_sequence_too():
    model = nn.Sequential()
    model.add_module("steps", nn.ModuleDict({"a": toys.Step(), "b": toys.Step()}))
    assert Network.of(model, "steps").names == ("steps.a", "steps.b")


@settings(max_examples=20, deadline=None)
@given(
    depth=st.integers(1, 4),
    width=st.integers(1, 6),
    count=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_stages_called_and_stages_hooked_are_the_same_network(depth, width, count, seed):
    torch.manual_seed(seed)
    model = ResMLP(4, width, depth, 3).double()
    staged = Network.of(model)
    hooked = HookedNetwork(model, staged.blocks, staged.names)
    x = torch.randn(count, 4, dtype=torch.float64)
    one, other = staged.trace(x), hooked.trace(x)
    assert all(map(torch.equal, one.states, other.states))
    assert all(map(torch.equal, one.updates, other.updates))
    assert torch.equal(one.logits, other.logits)
    for index, h in enumerate(one.states):
        moved = h + 1
        assert torch.equal(staged.logits_from(x, index, moved), hooked.logits_from(x, index, moved))
    for index, h in enumerate(one.states[1:]):
        assert torch.equal(staged.block(x, index, h), hooked.block(x, index, h))


@pytest.mark.parametrize("make", [toys.Stages, lambda: toys.Plain(toys.KnownStep)])
def test_updates_come_from_blocks_that_know_them(make):
    network = Network.of(toys.built(make))
    seen = network.trace(toys.batch()[0])
    for index, update in enumerate(seen.updates):
        assert torch.equal(update, network.blocks[index].split(seen.states[index])[1])
    assert Network.of(toys.Plain().double()).trace(toys.batch()[0]).updates == (None, None)


def test_recorded_states_survive_in_place_operations():
    model = toys.built(toys.InPlace)
    x = toys.batch()[0]
    seen = Network.of(model).trace(x)
    with torch.no_grad():
        h_0 = model.stem(x)
        h_1 = model.blocks[0].linear(torch.relu(h_0))
    torch.testing.assert_close(seen.states[0], h_0)
    torch.testing.assert_close(seen.states[1], h_1)


def test_layout_knows_shapes_and_nothing_else():
    layout = Network.of(toys.built(toys.Plain)).layout(toys.batch()[0])
    assert layout.shapes == ((4,), (4,), (4,))
    assert layout.weights == (((4, 4),), ((4, 4),))
    assert (layout.classes, layout.depth, layout.features) == (3, 2, (4, 4, 4))


REFUSED = {
    "a block that runs twice": (toys.Twice, None, "'blocks.1' ran twice"),
    "a block that never runs": (toys.Skipping, None, "'blocks.1' never ran"),
    "blocks in another order": (toys.Backwards, None, "'blocks.1' ran before 'blocks.0'"),
    "blocks named out of order": (toys.Plain, ["blocks.1", "blocks.0"], "ran before 'blocks.1'"),
    "a state that is no tensor": (toys.Listing, None, "at 'blocks.0' is dict"),
    "a state of whole numbers": (toys.Tied, ["embedding", "blocks.0"], "'embedding' is a int64"),
    "a scalar instead of logits": (
        lambda: toys.Constant(torch.tensor(1.0)), None, "the forward returned a float32 tensor",
    ),
    "no tensor instead of logits": (lambda: toys.Constant({}), None, "the forward returned dict"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_pass_that_makes_no_sense_is_refused_by_name(name):
    make, blocks, message = REFUSED[name]
    model = toys.built(make)
    network = Network.of(model, blocks)
    x = torch.tensor([[1, 2]]) if isinstance(model, toys.Tied) else toys.batch()[0]
    hooks = hook_count(model)
    with pytest.raises(NetworkError) as refused:
        network.trace(x)
    assert message in str(refused.value)
    assert hook_count(model) == hooks


UNSEEN = {
    "no module": (torch.zeros(2), None, "not from tensor"),
    "a class": (toys.Plain, None, "toys.Plain"),
    "no .blocks": (nn.Sequential(nn.Linear(2, 2)), None, "Sequential has no .blocks"),
    "empty .blocks": (toys.Plain(depth=0), None, "has no .blocks with modules in it"),
    "no submodule": (nn.Linear(2, 2), None, "no submodule"),
    "an unknown name": (toys.Plain(), "block", "no module 'block'; near: blocks"),
    "an unknown block": (toys.Plain(), ["blocks.0", "blocks.9"], "no module 'blocks.9'"),
    "the module itself": (toys.Plain(), "", "no module ''"),
    "a list among blocks": (toys.Plain(), ["blocks"], "'blocks' is a ModuleList"),
    "no block": (toys.Plain(), [], "no block was named"),
    "modules for names": (toys.Plain(), [toys.Step()], "blocks are named, not given"),
    "one name twice": (toys.Plain(), ["blocks.0", "blocks.0"], "'blocks.0' are the same module"),
    "a block in a block": (
        toys.Plain(), ["blocks.0", "blocks.0.linear"], "'blocks.0.linear' lies inside",
    ),
    "neither forward nor head": (toys.Lacking(), None, ".out_head or .head"),
    "some blocks of parts": (toys.Parts(), ["blocks.0"], "Parts has no forward"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSEEN)
def test_a_module_that_is_no_network_is_refused_by_name(name):
    model, blocks, message = UNSEEN[name]
    with pytest.raises(NetworkError) as refused:
        Network.of(model, blocks)
    assert message in str(refused.value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        RuntimeError("CUDA error: unspecified launch failure"),
        KeyboardInterrupt(),
    ],
)
def test_what_the_machine_could_not_do_is_not_the_inputs_fault(error):
    def fail(_):
        raise error

    for model in (ResMLP(4, 4, 1, 3), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))):
        part = model.flat if isinstance(model, ResMLP) else model[0]
        part.forward = fail
        network = Network.of(model, None if isinstance(model, ResMLP) else ["1"])
        with pytest.raises(type(error)) as raised:
            network.trace(torch.zeros(2, 4))
        assert raised.value is error


def test_weights_that_hold_no_numbers_are_refused_by_name():
    lazy = nn.Sequential(nn.LazyLinear(4), nn.Sequential(nn.Linear(4, 4)))
    with pytest.raises(NetworkError, match=r"0.weight of Sequential is lazy: run the model once"):
        Network.of(lazy, ["1"])
    lazy(torch.zeros(2, 3))
    assert Network.of(lazy, ["1"]).depth == 1
    with torch.device("meta"):
        ghost = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with pytest.raises(NetworkError, match=r"weight 0.weight of Sequential is on the meta device"):
        Network.of(ghost, ["0"])


def test_a_scripted_module_is_refused():
    scripted = torch.jit.trace(nn.Linear(2, 2), torch.zeros(1, 2))
    with pytest.raises(NetworkError, match="give the module it came from"):
        Network.of(scripted)


def test_a_module_that_stands_in_two_places_is_refused():
    model = toys.Plain()
    model.blocks = nn.ModuleList([model.blocks[0], model.blocks[0]])
    with pytest.raises(NetworkError, match=r"'blocks\.0' and 'blocks\.1' are the same module"):
        Network.of(model)


def test_where_blocks_may_be_is_suggested():
    model = nn.ModuleDict({"encoder": nn.ModuleDict({"layers": nn.ModuleList([toys.Step()])})})
    with pytest.raises(NetworkError, match=r"'encoder\.layers'"):
        Network.of(model)


@given(st.sampled_from(["stem", "blocks", "blocks.0", "blocks.1.linear", "head"]), st.data())
def test_a_slip_of_the_pen_is_answered_with_the_name(name, data):
    place = data.draw(st.integers(0, len(name) - 1))
    slip = name[:place] + "_" + name[place + 1 :]
    with pytest.raises(NetworkError) as refused:
        Network.of(toys.Plain(), [slip])
    assert name in str(refused.value).partition("near:")[2]


@pytest.mark.parametrize("make", [toys.Stages, toys.Plain])
@pytest.mark.parametrize("index", [-1, 3])
def test_a_state_that_is_not_there_is_refused(make, index):
    network, x = Network.of(toys.built(make)), toys.batch()[0]
    with pytest.raises(NetworkError, match="states 0 to 2"):
        network.logits_from(x, index, x)
    with pytest.raises(NetworkError, match="blocks 0 to 1"):
        network.block(x, index, x)


def test_samples_must_come_first():
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    model = nn.Sequential(_Transposed(layer), nn.Flatten(0, 1), nn.Linear(4, 3)).eval()
    with pytest.raises(NetworkError, match="samples first"):
        Network.of(model, ["0"]).trace(torch.randn(2, 5, 4))


class _Transposed(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).transpose(0, 1)


def test_a_block_that_is_given_nothing_is_refused():
    class Source(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.source = nn.Identity()
            self.source.forward = lambda: torch.zeros(5, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.source()

    with pytest.raises(NetworkError, match="block 'source' receives no tensor"):
        Network.of(Source(), ["source"]).trace(torch.zeros(5, 3))


def test_a_failing_forward_leaves_no_hook_behind():
    model = toys.built(toys.Failing)
    network, (x, y) = Network.of(model), toys.batch()
    before = hook_count(model)
    for use in (
        lambda: network.trace(x),
        lambda: network.logits_from(x, 1, x),
        lambda: gradients(network, x, y),
        lambda: scene(network, x, y),
    ):
        with pytest.raises(ZeroDivisionError, match="from the forward"):
            use()
        assert hook_count(model) == before


def test_a_module_keeps_the_hooks_of_others():
    model, heard = toys.built(toys.Plain), []
    model.blocks[0].register_forward_hook(lambda *_: heard.append(1))
    Network.of(model).trace(toys.batch()[0])
    assert (heard, hook_count(model)) == ([1], 1)


def test_states_reported_by_a_module_without_blocks_can_be_measured():
    model = toys.built(toys.Reporting)
    network, (x, y) = Network.of(model), toys.batch()
    assert type(network) is ReportedNetwork
    logits, states = model(x, return_hidden=True)
    seen, exact = gradients(network, x, y)
    assert all(map(torch.equal, seen.states, states))
    assert torch.equal(seen.logits, logits)
    total = nn.functional.cross_entropy(logits, y, reduction="sum")
    assert all(map(torch.equal, exact, torch.autograd.grad(total, states)))
    assert torch.equal(network.run(x, lambda _, h: h), logits)


def test_reported_states_have_gradients_in_a_frozen_network():
    model = toys.built(toys.Reporting)
    x, y = toys.batch()
    expected = gradients(Network.of(model), x, y)[1]
    frozen = gradients(Network.of(model.requires_grad_(False)), x, y)[1]
    assert all(map(torch.equal, frozen, expected))


@pytest.mark.parametrize(
    "use",
    [
        lambda network, x, y: network.logits_from(x, 1, x),
        lambda network, x, y: network.block(x, 0, x),
        lambda network, x, y: network.layout(x),
        lambda network, x, y: scene(network, x, y),
        lambda network, x, y: network.depth,
    ],
)
def test_reported_states_cannot_be_replaced_or_taught(use):
    network = Network.of(toys.built(toys.Reporting))
    with pytest.raises(NetworkError, match=r"Reporting only reports its states; to .* needs"):
        use(network, *toys.batch())


def test_a_module_that_promises_states_must_report_them():
    class Silent(nn.Module):
        def forward(self, x: torch.Tensor, return_hidden: bool = False) -> torch.Tensor:
            return x

    with pytest.raises(NetworkError, match=r"Silent\(x, return_hidden=True\) must return"):
        Network.of(Silent()).trace(torch.zeros(2, 3))


def test_logits_are_found_in_what_forwards_return():
    logits = torch.zeros(2, 3)
    for output in (logits, (logits, "cache"), [logits], SimpleNamespace(logits=logits)):
        assert logits_of(output) is logits


@given(st.lists(st.booleans(), min_size=4, max_size=4))
def test_evaluating_gives_every_submodule_its_own_mode_back(modes):
    model = toys.Plain()
    parts = [model, model.stem, model.blocks[0], model.head]
    for module, training in zip(parts, modes, strict=True):
        module.training = training
    with suppress(KeyError), evaluating(model):
        assert not any(m.training for m in model.modules())
        raise KeyError
    assert [m.training for m in parts] == modes


@pytest.mark.parametrize(
    "wrap",
    [nn.DataParallel, torch.compile, lambda model: nn.DataParallel(torch.compile(model))],
)
def test_the_network_inside_a_compiled_or_parallel_module_is_seen(wrap):
    model = toys.built(toys.Plain)
    network = Network.of(wrap(model), "blocks")
    assert network.module is model
    assert network.names == ("blocks.0", "blocks.1")
    outside = [name for name, part in wrap(model).named_modules() if isinstance(part, toys.Step)]
    assert Network.of(wrap(model), outside).names == network.names
    assert Network.of(wrap(model), outside[0].removesuffix(".0")).names == network.names


class Encoded(nn.Module):
    """A module whose blocks lie in a part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = toys.Plain()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(x)


@pytest.mark.parametrize("part", [lambda model: model, lambda model: model.encoder])
def test_the_states_of_what_is_compiled_in_place_are_seen(part):
    model, (x, _) = toys.built(Encoded), toys.batch()
    expected = Network.of(model, "encoder.blocks").trace(x)
    part(model).compile(backend="eager")
    model(x)
    found = Network.of(model, "encoder.blocks").trace(x)
    assert all(map(torch.equal, (*found.states, found.logits), (*expected.states, expected.logits)))
