"""One rank of a recorded run, which the first rank writes, or a run that is killed.

`python -m seatrial.targets.reference.runs.ranks CONFIG OUTPUT [KILL]`
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.distributed import run as torchrun

from refrl.config import GRPORunConfig
from refrl.runtime.rank_process import threads
from refrl.runtime.ray_cluster import ray_cluster
from refrl.training.grpo import run_grpo
from refrl.training.recorder import RunRecorder
from seatrial.relations.contracts.resume import Kill
from seatrial.targets.reference.runs.forking import launch_ranks, rank_command, run_forked
from seatrial.targets.reference.runs.kills import Killer

SECONDS = 300.0
"""Time limit of a run that torchrun starts."""


def recorded(config: GRPORunConfig, folder: Path) -> dict[str, Any]:
    """Run the configured number of ranks, and return what the first one recorded."""
    written, output = _places(config, folder)
    with ray_cluster(config):
        launch_ranks(main, [str(written), str(output)], config.cluster)
    return _loaded(output)


def recorded_by_torchrun(config: GRPORunConfig, folder: Path) -> dict[str, Any]:
    """Have torchrun start the ranks, and return what the first one recorded.

    Raises:
        OSError: a rank failed; with its words.
        TimeoutError: the run took longer than SECONDS.
    """
    written, output = _places(config, folder)
    size = config.cluster.num_processes
    options = ["--standalone", f"--nproc-per-node={size}", "-m"]
    words = [*options, *rank_command(__name__), str(written), str(output)]
    variables = {"OMP_NUM_THREADS": threads(size), **os.environ, "PYTHON_EXEC": sys.executable}
    status, said = run_forked(torchrun.main, words, SECONDS, variables)
    if status:
        raise OSError(f"torchrun ended with exit status {status}: {said[-2000:]}")
    return _loaded(output)


def run_until_killed(config: GRPORunConfig, folder: Path, kill: Kill) -> None:
    """Run in a separate process, which is killed.

    Raises:
        ValueError: the run ended before.
        OSError: the run failed before; with its words.
    """
    written, output = _places(config, folder)
    launch_ranks(main, [str(written), str(output), json.dumps(asdict(kill))], config.cluster)
    if output.exists():
        raise ValueError(f"the run ended before it could be killed: {kill}")


def _places(config: GRPORunConfig, folder: Path) -> tuple[Path, Path]:
    """Write the configuration, and return where it is and where the recording is to be."""
    written = folder / "config.json"
    written.write_text(config.model_dump_json(), encoding="utf-8")
    return written, folder / "recording.pt"


def _loaded(output: Path) -> dict[str, Any]:
    recording: dict[str, Any] = torch.load(output, weights_only=True)
    return recording


def main(words: Sequence[str]) -> None:
    """Run as one rank."""
    config = GRPORunConfig.model_validate_json(Path(words[0]).read_text(encoding="utf-8"), strict=True)
    if words[2:]:
        with contextlib.redirect_stdout(io.StringIO()):
            run_grpo(config, Killer(Kill(**json.loads(words[2])), config.checkpointing))
        Path(words[1]).touch()
        return
    recorder = RunRecorder()
    with contextlib.redirect_stdout(io.StringIO()):
        run_grpo(config, recorder)
    if os.environ["RANK"] == "0":
        torch.save(recorder.recording, words[1])


if __name__ == "__main__":
    main(sys.argv[1:])
