"""Results: small, exact where it counts, refused when altered, read like a store."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faudit import bundle
from faudit.bundle import Bundle, Parts
from faudit.errors import BundleError, FauditError
from faudit.protocol import Epoch, replay
from faudit.recipe import Recipe
from faudit.report.dossier import read
from faudit.studies import results
from faudit.studies.audits import Arm
from faudit.studies.ledger import ledger, status
from faudit.studies.results import Results, export, load, thinned, written
from faudit.studies.store import Store
from tests.studies.fabricated import bundle as fabricated
from tests.studies.fabricated import history

RUNS = Arm("d256", "dfa").recipes()
FROZEN = Arm("d256", "dfa").baseline.recipes()


def shrinking(epoch: int) -> list[float]:
    """A reference that falls through every line, at epochs that are no multiples of five."""
    return [1.0] * 4 + [128 * 10.0 ** -(4 + epoch / 7.7)]


def published(folder: Path, found: Bundle) -> None:
    """Put a run into a store as if it had been trained there."""
    parts = Parts(found.recipe, found.outcome, found.history, found.evidence, {}, {})
    bundle.write(folder / "runs" / found.recipe.digest, parts)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.open(tmp_path / "store")
    for recipe, frozen in zip(RUNS, FROZEN, strict=True):
        seen = fabricated(recipe, 0.3, growth=(1.0, 1.0, 1.0, inf), nudging=(nan,) * 5)
        told = history(recipe, 4, reference_norm=shrinking, growth=lambda e: [1.0, 2.7 * e])
        published(made.path, replace(seen, history=told))
        published(made.path, fabricated(frozen, 0.35))
    return made


def test_the_ledger_of_the_results_is_that_of_the_store(store: Store, tmp_path: Path) -> None:
    assert export(store, tmp_path / "results").runs == len(RUNS) + len(FROZEN)
    assert status(tmp_path / "results").to_dict() == ledger(store).to_dict()


def test_a_run_comes_back_as_it_was_but_for_weights_and_thinned_history(
    store: Store, tmp_path: Path
) -> None:
    export(store, tmp_path)
    back, before = Results(tmp_path)[RUNS[0]], store[RUNS[0]]
    assert (back.recipe, back.outcome, back.evidence) == (
        before.recipe,
        before.outcome,
        before.evidence,
    )
    assert repr(list(back.history)) == repr(thinned(before.history))
    assert len(back.history) < len(before.history)
    assert back.manifest.code == before.manifest.code
    with pytest.raises(BundleError, match=r"has no weights\.safetensors"):
        back.weights()


def test_exporting_again_writes_the_same_bytes(store: Store, tmp_path: Path) -> None:
    def contents() -> dict[str, bytes]:
        export(store, tmp_path)
        return {path.name: path.read_bytes() for path in (tmp_path / "runs").iterdir()}

    assert contents() == contents()


def test_only_the_runs_asked_for_are_exported(store: Store, tmp_path: Path) -> None:
    export(store, tmp_path, [RUNS[0], Recipe(seed=9)])
    assert Results(tmp_path).digests() == [RUNS[0].digest]
    assert RUNS[0] in Results(tmp_path)
    assert RUNS[1] not in Results(tmp_path)


def test_a_run_the_machine_ended_is_no_result(store: Store, tmp_path: Path) -> None:
    recipe = Recipe(seed=9)
    failed = bundle.Outcome(digest=recipe.digest, status="failed", reason="oom")
    bundle.write(store.folder(recipe), Parts(recipe, failed))
    broken = Recipe(seed=10)
    ended = bundle.Outcome(digest=broken.digest, status="failed", reason="non-finite", layer="h_1")
    bundle.write(store.folder(broken), Parts(broken, ended))
    export(store, tmp_path)
    assert recipe not in Results(tmp_path)
    assert str(Results(tmp_path)[broken].outcome) == "FAILED(non-finite, h_1, epoch 0)"
    assert Results(tmp_path)[broken].evidence is None


def test_the_report_reads_results_as_it_reads_a_store(store: Store, tmp_path: Path) -> None:
    export(store, tmp_path)
    kept, whole = read(Results(tmp_path)), read(store.path)
    assert [g.name for g in kept.groups] == [g.name for g in whole.groups]
    assert [g.verdict for g in kept.methods] == [g.verdict for g in whole.methods]
    assert [g.name for g in read(tmp_path).groups] == [g.name for g in kept.groups]


def test_a_result_that_was_altered_is_a_problem_of_the_report(store: Store, tmp_path: Path) -> None:
    export(store, tmp_path)
    path = next((tmp_path / "runs").iterdir())
    path.write_text(path.read_text().replace("accuracy", "acuracy"))
    (problem,) = [p for p in read(tmp_path).problems if path.stem in p.where]
    assert "was altered" in problem.what


def test_results_that_take_too_much_room_are_refused(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "LARGEST", 1000)
    with pytest.raises(FauditError, match="export fewer recipes"):
        export(store, tmp_path)


def test_all_runs_of_all_studies_fit_into_the_room_there_is() -> None:
    from faudit.studies import audits

    longest = replace(
        fabricated(RUNS[0]),
        history=history(
            RUNS[0], 4, **{name: lambda e: [1 / 3 + e / 7] * 5 for name in ("state_norm", "cosine")}
        ),
    )
    runs = {*audits.published(), *audits.published(variant="plain"), *audits.search()}
    assert len(written(longest)) * len(runs) < results.LARGEST


def test_there_is_no_folder_of_results(tmp_path: Path) -> None:
    with pytest.raises(FauditError, match="make them with export"):
        status(tmp_path / "nothing")


# -- files that are not what they seem ------------------------------------------------------------


def altered(parts: dict[str, Any], change: str) -> dict[str, Any]:
    """A file's parts with one thing wrong."""
    evidence, outcome = parts["evidence"], parts["outcome"]
    changes: dict[str, dict[str, Any]] = {
        "evidence": {"evidence": {**evidence, "gamma": 0.9}},
        "accuracy": {"outcome": {**outcome, "accuracy": 0.9}},
        "history": {"history": parts["history"][:-1]},
        "recipe": {"recipe": {**parts["recipe"], "seed": 7}},
        "code": {"manifest": {**parts["manifest"], "code": "other"}},
        "format": {"format": 2},
    }
    return {**parts, **changes[change]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("evidence", "was altered"),
        ("accuracy", "was altered"),
        ("history", "was altered"),
        ("recipe", "was altered"),
        ("code", "was altered"),
        ("format", "has format 2"),
    ],
)
def test_an_altered_file_is_refused(store: Store, tmp_path: Path, change: str, said: str) -> None:
    export(store, tmp_path)
    path = Results(tmp_path).path(RUNS[0])
    path.write_text(json.dumps(altered(json.loads(path.read_text()), change)))
    with pytest.raises(BundleError, match=said):
        load(path)
    with pytest.raises(BundleError, match=path.name):
        status(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', "not json", "[" * 100_000])
def test_a_file_that_is_no_result_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / f"{RUNS[0].digest}.json"
    path.write_text(text)
    with pytest.raises(BundleError, match=path.name):
        load(path)


def test_a_file_under_another_runs_name_is_refused(store: Store, tmp_path: Path) -> None:
    export(store, tmp_path)
    found = Results(tmp_path)
    found.path(RUNS[0]).rename(found.path(Recipe(seed=9)))
    with pytest.raises(BundleError, match="mixes runs"):
        found[Recipe(seed=9)]


def test_a_sealed_file_whose_parts_disagree_is_refused(store: Store, tmp_path: Path) -> None:
    mixed = replace(store[RUNS[0]], outcome=store[RUNS[1]].outcome)
    path = tmp_path / f"{RUNS[0].digest}.json"
    path.write_text(written(mixed))
    with pytest.raises(BundleError, match="its outcome says"):
        load(path)


def test_a_sealed_file_with_an_unknown_field_is_refused(store: Store, tmp_path: Path) -> None:
    parts = json.loads(written(store[RUNS[0]]))
    parts["evidence"]["new"] = 1.0
    parts["seal"] = results._seal(parts)
    path = tmp_path / f"{RUNS[0].digest}.json"
    path.write_text(json.dumps(parts))
    with pytest.raises(BundleError, match="unknown field 'new'"):
        load(path)


# -- thinning -------------------------------------------------------------------------------------


@given(
    norms=st.lists(st.floats(1e-12, 1e3), min_size=2, max_size=60),
    growths=st.lists(st.floats(0, 200), min_size=2, max_size=60),
    batch=st.sampled_from([128, 1024]),
)
def test_a_thinned_history_replays_like_the_whole(
    norms: list[float], growths: list[float], batch: int
) -> None:
    whole = [
        {"epoch": e, "reference_norm": [norm], "growth": [growth]}
        for e, (norm, growth) in enumerate(zip(norms, growths, strict=False))
    ]

    def fired(records: list[Any]) -> Any:
        reduced = [{**r, "reference_norm": r["reference_norm"][-1] / batch} for r in records]
        return replay(map(Epoch.of, reduced)).first

    assert fired(thinned(whole)) == fired(whole)


@pytest.mark.parametrize("epoch", range(31))
def test_the_epoch_at_which_a_check_fires_is_kept(epoch: int) -> None:
    whole = [
        {"epoch": e, "reference_norm": [1.0], "growth": [60.0 if e >= epoch else 1.0]}
        for e in range(33)
    ]
    assert replay(map(Epoch.of, thinned(whole))).first["D1"] == epoch


def test_records_that_were_not_measured_are_thinned_too() -> None:
    records = [{"epoch": e, "train_loss": 1.0} for e in range(33)]
    assert [r["epoch"] for r in thinned(records)][-3:] == [25, 30, 32]
    assert thinned([]) == []
