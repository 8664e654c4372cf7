"""Data: what is read is what was published, hostile files are refused, batches are seeded."""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import importlib.util
import io
import pickle
import struct
import tarfile
import threading
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from faudit.data import (
    Dataset,
    Split,
    augment,
    batches,
    check_images,
    check_labels,
    load,
    student_teacher,
)
from faudit.data import published as data
from faudit.data.files import unordered_digest
from faudit.errors import DataError

ROWS = {"data_batch_1": 7, "data_batch_2": 5, "test_batch": 4}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def pixels(count: int, channels: int = 3, size: int = 8) -> torch.Tensor:
    shape = (count, channels, size, size)
    return torch.randint(256, shape, dtype=torch.uint8, generator=seeded(count))


# -- small published sets -------------------------------------------------------------------------


def cifar_rows(name: str, label_bytes: int = 1, classes: int = 10) -> np.ndarray:
    draw = np.random.default_rng(ROWS[name])
    labels = draw.integers(classes, size=(ROWS[name], label_bytes))
    return np.hstack([labels, draw.integers(256, size=(ROWS[name], 3072))]).astype(np.uint8)


def cifar_parts(names: list[str], label_bytes: int) -> tuple[data.Part, ...]:
    raws = {name: cifar_rows(name, label_bytes).tobytes() for name in names}
    return tuple(
        data.Part(name, len(raw), sha256(raw), record=3072 + label_bytes)
        for name, raw in raws.items()
    )


def small_cifar(source: data.Cifar) -> data.Cifar:
    label_bytes = len(source.labels)
    return replace(
        source,
        train=cifar_parts(["data_batch_1", "data_batch_2"], label_bytes),
        test=cifar_parts(["test_batch"], label_bytes),
    )


@pytest.fixture
def cifar(monkeypatch: pytest.MonkeyPatch) -> data.Cifar:
    """CIFAR-10 in small: the real reader with three short files as the published ones."""
    source = small_cifar(data._CIFAR10)
    monkeypatch.setattr(data, "READERS", {"cifar10": functools.partial(data._cifar, source)})
    return source


def write_folder(root: Path, source: data.Cifar) -> Path:
    folder = root / source.folder
    folder.mkdir()
    for name in ROWS:
        (folder / f"{name}.bin").write_bytes(cifar_rows(name, len(source.labels)).tobytes())
    return folder


