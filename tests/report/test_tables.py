"""Each table says what the protocol says, with spread, number of runs and origin."""

from __future__ import annotations

import pytest

from faudit.protocol import STRATEGIES, Thresholds, replay
from faudit.recipe import Named
from faudit.report import Dossier, Table, read, tables
from faudit.report.cells import Check, Mark, Value
from faudit.report.contents import all_tables, families
from tests.report import samples
from tests.report.samples import SEEDS, bundle, recipe


def row(table: Table, method: str, setting: str = "") -> dict[str, object]:
    """The first row of a method, by column."""
    found = (r for r in table.rows if r[1] == method and setting in str(r[0]))
    return dict(zip(table.columns, next(found), strict=True))


def test_the_verdict_table_has_numbers_with_spread_and_n(dossier: Dossier) -> None:
    dfa = row(tables.verdict_table(dossier.methods), "DFA")
    assert dfa["verdict"] == Mark("FAIL(D1+D2+D3)", "bad")
    accuracy, growth = dfa["accuracy"], dfa["D1 growth"]
    assert isinstance(accuracy, Value)
    assert (accuracy.n, accuracy.spread is not None, dfa["seeds"]) == (3, True, 3)
    assert isinstance(growth, Check)
    assert growth.flagged == (True, True, True)


def test_the_evidence_that_decided_is_named_in_words(dossier: Dossier) -> None:
    found = tables.verdict_table(dossier.methods)
    assert row(found, "BP")["what decided"] == "no check fails"
    assert row(found, "EP")["what decided"] == "trained blocks are worse than random ones"
    assert row(found, "DFA", "0.01")["what decided"] == (
        "trained blocks are hardly better than random ones"
    )
    told = str(row(found, "State Bridge")["what decided"])
    assert "lost in an exploding stream (drift-dominated)" in told


def test_an_open_verdict_says_what_is_missing(small: Dossier) -> None:
    found = tables.verdict_table(small.methods)
    assert "no frozen-blocks accuracy was given" in str(row(found, "EP")["what decided"])
    assert "non-finite h_3" in str(row(found, "DFA")["what decided"])


def test_every_table_with_numbers_carries_where_they_come_from(dossier: Dossier) -> None:
    for name, table in all_tables(dossier).items():
        if name not in {"across", "flags", "problems", "provenance", "recipes", "runs"}:
            assert "torch 2.13.0" in table.notes[-1], name
            assert "cpu with 1 thread" in table.notes[-1], name


def test_the_stamp_counts_runs_and_names_recipes(dossier: Dossier) -> None:
    group = dossier.methods[0]
    stamp = tables.stamp([group])
    assert stamp.startswith(f"3 runs, 3 seeds in each row; recipes {group.digest};")
    assert "code a1b2c3d4e5f6" in stamp


def test_decisions_are_the_strategies_own(dossier: Dossier) -> None:
    found = tables.decision_table(dossier.methods, ("S0", "S1", "S2", "S3"))
    for group, cells in zip(dossier.methods, found.rows, strict=True):
        for strategy, cell in zip(("S0", "S1", "S2", "S3"), cells[2:6], strict=True):
            said = [STRATEGIES[strategy].walks_back(c, Thresholds()) for c in group.cases]
            missed = any(c.failing and s is False for c, s in zip(group.cases, said, strict=True))
            assert isinstance(cell, Mark)
            assert cell.text.startswith("missed") == missed
            assert (cell.text == "walked back") == (all(said) and not missed)


def test_the_papers_table_4_comes_out(dossier: Dossier) -> None:
    marks = [str(c) for c in tables.decision_table([dossier.methods[2]]).rows[0][2:6]]
    assert marks == ["missed", "missed", "walked back", "walked back"]


def test_gaps_lie_between_the_runs_on_either_side_of_a_threshold(dossier: Dossier) -> None:
    rows = {r[0]: r for r in tables.sensitivity_table(dossier.methods).rows}
    growths = [c.growth for g in dossier.methods for c in g.cases if c.growth]
    fine, flagged = max(g for g in growths if g <= 50), min(g for g in growths if g > 50)
    assert [cell.mean for cell in rows["D1"][2:5]] == [fine, flagged, flagged / fine]
    assert all(rows[code][4].mean > (0 if code == "D3" else 1) for code in rows)


