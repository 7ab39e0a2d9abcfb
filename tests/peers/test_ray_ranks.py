"""Training ranks, and an engine, in actors of a Ray cluster, in an environment that has Ray."""

import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.usefixtures("one_cluster"),
    pytest.mark.peer,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
]


@pytest.mark.parametrize(
    ("more", "result"),
    [
        pytest.param({}, "8 passed, 12 skipped", id="short"),
        pytest.param({"NIGHTLY": "1"}, "20 passed", id="all", marks=pytest.mark.nightly),
    ],
)
def test_ranks_run_on_the_nodes_of_a_cluster(
    peer_python: Callable[[str], Path], repository: Path, more: dict[str, str], result: str
) -> None:
    """Each sentence of it is a test of ray_ranks_flow.py."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # Ray keeps its sockets there: a short path.
    with tempfile.TemporaryDirectory(prefix="s-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        own = {
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": str(repository / "src"),
            "RAY_TMPDIR": folder,
            "TMPDIR": folder,
            "OMP_NUM_THREADS": "1",
        }
        ran = subprocess.run(
            [
                *(str(peer_python("data_plane")), "-m", "pytest", "-q", "-p", "no:cacheprovider"),
                *("-c", os.devnull, "--rootdir", str(repository), "tests/peers/ray_ranks_flow.py"),
            ],
            cwd=repository,
            capture_output=True,
            text=True,
            check=False,
            env={**kept, **own, **more},
        )
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-3000:]
    assert result in ran.stdout
