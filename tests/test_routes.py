"""Routes: the same numbers by every library, one choice per machine, and plain measuring."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from faudit import routes
from faudit.bundle import Bundle
from faudit.errors import FauditError
from faudit.networks.scene import scene
from faudit.networks.view import Network
from faudit.networks.zoo import ResMLP, ViTMini
from faudit.recipe import Recipe, Training
from faudit.routes import ONEDNN, PLAIN, RoutedLinear, Trial, along, better, chosen, taking
from faudit.rules import make_rule
from faudit.studies import runner
from faudit.studies.runner import Interrupted, measure_again, run
from faudit.training import Learner
from tests.studies.tools import content, tiny

there = pytest.mark.skipif(not routes.possible(), reason="this PyTorch has no oneDNN")

WIDE = tiny("network.options.width=192", "network.options.depth=1", "training.batch=96")
"""A run whose layers are large enough for the route."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, and no wish."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(routes.VARIABLE, raising=False)
    return tmp_path


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows every fast product had."""
    seen: list[int] = []
    multiply = routes.multiply

    def counting(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        seen.append(len(x))
        return multiply(x, weight, bias)

    monkeypatch.setattr(routes, "multiply", counting)
    return seen


# -- the same numbers -----------------------------------------------------------------------------


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def products(layer: nn.Linear, x: Tensor, credit: Tensor) -> list[Tensor]:
    """A layer's output and all its gradients."""
    x = x.clone().requires_grad_()
    y = layer(x)
    return [y.detach(), *torch.autograd.grad(y, (x, *layer.parameters()), credit)]


@there
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(128, 256), (130, 768), (4, 65, 128), (2, 3, 40, 160)])
def test_every_product_is_as_exact_as_plain_float32(
    counted: list[int], shape: tuple[int, ...], bias: bool
) -> None:
    layer = nn.Linear(shape[-1], 192, bias=bias)
    x, credit = drawn(*shape), drawn(*shape[:-1], 192, seed=1)
    plain = products(layer, x, credit)
    with taking(ONEDNN, layer):
        fast = products(layer, x, credit)
    assert len(counted) == 3
    exact = products(layer.double(), x.double(), credit.double())
    for fine, plainly, right in zip(fast, plain, exact, strict=True):
        assert fine.shape == plainly.shape
        most = max(float((plainly - right).norm()), 1e-7 * float(right.norm()))
        assert float((fine - right).norm()) <= 4 * most


@there
@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_only_gradients_that_are_wanted_are_computed(counted: list[int], frozen: str) -> None:
    layer = nn.Linear(256, 256)
    getattr(layer, frozen).requires_grad_(False)
    with taking(ONEDNN, layer):
        layer(drawn(128, 256)).sum().backward()
    assert getattr(layer, frozen).grad is None
    assert len(counted) == (1 if frozen == "weight" else 2)


@there
def test_gradients_of_gradients_exist(counted: list[int]) -> None:
    layer, x = nn.Linear(256, 256), drawn(128, 256)

    def second() -> Tensor:
        y = layer(x)
        (first,) = torch.autograd.grad((y**3).sum(), layer.weight, create_graph=True)
        (found,) = torch.autograd.grad((first**2).sum(), layer.weight)
        return found

    plain = second()
    with taking(ONEDNN, layer):
        assert torch.allclose(second(), plain, rtol=1e-3, atol=1e-3 * float(plain.abs().max()))
    assert counted


@there
@pytest.mark.parametrize("what", ["float64", "few products", "few rows", "autocast"])
def test_what_does_not_pay_goes_the_plain_way(counted: list[int], what: str) -> None:
    wide = 8 if what == "few products" else 1024
    layer, x = nn.Linear(wide, wide), drawn(4 if what == "few rows" else 64, wide)
    if what == "float64":
        layer, x = layer.double(), x.double()
    with torch.autocast("cpu", enabled=what == "autocast"):
        plain = layer(x)
        with taking(ONEDNN, layer):
            assert torch.equal(layer(x), plain)
    assert not counted


@there
@pytest.mark.parametrize("name", ["usf", "kp", "frsf"])
def test_rules_that_swap_weights_still_swap_them(name: str) -> None:
    """They change what F.linear means for a while, which a route must not go around."""
    network, x, y = Network.of(ResMLP(24, 192, 2, 4)), drawn(96, 24), torch.arange(96) % 4
    rule = make_rule(name, network.layout(x), seed=1)
    plain = rule.credits(scene(network, x, y))
    with taking(ONEDNN, network.module):
        routed = rule.credits(scene(network, x, y))
    for one, other in zip(plain, routed, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5 * float(one.abs().max()))


