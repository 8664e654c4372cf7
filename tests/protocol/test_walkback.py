"""The chain asks its four questions in order and decides only what the evidence decides."""

from __future__ import annotations

import pytest

from faudit.measures.evidence import Evidence, NullCalibration
from faudit.protocol import Epoch, WalkBack, diagnose, replay, walk_back

DFA = Evidence(
    layers=2,
    samples=1024,
    growth=(3.0, 237.0),
    reference_norm=(5e-5, 6.4e-8, 6.4e-8),
    cosine=(0.42, 0.0, -0.02),
    gamma=0.10,
    deep_cosine=-0.02,
)
VALID = DFA.replace(growth=(1.5, 2.0), reference_norm=(0.05, 0.05, 0.05))
LOW = {"accuracy": 0.306, "frozen_accuracy": 0.349}
HIGH = {"accuracy": 0.610, "frozen_accuracy": 0.349}


def chain(evidence: Evidence, accuracies: dict[str, float], **extra: object) -> WalkBack:
    return walk_back(evidence, diagnose(evidence, **accuracies), **extra)


def survival(walk: WalkBack) -> list[bool | None]:
    return [step.survives for step in walk.steps]


def test_four_steps_quote_the_evidence() -> None:
    walk = chain(DFA, LOW)
    assert survival(walk) == [None, False, False, False]
    text = str(walk)
    assert [line[:2] for line in text.splitlines()] == ["1.", "2.", "3.", "4.", "De"]
    for quoted in ("Accuracy 0.306", "Gamma +0.100", "5e-10", "4.3 pp below"):
        assert quoted in text


@pytest.mark.parametrize(
    ("evidence", "accuracies", "extra", "decision"),
    [
        (DFA, LOW, {}, "measurement degeneracy"),
        (DFA, LOW, {"early": VALID}, "both"),  # second draft: epoch 1, deep cosine -0.008
        (DFA, LOW, {"penalised": VALID}, "both"),  # the paper: penalty 1e-4, deep cosine -0.016
        (DFA, LOW, {"early": VALID.replace(deep_cosine=0.4)}, "measurement degeneracy"),
        (DFA, LOW, {"early": DFA}, "measurement degeneracy"),  # still unreadable
        (DFA, HIGH, {}, "measurement degeneracy"),
        (DFA.replace(reference_angle=(0.1, 0.1, 0.1)), LOW, {}, "both"),  # exact and readable
        (DFA.replace(reference_angle=(0.1, 0.1, 80.0)), LOW, {}, "measurement degeneracy"),
        (VALID, LOW, {}, "low credit quality"),
        (VALID.replace(deep_cosine=0.6), LOW, {}, "low credit quality"),  # the paper: FA on d512 L2
        (VALID.replace(deep_cosine=0.9), HIGH, {}, "stands"),
        (VALID, {"accuracy": 0.6}, {}, "undecided"),
        (VALID.replace(nonfinite="logits"), LOW, {}, "undecided"),
    ],
)
def test_step_four_decides(evidence, accuracies, extra, decision: str) -> None:
    assert chain(evidence, accuracies, **extra).decision == decision


def test_a_null_outweighs_a_cosine_that_only_looks_positive() -> None:
    null = NullCalibration(draws=20, mean=0.06, std=0.05, value=0.1, z=0.8)
    early = VALID.replace(deep_cosine=0.1)
    assert chain(DFA, LOW, early=early).decision == "measurement degeneracy"
    assert chain(DFA, LOW, early=early.replace(null=null)).decision == "both"


def test_passing_every_step_is_not_a_certificate() -> None:
    walk = chain(VALID.replace(deep_cosine=0.9), HIGH)
    assert survival(walk)[1:] == [True, True, True]
    assert "does not certify" in str(walk)


def test_what_was_not_evaluated_stays_open() -> None:
    walk = chain(Evidence(layers=1, samples=8), {})
    assert survival(walk) == [None, None, None, None]
    assert str(walk).count("Open:") == 3
    assert "no aggregate cosine" in str(walk)


def test_time_and_other_networks_are_told() -> None:
    history = [Epoch(epoch=e, growth=1.0, reference_norm=10.0 ** (-3 - e)) for e in range(11)]
    others = {"no-LN ResMLP": diagnose(VALID, **LOW), "ViT-Mini": diagnose(DFA, **LOW)}
    walk = chain(DFA, LOW, timeline=replay(history), elsewhere=others)
    assert "first fired at epoch 5 of 10" in str(walk)
    assert "no-LN ResMLP FAIL(D3), ViT-Mini FAIL(D1+D2+D3)" in str(walk)


def test_opposed_alignment_is_not_a_claim_and_json_is_exact() -> None:
    walk = chain(VALID.replace(gamma=-0.2), LOW)
    assert "no alignment is claimed" in str(walk)
    assert WalkBack.from_json(walk.to_json()) == walk
