"""What a dossier gives rise to: every method once, and never more than axes can name."""

from __future__ import annotations

from faudit.recipe import Named
from faudit.report.contents import CURVES, all_plates, crowds
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
