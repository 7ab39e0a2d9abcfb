"""Shared by all tests: environments of other projects' libraries, made once and kept."""

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# Tests run beside one another, on models that gain nothing from threads; threads that wait for each other crawl.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parent.parent
PEERS = Path(os.environ.get("SEATRIAL_PEER_ENVIRONMENTS", ROOT / ".venv-peers"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the nightly tests out unless -m says otherwise; pytest counts them as deselected."""
    if config.getoption("-m"):
        return
    nightly = [item for item in items if item.get_closest_marker("nightly")]
    if nightly:
        config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]


def pytest_report_header() -> str:
    """Say what is left out by default."""
    return (
        "left out by default: nightly tests (run them with -m nightly); gpu tests skip without a CUDA device"
    )


@pytest.fixture(scope="session")
def repository() -> Path:
    """Return the root of this checkout."""
    return ROOT


@pytest.fixture(scope="session")
def peer_python() -> Callable[[str], Path]:
    """Return a function that gives the interpreter of a peer's environment, making it when it is missing.

    The environments are listed in tests/peers/environments.toml. One that cannot be made skips the test with
    pip's last words, and fails it when CI=true, so that CI never leaves it out in silence.
    """
    return _peer_python


@pytest.fixture(scope="session")
def formats_worker(peer_python: Callable[[str], Path], repository: Path) -> Callable[..., dict[str, Any]]:
    """Return a function that runs tests/peers/formats_worker.py where the libraries of log formats are installed.

    Its words go to the worker; it gives the JSON object that the worker printed, empty when that was none.
    """
    python = peer_python("formats")
    places = os.pathsep.join([str(repository / "src"), str(repository / "tests")])

    def run(*words: str | Path) -> dict[str, Any]:
        ran = subprocess.run(
            [str(python), str(repository / "tests/peers/formats_worker.py"), *map(str, words)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": places},
        )
        assert ran.returncode == 0, ran.stderr[-3000:]
        result: dict[str, Any] = {} if words[0] == "write" else json.loads(ran.stdout.splitlines()[-1])
        return result

    return run


def _install(name: str, python: Path, words: list[str]) -> None:
    made = subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", *words], capture_output=True, text=True, check=False
    )
    if made.returncode:
        reason = f"environment {name!r} could not be made: {made.stderr.strip()[-400:]}"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


def _peer_python(name: str) -> Path:
    wanted = tomllib.loads((ROOT / "tests/peers/environments.toml").read_text())[name]
    requirements = [str(item) for item in wanted["requirements"]]
    alone = [str(item) for item in wanted.get("without_dependencies", [])]
    beside = [sysconfig.get_path("purelib")] if wanted.get("beside", False) else []
    key = hashlib.sha256("\n".join([sys.version, *requirements, *alone, *beside]).encode()).hexdigest()[:12]
    home = PEERS / f"{name}-{key}"
    python = home / "bin" / "python"
    PEERS.mkdir(parents=True, exist_ok=True)
    with (PEERS / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / ".ready").exists():
            venv.EnvBuilder(with_pip=True, clear=True).create(home)
            for folder in home.glob("lib/python*/site-packages"):
                (folder / "beside.pth").write_text("".join(f"{place}\n" for place in beside))
            for words in (requirements, ["--no-deps", *alone] if alone else []):
                if words:
                    _install(name, python, words)
            (home / ".ready").touch()
    return python
