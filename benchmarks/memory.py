"""Memory: the peak of a training step against its parameters and activations.

A process of its own builds a learner, steps it, and reads its peak from the system. The lower bound
is what no trainer can do without: weights, gradients and AdamW's two moments, and the activations
that backpropagation through the same network keeps.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch
from torch.nn import functional as F

from benchmarks.rows import Row, Section

RULES = ("bp", "dfa")
SHAPE = {"width": 512, "depth": 16}
BATCH = 512
MOST = 1.5


def sections() -> list[Section]:
    """Peaks over the lower bound; only where the system tells them."""
    if not Path("/proc/self/clear_refs").exists():
        return []
    rows = [Row(rule, _measured(rule), most=MOST) for rule in RULES]
    note = f"ResMLP d512 L16, batch {BATCH}, one thread; weights, gradients, moments, activations"
    return [Section("Peak memory over the lower bound", note, tuple(rows))]


def _measured(rule: str) -> float:
    command = [sys.executable, "-m", "benchmarks.memory", rule]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, float] = json.loads(told.splitlines()[-1])
    return found["peak"] / found["bound"]


def child(rule: str) -> dict[str, float]:
    """Bytes that a step takes at its peak, and the bound."""
    from benchmarks.loops import cifar_shaped, learning
    from faudit.routes import chosen

    torch.set_num_threads(1)
    data, route = cifar_shaped(), chosen()
    learning(data, rule, 1, route=route, batch=BATCH, width=64, depth=1)()
    bound = lower_bound()
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    learning(data, rule, 3, route=route, batch=BATCH, **SHAPE)()
    return {"peak": _status("VmHWM") - before, "bound": bound}


def lower_bound() -> float:
    """Bytes of weights, gradients, moments, and of what autograd saves for one backward pass."""
    from benchmarks.loops import resmlp

    model = resmlp(**SHAPE)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved: dict[int, int] = {}

    def keep(t: torch.Tensor) -> torch.Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return t

    x, y = torch.randn(BATCH, 3, 32, 32), torch.zeros(BATCH, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        loss = F.cross_entropy(model(x), y)
    del loss
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return 4 * weights + sum(saved.values())


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(child(sys.argv[1])))
    else:
        print(*sections(), sep="\n")