def test_first_firings_are_the_replays(dossier: Dossier) -> None:
    group = dossier.methods[2]
    found = tables.firing_table([group]).rows[0]
    records = [
        {**r, "reference_norm": [n / 128 for n in r["reference_norm"]]}
        for r in group.runs[0].history
    ]
    first = replay(records).first["D2"]
    assert str(first) in str(found[3])
    assert "never" in [str(c) for c in tables.firing_table([dossier.methods[0]]).rows[0]]


def test_the_null_is_given_with_its_own_deviation(dossier: Dossier) -> None:
    found = row(tables.null_table(dossier.methods), "FA")
    assert str(found["under fresh feedback"]) == "-0.002 ± 0.018"
    assert found["draws"] == 60


def test_doses_of_one_method_stand_together(dossier: Dossier) -> None:
    (family,) = families(dossier)
    found = tables.penalty_table(family)
    assert [(r[0], r[1]) for r in found.rows] == [
        ("BP", 0.0), ("BP", 0.01), ("DFA", 0.0), ("DFA", 1e-4), ("DFA", 1e-2),
    ]  # fmt: skip


def test_layers_have_growth_beside_the_state_it_led_to() -> None:
    (group,) = read([bundle(recipe("bp", epochs=3))]).methods
    found = tables.layers_table([group])
    growth = found.column("growth into it")
    assert growth[0] is None
    assert growth[1].mean == group.evidence[0].growth[0]  # type: ignore[union-attr]


def test_provenance_says_once_what_all_share(dossier: Dossier) -> None:
    found = tables.provenance_table(dossier.groups)
    assert "made by: faudit 0.1.0" in found.caption
    assert "made by" not in found.columns
    mixed = [bundle(recipe("bp", epochs=3)), bundle(recipe("fa", epochs=3).set("threads=4"))]
    apart = tables.provenance_table(read(mixed).groups)
    assert {"cpu, 1 thread, float32", "cpu, 4 threads, float32"} == set(apart.column("device"))


def test_every_run_is_listed_with_its_interval_and_baseline(dossier: Dossier) -> None:
    found = tables.runs_table(dossier.groups)
    assert len(found) == len(dossier.runs)
    first = dict(zip(found.columns, found.rows[0], strict=True))
    assert first["run"] == dossier.runs[0].recipe.digest
    assert first["low"] < first["above frozen"] < first["high"]  # type: ignore[operator]
    assert first["frozen taught by"] == "DFA"


def test_flags_name_how_many_seeds_raised_them(dossier: Dossier) -> None:
    found = row(tables.flags_table(dossier.methods), "EP")
    assert (found["flag"], found["seeds"]) == ("Relaxation not converged", "3 of 3")
    assert str(found["explained in"]).startswith("docs/reliability-flags.md#")


def test_architectures_stand_side_by_side(dossier: Dossier) -> None:
    found = tables.cross_table(dossier.settings)
    assert [str(c) for c in row(found, "FA", "ViT")["scale stable"].text.split()] == ["no"]  # type: ignore[attr-defined]
    assert str(row(found, "FA", "ResMLP")["scale stable"]) == "yes"


@pytest.mark.parametrize("bundles", [[samples.failed(recipe("dfa", epochs=3), "crash", layer=None)],
                                     [bundle(recipe("bp", epochs=3, blocks=0))]])  # fmt: skip
def test_nothing_to_judge_leaves_no_table_broken(bundles: list) -> None:  # type: ignore[type-arg]
    for table in all_tables(read(bundles)).values():
        assert table.to_text()
        assert table.to_html()
        assert table.to_csv()


def test_recipes_list_what_differs() -> None:
    network = Named(name="resmlp", options={"width": 8, "depth": 2})
    made = [recipe("bp", s, epochs=3, network=network) for s in SEEDS]
    found = dict(tables.recipe_table(read([bundle(r) for r in made])).rows)
    assert found["seed"] == "42, 123, 456"
    assert found["training.batch"] == "128"
