"""Step time of refrl's GRPO loop against TRL's GRPOTrainer, at equal model, batch, prompts and lengths.

    python benchmarks/grpo_step_vs_trl.py [--env DIR] [--json FILE] [--shape tiny --shape small] [--threads N]

Both train the same Qwen3 in float32 with AdamW on 16 rows a step (2 prompts, 8 completions each) of exactly 32 new
tokens at temperature 1, without a reference model, and log every step to TensorBoard. The end token's id lies one
past the model's vocabulary, so that neither side can sample it and neither pays for suppressing it. refrl runs its
own loop whole, with its evidence files; TRL runs without gradient checkpointing, which it has on by default.

A step is the time between the ends of two successive steps: rollout, reward, scoring, update and logging. The two
take turns in processes of their own. On a busy machine the processor time, which waiting does not
lengthen, says more than the wall time. TRL lives in an environment of its own, made once.
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
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo_step_worker import NUM_GENERATIONS, NUM_NEW_TOKENS, NUM_PROMPTS, Job, data_section

WORKER = Path(__file__).resolve().with_name("grpo_step_worker.py")
TRL_VERSION = "1.16.0"
TRL_PACKAGES = (
    "torch>=2.6,<2.14",
    f"trl=={TRL_VERSION}",
    "transformers",
    "datasets",
    "accelerate",
    "tensorboard",
)


@dataclass(frozen=True)
class Shape:
    """A model of the comparison."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int


SHAPES = {"tiny": Shape(64, 2, 4, 2, 32, 128), "small": Shape(256, 4, 8, 4, 32, 768)}


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--env", type=Path, help="directory of TRL's environment, made when missing (default: temporary)"
    )
    parser.add_argument("--json", type=Path, help="also write the result here")
    parser.add_argument("--shape", action="append", choices=SHAPES, help="may be repeated; default: tiny")
    parser.add_argument("--repeats", type=int, default=3, help="processes of each side")
    parser.add_argument("--steps", type=int, default=30, help="steps measured in a process")
    parser.add_argument("--warmup", type=int, default=10, help="steps before that")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of each side")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="grpo-step-") as scratch:
        trl_python = make_environment(arguments.env or Path(scratch) / "trl")
        pythons = {"refrl": sys.executable, "trl": str(trl_python)}
        results = {}
        for name in arguments.shape or ["tiny"]:
            results[name] = compare(SHAPES[name], pythons, Path(scratch) / name, arguments)
            print(table(name, results[name]), flush=True)
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"machine": machine(arguments.threads), "shapes": results}, indent=1) + "\n"
        )


