"""`--affected` chooses every test that an edit can affect, and leaves out the others.

One project is seeded once; each edit is made in a copy of it, so that every case also shows that a moved
checkout keeps its map.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FILES = {
    "pyproject.toml": """
[tool.pytest.ini_options]
pythonpath = ["src"]
markers = ["slow: takes long"]

[tool.seatrial.affected]
depends = ["requirements.lock"]

[tool.ruff]
line-length = 100
""",
    "requirements.lock": "torch==2.13\n",
    "README.md": "Read me.\n",
    # A package whose __init__ re-exports, with relative imports two levels deep.
    "src/pkg/__init__.py": "",
    "src/pkg/api.py": "from .middle import middle\nfrom pkg import constants\n",
    "src/pkg/middle.py": "from ._deep.bottom import bottom\n\ndef middle():\n    return bottom() + 1\n",
    "src/pkg/_deep/__init__.py": "",
    "src/pkg/_deep/bottom.py": "# The answer.\ndef bottom():\n    return 1\n",
    "src/pkg/constants.py": "NAME = 'n'\n",
    "src/pkg/lazy.py": "def load():\n    from pkg import later\n    return later.VALUE\n",
    "src/pkg/later.py": "VALUE = 7\n",
    "src/pkg/typed.py": """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from pkg import only_types
X = 1
""",
    "src/pkg/only_types.py": "class T: ...\n",
    "src/pkg/dispatch.py": """
import importlib

def call(name):
    return importlib.import_module(f'pkg.commands.{name}').run()
""",
    "src/pkg/commands/__init__.py": "",
    "src/pkg/commands/first.py": "def run(): return 1\n",
    "src/pkg/commands/second.py": "def run(): return 2\n",
    "src/pkg/registry.py": """
import importlib
LOADED = []
def load_all():
    if not LOADED:
        LOADED.append(importlib.import_module('pkg.' + 'plugin'))
def get():
    load_all()
    return LOADED[0].VALUE
""",
    "src/pkg/plugin.py": "VALUE = 5\n",
    "src/pkg/cached.py": """
import functools
@functools.lru_cache
def table():
    return open('data/table.json').read()
""",
    "src/pkg/remembered.py": """
_text = None
def text():
    global _text
    if _text is None:
        with open('data/remembered.txt') as file:
            _text = file.read()
    return _text
""",
    "src/pkg/at_import.py": """
import os
from pathlib import Path
TEXT = Path('data/at_import.txt').read_text()
MODE = os.environ.get('PKG_MODE', 'plain')
""",
    "src/pkg/tool.py": "import sys\nfrom pkg.worker_only import work\nprint(work(), open('data/child.txt').read())\n",
    "src/pkg/worker_only.py": "def work(): return 3\n",
    "scripts/run.sh": "#!/bin/sh\n. scripts/common.sh\ncat data/for_shell.txt\n",
    "scripts/common.sh": "set -e\n",
    "scripts/other.sh": "true\n",
    "data/table.json": "{}",
    "data/remembered.txt": "r",
    "data/at_import.txt": "i",
    "data/child.txt": "c",
    "data/for_shell.txt": "s",
    "data/declared.bin": "d",
    "recipes/one.yaml": "a: 1\n",
    "recipes/two.yaml": "a: 2\n",
    "tests/conftest.py": """
import pytest
from pkg import constants

@pytest.fixture(scope="session")
def recipe_one():
    return open("recipes/one.yaml").read()

@pytest.fixture
def unused():
    return 1

@pytest.fixture
def doubled(request):
    return 2 * request.getfixturevalue("base")

@pytest.fixture(scope="session")
def base():
    return 3
""",
    "tests/test_imports.py": """
import pytest
from pkg.api import middle

def helper():
    return 2

def test_two_levels():
    assert middle() == helper()

class TestGroup:
    @pytest.mark.parametrize("n", [1, 2])
    def test_in_class(self, n):
        assert n

async def async_helper():
    return 1

def test_async():
    import asyncio
    assert asyncio.run(async_helper()) == 1
""",
    "tests/test_lazy.py": "from pkg.lazy import load\ndef test_lazy(): assert load() == 7\n",
    "tests/test_typed.py": "from pkg import typed\ndef test_typed(): assert typed.X == 1\n",
    "tests/test_dispatch.py": """
from pkg.dispatch import call
def test_first(): assert call("first") == 1
def test_second(): assert call("second") == 2
""",
    "tests/test_registry.py": """
from pkg import registry
def test_loads(): assert registry.get() == 5
def test_finds_it_loaded(): assert registry.get() == 5
""",
    "tests/test_data.py": """
import os
import pytest
from pkg.cached import table
from pkg.remembered import text

