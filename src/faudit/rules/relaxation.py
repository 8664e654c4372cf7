"""Rules that find credit by letting the states settle under a gentle pull towards the target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from faudit.errors import RuleError
from faudit.networks.scene import Scene
from faudit.networks.view import Layout
from faudit.rules.base import CreditRule

Tensors = tuple[Tensor, ...]


class EquilibriumPropagation(CreditRule):
    """Equilibrium propagation with a predictive-coding energy (Scellier & Bengio 2017).

    E = 1/2 sum_l ||eps_l||^2 with eps_l = h_{l+1} - block_l(h_l) and h_0 clamped. The forward pass
    is the free state (E = 0); the nudged state minimises E + beta C. There
    eps_{l-1} = J_l^T eps_l and eps_{L-1} = -beta dC/dh_L, so a_{l+1} = -eps_l / beta tends to the
    gradient as beta -> 0 (Whittington & Bogacz 2017; Millidge et al. 2022, arXiv 2206.02629).

    ``settle="few"`` takes ``steps`` gradient steps in the states and stops wherever it is, as the
    audited papers did. ``settle="converged"`` searches the same minimum in the errors instead,
    which is far better conditioned and does not drown a small error in a large state (Goemaere et
    al. 2025, arXiv 2505.20137); it goes on until the slope is below ``tolerance`` of the nudge, for
    at most ``max_steps``. Either way ``report["ep_residual"]`` holds ||d(E + beta C)/dh|| relative
    to the nudge beta ||dC/dh_L||: a credit with a large residual is not equilibrium propagation's.

    Args:
        beta: the strength of the nudge, per sample; negative nudges the other way.
        centred: average the credits of +beta and -beta, which cancels the first-order bias.
        credit: "error" is -eps/beta; "state" is the displacement of the states over -beta. At h_1
            they are the same, since h_0 does not move.
        embedding: "energy" teaches the embedding by -dE/dh_0 / beta; "clamped" gives it nothing.
    """

    def __init__(
        self,
        layout: Layout,
        generator: torch.Generator,
        *,
        beta: float = 0.1,
        steps: int = 20,
        step_size: float = 0.2,
        settle: Literal["few", "converged"] = "few",
        tolerance: float = 1e-3,
        max_steps: int = 200,
        centred: bool = False,
        credit: Literal["error", "state"] = "error",
        embedding: Literal["energy", "clamped"] = "energy",
    ) -> None:
        super().__init__(layout, generator)
        _one_of("settle", settle, "few", "converged")
        _one_of("credit", credit, "error", "state")
        _one_of("embedding", embedding, "energy", "clamped")
        _above_zero(steps=steps, step_size=step_size, tolerance=tolerance, max_steps=max_steps)
        if beta == 0:
            raise RuleError("equilibrium propagation needs a nudge: beta cannot be 0")
        self.beta, self.centred, self.settle = beta, centred, settle
        self.steady = settle == "few"
        self.steps, self.step_size = steps, step_size
        self.tolerance, self.max_steps = tolerance, max_steps
        self.credit, self.embedding = credit, embedding

    def credits(self, scene: Scene) -> list[Tensor]:
        betas = (self.beta, -self.beta) if self.centred else (self.beta,)
        sides = [(beta, self._relax(scene, beta)) for beta in betas]
        self.report = {"ep_residual": torch.stack([_residual(scene, *s) for s in sides]).amax()}
        told = [self._told(scene, *side) for side in sides]
        return [torch.stack(pair).mean(0) for pair in zip(*told, strict=True)]

    def _relax(self, scene: Scene, beta: float) -> Settled:
        if self.settle == "few" or scene.depth == 0:
            return settle_states(scene, beta, self.steps, self.step_size)
        return settle_errors(scene, beta, self.tolerance, self.max_steps)

    def _told(self, scene: Scene, beta: float, settled: Settled) -> list[Tensor]:
        if self.credit == "state":
            moved = [h - free for h, free in zip(settled.states, scene.states, strict=True)][1:]
        else:
            moved = list(settled.errors)
        first = settled.forces[0] / beta
        if self.embedding == "clamped":
            first = torch.zeros_like(first)
        return [first, *(-m / beta for m in moved)]


@dataclass(frozen=True)
class Settled:
    """Where a relaxation stopped: h_0..h_L, eps_0..eps_{L-1}, and d(E + beta C)/dh_0..dh_L."""

    states: Tensors
    errors: Tensors
    forces: Tensors


def settle_states(scene: Scene, beta: float, steps: int, step_size: float) -> Settled:
    """Plain gradient descent on E + beta C in the states; it can stop early or diverge."""
    states = scene.states
    for _ in range(steps):
        forces = _state_forces(scene, states, beta)[1]
        moved = (h - step_size * f for h, f in zip(states[1:], forces[1:], strict=True))
        states = (states[0], *moved)
    return Settled(states, *_state_forces(scene, states, beta))


def settle_errors(scene: Scene, beta: float, tolerance: float, max_steps: int) -> Settled:
    """Descent on E + beta C in the errors, with h_{l+1} = block_l(h_l) + eps_l.

    Every sample has its own step, halved where it overshot and doubled, up to 1, where it did not,
    and stops for itself, so no sample's credit depends on the others in the batch.
    """
    errors: Tensors = tuple(torch.zeros_like(h) for h in scene.states[1:])
    states, slopes = _error_slopes(scene, errors, beta)
    goal = tolerance * abs(beta) * _norms((scene.output_credit,))
    step = torch.ones_like(goal)
    for _ in range(max_steps):
        moving = (_norms(slopes[1:]) > goal) & (step > _SHORTEST)
        if not bool(moving.any()):
            break
        tried = tuple(e - _over(step, s) * s for e, s in zip(errors, slopes[1:], strict=True))
        new_states, new_slopes = _error_slopes(scene, tried, beta)
        kept = moving & ~_overshot(slopes[1:], new_slopes[1:])
        errors, states = _where(kept, tried, errors), _where(kept, new_states, states)
        slopes = _where(kept, new_slopes, slopes)
        step = torch.where(kept, (2 * step).clamp(max=1), torch.where(moving, step / 2, step))
    return Settled(states, errors, _forces(scene, states, slopes))


_SHORTEST = 2.0**-20
"""A step this short means a kink or the rounding limit: the search is over."""


def _state_forces(scene: Scene, states: Tensors, beta: float) -> tuple[Tensors, Tensors]:
    """eps_0..eps_{L-1}, and d(E + beta C)/dh for h_0..h_L."""
    with torch.enable_grad():
        free = [h.detach().requires_grad_() for h in states]
        errors = [free[i + 1] - scene.block(i, free[i]) for i in range(scene.depth)]
        total = beta * scene.losses(free[-1]).sum()
        total = total + sum(0.5 * e.square().sum() for e in errors)
        forces = torch.autograd.grad(total, free)
    return tuple(e.detach() for e in errors), forces


def _error_slopes(scene: Scene, errors: Tensors, beta: float) -> tuple[Tensors, Tensors]:
    """The states that these errors make, and d(E + beta C) in h_0, eps_0..eps_{L-1}."""
    with torch.enable_grad():
        free = [h.detach().requires_grad_() for h in (scene.states[0], *errors)]
        states = [free[0]]
        for index, error in enumerate(free[1:]):
            states.append(scene.block(index, states[-1]) + error)
        total = beta * scene.losses(states[-1]).sum()
        total = total + sum(0.5 * e.square().sum() for e in free[1:])
        slopes = torch.autograd.grad(total, free)
    return tuple(h.detach() for h in states), slopes


def _forces(scene: Scene, states: Tensors, slopes: Tensors) -> Tensors:
    """Slopes in the errors as forces on the states, by the chain rule: one block's pull less."""
    with torch.enable_grad():
        free = [h.requires_grad_() for h in (state.detach().clone() for state in states[:-1])]
        ends = [scene.block(index, h) for index, h in enumerate(free)]
        pulls = torch.autograd.grad(ends, free, slopes[1:])
    return (*(s - p for s, p in zip(slopes[:-1], pulls, strict=True)), slopes[-1])


