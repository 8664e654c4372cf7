"""Kept audits: what was found of somebody's own model is all there in its bundle."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import faudit
from faudit import cli
from faudit.bundle import Bundle
from faudit.errors import DataError, FauditError, NetworkError
from faudit.report import read
from faudit.report.card import make_card
from faudit.report.template import template
from faudit.studies.audit import Audit
from faudit.studies.judging import judge_bundle

X, XT = (torch.randn(n, 8, generator=torch.Generator().manual_seed(n)) for n in (256, 129))
Y, YT = X[:, :3].argmax(1), XT[:, :3].argmax(1)
SHORT = faudit.Training(epochs=1, batch=64)


class Mine(nn.Module):
    """A network that faudit has never heard of, with tied weights and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 8)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 8), nn.Tanh()) for _ in range(2)
        )
        self.layers[1][1].weight = self.layers[0][1].weight
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for layer in self.layers:
            h = layer(h)
        return self.head(h)


def audited(folder: Path | None, model: nn.Module | None = None, **options: Any) -> Audit:
    torch.manual_seed(0)
    options = {"rule": "dfa", "training": SHORT, "blocks": "layers", **options}
    return faudit.audit(model or Mine(), (X, Y), (XT, YT), keep=folder, **options)


def test_the_bundle_gives_the_audits_verdict(tmp_path: Path) -> None:
    result = audited(tmp_path / "mine", seed=3)
    found = Bundle.load(tmp_path / "mine")
    assert judge_bundle(found).verdict == result.verdict
    assert found.evidence == result.evidence
    assert found.outcome.accuracy == result.trained.accuracy
    assert found.outcome.correct_examples().tolist() == result.trained.correct.tolist()
    assert found.baseline is not None
    assert found.baseline.accuracy == result.frozen.accuracy
    assert (found.recipe.network.name, found.recipe.rule.name) == ("Mine", "dfa")
    assert (found.recipe.seed, found.recipe.training) == (3, SHORT)


def test_the_bundle_holds_the_weights_and_the_rules_state(tmp_path: Path) -> None:
    model = Mine()
    rule = faudit.make_rule("dfa", faudit.Network.of(model, "layers").layout(X), seed=1, scale=2.0)
    audited(tmp_path / "mine", model, rule=rule, name="my net")
    found = Bundle.load(tmp_path / "mine")
    weights, state = found.weights(), found.rule_state()
    assert all(torch.equal(t, weights[name]) for name, t in model.state_dict().items())
    assert all(torch.equal(t, state[name]) for name, t in rule.state_dict().items())
    assert found.recipe.network.name == "my net"
    assert dict(found.recipe.rule.options) == {"scale": 2.0}


def test_keeping_changes_nothing_that_is_found(tmp_path: Path) -> None:
    kept, plain = audited(tmp_path / "mine"), audited(None)
    assert (kept.verdict, kept.evidence) == (plain.verdict, plain.evidence)


def test_seeds_of_one_model_share_a_row_of_the_report(tmp_path: Path) -> None:
    for seed in (1, 2):
        audited(tmp_path / f"mine-{seed}", seed=seed)
    audited(tmp_path / "other", rule=None)
    (setting,) = read(tmp_path).settings
    assert {group.label: len(group.runs) for group in setting.methods} == {"DFA": 2, "unnamed": 1}
    assert re.fullmatch("Mine, own data [0-9a-f]{8}", setting.label)


@pytest.mark.parametrize("verb", ["report", "template", "card", "verify", "measure"])
def test_the_verbs_work_on_it(verb: str, tmp_path: Path, capsys: Any) -> None:
    folder = str(tmp_path / "mine")
    audited(tmp_path / "mine")
    card = str(tmp_path / "card.json")
    words = {
        "report": ["report", folder, "--out", str(tmp_path / "page")],
        "template": ["template", folder],
        "card": ["card", folder, "-o", card],
        "verify": ["card", folder, "-o", card],
        "measure": ["measure", folder, "--no-again", "--json"],
    }
    assert cli.main(words[verb]) == (1 if verb == "measure" else 0)
    if verb == "verify":
        assert cli.main(["verify", card, folder]) == 0
    if verb == "report":
        page = (tmp_path / "page" / "index.html").read_text()
        assert "Mine, own data " in page
        assert "No run here left a history" in page


