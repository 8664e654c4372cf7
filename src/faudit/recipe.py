"""Recipe: one run as frozen, validated data with a stable digest; imports no torch."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from faudit.errors import RecipeError

Option = bool | int | float | str | None | tuple[int, ...]


class _Part(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", ser_json_inf_nan="strings", allow_inf_nan=True
    )


class Named(_Part):
    """Something from a registry, with the options it is made with."""

    name: str
    options: dict[str, Option] = Field(default_factory=dict)


class Data(_Part):
    """Which images, and how many of them."""

    name: str = "cifar10"
    train_limit: int | None = Field(default=None, ge=1)
    test_limit: int | None = Field(default=None, ge=1)
    augment: bool = True


class Training(_Part):
    """Every choice of the training loop that can change a number.

    ``local_lr`` scales the learning rate of what is taught by local credit (embedding and blocks),
    ``local_schedule`` is its schedule where it differs, ``block_steps`` repeats the local step of
    a batch, ``idle_steps`` adds optimiser steps with a zero gradient (a shared optimiser stepped
    once per block does that), ``normalise="sample"`` divides every sample's credit by its norm,
    ``penalty`` is lambda and ``penalty_over`` says whether ||f||^2 sums or averages over features,
    and ``trainable_blocks`` trains only the last k blocks (0: frozen blocks; None: all).
    """

    epochs: int = Field(default=100, ge=1)
    batch: int = Field(default=128, ge=1)
    lr: float = Field(default=1e-3, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    schedule: Literal["cosine", "constant"] = "cosine"
    local_lr: float = Field(default=1.0, gt=0)
    local_schedule: Literal["same", "cosine", "constant"] = "same"
    block_steps: int = Field(default=1, ge=1)
    idle_steps: int = Field(default=0, ge=0)
    normalise: Literal["none", "sample"] = "none"
    penalty: float = Field(default=0.0, ge=0)
    penalty_over: Literal["sum", "mean"] = "sum"
    trainable_blocks: int | None = Field(default=None, ge=0)


class Measuring(_Part):
    """What is measured while and after training; none of it changes the training."""

    samples: int = Field(default=1024, ge=2)
    every: int = Field(default=1, ge=1)


class Recipe(_Part):
    """One run. Two runs with the same digest are the same run.

    >>> recipe = Recipe(network=Named(name="resmlp"), rule=Named(name="dfa"))
    >>> recipe.digest == Recipe.from_json(recipe.to_json()).digest
    True
    >>> recipe.set("training.epochs=30").training.epochs
    30
    """

    version: Literal[1] = 1
    network: Named = Named(name="resmlp", options={"width": 256, "depth": 4})
    rule: Named = Named(name="bp")
    data: Data = Data()
    training: Training = Training()
    measuring: Measuring = Measuring()
    seed: int = Field(default=42, ge=0)
    rule_seed: int | None = Field(default=None, ge=0)
    device: str = "cpu"
    dtype: Literal["float32", "float64", "bfloat16", "float16"] = "float32"
    threads: int = Field(default=1, ge=1)

    @property
    def digest(self) -> str:
        """Twenty hexadecimal digits that name this run."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:20]

    def to_json(self) -> str:
        """This recipe as JSON, with NaN and infinity as strings."""
        return self.model_dump_json(indent=1)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The recipe in a JSON text."""
        try:
            return cls.of(json.loads(text))
        except json.JSONDecodeError as error:
            raise RecipeError(f"a recipe is not valid JSON: {error}") from error

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The recipe in a ``.toml`` or ``.json`` file."""
        path = Path(path)
        try:
            text = path.read_text()
        except OSError as error:
            raise RecipeError(f"cannot read the recipe {path}: {error.strerror}") from error
        if path.suffix != ".toml":
            return cls.from_json(text)
        try:
            return cls.of(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise RecipeError(f"{path} is not valid TOML: {error}") from error

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """A recipe from plain values; every problem is named, with near matches for keys."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            problems = (_problem(cls, item) for item in error.errors())
            raise RecipeError("; ".join(dict.fromkeys(problems))) from error

    def set(self, *assignments: str) -> Self:
        """This recipe with ``dotted.key=value`` applied; values are read as JSON where they can be.

        >>> Recipe().set("rule.name=fa", "rule.options.scale=2").rule.options
        {'scale': 2}
        """
        values = self.model_dump(mode="json")
        for assignment in assignments:
            key, equals, text = assignment.partition("=")
            if not equals or not key:
                raise RecipeError(f"{assignment!r} is not of the form key=value")
            _put(values, key.strip().split("."), _value(text.strip()))
        return type(self).of(values)


def grid(base: Recipe, **axes: Sequence[Any]) -> Iterator[Recipe]:
    """Every combination of the axes' values; ``__`` in an axis stands for a dot.

    >>> [r.seed for r in grid(Recipe(), seed=[1, 2], training__epochs=[3])]
    [1, 2]
    """
    keys = [axis.replace("__", ".") for axis in axes]
    for values in product(*axes.values()):
        yield base.set(*(f"{k}={json.dumps(v)}" for k, v in zip(keys, values, strict=True)))


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _put(values: dict[str, Any], path: list[str], value: Any) -> None:
    for key in path[:-1]:
        values = values.setdefault(key, {})
        if not isinstance(values, dict):
            raise RecipeError(f"{'.'.join(path)}: {key!r} has no parts")
    values[path[-1]] = value


def _problem(cls: type[BaseModel], item: Any) -> str:
    place = [str(part) for part in item["loc"]]
    where = ".".join(place)
    if item["type"] != "extra_forbidden":
        return f"{where}: {item['msg']} (got {item['input']!r})"
    near = get_close_matches(place[-1], _keys(cls, place[:-1]), n=1)
    return f"unknown key {where!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def _keys(cls: type[BaseModel], path: list[str]) -> list[str]:
    for part in path:
        field = cls.model_fields.get(part)
        inner = field.annotation if field else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        cls = inner
    return list(cls.model_fields)
