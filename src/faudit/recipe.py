"""Recipe: one run as frozen, validated data with a stable digest; imports no torch."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import product
from math import inf, nan
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from faudit.errors import RecipeError

_NAMED = ("network", "rule")
_NON_FINITE = {"NaN": nan, "Infinity": inf, "-Infinity": -inf}


def _number(value: Any) -> Any:
    """A number that strict JSON could only spell as a string."""
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


Option = Annotated[bool | int | float | str | tuple[int, ...] | None, BeforeValidator(_number)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _refusal(type(self), error) from error

    # Inside a recipe the parts are checked by the recipe, whose errors then give the whole path.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @field_validator("*", mode="before")
    @classmethod
    def _truth_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        name = info.field_name or ""
        if isinstance(value, bool) and cls.model_fields[name].annotation is not bool:
            raise PydanticCustomError("truth", "true and false are no value for this")
        return value


OWN = "own:"
"""Begins the name of data that came from their owner's code, and that no recipe can load."""


def _from_name(values: Any) -> Any:
    return {"name": values} if isinstance(values, str) else values


class Named(_Part):
    """Something from a registry, with the options it is made with; a bare name has none.

    >>> Recipe(rule="dfa").rule == Named(name="dfa")
    True
    """

    name: str
    options: dict[str, Option] = Field(default_factory=dict)

    _from_name = model_validator(mode="before")(_from_name)


class Data(_Part):
    """Which images, and how many of them; ``labels`` drawn at random leave nothing to learn.

    >>> Recipe(data="fashion-mnist").data == Data(name="fashion-mnist")
    True
    """

    name: str = "cifar10"
    train_limit: int | None = Field(default=None, ge=1)
    test_limit: int | None = Field(default=None, ge=1)
    augment: bool = True
    labels: Literal["true", "random"] = "true"

    @property
    def own(self) -> bool:
        """Whether these came from their owner's code, so that nobody else can load them."""
        return self.name.startswith(OWN)

    _from_name = model_validator(mode="before")(_from_name)


