"""Weights drawn anew: nothing of the training is left, and the trained network keeps all of it."""

from __future__ import annotations

from copy import deepcopy
from threading import Lock

import pytest
import torch
from torch import nn

from faudit.errors import NetworkError
from faudit.networks.anew import duplicate, redrawn


def trained() -> nn.Module:
    module = nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Embedding(3, 4), nn.MultiheadAttention(4, 2)
    )
    with torch.no_grad():
        for value in module.state_dict().values():
            value.add_(7)
    return module.requires_grad_(False)


def test_nothing_of_the_training_is_left():
    module = trained()
    for (name, old), new in zip(
        module.state_dict().items(), redrawn(module, 0).state_dict().values(), strict=True
    ):
        assert float((new - old).abs().min()) > 1, name


def test_everything_can_be_trained_again_and_the_original_is_kept():
    module = trained()
    before, state = deepcopy(module.state_dict()), torch.get_rng_state()
    again = redrawn(module, 0)
    assert all(p.requires_grad for p in again.parameters())
    assert not any(p.requires_grad for p in module.parameters())
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_seeds_repeat_and_matter():
    first, again, other = (redrawn(trained(), seed)[0].weight for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


class Owner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.scale = nn.Parameter(torch.ones(2))


def test_a_parameter_that_nobody_can_draw_is_refused_by_name():
    model = nn.Sequential(nn.Linear(2, 2), Owner())
    with pytest.raises(NetworkError, match=r"1.scale cannot be drawn anew: .* pass fresh="):
        redrawn(model, 0)
    Owner.reset_parameters = lambda self: nn.init.ones_(self.scale)
    try:
        assert torch.equal(redrawn(model, 0)[1].scale, torch.ones(2))
    finally:
        del Owner.reset_parameters


class Remembering(nn.Linear):
    """A layer that keeps what it computed, as learning rules of one's own often need it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last, self.all = super().forward(x), [super().forward(x)]
        return self.last


@pytest.mark.filterwarnings("ignore:.*weight_norm")
def test_activations_that_a_module_kept_are_copied_without_their_graph():
    module = nn.Sequential(Remembering(3, 3), nn.utils.weight_norm(nn.Linear(3, 3)))
    module(torch.ones(2, 3))
    with pytest.raises(RuntimeError, match="deepcopy"):
        deepcopy(module)
    other = duplicate(module, module)
    kept, copies = ([m.last, *m.all] for m in (module[0], other[0]))
    assert all(t.requires_grad for t in kept)
    assert not any(t.requires_grad for t in copies)
    assert all(map(torch.equal, kept, copies))
    assert not {t.data_ptr() for t in kept} & {t.data_ptr() for t in copies}
    assert torch.equal(other(torch.ones(2, 3)), module(torch.ones(2, 3)))
    assert not torch.equal(redrawn(module[0], 0).weight, module[0].weight)


def test_what_cannot_be_copied_is_refused_in_words():
    module = nn.Linear(2, 2)
    module.lock = Lock()
    with pytest.raises(NetworkError, match=r"Linear cannot be copied .*lock.*; pass fresh=lambda"):
        redrawn(module, 0)


def test_a_model_that_says_how_its_layers_begin_needs_a_fresh_one():
    class Own(nn.Sequential):
        def init_weights(self) -> None:
            nn.init.orthogonal_(self[0].weight, gain=8)

    with pytest.raises(NetworkError, match=r"Own initialises itself \(init_weights\), .*fresh="):
        redrawn(nn.Sequential(Own(nn.Linear(2, 2))), 0)
