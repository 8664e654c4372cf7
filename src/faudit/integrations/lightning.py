"""The audit as a Lightning callback: one measurement per epoch or validation, and an early stop."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from faudit.integrations import MissingPackageError
from faudit.integrations.watch import Watch

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise MissingPackageError("lightning", extra="lightning") from error


class AuditCallback(Watch, Callback):
    """Measure after every epoch and every validation, log, and stop when the protocol says so.

    Arguments as in ``Watch``; ``network`` is the dotted name of the network inside the
    ``LightningModule``, by default the module itself, whose forward must then give logits.
    A step in ``history`` is a training batch. The curves are ``faudit/growth``,
    ``faudit/state_norm``, ``faudit/reference_norm`` and, with credits, ``faudit/deep_cosine``.

    >>> import torch
    >>> audit = AuditCallback(torch.randn(8, 6), torch.arange(8) % 3, network="net", patience=2)
    >>> audit.stopped, audit.history
    (False, {})
    """

    def __init__(self, x: Any, y: Tensor, *, network: str = "", **options: Any) -> None:
        super().__init__(x, y, **options)
        self.network = network
        self.batches = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.batches = 0
        self.begin(pl_module.get_submodule(self.network))

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        self.batches += 1

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Also called by the sanity check and by trainer.validate(), where nothing is trained.
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._look(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._look(trainer, pl_module)

    def _look(self, trainer: Trainer, pl_module: LightningModule) -> None:
        pl_module.log_dict(self.look(pl_module.get_submodule(self.network), self.batches))
        # Every process must stop at the same step, or the others would wait for it for ever.
        stop = trainer.strategy.reduce_boolean_decision(self.stopped, all=False)
        trainer.should_stop = trainer.should_stop or stop