def member(name: str, **changes: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for key, value in changes.items():
        setattr(info, key, value)
    return info


def write_archive(path: Path, source: data.Cifar, extra: list[tarfile.TarInfo] = ()) -> Path:
    """The archive as published, after any members given to come first."""
    with tarfile.open(path, "w:gz") as archive:
        for info in extra:
            archive.addfile(info, io.BytesIO(bytes(info.size)))
        for name in ROWS:
            raw = cifar_rows(name).tobytes()
            info = member(f"{source.folder}/{name}.bin", size=len(raw))
            archive.addfile(info, io.BytesIO(raw))
    return path


def assert_is_small_cifar(found: Dataset) -> None:
    train = np.concatenate([cifar_rows("data_batch_1"), cifar_rows("data_batch_2")])
    test = cifar_rows("test_batch")
    for split, rows in ((found.train, train), (found.test, test)):
        assert split.labels.tolist() == rows[:, 0].tolist()
        assert np.array_equal(split.images.numpy().reshape(-1, 3072), rows[:, 1:])


def test_binary_folder_archive_and_pickles_read_alike(tmp_path: Path, cifar: data.Cifar) -> None:
    for form, write in (
        ("folder", write_folder),
        ("archive", lambda root, source: write_archive(root / "cifar-10-binary.tar.gz", source)),
        ("pickled", write_pickles),
    ):
        (tmp_path / form).mkdir()
        write(tmp_path / form, cifar)
        assert_is_small_cifar(load("cifar10", tmp_path / form))


def test_root_comes_from_the_environment(
    tmp_path: Path, cifar: data.Cifar, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path, cifar)
    monkeypatch.setenv("FAUDIT_DATA", str(tmp_path))
    assert len(load("cifar10").train) == 12


def test_cifar100_uses_the_fine_label(tmp_path: Path) -> None:
    source = small_cifar(data._CIFAR100)
    write_folder(tmp_path, source)
    found = data._cifar(source, tmp_path, download=False)
    assert found.test.labels.tolist() == cifar_rows("test_batch", 2)[:, 1].tolist()


def test_limits_take_the_first_rows(tmp_path: Path, cifar: data.Cifar) -> None:
    write_folder(tmp_path, cifar)
    found = load("cifar10", tmp_path, train_limit=3, test_limit=2)
    assert found.train.labels.tolist() == cifar_rows("data_batch_1")[:3, 0].tolist()
    assert len(found.test) == 2
    with pytest.raises(DataError, match="cannot take 13 examples of 12"):
        load("cifar10", tmp_path, train_limit=13)


def test_a_missing_set_says_what_to_put_where(tmp_path: Path) -> None:
    for name, wanted in (
        ("cifar10", "cifar-10-binary.tar.gz"),
        ("cifar100", "cifar-100-binary.tar.gz"),
        ("fashion-mnist", "idx files"),
    ):
        with pytest.raises(DataError, match=f"not under {tmp_path}.*{wanted}.*download=True"):
            load(name, tmp_path)


def test_an_unknown_name_suggests_a_known_one() -> None:
    with pytest.raises(DataError, match="did you mean 'cifar100'"):
        load("cifar-100")


# -- damaged and hostile files --------------------------------------------------------------------


def test_wrong_lengths_name_the_file_and_the_bytes(tmp_path: Path, cifar: data.Cifar) -> None:
    path = write_folder(tmp_path, cifar) / "data_batch_2.bin"
    raw = path.read_bytes()
    path.write_bytes(raw[:-1])
    with pytest.raises(DataError, match=f"data_batch_2.bin holds 15364 bytes; expected {len(raw)}"):
        load("cifar10", tmp_path)
    path.write_bytes(raw + b"more")
    with pytest.raises(DataError, match=r"data_batch_2.bin holds more than 15365 bytes"):
        load("cifar10", tmp_path)
    path.unlink()
    with pytest.raises(DataError, match=r"cannot read .*data_batch_2.bin: No such file"):
        load("cifar10", tmp_path)


def test_one_flipped_bit_is_found(tmp_path: Path, cifar: data.Cifar) -> None:
    path = write_folder(tmp_path, cifar) / "test_batch.bin"
    raw = bytearray(path.read_bytes())
    raw[1000] ^= 1
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"test_batch.bin differs from the published file"):
        load("cifar10", tmp_path)


def test_another_row_order_passes_only_where_it_is_known(tmp_path: Path) -> None:
    rows = cifar_rows("data_batch_1")
    part = cifar_parts(["data_batch_1"], 1)[0]
    known = replace(part, unordered=unordered_digest(rows.tobytes(), 3073))
    known.check(rows[::-1].tobytes(), "reversed")
    with pytest.raises(DataError, match="reversed differs"):
        part.check(rows[::-1].tobytes(), "reversed")
    rows[0, 0] ^= 1
    with pytest.raises(DataError, match="relabelled differs"):
        known.check(rows.tobytes(), "relabelled")


