"""Audit card: one run's verdict with every number behind it, as one JSON file that can be checked.

A card is made from a bundle alone. ``faudit.report.verification`` holds it against one.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from faudit.baselines import frozen
from faudit.bundle import Bundle
from faudit.errors import BundleError, FauditError
from faudit.measures.evidence import Evidence, Record
from faudit.protocol import Finding, Flag, Thresholds
from faudit.recipe import Recipe
from faudit.studies.judging import judge_bundle

SCHEMA = Path(__file__).with_name("audit-card.schema.json")
DIALECT = "https://json-schema.org/draft/2020-12/schema"
NOT_A_NUMBER = ("NaN", "Infinity", "-Infinity")


class Baseline(Record):
    """The frozen-blocks run that D3 compares with.

    ``matched`` says that its recipe is the run's own with all blocks frozen, and nothing else.
    """

    digest: str
    matched: bool
    accuracy: float | None
    tests: int


class Data(Record):
    """The data that the run learned from and was tested on; ``digest`` is their SHA-256."""

    name: str
    digest: str
    classes: int
    shape: tuple[int, ...]
    tests: int


class Origin(Record):
    """What made the numbers: the bundle's files by SHA-256, the code, the versions, the machine."""

    files: dict[str, str]
    versions: dict[str, str]
    code: str
    commit: str | None
    device: str
    machine: str
    threads: int


class AuditCard(Record):
    """One audited run: recipe, raw values per layer, thresholds, findings and verdict.

    ``evidence`` holds the raw values; ``protocol`` is the version of the rules that ``verdict``
    follows from them by; a number that is not finite is the string "NaN", "Infinity" or
    "-Infinity".
    """

    format: Literal["faudit audit card"] = "faudit audit card"
    version: Literal[1] = 1
    protocol: int
    digest: str
    recipe: Recipe
    status: str
    verdict: str
    findings: tuple[Finding, ...]
    flags: tuple[Flag, ...]
    thresholds: Thresholds
    accuracy: float | None
    loss: float | None
    baseline: Baseline | None
    evidence: Evidence
    data: Data
    origin: Origin

    def finding(self, code: str) -> Finding | None:
        """The finding of one check: "D1", "D2", "D3" or "c"."""
        return next((found for found in self.findings if found.code == code), None)

    def __str__(self) -> str:
        return f"audit card of run {self.digest}: {self.verdict}"


def make_card(bundle: Bundle, *, thresholds: Thresholds | None = None) -> AuditCard:
    """The card of a run, from what its bundle holds; nothing is measured again.

    >>> make_card(Bundle.load("no-such-run"))
    Traceback (most recent call last):
    faudit.errors.BundleError: no-such-run is not a bundle: manifest.json is missing...
    """
    if bundle.evidence is None:
        raise BundleError(f"{bundle.folder} gives no card: nothing was measured, {bundle.outcome}")
    verdict, outcome = judge_bundle(bundle, thresholds=thresholds).verdict, bundle.outcome
    return AuditCard(
        protocol=verdict.protocol,
        digest=bundle.recipe.digest,
        recipe=bundle.recipe,
        status=str(outcome),
        verdict=str(verdict),
        findings=verdict.findings,
        flags=verdict.flags,
        thresholds=verdict.thresholds,
        accuracy=outcome.accuracy,
        loss=outcome.loss,
        baseline=_baseline(bundle),
        evidence=bundle.evidence,
        data=Data(
            name=bundle.recipe.data.name,
            digest=outcome.data,
            classes=outcome.classes,
            shape=outcome.shape,
            tests=outcome.tests,
        ),
        origin=_origin(bundle),
    )


def _baseline(bundle: Bundle) -> Baseline | None:
    held = bundle.baseline
    if held is None:
        return None
    return Baseline(
        digest=held.digest,
        matched=held.digest == frozen(bundle.recipe).digest,
        accuracy=held.accuracy,
        tests=held.tests,
    )


def _origin(bundle: Bundle) -> Origin:
    manifest = bundle.manifest
    return Origin(**{name: getattr(manifest, name) for name in Origin.field_names()})


def read_card(path: str | os.PathLike[str]) -> AuditCard:
    """The card in a file.

    >>> read_card("no-such-card.json")
    Traceback (most recent call last):
    faudit.errors.FauditError: cannot read the card no-such-card.json: No such file or directory
    """
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise FauditError(f"cannot read the card {path}: {error.strerror}") from error
    try:
        return AuditCard.from_json(raw)
    except (FauditError, RecursionError) as error:
        raise FauditError(f"{path} is not an audit card: {error}") from error


# -- the schema -----------------------------------------------------------------------------------


class _Generator(GenerateJsonSchema):
    """Every field is there, and a number may be one of the three words that JSON lacks."""

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        return {"anyOf": [super().float_schema(schema), {"enum": list(NOT_A_NUMBER)}]}

    def field_is_required(self, *_: Any, **__: Any) -> bool:
        return True

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def field_title_should_be_set(self, *_: Any, **__: Any) -> bool:
        return False


def schema() -> dict[str, Any]:
    """The JSON Schema of a card, as it is published in ``audit-card.schema.json``.

    >>> schema()["properties"]["version"]
    {'const': 1, 'type': 'integer'}
    """
    made = AuditCard.model_json_schema(mode="serialization", schema_generator=_Generator)
    own = {kind.__name__ for kind in (Baseline, Data, Origin)}
    for name, part in made["$defs"].items():
        if name not in own:
            part.pop("description", None)
    return {"$schema": DIALECT, "title": "faudit audit card", **made}


def schema_text() -> str:
    """The schema as the text of its file."""
    return json.dumps(schema(), indent=1, sort_keys=True) + "\n"
