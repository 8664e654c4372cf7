"""What no protocol can work with is refused with one error that says what would do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from faudit.errors import FauditError
from faudit.measures.evidence import Evidence
from faudit.protocol import (
    Case,
    EarlyStop,
    decision_table,
    diagnose,
    paired_interval,
    replay,
    threshold_sensitivity,
    unpaired_interval,
    walk_back,
)

EVIDENCE = Evidence(layers=1, samples=8)
CASES = [Case(name="BP", growth=1.0)]

REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "no evidence": (lambda: walk_back(None, diagnose(EVIDENCE)), "evidence is of type NoneType"),
    "no verdict": (lambda: walk_back(EVIDENCE, "PASS"), "verdict is of type str; diagnose"),
    "no history": (lambda: replay(None), "history is of type NoneType; give one record"),
    "no thresholds": (lambda: replay([{"epoch": 0}], {"growth": 3}), "thresholds is of type dict"),
    "patience": (lambda: EarlyStop(patience="2"), "patience is of type str; give a whole number"),
    "limits": (lambda: EarlyStop({"growth": 3}), "thresholds is of type dict; give Thresholds"),
    "no cases": (lambda: decision_table(None), "cases is of type NoneType; give a list"),
    "numbers": (lambda: decision_table([1]), "case 0 is of type int; give Case"),
    "rows": (lambda: threshold_sensitivity([CASES[0], {}]), "case 1 is of type dict; give Case"),
    "words": (lambda: threshold_sensitivity(CASES, "ab"), "all above zero"),
    "a level": (lambda: paired_interval([1], [1], level=2), "level is 2; give a probability"),
    "percent": (lambda: unpaired_interval(0.5, 0.4, 10, level=95), "level is 95; give"),
    "draws": (lambda: paired_interval([1], [1], draws=0), "draws is 0; a bootstrap needs"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_worked_with_is_refused(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises(FauditError, match=message):
        call()