def test_a_web_page_under_the_archives_name(tmp_path: Path, cifar: data.Cifar) -> None:
    (tmp_path / "cifar-10-binary.tar.gz").write_text("<!DOCTYPE html><title>Sign in</title>")
    with pytest.raises(DataError, match=r"begins b'<!DOCTYPE html.*web page"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize("kept", [20, 0.5, 0.98])
def test_a_truncated_archive(tmp_path: Path, cifar: data.Cifar, kept: float) -> None:
    path = write_archive(tmp_path / "cifar-10-binary.tar.gz", cifar)
    raw = path.read_bytes()
    path.write_bytes(raw[: int(kept if kept > 1 else kept * len(raw))])
    with pytest.raises(DataError, match=r"cifar-10-binary.tar.gz (is damaged|has no member)|holds"):
        load("cifar10", tmp_path)


def test_members_outside_the_set_are_never_written(tmp_path: Path, cifar: data.Cifar) -> None:
    root = tmp_path / "root"
    root.mkdir()
    outside = tmp_path / "absolute"
    hostile = [
        member("../escaped", size=5),
        member(str(outside), size=5),
        member("link", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("device", type=tarfile.CHRTYPE),
    ]
    write_archive(root / "cifar-10-binary.tar.gz", cifar, hostile)
    assert_is_small_cifar(load("cifar10", root))
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["cifar-10-binary.tar.gz", "root"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE])
def test_a_link_in_the_place_of_a_member(tmp_path: Path, cifar: data.Cifar, kind: bytes) -> None:
    link = member(f"{cifar.folder}/data_batch_1.bin", type=kind, linkname="/etc/passwd")
    write_archive(tmp_path / "cifar-10-binary.tar.gz", cifar, [link])
    with pytest.raises(DataError, match=r"data_batch_1.bin in .* is not a regular file"):
        load("cifar10", tmp_path)


def test_a_first_member_of_the_right_name_and_wrong_content(
    tmp_path: Path, cifar: data.Cifar
) -> None:
    for size, message in ((10, "holds 10 bytes"), (7 * 3073, "differs"), (10**6, "holds more")):
        fake = member(f"{cifar.folder}/data_batch_1.bin", size=size)
        write_archive(tmp_path / "cifar-10-binary.tar.gz", cifar, [fake])
        with pytest.raises(DataError, match=message):
            load("cifar10", tmp_path)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.REGTYPE])
def test_an_archive_that_unpacks_to_more_than_its_set_is_refused(
    tmp_path: Path, cifar: data.Cifar, kind: bytes
) -> None:
    """Of a long header tarfile would read all that its gigabytes of zeros unpack to."""
    size = 2 * 16 * 3073 + 2**20
    path = tmp_path / "cifar-10-binary.tar.gz"
    with gzip.open(path, "wb") as packed:
        header = member("x", type=kind, size=size).tobuf(tarfile.USTAR_FORMAT)
        packed.write(header + bytes(size))
    assert path.stat().st_size < size / 100
    with pytest.raises(DataError, match=rf"{path.name} is damaged \(unpacks to more than {size}"):
        load("cifar10", tmp_path)


def test_an_archive_of_another_version_lacks_the_members(tmp_path: Path, cifar: data.Cifar) -> None:
    write_archive(tmp_path / "cifar-10-binary.tar.gz", replace(cifar, folder="cifar-10-batches-py"))
    with pytest.raises(DataError, match=r"no member cifar-10-batches-bin/data_batch_1.bin"):
        load("cifar10", tmp_path)


# -- pickled batches ------------------------------------------------------------------------------


def write_pickles(root: Path, source: data.Cifar, layout: str = "C") -> Path:
    folder = root / source.pickled
    folder.mkdir()
    for name in ROWS:
        rows = cifar_rows(name, len(source.labels))
        columns = {key: rows[:, k].tolist() for k, key in enumerate(source.labels)}
        content = {b"data": rows[:, len(source.labels) :].copy(layout), **columns}
        (folder / name).write_bytes(pickle.dumps(content, protocol=4))
    return folder


