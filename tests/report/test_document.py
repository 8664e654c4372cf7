"""The report as files: complete, offline, small, and the same function of the same bundles."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings

from faudit.errors import FauditError
from faudit.recipe import Named
from faudit.report import control, document, escape, write_report
from faudit.report.contents import all_tables, slug
from faudit.report.dossier import Dossier, read
from faudit.studies.ledger import NOT_REPRODUCED, REPRODUCED
from tests.report import samples
from tests.report.samples import bundle, recipe
from tests.report.test_escape import HOSTILE, TEXT

SECTIONS = ["verdicts", "layers", "training", "penalty", "null", "decisions", "thresholds",
            "walkback", "flags", "provenance"]  # fmt: skip


class Page(HTMLParser):
    """What a page is made of."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.unbalanced: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "input", "br", "link", "img"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.unbalanced.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def parsed(page: Path) -> Page:
    return Page(page.read_text(encoding="utf-8"))


def test_the_page_answers_in_the_declared_order(parsed: Page) -> None:
    assert [a["id"] for tag, a in parsed.tags if tag == "section"] == SECTIONS
    links = [a["href"] for tag, a in parsed.tags if tag == "a"]
    assert [link for link in links if link in {f"#{s}" for s in SECTIONS}][1:] == [
        f"#{s}" for s in SECTIONS
    ]


def test_runs_of_published_claims_stand_beside_what_was_published(tmp_path: Path) -> None:
    dossier = read(samples.audit())
    assert dossier.claims is not None
    assert {row.standing for row in dossier.claims.rows} >= {REPRODUCED, NOT_REPRODUCED}
    claims = all_tables(dossier)["claims"]
    page = write_report(samples.audit(), tmp_path, formats=()).read_text(encoding="utf-8")
    assert "Published claims" in page
    assert all(f"{row[1]}<" in page for row in claims.rows)


def test_other_runs_say_nothing_of_published_claims(tmp_path: Path) -> None:
    bundles = [bundle(recipe("bp", epochs=7))]
    assert read(bundles).claims is None
    page = write_report(bundles, tmp_path, formats=()).read_text(encoding="utf-8")
    assert "Published claims" not in page


def test_the_page_is_balanced_and_its_ids_are_unique(parsed: Page) -> None:
    assert parsed.unbalanced == []
    assert parsed.open == []
    ids = [a["id"] for _, a in parsed.tags if "id" in a]
    assert len(ids) == len(set(ids))


def test_nothing_in_the_page_comes_from_elsewhere(parsed: Page) -> None:
    for tag, attrs in parsed.tags:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base"}
        assert "src" not in attrs
        assert not any(name.startswith("on") for name in attrs)
        for name in ("href", "action", "formaction"):
            assert (attrs.get(name) or "#").startswith("#")


def test_the_policy_allows_one_script_by_its_hash_and_no_network(page: Path, parsed: Page) -> None:
    text = page.read_text(encoding="utf-8")
    (policy,) = [a["content"] for t, a in parsed.tags if a.get("http-equiv")]
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}';"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )
    assert "url(" not in re.sub(r"url\(#", "", text)


def test_tables_come_in_three_formats_and_figures_in_those_asked_for(page: Path) -> None:
    tables = {p.name for p in (page.parent / "tables").iterdir()}
    stems = {name.partition(".")[0] for name in tables}
    assert {"verdicts", "layers", "decisions", "checks", "sensitivity", "null", "flags", "problems",
            "provenance", "runs", "penalty"} <= stems  # fmt: skip
    assert tables == {f"{stem}.{e}" for stem in stems for e in ("md", "tex", "csv")}
    assert {p.suffix for p in (page.parent / "figures").iterdir()} == {".svg"}


def test_the_same_bundles_give_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    bundles = samples.patchy(4)
    one = write_report(bundles, tmp_path / "a", formats=["svg"]).parent
    two = write_report(bundles[::-1], tmp_path / "b", formats=["svg"]).parent
    names = sorted(p.relative_to(one) for p in one.rglob("*") if p.is_file())
    assert names == sorted(p.relative_to(two) for p in two.rglob("*") if p.is_file())
    for name in names:
        assert (one / name).read_bytes() == (two / name).read_bytes(), name


