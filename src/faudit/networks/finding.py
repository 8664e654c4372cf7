"""Finding blocks: dotted names to modules, refused with near matches where they do not fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from torch import nn
from torch.nn.parameter import is_lazy

from faudit.errors import NetworkError

SEQUENCES = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
"""Modules that hold blocks in the order they run."""

Named = list[tuple[str, nn.Module]]


def check_made(model: nn.Module) -> None:
    """Refuse a module with weights that have a shape at most, and no numbers yet."""
    for name, weight in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(weight) or weight.is_meta:
            why = "lazy: run the model once" if is_lazy(weight) else "on the meta device: load it"
            raise NetworkError(f"weight {name} of {type(model).__name__} is {why} first")


def sequence_at(model: nn.Module, name: str) -> Named:
    """The modules in the sequence called ``name``, by dotted name; empty where there is none.

    >>> model = nn.ModuleDict({"blocks": nn.ModuleList([nn.Identity(), nn.Identity()])})
    >>> [name for name, _ in sequence_at(model, "blocks")]
    ['blocks.0', 'blocks.1']
    """
    owner = _submodules(model).get(name)
    if not isinstance(owner, SEQUENCES):
        return []
    # named_children would hide a module that stands in the sequence twice
    return [(f"{name}.{child}", m) for child, m in owner._modules.items() if m is not None]


def find_blocks(model: nn.Module, blocks: str | Iterable[str] | None = None) -> Named:
    """The blocks that ``blocks`` names, in that order; by default those in ``.blocks``.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    >>> [name for name, _ in find_blocks(model, ["0", "2"])]
    ['0', '2']
    """
    found = _default(model) if blocks is None else _named(model, blocks)
    _refuse_overlap(found)
    return found


def _default(model: nn.Module) -> Named:
    found = sequence_at(model, "blocks")
    if not found:
        sequences = [name for name in _submodules(model) if sequence_at(model, name)]
        choices = ", ".join(map(repr, sequences[:8] or list(_submodules(model))[:8]))
        raise NetworkError(
            f"{type(model).__name__} has no .blocks with modules in it; say where its blocks are"
            f" with blocks='dotted.name'. It has: {choices or 'no submodule'}"
        )
    return found


def _named(model: nn.Module, blocks: str | Iterable[str]) -> Named:
    if isinstance(blocks, str):
        return sequence_at(model, blocks) or [_one(model, blocks)]
    if not isinstance(blocks, Iterable):
        raise NetworkError(f"blocks is {blocks!r:.60}; give a dotted name, or one for every block")
    names = list(blocks)
    if any(isinstance(name, nn.Module) for name in names):
        raise NetworkError("blocks are named, not given; write their dotted names: ['layer1', ..]")
    found = [_one(model, str(name)) for name in names]
    if not found:
        raise NetworkError("no block was named; give blocks=['layer1', 'layer2', ...]")
    return found


def _one(model: nn.Module, name: str) -> tuple[str, nn.Module]:
    known = _submodules(model)
    if name not in known:
        near = get_close_matches(name, known, n=3, cutoff=0.5) or list(known)[:8]
        raise NetworkError(
            f"{type(model).__name__} has no module {name!r}; near: {', '.join(near) or 'none'}"
        )
    if isinstance(known[name], (nn.ModuleList, nn.ModuleDict)):
        raise NetworkError(
            f"{name!r} is a {type(known[name]).__name__}, which never runs itself; name the"
            " modules in it, or give it alone as blocks='dotted.name' if it is not empty"
        )
    return name, known[name]


def _submodules(model: nn.Module) -> dict[str, nn.Module]:
    """Every submodule under every name it has."""
    return {name: m for name, m in model.named_modules(remove_duplicate=False) if name}


def _refuse_overlap(found: Sequence[tuple[str, nn.Module]]) -> None:
    owners: dict[nn.Module, str] = {}
    for name, block in found:
        if block in owners:
            raise NetworkError(
                f"blocks {owners[block]!r} and {name!r} are the same module; a block runs once in"
                " a forward pass, so give each one a module of its own"
            )
        owners[block] = name
    for name, block in found:
        inner = next((owners[m] for m in block.modules() if m in owners and m is not block), None)
        if inner is not None:
            raise NetworkError(f"block {inner!r} lies inside block {name!r}; name one of them")
