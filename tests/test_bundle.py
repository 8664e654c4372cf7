"""Bundles: complete, strict, and enough to measure a run again."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf, isnan, nan
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from faudit import bundle
from faudit.bundle import MANIFEST, Bundle, Outcome, Parts, line, pack_correct, unline, write
from faudit.errors import BundleError
from faudit.recipe import Recipe
from faudit.studies.runner import measure_again, run
from tests.studies.tools import ended, forked, tiny

FILES = (*bundle.ALWAYS, *bundle.WHEN_DONE, MANIFEST)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished run; nobody may change it."""
    folder = tmp_path_factory.mktemp("bundle") / "run"
    run(tiny(), folder)
    return folder


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


def reseal(folder: Path, **changes: object) -> None:
    """Make the manifest fit whatever the folder holds now, as an attacker would."""
    manifest = bundle.Manifest.from_json((folder / MANIFEST).read_text())
    hashes = {
        name: bundle._sha256((folder / name).read_bytes())
        for name in manifest.files
        if (folder / name).exists()
    }
    sealed = manifest.replace(**{"files": hashes, **changes}).sealed()
    (folder / MANIFEST).write_text(sealed.to_json())


@contextmanager
def damaged(path: Path, raw: bytes) -> Iterator[None]:
    """Another content for a file, for a moment."""
    before = path.read_bytes()
    path.write_bytes(raw)
    try:
        yield
    finally:
        path.write_bytes(before)


def test_it_holds_the_seven_files_and_reads_back(made: Path) -> None:
    assert sorted(p.name for p in made.iterdir()) == sorted(FILES)
    found = Bundle.load(made)
    assert found.recipe == tiny()
    assert found.outcome.done
    assert [record["epoch"] for record in found.history] == [0, 1, 2, 3]
    assert found.evidence is not None
    assert found.evidence.layers == 2
    assert {"faudit", "torch", "numpy", "python", "matmul"} == set(found.manifest.versions)
    assert found.manifest.timing["seconds"] > 0


@pytest.mark.parametrize("name", FILES)
def test_a_missing_part_is_named(copy: Path, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(BundleError, match=name):
        Bundle.load(copy)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(data=st.data(), name=st.sampled_from(FILES))
def test_any_flipped_bit_is_found_and_its_file_named(
    made: Path, data: st.DataObject, name: str
) -> None:
    raw = bytearray((made / name).read_bytes())
    offset = data.draw(st.integers(0, len(raw) - 1), label="offset")
    raw[offset] ^= 1 << data.draw(st.integers(0, 7), label="bit")
    with damaged(made / name, bytes(raw)), pytest.raises(BundleError, match=name):
        Bundle.load(made)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), name=st.sampled_from(FILES))
def test_any_truncation_is_found_and_its_file_named(
    made: Path, data: st.DataObject, name: str
) -> None:
    raw = (made / name).read_bytes()
    kept = data.draw(st.integers(0, len(raw) - 1), label="bytes kept")
    with damaged(made / name, raw[:kept]), pytest.raises(BundleError, match=name):
        Bundle.load(made)


