"""Bridges: small networks that learn to see the output from a state, and credit by their gradient.

The audited papers define them: a State Bridge predicts h_L, a Credit Bridge predicts the loss.
"""

from __future__ import annotations

from abc import abstractmethod
from numbers import Integral
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import skip_init

from faudit.errors import RuleError
from faudit.networks.scene import Scene
from faudit.networks.view import Layout
from faudit.rules.base import CreditRule, features_back, features_last, one_hot

Inputs = Literal["raw", "normalised"]
Sees = Literal["nothing", "label", "error"]


class Bridge(CreditRule):
    """A rule that learns one small MLP, shared by all depths and told the depth t_l = l / L.

    Args:
        hidden: the MLP's width; the network's own by default.
        lr: of its own AdamW.
        inputs: whether it reads the state as it is or after a LayerNorm without parameters.
    """

    optimiser: torch.optim.Optimizer

    def __init__(self, layout: Layout, generator: torch.Generator, inputs: Inputs) -> None:
        super().__init__(layout, generator)
        if len(set(layout.shapes)) != 1:
            raise RuleError(
                "a bridge reads every state with one network, so all states must have one shape;"
                f" here they are {', '.join(map(str, layout.shapes))}"
            )
        if inputs not in ("raw", "normalised"):
            raise RuleError(f"a bridge's inputs are 'raw' or 'normalised', not {inputs!r}")
        self.inputs = inputs

    def learn_with(self, net: nn.Sequential, lr: float) -> None:
        """Make ``net`` the bridge, taught by an optimiser of its own."""
        if not lr > 0:
            raise RuleError(f"a bridge learns at a rate above 0, not {lr!r}")
        self.net = net
        self.optimiser = torch.optim.AdamW(net.parameters(), lr=lr, fused=True)

    def credits(self, scene: Scene) -> list[Tensor]:
        with torch.enable_grad():
            states = [h.clone().requires_grad_() for h in scene.states]
            values = [self.value(scene, index, h).sum() for index, h in enumerate(states)]
            return list(torch.autograd.grad(values, states))

    def fit(self, scene: Scene) -> dict[str, Tensor | float]:
        with torch.enable_grad():
            misses = [self.miss(scene, index, h) for index, h in enumerate(scene.states)]
            loss = torch.stack(misses).mean()
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return {"bridge_loss": loss.detach()}

    @abstractmethod
    def value(self, scene: Scene, index: int, h: Tensor) -> Tensor:
        """The loss of every sample as the bridge sees it from h_index."""

    @abstractmethod
    def miss(self, scene: Scene, index: int, h: Tensor) -> Tensor:
        """How wrong the bridge is at h_index; what ``fit`` minimises."""

    def read(self, index: int, h: Tensor, extra: Tensor | None = None) -> Tensor:
        """The MLP's output at every position of the state."""
        h = features_last(h)
        if self.inputs == "normalised":
            h = F.layer_norm(h, h.shape[-1:])
        depth = h.new_full((*h.shape[:-1], 1), index / max(self.layout.depth, 1))
        parts = [h, depth] if extra is None else [h, depth, _at_positions(extra, h)]
        return self.net(torch.cat(parts, -1))


class StateBridge(Bridge):
    """State Bridge: G(h_l, t_l) predicts h_L; a_l is the gradient of CE(readout(G), y) in h_l."""

    def __init__(
        self,
        layout: Layout,
        generator: torch.Generator,
        *,
        hidden: int | None = None,
        lr: float = 1e-3,
        inputs: Inputs = "raw",
    ) -> None:
        super().__init__(layout, generator, inputs)
        width = layout.features[0]
        self.learn_with(_mlp(width + 1, _hidden(hidden, width), width, generator), lr)

    def predict(self, index: int, h: Tensor) -> Tensor:
        """The last state as seen from h_index."""
        return features_back(self.read(index, h))

    def value(self, scene: Scene, index: int, h: Tensor) -> Tensor:
        return scene.losses(self.predict(index, h))

    def miss(self, scene: Scene, index: int, h: Tensor) -> Tensor:
        return F.mse_loss(self.predict(index, h), scene.states[-1])


class CreditBridge(Bridge):
    """Credit Bridge: V(h_l, t_l) predicts the sample's final loss; a_l is its gradient in h_l.

    ``sees`` says what else V is given. A V that sees nothing can only predict the mean loss over
    labels, so its gradient says where the network is unsure and not what is right; by default it
    sees the label, and with "error" it sees dL/dlogits.
    """

    def __init__(
        self,
        layout: Layout,
        generator: torch.Generator,
        *,
        sees: Sees = "label",
        hidden: int | None = None,
        lr: float = 1e-3,
        inputs: Inputs = "raw",
    ) -> None:
        if sees not in ("nothing", "label", "error"):
            raise RuleError(f"a Credit Bridge sees 'nothing', 'label' or 'error', not {sees!r}")
        super().__init__(layout, generator, inputs)
        self.sees = sees
        width, extra = layout.features[0], 0 if sees == "nothing" else layout.classes
        self.learn_with(_mlp(width + 1 + extra, _hidden(hidden, width), 1, generator), lr)

    def value(self, scene: Scene, index: int, h: Tensor) -> Tensor:
        return self.read(index, h, self._context(scene)).flatten(1).mean(1)

    def miss(self, scene: Scene, index: int, h: Tensor) -> Tensor:
        with torch.no_grad():
            truth = scene.loss(scene.logits, scene.targets)
        return F.mse_loss(self.value(scene, index, h), truth)

    def _context(self, scene: Scene) -> Tensor | None:
        if self.sees == "nothing":
            return None
        if self.sees == "error":
            return scene.error
        return one_hot(scene.targets, self.layout.classes, scene.error.dtype)


def _hidden(asked: int | None, width: int) -> int:
    if asked is None:
        return width
    if isinstance(asked, bool) or not isinstance(asked, Integral) or int(asked) < 1:
        raise RuleError(f"a bridge is at least 1 wide, not {asked!r}")
    return int(asked)


def _mlp(inputs: int, hidden: int, outputs: int, generator: torch.Generator) -> nn.Sequential:
    # nn.Linear(...) itself would draw from the global stream before the generator is asked
    net = nn.Sequential(
        skip_init(nn.Linear, inputs, hidden),
        nn.GELU(),
        skip_init(nn.Linear, hidden, hidden),
        nn.GELU(),
        skip_init(nn.Linear, hidden, outputs),
    )
    for layer in net:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_uniform_(layer.weight, a=5**0.5, generator=generator)
            nn.init.zeros_(layer.bias)
    return net


def _at_positions(extra: Tensor, h: Tensor) -> Tensor:
    """One row per sample, repeated at every position of a features-last state."""
    if extra.ndim == h.ndim:
        return extra
    extra = extra.view(len(extra), *[1] * (h.ndim - 2), -1)
    return extra.expand(*h.shape[:-1], extra.shape[-1])
