"""The published temporal record fires when it was published to fire; the loop helper agrees."""

from __future__ import annotations

from math import inf, nan
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faudit.errors import FauditError
from faudit.measures.evidence import Evidence
from faudit.protocol import EarlyStop, Epoch, Replay, Thresholds, replay

# The second draft, section 3: DFA on ResMLP d256 L4; D2 fires at epoch 3-4, D1 at 8-11, of 100.
NORMS = [9.8e-4, 1.4e-6, 3.1e-7, 1.3e-7, 6.7e-8]
DFA = [
    Epoch(
        epoch=e,
        growth=min(1.2 + 5.5 * e, 237.0),
        reference_norm=NORMS[e] if e < 5 else 6.7e-8 / (e - 3) ** 1.1,
        accuracy=0.306 if e > 90 else 0.308,
    )
    for e in range(101)
]
BP = [Epoch(epoch=e, growth=1.3, reference_norm=4e-4, accuracy=0.6) for e in range(101)]


def test_replays_the_published_trajectory() -> None:
    found = replay(DFA)
    assert found.first == {"D1": 9, "D2": 4, "mode 1": 9, "not finite": None, "any": 4}
    assert found.saved["any"] == pytest.approx(0.96)
    assert (found.accuracy["any"], found.final_accuracy) == (0.308, 0.306)
    assert "D2: epoch 4 of 100, 96 % saved" in str(found)


def test_backpropagation_never_fires() -> None:
    found = replay(BP)
    assert set(found.first.values()) == {None}
    assert set(found.saved.values()) == {None}
    assert str(found) == "nothing fired in 100 epochs"


def test_mode_one_waits_for_both_at_the_same_epoch() -> None:
    apart = [
        {"epoch": 0, "growth": 100.0, "reference_norm": 1e-3},
        {"epoch": 1, "growth": 1.0, "reference_norm": 1e-9},
        {"epoch": 2, "growth": 100.0, "reference_norm": 1e-9},
    ]
    assert replay(apart).first == {"D1": 0, "D2": 1, "mode 1": 2, "not finite": None, "any": 0}


def test_a_history_that_breaks_fires_where_the_early_stop_stops() -> None:
    numbers = {"growth": [1.0, 1.2], "reference_norm": [1e-3, 1e-3]}
    lost = {"growth": [nan, nan], "reference_norm": [nan, nan]}
    history = [{"epoch": e, **(numbers if e < 3 else lost)} for e in range(10)]
    found = replay(history)
    assert found.first["not finite"] == found.first["any"] == 3
    assert found.first["mode 1"] is None
    assert "not finite: epoch 3 of 9" in str(found)
    stop = EarlyStop()
    assert [stop(record) for record in history].index(True) == 3


def test_missing_numbers_fire_nothing() -> None:
    found = replay([{"epoch": 0}, {"epoch": 1, "growth": 80.0}])
    assert found.first == {"D1": 1, "D2": None, "mode 1": None, "not finite": None, "any": 1}
    assert replay([{"epoch": 0, "growth": 80.0}]).saved["D1"] == 0.0


def test_other_thresholds_change_the_moment() -> None:
    assert replay(DFA, Thresholds(reference_factor=100)).first["D2"] == 2
    assert replay(DFA, Thresholds(growth=20)).first["D1"] == 4


@given(st.lists(st.tuples(st.floats(0, 1e38), st.floats(0, 1)), min_size=1, max_size=8))
def test_replay_agrees_with_a_plain_loop(rows) -> None:
    history = [{"epoch": e, "growth": g, "reference_norm": n} for e, (g, n) in enumerate(rows)]
    found = replay(history)
    slow = [e for e, (g, n) in enumerate(rows) if g > 50 and n < 1e-7]
    assert found.first["mode 1"] == (slow[0] if slow else None)
    stop = EarlyStop()
    stopped = next((e for e, record in enumerate(history) if stop(record)), None)
    assert stopped == found.first["mode 1"]
    assert Replay.from_json(found.to_json()) == found


def test_records_may_be_mappings_objects_arrays_or_evidence() -> None:
    expected = Epoch(epoch=2, growth=60.0, reference_norm=1e-8)
    as_mapping = {"epoch": 2, "growth": (1.0, 60.0), "reference_norm": [1.0, 1e-8], "lr": 1e-3}
    as_object = SimpleNamespace(epoch=2, growth=np.array([1.0, 60.0]), reference_norm=1e-8)
    assert Epoch.of(as_mapping) == Epoch.of(as_object) == Epoch.of(expected) == expected
    evidence = Evidence(layers=1, samples=8, growth=(60.0,), reference_norm=(1.0, 128 * 1e-8))
    assert Epoch.from_evidence(2, evidence) == expected
    assert EarlyStop()(evidence)
    assert not EarlyStop(Thresholds(reference_batch=1))(evidence)


def test_a_number_that_is_not_finite_stops_at_once() -> None:
    for record in (
        Evidence(layers=1, samples=8, nonfinite="state h_1"),
        {"epoch": 0, "nonfinite": "state h_1"},
        {"epoch": 0, "growth": [1.0, nan]},
        {"epoch": 0, "reference_norm": nan},
    ):
        stop = EarlyStop(patience=5)
        assert stop(record)
        assert stop.reason.startswith("not finite: ")
    assert not EarlyStop()({"epoch": 0, "growth": inf})  # growth alone is not Mode 1


def test_patience_counts_firings_in_a_row() -> None:
    stop = EarlyStop(on="D1", patience=3)
    growths = [80, 80, 1, 80, 80, 80, 80]
    answers = [stop({"epoch": e, "growth": float(g)}) for e, g in enumerate(growths)]
    assert answers == [False] * 5 + [True, True]
    assert stop.reason.startswith("D1 has fired 4 times in a row: growth 80")
    assert EarlyStop().reason == ""


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ([], "history is empty"),
        ([{"growth": 1.0}], "has no epoch"),
        ([{"epoch": 1}, {"epoch": 1}], "do not increase"),
        ([{"epoch": 0, "growth": "fast"}], "growth holds 'fast'"),
        ([{"epoch": 0, "reference_norm": {}}], "reference_norm holds"),
    ],
)
def test_unusable_histories_are_refused(history, message: str) -> None:
    with pytest.raises(FauditError, match=message):
        replay(history)


def test_unknown_triggers_are_named() -> None:
    with pytest.raises(FauditError, match="unknown trigger 'D3'"):
        EarlyStop(on="D3")  # type: ignore[arg-type]
    with pytest.raises(FauditError, match="patience is 0"):
        EarlyStop(patience=0)