def test_a_folder_that_is_no_bundle_says_what_it_is(copy: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with pytest.raises(BundleError, match=r"it is a store; name one of its runs, .*DIGEST"):
        Bundle.load(tmp_path)
    with pytest.raises(BundleError, match="missing, and so is the folder"):
        Bundle.load(tmp_path / "nowhere")
    (copy / MANIFEST).unlink()
    with pytest.raises(BundleError, match="the run never finished"):
        Bundle.load(copy)


def test_weights_are_verified_when_used_even_if_loading_left_them_out(copy: Path) -> None:
    found = Bundle.load(copy, tensors=False)
    raw = (copy / "weights.safetensors").read_bytes()
    (copy / "weights.safetensors").write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    Bundle.load(copy, tensors=False)
    with pytest.raises(BundleError, match=r"weights\.safetensors was altered"):
        found.weights()


def test_a_manifest_cannot_lead_out_of_the_folder(copy: Path) -> None:
    (copy.parent / "secret").write_text("secret")
    manifest = bundle.Manifest.from_json((copy / MANIFEST).read_text())
    reseal(copy, files={**manifest.files, "../secret": bundle._sha256(b"secret")})
    with pytest.raises(BundleError, match=r"'\.\./secret', which is no part of a bundle"):
        Bundle.load(copy)


def test_a_part_of_another_run_is_refused_though_every_hash_fits(copy: Path) -> None:
    (copy / "recipe.json").write_text(tiny("seed=43").to_json())
    reseal(copy)
    with pytest.raises(BundleError, match=r"recipe\.json belongs to run"):
        Bundle.load(copy)


@pytest.mark.parametrize("name", bundle.WHEN_DONE)
def test_a_done_run_needs_all_its_parts(copy: Path, name: str) -> None:
    (copy / name).unlink()
    reseal(copy)
    with pytest.raises(BundleError, match=f"lists no {name}, but the run is done"):
        Bundle.load(copy)


class Exploit:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch pwned",)


def test_a_pickle_in_place_of_weights_is_refused_by_name_and_never_run(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copy)
    (copy / "weights.safetensors").write_bytes(pickle.dumps(Exploit()))
    reseal(copy)
    with pytest.raises(BundleError, match=r"a pickle, which is refused \(it names posix\.system\)"):
        Bundle.load(copy).network()
    assert not (copy / "pwned").exists()


def test_the_network_and_its_rule_come_back_exactly(made: Path) -> None:
    found = Bundle.load(made)
    network = found.network()
    for name, tensor in network.module.state_dict().items():
        assert torch.equal(tensor, found.weights()[name])
    rule = found.rule(network)
    for name, tensor in rule.state_dict().items():
        assert torch.equal(tensor, found.rule_state()[name])


def test_measuring_again_gives_the_published_numbers_to_the_last_bit(made: Path) -> None:
    found = Bundle.load(made)
    again = measure_again(found)
    assert again.evidence == found.evidence
    assert again.outcome == found.outcome


def test_measuring_again_notices_altered_weights(copy: Path) -> None:
    weights = Bundle.load(copy).weights()
    weights["flat.weight"] += 1.0
    save_file(weights, copy / "weights.safetensors")
    reseal(copy)
    found = Bundle.load(copy)
    assert measure_again(found).evidence != found.evidence


def test_measuring_again_on_other_data_is_refused(made: Path) -> None:
    found = Bundle.load(made)
    other = replace(found, outcome=found.outcome.replace(data="0" * 64))
    with pytest.raises(BundleError, match="was made on other data"):
        measure_again(other)


def test_a_failed_run_is_a_bundle_with_fewer_parts(tmp_path: Path) -> None:
    outcome = Outcome(digest=tiny().digest, status="failed", reason="crash", message="signal 9")
    write(tmp_path, Parts(tiny(), outcome, [{"epoch": 0, "accuracy": 0.1}]))
    found = Bundle.load(tmp_path)
    assert str(found.outcome) == "FAILED(crash, epoch 0)"
    assert not found.outcome.final
    assert found.history == ({"epoch": 0, "accuracy": 0.1},)
    with pytest.raises(BundleError, match=r"no weights\.safetensors: the run FAILED"):
        found.weights()


def test_a_baseline_makes_one_bundle_enough(copy: Path) -> None:
    found = Bundle.load(copy)
    baseline = found.outcome.replace(digest="0" * 20, accuracy=0.5)
    assert found.with_baseline(baseline).baseline == baseline
    assert Bundle.load(copy).baseline == baseline
    with pytest.raises(BundleError, match="tested on other data"):
        found.with_baseline(baseline.replace(data="other"))


def test_killed_while_the_baseline_is_replaced_the_bundle_stays_whole(
    copy: Path, tmp_path: Path
) -> None:
    found = Bundle.load(copy)
    first = found.outcome.replace(digest="1" * 20)
    second = found.outcome.replace(digest="2" * 20)
    found.with_baseline(first)
    seen = []
    for at in range(4):
        folder = Path(shutil.copytree(copy, tmp_path / str(at)))

        def killed(folder: Path = folder, at: int = at) -> None:
            replace, count = os.replace, iter(range(100))

            def deadly(*names: str) -> None:
                if next(count) == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                replace(*names)

            os.replace = deadly  # type: ignore[assignment]
            Bundle.load(folder).with_baseline(second)

        assert ended(forked(killed)) == (-signal.SIGKILL if at < 3 else 0)
        seen.append(Bundle.load(folder).baseline)
    assert seen == [first, None, None, second]


def test_an_unlisted_baseline_is_not_believed(copy: Path) -> None:
    (copy / "baseline.json").write_text(Bundle.load(copy).outcome.to_json())
    assert Bundle.load(copy).baseline is None


@given(st.lists(st.booleans(), max_size=70))
def test_correctness_survives_packing(correct: list[bool]) -> None:
    outcome = Outcome(
        digest="0" * 20, status="done", tests=len(correct), correct=pack_correct(correct)
    )
    assert outcome.correct_examples().tolist() == correct


def test_correctness_that_does_not_fit_is_refused() -> None:
    outcome = Outcome(digest="0" * 20, status="done", tests=17, correct=pack_correct([True] * 9))
    with pytest.raises(BundleError, match="do not fit 17 tests"):
        outcome.correct_examples()


def test_the_mean_of_the_bits_is_the_accuracy(made: Path) -> None:
    outcome = Bundle.load(made).outcome
    assert np.mean(outcome.correct_examples()) == outcome.accuracy


@given(
    st.dictionaries(
        st.text(), st.floats() | st.integers() | st.lists(st.floats()) | st.none(), max_size=5
    )
)
def test_a_record_survives_a_line_of_strict_json(record: dict[str, object]) -> None:
    text = line(record)
    json.loads(text, parse_constant=pytest.fail)
    assert "\n" not in text
    assert repr(unline(text)) == repr(record)


def test_infinities_and_nan_are_numbers_again() -> None:
    found = unline(line({"a": [inf, -inf, nan], "b": {"c": nan}}))
    assert found["a"][:2] == [inf, -inf]
    assert isnan(found["a"][2])
    assert isnan(found["b"]["c"])


def test_history_at_a_reduction(made: Path) -> None:
    found = Bundle.load(made)
    whole, at = found.history[-1]["reference_norm"], found.history_at(128)[-1]["reference_norm"]
    assert at == [norm / 128 for norm in whole]


def test_a_recipe_of_the_wrong_kind_is_named(copy: Path) -> None:
    (copy / "recipe.json").write_text(json.dumps({**json.loads(Recipe().to_json()), "sed": 1}))
    reseal(copy)
    with pytest.raises(BundleError, match=r"recipe\.json cannot be read: unknown key 'sed'.*seed"):
        Bundle.load(copy)
