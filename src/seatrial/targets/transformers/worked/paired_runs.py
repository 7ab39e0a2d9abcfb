"""Pairs of options of runs of Transformers' trainer: every run is computed again in float64, from the documentation."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from seatrial.relations.cases.pairwise import pairwise
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, before
from seatrial.targets.common.trainers import configuration, freeze_imports, new_folder, resuming
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.paired_due import RATE, Due, differences, steps_of
from seatrial.targets.transformers.worked.paired_models import (
    SMOOTHING,
    Case,
    Seen,
    losses_of,
    make_model,
    padded,
    takes_counts,
    text_rows,
)

Values = Sequence[tuple[str, Mapping[str, Any]]]
NO: tuple[str, Mapping[str, Any]] = ("", {})
FACTORS: Mapping[str, Values] = {
    "model": tuple((kind, {"kind": kind}) for kind in ("aligned", "counted", "causal", "adapted")),
    "weights": (NO, ("frozen", {"weights": "frozen"}), ("tied", {"weights": "tied"})),
    "loss": (NO, *((loss, {"loss": loss}) for loss in ("function", "overridden", "smoothed"))),
    "batch": tuple((f"batch {size}", {"per_device_train_batch_size": size}) for size in (2, 1, 3)),
    "parts": (NO, *((f"{parts} parts", {"gradient_accumulation_steps": parts}) for parts in (2, 3))),
    "rest": (NO, ("dropped rest", {"dataloader_drop_last": True})),
    "length": (
        ("2 epochs", {"num_train_epochs": 2}), ("1 epoch", {"num_train_epochs": 1}),
        ("1.5 epochs", {"num_train_epochs": 1.5}), ("5 steps", {"max_steps": 5}),
    ),
    "order": (
        NO, ("shuffled", {"order": "random", "seed": 5}), ("own seed", {"order": "random", "seed": 5, "data_seed": 9}),
        ("grouped", {"order": "group_by_length"}), ("stream", {"order": "stream"}),
    ),
    "loader": (
        NO, ("a worker", {"dataloader_num_workers": 1}),
        ("lasting workers", {"dataloader_num_workers": 1, "dataloader_persistent_workers": True,
                             "dataloader_prefetch_factor": 3}),
    ),
    "optimizer": (
        ("SGD", {"optim": "sgd"}), ("AdamW", {"optim": "adamw_torch", "adam_epsilon": 1e-4}),
        ("fused AdamW", {"optim": "adamw_torch_fused", "adam_beta1": 0.5, "adam_beta2": 0.7, "adam_epsilon": 1e-3}),
        ("Adafactor", {"optim": "adafactor"}), ("Adagrad", {"optim": "adagrad"}),
        ("momentum", {"optim": "sgd", "optim_args": "momentum=0.5, nesterov=True"}),
        ("RMSprop", {"optim": "rmsprop", "optim_args": "alpha=0.8,eps=0.01,momentum=0.3"}),
    ),
    "decay": (NO, ("decay", {"weight_decay": 0.3})),
    "schedule": (
        ("linear", {"lr_scheduler_type": "linear"}), ("constant", {"lr_scheduler_type": "constant"}),
        ("cosine", {"lr_scheduler_type": "cosine"}),
        ("raised", {"lr_scheduler_type": "constant_with_warmup"}),
        ("restarts", {"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": {"num_cycles": 2}}),
        ("polynomial", {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"power": 2.0, "lr_end": 0.01}}),
        ("lowest", {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 0.01}}),
        ("stable", {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_decay_steps": 2}}),
        ("plateau", {"lr_scheduler_type": "reduce_lr_on_plateau",
                     "lr_scheduler_kwargs": {"factor": 0.5, "patience": 0}}),
    ),
    "warmup": (NO, ("2 of warm-up", {"warmup": 2}), ("0.3 of warm-up", {"warmup": 0.3})),
    "limit": (("limit", {"max_grad_norm": 0.5}), ("no limit", {"max_grad_norm": 0.0}),
              ("low limit", {"max_grad_norm": 0.05})),
    "noise": (NO, ("noise", {"neftune_noise_alpha": 5.0})),
    "logs": (
        ("logs", {"logging_steps": 1}), ("logs of 2", {"logging_steps": 2, "logging_first_step": True}),
        ("logs of epochs", {"logging_strategy": "epoch"}), ("logs of 0.4", {"logging_steps": 0.4}),
    ),
    "tokens": (NO, ("all tokens", {"include_num_input_tokens_seen": "all"}),
               ("tokens", {"include_num_input_tokens_seen": "non_padding"})),
    "evaluations": (
        NO, ("evaluations of 2", {"eval_strategy": "steps", "eval_steps": 2}),
        ("evaluations of epochs at the start", {"eval_strategy": "epoch", "eval_on_start": True}),
        ("late evaluations", {"eval_strategy": "steps", "eval_steps": 1, "eval_delay": 3}),
        ("evaluations after the run", {"eval_strategy": "steps", "eval_steps": 3, "eval_delay": 100}),
        ("evaluations after 1.2 epochs", {"eval_strategy": "epoch", "eval_delay": 1.2}),
        ("evaluations of epochs of 2 sets", {"eval_strategy": "epoch", "sets": 2}),
    ),
    "saves": (
        NO, ("saves of 2", {"save_strategy": "steps", "save_steps": 2}),
        ("saves of epochs, 1 kept", {"save_strategy": "epoch", "save_total_limit": 1}),
        ("best", {"save_strategy": "best", "metric_for_best_model": "loss", "greater_is_better": True}),
        ("best at the end", {"save_strategy": "steps", "save_steps": 2, "load_best_model_at_end": True,
                             "save_total_limit": 1, "metric_for_best_model": "score", "greater_is_better": False}),
    ),
    "resume": (NO, ("resumed at 2", {"stop": 2}), ("resumed at 3", {"stop": 3})),
    "memory": (
        NO, ("checkpointed", {"gradient_checkpointing": True}),
        ("checkpointed again", {"gradient_checkpointing": True,
                                "gradient_checkpointing_kwargs": {"use_reentrant": True}}),
    ),
}  # fmt: skip
"""Options by name; what is not of `TrainingArguments` is of the case."""
LENGTHS = [name for name, _ in FACTORS["length"]]
OF_CASES = ("kind", "weights", "loss", "order", "warmup", "sets", "stop")


def _case(row: Mapping[str, int]) -> Case:
    chosen = [FACTORS[name][index] for name, index in row.items()]
    given: dict[str, Any] = {}
    for _, options in chosen:
        given |= options
    own = {name: given.pop(name) for name in OF_CASES if name in given}
    return Case(", ".join(name for name, _ in chosen if name), own, given)


def _fitted(row: Mapping[str, int]) -> dict[str, int]:
    """Return a row whose options fit each other: what another one excludes, or needs, is its first value."""
    fitted = _fitted_once(row)
    return fitted if fitted == row else _fitted(fitted)


def _fitted_once(row: Mapping[str, int]) -> dict[str, int]:
    fitted = dict(row)

    def drop(*names: str) -> None:
        fitted.update(dict.fromkeys(names, 0))

    own, options = _case(row).own, _case(row).options
    best = options.get("save_strategy") == "best"
    if own["kind"] in ("aligned", "counted"):
        drop("memory")
        if own.get("weights") == "tied":
            drop("saves", "resume")
    if own["kind"] == "adapted":
        drop("weights")
    if own.get("order") == "stream":
        fitted |= {"length": LENGTHS.index("5 steps"), "loader": 0, "rest": 0}
    if own.get("sets") and own.get("loss") == "smoothed":
        drop("loss")
    if options["lr_scheduler_type"] == "reduce_lr_on_plateau" or "save_total_limit" in options or best:
        drop("resume")
    if options.get("load_best_model_at_end"):
        fitted["evaluations"] = 1
        if own["kind"] == "adapted":
            drop("model")
    if (best or options["lr_scheduler_type"] == "reduce_lr_on_plateau") and (
        not options.get("eval_strategy") or own.get("sets") or options.get("eval_delay")
    ):
        fitted["evaluations"] = 1
    if own.get("stop", 0) >= steps_of(_case(fitted))[2]:
        drop("parts")
        fitted["length"] = 0
    # Workers that last draw no seed of a second epoch; a resumed run starts them in it, and one more number is drawn.
    if (
        own.get("stop")
        and own.get("order") == "group_by_length"
        and "dataloader_persistent_workers" in options
    ):
        drop("loader")
    return fitted


class _Stream(torch.utils.data.IterableDataset[Any]):
    """Rows again and again, without a length."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.rows


