"""The template: filled from runs, open where nothing is known, valid Markdown and LaTeX."""

from __future__ import annotations

import re
import shutil
import subprocess
from math import nan
from pathlib import Path

import pytest

from faudit.errors import FauditError
from faudit.measures.evidence import Evidence, NullCalibration
from faudit.protocol import Thresholds, diagnose
from faudit.recipe import Recipe
from faudit.report.card import AuditCard, Baseline, Data, Origin
from faudit.report.template import FORMATS, template

HOSTILE = r"net_1|<b> $x$ %&#~^{}\input{/etc/passwd} `*`[a](b)"


def card(
    seed: int = 42, *, frozen: float | None = 0.349, rule: str = "dfa", network: str = "resmlp"
) -> AuditCard:
    """The card of a run that never took place, with the published numbers."""
    evidence = Evidence(
        layers=2,
        samples=1024,
        state_norm=(9.1, 2.4e6, 4e8),
        growth=(237.0, 167.0),
        reference_norm=(5e-5, 3.1e-7, 6.4e-8),
        cosine=(0.42, 0.013, -0.002),
        cosine_clamped=(0.42, 0.004, nan),
        deep_cosine=0.0055,
        gamma=0.1437,
        nudging=(-1e-3, -2e-5, 3e-9),
        reference_angle=(0.01, 0.2, 0.35),
        null=NullCalibration(draws=20, mean=-0.005, std=0.018, value=0.166, z=9.5),
        accuracy=0.301,
    )
    recipe = Recipe(seed=seed).changed(
        {"rule.name": rule, "network.name": network, "training.epochs": 30}
    )
    verdict = diagnose(evidence, accuracy=0.306, frozen_accuracy=frozen)
    held = Baseline(digest="f" * 20, matched=True, accuracy=frozen, tests=10_000)
    return AuditCard(
        protocol=verdict.protocol,
        digest=recipe.digest,
        recipe=recipe,
        status="done(accuracy 0.3060, epoch 30)",
        verdict=str(verdict),
        findings=verdict.findings,
        flags=verdict.flags,
        thresholds=verdict.thresholds,
        accuracy=0.306,
        loss=2.1,
        baseline=None if frozen is None else held,
        evidence=evidence,
        data=Data(name="cifar10", digest="d" * 64, classes=10, shape=(3, 32, 32), tests=10_000),
        origin=Origin(
            files={"rule.safetensors": "a" * 64},
            versions={"faudit": "0.1.0"},
            code="c" * 12,
            commit=None,
            device="cpu",
            machine="CPU",
            threads=1,
        ),
    )


# -- what it says ---------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "told",
    [
        "seed 42",
        "FAIL(D1+D2+D3)",
        "0.306",
        "0.349",
        "-4.3",
        "237",
        "0.420",
        "+0.144",
        "1024 test examples",
        "float32",
        "30 epochs",
        "batch 128",
        "AdamW",
        "20 draws",
        "fffffffffff",
        "at most 0.35 degrees",
    ],
)
def test_a_filled_template_says(form: str, told: str) -> None:
    assert told in template(card(), form)


def test_a_filled_template_leaves_nothing_open() -> None:
    text = template(card())
    open_lines = [line for line in text.splitlines() if line.startswith("- [ ]")]
    assert open_lines == ["- [ ] Interval of D3 over test examples: TODO"]
    assert text.count("TODO") == 1


def test_every_layer_has_its_row() -> None:
    rows = re.findall(r"^\| (?:seed 42)? *\| (\d) +\| (.*)$", template(card()), re.MULTILINE)
    assert [row[0] for row in rows] == ["0", "1", "2"]
    assert "undefined" in rows[2][1]  # a NaN is a word, never a number
    assert "not measured" in rows[0][1]  # no perturbation correlation was taken


def test_an_empty_template_is_a_form() -> None:
    text = template()
    assert not re.search(r"^- \[x\]", text, re.MULTILINE)
    for what in ("network", "credit rule", "seeds", "dtype", "baseline recipe", "epochs"):
        assert f"TODO({what})" in text
    assert "above 50" in text
    assert "1e-07" in text


