"""Data that are made once: drawing them takes longer than the runs that the tests make on them."""

from __future__ import annotations

from functools import cache

import pytest

from faudit.studies import runner

load_once = cache(runner.data.load)


@pytest.fixture(autouse=True)
def data_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner.data, "load", load_once)
