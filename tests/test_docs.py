"""The documents run: every Python block of a file, in order, in one namespace of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [page for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))) if page.exists()]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[tuple[int, str]]:
    """Every Python block with the line it starts on."""
    return [(text[: m.start(1)].count("\n"), m[1]) for m in BLOCK.finditer(text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from faudit.rules import RULES

    monkeypatch.chdir(tmp_path)  # what a block writes must not land in the project
    known = dict(RULES)
    space: dict[str, object] = {"__name__": "__main__"}
    try:
        for line, source in blocks(page.read_text(encoding="utf-8")):
            # Blank lines in front make a traceback point at the page's own line.
            exec(compile("\n" * line + source, str(page), "exec"), space)
    finally:
        RULES.clear()
        RULES.update(known)


def test_a_block_knows_its_line() -> None:
    text = "a\n```python\nx = 1\n```\nb\n```bash\nls\n```\n```python\nx += 1\n\nx\n```\n"
    assert blocks(text) == [(2, "x = 1\n"), (9, "x += 1\n\nx\n")]
