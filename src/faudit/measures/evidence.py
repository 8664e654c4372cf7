"""What was measured on one network, as plain floats: measures fill it, protocol reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from math import inf, isfinite, nan
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from faudit.errors import FauditError, unknown

PER_STATE = (
    "state_norm",
    "reference_norm",
    "cosine",
    "cosine_clamped",
    "nudging",
    "perturbation_correlation",
    "reference_angle",
    "reference_noise",
)
PER_BLOCK = ("growth",)
SINGLE = ("deep_cosine", "gamma", "stability", "accuracy", "loss")
NOT_MEASURED = "not measured"
MOST_LAYERS = 100_000

_NON_FINITE = {"NaN": nan, "Infinity": inf, "-Infinity": -inf}


class Record(BaseModel):
    """A frozen value that survives JSON exactly, NaN and infinities included.

    Two records are equal when their JSON is, so a record that holds NaN equals its own copy.
    Input that does not fit raises ``FauditError`` naming the field.

    >>> null = NullCalibration(draws=20, mean=-0.005, std=0.018, value=0.166, z=9.5)
    >>> NullCalibration.from_json(null.to_json()) == null
    True
    >>> null.replace(draws=0)
    Traceback (most recent call last):
    ...
    faudit.errors.FauditError: NullCalibration: draws is 0; a null needs at least one draw
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise FauditError(_explain(type(self), error)) from error

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.to_json() == self.to_json()

    def __hash__(self) -> int:
        return hash(self.to_json())

    def to_json(self, indent: int | None = None) -> str:
        """Strict JSON; NaN and infinities become the strings "NaN", "Infinity", "-Infinity"."""
        return self.model_dump_json(indent=indent)

    def to_dict(self) -> dict[str, Any]:
        """The same content as ``to_json``, as a dictionary that ``json.dump`` accepts."""
        content: dict[str, Any] = json.loads(self.to_json())
        return content

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read what ``to_json`` wrote; anything else is refused, never guessed."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise FauditError(_explain(cls, error)) from error

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read what ``to_dict`` gave."""
        if not isinstance(content, Mapping):
            raise FauditError(f"{cls.__name__} needs a mapping, not {type(content).__name__}")
        return cls(**{str(name): value for name, value in content.items()})

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, validated like a new record."""
        return type(self)(
            **{**{name: getattr(self, name) for name in self.field_names()}, **changes}
        )

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        """The names of the fields, in order."""
        return tuple(cls.model_fields)


R = TypeVar("R", bound=Record)


def _explain(kind: type[Record], error: ValidationError) -> str:
    return f"{kind.__name__}: " + "; ".join(_explain_one(kind, e) for e in error.errors())


def _explain_one(kind: type[Record], error: Any) -> str:
    place = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in error["loc"]).lstrip(".")
    if error["type"] == "extra_forbidden":
        return unknown("field", place, kind.field_names())
    if error["type"] == "missing":
        return f"{place} is missing"
    given = "" if error["type"] == "json_invalid" else f", not {error['input']!r:.60}"
    return f"{place}: {error['msg']}{given}" if place else error["msg"]


class NullCalibration(Record):
    """The measured value beside the same quantity under freshly drawn feedback.

    ``z`` is (value - mean) / std: how many null deviations the value stands above chance.
    """

    draws: int
    mean: float
    std: float
    value: float
    z: float

    @field_validator("draws")
    @classmethod
    def _some(cls, draws: int) -> int:
        if draws < 1:
            raise FauditError(f"NullCalibration: draws is {draws}; a null needs at least one draw")
        return draws


