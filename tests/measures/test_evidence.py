"""Evidence is a value: checked when built, exact through JSON, explicit about what is defined."""

from __future__ import annotations

import json
import subprocess
import sys
from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from faudit.errors import FauditError
from faudit.measures.evidence import PER_BLOCK, PER_STATE, SINGLE, Evidence, NullCalibration

FULL = Evidence(
    layers=2,
    samples=512,
    state_norm=(9.0, 10.0, 2000.0),
    growth=(1.1, 200.0),
    reference_norm=(0.128, 0.0128, 1.28e-8),
    cosine=(0.42, nan, -0.02),
    cosine_clamped=(0.42, 0.0, -0.001),
    deep_cosine=-0.02,
    gamma=0.2,
    cosine_aggregates={"median over layers": 0.2},
    nudging=(-1e-3, -1e-4, 1e-6),
    perturbation_controls={"random": (0.0, 0.01, 0.0), "bp": (1.0, 1.0, 1.0)},
    stability=0.16,
    null=NullCalibration(draws=20, mean=0.0, std=0.02, value=-0.02, z=-1.0),
    accuracy=0.306,
    loss=1.9,
    facts={"was_training": False, "nondeterministic_spread": nan, "buffers_changed": "bn.mean"},
    undefined={"cosine[1]": "the credit has zero norm"},
)


def any_float() -> st.SearchStrategy[float]:
    return st.floats(allow_nan=True, allow_infinity=True, allow_subnormal=True)


@st.composite
def records(draw: st.DrawFn) -> Evidence:
    layers = draw(st.integers(0, 4))
    signed = {n: draw(_layers(any_float(), layers + 1)) for n in ("cosine", "nudging")}
    norms = st.floats(min_value=0) | st.just(nan)
    return Evidence(
        layers=layers,
        samples=draw(st.integers(1, 10**6)),
        **signed,
        state_norm=draw(_layers(norms, layers + 1)),
        growth=draw(_layers(norms, layers)),
        gamma=draw(any_float()),
        loss=draw(st.none() | any_float()),
        facts=draw(st.dictionaries(st.text(), st.booleans() | any_float() | st.text())),
        cosine_aggregates=draw(st.dictionaries(st.text(), any_float())),
    )


def _layers(value: st.SearchStrategy[float], count: int) -> st.SearchStrategy[tuple[float, ...]]:
    full = st.lists(value, min_size=count, max_size=count)
    return st.one_of(st.just(()), full.map(tuple))


def same(a: float, b: float) -> bool:
    return a == b or (a != a and b != b)


@settings(max_examples=60, deadline=None)
@given(records())
def test_json_round_trip_is_exact(evidence: Evidence) -> None:
    text = evidence.to_json()
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not strict JSON"))
    again = Evidence.from_json(text)
    assert again == evidence
    assert hash(again) == hash(evidence)
    for name in (*PER_STATE, *PER_BLOCK):
        pairs = zip(getattr(evidence, name), getattr(again, name), strict=True)
        assert all(same(a, b) for a, b in pairs)
    assert {k: type(v) for k, v in again.facts.items()} == {
        k: type(v) for k, v in evidence.facts.items()
    }


@settings(max_examples=40, deadline=None)
@given(records())
def test_printing_never_fails(evidence: Evidence) -> None:
    assert str(evidence).startswith("Evidence: ")
    assert "<script" not in evidence._repr_html_().lower()
    for name, flags in evidence.defined.items():
        expected = 1 if name in SINGLE else evidence.length(name)
        assert (1 if isinstance(flags, bool) else len(flags)) == expected


def test_full_record_survives_json_and_dict() -> None:
    assert Evidence.from_json(FULL.to_json()) == FULL
    assert Evidence.from_dict(FULL.to_dict()) == FULL
    assert json.loads(json.dumps(FULL.to_dict(), allow_nan=False)) == FULL.to_dict()
    assert Evidence.from_json(FULL.to_json()).facts["nondeterministic_spread"] != 0
    assert FULL.replace(samples=513) != FULL


