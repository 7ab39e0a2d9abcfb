"""Worked examples of what Transformers' trainer saves, uploads and loads again of a run."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

from seatrial.relations.contracts.worked import Refused
from seatrial.targets.common.tiny import tiny_model, tiny_tokenizer
from seatrial.targets.common.trainers import new_folder, resuming
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.short_runs import Line
from seatrial.targets.transformers.worked.parts import Mixed
from seatrial.targets.transformers.worked.runs import arguments, line, numbered

IDS = [40, 41, 42]


def _other() -> Any:
    """Return a model of other weights than those of the tests' own."""
    model = tiny_model(tiny_tokenizer(), 0)
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(1.5).add_(0.25)
    return model


def _loaded(trainer_class: Any) -> list[str]:
    """Return which weights of checkpoints a trainer does not load: whole, in shards, to continue and as the best."""
    wrong = []
    for size in ("5GB", "2KB"):
        folder = new_folder()
        _other().save_pretrained(folder, max_shard_size=size)
        num_files = len(list(Path(folder).glob("*.safetensors")))
        wrong += [f"{size}: {num_files} files"] if (num_files > 1) != (size == "2KB") else []
        due = dict(_other().named_parameters())
        for what in ("continued", "the best"):
            trainer = trainer_class(model=tiny_model(tiny_tokenizer(), 0), args=arguments())
            if what == "continued":
                trainer._load_from_checkpoint(folder)
            else:
                trainer.state.best_model_checkpoint = folder
                trainer._load_best_model()
            wrong += [
                f"{size}, {what}: {name}"
                for name, value in trainer.model.named_parameters()
                if not torch.equal(value, due[name])
            ][:2]
    return wrong


def _unfound(trainer_class: Any) -> Any:
    trainer_class(model=Line(), args=arguments())._load_from_checkpoint(new_folder())


def _drawn() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


def _streams(trainer_class: Any) -> list[bool]:
    """Return whether numbers that are drawn are the same again after states are loaded, from a file, and from none."""
    folder = new_folder()
    trainer = trainer_class(model=Line(), args=arguments())
    kept = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        trainer._save_rng_state(folder)
        first, second = _drawn(), _drawn()
        with resuming():
            trainer._load_rng_state(folder)
        again = _drawn()
        trainer._load_rng_state(new_folder())
        trainer._load_rng_state(None)
        return [again == first, _drawn() == second]
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
        torch.set_rng_state(kept[2])


def _optimizers(trainer_class: Any) -> list[Any]:
    """Return moments, steps and rates of an optimizer and a schedule that are loaded again."""
    folder = new_folder()
    options: dict[str, Any] = {
        "optim": "adamw_torch",
        "lr_scheduler_type": "linear",
        "per_device_train_batch_size": 2,
    }
    one = line(trainer_class, max_steps=3, output_dir=folder, save_strategy="steps", save_steps=2, **options)
    one.train()
    other = line(trainer_class, max_steps=3, **options)
    other.create_optimizer_and_scheduler(3)
    with resuming():
        other._load_optimizer_and_scheduler(str(Path(folder) / "checkpoint-2"))
        saved = torch.load(Path(folder) / "checkpoint-2" / "optimizer.pt", weights_only=True)
    found = other.optimizer.state_dict()
    same = [
        torch.equal(torch.as_tensor(value), torch.as_tensor(saved["state"][number][name]))
        for number, state in found["state"].items()
        for name, value in state.items()
    ]
    return [
        all(same) and len(same) == 6,
        round(float(next(iter(found["state"].values()))["step"]), 3),
        [round(group["lr"], 6) for group in found["param_groups"]],
        [round(rate, 6) for rate in other.lr_scheduler.get_last_lr()],
        other.lr_scheduler.last_epoch,
    ]


