"""The zoo: the audited architectures are what the papers say, and say so when they cannot be."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from faudit.errors import FauditError, NetworkError
from faudit.networks.anew import redrawn
from faudit.networks.view import Network, StagedNetwork
from faudit.networks.zoo import (
    NETWORKS,
    AttentionBlock,
    ConvBlock,
    MLPBlock,
    ResMLP,
    SmallResNet,
    StudentNet,
    ViTMini,
    make_network,
)

SMALL = {
    "resmlp": {"width": 8, "depth": 2},
    "studentnet": {"width": 8, "depth": 2},
    "vitmini": {"width": 8, "depth": 2, "heads": 2},
    "smallresnet": {"widths": (4, 8)},
}


def small(name, seed=0, **options):
    return make_network(name, (3, 8, 8), 5, seed=seed, **{**SMALL[name], **options})


def kinds(model):
    return {type(m) for m in model.modules()}


def test_every_network_has_a_small_form_here():
    assert SMALL.keys() == NETWORKS.keys()


@pytest.mark.parametrize("name", SMALL)
def test_every_network_is_seen_in_stages_and_by_its_forward_alike(name):
    model, x = small(name).eval(), torch.randn(3, 3, 8, 8)
    network = Network.of(model)
    assert isinstance(network, StagedNetwork)
    assert network.depth == 2
    assert torch.equal(network.trace(x).logits, model(x))
    assert model(x).shape == (3, 5)
    assert network.layout(x).classes == 5


@pytest.mark.parametrize("name", SMALL)
def test_every_block_knows_its_update(name):
    network = Network.of(small(name).eval())
    seen = network.trace(torch.randn(3, 3, 8, 8))
    for index, update in enumerate(seen.updates):
        skip, again = network.blocks[index].split(seen.states[index])
        assert torch.equal(update, again)
        assert torch.equal(seen.states[index + 1], skip + update)


@pytest.mark.parametrize("seed", [42, 123, 456])
def test_a_resmlp_starts_with_updates_of_a_tenth(seed):
    model = make_network("resmlp", (3, 32, 32), 10, seed=seed, width=256, depth=4)
    # not the weights' seed: images from the very numbers that drew the weights are no images
    x = torch.randn(64, 3, 32, 32, generator=torch.Generator().manual_seed(seed + 1))
    with torch.no_grad():
        seen = Network.of(model).trace(x)
    for h, f in zip(seen.states, seen.updates, strict=False):
        assert 0.08 < float((f.norm(dim=1) / h.norm(dim=1)).mean()) < 0.12


def test_a_resmlp_is_the_papers():
    model = make_network("resmlp", (3, 32, 32), 10, seed=42, width=256, depth=4)
    h = model.flat(torch.randn(2, 3, 32, 32).flatten(1))
    block = model.blocks[0]
    assert (model.flat.in_features, model.flat.out_features) == (3072, 256)
    assert [type(m) for m in (block.ln, block.w1, block.w2)] == [nn.LayerNorm, nn.Linear, nn.Linear]
    torch.testing.assert_close(block(h), h + block.w2(F.gelu(block.w1(block.ln(h)))))
    torch.testing.assert_close(model.readout(h), model.out_head(model.out_ln(h)))
    for block in model.blocks:
        assert block.w1.weight.shape == block.w2.weight.shape == (256, 256)
        assert block.w2.weight.std().item() == pytest.approx(0.01, rel=0.02)
        assert not block.w2.bias.any()


def test_the_terminal_norm_bounds_what_the_head_hears():
    for on in (True, False):
        model = ResMLP(12, 8, 2, 3, terminal_norm=on)
        h = torch.randn(4, 8)
        assert torch.allclose(model.readout(h), model.readout(1e3 * h), atol=1e-3) is on
        assert sum(isinstance(m, nn.LayerNorm) for m in model.modules()) == 2 + on


def test_without_skips_a_state_is_the_update_alone():
    options = {"width": 16, "depth": 3}
    model = make_network("resmlp", (3, 8, 8), 5, seed=3, **options, skip=False)
    twin = make_network("resmlp", (3, 8, 8), 5, seed=3, **options)
    assert all(map(torch.equal, model.parameters(), twin.parameters()))
    seen = Network.of(model).trace(torch.randn(4, 3, 8, 8))
    for block, h, f, after in zip(
        model.blocks, seen.states, seen.updates, seen.states[1:], strict=False
    ):
        assert torch.equal(after, block.w2(F.gelu(block.w1(block.ln(h)))))
        assert torch.equal(after, f)
        assert not torch.allclose(after, h + f)


def test_a_vit_reads_its_class_token_alone():
    model = small("vitmini").eval()
    h = model.embed(torch.randn(2, 3, 8, 8))
    assert h.shape == (2, 1 + 4, 8)
    assert torch.equal(h[0, 0], h[1, 0])
    other = h.clone()
    other[:, 1:] += 1
    assert torch.equal(model.readout(h), model.readout(other))
    assert not torch.equal(model.readout(h), model.readout(h.roll(1, 1)))


def test_a_vits_attention_mixes_tokens_and_nothing_else_does():
    block = AttentionBlock(8, 2, 2).double()
    h = torch.randn(1, 5, 8, dtype=torch.float64)
    attention = nn.MultiheadAttention(8, 2, batch_first=True).double()
    with torch.no_grad():
        attention.in_proj_weight.copy_(block.qkv.weight)
        attention.in_proj_bias.copy_(block.qkv.bias)
        attention.out_proj.weight.copy_(block.proj.weight)
        attention.out_proj.bias.copy_(block.proj.bias)
    n = block.ln1(h)
    mixed = h + attention(n, n, n, need_weights=False)[0]
    torch.testing.assert_close(block(h), mixed + block.w2(F.gelu(block.w1(block.ln2(mixed)))))
    assert torch.allclose(block(h.flip(1)), block(h).flip(1))


def test_the_convolutional_network_has_batchnorm_and_no_layernorm():
    model = SmallResNet()
    assert nn.BatchNorm2d in kinds(model)
    assert nn.LayerNorm not in kinds(model)
    seen = Network.of(model).trace(torch.randn(2, 3, 16, 16))
    assert [tuple(h.shape[1:]) for h in seen.states] == [
        (32, 16, 16), (32, 16, 16), (32, 16, 16), (64, 8, 8), (64, 8, 8),
    ]  # fmt: skip


def test_the_student_has_no_norm_anywhere():
    assert kinds(StudentNet()).isdisjoint({nn.LayerNorm, nn.BatchNorm1d, nn.BatchNorm2d})
    assert StudentNet().flat.in_features == 128


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 99))
def test_blocks_are_what_they_add(heads, expansion, seed):
    torch.manual_seed(seed)
    width = 2 * heads
    cases = [
        (MLPBlock(width), torch.randn(3, width)),
        (MLPBlock(width, norm=False), torch.randn(3, width)),
        (MLPBlock(width, skip=False), torch.randn(3, width)),
        (AttentionBlock(width, heads, expansion), torch.randn(2, 3, width)),
        (ConvBlock(heads, heads + expansion).eval(), torch.randn(2, heads, 5, 5)),
        (ConvBlock(heads, heads).eval(), torch.randn(2, heads, 4, 4)),
    ]
    for block, h in cases:
        skip, update = block.split(h)
        assert torch.equal(block(h), skip + update)
        assert skip.shape == update.shape


@pytest.mark.parametrize("name", SMALL)
def test_seeds_matter_and_repeat(name):
    first, again, other = (small(name, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name", SMALL)
def test_a_network_drawn_anew_starts_as_new_ones_do(name):
    larger = {} if name == "smallresnet" else {"width": 64}
    made = small(name, 1, **larger)
    again = redrawn(made, 2)
    for (key, one), other in zip(made.named_parameters(), again.parameters(), strict=True):
        spread = float(one.detach().std()) if one.numel() > 1 else 0.0
        assert float(other.detach().std()) == pytest.approx(spread, rel=0.25, abs=0.02), key
        assert torch.equal(one, other) == (spread == 0), key
    if name == "resmlp":
        assert float(again.blocks[0].w2.weight.detach().std()) < 0.011


@pytest.mark.parametrize("name", SMALL)
def test_drawing_weights_draws_nothing_from_the_global_stream(name):
    before = torch.get_rng_state()
    small(name)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("name", "image", "inputs"), [("resmlp", (3, 8, 8), 192), ("studentnet", (128,), 128)]
)
def test_flat_networks_fit_any_input(name, image, inputs):
    assert make_network(name, image, 10, seed=0, width=4, depth=1).flat.in_features == inputs


def test_image_networks_fit_channels_and_size():
    assert small("vitmini").patch_embed.in_channels == 3
    grey = make_network("vitmini", (1, 28, 28), 10, seed=0, **SMALL["vitmini"])
    assert grey(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    grey = make_network("smallresnet", (1, 28, 20), 10, seed=0, **SMALL["smallresnet"])
    assert grey(torch.zeros(2, 1, 28, 20)).shape == (2, 10)


BAD = {
    "an unknown network": ("resmpl", (3, 8, 8), {}, "unknown network 'resmpl'; did you mean"),
    "an unknown option": ("resmlp", (3, 8, 8), {"widht": 8}, "'widht'; did you mean 'width'"),
    "another's option": ("resmlp", (3, 8, 8), {"heads": 2}, "of network 'resmlp' 'heads'"),
    "what the data say": ("vitmini", (3, 8, 8), {"channels": 1}, "option of network 'vitmini'"),
    "a word": ("resmlp", (3, 8, 8), {"width": "wide"}, "width must be"),
    "a word for false": ("resmlp", (3, 8, 8), {"skip": "False"}, "skip must be true or false"),
    "a number for true": ("resmlp", (3, 8, 8), {"terminal_norm": 1}, "terminal_norm must be true"),
    "one width for all": ("smallresnet", (3, 8, 8), {"widths": 8}, "one whole number per block"),
    "no width": ("resmlp", (3, 8, 8), {"width": 0}, "width must be"),
    "a broken width": ("resmlp", (3, 8, 8), {"width": 8.5}, "not 8.5"),
    "a negative depth": ("vitmini", (3, 8, 8), {"depth": -1}, "depth must be"),
    "heads": ("vitmini", (3, 8, 8), {"width": 8, "heads": 3}, "width 8 is not divisible by heads"),
    "no heads": ("vitmini", (3, 8, 8), {"heads": 0}, "heads must be"),
    "no expansion": ("vitmini", (3, 8, 8), {"expansion": 0}, "expansion must be"),
    "patches": ("vitmini", (3, 8, 8), {"patch": 3}, "image 8 is not divisible by patch 3"),
    "oblong images": ("vitmini", (3, 8, 4), {}, "square images, not 8x4"),
    "flat inputs": ("smallresnet", (192,), {}, "needs images (C, H, W)"),
    "no stage": ("smallresnet", (3, 8, 8), {"widths": ()}, "depth must be"),
    "an empty stage": ("smallresnet", (3, 8, 8), {"widths": (4, 0)}, "widths[1] must be"),
    "no channels": ("smallresnet", (0, 8, 8), {}, "channels must be"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_built_is_refused_by_name(name):
    network, image, options, message = BAD[name]
    with pytest.raises(NetworkError) as refused:
        make_network(network, image, 10, seed=0, **options)
    assert message in str(refused.value)


@pytest.mark.parametrize("seed", [-1, 2**64, "one"])
def test_a_seed_must_be_one(seed):
    with pytest.raises(FauditError, match="seed is"):
        small("resmlp", seed)


def test_classes_must_be_a_number():
    with pytest.raises(NetworkError, match="classes must be a whole number of at least 1"):
        make_network("resmlp", (3, 8, 8), 0, seed=0)


def test_the_class_itself_refuses_what_the_registry_does():
    with pytest.raises(NetworkError, match="heads"):
        ViTMini(width=8, heads=3)
