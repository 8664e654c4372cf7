"""What every adapter is built on: one look changes nothing, a new training starts afresh."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from faudit.errors import FauditError
from faudit.integrations import MissingPackageError
from faudit.integrations.watch import Watch
from faudit.networks.view import Network
from faudit.protocol import Thresholds
from faudit.rules import make_rule
from tests import toys


class Awkward(toys.Plain):
    """Dropout and BatchNorm, so that a careless look would change both noise and statistics."""

    def __init__(self) -> None:
        super().__init__(toys.NormStep)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.drop(x))


def learning() -> tuple[nn.Module, Watch]:
    """A network in the middle of training: in training mode, with gradients, one part frozen."""
    module = toys.built(Awkward).train()
    x, y = toys.batch(32)
    F.cross_entropy(module(x), y).backward()
    module.stem.requires_grad_(False)
    module.blocks[0].eval()
    credits = make_rule("dfa", Network.of(module).layout(x), seed=1).double()
    return module, Watch(x, y, credits=credits)


def condition(module: nn.Module) -> dict[str, torch.Tensor]:
    """Everything that training depends on."""
    named = {f"weight {n}": t.clone() for n, t in module.state_dict().items()}
    named |= {f"grad {n}": p.grad.clone() for n, p in module.named_parameters()}
    named |= {f"learns {n}": torch.tensor(p.requires_grad) for n, p in module.named_parameters()}
    named |= {f"mode {n}": torch.tensor(m.training) for n, m in module.named_modules()}
    return named | {"random": torch.get_rng_state()}


@pytest.mark.parametrize("around", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_a_look_changes_nothing(around) -> None:
    module, watch = learning()
    before, weights = condition(module), [id(p) for p in module.parameters()]
    with around():
        watch.begin(module)
        assert watch.look(module, step=1)
    after = condition(module)
    assert [name for name in before if not torch.equal(before[name], after[name])] == []
    assert weights == [id(p) for p in module.parameters()]


def test_the_condition_would_show_a_forward_pass() -> None:
    module, watch = learning()
    before = condition(module)
    module.blocks[0].train()
    module(watch.x)
    after = condition(module)
    changed = {name.split()[0] for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"weight", "mode", "random"}


def test_a_step_is_measured_once() -> None:
    module, watch = learning()
    watch.begin(module, step=5)
    assert watch.look(module, step=5) == {}
    numbers = watch.look(module, step=6)
    evidence = watch.history[6]
    assert numbers == {
        "faudit/growth": max(evidence.growth),
        "faudit/state_norm": evidence.state_norm[-1],
        "faudit/reference_norm": evidence.reference_norm[-1] / 128,
        "faudit/deep_cosine": evidence.deep_cosine,
    }
    assert not evidence.facts["was_training"]


def test_stopping_is_remembered_until_a_new_training() -> None:
    module, watch = learning()
    watch = Watch(watch.x, watch.y, on="D1", patience=2, thresholds=Thresholds(growth=1e-3))
    watch.begin(module)
    assert (watch.stopped, watch.reason) == (False, "")
    watch.look(module, step=1)
    assert not watch.stopped
    watch.look(module, step=2)
    assert watch.stopped
    assert watch.reason.startswith("D1 has fired 2 times in a row")
    watch.begin(module)
    assert (watch.stopped, list(watch.history)) == (False, [0])


def test_a_weight_that_is_not_finite_stops_at_once() -> None:
    module, watch = learning()
    watch.begin(module)
    with torch.no_grad():
        module.blocks[1].linear.weight[0, 0] = float("nan")
    watch.look(module, step=1)
    assert watch.reason == "not finite: weight blocks.1.linear.weight"


def test_importing_the_package_imports_no_trainer() -> None:
    code = (
        "import sys, faudit.integrations, faudit.integrations.watch;"
        "print({'lightning', 'pytorch_lightning', 'transformers'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("lightning", "lightning.pytorch", "lightning"),
        ("huggingface", "transformers", "huggingface"),
    ],
)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, module: str, package: str, extra: str
) -> None:
    monkeypatch.delitem(sys.modules, f"faudit.integrations.{module}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=rf"pip install faudit\[{extra}\]") as caught:
        __import__(f"faudit.integrations.{module}")
    assert isinstance(caught.value, FauditError)
    assert isinstance(caught.value, ImportError)
