"""Cards: made from a bundle alone, described by a schema, refused wherever a number is wrong."""

from __future__ import annotations

import copy
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faudit.baselines import frozen
from faudit.bundle import MANIFEST, Bundle, Manifest, Outcome, Parts, write
from faudit.errors import BundleError, FauditError
from faudit.measures.evidence import Evidence
from faudit.protocol import Thresholds
from faudit.recipe import Recipe
from faudit.report.card import SCHEMA, AuditCard, make_card, read_card, schema, schema_text
from faudit.report.verification import Verification, verify
from faudit.studies.runner import run
from tests.studies.tools import tiny

Path_ = tuple[str | int, ...]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("card")
    recipe = tiny("measuring.samples=40")
    run(recipe, folder / "run")
    Bundle.load(folder / "run").with_baseline(run(frozen(recipe), folder / "frozen"))
    return folder / "run"


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(copytree(original, tmp_path / "run"))


@pytest.fixture(scope="module")
def card(original: Path) -> AuditCard:
    return make_card(Bundle.load(original))


def leaves(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """The path of every value in a JSON document."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else None
    )
    if items is None:
        yield path
    else:
        for key, inner in items:
            yield from leaves(inner, (*path, key))


def named(path: Path_) -> str:
    """A path as a difference names it."""
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).lstrip(".")


def changed(document: Any, path: Path_, change: Callable[[Any], Any]) -> Any:
    """A copy of a JSON document with one leaf changed."""
    document = copy.deepcopy(document)
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = change(inner[path[-1]])
    return document


def other(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * (1 + 1e-7) + 1e-12
    return "NaN" if value is None else f"{value}x"


def caught(document: Any, folder: Path, place: str) -> bool:
    """Whether a changed card is refused when it is read, or fails at this place."""
    try:
        forged = AuditCard.from_dict(document)
    except FauditError:
        return True
    found = verify(forged, folder)
    said = [difference.place for difference in found.differences]
    return not found.passed and (place in said or any(place in note for note in found.notes))


# -- making ---------------------------------------------------------------------------------------


def test_a_card_holds_what_the_verdict_rests_on(card: AuditCard, original: Path) -> None:
    bundle = Bundle.load(original)
    assert card.digest == bundle.recipe.digest == card.recipe.digest
    assert card.evidence == bundle.evidence
    assert card.accuracy == bundle.outcome.accuracy
    assert card.baseline is not None
    assert card.baseline.matched
    assert [finding.code for finding in card.findings] == ["D1", "D2", "D3", "c"]
    d3 = card.finding("D3")
    assert d3 is not None
    assert card.accuracy is not None
    assert card.baseline.accuracy is not None
    assert d3.value == pytest.approx(card.accuracy - card.baseline.accuracy)
    assert card.origin.files["weights.safetensors"] == bundle.manifest.files["weights.safetensors"]
    assert card.verdict in str(card)


def test_a_card_is_the_same_every_time_and_survives_json(card: AuditCard, original: Path) -> None:
    assert make_card(Bundle.load(original)).to_json() == card.to_json()
    assert AuditCard.from_json(card.to_json()) == card
    assert AuditCard.from_dict(json.loads(card.to_json(indent=1))) == card


def test_a_card_without_baseline_is_incomplete(original: Path) -> None:
    alone = make_card(replace(Bundle.load(original), baseline=None))
    assert (alone.baseline, alone.verdict) == (None, "INCOMPLETE(D3)")


def test_a_baseline_of_another_recipe_is_not_matched(original: Path) -> None:
    bundle = Bundle.load(original)
    assert bundle.baseline is not None
    foreign = bundle.baseline.replace(digest=frozen(bundle.recipe.set("seed=7")).digest)
    held = make_card(replace(bundle, baseline=foreign)).baseline
    assert held is not None
    assert not held.matched


def test_thresholds_can_be_given(original: Path) -> None:
    strict = make_card(Bundle.load(original), thresholds=Thresholds(growth=0.5))
    found = strict.finding("D1")
    assert found is not None
    assert (found.threshold, found.flagged) == (0.5, True)


def broken(folder: Path, evidence: Evidence | None) -> Bundle:
    """A run that ended before it could be tested."""
    recipe = tiny()
    outcome = Outcome(
        digest=recipe.digest, status="failed", reason="non-finite", layer="the state h_1", epoch=2
    )
    write(folder, Parts(recipe, outcome, evidence=evidence))
    return Bundle.load(folder)


def test_a_run_that_broke_has_an_invalid_card(tmp_path: Path) -> None:
    bundle = broken(tmp_path, Evidence(layers=2, samples=8, nonfinite="state h_1"))
    card = make_card(bundle)
    assert card.verdict == "INVALID(non-finite state h_1)"
    assert card.status.startswith("FAILED(non-finite")
    assert verify(card, tmp_path).passed
    with pytest.raises(BundleError, match="cannot be measured again"):
        verify(card, tmp_path, again=True)


def test_a_run_without_evidence_gives_no_card(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="gives no card: nothing was measured"):
        make_card(broken(tmp_path, None))


def test_reading_a_card(card: AuditCard, tmp_path: Path) -> None:
    path = tmp_path / "card.json"
    path.write_text(card.to_json())
    assert read_card(path) == card
    for text in ("", "[]", "{}", '{"version": 2}', "[" * 100_000):
        path.write_text(text)
        with pytest.raises(FauditError, match="is not an audit card"):
            read_card(path)
    with pytest.raises(FauditError, match="cannot read the card"):
        read_card(tmp_path)


def test_cards_need_no_torch(card: AuditCard, original: Path, tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text(card.to_json())
    script = (
        "import sys; from faudit.report.verification import verify;"
        f"found = verify({str(tmp_path / 'card.json')!r}, {str(original)!r});"
        "sys.exit(2 * ('torch' in sys.modules) + found.exit_code)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


# -- the schema -----------------------------------------------------------------------------------


def test_the_published_schema_is_up_to_date() -> None:
    assert SCHEMA.read_text(encoding="utf-8") == schema_text()


def test_the_schema_is_strict_json_and_closed() -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    read = json.loads(schema_text(), parse_constant=refuse)
    assert read["additionalProperties"] is False
    assert set(read["required"]) == set(AuditCard.field_names())
    for name, part in read["$defs"].items():
        if part.get("type") == "object":
            assert part["additionalProperties"] is False, name
            assert set(part["required"]) == set(part["properties"]), name


def validator() -> Any:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(schema())
    return jsonschema.Draft202012Validator(schema())


def test_cards_follow_the_schema(card: AuditCard, tmp_path: Path) -> None:
    check = validator()
    assert check.is_valid(card.to_dict())
    odd = broken(tmp_path, Evidence(layers=1, samples=8, state_norm=(1.0, float("inf"))))
    assert check.is_valid(make_card(odd).to_dict())


def test_the_schema_refuses_what_is_missing_or_of_another_kind(card: AuditCard) -> None:
    check = validator()
    content = card.to_dict()
    for name in content:
        assert not check.is_valid({k: v for k, v in content.items() if k != name}), name
    assert not check.is_valid({**content, "extra": 1})
    for path in leaves(content):
        assert not check.is_valid(changed(content, path, lambda _: {"wrong": []})), path


# -- verifying ------------------------------------------------------------------------------------


def test_an_honest_card_is_verified(card: AuditCard, original: Path, tmp_path: Path) -> None:
    found = verify(card, original)
    assert (found.passed, found.exit_code, found.differences) == (True, 0, ())
    assert found.compared == len(list(leaves(card.to_dict())))
    assert str(found).startswith("VERIFIED: ")
    (tmp_path / "card.json").write_text(card.to_json())
    assert verify(tmp_path / "card.json", str(original)) == found
    assert verify(card, Bundle.load(original)) == found
    assert Verification.from_json(found.to_json()) == found


def test_every_leaf_of_a_card_is_verified(card: AuditCard, original: Path) -> None:
    content = card.to_dict()
    places = list(leaves(content))
    assert len(places) > 100
    for path in places:
        forged = changed(content, path, other)
        assert caught(forged, original, named(path)), named(path)


@given(st.data())
def test_no_number_of_a_card_can_be_another(
    card: AuditCard, original: Path, data: st.DataObject
) -> None:
    content = card.to_dict()
    numbers = [
        path for path in leaves(content) if type(value_at(content, path)) in (int, float, str)
    ]
    path = data.draw(st.sampled_from(numbers))
    value = value_at(content, path)
    another = data.draw(st.floats() if isinstance(value, float) else st.integers())
    written = json.loads(json.dumps(another)) if another == another else "NaN"
    if written in (float("inf"), float("-inf")):
        written = "Infinity" if written > 0 else "-Infinity"
    near = isinstance(value, float) and isinstance(written, float) and abs(written - value) < 1e-8
    if written != value and str(written) != str(value) and not near:
        assert caught(changed(content, path, lambda _: written), original, named(path))


def value_at(content: Any, path: Path_) -> Any:
    for key in path:
        content = content[key]
    return content


@pytest.mark.parametrize(
    ("place", "edit"),
    [
        ("evidence.cosine[3]", lambda c: c["evidence"]["cosine"].append(0.5)),
        ("evidence.growth[1]", lambda c: c["evidence"]["growth"].pop()),
        ("findings[4]", lambda c: c["findings"].append(c["findings"][0])),
        ("flags[0]", lambda c: c["flags"].clear()),
        ("baseline", lambda c: c.update(baseline=None)),
        ("origin.files.evil", lambda c: c["origin"]["files"].update(evil="0" * 64)),
        ("evidence.facts.width", lambda c: c["evidence"]["facts"].pop("width")),
    ],
)
def test_what_is_added_or_left_out_is_named(
    card: AuditCard, original: Path, place: str, edit: Callable[[Any], Any]
) -> None:
    content = card.to_dict()
    edit(content)
    assert caught(content, original, place)


def test_a_changed_threshold_is_named(card: AuditCard, original: Path) -> None:
    lenient = make_card(Bundle.load(original), thresholds=Thresholds(margin=-1.0))
    found = verify(lenient, original)
    assert found.passed
    assert "thresholds.margin is -1.0, not 0.02" in found.notes
    assert "thresholds.margin" in str(found)
    forged = card.replace(thresholds=Thresholds(margin=-1.0))
    assert not verify(forged, original).passed


def test_a_verdict_that_does_not_follow_is_named(card: AuditCard, original: Path) -> None:
    (difference,) = verify(card.replace(verdict="PASS"), original).differences
    assert str(difference) == f"verdict: the card says PASS, the bundle {card.verdict}"


def test_control_characters_of_a_card_do_not_reach_the_terminal(
    card: AuditCard, original: Path
) -> None:
    assert "\x1b" not in str(verify(card.replace(verdict="\x1b[2JPASS"), original))


# -- a bundle that was changed --------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "recipe.json",
        "outcome.json",
        "evidence.json",
        "history.jsonl",
        "baseline.json",
        "weights.safetensors",
        "rule.safetensors",
    ],
)
def test_a_file_that_was_changed_is_named(card: AuditCard, folder: Path, name: str) -> None:
    raw = bytearray((folder / name).read_bytes())
    raw[len(raw) // 2] ^= 1
    (folder / name).write_bytes(raw)
    found = verify(card, folder)
    assert (found.passed, found.exit_code) == (False, 1)
    assert name in str(found)
    reseal(folder)
    # What can still be read is compared with the card; what cannot is named as damaged.
    assert name in str(verify(card, folder))


def reseal(folder: Path) -> None:
    """What a careful forger does: give the manifest the hashes of the changed files."""
    manifest = Manifest.from_json((folder / MANIFEST).read_bytes())
    files = {n: hashlib.sha256((folder / n).read_bytes()).hexdigest() for n in manifest.files}
    (folder / MANIFEST).write_text(manifest.replace(files=files, seal="").sealed().to_json())


def test_every_number_of_the_evidence_is_compared_even_if_the_bundle_was_resealed(
    card: AuditCard, folder: Path
) -> None:
    honest = (folder / "evidence.json").read_bytes()
    content = json.loads(honest)
    numbers = [p for p in leaves(content) if isinstance(value_at(content, p), float)]
    assert len(numbers) > 30
    for path in numbers:
        (folder / "evidence.json").write_text(json.dumps(changed(content, path, other)))
        reseal(folder)
        places = {difference.place for difference in verify(card, folder).differences}
        assert {named(("evidence", *path)), "origin.files.evidence.json"} <= places


def test_another_runs_card_does_not_fit(card: AuditCard, tmp_path: Path) -> None:
    run(tiny("seed=7", "measuring.samples=40"), tmp_path)
    places = {difference.place for difference in verify(card, tmp_path).differences}
    assert {"digest", "recipe.seed", "baseline"} <= places


def test_a_folder_that_is_no_bundle_is_wrong_use(card: AuditCard, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="is not a bundle"):
        verify(card, tmp_path)


# -- measuring again ------------------------------------------------------------------------------


def test_measuring_again_agrees(card: AuditCard, original: Path) -> None:
    found = verify(card, original, again=True)
    assert found.passed, str(found)
    assert found.level == "weights"
    assert found.compared > verify(card, original).compared
    assert "measured again" in str(found)


def forge(folder: Path, path: Path_, change: Callable[[Any], Any]) -> AuditCard:
    """A card and a bundle that agree with each other on a number that was never measured."""
    content = json.loads((folder / "evidence.json").read_text())
    (folder / "evidence.json").write_text(json.dumps(changed(content, path, change)))
    reseal(folder)
    return make_card(Bundle.load(folder))


@pytest.mark.parametrize(
    ("path", "change"),
    [
        (("cosine", 1), lambda v: v + 0.01),
        (("cosine_clamped", 2), lambda v: v - 0.01),
        (("state_norm", 0), lambda v: v * 1.01),
        (("growth", 1), lambda v: v * 1.01),
        (("reference_norm", 2), lambda v: v * 1.01),
        (("nudging", 0), lambda v: v * 1.1),
        (("perturbation_correlation", 1), lambda v: v + 0.03),
        (("deep_cosine",), lambda v: v + 0.01),
        (("gamma",), lambda v: v + 0.01),
        (("loss",), lambda v: v * 1.01),
        (("samples",), lambda v: v + 1),
    ],
)
def test_a_number_that_was_never_measured_is_found_out(
    folder: Path, path: Path_, change: Callable[[Any], Any]
) -> None:
    forged = forge(folder, path, change)
    assert verify(forged, folder).passed
    found = verify(forged, folder, again=True)
    assert named(("evidence", *path)) in {difference.place for difference in found.differences}
    assert "measured again it is" in str(found)


def test_another_machines_rounding_is_allowed(folder: Path) -> None:
    forged = forge(folder, ("cosine", 1), lambda v: v + 5e-4)
    assert verify(forged, folder, again=True).passed


def test_the_tolerance_is_stated(folder: Path) -> None:
    forged = forge(folder, ("state_norm", 0), lambda v: v * 1.01)
    (difference,) = verify(forged, folder, again=True).differences
    assert 0 < difference.tolerance < 0.01 * float(difference.found)
    assert "tolerance" in str(difference)


def test_a_recipe_is_part_of_the_schema() -> None:
    assert set(schema()["$defs"]["Recipe"]["properties"]) == set(Recipe.model_fields)
