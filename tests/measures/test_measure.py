"""measure(): equal to its slow twin on every kind of network, and true to its identities."""

from __future__ import annotations

import gc
import math
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from faudit.errors import DataError, FauditError, NetworkError, RuleError
from faudit.measures.evidence import Evidence
from faudit.measures.measure import measure, tensor_float
from faudit.networks.scene import cross_entropy
from faudit.networks.view import Network, StagedNetwork
from faudit.networks.zoo import ResMLP, StudentNet
from faudit.protocol.diagnosis import diagnose
from faudit.protocol.flags import FACTS
from faudit.rules import RULES, make_rule
from tests import reference, toys
from tests.measures.problems import (
    PROBLEMS,
    measured,
    reporting,
    rule_for,
    some_credits,
    stacked,
    staged,
    toy,
)

every = pytest.mark.parametrize("name", PROBLEMS)


def close(found: Any, expected: Any, tolerance: float = 1e-9) -> None:
    assert found == pytest.approx(expected, rel=tolerance, abs=tolerance, nan_ok=True)


def same(one: Evidence, other: Evidence, *without: str, tolerance: float = 1e-9) -> None:
    """Two records agree in every field but those named."""
    left, right = one.to_dict(), other.to_dict()
    for name in left.keys() - set(without):
        agree(left[name], right[name], tolerance)


def agree(one: Any, other: Any, tolerance: float) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        one, other = list(one.values()), [other[key] for key in one]
    if isinstance(one, list):
        for pair in zip(one, other, strict=True):
            agree(*pair, tolerance)
    elif isinstance(one, float):
        close(one, other, tolerance)
    else:
        assert one == other


@every
def test_sizes_and_outputs_equal_their_twin(name):
    problem = PROBLEMS[name]()
    found = measured(problem, precise=False)
    for quantity, expected in reference.sizes(problem).items():
        close(getattr(found, quantity), expected)
    close(found.reference_norm_at(128), [n / 128 for n in found.reference_norm])
    if problem.loss is None:
        expected = reference.outputs(problem)
        close((found.loss, found.accuracy), (expected["loss"], expected["accuracy"]))


@every
def test_alignment_equals_its_twin(name):
    problem = PROBLEMS[name]()
    credits = some_credits(problem)
    found = measured(problem, stacked(credits), precise=False)
    for quantity, expected in reference.alignment(problem, credits).items():
        close(getattr(found, quantity), expected)
    assert all(found.defined["cosine"])
    assert found.defined["gamma"]


@every
@pytest.mark.parametrize("precise", [False, True])
def test_effects_equal_their_twin(name, precise):
    problem = PROBLEMS[name]()
    credits = some_credits(problem)
    found = measured(problem, stacked(credits), perturbations=3, seed=5, precise=precise)
    problem.module.eval()
    close(found.nudging, reference.nudging(problem, credits, eta=0.01))
    exact = [problem.gradients(s) for s in problem.samples]
    for values, told in (
        (found.perturbation_correlation, credits),
        (found.perturbation_controls["bp"], exact),
        (found.perturbation_controls["random"], _random(problem, draws=3, seed=5)),
    ):
        close(values, reference.forecasts(problem, told, 3, 1e-4, 5))


def _random(problem: reference.Problem, draws: int, seed: int) -> reference.Credits:
    layers = []
    for layer in problem.layers:
        source = np.random.default_rng((seed, layer, draws, 1))
        shape = (len(problem.y), *problem.states(0)[layer].shape[1:])
        layers.append(torch.from_numpy(source.standard_normal(shape)).split(1))
    return [list(sample) for sample in zip(*layers, strict=True)]


def test_in_a_stream_of_1e8_only_float64_sees_a_nudge():
    problem, exact = PROBLEMS["exploded"](), PROBLEMS["exploded"]()
    credits = stacked(some_credits(problem))
    problem.module.float()
    problem.x, told = problem.x.float(), [a.float() for a in credits]
    seen, lost = measured(problem, told), measured(problem, told, precise=False)
    assert seen.state_norm[-1] > 1e7
    close(seen.nudging, measured(exact, credits).nudging, 1e-4)
    assert lost.defined["nudging"] == (True, True, False, False)
    assert lost.why("nudging", 3).endswith("or the step is lost in rounding")


@pytest.mark.parametrize("rule", ["dfa", "fa", "frsf", "brsf", "kp"])
def test_the_null_equals_its_twin(rule):
    problem = PROBLEMS["resmlp"]()
    made = rule_for(problem, rule)
    drawn: list[Any] = []

    def remembering(seed: int) -> Any:
        drawn.append(type(made).fresh(made, seed))
        return drawn[-1]

    made.fresh = remembering
    found = measured(problem, made, precise=False, nulls=4).null
    told = [_of_every_sample(problem, source) for source in (made, *drawn)]
    expected = reference.null(problem, told[0], told[1:])
    close([getattr(found, n) for n in expected], list(expected.values()))
    assert found.draws == len(drawn) == 4


def _of_every_sample(problem: reference.Problem, source: Any) -> reference.Credits:
    """A rule's credits, one sample at a time."""
    found: list[list[Tensor]] = []

    def keep(scene: Any) -> list[Tensor]:
        found.append(source.credits(scene))
        return found[-1]

    for s in problem.samples:
        measure(
            problem.module,
            problem.x[s : s + 1],
            problem.y[s : s + 1],
            keep,
            precise=False,
            perturbations=0,
        )
    return found


