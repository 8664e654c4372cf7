"""The studies that have names: functions returning recipes, never results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import Any

from faudit.baselines import frozen
from faudit.errors import RecipeError, unknown
from faudit.recipe import Data, Measuring, Named, Recipe, Training
from faudit.studies.variants import SEARCH, variant

# Why these numbers: docs/first-audit.md. In short, 2,800 steps on 6,000 images take seconds and
# must still separate the methods the way 39,000 steps on CIFAR-10 do. Augmentation keeps a nearly
# linear network from solving the task, so that depth can pay; credit normalised per sample and a
# learning rate three times the papers' bring on in a short run the growth that theirs show late.
FIRST = Recipe(
    network=Named(name="resmlp", options={"width": 128, "depth": 4}),
    data=Data(name="fashion-sample"),
    training=Training(epochs=15, batch=32, lr=3e-3, normalise="sample"),
    measuring=Measuring(samples=1024),
)


def first(methods: Iterable[str] = ("bp", "fa", "dfa"), seed: int = 42) -> list[Recipe]:
    """The first audit: BP, FA and DFA on the embedded sample, each with its frozen blocks.

    >>> [recipe.rule.name for recipe in first()]
    ['bp', 'bp', 'fa', 'fa', 'dfa', 'dfa']
    """
    trained = [FIRST.set(f"rule.name={name}", f"seed={seed}") for name in methods]
    return list(with_baselines(trained))


def with_baselines(recipes: Iterable[Recipe]) -> Iterator[Recipe]:
    """Every recipe and, right after it, the frozen blocks it is held against."""
    for recipe in recipes:
        yield recipe
        if recipe.training.trainable_blocks is None:
            yield frozen(recipe)


# -- the published claims -------------------------------------------------------------------------

EXACT = ("bp",)
"""Rules whose credit is the gradient itself: backpropagation is the same under every variant."""


FIXED = (42, 123, 456)
"""The seeds of every study that names no others."""


@dataclass(frozen=True)
class Setting:
    """Where runs take place: all of a recipe but the rule, its seed and what is done to it."""

    network: Named
    data: Data = field(default_factory=Data)
    epochs: int = 100
    every: int = 5
    seeds: tuple[int, ...] = FIXED


def _resmlp(width: int, depth: int, **options: Any) -> Named:
    return Named(name="resmlp", options={"width": width, "depth": depth, **options})


# Measured after every epoch where a claim is about single epochs; it takes a tenth of the time.
SETTINGS: dict[str, Setting] = {
    "d256": Setting(_resmlp(256, 4), every=1),
    "d256-30": Setting(_resmlp(256, 4), epochs=30),
    "d256-1": Setting(_resmlp(256, 4), epochs=1),
    "d512": Setting(_resmlp(512, 2), seeds=(1, 2, 5)),
    "no-skip": Setting(_resmlp(256, 4, skip=False), epochs=30),
    "random-labels": Setting(_resmlp(256, 4), Data(name="cifar10", labels="random"), epochs=30),
    "no-ln": Setting(_resmlp(256, 4, terminal_norm=False)),
    "cifar100": Setting(_resmlp(256, 4), Data(name="cifar100")),
    "cifar100-shallow": Setting(_resmlp(256, 0), Data(name="cifar100")),
    "vit": Setting(Named(name="vitmini", options={"width": 128, "depth": 4}), epochs=30, every=1),
    "student": Setting(
        Named(name="studentnet", options={"width": 128, "depth": 4}),
        Data(name="student-teacher"),
        every=1,
    ),
    "cnn": Setting(Named(name="smallresnet"), epochs=30),
}


@dataclass(frozen=True)
class Arm:
    """The runs behind one number: one rule in one setting, one run per seed.

    ``blocks`` is how many of the last blocks learn (0 for frozen blocks, None for all), ``seeds``
    are the setting's unless named, and ``base`` stands for a setting that has no name.

    >>> [r.seed for r in Arm("d512", "dfa", penalty=1e-2).recipes()]
    [1, 2, 5]
    """

    setting: str
    rule: str
    penalty: float = 0.0
    blocks: int | None = None
    seeds: tuple[int, ...] = ()
    base: Setting | None = field(default=None, repr=False)

    @property
    def place(self) -> Setting:
        """The setting itself."""
        return self.base or _known(self.setting, SETTINGS, "setting")

    def recipes(self, variant: str = "paper") -> list[Recipe]:
        """One recipe per seed."""
        return [self.recipe(seed, variant) for seed in self.seeds or self.place.seeds]

    def recipe(self, seed: int, name: str = "paper") -> Recipe:
        """The run of one seed, under a variant of the recipe."""
        place, chosen = self.place, variant(name)
        training = Training(
            epochs=place.epochs,
            penalty=self.penalty,
            trainable_blocks=self.blocks,
            **chosen.training_of(exact=self.rule in EXACT, penalised=self.penalty > 0),
        )
        return Recipe(
            network=place.network,
            rule=Named(name=self.rule, options=dict(chosen.rules.get(self.rule, {}))),
            data=place.data,
            training=training,
            measuring=Measuring(every=place.every),
            seed=seed,
        )

    @property
    def baseline(self) -> Arm:
        """The papers' one baseline of a setting: frozen blocks, the embedding taught by DFA.

        A penalty falls on what blocks learn, so frozen blocks need none.
        """
        return replace(self, rule="dfa", penalty=0.0, blocks=0)


def _known(name: str, table: Mapping[str, Any], kind: str) -> Any:
    if name not in table:
        raise RecipeError(unknown(kind, name, table))
    return table[name]


def recipes(arms: Iterable[Arm], variant: str = "paper") -> list[Recipe]:
    """All runs of some arms, each once; every arm's first seed before any arm's second.

    A study that is stopped early has then seen every arm, if only once.
    """
    turns = zip_longest(*(arm.recipes(variant) for arm in arms))
    found = [recipe for turn in turns for recipe in turn if recipe is not None]
    return list(dict.fromkeys(found))


def arms(setting: str, *rules: str, frozen: bool = True, **rest: Any) -> list[Arm]:
    """One arm per rule in one setting, and the setting's frozen blocks.

    >>> [arm.blocks for arm in arms("d512", "bp", "fa")]
    [None, None, 0]
    """
    found = [Arm(setting, rule, **rest) for rule in rules]
    return [*found, found[0].baseline] if frozen else found


SEARCHED: dict[str, tuple[Arm, ...]] = {
    "local": tuple(arms("d256-30", "dfa", "fa")),
    "penalty": tuple(Arm("d256-30", rule, p) for p in (1e-2, 1e-4) for rule in ("dfa", "fa")),
    "sb": tuple(Arm("d256-30", "sb", p) for p in (1e-2, 0.0)),
    "cb": tuple(Arm("d256-30", "cb", p) for p in (1e-2, 0.0)),
    "ep": (Arm("d256-30", "ep"),),
}
"""Whose runs every stage of the search makes, at 30 epochs."""


def search(seed: int = 42, stages: Iterable[str] = tuple(SEARCH)) -> list[Recipe]:
    """The search for the papers' recipe: every candidate of every stage on one seed, 30 epochs.

    >>> search(stages=["local"])[3] == Arm("d256-30", "dfa").recipe(42, "local/plain-constant")
    True
    """
    found = [
        arm.recipe(seed, f"{stage}/{candidate}")
        for stage in stages
        for candidate in SEARCH[stage].candidates
        for arm in SEARCHED[stage]
    ]
    return list(dict.fromkeys(found))


def t1(variant: str = "paper") -> list[Recipe]:
    """The paper, Table 1 and Figure 1: the reporting pair on a wide, shallow network.

    Its three seeds were chosen, so it is run at the seeds of all other studies too.
    """
    fixed = arms("d512", "bp", "fa", "dfa", seeds=FIXED)
    return recipes([*arms("d512", "bp", "fa", "dfa"), *fixed], variant)


def f3(variant: str = "paper") -> list[Recipe]:
    """Figure 3: cosine and reference at every depth."""
    return recipes(arms("d256", "dfa", "fa", "bp"), variant)


def f4(variant: str = "paper") -> list[Recipe]:
    """Figure 4, and the second draft's replay of training: when things go wrong."""
    early = [*arms("vit", "dfa", "bp", frozen=False), *arms("student", "dfa", "bp", frozen=False)]
    return recipes([*arms("d256", "dfa", "fa", "bp"), *early], variant)


