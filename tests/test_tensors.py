"""Tensor files: read back exactly, and nothing in a foreign file is ever run."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from faudit.errors import BundleError
from faudit.tensors import load_weights, notes, pack, pickled_names, unpack


class Exploit:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch pwned",)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_tensors_come_back_exactly(dtype: torch.dtype) -> None:
    tensors = {"a": torch.arange(6).view(2, 3).to(dtype), "scalar": torch.ones((), dtype=dtype)}
    found = unpack(pack(tensors), "x")
    assert {name: t.dtype for name, t in found.items()} == {"a": dtype, "scalar": dtype}
    assert all(torch.equal(found[name], t) for name, t in tensors.items())


def test_tied_and_strided_tensors_are_stored_as_what_they_hold() -> None:
    tied = torch.arange(4.0).view(2, 2)
    found = unpack(pack({"w": tied, "again": tied, "turned": tied.T}), "x")
    assert torch.equal(found["again"], tied)
    assert torch.equal(found["turned"], tied.T)


def test_equal_tensors_give_equal_bytes() -> None:
    one, two = torch.ones(3), torch.zeros(2)
    assert pack({"a": one, "b": two}) == pack({"b": two.clone(), "a": one.clone()})


def test_notes_ride_along() -> None:
    assert notes(pack({"a": torch.ones(1)}, {"state": "{}"})) == {"state": "{}"}


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_raise(raw: bytes) -> None:
    with pytest.raises(BundleError, match=r"^file is not a safetensors file"):
        unpack(raw, "file")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_names_what_it_would_import(protocol: int) -> None:
    assert "system" in pickled_names(pickle.dumps(Exploit(), protocol=protocol))[0]


@pytest.mark.parametrize("zipped", [True, False])
def test_a_malicious_checkpoint_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zipped: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.pt"
    torch.save({"w": Exploit()}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(BundleError, match=r"posix\.system"):
        load_weights(path)
    assert not (tmp_path / "pwned").exists()


def test_a_pytorch_file_of_tensors_is_read(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "model.pt")
    assert torch.equal(load_weights(tmp_path / "model.pt")["w"], torch.ones(2))


def test_a_pytorch_file_with_more_than_tensors_is_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2), "epoch": 3}, tmp_path / "model.pt")
    with pytest.raises(BundleError, match="more than tensors"):
        load_weights(tmp_path / "model.pt")


@pytest.mark.parametrize("kept", [0, 1, 4, 100, -1])
def test_a_cut_pytorch_file_is_refused(tmp_path: Path, kept: int) -> None:
    torch.save({"w": torch.ones(20)}, tmp_path / "model.pt")
    raw = (tmp_path / "model.pt").read_bytes()
    (tmp_path / "model.pt").write_bytes(raw[:kept])
    with pytest.raises(BundleError, match=r"model\.pt"):
        load_weights(tmp_path / "model.pt")
