"""The command line: usage, exit codes, speed of help, one whole audit in small."""

from __future__ import annotations

import io
import json
import resource
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from faudit import cli
from faudit.studies.engines import Inline
from faudit.studies.progress import Silent
from faudit.studies.study import train
from tests.report import samples
from tests.studies.tools import tiny

RESULTS = Path(__file__).parent.parent / "results"
TINY = (
    "data.train_limit=256",
    "data.test_limit=128",
    "training.epochs=1",
    "network.options.width=16",
    "network.options.depth=2",
    "measuring.samples=64",
)
SETS = [word for assignment in TINY for word in ("--set", assignment)]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "faudit.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "faudit"]
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "faudit COMMAND" in done.stdout
    done = subprocess.run([*command, "adit"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def cpu_seconds(code: str) -> float:
    """What a Python process costs, however busy the machine is with others."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_is_quick_and_does_not_import_torch() -> None:
    helped = "import sys; from faudit import cli; cli.main(['--help'])"
    own = f"{helped}; sys.exit('torch' in sys.modules)"
    assert min(cpu_seconds(own) for _ in range(3)) < 0.3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["adit"], 'Did you mean "audit"'),
        (["audit", "--sed", "1"], "--seed"),
        (["audit", "--seed", "one"], "seed"),
        (["audit", "--set", "rule.nme=fa"], "did you mean 'rule.name'"),
        (["audit", "--set", "network.options.width=0"], "width"),
        (["train"], "name a recipe file or a study"),
        (["train", "frist"], "did you mean 'first'"),
        (["train", "no/such/recipe.toml"], "no/such/recipe.toml"),
        (["train", "first", "--engine", "locl"], "did you mean 'local'"),
        (["train", "first", "--slots", "0"], "slots must be at least 1, not 0"),
        (["train", "first", "--slots", "-1", "--dry-run"], "slots must be at least 1, not -1"),
        (["train", "first", "--engine", "ray", "--slots", "0"], "workers must be at least 1"),
        (["train", "first", "--engine", "slurm", "--slots", "0"], "workers must be at least 1"),
        (["train", "first", "--dry-run", "--set", "rule.name=dfaa"], "did you mean 'dfa'"),
        (["train", "first", "--dry-run", "--store", __file__], "which is a file"),
        (["train", "first", "--track", "wanbd"], "did you mean 'wandb'"),
        (["train", "first", "--set", "device=cuda:9"], "device 'cuda:9' is not here"),
        (["train", "first", "--set", "data.name=cifar"], "unknown data set"),
        (["train", "first", "--set", "rule.name=dfaa"], "did you mean 'dfa'"),
        (["train", "first", "--set", "network.options.skip=False"], "skip must be true or false"),
        (["audit", "--set", "rule=ep", "--set", "rule.options.steps=2.5"], "steps must be a whole"),
        (["audit", "--set", "rule=bp", "--set", "rule.options.scale=2"], "'scale'. Known: none"),
        (["measure"], "name at least one bundle"),
        (["reproduce"], "name what to reproduce"),
        (["reproduce", "t9"], "t9"),
        (["reproduce", "--status", "--results", str(RESULTS), "t11"], "did you mean 't1'"),
        (["reproduce", "--rerun", "t1-bp-acuracy"], "did you mean 't1-bp-accuracy'"),
        (["report", "nowhere"], "there is no folder nowhere"),
        (["card", "nowhere"], "nowhere is not a bundle"),
        (["verify", "nowhere.json", "nowhere"], "cannot read the card nowhere.json"),
        (["template", "--format", "latx"], "did you mean 'latex'"),
        (["pitfalls", "cosine-clmp"], "did you mean 'cosine-clamp'"),
        (["lint", "nowhere.py"], "nowhere.py"),
        (["worker", "nowhere"], "there is no store at nowhere"),
        (["measure", "nowhere"], "nowhere is not a bundle"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([*arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.startswith("faudit: ")
    assert error.count("\n") == 1


def test_colours_are_for_terminals_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from faudit.report.cells import Mark
    from faudit.report.table import Table

    table = Table("t", ("method", "verdict"), (("DFA", Mark("FAIL(D1+D2+D3)", "bad")),))

    def printed(terminal: bool) -> str:
        out = io.StringIO()
        monkeypatch.setattr(out, "isatty", lambda: terminal, raising=False)
        monkeypatch.setattr(sys, "stdout", out)
        cli._print(table)
        monkeypatch.undo()
        return out.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    coloured, piped = printed(terminal=True), printed(terminal=False)
    assert "\x1b[1;31mFAIL(D1+D2+D3)" in coloured
    assert "\x1b" not in piped
    assert "FAIL(D1+D2+D3)" in piped
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in printed(terminal=True)


def test_every_verb_takes_json_quiet_and_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    verbs = [name for name in cli.app if not name.startswith("-")]
    assert len(verbs) == 11
    for verb in verbs:
        assert cli.main([verb, "--help"]) == 0
        helped = capsys.readouterr().out
        assert all(flag in helped for flag in ("--json", "--quiet", "--verbose")), verb


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store whose runs are already made."""
    folder = tmp_path_factory.mktemp("place")
    made = [samples.recipe(rule, epochs=3, blocks=b) for rule in ("bp", "dfa") for b in (None, 0)]
    samples.store(folder / "store", [*map(samples.bundle, made)])
    (folder / "bad.py").write_text("size = grads[-1].norm(-1)\n")
    digest = made[0].digest
    assert (
        cli.main(["card", str(folder / "store/runs" / digest), "-o", str(folder / "card.json")])
        == 0
    )
    (folder / "bundle").symlink_to(folder / "store/runs" / digest)
    return folder


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("train first --dry-run", 0),
        ("measure store --no-again", 1),
        ("report store", 0),
        (f"reproduce --status --results {RESULTS}", 0),
        ("template bundle", 0),
        ("card bundle", 0),
        ("card --schema", 0),
        ("verify card.json bundle", 0),
        ("pitfalls norm-minus-one", 0),
        ("lint bad.py", 1),
        ("worker store", 0),
    ],
)
def test_json_is_all_that_a_verb_prints(
    line: str,
    code: int,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(place)
    assert cli.main([*line.split(), "--json"]) == code
    assert json.loads(capsys.readouterr().out) is not None
    assert cli.main([*line.split(), "--quiet"]) == code
    brief = capsys.readouterr().out
    assert cli.main([*line.split(), "--verbose"]) == code
    assert len(brief) <= len(capsys.readouterr().out)


def test_an_unexpected_error_is_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("faudit.pitfalls.reproduce", broken)
    assert cli.main(["pitfalls"]) == 3
    told = capsys.readouterr().err
    assert told.startswith("faudit: unexpected ZeroDivisionError: division by zero; run it again")
    assert told.count("\n") == 1
    with pytest.raises(ZeroDivisionError):
        cli.main(["pitfalls", "--debug"])


def test_a_place_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    bundles = [samples.bundle(samples.recipe("bp", epochs=3))]
    store = samples.store(tmp_path / "store", bundles)
    assert cli.main(["report", str(store), "--out", str(tmp_path / "file" / "x")]) == 2
    told = capsys.readouterr().err
    assert str(tmp_path / "file" / "x") in told
    assert told.count("\n") == 1


def test_a_status_can_be_asked_for_by_study(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["reproduce", "--status", "t4", "t6", "--results", str(RESULTS), "--json"]
    assert cli.main(line) == 0
    told = json.loads(capsys.readouterr().out)
    assert {row["id"].partition("-")[0] for row in told["rows"]} == {"t4", "t6"}


def test_a_status_sets_the_decision_tables_beside_the_published_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for names, there in ((["t5"], True), (["t6"], False), ([], True)):
        assert cli.main(["reproduce", "--status", *names, "--results", str(RESULTS)]) == 0
        told = capsys.readouterr().out
        assert ("Decision utility, published / ours" in told) is there
        assert ("pass / pass" in told) is there


def test_a_reader_who_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m faudit.cli card --schema | head -c 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True,
                          timeout=120, check=False)  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "{", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete_the_verbs(shell: str) -> None:
    script = cli.app.generate_completion(shell=shell)
    assert all(verb in script for verb in ("audit", "reproduce", "--store"))


@pytest.mark.parametrize(
    ("frozen_accuracy", "code"), [(0.349, 0), (0.65, 1), (None, 3)], ids=["pass", "fail", "open"]
)
def test_the_exit_code_is_the_verdict(
    frozen_accuracy: float | None, code: int, tmp_path: Path
) -> None:
    bundles = [samples.bundle(samples.recipe("bp", epochs=3))]
    if frozen_accuracy is not None:
        end = replace(samples.FROZEN, accuracy=frozen_accuracy)
        bundles.append(samples.bundle(samples.recipe("bp", epochs=3, blocks=0), end))
    store = samples.store(tmp_path / "store", bundles)
    assert cli.main(["measure", "--no-again", "--quiet", str(store)]) == code


def test_a_failure_outweighs_what_is_open(tmp_path: Path) -> None:
    made = [samples.recipe("bp", 1, epochs=3), samples.recipe("dfa", 2, epochs=3)]
    frozen = samples.bundle(samples.recipe("dfa", 2, epochs=3, blocks=0))
    store = samples.store(tmp_path / "store", [*map(samples.bundle, made), frozen])
    assert cli.main(["measure", "--no-again", "--quiet", str(store)]) == 1


def test_a_store_of_broken_runs_is_incomplete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = samples.failed(samples.recipe("dfa", epochs=3), "crash")
    store = samples.store(
        tmp_path / "store", [broken, samples.bundle(samples.recipe("bp", epochs=3))]
    )
    assert cli.main(["measure", "--no-again", str(store)]) == 3
    assert "FAILED(crash" in capsys.readouterr().out


def test_debug_shows_where_an_error_came_from(tmp_path: Path) -> None:
    done = run("measure", str(tmp_path / "nowhere"), "--debug")
    assert "Traceback" in done.stderr
    assert done.returncode != 0


def test_a_small_audit_from_the_shell_and_what_it_leaves(tmp_path: Path) -> None:
    store, report = tmp_path / "runs", tmp_path / "report"
    places = ["--store", str(store), "--report", str(report)]
    first = run("audit", *places, *SETS, "--json")
    assert first.returncode == 0, first.stderr
    judged = json.loads(first.stdout)
    assert [one["recipe"]["rule"]["name"] for one in judged] == ["bp", "fa", "dfa"]
    assert all(one["verdict"].startswith(("PASS", "FAIL")) for one in judged)
    page = (report / "index.html").read_text(encoding="utf-8")
    assert "6 runs, 3 cases" in page
    assert "What the methods are held against" in page
    again = run("audit", *places, *SETS)
    assert "6 cached, 0 to run" in again.stderr + again.stdout
    assert str(report) in again.stdout
    assert "\x1b" not in again.stdout
    bundle = store / "runs" / judged[0]["digest"]
    one = run("measure", str(bundle), "--json")
    # Alone, the bundle knows no baseline: what was not evaluated does not pass.
    assert json.loads(one.stdout)[0]["verdict"].startswith(("INCOMPLETE", "FAIL", "PASS"))
    assert one.returncode in (0, 1, 3)


def test_an_audit_whose_runs_break_is_incomplete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--store", str(tmp_path / "runs"), "--report", str(tmp_path / "report")]
    broken = ["--set", "training.lr=1e30", "--set", "rule.name=bp"]
    assert cli.main(["audit", *places, *SETS, *broken, "--quiet"]) == 3
    assert "Report: " in capsys.readouterr().out
    assert "FAILED(" in (tmp_path / "report" / "index.html").read_text(encoding="utf-8")


def test_every_way_to_name_a_run_gives_its_one_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [samples.recipe("dfa", epochs=3, blocks=b) for b in (None, 0)]
    store = samples.store(tmp_path / "store", [*map(samples.bundle, made)])
    copy = shutil.copytree(store, tmp_path / "copy")
    runs = [str(folder / "runs" / recipe.digest) for folder in (store, copy) for recipe in made]
    found = []
    for named in ([str(store)], runs):
        cli.main(["measure", "--no-again", *named])
        text = capsys.readouterr().out
        table, told = text.split("\n\n")[1], text.partition(f"\n{made[0].digest}: ")[2]
        found.append(told.split()[0])
        assert told.split()[0] in table
    assert found[0] == found[1]
    assert text.count(f"\n{made[0].digest}: ") == 2


def test_a_dry_run_trains_nothing(tmp_path: Path) -> None:
    done = run("train", "first", "--dry-run", "--store", str(tmp_path / "runs"))
    assert done.returncode == 0
    assert "0 cached, 6 to run" in done.stdout
    assert not (tmp_path / "runs").exists()


def test_a_run_that_diverged_is_invalid_and_the_others_are_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [tiny(), tiny("training.lr=1e30")]
    store = train(runs, tmp_path / "runs", engine=Inline(), show=Silent()).store
    assert store.entry(runs[1].digest).outcome.reason == "non-finite"
    for words in (["--no-again"], []):
        assert cli.main(["measure", str(store.path), *words]) in (1, 3)
        told = capsys.readouterr().out
        assert f"{runs[1].digest}: INVALID" in told
        assert runs[0].digest in told
