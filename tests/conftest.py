"""Shared by all tests: environments of other projects' libraries, made once and kept."""

import fcntl
import gc
import importlib
import json
import multiprocessing
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
from tests.forked.activation import PYTEST_PYTHON, PYTHON, TESTS_PYTHON, Activation
from tests.left_out import LeftOut, is_nightly
from tests.peers.making import PEERS, MakingError, environment

# Tests run beside one another, on models that gain nothing from threads; threads that wait for each other crawl.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Thousands of modules are imported while tests are collected; nothing of them could be freed.
gc.disable()

ROOT = Path(__file__).resolve().parent.parent


DEADLINE_S = 70 * 60
"""A whole run that takes longer has a test that waits for ever: it ends and names the tests that had begun."""
NIGHTLY_DEADLINE_S = 8 * 60 * 60
"""The same for the nightly tests."""
MAKING_S = 1800
"""For a test that may have to make an environment first."""


FIRST = (
    "tests/unit/relations/test_reference.py",
    "tests/e2e/bisect/test_bisect_command.py",
    "tests/unit/test_house_rules.py",
    "tests/unit/faults/test_mutants.py",
    "tests/peers/test_data_plane.py",
    "tests/peers/test_transformers_adapters.py",
    "tests/peers/test_peft_accelerate.py",
    "tests/peers/test_ray_ranks.py",
    "tests/peers/test_stack_adapters.py",
    "tests/peers/wild/test_wild_pairs.py",
    "tests/e2e/test_compare.py",
    "tests/e2e/bisect/test_bisect_training.py",
    "tests/e2e/bisect/test_bisect_slurm.py",
    "tests/e2e/bisect/test_public_launcher_defects.py",
    "tests/e2e/test_run_jobs.py",
    "tests/unit/bisect/test_bisect_search.py",
    "tests/unit/pytest_plugin/test_affected_recall.py",
    "tests/unit/pytest_plugin/test_affected_runs.py",
    "tests/unit/pytest_plugin/test_tracker_baseline.py",
    "tests/fuzz/test_readers.py",
)
"""Files of half a minute and more, longest first: a worker that began one last would work on while the others are idle.
Those that need an environment of a peer come after files that need none, because `Making` makes it meanwhile."""
OF_EVERY_RUN = ("data_plane", "trl", "formats", "ray")
"""Environments of peers that tests of every run need, in the order in which the tests ask for them."""


def pytest_configure(config: pytest.Config) -> None:
    """Take interrupts, which a shell's background job ignores and hands down, and set an end to the whole run."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(LeftOut())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Deadline(config))
        _own_temporary_files(config)
        if config.getoption("numprocesses", None):
            _fork_workers(config)
            if not is_nightly(config):
                config.pluginmanager.register(Making(), "making")
    multiprocessing.set_executable(_forked_python())


def _own_temporary_files(config: pytest.Config) -> None:
    """Have every process of the run keep its temporary files in a folder that goes with it: one that is killed cannot
    remove its own. Ray's sockets lie there, whose paths have to be short."""
    tempfile.gettempdir()  # pytest keeps its own folders, which outlive it, where they were
    folder = tempfile.TemporaryDirectory(prefix="t-", ignore_cleanup_errors=True)
    os.environ["TMPDIR"] = folder.name
    config.add_cleanup(folder.cleanup)
    for name in (PYTHON, PYTEST_PYTHON, TESTS_PYTHON):
        config.add_cleanup(Activation(Path(folder.name), name).close)


def _fork_workers(config: pytest.Config) -> None:
    """Have the processes that run tests start with the stack imported, unless something watches what they import."""
    watched = ("cov_source", "affected", "affected_explain", "affected_audit")
    if not any(config.getoption(name, None) for name in watched):
        python = Path(os.environ["TMPDIR"]) / TESTS_PYTHON
        config.option.tx = [f"popen//python={python}"] * len(config.option.tx)


class Making:
    """Makes environments of peers while the first tests run: it waits for the network and the disk most of the time.

    A test that needs one waits for it (`making.environment` locks); one that cannot be made is the test's to report.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def pytest_sessionstart(self) -> None:
        """Begin."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.peers.making", "--environments", *OF_EVERY_RUN],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def pytest_sessionfinish(self) -> None:
        """Stop it, with its installer, if a run of few tests ends before."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait()


class Deadline:
    """Ends the run after DEADLINE_S, with the tests that are under way: pytest-timeout sees only those in a test."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._running: dict[str, None] = {}
        self._seconds = NIGHTLY_DEADLINE_S if is_nightly(config) else DEADLINE_S
        self._timer = threading.Timer(self._seconds, self._end)
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
        reporter.write_line(
            f"\nnot ended within {self._seconds // 60} minutes; these tests had begun:{begun}"
        )
        os._exit(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest files first, and give tests that may make an environment the time for it."""
    places = {name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))
    for item in items:
        if "peer_python" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(MAKING_S))


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
    return _forked_python()


@pytest.fixture(scope="session")
def forked_pytest() -> str:
    """Return a python that starts `-m pytest` with pytest, and nothing else, imported (see `tests.forked`)."""
    return str(Path(os.environ["TMPDIR"]) / PYTEST_PYTHON)


def _forked_python() -> str:
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
