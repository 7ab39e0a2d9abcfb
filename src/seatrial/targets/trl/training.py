"""A short run of one of TRL's own trainers, as a command of its own: what `seatrial run --target trl` launches.

    python -m seatrial.targets.trl.training RECIPE --model DIR --directory DIR [--seed N] [name=value ...]

The trainers are TRL's as they are installed, with their own sampling, loss, log and rows. Here are only the prompts,
the reward, and the answers to held-out prompts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from seatrial.targets.common.questions import SCORES, Question, answers, questions
from seatrial.targets.trl.preferences import find_trainer, given_tokenizer
from seatrial.targets.trl.recipes import MAX_COMPLETION_LENGTH, RECIPES, Recipe
from seatrial.targets.trl.saved import write_checkpoints

QUIET: Mapping[str, Any] = {
    "use_cpu": True,
    "bf16": False,
    "fp16": False,
    "report_to": ["tensorboard"],
    "logging_steps": 1,
    "logging_first_step": True,
    "lr_scheduler_type": "constant",
    "save_strategy": "no",
    "disable_tqdm": True,
    "dataloader_pin_memory": False,
    "gradient_checkpointing": False,
    "log_completions": True,
    "num_completions_to_print": 0,
    "max_completion_length": MAX_COMPLETION_LENGTH,
}


def train(
    recipe: Recipe,
    model_dir: Path,
    directory: Path,
    *,
    seeds: tuple[int, int],
    given: Sequence[str],
    ends_early: bool,
) -> None:
    """Run a recipe, from its last checkpoint where there is one; log, rows and trained model lie in the directory.

    Args:
        recipe: what is run.
        model_dir: Hugging Face folder that training starts from.
        directory: where the evidence goes.
        seeds: of the trainer, and of the split of the prompts.
        given: `name=value` words for the trainer's configuration.
        ends_early: whether it ends well after the first step.
    """
    import transformers

    auto_model: Any = transformers.AutoModelForCausalLM
    auto_tokenizer: Any = transformers.AutoTokenizer
    model = auto_model.from_pretrained(model_dir)
    tokenizer = auto_tokenizer.from_pretrained(model_dir, padding_side="left")
    trained, held_out = questions(seeds[1])
    options = {"seed": seeds[0], **parsed(given)}
    trainer = _trainer(recipe, model, tokenizer, (trained, held_out), directory, options)
    if ends_early:
        trainer.add_callback(_ending())
    if recipe.validates:
        _validate(recipe, trainer.model, tokenizer, held_out, directory / "rows", 0)
    trainer.train(resume_from_checkpoint=any((directory / "rows").glob("checkpoint-*")) or None)
    if recipe.validates:
        _validate(recipe, trainer.model, tokenizer, held_out, directory / "rows", trainer.state.global_step)
    write_checkpoints(trainer, directory / "rows", directory / "checkpoints")
    trained_model = trainer.model
    if recipe.has_adapters:
        trained_model.save_pretrained(directory / "adapter")
        trained_model = trained_model.merge_and_unload()
    trained_model.save_pretrained(directory / "final")
    tokenizer.save_pretrained(directory / "final")


def _trainer(
    recipe: Recipe,
    model: Any,
    tokenizer: Any,
    splits: tuple[Sequence[Question], Sequence[Question]],
    directory: Path,
    own: Mapping[str, Any],
) -> Any:
    """Return TRL's trainer; `own` are options that go before the recipe's."""
    from datasets import Dataset

    trainer_class, config_class = find_trainer(recipe.trainer)
    known = {item.name for item in fields(config_class)}
    options = {
        **QUIET,
        **recipe.options,
        "output_dir": str(directory / "rows"),
        "logging_dir": str(directory / "logs"),
        "max_steps": recipe.num_steps,
        "per_device_train_batch_size": recipe.num_rows,
        "num_generations": recipe.num_generations,
        **own,
    }
    arguments = config_class(**{name: value for name, value in options.items() if name in known})
    is_grpo = recipe.trainer == "GRPO"
    train_rows, eval_rows = (
        Dataset.from_list(
            [{"prompt": one.prompt, **({} if is_grpo else {"completion": one.answer})} for one in split]
        )
        for split in splits
    )
    return trainer_class(
        model=model,
        args=arguments,
        train_dataset=train_rows,
        **given_tokenizer(trainer_class, tokenizer),
        **({"eval_dataset": eval_rows} if "eval_strategy" in recipe.options else {}),
        **({"reward_funcs": reward_of(recipe)} if is_grpo else {}),
        **({"peft_config": _adapters()} if recipe.has_adapters else {}),
    )


def _ending() -> Any:
    """Return a callback that ends training after the first step."""
    from transformers import TrainerCallback

    class Ending(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = True

    return Ending()


def reward_of(recipe: Recipe) -> Callable[..., list[float]]:
    """Return the reward function that TRL calls, under the name of its rule."""
    score = SCORES[recipe.verifier]

    def reward(prompts: Sequence[str], completions: Sequence[str], **_: Any) -> list[float]:
        return [score(said, answer) for said, answer in zip(completions, answers(prompts), strict=True)]

    reward.__name__ = recipe.verifier
    return reward


def _adapters() -> Any:
    from peft import LoraConfig

    return LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")


def parsed(given: Sequence[str]) -> dict[str, Any]:
    """Return `name=value` words as options; a value that is no JSON is a text."""
    options: dict[str, Any] = {}
    for word in given:
        name, _, value = word.partition("=")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def _validate(
    recipe: Recipe, model: Any, tokenizer: Any, held_out: Sequence[Question], folder: Path, step: int
) -> None:
    """Answer the held-out prompts greedily, and write a row of each in the form of a ledger's validations."""
    asked = tokenizer([one.prompt for one in held_out], return_tensors="pt", padding=True)
    was_training = model.training
    model.eval()
    with torch.no_grad():
        out = model.generate(
            input_ids=asked["input_ids"],
            attention_mask=asked["attention_mask"],
            do_sample=False,
            max_new_tokens=MAX_COMPLETION_LENGTH,
            pad_token_id=tokenizer.pad_token_id,
        )
    model.train(was_training)
    said = tokenizer.batch_decode(out[:, asked["input_ids"].shape[1] :], skip_special_tokens=True)
    folder.mkdir(parents=True, exist_ok=True)
    score = SCORES[recipe.verifier]
    lines = [
        {"step": step, "index": place, "prompt_id": place, "reward": score(completion, one.answer)}
        for place, (one, completion) in enumerate(zip(held_out, said, strict=True))
    ]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (folder / f"validation_data_step{step}.jsonl").write_text(text, encoding="utf-8")


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", choices=list(RECIPES))
    parser.add_argument("--model", type=Path)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data-seed", type=int, default=0)
    parser.add_argument("--ends-early", action="store_true")
    parser.add_argument("options", nargs="*", metavar="name=value")
    asked = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    train(
        RECIPES[asked.recipe],
        asked.model,
        asked.directory,
        seeds=(asked.seed, asked.data_seed),
        given=asked.options,
        ends_early=asked.ends_early,
    )


if __name__ == "__main__":
    main()
