"""Selection and tracker on a project with real Ray actors, in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("one_cluster")

ACTORS = "12,18"
"""Edits behind an actor and a remote task (benchmarks/affected_edits.py): the data file that an actor opens, a module
below the one that a task calls. All forty are made at night."""


def _scores(python: Path, repository: Path, out: Path, *arguments: str) -> list[dict[str, Any]]:
    ran = subprocess.run(
        [
            *(str(python), str(repository / "benchmarks/affected_edits.py")),
            *("--no-testmon", "--json", str(out), *arguments),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    scores: list[dict[str, Any]] = json.loads(out.read_text())
    return scores


def _missed(scores: list[dict[str, Any]]) -> dict[str, list[str]]:
    missed = {one["name"]: sorted(set(one["affected"]) - set(one["chosen"])) for one in scores}
    return {name: tests for name, tests in missed.items() if tests}


@pytest.mark.peer
@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_no_edit_behind_an_actor_is_missed(
    peer_python: Callable[[str], Path], repository: Path, tmp_path: Path
) -> None:
    scores = _scores(peer_python("ray"), repository, tmp_path / "scores.json", "--edits", ACTORS)
    assert len(scores) == 2
    assert all(one["affected"] for one in scores)
    assert _missed(scores) == {}


@pytest.mark.peer
@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_forty_edits_are_all_seen_and_four_in_five_choices_are_right(
    peer_python: Callable[[str], Path], repository: Path, tmp_path: Path
) -> None:
    scores = _scores(peer_python("ray"), repository, tmp_path / "scores.json")
    assert len(scores) == 20
    assert _missed(scores) == {}
    hits = sum(len(set(one["affected"]) & set(one["chosen"])) for one in scores)
    assert hits / sum(len(one["chosen"]) for one in scores) >= 0.8


TRACKER_ON_RAY = """
import os
import ray

def test_memory(tracker):
    ray.init(num_cpus=1, include_dashboard=False, _temp_dir=os.environ["RAY_TEMP"], object_store_memory=100_000_000)

    @ray.remote(num_cpus=0)
    class Holder:
        def fill(self):
            self.block = bytearray(300 << 20)
            return len(self.block)

    before = tracker.get_max_mem()
    holder = Holder.remote()
    assert ray.get(holder.fill.remote()) == 300 << 20
    tracker.log_max_mem("after")
    tracker.track("grown", tracker.get_max_mem() - before)
    ray.shutdown()
"""
ATTACHED = """
import os
import pytest
import ray

def test_memory(tracker):
    ray.init(address=os.environ["CLUSTER"], logging_level="ERROR")
    tracker.log_max_mem("all")
    ray.shutdown()
"""
CLUSTER = """
import os, subprocess, sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 100_000_000,
    "include_dashboard": False})
try:
    environment = {**os.environ, "CLUSTER": cluster.address}
    sys.exit(subprocess.run([sys.executable, *sys.argv[1:]], env=environment).returncode)
finally:
    cluster.shutdown()
"""


def _environment(repository: Path, ray_temp: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return {
        **kept,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": str(repository / "src"),
        "RAY_TEMP": str(ray_temp),
        # Ray notes its current cluster in a file of the machine, unless told to use a folder of ours.
        "RAY_TMPDIR": str(ray_temp),
    }


@pytest.fixture
def ray_temp() -> Iterator[Path]:
    """Return a folder of our own with a short path: Ray's sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="sea-", ignore_cleanup_errors=True) as folder:
        (Path(folder) / "ray").mkdir()
        yield Path(folder)


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.nightly
def test_the_tracker_sees_the_memory_of_actors(
    peer_python: Callable[[str], Path], repository: Path, tmp_path: Path, ray_temp: Path
) -> None:
    (tmp_path / "test_it.py").write_text(TRACKER_ON_RAY)
    ran = subprocess.run(
        [str(peer_python("ray")), "-m", "pytest", "-q", "-p", "seatrial.pytest_plugin", "test_it.py"],
        cwd=tmp_path,
        env=_environment(repository, ray_temp),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    metrics = json.loads((tmp_path / "unit_results.json").read_text())["metrics"]["test_it::test_memory"]
    assert metrics["grown"] > 290 << 20


@pytest.mark.peer
@pytest.mark.nightly
def test_the_tracker_sees_the_nodes_of_a_cluster_that_others_started(
    peer_python: Callable[[str], Path], repository: Path, tmp_path: Path, ray_temp: Path
) -> None:
    (tmp_path / "test_it.py").write_text(ATTACHED)
    (tmp_path / "cluster.py").write_text(CLUSTER)
    python = str(peer_python("ray"))
    ran = subprocess.run(
        [python, "cluster.py", "-m", "pytest", "-q", "-p", "seatrial.pytest_plugin", "test_it.py"],
        cwd=tmp_path,
        env=_environment(repository, ray_temp),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    record = json.loads((tmp_path / "unit_results.json").read_text())["tests"]["test_it.py::test_memory"]
    nodes = {place: value for place, value in record["memory"]["all"].items() if place.startswith("ray:")}
    assert len(nodes) == 1
    assert all(value > 10 << 20 for value in nodes.values())


OUTSIDE_CLUSTER = {
    "src/worker.py": "def score(): return 1\n",
    "tests/test_it.py": """
import os
import pytest
import ray

@pytest.fixture(scope="module")
def cluster():
    ray.init(address=os.environ["CLUSTER"], logging_level="ERROR")
    yield
    ray.shutdown()

@ray.remote(num_cpus=0)
class Scorer:
    def score(self):
        import worker
        return worker.score()

def test_actor(cluster):
    assert ray.get(Scorer.remote().score.remote()) == 1

def test_beside_it(cluster):
    assert ray.is_initialized()

def test_plain():
    pass
""",
    # The cluster stands before the session: its workers know nothing of the session's environment.
    "cluster.py": """
import os, subprocess, sys
from ray.cluster_utils import Cluster
sys.path.insert(0, "src")
os.environ["PYTHONPATH"] = os.pathsep.join([os.path.abspath("src"), os.environ["PYTHONPATH"]])
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 100_000_000,
    "include_dashboard": False})
try:
    environment = {**os.environ, "CLUSTER": cluster.address}
    for _ in range(2):
        subprocess.run([sys.executable, *sys.argv[1:]], env=environment)
finally:
    cluster.shutdown()
""",
}


@pytest.mark.nightly
@pytest.mark.peer
@pytest.mark.slow
def test_what_calls_a_cluster_that_was_there_before_always_runs(
    peer_python: Callable[[str], Path], repository: Path, tmp_path: Path, ray_temp: Path
) -> None:
    for name, text in OUTSIDE_CLUSTER.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    python = str(peer_python("ray"))
    ran = subprocess.run(
        [
            *(
                python,
                "cluster.py",
                "-m",
                "pytest",
                "-q",
                "-p",
                "seatrial.pytest_plugin",
                "-p",
                "no:cacheprovider",
            ),
            *("--affected-explain", "tests"),
        ],
        cwd=tmp_path,
        env=_environment(repository, ray_temp),
        capture_output=True,
        text=True,
        check=False,
    )
    _, _, second = ran.stdout.partition("3 passed")
    assert "run  tests/test_it.py::test_actor: it always runs: what the Ray cluster at" in second, ran
    assert "out  tests/test_it.py::test_beside_it" in second
    assert "out  tests/test_it.py::test_plain" in second
    assert "1 passed, 2 deselected" in second
