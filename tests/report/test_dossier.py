"""From bundles to groups: what belongs together, which baseline it is held against, what lacks."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from faudit.baselines import frozen
from faudit.bundle import Outcome
from faudit.errors import BundleError
from faudit.protocol import diagnose
from faudit.recipe import Named
from faudit.report.dossier import Dossier, read, standing
from tests.report import samples
from tests.report.samples import SEEDS, bundle, recipe


def group(dossier: Dossier, label: str, setting: str = ""):  # type: ignore[no-untyped-def]
    """The one group of this name."""
    (found,) = [g for g in dossier.groups if g.label == label and setting in g.setting]
    return found


def test_runs_that_differ_in_seeds_only_are_one_group() -> None:
    found = read([bundle(recipe("bp", s, epochs=5, rule_seed=s + 1)) for s in SEEDS])
    assert [len(g.runs) for g in found.groups] == [3]
    assert [run.seed for run in found.groups[0].runs] == sorted(SEEDS)


def test_every_verdict_is_the_protocols_own() -> None:
    found = read(samples.audit(10))
    for group_ in found.methods:
        for run in group_.runs:
            assert run.measured is not None
            assert run.baseline is not None
            alone = diagnose(
                run.measured,
                correct=run.outcome.correct_examples(),
                frozen_correct=run.baseline.correct_examples(),
                bp_accuracy=run.bp_accuracy,
            )
            assert run.verdict == alone


def test_the_methods_own_baseline_comes_first_then_dfas_then_any() -> None:
    fa = recipe("fa", epochs=5)
    own, dfa, cb = (bundle(frozen(fa, rule)) for rule in (None, "dfa", "cb"))
    for given, rule in (([cb], "Credit Bridge"), ([cb, dfa], "DFA"), ([cb, dfa, own], "FA")):
        run = group(read([bundle(fa), *given]), "FA").runs[0]
        assert run.baseline_rule == rule


def test_a_baseline_of_another_seed_width_length_or_data_is_none() -> None:
    made = bundle(recipe("fa", epochs=5))
    others = [
        bundle(frozen(recipe("fa", 7, epochs=5))),
        bundle(frozen(recipe("fa", epochs=6))),
        bundle(frozen(recipe("fa", epochs=5)).set("network.options.width=64")),
        bundle(frozen(recipe("fa", epochs=5)), data="of other images"),
    ]
    assert str(group(read([made, *others]), "FA").verdict) == "INCOMPLETE(D3)"


def test_frozen_blocks_serve_runs_with_and_without_a_penalty() -> None:
    found = read(
        [bundle(recipe("fa", epochs=5, penalty=0.01)), bundle(recipe("fa", epochs=5, blocks=0))]
    )
    assert group(found, "FA").runs[0].baseline is not None


def test_a_baseline_inside_the_bundle_is_enough() -> None:
    made, base = bundle(recipe("fa", epochs=5)), bundle(recipe("fa", epochs=5, blocks=0))
    (run,) = read([replace(made, baseline=base.outcome)]).runs
    assert (run.baseline, run.baseline_rule) == (base.outcome, "FA")
    assert run.verdict is not None
    assert run.verdict.finding("D3").flagged is not None


def test_a_run_that_diverged_is_invalid_whatever_its_last_numbers_were() -> None:
    (run,) = read([samples.failed(recipe("dfa", epochs=5))]).runs
    assert run.measured is not None
    assert run.measured.invalid is None
    assert run.standing == "INVALID(non-finite h_3)"


def test_a_run_that_crashed_has_no_verdict_and_counts_in_no_mean() -> None:
    crashed = samples.failed(recipe("bp", 7, epochs=5), "oom", layer=None)
    found = read([bundle(recipe("bp", 42, epochs=5)), crashed])
    (bp,) = found.methods
    assert bp.verdict == "FAILED(oom, epoch 7) in 1 of 2, INCOMPLETE(D3) in 1"
    accuracy = bp.value("accuracy")
    assert accuracy is not None
    assert (accuracy.n, accuracy.of) == (1, 2)
    assert any("FAILED(oom" in str(problem) for problem in found.problems)


def test_a_missing_baseline_is_said_plainly() -> None:
    problems = [str(p) for p in read([bundle(recipe("ep", epochs=5))]).problems]
    assert problems == [
        "EP, ResMLP d256 L4, CIFAR-10, 5 epochs: no frozen-blocks run for seed 42."
        " D3 is not evaluated there; train the same recipe with --set training.trainable_blocks=0."
    ]


def test_runs_of_different_code_are_named() -> None:
    one, two = bundle(recipe("bp", 1, epochs=5)), bundle(recipe("bp", 2, epochs=5))
    two = replace(two, manifest=samples.manifest(two.recipe, code="ffffffffffff"))
    assert any("2 versions of the code" in str(p) for p in read([one, two]).problems)


def test_settings_with_the_same_short_name_are_told_apart() -> None:
    made = [recipe("bp", epochs=5), recipe("bp", epochs=5).set("data.train_limit=100")]
    labels = [s.label for s in read([bundle(r) for r in made]).settings]
    assert len(set(labels)) == 2
    assert any("train limit 100" in label for label in labels)


def test_variants_of_a_method_share_a_setting() -> None:
    made = [recipe("dfa", epochs=5), recipe("dfa", epochs=5).set("training.normalise=sample")]
    (setting,) = read([bundle(r) for r in made]).settings
    assert {g.label for g in setting.methods} == {"DFA", "DFA, normalise sample"}


def test_roles_tell_methods_from_what_they_are_held_against() -> None:
    without = Named(name="resmlp", options={"width": 8, "depth": 0})
    made = [
        *(recipe("bp", epochs=5, blocks=blocks) for blocks in (None, 0, 2)),
        recipe("bp", epochs=5, network=without),
    ]
    assert sorted(g.role for g in read([bundle(r) for r in made]).groups) == [
        "frozen",
        "method",
        "rung",
        "shallow",
    ]


def test_seeds_that_disagree_are_counted() -> None:
    assert standing(["FAIL(D3)", "PASS", "FAIL(D3)"]) == "FAIL(D3) in 2 of 3, PASS in 1"


# -- on disk --------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small store."""
    return samples.store(tmp_path / "store", samples.patchy(4))