def test_no_batch_is_kept_once_the_next_is_there():
    problem, alive = PROBLEMS["resmlp"](), []

    def loader():
        for _ in range(6):
            x = problem.x.clone()
            alive.append(weakref.ref(x))
            yield x, problem.y
            del x
            gc.collect()
            assert sum(ref() is not None for ref in alive) <= 1

    found = measure(problem.module, loader(), None, rule_for(problem), perturbations=2)
    assert found.samples == 6 * len(problem.x)


def test_no_null_without_feedback():
    problem = PROBLEMS["resmlp"]()
    assert measured(problem, rule_for(problem, "bp"), nulls=3).null is None
    assert measured(problem, stacked(some_credits(problem)), nulls=3).null is None


def test_the_null_does_not_meet_the_rule_itself():
    """Rules are made from small seeds; a null drawn from the same ones would contain the rule."""
    problem, seeds = PROBLEMS["resmlp"](), []
    for seed in range(3):
        made = rule_for(problem)
        fresh = made.fresh
        made.fresh = lambda s, fresh=fresh: seeds.append(s) or fresh(s)
        measured(problem, made, nulls=8, precise=False, seed=seed)
    assert len(set(seeds)) == len(seeds) == 24
    assert min(seeds) > 10_000


def test_stability_equals_its_twin():
    problem = staged(lambda: StudentNet(8, 4, 1, 3), 8, count=300)
    found = measured(problem, precise=False)
    close(found.stability, reference.stability(problem))
    assert found.stability_mode == "dL/dh_1, minibatches of 128"
    small = staged(lambda: StudentNet(8, 4, 1, 3), 8, count=255)
    assert measured(small).why("stability") == "needs two minibatches of 128 samples"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["resmlp", "plain", "language model"])
def test_the_reference_precision_equals_its_twin(name, dtype):
    problem, exact = PROBLEMS[name](), PROBLEMS[name]()
    for p in (problem, exact):
        p.module.to(dtype)
        p.x = p.x.to(dtype) if p.x.is_floating_point() else p.x
        p.loss = cross_entropy
    exact.module.double()
    exact.x = exact.x.double() if exact.x.is_floating_point() else exact.x
    expected = reference.precision(problem, exact)
    # one sample at a time, for a batch rounds in another order than its samples alone
    found = [measured(one) for one in _each(problem)]
    for quantity, values in expected.items():
        by_layer = zip(*(getattr(f, quantity) for f in found), strict=True)
        close([reference.mean(layer) for layer in by_layer], values, 1e-7)
    size = {torch.float32: 1e-7, torch.bfloat16: 1e-2, torch.float16: 1e-3}[dtype]
    assert all(size / 10 < n < size * 10 for n in expected["reference_noise"])
    assert found[0].dtype == str(dtype).removeprefix("torch.")


def _each(problem: reference.Problem) -> list[reference.Problem]:
    parts = zip(problem.x.split(1), problem.y.split(1), strict=True)
    return [replace(problem, x=x, y=y) for x, y in parts]


