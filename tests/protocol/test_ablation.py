"""The published decision tables, cell by cell, from the published numbers.

Where a published number contradicts a published cell, the comment says which one is used and why.
"""

from __future__ import annotations

from itertools import pairwise
from math import inf, isnan, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faudit.errors import FauditError
from faudit.measures.evidence import Evidence
from faudit.protocol import (
    DRAFT,
    STRATEGIES,
    Case,
    DecisionTable,
    Thresholds,
    decision_table,
    threshold_sensitivity,
)

FROZEN = 0.349  # ResMLP, d256 L4 and d512 L2 alike; 0.570 on ViT-Mini

DFA_256 = Case(
    name="DFA, RM-d256-L4",
    accuracy=0.306,
    frozen_accuracy=FROZEN,
    gamma=0.10,
    growth=237,
    reference_norm=5e-10,
    failing=True,
)
# "D1, D2 both ok" is printed for this setting, its two numbers are not: FA's growth on CIFAR-100
# (Table 6) and its ||g_L|| on d256 L4 (Fig. 3) stand in.
FA_512 = Case(
    name="FA, RM-d512-L2",
    accuracy=0.345,
    frozen_accuracy=FROZEN,
    gamma=0.48,
    growth=15.6,
    reference_norm=9e-7,
    failing=True,
)
# ViT-Mini's growth is not printed either, but ||h_L|| ~ 1e7 is, and the class token starts at 0.3
# to 1.5: over 4 blocks the largest consecutive ratio is at least the geometric mean.
VIT_GROWTH = (1e7 / 1.5) ** (1 / 4)
DFA_VIT = Case(
    name="DFA, ViT-Mini",
    accuracy=0.256,
    frozen_accuracy=0.570,
    gamma=0.01,
    growth=VIT_GROWTH,
    reference_norm=1e-9,
    failing=True,
)
FA_VIT = DFA_VIT.replace(name="FA, ViT-Mini", accuracy=0.163)
BP_256 = Case(
    name="BP, RM-d256-L4",
    accuracy=0.609,
    frozen_accuracy=FROZEN,
    gamma=1.0,
    growth=1.3,
    reference_norm=4e-4,
    failing=False,
)

YES, NO = True, False


@pytest.mark.parametrize(
    ("strategy", "case_1", "case_2"),
    [("S0", NO, NO), ("S1", NO, NO), ("S2", YES, NO), ("S3", YES, YES)],
)
def test_table_4_of_the_paper(strategy: str, case_1: bool, case_2: bool) -> None:
    table = decision_table([DFA_256, FA_512])
    assert table.row(strategy) == (case_1, case_2)


@pytest.mark.parametrize(
    ("strategy", "right"),
    [
        ("S0", (NO, NO, NO, NO, YES)),
        ("S1", (NO, NO, NO, NO, YES)),
        ("S2", (YES, NO, YES, YES, YES)),
        ("S3", (YES, YES, YES, YES, YES)),
    ],
)
def test_table_5_of_the_paper(strategy: str, right: tuple[bool, ...]) -> None:
    table = decision_table([DFA_256, FA_512, DFA_VIT, FA_VIT, BP_256])
    assert table.right(strategy) == right
    assert table.row(strategy)[-1] is False  # the healthy case passes every strategy


# The first draft, Tables 1 and 2. EP has no frozen accuracy of its own there ("0.349 under all
# three of DFA, SB, and CB"), and its cells are only right without one: at 0.349 its 0.316 would be
# walked back by (d). State Bridge's growth is printed as 2.4 in the first draft and as 12000 in the
# second; only the latter can give its printed +(a) cell.
AUDIT = [
    Case(name="BP", accuracy=0.609, frozen_accuracy=FROZEN, gamma=1.0, growth=1.3,
         reference_norm=4e-4, stability=nan, failing=False),
    Case(name="EP", accuracy=0.316, gamma=0.008, growth=11.6, reference_norm=2e-4,
         stability=0.02, failing=False),
    Case(name="DFA", accuracy=0.308, frozen_accuracy=FROZEN, gamma=0.10, growth=237,
         reference_norm=5e-10, stability=0.16, failing=True),
    Case(name="SB", accuracy=0.205, frozen_accuracy=FROZEN, gamma=0.005, growth=12_000,
         reference_norm=1e-9, stability=0.53, failing=True),
    Case(name="CB", accuracy=0.289, frozen_accuracy=FROZEN, gamma=0.07, growth=96,
         reference_norm=1e-9, stability=0.37, failing=True),
]  # fmt: skip


