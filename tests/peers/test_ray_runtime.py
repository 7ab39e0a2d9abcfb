"""Generation engines in actors of a Ray cluster, in an environment that has Ray."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.usefixtures("one_cluster"),
    pytest.mark.peer,
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.timeout(3600),
]


@pytest.fixture
def environment(repository: Path) -> Iterator[dict[str, str]]:
    """Return variables by which Ray keeps to a folder of ours, with a short path: its sockets lie there."""
    with tempfile.TemporaryDirectory(prefix="s-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        yield {
            **kept,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": str(repository / "src"),
            "RAY_TMPDIR": folder,
            "TMPDIR": folder,
            "OMP_NUM_THREADS": "1",
        }


def test_replicas_run_on_the_nodes_of_a_cluster(
    peer_python: Callable[[str], Path],
    repository: Path,
    environment: dict[str, str],
) -> None:
    """Each sentence of it is a test of ray_runtime_flow.py; test_ray_ranks.py has an engine in an actor by day."""
    ran = subprocess.run(
        [
            *(str(peer_python("data_plane")), "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("-c", os.devnull, "--rootdir", str(repository), "tests/peers/ray_runtime_flow.py"),
        ],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-3000:]
    assert "4 passed" in ran.stdout
