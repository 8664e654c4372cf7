"""Provenance: the code's fingerprint follows what the code does, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from faudit.provenance import HERE, NUMERIC, code_fingerprint, git_commit, sources


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for path in sources(HERE):
        target = tmp_path / path.relative_to(HERE)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return tmp_path


def edited(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))


MOVES_NUMBERS_ABOUT = {
    "__init__",
    "atomic",
    "bundle",
    "errors",
    "plugins",
    "provenance",
    "recipe",
    "studies.__init__",
    "studies.checkpoint",
    "studies.sizes",
    "tensors",
}


def test_every_room_that_can_change_a_number_is_watched() -> None:
    """Whatever a run imports is watched, or is known to change no number."""
    assert all((HERE / name).exists() for name in NUMERIC)
    code = "import sys, faudit.studies.runner as _; print(*(m.__file__ for n, m in sorted("
    code += "sys.modules.items()) if n.split('.')[0] == 'faudit'), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = set(map(Path, done.stdout.split("\n")[:-1])) - set(sources(HERE))
    names = {".".join(path.relative_to(HERE).with_suffix("").parts) for path in imported}
    assert names <= MOVES_NUMBERS_ABOUT


def test_the_same_code_elsewhere_has_the_same_fingerprint(tree: Path) -> None:
    assert code_fingerprint(tree) == code_fingerprint()


def test_comments_docstrings_and_layout_do_not_matter(tree: Path) -> None:
    edited(tree / "seeds.py", '"""One seed', '"""Another word for one seed')
    edited(tree / "seeds.py", "import numpy", "# a comment\n\n\nimport numpy")
    assert code_fingerprint(tree) == code_fingerprint()


def test_a_changed_number_matters(tree: Path) -> None:
    edited(tree / "seeds.py", ">> 1", ">> 2")
    assert code_fingerprint(tree) != code_fingerprint()


def test_a_new_module_matters(tree: Path) -> None:
    (tree / "rules" / "new.py").write_text("x = 1\n")
    assert code_fingerprint(tree) != code_fingerprint()


def test_a_commit_is_read_without_running_git(tmp_path: Path) -> None:
    assert git_commit(tmp_path) is None
    (tmp_path / "pyproject.toml").touch()
    git = tmp_path / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "packed-refs").write_text("# pack-refs\nabc123 refs/heads/main\n")
    assert git_commit(tmp_path) == "abc123"
    (git / "refs" / "heads" / "main").write_text("def456\n")
    assert git_commit(tmp_path) == "def456"
    (git / "HEAD").write_text("0a1b2c\n")
    assert git_commit(tmp_path) == "0a1b2c"