def compare(
    shape: Shape, pythons: dict[str, str], scratch: Path, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Run both sides in turn and return their step times."""
    scratch.mkdir()
    num_parameters = make_inputs(shape, scratch)
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in pythons}
    loads = []
    for repeat in range(arguments.repeats):
        for side in sorted(pythons, reverse=bool(repeat % 2)):
            job = Job(
                model=str(scratch / "model"),
                prompts=str(scratch / "prompts.jsonl"),
                output=str(scratch / f"{side}-{repeat}"),
                num_steps=arguments.warmup + arguments.steps,
                num_threads=arguments.threads,
                seed=repeat,
            )
            loads.append(os.getloadavg()[0])
            run = run_worker(pythons[side], side, job)
            for clock in ("seconds", "cpu_seconds"):
                run[clock] = run[clock][arguments.warmup :]
            runs[side].append(run)
    check_equal_work(runs)
    return summary(shape, num_parameters, runs, loads)


def summary(
    shape: Shape, num_parameters: int, runs: dict[str, list[dict[str, Any]]], loads: Sequence[float]
) -> dict[str, Any]:
    """Reduce the runs: medians over all steps, and the ratio within each pair of neighbouring runs."""
    new_tokens = NUM_PROMPTS * NUM_GENERATIONS * NUM_NEW_TOKENS
    sides = {}
    for side, side_runs in runs.items():
        medians = [statistics.median(run["seconds"]) for run in side_runs]
        median = statistics.median(second for run in side_runs for second in run["seconds"])
        sides[side] = {
            "median_step_seconds": median,
            "median_cpu_seconds": statistics.median(
                second for run in side_runs for second in run["cpu_seconds"]
            ),
            "median_of_each_run": medians,
            "generated_tokens_per_second": new_tokens / median,
            "versions": side_runs[0]["versions"],
        }
    pairs = zip(sides["trl"]["median_of_each_run"], sides["refrl"]["median_of_each_run"], strict=True)
    return {
        "shape": asdict(shape),
        "num_parameters": num_parameters,
        "prompt_tokens": runs["refrl"][0]["prompt_tokens"],
        "new_tokens": NUM_NEW_TOKENS,
        "rows": NUM_PROMPTS * NUM_GENERATIONS,
        "sides": sides,
        "ratio": sides["trl"]["median_step_seconds"] / sides["refrl"]["median_step_seconds"],
        "cpu_ratio": sides["trl"]["median_cpu_seconds"] / sides["refrl"]["median_cpu_seconds"],
        "ratio_of_each_pair": [trl / ours for trl, ours in pairs],
        "load_average_before_each_run": list(loads),
    }


def check_equal_work(runs: dict[str, list[dict[str, Any]]]) -> None:
    """Refuse a comparison in which the sides read or sampled different numbers of tokens."""
    work = {(run["prompt_tokens"], run["new_tokens"]) for side_runs in runs.values() for run in side_runs}
    if len(work) != 1 or next(iter(work))[1] != NUM_NEW_TOKENS:
        raise SystemExit(f"the sides did unequal work: (prompt tokens, new tokens) {sorted(work)}")


def table(name: str, result: dict[str, Any]) -> str:
    """Draw one shape's result."""
    lines = [
        f"\n{name}: {result['num_parameters']:,} parameters, {result['rows']} rows, "
        f"{result['prompt_tokens']:g} prompt and {result['new_tokens']} new tokens, "
        f"load average {max(result['load_average_before_each_run']):.1f} at most",
        f"{'':8}{'median step':>14}{'new tokens/s':>15}{'processor':>14}   median of each process",
    ]
    for side, values in result["sides"].items():
        each = "  ".join(f"{seconds * 1e3:.1f}" for seconds in values["median_of_each_run"])
        step, processor = values["median_step_seconds"] * 1e3, values["median_cpu_seconds"] * 1e3
        rate = values["generated_tokens_per_second"]
        lines.append(f"{side:8}{step:>11.1f} ms{rate:>15,.0f}{processor:>11.1f} ms   {each} ms")
    each = ", ".join(f"{ratio:.2f}" for ratio in result["ratio_of_each_pair"])
    lines.append(
        f"TRL's step takes {result['ratio']:.2f} times as long as refrl's (each pair: {each}), "
        f"and {result['cpu_ratio']:.2f} times the processor time"
    )
    return "\n".join(lines)


def machine(num_threads: int) -> dict[str, Any]:
    """Say what this was measured on."""
    return {
        "cpus": os.cpu_count(),
        "threads": num_threads,
        "platform": platform.platform(),
        "python": platform.python_version(),
    }


def make_environment(directory: Path) -> Path:
    """Make TRL's environment unless it is there; return its Python."""
    python = directory / "bin" / "python"
    if not python.exists():
        print(f"making TRL's environment in {directory} (minutes)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *TRL_PACKAGES], check=True)
    found = subprocess.run(
        [str(python), "-c", "import importlib.metadata as m; print(m.version('trl'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    if found != TRL_VERSION:
        raise SystemExit(
            f"{directory} holds trl {found}, not {TRL_VERSION}: name another directory with --env"
        )
    return python


def make_inputs(shape: Shape, scratch: Path) -> int:
    """Write the model and the prompts that both sides read; return the number of parameters."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from refrl.config import DataConfig
    from refrl.models.loading import save_directory
    from refrl.models.tokenization import make_byte_tokenizer
    from refrl.tasks import make_splits

    tokenizer = make_byte_tokenizer()
    assert tokenizer.eos_token_id == len(tokenizer) - 1
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer) - 1,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config)
    save_directory(model, tokenizer, scratch / "model")
    examples = make_splits(DataConfig(**data_section())).train
    prompts = "".join(json.dumps(example.prompt) + "\n" for example in examples)
    (scratch / "prompts.jsonl").write_text(prompts, encoding="utf-8")
    return sum(weight.numel() for weight in model.parameters())


def run_worker(python: str, side: str, job: Job) -> dict[str, Any]:
    """Run one side in a process of its own and return what it measured."""
    threads = str(job.num_threads)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [python, str(WORKER), side, json.dumps(asdict(job))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{side} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
