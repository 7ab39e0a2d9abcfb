"""Healthy short runs of TRL's trainers on a tiny model under every rule, and two with a planted fault.

    refrl make-model --output MODEL
    PYTHONPATH=src ENVIRONMENT/bin/python benchmarks/rules_trl.py MODEL result.json [--seconds 500] [--first-seed 0]

ENVIRONMENT has TRL, torch and seatrial's dependencies. GRPO starts from a model that was fine-tuned on short answers
that end, and four times from an untrained one, which is cut off nearly always. Twenty-four healthy runs: GRPO on two
rewards (one of them leaps a hundredfold on a rare letter), DPO and SFT, with several seeds; each row that is logged is
judged, with the census of guards around every optimizer step. The planted faults begin at step 41: a reward that gives
nothing but zeros, and a learning rate of 1; they are to be ended by the callback within 20 steps. Goes on where it was
ended. Exits 1 where a healthy run alarms or a fault is not ended.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset
from rules_records import note
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from seatrial.files import write_whole
from seatrial.guards import Guards
from seatrial.guards.hugging_face import guard_callback
from seatrial.rules.engine import Judged, all_rules, judge_log
from seatrial.rules.hugging_face import log_of_history, watch_callback
from seatrial.rules.rule import Level

FAULT_STEP = 40
WITHIN = 20
UNTRAINED = "share of e, untrained"


class Run(NamedTuple):
    """One run: trainer, what sets it apart, seed, fault."""

    trainer: str
    variant: str
    seed: int
    fault: str = ""

    @property
    def key(self) -> str:
        """Its name."""
        return "/".join(str(part) for part in self if part != "")


def runs(first: int = 0) -> Iterator[Run]:
    """Yield the healthy runs with seeds from `first` on, then those with a fault."""
    for seed in range(first, first + 4):
        yield Run("grpo", "share of e", seed)
        yield Run("grpo", "first letter", seed)
        yield Run("grpo", UNTRAINED, seed)
    for seed in range(first, first + 3):
        yield Run("dpo", "sigmoid", seed)
        yield Run("dpo", "ipo", seed)
        yield Run("sft", "prompt and completion", seed)
        yield Run("sft", "text", seed)
    for fault in ("reward", "rate"):
        yield Run("grpo", "share of e", first, fault)


class PlantedRate(TrainerCallback):
    """A learning rate of 1 from a step on."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set it."""
        if state.global_step >= FAULT_STEP:
            for group in kwargs["optimizer"].param_groups:
                group["lr"] = group["initial_lr"] = 1.0
            kwargs["lr_scheduler"].base_lrs = [1.0 for _ in kwargs["lr_scheduler"].base_lrs]


def reward_of(run: Run) -> Any:
    """Return the reward function; the planted one gives zeros after a number of calls."""
    calls = 0

    def reward(completions: list[str], **kwargs: Any) -> list[float]:
        nonlocal calls
        calls += 1
        if run.fault == "reward" and calls > FAULT_STEP:
            return [0.0 for _ in completions]
        if run.variant == "first letter":
            return [abs(ord(text[0]) - 64) / 192 if text else 0.0 for text in completions]
        return [text.count("e") / max(1, len(text)) for text in completions]

    return reward


WORDS = ["see", "tree", "bee", "oats", "corn", "sun", "one", "two"]
PROMPTS = ["say e", "more e", "e", "write"]


def warm(model: str, folder: Path) -> str:
    """Return the folder of the model after some supervised training; made once."""
    output = folder / "warm"
    if not output.exists():
        rows = {"prompt": PROMPTS * 32, "completion": [WORDS[(7 * place) % 8] for place in range(128)]}
        config = SFTConfig(
            output_dir=str(folder / "sft"), max_steps=150, per_device_train_batch_size=16, learning_rate=3e-3,
            report_to="none", save_strategy="no", use_cpu=True, bf16=False, disable_tqdm=True,
        )  # fmt: skip
        parts = {
            "model": AutoModelForCausalLM.from_pretrained(model),
            "processing_class": AutoTokenizer.from_pretrained(model),
        }
        trainer = SFTTrainer(args=config, train_dataset=Dataset.from_dict(rows), **parts)
        trainer.train()
        trainer.save_model(str(output))
    return str(output)


