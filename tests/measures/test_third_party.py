"""Real architectures of a real library, tiny and untrained: each measured once, whole."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from faudit.measures.effects import loss_at
from faudit.measures.measure import measure
from faudit.networks.scene import cross_entropy
from faudit.networks.values import logits_of
from faudit.networks.view import Network
from faudit.rules import make_rule
from tests import reference
from tests.measures.test_safety import unchanged

transformers = pytest.importorskip("transformers")
TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
DROPS = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}

Case = tuple[nn.Module, str, Any, Tensor]


def vit() -> Case:
    config = transformers.ViTConfig(
        **TINY, **DROPS, intermediate_size=32, image_size=16, patch_size=8, num_labels=5
    )
    return transformers.ViTForImageClassification(config), "vit.layers", images(16), LABELS


def resnet() -> Case:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], num_labels=5
    )
    model = transformers.ResNetForImageClassification(config)
    return model, "resnet.encoder.stages", images(32), LABELS


def bert() -> Case:
    config = transformers.BertConfig(
        **TINY, **DROPS, intermediate_size=32, vocab_size=11, num_labels=5
    )
    model = transformers.BertForSequenceClassification(config)
    mask = torch.ones_like(TOKENS).tril(3)
    return model, "bert.encoder.layer", {"input_ids": TOKENS, "attention_mask": mask}, LABELS


def gpt2() -> Case:
    config = transformers.GPT2Config(
        n_embd=16, n_layer=2, n_head=2, vocab_size=11, n_positions=8, bos_token_id=0, eos_token_id=0
    )
    x = {"input_ids": TOKENS, "use_cache": False}
    return transformers.GPT2LMHeadModel(config), "transformer.h", x, TOKENS.roll(-1, 1)


def images(size: int) -> Tensor:
    return torch.randn(4, 3, size, size, generator=torch.Generator().manual_seed(1))


TOKENS = torch.randint(0, 11, (4, 6), generator=torch.Generator().manual_seed(2))
LABELS = torch.tensor([0, 1, 4, 2])
MODELS = {"vit": vit, "resnet": resnet, "bert": bert, "gpt2": gpt2}


def built(make: Callable[[], Case]) -> Case:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rule", ["bp", "dfa"])
def test_a_model_is_measured_whole_and_left_alone(name, rule):
    model, blocks, x, y = built(MODELS[name])
    model.train()
    network = Network.of(model, blocks)
    made = make_rule(rule, network.layout(x), seed=1)
    found = unchanged(model, lambda: measure(network, x, y, made, perturbations=4, nulls=2))
    assert found.layers == 2
    assert found.facts["was_training"] is True
    assert found.facts["nondeterministic_spread"] == 0
    assert found.invalid is None
    assert "buffers_changed" not in found.facts
    for quantity in ("cosine", "nudging", "perturbation_correlation", "reference_angle"):
        assert all(found.defined[quantity]), quantity
    assert max(found.reference_angle) < 0.1
    assert (found.null is not None) == (rule == "dfa")
    if rule == "bp":
        assert found.cosine == pytest.approx([1.0] * 3, abs=1e-6)
        assert all(change < 0 for change in found.nudging)
        assert found.perturbation_correlation == pytest.approx([1.0] * 3, abs=1e-2)


@pytest.mark.parametrize("name", MODELS)
def test_the_loss_and_the_accuracy_are_the_models_own(name):
    model, blocks, x, y = built(MODELS[name])
    found = measure(model.eval(), x, y, blocks=blocks, perturbations=0, precise=False)
    logits = logits_of(model(**x) if isinstance(x, dict) else model(x)).detach()
    losses = [reference.cross_entropy(*pair).item() for pair in zip(logits, y, strict=True)]
    assert found.loss == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert found.accuracy == pytest.approx((logits.argmax(-1) == y).double().mean().item())


@pytest.mark.parametrize("name", MODELS)
def test_states_and_their_gradients_are_the_models_own(name):
    model, blocks, x, y = built(MODELS[name])
    model = copy.deepcopy(model).double().eval()
    x = x.double() if isinstance(x, Tensor) else x
    found = measure(model, x, y, blocks=blocks, perturbations=0, precise=False)
    caught: list[Tensor] = []

    def keep(_: Any, __: Any, output: Any) -> None:
        caught.append(output[0] if isinstance(output, tuple) else output)

    for block in model.get_submodule(blocks):
        block.register_forward_hook(keep)
    logits = logits_of(model(**x) if isinstance(x, dict) else model(x))
    losses = [reference.cross_entropy(*pair) for pair in zip(logits, y, strict=True)]
    exact = torch.autograd.grad(sum(losses), caught)
    for values, tensors in ((found.state_norm, caught), (found.reference_norm, exact)):
        expected = [t.flatten(1).norm(dim=1).mean().item() for t in tensors]
        assert values[1:] == pytest.approx(expected, rel=1e-9)


def with_cache() -> Case:
    model, blocks, x, y = gpt2()
    return model, blocks, {"input_ids": x["input_ids"], "use_cache": True}, y


@pytest.mark.parametrize("make", [*MODELS.values(), with_cache])
def test_what_is_not_computed_again_changes_no_loss(make):
    model, blocks, x, y = built(make)
    network = Network.of(model.eval(), blocks)
    at = loss_at(network, x, y, cross_entropy)
    for index, h in enumerate(network.trace(x).states):
        moved = h.detach() + 0.1
        with torch.no_grad():
            expected = cross_entropy(network.logits_from(x, index, moved), y)
        assert torch.equal(at(index, moved), expected.double())