def _files(trainer_class: Any) -> list[Any]:
    """Return files of a model with a tokenizer, of a module and with an adapter, and what they contain."""
    from peft import LoraConfig, get_peft_model
    from safetensors.torch import load_file

    found: list[Any] = []
    config: Any = LoraConfig(r=2, target_modules=["q_proj"])
    adapted: Any = get_peft_model(tiny_model(tiny_tokenizer(), 0), config)
    for model, more in (
        (tiny_model(tiny_tokenizer(), 0), {"processing_class": tiny_tokenizer()}), (Mixed(), {}), (adapted, {}),
    ):  # fmt: skip
        folder = Path(new_folder())
        trainer = trainer_class(model=model, args=arguments(), **more)
        trainer.save_model(str(folder))
        names = {one.name for one in folder.iterdir()}
        weights = load_file(next(iter(sorted(folder.glob("*.safetensors")))))
        own = dict(model.state_dict())
        due = {
            name.replace(".default.", "."): value
            for name, value in own.items()
            if model is not adapted or "lora" in name
        }
        found.append(
            [
                sorted(
                    names
                    & {"config.json", "tokenizer_config.json", "adapter_config.json", "model.safetensors"}
                ),
                [name for name, value in weights.items() if not torch.equal(value, due[name])],
                "training_args.bin" in names,
            ]
        )
    return found


FILES = [
    [["config.json", "model.safetensors", "tokenizer_config.json"], [], True], [["model.safetensors"], [], True],
    [["adapter_config.json"], [], True],
]  # fmt: skip


def _patient(trainer_class: Any) -> list[Any]:
    """Return the count of an early stop and its patience, after resumes that restore callbacks and that do not."""
    import transformers

    found = []
    for restores in (True, False):
        folder, checkpoint = new_folder(), None
        made: Any = transformers.EarlyStoppingCallback
        callback: Any = None
        for steps, patience in ((3, 4), (4, 9)):
            callback = made(early_stopping_patience=patience, early_stopping_threshold=0.5)
            own: dict[str, Any] = {
                "output_dir": folder, "max_steps": steps, "eval_strategy": "steps", "eval_steps": 1,
                "save_strategy": "steps", "save_steps": 1, "metric_for_best_model": "score",
                "load_best_model_at_end": True, "restore_callback_states_from_checkpoint": restores,
            }  # fmt: skip

            class Scored(trainer_class):  # type: ignore[misc]
                def evaluate(self, *more: Any, **named: Any) -> dict[str, float]:
                    metrics = {"eval_score": 1.0}
                    self.control: Any = self.callback_handler.on_evaluate(
                        self.args, self.state, self.control, metrics
                    )
                    return metrics

            data = {"train_dataset": numbered(2), "eval_dataset": numbered(2)}
            trainer = Scored(model=Line(), args=arguments(**own), callbacks=[callback], **data)
            with resuming():
                trainer.train(resume_from_checkpoint=checkpoint)
            checkpoint = str(Path(folder) / "checkpoint-3")
        kept = [one for one in trainer.callback_handler.callbacks if isinstance(one, made)]
        found.append([len(kept), kept[0].early_stopping_patience, kept[0].early_stopping_patience_counter])
    return found


def _written(trainer_class: Any) -> dict[str, Any]:
    """Return what the state of a checkpoint contains."""
    trainer = line(
        trainer_class, max_steps=3, save_strategy="steps", save_steps=2, per_device_train_batch_size=2,
        logging_steps=1, save_only_model=True,
    )  # fmt: skip
    trainer.train()
    file = Path(trainer.args.output_dir) / "checkpoint-2" / "trainer_state.json"
    state = json.loads(file.read_text(encoding="utf-8"))
    names = (
        "epoch", "global_step", "max_steps", "num_train_epochs", "train_batch_size", "logging_steps", "save_steps",
        "best_metric", "is_hyper_param_search", "total_flos", "num_input_tokens_seen",
    )  # fmt: skip
    control = state["stateful_callbacks"]["TrainerControl"]["args"]
    steps = [one["step"] for one in state["log_history"]]
    return {**{name: state[name] for name in names}, "steps": steps, "saves": control["should_save"]}