def trainer_of(run: Run, model: str, folder: str) -> Any:
    """Return the trainer of a run."""
    shared = {
        "output_dir": folder, "logging_steps": 1, "report_to": "none", "save_strategy": "no", "use_cpu": True,
        "bf16": False, "seed": run.seed, "disable_tqdm": True,
    }  # fmt: skip
    parts = {
        "model": AutoModelForCausalLM.from_pretrained(model),
        "processing_class": AutoTokenizer.from_pretrained(model),
    }
    if run.trainer == "grpo":
        config = GRPOConfig(
            max_steps=FAULT_STEP + 30, per_device_train_batch_size=16, num_generations=8, learning_rate=3e-4,
            max_completion_length=16, lr_scheduler_type="constant", beta=0.02 if run.seed % 2 else 0.0, **shared,
        )  # fmt: skip
        rows = {"prompt": PROMPTS * 32}
        return GRPOTrainer(
            reward_funcs=reward_of(run), args=config, train_dataset=Dataset.from_dict(rows), **parts
        )
    words = [f"{'abcdefgh'[place % 8]}{place}" for place in range(128)]
    if run.trainer == "dpo":
        rows = {"prompt": words, "chosen": [f" {word}!" for word in words], "rejected": [" no"] * 128}
        config = DPOConfig(
            max_steps=80, per_device_train_batch_size=8, learning_rate=3e-4, loss_type=run.variant, **shared
        )
        return DPOTrainer(args=config, train_dataset=Dataset.from_dict(rows), **parts)
    texts: dict[str, list[str]] = {"text": [f"{word} is {word}!" for word in words]}
    if run.variant != "text":
        texts = {"prompt": words, "completion": [f" {word}!" for word in words]}
    config = SFTConfig(max_steps=80, per_device_train_batch_size=8, learning_rate=1e-3, **shared)
    return SFTTrainer(args=config, train_dataset=Dataset.from_dict(texts), **parts)


def make(run: Run, model: str) -> dict[str, Any]:
    """Train, and return what the rules and the guards said."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(run, model, folder)
        watch, guard = watch_callback(stop=bool(run.fault)), guard_callback(Guards(raises=False))
        trainer.add_callback(watch)
        trainer.add_callback(guard)
        if run.fault == "rate":
            trainer.add_callback(PlantedRate())
        trainer.train()
    return {
        "steps": trainer.state.global_step,
        "guards": {"asked": sum(guard.guards.asked.values()), "failed": len(guard.guards.failures)},
        "rows": trainer.state.log_history,
    }


def judged_of(found: dict[str, Any]) -> list[Judged]:
    """Return what the rules say of the rows that a run logged."""
    return judge_log(log_of_history(found["rows"]), all_rules())


def alarms_of(found: dict[str, Any]) -> dict[str, int | None]:
    """Return the rules that alarm, and from which step."""
    judged = judged_of(found)
    return {item.rule.id: item.finding.step for item in judged if item.finding.level is Level.ALARM}


def is_right(run: Run, found: dict[str, Any]) -> bool:
    """Say whether a healthy run is silent, or a planted one was ended in time."""
    if run.fault:
        return bool(alarms_of(found)) and found["steps"] <= FAULT_STEP + WITHIN
    return not alarms_of(found) and not found["guards"]["failed"]


def main() -> int:
    """Make what is missing, and print a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("result", type=Path)
    parser.add_argument("--seconds", type=float, default=500.0, help="begin no run after so long")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--healthy", type=Path, help="note there how often each rule judged a healthy run")
    arguments = parser.parse_args()
    logging.getLogger("seatrial.watch").setLevel(logging.ERROR)
    begun = time.monotonic()
    found = json.loads(arguments.result.read_text()) if arguments.result.exists() else {}
    for run in runs(arguments.first_seed):
        if run.key not in found and time.monotonic() - begun < arguments.seconds:
            tuned = run.trainer == "grpo" and run.variant != UNTRAINED
            model = warm(arguments.model, arguments.result.parent) if tuned else arguments.model
            found[run.key] = make(run, model)
            write_whole(arguments.result, json.dumps(found, indent=1) + "\n")
    wrong = 0
    for run in runs(arguments.first_seed):
        if run.key in found:
            right = is_right(run, found[run.key])
            wrong += not right
            one = found[run.key]
            print(
                f"{'ok' if right else 'WRONG':6}{run.key:32}{one['steps']:4} steps  {alarms_of(one)}  {one['guards']}"
            )
    print(f"{len(found)} runs, {wrong} judged wrongly")
    if arguments.healthy:
        sound = [
            judged_of(found[run.key])
            for run in runs(arguments.first_seed)
            if run.key in found and not run.fault
        ]
        note(arguments.healthy, "healthy runs of TRL", sound)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
