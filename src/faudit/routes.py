"""Routes: the library that multiplies training's matrices on this CPU, measured once and then kept.

PyTorch brings two libraries for float32 products and asks only one of them. Where the other is
faster and errs as little, training goes by it. Measuring never does: evidence is plain PyTorch's,
whichever way a network was trained.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, TypeVar

import torch
from filelock import FileLock, Timeout
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import has_torch_function

from faudit import atomic
from faudit.errors import FauditError, unknown
from faudit.provenance import machine
from faudit.seeds import seeded

PLAIN, ONEDNN = "torch", "onednn"
ROUTES = (PLAIN, ONEDNN)
VARIABLE = "FAUDIT_MATMUL"
"""The environment variable that names a route, whatever was measured."""

LEAST_ROWS, LEAST_PRODUCTS = 8, 128**3
"""Below this the detour through Python costs more than the faster library saves."""

SHAPES = ((128, 3072, 256), (128, 256, 256), (128, 512, 512))
ROUNDS = 15
LEAST_GAIN = 1.1
MOST_ERROR = 4.0
"""Times plain PyTorch's own error against float64; arithmetic in half precision is thousands."""

LOCK_SECONDS = 60.0

T = TypeVar("T")

_taken: ContextVar[str] = ContextVar("taken", default=PLAIN)


def chosen(device: str = "cpu", dtype: str = "float32") -> str:
    """The route that training takes here; whatever cannot be measured, kept or done is plain.

    >>> chosen("cuda"), chosen("cpu", "float64")
    ('torch', 'torch')
    """
    if device != "cpu" or dtype != "float32":
        return PLAIN
    asked = os.environ.get(VARIABLE)
    if asked is None:
        return _kept()
    if asked not in ROUTES:
        raise FauditError(f"{VARIABLE}: {unknown('route', asked, ROUTES)}")
    return asked if asked == PLAIN or possible() else PLAIN


@contextmanager
def taking(route: str, *modules: nn.Module) -> Iterator[None]:
    """Let the linear layers of ``modules`` multiply by ``route`` meanwhile.

    >>> layer = nn.Linear(2, 2)
    >>> with taking("onednn", layer):
    ...     type(layer).__name__
    'RoutedLinear'
    >>> type(layer).__name__
    'Linear'
    """
    found = {m for module in modules for m in module.modules() if type(m) is nn.Linear}
    layers = found if route == ONEDNN else set()
    # Another class, not another method: a copy made meanwhile computes with its own weights.
    for layer in layers:
        layer.__class__ = RoutedLinear
    before = _taken.set(route)
    try:
        yield
    finally:
        _taken.reset(before)
        for layer in layers:
            layer.__class__ = nn.Linear


def along(route: str, steps: Iterator[T], *modules: nn.Module) -> Iterator[T]:
    """What ``steps`` yields, with the route taken while it works and left while its user does.

    >>> list(along("torch", iter([1, 2])))
    [1, 2]
    """
    while True:
        with taking(route, *modules):
            try:
                step = next(steps)
            except StopIteration:
                return
        yield step


class RoutedLinear(nn.Linear):
    """A linear layer that multiplies by oneDNN where that pays."""

    def forward(self, input: Tensor) -> Tensor:
        if pays(input, self.weight) and not has_torch_function((input, self.weight)):
            product: Tensor = _Product.apply(input, self.weight, self.bias)
            return product
        return F.linear(input, self.weight, self.bias)


def product(x: Tensor, matrix: Tensor) -> Tensor:
    """``x @ matrix`` by the route that is being taken, for factors that nobody differentiates.

    >>> product(torch.ones(1, 2), torch.eye(2))
    tensor([[1., 1.]])
    """
    differentiated = torch.is_grad_enabled() and (x.requires_grad or matrix.requires_grad)
    if _taken.get() == ONEDNN and not differentiated and pays(x, matrix.t()):
        return multiply(x, matrix.t())
    return x @ matrix


def pays(x: Tensor, weight: Tensor) -> bool:
    """Whether a layer's products are float32 and large enough.

    >>> pays(torch.ones(128, 256), torch.ones(256, 256)), pays(torch.ones(2, 8), torch.ones(8, 8))
    (True, False)
    """
    products = x.numel() * weight.shape[0]
    if products < LEAST_PRODUCTS or x.numel() < LEAST_ROWS * weight.shape[1]:
        return False
    alike = x.dtype is weight.dtype is torch.float32 and x.device.type == "cpu"
    return alike and not torch.is_autocast_enabled("cpu")


