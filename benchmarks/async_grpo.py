"""Throughput of asynchronous GRPO against the synchronous loop, on the same cores and the same work.

    python benchmarks/async_grpo.py [--over-sampling 10] [--repeats 3] [--steps 12] [--json FILE]

The loop, `refrl.training.grpo`, runs as its command does, three ways, which take turns in processes of their own:

- `sync`: one process, one thread; rollouts and training in turn, the generator on the policy's own weights.
- `sync, 2 threads`: the same with both cores for every matrix product.
- `async`: the training process with one thread, and two generation engines in processes of their own with one thread
  each; `max_trajectory_age_steps=1`, no in-flight updates.

All three train on as many rows of as many tokens: no token ends a completion, so each has exactly `--new-tokens`.
A step is the time between the ends of two successive steps, everything included: rollout, reward, scoring, update,
weight sync, evidence files. Throughput is steps over the time of all steps but the first ones. The processor time is
that of all processes; on a busy machine it says more than the wall time.

The regime: the synchronous loop is to generate for about twice as long as it trains (all else that a step does counts
as training). A decoder that reads a token once is four times as cheap as the three passes of scoring and training, so
that this is so where more is sampled than trained on: `--over-sampling` times as many groups (with dynamic sampling,
`grpo.batch_multiplier`; every group has a signal here, so that the work is the same in every step). The ratio that was
found is printed. With generation g and training t on two cores the best that overlap can do is
(g + t) / max((g + t) / 2, t): 2 at g = 2 t, where the two engines share with the trainer what each core has.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SIDES = ("sync", "sync, 2 threads", "async")
NUM_PROMPTS = 4
NUM_GENERATIONS = 8
PROMPT_LETTERS = 8


@dataclass(frozen=True)
class Job:
    """What one process measures."""

    side: str
    model: str
    output: str
    """Folder of its logs."""
    num_steps: int
    warmup: int
    """Steps that are left out."""
    new_tokens: int
    over_sampling: int
    seed: int


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--new-tokens", type=int, default=16, help="tokens of every completion")
    parser.add_argument(
        "--over-sampling", type=int, default=10, help="groups sampled for one that is trained on"
    )
    parser.add_argument("--repeats", type=int, default=3, help="processes of each side")
    parser.add_argument("--steps", type=int, default=8, help="steps measured in a process")
    parser.add_argument("--warmup", type=int, default=3, help="steps before that")
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--json", type=Path, help="also write the result here")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(measure(Job(**json.loads(arguments.worker)))))
        return
    with tempfile.TemporaryDirectory(prefix="async-grpo-") as scratch:
        result = compare(Path(scratch), arguments)
    print(table(result))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


def compare(scratch: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run all sides in turn."""
    from refrl.models.tiny import TinyModelSpec, make_model

    spec = TinyModelSpec(hidden_size=arguments.hidden_size, num_layers=arguments.layers)
    make_model(spec, scratch / "model")
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    loads = []
    for repeat in range(arguments.repeats):
        for side in SIDES if repeat % 2 == 0 else reversed(SIDES):
            job = Job(
                side=side,
                model=str(scratch / "model"),
                output=str(scratch / f"{side}-{repeat}"),
                num_steps=arguments.warmup + arguments.steps,
                warmup=arguments.warmup,
                new_tokens=arguments.new_tokens,
                over_sampling=arguments.over_sampling,
                seed=repeat,
            )
            loads.append(os.getloadavg()[0])
            runs[side].append(run_worker(job))
    return {
        "machine": {
            "cpus": os.cpu_count(),
            "platform": platform.platform(),
            "python": platform.python_version(),
        },
        "model": asdict(spec),
        "new_tokens": arguments.new_tokens,
        "over_sampling": arguments.over_sampling,
        "rows": NUM_PROMPTS * NUM_GENERATIONS,
        "load_average_before_each_run": loads,
        "runs": runs,
    }


