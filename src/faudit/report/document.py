"""The report: one page that opens offline, and the same tables and figures as files beside it."""

from __future__ import annotations

import hashlib
import os
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from faudit.report import contents, control, escape, narrative
from faudit.report.dossier import Dossier, Group, Source, read
from faudit.report.inline import Styles
from faudit.report.plate import FORMATS, Plate
from faudit.report.style import PALETTE
from faudit.report.table import Table

TEMPLATES = Path(__file__).parent / "templates"
UNFOLDED = 6
"""Settings whose figures are open; of the others a section says only that they are there."""
DRAWN = 24
"""Figures of a section that the page itself draws; a search among variants makes many more."""
WIDE = 4.5
"""Panels of more inches than this get a line of the page to themselves."""


def write_report(
    source: Source, folder: str | os.PathLike[str], *, formats: Sequence[str] = FORMATS
) -> Path:
    """Write ``index.html``, ``tables/`` and ``figures/`` for a store, or for bundles; the page.

    Args:
        source: a store's folder, a folder of bundles, or loaded bundles. It is only read.
        folder: where the report goes; it is made if it is not there.
        formats: which files to write of each figure, among "svg", "pdf" and "png".

    >>> write_report("no-such-store", "report")
    Traceback (most recent call last):
    ...
    faudit.errors.BundleError: there is no folder no-such-store; give a store or a folder of bundles
    """
    dossier = read(source)
    tables, plates = contents.all_tables(dossier), contents.all_plates(dossier)
    folder = Path(folder)
    _write_tables(folder / "tables", tables)
    _write_figures(folder / "figures", plates.values(), formats)
    page = folder / "index.html"
    page.write_text(render(dossier, tables, plates), encoding="utf-8")
    return page


def _write_tables(folder: Path, tables: Mapping[str, Table]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        for ending, text in (
            ("md", table.to_markdown() + "\n"),
            ("tex", table.to_latex()),
            ("csv", table.to_csv()),
        ):
            (folder / f"{name}.{ending}").write_text(text, encoding="utf-8")


def _write_figures(folder: Path, plates: Iterable[Sequence[Plate]], formats: Sequence[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for plate in (plate for section in plates for plate in section):
        for form, raw in plate.files(formats).items():
            (folder / f"{plate.name}.{form}").write_bytes(raw)


def render(
    dossier: Dossier, tables: Mapping[str, Table], plates: Mapping[str, Sequence[Plate]]
) -> str:
    """The page as HTML; a function of what is in the dossier, and of nothing else."""
    script = (TEMPLATES / "page.js").read_text(encoding="utf-8")
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(table=_table(tables), plain=escape.plain)
    styles = Styles()
    drawn = {section: _drawn(found[:DRAWN], styles) for section, found in plates.items()}
    return environment.get_template("report.html").render(
        dossier=dossier,
        headline=narrative.headline(dossier),
        stories=narrative.stories(dossier),
        plates=drawn,
        beside={section: found[DRAWN:] for section, found in plates.items()},
        unfolded=UNFOLDED,
        judged=_by_setting(dossier.methods),
        payload=Markup(control.embedded(dossier.methods)),
        published=control.payload([])["published"],
        style=Markup(_style() + styles.sheet),
        script=Markup(script),
        policy=_policy(script),
    )


def _table(tables: Mapping[str, Table]) -> Any:
    # A table and a figure escape what they hold themselves: that is what Markup says here.
    def table(name: str, cards: bool = False) -> Markup:
        return Markup(tables[name].to_html(cards=cards)) if name in tables else Markup("")

    return table


def _drawn(plates: Sequence[Plate], styles: Styles) -> list[tuple[str, list[dict[str, Any]]]]:
    """Plates for the page, those that share a caption under one."""
    return [
        (caption, [_picture(plate, styles) for plate in alike])
        for caption, alike in groupby(plates, lambda plate: plate.caption)
    ]


def _picture(plate: Plate, styles: Styles) -> dict[str, Any]:
    panels = [
        {"svg": Markup(plate.inline(index, styles)), "wide": panel.size[0] > WIDE}
        for index, panel in enumerate(plate.panels)
    ]
    return {"title": plate.title, "panels": panels}


def _by_setting(groups: Sequence[Group]) -> list[tuple[str, list[tuple[int, Group]]]]:
    numbered = groupby(enumerate(groups), lambda item: item[1].setting)
    return [(setting, list(part)) for setting, part in numbered]


def _style() -> str:
    css = (TEMPLATES / "page.css").read_text(encoding="utf-8")
    light, dark = (
        "".join(f"--{name}:{shades[i]};" for name, shades in PALETTE.items()) for i in (0, 1)
    )
    return css.replace("/* light */", light).replace("/* dark */", dark)


def _policy(script: str) -> str:
    """Nothing from anywhere: no network, no script but the page's own, by its hash."""
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}';"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )
