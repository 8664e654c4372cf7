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


class EquilibriumPropagation(CreditRule):
    """Equilibrium propagation with a predictive-coding energy (Scellier & Bengio 2017).

    E = 1/2 sum_l ||eps_l||^2 with eps_l = h_{l+1} - block_l(h_l) and h_0 clamped. The forward pass
    is the free state (E = 0); the nudged state minimises E + beta C. There
    eps_{l-1} = J_l^T eps_l and eps_{L-1} = -beta dC/dh_L, so a_{l+1} = -eps_l / beta tends to the
    gradient as beta -> 0 (Whittington & Bogacz 2017; Millidge et al. 2022, arXiv 2206.02629).

    ``settle="few"`` takes ``steps`` gradient steps and stops wherever it is, as the audited papers
    did; ``settle="converged"`` goes on until the force is below ``tolerance`` of the nudge, for at
    most ``max_steps``. Either way ``report["ep_residual"]`` holds ||d(E + beta C)/dh|| relative to
    the nudge beta ||dC/dh_L||: a credit with a large residual is not equilibrium propagation's.

    Args:
        beta: the strength of the nudge, per sample; negative nudges the other way.
        centred: average the credits of +beta and -beta, which cancels the first-order bias.
        credit: "error" is -eps/beta; "state" is the displacement of the states over -beta.
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
        max_steps: int = 2000,
        centred: bool = False,
        credit: Literal["error", "state"] = "error",
        embedding: Literal["energy", "clamped"] = "energy",
    ) -> None:
        super().__init__(layout, generator)
        _one_of("settle", settle, "few", "converged")
        _one_of("credit", credit, "error", "state")
        _one_of("embedding", embedding, "energy", "clamped")
        if beta == 0 or steps < 1 or step_size <= 0:
            raise RuleError("equilibrium propagation needs beta != 0, steps >= 1, step_size > 0")
        self.beta, self.step_size, self.centred = beta, step_size, centred
        self.steps = steps if settle == "few" else max_steps
        self.tolerance = tolerance if settle == "converged" else 0.0
        self.credit, self.embedding = credit, embedding

    def credits(self, scene: Scene) -> list[Tensor]:
        betas = (self.beta, -self.beta) if self.centred else (self.beta,)
        sides = [self._side(scene, beta) for beta in betas]
        self.report = {"ep_residual": max(residual for _, residual in sides)}
        return [torch.stack(pair).mean(0) for pair in zip(*(c for c, _ in sides), strict=True)]

    def _side(self, scene: Scene, beta: float) -> tuple[list[Tensor], float]:
        settled = self._relax(scene, beta)
        moved = settled.states if self.credit == "state" else settled.errors
        free = scene.states[1:] if self.credit == "state" else [torch.zeros_like(m) for m in moved]
        credits = [-(m - f) / beta for m, f in zip(moved, free, strict=True)]
        if self.embedding == "clamped":
            first = torch.zeros_like(scene.states[0])
        else:
            first = settled.pull_on_input / beta
        return [first, *credits], settled.residual

    def _relax(self, scene: Scene, beta: float) -> _Settled:
        clamped = scene.states[0].detach()
        states = [h.detach().clone() for h in scene.states[1:]]
        nudge = abs(beta) * _size([scene.output_credit])
        for _ in range(self.steps):
            forces = _forces(scene, clamped, states, beta)[1]
            states = [h - self.step_size * f for h, f in zip(states, forces[1:], strict=True)]
            if _size(forces[1:]) <= self.tolerance * nudge:
                break
        errors, forces = _forces(scene, clamped, states, beta)
        residual = _size(forces[1:]) / nudge if nudge else float("nan")
        return _Settled(states, errors, forces[0], residual)


@dataclass(frozen=True)
class _Settled:
    states: list[Tensor]
    errors: list[Tensor]
    pull_on_input: Tensor
    residual: float


def _forces(
    scene: Scene, clamped: Tensor, states: list[Tensor], beta: float
) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """eps_0..eps_{L-1}, and d(E + beta C)/dh for h_0..h_L."""
    with torch.enable_grad():
        free = [h.detach().requires_grad_() for h in (clamped, *states)]
        errors = [free[i + 1] - scene.block(i, free[i]) for i in range(scene.depth)]
        energy = sum((0.5 * e.square().sum() for e in errors), torch.zeros((), dtype=clamped.dtype))
        total = energy + beta * scene.losses(free[-1]).sum()
        forces = torch.autograd.grad(total, free)
    return [e.detach() for e in errors], forces


def _size(tensors: list[Tensor] | tuple[Tensor, ...]) -> float:
    """The norm over all tensors together, as a root mean square over samples."""
    square = sum(float(t.double().square().sum()) for t in tensors)
    return (square / len(tensors[0])) ** 0.5


def _one_of(name: str, value: str, *known: str) -> None:
    if value not in known:
        raise RuleError(f"{name} is one of {', '.join(known)}, not {value!r}")
