"""Rules that send the output's error back through matrices: exact, random, direct or learned."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from math import inf

import torch
from torch import Tensor, nn

from faudit.errors import RuleError
from faudit.networks.scene import Backward, Scene
from faudit.networks.view import Layout, Network
from faudit.rules.base import CreditRule, broadcast, carry, gaussian, one_hot
from faudit.seeds import seeded


def chain(scene: Scene, back: Callable[[int, Tensor], Tensor]) -> list[Tensor]:
    """The exact g_L, then ``a_l = back(l, a_{l+1})`` down to the embedding."""
    credits = [scene.output_credit]
    for index in reversed(range(scene.depth)):
        credits.append(back(index, credits[-1]))
    return credits[::-1]


class BP(CreditRule):
    """Backpropagation: a_l = dL/dh_l, block by block (Rumelhart, Hinton & Williams 1986)."""

    exact = True

    def credits(self, scene: Scene) -> list[Tensor]:
        return chain(scene, scene.pull)


class Feedback(CreditRule):
    """A rule whose state is one fixed random matrix per state."""

    has_feedback = True

    def __init__(self, layout: Layout, generator: torch.Generator, *, scale: float = 1.0) -> None:
        super().__init__(layout, generator)
        if not scale > 0:
            raise RuleError(f"the feedback scale must be above 0, not {scale!r}")
        self.scale = scale
        drawn = [gaussian(*shape, scale, generator) for shape in self.matrix_shapes()]
        self.matrices = nn.ParameterList(nn.Parameter(m, requires_grad=False) for m in drawn)

    @abstractmethod
    def matrix_shapes(self) -> list[tuple[int, int]]:
        """(rows, columns) of every matrix."""


class FA(Feedback):
    """Feedback alignment: a_L = g_L, a_l = B_l a_{l+1} (Lillicrap et al. 2016, arXiv 1411.0247).

    B_l is fixed and random and carries no identity term, so the skip path brings nothing back.
    """

    def matrix_shapes(self) -> list[tuple[int, int]]:
        widths = self.layout.features
        return list(zip(widths[1:], widths[:-1], strict=True))

    def credits(self, scene: Scene) -> list[Tensor]:
        return chain(scene, lambda i, a: carry(a, self.matrices[i], scene.states[i]))


class Direct(Feedback):
    """A rule that projects one signal per sample straight to every state."""

    def matrix_shapes(self) -> list[tuple[int, int]]:
        return [(self.layout.classes, width) for width in self.layout.features]

    @abstractmethod
    def signal(self, scene: Scene) -> Tensor:
        """What is projected."""

    def credits(self, scene: Scene) -> list[Tensor]:
        told = self.signal(scene)
        return [broadcast(told, m, h) for m, h in zip(self.matrices, scene.states, strict=True)]


class DFA(Direct):
    """Direct feedback alignment: a_l = B_l^T e with e = dL/dlogits (Nokland 2016, 1609.01596)."""

    def signal(self, scene: Scene) -> Tensor:
        return scene.error


class DRTP(Direct):
    """Direct random target projection: a_l = -B_l^T y, y one-hot (Frenkel et al. 2021).

    The target itself is projected (doi 10.3389/fnins.2021.629892), so no block waits for the
    output. The label is where the logits should go and a credit points uphill, hence the minus.
    """

    def signal(self, scene: Scene) -> Tensor:
        return -one_hot(scene.targets, self.layout.classes, scene.error.dtype)


class BackwardWeights(CreditRule):
    """A rule that backpropagates through each block with other weights than the forward ones.

    ``a_L = g_L``; a block's nonlinearities, norms and skip paths keep their exact Jacobian.
    """

    def credits(self, scene: Scene) -> list[Tensor]:
        return chain(scene, lambda i, a: scene.pull(i, a, self._backward(scene.network, i)))

    @abstractmethod
    def backward_weight(self, index: int, position: int, weight: Tensor) -> Tensor:
        """What stands for ``weight``, the ``position``-th of block ``index``, on the way back."""

    def _backward(self, network: Network, index: int) -> Backward:
        place = {id(w): position for position, w in enumerate(network.weights(index))}

        def of(weight: nn.Parameter) -> Tensor | None:
            position = place.get(id(weight))
            if position is None:
                return None
            return self.backward_weight(index, position, weight.detach())

        return of


class UniformSign(BackwardWeights):
    """Sign-symmetric feedback uSF: V = s sign(W) (Liao, Leibo & Poggio 2016, arXiv 1510.05067).

    ``scale`` is s; by default sqrt(2 / (fan_in + fan_out)), the size of a Glorot-initialised W.
    """

    def __init__(
        self, layout: Layout, generator: torch.Generator, *, scale: float | None = None
    ) -> None:
        super().__init__(layout, generator)
        if scale is not None and not 0 < scale < inf:
            raise RuleError(f"the size of sign-symmetric feedback must be above 0, not {scale!r}")
        self.scale = scale

    def backward_weight(self, index: int, position: int, weight: Tensor) -> Tensor:
        return self.magnitude(index, position, weight) * torch.sign(weight)

    def magnitude(self, index: int, position: int, weight: Tensor) -> Tensor:
        """How large each entry is."""
        return weight.new_full((), self._size(weight.shape))

    def _size(self, shape: torch.Size) -> float:
        if self.scale is not None:
            return self.scale
        receptive = shape[2:].numel()
        return (2.0 / ((shape[0] + shape[1]) * receptive)) ** 0.5


class FixedRandomSign(UniformSign):
    """Sign-symmetric feedback frSF: V = M * sign(W), M >= 0 drawn once (Liao et al. 2016).

    M is uniform with twice uSF's size at most, so its mean is uSF's.
    """

    has_feedback = True
    steady = False

    seed: Tensor
    draw: Tensor

    def __init__(
        self, layout: Layout, generator: torch.Generator, *, scale: float | None = None
    ) -> None:
        super().__init__(layout, generator, scale=scale)
        self.register_buffer("seed", torch.randint(2**31, (), generator=generator))
        self.register_buffer("draw", torch.zeros((), dtype=torch.int64))

    def magnitude(self, index: int, position: int, weight: Tensor) -> Tensor:
        source = seeded(int(self.seed), int(self.draw), index, position)
        size = 2.0 * self._size(weight.shape)
        return (torch.rand(weight.shape, generator=source) * size).to(weight)


class RedrawnRandomSign(FixedRandomSign):
    """Sign-symmetric feedback brSF: as frSF, with M drawn anew after every update."""

    def after_step(self, network: Network) -> None:
        self.draw += 1


class KolenPollack(BackwardWeights):
    """Learned feedback: B follows W's own updates and both decay (Akrout et al. 2019, 1904.05391).

    Every backward weight B receives the gradient, optimiser and schedule of its W, and after each
    step both shrink by ``decay``, so W - B shrinks by exactly (1 - decay) a step beyond the
    optimiser's own decay: feedback becomes symmetric without weight transport. ``decay``
    multiplies weights, not the learning rate (Kolen & Pollack 1994).
    """

    has_feedback = True

    def __init__(self, layout: Layout, generator: torch.Generator, *, decay: float = 1e-3) -> None:
        super().__init__(layout, generator)
        if not 0 < decay < 1:
            raise RuleError(f"Kolen-Pollack needs a decay between 0 and 1, not {decay!r}")
        self.decay = decay
        self.matrices = nn.ParameterList(
            nn.Parameter(_uniform(shape, generator))
            for shapes in layout.weights
            for shape in shapes
        )

    def backward_weight(self, index: int, position: int, weight: Tensor) -> Tensor:
        before = sum(len(shapes) for shapes in self.layout.weights[:index])
        return self.matrices[before + position].detach()

    def mirrors(self, network: Network) -> list[tuple[nn.Parameter, nn.Parameter]]:
        weights = [w for index in range(network.depth) for w in network.weights(index)]
        return list(zip(weights, self.matrices, strict=True))

    def after_step(self, network: Network) -> None:
        with torch.no_grad():
            for weight, mirror in self.mirrors(network):
                if weight.requires_grad:
                    weight.mul_(1 - self.decay)
                    mirror.mul_(1 - self.decay)


def _uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """PyTorch's default range for the weight of a linear or convolutional layer."""
    bound = torch.Size(shape[1:]).numel() ** -0.5
    return (torch.rand(shape, generator=generator) * 2 - 1) * bound