def test_defined_says_measured_finite_and_not_withdrawn() -> None:
    defined = FULL.defined
    assert defined["cosine"] == (True, False, True)
    assert defined["growth"] == (True, True)
    assert defined["perturbation_correlation"] == (False, False, False)
    assert defined["gamma"] is True
    assert FULL.why("cosine", 1) == "the credit has zero norm"
    assert FULL.why("perturbation_correlation", 0) == "not measured"
    overflown = Evidence(layers=1, samples=1, nudging=(inf, 0.0))
    assert overflown.why("nudging", 0) == "not finite (inf)"


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"nonfinite": "logits"}, "logits"),
        ({"state_norm": (1.0, nan, 2.0)}, "state h_1"),
        ({"reference_norm": (1.0, 1.0, inf)}, "reference g_2"),
        ({"loss": nan}, "loss"),
        ({"state_norm": (1.0, nan, 2.0), "undefined": {"state_norm[1]": "skipped"}}, None),
        ({"reference_norm": (nan,) * 3, "undefined": {"reference_norm": "no readout"}}, None),
        ({"cosine": (nan, nan, nan)}, None),
    ],
)
def test_invalid_names_the_first_number_that_must_be_finite(
    changes: dict[str, object], place: str | None
) -> None:
    assert Evidence(layers=2, samples=1, **changes).invalid == place


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layers": 2, "cosine": (0.1, 0.2)}, "cosine has 2 values; 2 blocks give 3"),
        ({"layers": 2, "growth": (0.1, 0.2, 0.3)}, "growth has 3 values; 2 blocks give 2"),
        ({"layers": 1, "perturbation_controls": {"bp": (1.0,)}}, "controls[bp] has 1 values"),
        ({"layers": -1}, "layers is -1"),
        ({"layers": 10**9}, "layers counts blocks"),
        ({"layers": 1, "samples": 0}, "samples is 0"),
        ({"layers": 1, "accuracy": 30.6}, "use 0.306"),
        ({"layers": 1, "accuracy": nan}, "accuracy is nan"),
        ({"layers": 1, "eps": 0.0}, "eps is 0"),
        ({"layers": 1, "state_norm": (1.0, -2.0)}, "a norm is never negative"),
        ({"layers": 1, "cosin": (1.0, 1.0)}, "did you mean 'cosine'"),
        ({"layers": 1, "gamma": "high"}, "gamma"),
        ({"layers": 1, "undefined": {"gama": "typo"}}, "did you mean 'gamma'"),
        ({"layers": 1, "undefined": {"cosine[x]": "typo"}}, "name[layer]"),
        ({"layers": 1, "undefined": {"cosine[2]": "too deep"}}, "a layer from 0 to 1"),
        ({"layers": 1, "gamma": 0.3, "undefined": {"gamma": "why"}}, "declared undefined but"),
    ],
)
def test_impossible_evidence_is_refused_with_a_reason(
    fields: dict[str, object], message: str
) -> None:
    with pytest.raises(FauditError) as error:
        Evidence(**{"samples": 8, **fields})
    assert message in str(error.value)


@pytest.mark.parametrize(
    "text", ["", "[]", "null", '{"layers": 1}', '{"layers": 1, "samples": {}}']
)
def test_foreign_json_is_refused(text: str) -> None:
    with pytest.raises(FauditError):
        Evidence.from_json(text)
    with pytest.raises(FauditError):
        Evidence.from_dict([1, 2])  # type: ignore[arg-type]


def test_evidence_is_frozen() -> None:
    with pytest.raises(ValidationError):
        FULL.layers = 3  # type: ignore[misc]


def test_reference_norm_follows_the_declared_reduction() -> None:
    assert FULL.reference_norm_at(128) == pytest.approx((1e-3, 1e-4, 1e-10))
    assert FULL.reference_norm_at(1) == FULL.reference_norm
    assert FULL.deepest_reference(128) == pytest.approx(1e-10)
    assert Evidence(layers=1, samples=1).deepest_reference(128) is None
    with pytest.raises(FauditError, match="at least one sample"):
        FULL.reference_norm_at(0)


def test_text_table_is_aligned_and_complete() -> None:
    lines = str(FULL).splitlines()
    head, rows = lines[1], lines[2:5]
    assert head.split() == ["l", "||h_l||", "growth", "||g_l||", "cosine", "clamped", "nudging"]
    assert {len(line) for line in (head, *rows)} == {len(head)}
    assert rows[0].split()[:3] == ["0", "9", "0.128"]  # no growth leads to h_0
    assert "undefined" in rows[1]
    assert any("zero norm" in line for line in lines)
    assert any("20 fresh draws" in line for line in lines)


def test_aggregates_stand_side_by_side_and_controls_beside_the_credit() -> None:
    found = FULL.replace(
        cosine_aggregates={"mean over layers": 0.074, "weighted by ||g||": -0.028, "other": nan},
        perturbation_controls={"random": (0.006, -0.01, nan), "bp": (0.997, 0.99, 1.0)},
    )
    for text in (str(found), found._repr_html_()):
        assert "mean over layers +0.074, weighted by ||g|| -0.028, other undefined" in text
        assert "of a random vector, from h_0 on: +0.006 -0.010 undefined" in text
        assert "of the exact gradient, from h_0 on: +0.997 +0.990 +1.000" in text
    assert "aggregated" not in str(FULL.replace(cosine_aggregates={}))


def test_foreign_text_cannot_reach_a_terminal_or_a_page() -> None:
    hostile = FULL.replace(dtype="<script>\x1b[2J", undefined={"cosine[1]": "<b>\n\x07"})
    assert "\x1b" not in str(hostile)
    assert "\x07" not in str(hostile)
    page = hostile._repr_html_()
    assert "<script>" not in page
    assert "&lt;b&gt;" in page


def test_nothing_here_imports_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import faudit.measures.evidence, faudit.protocol\n"
        "from faudit.protocol import diagnose, Case, EarlyStop, calibrate, walk_back\n"
        "e = faudit.measures.evidence.Evidence(layers=1, samples=8)\n"
        "print(diagnose(e))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "INCOMPLETE(D1+D2+D3)", done.stderr