def test_table_first(): assert table() == "{}"
def test_table_again(): assert table() == "{}"
def test_text_first(): assert text() == "r"
def test_text_again(): assert text() == "r"
def test_recipe(recipe_one): assert recipe_one
def test_recipe_again(recipe_one): assert recipe_one
def test_listing(): assert len(os.listdir("recipes")) == 2
def test_absent(): assert not os.path.exists("data/nothing") and _read("data/nothing") is None
def test_environment(): assert os.getenv("PKG_DEVICE", "cpu") == "cpu"
@pytest.mark.depends_on("data/*.bin", env=["DECLARED_VARIABLE"], modules=["pkg.later"])
def test_declared(): pass
def test_doubled(doubled): assert doubled == 6

def _read(path):
    try:
        return open(path).read()
    except FileNotFoundError:
        return None
""",
    "tests/test_at_import.py": """
from pkg import at_import
def test_at_import(): assert (at_import.TEXT, at_import.MODE) == ('i', 'plain')
""",
    "tests/test_children.py": """
import os, subprocess, sys
SRC = os.path.join(os.path.dirname(__file__), "..", "src")

def test_child():
    environment = {**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", "") + os.pathsep + SRC}
    subprocess.run([sys.executable, "-m", "pkg." + "tool"], check=True, env=environment)
def test_forked():
    child = os.fork()
    if child == 0:
        sys.path.insert(0, SRC)
        open("data/forked.txt").read() if os.path.exists("data/forked.txt") else None
        from pkg import worker_only
        os._exit(0 if worker_only.work() == 3 else 1)
    assert os.waitpid(child, 0)[1] == 0
def test_shell(): subprocess.run(["sh", "scripts/run.sh"], check=True)
def test_system(): assert os.system("sh scripts/other.sh") == 0
def test_isolated(): subprocess.run([sys.executable, "-I", "-c", "print(1)"], check=True)
""",
    "tests/test_plain.py": "def test_plain(): pass\n",
}
Outcome = dict[str, tuple[bool, str]]


def _run(
    project: Path, *arguments: str, environment: dict[str, str] | None = None
) -> tuple[Outcome, str, int]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "PKG_", "SEATRIAL_"))}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "seatrial.pytest_plugin", "-p", "xdist"),
            *("-p", "no:cacheprovider", "--affected-explain", *arguments),
        ],
        cwd=project,
        env={**kept, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **(environment or {})},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    output = done.stdout + done.stderr
    rows = re.findall(r"^  (run|out)  tests/(\S+?): (.*)$", output, re.MULTILINE)
    return {nodeid: (word == "run", reason) for word, nodeid, reason in rows}, output, done.returncode


def _chosen(outcome: Outcome) -> set[str]:
    return {nodeid for nodeid, (chosen, _) in outcome.items() if chosen}


def _write(project: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = tmp_path_factory.mktemp("seeded") / "project"
    _write(project, FILES)
    outcome, output, status = _run(project)
    assert status == 0, output
    assert "there is no map yet" in output
    assert _chosen(outcome) == set(outcome)
    return project


@pytest.fixture
def project(seeded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(seeded, tmp_path / "moved" / "here"))


def _replace(path: str, old: str, new: str) -> Callable[[Path], None]:
    def edit(project: Path) -> None:
        text = (project / path).read_text()
        assert old in text
        (project / path).write_text(text.replace(old, new))

    return edit


def _add(path: str, text: str = "") -> Callable[[Path], None]:
    return lambda project: _write(project, {path: text})


EVERYTHING = object()
IMPORTS = {
    "test_imports.py::test_two_levels",
    "test_imports.py::TestGroup::test_in_class[1]",
    "test_imports.py::TestGroup::test_in_class[2]",
    "test_imports.py::test_async",
}
ALWAYS = {"test_children.py::test_isolated"}
"""Starts a process that cannot be watched."""
CHILD = {"test_children.py::test_child"}
EDITS: list[tuple[str, Callable[[Path], None], object]] = [
    ("nothing", lambda project: None, set()),
    ("a comment", _replace("src/pkg/_deep/bottom.py", "# The answer.\n", "# Another.\n\n\n"), set()),
    ("layout", _replace("src/pkg/middle.py", "return bottom() + 1", "return (bottom()\n    + 1)"), set()),
    ("modification times", lambda p: [os.utime(f, (0, 0)) for f in p.rglob("*.py")] and None, set()),
    ("a text nobody reads", _add("README.md", "new"), set()),
    ("a linter\'s options", _replace("pyproject.toml", "100", "120"), set()),
    ("a module for types only", _replace("src/pkg/only_types.py", "...", "x = 1"), set()),
    ("two levels down", _replace("src/pkg/_deep/bottom.py", "return 1", "return 2"),
        {"test_imports.py::test_two_levels"}),
    ("what two levels down runs at import", _replace("src/pkg/_deep/bottom.py", "def bottom", "X = 1\ndef bottom"),
        IMPORTS),
    ("a package on the way", _add("src/pkg/_deep/__init__.py", "Y = 1\n"), IMPORTS),
    ("an import inside a function", _add("src/pkg/later.py", "VALUE = 8\n"),
        {"test_lazy.py::test_lazy", "test_data.py::test_declared"}),
    ("one of several by name", _replace("src/pkg/commands/second.py", "2", "3"),
        {"test_dispatch.py::test_second"}),
    ("loaded by name once for all", _add("src/pkg/plugin.py", "VALUE = 6\n"),
        {"test_registry.py::test_loads", "test_registry.py::test_finds_it_loaded"}),
    ("one test's body", _replace("tests/test_imports.py", "assert n", "assert n > 0"),
        {"test_imports.py::TestGroup::test_in_class[1]", "test_imports.py::TestGroup::test_in_class[2]"}),
    ("a helper in a test module", _replace("tests/test_imports.py", "    return 2", "    return 3"),
     {"test_imports.py::test_two_levels"}),
    ("a fixture", _replace("tests/conftest.py", 'open("recipes/one.yaml").read()', 'str(1)'),
        {"test_data.py::test_recipe", "test_data.py::test_recipe_again"}),
    ("a fixture asked for by name", _replace("tests/conftest.py", "return 3", "return 4"),
        {"test_data.py::test_doubled"}),
    ("a fixture that nobody uses", _replace("tests/conftest.py", "return 1", "return 9"), set()),
    ("the rest of a conftest", _replace("tests/conftest.py", "import pytest\n", "import pytest\nX = 1\n"), EVERYTHING),
    ("a new conftest above", _add("conftest.py", "X = 1\n"), EVERYTHING),
    ("pytest's settings", _replace("pyproject.toml", "slow: takes long", "slow: takes very long"), EVERYTHING),
    ("a file that all depend on", _add("requirements.lock", "torch==2.14\n"), EVERYTHING),
    ("a file read once and cached", _add("data/table.json", "[]"),
        {f"test_data.py::test_{name}" for name in (
            "table_first", "table_again", "text_first", "text_again", "recipe", "recipe_again", "listing",
            "absent", "environment", "declared", "doubled")}),
    ("a file read at import", _add("data/at_import.txt", "j"), {"test_at_import.py::test_at_import"}),
    ("a recipe of a session fixture", _add("recipes/one.yaml", "a: 9\n"),
        {"test_data.py::test_recipe", "test_data.py::test_recipe_again"}),
    ("a new file in a listed folder", _add("recipes/three.yaml"), {"test_data.py::test_listing"}),
    ("a file looked for in vain", _add("data/nothing", "now"), {"test_data.py::test_absent"}),
    ("a declared file", _add("data/more.bin", "1"), {"test_data.py::test_declared"}),
    ("a module that only a child imports", _replace("src/pkg/worker_only.py", "3", "4"),
        CHILD | {"test_children.py::test_forked"}),
    ("a file that only a child reads", _add("data/child.txt", "C"), CHILD),
    ("a shell script", _add("scripts/run.sh", "exit 0\n"), {"test_children.py::test_shell"}),
    ("a script of os.system", _add("scripts/other.sh", "exit 0\n"), {"test_children.py::test_system"}),
    ("a script that a script reads", _add("scripts/common.sh", "set -u\n"), {"test_children.py::test_shell"}),
    ("a file that a script names", _add("data/for_shell.txt", "S"), {"test_children.py::test_shell"}),
    ("a new test", _add("tests/test_new.py", "def test_new(): pass\n"), {"test_new.py::test_new"}),
    ("a new parameter", _replace("tests/test_imports.py", "[1, 2]", "[1, 2, 3]"),
        {f"test_imports.py::TestGroup::test_in_class[{n}]" for n in (1, 2, 3)}),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "affected"), [pytest.param(e, a, id=name) for name, e, a in EDITS])
def test_an_edit_chooses_what_it_affects(project: Path, edit: Callable[[Path], None], affected: Any) -> None:
    edit(project)
    outcome, output, _ = _run(project, "--collect-only", "-q")
    expected = set(outcome) if affected is EVERYTHING else affected | ALWAYS
    assert outcome, output
    assert _chosen(outcome) == expected, output


@pytest.mark.parametrize(
    ("name", "affected"),
    [
        ("PKG_DEVICE", {"test_data.py::test_environment"}),
        ("PKG_MODE", {"test_at_import.py::test_at_import"}),
        ("DECLARED_VARIABLE", {"test_data.py::test_declared"}),
        ("NOBODY_READS_THIS", set()),
    ],
)
def test_a_variable_chooses_its_readers(project: Path, name: str, affected: set[str]) -> None:
    outcome, output, _ = _run(project, "--collect-only", "-q", environment={name: "changed"})
    assert _chosen(outcome) == affected | ALWAYS, output
