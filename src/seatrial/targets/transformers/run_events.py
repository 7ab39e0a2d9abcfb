"""Events, logs, columns and resumes of Transformers' trainer; see `relations.laws.utilities.run_events`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.relations.laws.utilities.run_events import BATCH, EPOCHS, GIVEN, WINDOW
from seatrial.targets.common.trainers import freeze_imports, resuming
from seatrial.targets.transformers.short_runs import Line, _arguments, _row, _trainer, note_numbers

NAMES = (
    "train_begin", "train_end", "epoch_begin", "epoch_end", "step_begin", "step_end", "substep_end", "log", "evaluate",
    "save", "pre_optimizer_step", "optimizer_step",
)  # fmt: skip
CALM = {
    "num_train_epochs": EPOCHS,
    "per_device_train_batch_size": BATCH,
    "learning_rate": 0.0,
    "max_steps": -1,
    "logging_strategy": "no",
    "save_strategy": "no",
}


def events(options: Mapping[str, Any], number: int) -> list[str]:
    """Return each event that a callback sees, with its step."""
    import transformers

    own = {name: value for name, value in options.items() if name != "requests"}
    requests = {step: what for what, step in options.get("requests", ())}
    found: list[str] = []

    class Watching(transformers.TrainerCallback):
        pass

    def watched_event(name: str) -> Callable[..., None]:
        def note(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            found.append(f"{name} {state.global_step}")
            if name == "step_end" and state.global_step in requests:
                setattr(control, f"should_{requests[state.global_step]}", True)

        return note

    for name in NAMES:
        setattr(Watching, f"on_{name}", watched_event(name))
    rows = [_row(row) for row in range(1, number + 1)]
    trainer = _trainer(in_order=True)(
        model=Line(),
        args=_arguments({**CALM, **own}),
        train_dataset=rows,
        eval_dataset=rows[:2],
        callbacks=[Watching()],
    )
    trainer.train()
    return found


class Given(nn.Module):
    """A loss that is a row's number."""

    def __init__(self) -> None:
        """Have a parameter."""
        super().__init__()
        self.one = nn.Parameter(torch.ones(()))

    def forward(self, number: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Return it."""
        return {"loss": self.one * 0 + number.double().mean()}


def logged(losses: Sequence[float], filters: bool) -> list[float]:
    """Return the logged losses of a run of these."""
    args = {
        **CALM,
        "num_train_epochs": 1,
        "per_device_train_batch_size": 1,
        "logging_strategy": "steps",
        "logging_steps": WINDOW,
        "logging_nan_inf_filter": filters,
    }
    trainer = _trainer(in_order=True)(
        model=Given(), args=_arguments(args), train_dataset=[{"number": float(loss)} for loss in losses]
    )
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def columns(options: Mapping[str, Any], form: str) -> list[str]:
    """Return the columns that the collator of a run is given."""
    import datasets
    import transformers

    freeze_imports()
    rows: Any = [dict.fromkeys(GIVEN, 1)] * 2
    seen: list[str] = []

    def collate(batch: Any) -> dict[str, Tensor]:
        seen.extend(batch[0])
        return {"number": torch.ones(len(batch)), "labels": torch.ones(len(batch))}

    made: Any = transformers.Trainer
    trainer = made(
        model=Line(),
        args=_arguments({**CALM, "num_train_epochs": 1, **options}),
        train_dataset=datasets.Dataset.from_list(rows) if form == "data set" else rows,
        data_collator=collate,
    )
    next(iter(trainer.get_train_dataloader()))
    return sorted(seen)


def resumed(options: Mapping[str, Any], number: int, stop: int) -> list[list[list[int]]]:
    """Return rows by update and micro-batch after a run that was stopped and resumed."""
    import transformers

    args = _arguments({**CALM, "save_strategy": "steps", "save_steps": stop, **options})
    found: list[list[list[int]]] = [[]]

    def trained(stops: bool, checkpoint: str | None) -> None:
        class Watching(transformers.TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                found.append([])
                control.should_training_stop = control.should_training_stop or (
                    stops and state.global_step == stop
                )

        trainer = _trainer(in_order=True)(
            model=Line(),
            args=args,
            train_dataset=[_row(row) for row in range(1, number + 1)],
            callbacks=[Watching()],
        )
        note_numbers(trainer, found)
        with resuming():
            trainer.train(resume_from_checkpoint=checkpoint)

    trained(True, None)
    found[:] = [[]]
    trained(False, str(Path(args.output_dir) / f"checkpoint-{stop}"))
    return found[:-1]


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "events of a run": events,
    "logged losses": logged,
    "columns of a run": columns,
    "rows after a resume": resumed,
}
