"""The command line: thin verbs over the library. Nothing heavy is imported before it is used."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, CycloptsError, Parameter

from faudit import __version__
from faudit.errors import FauditError

if TYPE_CHECKING:
    from faudit.bundle import Bundle
    from faudit.pitfalls import Pitfall
    from faudit.recipe import Recipe
    from faudit.report.dossier import Dossier
    from faudit.report.table import Table
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


@Parameter(name="*", group="Output")
@dataclass(frozen=True)
class Voice:
    """How much a verb says, and in which form; every verb takes it."""

    as_json: Annotated[bool, Parameter("--json", negative="", help="Print JSON.")] = False
    quiet: Annotated[
        bool, Parameter(["--quiet", "-q"], negative="", help="The result and nothing else.")
    ] = False
    verbose: Annotated[
        bool, Parameter(["--verbose", "-v"], negative="", help="Every reason and every file.")
    ] = False


USUAL = Voice()

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
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Whoever read the output has seen enough; Python would complain while it shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PASS
    except Exception as error:
        if debug:
            raise
        return _complain(*_told(error))
    return code if isinstance(code, int) else PASS


def _told(error: Exception) -> tuple[str, int]:
    """An error in one line, and the exit code it stands for."""
    if isinstance(error, CycloptsError):
        return str(error), USAGE
    if isinstance(error, FauditError):
        return str(error), getattr(error, "exit_code", USAGE)
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror or error}", USAGE
    told = f"{type(error).__name__}: {error}".removesuffix(": ")
    return f"unexpected {told}; run it again with --debug to see where", INCOMPLETE


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
    voice: Voice = USUAL,
) -> int:
    """Train BP, FA, DFA and their frozen-blocks baselines, measure and judge them.

    Runs on an embedded Fashion-MNIST sample in about a minute on two cores. It answers whether
    the protocol works here, so it ends with 0 although FA and DFA fail, and with 3 if a run broke.

    Parameters
    ----------
    report
        The folder for the report.
    seed
        What weights, feedback and data order are drawn from.
    """
    from faudit.report.document import write_report
    from faudit.studies.audits import first
    from faudit.studies.store import Store

    recipes = [recipe.set(*(sets or [])) for recipe in first(seed=seed)]
    judged = _train_and_judge(recipes, store, voice)
    made = Store.open(store)
    page = write_report([made[recipe] for recipe in recipes if recipe in made], report)
    _show(judged, voice, explain=voice.verbose)
    if not voice.as_json:
        print(f"\nReport: {page.resolve()}")
    wanted = sum(recipe.training.trainable_blocks is None for recipe in recipes)
    decided = sum(one.verdict.exit_code != INCOMPLETE for one in judged)
    return PASS if decided == wanted else INCOMPLETE


@app.command
def train(
    *recipes: str,
    store: Runs = STORE,
    sets: Sets = None,
    engine: str = "local",
    slots: int | None = None,
    same_code: Annotated[bool, Parameter(negative="")] = False,
    track: str | None = None,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    voice: Voice = USUAL,
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
    same_code
        Also make again what another version of the code made.
    track
        Also show every finished run in wandb, trackio or tensorboard, if that is installed.
    dry_run
        Only list the runs, which are there, and what the others may cost; ends with 2 if a run
        could not start here.
    """
    from faudit.studies.runner import check
    from faudit.studies.study import plan
    from faudit.studies.study import train as train_all

    wanted = _recipes(recipes, sets)
    chosen = _engine(engine, slots)
    planned = plan(wanted, store, same_code=same_code)
    if dry_run:
        print(_json(_planned(planned)) if voice.as_json else planned)
    here = engine.partition(":")[0] == "local"
    check((run.recipe for run in planned.todo), here=here)
    if dry_run:
        return PASS
    options: dict[str, Any] = {"same_code": same_code, "track": track}
    summary = train_all(wanted, store, engine=chosen, show=_board(voice), **options)
    outcomes = {digest: outcome.to_dict() for digest, outcome in summary.outcomes.items()}
    if voice.verbose and not voice.as_json:
        print("\n".join(f"{digest}: {one}" for digest, one in summary.outcomes.items()))
    print(_json(outcomes) if voice.as_json else summary)
    return INCOMPLETE if summary.failed else PASS