def test_table_1_of_the_draft() -> None:
    table = decision_table(AUDIT, ("S1", "full"))
    status_quo = dict(zip(table.cases, table.row("S1"), strict=True))
    ours = dict(zip(table.cases, table.row("full"), strict=True))
    assert status_quo == dict.fromkeys(("BP", "EP", "DFA", "SB", "CB"), False)
    assert {name for name, cell in ours.items() if cell} == {"DFA", "SB", "CB"}


@pytest.mark.parametrize(
    ("method", "cells"),
    [
        ("BP", (NO, NO, NO, NO, NO, NO, NO)),
        ("EP", (NO, NO, NO, NO, NO, NO, NO)),
        ("DFA", (NO, NO, YES, YES, NO, YES, YES)),
        ("SB", (NO, NO, YES, YES, YES, YES, YES)),
        ("CB", (NO, NO, YES, YES, YES, YES, YES)),
    ],
)
def test_table_2_of_the_draft(method: str, cells: tuple[bool, ...]) -> None:
    table = decision_table(AUDIT, DRAFT)
    column = [table.row(s)[table.cases.index(method)] for s in DRAFT]
    # "---" is printed where a strategy walks nothing back, also where it had no number to look at.
    assert [cell is True for cell in column] == list(cells)


def test_what_the_draft_leaves_open_is_open_here() -> None:
    table = decision_table(AUDIT, DRAFT)
    assert table.row("+(d)")[1] is None  # EP: no frozen blocks of its own
    assert table.row("full")[1] is None  # so "trust" is more than its evidence says
    assert table.row("+(c)")[0] is None  # BP: stability is not printed
    against_frozen = AUDIT[1].replace(frozen_accuracy=FROZEN)
    assert decision_table([against_frozen], ("+(d)", "S3")).cells == ((True,), (True,))


def test_status_quo_walks_back_none_and_the_protocol_three() -> None:
    table = decision_table(AUDIT, DRAFT)
    assert [table.walked_back(s) for s in DRAFT] == [0, 0, 3, 3, 2, 3, 3]


def test_state_bridge_growth_as_first_printed_contradicts_its_own_cell() -> None:
    as_printed = AUDIT[3].replace(growth=2.4)
    assert decision_table([as_printed], ("+(a)",)).cells == ((False,),)


def test_an_accuracy_at_chance_is_what_accuracy_alone_catches() -> None:
    guessing = BP_256.replace(accuracy=0.1)
    assert decision_table([guessing]).row("S0") == (True,)
    hundred = guessing.replace(chance=0.01)
    assert decision_table([hundred]).row("S0") == (False,)
    opposed = BP_256.replace(gamma=-0.1)
    assert decision_table([opposed]).row("S1") == (True,)


@given(
    st.none() | st.floats(0, 1),
    st.none() | st.floats(0, 1),
    st.none() | st.floats(-1, 1),
    st.none() | st.floats(0, 1e38),
    st.none() | st.floats(0, 1e38),
)
def test_a_richer_strategy_never_lets_more_stand(accuracy, frozen, gamma, growth, norm) -> None:
    case = Case(
        name="any",
        accuracy=accuracy,
        frozen_accuracy=frozen,
        gamma=gamma,
        growth=growth,
        reference_norm=norm,
    )
    cells = [STRATEGIES[s].walks_back(case, Thresholds()) for s in ("S0", "S1", "S2", "S3")]
    for poorer, richer in pairwise(cells):
        assert not (poorer is True and richer is not True)
        assert not (poorer is None and richer is False)
    if None in (accuracy, frozen):
        assert cells[-1] is not False  # not evaluated never stands


def test_the_table_reads_as_text_and_survives_json() -> None:
    table = decision_table([DFA_256, FA_512, BP_256.replace(accuracy=None)])
    assert DecisionTable.from_json(table.to_json()) == table
    lines = str(table).splitlines()
    assert lines[0].split("  ")[0].strip() == ""
    assert "walked back" in lines[3]
    assert "open" in lines[1]
    assert table.right("S0") == (False, False, None)


def test_unknown_strategies_are_named() -> None:
    with pytest.raises(FauditError, match="unknown strategy 'S4'"):
        decision_table([DFA_256], ["S4"])
    with pytest.raises(FauditError, match="unknown strategy 'S3'"):
        decision_table([DFA_256], ["S0"]).row("S3")
    with pytest.raises(FauditError, match=r"use 0\.306"):
        Case(name="DFA", accuracy=30.6)