def python2_pickle(rows: np.ndarray) -> bytes:
    """The byte code in which Python 2 wrote the published batches."""
    raw, labels = rows[:, 1:].tobytes(), rows[:, 0]
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    shape = b"(K\x01K" + bytes([len(rows)]) + b"M\x00\x0c\x86"
    kind = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
    data_ = array + shape + kind + b"K\x00tb\x89T" + struct.pack("<i", len(raw)) + raw + b"tb"
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(U\x04data" + data_ + b"U\x06labels" + listed + b"u."


def test_batches_pickled_by_python_2(tmp_path: Path, cifar: data.Cifar) -> None:
    folder = write_pickles(tmp_path, cifar)
    for name in ROWS:
        (folder / name).write_bytes(python2_pickle(cifar_rows(name)))
    assert_is_small_cifar(load("cifar10", tmp_path))


def test_cifar100_pickles_in_column_order(tmp_path: Path) -> None:
    source = small_cifar(data._CIFAR100)
    write_pickles(tmp_path, source, layout="F")
    found = data._cifar(source, tmp_path, download=False)
    rows = cifar_rows("test_batch", 2)
    assert found.test.labels.tolist() == rows[:, 1].tolist()
    assert np.array_equal(found.test.images.numpy().reshape(-1, 3072), rows[:, 2:])


class Hostile:
    """Unpickled naively, leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_a_pickle_that_claims_much_memory_gets_none(tmp_path: Path, cifar: data.Cifar) -> None:
    folder = write_pickles(tmp_path, cifar)
    nested: list[object] = [0] * 200
    for _ in range(2):
        nested = [nested] * 200  # the same list again and again: few bytes, eight million labels
    rows = np.zeros((2, 3072), np.uint8)
    for content in (
        b"\x80\x05\x96" + struct.pack("<Q", 2**26) + b".",
        pickle.dumps({b"data": rows, b"labels": nested}, protocol=4),
    ):
        (folder / "data_batch_1").write_bytes(content)
        tracemalloc.start()
        with pytest.raises(DataError, match="data_batch_1 is"):
            load("cifar10", tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
        tracemalloc.stop()


def test_a_hostile_pickle_is_refused_and_named(tmp_path: Path, cifar: data.Cifar) -> None:
    folder = write_pickles(tmp_path, cifar)
    victim = tmp_path / "victim"
    raw = pickle.dumps({b"data": Hostile(victim), b"labels": [0]}, protocol=4)
    (folder / "data_batch_1").write_bytes(raw)
    with pytest.raises(
        DataError, match=r"data_batch_1: refused to load (builtins.getattr|pathlib)"
    ):
        load("cifar10", tmp_path)
    assert not victim.exists()
    pickle.loads(raw)
    assert victim.exists(), "the pickle was harmless, so the test proved nothing"


@pytest.mark.parametrize(
    "name", ["os.system", "builtins.eval", "numpy.load", "numpy.core.multiarray.scalar"]
)
def test_other_globals_are_refused(tmp_path: Path, cifar: data.Cifar, name: str) -> None:
    module, _, attribute = name.rpartition(".")
    folder = write_pickles(tmp_path, cifar)
    (folder / "data_batch_1").write_bytes(f"c{module}\n{attribute}\n.".encode())
    with pytest.raises(DataError, match=f"refused to load {name}"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<!DOCTYPE html>",
        b"\x80\x02]r\xff\xff\xff\x7f.",  # a memo of 2 ** 31 entries, in the C unpickler
        b"\x80\x05\x96" + struct.pack("<Q", 2**50) + b".",  # a bytearray of a petabyte
        pickle.dumps({b"data": np.zeros((7, 3072), np.uint8), b"labels": 2**50}, protocol=4),
        pickle.dumps([1, 2]),
        pickle.dumps({b"data": 3, b"labels": [1]}),
        pickle.dumps({b"data": np.zeros((7, 3072), np.uint8)}, protocol=4),
        pickle.dumps({b"data": np.zeros((7, 9), object), b"labels": [0] * 7}, protocol=4),
        pickle.dumps({b"data": np.zeros((7, 3072), np.uint8), b"labels": [300] * 7}, protocol=4),
        pickle.dumps({b"data": np.zeros((6, 3072), np.uint8), b"labels": [0] * 7}, protocol=4),
        pickle.dumps({b"data": np.zeros((7, 3072), np.uint8), b"labels": [0] * 7}, protocol=4),
    ],
)
def test_a_pickle_that_is_no_batch(tmp_path: Path, cifar: data.Cifar, content: bytes) -> None:
    folder = write_pickles(tmp_path, cifar)
    (folder / "data_batch_1").write_bytes(content)
    with pytest.raises(DataError, match=r"data_batch_1 (is damaged|is not a CIFAR batch|differs)"):
        load("cifar10", tmp_path)


@settings(max_examples=60, deadline=None)
@given(position=st.integers(0, 10**6), byte=st.integers(0, 255))
def test_a_damaged_pickle_never_loads_differently(position: int, byte: int) -> None:
    source = small_cifar(data._CIFAR10)
    rows = cifar_rows("test_batch")
    raw = bytearray(python2_pickle(rows))
    raw[position % len(raw)] = byte
    try:
        found = data.read_pickled(FakePath(bytes(raw)), source.test[0], source)
    except DataError:
        return
    assert found == rows.tobytes()


class FakePath:
    """A path whose content is in memory."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def open(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self.raw)


# -- Fashion-MNIST --------------------------------------------------------------------------------


def idx_files(count: int, prefix: str) -> dict[str, bytes]:
    draw = np.random.default_rng(count)
    images, labels = draw.integers(256, size=(count, 784)), draw.integers(10, size=count)
    return {
        f"{prefix}-images-idx3-ubyte": struct.pack(">4i", 0x803, count, 28, 28)
        + images.astype(np.uint8).tobytes(),
        f"{prefix}-labels-idx1-ubyte": struct.pack(">2i", 0x801, count)
        + labels.astype(np.uint8).tobytes(),
    }


IDX = {**idx_files(6, "train"), **idx_files(4, "t10k")}


def small_idx() -> data.Idx:
    train_images, train_labels, test_images, test_labels = (
        data.Part(name, len(raw), sha256(raw), packed=sha256(gzip.compress(raw, mtime=0)))
        for name, raw in IDX.items()
    )
    return replace(
        data._FASHION, train=(train_images, train_labels), test=(test_images, test_labels)
    )


def write_idx(folder: Path, packed: bool) -> Path:
    folder.mkdir(parents=True)
    for name, raw in IDX.items():
        path = folder / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(raw, mtime=0) if packed else raw)
    return folder


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("folder", ["fashion-mnist", "FashionMNIST/raw"])
def test_idx_files(tmp_path: Path, packed: bool, folder: str) -> None:
    write_idx(tmp_path / folder, packed)
    found = data._idx(small_idx(), tmp_path, download=False)
    raw = IDX["train-images-idx3-ubyte"][16:]
    assert found.train.images.shape == (6, 1, 28, 28)
    assert found.train.images.numpy().tobytes() == raw
    assert found.test.labels.tolist() == list(IDX["t10k-labels-idx1-ubyte"][8:])


