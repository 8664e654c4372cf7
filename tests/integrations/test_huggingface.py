"""A real Hugging Face trainer: it is measured, logged, stopped, and otherwise left as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from faudit.errors import FauditError
from faudit.networks.view import Network
from faudit.protocol import Epoch, Thresholds, replay
from faudit.rules import make_rule

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from faudit.integrations.huggingface import AuditCallback  # noqa: E402

BLOCKS = "vit.layers"


def model(seed: int = 0) -> nn.Module:
    """A vision transformer with dropout, of random weights."""
    torch.manual_seed(seed)
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(
            image_size=8,
            patch_size=4,
            hidden_size=8,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=16,
            hidden_dropout_prob=0.2,
            num_labels=3,
        )
    )


class Images(Dataset):
    """Images whose label is their strongest colour."""

    def __init__(self, count: int = 32) -> None:
        self.x = torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        self.y = self.x.mean((2, 3)).argmax(1)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"pixel_values": self.x[index], "labels": self.y[index]}


DATA = Images()
X = {"pixel_values": DATA.x}


class Explode(transformers.TrainerCallback):
    """Every step multiplies the last block's weights."""

    def on_step_end(self, args: Any, state: Any, control: Any, *, model: Any, **_: Any) -> None:
        with torch.no_grad():
            for weight in Network.of(model, BLOCKS).blocks[1].parameters():
                weight.mul_(10)


class Reporter(transformers.TrainerCallback):
    """What a tracker connected to the trainer was told."""

    def __init__(self) -> None:
        self.seen: list[dict[str, float]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any, **_: Any) -> None:
        self.seen.append(dict(logs))


class Draw(transformers.TrainerCallback):
    """A careless neighbour: it draws one random number an epoch."""

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        torch.rand(1)


def trainer(folder: Path, *callbacks: Any, epochs: float = 3, **options: Any) -> Any:
    """A quiet trainer that writes nothing; one epoch has four steps."""
    chosen: dict[str, Any] = {
        "num_train_epochs": epochs,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-2,
        "save_strategy": "no",
        "logging_strategy": "epoch",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        **options,
    }
    arguments = transformers.TrainingArguments(output_dir=str(folder), **chosen)
    made = transformers.Trainer(
        model(), arguments, train_dataset=DATA, eval_dataset=DATA, callbacks=list(callbacks)
    )
    made.remove_callback(transformers.PrinterCallback)
    return made


def audited(made: Any, **options: Any) -> AuditCallback:
    audit = AuditCallback(made, X, DATA.y, blocks=BLOCKS, **options)
    made.add_callback(audit)
    return audit


def train(made: Any) -> None:
    """From the same random state, whatever was drawn since the trainer was made."""
    torch.manual_seed(0)
    made.train()


def credit() -> Any:
    return make_rule("dfa", Network.of(model(), BLOCKS).layout(X), seed=1)


def same_bits(a: Any, b: Any) -> bool:
    state, other = a.model.state_dict(), b.model.state_dict()
    return all(torch.equal(state[name], other[name]) for name in state)


@pytest.mark.parametrize("evaluate", ["epoch", "no"])
def test_training_is_the_same_to_the_last_bit(tmp_path: Path, evaluate: str) -> None:
    plain = trainer(tmp_path, eval_strategy=evaluate)
    watched = trainer(tmp_path, eval_strategy=evaluate)
    audit = audited(watched, credits=credit())
    train(plain)
    train(watched)
    assert same_bits(plain, watched)
    assert list(audit.history) == [0, 4, 8, 12]
    assert (audit.stopped, audit.reason, watched.state.global_step) == (False, "", 12)
    assert not list(tmp_path.iterdir())


def test_that_comparison_would_notice_one_random_number(tmp_path: Path) -> None:
    plain, careless = trainer(tmp_path), trainer(tmp_path, Draw())
    train(plain)
    train(careless)
    assert not same_bits(plain, careless)


def test_what_was_measured_is_logged_and_kept(tmp_path: Path) -> None:
    reporter = Reporter()
    made = trainer(tmp_path, reporter, eval_strategy="epoch")
    audit = audited(made, credits=credit())
    train(made)
    kept = [audit.history[step] for step in (4, 8, 12)]
    for told in (made.state.log_history, reporter.seen):
        curves = [entry for entry in told if "faudit/growth" in entry]
        assert [c["faudit/growth"] for c in curves] == [max(e.growth) for e in kept]
        assert [c["faudit/deep_cosine"] for c in curves] == [e.deep_cosine for e in kept]
        assert [c["faudit/reference_norm"] for c in curves] == pytest.approx(
            [e.reference_norm[-1] / 128 for e in kept]
        )
    assert kept[-1].loss < audit.history[0].loss
    assert not kept[-1].facts["was_training"]


def test_the_trainers_own_log_is_still_complete(tmp_path: Path) -> None:
    plain, watched = (trainer(tmp_path, eval_strategy="epoch") for _ in range(2))
    audited(watched)
    train(plain)
    train(watched)
    own = [e for e in watched.state.log_history if "faudit/growth" not in e]
    timed = ("runtime", "per_second")
    assert [[k for k in e if not k.endswith(timed)] for e in own] == [
        [k for k in e if not k.endswith(timed)] for e in plain.state.log_history
    ]
    assert [e["loss"] for e in own if "loss" in e] == [
        e["loss"] for e in plain.state.log_history if "loss" in e
    ]


def test_an_exploding_stream_stops_the_training(tmp_path: Path) -> None:
    made = trainer(tmp_path, Explode(), epochs=50)
    audit = audited(made)
    train(made)
    assert 0 < made.state.global_step < 40
    assert audit.reason.startswith("mode 1 has fired once: growth ")
    found = replay(Epoch.from_evidence(step, e) for step, e in audit.history.items())
    assert found.first["mode 1"] == found.total == made.state.global_step


def test_an_evaluation_within_an_epoch_can_stop_it(tmp_path: Path) -> None:
    made = trainer(tmp_path, eval_strategy="steps", eval_steps=1)
    audit = audited(made, thresholds=Thresholds(growth=0.1), on="D1", patience=2)
    train(made)
    assert list(audit.history) == [0, 1, 2]
    assert audit.reason.startswith("D1 has fired 2 times in a row")


def test_an_evaluation_outside_training_is_not_watched(tmp_path: Path) -> None:
    made = trainer(tmp_path, epochs=1)
    audit = audited(made)
    made.evaluate()
    assert audit.history == {}
    train(made)
    made.state.global_step += 1
    made.evaluate()
    assert list(audit.history) == [0, 4]


def test_wrong_blocks_fail_before_the_first_step(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    made.add_callback(AuditCallback(made, X, DATA.y, blocks="vit.stages"))
    with pytest.raises(FauditError, match="stages"):
        train(made)
    assert made.state.global_step == 0
