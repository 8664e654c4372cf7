"""Pitfalls of arithmetic: the wrong norm, a clamped cosine, a format too small, a scale hidden."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from faudit.measures.directions import cosines
from faudit.measures.norms import norms
from faudit.networks.scene import gradients
from faudit.networks.view import Network, evaluating
from faudit.pitfalls.record import Pitfall
from faudit.pitfalls.tiny import learn, network, stretched, task


def norm_minus_one(seed: int = 0) -> Pitfall:
    """The norm of order -1 of a whole tensor, taken for the norm of its rows.

    >>> found = norm_minus_one()
    >>> found.wrong < found.right / 10
    True
    """
    _, exact = gradients(network(seed), *task(seed).train)
    g = exact[-1]
    return Pitfall(
        code="norm-minus-one",
        title="norm(-1) is not the norm of the rows",
        quantity="mean ‖g_L‖",
        wrong=float(g.norm(-1)),  # faudit: ignore[FA001]
        wrong_way="by g.norm(-1)",
        right=float(g.norm(dim=-1).mean()),
        right_way="by g.norm(dim=-1).mean()",
        explanation=(
            "The first argument of norm is its order. norm(-1) is 1 / sum(1 / |g_i|) over all"
            " entries of the tensor: one small entry decides it."
        ),
        fix="name the argument: g.norm(dim=-1)",
    )


def cosine_clamp(seed: int = 0) -> Pitfall:
    """PyTorch's cosine of a short gradient with itself, which is not 1.

    >>> found = cosine_clamp()
    >>> found.wrong < 0.5, round(found.right, 6)
    (True, 1.0)
    """
    view = stretched(network(seed), 1e7)
    g = _mean_loss_gradient(view, *task(seed).train)
    return Pitfall(
        code="cosine-clamp",
        title="The cosine clamps short gradients",
        quantity="cosine of the exact gradient with itself",
        wrong=float(F.cosine_similarity(g, g, dim=1).mean()),  # faudit: ignore[FA002]
        wrong_way="by F.cosine_similarity",
        right=float(cosines(g, g).mean()),
        right_way="in float64 without a clamp",
        explanation=(
            "F.cosine_similarity raises each norm to at least eps = 1e-8. Below that the cosine"
            " shrinks with the gradient, and what is reported is the gradient's length."
        ),
        fix="compute cosines in float64 without eps, and report ‖g_L‖ beside them",
        details={"‖g_L‖": float(norms(g).mean())},
    )


def fp16_underflow(seed: int = 0) -> Pitfall:
    """Gradients that are there in float32 and zero under float16 autocast.

    >>> found = fp16_underflow()
    >>> found.wrong, found.right > 0
    (0.0, True)
    """
    view, (x, y) = stretched(network(seed), 1e4), task(seed, tests=8000).test

    def length(dtype: torch.dtype) -> float:
        with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
            return float(norms(_mean_loss_gradient(view, x, y)).mean())

    return Pitfall(
        code="fp16-underflow",
        title="Gradients vanish in float16",
        quantity="mean ‖g_L‖ of a mean loss",
        wrong=length(torch.float16),
        wrong_way="under float16 autocast",
        right=length(torch.float32),
        right_way="in float32",
        explanation=(
            "float16 has no number between 0 and 6e-8. A mean loss divides every gradient by the"
            " batch size, and a large stream behind a LayerNorm divides it again."
        ),
        fix="measure in float32, or in bfloat16, which has float32's exponents",
        details={"in bfloat16": length(torch.bfloat16)},
    )


def normalised_scale(seed: int = 0) -> Pitfall:
    """Growth of a stream that was normalised before it was logged.

    >>> found = normalised_scale()
    >>> round(found.wrong, 2), found.right > 5
    (1.0, True)
    """
    run = learn(task(seed), "dfa", epochs=10, lr=1e-2, normalise="sample")
    with torch.no_grad(), evaluating(run.network.module):
        states = run.network.trace(run.task.train[0]).states
    return Pitfall(
        code="normalised-scale",
        title="Normalising before logging hides the scale",
        quantity="largest growth of a block, ‖h_{l+1}‖ / ‖h_l‖",
        wrong=_growth([F.layer_norm(h, h.shape[-1:]) for h in states]),
        wrong_way="of normalised states",
        right=_growth(list(states)),
        right_way="of the states",
        explanation=(
            "After LayerNorm every state has the same norm, so no growth can show. What is good"
            " for a plot erases the very thing that diagnostic D1 looks at."
        ),
        fix="log raw norms; normalise only what is drawn",
        details={"‖h_L‖": float(norms(states[-1]).mean())},
    )


def _growth(states: list[Tensor]) -> float:
    sizes = [float(norms(h).mean()) for h in states]
    return max(after / before for before, after in pairwise(sizes))


def _mean_loss_gradient(view: Network, x: Tensor, y: Tensor) -> Tensor:
    """dL/dh_L as a training loop sees it: of the mean over the batch, in the network's dtype."""
    with evaluating(view.module):
        seen = view.rooted(x)
        loss = F.cross_entropy(seen.logits.float(), y)
        return torch.autograd.grad(loss, seen.states[-1])[0]
