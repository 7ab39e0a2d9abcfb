"""The data planes that live in a Ray cluster, in an environment that has Ray and TransferQueue."""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

STORES = {"ray": "RayDataPlane", "transfer_queue": "TransferQueueDataPlane"}
CASES = ["ray", pytest.param("transfer_queue", marks=pytest.mark.nightly)]
"""A law that breaks TransferQueue needs a cluster of its own, which takes minutes on a busy machine."""
ADAPTERS = "seatrial.targets.reference.data_plane.ray"
pytestmark = [
    pytest.mark.usefixtures("one_cluster"),
    pytest.mark.peer,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
]


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
    found = json.loads(verdicts.read_text())["verdicts"]
    assert {verdict["outcome"] for verdict in found} == {"Pass"}
    assert sum(len(verdict["details"]["laws"]) for verdict in found) == 51
    assert not any(verdict["details"]["laws_not_exercised"] for verdict in found)


@pytest.mark.parametrize("implementation", CASES)
def test_the_flow_holds_with_actors_that_die(
    peer_python: Callable[[str], Path], repository: Path, environment: dict[str, str], implementation: str
) -> None:
    """In one cluster: the sentences of the filter flow, a random schedule, a whole run of GRPO."""
    files = ("data_plane_flow.py", "data_plane_schedules.py", "data_plane_runs.py")
    given = {**environment, "IMPLEMENTATION": implementation, "NUM_SCHEDULES": "1"}
    run_tests(peer_python("data_plane"), repository, given, files)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("implementation", STORES)
def test_the_ledger_closes_on_two_hundred_schedules(
    peer_python: Callable[[str], Path], repository: Path, environment: dict[str, str], implementation: str
) -> None:
    """Both loops run over the store, and its parts are killed during runs."""
    more = {"NUM_SCHEDULES": "200", "NUM_KILLS": "10", "EVERY_LOOP": "1"}
    given = {**environment, "IMPLEMENTATION": implementation, **more}
    files = ("data_plane_schedules.py", "data_plane_flow.py", "data_plane_runs.py")
    run_tests(peer_python("data_plane"), repository, given, files)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("implementation", "part"),
    [
        ("ray", "refrl-data-plane"),
        ("ray", "refrl-data-plane-blocks"),
        ("transfer_queue", "refrl-data-plane"),
        ("transfer_queue", "TransferQueue"),
    ],
)
def test_a_run_whose_store_is_killed_ends_within_ten_seconds_and_names_it(
    peer_python: Callable[[str], Path],
    environment: dict[str, str],
    tmp_path: Path,
    implementation: str,
    part: str,
) -> None:
    """As its command, with engines in processes of their own and a cluster of its own: from the kill to the exit."""
    python, model, logs = str(peer_python("data_plane")), str(tmp_path / "model"), str(tmp_path / "logs")
    making = [python, "-m", "refrl", "make-model", "--output", model]
    subprocess.run(making, check=True, env=environment, capture_output=True)
    disturb = (
        python,
        "-m",
        "seatrial",
        "chaos",
        "--kill",
        part,
        "--at-step",
        "3",
        "--log",
        logs,
        "--within",
        "10",
    )
    run = (
        *(python, "-m", "refrl", "grpo", "--config", "grpo-async", f"policy.model_name={model}"),
        *(f"logger.log_dir={logs}", f"checkpointing.checkpoint_dir={tmp_path / 'checkpoints'}"),
        *(f"data_plane.implementation={implementation}", "grpo.max_num_steps=400"),
    )
    ran = subprocess.run(
        [*disturb, "--", *run], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "it ended with a message" in ran.stdout


def run_tests(python: Path, repository: Path, environment: dict[str, str], files: Sequence[str]) -> None:
    """Run files of tests in the other environment: none fails, none is left out but for a reason of its own."""
    ran = subprocess.run(
        [
            *(str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("-c", os.devnull, "--rootdir", str(repository), *(f"tests/peers/{file}" for file in files)),
        ],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-3000:]