@pytest.mark.parametrize("rule", ["bp", "fa", "dfa", "usf", "kp", "sb", "cb"])
def test_autocasts_rounding_is_seen_in_the_reference(rule):
    model, x, y = ResMLP(6, 16, 2, 3), torch.randn(64, 6), torch.arange(64) % 3
    made = make_rule(rule, Network.of(model).layout(x), seed=1)
    plain = measure(model, x, y, made, perturbations=0, nulls=2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = measure(model, x, y, made, perturbations=0, nulls=2)
    assert max(plain.reference_angle) < 1e-3 < 1e-2 < min(mixed.reference_angle)
    assert mixed.cosine == pytest.approx(plain.cosine, abs=0.05)


def test_a_float64_reference_is_its_own():
    found = measured(PROBLEMS["vitmini"]())
    assert found.reference_angle == (0,) * 3 == found.reference_noise


# Identities


def batches(problem: reference.Problem, *sizes: int) -> list[tuple[Tensor, Tensor]]:
    return list(zip(problem.x.split(sizes), problem.y.split(sizes), strict=True))


@pytest.mark.parametrize("rule", [n for n in RULES if n != "ep"])
def test_batches_give_what_their_concatenation_gives(rule):
    problem = staged(lambda: ResMLP(12, 6, 2, 3), 12, count=300)
    made = rule_for(problem, rule)
    whole = measured(problem, made, perturbations=2, nulls=2)
    parts = batches(problem, 1, 150, 99, 50)
    network = Network.of(problem.module)
    split = measure(network, iter(parts), None, made, perturbations=2, nulls=2)
    same(whole, split)
    xs, ys = zip(*parts, strict=True)
    same(whole, measure(network, xs, list(ys), made, perturbations=2, nulls=2))


@pytest.mark.parametrize("name", ["resmlp", "plain", "language model", "batch norm"])
def test_the_order_of_the_samples_changes_no_mean(name):
    problem = PROBLEMS[name]()
    made = rule_for(problem)
    straight = measured(problem, made)
    order = torch.tensor([*problem.samples]).flip(0)
    problem.x, problem.y = problem.x[order], problem.y[order]
    same(straight, measured(problem, made))


def test_the_order_of_the_samples_changes_a_correlation_within_its_error():
    problem = staged(lambda: ResMLP(12, 6, 2, 3), 12, count=256)
    made = rule_for(problem)
    straight = measured(problem, made, perturbations=8)
    problem.x, problem.y = problem.x.flip(0), problem.y.flip(0)
    turned = measured(problem, made, perturbations=8)
    error = 5 / math.sqrt(256 * 8)
    close(turned.perturbation_correlation, straight.perturbation_correlation, error)


@pytest.mark.parametrize("name", ["resmlp", "plain", "language model", "regression"])
def test_a_batch_twice_changes_no_value_per_sample(name):
    problem = PROBLEMS[name]()
    made = rule_for(problem)
    once = measured(problem, made)
    problem.x, problem.y = torch.cat([problem.x] * 2), torch.cat([problem.y] * 2)
    same(once, measured(problem, made), "samples")


@given(st.sampled_from([1e-6, 1e-3, 0.5, 3.0, 1e4, 1e8]))
def test_a_terminal_norm_divides_the_reference_by_the_scale(scale):
    """LN(c h) = LN(h), so dL/d(c h) = (dL/dh) / c: where the stream explodes, g_L vanishes."""
    model = toys.built(lambda: ResMLP(12, 6, 2, 3))
    model.out_ln.eps = 0.0
    for block in model.blocks:
        block.ln.eps = 0.0
    x, y = torch.linspace(-2, 2, 60, dtype=torch.float64).sin().view(5, 12), torch.arange(5) % 3
    before = measure(model, x, y, perturbations=0, precise=False)
    with torch.no_grad():
        for layer in (model.flat, *(block.w2 for block in model.blocks)):
            layer.weight.mul_(scale)
            layer.bias.mul_(scale)
    after = measure(model, x, y, perturbations=0, precise=False)
    close([n / scale for n in after.state_norm], before.state_norm)
    close([n * scale for n in after.reference_norm], before.reference_norm)
    close(after.growth, before.growth)
    close(after.loss, before.loss)


class Turned(nn.Module):
    """A StudentNet whose states are seen in another orthonormal basis."""

    def __init__(self, model: StudentNet, basis: Tensor) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Flatten(), model.flat, _linear(basis))
        self.blocks = nn.ModuleList(
            nn.Sequential(_linear(basis.T), block, _linear(basis)) for block in model.blocks
        )
        self.head = nn.Sequential(_linear(basis.T), model.out_head)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


def _linear(matrix: Tensor) -> nn.Linear:
    layer = nn.Linear(len(matrix), len(matrix), bias=False).double()
    layer.weight = nn.Parameter(matrix.clone())
    return layer


def test_another_basis_of_the_states_changes_no_cosine():
    problem = staged(lambda: StudentNet(8, 6, 3, 3), 8)
    credits = stacked(some_credits(problem))
    plain = measured(problem, credits, precise=False)
    generator = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64)).Q
    turned = measure(
        Turned(problem.module, basis).eval(),
        problem.x,
        problem.y,
        [a @ basis.T for a in credits],
        perturbations=0,
        precise=False,
    )
    same(plain, turned)


@given(st.floats(0.1, 10.0), st.integers(0, 50))
def test_the_length_of_a_credit_changes_no_cosine(scale, seed):
    problem = PROBLEMS["plain"]()
    credits = stacked(some_credits(problem, seed))
    one = measured(problem, credits, precise=False)
    other = measured(problem, [scale * a for a in credits], precise=False)
    same(one, other, "cosine_aggregates", "cosine_clamped")
    opposite = measured(problem, [-a for a in credits], precise=False)
    close(opposite.cosine, [-c for c in one.cosine])


def test_the_seed_decides_the_perturbations_and_the_null():
    problem = PROBLEMS["resmlp"]()
    made = rule_for(problem)
    options = {"perturbations": 3, "nulls": 3}
    first, again, other = (measured(problem, made, seed=s, **options) for s in (0, 0, 1))
    assert first == again
    assert first.perturbation_correlation != other.perturbation_correlation
    assert first.null.mean != other.null.mean


# Rules


@pytest.mark.parametrize("name", RULES)
def test_every_rule_is_measured(name):
    problem = staged(lambda: ResMLP(12, 6, 3, 3), 12, count=64)
    found = measured(problem, rule_for(problem, name), perturbations=4, nulls=3)
    assert all(found.defined["cosine"])
    assert all(found.defined["nudging"])
    assert all(found.defined["perturbation_correlation"])
    assert found.defined["gamma"]
    assert found.defined["deep_cosine"]
    assert (found.null is not None) == RULES[name].has_feedback
    assert found.invalid is None
    assert set(found.facts) <= set(FACTS)
    assert Evidence.from_json(found.to_json()) == found


def test_exact_credit_is_exact():
    problem = staged(lambda: ResMLP(12, 6, 3, 3), 12, count=64)
    found = measured(problem, rule_for(problem, "bp"), perturbations=8)
    close(found.cosine, [1.0] * 4)
    close((found.gamma, found.deep_cosine), (1.0, 1.0))
    close(list(found.cosine_aggregates.values()), [1.0] * 6)
    assert all(change < 0 for change in found.nudging)
    close(found.perturbation_correlation, found.perturbation_controls["bp"])


