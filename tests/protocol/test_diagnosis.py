"""The verdict follows from its findings, whatever the evidence; published verdicts come out."""

from __future__ import annotations

from itertools import pairwise
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faudit.errors import FauditError
from faudit.measures.evidence import Evidence
from faudit.protocol import Thresholds, Verdict, diagnose, judge

HEALTHY = Evidence(layers=2, samples=512, growth=(1.2, 1.3), reference_norm=(0.06, 0.05, 0.05))
BROKEN = HEALTHY.replace(growth=(3.0, 1004.0), reference_norm=(1e-4, 1e-6, 1.2e-6))


def published(growth: float, norm: float) -> Evidence:
    """A published row: the largest growth and ||g_L|| under the training batch's mean loss."""
    return Evidence(
        layers=4,
        samples=1024,
        growth=(1.0, 1.0, 1.0, growth),
        reference_norm=(1.0, 1.0, 1.0, 1.0, 128 * norm),
    )


@pytest.mark.parametrize(
    ("method", "accuracy", "growth", "norm", "marks", "margin", "verdict"),
    [
        ("BP", 0.321, 1.0, 9.5e-4, (False, False, False), 14.3, "PASS"),
        ("FA", 0.133, 15.6, 1.3e-6, (False, False, True), -4.5, "FAIL(D3)"),
        ("DFA", 0.088, 1004, 9.1e-9, (True, True, True), -9.0, "FAIL(D1+D2+D3)"),
    ],
)
def test_replays_table_6_of_the_paper(
    method: str, accuracy: float, growth: float, norm: float, marks, margin: float, verdict: str
) -> None:
    result = diagnose(published(growth, norm), accuracy=accuracy, frozen_accuracy=0.178)
    assert str(result) == verdict, method
    assert tuple(result.finding(code).flagged for code in ("D1", "D2", "D3")) == marks
    assert 100 * result.finding("D3").value == pytest.approx(margin, abs=0.051)


@pytest.mark.parametrize(
    ("accuracy", "margin", "passes"),
    [(0.607, 25.7, True), (0.345, -0.4, False), (0.297, -5.2, False)],
)
def test_replays_table_1_of_the_paper(accuracy: float, margin: float, passes: bool) -> None:
    result = diagnose(HEALTHY, accuracy=accuracy, frozen_accuracy=0.349)
    # BP prints +25.7 where its printed accuracies differ by 25.8: three rounded numbers.
    assert 100 * result.finding("D3").value == pytest.approx(margin, abs=0.11)
    assert result.passed is passes


FLAGS = st.sampled_from([True, False, None])


@given(FLAGS, FLAGS, FLAGS)
def test_the_rule_in_words(d1, d2, d3) -> None:
    outcome, codes = judge({"D1": d1, "D2": d2, "D3": d3})
    mode_one = d1 is True and d2 is True
    if mode_one or d3 is True:
        assert outcome == "FAIL"
        assert ("D1" in codes, "D2" in codes) == (mode_one, mode_one)
        assert ("D3" in codes) == (d3 is True)
    elif None in (d1, d2, d3):
        assert outcome == "INCOMPLETE"
        assert codes == tuple(c for c, d in (("D1", d1), ("D2", d2), ("D3", d3)) if d is None)
    else:
        assert (outcome, codes) == ("PASS", ())


@pytest.mark.parametrize(
    ("evidence", "accuracies", "verdict", "code"),
    [
        (HEALTHY, (0.61, 0.35), "PASS", 0),
        (HEALTHY, (0.345, 0.349), "FAIL(D3)", 1),
        (BROKEN, (0.61, 0.35), "FAIL(D1+D2)", 1),
        (BROKEN, (0.61, None), "FAIL(D1+D2)", 1),
        (BROKEN, (0.1, 0.35), "FAIL(D1+D2+D3)", 1),
        (HEALTHY.replace(growth=(1.0, 90.0)), (0.61, 0.35), "PASS", 0),
        (HEALTHY.replace(growth=(1.0, 90.0)), (0.1, 0.35), "FAIL(D3)", 1),
        (HEALTHY, (0.61, None), "INCOMPLETE(D3)", 3),
        (HEALTHY.replace(growth=()), (0.61, 0.35), "INCOMPLETE(D1)", 3),
        (HEALTHY.replace(growth=()), (0.1, 0.35), "FAIL(D3)", 1),
        (Evidence(layers=2, samples=8), (None, None), "INCOMPLETE(D1+D2+D3)", 3),
        (HEALTHY.replace(nonfinite="state h_3"), (0.61, 0.35), "INVALID(non-finite state h_3)", 3),
        (BROKEN.replace(loss=inf), (0.1, 0.35), "INVALID(non-finite loss)", 3),
    ],
)
def test_verdict_strings(evidence: Evidence, accuracies, verdict: str, code: int) -> None:
    result = diagnose(evidence, accuracy=accuracies[0], frozen_accuracy=accuracies[1])
    assert (str(result), result.exit_code) == (verdict, code)
    assert result.passed is (verdict == "PASS")


