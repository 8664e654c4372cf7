"""A recorded step is the step: same bits on a GPU; who runs when is checked without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from faudit import data
from faudit.networks.view import Network
from faudit.networks.zoo import ResMLP
from faudit.recipe import Training
from faudit.recorded import WARM_UP, Recorded
from faudit.rules import RULES, make_rule
from faudit.training import Learner

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


# -- on any machine: a graph that runs its step again stands for a CUDA graph ----------------------


class Again:
    """What stands for a CUDA graph: it remembers a step and runs it when it is replayed."""

    step: Callable[[], Any] = staticmethod(lambda: None)

    def replay(self) -> None:
        self.step()


class Stream:
    def wait_stream(self, other: Any) -> None:
        """Nothing runs beside anything here."""


@pytest.fixture
def no_gpu_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Again)

    @contextmanager
    def capture(graph: Again, stream: Any) -> Iterator[None]:
        yield

    monkeypatch.setattr(torch.cuda, "graph", capture)


class Count:
    """A step that says what it was given, and how often it ran."""

    def __init__(self) -> None:
        self.total, self.calls = torch.zeros(()), 0

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        self.calls += 1
        self.total += x.sum()
        return x.sum() + y.sum(), {"seen": self.total}


@pytest.mark.usefixtures("no_gpu_needed")
def test_the_first_steps_run_as_they_are_and_the_next_is_captured() -> None:
    step = Count()
    recorded = Recorded(step)
    for index in range(WARM_UP):
        loss, _ = recorded(torch.full((2,), float(index)), torch.ones(2))
        assert float(loss) == 2 * index + 2
    assert (step.calls, recorded.graph) == (WARM_UP, None)
    recorded(torch.ones(2), torch.ones(2))
    assert recorded.graph is not None


@pytest.mark.usefixtures("no_gpu_needed")
def test_replayed_steps_read_the_batch_they_are_given() -> None:
    recorded = Recorded(Count())
    for _ in range(WARM_UP + 1):
        recorded(torch.zeros(2), torch.zeros(2))
    seen: list[tuple[Tensor, Tensor]] = []
    assert recorded.graph is not None
    recorded.graph.step = lambda: seen.append((recorded.x.clone(), recorded.y.clone()))
    recorded(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    assert [(x.tolist(), y.tolist()) for x, y in seen] == [([1.0, 2.0], [3.0, 4.0])]


@pytest.mark.usefixtures("no_gpu_needed")
def test_a_batch_of_another_shape_runs_as_it_is() -> None:
    step = Count()
    recorded = Recorded(step)
    for _ in range(WARM_UP + 1):
        recorded(torch.zeros(2), torch.zeros(2))
    before = step.calls
    loss, _ = recorded(torch.ones(3), torch.zeros(3))
    assert (step.calls, float(loss)) == (before + 1, 3.0)


@pytest.mark.usefixtures("no_gpu_needed")
def test_a_loss_that_was_kept_does_not_change_with_the_next_step() -> None:
    recorded = Recorded(Count())
    for _ in range(WARM_UP + 1):
        recorded(torch.zeros(2), torch.zeros(2))
    kept, _ = recorded(torch.zeros(2), torch.zeros(2))
    recorded.loss.add_(5)
    assert float(kept) == 0


def test_nothing_is_recorded_on_a_cpu() -> None:
    assert learner("dfa", "cpu").recorded is None


def test_rules_that_decide_or_draw_on_the_host_say_so() -> None:
    unsteady = {name for name in RULES if not learner(name, "cpu").rule.steady}
    assert unsteady == {"brsf", "frsf"}
    assert not learner("ep", "cpu", settle="converged").rule.steady


# -- on a GPU -------------------------------------------------------------------------------------


def learner(rule: str, device: str, **options: Any) -> Learner:
    torch.manual_seed(0)
    network = Network.of(ResMLP(inputs=12, width=16, depth=3, classes=4).to(device))
    x = torch.randn(2, 12, device=device)
    made = make_rule(rule, network.layout(x), seed=1, **options).to(device)
    return Learner(network, made, Training(epochs=4, batch=16), x, seed=0)


def epoch(device: str) -> Callable[[torch.Generator], Iterator[tuple[Tensor, Tensor]]]:
    made = torch.Generator().manual_seed(0)
    x, y = torch.randn(150, 12, generator=made), torch.randint(4, (150,), generator=made)
    split = data.Split(x, y).to(device)
    return lambda generator: data.batches(split, 16, generator, device=device)


@GPU
@pytest.mark.parametrize("rule", RULES)
def test_a_recorded_run_ends_with_the_same_bits(rule: str) -> None:
    recorded, plain = learner(rule, "cuda"), learner(rule, "cuda")
    plain.recorded = None
    for _ in range(3):
        one, other = recorded.run_epoch(epoch("cuda")), plain.run_epoch(epoch("cuda"))
        assert one == other
    weights = zip(
        recorded.network.module.parameters(), plain.network.module.parameters(), strict=True
    )
    assert all(torch.equal(a, b) for a, b in weights)


@GPU
def test_a_recorded_run_that_was_stopped_goes_on_with_the_same_bits() -> None:
    whole, first = learner("sb", "cuda"), learner("sb", "cuda")
    for _ in range(4):
        expected = whole.run_epoch(epoch("cuda"))
    for _ in range(2):
        first.run_epoch(epoch("cuda"))
    second = learner("sb", "cuda")
    second.load_state_dict(first.state_dict())
    for _ in range(2):
        found = second.run_epoch(epoch("cuda"))
    assert found == expected
