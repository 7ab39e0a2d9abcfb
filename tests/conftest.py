"""Shared by all tests: environments of other projects' libraries, made once and kept."""

import fcntl
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.forked.activation import PYTHON, Activation
from tests.peers.making import PEERS, MakingError, environment

# Tests run beside one another, on models that gain nothing from threads; threads that wait for each other crawl.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Thousands of modules are imported while tests are collected; nothing of them could be freed.
gc.disable()

ROOT = Path(__file__).resolve().parent.parent


DEADLINE_S = 70 * 60
"""A whole run that takes longer has a test that waits for ever: it ends and names the tests that had begun."""
MAKING_S = 1800
"""For a test that may have to make an environment first."""


FIRST = (
    "tests/peers/wild/test_wild_pairs.py",
    "tests/unit/relations/test_reference.py",
    "tests/unit/faults/test_mutants.py",
    "tests/peers/test_data_plane.py",
    "tests/peers/test_vllm.py",
    "tests/fuzz/test_readers.py",
    "tests/unit/test_house_rules.py",
    "tests/peers/test_ray_runtime.py",
    "tests/unit/pytest_plugin/test_affected_recall.py",
    "tests/unit/pytest_plugin/test_affected_runs.py",
    "tests/peers/test_trl_trials.py",
)
"""Files of half a minute and more, longest first: a worker that began one last would work on while the others are idle.
Four of them make environments of peers, which waits for the network while the others compute."""


def pytest_configure(config: pytest.Config) -> None:
    """Take interrupts, which a shell's background job ignores and hands down, and set an end to the whole run."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Deadline(config))
        _own_temporary_files(config)


def _own_temporary_files(config: pytest.Config) -> None:
    """Have every process of the run keep its temporary files in a folder that goes with it: one that is killed cannot
    remove its own. Ray's sockets lie there, whose paths have to be short."""
    tempfile.gettempdir()  # pytest keeps its own folders, which outlive it, where they were
    folder = tempfile.TemporaryDirectory(prefix="t-", ignore_cleanup_errors=True)
    os.environ["TMPDIR"] = folder.name
    config.add_cleanup(folder.cleanup)
    config.add_cleanup(Activation(Path(folder.name)).close)


class Deadline:
    """Ends the run after DEADLINE_S, with the tests that are under way: pytest-timeout sees only those in a test."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._running: dict[str, None] = {}
        self._timer = threading.Timer(DEADLINE_S, self._end)
        self._timer.daemon = True

    def pytest_sessionstart(self) -> None:
        """Begin to count."""
        self._timer.start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note that a test, of this process or of a worker, began."""
        self._running[nodeid] = None

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Note that it ended."""
        self._running.pop(nodeid, None)

    def pytest_sessionfinish(self) -> None:
        """Stop counting."""
        self._timer.cancel()

    def _end(self) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        begun = "".join(f"\n  {nodeid}" for nodeid in self._running)
        reporter.write_line(f"\nnot ended within {DEADLINE_S // 60} minutes; these tests had begun:{begun}")
        os._exit(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest files first, and leave the nightly tests out unless -m names them: they are deselected."""
    places = {name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))
    for item in items:
        if "peer_python" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(MAKING_S))
    if "nightly" in config.getoption("-m"):
        return
    nightly = [item for item in items if item.get_closest_marker("nightly")]
    if nightly:
        config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]


def pytest_collection_finish() -> None:
    """Keep what was imported out of every later look for what could be freed."""
    gc.freeze()
    gc.enable()


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

    The environments are listed in tests/peers/environments.toml. One that cannot be made skips the test with the
    installer's last words, and fails it when CI=true, so that CI never leaves it out in silence.
    """

    def made(name: str) -> Path:
        try:
            return environment(name)
        except MakingError as error:
            reason = f"environment {name!r} could not be made: {error}"
            (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)

    return made


@pytest.fixture(scope="session")
def forked_python() -> str:
    """Return a python that starts modules of ours with the stack imported (see `tests.forked`)."""
    return str(Path(os.environ["TMPDIR"]) / PYTHON)


@pytest.fixture(scope="module")
def forked_processes(forked_python: str) -> Iterator[None]:
    """Have the processes of refrl and seatrial that a module's tests start start with the stack imported."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("refrl.runtime.launcher", "refrl.generation.process"):
            module = importlib.import_module(name)
            patch.setattr(module, "COMMAND", (forked_python, *module.COMMAND[1:]))
        patch.setattr(sys, "executable", forked_python)
        yield


@pytest.fixture
def one_cluster() -> Iterator[None]:
    """Wait until no other test has a Ray cluster: Ray gives a node 30 s to start, too few for two at once."""
    PEERS.mkdir(parents=True, exist_ok=True)
    with (PEERS / "cluster.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


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
