"""Documents that quote the results: their numbers are filled in between comments, never typed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from faudit import atomic
from faudit.errors import FauditError
from faudit.recipe import Recipe
from faudit.report.dossier import read
from faudit.report.ledger import (
    decisions_table,
    ledger_table,
    open_table,
    ours,
    published,
    reproduced,
    search_table,
    totals_table,
)
from faudit.report.tables import BRIEF, verdict_table
from faudit.studies.audits import first, on
from faudit.studies.audits import published as published_runs
from faudit.studies.claims import REPEATED
from faudit.studies.ledger import (
    DEVICES,
    NOT_REPRODUCED,
    NOT_RUN,
    Ledger,
    decision_tables,
    search,
    status,
)
from faudit.studies.results import Exported, Results, export
from faudit.studies.store import Store
from faudit.studies.variants import CHOSEN, SEARCH, VARIANTS

_BLOCK = re.compile(r"<!-- results: ([\w ]+) -->.*?<!-- end -->", re.DOTALL)
_INLINE = re.compile(r"<!-- (ours|published|told): ([\w.-]+(?: \w+)?) -->.*?<!-- / -->", re.DOTALL)


def ledger_page(folder: str | os.PathLike[str]) -> str:
    """Every row of the ledger as a page: everything in it is computed from the folder."""
    ledger, results = status(folder), Results(folder)
    parts = [
        "# The ledger",
        "Every published claim beside the same number from the runs in `runs/`. This page is"
        " generated; `README.md` says what it comes to, and `docs/reproduction.md` how rows come"
        " about.",
        f"{len(results)} runs, made with {_origins(results)}.",
        totals_table(ledger).to_markdown(),
        *(open_table(ledger, v).to_markdown() for v in VARIANTS if _missed(ledger, v)),
        *(_decisions(results, v) for v in VARIANTS),
        ledger_table(ledger, full=True).to_markdown(),
    ]
    return "\n\n".join(parts) + "\n"


def _missed(ledger: Ledger, variant: str) -> bool:
    return ledger.totals(variant)[NOT_REPRODUCED] > 0


def _decisions(results: Results, variant: str) -> str:
    table = decisions_table(*decision_tables(results, variant))
    return table.to_markdown().replace(table.title, f"{table.title} ({variant})", 1)


def _origins(results: Results) -> str:
    """The devices and versions behind the numbers; more than one deserves to be seen."""
    told: dict[str, int] = {}
    for bundle in results:
        made = bundle.manifest
        torch = made.versions.get("torch", "unknown")
        where = f"{made.machine or bundle.recipe.device}, torch {torch}, code {made.code}"
        told[where] = told.get(where, 0) + 1
    return "; ".join(f"{where} ({count})" for where, count in sorted(told.items())) or "nothing yet"


def _first_audit(results: Results) -> str:
    """What ``faudit audit`` ends with, from the same six runs."""
    there = [results[recipe] for recipe in first() if recipe in results]
    if not there:
        return "not run"
    return verdict_table(read(there).methods).only("method", *BRIEF).to_markdown()


def write_ledger(folder: str | os.PathLike[str]) -> Path:
    """Write the page with every row beside the results."""
    path = Path(folder) / "LEDGER.md"
    atomic.write(path, ledger_page(folder), durable=False)
    return path


def quotes(folder: str | os.PathLike[str]) -> dict[str, str]:
    """What documents may quote of the results, by the name of the place it goes to.

    Besides whole tables: ``ours: ID`` and ``published: ID`` are a claim's numbers (``ours: ID
    plain`` under the plain recipe), and ``told: NAME`` a count.
    """
    results, ledger = Results(folder), status(folder)
    found = {
        "totals": totals_table(ledger).to_markdown(),
        "search": "\n\n".join(
            search_table(search(results, name), stage.question).to_markdown()
            for name, stage in SEARCH.items()
        ),
        "decisions": _decisions(results, "paper"),
        "not reproduced": open_table(ledger).to_markdown(),
        "first audit": _first_audit(results),
        "told: runs": str(len(results)),
        "told: deciding": str(len(_deciding(results))),
        "told: claims": str(len(ledger.of("paper"))),
        "told: repeated": str(len(REPEATED)),
        "told: origins": _origins(results),
        "told: chosen": ", ".join(f"`{stage}/{name}`" for stage, name in CHOSEN.items()),
    }
    for variant in VARIANTS:
        found |= _counts(ledger, variant)
    for row in ledger.rows:
        end = "" if row.variant == "paper" else f" {row.variant}"
        found[f"ours: {row.claim.id}{end}"] = str(ours(row) or "not run")
        found[f"published: {row.claim.id}"] = str(published(row.claim))
    return found


def _counts(ledger: Ledger, variant: str) -> dict[str, str]:
    """The totals, of all rows and of those that every seed decided."""
    some, every = ledger.totals(variant), ledger.totals(variant, complete=True)
    telling = reproduced(ledger, variant, complete=True, telling=True)
    told = {
        **{_initials(standing): count for standing, count in some.items()},
        **{f"{_initials(standing)}-every": count for standing, count in every.items()},
        "decided-every": sum(every.values()),
        "decided-some": sum(some.values()) - some[NOT_RUN] - sum(every.values()),
        "telling-every": telling,
    }
    return {f"told: {name} {variant}": str(count) for name, count in told.items()}


def _deciding(results: Results) -> set[str]:
    """The runs that decide a row; the others are the search's, and the first audit's."""
    asked = {recipe for name in VARIANTS for recipe in published_runs(["all"], name)}
    there = {on(device, recipe).digest for recipe in asked for device in DEVICES}
    return there & set(results.digests())


def _initials(standing: str) -> str:
    """A standing as one word.

    >>> _initials("same verdict, different magnitude")
    'same-verdict'
    """
    return standing.partition(",")[0].replace(" ", "-")


def fill(text: str, quoted: Mapping[str, str]) -> str:
    """A document with every number that it quotes made anew.

    >>> print(fill("<!-- results: n -->old<!-- end -->", {"n": "new"}))
    <!-- results: n -->
    <BLANKLINE>
    new
    <BLANKLINE>
    <!-- end -->
    >>> fill("It is <!-- ours: c --><!-- / -->.", {"ours: c": "0.3"})
    'It is <!-- ours: c -->0.3<!-- / -->.'
    """

    def known(name: str) -> str:
        if name not in quoted:
            raise FauditError(f"a document quotes {name!r}, which the results do not have")
        return quoted[name]

    def block(found: re.Match[str]) -> str:
        return f"<!-- results: {found[1]} -->\n\n{known(found[1])}\n\n<!-- end -->"

    def inline(found: re.Match[str]) -> str:
        name = f"{found[1]}: {found[2]}"
        return f"<!-- {name} -->{known(name)}<!-- / -->"

    return _INLINE.sub(inline, _BLOCK.sub(block, text))


def fill_document(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> bool:
    """Bring a document's quotes up to date; says whether anything changed."""
    before = Path(path).read_text(encoding="utf-8")
    after = fill(before, quotes(folder))
    if after != before:
        atomic.write(path, after, durable=False)
    return after != before


def publish(
    store: str | os.PathLike[str] | Store,
    folder: str | os.PathLike[str],
    documents: Iterable[str | os.PathLike[str]] = (),
    recipes: Iterable[Recipe] | None = None,
) -> Exported:
    """Write a store's runs as results, the ledger's page, and what documents quote of them."""
    done = export(store, folder, recipes)
    write_ledger(folder)
    for path in documents:
        fill_document(path, folder)
    return done
