"""Every flag is raised by its cause, stays silent otherwise, and is explained in the documents."""

from __future__ import annotations

import re
from math import nan
from pathlib import Path

import pytest

from faudit.measures.evidence import Evidence
from faudit.protocol import FACTS, diagnose
from faudit.protocol.flags import CHECKS, DOCUMENT

ROOT = Path(__file__).parents[2]
CLEAN = Evidence(
    layers=4,
    samples=1024,
    growth=(1.2,) * 4,
    reference_norm=(0.05,) * 5,
    cosine=(1.0,) * 5,
    gamma=1.0,
    deep_cosine=1.0,
    cosine_aggregates={"median over layers": 1.0},
    reference_angle=(0.01,) * 5,
    facts={
        "nondeterministic_spread": 0.0,
        "was_training": False,
        "softmax_like": False,
        "buffers_changed": False,
        "zero_credit_layers": 0,
        "ep_residual": 1e-4,
        "width": 256,
        "classes": 10,
    },
)
GOOD = {"accuracy": 0.61, "frozen_accuracy": 0.35, "bp_accuracy": 0.61, "test_samples": 10_000}


def codes(evidence: Evidence, **accuracies: object) -> list[str]:
    return [flag.code for flag in diagnose(evidence, **{**GOOD, **accuracies}).flags]


def with_fact(name: str, value: object) -> Evidence:
    assert name in FACTS
    return CLEAN.replace(facts={**CLEAN.facts, name: value})


FA = (0.01, 0.05, 0.1, 0.2, 0.95)
DFA = (0.42, 0.0, -0.03, 0.01, 0.0)

CAUSES = [
    ("non-deterministic", with_fact("nondeterministic_spread", 0.3), {}),
    ("training-mode", with_fact("was_training", True), {}),
    ("softmax-outputs", with_fact("softmax_like", True), {}),
    ("buffers-changed", with_fact("buffers_changed", True), {}),
    ("buffers-changed", with_fact("buffers_changed", "norm.running_mean"), {}),
    ("batch-dependent", with_fact("batch_spread", 0.05), {}),
    ("depth-ceiling", CLEAN, {"accuracy": 0.79, "frozen_accuracy": 0.908, "bp_accuracy": 0.796}),
    ("depth-ceiling", CLEAN, {"frozen_accuracy": 0.99, "bp_accuracy": None}),
    ("at-chance", CLEAN, {"accuracy": 0.105, "frozen_accuracy": 0.01}),
    ("at-chance", with_fact("classes", 3), {"accuracy": 0.3, "frozen_accuracy": 0.1}),
    ("unmatched-baseline", with_fact("rule_unnamed", True), {}),
    ("around-blocks", with_fact("detours", "'blocks.1', the readout"), {}),
    ("half-precision", with_fact("frozen_rounded", "float16"), {}),
    ("too-few-samples", CLEAN.replace(samples=127), {}),
    ("too-few-samples", CLEAN, {"test_samples": 999}),
    ("borderline", CLEAN, {"accuracy": 0.372}),
    ("borderline", CLEAN.replace(growth=(1.0, 1.0, 1.0, 40.0)), {}),
    ("borderline", CLEAN.replace(reference_norm=(1.0,) * 4 + (128 * 1.8e-7,)), {}),
    ("aggregates-disagree", CLEAN.replace(gamma=0.074, deep_cosine=-0.028), {}),
    ("aggregates-disagree", CLEAN.replace(cosine_aggregates={"pooled": 0.3}), {}),
    ("one-end-carries", CLEAN.replace(cosine=FA), {}),
    ("one-end-carries", CLEAN.replace(cosine=DFA), {}),
    ("ep-unconverged", with_fact("ep_residual", 0.5), {}),
    ("ep-unconverged", with_fact("ep_residual", nan), {}),
    ("zero-credit", with_fact("zero_credit_layers", 1), {}),
    ("zero-credit", with_fact("zero_credit_layers", "h_0"), {}),
    ("control-fails", CLEAN.replace(perturbation_controls={"bp": (0.3, 1, 1, nan, 1)}), {}),
    ("reference-noise", CLEAN.replace(reference_angle=(0.0, 0.0, 0.0, 0.0, 40.0)), {}),
]