def test_a_run_without_baseline_leaves_d3_open() -> None:
    text = template(card(frozen=None))
    assert "TODO(D3)" in text
    assert "TODO(baseline recipe)" in text
    assert "- [ ] Baseline recipe: TODO" in text


def test_thresholds_are_the_ones_that_were_used() -> None:
    text = template(card().replace(thresholds=Thresholds(growth=77.0, reference_batch=64)))
    assert "above 77" in text
    assert "mean loss over 64 samples" in text


def test_a_baseline_that_is_not_matched_says_so() -> None:
    held = Baseline(digest="f" * 20, matched=False, accuracy=0.3, tests=10)
    text = template(card().replace(baseline=held))
    assert "another recipe" in text
    assert "(not matched)" in text


def test_unusual_choices_are_told_and_usual_ones_are_not() -> None:
    usual = template(card())
    assert "block_steps" not in usual
    unusual = card()
    unusual = unusual.replace(recipe=unusual.recipe.set("training.block_steps=3"))
    assert "block_steps 3" in template(unusual)


def test_a_rule_without_feedback_has_no_null_to_report() -> None:
    bare = card(rule="bp")
    text = template(bare.replace(evidence=bare.evidence.replace(null=None)))
    assert "- [x] Null with fresh feedback: does not apply to BP" in text


def test_seeds_stand_side_by_side_in_order() -> None:
    text = template([card(456), card(42), card(123)])
    assert "| seed 42" in text
    assert re.search(r"seed 42 +\| seed 123 +\| seed 456", text)
    assert "seeds 42, 123, 456" in text
    assert text.count("| seed 123") >= 2


def test_runs_of_different_settings_are_refused() -> None:
    with pytest.raises(FauditError, match="differ by more than their seed"):
        template([card(42), card(123, rule="fa")])


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(FauditError, match="unknown format 'latx'; did you mean 'latex'"):
        template(format="latx")


# -- what it may not do ---------------------------------------------------------------------------


def test_names_cannot_become_markdown() -> None:
    text = template(card(network=HOSTILE))
    assert "<b>" not in text
    assert "[a](b)" not in text
    assert r"\$x\$" in text
    assert r"\`\*\`" in text


def test_names_cannot_become_latex() -> None:
    text = template(card(network=HOSTILE), "latex")
    assert r"\input{" not in text
    assert r"\textbackslash{}input\{" in text
    check_latex(text)


def check_latex(text: str) -> None:
    """Braces and environments balance, and every row has its table's number of cells."""
    bare = re.sub(r"\\[\\{}&%$#_]", "", text)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    opened = re.findall(r"\\(begin|end)\{(\w+)\}", text)
    stack: list[str] = []
    for kind, name in opened:
        if kind == "begin":
            stack.append(name)
        else:
            assert stack.pop() == name
    assert not stack
    for shape, body in re.findall(
        r"\\begin\{tabular\}\{@\{\}(\w+)@\{\}\}(.*?)\\end\{tabular\}", text, re.DOTALL
    ):
        check_table(shape, body)


def check_table(shape: str, body: str) -> None:
    rules = re.findall(r"\\(\w+rule)", body)
    assert rules == ["toprule", "midrule", "bottomrule"]
    rows = [row for row in body.splitlines() if row.endswith(r"\\")]
    assert rows
    for row in rows:
        if "multicolumn" not in row:
            assert len(re.findall(r"(?<!\\)&", row)) == len(shape) - 1
            assert not row.lstrip().startswith("[")  # would be read as an option of the rule above


@pytest.mark.parametrize("runs", [None, card(), [card(1), card(2)], card(frozen=None)])
def test_latex_is_well_formed(runs: AuditCard | list[AuditCard] | None) -> None:
    check_latex(template(runs, "latex"))


def test_symbols_are_formulas_in_latex() -> None:
    text = template(card(), "latex")
    assert r"$\|g_L\|$" in text
    assert "$10^{-7}$" in text
    assert "1e-07" not in text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(tmp_path: Path) -> None:
    body = template(card(network=HOSTILE), "latex") + template(None, "latex")
    head = "\\documentclass{article}\\usepackage{booktabs,amssymb}\\begin{document}\n"
    (tmp_path / "t.tex").write_text(f"{head}{body}\\end{{document}}\n", encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-draftmode", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]