def test_damaged_idx_files(tmp_path: Path) -> None:
    path = write_idx(tmp_path / "fashion-mnist", packed=True) / "train-images-idx3-ubyte.gz"
    bomb = gzip.compress(bytes(10**7))[:-9]  # read to its end it would be reported as cut short
    for raw, message in (
        (path.read_bytes()[:-20], "cannot be unpacked to its 4720 bytes"),
        (b"<html>", "begins b'<html>'"),
        (bomb, "holds more than 4720 bytes; expected 4720"),
        (gzip.compress(bytes(4720)), "differs from the published file"),
    ):
        path.write_bytes(raw)
        with pytest.raises(DataError, match=message):
            data._idx(small_idx(), tmp_path, download=False)


# -- fetching -------------------------------------------------------------------------------------


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path):
    """A folder and the address at which a local server offers its files."""
    folder = tmp_path / "site"
    folder.mkdir()
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_fetching_the_archive_once(tmp_path: Path, site: tuple[Path, str]) -> None:
    folder, url = site
    source = small_cifar(data._CIFAR10)
    served = write_archive(folder / "cifar-10-binary.tar.gz", source)
    source = replace(source, url=url + served.name, sha256=sha256(served.read_bytes()))
    assert_is_small_cifar(data._cifar(source, tmp_path / "root", download=True))
    served.unlink()
    assert_is_small_cifar(data._cifar(source, tmp_path / "root", download=True))


def test_a_fetched_file_with_another_digest_is_not_kept(
    tmp_path: Path, site: tuple[Path, str]
) -> None:
    folder, url = site
    source = small_cifar(data._CIFAR10)
    (folder / "cifar-10-binary.tar.gz").write_text("<!DOCTYPE html>")
    source = replace(source, url=url + "cifar-10-binary.tar.gz", sha256="0" * 64)
    with pytest.raises(DataError, match=r"could not fetch .*put that file at"):
        data._cifar(source, tmp_path / "root", download=True)
    assert list((tmp_path / "root").iterdir()) == []


