"""One model, one call: the baseline is really frozen, the model untouched, bad input refused."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import faudit
from faudit import FAProtocol, FauditError, Network, Training, diagnose, make_rule, measure
from faudit.networks.zoo import ResMLP
from faudit.studies.audit import frozen_score

QUICK = Training(epochs=2, batch=64, lr=3e-3)
FEW = {"training": QUICK, "perturbations": 0}


def parity(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """The parity of three signs: no random feature of so few tells it."""
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, :3] > 0).sum(1) % 2


def some(count: int = 96, seed: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    return x, torch.arange(count) % 3


def model(width: int = 8, depth: int = 2, classes: int = 3) -> ResMLP:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return ResMLP(6, width, depth, classes)


def trained(rule: str, epochs: int) -> tuple[ResMLP, faudit.CreditRule]:
    x, y = parity(2048, 1)
    network = Network.of(model(width=16, depth=2, classes=2))
    teacher = make_rule(rule, network.layout(x), seed=1)
    settings = Training(epochs=epochs, batch=64, lr=3e-3)
    learner = faudit.Learner(network, teacher, settings, x, seed=0)
    for _ in faudit.train(learner, lambda g: zip(x.split(64), y.split(64), strict=True)):
        pass
    return network.module, teacher


class Printed(nn.Module):
    """A model as the reference README asks for: .blocks, .out_head, .out_ln (or without)."""

    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(2))
        if norm:
            self.out_ln = nn.LayerNorm(8)
        self.out_head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(h)
        return self.out_head(self.out_ln(h) if hasattr(self, "out_ln") else h)


PRINTED = """
# Your trained model and a test batch
protocol = FAProtocol(model, x_eval, y_eval)
report = protocol.run()
print(report['verdict']) # 'PASS' or 'FAIL(D1+D2)' etc.
print(report['diagnostics']) # {'D1_scale_growth': ..., 'D2_ref_validity': ..., 'D3_depth_utility'}
"""


@pytest.mark.parametrize("norm", [True, False])
def test_the_reference_readmes_lines_run_as_printed(norm):
    x, y = some()
    names: dict = {"FAProtocol": faudit.FAProtocol, "model": Printed(norm)}
    names |= {"x_eval": x, "y_eval": y}
    shown = io.StringIO()
    with redirect_stdout(shown):
        exec(PRINTED, names)
    assert shown.getvalue().startswith("INCOMPLETE(D3)\n{'D1_scale_growth': {")
    report = names["report"]
    assert list(report["diagnostics"]) == ["D1_scale_growth", "D2_ref_validity", "D3_depth_utility"]
    assert [d["flagged"] for d in report["diagnostics"].values()] == [False, False, None]
    evidence = measure(names["model"], x, y)
    assert report["evidence"] == evidence.to_dict()
    assert report["diagnostics"]["D1_scale_growth"]["value"] == max(evidence.growth)


@pytest.mark.parametrize(
    ("own", "frozen", "verdict"),
    [(0.4, 0.3, "PASS"), (0.306, 0.349, "FAIL(D3)"), (None, None, "INCOMPLETE(D3)")],
)
def test_two_accuracies_supply_d3(own, frozen, verdict):
    report = FAProtocol(model(), *some(), accuracy=own, frozen_accuracy=frozen).run()
    assert report["verdict"] == verdict
    assert verdict in report["explanation"]


def test_training_data_supply_d3_too():
    network, rule = trained("bp", 12)
    train, test = parity(2048, 1), parity(512, 2)
    training = Training(epochs=2, batch=64, lr=3e-3)
    report = FAProtocol(
        network, *test, train=train, rule=rule, training=training, perturbations=0
    ).run()
    alone = faudit.audit(network, train, test, rule=rule, training=training, perturbations=0)
    assert report["verdict"] == str(alone.verdict) == "PASS"
    assert report["evidence"] == alone.evidence.to_dict()
    assert report["diagnostics"]["D3_depth_utility"]["details"]["low"] > 0.02


def test_depth_that_was_learned_passes_and_random_blocks_do_not():
    train, test = parity(2048, 1), parity(512, 2)
    network, rule = trained("bp", 12)
    good = faudit.audit(network, train, test, rule=rule, **FEW)
    assert str(good.verdict) == "PASS"
    assert good.trained.accuracy > good.frozen.accuracy + 0.1
    assert good.evidence.gamma == pytest.approx(1)
    bad = faudit.audit(model(16, 2, 2), train, test, **FEW)
    assert str(bad.verdict) == "FAIL(D3)"


def test_an_audit_is_measuring_and_judging_with_its_own_baseline():
    network, train, test = model(), some(), some(200, 1)
    found = faudit.audit(network, train, test, rule="bp", samples=130, **FEW)
    rule = make_rule("bp", Network.of(network).layout(train[0]))
    by_hand = measure(network, test[0][:130], test[1][:130], rule, perturbations=0)
    for name in ("state_norm", "growth", "reference_norm", "cosine"):
        assert getattr(found.evidence, name) == pytest.approx(getattr(by_hand, name))
    with torch.no_grad():
        right = network(test[0]).argmax(1) == test[1]
    assert torch.equal(found.trained.correct, right)
    verdict = diagnose(by_hand, correct=right.numpy(), frozen_correct=found.frozen.correct.numpy())
    assert str(verdict) == str(found.verdict)
    assert found.to_dict()["frozen_accuracy"] == found.frozen.accuracy
    assert str(found.verdict) in str(found)
    assert "<table>" in found._repr_html_()


def test_without_a_rule_nothing_is_said_of_exact_gradients():
    train, test = some(), some(1000, 1)
    found = faudit.audit(model(), train, test, **FEW)
    assert found.evidence.gamma != found.evidence.gamma
    codes = [flag.code for flag in found.verdict.flags]
    assert "unmatched-baseline" in codes
    assert "depth-ceiling" not in codes
    named = faudit.audit(model(), train, test, rule="bp", **FEW)
    assert named.frozen.accuracy == found.frozen.accuracy
    assert named.evidence.gamma == pytest.approx(1.0)
    assert "unmatched-baseline" not in [flag.code for flag in named.verdict.flags]


def test_only_the_blocks_of_the_baseline_stay_as_they_were_drawn():
    made: list[ResMLP] = []

    def fresh() -> ResMLP:
        made.append(ResMLP(6, 8, 2, 3))
        made.append(deepcopy(made[0]))
        return made[0]

    network = Network.of(model())
    rule = make_rule("dfa", network.layout(some()[0]))
    frozen_score(network, rule, some(), some(), fresh, QUICK, faudit.training.cross_entropy, 0)
    after, before = (dict(m.named_parameters()) for m in made)
    same = {name for name in after if torch.equal(after[name], before[name])}
    assert same == {name for name in after if name.startswith("blocks.")}


def test_a_rules_name_teaches_the_baseline_and_only_the_rule_itself_is_measured():
    named = faudit.audit(model(), some(), some(), rule="dfa", **FEW)
    rule = make_rule("dfa", Network.of(model()).layout(some()[0]), seed=5)
    given = faudit.audit(model(), some(), some(), rule=rule, **FEW)
    exact = faudit.audit(model(), some(), some(), rule="bp", **FEW)
    assert named.evidence.cosine == ()
    assert given.evidence.cosine != ()
    assert exact.evidence.cosine == pytest.approx((1, 1, 1))
    assert given.evidence.null is not None


def test_seeds_repeat_and_matter():
    for fresh in (None, lambda: ResMLP(6, 8, 2, 3)):
        audits = [
            faudit.audit(model(), some(), some(), fresh=fresh, seed=s, **FEW) for s in (0, 0, 1)
        ]
        first, again, other = (one.frozen.loss for one in audits)
        assert first == again != other


class Worded(nn.Module):
    """Takes its inputs by name, as language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 8)
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)) for _ in "ab")
        self.head = nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        h = self.words(input_ids)
        for layer in self.layers:
            h = layer(h)
        return self.head((h * mask[..., None]).mean(1))


