"""Bundles as real studies leave them, made up from the published numbers; no training involved."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path

import numpy as np

from faudit.bundle import Bundle, Manifest, Outcome, Parts, pack_correct, write
from faudit.measures.evidence import Evidence, NullCalibration
from faudit.recipe import Named, Recipe

TESTS = 10_000
SEEDS = (42, 123, 456)


@dataclass(frozen=True)
class Profile:
    """What a method does in one setting: where it ends, and how its credit lies over depth."""

    accuracy: float
    state: float
    reference: float
    growth: float
    shallow: float
    deep: float
    stability: float = 0.1
    correlation: float = 0.02
    nudging: float = -1e-4


PROFILES = {
    "bp": Profile(0.609, 190, 4e-4, 1.9, 1.0, 1.0, 0.08, 0.997, -2e-3),
    "fa": Profile(0.401, 1e5, 9e-7, 21, 0.01, 0.29, 0.12, 0.19, -2e-4),
    "dfa": Profile(0.306, 4e8, 5e-10, 237, 0.42, 0.00, 0.16, 0.002, -5e-5),
    "sb": Profile(0.205, 2e9, 8e-10, 12_000, 0.05, 0.02, 0.53, 0.004, -3e-5),
    "cb": Profile(0.289, 9e7, 1e-9, 96, 0.30, 0.01, 0.37, 0.006, -4e-5),
    "ep": Profile(0.316, 5e3, 1.6e-4, 11.6, nan, 0.008, 0.02, 0.01, -1e-5),
}
FROZEN = Profile(0.349, 21, 9e-4, 1.1, 0.30, 0.02)


def recipe(
    rule: str,
    seed: int = 42,
    *,
    epochs: int = 100,
    penalty: float = 0.0,
    blocks: int | None = None,
    network: Named | None = None,
    **changes: object,
) -> Recipe:
    """A recipe of the audited kind."""
    training = {"epochs": epochs, "penalty": penalty, "trainable_blocks": blocks}
    made = Recipe(rule=Named(name=rule), training=training, seed=seed)
    if network is not None:
        made = made.changed({"network": network})
    return made.changed(changes)


def bundle(made: Recipe, profile: Profile | None = None, **outcome: object) -> Bundle:
    """A finished run of a recipe, ending as ``profile`` says."""
    rng = np.random.default_rng([made.seed, len(made.rule.name), int(made.training.epochs)])
    ends = _jittered(profile or _profile(made), rng)
    done = _outcome(made, ends, rng).replace(**outcome)
    return Bundle(
        Path(f"runs/{made.digest}"),
        manifest(made),
        made,
        done,
        tuple(history(made, ends, rng)),
        evidence(made, ends, rng),
    )


def _profile(made: Recipe) -> Profile:
    if made.training.trainable_blocks == 0:
        return FROZEN
    known = PROFILES.get(made.rule.name, PROFILES["dfa"])
    dose = made.training.penalty
    if not dose:
        return known
    if made.rule.name == "bp":
        return replace(known, accuracy=0.532)
    strong = dose >= 1e-2
    return replace(
        known,
        accuracy=0.360 if strong else 0.355,
        state=4e4 if strong else 2.3e4,
        reference=2e-6 if strong else 5e-6,
        growth=9.0,
        shallow=0.4,
        deep=0.152 if strong else -0.016,
        correlation=0.08 if strong else -0.004,
    )


def _jittered(p: Profile, rng: np.random.Generator) -> Profile:
    wide = float(np.exp(rng.normal(0, 0.25)))
    return replace(
        p,
        accuracy=p.accuracy + float(rng.normal(0, 0.005)),
        state=p.state * wide,
        reference=p.reference / wide,
        growth=p.growth * float(np.exp(rng.normal(0, 0.1))),
        deep=min(1.0, p.deep + float(rng.normal(0, 0.012)) * (p.deep < 0.99)),
    )


def _outcome(made: Recipe, p: Profile, rng: np.random.Generator) -> Outcome:
    correct = rng.random(TESTS) < p.accuracy
    return Outcome(
        digest=made.digest,
        status="done",
        epoch=made.training.epochs,
        accuracy=float(correct.mean()),
        loss=2.4 - 2 * p.accuracy,
        tests=TESTS,
        correct=pack_correct(correct.tolist()),
        classes=10,
        shape=(3, 32, 32),
        data="1f3c5a7b9d",
    )


def manifest(made: Recipe, **changes: object) -> Manifest:
    """Where the run says it comes from."""
    return Manifest(
        digest=made.digest,
        files={},
        versions={"faudit": "0.1.0", "numpy": "2.4.6", "python": "3.11.7", "torch": "2.13.0"},
        code="a1b2c3d4e5f6",
        commit="0123456789abcdef0123",
        data="1f3c5a7b9d",
        device=made.device,
        machine="an eight-core processor",
        threads=made.threads,
        timing={"seconds": 612.0 + made.seed % 7, "resumed": 0},
    ).replace(**changes)


def depth(made: Recipe) -> int:
    """Blocks of the recipe's network."""
    return int(made.network.options.get("depth", 4))


