"""Throughput: faudit's steps beside the same steps by others and beside their matrix products."""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import Any

import torch

from benchmarks import roofline
from benchmarks.clock import Work, interleaved, ratio, spread, threads
from benchmarks.loops import biotorch, cifar_shaped, learning, local_losses, plain
from benchmarks.rows import Row, Section
from faudit.data.sets import Dataset
from faudit.routes import PLAIN, chosen

STEPS, ROUNDS = 8, 25
LEDGER = "dfa, as the ledger trains"
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "bp": ("bp", {}),
    "fa": ("fa", {}),
    "dfa": ("dfa", {}),
    "dfa+penalty": ("dfa", {"penalty": 0.01}),
    LEDGER: ("dfa", {"normalise": "batch", "block_steps": 2}),
}
PLAIN_LOOP, LOCAL_LOOP = "plain PyTorch BP loop", "local-loss DFA loop"

Times = dict[str, list[float]]


def sections() -> list[Section]:
    """Speed against peers and against the machine, on one thread and on two."""
    with threads(1):
        data, route = cifar_shaped(), chosen()
        one = against_peers(data, route)
        wide = against_products(data, route, 512)
    with threads(2):
        two = on_two_threads(data, route)
    return [*one, wide, two]


def against_peers(data: Dataset, route: str) -> list[Section]:
    """Everything at d256, in the same rounds."""
    works = {**ours(data, route), **peers(data), **roofline.contenders(every_product(256))}
    works[f"bp, route {PLAIN}"] = learning(data, "bp", STEPS, route=PLAIN)
    works["plain loop, AdamW fused"] = plain(data, STEPS, fused=True)
    times = interleaved(works, ROUNDS)
    note = f"ResMLP d256 L4, batch 128, one thread, processor time, route {route}, {ROUNDS} rounds"
    return [
        Section("Steps per second", note, tuple(rates(times))),
        Section("Throughput relative to others", note, tuple(comparisons(times))),
        Section("Share of the roofline, d256", ROOF, tuple(shares(256, times))),
    ]


ROOF = "the step's matrix products alone, each at its shape's best rate, over the whole step"


def ours(data: Dataset, route: str, **shape: int) -> dict[str, Work]:
    """faudit's steps by name."""
    return {
        name: learning(data, rule, STEPS, route=route, told=told, **shape)
        for name, (rule, told) in OURS.items()
    }


def products_of(name: str, width: int) -> list[roofline.Product]:
    """The products in a step of one of ours."""
    rule, told = OURS[name]
    return roofline.products(width, 4, 128, rule=rule, repeats=told.get("block_steps", 1))


def every_product(width: int) -> list[roofline.Product]:
    """The products of all of ours; equal shapes are timed once."""
    return [product for name in OURS for product in products_of(name, width)]


def peers(data: Dataset) -> dict[str, Work]:
    """The others that are installed."""
    found = {PLAIN_LOOP: plain(data, STEPS), LOCAL_LOOP: local_losses(data, STEPS)}
    for mode in ("fa", "dfa"):
        loop = biotorch(data, mode, STEPS)
        if loop is None:
            print(f"BioTorch {mode} is skipped: pip install --no-deps biotorch")
        else:
            found[f"BioTorch {mode}"] = loop
    return found


def rates(times: Times) -> list[Row]:
    """Steps per second of every loop."""
    loops = [name for name in times if not name.startswith("product")]
    return [Row.of(name, spread([STEPS / t for t in times[name]]), "steps/s") for name in loops]


def comparisons(times: Times) -> list[Row]:
    """faudit's throughput over that of others."""
    wanted = [
        ("bp", PLAIN_LOOP, 2.8),
        ("dfa", PLAIN_LOOP, 2.8),
        ("dfa", "bp", 1.0),
        ("dfa", LOCAL_LOOP, 3.5),
        ("fa", "BioTorch fa", 2.8),
        ("dfa", "BioTorch dfa", 2.8),
        ("dfa+penalty", PLAIN_LOOP, None),
        ("bp", "plain loop, AdamW fused", None),
        ("bp", f"bp, route {PLAIN}", None),
    ]
    return [
        Row.of(f"{own} / {other}", ratio(times[other], times[own]), **_least(least))
        for own, other, least in wanted
        if other in times
    ]


def shares(width: int, times: Times, least: float = 0.7) -> list[Row]:
    """How much of a step its own matrix products would take at their best."""
    steps = {name: [t / STEPS for t in times[name]] for name in OURS if name in times}
    rows = []
    for name, step in steps.items():
        found = ratio(roofline.floor(products_of(name, width), times), step)
        rows.append(Row.of(name, found, "of 1", **_least(None if name == LEDGER else least)))
    return [*rows, *_strictly(width, steps["bp"], times)]


def _strictly(width: int, step: list[float], times: Times) -> list[Row]:
    """BP's products at the best rate that any shape reaches."""
    products = products_of("bp", width)
    peak = roofline.peak(products, times)
    flops = sum(product.flops * product.count for product in products)
    at_peak = ratio([flops / rate for rate in peak], step)
    return [
        Row.of("bp, if every product reached the best shape's rate", at_peak, "of 1"),
        Row("products in a step of bp", flops / 1e6, "MFLOP"),
        Row.of("best rate of any shape", spread([rate / 1e9 for rate in peak]), "GFLOPS"),
    ]


def against_products(data: Dataset, route: str, width: int) -> Section:
    """BP and DFA of another width beside their products."""
    works = {
        **{name: learning(data, name, STEPS, route=route, width=width) for name in ("bp", "dfa")},
        **roofline.contenders(every_product(width)),
    }
    rows = shares(width, interleaved(works, ROUNDS // 2), least=0.85)
    return Section(f"Share of the roofline, d{width}", ROOF, tuple(rows))


def on_two_threads(data: Dataset, route: str) -> Section:
    """The main comparisons by the clock on the wall, with both threads of PyTorch."""
    works = {name: work for name, work in ours(data, route).items() if name != LEDGER}
    works[PLAIN_LOOP] = plain(data, STEPS)
    works[LOCAL_LOOP] = local_losses(data, STEPS)
    works["bp, one thread"] = partial(_alone, learning(data, "bp", STEPS, route=route))
    times = interleaved(works, ROUNDS, clock=perf_counter)
    pairs = [(name, PLAIN_LOOP) for name in OURS if name != LEDGER]
    pairs += [("dfa", "bp"), ("dfa", LOCAL_LOOP), ("bp", "bp, one thread")]
    rows = [Row.of(f"{a} / {b}", ratio(times[b], times[a])) for a, b in pairs]
    note = (
        f"d256, two threads, {ROUNDS} rounds, time on the wall:"
        " whatever else the machine does is in it"
    )
    return Section("Two threads", note, tuple(rows))


def _alone(loop: Work) -> None:
    with threads(1):
        loop()


def _least(least: float | None) -> dict[str, float]:
    return {} if least is None else {"least": least}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(*sections(), sep="\n")
