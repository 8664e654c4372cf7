"""An audited model of the user's own as a bundle, for which report, card and template work."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from faudit.baselines import frozen as frozen_blocks
from faudit.bundle import Bundle, Outcome, Parts, pack_correct, write
from faudit.errors import DataError, FauditError
from faudit.measures.evidence import Evidence
from faudit.networks.values import kind, map_tensors
from faudit.networks.view import Network
from faudit.recipe import OWN, Data, Measuring, Named, Recipe, Training
from faudit.rules import RULES, CreditRule
from faudit.training import Score

UNNAMED = "unnamed"


@dataclass(frozen=True)
class Keeper:
    """Writes an audit to a folder; made before the audit, so that nothing is trained in vain."""

    folder: Path
    name: str
    samples: tuple[Any, Tensor]

    @classmethod
    def at(cls, folder: str | os.PathLike[str], name: str, samples: tuple[Any, Tensor]) -> Keeper:
        """A keeper for this folder, which must be new, and these test samples."""
        path = Path(folder)
        if path.exists() and not (path.is_dir() and not any(path.iterdir())):
            raise FauditError(f"{path} is there already; keep an audit in a new folder")
        if samples[1].ndim != 1:
            raise DataError(
                "a bundle keeps whether each sample was right, and these have several labels each"
                f" ({kind(samples[1])}); audit without keep="
            )
        return cls(path, name, samples)

    def write(
        self,
        network: Network,
        rule: str | CreditRule | None,
        training: Training,
        seed: int,
        evidence: Evidence,
        trained: Score,
        frozen: Score,
    ) -> None:
        """The bundle, with the outcome of the frozen blocks inside."""
        state = network.module.state_dict()
        recipe = Recipe(
            network=Named(name=self.name),
            rule=_named(rule),
            data=Data(name=OWN, augment=False),
            training=training,
            measuring=Measuring(samples=max(2, evidence.samples)),
            seed=seed,
            **_placed(state),
        )
        credit = rule.state_dict() if isinstance(rule, CreditRule) else {}
        outcome = self._outcome(recipe, trained, network)
        write(self.folder, Parts(recipe, outcome, (), evidence, state, credit))
        baseline = self._outcome(frozen_blocks(recipe), frozen, network)
        Bundle.load(self.folder, tensors=False).with_baseline(baseline)

    def _outcome(self, recipe: Recipe, score: Score, network: Network) -> Outcome:
        x, y = self.samples
        with torch.no_grad():
            logits = network.trace(map_tensors(x, lambda t: t[:1])).logits
        return Outcome(
            digest=recipe.digest,
            status="done",
            epoch=recipe.training.epochs,
            accuracy=score.accuracy,
            loss=score.loss,
            tests=len(score.correct),
            correct=pack_correct(score.correct.tolist()),
            classes=logits.shape[-1],
            shape=() if isinstance(x, Mapping) else tuple(x.shape[1:]),
            data=_digest(x, y),
        )


def _named(rule: str | CreditRule | None) -> Named:
    """The rule as a recipe names it."""
    if isinstance(rule, CreditRule):
        names = [name for name, made in RULES.items() if made is type(rule)]
        return Named(name=(names or [type(rule).__name__])[0], options=rule.options)
    return Named(name=rule or UNNAMED)


def _placed(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Where the model computes, and in what."""
    first = next(t for t in state.values() if t.is_floating_point())
    dtype = str(first.dtype).removeprefix("torch.")
    return {"device": str(first.device), "dtype": dtype, "threads": torch.get_num_threads()}


def _digest(x: Any, y: Tensor) -> str:
    """What tells these test samples from others."""
    total = hashlib.sha256()
    parts = {f"x {name}": part for name, part in x.items()} if isinstance(x, Mapping) else {"x": x}
    for name, part in {**parts, "y": y}.items():
        if isinstance(part, Tensor):
            own = part.detach().cpu().contiguous()
            total.update(f"{name} {own.dtype} {tuple(own.shape)}".encode())
            total.update(own.view(torch.uint8).numpy().data)
    return total.hexdigest()
