"""How long a checkpoint takes to write against a raw file of the same bytes, and for which share training waits.

Run: python benchmarks/checkpoint.py [--megabytes 400]. Both end when the bytes are on disk (fsync).
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from refrl.checkpointing.checkpointer import Checkpointer, RunFacts
from refrl.config import CheckpointingConfig
from refrl.distributed import ALONE

REPEATS = 5


class Tensors:
    """A `refrl.checkpointing.base.StatefulPolicy` of made tensors."""

    def __init__(self, megabytes: int) -> None:
        """Make tensors of four megabytes each."""
        self.tensors = {f"model.{number}": torch.randn(1024, 1024) for number in range(megabytes // 4)}

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """Return them."""
        return self.tensors

    def state_facts(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load_state_facts(self, facts: Any) -> None:
        """Take nothing."""


def raw_seconds(path: Path, data: memoryview) -> float:
    """Write bytes to a new file, to disk."""
    started = time.perf_counter()
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - started


def main() -> None:
    """Print medians over the repeats; the two kinds of writing take turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=400)
    megabytes = parser.parse_args().megabytes
    policy = Tensors(megabytes)
    data = torch.cat([tensor.flatten() for tensor in policy.tensors.values()]).numpy().data.cast("B")
    facts = RunFacts(run_id="benchmark", seed=0, examples=(), config={})
    raw, blocked, written, ended = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        config = CheckpointingConfig(checkpoint_dir=folder, save_period=1, keep_top_k=1)
        checkpointer = Checkpointer(config, policy, {}, facts=facts, world=ALONE)
        for step in range(REPEATS + 1):
            raw.append(raw_seconds(Path(folder) / "raw", data))
            (Path(folder) / "raw").unlink()
            started = time.perf_counter()
            checkpointer.save(step, None)
            blocked.append(time.perf_counter() - started)
            checkpointer.wait()
            written.append(time.perf_counter() - started)
            checkpointer.finish()
            ended.append(time.perf_counter() - started)
        checkpointer.close()
    raw_median, whole, total, blocking = (statistics.median(of[1:]) for of in (raw, written, ended, blocked))
    print(
        f"{megabytes} MB: raw file {raw_median:.3f} s, checkpoint {whole:.3f} s, with the removal of the one before "
        f"{total:.3f} s, of which training waits {blocking:.3f} s"
    )
    print(
        f"speed against the raw file {raw_median / whole:.2f}, share that training waits {blocking / total:.3f}"
    )


if __name__ == "__main__":
    main()
