"""A GRPO step of refrl and of TRL on one GPU, in turns, at equal model, rows and tokens; first and second step too.

    python benchmarks/gpu/grpo_step_vs_trl.py [--repeats 2] [--steps 8] [--side refrl/16 --side refrl/64 --side trl/32]
    python benchmarks/gpu/grpo_step_vs_trl.py --model 1.7b --prompts 8 --prompt-tokens 1008 --new-tokens 2048 \
        --reference --side refrl/4 --side trl/4 --steps 2 --repeats 1

Both train one Qwen3 of random weights (494 M parameters by default) in bfloat16 with AdamW on 256 rows of 32 prompt and
256 new tokens, 8 completions a prompt, taking the old log-probabilities from the training pass. The number of a side is
its micro-batch in rows. By default there is no reference.
No row ends early: refrl has no end token, and TRL masks it. Each side runs in a process of its
own. A step is the time between the ends of two successive steps, after the device has finished.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

NUM_GENERATIONS = 8
KL_PENALTY = 0.04
MODELS = {
    "0.5b": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "head_dim": 64,
    },
    "1.7b": {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
}
"""The second one has the shape of Qwen3-1.7B (its config.json)."""


@dataclass(frozen=True)
class Job:
    """What one process measures."""

    model: str
    output: str
    num_prompts: int
    prompt_tokens: int
    new_tokens: int
    num_steps: int
    micro_batch_size: int
    has_reference: bool
    seed: int
    options: tuple[str, ...] = ()
    """Further options of refrl, as on its command line."""


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--side",
        action="append",
        help="refrl or trl, and the rows of a micro-batch; default: refrl/32 and trl/32",
    )
    parser.add_argument("--repeats", type=int, default=2, help="processes of each side")
    parser.add_argument("--steps", type=int, default=8, help="steps of a process")
    parser.add_argument("--prompts", type=int, default=32, help="prompts of a step")
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--reference", action="store_true", help="with a penalty on the KL from a reference")
    parser.add_argument("--model", choices=list(MODELS), default="0.5b")
    parser.add_argument(
        "--option", action="append", default=[], help="of refrl, such as policy.compile_layers=true"
    )
    parser.add_argument("--json", type=Path, help="also write the result here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="grpo-gpu-") as scratch:
        model = Path(scratch) / "model"
        num_parameters = make_model(model, MODELS[arguments.model])
        print(f"{num_parameters:,} parameters", flush=True)
        runs: dict[str, list[dict[str, Any]]] = {}
        for repeat in range(arguments.repeats):
            for side in arguments.side or ["refrl/32", "trl/32"]:
                stack, _, rows = side.partition("/")
                job = Job(
                    model=str(model),
                    output=f"{scratch}/{stack}-{rows}-{repeat}",
                    num_prompts=arguments.prompts,
                    prompt_tokens=arguments.prompt_tokens,
                    new_tokens=arguments.new_tokens,
                    num_steps=arguments.steps,
                    micro_batch_size=int(rows),
                    has_reference=arguments.reference,
                    seed=repeat,
                    options=tuple(arguments.option),
                )
                run = run_side(stack, job)
                runs.setdefault(side, []).append(run)
                print(side, json.dumps(run), flush=True)
    print(table(runs))
    if arguments.json:
        arguments.json.write_text(json.dumps(runs, indent=1) + "\n")


def run_side(side: str, job: Job) -> dict[str, Any]:
    """Run one side in a process of its own and return what it measured."""
    command = [sys.executable, str(Path(__file__).resolve()), "--worker", side, json.dumps(asdict(job))]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    if done.returncode:
        raise SystemExit(
            f"{side} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-5000:]}"
        )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def table(runs: dict[str, list[dict[str, Any]]]) -> str:
    """Draw the result: warm steps are those from the fourth on, or the last of fewer."""
    lines = [f"{'':10}{'warm step':>12}{'first':>10}{'second':>10}{'peak':>12}"]
    warm = {}
    for side, side_runs in runs.items():
        warm[side] = statistics.median(
            second for run in side_runs for second in run["seconds"][3:] or run["seconds"][-1:]
        )
        first, second = (max(run["seconds"][place] for run in side_runs) for place in (0, 1))
        peak = max(run["peak_bytes"] for run in side_runs) / 2**30
        lines.append(f"{side:10}{warm[side]:>10.2f} s{first:>8.1f} s{second:>8.1f} s{peak:>8.1f} GiB")
    theirs = {side: seconds for side, seconds in warm.items() if side.startswith("trl")}
    for side, seconds in warm.items():
        for other in theirs if side not in theirs else ():
            lines.append(
                f"{other}: a warm step takes {warm[other] / seconds:.2f} times as long as that of {side}"
            )
    work = {(run["prompt_tokens"], run["new_tokens"]) for side_runs in runs.values() for run in side_runs}
    lines.append(f"prompt and new tokens of a row: {sorted(work)}")
    if len(work) != 1:
        lines.append("UNEQUAL WORK: the comparison does not hold")
    return "\n".join(lines)


def make_model(directory: Path, shape: dict[str, int]) -> int:
    """Write a Qwen3 of random weights with refrl's byte tokenizer; return the number of parameters."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from refrl.models.loading import save_directory
    from refrl.models.tokenization import make_byte_tokenizer

    tokenizer = make_byte_tokenizer()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=151_936,
        **shape,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    save_directory(model, tokenizer, directory)
    return sum(weight.numel() for weight in model.parameters())