def _layers(made: Recipe, p: Profile, share: float) -> dict[str, tuple[float, ...]]:
    """States, growth and references at a point of training; ``share`` runs from 0 to 1."""
    blocks = depth(made)
    early = 1 - (1 - share) ** 6
    first = 9.0 * (p.state / 9.0) ** (0.45 * early)
    jump = max(1.05, p.growth**early)
    last = max(9.0 * (p.state / 9.0) ** early, first * jump)
    rest = (last / (first * jump)) ** (1 / max(blocks - 1, 1)) if blocks else 1.0
    states = [first, *(first * jump * rest**i for i in range(blocks))]
    end = 9.8e-4 * (p.reference / 9.8e-4) ** early
    start = end * min(40.0, states[-1] / states[0]) ** 0.8
    steps = [start, *(end * 1.1 ** (blocks - 1 - i) for i in range(blocks))]
    return {
        "state_norm": tuple(states),
        "growth": tuple(b / a for a, b in itertools.pairwise(states)),
        "reference_norm": tuple(128 * g for g in steps),
    }


def _cosine(made: Recipe, p: Profile, rng: np.random.Generator) -> tuple[float, ...]:
    blocks = depth(made)
    if p.deep > 0.99:
        return (1.0,) * (blocks + 1)
    if made.rule.name == "fa":
        shape = np.linspace(0.0, 1.0, blocks) ** 1.6 * 3.0 * p.deep
    else:
        shape = np.full(blocks, p.deep)
    return (p.shallow, *(float(min(0.97, c + rng.normal(0, 0.012))) for c in shape))


def evidence(made: Recipe, p: Profile, rng: np.random.Generator) -> Evidence:
    """What measuring the finished run gives."""
    blocks = depth(made)
    cosine = _cosine(made, p, rng)
    known = [c for c in cosine if c == c]
    deep = float(np.mean(cosine[1:])) if blocks else nan
    clamp = min(1.0, p.reference / 1e-8)
    exact = made.rule.name == "bp"
    return Evidence(
        layers=blocks,
        samples=1024,
        **_layers(made, p, 1.0),
        cosine=cosine,
        cosine_clamped=tuple(c * clamp for c in cosine),
        deep_cosine=deep,
        gamma=float(np.mean(known)),
        cosine_aggregates={"mean over samples": float(np.mean(known)), "of the sums": 0.3 * deep},
        nudging=(p.nudging,) * (blocks + 1),
        perturbation_correlation=(p.correlation,) * (blocks + 1),
        perturbation_controls={"bp": (0.997,) * (blocks + 1), "random": (0.006,) * (blocks + 1)},
        stability=p.stability + float(rng.normal(0, 0.01)),
        stability_mode="last reference",
        reference_angle=(0.1,) * (blocks + 1),
        reference_noise=(1e-4,) * (blocks + 1),
        null=None if exact else NullCalibration(
            draws=20, mean=-0.002, std=0.018, value=deep, z=(deep + 0.002) / 0.018
        ),
        accuracy=p.accuracy,
        loss=2.4 - 2 * p.accuracy,
        facts={"width": 256.0, **({"ep_residual": 0.4} if made.rule.name == "ep" else {})},
        undefined={"cosine[0]": "the credit has zero norm"} if cosine[0] != cosine[0] else {},
    )  # fmt: skip


def history(made: Recipe, p: Profile, rng: np.random.Generator) -> Iterator[dict[str, object]]:
    """One record per epoch, the untrained network first."""
    epochs = made.training.epochs
    for epoch in range(epochs + 1):
        layers = _layers(made, p, epoch / epochs)
        cosine = _cosine(made, p, rng)
        rise = 1 - 0.5 ** (12 * epoch / epochs)
        record: dict[str, object] = {
            "epoch": epoch,
            "accuracy": 0.1 + (p.accuracy - 0.1) * rise + float(rng.normal(0, 0.003)),
            "loss": 2.3 - rise,
            **{name: list(values) for name, values in layers.items()},
            "cosine": list(cosine),
            "deep_cosine": float(np.mean(cosine[1:])) if depth(made) else nan,
            "gamma": float(np.nanmean(cosine)),
            "nonfinite": None,
        }
        if epoch:
            record["train_loss"] = 2.3 - 1.4 * p.accuracy * rise
        yield record


