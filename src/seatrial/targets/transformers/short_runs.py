"""Short runs and evaluations of Transformers' trainers, by the names of `contracts.utilities`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.relations.laws.utilities.short_runs import BATCH, EPOCHS, HELD_OUT, RATE, target_of
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.trainers import configuration, freeze_imports
from seatrial.targets.transformers.heads import EncoderDecoder, LanguageModel

LOGGED = ("step", "epoch", "loss", "grad_norm", "learning_rate", "eval_loss", "train_loss")


class Line(nn.Module):
    """A line through the numbers of rows."""

    def __init__(self) -> None:
        """Make its slope, and its bias, which does not decay."""
        super().__init__()
        self.slope, self.bias = nn.Parameter(torch.tensor(0.3)), nn.Parameter(torch.tensor(-0.2))

    def forward(self, number: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return predictions, and the mean of squared errors."""
        found = self.slope * number.float() / 4 + self.bias
        return {"loss": ((found - labels) ** 2).mean(), "logits": found}


class Known(nn.Module):
    """Outputs that are a row's number and its square."""

    def __init__(self) -> None:
        """Have a parameter, as models do."""
        super().__init__()
        self.one = nn.Parameter(torch.ones(()))

    def forward(self, number: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the outputs, and the mean squared error of the number."""
        pairs = torch.stack([number, number**2], dim=1) * self.one
        return {"loss": ((pairs[:, 0] - labels) ** 2).mean(), "logits": pairs}


class Tokens(nn.Module):
    """A loss that depends on no token."""

    main_input_name = "input_ids"

    def __init__(self) -> None:
        """Have a parameter."""
        super().__init__()
        self.one = nn.Parameter(torch.ones(()))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        """Return the loss."""
        return {"loss": self.one * 1.0}


def _arguments(options: Mapping[str, Any], kind: str = "TrainingArguments") -> Any:
    import transformers

    try:
        return configuration(getattr(transformers, kind), options)
    except TypeError as error:
        raise NotServed(str(error)) from error


def _row(number: int) -> dict[str, Any]:
    return {"number": number, "labels": target_of(number)}


def _trainer(in_order: bool) -> Any:
    """Return the class of a trainer, which serves rows in their order."""
    import transformers

    freeze_imports()

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *args: Any) -> Any:
            rows: Any = args[0] if args else self.train_dataset
            return torch.utils.data.SequentialSampler(rows)

    return InOrder if in_order else transformers.Trainer


def logged(options: Mapping[str, Any], number: int) -> list[dict[str, float]]:
    """Return the log of a run."""
    given = {
        "learning_rate": RATE,
        "num_train_epochs": EPOCHS,
        "per_device_train_batch_size": BATCH,
        "max_steps": -1,
        **options,
    }
    trainer = _trainer(in_order=True)(
        model=Line(),
        args=_arguments(given),
        train_dataset=[_row(row) for row in range(1, number + 1)],
        eval_dataset=[_row(number + row) for row in range(1, HELD_OUT + 1)],
    )
    model = trainer.model
    groups = [
        {"params": [model.slope], "weight_decay": options.get("weight_decay", 0.0)},
        {"params": [model.bias], "weight_decay": 0.0},
    ]
    trainer.optimizer = torch.optim.SGD(groups, lr=RATE)
    trainer.train()
    return [
        {name: float(value) for name, value in entry.items() if _is_logged(name, value, options)}
        for entry in trainer.state.log_history
    ]


def _is_logged(name: str, value: Any, options: Mapping[str, Any]) -> bool:
    return name in LOGGED and value is not None and (name != "grad_norm" or "max_grad_norm" in options)


def served(form: str, options: Mapping[str, Any], number: int) -> list[list[list[int]]]:
    """Return the rows of each update and micro-batch."""
    import transformers

    rows = [_row(row) for row in range(1, number + 1)]

    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(rows)

    found: list[list[list[int]]] = [[]]

    class Watching(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            found.append([])

    trainer = _trainer(in_order=form == "sequential")(
        model=Line(),
        args=_arguments(
            {
                "num_train_epochs": EPOCHS,
                "per_device_train_batch_size": BATCH,
                "learning_rate": 0.0,
                "max_steps": -1,
                **options,
            }
        ),
        train_dataset=Stream() if form == "stream" else rows,
        callbacks=[Watching()],
    )
    note_numbers(trainer, found)
    trainer.train()
    return found[:-1]


def note_numbers(trainer: Any, found: Sequence[list[list[int]]]) -> None:
    """Have a trainer append the numbers of the rows of each micro-batch to the last list."""
    step = trainer.training_step

    def watched(model: Any, inputs: Any, *more: Any) -> Any:
        found[-1].append(inputs["number"].tolist())
        return step(model, inputs, *more)

    trainer.training_step = watched


def metrics(options: Mapping[str, Any], number: int, batch: int) -> dict[str, float]:
    """Return the metrics of an evaluation, which are sums of what a function is given."""
    own = {name: value for name, value in options.items() if name not in ("cut", "sets")}
    args = _arguments({"per_device_eval_batch_size": batch, **own})
    names = own.get("include_for_metrics", ())
    sums: dict[str, float] = {}

    def summed(found: Any, compute_result: bool = True) -> dict[str, float]:
        one = {
            "rows": _length(found.label_ids),
            "outputs": _sum(found.predictions),
            "labels": _sum(found.label_ids),
        }
        if "inputs" in names:
            one["inputs"] = _sum(
                found.inputs["number"] if isinstance(found.inputs, Mapping) else found.inputs
            )
        if "loss" in names:
            one["losses"] = _sum(found.losses) * (_length(found.label_ids) if found.losses.ndim == 0 else 1)
        for name, value in one.items():
            sums[name] = sums.get(name, 0.0) + value
        if not compute_result:
            return {}
        result = dict(sums)
        if "losses" in result:
            result["losses"] /= result["rows"]
        sums.clear()
        return result

    rows = [_row(row) for row in range(1, number + 1)]
    others = [_row(row + 2) for row in range(1, number)]
    trainer = _trainer(in_order=False)(
        model=Known(),
        args=args,
        eval_dataset={"one": rows, "other": others} if options.get("sets") else rows,
        compute_metrics=summed,
        preprocess_logits_for_metrics=(lambda logits, labels: logits[:, :1]) if options.get("cut") else None,
    )
    freeze_imports()
    trainer.model.main_input_name = "number"
    wanted = ("rows", "outputs", "labels", "loss", "inputs", "losses")
    found = trainer.evaluate()
    return {name: float(value) for name, value in found.items() if name.endswith(wanted)}


def _sum(value: Any) -> float:
    return sum(map(_sum, value)) if isinstance(value, (list, tuple)) else float(value.sum())


def _length(value: Any) -> float:
    return float(sum(map(len, value))) if isinstance(value, (list, tuple)) else float(len(value))


def counted(counts: str, masked: bool, lengths: Sequence[int]) -> int:
    """Return the tokens that a run counts."""
    from seatrial.targets.common.tiny import tiny_tokenizer

    tokenizer = tiny_tokenizer()

    def collate(rows: Sequence[Mapping[str, int]]) -> dict[str, Tensor]:
        width = max(row["length"] for row in rows)
        pad = int(tokenizer.pad_token_id)
        ids = [[pad + 1] * row["length"] + [pad] * (width - row["length"]) for row in rows]
        mask = [[1] * row["length"] + [0] * (width - row["length"]) for row in rows]
        more = {"attention_mask": torch.tensor(mask)} if masked else {}
        return {"input_ids": torch.tensor(ids), **more}

    trainer = _trainer(in_order=True)(
        model=Tokens(),
        args=_arguments(
            {
                "include_num_input_tokens_seen": counts,
                "per_device_train_batch_size": 2,
                "num_train_epochs": 1,
                "max_steps": -1,
                "remove_unused_columns": False,
            }
        ),
        train_dataset=[{"length": length} for length in lengths],
        data_collator=collate,
        processing_class=tokenizer,
    )
    trainer.train()
    return int(trainer.state.num_input_tokens_seen)


def noisy(alpha: float | None, steps: int) -> dict[str, list[bool]]:
    """Return whether the embeddings of passes differ from the model's own."""
    import transformers

    freeze_imports()
    model = copy.deepcopy(LanguageModel().supervised_model())
    layer, seen = model.get_input_embeddings(), []

    def watch(module: Any, given: Any, found: Any) -> None:
        seen.append(not torch.equal(found, module.weight[given[0]]))

    trainer_class: Any = transformers.Trainer
    ids = [5, 9, 2, 7]
    rows = [{"input_ids": ids, "labels": ids}] * (2 * steps)
    trainer = trainer_class(
        model=model,
        args=_arguments(
            {
                "neftune_noise_alpha": alpha,
                "max_steps": steps,
                "per_device_train_batch_size": 2,
                "per_device_eval_batch_size": 8,
                "learning_rate": 0.0,
            }
        ),
        train_dataset=rows,
        eval_dataset=rows,
    )

    class Watching(transformers.TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            layer.register_forward_hook(watch)  # after the trainer's own

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_evaluate = state.global_step == steps

    trainer.add_callback(Watching())
    trainer.train()
    model.train()
    model(input_ids=torch.tensor([ids]))
    return {"training": seen[:steps], "evaluation": seen[steps:-1], "afterwards": seen[-1:]}


@cache
def _translator() -> EncoderDecoder:
    return EncoderDecoder()


def generated(options: Mapping[str, Any], batch: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what `Seq2SeqTrainer` predicts by generation, and what the model generates of each row alone."""
    import transformers

    freeze_imports()
    head, numbers = _translator(), range(5)
    model = copy.deepcopy(head.supervised_model()).eval()
    untouched = copy.deepcopy(model)
    called = dict(options.get("called", {}))
    own = {name: value for name, value in options.items() if name != "called"}
    made: Any = transformers.Seq2SeqTrainer
    trainer = made(
        model=model,
        args=_arguments(
            {"predict_with_generate": True, "per_device_eval_batch_size": batch, **own},
            "Seq2SeqTrainingArguments",
        ),
        data_collator=head.collate,
    )
    found = trainer.predict([head.row(number) for number in numbers], **called)
    limits = {"max_length": own["generation_max_length"]} if "generation_max_length" in own else {}
    beams = {"num_beams": own["generation_num_beams"]} if "generation_num_beams" in own else {}
    alone, labels, losses = [], [], []
    for number in numbers:
        row = head.row(number)
        ids = torch.tensor([row["input_ids"]])
        with torch.no_grad():
            alone.append(untouched.generate(input_ids=ids, **{**limits, **beams, **called})[0].tolist())
            losses.append(float(untouched(input_ids=ids, labels=torch.tensor([row["labels"]])).loss))
        labels.append(row["labels"])
    given: dict[str, Any] = {
        "ids": [_unpadded(row) for row in found.predictions.tolist()],
        "labels": [[label for label in row if label not in (-100, 0)] for row in found.label_ids.tolist()],
    }
    due: dict[str, Any] = {"ids": [_unpadded(row) for row in alone], "labels": labels}
    if batch == 1:
        given["loss"] = round(found.metrics["test_loss"], 4)
        due["loss"] = round(sum(losses) / len(losses), 4)
    return given, due


def _unpadded(row: Sequence[int]) -> list[int]:
    """Return ids up to the padding at the end; padding begins rows too."""
    found = [token for token in row if token != -100]
    while len(found) > 1 and found[-1] == 0:
        found.pop()
    return found


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "logged training": logged,
    "served rows": served,
    "evaluated metrics": metrics,
    "counted tokens": counted,
    "generated predictions": generated,
    "noise of a run": noisy,
}