def _overshot(before: Tensors, after: Tensors) -> Tensor:
    """Which samples' step against ``before`` went well past the lowest point of its line.

    There the slope along the line has turned. Slopes can tell where energies cannot: their change
    may be below the rounding of the loss.
    """
    return ~(_dots(before, after) >= -0.5 * _dots(before, before))


def _dots(ones: Tensors, others: Tensors) -> Tensor:
    """Every sample's inner product over all tensors together, in float64."""
    pairs = zip(ones, others, strict=True)
    return torch.stack([(a.double() * b.double()).flatten(1).sum(1) for a, b in pairs]).sum(0)


def _norms(tensors: Tensors) -> Tensor:
    return _dots(tensors, tensors).sqrt()


def _over(per_sample: Tensor, like: Tensor) -> Tensor:
    return per_sample.to(like.dtype).view(-1, *[1] * (like.ndim - 1))


def _where(chosen: Tensor, new: Tensors, old: Tensors) -> Tensors:
    pairs = zip(new, old, strict=True)
    return tuple(torch.where(chosen.view(-1, *[1] * (n.ndim - 1)), n, o) for n, o in pairs)


def _residual(scene: Scene, beta: float, settled: Settled) -> Tensor:
    """What force is left over the nudge, both root mean squares over samples; NaN without one."""
    nudge = abs(beta) * scene.output_credit.double().norm()
    left = [f.double().norm() for f in settled.forces[1:]] or [torch.zeros_like(nudge)]
    return torch.where(nudge > 0, torch.stack(left).norm() / nudge, torch.nan)


def _one_of(name: str, value: str, *known: str) -> None:
    if value not in known:
        raise RuleError(f"{name} is one of {', '.join(known)}, not {value!r}")


def _above_zero(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise RuleError(f"{name} must be above 0, not {value!r}")
