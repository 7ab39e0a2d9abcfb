"""What `--affected` once chose wrong: plain pytest fails after the edit, so a test must be chosen."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

Write = Callable[[dict[str, str]], None]
Run = Callable[..., pytest.RunResult]

SETTINGS = {"pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["src"]\n'}


def _chosen(outcome: pytest.RunResult) -> set[str]:
    return set(re.findall(r"^  run  \S+?::(\S+):", outcome.stdout.str(), re.MULTILINE))


@pytest.fixture
def after(write: Write, run_pytest: Run) -> Callable[..., set[str]]:
    """Seed a project, edit it, and return the tests that are chosen."""

    def choose(
        files: dict[str, str],
        edit: dict[str, str],
        arguments: tuple[tuple[str, ...], ...] = ((), ()),
        *,
        always: frozenset[str] = frozenset(),
    ) -> set[str]:
        write({**SETTINGS, **files})
        seeded = run_pytest("--affected", *arguments[0])
        assert seeded.ret == 0, seeded.stdout.str()
        assert _chosen(run_pytest("--affected-explain", "--collect-only", *arguments[0])) == always
        write(edit)
        return _chosen(run_pytest("--affected-explain", "--collect-only", *arguments[1]))

    return choose


CONFTEST = "import pytest\n@pytest.fixture\ndef value(): return 1\n"
TWO_FOLDERS = {
    "conftest.py": CONFTEST,
    "a/test_a.py": "def test_a(value): assert value == 1\ndef test_plain(): pass\n",
    "b/test_b.py": "def test_b(value): assert value == 1\n",
}


def test_a_new_autouse_fixture_in_an_existing_conftest(after: Callable[..., set[str]]) -> None:
    edited = CONFTEST + "@pytest.fixture(autouse=True)\ndef breaks(): raise RuntimeError\n"
    assert after(TWO_FOLDERS, {"conftest.py": edited}) == {"test_a", "test_plain", "test_b"}


def test_a_fixture_that_becomes_autouse(after: Callable[..., set[str]]) -> None:
    edited = {"conftest.py": CONFTEST.replace("fixture\n", "fixture(autouse=True)\n")}
    assert after(TWO_FOLDERS, edited) == {"test_a", "test_plain", "test_b"}


def test_a_fixture_that_comes_to_stand_before_another(after: Callable[..., set[str]]) -> None:
    nearer = {"a/conftest.py": "import pytest\n"}
    edited = CONFTEST.replace("return 1", "return 2")
    assert after({**TWO_FOLDERS, **nearer}, {"a/conftest.py": edited}) == {"test_a"}


def test_a_fixture_asked_for_by_a_made_name(after: Callable[..., set[str]]) -> None:
    files = {
        "conftest.py": CONFTEST,
        "a/conftest.py": "import pytest\n",
        "a/test_a.py": "def test_a(request): assert request.getfixturevalue('val' + 'ue') == 1\n"
        "def test_plain(): pass\n",
    }
    edited = CONFTEST.replace("return 1", "return 2")
    assert after(files, {"a/conftest.py": edited}) == {"test_a"}


def test_a_method_of_a_subclass_that_overrides_an_inherited_test(after: Callable[..., set[str]]) -> None:
    base = "class Base:\n    def test_it(self): pass\n    def test_other(self): pass\n"
    sub = "from base import Base\nclass TestSub(Base):\n    def test_own(self): pass\n"
    edited = sub + "    def test_it(self): assert False\n"
    assert after({"src/base.py": base, "test_sub.py": sub}, {"test_sub.py": edited}) == {"TestSub::test_it"}


@pytest.mark.parametrize(
    ("first", "second", "is_chosen"),
    [
        (("--backend=cpu",), ("--backend=vllm",), True),
        ((), ("-W", "error::UserWarning"), True),
        ((), ("-o", "xfail_strict=true"), True),
        ((), ("-q", "-ra", "--tb=short", "--maxfail=3", "--durations=2", "--color=no"), False),
    ],
    ids=["an option of the project", "-W", "-o", "options that report"],
)
def test_options_of_the_command_line(
    after: Callable[..., set[str]], first: tuple[str, ...], second: tuple[str, ...], is_chosen: bool
) -> None:
    files = {
        "conftest.py": "def pytest_addoption(parser): parser.addoption('--backend', default='cpu')\n",
        "test_a.py": "def test_a(pytestconfig): assert pytestconfig.getoption('backend') == 'cpu'\n",
    }
    assert bool(after(files, {}, (first, second))) is is_chosen


@pytest.mark.parametrize(
    "asks",
    [
        "not Path('late.txt').exists()",
        "not os.path.exists('late.txt')",
        "not os.path.isfile('late.txt')",
        "not os.access('late.txt', os.R_OK)",
        "_stat('late.txt') is None",
    ],
)
def test_a_file_that_appears(after: Callable[..., set[str]], asks: str) -> None:
    body = f"""