def t2(variant: str = "paper") -> list[Recipe]:
    """Table 2 and Figure 5: which architectures keep scale and reference."""
    places = ("d256", "no-ln", "vit", "student")
    found = [arm for place in places for arm in arms(place, "dfa", "fa")]
    others = [Arm("student", "bp"), Arm("no-ln", "bp"), Arm("vit", "bp", blocks=0)]
    return recipes([*found, *others], variant)


def f6(variant: str = "paper") -> list[Recipe]:
    """Figure 6 and appendices A and C: what a penalty on the blocks' updates mends."""
    sweep = [Arm("d256-30", rule, p) for p in (0.0, 1e-2, 1e-4) for rule in ("dfa", "fa")]
    control = [Arm("d256-30", "bp"), Arm("d256-30", "bp", 1e-2), sweep[0].baseline]
    single = [Arm("d256-30", "dfa", p, seeds=(42,)) for p in (1e-1, 1e-3)]
    return recipes([*sweep, *control, *single], variant)


def t3(variant: str = "paper") -> list[Recipe]:
    """Table 3: four methods under the same penalty."""
    return recipes(arms("d256-30", "sb", "fa", "cb", "dfa", penalty=1e-2), variant)


def t4(variant: str = "paper") -> list[Recipe]:
    """Table 4: which report first catches which failure."""
    return recipes([*arms("d256", "dfa"), *arms("d512", "fa")], variant)


