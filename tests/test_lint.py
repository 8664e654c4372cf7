"""lint: what each rule sees and what it leaves alone; files that cannot be read; output forms."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import faudit
from faudit.errors import FauditError
from faudit.lint import (
    RULES,
    Finding,
    LintError,
    exit_code,
    lint_paths,
    lint_source,
    render,
    sarif,
)
from faudit.lint import files as lint_files
from faudit.lint.finding import uri

HEAD = """\
import torch
import numpy as np
from torch import nn
from torch.nn import functional as F
"""
OFFSET = HEAD.count("\n")

GUILTY: dict[str, list[str]] = {
    "FA001": [
        "n = g.norm(-1)",
        "n = loss_grad.view(4, -1).norm(-1, keepdim=True)",
        "n = torch.norm(g, -1)",
        "n = torch.linalg.norm(g, -1)",
        "n = np.linalg.norm(g, -1)",
        "n = g.norm(-2).mean()",
    ],
    "FA002": [
        "c = F.cosine_similarity(bp_grad, credit)",
        "c = F.cosine_similarity(bp_grad, fa, dim=-1)",
        "c = torch.cosine_similarity(h.grad.flatten(), b, 0)",
        "c = torch.nn.functional.cosine_similarity(a, grads[0])",
        "c = nn.CosineSimilarity(dim=1)(bp_grad, a)",
        """
        def angle(loss, h, a):
            (g,) = torch.autograd.grad(loss, h)
            flat = g.flatten(1)
            return F.cosine_similarity(flat, a)
        """,
        """
        class Meter:
            def __init__(self):
                self.cos = nn.CosineSimilarity(dim=1)
            def __call__(self, bp_grad, other):
                return self.cos(bp_grad, other)
        """,
        """
        from torch.nn.functional import cosine_similarity as cs
        c = cs(gradient, other)
        """,
    ],
    "FA003": [
        """
        model.eval()
        with torch.autocast("cuda"):
            g = torch.autograd.grad(model(x).sum(), h)
        """,
        """
        model.eval()
        with torch.no_grad(), torch.autocast(device_type="cuda", dtype=torch.float16):
            size = weight.grad.abs().max()
        """,
        """
        model.eval()
        with torch.cuda.amp.autocast():
            loss = criterion(model(x), y)
        g = torch.autograd.grad(loss, h)
        """,
        """
        model.eval()
        @torch.autocast("cuda", torch.half)
        def credit(loss, h):
            return torch.autograd.grad(loss, h)
        """,
        """
        model.eval()
        with torch.autocast(device):
            c = cosine(bp_grad, credit)
        """,
        """
        model.eval()
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
        loss.backward()
        sizes = [p.grad.norm() for p in model.parameters()]
        """,
    ],
    "FA004": [
        """
        class DFA(nn.Module):
            def __init__(self):
                super().__init__()
                self.B = torch.randn(10, 4)
        """,
        """
        class DFA(nn.Module):
            def __init__(self):
                self.Bs = [torch.randn(10, w) / w**0.5 for w in widths]
        """,
        """
        class Layer(nn.Linear):
            def reset(self):
                self.feedback_weight: torch.Tensor = nn.init.kaiming_uniform_(torch.empty(3, 4))
        """,
        """
        class Layer(nn.Module):
            def __init__(self):
                self.backward_weights = [nn.Parameter(torch.rand(3, 3)) for _ in range(2)]
        """,
        """
        class Feedback:
            def __init__(self, rng):
                self.random_matrix = np.random.normal(size=(3, 3))
        """,
    ],
    "FA005": [
        "gamma = sum(cosine(a, g) for a, g in zip(credits, grads)) / len(grads)",
        "gamma = np.mean([cos_sim(a, g) for a, g in zip(credits, bp)])",
        "gamma = torch.stack([my_cosine(a, b) for a, b in zip(x, layer_grads)]).mean()",
        """
        def gamma(credits, grads):
            values = [cosine(a, g) for a, g in zip(credits, grads)]
            return sum(values) / len(values)
        """,
        """
        total = 0.0
        for layer in model.blocks:
            total += cosine(layer.credit, layer.reference).mean()
        """,
        """
        same = torch.nn.CosineSimilarity(dim=0, eps=1e-30)
        gamma = np.mean([same(a, g).item() for a, g in zip(credits, grads)])
        """,
        """
        same: torch.nn.Module = torch.nn.CosineSimilarity(dim=0, eps=1e-30)
        gamma = np.mean([same(a, g).item() for a, g in zip(credits, grads)])
        """,
    ],
    "FA006": [
        """
        def reference(model, x, y):
            loss = F.cross_entropy(model(x), y)
            return torch.autograd.grad(loss, x)
        """,
        """
        def alignment(net, x, bp_grad, layer):
            net(x)
            return cosine_of(bp_grad, layer.credit)
        """,
        """
        class Probe:
            def measure(self, x):
                logits = self.model(x)
                return torch.autograd.grad(logits.sum(), x)
        """,
    ],
}

INNOCENT: dict[str, list[str]] = {
    "FA001": [
        "n = g.norm(dim=-1)",
        "n = g.norm(2, -1)",
        "n = g.norm(2, dim=-1)",
        "n = g.norm(p=-1)",
        "n = g.norm(-1, dim=0)",
        "n = torch.norm(g, dim=-1)",
        "n = torch.linalg.norm(g, 2, -1)",
        "n = np.linalg.norm(g, axis=-1)",
        "n = np.linalg.norm(g, -1, axis=1)",
        "n = g.norm(1)",
        "n = g.norm()",
        "n = g.norm(*args)",
        "n = self.norm(x)",
        "n = g.norm(order)",
        "n = g.sum(-1)",
    ],
    "FA002": [
        "c = F.cosine_similarity(bp_grad, credit, eps=0.0)",
        "c = F.cosine_similarity(bp_grad, credit, 1, 1e-30)",
        "c = F.cosine_similarity(bp_grad, credit, **options)",
        "c = F.cosine_similarity(query, key)",
        "c = F.cosine_similarity(x.requires_grad_(), y)",
        "c = nn.CosineSimilarity(eps=1e-30)(bp_grad, credit)",
        "c = nn.CosineSimilarity(1, 1e-30)(bp_grad, credit)",
        """
        from sklearn.metrics.pairwise import cosine_similarity
        c = cosine_similarity(bp_grad, credit)
        """,
        """
        def one(loss, h):
            g = torch.autograd.grad(loss, h)
        def other(g, a):
            return F.cosine_similarity(g, a)
        """,
    ],
    "FA003": [
        """
        model.eval()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            g = torch.autograd.grad(model(x).sum(), h)
        """,
        """
        model.eval()
        with torch.autocast("cpu"):
            g = torch.autograd.grad(model(x).sum(), h)
        """,
        """
        model.eval()
        with torch.autocast("cuda", enabled=False):
            g = torch.autograd.grad(model(x).sum(), h)
        """,
        """
        with torch.cuda.amp.autocast(False):
            g = torch.autograd.grad(loss, h)
        """,
        """
        for x, y in loader:
            with torch.autocast("cuda"):
                loss = criterion(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimiser)
        """,
        """
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
        g = torch.autograd.grad(scaler.scale(loss), h)
        """,
        """
        with torch.autocast("cuda", dtype=chosen):
            g = torch.autograd.grad(loss, h)
        """,
        """
        with torch.autocast("cuda"):
            weight.grad = None
        """,
        """
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
        loss.backward()
        sizes = [p.grad.norm() for p in model.parameters()]
        optimiser.step()
        """,
        """
        with torch.autocast("cuda"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        sizes = [p.grad.norm() for p in model.parameters()]
        """,
    ],
    "FA004": [
        """
        class DFA(nn.Module):
            def __init__(self):
                self.register_buffer("B", torch.randn(10, 4))
        """,
        """
        class DFA(nn.Module):
            def __init__(self):
                self.B = nn.Parameter(torch.randn(10, 4), requires_grad=False)
        """,
        """
        class DFA(nn.Module):
            def __init__(self):
                self.Bs = nn.ParameterList([torch.randn(3, w) for w in widths])
        """,
        """
        class DFA(nn.Module):
            def __init__(self):
                self.B = torch.randn(10, 4)
                self.register_buffer("B", self.B)
        """,
        """
        class DFA(nn.Module):
            def __init__(self):
                self.Bs = [torch.randn(3, w) for w in widths]
                for i, b in enumerate(self.Bs):
                    self.register_buffer(f"B_{i}", b)
        """,
        """
        class DFA:
            def __init__(self):
                self.B = torch.randn(10, 4)
            def state_dict(self):
                return {"B": self.B}
        """,
        """
        class Data:
            def __init__(self):
                self.batch = torch.randn(3, 4)
                self.bias = torch.rand(3)
                self.B = 12
                self.feedback = load("b.pt")
        """,
        "B = torch.randn(3, 4)",
    ],
    "FA005": [
        "per_layer = [cosine(a, g) for a, g in zip(credits, grads)]",
        """
        def gamma(credits, grads):
            values = [cosine(a, g) for a, g in zip(credits, grads)]
            return values, sum(values) / len(values)
        """,
        """
        total = 0.0
        for layer in model.blocks:
            total += cosine(layer.credit, layer.reference)
            log(cosine(layer.credit, layer.reference))
        """,
        """
        total = 0.0
        for x, y in loader:
            total += cosine(credit(x), grads(y))
        """,
        "score = np.mean([cosine(q, k) for q, k in zip(queries, keys)])",
        "c = F.cosine_similarity(credit, grad, eps=0.0).mean()",
        "m = np.mean([loss(a) for a in layers])",
    ],
    "FA006": [
        """
        def reference(model, x, y):
            model.eval()
            return torch.autograd.grad(model(x).sum(), x)
        """,
        """
        def reference(model, x, y):
            model.train(False)
            return torch.autograd.grad(model(x).sum(), x)
        """,
        """
        def reference(model, x):
            return torch.autograd.grad(model(x).sum(), x)
        def main(model, x):
            model.eval()
            print(reference(model, x))
        """,
        """
        def inner(model, x):
            return torch.autograd.grad(model(x).sum(), x)
        def outer(model, x):
            return inner(model, x)
        def main(model, x):
            model.eval()
            return outer(model, x)
        """,
        """
        def reference(model, x):
            with evaluating(model):
                return torch.autograd.grad(model(x).sum(), x)
        """,
        """
        def train(model, x, optimiser):
            grads = torch.autograd.grad(model(x).sum(), model.parameters())
            optimiser.step()
        """,
        """
        def predict(model, x):
            return model(x).argmax(-1)
        """,
        """
        from mine import network
        def reference(x):
            return torch.autograd.grad(measured(network(3), x), x)
        """,
        """
        def jacobian(f, x):
            return torch.autograd.grad(f(x).sum(), x)
        """,
        """
        def reference(model, x):
            return torch.autograd.grad(model(x).sum(), x)
        model.eval()
        reference(model, x)
        """,
    ],
}


def cases(of: dict[str, list[str]]) -> list[Any]:
    return [
        pytest.param(code, dedent(text).strip("\n") + "\n", id=f"{code}-{number}")
        for code, texts in of.items()
        for number, text in enumerate(texts)
    ]


def codes(text: str, code: str) -> list[str]:
    return [finding.code for finding in lint_source(text, select=[code])]


# -- the rules ------------------------------------------------------------------------------------


def test_every_rule_has_cases() -> None:
    assert set(GUILTY) == set(INNOCENT) == set(RULES)


@pytest.mark.parametrize(("code", "text"), cases(GUILTY))
def test_a_rule_sees(code: str, text: str) -> None:
    assert codes(HEAD + text, code) == [code]


@pytest.mark.parametrize(("code", "text"), cases(INNOCENT))
def test_a_rule_leaves_alone(code: str, text: str) -> None:
    assert codes(HEAD + text, code) == []


@pytest.mark.parametrize(("code", "text"), cases(GUILTY))
def test_the_usual_names_need_no_import(code: str, text: str) -> None:
    if "import" not in text:
        assert codes(text, code) == [code]


@pytest.mark.parametrize("code", RULES)
def test_the_quick_look_never_hides_a_case(code: str) -> None:
    rule = RULES[code]
    assert all(rule.needs in (HEAD + dedent(text)).lower() for text in GUILTY[code])


def test_every_rule_names_an_experiment() -> None:
    from faudit.pitfalls import PITFALLS

    assert {rule.pitfall for rule in RULES.values()} <= set(PITFALLS)


def test_the_package_keeps_its_own_rules() -> None:
    assert render(lint_paths([Path(faudit.__file__).parent])) == "no findings"


def test_a_local_function_of_that_name_is_not_pytorchs() -> None:
    text = "from mine import F\nF.cosine_similarity(bp_grad, credit)\n"
    assert lint_source(text, select=["FA002"]) == []


# -- ignoring -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("comment", "silent"),
    [
        ("# faudit: ignore", True),
        ("#faudit:ignore", True),
        ("# because of X  # faudit: ignore[FA001]", True),
        ("# faudit: ignore[FA002, fa001]", True),
        ("# faudit: ignore[FA002]", False),
        ("# faudit: ignored", False),
        ("# faudit: ignore-file", False),
        ("# noqa", False),
    ],
)
def test_a_comment_silences(comment: str, silent: bool) -> None:
    assert (lint_source(f"n = g.norm(-1)  {comment}\n") == []) is silent


def test_a_comment_inside_a_string_silences_nothing() -> None:
    assert codes('n = g.norm(-1), "# faudit: ignore"\n', "FA001") == ["FA001"]


def test_a_comment_anywhere_on_the_statement_counts() -> None:
    text = "n = f(\n    g.norm(-1),\n)  # faudit: ignore[FA001]\n"
    assert lint_source(text) == []
    assert codes("n = 1  # faudit: ignore\nm = g.norm(-1)\n", "FA001") == ["FA001"]


def test_a_comment_inside_a_function_does_not_silence_its_header() -> None:
    text = "def f(model, x):{}\n    a = 1{}\n    return torch.autograd.grad(model(x).sum(), x)\n"
    assert codes(text.format("", "  # faudit: ignore"), "FA006") == ["FA006"]
    assert codes(text.format("  # faudit: ignore[FA006]", ""), "FA006") == []


def test_a_comment_inside_a_block_does_not_silence_the_autocast_around_it() -> None:
    text = "with torch.autocast('cuda'):{}\n    a = 1{}\n    g = torch.autograd.grad(loss, h)\n"
    assert codes(text.format("", "  # faudit: ignore"), "FA003") == ["FA003"]
    assert codes(text.format("  # faudit: ignore", ""), "FA003") == []


# -- places ---------------------------------------------------------------------------------------


def test_a_place_counts_characters_from_one() -> None:
    (finding,) = lint_source('x = "é"; n = g.norm(-1)\n', "a.py")
    assert (finding.line, finding.column, finding.end_line, finding.end_column) == (1, 14, 1, 24)


def test_form_feeds_and_separators_are_no_line_ends() -> None:
    (finding,) = lint_source('a = "\u2028\x1c"\nb = 1\nn = g.norm(-1)\n')
    assert (finding.line, finding.column) == (3, 5)


def test_findings_come_in_order() -> None:
    text = "c = F.cosine_similarity(bp_grad, a); n = g.norm(-1)\nm = g.norm(-1)\n"
    assert [(f.line, f.code) for f in lint_source(text)] == [
        (1, "FA002"),
        (1, "FA001"),
        (2, "FA001"),
    ]


# -- files ----------------------------------------------------------------------------------------

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(name: str, content: str | bytes = "n = g.norm(-1)\n") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return make


def only(findings: list[Finding]) -> tuple[str, str]:
    (finding,) = findings
    return finding.code, finding.message


def test_a_folder_is_searched_and_a_named_file_is_read_whatever_its_name(write: Write) -> None:
    write("a.py")
    write("deep/er/b.pyi")
    other = write("c.txt")
    assert len(lint_paths([other.parent])) == 2
    assert len(lint_paths([other])) == 1
    assert len(lint_paths([other.parent, other, other.parent / "a.py"])) == 3


@pytest.mark.parametrize("place", [".git", "__pycache__", "node_modules", "env"])
def test_what_is_not_the_users_is_left_out(write: Write, place: str) -> None:
    path = write(f"{place}/a.py")
    write("env/pyvenv.cfg", "")
    root = path.parent.parent
    assert lint_paths([root]) == []
    assert len(lint_paths([path])) == 1


def test_links_never_loop_and_a_file_is_read_once(write: Write, tmp_path: Path) -> None:
    path = write("sub/a.py")
    (tmp_path / "sub" / "up").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "again.py").symlink_to(path)
    assert len(lint_paths([tmp_path])) == 1
    (tmp_path / "link").symlink_to(tmp_path / "sub", target_is_directory=True)
    assert len(lint_paths([tmp_path / "link"])) == 1


def test_a_link_to_itself_and_a_link_to_nothing_are_reported(tmp_path: Path) -> None:
    (tmp_path / "loop.py").symlink_to(tmp_path / "loop.py")
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere.py")
    found = lint_paths([tmp_path])
    assert [finding.code for finding in found] == ["FA000", "FA000"]
    assert all("cannot be read" in finding.message for finding in found)
    assert only(lint_paths([tmp_path / "gone.py"]))[0] == "FA000"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"def f(:\n", "is not valid Python"),
        (b"x = 1\n  y = 2\n", "is not valid Python"),
        (b"x = '\xe9'\n", "is not"),
        (b"# coding: no-such-coding\n", "is not valid Python"),
        (b"x = 1\x00\n", ""),
        (b"(" * 500 + b")" * 500, ""),
        (b"x = " + b"-" * 50_000 + b"1\n", ""),
        (b"x" + b".a" * 50_000 + b"\n", ""),
    ],
    ids=["syntax", "indent", "latin", "coding", "nul", "nested", "minus", "dots"],
)
def test_what_cannot_be_parsed_is_reported(write: Write, content: bytes, message: str) -> None:
    path = write("bad.py", content)
    code, said = only(lint_paths([path]))
    assert code == "FA000"
    assert message in said
    write("good.py")
    assert {f.code for f in lint_paths([path.parent])} == {"FA000", "FA001"}


def test_the_line_of_a_syntax_error_is_kept(write: Write) -> None:
    (finding,) = lint_paths([write("bad.py", "a = 1\nb = 2\ndef f(:\n")])
    assert finding.line == 3
    (finding,) = lint_paths([write("latin.py", b"a = 1\nb = '\xe9'\n")])
    assert finding.line in (1, 2)


def test_a_declared_coding_and_a_mark_are_understood(write: Write) -> None:
    latin = write("latin.py", "# coding: latin-1\nx = 'é'; n = g.norm(-1)\n".encode("latin-1"))
    marked = write("marked.py", b"\xef\xbb\xbfn = g.norm(-1)\n")
    (first, second) = lint_paths([latin, marked])
    assert (first.line, first.column) == (2, 14)
    assert (second.line, second.column) == (1, 5)


def test_carriage_returns_are_line_ends(write: Write) -> None:
    (finding,) = lint_paths([write("mac.py", b"a = 1\r\nb = 2\r\nn = g.norm(-1)  # x\r\n")])
    assert finding.line == 3
    silent = b"a = 1\r\nn = g.norm(-1)  # faudit: ignore\r\n"
    assert lint_paths([write("dos.py", silent)]) == []


def test_a_huge_file_is_not_parsed(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lint_files, "LARGEST", 10)
    code, message = only(lint_paths([write("huge.py")]))
    assert (code, message) == ("FA000", "has 15 bytes; at most 10 are read")


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    assert only(lint_paths([tmp_path])) == ("FA000", "is not a regular file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission_is_reported(write: Write) -> None:
    path = write("secret.py")
    path.chmod(0)
    assert only(lint_paths([path]))[0] == "FA000"


def test_wrong_use_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LintError, match="there is no file or folder"):
        lint_paths([tmp_path / "nothing"])
    with pytest.raises(LintError, match="nothing to look at"):
        lint_paths([])
    with pytest.raises(LintError, match="unknown rule 'FA01'; did you mean"):
        lint_paths([tmp_path], select=["FA01"])
    with pytest.raises(FauditError, match="unknown format"):
        render([], "xml")


def test_one_path_may_be_given_alone(write: Write) -> None:
    assert len(lint_paths(write("a.py"))) == len(lint_paths(str(write("a.py")))) == 1


def test_nothing_in_a_file_is_run_and_no_warning_is_shown(
    write: Write, recwarn: pytest.WarningsRecorder
) -> None:
    path = write("evil.py", "raise SystemExit(3)\nx = '\\d'\nn = g.norm(-1)\n")
    assert [finding.code for finding in lint_paths([path])] == ["FA001"]
    assert not recwarn.list


def test_lint_imports_no_torch(write: Write) -> None:
    script = (
        "import sys; from faudit.lint import lint_paths, render;"
        f"render(lint_paths([{str(write('a.py'))!r}]), 'sarif'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@given(st.text(alphabet=st.sampled_from("abg.norm(-1)=:, \n\t#'\"[]{}\\\x0c\u2028é"), max_size=60))
def test_no_text_crashes_the_rules(text: str) -> None:
    for finding in lint_source(text):
        assert finding.line >= 1
        assert finding.column >= 1


@given(st.binary(max_size=60))
def test_no_bytes_crash_the_rules(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.mktemp("raw") / "a.py"
    path.write_bytes(raw)
    assert all(f.code in ("FA000", *RULES) for f in lint_paths([path]))


# -- output ---------------------------------------------------------------------------------------


@pytest.fixture
def findings() -> list[Finding]:
    text = "c = F.cosine_similarity(bp_grad, a)\nn = g.norm(-1)\n"
    return lint_source(text, "src/a b.py") + lint_source("def f(:", "bad.py")


def test_the_exit_code() -> None:
    assert exit_code([]) == 0
    assert exit_code(lint_source("n = g.norm(-1)")) == 1
    assert exit_code(lint_source("def f(:")) == 1


def test_text_names_place_rule_and_fix(findings: list[Finding]) -> None:
    lines = render(findings).splitlines()
    assert lines[0].startswith("src/a b.py:1:5: FA002 the cosine of gradients")
    assert lines[1].endswith("write norm(dim=-1)")
    assert lines[-1] == "3 findings in 2 files"
    assert render([]) == "no findings"


def test_a_hostile_name_cannot_drive_a_terminal() -> None:
    (finding,) = lint_source("n = g.norm(-1)", "a\x1b[31m.py")
    assert "\x1b" not in render([finding])
    assert "\x1b" not in render([finding], "sarif")


def test_json_is_a_list_of_plain_values(findings: list[Finding]) -> None:
    read = json.loads(render(findings, "json"))
    assert [one["code"] for one in read] == ["FA002", "FA001", "FA000"]
    assert read[1]["pitfall"] == "norm-minus-one"
    assert read[0] == findings[0].to_dict()


def test_sarif_has_the_required_structure(findings: list[Finding]) -> None:
    """Required properties and types of OASIS SARIF 2.1.0, sections 3.13 to 3.30."""
    log = json.loads(render(findings, "sarif"))
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-2.1.0.json")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "faudit"
    assert run["columnKind"] in ("utf16CodeUnits", "unicodeCodePoints")
    ids = [rule["id"] for rule in driver["rules"]]
    assert ids == ["FA000", *RULES]
    assert len(set(ids)) == len(ids)
    assert all(
        rule["shortDescription"]["text"] and rule["help"]["text"] for rule in driver["rules"]
    )
    assert len(run["results"]) == len(findings)
    for result in run["results"]:
        check_result(result, ids)


def check_result(result: dict[str, Any], ids: list[str]) -> None:
    assert set(result) == {"ruleId", "ruleIndex", "level", "message", "locations"}
    assert ids[result["ruleIndex"]] == result["ruleId"]
    assert result["level"] in ("none", "note", "warning", "error")
    assert isinstance(result["message"]["text"], str)
    (location,) = result["locations"]
    place = location["physicalLocation"]
    assert " " not in place["artifactLocation"]["uri"]
    region = place["region"]
    assert all(isinstance(n, int) and n >= 1 for n in region.values())
    start = region["startLine"], region["startColumn"]
    assert start <= (region["endLine"], region["endColumn"])


def test_an_empty_sarif_log_still_says_that_a_run_took_place() -> None:
    assert sarif([])["runs"][0]["results"] == []


def test_a_place_outside_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert uri("sub/a é.py") == "sub/a%20%C3%A9.py"
    assert uri(str(tmp_path / "b.py")) == "b.py"
    assert uri("/elsewhere/c.py") == "file:///elsewhere/c.py"