def test_fetching_without_a_network_says_what_to_put_where(tmp_path: Path) -> None:
    source = replace(small_cifar(data._CIFAR10), url="http://127.0.0.1:9/cifar-10-binary.tar.gz")
    wanted = tmp_path / "cifar-10-binary.tar.gz"
    with pytest.raises(DataError, match=f"Without a network, put that file at {wanted}"):
        data._cifar(source, tmp_path, download=True)


def test_fetching_only_the_missing_idx_files(tmp_path: Path, site: tuple[Path, str]) -> None:
    folder, url = site
    source = replace(small_idx(), url=url)
    for path in write_idx(tmp_path / "root" / "fashion-mnist", packed=True).glob("t10k*"):
        path.rename(folder / path.name)
    assert len(data._idx(source, tmp_path / "root", download=True).test) == 4


# -- the embedded sample and the synthetic task ---------------------------------------------------


def test_the_sample_is_pinned_and_balanced() -> None:
    sample = load()
    assert sample.name == "fashion-sample"
    assert torch.bincount(sample.train.labels).tolist() == [600] * 10
    assert torch.bincount(sample.test.labels).tolist() == [200] * 10
    assert torch.bincount(sample.first(50).train.labels).tolist() == [5] * 10
    assert sample.digest() == "552d95656160e64fbffff0c9af8a07a82ae5ddac07c04ccaf7cf9b4a80152876"


def test_an_altered_sample_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "_SAMPLE", replace(data._SAMPLE, sha256="0" * 64))
    with pytest.raises(DataError, match=r"embedded sample.npz differs"):
        load("fashion-sample")


def test_sampling_is_stratified_and_seeded() -> None:
    path = Path(__file__).parents[1] / "tools" / "make_sample.py"
    if not path.exists():
        pytest.skip("tools/ is not part of this copy")
    spec = importlib.util.spec_from_file_location("make_sample", path)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    labels = np.random.default_rng(0).integers(3, size=100)
    rows = tool.choose(labels, 5, seed=1)
    assert len(set(rows)) == 15
    assert all(set(labels[run]) == {0, 1, 2} for run in rows.reshape(5, 3))
    assert np.array_equal(rows, tool.choose(labels, 5, seed=1))
    assert not np.array_equal(rows, tool.choose(labels, 5, seed=2))


def test_student_teacher_is_seeded_and_its_test_labels_clean() -> None:
    clean, noisy = (student_teacher(3, train=400, test=300, label_noise=p) for p in (0.0, 0.5))
    assert torch.equal(clean.test.labels, noisy.test.labels)
    changed = (clean.train.labels != noisy.train.labels).float().mean().item()
    assert 0.35 < changed < 0.55
    assert clean.digest() == student_teacher(3, train=400, test=300, label_noise=0.0).digest()
    assert clean.digest() != student_teacher(4, train=400, test=300, label_noise=0.0).digest()


def test_student_teacher_is_solved_by_a_linear_readout() -> None:
    task = load("student-teacher")
    targets = torch.nn.functional.one_hot(task.train.labels, 10).float()
    readout = torch.linalg.lstsq(task.train.images, targets).solution
    hits = (task.test.images @ readout).argmax(1) == task.test.labels
    assert hits.float().mean() > 0.8


# -- data sets ------------------------------------------------------------------------------------


def small_set(**changes: object) -> Dataset:
    split = Split(pixels(6), torch.arange(6))
    parts = {"train": split, "test": split, "classes": 6, "name": "small"}
    stats = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}
    return Dataset(**{**parts, **stats, **changes})


def test_normalise_equals_the_definition() -> None:
    found = small_set().normalise(pixels(6))
    for channel, (mean, std) in enumerate(((0.5, 0.2), (0.4, 0.3), (0.3, 0.4))):
        expected = (pixels(6)[:, channel].float() / 255 - mean) / std
        assert torch.equal(found[:, channel], expected)


def test_features_are_not_normalised() -> None:
    features = torch.randn(5, 3)
    assert torch.equal(student_teacher(train=10, test=5).normalise(features), features)