def test_the_controls_are_what_they_are_called():
    problem = staged(lambda: ResMLP(12, 16, 2, 3), 12, count=512)
    found = measured(problem, perturbations=8)
    assert all(r > 0.999 for r in found.perturbation_controls["bp"])
    assert all(abs(r) < 5 / math.sqrt(512 * 8) for r in found.perturbation_controls["random"])
    assert found.why("perturbation_correlation", 0) == "not measured"


def test_equilibrium_propagation_says_how_far_it_settled():
    problem = PROBLEMS["resmlp"]()
    early = measured(problem, rule_for(problem, "ep"))
    late = measured(problem, rule_for(problem, "ep", settle="converged", beta=1e-3))
    assert late.facts["ep_residual"] < 0.01 < early.facts["ep_residual"]
    close(late.cosine, [1.0] * 4, 1e-3)


def test_the_worst_batch_speaks_for_a_relaxation():
    problem = PROBLEMS["resmlp"]()
    made = rule_for(problem, "ep")
    parts = batches(problem, 2, 3)
    alone = [measure(problem.module, *p, made).facts["ep_residual"] for p in parts]
    for order in (parts, parts[::-1]):
        together = measure(problem.module, order, None, made).facts["ep_residual"]
        assert together == pytest.approx(max(alone))


def test_a_clamped_embedding_has_no_direction():
    problem = PROBLEMS["resmlp"]()
    found = measured(problem, rule_for(problem, "ep", embedding="clamped"), perturbations=2)
    assert found.defined["cosine"] == (False, True, True, True)
    assert found.why("cosine", 0) == "the credit is zero at every sample"
    assert found.defined["deep_cosine"]
    assert found.why("gamma").endswith("cosine[0] has no meaning")
    assert found.defined["nudging"] == (False, True, True, True)
    assert found.defined["perturbation_correlation"] == (False, True, True, True)
    assert found.facts["zero_credit_layers"] == "h_0"
    assert found.cosine_clamped[0] == 0.0
    assert found.cosine_aggregates["deep layers"] == found.deep_cosine
    assert math.isnan(found.cosine_aggregates["mean over layers"])


def test_a_layer_without_credit_adds_nothing_to_the_concatenation():
    problem = PROBLEMS["resmlp"]()
    credits = some_credits(problem)
    for told in credits:
        told[0].zero_()
    expected = reference.alignment(problem, credits)["cosine_aggregates"]
    found = measured(problem, stacked(credits)).cosine_aggregates
    for name in ("layers concatenated", "deep layers"):
        close(found[name], expected[name])


def test_a_network_that_only_reports_is_measured():
    problem = reporting()
    credits = some_credits(problem)
    found = measured(problem, stacked(credits), perturbations=2)
    for quantity, expected in (
        *reference.sizes(problem).items(),
        *reference.alignment(problem, credits).items(),
    ):
        close(getattr(found, quantity), expected)
    assert found.why("nudging", 0) == "the network only reports its states; none can be moved"
    assert found.reference_angle == (0,) * 4


# What it notices


def test_it_says_what_it_was_handed():
    problem = PROBLEMS["dropout"]()
    assert measured(problem).facts["was_training"] is True
    assert measured(problem).facts["nondeterministic_spread"] == 0.0
    problem.module.eval()
    problem.module.blocks[0].train()
    assert measured(problem).facts["was_training"] is True
    problem.module.eval()
    assert measured(problem).facts["was_training"] is False


class Noisy(toys.Step):
    def forward(self, h: Tensor) -> Tensor:
        return super().forward(h) + 0.1 * torch.randn_like(h)


def test_noise_in_eval_mode_is_noticed_and_repeatable():
    problem = toy(lambda: toys.Plain(Noisy))
    for credits in (None, rule_for(problem)):
        found = measured(problem, credits)
        assert found.facts["nondeterministic_spread"] > 1e-3
        assert found == measured(problem, credits)
        assert found != measured(problem, credits, seed=1)
        codes = [flag.code for flag in diagnose(found).flags]
        assert "non-deterministic" in codes


class Feedback(torch.autograd.Function):
    """A linear map whose backward pass uses a matrix of its own, as alignment libraries have it."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, matrix: Tensor) -> Tensor:
        ctx.save_for_backward(matrix)
        return h @ weight.T

    @staticmethod
    def backward(ctx: Any, credit: Tensor) -> Any:
        return credit @ ctx.saved_tensors[0], None, None


class FeedbackStep(toys.Step):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.randn(4, 4))

    def forward(self, h: Tensor) -> Tensor:
        return Feedback.apply(torch.tanh(h), self.linear.weight, self.matrix)


def test_a_backward_pass_that_is_not_the_forwards_own_fails_its_control():
    x, y = toys.batch(200)
    for make, fails in ((FeedbackStep, True), (toys.Step, False)):
        found = measure(toys.built(lambda make=make: toys.Plain(make)), x, y)
        assert (min(found.perturbation_controls["bp"][:2]) < 0.9) == fails
        assert ("control-fails" in [f.code for f in diagnose(found).flags]) == fails


class Mixing(toys.Step):
    """BatchNorm without statistics of its own: every sample sees the others."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4, track_running_stats=False)

    def forward(self, h: Tensor) -> Tensor:
        return super().forward(self.norm(h))