@pytest.mark.parametrize(("code", "evidence", "accuracies"), CAUSES)
def test_each_cause_raises_its_flag_and_no_other(code, evidence, accuracies) -> None:
    assert codes(evidence, **accuracies) == [code]


@pytest.mark.parametrize(("accuracy", "samples"), [(0.107, 10_000), (0.2, 1000)])
def test_a_little_more_than_guessing_is_more(accuracy: float, samples: int) -> None:
    told = {"accuracy": accuracy, "frozen_accuracy": 0.01, "test_samples": samples}
    assert "at-chance" not in codes(CLEAN, **told)


def test_every_flag_has_a_cause_here() -> None:
    assert {code for code, _, _ in CAUSES} == set(CHECKS)


def test_a_clean_run_has_no_flags() -> None:
    assert codes(CLEAN) == []


@pytest.mark.parametrize(
    ("evidence", "accuracies"),
    [
        (with_fact("nondeterministic_spread", 1e-7), {}),  # the last digits of a parallel sum
        (with_fact("nondeterministic_spread", nan), {}),
        (CLEAN.replace(samples=128), {"test_samples": 1000}),
        (CLEAN, {"accuracy": 0.40}),
        (CLEAN.replace(growth=(1.0, 1.0, 1.0, 11.0)), {}),
        (CLEAN.replace(gamma=0.004, deep_cosine=-0.006, cosine_aggregates={}), {}),  # noise
        (CLEAN.replace(cosine=(0.01, 0.0, 0.0, 0.0, 0.001)), {}),
        (CLEAN.replace(perturbation_controls={"bp": (0.95,) * 5, "random": (0.0,) * 5}), {}),
        (CLEAN.replace(perturbation_controls={"bp": (0.1,) * 5}, reference_angle=()), {}),
        (CLEAN.replace(cosine=(nan, 0.9, 0.9, 0.9, 0.9)), {}),
        (Evidence(layers=4, samples=1024), {}),
    ],
)
def test_what_is_harmless_raises_nothing(evidence, accuracies) -> None:
    assert codes(evidence, **accuracies) == []


def test_noise_is_not_taken_for_samples_that_depend_on_each_other() -> None:
    facts = {**CLEAN.facts, "batch_spread": 0.3, "nondeterministic_spread": 0.3}
    assert codes(CLEAN.replace(facts=facts)) == ["non-deterministic"]


def test_flags_never_change_the_verdict() -> None:
    for _, evidence, accuracies in CAUSES:
        plain = evidence.replace(facts={}, cosine=(), reference_angle=())
        verdicts = [str(diagnose(e, **{**GOOD, **accuracies})) for e in (evidence, plain)]
        assert verdicts[0] == verdicts[1]


def test_messages_quote_what_was_seen() -> None:
    verdict = diagnose(CLEAN.replace(cosine=FA, samples=64), **GOOD)
    text = verdict.explain()
    assert "64 samples" in text
    assert "deep end (+0.950) supplies 73%" in text
    assert "docs/reliability-flags.md#one-end-carries" in text
    named = diagnose(with_fact("buffers_changed", "norm.running_mean"), **GOOD)
    assert "norm.running_mean" in named.flags[0].message


def test_every_flag_has_its_section_and_every_section_its_flag() -> None:
    text = (ROOT / DOCUMENT).read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    explained = {part.split("\n", 1)[0]: part.split("\n", 1)[1] for part in sections}
    assert list(explained) == list(CHECKS)
    for code, body in explained.items():
        paragraphs = [p for p in body.split("\n\n") if p.strip()]
        assert len(paragraphs) == 1, f"{code} is explained in one paragraph"
        assert len(body.split()) > 25, f"{code} deserves an explanation"