@pytest.mark.parametrize(
    "changes",
    [
        {"classes": 7},
        {"mean": (0.5, 0.4, 0.2)},
        {"std": (0.2, 0.3, 0.5)},
        {"train": Split(pixels(6).flip(0), torch.arange(6))},
        {"test": Split(pixels(6), torch.arange(6).flip(0))},
        {"train": Split(pixels(6).transpose(2, 3), torch.arange(6))},
    ],
)
def test_the_digest_sees_every_change(changes: dict[str, object]) -> None:
    assert small_set().digest() == small_set().digest()
    assert small_set(**changes).digest() != small_set().digest()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": 5}, "label 5 at row 5 is not a class 0..4"),
        ({"mean": (0.5,)}, "3 channels need as many means"),
        ({"std": (0.2, 0.0, 0.2)}, "positive standard deviations"),
        ({"test": Split(pixels(6, size=9), torch.arange(6))}, "must be alike"),
        ({"test": Split(torch.rand(6, 3, 8, 8), torch.arange(6))}, "must be alike"),
    ],
)
def test_an_inconsistent_set_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        small_set(**changes)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([[0], [1]]), r"shape \(2, 1\); expected \(N,\): use labels.squeeze"),
        (torch.eye(3, dtype=torch.int64)[:2], "argmax"),
        (torch.tensor([0.0, 1.0]), "torch.float32; expected torch.int64"),
        (torch.tensor([True, False]), "torch.bool"),
        (torch.tensor([0, -100]), "label -100 at row 1 is not a class 0..2"),
        (torch.tensor([3, 0]), "label 3 at row 0"),
        (torch.tensor([], dtype=torch.int64), "empty"),
        ([0, 1], "torch tensor, not list"),
    ],
)
def test_labels_that_cannot_be_used(labels: torch.Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_labels(labels, 3)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(2, 8, 8, dtype=torch.uint8), r"shape \(2, 8, 8\); expected \(N, C, H, W\)"),
        (torch.zeros(2, 8, 8, 3, dtype=torch.uint8), "channel last"),
        (torch.zeros(0, 3, 8, 8, dtype=torch.uint8), "empty"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.int64), "torch.int64"),
        (torch.zeros(5), r"features have shape \(5,\)"),
        (torch.tensor([[1.0], [float("nan")], [float("inf")]]), "2 examples hold NaN .* row 1"),
        (np.zeros((2, 3)), "torch tensor, not ndarray"),
    ],
)
def test_images_that_cannot_be_used(images: torch.Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_images(images)


def test_every_image_needs_a_label() -> None:
    with pytest.raises(DataError, match="6 images but 5 labels"):
        Split(pixels(6), torch.arange(5))


# -- batches --------------------------------------------------------------------------------------


def numbered(count: int) -> Split:
    """Examples that can be told apart: image i is all i, and so is its label."""
    images = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    return Split(images.contiguous(), torch.arange(count))


def test_an_epoch_visits_every_example_once() -> None:
    epoch = list(batches(numbered(23), 5, seeded()))
    labels = torch.cat([y for _, y in epoch])
    assert [len(y) for _, y in epoch] == [5, 5, 5, 5, 3]
    assert labels.sort().values.tolist() == list(range(23))
    assert all(torch.equal(x[:, 0, 0, 0].long(), y) for x, y in epoch)


@pytest.mark.parametrize(("count", "kept"), [(23, 4), (20, 4), (3, 0)])
def test_the_last_partial_batch_can_be_dropped(count: int, kept: int) -> None:
    assert [len(y) for _, y in batches(numbered(count), 5, drop_last=True)] == [5] * kept


def order(seed: int | None) -> list[int]:
    generator = None if seed is None else seeded(seed)
    return torch.cat([y for _, y in batches(numbered(23), 5, generator)]).tolist()


def test_the_seed_decides_the_order() -> None:
    assert order(None) == list(range(23))
    assert order(1) == order(1) != order(2)
    generator = seeded(1)
    first, second = ([int(y[0]) for _, y in batches(numbered(23), 5, generator)] for _ in "ab")
    assert first != second, "a second epoch must be shuffled anew"


def test_pixels_are_augmented_before_they_are_normalised() -> None:
    seen: list[torch.dtype] = []

    def record(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        seen.append(images.dtype)
        return images

    task = small_set()
    epoch = batches(task.train, 4, seeded(), augment=record, normalise=task.normalise)
    assert [x.dtype for x, _ in epoch] == [torch.float32] * 2
    assert seen == [torch.uint8] * 2


def test_batches_leave_the_split_untouched() -> None:
    task = small_set()
    before = task.train.images.clone()
    for images, _ in batches(task.train, 4, seeded(), augment=augment):
        images.zero_()
    assert torch.equal(task.train.images, before)


def test_batches_that_cannot_be_made() -> None:
    with pytest.raises(DataError, match="batch size 0"):
        batches(numbered(5), 0)
    with pytest.raises(DataError, match="augmentation is random"):
        batches(numbered(5), 2, augment=augment)


# -- augmentation ---------------------------------------------------------------------------------


def slow_augment(
    images: torch.Tensor, generator: torch.Generator, padding: int, flip: bool
) -> torch.Tensor:
    """The twin: the same draws, then one image at a time."""
    count, channels, height, width = images.shape
    tops, lefts = torch.randint(2 * padding + 1, (2, count), generator=generator).tolist()
    flips = torch.randint(2, (count,), generator=generator).tolist() if flip else [0] * count
    results = []
    for image, top, left, mirrored in zip(images, tops, lefts, flips, strict=True):
        frame = torch.zeros(channels, height + 2 * padding, width + 2 * padding, dtype=torch.uint8)
        frame[:, padding : padding + height, padding : padding + width] = image
        crop = frame[:, top : top + height, left : left + width]
        results.append(crop.flip(2) if mirrored else crop)
    return torch.stack(results)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 9), st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)),
    padding=st.integers(0, 5),
    flip=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_augmentation_equals_its_slow_twin(
    shape: tuple[int, ...], padding: int, flip: bool, seed: int
) -> None:
    images = torch.randint(1, 256, shape, dtype=torch.uint8, generator=seeded(seed))
    before = images.clone()
    found = augment(images, seeded(seed), padding, flip)
    assert torch.equal(found, slow_augment(images, seeded(seed), padding, flip))
    assert torch.equal(images, before)
    assert found.dtype == torch.uint8


