"""Short names for what a recipe describes, made longer only where two would be the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from faudit.recipe import OWN, Recipe

RULES = {
    "bp": "BP",
    "fa": "FA",
    "dfa": "DFA",
    "drtp": "DRTP",
    "usf": "uSF",
    "brsf": "brSF",
    "frsf": "frSF",
    "kp": "Kolen-Pollack",
    "sb": "State Bridge",
    "cb": "Credit Bridge",
    "ep": "EP",
}
NETWORKS = {
    "resmlp": "ResMLP",
    "studentnet": "StudentNet",
    "vitmini": "ViT-Mini",
    "smallresnet": "SmallResNet",
}
DATA = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "fashion": "Fashion-MNIST",
    "fashion-sample": "Fashion-MNIST sample",
    "student-teacher": "student-teacher",
}
_SHORT = {"width": "d{}", "depth": "L{}"}
# What the plain labels say already, or what never tells two settings apart.
_SAID = {"seed", "rule_seed", "rule.name", "training.trainable_blocks"}


def rule(recipe: Recipe) -> str:
    """The credit rule's usual name.

    >>> rule(Recipe(rule="dfa")), rule(Recipe(rule="mine"))
    ('DFA', 'mine')
    """
    return RULES.get(recipe.rule.name, recipe.rule.name)


def method(recipe: Recipe) -> str:
    """The rule, and how much of the network it was allowed to teach.

    >>> method(Recipe(rule="fa").set("training.trainable_blocks=0"))
    'frozen blocks (FA)'
    """
    blocks = recipe.training.trainable_blocks
    if recipe.network.options.get("depth") == 0:
        return f"no blocks ({rule(recipe)})"
    if blocks is None:
        return rule(recipe)
    if blocks == 0:
        return f"frozen blocks ({rule(recipe)})"
    return f"{rule(recipe)}, last {blocks} block{'s' * (blocks > 1)}"


def setting(recipe: Recipe) -> str:
    """Network, data and length of training, whatever the rule.

    >>> setting(Recipe().set("training.penalty=0.01"))
    'ResMLP d256 L4, CIFAR-10, 100 epochs, λ = 0.01'
    """
    training = recipe.training
    parts = [_network(recipe), data(recipe)]
    if not recipe.data.own:  # whose owner alone knows
        parts += [f"{training.epochs} epoch{'s' * (training.epochs != 1)}"]
    return ", ".join([*parts, f"λ = {training.penalty:g}"] if training.penalty else parts)


def data(recipe: Recipe) -> str:
    """What a recipe's data are called.

    >>> data(Recipe()), data(Recipe(data="own:1a2b3c4d"))
    ('CIFAR-10', 'own data 1a2b3c4d')
    """
    name = recipe.data.name
    return f"own data {name.removeprefix(OWN)}" if recipe.data.own else DATA.get(name, name)


def _network(recipe: Recipe) -> str:
    options = recipe.network.options
    name = NETWORKS.get(recipe.network.name, recipe.network.name)
    sized = [_SHORT[key].format(options[key]) for key in _SHORT if key in options]
    others = [f"{key}={value}" for key, value in options.items() if key not in _SHORT]
    return " ".join([name, *sized, *others])


def distinct(named: Sequence[tuple[str, Recipe]]) -> list[str]:
    """The names as given, with what differs added to those that would be the same.

    >>> fast, slow = Recipe(), Recipe().set("training.lr=0.01")
    >>> distinct([("BP", fast), ("BP", slow), ("FA", slow)])
    ['BP', 'BP, lr 0.01', 'FA']
    """
    usual = flat(Recipe())
    found = []
    for name, recipe in named:
        rivals = [flat(other) for label, other in named if label == name]
        own = flat(recipe)
        keys = [key for key in _differing(rivals) if own.get(key) != usual.get(key)]
        found.append(", ".join([name, *(f"{_last(key)} {own.get(key)}" for key in keys)]))
    return found


def _differing(rivals: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    keys = dict.fromkeys(key for rival in rivals for key in rival)
    for key in keys:
        if key not in _SAID and len({repr(rival.get(key)) for rival in rivals}) > 1:
            yield key


def _last(key: str) -> str:
    return key.rpartition(".")[2].replace("_", " ")


def flat(recipe: Recipe) -> dict[str, Any]:
    """A recipe's values under dotted keys.

    >>> flat(Recipe())["training.batch"]
    128
    """
    return dict(_leaves("", recipe.model_dump()))


def _leaves(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(f"{prefix}{key}.", value)
        else:
            yield f"{prefix}{key}", value


def in_order(rules: Iterable[str]) -> list[str]:
    """Rule names in the order tables show them: as registered, then the others by name.

    >>> in_order(["mine", "dfa", "bp"])
    ['bp', 'dfa', 'mine']
    """
    known = list(RULES)
    return sorted(rules, key=lambda r: (known.index(r) if r in known else len(known), r))