def _score(found: Any) -> dict[str, float]:
    """Return the mean score of the labels that count, each of the token at its place."""
    logits, labels = (torch.as_tensor(one) for one in (found.predictions, found.label_ids))
    counted = labels.ne(-100)
    return {"score": float(logits.gather(-1, labels.clamp(min=0)[..., None])[..., 0][counted].mean())}


def _given(case: Case) -> dict[str, Any]:
    """Return the options of a run; a release may name some otherwise."""
    import transformers

    known = inspect.signature(transformers.TrainingArguments).parameters
    options = {"learning_rate": RATE, "max_steps": -1, "per_device_eval_batch_size": 2, **case.options}
    order, warmup = case.own.get("order", "sequential"), case.own.get("warmup", 0)
    if isinstance(warmup, float) and "warmup_ratio" in known:
        options["warmup_ratio"] = warmup
    else:
        options["warmup_steps"] = warmup
    if order == "group_by_length":
        options |= (
            {"group_by_length": True} if "group_by_length" in known else {"train_sampling_strategy": order}
        )
    return options


def _in_release(case: Case) -> Case:
    """Return a case without the options that a release does not read: those of SGD and RMSprop before 5.

    Raises:
        NotServed: the release smooths means of micro-batches, and models divide sums by all labels of a step, or its
            RMSprop adds so little to the root that rounding decides.
    """
    import transformers
    from transformers.trainer_pt_utils import LabelSmoother

    counted = "num_items_in_batch" in inspect.signature(LabelSmoother.__call__).parameters
    parts = case.options.get("gradient_accumulation_steps", 1)
    if case.own.get("loss") == "smoothed" and takes_counts(case.own["kind"]) and parts > 1 and not counted:
        raise NotServed("this release adds up smoothed means of micro-batches")
    if "optim_args" in case.options and not hasattr(transformers, "trainer_optimizer"):
        try:
            importlib.import_module("transformers.trainer_optimizer")
        except ImportError:
            if case.options["optim"] == "rmsprop":
                raise NotServed("this release does not read the options of RMSprop") from None
            plain = {name: value for name, value in case.options.items() if name != "optim_args"}
            return case._replace(options=plain)
    return case