@pytest.mark.parametrize("count", [2, 3, 40])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("precise", [False, True])
def test_samples_that_depend_on_each_other_are_noticed(count, dtype, precise):
    x, y = toys.batch(count, dtype=dtype)
    for make, depends in ((Mixing, True), (toys.Step, False), (toys.NormStep, False)):
        model = toys.built(lambda make=make: toys.Plain(make)).to(dtype)
        found = measure(model, x, y, perturbations=0, precise=precise)
        assert (found.facts.get("batch_spread", 0) > 1e-2) == depends
        assert ("batch-dependent" in [f.code for f in diagnose(found).flags]) == depends


class SumOutside(toys.Plain):
    """A forward that adds the residual itself, so that its blocks return updates."""

    def apply_block(self, block, h):
        return h + block(h)


class BetweenBlocks(toys.Plain):
    """A forward with layers between its blocks, and no way around one."""

    def apply_block(self, block, h):
        return torch.relu(block(h)) + 1


@pytest.mark.parametrize("kind", [SumOutside, BetweenBlocks, toys.Plain, toys.Stages])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_way_around_the_blocks_is_noticed(kind, dtype):
    x, y = toys.batch(20, dtype=dtype)
    model = toys.built(lambda: kind(depth=3)).to(dtype).requires_grad_(False)
    found = measure(model, x, y, perturbations=0)
    around = kind is SumOutside
    told = "'blocks.2', the readout"  # what entered the first block is no state to the forward
    assert found.facts.get("detours", "") == (told if around else "")
    assert ("around-blocks" in [f.code for f in diagnose(found).flags]) == around


def test_a_forward_for_one_number_of_samples_is_measured():
    class Fixed(toys.Plain):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x.view(5, 4))

    model, (x, y) = toys.built(Fixed), toys.batch(5)
    assert measure(model, x, y) == measure(toys.built(toys.Plain), x, y)


@pytest.mark.parametrize("count", [2, 6])
def test_as_many_steps_as_samples_do_not_pass_for_samples(count):
    class TimeFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = x.transpose(0, 1)
            for block in self.blocks:
                h = torch.tanh(block(h))
            return self.head(h[-1])

    y = torch.arange(count) % 3
    with pytest.raises(NetworkError, match="both must have the samples first"):
        measure(TimeFirst(), torch.randn(count, count, 4), y)


def test_probabilities_are_noticed():
    problem = toy(toys.Plain)
    problem.module.head = nn.Sequential(problem.module.head, nn.Softmax(1))
    assert measured(problem).facts["softmax_like"] is True
    assert measured(toy(toys.Plain)).facts["softmax_like"] is False


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("make", [lambda: ResMLP(12, 6, 2, 3), lambda: StudentNet(12, 6, 2, 3)])
def test_a_broken_weight_is_named(make, value):
    names = [name for name, _ in make().named_parameters()]
    for name in names:
        problem = staged(make, 12)
        with torch.no_grad():
            problem.module.get_parameter(name).view(-1)[0] = value
        found = measured(problem, rule_for(problem), nulls=2, perturbations=2)
        assert found.nonfinite == f"weight {name}"
        verdict = diagnose(found, accuracy=0.6, frozen_accuracy=0.3)
        assert str(verdict) == f"INVALID(non-finite weight {name})"


def test_other_numbers_that_are_not_finite_are_named():
    problem = PROBLEMS["resmlp"]()
    problem.x[3, 2] = math.nan
    found = measured(problem, rule_for(problem))
    assert found.nonfinite == "input"
    assert diagnose(found).outcome == "INVALID"
    assert found.why("cosine", 1) == "the credit is not finite"
    assert Evidence.from_json(found.to_json()) == found

    problem = PROBLEMS["batch norm"]()
    problem.module.blocks[0].norm.running_mean[0] = math.nan
    assert measured(problem).nonfinite == "buffer blocks.0.norm.running_mean"

    problem = PROBLEMS["resmlp"]()
    problem.module.half()
    problem.x = problem.x.half()
    with torch.no_grad():
        problem.module.blocks[1].w2.weight.fill_(6e4)
    assert measured(problem).nonfinite == "state h_2"


def test_a_credit_that_is_not_finite_is_no_low_cosine():
    problem = PROBLEMS["resmlp"]()
    credits = stacked(some_credits(problem))
    credits[1][0] = math.nan
    found = measured(problem, credits)
    assert found.why("cosine", 1) == "the credit is not finite"
    assert found.defined["cosine"] == (True, False, True, True)
    assert not found.defined["deep_cosine"]
    assert found.invalid is None


def test_samples_without_a_direction_are_left_out():
    problem = PROBLEMS["resmlp"]()
    credits = some_credits(problem)
    expected = reference.alignment(problem, credits)["cosine"]
    with_zero = [*credits, [torch.zeros_like(a) for a in credits[0]]]
    problem.x, problem.y = (torch.cat([t, t[:1]]) for t in (problem.x, problem.y))
    close(measured(problem, stacked(with_zero)).cosine, expected)


def test_a_dead_state_has_no_growth():
    problem = toy(toys.Plain)
    nn.init.zeros_(problem.module.stem.weight)
    nn.init.zeros_(problem.module.stem.bias)
    found = measured(problem)
    assert found.why("growth", 0) == "the state before the block is zero, or not finite"
    assert found.defined["growth"][1]


class Insisting(toys.Plain):
    """A forward that insists on float32."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x.float())


class Unique(toys.Plain):
    """A module that cannot be copied."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("there is only one of me")