class Evidence(Record):
    """What was measured on one network, one float per layer; the central record of faudit.

    Notation: states h_0..h_L, blocks 0..L-1, g_l = dL/dh_l the exact gradient (the *reference*),
    a_l the credit that estimates it. Per-state fields have L + 1 values, ``growth`` has L.

    ``layers``                   L, the number of blocks
    ``samples``                  examples the measurements were taken on
    ``dtype``, ``eps``           the network's dtype; the clamp ``cosine_clamped`` was computed with
    ``state_norm``               ||h_l||, mean over samples
    ``growth``                   ||h_{l+1}|| / ||h_l|| of each block l, a ratio of these means
    ``reference_norm``           ||g_l|| of one sample's own loss, mean over samples (sum reduction)
    ``cosine``                   cosine(a_l, g_l), mean over samples, no clamp
    ``cosine_clamped``           what ``F.cosine_similarity`` says at a mean loss over 128 samples
    ``deep_cosine``, ``gamma``   mean of ``cosine`` over l = 1..L, and over l = 0..L
    ``cosine_aggregates``        the same cosines aggregated in other named ways
    ``nudging``                  change of loss after a small step along -a_l
    ``perturbation_correlation`` correlation of <a_l, v> with the true change of loss under v
    ``perturbation_controls``    the same for the exact gradient ("bp"), a random vector ("random")
    ``stability``                mean pairwise cosine of the reference direction across minibatches
    ``stability_mode``           which direction ``stability`` compared
    ``reference_angle``          degrees between the reference in ``dtype`` and in float64
    ``reference_noise``          relative error of the same
    ``null``                     the deep cosine beside its fresh-feedback null
    ``accuracy``, ``loss``       on the evaluation data, where it was measured
    ``nonfinite``                the first place that held a number that is not finite: "state h_3"
    ``facts``                    raw observations behind the reliability flags: protocol.flags.FACTS
    ``undefined``                why a value has no meaning: "gamma", "cosine[0]" or the name of an
                                 aggregate -> reason

    A quantity that was not measured stays empty (or NaN); one that was measured but has no
    meaning is NaN with its reason in ``undefined``. ``defined`` says which values may be used.

    >>> e = Evidence(layers=1, samples=64, cosine=(nan, 0.25),
    ...              undefined={"cosine[0]": "the credit has zero norm"})
    >>> e.defined["cosine"], e.defined["gamma"]
    ((False, True), False)
    >>> e.why("cosine", 0), e.why("gamma")
    ('the credit has zero norm', 'not measured')
    """

    layers: int
    samples: int
    dtype: str = "float32"
    eps: float = 1e-8
    state_norm: tuple[float, ...] = ()
    growth: tuple[float, ...] = ()
    reference_norm: tuple[float, ...] = ()
    cosine: tuple[float, ...] = ()
    cosine_clamped: tuple[float, ...] = ()
    deep_cosine: float = nan
    gamma: float = nan
    cosine_aggregates: dict[str, float] = Field(default_factory=dict)
    nudging: tuple[float, ...] = ()
    perturbation_correlation: tuple[float, ...] = ()
    perturbation_controls: dict[str, tuple[float, ...]] = Field(default_factory=dict)
    stability: float = nan
    stability_mode: str | None = None
    reference_angle: tuple[float, ...] = ()
    reference_noise: tuple[float, ...] = ()
    null: NullCalibration | None = None
    accuracy: float | None = None
    loss: float | None = None
    nonfinite: str | None = None
    facts: dict[str, bool | float | str] = Field(default_factory=dict)
    undefined: dict[str, str] = Field(default_factory=dict)

    @field_validator("facts", mode="before")
    @classmethod
    def _facts_from_json(cls, facts: Any) -> Any:
        # A fact may be text, so JSON's "NaN" would stay text: these three words are numbers.
        if not isinstance(facts, Mapping):
            return facts
        return {k: _NON_FINITE.get(v, v) if isinstance(v, str) else v for k, v in facts.items()}

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_sizes(self)
        _check_ranges(self)
        _check_undefined(self)
        return self

    @property
    def defined(self) -> dict[str, tuple[bool, ...] | bool]:
        """For every quantity, where its value has a meaning: measured, finite, not withdrawn.

        >>> Evidence(layers=2, samples=8, growth=(1.0, 2.0)).defined["growth"]
        (True, True)
        """
        layered = {n: self._defined_at(n) for n in (*PER_STATE, *PER_BLOCK)}
        return {**layered, **{n: self.why(n) == "" for n in SINGLE}}

    def _defined_at(self, name: str) -> tuple[bool, ...]:
        return tuple(self.why(name, layer) == "" for layer in range(self.length(name)))

    def length(self, name: str) -> int:
        """How many values the per-layer quantity ``name`` has when it is measured."""
        if name in PER_BLOCK:
            return self.layers
        if name in PER_STATE:
            return self.layers + 1
        raise FauditError(unknown("per-layer quantity", name, (*PER_STATE, *PER_BLOCK)))

    def why(self, name: str, layer: int | None = None) -> str:
        """Why a value has no meaning; empty when it has one.

        >>> Evidence(layers=1, samples=8, gamma=0.1).why("gamma")
        ''
        """
        value = self._value(name, layer)
        for key in (name, f"{name}[{layer}]"):
            if key in self.undefined:
                return self.undefined[key]
        if value is None:
            return NOT_MEASURED
        if name in ("deep_cosine", "gamma", "stability") and value != value:
            return NOT_MEASURED
        return "" if isfinite(value) else f"not finite ({value})"

    def _value(self, name: str, layer: int | None) -> float | None:
        if name in SINGLE:
            single: float | None = getattr(self, name)
            return single
        if layer is None or not 0 <= layer < self.length(name):
            raise FauditError(
                f"{name} needs a layer from 0 to {self.length(name) - 1}, not {layer}"
            )
        values: tuple[float, ...] = getattr(self, name)
        return values[layer] if values else None

    @property
    def invalid(self) -> str | None:
        """Where a number that must be finite is not, or None: such evidence cannot be judged.

        >>> Evidence(layers=1, samples=8, state_norm=(1.0, inf)).invalid
        'state h_1'
        """
        if self.nonfinite:
            return self.nonfinite
        for name, label in (("state_norm", "state h_"), ("reference_norm", "reference g_")):
            for layer, value in enumerate(getattr(self, name)):
                if not isfinite(value) and not self._withdrawn(name, layer):
                    return f"{label}{layer}"
        return "loss" if self.loss is not None and not isfinite(self.loss) else None

    def _withdrawn(self, name: str, layer: int) -> bool:
        return name in self.undefined or f"{name}[{layer}]" in self.undefined

    def reference_norm_at(self, batch: int) -> tuple[float, ...]:
        """||g_l|| as a mean loss over ``batch`` samples shows it.

        A mean loss divides every sample's gradient by the batch size, so a bare ||g_l|| means
        nothing without its reduction; published values use the training batch, 128.

        >>> Evidence(layers=1, samples=8, reference_norm=(0.5, 0.25)).reference_norm_at(5)
        (0.1, 0.05)
        """
        if batch < 1:
            raise FauditError(f"batch is {batch}; a mean loss needs at least one sample")
        return tuple(norm / batch for norm in self.reference_norm)

    @property
    def largest_growth(self) -> float | None:
        """The largest growth of any block; None unless that of every block is known.

        >>> Evidence(layers=2, samples=8, growth=(1.0, 3.0)).largest_growth
        3.0
        >>> Evidence(layers=2, samples=8, growth=(nan, 3.0)).largest_growth is None
        True
        """
        known = all(g == g for g in self.growth)
        return max(self.growth, default=None) if known else None

    def deepest_reference(self, batch: int) -> float | None:
        """||g_L|| at a mean loss over ``batch`` samples; None where it is not known.

        >>> Evidence(layers=1, samples=8, reference_norm=(1.0, 0.128)).deepest_reference(128)
        0.001
        """
        norms = self.reference_norm_at(batch)
        return norms[-1] if norms and norms[-1] == norms[-1] else None

    def __str__(self) -> str:
        notes = [printable(line) for line in _notes(self)]
        return "\n".join([printable(_title(self)), *_aligned(_columns(self)), *notes])

    def _repr_html_(self) -> str:
        return html_table(_title(self), _columns(self), _notes(self))


