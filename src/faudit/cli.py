"""The command line: thin verbs over the library. Nothing heavy is imported before it is used."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, CycloptsError, Parameter

from faudit import __version__
from faudit.errors import FauditError

if TYPE_CHECKING:
    from faudit.bundle import Bundle
    from faudit.recipe import Recipe
    from faudit.studies.engines import Engine
    from faudit.studies.judging import Judged

PASS, FAIL, USAGE, INCOMPLETE, INTERRUPTED = 0, 1, 2, 3, 130

STORE = Path("faudit-runs")
REPORT = Path("faudit-report")

app = App(
    name="faudit",
    version=__version__,
    help="Did a network trained without backpropagation learn in depth, or does it only look so?",
    help_epilogue=(
        "Exit codes: 0 passed or done, 1 a verdict is FAIL, 2 wrong use, 3 incomplete or invalid."
        " `--debug` shows the traceback of an error."
    ),
)
app.register_install_completion_command(help="Install shell completion for this shell.")

Json = Annotated[bool, Parameter("--json", negative="", help="Print JSON instead of a table.")]
Quiet = Annotated[bool, Parameter(["--quiet", "-q"], negative="", help="Show no progress.")]
Sets = Annotated[
    list[str] | None,
    Parameter(
        "--set", negative="", consume_multiple=False, help="A recipe's key=value; repeatable."
    ),
]
Runs = Annotated[Path, Parameter("--store", help="The folder that keeps the runs.")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in tokens
    tokens = [token for token in tokens if token != "--debug"]
    try:
        code = app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        return _complain(str(error))
    except FauditError as error:
        if debug:
            raise
        return _complain(str(error), getattr(error, "exit_code", USAGE))
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        return PASS
    return code if isinstance(code, int) else PASS


def _complain(message: str, code: int = USAGE) -> int:
    from faudit.measures.evidence import printable

    print(f"faudit: {printable(' '.join(message.split()))}", file=sys.stderr)
    return code


@app.command
def audit(
    *,
    store: Runs = STORE,
    report: Path = REPORT,
    seed: int = 42,
    sets: Sets = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> int:
    """Train BP, FA, DFA and their frozen-blocks baselines, measure and judge them.

    Runs on an embedded Fashion-MNIST sample in about a minute on two cores. It answers whether
    the protocol works here, so it ends with 0 although FA and DFA fail.

    Parameters
    ----------
    report
        The folder for the report.
    seed
        What weights, feedback and data order are drawn from.
    """
    from faudit.report.document import write_report
    from faudit.studies.audits import first

    recipes = [recipe.set(*(sets or [])) for recipe in first(seed=seed)]
    judged = _train_and_judge(recipes, store, quiet or as_json)
    page = write_report([one.bundle for one in judged], report)
    _show(judged, as_json)
    if not as_json:
        print(f"\nReport: {page}")
    return PASS


@app.command
def train(
    *recipes: str,
    store: Runs = STORE,
    sets: Sets = None,
    engine: str = "local",
    slots: int | None = None,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> int:
    """Make every run of the recipes or studies that is not in the store yet.

    Stop it and start it again at will: what is there is skipped, what was under way goes on.

    Parameters
    ----------
    recipes
        Recipe files (.toml, .json) or names of studies.
    engine
        local, ray[:ADDRESS] or slurm.
    slots
        How many runs at once; one per core by default. Runs on a GPU share it.
    dry_run
        Only list the runs, which are there, and what the others may cost.
    """
    from faudit.studies.runner import check
    from faudit.studies.study import plan
    from faudit.studies.study import train as train_all

    wanted = _recipes(recipes, sets)
    if dry_run:
        planned = plan(wanted, store)
        print(_json(_planned(planned)) if as_json else planned)
        return PASS
    chosen = _engine(engine, slots)
    here = engine.partition(":")[0] == "local"
    check((run.recipe for run in plan(wanted, store).todo), here=here)
    summary = train_all(wanted, store, engine=chosen, show=_board(quiet or as_json))
    outcomes = {digest: outcome.to_dict() for digest, outcome in summary.outcomes.items()}
    print(_json(outcomes) if as_json else summary)
    return INCOMPLETE if summary.failed else PASS


@app.command
def measure(*bundles: Path, again: bool = True, as_json: Json = False) -> int:
    """Measure and judge bundles from what is in them; ends with 1 if a verdict is FAIL.

    Parameters
    ----------
    bundles
        Folders of published runs.
    again
        Measure the weights again, which needs the data; `--no-again` judges the stored evidence.
    """
    from faudit.bundle import Bundle
    from faudit.studies.judging import judge_bundle
    from faudit.studies.runner import measure_again

    if not bundles:
        raise FauditError("name at least one bundle: faudit measure STORE/runs/DIGEST")
    found = [Bundle.load(folder) for folder in bundles]
    judged = [judge_bundle(measure_again(b) if again else b) for b in found]
    _show(judged, as_json, explain=True)
    return max(one.verdict.exit_code for one in judged)


@app.command
def report(
    store: Path = STORE,
    *,
    out: Annotated[Path, Parameter(["--out", "-o"])] = REPORT,
    as_json: Json = False,
) -> int:
    """Write the report on a store or a folder of bundles: one page, tables and figures.

    Parameters
    ----------
    store
        A store, or a folder of bundles; it is only read.
    out
        The folder for the report.
    """
    from faudit.report.document import write_report

    page = write_report(store, out)
    print(_json({"page": str(page)}) if as_json else f"Report: {page}")
    return PASS


@app.command
def reproduce(
    *names: str,
    status: Annotated[bool, Parameter(negative="")] = False,
    rerun: str | None = None,
    variant: str = "paper",
    store: Runs = STORE,
    results: Path = Path("results"),
    slots: int | None = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> int:
    """Hold the papers' published numbers against ours.

    The names are t1 f3 f4 t2 f6 t3 t4 t5 t6 v1 v2 v3 v4 x1, or all. Runs need the real data and
    take hours; `--status` prints what is known and needs neither.

    Parameters
    ----------
    names
        The tables and figures whose runs are to be made.
    status
        Only read the committed results.
    rerun
        Make the runs of one claim anew, by its id.
    variant
        The recipe: paper or plain.
    results
        The folder of committed results.
    """
    from faudit.report import ledger as told
    from faudit.studies import ledger

    board = _board(quiet or as_json)
    options: dict[str, Any] = {"engine": _engine("local", slots), "show": board}
    if rerun is not None:
        row = ledger.rerun(rerun, store, variant=variant, **options)
        found = ledger.Ledger((row,))
    elif status:
        found = ledger.status(results)
    elif names:
        found = ledger.reproduce(names, store, variants=(variant,), **options)
    else:
        raise FauditError("name what to reproduce (or all), or use --status")
    if as_json:
        print(_json(found.to_dict()))
    else:
        tables = told.ledger_table(found), told.totals_table(found)
        print("\n\n".join(table.to_text() for table in tables))
    return PASS


@app.command
def template(
    *bundles: Path,
    form: Annotated[str, Parameter("--format", help="markdown or latex.")] = "markdown",
    as_json: Json = False,
) -> int:
    """Write what a paper should report: paragraph, table and checklist, filled from bundles.

    Parameters
    ----------
    bundles
        Runs of one setting that differ by seed; without any, a form to fill in.
    """
    from faudit.bundle import Bundle
    from faudit.report.template import template as write

    text = write([Bundle.load(folder) for folder in bundles] or None, form)
    print(_json({"format": form, "text": text}) if as_json else text)
    return PASS


@app.command
def card(
    bundle: Path,
    *,
    out: Annotated[Path | None, Parameter(["--out", "-o"])] = None,
    as_json: Json = False,
) -> int:
    """Write a run's audit card: one JSON that others can compare and verify.

    A card is JSON with or without `--json`.

    Parameters
    ----------
    out
        The file for the card; standard output by default.
    """
    from faudit.atomic import write
    from faudit.bundle import Bundle
    from faudit.report.card import make_card

    text = make_card(Bundle.load(bundle)).to_json(indent=1)
    if out is None:
        print(text)
    else:
        write(out, text + "\n")
    return PASS


@app.command
def verify(
    card: Path,
    bundle: Path,
    *,
    again: Annotated[bool, Parameter(negative="")] = False,
    as_json: Json = False,
) -> int:
    """Recompute an audit card from a bundle; ends with 1 if a single value differs.

    Parameters
    ----------
    again
        Also measure the weights again, which needs the data.
    """
    from faudit.report.verification import verify as compare

    found = compare(card, bundle, again=again)
    print(_json(found.to_dict()) if as_json else found)
    return found.exit_code


@app.command
def pitfalls(*codes: str, seed: int = 0, as_json: Json = False) -> int:
    """Reproduce the known pitfalls as small experiments: the wrong number beside the right one.

    Parameters
    ----------
    codes
        Only these; all twelve by default.
    """
    from faudit.pitfalls import reproduce as experiments

    found = experiments(codes or None, seed=seed)
    if as_json:
        print(_json([pitfall.to_dict() for pitfall in found]))
    else:
        print("\n\n".join(map(str, found)))
    return PASS


@app.command
def lint(
    *paths: Path,
    form: Annotated[str, Parameter("--format", help="text, json or sarif.")] = "text",
    select: Annotated[list[str] | None, Parameter(negative="", consume_multiple=False)] = None,
    as_json: Json = False,
) -> int:
    """Point at pitfalls in Python source, without running it; ends with 1 if there are any.

    Parameters
    ----------
    paths
        Files and folders; the current folder by default.
    select
        Only these rules, such as FA001; repeatable.
    """
    from faudit.lint import exit_code, lint_paths, render

    found = lint_paths(paths or [Path()], select=select)
    print(render(found, "json" if as_json else form))
    return exit_code(found)


@app.command
def worker(store: Path, *, slots: int = 1, as_json: Json = False) -> int:
    """Make runs that others asked for, until none is left; start as many as there are machines."""
    from faudit.studies.store import Store
    from faudit.studies.study import work

    made = work(Store(store), slots=slots)
    print(_json({"made": made}) if as_json else f"{made} runs made")
    return PASS


def _recipes(names: Sequence[str], sets: Sequence[str] | None) -> list[Recipe]:
    from faudit.recipe import Recipe
    from faudit.studies.audits import STUDIES, study

    if not names:
        raise FauditError(f"name a recipe file or a study: {', '.join(STUDIES)}")
    found: list[Recipe] = []
    for name in names:
        is_file = Path(name).suffix in (".toml", ".json") or Path(name).exists()
        found += [Recipe.load(name)] if is_file else study(name)
    return [recipe.set(*(sets or [])) for recipe in found]


def _engine(name: str, slots: int | None) -> Engine:
    from faudit.studies.engines import Local

    kind, _, address = name.partition(":")
    if kind == "local":
        return Local(slots=slots)
    if kind == "ray":
        from faudit.studies.clusters import Ray

        return Ray(address=address or None, workers=slots)
    if kind == "slurm":
        from faudit.studies.clusters import Slurm

        return Slurm() if slots is None else Slurm(workers=slots)
    from faudit.errors import unknown

    raise FauditError(unknown("engine", kind, ("local", "ray", "slurm")))


def _board(quiet: bool) -> Any:
    from faudit.studies.progress import board

    return board(quiet=quiet)


def _train_and_judge(recipes: list[Recipe], store: Path, quiet: bool) -> list[Judged]:
    from faudit.studies.judging import judge_store
    from faudit.studies.runner import check
    from faudit.studies.study import plan
    from faudit.studies.study import train as train_all

    check(run.recipe for run in plan(recipes, store).todo)
    summary = train_all(recipes, store, show=_board(quiet))
    return list(judge_store(summary.store, recipes))


def _show(judged: Sequence[Judged], as_json: bool, *, explain: bool = False) -> None:
    if as_json:
        print(_json([_plain(one) for one in judged]))
        return
    print(_brief([one.bundle for one in judged]))
    for one in judged if explain else ():
        print(f"\n{one.bundle.recipe.digest}: {one.verdict.explain()}")


def _brief(bundles: Sequence[Bundle]) -> str:
    """The verdict table in the width of a terminal, and below it why each verdict is what it is."""
    from faudit.report.dossier import read
    from faudit.report.tables import verdict_table

    table = verdict_table(read(bundles).methods)
    shown = ("accuracy", "D1 growth", "D2 ‖g_L‖", "D3 above frozen", "verdict")
    reasons = zip(table.column("method"), table.column("what decided"), strict=True)
    why = "\n".join(f"{method}: {reason}" for method, reason in reasons)
    return f"{table.only('method', *shown).to_text()}\n\n{why}"


def _plain(one: Judged) -> dict[str, Any]:
    return {
        "recipe": json.loads(one.bundle.recipe.to_json()),
        "digest": one.bundle.recipe.digest,
        "verdict": str(one.verdict),
        "accuracy": one.bundle.outcome.accuracy,
        "frozen_accuracy": None if one.baseline is None else one.baseline.accuracy,
        "findings": [finding.to_dict() for finding in one.verdict.findings],
        "flags": [flag.to_dict() for flag in one.verdict.flags],
    }


def _planned(planned: Any) -> list[dict[str, Any]]:
    return [
        {"digest": run.recipe.digest, "cached": run.cached, "seconds": run.seconds}
        for run in planned.runs
    ]


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, allow_nan=False)


if __name__ == "__main__":
    sys.exit(main())