def possible() -> bool:
    """Whether this PyTorch has the route."""
    try:
        multiply(torch.ones(2, 3), torch.ones(4, 3))
    except (AttributeError, RuntimeError):
        return False
    return True


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias`` by oneDNN, in float32 throughout; it records no gradient.

    >>> multiply(torch.ones(2, 3), torch.ones(1, 3))
    tensor([[3.],
            [3.]])
    """
    product: Tensor = _operator()(x, weight, bias, "none", [], "")
    return product


@cache
def _operator() -> Callable[..., Tensor]:
    found: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise.default
    return found


def _plainly(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight.t()


class _Product(torch.autograd.Function):
    """A linear layer's product; its gradients go the same way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return multiply(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *credits: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        # Whoever differentiates this again needs products that can be differentiated.
        product = _plainly if torch.is_grad_enabled() else multiply
        (credit,) = credits
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        back = product(credit, weight.t()) if needs_x else None
        if credit.ndim > 2:
            x, credit = x.flatten(0, -2), credit.flatten(0, -2)
        taught = product(credit.t(), x.t()) if needs_weight else None
        return back, taught, credit.sum(0) if needs_bias else None


@dataclass(frozen=True)
class Trial:
    """How one route did: its seconds, and its largest error against float64, over all shapes."""

    seconds: float
    error: float


def trials(shapes: tuple[tuple[int, int, int], ...] = SHAPES) -> dict[str, Trial]:
    """Both routes' time and error for a layer's forward and backward products of these shapes.

    The routes take turns, so a slow moment of the machine hits both.
    """
    seconds = dict.fromkeys(ROUTES, 0.0)
    errors = dict.fromkeys(ROUTES, 0.0)
    for shape in shapes:
        case = _Case(*shape)
        for route, value in case.seconds().items():
            seconds[route] += value
        for route in ROUTES:
            errors[route] = max(errors[route], case.error(route))
    return {route: Trial(seconds[route], errors[route]) for route in ROUTES}


def better(found: dict[str, Trial]) -> str:
    """The route to take: the plain one, unless the other is faster and errs as little.

    >>> better({"torch": Trial(2.0, 1e-7), "onednn": Trial(1.0, 1e-3)})
    'torch'
    >>> better({"torch": Trial(2.0, 1e-7), "onednn": Trial(1.0, 1e-7)})
    'onednn'
    """
    plain, other = found[PLAIN], found[ONEDNN]
    faster = other.seconds * LEAST_GAIN < plain.seconds
    return ONEDNN if faster and other.error <= MOST_ERROR * plain.error else PLAIN


class _Case:
    """One layer with a batch and a credit, to be multiplied by every route."""

    def __init__(self, batch: int, before: int, after: int) -> None:
        draw = seeded(batch, before, after)
        self.layer = nn.utils.skip_init(nn.Linear, before, after)
        with torch.no_grad():
            for p in self.layer.parameters():
                p.copy_(torch.randn(p.shape, generator=draw))
        self.x = torch.randn(batch, before, generator=draw).requires_grad_()
        self.credit = torch.randn(batch, after, generator=draw)

    def products(self, route: str) -> list[Tensor]:
        """The output, and the gradients in input and weight."""
        with taking(route, self.layer):
            y = self.layer(self.x)
        return [y.detach(), *torch.autograd.grad(y, (self.x, self.layer.weight), self.credit)]

    def exact(self) -> list[Tensor]:
        """The same in float64."""
        x, credit = self.x.detach().double(), self.credit.double()
        weight, bias = (p.detach().double() for p in self.layer.parameters())
        return [F.linear(x, weight, bias), credit @ weight, credit.t() @ x]

    def error(self, route: str) -> float:
        """The largest relative error among the products."""
        pairs = zip(self.products(route), self.exact(), strict=True)
        return max(float((got - right).norm() / right.norm()) for got, right in pairs)

    def seconds(self) -> dict[str, float]:
        """The median time of each route, after one round to warm up."""
        times: dict[str, list[float]] = {route: [] for route in ROUTES}
        for _ in range(ROUNDS + 1):
            for route in ROUTES:
                times[route].append(_seconds(partial(self.products, route)))
        return {route: median(values[1:]) for route, values in times.items()}


def _seconds(work: Callable[[], Any]) -> float:
    began = perf_counter()
    work()
    return perf_counter() - began


def _kept() -> str:
    """This machine's choice: read, or made and written by whoever comes first."""
    if not possible():
        return PLAIN
    path = choice_path()
    found = _read(path)
    if found is not None:
        return found
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", timeout=LOCK_SECONDS):
            return _read(path) or _decide(path)
    except (OSError, Timeout):
        # A choice that others cannot read would let runs of one study go different ways.
        return PLAIN


def choice_path() -> Path:
    """Where the choice is kept: one file per processor and version of PyTorch."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "faudit"
    key = hashlib.sha256(repr(_here()).encode()).hexdigest()[:12]
    return cache / f"matmul-{key}.json"


def _here() -> dict[str, str]:
    return {"processor": machine("cpu"), "torch": torch.__version__}


def _decide(path: Path) -> str:
    found = trials()
    route = better(found)
    told = {name: asdict(trial) for name, trial in found.items()}
    atomic.write(path, json.dumps({**_here(), "route": route, "trials": told}, indent=1))
    return route


def _read(path: Path) -> str | None:
    with suppress(OSError, ValueError, TypeError, KeyError):
        found = json.loads(path.read_text())["route"]
        return found if found in ROUTES else None
    return None
