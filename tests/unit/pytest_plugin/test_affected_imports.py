"""Imports, parts and distributions as selection reads them, against independent readings."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import grimp
import pytest

from seatrial.pytest_plugin.affected.fingerprints import ABSENT, Packages, distributions_by_module, version
from seatrial.pytest_plugin.affected.graph import ImportGraph, Learned, Reach
from seatrial.pytest_plugin.affected.sources import Source, read_source
from seatrial.pytest_plugin.affected.syntax import REST, Part, compiles_bytecode, may_be_compiled
from seatrial.pytest_plugin.affected.watch import FILE, PY
from seatrial.pytest_plugin.affected.windows import Use

SRC = Path(__file__).resolve().parents[3] / "src"


def _graph(
    root: Path, learned: dict[str, set[Use]] | None = None, loads: dict[str, set[str]] | None = None
) -> ImportGraph:
    def source_of(path: str) -> Source | None:
        return read_source((root / path).read_bytes(), split=False) if (root / path).is_file() else None

    seen = Learned(uses=learned or {}, loads=loads or {})
    return ImportGraph(root, search=[""], modules={}, source_of=source_of, learned=seen)


@pytest.mark.parametrize("module", ["seatrial.cli.check", "seatrial.checks.evaluate", "refrl.config.run"])
def test_the_closure_holds_what_grimp_finds(module: str) -> None:
    """Ours may add packages on the way and modules named in texts; it may leave out nothing."""
    package = module.partition(".")[0]
    theirs = grimp.build_graph(package, exclude_type_checking_imports=True, cache_dir=None)
    expected = set(theirs.find_upstream_modules(module))
    start = module.replace(".", "/") + ".py"
    found = _graph(SRC).reach(Reach(whole={start})).whole
    names = {path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in found}
    assert expected <= names
    assert expected, "the oracle found nothing"


FILES = {
    "pkg/__init__.py": "from .a import f\n",
    "pkg/a.py": "from . import b, absent\nimport pkg.sub.c as c\n",
    "pkg/b.py": "def late():\n    from ..pkg.sub import d\n",
    "pkg/sub/__init__.py": "",
    "pkg/sub/c.py": "import numpy.linalg, yaml, json\nimport pkg.missing.deeper\n",
    "pkg/sub/d.py": "NAME = 'pkg.named:Object'\n",
    "pkg/named.py": "x = 'not.a.module'\n",
    "pkg/alone.py": "",
    "space/inner.py": "",
    "user.py": "from pkg import f\nimport space.inner\n",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_packages_relative_imports_reexports_and_names_are_followed(project: Path) -> None:
    reach = _graph(project).reach(Reach(whole={"user.py"}))
    assert reach.whole == set(FILES) - {"pkg/alone.py"}
    assert {"numpy", "yaml", "json"} <= reach.outside
    assert {(FILE, "pkg/missing.py"), (FILE, "pkg/missing/__init__.py")} <= reach.other


def test_what_was_learned_for_a_file_belongs_to_all_that_reach_it(project: Path) -> None:
    learned = {"pkg/sub/c.py": {(PY, "pkg/alone.py"), (FILE, "table.json")}}
    reach = _graph(project, learned=learned).reach(Reach(whole={"user.py"}))
    assert "pkg/alone.py" in reach.whole
    assert (FILE, "table.json") in reach.other


def test_imports_by_name_count_for_those_that_did_not_do_their_own(project: Path) -> None:
    graph = _graph(project, loads={"pkg/b.py": {"pkg/alone.py"}})
    assert "pkg/alone.py" in graph.reach(Reach(whole={"user.py"})).whole
    assert "pkg/alone.py" not in graph.reach(Reach(whole={"user.py"}), {"pkg/b.py"}).whole


MODULE = b'''
"""A module."""
import shared

@pytest.fixture(name="x")
def resource():
    import for_fixture

def test_one():
    import for_one

def test_called_by_another():
    pass

def test_two():
    test_called_by_another()

class TestGroup:
    value = 1

    @pytest.mark.parametrize("n", [1, 2])
    def test_in_class(self, n):
        monkeypatch.setattr("pkg.for_class.attribute", 1)

    def helper(self):
        pass
'''


def _parts(content: bytes) -> dict[str, Part]:
    parts = read_source(content, split=True).parts
    return {name: part for name, part in parts.items() if not name.startswith("#")}


def test_tests_and_fixtures_are_parts_of_their_own() -> None:
    parts = _parts(MODULE)
    assert set(parts) == {REST, "resource", "test_one", "test_two", "TestGroup.test_in_class"}
    named = {name: {one.module for one in part.imports} for name, part in parts.items()}
    assert named == {
        REST: {"shared"},
        "resource": {"for_fixture"},
        "test_one": {"for_one"},
        "test_two": set(),
        "TestGroup.test_in_class": {"pkg.for_class.attribute"},
    }


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        (b"import for_one", b"import for_two", {"test_one"}),
        (b"[1, 2]", b"[1, 3]", {"TestGroup.test_in_class"}),
        (b"value = 1", b"value = 2", {REST}),
        (b"import shared", b"import shared  # a comment\n\n", set()),
        (b'"""A module."""', b'"""Another."""', {REST}),
        (b"def helper(self):", b"def helper(self, more):", {REST}),
        (b'name="x"', b'name="y"', {"resource"}),
    ],
)
def test_an_edit_changes_the_parts_it_touches(old: bytes, new: bytes, changed: set[str]) -> None:
    before, after = _parts(MODULE), _parts(MODULE.replace(old, new))
    assert {name for name in before if before[name].fingerprint != after[name].fingerprint} == changed


WITH_HELPERS = b"""
import os
import shutil