def _function(kind: str, seen: Seen) -> Callable[..., Tensor]:
    def loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        seen.counts.append(int(num_items_in_batch))
        return losses_of(kind, "function", outputs["logits"], labels, int(num_items_in_batch))

    return loss


def _trainer(trainer_class: Any, case: Case, seen: Seen, folder: str, model: Any, stop: int | None) -> Any:
    """Return a trainer that notes its micro-batches, noise, evaluations and events."""
    import transformers

    freeze_imports()
    kind, loss, order = case.own["kind"], case.own.get("loss", "own"), case.own.get("order", "sequential")
    options = _given(case)
    args = configuration(transformers.TrainingArguments, options)
    args.output_dir = folder

    class Noted(trainer_class):  # type: ignore[misc]
        def _get_train_sampler(self, *more: Any) -> Any:
            if order != "sequential":
                return super()._get_train_sampler(*more)
            return torch.utils.data.SequentialSampler(more[0] if more else self.train_dataset)

        def training_step(self, model: Any, inputs: Any, *more: Any, **named: Any) -> Any:
            seen.batches.append({name: value.clone() for name, value in inputs.items()})
            return super().training_step(model, inputs, *more, **named)

        def prediction_step(self, model: Any, inputs: Any, *more: Any, **named: Any) -> Any:
            seen.evaluated.append({name: value.clone() for name, value in inputs.items()})
            return super().prediction_step(model, inputs, *more, **named)

    class Overridden(Noted):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **named: Any) -> Any:
            outputs = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
            number = named.get("num_items_in_batch") if kind != "aligned" else None
            found = losses_of(
                kind, loss, outputs["logits"], inputs["labels"], None if number is None else int(number)
            )
            return (found, outputs) if return_outputs else found

    class Events(transformers.TrainerCallback):
        names: ClassVar[Sequence[str]] = (
            "on_train_begin", "on_epoch_begin", "on_step_begin", "on_substep_end", "on_pre_optimizer_step",
            "on_optimizer_step", "on_epoch_end", "on_evaluate", "on_save", "on_log", "on_train_end",
        )  # fmt: skip

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen.events.append("step_end")
            if state.global_step == stop:
                control.should_save = control.should_training_stop = True

    for name in Events.names:
        setattr(Events, name, _noting(seen, name.removeprefix("on_")))
    rows = text_rows()
    held_out = {
        f"set{number}": text_rows(3 + 2 * number, number) for number in range(case.own.get("sets", 1))
    }
    if loss == "smoothed":
        options["label_smoothing_factor"] = args.label_smoothing_factor = SMOOTHING
    trainer = (Overridden if loss == "overridden" else Noted)(
        model=model,
        args=args,
        data_collator=padded,
        train_dataset=_Stream(rows) if order == "stream" else rows,
        eval_dataset=held_out if "sets" in case.own else held_out["set0"],
        compute_metrics=_score,
        compute_loss_func=_function(kind, seen) if loss == "function" else None,
        callbacks=[Events()],
    )
    embeddings = (model.base_model.model if kind == "adapted" else model).get_input_embeddings()

    def watch(module: Any, given: Any, found: Any) -> None:
        if model.training and torch.is_grad_enabled() | bool(case.options.get("gradient_checkpointing")):
            seen.noises.append((found - module.weight[given[0]]).detach())

    class Late(transformers.TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen.handles.append(embeddings.register_forward_hook(watch))  # after the trainer's own

    trainer.add_callback(Late())
    return trainer


def _noting(seen: Seen, name: str) -> Callable[..., None]:
    def event(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        seen.events.append(name)

    return event


def _served(trainer_class: Any, case: Case, stop: int | None) -> tuple[Any, Any, Seen, str]:
    """Return the trainer and the result of a run, resumed after a step, what was seen of it, and its folder."""
    folder, seen = new_folder(), Seen()
    checkpoint, trainer, found = None, None, None
    for end in (stop, None) if stop else (None,):
        model = make_model(case.own["kind"], case.own.get("weights", "all"))
        if case.own["kind"] == "adapted" and before("transformers", "5")(None):
            model.enable_input_require_grads()  # which checkpoints of activations need there
        trainer = _trainer(trainer_class, case, seen, folder, model, end)
        with resuming():
            found = trainer.train(resume_from_checkpoint=checkpoint)
        seen.handles.pop().remove()
        seen.borders.append(len(seen.batches))
        checkpoint = str(Path(folder) / f"checkpoint-{stop}")
    return trainer, found, seen, folder


def _again(case: Case, trainer_class: Any) -> list[str]:
    """Return where a run is not the one that is computed again."""
    case = _in_release(case)
    stop = case.own.get("stop")
    trainer, found, seen, folder = _served(trainer_class, case, stop)
    due = Due(case, seen, trainer)
    wrong = differences(case, due, seen, trainer, found, folder)
    if stop and case.own.get("order") in ("random", "group_by_length"):
        whole = _served(trainer_class, case, None)[2]
        one, other = ([batch["input_ids"][:, 0].tolist() for batch in each.batches] for each in (seen, whole))
        if one != other:
            wrong.append(f"rows after a resume {one[seen.borders[0] :]}, {other[seen.borders[0] :]} are due")
    return wrong[:6]


def _cases() -> Sequence[Case]:
    rows = pairwise({name: len(of) for name, of in FACTORS.items()}, lambda row: True)
    return [*{case.name: case for case in map(_case, map(_fitted, rows))}.values()]


CASES = _cases()
REORDERED = KnownFailure(
    "a run that is resumed within a later epoch has the order of the first",
    finding="Transformers: the steps of its Trainer before 5.0",
    releases=before("transformers", "5"),
)


def _known(case: Case) -> KnownFailure | None:
    stop, (_, updates, _) = case.own.get("stop", 0), steps_of(case)
    mixed = case.own.get("order") in ("random", "group_by_length")
    return REORDERED if mixed and stop > updates and stop % updates else None


# Sources: the documentation of Trainer and TrainingArguments, and of torch's optimizers.
PAIRED_RUN_ROWS: Sequence[Row] = tuple(
    Row("steps", "transformers:Trainer", f"pairs of options: {case.name}", partial(_again, case), [], since="4.57",
        known=_known(case))
    for case in CASES
)  # fmt: skip
