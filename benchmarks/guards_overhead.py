"""What the guards cost a GRPO step of refrl.

    python benchmarks/guards_overhead.py [--shape small|half-billion] [--rounds 3] [--steps 20] [--json FILE]

`small` has 3.2 M parameters and takes 16 rows of 32 new tokens a step (the shape of grpo_step_vs_trl.py);
`half-billion` has 0.5 B, on a GPU in bfloat16, and 64 rows of 256 new tokens. Three figures: the time spent inside the
guards, as a share of the step (a GPU is waited for before and after, so that the queue is not counted); the median step
with guards over that without, in runs that take turns; and the time that they take once a run, at its start, its first
three steps and its end, in steps. Exits 1 where the first is 1 % or more.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from refrl.config import GRPORunConfig, load_config
from refrl.recipes import find_config
from refrl.training.grpo import run_grpo
from refrl.training.session import Observer
from seatrial.targets.reference.guards.observer import RunGuards

BOUND = 0.01
SHAPES: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
    "small": (
        (256, 4, 8, 4, 32, 768),
        (
            "grpo.num_prompts_per_step=2",
            "grpo.num_generations_per_prompt=8",
            "policy.generation.max_new_tokens=32",
        ),
    ),
    "half-billion": (
        (1280, 24, 20, 4, 64, 4096),
        (
            "grpo.num_prompts_per_step=8",
            "grpo.num_generations_per_prompt=8",
            "policy.train_global_batch_size=64",
            "policy.train_micro_batch_size=32",
            "policy.logprob_batch_size=64",
            "policy.generation.max_new_tokens=256",
            "policy.precision=bfloat16",
            "cluster.device=cuda",
            "cluster.num_threads=null",
        ),
    ),
}
"""Width, layers, heads, key and value heads, width of a head, of the feed-forward layers; and options of the run."""
SIZES = ("hidden-size", "num-layers", "num-heads", "num-kv-heads", "head-dim", "intermediate-size")
HOOKS = ("started", "synced", "passed", "trained", "ended")


def wait() -> None:
    """Wait for the GPU, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Clock(Observer):
    """Notes when each step ended."""

    def __init__(self) -> None:
        """Begin."""
        self.ends: list[float] = []

    def trained(self, session: Any, step: Any) -> None:
        """Note it."""
        wait()
        self.ends.append(time.perf_counter())

    def steps(self) -> list[float]:
        """Return the seconds of each step but the first three, which are looked at more closely."""
        return [after - before for before, after in zip(self.ends[2:], self.ends[3:], strict=False)]


class TimedGuards(RunGuards):
    """Guards that note the seconds they take: in `spent`, those of the first three steps, start and end in `once`."""

    spent = once = 0.0

    def __getattribute__(self, name: str) -> Any:
        """Return a hook with a clock around it."""
        hook = super().__getattribute__(name)
        if name not in HOOKS:
            return hook

        def timed(*arguments: Any) -> None:
            wait()
            begun = time.perf_counter()
            hook(*arguments)
            wait()
            seconds = time.perf_counter() - begun
            if arguments[0].policy.version > 3 and name != "ended":
                self.spent += seconds
            else:
                self.once += seconds

        return timed


def config_of(folder: Path, options: tuple[str, ...], steps: int) -> GRPORunConfig:
    """Return the configuration of one run."""
    words = [
        f"policy.model_name={folder / 'model'}",
        f"logger.log_dir={tempfile.mkdtemp(dir=folder)}",
        f"checkpointing.checkpoint_dir={tempfile.mkdtemp(dir=folder)}/none",
        "checkpointing.enabled=false",
        "policy.max_total_sequence_length=400",
        f"grpo.max_num_steps={steps}",
        "grpo.val_at_start=false",
        "grpo.val_at_end=false",
        *options,
    ]
    return load_config(GRPORunConfig, find_config("grpo-smoke"), words)


def run(config: GRPORunConfig, guards: Observer | None) -> list[float]:
    """Return the seconds of the steps of one run."""
    from refrl.training.session import Observers

    clock = Clock()
    with contextlib.redirect_stdout(io.StringIO()):
        run_grpo(config, Observers([*([guards] if guards else []), clock]))
    return clock.steps()


def main() -> int:
    """Measure, and print a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=list(SHAPES), default="small")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    sizes, options = SHAPES[arguments.shape]
    with tempfile.TemporaryDirectory(prefix="guards-") as name:
        folder = Path(name)
        words = [word for size, value in zip(SIZES, sizes, strict=True) for word in (f"--{size}", str(value))]
        make = [sys.executable, "-m", "refrl", "make-model", "--output", str(folder / "model"), *words]
        subprocess.run([*make, "--max-positions", "512"], check=True)
        plain: list[float] = []
        guarded: list[float] = []
        shares: list[float] = []
        once: list[float] = []
        for _ in range(arguments.rounds):
            plain += run(config_of(folder, options, arguments.steps), None)
            config = config_of(folder, options, arguments.steps)
            guarded += run(config, RunGuards(config))
            config = config_of(folder, options, arguments.steps)
            timed = TimedGuards(config)
            steps = run(config, timed)
            shares.append(timed.spent / sum(steps))
            once.append(timed.once / statistics.median(steps))
    found = {
        "shape": arguments.shape,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "step_ms": 1000 * statistics.median(plain),
        "guarded_step_ms": 1000 * statistics.median(guarded),
        "ratio": statistics.median(guarded) / statistics.median(plain),
        "share_inside_guards": statistics.median(shares),
        "shares": shares,
        "steps_once_a_run": statistics.median(once),
    }
    print(json.dumps(found, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if found["share_inside_guards"] < BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