def _check_sizes(evidence: Evidence) -> None:
    if not 0 <= evidence.layers <= MOST_LAYERS or evidence.samples < 1:
        raise FauditError(
            f"Evidence: layers is {evidence.layers} and samples is {evidence.samples}; layers "
            f"counts blocks (0 to {MOST_LAYERS}), samples counts examples (1 or more)"
        )
    sizes = {n: len(getattr(evidence, n)) for n in (*PER_STATE, *PER_BLOCK)}
    sizes |= {
        f"perturbation_controls[{k}]": len(v) for k, v in evidence.perturbation_controls.items()
    }
    for name, found in sizes.items():
        wanted = evidence.layers + (name not in PER_BLOCK)
        if found not in (0, wanted):
            raise FauditError(
                f"Evidence: {name} has {found} values; {evidence.layers} blocks give {wanted} "
                "(use nan with a reason in `undefined` where a layer has no value)"
            )


def _check_ranges(evidence: Evidence) -> None:
    for name in ("state_norm", "growth", "reference_norm", "reference_noise"):
        for layer, value in enumerate(getattr(evidence, name)):
            if value < 0:
                raise FauditError(f"Evidence: {name}[{layer}] is {value}; a norm is never negative")
    if not 0 < evidence.eps < inf:
        raise FauditError(f"Evidence: eps is {evidence.eps}; a clamp is a positive number")
    if evidence.accuracy is not None:
        fraction(evidence.accuracy, "accuracy")


