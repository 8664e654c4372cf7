"""Checkpoints: exact, and a damaged one is never taken for a whole one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from faudit.errors import BundleError
from faudit.studies import checkpoint
from faudit.studies.checkpoint import checkpoints, from_bytes, load, newest, save, to_bytes

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
NESTED = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=10,
)


def state(epoch: int) -> dict[str, Any]:
    return {"epoch": epoch, "w": torch.full((5,), float(epoch))}


@given(st.dictionaries(st.text(), NESTED, max_size=4))
def test_nested_values_come_back_exactly(values: dict[str, Any]) -> None:
    assert from_bytes(to_bytes(values), "x") == values


def test_an_optimisers_state_comes_back_exactly() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimiser = torch.optim.AdamW([weight], lr=0.1)
    weight.sum().backward()
    optimiser.step()
    found = from_bytes(to_bytes(optimiser.state_dict()), "x")
    assert found["param_groups"] == optimiser.state_dict()["param_groups"]
    for name, value in optimiser.state_dict()["state"][0].items():
        assert torch.equal(found["state"][0][name], value)


def test_what_json_cannot_say_is_refused_when_it_is_written() -> None:
    with pytest.raises(TypeError, match="cannot hold set"):
        to_bytes({"a": {1, 2}})


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    for epoch in (1, 2, 3, 10):
        save(tmp_path, epoch, state(epoch))
    assert [checkpoint._epoch(path) for path in checkpoints(tmp_path)] == [10, 3]
    found = newest(tmp_path)
    assert found is not None
    assert found[0] == 10


def test_the_epoch_decides_and_no_clock(tmp_path: Path) -> None:
    old, new = save(tmp_path, 1, state(1)), save(tmp_path, 2, state(2))
    os.utime(old, (4e9, 4e9))
    os.utime(new, (0, 0))
    found = newest(tmp_path)
    assert found is not None
    assert found[0] == 2


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_after_any_damage_the_previous_one_is_taken(tmp_path: Path, data: st.DataObject) -> None:
    save(tmp_path, 1, state(1))
    path = save(tmp_path, 2, state(2))
    raw = path.read_bytes()
    offset = data.draw(st.integers(0, len(raw) - 1), label="offset")
    flipped = raw[:offset] + bytes([raw[offset] ^ 1]) + raw[offset + 1 :]
    path.write_bytes(data.draw(st.sampled_from([flipped, raw[:offset]]), label="damage"))
    warnings: list[str] = []
    found = newest(tmp_path, warnings.append)
    assert found is not None
    assert found[0] == 1
    assert torch.equal(found[1]["w"], torch.ones(5))
    assert path.name in warnings[0]


def test_with_every_one_damaged_there_is_none(tmp_path: Path) -> None:
    save(tmp_path, 1, state(1)).write_bytes(b"")
    assert newest(tmp_path) is None
    assert newest(tmp_path / "nowhere") is None


def test_files_of_other_names_are_left_alone(tmp_path: Path) -> None:
    for name in ("epoch-000009.safetensors", ".epoch-000009.tmp", "notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    assert newest(tmp_path) is None


def test_a_whole_file_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    from hashlib import sha256

    from faudit.tensors import pack

    raw = pack({"w": torch.ones(1)})
    path = tmp_path / f"epoch-000001-{sha256(raw).hexdigest()}.safetensors"
    path.write_bytes(raw)
    with pytest.raises(BundleError, match="is no checkpoint"):
        load(path)
