"""The published tables replay where torch cannot be imported at all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLES = {
    "test_ablation.py": ("table_4_of_the_paper", "table_5_of_the_paper", "table_1_of_the_draft",
                         "table_2_of_the_draft"),
    "test_diagnosis.py": ("table_6_of_the_paper", "table_1_of_the_paper"),
}  # fmt: skip
REPLAY = """
import sys
sys.modules["torch"] = None  # any import of it fails from here on
import pytest
code = pytest.main(sys.argv[1:])
assert sys.modules["torch"] is None
sys.exit(code)
"""


def test_the_tables_replay_in_a_process_without_torch() -> None:
    wanted = [name for names in TABLES.values() for name in names]
    files = [str(Path(__file__).with_name(name)) for name in TABLES]
    options = ["-o", "addopts=", "--noconftest", "-v", "-p", "no:cacheprovider", "-p", "no:xdist"]
    call = [sys.executable, "-c", REPLAY, *options, "-k", " or ".join(wanted), *files]
    done = subprocess.run(call, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in wanted:
        assert f"{name}[" in done.stdout or f"{name} PASSED" in done.stdout, name
