"""Worked examples of what Transformers' trainer reports: names of metrics, scalars and callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.short_runs import Line
from seatrial.targets.transformers.worked.runs import arguments, numbered

OF = "transformers.integrations.integration_utils"


def _renamed(function: Any) -> Any:
    return function(
        {"loss": 1.0, "eval_loss": 2.0, "test_f1": 3.0, "eval_eval_a": 4.0, "epoch": 5.0, "a_eval_b": 6.0}
    )


RENAMED = {
    "train/loss": 1.0,
    "eval/loss": 2.0,
    "test/f1": 3.0,
    "eval/eval_a": 4.0,
    "train/epoch": 5.0,
    "train/a_eval_b": 6.0,
}


def _written(callback: Any) -> list[Any]:
    """Return what a run writes of its losses and evaluations by step, and of a text and a list."""
    import transformers

    seen: list[Any] = []
    writer = SimpleNamespace(
        add_text=lambda name, text, *step: seen.append([name, *step]),
        add_scalar=lambda name, value, step: seen.append([name, step, value]),
        flush=lambda: None,
        close=lambda: seen.append("closed"),
    )
    try:
        made = callback(tb_writer=writer)
    except RuntimeError as error:
        raise ImportError(str(error)) from error
    made.on_log(None, transformers.TrainerState(global_step=3), None, {"eval_note": "word", "list": [1]})
    own = list(seen)
    seen.clear()
    trainer_class: Any = transformers.Trainer
    options = {"max_steps": 4, "logging_steps": 2, "eval_strategy": "steps", "eval_steps": 4}
    trainer = trainer_class(
        model=Line(), args=arguments(**options), train_dataset=numbered(), eval_dataset=numbered(2), callbacks=[made]
    )  # fmt: skip
    trainer.train()
    history = trainer.state.log_history
    due = [["train/loss", entry["step"], entry["loss"]] for entry in history if "loss" in entry]
    due += [["eval/loss", entry["step"], entry["eval_loss"]] for entry in history if "eval_loss" in entry]
    return [own, [one for one in due if one not in seen], seen[0], seen[-1], len(due)]


def _callbacks(function: Any) -> list[Any]:
    found: list[Any] = [
        [one.__name__ for one in function(given)]
        for given in (None, "none", "tensorboard", ["wandb", "mlflow"], [])
    ]
    try:
        function(["other"])
    except ValueError as error:
        found.append("other is not supported" in str(error))
    return found


# Sources: the documentation of the callbacks, and of report_to.
REPORT_ROWS: Sequence[Row] = (
    Row("metrics", f"{OF}:rewrite_logs", "names by their beginning", _renamed, RENAMED, since="4.46"),
    Row(
        "metrics", f"{OF}:TensorBoardCallback", "scalars of a run", _written,
        [[["eval/note", 3]], [], ["args"], "closed", 3], since="4.57",
    ),
    Row(
        "metrics", f"{OF}:get_reporting_integration_callbacks", "by name", _callbacks,
        [[], [], ["TensorBoardCallback"], ["WandbCallback", "MLflowCallback"], [], True], since="4.57",
    ),
)  # fmt: skip
