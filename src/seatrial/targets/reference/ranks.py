"""`python -m seatrial.targets.reference.ranks CONFIG OUTPUT`: one rank of a recorded run; the first one writes it."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from refrl.config import GRPORunConfig
from refrl.runtime import launcher
from refrl.runtime.ray_cluster import ray_cluster
from refrl.training.grpo import run_grpo
from refrl.training.recorder import RunRecorder

RANK_COMMAND = "SEATRIAL_RANK_COMMAND"
"""Variable with the module, and its first words, that a rank runs in place of this one: a fault is planted so."""


def recorded(config: GRPORunConfig, folder: Path) -> dict[str, Any]:
    """Run as many ranks as the configuration asks for, and return what the first one recorded."""
    written, output = folder / "config.json", folder / "recording.pt"
    written.write_text(config.model_dump_json(), encoding="utf-8")
    command = launcher.COMMAND
    launcher.COMMAND = (sys.executable, "-m", *os.environ.get(RANK_COMMAND, __name__).split())
    try:
        with ray_cluster(config):
            launcher.launch([str(written), str(output)], config.cluster)
    finally:
        launcher.COMMAND = command
    recording: dict[str, Any] = torch.load(output, weights_only=True)
    return recording


def main(words: Sequence[str]) -> None:
    """Run as one rank."""
    config = GRPORunConfig.model_validate_json(Path(words[0]).read_text(encoding="utf-8"), strict=True)
    recorder = RunRecorder()
    with contextlib.redirect_stdout(io.StringIO()):
        run_grpo(config, recorder)
    if os.environ["RANK"] == "0":
        torch.save(recorder.recording, words[1])


if __name__ == "__main__":
    main(sys.argv[1:])