import pytest

TABLE = [1]

def outer(n=1):
    return inner(n)

def inner(n):
    return os.fspath(n)

def for_rest():
    return 1

class Shared:
    value = for_rest()

def test_outer():
    assert outer()

@pytest.mark.parametrize("run", [inner])
def test_inner(run):
    pass

def test_text(monkeypatch):
    monkeypatch.setattr("test_it.shutil.which", None)

def test_plain():
    assert TABLE
"""
INNER, TEXT = {"test_outer", "test_inner", "outer", "inner"}, {"test_text"}


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        (b"return os.fspath(n)", b"return os.fspath(n + 1)", INNER),
        (b"return inner(n)", b"return 2", {"outer", "test_outer"}),
        (b"import os\n", b"import os.path\n", INNER),
        (b"import shutil\n", b"from os import path as shutil\n", TEXT),
        (b"def for_rest():\n    return 1", b"def for_rest():\n    return 2", {REST, "for_rest"}),
        # New ones, which an old test does not name.
        (b"import shutil\n", b"import shutil\nimport io\n\ndef more():\n    io.open('f')\n", {REST}),
        (b"import shutil\n", b"import shutil, io\n", TEXT | {REST}),
        (
            b"def test_plain",
            b"def more():\n    pass\n\ndef test_more():\n    more()\n\ndef test_plain",
            set(),
        ),
        (b"def test_plain", b"import io\ndef test_more():\n    io\n\ndef test_plain", set()),
        (b"def test_plain", b"import tempfile as which\ndef test_more(): which\ndef test_plain", TEXT),
        (b"def test_plain", b"import tempfile as setattr\ndef test_more(): setattr\ndef test_plain", set()),
        # What may do more than give a name.
        (b"def test_plain", b"import numpy\ndef test_more():\n    numpy\n\ndef test_plain", {REST}),
        (b"def test_plain", b"@TABLE\ndef more(): pass\ndef test_more(): more\ndef test_plain", {REST}),
        (b"def test_plain", b"def more(n=print()): pass\ndef test_more(): more\ndef test_plain", {REST}),
        (b"def test_plain", b"def pytest_x(): pass\ndef test_more(): pytest_x\ndef test_plain", {REST}),
        (b"def test_plain", b"def setup(): pass\ndef test_more(): setup\ndef test_plain", {REST}),
        (b"def test_plain", b"def TABLE(): pass\ndef test_plain", {REST}),
        (b"def test_plain", b"import io; print()\ndef test_more(): io\ndef test_plain", {REST}),
    ],
)
def test_a_helper_belongs_to_what_names_it(old: bytes, new: bytes, changed: set[str]) -> None:
    before, after = _parts(WITH_HELPERS), _parts(WITH_HELPERS.replace(old, new))
    assert {name for name in before if before[name] != after.get(name)} == changed


@pytest.mark.parametrize(
    "look", [b"globals()['in' + 'ner']", b"vars(sys.modules[__name__])", b"eval('in' 'ner')"]
)
def test_helpers_of_a_module_that_looks_at_itself_are_shared(look: bytes) -> None:
    content = WITH_HELPERS + b"\ndef test_look():\n    " + look
    before, after = _parts(content), _parts(content.replace(b"os.fspath(n)", b"2"))
    assert before[REST] != after[REST]


def test_who_imports_a_test_module_depends_on_its_helpers() -> None:
    first = read_source(WITH_HELPERS, split=True)
    second = read_source(WITH_HELPERS.replace(b"return os.fspath(n)", b"return 2"), split=True)
    assert first.whole.fingerprint != second.whole.fingerprint


def test_a_file_that_does_not_parse_counts_by_its_bytes() -> None:
    first, second = read_source(b"def (:", split=True), read_source(b"def (: ", split=True)
    assert first.whole.fingerprint != second.whole.fingerprint
    assert first.whole.imports == ()


def test_distributions_include_what_they_require() -> None:
    found = Packages().behind(["pytest", "json", "no_such_module_at_all"])
    assert {"pytest", "pluggy", "iniconfig", "no_such_module_at_all".replace("_", "-")} <= found
    assert "json" not in found
    assert version("pytest") == metadata.version("pytest")
    assert version("no-such-module-at-all") == ABSENT


def test_the_index_of_installed_modules_is_that_of_the_standard_library() -> None:
    ours, theirs = distributions_by_module(), metadata.packages_distributions()
    assert ours.keys() == theirs.keys()
    assert all(_names(ours[module]) == _names(theirs[module]) for module in theirs)


def _names(distributions: list[str]) -> set[str]:
    return {name.replace("-", "_").replace(".", "_").lower() for name in distributions}


@pytest.mark.parametrize(
    ("text", "meets_probes", "hides_calls"),
    [
        ("fast = torch.compile(step)\n", True, True),
        ("from torch import nn, compile\n", True, True),
        ("try:\n    import numba\nexcept ImportError:\n    numba = None\n", True, True),
        ("OPTIONS = {'wrapper': 'torch.compile'}\n", True, True),
        ('"""May be given to torch.compile."""\n\n\ndef step():\n    "as numba does"  # njit\n', False, True),
        ("import triton\n", False, True),
        ("text = inspect.getsource(step)\n", False, True),
        ("model = jax.jit(step)\n", False, True),
        ("def compile(step): ...\n", False, False),
    ],
)
def test_only_code_that_names_a_compiler_of_bytecode_does_without_probes(
    text: str, meets_probes: bool, hides_calls: bool
) -> None:
    content = text.encode()
    assert (compiles_bytecode(content), may_be_compiled(content)) == (meets_probes, hides_calls)
