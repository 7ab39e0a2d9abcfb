"""How large a job is, read from the script that will run, and what its steps are."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from seatrial.errors import BlockedError
from seatrial.launch.slurm import config_of, needs_ray, options_of, write_cluster_job

NIGHTLY = """
NUM_NODES=64
# ===== BEGIN CONFIG =====
NUM_NODES=2
GPUS_PER_NODE=${GPUS_PER_NODE:-8}
STEPS_PER_RUN=20
MAX_STEPS=50
NUM_RUNS=$(( (MAX_STEPS + STEPS_PER_RUN - 1) / STEPS_PER_RUN ))  # Round up
NUM_MINUTES=240 # of one job
SEGMENT_SIZE=$NUM_NODES
JOB_REAPER_COMMENT='{"idle": 30}'
# ===== END CONFIG =====
NUM_MINUTES=1
"""


def test_the_config_block_of_a_nightly_is_read_as_the_shell_would() -> None:
    """Held to bash itself."""
    found = config_of(NIGHTLY)
    block = NIGHTLY.split("BEGIN CONFIG =====")[1].split("# ===== END")[0]
    names = ("NUM_NODES", "GPUS_PER_NODE", "NUM_RUNS", "NUM_MINUTES", "SEGMENT_SIZE")
    printed = "\n".join(f"echo {name}=${name}" for name in names)
    environment = {"PATH": os.environ["PATH"]}
    done = subprocess.run(
        ["bash", "-c", f"{block}\n{printed}"], env=environment, capture_output=True, text=True, check=True
    )
    assert [f"{name}={found[name]}" for name in names] == done.stdout.split()


def test_the_callers_environment_does_not_reach_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUS_PER_NODE", "4")
    assert options_of(config_of(NIGHTLY)) == [
        "--nodes=2", "--gres=gpu:8", "--time=240", "--segment=2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "written", ["$(cat minutes)", "$(( MINUTES * 2 ))", "`date +%M`", "$((1/0))", "$((2**99))"]
)
def test_a_size_that_only_a_shell_could_tell_is_refused_and_never_run(written: str, tmp_path: Path) -> None:
    with pytest.raises(BlockedError, match="NUM_MINUTES"):
        config_of(f"# BEGIN CONFIG\nNUM_MINUTES={written}\n# END CONFIG\n")


@pytest.mark.parametrize(
    ("script", "num_nodes", "wanted"),
    [
        ("uv run examples/run_grpo.py cluster.num_nodes=2\n", 2, True),
        ("uv run examples/run_grpo.py\n", 1, False),
        ("srun --ntasks=2 python train.py\n", 2, False),
        ("ray start --head\npython train.py\n", 2, False),
        ("# not srun but Ray\npython train.py\n", 2, True),
    ],
)
def test_ray_is_started_where_a_script_needs_several_nodes_and_starts_nothing_on_them(
    script: str, num_nodes: int, wanted: bool
) -> None:
    assert needs_ray(script, num_nodes) is wanted


def test_a_cluster_job_passes_every_argument_as_it_is(tmp_path: Path) -> None:
    """The batch script is read by a real shell; srun and ray are a line each that shows its arguments."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    programs = {
        "srun": 'while [ "$1" != /bin/sh ] && [ "$1" != show ]; do shift; done; SLURM_PROCID=0 exec "$@"',
        "ray": "exit 0",
        "show": """for word in "$@"; do echo "<$word>"; done; echo "at $RAY_ADDRESS"; exit 7""",
    }
    for name, body in programs.items():
        (bin_folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (bin_folder / name).chmod(0o755)
    awkward = ["a b", '"$head"', "$HOME", "'", '--nodelist="$head" x']

    def step(options: Sequence[str], command: Sequence[str]) -> Sequence[str]:
        return ("srun", *options, *command)

    job = write_cluster_job(tmp_path, 2, step, ("show", *awkward))
    environment = {"PATH": f"{bin_folder}:/usr/bin:/bin", "SLURM_JOB_ID": "5", "SLURMD_NODENAME": "n0"}
    done = subprocess.run(
        ["/bin/sh", str(job)],
        env={**environment, "SEATRIAL_RUN_DIR": str(tmp_path)},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stdout.splitlines() == [*(f"<{word}>" for word in awkward), "at n0:20005"]
    assert done.returncode == 7
