"""Generation engines in actors of a real Ray cluster of two nodes; test_ray_runtime.py runs this where Ray is."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray.cluster_utils import Cluster

NUM_STEPS = 12
PATIENCE = 900
"""Seconds: on a busy machine a cluster alone takes minutes to start."""
WORDS = (
    *("--config", "grpo-async", "policy.generation.placement=ray", "policy.generation.timeout_seconds=20"),
    *(f"grpo.max_num_steps={NUM_STEPS}", "grpo.async_grpo.num_replicas=2"),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny model."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    subprocess.run([sys.executable, "-m", "refrl", "make-model", "--output", str(folder)], check=True)
    return folder


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Return the head of a cluster of two nodes with two CPUs each."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=2)
        yield cluster.address
    finally:
        cluster.shutdown()


def grpo(model: Path, folder: Path, *more: str) -> list[str]:
    """Return the command of a run."""
    places = (f"logger.log_dir={folder}/logs", f"checkpointing.checkpoint_dir={folder}/checkpoints")
    return [sys.executable, "-m", "refrl", "grpo", *WORDS, f"policy.model_name={model}", *places, *more]


def parts_of(folder: Path, process: "subprocess.Popen[str]") -> dict[str, int]:
    """Return the run's processes, when it has named them."""
    path = folder / "logs" / "parts.json"
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    parts: dict[str, int] = json.loads(path.read_text())
    return parts


def fates(folder: Path) -> list[dict[str, Any]]:
    """Return what became of every group."""
    files = [folder / "logs" / f"group_data_step{step}.jsonl" for step in range(1, NUM_STEPS + 1)]
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(["--kill", "generation/1"], id="kill"),
        pytest.param(["--pause", "generation/1", "--for", "60"], id="pause"),
    ],
)
def test_a_run_over_two_nodes_goes_on_without_an_actor(
    model: Path, address: str, tmp_path: Path, act: list[str]
) -> None:
    """Each node has an actor; the one that is killed, or stopped for longer than an answer may take, is done without.

    Its rows are sampled by the other: every group is trained on, once.
    """
    process = subprocess.Popen(
        [
            *(
                sys.executable,
                "-m",
                "seatrial",
                "chaos",
                *act,
                "--at-step",
                "3",
                "--log",
                f"{tmp_path}/logs",
                "--",
            ),
            *grpo(model, tmp_path, f"cluster.ray_address={address}"),
        ],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        parts = parts_of(tmp_path, process)
        actors = [psutil.Process(parts[f"generation/{number}"]) for number in (0, 1)]
        raylets = {actor.ppid() for actor in actors}
        output, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 0, output
    assert len(raylets) == 2, "both actors lie on one node"
    assert "it continued" in output
    assert [fate["number"] for fate in fates(tmp_path)] == list(range(4 * NUM_STEPS))
    assert {fate["fate"] for fate in fates(tmp_path)} == {"trained"}
    # Ray ends what was stopped in its own time.
    assert psutil.wait_procs(actors, timeout=60)[1] == []


def test_the_loss_of_the_only_actor_ends_the_run_and_its_own_cluster(model: Path, tmp_path: Path) -> None:
    """Within the deadline, in words that name it; nothing of the cluster is left, neither a process nor its folder."""
    words = ["--kill", "generation/0", "--at-step", "2", "--log", f"{tmp_path}/logs", "--within", "30", "--"]
    run = grpo(model, tmp_path, "grpo.async_grpo.num_replicas=1")
    ran = subprocess.run(
        [sys.executable, "-m", "seatrial", "chaos", *words, *run],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr + (tmp_path / "chaos.log").read_text()
    assert "it ended with a message" in ran.stdout
    folder = os.environ["TMPDIR"]
    assert not list(Path(folder).glob("ray-*"))
    left = [process.info for process in psutil.process_iter(["pid", "cmdline"]) if _is_of(process, folder)]
    assert not left


def test_rows_are_those_of_engines_in_processes(model: Path, tmp_path: Path) -> None:
    """Bit for bit, on a cluster that the run begins and ends."""
    for place in ("ray", "process"):
        run = grpo(model, tmp_path / place, f"policy.generation.placement={place}")
        ran = subprocess.run(run, capture_output=True, text=True, check=False, timeout=PATIENCE)
        assert ran.returncode == 0, ran.stderr
    rows = [
        (tmp_path / place / "logs" / "train_data_step5.jsonl").read_text() for place in ("ray", "process")
    ]
    assert rows[0] == rows[1]


def _is_of(process: psutil.Process, folder: str) -> bool:
    """Tell whether a process is one of Ray's with its session in a folder `ray-...` of this one."""
    return any(f"{folder}/ray-" in word for word in process.info["cmdline"] or ())
