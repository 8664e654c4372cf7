"""A real Lightning trainer: it is measured, logged, stopped, and otherwise left as it was."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from faudit.errors import FauditError
from faudit.networks.view import Network
from faudit.networks.zoo import ResMLP
from faudit.protocol import Epoch, Thresholds, replay
from faudit.rules import make_rule

pytest.importorskip("lightning")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.loggers.logger import DummyLogger

from faudit.integrations.lightning import AuditCallback

pytestmark = pytest.mark.filterwarnings(
    "ignore:You defined a `validation_step` but", "ignore:.*LeafSpec"
)
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

SHAPE = {"inputs": 6, "width": 8, "depth": 2, "classes": 3}


def samples(count: int = 32, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=generator)
    return x, x[:, :3].argmax(1)


class Learner(LightningModule):
    """A network whose training draws random numbers and keeps running statistics."""

    def __init__(self, explode: float = 1.0) -> None:
        super().__init__()
        self.explode = explode
        self.net = ResMLP(**SHAPE)
        self.noise = nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(0.3))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.noise(x))

    def training_step(self, batch: Any, _: int) -> Tensor:
        return F.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: Any, _: int) -> None:
        self.log("val_loss", F.cross_entropy(self(batch[0]), batch[1]))

    def on_train_batch_end(self, *_: Any) -> None:
        with torch.no_grad():
            for weight in self.net.blocks[1].parameters():
                weight.mul_(self.explode)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 1e-2)


def fit(
    folder: Path,
    callbacks: list[Callback],
    *,
    explode: float = 1.0,
    epochs: int = 3,
    validate: bool = True,
    **options: Any,
) -> tuple[Learner, Trainer]:
    """Train a learner from a fixed seed, leaving no file behind."""
    torch.manual_seed(0)
    learner = Learner(explode)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        default_root_dir=folder,
        enable_checkpointing=False,
        log_every_n_steps=1,
        callbacks=callbacks,
        **{**quiet, **options},
    )
    data = DataLoader(TensorDataset(*samples()), batch_size=8, shuffle=True)
    trainer.fit(learner, data, DataLoader(TensorDataset(*samples()), 32) if validate else None)
    assert not list(folder.iterdir())
    return learner, trainer


def credit() -> Any:
    network = Network.of(ResMLP(**SHAPE))
    return make_rule("dfa", network.layout(samples()[0]), seed=1)


class Recorder(DummyLogger):
    """What a logger was told."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[dict[str, float]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.seen.append(metrics)


class Draw(Callback):
    """A careless neighbour: it draws one random number an epoch."""

    def on_train_epoch_end(self, *_: Any) -> None:
        torch.rand(1)


def same_bits(a: nn.Module, b: nn.Module) -> bool:
    """Equal weights and running statistics."""
    state, other = a.state_dict(), b.state_dict()
    return all(torch.equal(state[name], other[name]) for name in state)


@pytest.mark.parametrize("validate", [True, False])
def test_training_is_the_same_to_the_last_bit(tmp_path: Path, validate: bool) -> None:
    plain, _ = fit(tmp_path, [], validate=validate)
    audit = AuditCallback(*samples(), blocks="net.blocks", credits=credit())
    watched, trainer = fit(tmp_path, [audit], validate=validate)
    assert same_bits(plain, watched)
    assert all(module.training for module in watched.modules())
    assert list(audit.history) == [0, 4, 8, 12]
    assert (audit.stopped, audit.reason, trainer.current_epoch) == (False, "", 3)


def test_that_comparison_would_notice_one_random_number(tmp_path: Path) -> None:
    assert not same_bits(fit(tmp_path, [])[0], fit(tmp_path, [Draw()])[0])


def test_what_was_measured_is_logged_and_kept(tmp_path: Path) -> None:
    audit, logger = AuditCallback(*samples(), blocks="net.blocks", credits=credit()), Recorder()
    _, trainer = fit(tmp_path, [audit], logger=logger)
    last = audit.history[12]
    assert trainer.callback_metrics["faudit/growth"] == pytest.approx(max(last.growth))
    logged = [seen for seen in logger.seen if "faudit/deep_cosine" in seen]
    kept = [evidence for step, evidence in audit.history.items() if step]
    assert [seen["faudit/deep_cosine"] for seen in logged] == pytest.approx(
        [evidence.deep_cosine for evidence in kept]
    )
    assert [seen["faudit/reference_norm"] for seen in logged] == pytest.approx(
        [evidence.reference_norm[-1] / 128 for evidence in kept]
    )
    assert last.loss < audit.history[0].loss
    assert not last.facts["was_training"]


def test_an_exploding_stream_stops_the_training(tmp_path: Path) -> None:
    audit = AuditCallback(*samples(), blocks="net.blocks")
    _, trainer = fit(tmp_path, [audit], explode=10.0, epochs=50)
    assert 0 < trainer.current_epoch < 10
    assert audit.reason.startswith("mode 1 has fired once: growth ")
    found = replay(Epoch.from_evidence(step, e) for step, e in audit.history.items())
    assert found.first["mode 1"] == found.total == 4 * trainer.current_epoch


def test_patience_trigger_and_thresholds_are_the_callers(tmp_path: Path) -> None:
    strict = Thresholds(growth=0.5)
    audit = AuditCallback(*samples(), blocks="net.blocks", thresholds=strict, on="D1", patience=2)
    _, trainer = fit(tmp_path, [audit])
    assert trainer.current_epoch == 2
    assert audit.reason.startswith("D1 has fired 2 times in a row")


def test_several_validations_an_epoch_are_measured_each(tmp_path: Path) -> None:
    audit = AuditCallback(*samples(), blocks="net.blocks")
    learner, trainer = fit(tmp_path, [audit], epochs=2, val_check_interval=2)
    audit.batches += 1
    trainer.validate(learner, DataLoader(TensorDataset(*samples()), 32), verbose=False)
    assert list(audit.history) == [0, 2, 4, 6, 8]


def test_a_validation_within_an_epoch_can_stop_it(tmp_path: Path) -> None:
    strict = Thresholds(growth=0.5)
    audit = AuditCallback(*samples(), blocks="net.blocks", thresholds=strict, on="D1")
    _, trainer = fit(tmp_path, [audit], val_check_interval=1)
    assert (list(audit.history), trainer.global_step) == ([0, 1], 1)


def test_a_second_training_begins_a_new_history(tmp_path: Path) -> None:
    audit = AuditCallback(*samples(), network="net", thresholds=Thresholds(growth=0.5), on="D1")
    fit(tmp_path, [audit], epochs=2)
    assert audit.stopped
    fit(tmp_path, [audit], epochs=0)
    fit(tmp_path, [audit], epochs=1, validate=False)
    assert list(audit.history) == [0, 4]


def test_wrong_blocks_fail_before_the_first_step(tmp_path: Path) -> None:
    audit = AuditCallback(*samples(), blocks="net.layers")
    with pytest.raises(FauditError, match="layers"):
        fit(tmp_path, [audit])
    assert audit.batches == 0
