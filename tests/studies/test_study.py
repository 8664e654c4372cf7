"""Studies: planned before they run, never made twice, and shown while they run."""

from __future__ import annotations

from pathlib import Path

import pytest

from faudit import atomic
from faudit.baselines import frozen
from faudit.bundle import Bundle
from faudit.errors import FauditError
from faudit.recipe import Recipe, grid
from faudit.studies import study as study_module
from faudit.studies.costs import Costs
from faudit.studies.engines import Inline
from faudit.studies.judging import judge_bundle
from faudit.studies.progress import Status
from faudit.studies.store import Store
from faudit.studies.study import attach_baselines, plan, train
from tests.studies.tools import table, tiny


class Heard:
    """A board that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.shown: list[Status] = []
        self.closed = False

    def show(self, status: Status) -> None:
        self.shown.append(status)

    def note(self, message: str) -> None:
        self.notes.append(message)

    def close(self) -> None:
        self.closed = True


def make(
    recipes: list[Recipe], folder: Path, show: Heard | None = None, *, same_code: bool = False
) -> Store:
    shown = show or Heard()
    return train(recipes, folder, engine=Inline(), show=shown, same_code=same_code).store


def test_a_plan_names_what_is_there_and_what_the_rest_may_cost(tmp_path: Path) -> None:
    make([tiny("seed=1")], tmp_path)
    planned = plan([tiny("seed=1"), tiny("seed=2"), tiny("seed=2")], tmp_path)
    assert [run.cached for run in planned.runs] == [True, False]
    assert 0 < planned.seconds < 60
    lines = str(planned).splitlines()
    assert lines[0].endswith("resmlp dfa student-teacher seed 1: cached")
    assert "seed 2: to run, about" in lines[1]
    assert lines[2].startswith("2 runs: 1 cached, 1 to run, about")


def test_a_plan_needs_no_store_and_makes_none(tmp_path: Path) -> None:
    assert not plan([tiny()], tmp_path / "none").runs[0].cached
    assert not (tmp_path / "none").exists()


def test_the_estimate_is_what_runs_like_it_took(tmp_path: Path) -> None:
    store = make([tiny("seed=1")], tmp_path)
    seconds = store[tiny("seed=1")].manifest.timing["seconds"]
    costs = Costs.of(store)
    assert costs.estimate(tiny("seed=2", "training.epochs=30")) == pytest.approx(10 * seconds)
    assert costs.estimate(Recipe()) == pytest.approx(Costs({}, costs.ratios).estimate(Recipe()))


@pytest.mark.parametrize("name", ["resmlp", "vitmini", "smallresnet", "studentnet", "unheard-of"])
def test_every_network_has_some_estimate(name: str) -> None:
    assert Costs({}).estimate(Recipe(network=name)) > 0  # type: ignore[arg-type]


def test_what_is_there_is_skipped_and_named(tmp_path: Path) -> None:
    recipes = list(grid(tiny(), seed=[1, 2]))
    first, second = Heard(), Heard()
    make(recipes, tmp_path, first)
    before = table(tmp_path)
    make(recipes, tmp_path, second)
    assert table(tmp_path) == before
    skipped = [note for note in second.notes if note.startswith("skipped, is there: ")]
    assert [note.split()[3] for note in skipped] == [r.digest for r in recipes]
    assert not any(note.startswith("skipped") for note in first.notes)
    assert sum("done(accuracy" in note for note in first.notes) == 2
    assert first.closed
    assert first.shown[-1].line() == "2 of 2 runs finished"


def test_the_time_left_weighs_runs_by_what_they_cost(tmp_path: Path) -> None:
    heard = Heard()
    make([tiny("training.epochs=1"), tiny("training.epochs=9", "seed=2")], tmp_path, heard)
    halfway = next(shown for shown in heard.shown if shown.finished == 1)
    assert halfway.behind == pytest.approx(0.2)
    assert heard.shown[-1].ahead == pytest.approx(0.0)


def test_a_baseline_is_not_lost_to_somebody_who_collects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = tiny("rule.name=fa")
    store = make([method, frozen(method)], tmp_path)
    found = Bundle.load(store.folder(method), tensors=False)
    assert found.baseline is not None
    found.with_baseline(found.baseline.replace(message="of a frozen run that was made again"))
    own, times = atomic.write_through, iter(range(100))

    def swept(path: Path, raw: bytes, *, durable: bool = True) -> None:
        own(path, raw, durable=durable)
        if path.name.startswith(".baseline") and next(times) == 0:
            atomic.sweep(path.parent)

    monkeypatch.setattr(atomic, "write_through", swept)
    attach_baselines(store, [method])
    assert Bundle.load(store.folder(method), tensors=False).baseline == found.baseline


def test_a_baseline_that_is_trained_later_is_put_beside_its_method(tmp_path: Path) -> None:
    method = tiny("rule.name=dfa")
    store = train([method], tmp_path, engine=Inline()).store
    assert Bundle.load(store.folder(method)).baseline is None
    train([frozen(method)], tmp_path, engine=Inline())
    assert Bundle.load(store.folder(method)).baseline == store[frozen(method)].outcome


def test_one_baseline_serves_every_method_and_is_trained_once(tmp_path: Path) -> None:
    methods = [tiny(f"rule.name={rule}") for rule in ("fa", "dfa", "drtp")]
    study = [r for m in methods for r in (m, frozen(m, taught_by="dfa"))]
    store = train(
        study,
        tmp_path,
        engine=Inline(),
        show=Heard(),
        baseline_of=lambda recipe: frozen(recipe, taught_by="dfa"),
    ).store
    assert len(store.digests()) == 4
    (baseline,) = {recipe for recipe in study if recipe.training.trainable_blocks == 0}
    for method in methods:
        assert store[method].baseline == store[baseline].outcome


def test_a_bundle_alone_gives_the_whole_verdict(tmp_path: Path) -> None:
    recipe = tiny()
    store = make([recipe, frozen(recipe)], tmp_path)
    alone = judge_bundle(Bundle.load(store.folder(recipe)))
    assert alone.verdict.finding("D3").value is not None
    assert alone.verdict.outcome in ("PASS", "FAIL")


def test_other_code_is_told_and_replaced_only_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make([tiny()], tmp_path)
    monkeypatch.setattr(study_module, "code_of", lambda _: "other")
    (told,) = plan([tiny()], tmp_path).runs
    assert told.cached
    assert "made by other code" in told.note
    (asked,) = plan([tiny()], tmp_path, same_code=True).runs
    assert not asked.cached
    make([tiny()], tmp_path, same_code=True)
    assert len(list((tmp_path / "superseded").iterdir())) == 1
    assert list(Store(tmp_path).codes().values()) == [1]


def test_a_recipes_own_failure_stays_and_the_machines_is_tried_again(tmp_path: Path) -> None:
    broken, unlucky = tiny("training.lr=1e30", "rule.name=bp"), tiny("rule.name=unheard-of")
    summary = train([broken, unlucky], tmp_path, engine=Inline(), show=Heard())
    reasons = {o.digest: o.reason for o in summary.failed}
    assert reasons == {broken.digest: "non-finite", unlucky.digest: "error"}
    again = {run.recipe: run for run in plan([broken, unlucky], tmp_path).runs}
    assert again[broken].cached
    assert "FAILED(non-finite" in again[broken].note
    assert not again[unlucky].cached
    assert "the last try was FAILED(error" in again[unlucky].note


def test_a_run_that_fails_says_why_where_one_looks(tmp_path: Path) -> None:
    heard = Heard()
    make([tiny("training.lr=1e30")], tmp_path, heard)
    (told,) = [note for note in heard.notes if "FAILED(non-finite" in note]
    assert "lower the learning rate" in told


def test_names_with_markup_and_control_characters_are_harmless(tmp_path: Path) -> None:
    nasty = tiny("rule.name=[/x]\x1b[2J[red]")
    heard = Heard()
    summary = train([nasty], tmp_path, engine=Inline(), show=heard)
    assert summary.failed[0].reason == "error"
    assert "\x1b" not in "".join(heard.notes)


@pytest.mark.parametrize("place", ["rule.name", "network.name", "data.name"])
@pytest.mark.parametrize("name", ["../../../evil", "/evil", "evil/../..", "evil\\0"])
def test_no_name_in_a_recipe_leads_out_of_the_store(tmp_path: Path, place: str, name: str) -> None:
    nasty = tiny().changed({place: name})
    summary = train([nasty], tmp_path / "a" / "store", engine=Inline(), show=Heard())
    assert [outcome.reason for outcome in summary.failed] == ["error"]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["store"]
    assert not list(tmp_path.rglob("*evil*"))


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("training.epohcs=3", "unknown key 'training.epohcs'; did you mean 'training.epochs'"),
        ("training.epochs=many", "training.epochs: "),
        ("seed=-1", "seed: "),
        ("rulle.name=fa", "unknown key 'rulle'; did you mean 'rule'"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused_before_anything_runs(
    assignment: str, message: str
) -> None:
    with pytest.raises(FauditError, match=message):
        tiny(assignment)