@app.command
def measure(*bundles: Path, again: bool = True, voice: Voice = USUAL) -> int:
    """Measure and judge runs from what is in them; ends with 1 if any verdict is FAIL.

    Parameters
    ----------
    bundles
        Folders of published runs, or stores, whose runs are held against the baselines there.
    again
        Measure the weights again, which needs the data; `--no-again` judges the stored evidence.
    """
    if not bundles:
        raise FauditError("name at least one bundle: faudit measure STORE/runs/DIGEST")
    broken = [told for folder in bundles for told in _broken(folder)]
    judged = list(_judged(bundles, again, broken))
    _show(judged, voice, explain=not voice.quiet)
    if broken and not voice.as_json:
        print("", *broken, sep="\n")
    codes = {one.verdict.exit_code for one in judged} | ({INCOMPLETE} if broken else set())
    return FAIL if FAIL in codes else max(codes, default=INCOMPLETE)


@app.command
def report(
    store: Path = STORE,
    *,
    out: Annotated[Path, Parameter(["--out", "-o"])] = REPORT,
    voice: Voice = USUAL,
) -> int:
    """Write the report on a store, a bundle or a folder of bundles: page, tables and figures.

    Parameters
    ----------
    store
        A store, a bundle, or a folder of bundles; it is only read.
    out
        The folder for the report.
    """
    from faudit.report.document import write_report

    page = write_report(store, out)
    files = sorted(map(str, out.glob("*/*")))
    if voice.as_json:
        print(_json({"page": str(page.resolve()), "files": files}))
    else:
        print("\n".join([*(files if voice.verbose else ()), f"Report: {page.resolve()}"]))
    return PASS


@app.command
def reproduce(
    *names: str,
    status: Annotated[bool, Parameter(negative="")] = False,
    rerun: str | None = None,
    variant: str = "paper",
    device: str = "cpu",
    store: Runs = STORE,
    results: Path = Path("results"),
    missing: Annotated[bool, Parameter(negative="")] = False,
    slots: int | None = None,
    voice: Voice = USUAL,
) -> int:
    """Hold the papers' published numbers against ours.

    The names are t1 f3 f4 t2 f6 t3 t4 t5 t6 v1 v2 v3 v4 v5 x1, or all. Runs need the real data and
    take hours; `--status` prints what is known and needs neither.

    Parameters
    ----------
    names
        The tables and figures whose runs are to be made, or whose status is asked for.
    status
        Only read the committed results.
    rerun
        Make the runs of one claim anew, by its id.
    variant
        The recipe: paper or plain.
    device
        Where new runs are made: cpu or cuda. A run counts wherever it was made.
    results
        The folder of committed results.
    missing
        Make only what the committed results lack, and count those too.
    """
    from faudit.report import ledger as told
    from faudit.studies import ledger
    from faudit.studies.results import Results

    board = _board(voice)
    options: dict[str, Any] = {"engine": _engine("local", slots), "show": board}
    if rerun is not None:
        return _rerun(rerun, store, results, voice, variant=variant, device=device, **options)
    if status:
        found = ledger.status(results, claims=ledger.claims_of(names or ["all"]))
    elif names:
        options["besides"] = Results(results) if missing else None
        found = ledger.reproduce(names, store, variants=(variant,), device=device, **options)
    else:
        raise FauditError("name what to reproduce (or all), or use --status")
    if voice.as_json:
        print(_json(found.to_dict()))
    else:
        tables = [told.ledger_table(found)]
        if status and {"all", "t4", "t5"}.intersection(names or ["all"]):
            pair = ledger.decision_tables(Results(results), variant)
            tables.append(told.decisions_table(*pair))
        for table in () if voice.quiet else tables:
            _print(table)
            print()
        _print(told.totals_table(found))
    return PASS


def _rerun(claim: str, store: Path, results: Path, voice: Voice, **how: Any) -> int:
    """One claim's row from runs made anew, beside the committed one."""
    from faudit.report import ledger as told
    from faudit.studies import ledger
    from faudit.studies.claims import find

    about, variant = find(claim), how["variant"]
    place = ledger.again(about, store, variant=variant, device=how["device"])
    found = {"again": ledger.Ledger((ledger.rerun(about, place, **how),))}
    if results.is_dir():
        found["committed"] = ledger.status(results, claims=[about], variants=[variant])
    if voice.as_json:
        print(_json({name: one.to_dict() for name, one in found.items()}))
        return PASS
    for name, one in found.items():
        _print(replace(told.ledger_table(one), title=f"{claim}, {name}"))
    return PASS


