"""Weak scaling of a GRPO step: the same rows for each process, on one, two and more processes, in turns.

    python benchmarks/gpu/scaling.py [--processes 1 --processes 2] [--repeats 2] [--steps 8] [--json FILE]
    python benchmarks/gpu/scaling.py --processes 2 --asynchronous
    python benchmarks/gpu/scaling.py --model tiny --device cpu --prompts 2 --new-tokens 8 --steps 4 --repeats 1

Every run is `refrl grpo` in processes of its own, a process a device. By default each process has 32 prompts with 8
completions of 256 tokens, and the model is a Qwen3 of 494 M parameters (`--model tiny`: 115 k, for a CPU). `--option`
is an option of refrl, such as `policy.dtensor_cfg.enabled=true`. With `--asynchronous`, asynchronous GRPO runs as well,
on the rows of two processes: a trainer on the first device, and an engine on the last one (on a CPU, next to it), which
gets its weights by broadcast. Efficiency is the warm step (the median from the fourth on) of the smallest number of
processes divided by that of the others; the phases, from the same log, show where the rest goes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from grpo_step_vs_trl import MODELS, NUM_GENERATIONS, make_model

from seatrial.evidence.read import read_logs

STEP = "timing/train/total_step_time"
PHASES = ("generation", "policy_and_reference_logprobs", "policy_training", "reward_calculation")
ASYNCHRONOUS = 0
"""In place of a number of processes: one trainer and one engine."""
NUM_COLD = 3
"""Steps that are left out: they allocate, compile and capture."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", action="append", type=int, help="default: 1 and 2")
    parser.add_argument("--model", choices=["tiny", *MODELS], default="0.5b")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--prompts", type=int, default=32, help="prompts of a step, for each process")
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--steps", type=int, default=8, help=f"more than {NUM_COLD}")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each number of processes")
    parser.add_argument(
        "--asynchronous", action="store_true", help="also run a trainer and an engine, a device each"
    )
    parser.add_argument("--option", action="append", default=[], help="of refrl, for all runs")
    parser.add_argument("--json", type=Path, help="also write the result here")
    arguments = parser.parse_args()
    if arguments.steps <= NUM_COLD:
        parser.error(
            f"--steps {arguments.steps}: at least {NUM_COLD + 1}, since the first {NUM_COLD} are left out"
        )
    numbers = [*(arguments.processes or [1, 2]), *([ASYNCHRONOUS] if arguments.asynchronous else [])]
    runs: dict[int, list[dict[str, list[float]]]] = {number: [] for number in numbers}
    with tempfile.TemporaryDirectory(prefix="grpo-scaling-") as scratch:
        model = Path(scratch) / "model"
        if arguments.model == "tiny":
            run([sys.executable, "-m", "refrl", "make-model", "--output", str(model)])
        else:
            make_model(model, MODELS[arguments.model])
        for repeat in range(arguments.repeats):
            for number in numbers:
                folder = Path(scratch) / f"{number}-{repeat}"
                run(command(arguments, model, folder, number, repeat))
                runs[number].append(seconds(folder / "logs"))
    print(table(runs))
    if arguments.json:
        arguments.json.write_text(json.dumps(runs, indent=1) + "\n")


def command(
    arguments: argparse.Namespace, model: Path, folder: Path, num_processes: int, seed: int
) -> list[str]:
    """Return the command of one run."""
    num_prompts = arguments.prompts * (num_processes or 2)
    rows = num_prompts * NUM_GENERATIONS
    options = {
        "policy.model_name": model,
        "policy.precision": "float32" if arguments.device == "cpu" else "bfloat16",
        "policy.train_global_batch_size": rows,
        "policy.generation.max_new_tokens": arguments.new_tokens,
        "policy.generation.stop_token_ids": "[]",
        "grpo.num_prompts_per_step": num_prompts,
        "grpo.num_generations_per_prompt": NUM_GENERATIONS,
        "grpo.max_num_steps": arguments.steps,
        "grpo.val_at_start": "false",
        "grpo.val_at_end": "false",
        "grpo.seed": seed,
        "loss_fn.force_on_policy_ratio": "true",
        "loss_fn.reference_policy_kl_penalty": 0,
        "logger.log_dir": folder / "logs",
        "checkpointing.enabled": "false",
        "cluster.num_processes": num_processes or 1,
        "cluster.device": arguments.device,
    }
    if num_processes == ASYNCHRONOUS:
        options |= {
            "grpo.async_grpo.enabled": "true",
            "policy.generation.colocated.enabled": "false",
            "policy.generation.placement": "process",
            "policy.generation.weight_transport": "broadcast",
            "policy.generation.weight_bucket_size_bytes": 2**28,
        }
        if arguments.device == "cuda":
            options["policy.generation.colocated.resources.gpus_per_node"] = 1
    words = [f"{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "refrl", "grpo", "--config", "grpo-smoke", *words, *arguments.option]


def run(words: Sequence[str]) -> None:
    """Run a command; end with its last lines if it fails."""
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr[-5000:]}")


def seconds(logs: Path) -> dict[str, list[float]]:
    """Return the seconds of each step, and of each phase that the run logs."""
    log = read_logs(logs)
    tags = (STEP, *(f"timing/train/{phase}" for phase in PHASES))
    return {tag: list(map(float, log.series[tag].values)) for tag in tags if tag in log.series}


def table(runs: dict[int, list[dict[str, list[float]]]]) -> str:
    """Draw the result: warm steps alone, but for the first step."""
    base = min(number for number in runs if number != ASYNCHRONOUS)
    lines = [f"{'processes':>10}{'warm step':>12}{'first step':>12}{'efficiency':>12}  phases of a warm step"]

    def warm(number: int, tag: str) -> float:
        return statistics.median(
            value for run in runs[number] for value in run.get(tag, [0.0])[NUM_COLD:] or [0.0]
        )

    for number in runs:
        first = max(run[STEP][0] for run in runs[number])
        phases = ", ".join(f"{phase} {warm(number, f'timing/train/{phase}'):.3f} s" for phase in PHASES)
        lines.append(
            f"{number or 'async':>10}{warm(number, STEP):>10.3f} s{first:>10.1f} s"
            f"{warm(base, STEP) / warm(number, STEP):>12.1%}  {phases}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
