"""The audit as a Hugging Face callback: one measurement per epoch or evaluation, an early stop."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from faudit.integrations import MissingPackageError
from faudit.integrations.watch import Watch

try:
    from transformers import Trainer, TrainerCallback
except ImportError as error:
    raise MissingPackageError("transformers", extra="huggingface") from error


class AuditCallback(Watch, TrainerCallback):
    """Measure after every epoch and every evaluation, log, and stop when the protocol says so.

    It takes the trainer because a callback cannot log without one; the other arguments are as in
    ``Watch``, with ``x`` a mapping where the model takes keywords. Add it with
    ``trainer.add_callback``. A step in ``history`` is an optimiser step. The curves are
    ``faudit/growth``, ``faudit/state_norm``, ``faudit/reference_norm`` and, with credits,
    ``faudit/deep_cosine``.
    """

    def __init__(self, trainer: Trainer, x: Any, y: Tensor, **options: Any) -> None:
        super().__init__(x, y, **options)
        self.trainer = trainer

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, model: nn.Module, **_: Any
    ) -> None:
        self.begin(model, state.global_step)

    def on_epoch_end(
        self, args: Any, state: Any, control: Any, *, model: nn.Module, **_: Any
    ) -> None:
        # Evaluations also happen before and after training, where there is nothing to watch.
        numbers = self.look(model, state.global_step) if self.trainer.is_in_train else {}
        if numbers:
            due = control.should_log
            self.trainer.log(numbers)
            control.should_log = due  # logging marks the trainer's own loss as logged too
        control.should_training_stop |= self.stopped

    on_evaluate = on_epoch_end
