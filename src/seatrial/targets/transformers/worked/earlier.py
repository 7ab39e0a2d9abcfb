"""Worked examples of what releases 4 of Transformers' trainer have and later ones left out, or do in another way."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import before
from seatrial.targets.common.trainers import new_folder, resuming
from seatrial.targets.common.worked_rows import Row, unlike
from seatrial.targets.transformers.short_runs import Line
from seatrial.targets.transformers.worked.arguments import _made
from seatrial.targets.transformers.worked.earlier_loops import (
    GATHERED,
    SHARED,
    gathered,
    grouped,
    predicted,
    shared,
)
from seatrial.targets.transformers.worked.flow import AT_THE_END, _flowing
from seatrial.targets.transformers.worked.predictions import LOSS, PAIRS, _streamed
from seatrial.targets.transformers.worked.resumes import _checkpointed
from seatrial.targets.transformers.worked.runs import _best, arguments, line, numbered
from seatrial.targets.transformers.worked.setups import _defaults, _said, _shifts
from seatrial.targets.transformers.worked.trials import _tried


def _earlier(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a call that releases of 5 do not serve."""

    def only(found: Any) -> Any:
        if not before("transformers", "5")(None):
            raise NotServed("this release is later than 4: it does this in another way")
        return call(found)

    return only


class _Remembering(nn.Module):
    """Takes what it gave last, and adds it."""

    def __init__(self) -> None:
        """Have a parameter."""
        super().__init__()
        self.one, self.seen = nn.Parameter(torch.ones(())), list[Any]()

    def forward(self, number: Tensor, labels: Tensor | None = None, mems: Tensor | None = None) -> Any:
        """Return the loss, the number, and what is remembered."""
        self.seen.append(None if mems is None else float(mems))
        return (self.one * number.float().mean(), number, number.float().sum())


def _remembered(trainer_class: Any) -> list[Any]:
    """Return what a model is given of its last step: in two epochs, in an evaluation, and what stays after."""
    model = _Remembering()
    args = arguments(
        past_index=2, per_device_train_batch_size=2, per_device_eval_batch_size=3, num_train_epochs=2
    )
    made = type(line(trainer_class))
    trainer = made(model=model, args=args, train_dataset=numbered(4), eval_dataset=numbered(6))
    trainer.train()
    training = list(model.seen)
    model.seen.clear()
    after = hasattr(trainer, "_past")
    trainer.evaluate()
    return [training, after, list(model.seen), hasattr(trainer, "_past")]


def _rotated(trainer_class: Any) -> list[Any]:
    """Return checkpoints by number and by time, the best one later, and what limits leave of them."""
    found: list[Any] = []

    def made(limit: int | None, best: int | None) -> tuple[Any, Path]:
        folder = Path(new_folder())
        for time, step in enumerate((20, 3, 100)):
            (folder / f"checkpoint-{step}").mkdir()
            os.utime(folder / f"checkpoint-{step}", (1000 + 10 * time, 1000 + 10 * time))
        (folder / "checkpoint-7").touch()
        trainer = trainer_class(model=Line(), args=arguments(save_total_limit=limit))
        trainer.state.best_model_checkpoint = None if best is None else str(folder / f"checkpoint-{best}")
        return trainer, folder

    def steps(paths: Any) -> list[int]:
        return [int(Path(one).name.partition("-")[2]) for one in paths]

    for by_time, best in ((False, None), (True, None), (False, 3), (True, 20), (False, 100)):
        trainer, folder = made(None, best)
        found.append(steps(trainer._sorted_checkpoints(output_dir=str(folder), use_mtime=by_time)))
    for limit, best in ((None, None), (0, None), (2, None), (1, None), (1, 3), (1, 100), (2, 3)):
        trainer, folder = made(limit, best)
        trainer._rotate_checkpoints(output_dir=str(folder))
        found.append(sorted(steps(one for one in folder.iterdir() if one.is_dir())))
    return found


ROTATED = [
    [3, 20, 100], [20, 3, 100], [20, 3, 100], [3, 20, 100], [3, 20, 100],
    [3, 20, 100], [3, 20, 100], [20, 100], [100], [3, 100], [100], [3, 100],
]  # fmt: skip