@pytest.mark.parametrize(("make", "why"), [(Insisting, "does not run"), (Unique, "cannot be cop")])
def test_a_float64_reference_that_cannot_be_had_says_why(make, why):
    problem = toy(make)
    problem.module.float()
    problem.x = problem.x.float()
    found = measured(problem, rule_for(problem), perturbations=2)
    assert found.reference_angle == ()
    assert why in found.why("reference_angle", 0)
    assert why in found.why("reference_noise", 2)
    assert all(found.defined["nudging"])
    assert "reference_angle undefined: the" in str(found)


class Remembering(toys.Step):
    """A block that keeps what it computed."""

    def forward(self, h: Tensor) -> Tensor:
        self.last = super().forward(h)
        return self.last


def test_a_module_that_keeps_activations_has_a_float64_reference_too():
    model, (x, y) = toys.built(lambda: toys.Plain(Remembering)).float(), toys.batch()
    plain = measure(model, x.float(), y)
    model(x.float()).sum().backward()
    assert measure(model, x.float(), y) == plain
    assert all(plain.defined["reference_angle"])


# What it takes, and what it refuses


def test_labels_may_be_of_any_whole_type_and_no_tensor():
    problem = PROBLEMS["plain"]()
    expected = measured(problem)
    labels = problem.y
    for y in (labels.int(), labels.to(torch.uint8), labels.numpy(), labels.tolist()):
        problem.y = y
        assert measured(problem) == expected


def test_labels_may_be_probabilities():
    problem = PROBLEMS["plain"]()
    expected = measured(problem)
    problem.y = F.one_hot(problem.y, 3).double()
    found = measured(problem)
    same(found, expected, "accuracy")
    assert found.accuracy is None


def test_an_output_that_is_not_a_number_is_never_right():
    module = ResMLP(4, 4, 1, 3).double()
    with torch.no_grad():
        module.out_head.weight[0, 0] = torch.nan
    y = torch.zeros(4, dtype=torch.long)  # the class that argmax would name
    assert measure(module, torch.randn(4, 4).double(), y).accuracy == 0
    x = torch.stack([torch.ones(4), torch.full((4,), torch.nan)]).double()
    assert measure(ResMLP(4, 4, 1, 1).double(), x, y[:2]).accuracy is None
    sound = ResMLP(4, 4, 1, 3).double()
    with torch.no_grad():
        sound.out_head.bias[0] = 100
    assert measure(sound, x, y[:2]).accuracy == 0.5


def test_one_output_is_no_choice():
    module = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)), nn.Linear(4, 1))
    x, y = torch.randn(6, 4), torch.tensor([0, 1, 0, 1, 1, 1])

    def binary(z: Tensor, t: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(z[:, 0], t.to(z), reduction="none")

    assert measure(module, x, y, blocks=["1"], loss=binary).accuracy is None


X, Y = torch.zeros(4, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0])

