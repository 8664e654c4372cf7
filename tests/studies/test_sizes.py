"""Sizes: what is counted is what is made, and what is too large is refused before it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from faudit.errors import FauditError, NetworkError, RecipeError, RuleError
from faudit.networks.zoo import make_network
from faudit.recipe import Recipe
from faudit.studies import sizes
from faudit.studies.runner import check
from tests.studies.tools import tiny

IMAGE = (3, 32, 32)
NETWORKS = {
    "resmlp": {"width": 16, "depth": 5},
    "studentnet": {"width": 16, "depth": 3},
    "vitmini": {"width": 16, "depth": 4, "heads": 2, "expansion": 3},
    "smallresnet": {"widths": [8, 8, 12]},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_bytes_are_those_of_the_network_that_is_made(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "LARGE", 2)
    options = NETWORKS[name]
    recipe = Recipe().changed({"network": {"name": name, "options": options}})
    made = make_network(name, IMAGE, 10, seed=1, **options)
    expected = sizes.COPIES * sum(4 * weight.numel() for weight in made.parameters())
    assert sizes.training_bytes(recipe, IMAGE, 10) == expected


@pytest.mark.parametrize(
    "change",
    [
        ("network.options.width=1000000",),
        ("network.options.depth=1000000000000",),
        ("network.name=vitmini", 'network.options={"expansion": 1000000000}'),
        ("network.name=smallresnet", 'network.options={"widths": [100000, 100000]}'),
    ],
)
def test_a_network_beyond_this_machines_memory_is_refused_before_it_is_made(
    change: tuple[str, ...],
) -> None:
    recipe = tiny("data.name=fashion-sample", *change)
    with pytest.raises(RecipeError, match=r"take .* GB, and this machine has"):
        check([recipe])
    check([recipe], here=False)
    with pytest.raises(RuleError, match="unknown rule 'dfaa'"):
        check([recipe.set("rule.name=dfaa")], here=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('network.options={"width": 1000000, "dpeth": 3}', "did you mean 'depth'"),
        ("network.options.width=-1000000", "width must be a whole number of at least 1"),
        ('network.options={"width": "Infinity"}', "width must be"),
    ],
)
def test_what_is_wrong_otherwise_is_said_first(change: str, message: str) -> None:
    with pytest.raises(NetworkError, match=message):
        check([tiny(change)])


@pytest.mark.parametrize("options", ['{"patch": 0}', f'{{"width": {10**400}}}'])
def test_numbers_that_no_network_can_have_are_refused_in_words(options: str) -> None:
    data = ("data.name=cifar10", "network.name=vitmini")
    with pytest.raises(FauditError):
        check([tiny(*data, f"network.options={options}")])


def test_a_container_has_what_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [tmp_path / "limited", tmp_path / "unlimited", tmp_path / "absent"]
    limits[0].write_text("12345\n")
    limits[1].write_text("max\n")
    monkeypatch.setattr(sizes, "CONTAINER_LIMITS", limits)
    assert sizes.memory_here() == 12345