def test_a_report_of_125_runs_stays_under_two_megabytes(tmp_path: Path) -> None:
    bundles = samples.everything()
    assert len(bundles) == 125
    page = write_report(bundles, tmp_path, formats=())
    assert page.stat().st_size < 2_000_000
    found = Page(page.read_text(encoding="utf-8"))
    assert found.unbalanced == []
    folded = [line for line in found.text.splitlines() if " more: " in line]
    assert len(folded) == 3  # of what is usually reported, of layers, of training


def test_a_search_among_variants_stays_under_two_megabytes_too(tmp_path: Path) -> None:
    tried = [
        bundle(
            recipe(rule, epochs=30).changed({"rule": Named(name=rule, options={"scale": scale})})
        )
        for rule in ("fa", "dfa")
        for scale in (float(number) for number in range(2, 42))
    ]
    page = write_report([*samples.everything()[:80], *tried], tmp_path, formats=())
    assert page.stat().st_size < 2_000_000


def test_figures_that_the_page_leaves_to_the_folder_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document, "DRAWN", 1)
    made = [bundle(recipe(rule, epochs=n)) for rule in ("bp", "dfa") for n in (3, 4)]
    page = write_report(made, tmp_path, formats=("svg",)).read_text(encoding="utf-8")
    named = re.findall(r"<code>figures/([^<]+)</code>", page)
    assert [re.sub(r"-\d.*", "", name) for name in named] == [
        *("reporting-pair", "cross-architecture", "per-layer", "trajectories", "controls"),
    ]
    assert all((tmp_path / "figures" / f"{name}.svg").is_file() for name in named)
    assert len(re.findall(r"[12] more beside this page: ", page)) == 4


def test_gaps_are_said_before_the_numbers(page: Path) -> None:
    text = Page(page.read_text(encoding="utf-8")).text
    assert text.index("Read this first.") < text.index("Method by diagnostics")
    assert "no frozen-blocks run for seed" in text
    assert "FAILED(oom" in text
    assert "INVALID(non-finite h_3)" in text


def test_a_study_without_penalties_or_nulls_says_so(tmp_path: Path) -> None:
    page = write_report([bundle(recipe("bp", epochs=3))], tmp_path, formats=())
    text = Page(page.read_text(encoding="utf-8")).text
    assert "No method here was trained under more than one penalty" in text
    assert "No null was measured" in text
    assert "INCOMPLETE(D3)" in text


def test_a_store_where_everything_failed_still_has_a_report(tmp_path: Path) -> None:
    bundles = [samples.failed(recipe("dfa", s, epochs=3), "crash", layer=None) for s in (1, 2)]
    page = write_report(bundles, tmp_path, formats=("svg",))
    assert "FAILED(crash" in page.read_text(encoding="utf-8")


def test_a_store_that_cannot_be_written_is_reported_on(tmp_path: Path) -> None:
    store = samples.store(tmp_path / "store", samples.patchy(3)[:3])
    before = {p: p.read_bytes() for p in store.rglob("*") if p.is_file()}
    for path in (*store.rglob("*"), store):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert write_report(store, tmp_path / "report", formats=()).is_file()
    finally:
        for path in (store, *store.rglob("*")):
            path.chmod(0o755)
    assert {p: p.read_bytes() for p in store.rglob("*") if p.is_file()} == before


def test_a_figure_format_that_is_unknown_is_named(tmp_path: Path) -> None:
    with pytest.raises(FauditError, match="did you mean 'svg'"):
        write_report([bundle(recipe("bp", epochs=3))], tmp_path, formats=["svgg"])