def test_without_padding_and_flip_nothing_changes() -> None:
    assert torch.equal(augment(pixels(5), seeded(), padding=0, flip=False), pixels(5))


def test_every_crop_and_half_of_the_mirrors_occur() -> None:
    corner = torch.zeros(4000, 1, 3, 3, dtype=torch.uint8)
    corner[:, 0, 1, 1] = 1
    found = augment(corner, seeded(), padding=1, flip=False)
    counts = found.sum(0, dtype=torch.int64).flatten()
    assert counts.min() > 4000 / 9 * 0.8
    assert counts.max() < 4000 / 9 * 1.2
    left = torch.zeros(4000, 1, 1, 2, dtype=torch.uint8)
    left[..., 0] = 1
    share = augment(left, seeded(), padding=0)[:, 0, 0, 0].float().mean().item()
    assert 0.45 < share < 0.55


def test_augmentation_depends_on_the_seed() -> None:
    assert not torch.equal(augment(pixels(9), seeded(1)), augment(pixels(9), seeded(2)))


def test_normalised_images_are_not_augmented() -> None:
    with pytest.raises(DataError, match="augment takes uint8 pixels"):
        augment(torch.rand(2, 3, 8, 8), seeded())


def test_random_labels_leave_everything_else_alone():
    true = load("fashion-sample")
    drawn, again, other = true.relabelled(), true.relabelled(), true.relabelled(seed=1)
    assert torch.equal(drawn.train.labels, again.train.labels)
    assert not torch.equal(drawn.train.labels, other.train.labels)
    assert torch.equal(drawn.train.images, true.train.images)
    assert torch.equal(drawn.test.labels, true.test.labels)
    assert drawn.digest() != true.digest()
    counts = drawn.train.labels.bincount()
    assert len(counts) == 10
    assert counts.min() > 500