WRITTEN = {
    "epoch": 0.5, "global_step": 2, "max_steps": 3, "num_train_epochs": 1, "train_batch_size": 2, "logging_steps": 1,
    "save_steps": 2, "best_metric": None, "is_hyper_param_search": False, "total_flos": 0.0,
    "num_input_tokens_seen": 0, "steps": [1, 2], "saves": True,
}  # fmt: skip


def _skipped(trainer_class: Any) -> list[Any]:
    """Return the rows of a stream that a resumed run trains on: those that are left, or all again."""

    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(numbered(8))

    found: list[Any] = []
    for ignores in (False, True):
        folder, checkpoint = new_folder(), None
        for steps in (2, 4):
            seen: list[int] = []
            args = arguments(
                output_dir=folder, max_steps=steps, save_strategy="steps", save_steps=2, ignore_data_skip=ignores,
                per_device_train_batch_size=1, gradient_accumulation_steps=2,
            )  # fmt: skip
            trainer = trainer_class(model=Line(), args=args, train_dataset=Stream())
            step = trainer.training_step

            def watched(model: Any, inputs: Any, *more: Any, seen: Any = seen, step: Any = step) -> Any:
                seen.extend(inputs["number"].tolist())
                return step(model, inputs, *more)

            trainer.training_step = watched
            with resuming():
                trainer.train(resume_from_checkpoint=checkpoint)
            found.append(seen)
            checkpoint = str(Path(folder) / "checkpoint-2")
    return found


class _Tied(nn.Module):
    """Two weights that are one, of which one is saved."""

    _keys_to_ignore_on_save = ("second",)

    def __init__(self) -> None:
        """Make them."""
        super().__init__()
        self.first, self.calls = nn.Parameter(torch.ones(2)), 0

    def tie_weights(self) -> None:
        """Count the calls."""
        self.calls += 1


def _warned(trainer_class: Any) -> list[Any]:
    """Return calls that tie weights, and words of warnings, by what is missing in a file or is too much."""
    import transformers.trainer

    found = []
    for missing, unexpected in (([], []), (["second"], []), (["first"], []), ([], ["third"])):
        trainer = trainer_class(model=_Tied(), args=arguments())
        with patch.object(transformers.trainer.logger, "warning") as said:
            trainer._issue_warnings_after_load(
                SimpleNamespace(missing_keys=missing, unexpected_keys=unexpected)
            )
        words = " ".join(str(call.args[0]) for call in said.call_args_list)
        found.append(
            [
                trainer.model.calls,
                [one for one in ("missing", "unexpected", "first", "third") if one in words],
            ]
        )
    return found


FIRST = [1, 2, 3, 4]
PLACE = "transformers:Trainer"
ENTRIES: Sequence[tuple[str, str, Callable[[Any], Any], Any]] = (
    ("checkpoints", "weights of checkpoints in shards", _loaded, []),
    ("checkpoints", "no weights in a checkpoint", _unfound, Refused("Can't find a valid checkpoint")),
    ("checkpoints", "streams of random numbers", _streams, [True, True]),
    (
        "checkpoints", "an optimizer and a schedule", _optimizers,
        [True, 2.0, [round(0.05 / 3, 6)] * 2, [round(0.05 / 3, 6)] * 2, 2],
    ),
    ("checkpoints", "files of models, modules and adapters", _files, FILES),
    ("checkpoints", "counts of an early stop", _patient, [[1, 4, 3], [1, 9, 1]]),
    ("checkpoints", "the state of a run", _written, WRITTEN),
    ("checkpoints", "rows of a stream after a resume", _skipped, [FIRST, [5, 6, 7, 8], FIRST, FIRST]),
    (
        "checkpoints", "weights that are missing or too many", _warned,
        [[0, []], [1, []], [0, ["missing", "first"]], [0, ["unexpected", "third"]]],
    ),
)  # fmt: skip
# Sources: the documentation of Trainer and TrainingArguments.
KEPT_ROWS: Sequence[Row] = tuple(
    Row(subject, PLACE, name, call, right, since="4.57") for subject, name, call, right in ENTRIES
)