BAD_INPUT: dict[str, tuple[Any, Any, str]] = {
    "label too large": (X, torch.tensor([0, 1, 2, 3]), r"from 0 to 3, but .* 3 classes: 0 to 2"),
    "label ignored": (X, torch.tensor([0, 1, -100, 2]), r"targets run from -100 to 2"),
    "labels in a column": (X, Y[:, None], r"targets of shape \(4,\), not \(4, 1\)"),
    "too few labels": (X, Y[:3], r"\(4, 4\) and targets of shape \(3,\) do not have the same"),
    "float labels": (X, Y.float(), "needs class indices, not a float32 tensor"),
    "complex labels": (X, Y.to(torch.complex64), "needs class indices, not a complex64 tensor"),
    "yes or no": (X, Y > 0, "needs class indices, not a bool tensor"),
    "one number": (X, 2, "one entry per sample"),
    "text": (X, "cat", "targets must be a tensor, not str"),
    "empty batch": (X[:0], Y[:0], "the batch is empty"),
    "no tokens": (torch.zeros(4, 0, 4).double(), torch.zeros(4, 0).long(), "the batch is empty"),
    "empty batch among others": ([(X, Y), (X[:0], Y[:0])], None, "the batch is empty"),
    "no batch": ([], None, "give at least one batch"),
    "no targets": (X, None, r"has no targets; give measure\(network, x, y\)"),
    "no pairs": ([X, X], None, r"every batch must be a pair \(x, y\), not a float64 tensor"),
    "uneven lists": ([X, X], [Y], "as many batches of targets"),
    "an array": (X.numpy(), Y, r"inputs are an array of shape \(4, 4\); give torch.as_tensor"),
    "arrays": (X.numpy(), Y.numpy(), "inputs are an array of shape"),
    "list of samples": (list(X), Y, "inputs must be a tensor or a mapping with tensors, not list"),
    "no tensor": ({"x": 3}, Y, "inputs must be a tensor or a mapping with tensors, not dict"),
    "nothing": (None, None, "NoneType has no targets"),
    "no x": (None, Y, "inputs must be a tensor or a mapping with tensors, not NoneType"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_refused(name):
    x, y, message = BAD_INPUT[name]
    with pytest.raises(DataError, match=message):
        measure(toys.built(toys.Plain), x, y)


WRONG_INPUT = {
    "width": (torch.zeros(4, 5, dtype=torch.float64), "float64 tensor of shape .4, 5.: Runtime"),
    "dtype": (X.float(), "the forward of .* fails on a float32 tensor of shape .4, 4.: Runtime"),
    "whole numbers": (X.long(), "fails on a int64 tensor"),
    "another name": ({"picture": X}, "fails on picture a float64 .* TypeError: .*'picture'"),
}


@pytest.mark.parametrize("make", [toys.Plain, lambda: ResMLP(4, 4, 1, 3)])
@pytest.mark.parametrize("name", WRONG_INPUT)
def test_an_input_that_the_network_cannot_take_is_refused(name, make):
    x, message = WRONG_INPUT[name]
    network = Network.of(toys.built(make))
    if isinstance(x, dict) and isinstance(network, StagedNetwork):
        message = "fails on picture"
    with pytest.raises(NetworkError, match=message) as refused:
        measure(network, x, Y)
    assert refused.value.__cause__ is not None


OTHERS = {
    "wider": ((4, 6, 2, 3), "made for states of widths .6, 6, 6. and 3 classes; this network has"),
    "deeper": ((4, 4, 3, 3), "widths .4, 4, 4, 4. and 3 classes"),
    "more classes": ((4, 4, 2, 5), "and 5 classes; this network has .4, 4, 4. and 3"),
}


@pytest.mark.parametrize("rule", ["fa", "dfa", "drtp", "kp", "cb", "ep"])
@pytest.mark.parametrize("name", OTHERS)
def test_a_rule_made_for_another_network_is_refused(name, rule):
    sizes, message = OTHERS[name]
    made = make_rule(rule, Network.of(ResMLP(*sizes)).layout(X.float())).double()
    with pytest.raises(RuleError, match=message):
        measure(ResMLP(4, 4, 2, 3).double(), X, Y, made)


@given(st.integers(-(2**31), 2**31), st.integers(0, 3))
def test_labels_are_measured_in_range_and_refused_out_of_it(label, place):
    problem = PROBLEMS["plain"]()
    problem.x, problem.y = X, Y.clone()
    problem.y[place] = label
    if 0 <= label < 3:
        assert measured(problem, precise=False).samples == 4
    else:
        with pytest.raises(DataError, match="3 classes: 0 to 2"):
            measured(problem, precise=False)


BAD_LOSS = {
    "mean": (lambda z, y: F.cross_entropy(z, y), r"a float64 tensor of shape \(\) for 4 samples"),
    "number": (lambda z, y: 3.0, "the loss returned float"),
    "per class": (lambda z, y: z, r"shape \(4, 3\) for 4 samples"),
    "broadcast": (lambda z, y: (z[:, :1] - y).square().mean(1), "depends on the others"),
    "mean, repeated": (lambda z, y: F.cross_entropy(z, y).repeat(4)[: len(y)], "depends on"),
    "no function": ("mse", "loss is 'mse'; give a function"),
}


@pytest.mark.parametrize("name", BAD_LOSS)
def test_a_loss_that_is_not_per_sample_is_refused(name):
    loss, message = BAD_LOSS[name]
    with pytest.raises(FauditError, match=message):
        measure(toys.built(toys.Plain), torch.randn(4, 4).double(), Y, loss=loss)


def _states(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [torch.ones(4, 4, dtype=dtype) for _ in range(3)]


BAD_CREDITS = {
    "too few": (_states()[:2], "2 credits for 3 states"),
    "shape": (
        [*_states()[:2], torch.ones(4, 5)],
        r"credit a_2 is a float32 tensor of shape \(4, 5",
    ),
    "no tensor": ([1, 2, 3], "credit a_0 is int; its state is a float64 tensor"),
    "whole numbers": (_states(torch.int64), "credit a_0 is a int64 tensor"),
    "name": ("dfa", "credits must be a credit rule.* not 'dfa'"),
    "number": (3, "credits must be a credit rule"),
    "class": (RULES["dfa"], r"credits is the class DFA; give the rule that trained"),
    "callable": (lambda scene: None, "1 credits for 3 states"),
}


@pytest.mark.parametrize("name", BAD_CREDITS)
def test_bad_credits_are_refused(name):
    credits, message = BAD_CREDITS[name]
    with pytest.raises(RuleError, match=message):
        measure(toys.built(toys.Plain), X, Y, credits)


def test_a_list_of_credits_belongs_to_one_batch():
    with pytest.raises(RuleError, match="belongs to one batch"):
        measure(toys.built(toys.Plain), [(X, Y), (X, Y)], None, _states())


def test_a_rule_in_another_dtype_is_refused():
    problem = PROBLEMS["plain"]()
    with pytest.raises(RuleError, match=r"in torch.float32 .* give rule.to\(torch.float64\)"):
        measured(problem, rule_for(problem).float())


@pytest.mark.parametrize("output", [None, "text", [], {"scores": 1}, torch.tensor(1.0)])
def test_a_model_without_logits_is_refused(output):
    with pytest.raises(NetworkError, match="faudit needs logits"):
        measure(toys.built(lambda: toys.Constant(output)), X, Y)


def test_one_number_a_sample_needs_a_loss_and_has_no_error_to_send_back():
    problem = PROBLEMS["one number a sample"]()
    with pytest.raises(NetworkError, match=r"return one number per sample as \(samples, 1\)"):
        rule_for(problem)
    problem.loss = None
    with pytest.raises(DataError, match=r"float64 tensor of shape \(5,\).* give loss="):
        measured(problem)


@pytest.mark.parametrize(
    "options",
    [{"eta": 0}, {"eta": -1.0}, {"eta": math.nan}, {"perturbation_size": 0}, {"perturbations": -1},
     {"perturbations": 1.5}, {"nulls": -1}, {"nulls": 1}, {"seed": -1}],
)  # fmt: skip
def test_impossible_options_are_refused(options):
    (name,) = options
    with pytest.raises(FauditError, match=f"^{name} is "):
        measure(toys.built(toys.Plain), X, Y, **options)


# Whatever comes


@given(
    count=st.integers(1, 6),
    tokens=st.integers(0, 3),
    classes=st.integers(1, 5),
    depth=st.integers(1, 3),
    magnitude=st.integers(-38, 38),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 99),
)
def test_any_shape_dtype_and_magnitude_gives_evidence(
    count, tokens, classes, depth, magnitude, dtype, seed
):
    torch.manual_seed(seed)
    blocks = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(depth)))
    model = nn.Sequential(nn.Linear(3, 4), blocks, nn.Linear(4, classes)).to(dtype)
    shape = (count, tokens) if tokens else (count,)
    x = (torch.randn(*shape, 3, dtype=torch.float64) * 10.0**magnitude).to(dtype)
    y = torch.randint(0, classes, shape)
    found = measure(
        model, x, y, lambda s: list(s.states), blocks="1", perturbations=1, precise=seed % 2 == 0
    )
    assert (found.samples, found.layers) == (count, depth)
    assert (found.nonfinite is not None) == (
        not math.isfinite(sum(found.state_norm))
        or (not math.isfinite(sum(found.reference_norm) + found.loss))
        or not bool(x.isfinite().all())
    )
    assert all(abs(c) <= 1 for c in found.cosine if c == c)
    for name, defined in found.defined.items():
        flags = defined if isinstance(defined, tuple) else (defined,)
        values = getattr(found, name)
        values = values if isinstance(values, tuple) else (values,)
        for value, known in zip(values, flags, strict=False):
            assert known == (value is not None and math.isfinite(value))
    assert Evidence.from_json(found.to_json()) == found