def test_a_tiny_class_token_at_the_start_is_no_explosion() -> None:
    """The largest state over the smallest would say 97; no block multiplies by more than 33."""
    norms = (0.3, 10.0, 12.0, 20.0, 29.0)
    growth = tuple(after / before for before, after in pairwise(norms))
    healthy = HEALTHY.replace(layers=4, state_norm=norms, growth=growth, reference_norm=(0.05,) * 5)
    finding = diagnose(healthy).finding("D1")
    assert finding.flagged is False
    assert finding.value == pytest.approx(10 / 0.3)
    assert max(norms) / min(norms) > finding.threshold


def test_a_single_flag_of_mode_one_is_kept_as_a_finding() -> None:
    grown = HEALTHY.replace(growth=(1.0, 90.0))
    result = diagnose(grown, accuracy=0.61, frozen_accuracy=0.35)
    assert result.passed
    assert result.finding("D1").flagged is True
    assert "D1 scale stability: flagged" in result.explain()


magnitudes = st.floats(1e-38, 1e38) | st.just(0.0)
accuracies = st.none() | st.floats(0, 1)


@st.composite
def evidences(draw: st.DrawFn) -> Evidence:
    layers = draw(st.integers(0, 3))

    def per(count: int) -> tuple[float, ...]:
        return tuple(draw(st.lists(magnitudes, min_size=count, max_size=count)))

    measured = draw(st.tuples(st.booleans(), st.booleans()))
    return Evidence(
        layers=layers,
        samples=draw(st.integers(1, 2000)),
        dtype=draw(st.sampled_from(["float64", "float32", "bfloat16", "float16"])),
        growth=per(layers) if measured[0] else (),
        reference_norm=per(layers + 1) if measured[1] else (),
        stability=draw(st.floats(-1, 1) | st.just(nan)),
        accuracy=draw(accuracies),
    )


@settings(max_examples=150, deadline=None)
@given(evidences(), accuracies, accuracies)
def test_any_finite_evidence_gets_exactly_one_verdict(evidence, accuracy, frozen) -> None:
    result = diagnose(evidence, accuracy=accuracy, frozen_accuracy=frozen)
    assert [str(result).startswith(o) for o in ("PASS", "FAIL", "INCOMPLETE", "INVALID")].count(
        True
    ) == 1
    assert result.outcome != "INVALID"
    unevaluated = [f.code for f in result.findings if f.flagged is None and f.code != "c"]
    assert not (result.passed and unevaluated)
    assert (result.exit_code == 0) is result.passed
    assert Verdict.from_json(result.to_json()) == result
    assert str(Verdict.from_dict(result.to_dict())) == str(result)
    assert result.explain().splitlines()[0] == str(result)
    assert result._repr_html_().count("<table>") == 1


@settings(max_examples=40, deadline=None)
@given(evidences(), st.floats(0, 1), st.floats(0, 1), st.floats(-1, 1))
def test_stability_never_changes_a_verdict(evidence, accuracy, frozen, stability) -> None:
    given_one = diagnose(evidence, accuracy=accuracy, frozen_accuracy=frozen)
    other = evidence.replace(stability=stability)
    assert str(diagnose(other, accuracy=accuracy, frozen_accuracy=frozen)) == str(given_one)


@settings(max_examples=40, deadline=None)
@given(evidences(), st.floats(0, 1), st.floats(0, 1), st.floats(1, 10))
def test_more_growth_or_a_weaker_reference_never_helps(evidence, accuracy, frozen, factor) -> None:
    before = diagnose(evidence, accuracy=accuracy, frozen_accuracy=frozen)
    worse = evidence.replace(
        growth=tuple(g * factor for g in evidence.growth),
        reference_norm=tuple(n / factor for n in evidence.reference_norm),
    )
    after = diagnose(worse, accuracy=accuracy, frozen_accuracy=frozen)
    assert set(before.codes) <= set(after.codes) or before.outcome != "FAIL"
    assert not (before.outcome == "FAIL" and after.outcome == "PASS")


