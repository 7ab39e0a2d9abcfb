"""What the pytest plugin costs: overhead, import, seeding, decision.

    python benchmarks/pytest_plugin.py [--repeats N] [--testmon PYTHON] [--only NAME ...]

Ratios are of the CPU time of whole processes, the same suite in the same run, in turns; other times are taken
inside one process. The smallest of the repeats counts, as noise only adds. `--testmon` names a Python with
pytest and pytest-testmon, for the comparison of seeding.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

PLUGIN = ("-p", "seatrial.pytest_plugin")
TRIVIAL_TESTS = 1000
CPU_TESTS = 400
DECIDED_TESTS = 5000


def run_pytest(project: Path, *arguments: str, python: str = sys.executable) -> tuple[float, str]:
    """Run pytest on a project; return the CPU seconds of the whole process, and what it printed.

    Raises:
        RuntimeError: tests failed, or pytest did.
    """
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "SEATRIAL_"))
    }
    started = _children_seconds()
    done = subprocess.run(
        [python, "-m", "pytest", "-q", *arguments],
        cwd=project,
        env={**kept, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = _children_seconds() - started
    if done.returncode not in (0, 5):
        raise RuntimeError(
            f"pytest {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout[-2000:]}"
        )
    return seconds, done.stdout


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def fastest(repeats: int, *runs: Callable[[], float]) -> list[float]:
    """Return the shortest time of each of several things, run in turns so that load meets all alike."""
    best = [float("inf")] * len(runs)
    for _ in range(repeats):
        for number, one in enumerate(runs):
            best[number] = min(best[number], one())
    return best


def overhead(repeats: int) -> None:
    """Measure 1,000 trivial tests with and without the plugin, nothing asked of it."""
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        for number in range(10):
            body = "".join(f"def test_{n}(): pass\n" for n in range(TRIVIAL_TESTS // 10))
            (project / f"test_{number}.py").write_text(body)
        plain, with_plugin = fastest(
            repeats, lambda: run_pytest(project)[0], lambda: run_pytest(project, *PLUGIN)[0]
        )
    print(
        f"overhead: {TRIVIAL_TESTS} trivial tests, CPU time of the process: "
        f"{plain:.3f} s plain, {with_plugin:.3f} s with the plugin"
    )
    print(f"          {(with_plugin - plain) / plain:+.2%} of the run")


HOOKS = """
import functools, sys, time
started = time.perf_counter()
import pytest
import _pytest.config
before = time.perf_counter()
import seatrial.pytest_plugin as plugin
spent = [time.perf_counter() - before]

def timed(function):
    @functools.wraps(function)
    def wrapper(*values, **named):
        began = time.perf_counter()
        try:
            return function(*values, **named)
        finally:
            spent[0] += time.perf_counter() - began
    return wrapper

from seatrial.pytest_plugin.session import SessionRecord
for owner in (plugin, SessionRecord):
    for name, value in list(vars(owner).items()):
        if name.startswith("pytest_") and callable(value):
            setattr(owner, name, timed(value))
code = pytest.main(["-q", "-p", "no:cacheprovider", "-p", "seatrial.pytest_plugin"])
print("HOOKS", spent[0], time.perf_counter() - started)
sys.exit(code)
"""


def hooks(repeats: int) -> None:
    """Add up the time inside the plugin, import included, in a run of 1,000 trivial tests."""
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        (project / "test_it.py").write_text("".join(f"def test_{n}(): pass\n" for n in range(TRIVIAL_TESTS)))
        for _ in range(repeats):
            done = subprocess.run(
                [sys.executable, "-c", HOOKS],
                cwd=project,
                env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
                capture_output=True,
                text=True,
                check=True,
            )
            found = re.search(r"HOOKS (\S+) (\S+)", done.stdout)
            if found is None:
                raise RuntimeError(done.stdout)
            pairs.append((float(found[1]), float(found[2])))
    spent, whole = min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)
    print(
        f"inside:   {spent * 1e3:.2f} ms of {whole:.3f} s in {TRIVIAL_TESTS} trivial tests = {spent / whole:.2%}"
    )


def import_time(repeats: int) -> None:
    """Measure the import of the plugin module where pytest is loaded already, as it always is."""
    program = (
        "import pytest, _pytest.config, time; s = time.perf_counter(); import seatrial.pytest_plugin; "
        "print(time.perf_counter() - s)"
    )
    times = [
        float(
            subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        )
        for _ in range(repeats)
    ]
    print(f"import:   {min(times) * 1e3:.2f} ms")


MODULE = """
def loop(n):
    total = 0
    for i in range(n):
        total += i * i % 7
    return total

def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

class Counter:
    def __init__(self):
        self.counts = {{}}

    def add(self, word):
        self.counts[word] = self.counts.get(word, 0) + 1

def words(n):
    counter = Counter()
    for i in range(n):
        counter.add(str(i % 97))
    return sorted(counter.counts.items())

OFFSET = {number}
"""
TESTS = """
import pytest
from pkg import mod{number} as mod