import os
from pathlib import Path

def _stat(path):
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None

def test_a(): assert {asks}
def test_plain(): pass
"""
    assert after({"test_a.py": body}, {"late.txt": "x"}) == {"test_a"}


@pytest.mark.parametrize("asks", ["Path('data.txt').stat().st_size", "os.path.getsize('data.txt')"])
def test_a_file_whose_size_a_test_reads(after: Callable[..., set[str]], asks: str) -> None:
    files = {
        "data.txt": "12",
        "test_a.py": f"import os\nfrom pathlib import Path\ndef test_a(): assert {asks} == 2\n",
    }
    assert after(files, {"data.txt": "123"}) == {"test_a"}


def test_a_package_that_comes_to_shadow_a_module(after: Callable[..., set[str]]) -> None:
    files = {
        "src/pkg/__init__.py": "",
        "src/pkg/loss.py": "VALUE = 1\n",
        "test_a.py": "from pkg import loss\ndef test_a(): assert loss.VALUE == 1\n",
        "test_b.py": "import pkg\ndef test_b(): pass\n",
    }
    assert after(files, {"src/pkg/loss/__init__.py": "VALUE = 2\n"}) == {"test_a"}


def test_a_module_that_comes_to_stand_before_an_installed_one(after: Callable[..., set[str]]) -> None:
    files = {
        "test_a.py": "import colorsys\ndef test_a(): assert hasattr(colorsys, 'rgb_to_hsv')\n",
        "test_b.py": "def test_b(): pass\n",
    }
    assert after(files, {"src/colorsys.py": ""}) == {"test_a"}


@pytest.mark.parametrize(
    ("flags", "edit"),
    [
        ("'-c'", "src/hidden.py"),
        ("'-c'", "data.bin"),
        ("'-I', '-c'", "data.bin"),
        ("'-I', '-c'", "nothing.txt"),
    ],
)
def test_what_starts_a_process_that_cannot_be_watched_always_runs(
    after: Callable[..., set[str]], flags: str, edit: str
) -> None:
    body = f"""
import os, subprocess, sys

def test_child():
    environment = {{**os.environ, "PYTHONPATH": "src"}}
    program = "open('da' + 'ta.bin').read(); import sys; sys.path.append('src'); __import__('hid' + 'den')"
    subprocess.run([sys.executable, {flags}, program], env=environment, check=True)

def test_plain(): pass
"""
    files = {"src/hidden.py": "X = 1\n", "data.bin": "1", "test_a.py": body}
    assert after(files, {edit: "2"}, always=frozenset(["test_child"])) == {"test_child"}


def test_a_killed_session_leaves_nothing_in_the_temporary_folder_for_long(
    write: Write, pytester: pytest.Pytester
) -> None:
    write({"test_a.py": "import os\ndef test_a(): open('go').read()\n", "test_b.py": "def test_b(): pass\n"})
    os.mkfifo(pytester.path / "go")
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "TMPDIR": folder}
        command = [sys.executable, "-m", "pytest", "-p", "seatrial.pytest_plugin", "--affected", "-q"]
        killed = subprocess.Popen([*command, "test_a.py"], cwd=pytester.path, env=environment)
        with (pytester.path / "go").open("w"):  # opens when the test waits for it
            left = set(Path(folder).glob("seatrial-*"))
            assert len(left) == 1
            # A session beside it leaves the folder of one that lives alone.
            subprocess.run([*command, "test_b.py"], cwd=pytester.path, env=environment, check=True)
            assert set(Path(folder).glob("seatrial-*")) == left
            killed.send_signal(signal.SIGKILL)
            killed.wait()
        subprocess.run([*command, "test_b.py", "-k", "b"], cwd=pytester.path, env=environment, check=True)
        assert not list(Path(folder).glob("seatrial-*"))
