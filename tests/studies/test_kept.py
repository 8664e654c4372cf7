"""Kept audits: what was found of somebody's own model is all there in its bundle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import faudit
from faudit import cli
from faudit.bundle import Bundle
from faudit.errors import DataError, FauditError
from faudit.report import read
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
    assert setting.label == "Mine, own data, 1 epoch"


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
        assert "Mine, own data, 1 epoch" in page
        assert "No history was kept" in page


def test_weights_that_nobody_can_build_are_not_measured_again(tmp_path: Path, capsys: Any) -> None:
    audited(tmp_path / "mine")
    assert cli.main(["measure", str(tmp_path / "mine")]) == 2
    assert "--no-again judges the stored evidence" in capsys.readouterr().err


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
    for place in (tmp_path, tmp_path / "file"):
        with pytest.raises(FauditError, match="is there already; keep an audit in a new folder"):
            audited(place)


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