def test_a_store_a_folder_and_its_bundles_give_the_same(folder: Path) -> None:
    bundles = samples.patchy(4)
    expected = {g.name: (g.verdict, str(g.value("accuracy"))) for g in read(bundles).groups}
    for source in (folder, folder / "runs", str(folder)):
        found = {g.name: (g.verdict, str(g.value("accuracy"))) for g in read(source).groups}
        assert found == expected


def test_weights_are_not_needed(folder: Path) -> None:
    for path in folder.rglob("*.safetensors"):
        path.unlink()
    assert len(read(folder).runs) == len(samples.patchy(4))


def test_a_damaged_run_is_named_and_left_out(folder: Path) -> None:
    victim = sorted((folder / "runs").iterdir())[0]
    (victim / "history.jsonl").write_text("{}\n")
    found = read(folder)
    assert len(found.runs) == len(samples.patchy(4)) - 1
    (problem,) = [p for p in found.problems if p.where == victim.name]
    assert "history.jsonl was altered" in problem.what
    assert str(folder) not in str(problem)


def test_runs_that_were_asked_for_and_are_not_there_are_counted(folder: Path) -> None:
    wanted = recipe("kp", epochs=4)
    (folder / "wanted").mkdir()
    (folder / "wanted" / f"{wanted.digest}.json").write_text(wanted.to_json())
    assert any("1 run asked for and not finished" in str(p) for p in read(folder).problems)