class StepClock:
    """Wall time at the end of each step, after the device has finished."""

    def __init__(self) -> None:
        """Start the first step."""
        self.ends = [time.perf_counter()]

    def tick(self) -> None:
        """End a step."""
        import torch

        torch.cuda.synchronize()
        self.ends.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Return the seconds of each step."""
        return [after - before for before, after in zip(self.ends, self.ends[1:], strict=False)]


def measure_refrl(job: Job) -> dict[str, Any]:
    """Run refrl's GRPO loop as its command does."""
    import torch

    from refrl.config import GRPORunConfig
    from refrl.config.loading import load_config
    from refrl.timing import Timer
    from refrl.training import grpo

    document: dict[str, Any] = {
        "policy": {
            "model_name": job.model,
            "precision": "bfloat16",
            "train_global_batch_size": job.num_prompts * NUM_GENERATIONS,
            "train_micro_batch_size": job.micro_batch_size,
            "max_total_sequence_length": job.prompt_tokens + job.new_tokens,
            "optimizer": {"lr": 1e-6, "betas": (0.9, 0.999)},
            "generation": {"max_new_tokens": job.new_tokens, "stop_token_ids": []},
        },
        "grpo": {
            "num_prompts_per_step": job.num_prompts,
            "num_generations_per_prompt": NUM_GENERATIONS,
            "max_num_steps": job.num_steps,
            "seed": job.seed,
        },
        "loss_fn": {
            "reference_policy_kl_penalty": KL_PENALTY * job.has_reference,
            "force_on_policy_ratio": True,
        },
        "data": data_section(job),
        "logger": {"log_dir": f"{job.output}/logs"},
        "checkpointing": {"enabled": False, "checkpoint_dir": f"{job.output}/checkpoints"},
        "cluster": {"device": "cuda"},
    }
    path = Path(f"{job.output}.yaml")
    path.write_text(json.dumps(document))
    config = load_config(GRPORunConfig, path, job.options)
    clock = StepClock()
    phases: dict[str, float] = {}
    take = Timer.take

    def kept(timer: Timer) -> dict[str, float]:
        phases.update(taken := take(timer))
        return taken

    Timer.take = kept  # type: ignore[method-assign]
    step = grpo.train_step
    profiler = torch.profiler.profile() if os.environ.get("PROFILE") else None
    number = 0

    def timed_step(*arguments: Any) -> None:
        nonlocal number
        number += 1
        profiled = profiler is not None and number == job.num_steps
        if profiled:
            profiler.start()
        step(*arguments)
        clock.tick()
        if profiled:
            profiler.stop()
            sys.stderr.write(profiler.key_averages().table(sort_by="cuda_time_total", row_limit=45))
            Path(os.environ["PROFILE"]).write_text(
                profiler.key_averages().table(sort_by="cuda_time_total", row_limit=45)
                + profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=30)
            )

    grpo.train_step = timed_step
    grpo.run_grpo(config)
    last = Path(job.output, "logs", f"train_data_step{job.num_steps}.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in last.splitlines()]
    return {
        "seconds": clock.seconds(),
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "prompt_tokens": statistics.mean(row["prompt_length"] for row in rows),
        "new_tokens": statistics.mean(len(row["generation_logprobs"]) for row in rows),
        "phases": phases,
    }


def data_section(job: Job) -> dict[str, Any]:
    """Return prompts of one length."""
    length = job.prompt_tokens - len("reverse =") - 1  # a prompt begins with one more token
    return {
        "task": "reverse",
        "task_args": {"min_length": length, "max_length": length},
        "verifier": "byte_closeness",
        "num_train": 2048,
        "num_validation": 1,
    }


def measure_trl(job: Job) -> dict[str, Any]:
    """Run TRL's GRPOTrainer."""
    import torch
    import trl
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback

    from refrl.config import DataConfig
    from refrl.tasks import make_splits

    clock = StepClock()

    class Clock(TrainerCallback):
        def on_step_end(self, *arguments: Any, **keywords: Any) -> None:
            clock.tick()

    def share_of_e(completions: list[str], **columns: Any) -> list[float]:
        return [text.count("e") / max(1, len(text)) for text in completions]

    rows = job.num_prompts * NUM_GENERATIONS
    prompts = [example.prompt for example in make_splits(DataConfig(**data_section(job))).train]
    trainer = trl.GRPOTrainer(
        model=job.model,
        reward_funcs=share_of_e,
        processing_class=AutoTokenizer.from_pretrained(job.model),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        callbacks=[Clock()],
        args=trl.GRPOConfig(
            output_dir=job.output,
            max_steps=job.num_steps,
            per_device_train_batch_size=job.micro_batch_size,
            gradient_accumulation_steps=rows // job.micro_batch_size,
            num_generations=NUM_GENERATIONS,
            max_completion_length=job.new_tokens,
            temperature=1.0,
            beta=KL_PENALTY * job.has_reference,
            learning_rate=1e-6,
            lr_scheduler_type="constant",
            max_grad_norm=1.0,
            gradient_checkpointing=False,
            bf16=True,
            model_init_kwargs={"dtype": "bfloat16"},
            generation_kwargs={"min_new_tokens": job.new_tokens},
            seed=job.seed,
            logging_steps=1,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        ),
    )
    trainer.train()
    last = next(entry for entry in reversed(trainer.state.log_history) if "completions/mean_length" in entry)
    new_tokens = last["completions/mean_length"]
    return {
        "seconds": clock.seconds(),
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "prompt_tokens": round(last["num_tokens"] / (job.num_steps * rows) - new_tokens, 3),
        "new_tokens": new_tokens,
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        measure = {"refrl": measure_refrl, "trl": measure_trl}[sys.argv[2]]
        print(json.dumps(measure(Job(**json.loads(sys.argv[3])))))
    else:
        main()