def test_no_torch_and_no_pyplot_are_imported(tmp_path: Path) -> None:
    store = samples.store(tmp_path / "store", [bundle(recipe("dfa", epochs=3))])
    script = f"""
        import sys
        class NoTorch:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in ("torch", "safetensors"):
                    raise ImportError(name)
        sys.meta_path.insert(0, NoTorch())
        from faudit.report import write_report
        write_report({str(store)!r}, {str(tmp_path / "report")!r}, formats=())
        assert "matplotlib.pyplot" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)


# -- names that would like to act -----------------------------------------------------------------


def hostile(name: str) -> list:  # type: ignore[type-arg]
    """A run in which everything that can be named is called ``name``."""
    named = name or "x"
    network = Named(name=named, options={"depth": 2, named: named})
    made = bundle(recipe("dfa", epochs=2, network=network).changed({"data.name": named}))
    assert made.evidence is not None
    facts = made.evidence.replace(
        undefined={"nudging[0]": named}, nudging=(float("nan"), 0.1, 0.1),
        facts={"buffers_changed": named, "zero_credit_layers": named},
        cosine_aggregates={named: 0.9, "x": -0.9},
    )  # fmt: skip
    manifest = samples.manifest(made.recipe, machine=named, versions={"torch": named}, code=named)
    broken = samples.failed(
        recipe("fa", epochs=2, network=network), "crash", message=named, layer=named
    )
    mine = replace(made, recipe=made.recipe.changed({"rule.name": named, "seed": 7}))
    return [replace(made, evidence=facts, manifest=manifest), broken, mine]


@given(TEXT)
@settings(max_examples=3)
def test_hostile_names_reach_the_page_only_as_text(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    check_hostile(tmp_path_factory.mktemp("hostile"), name)


@pytest.mark.parametrize("name", [HOSTILE[0], HOSTILE[9], "</script><script>alert(1)</script>"])
def test_the_worst_names_reach_the_page_only_as_text(tmp_path: Path, name: str) -> None:
    check_hostile(tmp_path, name)


def check_hostile(folder: Path, name: str) -> None:
    """The page has the elements it always has, and the files' names are plain."""
    page = write_report(hostile(name), folder, formats=("svg",))
    text = page.read_text(encoding="utf-8")
    found = Page(text)
    assert [tag for tag, _ in found.tags if tag == "script"] == ["script", "script"]
    assert found.unbalanced == []
    assert not any(key.startswith("on") for _, attrs in found.tags for key in attrs)
    assert escape.plain(name).strip() in found.text
    assert all(c.isprintable() or c in "\n\N{NO-BREAK SPACE}" for c in found.text)
    for path in folder.rglob("*"):
        assert re.fullmatch(r"[a-z0-9.-]+", path.name), path.name


def test_a_name_never_becomes_a_path() -> None:
    assert slug("../../etc/passwd\0") == "etc-passwd"
    assert slug("漢字") == "setting"


# -- the control's numbers ------------------------------------------------------------------------


def test_the_embedded_numbers_give_the_published_verdicts(small: Dossier) -> None:
    verdicts = control.moved(small.methods, 50.0, 10.0, 2.0)
    assert verdicts == [group.verdict for group in small.methods]


def test_embedded_numbers_are_strict_json(small: Dossier) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    found = json.loads(control.embedded(small.methods), parse_constant=refuse)
    assert len(found["groups"]) == len(small.methods)


def test_an_infinite_growth_still_flags() -> None:
    made = bundle(recipe("dfa", epochs=3))
    assert made.evidence is not None
    growth = (float("inf"), *made.evidence.growth[1:])
    (group,) = read([replace(made, evidence=made.evidence.replace(growth=growth))]).methods
    (numbers,) = control.payload([group])["groups"][0]
    assert numbers["growth"] == sys.float_info.max


# -- LaTeX ----------------------------------------------------------------------------------------


@pytest.mark.skipif(
    shutil.which("pdflatex") is None,
    reason="needs pdflatex: apt-get install -y --no-install-recommends"
    " texlive-latex-base texlive-latex-recommended",
)
def test_every_table_compiles_with_booktabs(tmp_path: Path, small: Dossier) -> None:
    tables = [*all_tables(small).values()]
    for name in HOSTILE:
        named = all_tables(read(hostile(name)))
        tables += [named["verdicts"], *([named["flags"]] if "flags" in named else [])]
    body = "\n".join(table.to_latex() + r"\clearpage" for table in tables)
    document = (
        r"\documentclass{article}\usepackage{booktabs}\usepackage[landscape]{geometry}"
        rf"\begin{{document}}{body}\end{{document}}"
    )
    (tmp_path / "all.tex").write_text(document)
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={**os.environ, "openin_any": "p", "openout_any": "p"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert (tmp_path / "all.pdf").stat().st_size > 10_000