def test_inputs_may_be_named():
    x = {"input_ids": torch.randint(0, 5, (60, 4)), "mask": torch.ones(60, 4)}
    data = (x, torch.arange(60) % 3)
    found = faudit.audit(Worded(), data, data, blocks="layers", **FEW)
    assert found.evidence.layers == 2
    assert found.verdict.finding("D3").flagged is not None


class Tokens(nn.Module):
    """A label for every token."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(5, 8), nn.Linear(8, 5)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)) for _ in "ab")

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


def test_the_tokens_of_a_sequence_are_one_example():
    x = torch.randint(0, 5, (60, 4))
    network, data = Tokens(), (x, (x + 1) % 5)
    found = faudit.audit(network, data, data, **FEW)
    with torch.no_grad():
        right = (network(x).argmax(-1) == data[1]).float().mean()
    assert found.trained.accuracy == pytest.approx(float(right))
    assert found.trained.correct.shape == (60, 4)
    assert "over 60 test examples" in found.verdict.finding("D3").reason
    assert found.evidence.accuracy == pytest.approx(float(right))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32])
def test_labels_may_be_whole_numbers_of_any_size(dtype):
    x, y = some()
    found = faudit.audit(model(), (x, y.to(dtype)), (x, y.to(dtype)), **FEW)
    assert found.frozen == pytest.approx(found.frozen)
    assert str(found.verdict) == str(faudit.audit(model(), (x, y), (x, y), **FEW).verdict)


X, Y = some()


def rule_of(made: ResMLP) -> faudit.CreditRule:
    return make_rule("dfa", Network.of(made).layout(X))


BAD = {
    "no pair": ({"train": X}, "give train="),
    "no data": ({"train": None}, "give train="),
    "a list": ({"test": [X, Y]}, "give train="),
    "arrays": ({"train": (X.numpy(), Y.numpy())}, "with y a tensor"),
    "an array": ({"train": (X.numpy(), Y)}, "inputs are an array"),
    "label too large": ({"train": (X, Y + 1)}, "run from 1 to 3, .* 3 classes: 0 to 2"),
    "label too large in the test": ({"test": (X, Y + 1)}, "run from 1 to 3"),
    "label below zero": ({"train": (X, Y - 1)}, "run from -1 to 1"),
    "floats": ({"train": (X, Y.float())}, "compares accuracies, .* not a float32 tensor"),
    "probabilities": ({"train": (X, torch.ones(96, 3) / 3)}, "compares accuracies"),
    "a column": ({"test": (X, Y[:, None])}, r"indices of shape \(96,\), not .* \(96, 1\)"),
    "a regression": (
        {"train": (X, X[:, 0]), "test": (X, X[:, 0]), "loss": lambda z, t: (z[:, 0] - t).square()},
        "compares accuracies, so .* give diagnose.. two accuracies of your own",
    ),
    "uneven": ({"train": (X, Y[:5])}, "do not have the same number"),
    "nothing": ({"train": (X[:0], Y[:0])}, "the batch is empty"),
    "width": ({"train": (X[:, :5], Y)}, "the forward of ResMLP fails on a float32 tensor of"),
    "width in the test": ({"test": (X[:, :5], Y)}, "the forward of ResMLP fails on"),
    "NaN": ({"train": (X * torch.nan, Y)}, "not finite in the input"),
    "rule": ({"rule": "dfaa"}, "unknown rule 'dfaa'; did you mean 'dfa'"),
    "another's rule": ({"rule": rule_of(model(10))}, "made for states of widths .10, 10, 10."),
    "rule in float64": ({"rule": rule_of(model()).double()}, "rule.to.torch.float32."),
    "a callable as rule": (
        {"rule": len},
        "not builtin_function_or_method; for credits of your own",
    ),
    "blocks": ({"blocks": "block"}, "no module 'block'; near: blocks"),
    "samples": ({"samples": 0}, "samples is 0; give a whole number from 1"),
    "fewer samples": ({"samples": -1}, "samples is -1"),
    "training": ({"training": {"epochs": 1}}, "training is of type dict"),
    "option": ({"perturbation": 3}, "unknown option 'perturbation'; did you mean 'perturbations"),
    "fresh": ({"fresh": lambda: None}, "made from a torch.nn.Module, not from None"),
    "other fresh": ({"fresh": nn.Identity}, "Identity has no module 'blocks.0'"),
    "deeper fresh": (
        {"fresh": lambda: ResMLP(6, 8, 5, 3)},
        "weight blocks.2.* is missing in the trained",
    ),
    "wider fresh": (
        {"fresh": lambda: model(10)},
        r"flat.weight is \(8, 6\) in the trained model and \(10, 6\) in the fresh one",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_and_the_model_left_alone(name):
    given, message = BAD[name]
    network = model().train()
    before, state = deepcopy(network.state_dict()), torch.get_rng_state()
    with pytest.raises(FauditError, match=message):
        faudit.audit(network, **{"train": (X, Y), "test": (X, Y), **FEW, **given})
    assert_untouched(network, before, state)


def test_an_audit_leaves_the_model_alone():
    network = model().train()
    network.flat.requires_grad_(False)
    network.out_head.weight.grad = torch.ones_like(network.out_head.weight)
    before, state = deepcopy(network.state_dict()), torch.get_rng_state()
    faudit.audit(network, some(), some(), rule="dfa", **FEW)
    assert_untouched(network, before, state)
    assert not network.flat.weight.requires_grad
    assert network.out_head.weight.requires_grad
    assert bool((network.out_head.weight.grad == 1).all())


def assert_untouched(network: nn.Module, before: dict, state: Tensor) -> None:
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(m.training for m in network.modules())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in network.modules())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile])
def test_a_fresh_model_may_be_wrapped(wrap):
    x, y = some()
    given = {"training": Training(epochs=1), "samples": 8, "perturbations": 0, "seed": np.int64(1)}
    one = faudit.audit(model(), (x, y), (x, y), fresh=model, **given)
    other = faudit.audit(model(), (x, y), (x, y), fresh=lambda: wrap(model()), **given)
    assert other.frozen.accuracy == one.frozen.accuracy


def test_the_trained_model_is_no_fresh_one():
    network = model()
    with pytest.raises(FauditError, match="fresh\\(\\) returned the trained model"):
        faudit.audit(network, some(), some(), fresh=lambda: network, **FEW)


BAD_PROTOCOL = {
    "both": ({"accuracy": 0.3, "train": (X, Y)}, "not both"),
    "test alone": ({"test": (X, Y)}, "test= scores what train= data trained"),
    "rule": ({"rule": "dffa"}, "unknown rule 'dffa'"),
    "option": ({"frozen_acc": 0.3}, "unknown option 'frozen_acc'"),
    "accuracy": ({"accuracy": 30.6, "frozen_accuracy": 0.3}, "use 0.306"),
    "label": ({"y_eval": Y + 1}, "0 to 2"),
    "blocks": ({"blocks": ["1"]}, "no module '1'"),
}


@pytest.mark.parametrize("name", BAD_PROTOCOL)
def test_a_protocol_that_cannot_run_says_why(name):
    given, message = BAD_PROTOCOL[name]
    with pytest.raises(FauditError, match=message):
        FAProtocol(**{"model": model(), "x_eval": X, "y_eval": Y, **given}).run()


class Own(nn.Module):
    """A network whose forward writes into its input, counts its calls and draws noise."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])
        self.head = nn.Linear(8, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        x.sub_(1.0)
        self.calls += 1
        h = self.stem(x)
        for block in self.blocks:
            h = torch.tanh(block(h)) + 1e-4 * torch.randn_like(h)
        return self.head(h)


def test_an_audit_leaves_data_buffers_and_random_numbers_alone():
    (x, y), network = some(), Own().train()
    kept, random = x.clone(), torch.get_rng_state()
    found = faudit.audit(network, (x, y), (x, y), **FEW)
    assert torch.equal(x, kept)
    assert torch.equal(torch.get_rng_state(), random)
    assert network.calls == 0
    assert network.training
    assert found.evidence.facts["was_training"] is True
    with torch.no_grad():
        right = (network.eval()(x.clone()).argmax(1) == y).double().mean()
    assert found.trained.accuracy == pytest.approx(float(right), abs=0.03)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_baseline_of_half_precision_is_trained_in_float32(dtype):
    (x, y), wide = some(256), model(width=16)
    slow = Training(epochs=8, batch=32, lr=1e-4)

    def audited(to: torch.dtype):
        def fresh() -> nn.Module:
            torch.manual_seed(3)
            return ResMLP(6, 16, 2, 3).to(dtype).to(to)

        data = x.to(to), y
        made = deepcopy(wide).to(to)
        return faudit.audit(made, data, data, fresh=fresh, training=slow, perturbations=0)

    half, full = audited(dtype), audited(torch.float32)
    assert half.frozen.loss == pytest.approx(full.frozen.loss, abs=4e-3)
    assert "half-precision" in [flag.code for flag in half.verdict.flags]
    assert "half-precision" not in [flag.code for flag in full.verdict.flags]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_gradients_may_be_switched_off_around_an_audit(mode):
    with mode():
        made = model()
        found = faudit.audit(made, some(), some(), **FEW)
    assert found.to_dict() == faudit.audit(model(), some(), some(), **FEW).to_dict()


def test_the_protocol_measures_on_what_it_was_given():
    x, y = some(40, seed=3)
    wide = 100 * x
    report = FAProtocol(model(), wide, y, train=some(), test=some(), **FEW).run()
    alone = measure(model(), wide, y, perturbations=0)
    assert report["evidence"]["state_norm"] == alone.to_dict()["state_norm"]
    with pytest.raises(FauditError, match="give fewer samples there"):
        FAProtocol(model(), wide, y, train=some(), samples=3)


def test_a_baseline_that_beats_exact_gradients_is_d3_at_its_ceiling():
    train, test = parity(2048, 1), parity(512, 2)

    def flags(**options):
        made = model(width=16, depth=2, classes=2)
        found = FAProtocol(made, *test, train=train, **FEW, **options).run()
        return [flag["code"] for flag in found["flags"]]

    assert "depth-ceiling" in flags(rule="dfa", bp_accuracy=0.1)
    assert "depth-ceiling" not in flags(rule="dfa", bp_accuracy=1.0)
    given = {"accuracy": 0.5, "frozen_accuracy": 0.6, "bp_accuracy": 0.55}
    report = FAProtocol(model(), *some(), **given).run()
    assert "depth-ceiling" in [flag["code"] for flag in report["flags"]]