def _check_undefined(evidence: Evidence) -> None:
    for key in set(evidence.undefined) - {
        k for k, v in evidence.cosine_aggregates.items() if v != v
    }:
        name, _, rest = key.partition("[")
        layer = int(rest[:-1]) if rest[:-1].isdecimal() and rest.endswith("]") else None
        if rest and layer is None:
            raise FauditError(f"Evidence: undefined key {key!r} is not of the form name[layer]")
        if name not in (*PER_STATE, *PER_BLOCK, *SINGLE):
            raise FauditError(unknown("quantity", name, (*PER_STATE, *PER_BLOCK, *SINGLE)))
        for value in _named(evidence, name, layer):
            if isfinite(value):
                raise FauditError(
                    f"Evidence: {key} is declared undefined but holds {value}; give nan instead"
                )


def _named(evidence: Evidence, name: str, layer: int | None) -> Sequence[float]:
    if name in SINGLE:
        value = getattr(evidence, name)
        return () if value is None else (value,)
    if layer is None:
        values: tuple[float, ...] = getattr(evidence, name)
        return values
    found = evidence._value(name, layer)
    return () if found is None else (found,)


def expect(name: str, value: object, wanted: type, hint: str) -> None:
    """Refuse a value of another type, by name.

    >>> expect("evidence", None, Evidence, "measure() makes it")
    Traceback (most recent call last):
    ...
    faudit.errors.FauditError: evidence is of type NoneType; measure() makes it
    """
    if not isinstance(value, wanted):
        raise FauditError(f"{name} is of type {type(value).__name__}; {hint}")


def fraction(value: float, name: str) -> float:
    """``value`` as a fraction in [0, 1]; percentages are refused with the value that was meant.

    >>> fraction(30.6, "accuracy")
    Traceback (most recent call last):
    ...
    faudit.errors.FauditError: accuracy is 30.6; give a fraction between 0 and 1: use 0.306
    """
    try:
        value = float(value)
    except (TypeError, ValueError) as error:
        raise FauditError(f"{name} is {value!r:.60}; give a fraction between 0 and 1") from error
    if 0 <= value <= 1:
        return value
    hint = f": use {value / 100:g}" if 1 < value <= 100 else ""
    raise FauditError(f"{name} is {value:g}; give a fraction between 0 and 1{hint}")


Column = tuple[str, list[str]]


def _columns(evidence: Evidence) -> list[Column]:
    shown = (
        ("||h_l||", "state_norm", "{:.3g}"),
        ("growth", "growth", "{:.3g}"),
        ("||g_l||", "reference_norm", "{:.3g}"),
        ("cosine", "cosine", "{:+.3f}"),
        ("clamped", "cosine_clamped", "{:+.3f}"),
        ("nudging", "nudging", "{:+.2e}"),
        ("pert. corr.", "perturbation_correlation", "{:+.3f}"),
        ("angle/deg", "reference_angle", "{:.2f}"),
        ("noise", "reference_noise", "{:.1e}"),
    )
    index: Column = ("l", [str(layer) for layer in range(evidence.layers + 1)])
    filled = [
        (title, _cells(evidence, name, form))
        for title, name, form in shown
        if getattr(evidence, name)
    ]
    return [index, *filled]


