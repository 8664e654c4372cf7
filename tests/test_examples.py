"""The notebook runs from top to bottom, and what is stored in it is what comes out."""

from __future__ import annotations

import ast
import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "examples").glob("*.ipynb"))


def run(source: str, space: dict[str, Any], name: str) -> Any:
    """Run a cell as a notebook does; the value of its last line, if that is an expression."""
    tree = ast.parse(source, name)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), space)
    return None if last is None else eval(compile(ast.Expression(last.value), name, "eval"), space)


def shown(value: Any) -> dict[str, str]:
    """The forms in which a notebook would keep a value."""
    if value is None:
        return {}
    html = getattr(value, "_repr_html_", None)
    return {"text/plain": repr(value), **({"text/html": html()} if html else {})}


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs_and_shows_what_it_holds(
    notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cells = [
        c for c in json.loads(notebook.read_text("utf-8"))["cells"] if c["cell_type"] == "code"
    ]
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    space: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells, 1):
        out = StringIO()
        with monkeypatch.context() as patch:
            patch.setattr("sys.stdout", out)
            value = run("".join(cell["source"]), space, f"{notebook.name}[{number}]")
        kept = {o["output_type"]: o.get("data", {}) for o in cell["outputs"]}
        printed = [o for o in cell["outputs"] if o["output_type"] == "stream"]
        assert "".join("".join(o["text"]) for o in printed) == out.getvalue()
        assert kept.get("execute_result", {}).keys() == shown(value).keys()
        assert "error" not in kept


def test_there_is_a_notebook_with_tables_and_figures() -> None:
    (notebook,) = NOTEBOOKS
    text = notebook.read_text(encoding="utf-8")
    assert text.count('"text/html"') >= 6
    assert "<svg" in text
    assert "FAIL(" in text
    assert "/tmp" not in text
    assert len(text) < 500_000


def test_a_cell_that_fails_is_seen() -> None:
    assert run("x = 2\nx + 1", {}, "cell") == 3
    with pytest.raises(ZeroDivisionError):
        run("1 / 0", {}, "cell")