def failed(made: Recipe, reason: str = "non-finite", **more: object) -> Bundle:
    """A run that ended badly."""
    found = bundle(made)
    about = {"layer": "h_3", "epoch": 7, "message": "the loss is not finite"}
    outcome = Outcome(digest=made.digest, status="failed", reason=reason, **{**about, **more})
    measured = None if reason != "non-finite" else found.evidence
    return replace(found, outcome=outcome, evidence=measured, history=found.history[:8])


def audit(epochs: int = 100, seeds: Sequence[int] = SEEDS) -> list[Bundle]:
    """Five methods and their frozen baseline in the primary setting."""
    made = [recipe(rule, seed, epochs=epochs) for rule in PROFILES for seed in seeds]
    made += [recipe("dfa", seed, epochs=epochs, blocks=0) for seed in seeds]
    return [bundle(r) for r in made]


def penalties(epochs: int = 30, seeds: Sequence[int] = SEEDS) -> list[Bundle]:
    """DFA and BP under three penalties, with one baseline for all."""
    doses = (0.0, 1e-4, 1e-2)
    made = [recipe("dfa", s, epochs=epochs, penalty=d) for d in doses for s in seeds]
    made += [recipe("bp", s, epochs=epochs, penalty=d) for d in (0.0, 1e-2) for s in seeds]
    made += [recipe("dfa", s, epochs=epochs, blocks=0) for s in seeds]
    return [bundle(r) for r in made]


def ladder(epochs: int = 30, seeds: Sequence[int] = SEEDS[:2]) -> list[Bundle]:
    """The last k blocks trainable, under BP and DFA."""
    steps = {"bp": (0.40, 0.46, 0.53), "dfa": (0.335, 0.32, 0.31)}
    return [
        bundle(recipe(rule, seed, epochs=epochs, blocks=k), replace(PROFILES[rule], accuracy=a))
        for rule, accuracies in steps.items()
        for k, a in enumerate(accuracies, 1)
        for seed in seeds
    ]


def vision(epochs: int = 30, seeds: Sequence[int] = SEEDS) -> list[Bundle]:
    """The transformer, where frozen blocks beat everything but exact gradients."""
    network = Named(name="vitmini", options={"width": 128, "depth": 4})
    ends = {
        "bp": replace(PROFILES["bp"], accuracy=0.68),
        "fa": replace(PROFILES["dfa"], accuracy=0.163, state=1e7, reference=2e-9, growth=160),
        "dfa": replace(PROFILES["dfa"], accuracy=0.256, state=2e7, reference=1e-9),
    }
    made = [
        bundle(recipe(rule, seed, epochs=epochs, network=network), end)
        for rule, end in ends.items()
        for seed in seeds
    ]
    frozen = replace(FROZEN, accuracy=0.570)
    made += [
        bundle(recipe("dfa", s, epochs=epochs, network=network, blocks=0), frozen) for s in seeds
    ]
    return made


def everything(epochs: int = 100) -> list[Bundle]:
    """A study as large as the paper's: 125 runs in 17 settings."""
    bundles = audit(epochs) + penalties() + vision() + ladder()
    width = 16
    while len(bundles) < 125:
        network = Named(name="resmlp", options={"width": width, "depth": 2})
        for rule in ("bp", "fa", "dfa"):
            bundles += [bundle(recipe(rule, s, epochs=epochs, network=network)) for s in SEEDS[:2]]
        bundles += [
            bundle(recipe("dfa", s, epochs=epochs, network=network, blocks=0)) for s in SEEDS[:1]
        ]
        width += 16
    return bundles[:125]


def store(folder: Path, bundles: Sequence[Bundle]) -> Path:
    """The bundles as a store on disk, with empty weights."""
    for item in bundles:
        whole: dict = {} if item.outcome.done else None  # type: ignore[assignment]
        parts = Parts(item.recipe, item.outcome, item.history, item.evidence, whole, whole)
        write(folder / "runs" / item.recipe.digest, parts, {"seconds": 12.5})
    (folder / "faudit-store.json").write_text(json.dumps({"format": 1, "id": "sample"}))
    return folder


def patchy(epochs: int = 20) -> list[Bundle]:
    """A study that is not whole: BP and FA with their baseline, DFA broken, EP without one."""
    made = [recipe(rule, s, epochs=epochs) for rule in ("bp", "fa") for s in SEEDS]
    made += [recipe("fa", s, epochs=epochs, blocks=0) for s in SEEDS[:2]]
    lonely = Named(name="vitmini", options={"width": 64, "depth": 2})
    made += [recipe("ep", 42, epochs=epochs, network=lonely)]
    broken = [failed(recipe("dfa", 42, epochs=epochs))]
    broken += [
        failed(recipe("dfa", 123, epochs=epochs), "oom", layer=None, message="out of memory")
    ]
    return [bundle(r) for r in made] + broken