def test_a_verdict_that_does_not_follow_from_its_findings_is_refused() -> None:
    failed = diagnose(HEALTHY, accuracy=0.1, frozen_accuracy=0.3)
    forged = {**failed.to_dict(), "outcome": "PASS", "codes": []}
    with pytest.raises(FauditError, match="does not follow"):
        Verdict.from_dict(forged)
    incomplete = diagnose(HEALTHY, accuracy=0.6)
    with pytest.raises(FauditError, match="does not follow"):
        incomplete.replace(outcome="PASS", codes=())


def test_non_finite_evidence_withdraws_every_finding() -> None:
    result = diagnose(BROKEN.replace(state_norm=(1.0, nan, 1.0)), accuracy=0.1, frozen_accuracy=0.4)
    assert str(result) == "INVALID(non-finite state h_1)"
    assert all(f.flagged is None for f in result.findings)
    assert Verdict.from_json(result.to_json()) == result


def test_accuracies_fall_back_in_order() -> None:
    def accuracy(**given: object) -> float:
        result = diagnose(HEALTHY.replace(accuracy=0.9), frozen_accuracy=0.1, **given)
        return result.finding("D3").details["accuracy"]

    right = [True, True, False, False]
    assert accuracy() == 0.9
    assert accuracy(accuracy=0.7) == 0.7
    assert accuracy(correct=right) == 0.5
    assert accuracy(seeds={1: (0.2, 0.1), 2: (0.4, 0.1)}) == pytest.approx(0.3)
    with pytest.raises(FauditError, match="by its examples; give one of them"):
        accuracy(accuracy=0.7, correct=right)
    assert accuracy(accuracy=0.5, correct=right) == 0.5


def test_seeds_and_a_number_that_contradict_each_other_are_refused() -> None:
    seeds = {1: (0.3, 0.35), 2: (0.3, 0.35), 3: (0.3, 0.35)}
    with pytest.raises(FauditError, match=r"0\.9 by its number, 0\.3 by its seeds"):
        diagnose(HEALTHY, accuracy=0.9, frozen_accuracy=0.35, seeds=seeds)
    with pytest.raises(FauditError, match=r"frozen_accuracy is 0\.1 by its number"):
        diagnose(HEALTHY, accuracy=0.3, frozen_accuracy=0.1, seeds=seeds)
    assert str(diagnose(HEALTHY, accuracy=0.3, frozen_accuracy=0.35, seeds=seeds)) == "FAIL(D3)"


def test_the_evidences_own_accuracy_is_named_and_counts_its_samples() -> None:
    few = HEALTHY.replace(samples=4, accuracy=1.0)
    found = diagnose(few, frozen_accuracy=0.3)
    finding = found.finding("D3")
    assert "accuracy 1.000 on the evidence's 4 samples" in finding.reason
    assert "low" in finding.details
    flags = {flag.code: flag.message for flag in found.flags}
    assert "accuracies from 4 examples" in flags["too-few-samples"]
    given = diagnose(few, accuracy=1.0, frozen_accuracy=0.3).finding("D3")
    assert "evidence" not in given.reason


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"flagged": False}, "finding D1 is ok, which 1004 beside 50 is not"),
        ({"flagged": False, "threshold": 2000.0}, "finding D1 has limit 2000, the thresholds 50"),
    ],
)
def test_a_finding_follows_from_its_own_numbers(change, message) -> None:
    true = diagnose(BROKEN, accuracy=0.6, frozen_accuracy=0.3).to_dict()
    forged = {**true, "outcome": "PASS", "codes": []}
    forged["findings"] = [{**true["findings"][0], **change}, *true["findings"][1:]]
    with pytest.raises(FauditError, match=message):
        Verdict.from_dict(forged)


def test_a_check_has_one_finding() -> None:
    bad = diagnose(BROKEN, accuracy=0.1, frozen_accuracy=0.3).to_dict()
    good = diagnose(HEALTHY, accuracy=0.6, frozen_accuracy=0.3).to_dict()
    forged = {**good, "findings": [*bad["findings"], *good["findings"]]}
    with pytest.raises(FauditError, match="finding D1 is given twice"):
        Verdict.from_dict(forged)


def test_examples_give_a_paired_interval_and_accuracies_a_wider_or_none() -> None:
    rng = np.random.default_rng(0)
    frozen = rng.random(4000) < 0.3
    trained = frozen | (rng.random(4000) < 0.1)
    paired = diagnose(HEALTHY, correct=trained, frozen_correct=frozen).finding("D3")
    means = {"accuracy": trained.mean(), "frozen_accuracy": frozen.mean()}
    unpaired = diagnose(HEALTHY, **means, test_samples=4000).finding("D3")
    bare = diagnose(HEALTHY, **means).finding("D3")
    assert paired.value == pytest.approx(unpaired.value)
    width = {f: f.details["high"] - f.details["low"] for f in (paired, unpaired)}
    assert width[paired] < width[unpaired]
    assert "low" not in bare.details
    assert "paired bootstrap" in paired.reason
    assert "unpaired" in unpaired.reason