@pytest.mark.parametrize("make", [lambda p: p / "none", lambda p: p])
def test_nothing_to_report_is_an_error_that_says_so(tmp_path: Path, make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BundleError, match=r"there is no folder|no finished runs"):
        read(make(tmp_path))


def test_a_link_out_of_a_folder_is_only_read_as_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "manifest.json").write_text("[]")
    os.symlink("/etc", tmp_path / "etc")
    with pytest.raises(BundleError, match=r"manifest\.json"):
        read(tmp_path)


def test_outcomes_without_examples_still_give_a_margin() -> None:
    made, base = bundle(recipe("fa", epochs=5)), bundle(recipe("fa", epochs=5, blocks=0))
    bare = Outcome(
        digest=made.recipe.digest, status="done", accuracy=0.4, tests=0, data=made.outcome.data
    )
    run = group(read([replace(made, outcome=bare), base]), "FA").runs[0]
    assert run.verdict is not None
    assert run.verdict.finding("D3").value == pytest.approx(0.4 - (base.outcome.accuracy or 0))


def test_a_setting_knows_whether_its_methods_share_a_baseline() -> None:
    own = [bundle(recipe(rule, epochs=5, blocks=b)) for rule in ("bp", "dfa") for b in (None, 0)]
    assert not read(own).settings[0].one_baseline
    shared = [bundle(recipe(rule, epochs=5)) for rule in ("bp", "dfa")]
    shared.append(bundle(recipe("dfa", epochs=5, blocks=0)))
    assert read(shared).settings[0].one_baseline


def test_a_dossier_shows_itself_as_its_verdicts() -> None:
    html = read([bundle(recipe("bp", epochs=5))])._repr_html_()
    assert "INCOMPLETE(D3)" in html
    assert html.count("<table") == html.count("</table>") == 1


def test_settings_come_in_the_order_of_their_numbers() -> None:
    networks = [Named(name="resmlp", options={"width": w, "depth": 2}) for w in (128, 16, 64)]
    found = read([bundle(recipe("bp", epochs=3, network=network)) for network in networks])
    assert [setting.label.split()[1] for setting in found.settings] == ["d16", "d64", "d128"]


def test_an_option_left_as_it_is_is_not_part_of_a_name() -> None:
    rules = [Named(name="dfa", options=options) for options in ({}, {"scale": 0.25})]
    (setting,) = read([bundle(recipe("dfa").changed({"rule": rule})) for rule in rules]).settings
    assert [group.label for group in setting.methods] == ["DFA", "DFA, scale 0.25"]


def test_exact_gradients_are_held_against_frozen_blocks_of_any_local_step() -> None:
    steps = {"training.block_steps": 2, "training.normalise": "batch"}
    frozen = bundle(recipe("dfa", blocks=0).changed(steps))
    (group,) = read([bundle(recipe("bp")), frozen]).methods
    assert group.frozen_rule == "DFA"
    assert group.value("margin") is not None


def test_where_several_frozen_runs_would_do_none_is_chosen() -> None:
    frozen = [
        bundle(recipe("dfa", blocks=0).changed({"training.block_steps": steps})) for steps in (2, 4)
    ]
    (group,) = read([bundle(recipe("bp")), *frozen]).methods
    assert group.verdict == "INCOMPLETE(D3)"


def test_a_local_rule_needs_frozen_blocks_of_its_own_local_step() -> None:
    frozen = bundle(recipe("dfa", blocks=0).changed({"training.block_steps": 2}))
    (group,) = read([bundle(recipe("dfa")), frozen]).methods
    assert group.value("margin") is None


def test_baselines_that_differ_by_recipe_are_not_one() -> None:
    made = [
        bundle(recipe("dfa", blocks=blocks).changed({"training.block_steps": steps}))
        for steps in (1, 2)
        for blocks in (None, 0)
    ]
    (setting,) = read(made).settings
    assert not setting.one_baseline