def t5(variant: str = "paper") -> list[Recipe]:
    """Table 5: Table 4 with ViT-Mini and the healthy case."""
    cases = [*arms("d256", "dfa", "bp"), *arms("d512", "fa"), *arms("vit", "dfa", "fa")]
    return recipes(cases, variant)


def t6(variant: str = "paper") -> list[Recipe]:
    """Table 6: the verdicts on CIFAR-100."""
    others = [Arm("cifar100", "bp", blocks=0), Arm("cifar100-shallow", "bp")]
    return recipes([*arms("cifar100", "bp", "fa", "dfa"), *others], variant)


def v1(variant: str = "paper") -> list[Recipe]:
    """The drafts' audit of five methods, and two architectures without a terminal norm."""
    five = arms("d256", "bp", "dfa", "ep", "cb", "sb")
    others = [*arms("student", "dfa", frozen=False), *arms("cnn", "dfa", frozen=False)]
    return recipes([*five, *others], variant)


def v2(variant: str = "paper") -> list[Recipe]:
    """The first draft's calibration: controls, and DFA while its reference still means something.

    The first epoch of a long run and a run of one epoch are the same to the last bit.
    """
    early = [Arm("d256-1", "dfa"), Arm("d256", "dfa"), Arm("d256", "bp", seeds=(42,))]
    return recipes([*early, Arm("d256-30", "dfa", 1e-2)], variant)


def v3(variant: str = "paper") -> list[Recipe]:
    """The first draft's two by two: what the penalty costs BP and gains DFA."""
    short = [Arm("d256-30", "bp", 1e-2), Arm("d256-30", "dfa", 1e-2)]
    return recipes([Arm("d256", "bp"), Arm("d256", "dfa"), *short], variant)


def v4(variant: str = "paper") -> list[Recipe]:
    """The second draft's appendix E: verdicts under moved thresholds."""
    five = arms("d256", "bp", "dfa", "ep", "cb", "sb")
    return recipes([*five, *arms("d256-30", "dfa", penalty=1e-2)], variant)


def v5(variant: str = "paper") -> list[Recipe]:
    """The drafts' pitfalls, where they print numbers: whose feedback, which aggregate, which layer.

    The others need no trained network, and ``faudit.pitfalls`` reproduces them.
    """
    return recipes([Arm("d256", "dfa", seeds=(42,)), *arms("vit", "dfa", frozen=False)], variant)


def x1(variant: str = "paper") -> list[Recipe]:
    """The ladder (only the last k blocks learn), and the controls without labels or skips."""
    ends = [Arm("d256-30", rule, blocks=k) for k in (0, None) for rule in ("bp", "dfa", "fa")]
    between = [Arm("d256-30", rule, blocks=k) for k in (1, 2, 3) for rule in ("bp", "dfa")]
    labels = [Arm("random-labels", rule) for rule in ("dfa", "fa", "ep")]
    return recipes([*ends, *between, *labels, Arm("no-skip", "dfa")], variant)


PUBLISHED: dict[str, Callable[[str], list[Recipe]]] = {
    study.__name__: study for study in (t1, f3, f4, t2, f6, t3, t4, t5, t6, v1, v2, v3, v4, v5, x1)
}
"""The studies behind the ledger of published claims."""


def on(device: str, recipe: Recipe) -> Recipe:
    """The same run on another device. The claims do not say where; the run's manifest does."""
    return recipe if recipe.device == device else recipe.changed({"device": device})


def published(names: Iterable[str] = ("all",), variant: str = "paper") -> list[Recipe]:
    """The recipes of some studies of published claims, each once; "all" stands for every study.

    >>> published(["t1", "t4"]) == list(dict.fromkeys(t1() + t4()))
    True
    """
    asked = list(names)
    chosen = list(PUBLISHED) if "all" in asked else asked
    found = [_known(name, PUBLISHED, "study") for name in chosen]
    return list(dict.fromkeys(recipe for study in found for recipe in study(variant)))


STUDIES: dict[str, Callable[[], list[Recipe]]] = {
    "first": first,
    "search": search,
    "all": published,
    **{name: partial(study, "paper") for name, study in PUBLISHED.items()},
}


def study(name: str) -> list[Recipe]:
    """The recipes of a study.

    >>> len(study("first"))
    6
    """
    return list(_known(name, STUDIES, "study")())