class Training(_Part):
    """Every choice of the training loop that can change a number.

    Args:
        local_lr: scales the learning rate of what local credit teaches, the embedding and blocks.
        local_schedule: the schedule of that learning rate, where it differs.
        block_steps: how often a batch's local step is repeated, each with a forward pass and
            credit of its own; the readout steps once.
        idle_steps: further optimiser steps with a zero gradient, such as a shared optimiser that
            is stepped once per block takes.
        normalise: "sample" divides every sample's credit by its norm, "batch" all of a batch's by
            their mean norm. A scale alone changes little under AdamW, but one that falls while
            the stream grows slows the steps down, and normalising takes that brake away.
        penalty: lambda of the objective's ||f||^2, which ``penalty_over`` sums or averages over
            features.
        trainable_blocks: train only the last k blocks; 0 is frozen blocks and None all.
    """

    epochs: int = Field(default=100, ge=1)
    batch: int = Field(default=128, ge=1)
    lr: float = Field(default=1e-3, gt=0, allow_inf_nan=False)
    weight_decay: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    schedule: Literal["cosine", "constant"] = "cosine"
    local_lr: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    local_schedule: Literal["same", "cosine", "constant"] = "same"
    block_steps: int = Field(default=1, ge=1)
    idle_steps: int = Field(default=0, ge=0)
    normalise: Literal["none", "sample", "batch"] = "none"
    penalty: float = Field(default=0.0, ge=0, allow_inf_nan=False)
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
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda|mps|xpu)(:[0-9]+)?$")
    dtype: Literal["float32", "float64", "bfloat16", "float16"] = "float32"
    threads: int = Field(default=1, ge=1)

    @property
    def digest(self) -> str:
        """Twenty hexadecimal digits that name this run."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:20]

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def to_json(self) -> str:
        """This recipe as JSON, with NaN and infinity as strings."""
        return self.model_dump_json(indent=1)

    def to_toml(self) -> str:
        """This recipe as TOML; what is None is left out, since TOML has no word for it.

        >>> Recipe.of(tomllib.loads(Recipe(seed=1).to_toml())).seed
        1
        """
        values = self.model_dump()
        parts = {key: part for key, part in values.items() if isinstance(part, dict)}
        lines = _assignments({key: v for key, v in values.items() if key not in parts})
        for key, part in parts.items():
            lines += ["", f"[{key}]", *_assignments(part)]
        return "\n".join(lines) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The recipe in a JSON text."""
        try:
            return cls.of(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise RecipeError(f"a recipe is not valid JSON: {error}") from error

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The recipe in a ``.toml`` or ``.json`` file."""
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise RecipeError(f"cannot read the recipe {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise RecipeError(f"cannot read the recipe {path}: {error}") from error
        try:
            return cls.of(tomllib.loads(text)) if path.suffix == ".toml" else cls.from_json(text)
        except tomllib.TOMLDecodeError as error:
            raise RecipeError(f"{path} is not valid TOML: {error}") from error
        except RecipeError as error:
            raise RecipeError(f"{path}: {error}") from error

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """A recipe from plain values; every problem is named, with near matches for keys."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise _refusal(cls, error) from error

    def set(self, *assignments: str) -> Self:
        """This recipe with ``dotted.key=value`` applied; values are read as JSON where they can be.

        >>> Recipe().set("rule.name=fa", "rule.options.scale=2").rule.options
        {'scale': 2}
        """
        changes: dict[str, Any] = {}
        for assignment in assignments:
            key, equals, text = assignment.partition("=")
            if not equals or not key.strip():
                raise RecipeError(f"{assignment!r} is not of the form key=value")
            changes[key.strip()] = _value(text.strip())
        return self.changed(changes)

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """This recipe with other values at some dotted keys.

        >>> Recipe().changed({"training.epochs": 3, "rule": "fa"}).rule.name
        'fa'
        """
        values = self.model_dump()
        for key, value in changes.items():
            named = key in _NAMED and isinstance(value, str)
            _put(values, key.split("."), {"name": value} if named else value)
        return type(self).of(values)


def grid(base: Recipe, **axes: Sequence[Any]) -> Iterator[Recipe]:
    """Every combination of the axes' values; ``__`` in an axis stands for a dot.

    >>> [r.seed for r in grid(Recipe(), seed=[1, 2], training__epochs=[3])]
    [1, 2]
    """
    keys = [axis.replace("__", ".") for axis in axes]
    for values in product(*axes.values()):
        yield base.changed(dict(zip(keys, values, strict=True)))


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _put(values: dict[str, Any], path: list[str], value: Any) -> None:
    for key in path[:-1]:
        values = values.setdefault(key, {})
        if not isinstance(values, dict):
            raise RecipeError(f"{'.'.join(path)}: {key!r} has no parts")
    values[path[-1]] = value.model_dump() if isinstance(value, BaseModel) else value


def _assignments(values: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {_toml(value)}" for key, value in values.items() if value is not None]


def _toml(value: Any) -> str:
    if value is None:
        raise RecipeError("an option is None, which TOML cannot say; leave it out or use JSON")
    if isinstance(value, dict):
        pairs = (f"{_toml(key)} = {_toml(inner)}" for key, inner in value.items())
        return f"{{ {', '.join(pairs)} }}" if value else "{}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _refusal(cls: type[BaseModel], error: ValidationError) -> RecipeError:
    problems = (_problem(cls, item) for item in error.errors())
    return RecipeError("; ".join(dict.fromkeys(problems)))


def _problem(cls: type[BaseModel], item: Any) -> str:
    place = [str(part) for part in item["loc"]]
    where = ".".join(place) or f"a {cls.__name__.lower()}"
    if item["type"] == "extra_forbidden":
        meant = _meant(cls, place)
        return f"unknown key {where!r}" + (f"; did you mean {meant!r}?" if meant else "")
    if "options" in place[:-1]:
        where = ".".join(place[: place.index("options") + 2])
        return f"{where}: must be a number, a string, a boolean or a list of whole numbers"
    return f"{where}: {item['msg']} (got {item['input']!r:.80})"


def _meant(cls: type[BaseModel], place: list[str]) -> str:
    """The whole key that an unknown one resembles, here or in another part; empty if none."""
    *path, key = place
    known = _keys(cls, path)
    here = get_close_matches(key, known, n=1) or [f"options.{key}"] * ("options" in known)
    if here:
        return ".".join([*path, here[0]])
    elsewhere = {key: f"{part}.{key}" for part in _keys(cls, []) for key in _keys(cls, [part])}
    near = get_close_matches(key, elsewhere.keys() - {"name", "options"}, n=1)
    return elsewhere[near[0]] if near else ""


def _keys(cls: type[BaseModel], path: list[str]) -> list[str]:
    for part in path:
        field = cls.model_fields.get(part)
        inner = field.annotation if field else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        cls = inner
    return list(cls.model_fields)