def _pickled(trainer_class: Any) -> list[Any]:
    """Return files of checkpoints that are not safetensors, and weights after a resume and of the best step."""
    folder = new_folder()
    options: dict[str, Any] = {
        "save_strategy": "steps", "save_steps": 1, "save_safetensors": False, "per_device_train_batch_size": 2,
        "lr_scheduler_type": "linear", "output_dir": folder,
    }  # fmt: skip
    whole = line(trainer_class, max_steps=4, **options)
    with resuming():
        whole.train()
    names = sorted(one.name for one in (Path(folder) / "checkpoint-2").iterdir() if "model" in one.name)
    resumed = line(trainer_class, max_steps=4, **options)
    with resuming():
        resumed.train(resume_from_checkpoint=str(Path(folder) / "checkpoint-2"))
        best = line(trainer_class, max_steps=4, **options)
        best.state.best_model_checkpoint = str(Path(folder) / "checkpoint-2")
        best._load_best_model()
    due = torch.load(Path(folder) / "checkpoint-2" / "pytorch_model.bin", weights_only=True)
    return [
        names,
        unlike([float(resumed.model.slope)], [float(whole.model.slope)], "resumed", 1e-6),
        unlike([float(best.model.slope)], [float(due["slope"])], "best", 1e-6),
    ]


def _initial(trainer_class: Any) -> list[Any]:
    """Return epochs, steps and rows of a run, in the order of releases of 4."""
    found: list[Any] = []
    for options in (
        {"num_train_epochs": 3}, {"num_train_epochs": 1.3, "gradient_accumulation_steps": 3}, {"max_steps": 5},
        {"max_steps": 5, "gradient_accumulation_steps": 2}, {"gradient_accumulation_steps": 9, "num_train_epochs": 2},
    ):  # fmt: skip
        own: dict[str, Any] = {"per_device_train_batch_size": 2, **options}
        trainer = line(trainer_class, **own)
        total = 2 * trainer.args.gradient_accumulation_steps
        found.append(
            list(trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader(), total))
        )
    return found


INITIAL = [
    [3, 4, 7, 21, True, 4, 12], [2, 2, 7, 9.1, True, 4, 3], [2, 4, 7, 10, False, 4, 5], [3, 2, 7, 20, False, 4, 5],
    [2, 1, 7, 14, True, 4, 2],
]  # fmt: skip


def _causal(trainer_class: Any) -> list[bool]:
    trainer = trainer_class(model=Line(), args=arguments())
    lower, full = torch.ones(4, 4).tril(), torch.ones(4, 4)
    added = torch.full((4, 4), -1e9).triu(1)
    given = (
        None, torch.tensor([[1, 1, 0]]), lower[None], full[None], lower[None, None], added[None, None],
        full[None, None], torch.ones(1, 1, 1, 1), torch.ones(3), torch.ones(1, 1, 1, 2, 2),
    )  # fmt: skip
    return [bool(trainer._is_attention_mask_causal(one)) for one in given]


def _compared(trainer_class: Any) -> list[Any]:
    """Return which options a warning names that differ from those of a checkpoint."""
    import transformers.trainer

    trainer = line(trainer_class, logging_steps=3, save_steps=4, per_device_train_batch_size=5)
    found: list[Any] = []
    state: Any = transformers.TrainerState
    for more in ({}, {"logging_steps": 2}, {"eval_steps": 7}, {"save_steps": 6}, {"train_batch_size": 4}):
        own = {"logging_steps": 3, "save_steps": 4, "train_batch_size": 5, **more}
        with patch.object(transformers.trainer.logger, "warning_once", create=True) as said:
            trainer.compare_trainer_and_checkpoint_args(trainer.args, state(**own))
        words = " ".join(str(call.args[0]) for call in said.call_args_list)
        names = ("logging_steps", "eval_steps", "save_steps", "per_device_train_batch_size")
        found.append([name for name in names if name in words])
    return found


def _warmups(arguments_class: Any) -> list[int]:
    """Return the steps of a warm-up: a number, or else a share of all steps that is rounded up."""
    return [
        _made(arguments_class, {"warmup_steps": steps, "warmup_ratio": ratio}).get_warmup_steps(total)
        for steps, ratio, total in (
            (0, 0.0, 10),
            (5, 0.0, 10),
            (5, 0.3, 10),
            (0, 0.3, 10),
            (0, 0.25, 10),
            (0, 0.01, 9),
        )
    ]


def _emptied(trainer_class: Any) -> list[int]:
    """Return how often a run of five steps empties the cache of its device, after each number of steps."""
    found = []
    for steps in (None, 1, 2, 3):
        with patch.object(torch.cuda, "empty_cache") as called:
            line(trainer_class, max_steps=5, torch_empty_cache_steps=steps).train()
        found.append(called.call_count)
    return found


