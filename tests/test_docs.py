"""The documents run: Python in one namespace per page, shell lines in a folder with runs."""

from __future__ import annotations

import re
import shlex
import shutil
import tomllib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from faudit import cli, plugins
from faudit.errors import FauditError
from faudit.recipe import Recipe
from faudit.studies.claims import find
from faudit.studies.engines import Local
from faudit.studies.ledger import needed
from faudit.studies.results import Results
from tests.report import samples

ROOT = Path(__file__).parent.parent
PAGES = [page for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))) if page.exists()]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
KINDS = {"python", "bash", "toml", "pycon"}


def blocks(text: str, kind: str) -> list[tuple[int, str]]:
    """Every block of a kind with the line it starts on."""
    found = BLOCK.finditer(text)
    return [(text[: m.start(2)].count("\n"), m[2]) for m in found if m[1] == kind]


def commands(page: Path) -> list[str]:
    """Every shell line, fenced or indented, without its comment."""
    text = page.read_text(encoding="utf-8")
    lines = [line for _, block in blocks(text, "bash") for line in block.splitlines()]
    lines += re.findall(r"^    ((?:faudit|make) .*)$", text, re.MULTILINE)
    return [line.partition("#")[0].strip() for line in lines if line.partition("#")[0].strip()]


SHELL = [(name, line) for name, page in zip(NAMES, PAGES, strict=True) for line in commands(page)]
# These train for hours on data that is not there; that they are understood is all that is tried.
LONG = re.compile(r"faudit reproduce (?!--status)")


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_the_python_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from faudit.rules import RULES

    monkeypatch.chdir(tmp_path)  # what a block writes must not land in the project
    known = dict(RULES)
    space: dict[str, object] = {"__name__": "__main__"}
    try:
        for line, source in blocks(page.read_text(encoding="utf-8"), "python"):
            # Blank lines in front make a traceback point at the page's own line.
            exec(compile("\n" * line + source, str(page), "exec"), space)
    finally:
        RULES.clear()
        RULES.update(known)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like a user's: a store with the first audit's runs, and the card of one.

    Lines of one page may run in different processes, so none can wait for what another makes.
    """
    from faudit.studies.audits import first

    folder = tmp_path_factory.mktemp("shell")
    samples.store(folder / "faudit-runs", [samples.bundle(recipe) for recipe in first()])
    shutil.copytree(ROOT / "results", folder / "results")
    (folder / "run.toml").write_text('[rule]\nname = "dfa"\n')
    assert cli.main(["card", str(first_run(folder)), "--out", str(folder / "card.json")]) == 0
    return folder


def first_run(folder: Path) -> Path:
    """What DIGEST stands for in a page."""
    return min((folder / "faudit-runs" / "runs").iterdir())


@pytest.mark.parametrize(("page", "line"), SHELL, ids=[f"{page}: {line}" for page, line in SHELL])
def test_the_shell_lines_of_a_page_run(
    page: str, line: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    program, *words = shlex.split(line)
    if program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return
    assert program == "faudit", f"{page} runs {program}, and this test does not know how to"
    if "--engine" in words:  # there is no cluster here; the verb and all its words are tried
        monkeypatch.setattr(cli, "_engine", lambda name, slots: Local(slots=slots))
    words = [
        w.replace("/shared/runs", "faudit-runs").replace("DIGEST", first_run(place).name)
        for w in words
    ]
    for _, source in blocks((ROOT / page).read_text(encoding="utf-8"), "toml"):
        if "own.toml" in words and not source.startswith("# pyproject.toml"):
            (place / "own.toml").write_text(source)
    if LONG.match(line):
        cli.app.parse_args(words, print_error=False, exit_on_error=False)
    else:
        assert cli.main(words) in (0, 1), line


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_the_recipes_of_a_page_are_recipes(page: Path, tmp_path: Path) -> None:
    for _, source in blocks(page.read_text(encoding="utf-8"), "toml"):
        if source.startswith("# pyproject.toml"):
            offered = tomllib.loads(source)["project"]["entry-points"]
            assert set(offered) <= {plugins.RULES, plugins.NETWORKS, plugins.DATA}
            continue
        (tmp_path / "run.toml").write_text(source)
        assert Recipe.load(tmp_path / "run.toml").digest != Recipe().digest


@pytest.mark.skipif(not (ROOT / "results").is_dir(), reason="an installed package")
def test_the_documented_recipe_of_backpropagation_has_its_published_accuracy(
    tmp_path: Path,
) -> None:
    page = (ROOT / "docs" / "first-audit.md").read_text(encoding="utf-8")
    ((_, source),) = blocks(page, "toml")
    (tmp_path / "bp.toml").write_text(source)
    recipe = Recipe.load(tmp_path / "bp.toml")
    assert (recipe.rule.name, recipe.data.name, recipe.seed) == ("bp", "cifar10", 42)
    assert recipe in needed(find("f6-bp-0-accuracy"))
    found = Results(ROOT / "results")[recipe].outcome
    assert found.accuracy == pytest.approx(0.585, abs=0.01)
    assert found.tests == 10_000


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_block_says_what_it_is(page: Path) -> None:
    assert {kind for kind, _ in BLOCK.findall(page.read_text(encoding="utf-8"))} <= KINDS


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        place, _, anchor = target.partition("#")
        if "://" in target:
            continue
        found = page.parent / place if place else page
        assert found.exists(), f"{target} in {page.name}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", found.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages == {link for link in LINK.findall(index) if not link.startswith("..")}


def test_the_reference_is_what_the_docstrings_say() -> None:
    # Its examples are the docstrings' own, which pytest runs where they stand.
    tool = spec_from_file_location("make_api", ROOT / "tools" / "make_api.py")
    assert tool is not None
    assert tool.loader is not None
    module = module_from_spec(tool)
    tool.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), "run python tools/make_api.py"


def test_blocks_that_fail_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n```python\nx = 1\n```\nb\n```python\nassert x == 2\n```\n")
    assert blocks(page.read_text(), "python") == [(2, "x = 1\n"), (6, "assert x == 2\n")]
    with pytest.raises(AssertionError):
        test_the_python_of_a_page_runs(page, tmp_path, monkeypatch)
    page.write_text('```toml\n[rule]\nnme = "fa"\n```\n')
    with pytest.raises(FauditError):
        test_the_recipes_of_a_page_are_recipes(page, tmp_path)