def test_sequences_of_different_lengths_have_no_stability_and_no_sum():
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 6)
            self.blocks = nn.ModuleList([nn.Linear(6, 6) for _ in range(2)])
            self.head = nn.Linear(6, 5)

        def forward(self, x: Tensor) -> Tensor:
            h = self.table(x)
            for block in self.blocks:
                h = torch.tanh(block(h))
            return self.head(h)

    batches = [(torch.randint(0, 5, (64, n)), torch.randint(0, 5, (64, n))) for n in (4, 6, 5, 7)]
    found = measure(
        Tokens(), batches, None, lambda scene: [torch.ones_like(h) for h in scene.states]
    )
    assert found.why("stability") == "samples of different shapes have no sum"
    assert found.undefined["batch mean first"] == found.why("stability")
    assert math.isnan(found.cosine_aggregates["batch mean first"])
    assert not math.isnan(found.gamma)
    assert Evidence.from_json(found.to_json()) == found


def test_padding_is_no_wrong_answer():
    network = toys.built(lambda: toys.Plain())
    x, _ = toys.batch(40)
    with torch.no_grad():
        y = network(x).argmax(1)
    y[::2] = -100

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits, targets, ignore_index=-100, reduction="none")

    assert measure(network, x, y, loss=loss).accuracy == 1.0


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_is_named_where_it_hides_gradients(reentrant):
    class Checkpointed(toys.Plain):
        def apply_block(self, block: nn.Module, h: Tensor) -> Tensor:
            return checkpoint(block, h, use_reentrant=reentrant)

    network = toys.built(Checkpointed).requires_grad_(False)
    with pytest.raises(NetworkError, match=r"torch\.utils\.checkpoint"):
        measure(network, *toys.batch())


def test_a_forward_that_spoils_its_own_gradient_is_named():
    class Spoiling(toys.Step):
        def forward(self, h: Tensor) -> Tensor:
            h += self.linear(h)
            return h

    with pytest.raises(NetworkError, match="overwrites in place what its own backward"):
        measure(toys.built(lambda: toys.Plain(Spoiling)), *toys.batch())


def test_a_network_without_blocks_says_so():
    found = measure(ResMLP(4, 8, 0, 3), *toys.batch(dtype=torch.float32), lambda s: list(s.states))
    assert found.why("deep_cosine") == "the network has no blocks"
    assert found.undefined["growth"] == "the network has no blocks"


def test_tf32_is_on_record_where_a_gpu_rounds_to_it():
    linear, conv = nn.Linear(2, 2), nn.Conv2d(1, 1, 1)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert tensor_float(linear, "cuda") == "matrix products"
        assert tensor_float(linear) == ""
        torch.set_float32_matmul_precision("highest")
        assert tensor_float(linear, "cuda") == ""
        with torch.backends.cudnn.flags(allow_tf32=True):
            assert tensor_float(conv, "cuda") == "convolutions"
    finally:
        torch.set_float32_matmul_precision(before)
    told = Evidence(layers=1, samples=8, reference_norm=(1.0, 1.0), facts={"tf32": "convolutions"})
    reason = diagnose(told).finding("D2").reason
    assert reason.endswith("; the GPU rounded convolutions to TF32")