@there
def test_feedback_matrices_multiply_by_the_route_only_while_it_is_taken(
    counted: list[int],
) -> None:
    network, x, y = Network.of(ResMLP(24, 192, 3, 4)), drawn(96, 24), torch.arange(96) % 4
    seen = scene(network, x, y)
    rule = make_rule("fa", network.layout(x), seed=1)
    plain = rule.credits(seen)
    assert not counted
    with taking(ONEDNN):
        routed = rule.credits(seen)
    assert counted == [96] * 3
    for one, other in zip(plain, routed, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5 * float(one.abs().max()))


def weights_after(
    make: Callable[[], nn.Module], shape: tuple[int, ...], rule: str, route: str, dtype: torch.dtype
) -> Tensor:
    """All weights after some steps, as one vector."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Network.of(make().to(dtype))
    x, y = drawn(128, *shape).to(dtype), torch.arange(128) % 4
    teacher = make_rule(rule, network.layout(x), seed=1).to(dtype)
    learner = Learner(network, teacher, Training(penalty=0.01), x, seed=0)
    with taking(route, network.module):
        for _ in range(5):
            learner.step(x, y)
    return nn.utils.parameters_to_vector(network.module.parameters()).detach()


@there
@pytest.mark.parametrize("rule", ["bp", "fa", "dfa", "kp", "ep"])
def test_training_ends_as_near_to_float64_as_the_plain_way(counted: list[int], rule: str) -> None:
    def make() -> nn.Module:
        return ResMLP(48, 192, 2, 4)

    fast = weights_after(make, (48,), rule, ONEDNN, torch.float32)
    assert counted
    plain = weights_after(make, (48,), rule, PLAIN, torch.float32)
    exact = weights_after(make, (48,), rule, PLAIN, torch.float64)
    assert float((fast - exact).norm()) <= 3 * float((plain - exact).norm())


@there
def test_tokens_are_trained_by_the_route_too(counted: list[int]) -> None:
    def make() -> nn.Module:
        return ViTMini(image=8, width=64, depth=2, heads=2, classes=4)

    fast = weights_after(make, (3, 8, 8), "dfa", ONEDNN, torch.float32)
    assert counted
    plain = weights_after(make, (3, 8, 8), "dfa", PLAIN, torch.float32)
    exact = weights_after(make, (3, 8, 8), "dfa", PLAIN, torch.float64)
    assert float((fast - exact).norm()) <= 3 * float((plain - exact).norm())


# -- taken and left -------------------------------------------------------------------------------


def routed(module: nn.Module) -> bool:
    return any(isinstance(m, RoutedLinear) for m in module.modules())


def test_layers_are_their_old_selves_afterwards_whatever_happens() -> None:
    module = ResMLP(12, 8, 2, 4)

    def break_off() -> None:
        with taking(ONEDNN, module):
            assert routed(module)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        break_off()
    assert not routed(module)


def test_a_copy_made_meanwhile_computes_with_its_own_weights() -> None:
    layer = nn.Linear(256, 256)
    with taking(ONEDNN, layer):
        other = copy.deepcopy(layer)
    with torch.no_grad():
        layer.weight.zero_()
    assert bool(other(torch.ones(128, 256)).std(0).sum() == 0)
    assert bool((other(torch.ones(128, 256)) != layer(torch.ones(128, 256))).any())


def test_nothing_is_routed_between_steps_nor_after_a_break() -> None:
    module = nn.Linear(4, 4)
    working = (routed(module) for _ in itertools.count())
    for worked in along(ONEDNN, working, module):
        assert worked
        assert not routed(module)
        break
    assert not routed(module)


def test_a_subclass_of_linear_is_left_alone() -> None:
    class Own(nn.Linear):
        pass

    layer = Own(4, 4)
    with taking(ONEDNN, layer):
        assert type(layer) is Own


# -- the choice -----------------------------------------------------------------------------------


FASTER = {PLAIN: Trial(2.0, 1e-7), ONEDNN: Trial(1.0, 2e-7)}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for every time that the routes were measured; oneDNN is the faster one."""
    times: list[int] = []

    def trials() -> dict[str, Trial]:
        times.append(1)
        return FASTER

    monkeypatch.setattr(routes, "trials", trials)
    monkeypatch.setattr(routes, "possible", lambda: True)
    return times


def test_the_choice_is_made_once_and_kept(measured: list[int]) -> None:
    assert [chosen(), chosen()] == [ONEDNN, ONEDNN]
    assert len(measured) == 1
    told = json.loads(routes.choice_path().read_text())
    assert told["trials"][ONEDNN] == {"seconds": 1.0, "error": 2e-7}


@pytest.mark.parametrize("change", ["processor", "torch"])
def test_another_processor_or_pytorch_is_measured_anew(
    measured: list[int], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    chosen()
    monkeypatch.setattr(routes, "_here", lambda: {change: "other"})
    chosen()
    assert len(measured) == 2


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"route": "abacus"}', '{"route": ["torch"]}'])
def test_a_damaged_choice_is_made_again(measured: list[int], text: str) -> None:
    chosen()
    routes.choice_path().write_text(text)
    assert chosen() == ONEDNN
    assert len(measured) == 2


