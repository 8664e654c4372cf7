"""Third-party networks, built from tiny random configurations: nothing is downloaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from faudit.errors import NetworkError
from faudit.networks.scene import cross_entropy, gradients, scene
from faudit.networks.values import call
from faudit.networks.view import Network
from tests import toys
from tests.networks.checks import (
    check_local_backpropagation,
    check_reference,
    check_view,
    hook_count,
)

hf = pytest.importorskip("transformers", reason="needs faudit[huggingface]")


@dataclass
class Case:
    """A module in float64, where its blocks are, and something to ask it."""

    model: nn.Module
    blocks: str | list[str]
    x: Any
    y: Tensor

    @property
    def network(self) -> Network:
        """The module as a network."""
        return Network.of(self.model, self.blocks)


def images(size: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 3, size, size, generator=generator, dtype=torch.float64)


TOKENS = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [3, 1, 4, 1, 5]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 0, 0, 0]])
LABELS = torch.tensor([0, 3, 2])


def vit() -> Case:
    config = hf.ViTConfig(
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=8,
        patch_size=4,
        num_labels=4,
    )
    model = toys.built(lambda: hf.ViTForImageClassification(config))
    return Case(model, "vit.layers", images(8), LABELS)


def resnet() -> Case:
    config = hf.ResNetConfig(
        embedding_size=4, hidden_sizes=[4, 8], depths=[1, 2], layer_type="basic", num_labels=4
    )
    model = toys.built(lambda: hf.ResNetForImageClassification(config))
    return Case(model, "resnet.encoder.stages", images(16), LABELS)


def gpt2() -> Case:
    config = hf.GPT2Config(
        vocab_size=11,
        n_positions=8,
        n_embd=8,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = toys.built(lambda: hf.GPT2LMHeadModel(config))
    return Case(model, "transformer.h", TOKENS, TOKENS.roll(-1, 1))


def bert(x: Any = TOKENS) -> Case:
    config = hf.BertConfig(
        vocab_size=11,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
        num_labels=4,
    )
    model = toys.built(lambda: hf.BertForSequenceClassification(config))
    return Case(model, "bert.encoder.layer", x, LABELS)


def bert_with_mask() -> Case:
    return bert({"input_ids": TOKENS, "attention_mask": MASK})


def sequential() -> Case:
    def make() -> nn.Module:
        first, second = (nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True)) for _ in range(2))
        return nn.Sequential(nn.Linear(6, 6), first, second, nn.Linear(6, 4))

    x = images(2).flatten(1)[:, :6]
    return Case(toys.built(make), ["1", "2"], x, LABELS)


def encoder() -> Case:
    def make() -> nn.Module:
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        return nn.Sequential(nn.Linear(6, 8), layers, nn.Flatten(), nn.Linear(16, 4))

    return Case(toys.built(make), "1.layers", images(2).view(3, 2, 6), LABELS)


HIDDEN = [vit, resnet, gpt2, bert, bert_with_mask]
ALL = [*HIDDEN, sequential]
every = pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
reporting = pytest.mark.parametrize("make", HIDDEN, ids=lambda make: make.__name__)


@every
def test_the_view_is_the_plain_forward(make):
    case = make()
    check_view(case.network, case.x)


@reporting
def test_states_are_the_models_own_hidden_states(make):
    case = make()
    own = call(case.model, case.x, output_hidden_states=True)
    seen = case.network.trace(case.x)
    assert torch.equal(seen.logits, own.logits)
    assert all(map(torch.equal, before_norm(case, seen.states), own.hidden_states))


def before_norm(case: Case, states: tuple[Tensor, ...]) -> list[Tensor]:
    """What the library calls hidden states: GPT-2 reports its last one after the final norm."""
    norm = getattr(getattr(case.model, "transformer", None), "ln_f", nn.Identity())
    return [*states[:-1], norm(states[-1])]


@reporting
def test_the_reference_is_autograd_in_the_models_own_hidden_states(make):
    case = make()
    own = call(case.model, case.x, output_hidden_states=True)
    total = cross_entropy(own.logits, case.y).sum()
    normed = make is gpt2
    expected = torch.autograd.grad(total, own.hidden_states[: -1 if normed else None])
    _, exact = gradients(case.network, case.x, case.y)
    torch.testing.assert_close(exact[: len(expected)], expected, rtol=1e-10, atol=1e-14)


def test_gpt2s_last_gradient_comes_from_before_its_final_norm():
    case = gpt2()
    seen, exact = gradients(case.network, case.x, case.y)
    h = seen.states[-1].clone().requires_grad_()
    logits = case.model.lm_head(case.model.transformer.ln_f(h))
    total = F.cross_entropy(logits.transpose(1, 2), case.y, reduction="none").mean(1).sum()
    torch.testing.assert_close(exact[-1], torch.autograd.grad(total, h)[0])


@pytest.mark.parametrize("make", [*ALL, encoder], ids=lambda make: make.__name__)
def test_the_reference_is_the_slope_of_the_loss(make):
    case = make()
    check_reference(case.network, case.x, case.y)


@pytest.mark.parametrize("make", [*ALL, encoder], ids=lambda make: make.__name__)
@pytest.mark.parametrize("training", [False, True])
def test_local_credit_from_bp_is_backpropagation(make, training):
    case = make()
    case.model.train(training)
    check_local_backpropagation(case.network, case.x, case.y)


def test_stages_that_change_shape_keep_their_shapes():
    case = resnet()
    assert case.network.layout(case.x).shapes == ((4, 4, 4), (4, 4, 4), (8, 2, 2))
    assert case.network.layout(case.x).features == (4, 4, 8)


def test_a_language_models_ends_are_one_matrix():
    case = gpt2()
    assert case.model.lm_head.weight is case.model.transformer.wte.weight
    assert case.network.layout(case.x).classes == 11
    check_local_backpropagation(case.network, case.x, case.y)


def test_padding_is_context_and_not_a_state():
    masked, plain = bert_with_mask(), bert()
    seen, bare = masked.network.trace(masked.x), plain.network.trace(plain.x)
    assert torch.equal(seen.states[0], bare.states[0])
    torch.testing.assert_close(seen.logits[0], bare.logits[0])
    assert not torch.allclose(seen.logits[1:], bare.logits[1:])
    h = seen.states[1]
    assert torch.equal(masked.network.block(masked.x, 1, h), seen.states[2])


@every
def test_a_frozen_model_without_autograd_still_has_its_reference(make):
    case = make()
    _, expected = gradients(case.network, case.x, case.y)
    case.model.requires_grad_(False)
    for off in (torch.no_grad, torch.inference_mode):
        with off():
            _, exact = gradients(case.network, case.x, case.y)
        assert all(map(torch.equal, exact, expected))


@every
def test_no_hook_and_no_mode_is_left_behind(make):
    case = make()
    call(case.model, case.x)
    before = hook_count(case.model), [m.training for m in case.model.modules()]
    case.network.trace(case.x)
    case.network.layout(case.x)
    gradients(case.network, case.x, case.y)
    scene(case.network, case.x, case.y)
    assert before == (hook_count(case.model), [m.training for m in case.model.modules()])


def test_no_hook_is_left_behind_by_a_model_that_fails():
    case = vit()
    network, before = case.network, hook_count(case.model)
    for wrong in (images(4), TOKENS):
        with pytest.raises(NetworkError, match=r"the forward of ViTForImage.* fails on a"):
            network.trace(wrong)
        assert hook_count(case.model) == before


@pytest.mark.parametrize(
    ("make", "blocks", "message"),
    [
        (vit, None, "ViTForImageClassification has no .blocks .*'vit.layers'"),
        (vit, "vit.layer", "no module 'vit.layer'; near: vit.layers"),
        (bert, "bert.encoder.layers", "near: bert.encoder.layer"),
        (gpt2, ["transformer.h.0", "transformer.h.7"], "no module 'transformer.h.7'"),
    ],
)
def test_names_that_a_library_does_not_have_are_answered_with_its_own(make, blocks, message):
    with pytest.raises(NetworkError, match=message):
        Network.of(make().model, blocks)


@pytest.mark.parametrize(
    ("make", "blocks", "message"),
    [
        (vit, ["vit.layers.1", "vit.layers.0"], "ran before 'vit.layers.1'"),
        (vit, ["vit.layers.0", "vit"], None),
        (gpt2, ["transformer.wte", "transformer.h.0"], "'transformer.wte' is a int64 tensor"),
        (gpt2, ["transformer.h.0", "transformer"], None),
    ],
)
def test_modules_that_are_no_blocks_are_refused(make, blocks, message):
    case = make()
    with pytest.raises(NetworkError, match=message or "lies inside"):
        Network.of(case.model, blocks).trace(case.x)


def test_a_pretrained_classes_base_is_refused_for_its_output():
    with pytest.raises(NetworkError, match="BaseModelOutputWithPooling"):
        Network.of(vit().model.vit, "layers").trace(images(8))


def test_timm_vision_transformers_are_networks():
    pytest.importorskip("torchvision", reason="timm needs a torchvision that fits this torch")
    timm = pytest.importorskip("timm", reason="timm is not a dependency; this proves its form")
    model = toys.built(
        lambda: timm.models.vision_transformer.VisionTransformer(
            img_size=8, patch_size=4, embed_dim=8, depth=2, num_heads=2, num_classes=4
        )
    )
    network = Network.of(model)
    assert network.names == ("blocks.0", "blocks.1")
    check_view(network, images(8))
    check_local_backpropagation(network, images(8), LABELS)
