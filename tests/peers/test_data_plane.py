"""The data planes that live in a Ray cluster, in an environment that has Ray and TransferQueue."""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

STORES = {"ray": "RayDataPlane", "transfer_queue": "TransferQueueDataPlane"}
CASES = ["ray", pytest.param("transfer_queue", marks=pytest.mark.nightly)]
"""A law that breaks TransferQueue needs a cluster of its own, which takes minutes on a busy machine."""
ADAPTERS = "seatrial.targets.reference.data_plane_ray"
pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture
def environment(repository: Path) -> Iterator[dict[str, str]]:
    """Return variables by which Ray keeps to a folder of ours, with a short path: its sockets lie there."""
    with tempfile.TemporaryDirectory(prefix="sea-", ignore_cleanup_errors=True) as folder:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        yield {
            **kept,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            # The workers of Ray find the producer's class by its module.
            "PYTHONPATH": os.pathsep.join([str(repository / "src"), str(repository / "tests/peers")]),
            "RAY_TMPDIR": folder,
            "TMPDIR": folder,
            "OMP_NUM_THREADS": "1",
        }


@pytest.mark.nightly
@pytest.mark.parametrize("implementation", STORES)
def test_the_whole_battery_holds(
    peer_python: Callable[[str], Path], environment: dict[str, str], tmp_path: Path, implementation: str
) -> None:
    """With a store and a control that are killed."""
    verdicts = tmp_path / "verdicts.json"
    ran = subprocess.run(
        [
            *(str(peer_python("data_plane")), "-m", "seatrial", "relations"),
            *(f"{ADAPTERS}:{STORES[implementation]}", "--component", "data_plane", "--json", str(verdicts)),
        ],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-3000:]
    found = json.loads(verdicts.read_text())
    assert {verdict["outcome"] for verdict in found} == {"Pass"}
    assert sum(len(verdict["details"]["laws"]) for verdict in found) == 51
    assert not any(verdict["details"]["laws_not_exercised"] for verdict in found)


@pytest.mark.parametrize("implementation", CASES)
def test_the_filter_flow_runs_with_a_producer_actor(
    peer_python: Callable[[str], Path], repository: Path, environment: dict[str, str], implementation: str
) -> None:
    """Each sentence of it is a test of data_plane_flow.py."""
    ran = subprocess.run(
        [
            *(str(peer_python("data_plane")), "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("-c", os.devnull, "--rootdir", str(repository), "tests/peers/data_plane_flow.py"),
        ],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
        env={**environment, "IMPLEMENTATION": implementation},
    )
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-3000:]
    assert "16 passed" in ran.stdout