def test_a_choice_that_cannot_be_kept_is_plain(measured: list[int], home: Path) -> None:
    (home / "cache").write_text("a file where the folder should be")
    assert chosen() == PLAIN
    assert not measured


def test_where_the_route_is_missing_it_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Tensor) -> Tensor:
        raise RuntimeError("no such operator")

    monkeypatch.setattr(routes, "multiply", missing)
    assert chosen() == PLAIN
    monkeypatch.setenv(routes.VARIABLE, ONEDNN)
    assert chosen() == PLAIN


@pytest.mark.parametrize("route", routes.ROUTES)
def test_the_environment_overrules(
    measured: list[int], monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    monkeypatch.setenv(routes.VARIABLE, route)
    assert chosen() == route
    assert not measured


def test_an_unknown_wish_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(routes.VARIABLE, "onedn")
    with pytest.raises(FauditError, match=r"FAUDIT_MATMUL: unknown route 'onedn'.*'onednn'"):
        chosen()


@pytest.mark.parametrize(("seconds", "error"), [(1.95, 1e-7), (3.0, 1e-7), (1.0, 5e-7)])
def test_a_route_that_gains_little_or_errs_more_is_not_taken(seconds: float, error: float) -> None:
    assert better({PLAIN: Trial(2.0, 1e-7), ONEDNN: Trial(seconds, error)}) == PLAIN


@there
def test_rounding_to_half_precision_would_be_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def rounding(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return nn.functional.linear(x.bfloat16(), weight.bfloat16()).float()

    shapes = ((128, 192, 192),)
    assert better({**FASTER, **errors(routes.trials(shapes))}) == ONEDNN
    monkeypatch.setattr(routes, "multiply", rounding)
    assert better({**FASTER, **errors(routes.trials(shapes))}) == PLAIN


def errors(found: dict[str, Trial]) -> dict[str, Trial]:
    """Trials with their true errors, and times that the test does not leave to chance."""
    return {route: Trial(FASTER[route].seconds, t.error) for route, t in found.items()}


# -- in a run -------------------------------------------------------------------------------------


@pytest.fixture
def by_route(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Bundle]:
    """Run a recipe by a route."""

    def running(recipe: Recipe, folder: Path, route: str) -> Bundle:
        monkeypatch.setenv(routes.VARIABLE, route)
        run(recipe, folder)
        return Bundle.load(folder)

    return running


@there
def test_the_manifest_names_the_route_and_the_numbers_agree(
    tmp_path: Path, by_route: Callable[..., Bundle], counted: list[int]
) -> None:
    plain = by_route(WIDE, tmp_path / "plain", PLAIN)
    assert not counted
    fast = by_route(WIDE, tmp_path / "fast", ONEDNN)
    assert counted
    assert [b.manifest.versions["matmul"] for b in (plain, fast)] == [PLAIN, ONEDNN]
    assert plain.outcome.loss == pytest.approx(fast.outcome.loss, rel=1e-4)
    for name, weight in plain.weights().items():
        assert torch.allclose(weight, fast.weights()[name], rtol=1e-2, atol=1e-4), name


@there
def test_measuring_is_plain_however_the_network_was_trained(
    tmp_path: Path, by_route: Callable[..., Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    measure, seen = runner.measure, []

    def watched(network: Network, *args: object, **options: object) -> object:
        seen.append(routed(network.module))
        return measure(network, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(runner, "measure", watched)
    found = by_route(WIDE, tmp_path, ONEDNN)
    assert len(seen) > 3
    assert not any(seen)
    assert measure_again(found).evidence == found.evidence


@there
def test_a_stopped_run_goes_on_by_its_route_to_the_same_bits(
    tmp_path: Path, by_route: Callable[..., Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "CHECKPOINT_SHARE", float("inf"))
    by_route(WIDE, tmp_path / "whole", ONEDNN)
    asked = itertools.count()
    with pytest.raises(Interrupted):
        run(WIDE, tmp_path / "stopped", stop=lambda: next(asked) >= 2)
    found = by_route(WIDE, tmp_path / "stopped", ONEDNN)
    assert found.manifest.timing["resumed"] == 1
    assert content(tmp_path / "whole") == content(tmp_path / "stopped")


@there
def test_a_checkpoint_made_by_another_route_is_not_taken_up(
    tmp_path: Path, by_route: Callable[..., Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "CHECKPOINT_SHARE", float("inf"))
    by_route(WIDE, tmp_path / "whole", PLAIN)
    monkeypatch.setenv(routes.VARIABLE, ONEDNN)
    asked = itertools.count()
    with pytest.raises(Interrupted):
        run(WIDE, tmp_path / "stopped", stop=lambda: next(asked) >= 2)
    found = by_route(WIDE, tmp_path / "stopped", PLAIN)
    assert found.manifest.timing["resumed"] == 0
    assert content(tmp_path / "whole") == content(tmp_path / "stopped")
