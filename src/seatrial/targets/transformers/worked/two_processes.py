"""Worked examples of runs of Transformers' trainer in two processes of a gloo group, worked out as one run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.ranks import call_on_ranks
from seatrial.targets.common.trainers import new_folder, resuming
from seatrial.targets.common.worked_rows import Row, unlike
from seatrial.targets.transformers.short_runs import Line, Tokens
from seatrial.targets.transformers.worked.runs import arguments, line, numbered
from seatrial.targets.transformers.worked.setups import Naming
from seatrial.targets.transformers.worked.updates import _Due

Plan = Mapping[str, Any]
RANKS = 2


def _on_ranks(task: str, **plan: Any) -> list[Any]:
    return list(call_on_ranks(f"{__name__}:_rank", {"task": task, **plan}, RANKS))


def _rank(plan: Plan) -> Any:
    import transformers

    return TASKS[plan["task"]](transformers.Trainer, plan)


def _trained(trainer_class: Any, plan: Plan) -> Any:
    """Return logs and weights of a run of this process."""
    trainer = line(trainer_class, numbered(8), **plan["options"])
    found = trainer.train()
    names = ("loss", "grad_norm", "learning_rate", "epoch", "step")
    return {
        "logs": [
            {name: float(one[name]) for name in names if name in one} for one in trainer.state.log_history
        ],
        "weights": [float(trainer.model.slope.detach()), float(trainer.model.bias.detach())],
        "loss": float(found.training_loss),
        "rows": float(found.metrics["train_samples_per_second"] / found.metrics["train_steps_per_second"]),
    }


def _as_one(options: Plan, trainer_class: Any) -> list[str]:
    """Return where two processes do not train as one with batches twice as large."""
    given = {
        "num_train_epochs": 2,
        "per_device_train_batch_size": 2,
        "max_grad_norm": 0.3,
        "optim": "sgd",
        **options,
    }
    ranks = _on_ranks("trained", options=given)
    due = _Due(
        {**given, "per_device_train_batch_size": 2 * given["per_device_train_batch_size"]}, numbered(8)
    )
    wrong = []
    for number, rank in enumerate(ranks):
        what = f"process {number}"
        history = [one for one in rank["logs"] if "loss" in one]
        for name in ("loss", "grad_norm", "learning_rate", "epoch", "step"):
            found = [one[name] for one in history]
            wrong += unlike(found, [one[name] for one in due.logs], f"{what}: {name}", 1e-4)
        weights = [float(due.model.slope), float(due.model.bias)]
        wrong += unlike(rank["weights"], weights, f"{what}: weights", 1e-5)
        mean = sum(one["loss"] for one in due.steps) / len(due.steps)
        wrong += unlike([rank["loss"]], [mean], f"{what}: the loss of the run", 1e-4)
        rows = 4.0 if "max_steps" in options else 16 / len(due.steps)
        wrong += [] if abs(rank["rows"] - rows) < 0.02 * rows else [f"{what}: {rank['rows']} rows a step"]
    return wrong[:4]


def _counted(trainer_class: Any, plan: Plan) -> Any:
    """Return the weight of a step of labels that are counted, and the counts that the model is given."""
    model = Naming()
    args = arguments(
        optim="sgd", learning_rate=1.0, max_steps=1, per_device_train_batch_size=1, gradient_accumulation_steps=2,
        lr_scheduler_type="constant", max_grad_norm=0.0, remove_unused_columns=False,
        average_tokens_across_devices=plan["averages"],
    )  # fmt: skip
    made = type(line(trainer_class))
    made(model=model, args=args, train_dataset=plan["rows"]).train()
    return {"weight": -float(model.weight.detach()), "counts": model.seen}


COUNTED = [
    {"labels": [1, 2, 3]},
    {"labels": [7, -100, -100]},
    {"labels": [-100, 5, 5]},
    {"labels": [4, -100, -100]},
]


def _counts(trainer_class: Any) -> list[str]:
    """Return where a step is not by the labels of both processes, or by the mean of what each counts of its own."""
    wrong = []
    # The first process has the first and the third row, the other one the others.
    for averages, due, counts in ((True, 27 / 7, (7.0, 7.0)), (False, (16 / 5 + 11 / 2) / 2, (5.0, 2.0))):
        for rank, count in zip(_on_ranks("counted", averages=averages, rows=COUNTED), counts, strict=True):
            wrong += unlike([rank["weight"]], [due], f"{averages=}", 1e-5)
            wrong += [] if rank["counts"] == [count] * 2 else [f"{averages=}: counts {rank['counts']}"]
    return wrong


def _served(trainer_class: Any, plan: Plan) -> Any:
    """Return the rows of each batch of this process in two epochs."""
    rows = numbered(plan["number"])

    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(rows)

    options = {"per_device_train_batch_size": 2, "max_steps": 9, **plan["options"]}
    trainer = trainer_class(
        model=Line(), args=arguments(**options), train_dataset=Stream() if plan["streams"] else rows
    )
    loader = trainer.get_train_dataloader()
    found = []
    for epoch in range(2):
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)
        found.append([batch["number"].tolist() for batch in loader])
    return found


SERVED: Sequence[tuple[str, Plan]] = (
    ("rows", {}),
    ("rows of an odd number", {"number": 7}),
    ("rows that are dropped", {"number": 11, "options": {"dataloader_drop_last": True}}),
    ("batches that are split", {"options": {"accelerator_config": {"split_batches": True}}}),
    ("batches that one process makes", {"options": {"accelerator_config": {"dispatch_batches": True}}}),
    ("a stream", {"streams": True}),
    (
        "a stream that each process reads",
        {"streams": True, "options": {"accelerator_config": {"dispatch_batches": False}}},
    ),
    ("a seed of rows", {"options": {"data_seed": 3}}),
)


def _shared(trainer_class: Any) -> list[str]:
    """Return where processes do not share all rows of an epoch, in batches of their sizes."""
    wrong = []
    for what, given in SERVED:
        plan = {"number": 8, "streams": False, "options": {}, **given}
        first, second = _on_ranks("served", **plan)
        drops = plan["options"].get("dataloader_drop_last", False)
        size = 1 if plan["options"].get("accelerator_config", {}).get("split_batches") else 2
        for epoch, (one, other) in enumerate(zip(first, second, strict=True)):
            rows = [row for batch in (*one, *other) for row in batch]
            whole = set(range(1, plan["number"] + 1))
            if drops:
                wrong += [] if len(rows) == len({*rows}) == 8 else [f"{what}, epoch {epoch}: {rows}"]
            elif {*rows} != whole or len(rows) != plan["number"] + plan["number"] % 2:
                wrong.append(f"{what}, epoch {epoch}: {sorted(rows)}")
            if any(len(batch) > size for batch in (*one, *other)) or len(one) != len(other):
                wrong.append(f"{what}, epoch {epoch}: batches {one}, {other}")
            if {*map(tuple, one)} & {*map(tuple, other)}:
                wrong.append(f"{what}, epoch {epoch}: both processes have {one}, {other}")
        if not plan["streams"] and first[0] == first[1]:
            wrong.append(f"{what}: both epochs are alike")
    return wrong[:4]


def _evaluated(trainer_class: Any, plan: Plan) -> Any:
    """Return what metrics are given in this process, and what an evaluation gives."""
    seen: dict[str, Any] = {}

    def metrics(found: Any, compute_result: bool = True) -> dict[str, float]:
        for name in ("predictions", "label_ids", "inputs", "losses"):
            value = getattr(found, name, None)
            if isinstance(value, Mapping):
                value = value["number"]
            if value is not None:
                seen.setdefault(name, []).extend(
                    float(one) for one in torch.as_tensor(value).flatten().tolist()
                )
        return {"rows": float(len(seen["label_ids"]))} if compute_result else {}

    model: Any = Line()
    model.main_input_name = "number"
    args = arguments(per_device_eval_batch_size=2, include_for_metrics=["inputs", "loss"], **plan["options"])
    trainer = trainer_class(model=model, args=args, eval_dataset=numbered(7), compute_metrics=metrics)
    found = trainer.evaluate()
    return {**seen, "loss": found["eval_loss"], "rows": found["eval_rows"]}


def _gathered(trainer_class: Any) -> list[str]:
    """Return where evaluations of both processes are not of all rows, once and in their order."""
    rows = numbered(7)
    logits = [0.3 * row["number"] / 4 - 0.2 for row in rows]
    losses = [(one - row["labels"]) ** 2 for one, row in zip(logits, rows, strict=True)]
    wrong = []
    for options in (
        {}, {"eval_accumulation_steps": 1}, {"batch_eval_metrics": True},
    ):  # fmt: skip
        for rank in _on_ranks("evaluated", options=options):
            wrong += unlike(rank["predictions"], logits, f"{options}: predictions")
            wrong += unlike(rank["label_ids"], [row["labels"] for row in rows], f"{options}: labels")
            if "batch_eval_metrics" not in options:  # each process has the inputs of its own rows
                wrong += unlike(rank["inputs"], [row["number"] for row in rows], f"{options}: inputs")
            # Rows 7 and 1 are in the last batch of the first process, 2 and 3 in that of the other one: of these one
            # is left, whose loss is that of its batch.
            batches = [(losses[start] + losses[(start + 1) % 7]) / 2 for start in (0, 2, 4, 6)]
            due = [batches[row // 2] for row in range(7)]
            wrong += unlike(rank["losses"], due, f"{options}: losses")
            wrong += unlike([rank["rows"], rank["loss"]], [7, sum(due) / 7], f"{options}", 1e-5)
    return wrong[:4]


def _kept(trainer_class: Any, plan: Plan) -> Any:
    """Return weights, rows and random numbers of a run and of one that is resumed."""
    import random

    found = []
    for steps, checkpoint in ((4, None), (4, str(Path(plan["folder"]) / "checkpoint-2"))):
        own: dict[str, Any] = {
            "output_dir": plan["folder"], "max_steps": steps, "per_device_train_batch_size": 1,
            "lr_scheduler_type": "linear", "save_strategy": "steps" if checkpoint is None else "no", "save_steps": 2,
        }  # fmt: skip
        trainer = trainer_class(model=Line(), args=arguments(**own), train_dataset=numbered(12))
        seen: list[int] = []
        step = trainer.training_step

        def watched(model: Any, inputs: Any, *more: Any, seen: Any = seen, step: Any = step) -> Any:
            seen.extend(inputs["number"].tolist())
            torch.rand(int(os.environ["RANK"]) + 1)
            random.random()
            return step(model, inputs, *more)

        trainer.training_step = watched
        try:
            with resuming():
                trainer.train(resume_from_checkpoint=checkpoint)
        except RuntimeError as error:  # releases of 4 ask for the device cpu:0, which torch no longer knows
            if "restore data location" not in str(error):
                raise
            raise NotServed(f"torch does not load what this release saved: {error}") from error
        drawn = [float(torch.rand(())), random.random()]
        found.append({"weights": [float(trainer.model.slope.detach())], "rows": seen, "drawn": drawn})
    names = sorted(one.name for one in (Path(plan["folder"]) / "checkpoint-2").iterdir())
    return {
        "runs": found,
        "names": names,
        "saves": trainer.args.should_save,
        "first": trainer.is_world_process_zero(),
    }


def _resumed(trainer_class: Any) -> list[str]:
    """Return where a resumed run of two processes has other rows, weights or random numbers than a whole one."""
    wrong = []
    ranks = _on_ranks("kept", folder=new_folder())
    for number, rank in enumerate(ranks):
        whole, resumed = rank["runs"]
        wrong += unlike(resumed["weights"], whole["weights"], f"process {number}: weights", 1e-6)
        wrong += (
            [] if resumed["rows"] == whole["rows"][2:] else [f"process {number}: rows {resumed}, {whole}"]
        )
        wrong += unlike(resumed["drawn"], whole["drawn"], f"process {number}: random numbers", 1e-9)
        wrong += [] if [rank["saves"], rank["first"]] == [number == 0] * 2 else [f"process {number} saves"]
        wrong += (
            [] if {"rng_state_0.pth", "rng_state_1.pth"} <= {*rank["names"]} else [f"files {rank['names']}"]
        )
    if set(ranks[0]["runs"][0]["rows"]) & set(ranks[1]["runs"][0]["rows"]):
        wrong.append("both processes train on the same rows")
    return wrong


def _tokens(trainer_class: Any, plan: Plan) -> Any:
    """Return the tokens that runs count."""
    found = []
    for counts in ("all", "non_padding"):
        rows = [{"input_ids": [5] * length + [0] * (4 - length)} for length in (1, 2, 3, 4)]
        args = arguments(
            include_num_input_tokens_seen=counts, per_device_train_batch_size=1, num_train_epochs=1,
            remove_unused_columns=False, learning_rate=0.0,
        )  # fmt: skip

        def collate(given: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
            ids = torch.tensor([one["input_ids"] for one in given])
            return {"input_ids": ids, "attention_mask": (ids != 0).long()}

        trainer = trainer_class(model=Tokens(), args=args, train_dataset=rows, data_collator=collate)
        trainer.train()
        found.append(int(trainer.state.num_input_tokens_seen))
    return found


TASKS: Mapping[str, Callable[[Any, Plan], Any]] = {
    "trained": _trained, "counted": _counted, "served": _served, "evaluated": _evaluated, "kept": _kept,
    "tokens": _tokens,
}  # fmt: skip
OPTIONS: Sequence[tuple[str, Plan]] = (
    ("batches", {}),
    ("micro-batches", {"gradient_accumulation_steps": 2}),
    ("windows of logs", {"logging_steps": 2, "lr_scheduler_type": "linear"}),
    ("AdamW", {"optim": "adamw_torch", "weight_decay": 0.1, "max_steps": 3}),
)
PLACE = "transformers:Trainer"
# Sources: the documentation of Trainer and TrainingArguments.
PROCESS_ROWS: Sequence[Row] = (
    *(
        Row("processes", PLACE, f"two processes as one, {name}", partial(_as_one, options), [], since="4.57")
        for name, options in OPTIONS
    ),
    Row("processes", PLACE, "labels of two processes", _counts, [], since="4.57"),
    Row("processes", PLACE, "rows of two processes", _shared, [], since="4.57"),
    Row("processes", PLACE, "evaluations of two processes", _gathered, [], since="4.57"),
    Row("processes", PLACE, "a resume of two processes", _resumed, [], since="4.57"),
    Row(
        "processes", PLACE, "tokens of two processes", lambda trainer_class: _on_ranks("tokens"), [[16, 10]] * 2,
        since="4.57",
    ),
)  # fmt: skip
