"""Reports that several tests look at, written once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from faudit.report import Dossier, read, write_report
from tests.report import samples
from tests.report.browser import CHROMIUM, Browser


@pytest.fixture(scope="session")
def dossier() -> Dossier:
    """Five methods, a second architecture, penalties and a ladder."""
    bundles = samples.audit(30) + samples.vision() + samples.penalties() + samples.ladder()
    return read(bundles)


@pytest.fixture(scope="session")
def small() -> Dossier:
    """Three methods in one setting, one of them without a baseline and one that broke."""
    return read(samples.patchy())


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on a study that is not whole, with its figures as SVG only."""
    folder = tmp_path_factory.mktemp("report")
    return write_report(samples.patchy() + samples.penalties(), folder, formats=("svg",))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A running browser."""
    if CHROMIUM is None:
        pytest.skip("needs chromium: apt-get install -y chromium")
    found = Browser()
    yield found
    found.close()