@pytest.mark.parametrize("n", range(10))
def test_cpu(n):
    assert mod.loop(15_000) > 0
    assert mod.fib(13) == 233
    assert mod.words(4_000)
"""


def _cpu_project(project: Path) -> None:
    (project / "pkg").mkdir()
    (project / "tests").mkdir()
    (project / "pkg/__init__.py").write_text("")
    (project / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    for number in range(CPU_TESTS // 10):
        (project / f"pkg/mod{number}.py").write_text(MODULE.format(number=number))
        (project / f"tests/test_{number}.py").write_text(TESTS.format(number=number))


def seeding(repeats: int, testmon: str | None) -> None:
    """Measure the first --affected run of 400 CPU-bound tests, and testmon's, as multiples of the plain run."""
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        _cpu_project(project)

        def seed() -> float:
            (project / ".seatrial/affected.json").unlink(missing_ok=True)
            return run_pytest(project, *PLUGIN, "--affected")[0]

        def seed_testmon() -> float:
            for path in project.glob(".testmondata*"):
                path.unlink()
            return run_pytest(project, "-p", "testmon.pytest_testmon", "--testmon", python=str(testmon))[0]

        def plain() -> float:
            return run_pytest(project)[0]

        runs = [plain, seed, *([seed_testmon] if testmon else [])]
        times = fastest(repeats, *runs)
    print(f"seeding:  {CPU_TESTS} CPU-bound tests: plain {times[0]:.2f} s")
    print(f"          --affected {times[1]:.2f} s = {times[1] / times[0]:.2f} times")
    if testmon:
        print(f"          testmon {times[2]:.2f} s = {times[2] / times[0]:.2f} times")


def decision(repeats: int) -> None:
    """Measure deciding on 5,000 tests with nothing changed: reading the map, hashing, comparing."""
    program = """
import json, sys, time
from pathlib import Path
started = time.perf_counter()
import os
from seatrial.pytest_plugin.affected.decide import decide
from seatrial.pytest_plugin.affected.fingerprints import Fingerprints
from seatrial.pytest_plugin.affected.store import Store
store = Store.load(Path(".seatrial/affected.json"))
first = next(iter(store.tests.values()))
options = {name: value for kind, name, value in first.shared if kind == "option"}
fingerprints = Fingerprints(Path.cwd(), os.environ, store.known, options)
decisions = decide(dict.fromkeys(store.tests, frozenset()), store.tests, fingerprints)
spent = time.perf_counter() - started
print("DECIDED", len(decisions), sum(d.chosen for d in decisions.values()), spent)
"""
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        _decision_project(project)
        run_pytest(project, *PLUGIN, "--affected")
        times = []
        for _ in range(repeats):
            done = subprocess.run(
                [sys.executable, "-c", program], cwd=project, capture_output=True, text=True, check=True
            )
            _, count, chosen, spent = done.stdout.split()
            if (int(count), int(chosen)) != (DECIDED_TESTS, 0):
                raise RuntimeError(f"decided on {count} tests, chose {chosen}")
            times.append(float(spent))
        plain, affected = fastest(
            repeats,
            lambda: run_pytest(project, "--collect-only")[0],
            lambda: run_pytest(project, *PLUGIN, "--affected", "--collect-only")[0],
        )
        size = (project / ".seatrial/affected.json").stat().st_size
    print(f"decision: {DECIDED_TESTS} tests in 500 modules, nothing changed: {min(times):.3f} s")
    print(f"          the map has {size / 1e6:.1f} MB")
    print(
        f"          CPU time of the process with --collect-only: {plain:.2f} s plain, {affected:.2f} s with --affected"
    )


def _decision_project(project: Path) -> None:
    """Write 500 test modules of ten tests over 250 modules that import one another in chains."""
    (project / "pkg").mkdir()
    (project / "tests").mkdir()
    (project / "pkg/__init__.py").write_text("")
    (project / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    for number in range(250):
        chain = f"from pkg import mod{number - 1}\n" if number % 25 else ""
        (project / f"pkg/mod{number}.py").write_text(chain + MODULE.format(number=number))
    for number in range(500):
        tests = "".join(f"def test_{n}(): assert mod.OFFSET >= 0\n" for n in range(10))
        (project / f"tests/test_{number}.py").write_text(f"from pkg import mod{number % 250} as mod\n{tests}")


def main(argv: Sequence[str] | None = None) -> int:
    """Print every figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--testmon", metavar="PYTHON")
    parser.add_argument("--only", nargs="*", choices=("overhead", "hooks", "import", "seeding", "decision"))
    arguments = parser.parse_args(argv)
    figures: dict[str, Callable[[], None]] = {
        "import": lambda: import_time(arguments.repeats * 3),
        "hooks": lambda: hooks(arguments.repeats),
        "overhead": lambda: overhead(arguments.repeats),
        "seeding": lambda: seeding(arguments.repeats, arguments.testmon),
        "decision": lambda: decision(arguments.repeats),
    }
    for name, measure in figures.items():
        if not arguments.only or name in arguments.only:
            measure()
    return 0


if __name__ == "__main__":
    sys.exit(main())