@app.command
def template(
    *bundles: Path,
    form: Annotated[str, Parameter("--format", help="markdown or latex.")] = "markdown",
    voice: Voice = USUAL,
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
    print(_json({"format": form, "text": text}) if voice.as_json else text)
    return PASS


@app.command
def card(
    bundle: Path | None = None,
    *,
    schema: Annotated[bool, Parameter(negative="")] = False,
    out: Annotated[Path | None, Parameter(["--out", "-o"])] = None,
    voice: Voice = USUAL,
) -> int:
    """Write a run's audit card: one JSON that others can compare and verify.

    A card is JSON with or without `--json`, and follows the schema that `--schema` prints.

    Parameters
    ----------
    schema
        Print the JSON Schema that every card follows.
    out
        The file for the card; standard output by default.
    """
    from faudit.atomic import write
    from faudit.bundle import Bundle
    from faudit.report.card import make_card, schema_text

    if schema:
        print(schema_text(), end="")
        return PASS
    if bundle is None:
        raise FauditError("name a bundle: faudit card STORE/runs/DIGEST, or use --schema")
    text = make_card(Bundle.load(bundle)).to_json(indent=1)
    if out is None:
        print(text)
    else:
        write(out, text + "\n")
        if voice.as_json:
            print(_json({"card": str(out)}))
        elif not voice.quiet:
            print(f"Card: {out}")
    return PASS


@app.command
def verify(
    card: Path,
    bundle: Path,
    *,
    again: Annotated[bool, Parameter(negative="")] = False,
    voice: Voice = USUAL,
) -> int:
    """Recompute an audit card from a bundle; ends with 1 if a single value differs.

    Parameters
    ----------
    again
        Also measure the weights again, which needs the data.
    """
    from faudit.report.verification import verify as compare

    found = compare(card, bundle, again=again)
    if voice.as_json:
        print(_json(found.to_dict()))
    else:
        print(str(found).partition("\n")[0] if voice.quiet else found)
    return found.exit_code


@app.command
def pitfalls(*codes: str, seed: int = 0, voice: Voice = USUAL) -> int:
    """Reproduce the known pitfalls as small experiments: the wrong number beside the right one.

    Parameters
    ----------
    codes
        Only these; all twelve by default.
    """
    from faudit.pitfalls import reproduce as experiments

    found = experiments(codes or None, seed=seed)
    if voice.as_json:
        print(_json([pitfall.to_dict() for pitfall in found]))
    elif voice.quiet:
        print("\n".join(f"{p.code}: {p.wrong:.3g} wrong, {p.right:.3g} right" for p in found))
    else:
        print("\n\n".join(_reproduced(pitfall, voice.verbose) for pitfall in found))
    return PASS


@app.command
def lint(
    *paths: Path,
    form: Annotated[str, Parameter("--format", help="text, json or sarif.")] = "text",
    select: Annotated[list[str] | None, Parameter(negative="", consume_multiple=False)] = None,
    voice: Voice = USUAL,
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
    if voice.as_json or form != "text":
        print(render(found, "json" if voice.as_json else form))
    elif found or not voice.quiet:
        print(render(found))
    shown = found if voice.verbose and form == "text" and not voice.as_json else ()
    for code in dict.fromkeys(finding.pitfall for finding in shown if finding.pitfall):
        print(f"see it happen: faudit pitfalls {code}")
    return exit_code(found)


@app.command
def worker(store: Path, *, slots: int = 1, voice: Voice = USUAL) -> int:
    """Make runs that others asked for, until none is left; start as many as there are machines."""
    from faudit.studies.store import Store
    from faudit.studies.study import work

    place = Store(store)
    asked = place.wanted()
    made = work(place, slots=slots)
    if voice.as_json:
        print(_json({"made": made}))
    elif not voice.quiet:
        print(f"{made} run{'s' * (made != 1)} made")
    ends = [place.entry(digest).outcome for digest in asked]
    return PASS if all(end is not None and end.done for end in ends) else INCOMPLETE


def _judged(folders: Sequence[Path], again: bool, broken: list[str]) -> Iterator[Judged]:
    """Every method of the stores, then the bundles named singly, each with the baseline at hand.

    One of many that cannot be judged is added to ``broken``, and the others are.
    """
    from faudit.bundle import Bundle
    from faudit.report.dossier import namesakes, read

    stores = [folder for folder in folders if (folder / "runs").is_dir()]
    for store in stores:
        dossier = read(store)
        runs = (run for group in dossier.methods for run in group.runs if run.verdict)
        places = [store / "runs" / run.recipe.digest for run in runs]
        yield from _judged_beside(dossier, places, again, broken)
    named = [place for folder in folders if folder not in stores for place in _bundles_in(folder)]
    if named:
        bundles = [Bundle.load(place, tensors=False) for place in named]
        broken += map(str, namesakes(bundles))
        yield from _judged_beside(read(bundles), named, again, broken)


def _bundles_in(folder: Path) -> list[Path]:
    """A bundle, or those that lie in a folder of bundles."""
    inside = sorted(path.parent for path in folder.glob("*/manifest.json"))
    return inside if inside and not (folder / "manifest.json").exists() else [folder]


def _judged_beside(
    dossier: Dossier, places: Sequence[Path], again: bool, broken: list[str]
) -> Iterator[Judged]:
    """The verdicts on some bundles; baselines are those that the report would take too."""
    from faudit.bundle import Bundle
    from faudit.studies.judging import judge_bundle
    from faudit.studies.runner import measure_again

    runs = {run.recipe.digest: run for group in dossier.groups for run in group.runs}
    for place in places:
        bundle = Bundle.load(place)
        run = runs[bundle.recipe.digest]
        try:
            found = measure_again(bundle) if again and bundle.outcome.done else bundle
        except FauditError as error:
            if len(places) == 1:
                raise
            broken.append(f"{bundle.recipe.digest}: {error}")
            continue
        held = replace(found, baseline=found.baseline or run.baseline)
        yield judge_bundle(held, bp_accuracy=run.bp_accuracy)


def _broken(folder: Path) -> list[str]:
    """The runs of a store that left nothing to judge; they do not pass."""
    from faudit.report.dossier import read

    groups = read(folder).methods if (folder / "runs").is_dir() else ()
    runs = [run for group in groups for run in group.runs if run.verdict is None]
    return [f"{run.recipe.digest}: {run.standing}" for run in runs]


def _reproduced(pitfall: Pitfall, verbose: bool) -> str:
    more = [f"  {name}: {value:.3g}" for name, value in pitfall.details.items()] if verbose else []
    return "\n".join([str(pitfall), *more, *([f"  {pitfall.anchor}"] if verbose else [])])


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


def _board(voice: Voice) -> Any:
    from faudit.studies.progress import board

    return board(quiet=voice.quiet or voice.as_json)


def _train_and_judge(recipes: list[Recipe], store: Path, voice: Voice) -> list[Judged]:
    from faudit.studies.judging import judge_store
    from faudit.studies.runner import check
    from faudit.studies.study import plan
    from faudit.studies.study import train as train_all

    check(run.recipe for run in plan(recipes, store).todo)
    summary = train_all(recipes, store, show=_board(voice))
    return list(judge_store(summary.store, recipes))


def _show(judged: Sequence[Judged], voice: Voice, *, explain: bool = False) -> None:
    if voice.as_json:
        print(_json([_plain(one) for one in judged]))
        return
    if judged:
        _brief([one.bundle for one in judged], reasons=not voice.quiet)
    else:
        print("No run left anything to judge.")
    for one in judged if explain else ():
        print(f"\n{one.bundle.recipe.digest}: {one.verdict.explain()}")


def _brief(bundles: Sequence[Bundle], reasons: bool) -> None:
    """The verdict table in the width of a terminal, and below it why each verdict is what it is."""
    from faudit.report.dossier import read
    from faudit.report.tables import BRIEF, verdict_table

    table = verdict_table(read(bundles).methods)
    if not len(table):
        return
    _print(table.only("method", *BRIEF))
    why = zip(table.column("method"), table.column("what decided"), strict=True)
    if reasons:
        print("", *(f"{method}: {reason}" for method, reason in why), sep="\n")


def _print(table: Table) -> None:
    """In colour on a terminal, as plain text anywhere else."""
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        from rich.console import Console

        Console().print(table.to_rich())
    else:
        print(table.to_text())


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
