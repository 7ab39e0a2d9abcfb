"""Worked examples of what Transformers' trainer uploads of a run and writes on the card of its model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

from seatrial.targets.common.tiny import tiny_model, tiny_tokenizer
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.runs import arguments, line

IDS = [40, 41, 42]


def _uploaded(trainer_class: Any) -> list[Any]:
    """Return what checkpoints upload by strategy: words of the commit, folders, and files that are left out."""
    import transformers.trainer

    found: list[Any] = []
    for strategy, saves in (
        ("every_save", "steps"), ("checkpoint", "epoch"), ("all_checkpoints", "steps"), ("end", "steps")
    ):  # fmt: skip
        trainer = line(trainer_class, hub_strategy=strategy, save_strategy=saves)
        folder = Path(trainer.args.output_dir)
        (folder / "checkpoint-3").mkdir()
        (folder / "checkpoint-3" / "config.json").write_text("{}", encoding="utf-8")
        trainer.hub_model_id, trainer.push_in_progress = "me/mine", None
        trainer.state.global_step, trainer.state.epoch = 3, 2.0
        hub = MagicMock()
        name = "hf_api" if hasattr(transformers.trainer, "hf_api") else "upload_folder"
        upload = hub.return_value.upload_folder if name == "hf_api" else hub
        with patch.object(transformers.trainer, name, hub):
            trainer._push_from_checkpoint(str(folder / "checkpoint-3"))
        calls = [
            [
                one.kwargs["commit_message"], one.kwargs.get("path_in_repo"), one.kwargs["repo_id"],
                Path(one.kwargs["folder_path"]).name.replace(folder.name, "folder"), one.kwargs["run_as_future"],
            ]
            for one in upload.call_args_list
        ]  # fmt: skip
        found.append([calls, (folder / "config.json").exists(), (folder / "training_args.bin").exists()])
    return found


STEP = "Training in progress, step 3"
UPLOADED = [
    [[[STEP, None, "me/mine", "folder", True]], True, True],
    [
        [
            ["Training in progress, epoch 2", None, "me/mine", "folder", True],
            ["Training in progress, epoch 2, checkpoint", "last-checkpoint", "me/mine", "checkpoint-3", True],
        ],
        True, True,
    ],
    [
        [
            [STEP, None, "me/mine", "folder", True],
            [f"{STEP}, checkpoint", "checkpoint-3", "me/mine", "checkpoint-3", True],
        ],
        True, True,
    ],
    [[], False, False],
]  # fmt: skip


def _card(trainer_class: Any) -> list[bool]:
    """Return what a card of a model says of its run."""
    rows = [{"input_ids": IDS, "labels": IDS}] * 2
    args = arguments(max_steps=2, logging_steps=1, learning_rate=0.125, seed=7)
    trainer = trainer_class(
        model=tiny_model(tiny_tokenizer(), 0), args=args, train_dataset=rows, eval_dataset=rows
    )
    trainer.train()
    trainer.evaluate()
    trainer.create_model_card(model_name="mine", tags="own", dataset="rows", language="en", license="mit")
    words = (Path(trainer.args.output_dir) / "README.md").read_text(encoding="utf-8")
    loss = f"{trainer.state.log_history[-1]['eval_loss']:.4f}"
    parts = (
        "learning_rate: 0.125",
        "seed: 7",
        f"Loss: {loss}",
        "- own",
        "# mine",
        "training_steps: 2",
        "license: mit",
    )
    return [one in words for one in parts]


def _pushed(trainer_class: Any) -> list[Any]:
    """Return what an upload of a whole run is given: its place, words, branch, and tags of the model on its card."""
    import transformers.trainer

    hub = MagicMock()
    name = "hf_api" if hasattr(transformers.trainer, "hf_api") else "upload_folder"
    upload = hub.return_value.upload_folder if name == "hf_api" else hub
    found: list[Any] = []
    for given in (
        {},
        {"commit_message": "own words", "blocking": False, "revision": "other", "tags": "mine"},
    ):
        model = tiny_model(tiny_tokenizer(), 0)
        model.model_tags = ["of the model"]
        trainer = trainer_class(model=model, args=arguments(hub_revision="own", hub_token="word"))
        trainer.hub_model_id = "me/mine"
        with patch.object(transformers.trainer, name, hub):
            trainer.push_to_hub(**given)
        called = upload.call_args.kwargs
        folder = Path(trainer.args.output_dir)
        card = (folder / "README.md").read_text(encoding="utf-8")
        found.append(
            [
                called["repo_id"], called["commit_message"], called["revision"], called["run_as_future"],
                called["token"], called["ignore_patterns"], called["folder_path"] == str(folder),
                [one in card for one in ("- of the model", "- mine")], (folder / "model.safetensors").exists(),
            ]
        )  # fmt: skip
    return found


LEFT_OUT = ["_*", "checkpoint-*"]
PUSHED = [
    ["me/mine", "End of training", "own", False, "word", LEFT_OUT, True, [True, False], True],
    ["me/mine", "own words", "other", True, "word", LEFT_OUT, True, [True, True], True],
]


PLACE = "transformers:Trainer"
ENTRIES: Sequence[tuple[str, str, Callable[[Any], Any], Any]] = (
    ("checkpoints", "uploads by strategy", _uploaded, UPLOADED),
    ("checkpoints", "an upload of a whole run", _pushed, PUSHED),
    ("files", "a card of a model", _card, [True] * 7),
)  # fmt: skip
# Sources: the documentation of Trainer and TrainingArguments.
UPLOAD_ROWS: Sequence[Row] = tuple(
    Row(subject, PLACE, name, call, right, since="4.57") for subject, name, call, right in ENTRIES
)