def test_weights_that_nobody_can_build_are_not_measured_again(tmp_path: Path, capsys: Any) -> None:
    audited(tmp_path / "mine")
    assert cli.main(["measure", str(tmp_path / "mine")]) == 2
    assert "measure --no-again, or verify without --again" in capsys.readouterr().err


def test_inputs_by_name_are_kept_apart(tmp_path: Path) -> None:
    class Named(Mine):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return super().forward(x + y)

    digests = set()
    for number in range(2):
        parts = {"x": XT, "y": XT * number}
        folder = tmp_path / str(number)
        train = ({"x": X, "y": X}, Y)
        faudit.audit(Named(), train, (parts, YT), training=SHORT, blocks="layers", keep=folder)
        digests.add(Bundle.load(folder).outcome.data)
    assert len(digests) == 2


def test_a_folder_with_something_in_it_is_refused_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("faudit.studies.audit.frozen_score", None)
    (tmp_path / "file").touch()
    with pytest.raises(FauditError, match="is there already; keep an audit in a new folder"):
        audited(tmp_path)
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(FauditError, match=f"cannot keep an audit in {place}"):
            audited(place)


class Stateful(nn.Linear):
    """A layer whose state is more than tensors."""

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": 1}

    def set_extra_state(self, state: object) -> None:
        """Nothing to do."""


def test_what_cannot_be_kept_is_refused_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("faudit.studies.audit.frozen_score", None)
    model = Mine()
    model.head = Stateful(8, 3)
    with pytest.raises(NetworkError, match=r"'head._extra_state', which is dict and no tensor"):
        audited(tmp_path / "a", model)
    with pytest.raises(FauditError, match="name"):
        audited(tmp_path / "a", name=3)


class Restless(Mine):
    """A forward that changes a weight and a buffer."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.head.weight.mul_(0.9)
            self.layers[0][0].running_mean.add_(1)
        return super().forward(x)


def test_the_weights_are_those_that_were_handed_over(tmp_path: Path) -> None:
    model = Restless()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    audited(tmp_path / "mine", model)
    kept = Bundle.load(tmp_path / "mine").weights()
    assert all(torch.equal(t, kept[name]) for name, t in before.items())


def test_a_baseline_that_exact_gradients_taught_is_not_called_matched(tmp_path: Path) -> None:
    audited(tmp_path / "told")
    audited(tmp_path / "untold", rule=None)
    told, untold = (make_card(Bundle.load(tmp_path / n)) for n in ("told", "untold"))
    assert told.baseline is not None
    assert untold.baseline is not None
    assert (told.baseline.matched, untold.baseline.matched) == (True, False)


def test_the_template_claims_nothing_that_only_the_owner_knows(tmp_path: Path) -> None:
    audited(tmp_path / "mine")
    text = template(Bundle.load(tmp_path / "mine"))
    assert "We trained Mine with DFA on TODO(data) for TODO(epochs) epochs" in text
    assert "Baseline: the same network trained for 1 epochs (AdamW" in text
    assert "[ ] Feedback saved with the weights" in text


def test_models_that_nothing_tells_apart_are_a_problem_of_the_report(tmp_path: Path) -> None:
    for number in range(2):
        torch.manual_seed(number)
        model = Mine()
        audited(tmp_path / str(number), model)
    (told,) = [p for p in read(tmp_path).problems if "different models are kept as one" in p.what]
    assert "a seed= or a name= of its own" in str(told)


def test_models_on_other_data_are_no_seeds_of_one_another(tmp_path: Path) -> None:
    audited(tmp_path / "one", seed=1)
    faudit.audit(
        Mine(), (X, Y), (XT + 1, YT), rule="dfa", training=SHORT, blocks="layers", seed=2,
        keep=tmp_path / "two",
    )  # fmt: skip
    assert len(read(tmp_path).settings) == 2


def test_tokens_are_refused_before_anything_is_trained(tmp_path: Path) -> None:
    class Tokens(Mine):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)[:, None].expand(-1, 2, -1)

    train, test = ((x, y[:, None].expand(-1, 2)) for x, y in ((X, Y), (XT, YT)))
    with pytest.raises(DataError, match="these have several labels each"):
        faudit.audit(Tokens(), train, test, training=SHORT, blocks="layers", keep=tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_the_manifest_is_whole(tmp_path: Path) -> None:
    audited(tmp_path / "mine")
    told = json.loads((tmp_path / "mine" / "manifest.json").read_text())
    assert "baseline.json" in told["files"]