def _tokens(trainer_class: Any) -> list[Any]:
    """Return the tokens of loaders: all of them, those of a first batch times the steps, and none."""
    loader = [{"input_ids": torch.ones(2, 3)}, {"input_ids": torch.ones(1, 5)}]
    count: Callable[..., int] = trainer_class.num_tokens
    trainer = trainer_class(model=Line(), args=arguments(per_device_train_batch_size=3))
    bare: Any = [1, 2, 3, 4]
    return [count(loader), count(loader, 7), count([{"ids": torch.ones(1)}]), trainer.num_examples(bare)]


def _processing(trainer_class: Any) -> list[Any]:
    """Return the tokenizer of a trainer by its older name, and after it is set by that name."""
    trainer = trainer_class(model=Line(), args=arguments())
    trainer.processing_class = one = object()
    found = trainer.tokenizer is one
    trainer.tokenizer = other = object()
    return [found, trainer.processing_class is other]


def _saves_by_steps(trainer_class: Any) -> list[str]:
    return [one for one in _best(trainer_class) if "'save_strategy': 'best'" not in one]


PT = "transformers.trainer_pt_utils"
TRAINER = "transformers:Trainer"
Entries = Sequence[tuple[str, str, str, Callable[[Any], Any], Any]]
ENTRIES: Entries = (
    ("batches", f"{PT}:DistributedTensorGatherer", "arrays of three processes", gathered, GATHERED),
    ("batches", f"{PT}:SequentialDistributedSampler", "rows of three ranks", shared, SHARED),
    ("batches", TRAINER, "rows in groups of one length, an option of releases of 4", grouped, []),
    ("validations", TRAINER, "the older loop of predictions", predicted, []),
    (
        "states", TRAINER, "what models remember of a step", _remembered,
        [[None, 3.0, None, 3.0], False, [None, 6.0], False],
    ),
    ("checkpoints", TRAINER, "checkpoints by number, time and limit", _rotated, ROTATED),
    (
        "checkpoints", TRAINER, "checkpoints that are pickled", _pickled, [["pytorch_model.bin"], [], []],
    ),
    ("checkpoints", TRAINER, "the best step and what is left, of saves by steps", _saves_by_steps, []),
    ("counts", TRAINER, "epochs, steps and rows of a run, in releases of 4", _initial, INITIAL),
    ("counts", TRAINER, "tokens of loaders", _tokens, [11, 42, 0, 12]),
    (
        "calls", TRAINER, "masks that are causal", _causal,
        [True, True, True, False, True, True, False, True, False, False],
    ),
    (
        "checkpoints", TRAINER, "options that differ from those of a checkpoint", _compared,
        [[], ["logging_steps"], [], ["save_steps"], ["per_device_train_batch_size"]],
    ),
    ("options", "transformers:TrainingArguments", "steps and shares of a warm-up", _warmups, [0, 5, 5, 3, 3, 1]),
    ("steps", TRAINER, "a cache that is emptied, in releases of 4", _emptied, [0, 5, 3, 2]),
    ("starts", TRAINER, "a tokenizer by its older name", _processing, [True, True]),
    (
        "loops", "transformers.trainer_callback:DefaultFlowCallback", "at the end of a run, in releases of 4",
        partial(_flowing, "on_step_end", AT_THE_END),
        [["training_stop"], ["evaluate", "training_stop"], ["training_stop"], ["training_stop"]],
    ),
    (
        "starts", TRAINER, "options of a trial, in releases of 4", _tried,
        [0.1, [0.25, 2, 7, 3, 2, 5], ["int", "int"], 8, False, 7],
    ),
    (
        "counts", TRAINER, "labels of each model, in releases of 4", _shifts,
        {"causal": 10.0, "translated": None, "causal with an adapter": 10.0},
    ),
    (
        "validations", TRAINER, "streams and batches in lists, in releases of 4", lambda made: _streamed(made)[:2],
        [[True, round(LOSS, 5)], [[PAIRS[:2], PAIRS[2:4], PAIRS[4:]], round(LOSS, 5)]],
    ),
    ("steps", TRAINER, "an own loss in releases of 4", _said, ["scaled=False[0]: 10.0, 2.5 is due"]),
    (
        "starts", TRAINER, "collators and smoothers, in releases of 4", _defaults,
        ["DataCollatorWithPadding", "default_data_collator", "default_data_collator", None, 0.1, None],
    ),
    (
        "steps", TRAINER, "activations that are computed again, in releases of 4", _checkpointed,
        [{"use_reentrant": False}, True, None, True, False, False],
    ),
)  # fmt: skip
"""Subjects, places, names, calls, and what is right."""
# Sources: the documentation of Trainer and TrainingArguments of releases 4.
EARLIER_ROWS: Sequence[Row] = tuple(
    Row(subject, place, name, _earlier(call), right, since="4.57")
    for subject, place, name, call, right in ENTRIES
)