def test_three_seeds_are_shown_and_not_resampled() -> None:
    seeds = {42: (0.30, 0.35), 123: (0.31, 0.35), 456: (0.305, 0.347)}
    finding = diagnose(HEALTHY, seeds=seeds).finding("D3")
    assert [k for k in finding.details if k.startswith("seed")] == [
        "seed 42",
        "seed 123",
        "seed 456",
    ]
    assert "low" not in finding.details
    assert finding.details["accuracy"] == pytest.approx(0.305)


@pytest.mark.parametrize(
    ("given_values", "message"),
    [
        ({"accuracy": 30.6}, "accuracy is 30.6; .* use 0.306"),
        ({"accuracy": 0.3, "frozen_accuracy": 34.9}, "frozen_accuracy is 34.9; .* use 0.349"),
        ({"accuracy": -0.1}, "accuracy is -0.1"),
        ({"accuracy": nan}, "accuracy is nan"),
        ({"bp_accuracy": 61.0}, "bp_accuracy is 61"),
        ({"correct": [1, 0], "frozen_correct": [1]}, "2 examples and frozen_correct 1"),
        ({"correct": [0.2, 0.5]}, "labels first"),
        ({"seeds": {1: (30.0, 0.2)}}, "accuracy of seed 1"),
        ({"seeds": {1: (0.3,)}}, "seed 1: give"),
        ({"seeds": {1: 0.3}}, "seed 1: give"),
        ({"seeds": [(0.3, 0.2)]}, "seeds is of type list; give {seed:"),
        ({"accuracy": "0.3"[:0]}, "accuracy is ''; give a fraction"),
        ({"accuracy": "high"}, "accuracy is 'high'; give a fraction"),
        ({"accuracy": [0.3]}, "give a fraction"),
        ({"thresholds": {"growth": 50}}, "thresholds is of type dict; give Thresholds"),
        ({"accuracy": 0.3, "frozen_accuracy": 0.3, "test_samples": 0}, "test_samples is 0"),
    ],
)
def test_impossible_inputs_are_refused_with_what_would_fix_them(
    given_values: dict[str, object], message: str
) -> None:
    with pytest.raises(FauditError, match=message):
        diagnose(HEALTHY, **given_values)


@pytest.mark.parametrize("evidence", [None, {}, HEALTHY.to_dict(), 0.3])
def test_only_evidence_is_judged(evidence: object) -> None:
    with pytest.raises(FauditError, match=r"evidence is of type .*; measure\(\) makes it"):
        diagnose(evidence, accuracy=0.3)  # type: ignore[arg-type]


def test_thresholds_follow_the_dtype_unless_given() -> None:
    weak = HEALTHY.replace(dtype="float16", reference_norm=(1.0, 1.0, 128 * 1e-6))
    assert diagnose(weak).finding("D2").flagged is True
    assert diagnose(weak, thresholds=Thresholds()).finding("D2").flagged is False
    assert diagnose(weak.replace(dtype="float32")).finding("D2").flagged is False
    with pytest.raises(FauditError, match="unknown dtype"):
        diagnose(weak.replace(dtype="int8"))


def test_the_sub_mode_is_named_only_under_mode_one() -> None:
    drift = {"stability": 0.53}
    assert diagnose(BROKEN.replace(**drift)).sub_mode == "drift-dominated"
    assert "drift-dominated" in diagnose(BROKEN.replace(**drift)).explain()
    assert diagnose(HEALTHY.replace(**drift)).sub_mode is None
    assert diagnose(BROKEN).sub_mode is None


def test_hostile_text_stays_text() -> None:
    result = diagnose(HEALTHY.replace(nonfinite="<img src=x>\x1b[31m\n"))
    assert "\x1b" not in str(result)
    assert "\n" not in str(result)
    assert "<img" not in result._repr_html_()


def test_the_summary_quotes_the_evidence() -> None:
    result = diagnose(HEALTHY.replace(gamma=0.1), accuracy=0.5, frozen_accuracy=0.3)
    summary = result.evidence_summary
    assert (summary["gamma"], summary["growth"], summary["accuracy"]) == (0.1, 1.3, 0.5)
    assert "deep_cosine" not in summary  # not measured is absent, not NaN
