"""Every pitfall, run: the wrong number is wrong, the right one right, whatever the seed."""

from __future__ import annotations

import re
from math import isfinite
from pathlib import Path

import pytest
import torch

from faudit.errors import FauditError
from faudit.pitfalls import PITFALLS, Pitfall, reproduce

PAGE = Path(__file__).parent.parent / "docs" / "pitfalls.md"
TWELVE = 12


@pytest.fixture(scope="module", params=[0, 3], ids="seed {}".format)
def found(request: pytest.FixtureRequest) -> dict[str, Pitfall]:
    return {pitfall.code: pitfall for pitfall in reproduce(seed=request.param)}


def test_all_twelve_are_there(found: dict[str, Pitfall]) -> None:
    assert len(PITFALLS) == TWELVE
    assert list(found) == list(PITFALLS)
    for code, pitfall in found.items():
        assert pitfall.code == code
        assert isfinite(pitfall.wrong)
        assert isfinite(pitfall.right)
        assert pitfall.wrong != pytest.approx(pitfall.right, rel=0.05, abs=1e-12)


def test_norm_minus_one(found: dict[str, Pitfall]) -> None:
    pitfall = found["norm-minus-one"]
    assert pitfall.wrong < 1e-3 * pitfall.right
    assert 0.5 < pitfall.right < 2.0


def test_cosine_clamp(found: dict[str, Pitfall]) -> None:
    pitfall = found["cosine-clamp"]
    size = pitfall.details["‖g_L‖"]
    assert pitfall.right == pytest.approx(1.0)
    # Both norms are raised to 1e-8, so the cosine of g with itself is (|g| / 1e-8) squared.
    assert pitfall.wrong == pytest.approx((size / 1e-8) ** 2, rel=0.5)


def test_fp16_underflow(found: dict[str, Pitfall]) -> None:
    pitfall = found["fp16-underflow"]
    assert pitfall.wrong == 0.0
    assert pitfall.right > 1e-9
    assert pitfall.details["in bfloat16"] == pytest.approx(pitfall.right, rel=0.1)


def test_foreign_feedback(found: dict[str, Pitfall]) -> None:
    pitfall = found["foreign-feedback"]
    details = pitfall.details
    assert pitfall.right > 0.15
    assert details["z"] > 3
    assert abs(details["null mean"]) < 0.1
    assert abs(pitfall.wrong - details["null mean"]) < 4 * details["null std"]


def test_aggregation(found: dict[str, Pitfall]) -> None:
    values = found["aggregation"].details.values()
    spread = max(values) / max(min(map(abs, values)), 1e-9)
    assert spread > 2.5 or min(values) < 0 < max(values)
    assert found["aggregation"].wrong == max(values)


def test_first_layer(found: dict[str, Pitfall]) -> None:
    pitfall = found["first-layer"]
    layers = list(pitfall.details.values())
    assert layers[0] > 0.3
    assert all(abs(value) < 0.25 for value in layers[1:])
    assert pitfall.wrong == pytest.approx(sum(layers) / len(layers))
    assert pitfall.right == pytest.approx(sum(layers[1:]) / len(layers[1:]))
    assert pitfall.wrong > pitfall.right + 0.05


def test_missing_rule_state(found: dict[str, Pitfall]) -> None:
    pitfall = found["missing-rule-state"]
    assert pitfall.wrong == pytest.approx(1.0)
    # The reloaded state gives what the run's own rule gave, up to the other half of the samples.
    assert pitfall.right == pytest.approx(found["foreign-feedback"].right, abs=0.05)


@pytest.mark.parametrize("code", ["other-batch", "train-mode"])
def test_backpropagation_agrees_with_itself_only_on_equal_terms(
    found: dict[str, Pitfall], code: str
) -> None:
    assert found[code].right == pytest.approx(1.0)
    assert found[code].wrong < 0.5


def test_unmatched_baseline(found: dict[str, Pitfall]) -> None:
    pitfall = found["unmatched-baseline"]
    details = pitfall.details
    assert pitfall.wrong > 10
    assert pitfall.right < 5
    gained = 100 * (details["frozen, matched"] - details["frozen, short"])
    assert pitfall.wrong - pitfall.right == pytest.approx(gained)


def test_normalised_scale(found: dict[str, Pitfall]) -> None:
    pitfall = found["normalised-scale"]
    assert pitfall.wrong == pytest.approx(1.0, abs=0.01)
    assert pitfall.right > 10


def test_no_null(found: dict[str, Pitfall]) -> None:
    pitfall = found["no-null"]
    assert pitfall.wrong > 0.5
    assert pitfall.details["gain of BP"] > 0.5
    assert pitfall.right == pytest.approx(pitfall.wrong - pitfall.details["gain of BP"])


# -- as a whole -----------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["norm-minus-one", "train-mode", "first-layer"])
def test_a_pitfall_is_a_function_of_its_seed(code: str) -> None:
    before = torch.random.get_rng_state()
    first, again, other = (PITFALLS[code](seed) for seed in (1, 1, 2))
    assert first == again
    assert (first.wrong, first.right) != (other.wrong, other.right)
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_pitfall_survives_json() -> None:
    (pitfall,) = reproduce(["cosine-clamp"])
    assert Pitfall.from_json(pitfall.to_json()) == pitfall


def test_the_text_shows_both_numbers_and_the_fix() -> None:
    (pitfall,) = reproduce(["norm-minus-one"])
    text = str(pitfall)
    assert f"{pitfall.wrong:.3g} by g.norm(-1)" in text
    assert f"{pitfall.right:.3g} by g.norm(dim=-1)" in text
    assert f"Fix: {pitfall.fix}" in text
    assert "\n" not in pitfall.fix


def test_a_notebook_shows_both_numbers_and_no_markup_of_others() -> None:
    (pitfall,) = reproduce(["norm-minus-one"])
    html = pitfall.replace(title="<b>", wrong_way="<script>")._repr_html_()
    assert f"{pitfall.wrong:.3g}" in html
    assert f"{pitfall.right:.3g}" in html
    assert "<b>" not in html
    assert "<script>" not in html


def test_wrong_use_is_an_error() -> None:
    with pytest.raises(FauditError, match="unknown pitfall 'norm'"):
        reproduce(["norm"])
    with pytest.raises(FauditError, match="seed is -1"):
        reproduce(["norm-minus-one"], seed=-1)


def test_every_pitfall_has_its_section() -> None:
    sections = re.findall(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [s for s in sections if s in PITFALLS] == list(PITFALLS)
    (pitfall,) = reproduce(["other-batch"])
    assert pitfall.anchor == "docs/pitfalls.md#other-batch"
