"""The two processes that `grpo_step_vs_trl.py` measures: a GRPO run with a clock after each step.

    python grpo_step_worker.py refrl|trl '{"model": ..., ...}'

TRL's process runs in an environment without refrl, so each side imports its own stack where it is used. The last
line of the output is the measurement as JSON.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NUM_PROMPTS = 2
NUM_GENERATIONS = 8
NUM_NEW_TOKENS = 32
WORD_LENGTH = 8
LEARNING_RATE = 1e-4


@dataclass(frozen=True)
class Job:
    """What one process measures."""

    model: str
    prompts: str
    """File of prompts as text, one JSON string per line."""
    output: str
    """Directory for logs."""
    num_steps: int
    num_threads: int
    seed: int


class StepClock:
    """Wall time and processor time (of all threads) at the end of each step."""

    def __init__(self) -> None:
        """Start the first step."""
        self._ends = [(time.perf_counter(), time.process_time())]

    def tick(self) -> None:
        """End a step."""
        self._ends.append((time.perf_counter(), time.process_time()))

    def steps(self) -> dict[str, list[float]]:
        """Return the seconds and the processor seconds of each step."""
        wall, processor = zip(*self._ends, strict=True)
        return {
            "seconds": [after - before for before, after in itertools.pairwise(wall)],
            "cpu_seconds": [after - before for before, after in itertools.pairwise(processor)],
        }


def data_section() -> dict[str, Any]:
    """Return prompts of one length."""
    return {
        "task": "reverse",
        "task_args": {"min_length": WORD_LENGTH, "max_length": WORD_LENGTH},
        "verifier": "byte_closeness",
        "num_train": 256,
        "num_validation": 1,
    }


def measure_refrl(job: Job) -> dict[str, Any]:
    """Run refrl's GRPO loop as its command does, with a clock after each step."""
    import torch
    import transformers

    from refrl.config import GRPORunConfig
    from refrl.training import grpo

    config = GRPORunConfig.model_validate(
        {
            "policy": {
                "model_name": job.model,
                "train_global_batch_size": NUM_PROMPTS * NUM_GENERATIONS,
                "train_micro_batch_size": NUM_PROMPTS * NUM_GENERATIONS,
                "max_total_sequence_length": 128,
                "optimizer": {"lr": LEARNING_RATE, "betas": (0.9, 0.999)},
                "generation": {"max_new_tokens": NUM_NEW_TOKENS},
            },
            "grpo": {
                "num_prompts_per_step": NUM_PROMPTS,
                "num_generations_per_prompt": NUM_GENERATIONS,
                "max_num_steps": job.num_steps,
                "seed": job.seed,
            },
            "loss_fn": {"reference_policy_kl_penalty": 0.0, "force_on_policy_ratio": True},
            "data": data_section(),
            "logger": {"log_dir": f"{job.output}/logs"},
            "checkpointing": {"enabled": False, "checkpoint_dir": f"{job.output}/checkpoints"},
            "cluster": {"num_threads": job.num_threads, "device": "cpu"},
        }
    )
    clock = StepClock()
    step = grpo.train_step

    def timed_step(*arguments: Any) -> None:
        step(*arguments)
        clock.tick()

    grpo.train_step = timed_step
    grpo.run_grpo(config)
    last = Path(job.output, "logs", f"train_data_step{job.num_steps}.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in last.splitlines()]
    return {
        **clock.steps(),
        "prompt_tokens": statistics.mean(row["prompt_length"] for row in rows),
        "new_tokens": statistics.mean(len(row["generation_logprobs"]) for row in rows),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }


def measure_trl(job: Job) -> dict[str, Any]:
    """Run TRL's GRPOTrainer with a clock after each step."""
    import torch
    import transformers
    import trl
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback

    torch.set_num_threads(job.num_threads)
    prompts = [json.loads(line) for line in Path(job.prompts).read_text(encoding="utf-8").splitlines()]
    clock = StepClock()

    class Clock(TrainerCallback):
        def on_step_end(self, *arguments: Any, **keywords: Any) -> None:
            clock.tick()

    def share_of_e(completions: list[str], **columns: Any) -> list[float]:
        return [text.count("e") / max(1, len(text)) for text in completions]

    trainer = trl.GRPOTrainer(
        model=job.model,
        reward_funcs=share_of_e,
        processing_class=AutoTokenizer.from_pretrained(job.model),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        callbacks=[Clock()],
        args=trl.GRPOConfig(
            output_dir=job.output,
            max_steps=job.num_steps,
            per_device_train_batch_size=NUM_PROMPTS * NUM_GENERATIONS,
            num_generations=NUM_GENERATIONS,
            max_completion_length=NUM_NEW_TOKENS,
            temperature=1.0,
            beta=0.0,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            max_grad_norm=1.0,
            gradient_checkpointing=False,
            use_cpu=True,
            bf16=False,
            seed=job.seed,
            logging_steps=1,
            report_to="tensorboard",
            save_strategy="no",
            disable_tqdm=True,
        ),
    )
    trainer.train()
    last = next(entry for entry in reversed(trainer.state.log_history) if "completions/mean_length" in entry)
    new_tokens = last["completions/mean_length"]
    num_rows = job.num_steps * NUM_PROMPTS * NUM_GENERATIONS
    return {
        **clock.steps(),
        "prompt_tokens": round(last["num_tokens"] / num_rows - new_tokens, 3),
        "new_tokens": new_tokens,
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "trl": trl.__version__,
        },
    }


if __name__ == "__main__":
    side, job = sys.argv[1:]
    measure = {"refrl": measure_refrl, "trl": measure_trl}[side]
    print(json.dumps(measure(Job(**json.loads(job)))))
