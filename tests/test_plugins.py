"""Plug-ins: what an installed package offers is trained, measured and told apart like our own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from faudit import cli, plugins, provenance
from faudit.bundle import Bundle
from faudit.data import load, published
from faudit.errors import DataError, FauditError, NetworkError, RecipeError, RuleError
from faudit.networks.zoo import ResMLP, make_network
from faudit.provenance import code_fingerprint, code_of, versions
from faudit.recipe import Recipe
from faudit.rules import RULES, rule_class, rule_options
from faudit.studies.attempt import OOM, exit_code
from faudit.studies.engines import Inline
from faudit.studies.progress import Silent
from faudit.studies.runner import check
from faudit.studies.store import Store
from faudit.studies.study import plan, train
from tests.studies.tools import tiny

CODE = '''
import torch
from torch import nn
from faudit.data import Dataset, Split
from faudit.networks.view import Residual, Staged
from faudit.rules.feedback import Direct

class SignDFA(Direct):
    """The sign of the error alone."""

    def __init__(self, layout, generator, *, scale=1.0, gain=1.0):
        super().__init__(layout, generator, scale=scale)
        self.gain = gain

    def signal(self, scene):
        return self.gain * scene.error.sign()

class Tanh(Residual):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def split(self, h):
        return h, torch.tanh(self.linear(h))

class TanhNet(Staged):
    def __init__(self, inputs=12, width=16, depth=2, classes=3):
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.blocks = nn.ModuleList(Tanh(width) for _ in range(depth))
        self.last = nn.Linear(width, classes)

    def embed(self, x):
        return self.first(x.flatten(1))

    def readout(self, h):
        return self.last(h)

def three_clouds(root):
    """Points around three centres; a file could lie under root."""
    draw = torch.Generator().manual_seed(1)
    labels = torch.arange(90) % 3
    points = torch.randn(90, 6, generator=draw) + 4 * labels[:, None]
    return Dataset(Split(points[:60], labels[:60]), Split(points[60:], labels[60:]), 3, "clouds")

def nothing(root):
    return {}

def a_missing_file(root):
    return (root / "no-such-file").read_bytes()

class Open(TanhNet):
    def __init__(self, inputs, classes, **rest):
        super().__init__(inputs, 4, 1, classes)

class Fixed(TanhNet):
    def __init__(self, inputs=12):
        super().__init__(inputs, 4, 1, 7)

class Hungry(TanhNet):
    def __init__(self, inputs=12):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

class Stubborn(TanhNet):
    def __init__(self, inputs=12, width=16):
        raise ValueError("width must be even")

class Seen(nn.Module):
    """No stages, and it asks for what an image tells."""

    def __init__(self, classes, *, image=8, channels=1, width=4):
        super().__init__()
        self.shape = (channels, image)
        self.stem = nn.Linear(channels * image**2, width)
        self.blocks = nn.ModuleList([nn.Linear(width, width)])
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        h = self.stem(x.flatten(1))
        for block in self.blocks:
            h = block(h)
        return self.head(h)
'''
OFFERS = """
[faudit.rules]
sign-dfa = my_credit.things:SignDFA
dfa = my_credit.things:SignDFA
no-rule = my_credit.things:TanhNet
not-there = my_credit.things:Nothing
[faudit.networks]
tanh-net = my_credit.things:TanhNet
resmlp = my_credit.things:TanhNet
fixed = my_credit.things:Fixed
open = my_credit.things:Open
hungry = my_credit.things:Hungry
stubborn = my_credit.things:Stubborn
seen = my_credit.things:Seen
no-network = my_credit.things:torch
[faudit.data]
three-clouds = my_credit.things:three_clouds
cifar10 = my_credit.things:three_clouds
missing = my_credit.things:a_missing_file
no-data = my_credit.things:nothing
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package as pip leaves it, in a folder of its own."""
    site = tmp_path / "site"
    package, told = site / "my_credit", site / "my_credit-1.5.dist-info"
    package.mkdir(parents=True)
    told.mkdir()
    (package / "__init__.py").touch()
    (package / "things.py").write_text(CODE)
    (package / "template.py").write_text("class {{ name }}:\n")
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: my-credit\nVersion: 1.5\n")
    (told / "entry_points.txt").write_text(OFFERS)
    monkeypatch.syspath_prepend(str(site))
    _forget()
    yield package
    for name in ("my_credit", "my_credit.things"):
        sys.modules.pop(name, None)
    monkeypatch.undo()
    _forget()


def _forget() -> None:
    plugins.offered.cache_clear()
    provenance._plugin_code.cache_clear()


def own(*assignments: str) -> Recipe:
    return tiny("rule.name=sign-dfa", *assignments)


def test_nothing_is_imported_before_it_is_named(installed: Path) -> None:
    assert "sign-dfa" in plugins.offered(plugins.RULES)
    assert code_of(own()) != code_fingerprint()
    assert "my_credit" not in sys.modules
    assert rule_options("sign-dfa") == {"scale": 1.0, "gain": 1.0}
    assert "my_credit" in sys.modules


def test_a_run_by_a_plug_in_is_a_run(installed: Path, tmp_path: Path) -> None:
    recipe = own('network.name="tanh-net"', 'network.options={"width": 8}', "rule.options.gain=2.0")
    result = train([recipe], tmp_path / "runs", engine=Inline(), show=Silent())
    found = Bundle.load(result.store.folder(recipe))
    assert found.outcome.done
    assert found.manifest.versions["my-credit"] == "1.5"
    assert found.manifest.code == code_of(recipe)
    network = found.network()
    assert type(network.module).__name__ == "TanhNet"
    assert type(found.rule(network)).__name__ == "SignDFA"


def test_the_command_line_and_its_processes_know_them(installed: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "own.toml"
    recipe.write_text(own().to_toml())
    where = {**os.environ, "PYTHONPATH": str(installed.parent)}
    store = str(tmp_path / "runs")
    command = [sys.executable, "-m", "faudit", "train", str(recipe), "--store", store]
    done = subprocess.run([*command, "--quiet"], env=where, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    measured = [sys.executable, "-m", "faudit", "measure", store, "--json"]
    told = subprocess.run(measured, env=where, capture_output=True, text=True)
    assert json.loads(told.stdout), told.stderr


def test_other_code_of_the_plug_in_is_other_code(installed: Path) -> None:
    before, plain = code_of(own()), code_of(tiny())
    things = installed / "things.py"
    things.write_text(CODE.replace("self.gain *", "2 * self.gain *"))
    _forget()
    assert code_of(own()) != before
    things.write_text("# a comment\n" + CODE)
    _forget()
    assert code_of(own()) == before
    (installed / "template.py").write_text("class {{ other }}:\n")
    _forget()
    assert code_of(own()) != before
    assert code_of(tiny()) == plain


def test_a_package_that_is_one_file_counts_too(installed: Path) -> None:
    site = installed.parent
    (site / "alone.py").write_text(CODE)
    points = site / "my_credit-1.5.dist-info" / "entry_points.txt"
    points.write_text("[faudit.rules]\nsign-dfa = alone:SignDFA\n")
    _forget()
    before = code_of(own())
    (site / "alone.py").write_text(CODE.replace("gain=1.0", "gain=3.0"))
    _forget()
    assert code_of(own()) != before


def test_our_own_names_cannot_be_taken(installed: Path) -> None:
    assert rule_class("dfa") is RULES["dfa"]
    assert type(make_network("resmlp", (1, 4, 4), 5, seed=0)) is ResMLP
    assert published.reader("cifar10") is published.READERS["cifar10"]
    assert "my_credit" not in sys.modules


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sign-dfaa", r"unknown rule 'sign-dfaa'; did you mean 'sign-dfa'\?"),
        ("no-rule", "offered as rule 'no-rule', is no class that inherits from CreditRule"),
        ("not-there", "'not-there' of my-credit 1.5 cannot be loaded .* AttributeError"),
    ],
)
def test_a_rule_that_cannot_be_had_is_named(installed: Path, name: str, message: str) -> None:
    with pytest.raises(FauditError, match=message):
        rule_class(name)


def test_a_package_that_breaks_when_imported_is_named(installed: Path) -> None:
    (installed / "things.py").write_text("raise OSError('no licence')\n")
    with pytest.raises(FauditError, match=r"of my-credit 1\.5 cannot be loaded .* no licence"):
        rule_class("sign-dfa")


def test_a_network_gets_what_it_asks_for(installed: Path) -> None:
    assert make_network("tanh-net", (1, 4, 4), 5, seed=0, width=8).first.in_features == 16
    assert make_network("seen", (3, 8, 8), 5, seed=0).shape == (3, 8)
    with pytest.raises(NetworkError, match="needs square images, not 8x9"):
        make_network("seen", (3, 8, 9), 5, seed=0)
    with pytest.raises(NetworkError, match="unknown option of network 'seen' 'widht'"):
        make_network("seen", (3, 8, 8), 5, seed=0, widht=9)
    with pytest.raises(NetworkError, match="unknown option of network 'open' 'kw'"):
        make_network("open", (3, 8, 8), 5, seed=0, kw=8)
    with pytest.raises(NetworkError, match="unknown option of network 'seen' 'classes'"):
        make_network("seen", (3, 8, 8), 5, seed=0, classes=9)
    with pytest.raises(NetworkError, match="network 'stubborn': width must be even"):
        make_network("stubborn", (3, 8, 8), 5, seed=0)
    with pytest.raises(
        NetworkError, match="offered as network 'no-network', is no class that inherits"
    ):
        make_network("no-network", (3, 8, 8), 5, seed=0)


def test_a_network_that_gets_no_memory_is_no_misuse(installed: Path) -> None:
    with pytest.raises(RuntimeError, match="allocate memory") as caught:
        make_network("hungry", (3, 8, 8), 5, seed=0)
    assert exit_code(caught.value) == OOM


def test_a_network_without_stages_is_trained(installed: Path, tmp_path: Path) -> None:
    data = ("data.name=fashion-sample", "data.train_limit=64", "data.test_limit=32")
    recipe = tiny('network.name="seen"', 'network.options={"width": 8}', *data)
    result = train([recipe], tmp_path / "runs", engine=Inline(), show=Silent())
    entry = result.store.entry(recipe.digest)
    assert entry.outcome is not None
    assert entry.outcome.done, entry.outcome.message


def test_what_two_packages_offer_is_refused(installed: Path) -> None:
    other = installed.parent / "another-2.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: another\nVersion: 2\n")
    (other / "entry_points.txt").write_text("[faudit.rules]\nsign-dfa = my_credit.things:DFA\n")
    _forget()
    message = "rule 'sign-dfa' is offered by another and my-credit; uninstall all but one"
    with pytest.raises(RuleError, match=message):
        rule_class("sign-dfa")


def test_a_worker_leaves_to_others_what_it_has_no_plug_in_for(
    installed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store.open(tmp_path / "runs")
    store.want([own(), tiny()])
    (installed.parent / "my_credit-1.5.dist-info" / "entry_points.txt").write_text("")
    _forget()
    assert cli.main(["worker", str(store.path)]) == 3
    assert "passed over: unknown rule 'sign-dfa'" in capsys.readouterr().err
    assert store.wanted() == [own().digest]
    assert tiny() in store


def test_runs_whose_plug_in_is_absent_or_changed_are_not_measured_again(
    installed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = train([own(), tiny()], tmp_path / "runs", engine=Inline(), show=Silent()).store
    folder = str(store.folder(own()))
    (installed / "things.py").write_text(CODE + "x = 1\n")
    _forget()
    assert cli.main(["measure", folder]) == 2
    assert "was made by other code of its plug-ins" in capsys.readouterr().err
    (installed.parent / "my_credit-1.5.dist-info" / "entry_points.txt").write_text("")
    _forget()
    assert cli.main(["measure", folder]) == 2
    assert "was made with my-credit 1.5, which is not installed here" in capsys.readouterr().err
    assert cli.main(["measure", folder, "--no-again"]) in (1, 3)
    assert cli.main(["measure", str(store.path)]) in (1, 3)
    told = capsys.readouterr().out
    assert tiny().digest in told
    assert f"{own().digest}: {folder} was made with my-credit 1.5" in told


def test_a_run_that_is_there_by_other_code_says_so(installed: Path, tmp_path: Path) -> None:
    train([own()], tmp_path / "runs", engine=Inline(), show=Silent())
    (installed / "things.py").write_text(CODE + "x = 1\n")
    _forget()
    (run,) = plan([own()], tmp_path / "runs").cached
    assert run.note.startswith("made by other code")
    (run,) = plan([own()], tmp_path / "runs", same_code=True).todo
    assert run.recipe == own()


def test_what_a_plug_in_prints_is_no_answer(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (installed / "things.py").write_text("print('hello')\n" + CODE)
    rule_class("sign-dfa")
    seen = capsys.readouterr()
    assert (seen.out, seen.err) == ("", "hello\n")


def test_a_package_that_leaves_when_imported_is_named(installed: Path) -> None:
    (installed / "things.py").write_text("import sys; sys.exit(0)\n")
    with pytest.raises(FauditError, match=r"cannot be loaded .* SystemExit: 0"):
        rule_class("sign-dfa")


def test_a_network_of_other_classes_is_refused(installed: Path) -> None:
    with pytest.raises(RecipeError, match=r"network 'fixed' gives 7 logits for \d+ classes"):
        check([tiny('network.name="fixed"', "network.options={}")])


def test_data_of_a_package_are_data(installed: Path, tmp_path: Path) -> None:
    recipe = tiny("data.name=three-clouds", "data.train_limit=null", "data.test_limit=null")
    result = train([recipe], tmp_path / "runs", engine=Inline(), show=Silent())
    found = Bundle.load(result.store.folder(recipe))
    assert (found.outcome.tests, found.outcome.classes, found.outcome.shape) == (30, 3, (6,))
    assert found.manifest.code == code_of(recipe) != code_fingerprint()
    assert "my-credit" not in versions(Recipe())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("three-cloud", r"unknown data set 'three-cloud'; did you mean 'three-clouds'\?"),
        ("missing", r"'missing' of my-credit was not read: FileNotFoundError: .*no-such-file"),
        ("no-data", r"offered as 'no-data', gave no faudit.data.Dataset but a dict"),
    ],
)
def test_data_that_cannot_be_had_are_named(
    installed: Path, tmp_path: Path, name: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        load(name, tmp_path)


def test_a_run_without_plug_ins_tells_of_none(installed: Path) -> None:
    assert "my-credit" not in versions(tiny())
    assert versions(own())["my-credit"] == "1.5"


def test_where_the_package_is_not_installed_its_rule_is_unknown() -> None:
    with pytest.raises(RuleError, match="unknown rule 'sign-dfa'"):
        rule_class("sign-dfa")