def run_worker(job: Job) -> dict[str, Any]:
    """Measure in a process of its own."""
    process = subprocess.run(
        [sys.executable, __file__, "--worker", json.dumps(asdict(job))],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        raise SystemExit(f"{job.side}: exit status {process.returncode}\n{process.stderr}")
    found: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return found


def measure(job: Job) -> dict[str, Any]:
    """Run the loop as its command does, with a clock after each step."""
    from refrl.config import GRPORunConfig
    from refrl.training.grpo import run_grpo
    from refrl.training.session import Observer, Session, TrainedStep

    ends: list[float] = []
    processor: list[float] = []
    rows: set[tuple[int, int]] = set()

    class Clock(Observer):
        def trained(self, session: Session, step: TrainedStep) -> None:
            ends.append(time.perf_counter())
            processor.append(processor_seconds())
            rows.add((step.batch.num_rows, int(step.batch.completion_lens_B.sum())))

    config = GRPORunConfig.model_validate(sections(job))
    run_grpo(config, Clock())
    if rows != {(NUM_PROMPTS * NUM_GENERATIONS, NUM_PROMPTS * NUM_GENERATIONS * job.new_tokens)}:
        raise SystemExit(f"the steps did unequal work: (rows, new tokens) {rows}")
    num = job.num_steps - job.warmup
    return {
        "seconds_per_step": (ends[-1] - ends[job.warmup - 1]) / num,
        "processor_seconds_per_step": (processor[-1] - processor[job.warmup - 1]) / num,
        "phases": timings(Path(config.logger.log_dir), job.warmup),
    }


def processor_seconds() -> float:
    """Return what this process and those that it started have used, of all their threads; NaN without psutil."""
    try:
        import psutil
    except ImportError:
        return float("nan")
    this = psutil.Process()
    times = [process.cpu_times() for process in (this, *this.children(recursive=True))]
    return sum(of.user + of.system for of in times)


def sections(job: Job) -> dict[str, Any]:
    """Return the configuration of one side."""
    is_async = job.side == "async"
    num_rows = NUM_PROMPTS * NUM_GENERATIONS
    generation: dict[str, Any] = {"max_new_tokens": job.new_tokens, "stop_token_ids": ()}
    if is_async:
        generation |= {"colocated": {"enabled": False}, "placement": "process"}
    return {
        "policy": {
            "model_name": job.model,
            "train_global_batch_size": num_rows,
            "train_micro_batch_size": num_rows,
            "logprob_batch_size": num_rows,
            "max_total_sequence_length": 128,
            "optimizer": {"lr": 1e-4},
            "generation": generation,
        },
        "grpo": {
            "num_prompts_per_step": NUM_PROMPTS,
            "num_generations_per_prompt": NUM_GENERATIONS,
            "max_num_steps": job.num_steps,
            "seed": job.seed,
            "use_dynamic_sampling": True,
            "batch_multiplier": job.over_sampling,
            "async_grpo": {"enabled": True, "max_trajectory_age_steps": 1, "num_replicas": 2}
            if is_async
            else {},
        },
        "loss_fn": {"reference_policy_kl_penalty": 0.0, "importance_sampling": "truncated"},
        "data": {
            "task": "reverse",
            "task_args": {"min_length": PROMPT_LETTERS, "max_length": PROMPT_LETTERS},
            "verifier": "byte_closeness",
            "num_train": 256,
            "num_validation": 1,
        },
        "logger": {"log_dir": f"{job.output}/logs"},
        "checkpointing": {"enabled": False, "checkpoint_dir": f"{job.output}/checkpoints"},
        "cluster": {"num_threads": 2 if job.side == "sync, 2 threads" else 1, "device": "cpu"},
    }


def timings(logs: Path, warmup: int) -> dict[str, float]:
    """Return the median seconds of each phase, over the steps that count."""
    from seatrial.evidence.read import read_logs

    prefix = "timing/train/"
    phases = {}
    for tag, points in read_logs(logs).series.items():
        late = [value for step, value in zip(points.steps, points.values, strict=True) if step > warmup]
        if tag.startswith(prefix) and late:
            phases[tag.removeprefix(prefix)] = statistics.median(late)
    return phases


def table(result: dict[str, Any]) -> str:
    """Draw the result."""
    runs = result["runs"]
    seconds = {side: [run["seconds_per_step"] for run in of] for side, of in runs.items()}
    generation = statistics.median(run["phases"]["generation"] for run in runs["sync"])
    training = statistics.median(seconds["sync"]) - generation
    lines = [
        f"{result['over_sampling']} times {result['rows']} rows of {result['new_tokens']} new tokens, load average "
        f"{max(result['load_average_before_each_run']):.1f} at most; in the synchronous loop generation takes "
        f"{generation * 1e3:.0f} ms, all else {training * 1e3:.0f} ms: {generation / training:.2f} times",
        f"{'':18}{'step':>10}{'processor':>12}{'speed':>8}   each process, and its speed beside its neighbour",
    ]
    for side, each in seconds.items():
        ratios = [plain / own for plain, own in zip(seconds["sync"], each, strict=True)]
        shown = "  ".join(f"{own * 1e3:.0f} ({ratio:.2f})" for own, ratio in zip(each, ratios, strict=True))
        processor = statistics.median(run["processor_seconds_per_step"] for run in runs[side])
        lines.append(
            f"{side:18}{statistics.median(each) * 1e3:>7.0f} ms{processor * 1e3:>9.0f} ms"
            f"{statistics.median(ratios):>8.2f}   {shown}"
        )
    for side, of in runs.items():
        phases = {
            name: statistics.median(run["phases"].get(name, 0.0) for run in of) for name in of[0]["phases"]
        }
        shown = ", ".join(
            f"{name} {value * 1e3:.0f}" for name, value in sorted(phases.items(), key=lambda one: -one[1])
        )
        lines.append(f"{side}, ms: {shown}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
