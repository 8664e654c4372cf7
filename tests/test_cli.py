"""The command line: usage, exit codes, speed of help, one whole audit in small."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from faudit import cli

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
        (["audit", "--set", "rule.nme=fa"], "did you mean 'name'"),
        (["audit", "--set", "network.options.width=0"], "width"),
        (["train"], "name a recipe file or a study"),
        (["train", "frist"], "did you mean 'first'"),
        (["train", "no/such/recipe.toml"], "no/such/recipe.toml"),
        (["train", "first", "--engine", "locl"], "did you mean 'local'"),
        (["train", "first", "--set", "data.name=cifar"], "unknown data set"),
        (["train", "first", "--set", "rule.name=dfaa"], "did you mean 'dfa'"),
        (["measure"], "name at least one bundle"),
        (["reproduce"], "name what to reproduce"),
        (["reproduce", "t9"], "t9"),
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
    assert (report / "index.html").exists()
    again = run("audit", *places, *SETS)
    assert "6 cached, 0 to run" in again.stderr + again.stdout
    assert str(report) in again.stdout
    assert "\x1b" not in again.stdout
    bundle = store / "runs" / judged[0]["digest"]
    one = run("measure", str(bundle), "--json")
    # Alone, the bundle knows no baseline: what was not evaluated does not pass.
    assert json.loads(one.stdout)[0]["verdict"].startswith(("INCOMPLETE", "FAIL", "PASS"))
    assert one.returncode in (0, 1, 3)


def test_a_dry_run_trains_nothing(tmp_path: Path) -> None:
    done = run("train", "first", "--dry-run", "--store", str(tmp_path / "runs"))
    assert done.returncode == 0
    assert "0 cached, 6 to run" in done.stdout
    assert not (tmp_path / "runs").exists()