def _cells(evidence: Evidence, name: str, form: str) -> list[str]:
    values: tuple[float, ...] = getattr(evidence, name)
    cells = [form.format(v) if isfinite(v) else _odd(v) for v in values]
    # Block l leads from h_l to h_{l+1}: its growth stands beside the state it produced.
    return ["", *cells] if name in PER_BLOCK else cells


def _odd(value: float) -> str:
    return "undefined" if value != value else f"{value}"


def _title(evidence: Evidence) -> str:
    parts = [f"{evidence.layers} blocks", f"{evidence.samples} samples", evidence.dtype]
    if evidence.accuracy is not None:
        parts.append(f"accuracy {evidence.accuracy:.3f}")
    if evidence.loss is not None:
        parts.append(f"loss {evidence.loss:.4g}")
    return "Evidence: " + ", ".join(parts)


def _notes(evidence: Evidence) -> list[str]:
    notes = []
    for name, label in (
        ("deep_cosine", "deep cosine (mean over l = 1..L)"),
        ("gamma", "Gamma (mean over l = 0..L)"),
        ("stability", "stability of the reference across minibatches"),
    ):
        if evidence.why(name) != NOT_MEASURED:
            notes.append(
                f"{label}: {evidence.why(name) or format(getattr(evidence, name), '+.3f')}"
            )
    if evidence.cosine_aggregates:
        notes.append(f"the same cosines, aggregated: {_listed(evidence.cosine_aggregates)}")
    for name, control in evidence.perturbation_controls.items():
        told = "the exact gradient" if name == "bp" else f"a {name} vector"
        values = " ".join(f"{v:+.3f}" if isfinite(v) else _odd(v) for v in control)
        notes.append(f"perturbation correlation of {told}, from h_0 on: {values}")
    if evidence.null:
        n = evidence.null
        notes.append(
            f"null: {n.value:+.3f} against {n.mean:+.3f} +- {n.std:.3f} "
            f"over {n.draws} fresh draws, z = {n.z:.1f}"
        )
    if evidence.invalid:
        notes.append(f"NOT FINITE: {evidence.invalid}")
    return notes + [f"{key} undefined: {why}" for key, why in evidence.undefined.items()]


def _listed(values: Mapping[str, float]) -> str:
    return ", ".join(
        f"{name} {v:+.3f}" if isfinite(v) else f"{name} {_odd(v)}" for name, v in values.items()
    )


def _aligned(columns: Sequence[Column]) -> list[str]:
    widths = [max(len(title), *map(len, cells)) for title, cells in columns]
    rows = [[title for title, _ in columns], *map(list, zip(*(c for _, c in columns), strict=True))]
    return ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]


def printable(text: str) -> str:
    """Text without control characters, so that a foreign record cannot drive a terminal.

    >>> printable("layer\\x1b[2J")
    'layer?[2J'
    """
    return "".join(c if c.isprintable() else "?" for c in text)


def html_table(title: str, columns: Sequence[Column], notes: Sequence[str] = ()) -> str:
    """A self-contained HTML table; every string is escaped.

    >>> html_table("a < b", [("l", ["0"])])
    '<div><p>a &lt; b</p><table><tr><th>l</th></tr><tr><td>0</td></tr></table></div>'
    """
    head = "".join(f"<th>{escape(name)}</th>" for name, _ in columns)
    rows = zip(*(cells for _, cells in columns), strict=True)
    body = "".join(f"<tr>{''.join(f'<td>{escape(c)}</td>' for c in row)}</tr>" for row in rows)
    foot = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return f"<div><p>{escape(title)}</p><table><tr>{head}</tr>{body}</table>{foot}</div>"
