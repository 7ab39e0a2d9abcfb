"""Worked examples of the rows that Transformers' trainer takes and groups, and of the losses that it makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.targets.common.known import KnownFailure, before
from seatrial.targets.common.tiny import tiny_model, tiny_tokenizer
from seatrial.targets.common.worked_rows import Row, unlike
from seatrial.targets.transformers.worked.predictions import Shaped, collate, labelled_rows
from seatrial.targets.transformers.worked.runs import arguments


def _counts(trainer_class: Any) -> list[Any]:
    """Return how many labels each kind of loss divides by, of two micro-batches."""
    labels = torch.tensor([[7, 8, -100, 9], [-100, -100, -100, 6]])
    batch = {"labels": labels}
    shifted = {"labels": labels, "shift_labels": torch.tensor([[8, -100, -100, -100]] * 2)}

    def counted(trainer: Any, batches: Sequence[Any], number: int) -> list[Any]:
        got, count = trainer.get_batch_samples(iter(batches), number, torch.device("cpu"))
        return [len(got), None if count is None else float(count)]

    causal = trainer_class(model=tiny_model(tiny_tokenizer(), 0), args=arguments())
    plain = trainer_class(model=Shaped("dictionary"), args=arguments())
    own = trainer_class(model=Shaped("dictionary"), args=arguments(), compute_loss_func=lambda *one, **two: 0)
    found = [counted(one, [batch, batch, batch], 2) for one in (causal, plain, own)]
    found += [
        counted(causal, [shifted, batch], 5),
        counted(causal, [{"ids": labels}], 1),
        counted(causal, [], 1),
    ]
    return found


def _smoothed(trainer_class: Any) -> list[str]:
    """Return where smoothed losses of labels are not those of float64: shifted or not, counted, with an adapter."""
    from peft import LoraConfig, get_peft_model

    wrong, ids = [], torch.tensor([[40, 41, 42, 43], [44, 45, 46, 47]])
    labels = torch.tensor([[-100, 41, 42, 43], [44, 45, -100, -100]])
    base = tiny_model(tiny_tokenizer(), 0).eval()
    with torch.no_grad():
        logits = base(input_ids=ids).logits.double()
    rows = torch.log_softmax(logits[:, :-1], dim=-1)
    kept = labels[:, 1:] != -100
    nll = -rows.gather(-1, labels[:, 1:].clamp(min=0)[..., None])[..., 0][kept]
    spread = -rows.mean(dim=-1)[kept]
    for count in (None, 3, 9):
        due = (0.8 * nll + 0.2 * spread).sum() / (len(nll) if count is None else count)
        for adapter in (False, True):
            model = tiny_model(tiny_tokenizer(), 0)
            config: Any = LoraConfig(r=2, target_modules=["q_proj"])
            model = get_peft_model(model, config) if adapter else model
            trainer = trainer_class(model=model, args=arguments(label_smoothing_factor=0.2))
            batch = {"input_ids": ids, "labels": labels}
            given = None if count is None else torch.tensor(count)
            loss, outputs = trainer.compute_loss(
                model, dict(batch), return_outputs=True, num_items_in_batch=given
            )
            what = f"a count of {count}, {adapter=}"
            wrong += unlike([float(loss)], [float(due)], what, 1e-5)
            if not torch.allclose(outputs["logits"].double(), logits, atol=1e-4):
                wrong.append(f"{what}: other outputs")
            alone = trainer.compute_loss(model, dict(batch), num_items_in_batch=given)
            wrong += unlike([float(alone)], [float(due)], f"{what}, the loss alone", 1e-5)
    return wrong


def _own_loss(trainer_class: Any) -> list[Any]:
    """Return what an own loss is given, whether labels reach the model too, and the two losses."""
    seen: list[Any] = []

    def loss_of(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        seen.append(["loss" in outputs, labels.tolist(), None if num_items_in_batch is None else 4])
        return outputs["logits"].sum() / 10

    trainer = trainer_class(model=Shaped("dictionary").eval(), args=arguments(), compute_loss_func=loss_of)
    batch = collate(labelled_rows()[:2])
    losses = [
        float(trainer.compute_loss(trainer.model, dict(batch), num_items_in_batch=torch.tensor(4))),
        float(trainer.compute_loss(trainer.model, dict(batch))),
    ]
    words = ""
    try:
        trainer_class(model=Shaped("dictionary"), args=arguments()).compute_loss(
            trainer.model, {name: value for name, value in batch.items() if name != "labels"}
        )
    except ValueError as error:
        words = "did not return a loss" if "did not return a loss" in str(error) else str(error)
    return [seen, losses, words]


class _Scaled(nn.Module):
    """Numbers times a weight, with or without a loss of its own."""

    def __init__(self, form: str, own: bool) -> None:
        """Give a dictionary or a tuple, with a loss of its own or none."""
        super().__init__()
        self.weight, self.form, self.own = nn.Parameter(torch.tensor(0.5)), form, own
        self.config = SimpleNamespace(to_dict=dict, to_json_string=str)

    def forward(self, number: Tensor, labels: Tensor | None = None, target: Tensor | None = None) -> Any:
        """Return them; the loss is the mean of their squares."""
        found = {"logits": self.weight * number}
        if self.own:
            found = {"loss": (found["logits"] ** 2).mean(), **found}
        return tuple(found.values()) if self.form == "tuple" else found


def _own_losses(trainer_class: Any) -> list[str]:
    """Return where a step is not by an own loss, for any columns of rows and outputs of models."""
    wrong = []
    for form, own, column, smoothing in product(
        ("dictionary", "tuple"), (True, False), ("labels", "target", "label_names", None), (0.0, 0.2)
    ):
        seen: list[Any] = []

        def loss_of(
            outputs: Any, labels: Any, num_items_in_batch: Any = None, own: bool = own, seen: list[Any] = seen
        ) -> Any:
            logits = outputs["logits"] if isinstance(outputs, dict) else outputs[int(own)]
            seen.append(None if labels is None else labels.tolist())
            return ((logits - (3.0 if labels is None else labels)) ** 2).mean()

        name = "target" if column == "label_names" else column
        rows = [{"number": float(row + 1)} | ({} if name is None else {name: row - 1.0}) for row in range(4)]
        model = _Scaled(form, own)
        args = arguments(
            optim="sgd", max_steps=1, per_device_train_batch_size=4, max_grad_norm=0.0, logging_steps=1,
            label_smoothing_factor=smoothing, remove_unused_columns=False, lr_scheduler_type="constant",
            **({"label_names": ["target"]} if column == "label_names" else {}),
        )  # fmt: skip
        trainer = trainer_class(model=model, args=args, train_dataset=rows, compute_loss_func=loss_of)
        what = f"a {form}, {own=}, {column=}, {smoothing=}"
        try:
            trainer.train()
        except (ValueError, RuntimeError) as error:  # of a model without a loss of its own
            wrong.append(f"{what}: {error}")
            continue
        labelled = column == "labels"
        due = [(0.5 * one, one - 2.0 if labelled else 3.0, one) for one in (1.0, 2.0, 3.0, 4.0)]
        gradient = sum(2 * (found - right) * one for found, right, one in due) / 4
        loss = sum((found - right) ** 2 for found, right, _ in due) / 4
        wrong += unlike(
            [model.weight.item()], [0.5 - args.learning_rate * gradient], f"{what}, the weight", 1e-5
        )
        wrong += unlike([trainer.state.log_history[0]["loss"]], [loss], f"{what}, the loss", 1e-3)
        if [None if one is None else sorted(one) for one in seen] != [[-1, 0, 1, 2] if labelled else None]:
            wrong.append(f"{what}: labels {seen}")
    return wrong[:5]


def _columns(trainer_class: Any) -> list[Any]:
    """Return the columns that a model is given of data sets, of lists and of streams, with an own collator and none."""
    from datasets import Dataset

    seen: list[list[str]] = []

    def noted(rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        seen.append(sorted(rows[0]))
        return collate(rows)

    rows = [{**row, "extra": "word", "label": 1} for row in labelled_rows()]
    for removed in (True, False):
        trainer = trainer_class(
            model=Shaped("dictionary"),
            args=arguments(remove_unused_columns=removed),
            data_collator=noted,
            train_dataset=Dataset.from_list(rows),
            eval_dataset=rows,
        )
        for loader in (
            trainer.get_train_dataloader(),
            trainer.get_eval_dataloader(),
            trainer.get_eval_dataloader(Dataset.from_list(rows).to_iterable_dataset()),
            trainer.get_test_dataloader(Dataset.from_list(rows)),
        ):
            next(iter(loader))
    return seen


KEPT = ["first", "ids", "label", "labels", "number"]


ALL = ["extra", *KEPT]


def _samplers(trainer_class: Any) -> list[str]:
    """Return where rows that are grouped are not of about the length of a column, or of the ids, of each batch."""
    from datasets import Dataset

    class Ids:
        model_input_names = ("ids",)

    wrong = []
    lengths = [1 + (7 * row) % 11 for row in range(40)]
    for name, lists, processing in (
        ("width", False, False), ("ids", True, True), ("ids", False, True), ("input_ids", True, False),
    ):  # fmt: skip
        rows: list[dict[str, Any]] = [
            {
                "number": row,
                name: length if name == "width" else [0] * length,
                "ids": [0] * (1 if name == "width" else length),
            }
            for row, length in enumerate(lengths)
        ]
        data: Any = rows if lists else Dataset.from_list(rows)
        for strategy in ("group_by_length", "sequential", "batch_rebalance"):
            trainer = trainer_class(
                model=Shaped("dictionary"),
                args=arguments(
                    train_sampling_strategy=strategy, length_column_name="width", per_device_train_batch_size=2,
                    per_device_eval_batch_size=4, gradient_accumulation_steps=2,
                    remove_unused_columns=False,
                ),
                train_dataset=data,
                eval_dataset=data,
                data_collator=lambda rows: {"number": torch.tensor([row["number"] for row in rows])},
            )  # fmt: skip
            trainer.processing_class = Ids() if processing else None
            for kind, sampler in (
                ("training", trainer._get_train_sampler()),
                ("evaluation", trainer._get_eval_sampler(data)),
            ):
                order = [one for item in sampler for one in (item if isinstance(item, list) else [item])]
                what = f"{strategy} of {name}, {kind}"
                if sorted(order) != list(range(len(lengths))):
                    wrong.append(f"{what}: not every row once")
                if (strategy == "sequential" or (kind == "evaluation" and strategy != "group_by_length")) != (
                    order == sorted(order)
                ):
                    wrong.append(f"{what}: {order}")
                if strategy == "group_by_length":
                    found = [lengths[row] for row in order]
                    wrong += [f"{what}: {found}"] if found[0] != max(lengths) or not _sorted(found) else []
            loader = [one["number"].tolist() for one in trainer.get_train_dataloader()]
            if sorted(row for batch in loader for row in batch) != list(range(len(lengths))):
                wrong.append(f"{strategy} of {name}: batches {loader}")
    return wrong


def _column_of_lengths(trainer_class: Any) -> list[bool]:
    """Return whether rows are grouped by a column of lengths that the model does not take."""
    from datasets import Dataset

    lengths = [1 + (7 * row) % 11 for row in range(40)]
    rows = [{"number": row, "input_ids": [0], "width": length} for row, length in enumerate(lengths)]

    class Taking(Shaped):
        def forward(self, number: Tensor, input_ids: Tensor) -> Any:  # type: ignore[override]
            return super().forward(number, input_ids)

    found = []
    for strategy in ("group_by_length", "batch_rebalance"):
        trainer = trainer_class(
            model=Taking("dictionary"),
            args=arguments(
                train_sampling_strategy=strategy, length_column_name="width", per_device_train_batch_size=4
            ),
            train_dataset=Dataset.from_list(rows),
        )
        given: list[Any] = []

        def noted(data: Any, given: list[Any] = given, made: Any = trainer._get_train_sampler) -> Any:
            given.append(made(data))
            return given[0]

        trainer._get_train_sampler = noted
        trainer.get_train_dataloader()
        found.append(list(given[0].lengths) == lengths)
    return found


def _sorted(lengths: Sequence[int]) -> bool:
    """Return whether each eight rows are sorted, two groups of four; the longest row of all is moved to the front."""
    chunks = [lengths[start : start + 8] for start in range(0, len(lengths), 8)]
    return sum(later > one for chunk in chunks for one, later in pairwise(chunk)) <= 1


PLACE = "transformers:Trainer"
# Sources: the documentation of Trainer.compute_loss and TrainingArguments.
DATA_ROWS: Sequence[Row] = (
    Row(
        "counts",
        PLACE,
        "labels of micro-batches",
        _counts,
        [[2, 6.0], [2, None], [2, 8.0], [2, 5.0], [1, None], [0, None]],
        since="4.57",
        known=KnownFailure(
            "labels that the loss leaves out are counted",
            finding="Transformers: small functions of later releases",
            releases=before("transformers", "5.16"),
        ),
    ),
    Row(
        "steps",
        PLACE,
        "smoothed losses",
        _smoothed,
        [],
        since="4.57",
        known=KnownFailure(
            "the count of the whole batch is ignored",
            finding="Transformers: small functions of later releases",
            releases=before("transformers", "5.16"),
        ),
    ),
    Row(
        "steps",
        PLACE,
        "an own loss",
        _own_loss,
        [
            [[False, [0.0, 1.0], 4], [False, [0.0, 1.0], None]],
            [3.3, 3.3],
            "did not return a loss",
        ],
        since="4.57",
    ),
    Row("steps", PLACE, "an own loss of rows of any columns", _own_losses, [], since="4.57"),
    Row("batches", PLACE, "columns that a model takes", _columns, [KEPT] * 4 + [ALL] * 4, since="4.57"),
    Row("batches", PLACE, "rows in groups of one length", _samplers, [], since="5.20"),
    Row(
        "batches",
        PLACE,
        "a column of lengths",
        _column_of_lengths,
        [True, True],
        since="5.20",
        known=KnownFailure(
            "the column is removed before the sampler reads it, as the model does not take it",
            finding="Transformers: a column of lengths that the model does not take",
        ),
    ),
)
