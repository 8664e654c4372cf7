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

from faudit import plugins
from faudit.baselines import frozen as frozen_blocks
from faudit.bundle import Bundle, Outcome, Parts, pack_correct, write
from faudit.errors import DataError, FauditError, NetworkError
from faudit.measures.evidence import Evidence
from faudit.networks.values import kind, map_tensors
from faudit.networks.view import Network
from faudit.recipe import OWN, Data, Measuring, Named, Recipe, Training
from faudit.rules import RULES, CreditRule
from faudit.training import Score

UNNAMED, EXACT = "unnamed", "bp"


@dataclass(frozen=True)
class Keeper:
    """What a bundle says of a model besides what its audit will find.

    Made before the audit: what cannot be kept is refused before anything is trained, and the
    weights are those that were handed over.
    """

    folder: Path
    recipe: Recipe
    about: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    rule: Mapping[str, Tensor]

    @classmethod
    def of(
        cls,
        network: Network,
        folder: str | os.PathLike[str],
        name: str | None,
        rule: str | CreditRule | None,
        training: Training,
        seed: int,
        test: tuple[Any, Tensor],
    ) -> Keeper:
        """A keeper of this network in ``folder``, which is made and must be empty."""
        if name == "":
            raise FauditError("name is empty; leave it out to name the model by its class")
        state = network.module.state_dict()
        weights = {key: _copied(key, value) for key, value in state.items()}
        about = _about(network, *test)  # runs the network, which may change its weights
        recipe = Recipe(
            network=Named(name=type(network.module).__name__ if name is None else name),
            rule=_named(rule),
            data=Data(name=f"{OWN}{about['data'][:8]}", augment=False),
            training=training,
            seed=seed,
            **_placed(state),
        )
        credit = rule.state_dict() if isinstance(rule, CreditRule) else {}
        return cls(_made(folder), recipe, about, weights, credit)

    def write(self, evidence: Evidence, trained: Score, frozen: Score) -> None:
        """The bundle, with the outcome of the frozen blocks inside."""
        measuring = Measuring(samples=max(2, evidence.samples))
        recipe = self.recipe.changed({"measuring": measuring})
        outcome = self._outcome(recipe, trained)
        write(self.folder, Parts(recipe, outcome, (), evidence, self.weights, self.rule))
        teacher = EXACT if recipe.rule.name == UNNAMED else None
        baseline = self._outcome(frozen_blocks(recipe, teacher), frozen)
        Bundle.load(self.folder, tensors=False).with_baseline(baseline)

    def _outcome(self, recipe: Recipe, score: Score) -> Outcome:
        return Outcome(
            digest=recipe.digest,
            status="done",
            epoch=recipe.training.epochs,
            accuracy=score.accuracy,
            loss=score.loss,
            tests=len(score.correct),
            correct=pack_correct(score.correct.tolist()),
            **self.about,
        )


def _made(folder: str | os.PathLike[str]) -> Path:
    if not isinstance(folder, str | os.PathLike):
        raise FauditError(f"keep is the path of a folder, not {folder!r}")
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        empty = not any(path.iterdir())
    except OSError as error:
        raise FauditError(f"cannot keep an audit in {path}: {error.strerror}") from error
    if not empty:
        raise FauditError(f"{path} is there already; keep an audit in a new folder")
    return path


def _about(network: Network, x: Any, y: Tensor) -> dict[str, Any]:
    """What an outcome says of the test samples and the network's answer to them."""
    if y.ndim != 1:
        raise DataError(
            "a bundle keeps whether each sample was right, and these have several labels each"
            f" ({kind(y)}); audit without keep="
        )
    with torch.no_grad():
        logits = network.trace(map_tensors(x, lambda t: t[:1])).logits
    shape = () if isinstance(x, Mapping) else tuple(x.shape[1:])
    return {"classes": logits.shape[-1], "shape": shape, "data": _digest(x, y)}


def _copied(name: str, value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise NetworkError(
            f"the model's state holds {name!r}, which is {kind(value)} and no tensor; a bundle"
            " keeps tensors only: audit without keep="
        )
    return value.detach().clone()


def _named(rule: str | CreditRule | None) -> Named:
    """The rule as a recipe names it."""
    if not isinstance(rule, CreditRule):
        return Named(name=UNNAMED if rule is None else rule)
    made = type(rule)
    place = f"{made.__module__}:{made.__qualname__}"
    names = [name for name, known in RULES.items() if known is made]
    names += [p.name for p in plugins.offered(plugins.RULES).values() if p.entry.value == place]
    return Named(name=(names or [made.__name__])[0], options=rule.options)


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
