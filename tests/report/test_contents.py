"""What a dossier gives rise to: every method once, and never more than axes can name."""

from __future__ import annotations

from faudit.recipe import Named
from faudit.report.contents import CURVES, all_plates, crowds, families
from faudit.report.dossier import Dossier, read
from tests.report.samples import bundle, recipe

OPTIONS = [Named(name="dfa", options={"scale": float(scale)}) for scale in range(1, 12)]


def crowded() -> Dossier:
    """One setting with more methods than one figure can show."""
    return read([bundle(recipe("dfa", epochs=5).changed({"rule": rule})) for rule in OPTIONS])


def test_a_setting_with_few_methods_is_one_figure() -> None:
    (setting,) = read([bundle(recipe("bp", epochs=5))]).settings
    assert crowds(setting) == [setting]


def test_many_methods_share_out_among_figures_and_none_is_lost() -> None:
    (setting,) = crowded().settings
    parts = crowds(setting)
    assert len(setting.methods) > CURVES
    assert [len(part.methods) for part in parts] == [CURVES, len(OPTIONS) - CURVES]
    shared = [group.label for part in parts for group in part.methods]
    assert sorted(shared) == sorted(group.label for group in setting.methods)


def test_the_parts_of_a_crowd_are_figures_with_names_of_their_own() -> None:
    plates = all_plates(crowded())["layers"]
    assert [plate.title[-8:] for plate in plates] == ["(1 of 2)", "(2 of 2)"]
    assert len({plate.name for plate in plates}) == 2


def test_variants_leave_the_rule_to_the_title_and_no_two_files_share_a_name() -> None:
    rules = [*OPTIONS, Named(name="bp"), Named(name="fa")]
    made = [bundle(recipe("dfa", epochs=5).changed({"rule": rule})) for rule in rules]
    plates = all_plates(read(made))["layers"]
    assert [plate.title.partition("epochs")[2] for plate in plates] == [
        " (1 of 3)",
        ": DFA (2 of 3)",
        ": DFA (3 of 3)",
    ]
    assert len({plate.name for plate in plates}) == 3


def test_checks_are_compared_only_where_a_method_stands_in_several_settings() -> None:
    alone = [bundle(recipe("dfa", epochs=5).changed({"rule": rule})) for rule in OPTIONS]
    both = [bundle(recipe("bp", epochs=epochs)) for epochs in (5, 6)]
    plate = all_plates(read([*alone, *both]))["verdicts"][-1]
    assert plate.name == "cross-architecture"
    assert "BP D1" in plate.panels[0].words
    assert "DFA" not in plate.panels[0].words


def doses() -> Dossier:
    """One way of training under two doses, beside another way at one of them."""
    steps = {"training.block_steps": 2}
    made = [recipe("dfa", penalty=dose).changed(steps) for dose in (0.0, 1e-2)]
    return read([*map(bundle, made), bundle(recipe("dfa"))])


def test_a_curve_over_doses_is_one_way_of_training() -> None:
    (family,) = families(doses())
    assert [(group.label, group.recipe.training.penalty) for group in family] == [
        ("DFA", 0.0),
        ("DFA", 0.01),
    ]
    (plate,) = all_plates(doses())["penalty"]
    assert plate.panels[0].words.count(" at λ") == 2


def test_two_kinds_of_penalty_are_two_curves() -> None:
    kinds = [{"training.penalty_over": kind} for kind in ("sum", "mean")]
    made = [
        bundle(recipe("dfa", penalty=dose).changed(kind)) for dose in (1e-4, 1e-2) for kind in kinds
    ]
    (family,) = families(read(made))
    assert {group.label for group in family} == {"DFA", "DFA, penalty over mean"}
    assert len(family) == 4


def test_a_crowd_of_doses_is_shared_out() -> None:
    made = [
        bundle(recipe("dfa", epochs=5, penalty=dose).changed({"rule": rule}))
        for rule in OPTIONS
        for dose in (0.0, 1e-2)
    ]
    plates = all_plates(read(made))["penalty"]
    assert len(plates) == 2
    assert len({plate.name for plate in plates}) == 2