def test_a_case_from_evidence_reads_the_protocol_numbers() -> None:
    evidence = Evidence(
        layers=2,
        samples=8,
        growth=(1.0, 3.0),
        reference_norm=(1.0, 1.0, 0.128),
        gamma=0.2,
        accuracy=0.4,
    )
    case = Case.from_evidence("mine", evidence, frozen_accuracy=0.3)
    assert (case.growth, case.reference_norm, case.stability) == (3.0, 0.001, None)
    assert case.margin == pytest.approx(0.1)
    empty = Case.from_evidence("none", Evidence(layers=1, samples=8))
    assert (empty.growth, empty.reference_norm, empty.gamma, empty.margin) == (None,) * 4


def test_what_cannot_be_judged_never_stands() -> None:
    fine = Evidence(
        layers=2,
        samples=8,
        growth=(1.0, 1.0),
        reference_norm=(1.0, 1.0, 1.0),
        gamma=0.3,
        accuracy=0.6,
    )
    broken = Case.from_evidence("w", fine.replace(nonfinite="weight w"), frozen_accuracy=0.3)
    assert broken.nonfinite == "weight w"
    hole = fine.replace(growth=(nan, 1.0), undefined={"growth[0]": "h_0 is zero"})
    partly = Case.from_evidence("h", hole, frozen_accuracy=0.3)
    table = decision_table([broken, partly], ["S0", "S1", "S2", "S3", "+(a)"])
    assert [table.row(s)[0] for s in table.strategies] == [None] * 5
    assert table.row("+(a)")[1] is None
    bad = broken.replace(growth=900.0, failing=True)
    found = threshold_sensitivity([Case(name="a", growth=1.0, failing=False), bad])["D1"]
    assert found.flagged == ((),) * 5
    assert found.failing_extreme != found.failing_extreme


# The drafts, threshold sensitivity: the extreme single runs of the five-method audit.
# (These extremes do not fit the same drafts' means: EP's mean growth, 11.6, exceeds the healthy
# maximum of 11, and CB's mean, 96, lies below the failing minimum of 694.)
EXTREMES = [
    Case(name="EP s123", growth=11, reference_norm=1.0e-4, failing=False),
    Case(name="CB s123", growth=694, reference_norm=4.2e-9, failing=True),
]


def test_threshold_sensitivity_of_the_drafts() -> None:
    found = threshold_sensitivity(EXTREMES)
    assert round(found["D1"].gap) == 63
    # 24 338 is printed; the two rounded extremes it comes from allow 22 400 to 25 300.
    assert found["D2"].gap == pytest.approx(24_338, rel=0.05)
    assert found["D1"].robust
    assert found["D2"].robust
    assert found["D1"].flagged == (("CB s123",),) * 5
    assert isnan(found["D3"].gap)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_the_audit_keeps_its_verdicts_under_a_factor_of_two(factor: float) -> None:
    found = threshold_sensitivity(AUDIT, (1.0, factor))
    assert found["D2"].robust
    # On the printed means, CB's growth of 96 leaves only a factor of 1.9.
    assert found["D1"].changed == (() if factor < 1.9 else ("CB",))
    assert found["D1"].gap == pytest.approx(96 / 11.6)


def test_depth_utility_is_not_robust_on_penalised_runs() -> None:
    penalised = Case(name="DFA 1e-2", accuracy=0.363, frozen_accuracy=FROZEN, failing=True)
    d3 = threshold_sensitivity([*AUDIT, penalised], (0.5, 1.0))["D3"]
    assert d3.changed == ("DFA 1e-2",)
    assert "DFA 1e-2" not in d3.flagged[0]
    assert "DFA 1e-2" in d3.flagged[1]
    assert d3.gap == pytest.approx((0.609 - 0.349) - (0.363 - 0.349))


def test_gaps_say_when_the_kinds_overlap() -> None:
    mixed = [
        Case(name="a", growth=90, reference_norm=0.0, failing=False),
        Case(name="b", growth=60, reference_norm=1e-9, failing=True),
    ]
    found = threshold_sensitivity(mixed)
    assert found["D1"].gap < 1
    assert found["D2"].gap < 1
    vanished = [mixed[0].replace(reference_norm=1e-3), mixed[1].replace(reference_norm=0.0)]
    assert threshold_sensitivity(vanished)["D2"].gap == inf


def test_factors_must_be_positive() -> None:
    with pytest.raises(FauditError, match="above zero"):
        threshold_sensitivity(EXTREMES, (0.0, 1.0))
    with pytest.raises(FauditError, match="one or more"):
        threshold_sensitivity(EXTREMES, ())
