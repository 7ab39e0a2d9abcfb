"""Calls of Transformers' trainer and its options whose results are on record; see `recorded_calls`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.targets.common.tiny import tiny_model, tiny_tokenizer
from seatrial.targets.transformers.worked.losses import numbers
from seatrial.targets.transformers.worked.recorded_calls import Call, refusal, rows_of
from seatrial.targets.transformers.worked.runs import arguments, numbered

TIMES = ("runtime", "per_second", "preparation_time", "compilation_time")


class Stream(torch.utils.data.IterableDataset[Any]):
    """Rows without a known number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __iter__(self) -> Iterator[Any]:
        return iter(numbered(self.number))


class Wide(nn.Module):
    """A model of two layers and a norm, whose outputs are a tuple, and a mapping by an option."""

    main_input_name = "number"

    def __init__(self, mapped: bool = False, named: str = "labels") -> None:
        super().__init__()
        self.mapped, self.named = mapped, named
        self.first, self.norm, self.last = nn.Linear(1, 3), nn.LayerNorm(3), nn.Linear(3, 1)
        with torch.no_grad():
            for at, value in enumerate(self.parameters()):
                value.copy_(numbers(*value.shape, seed=at) * 0.3)

    def forward(self, number: Tensor, labels: Tensor | None = None, target: Tensor | None = None) -> Any:
        found = self.last(self.norm(torch.tanh(self.first(number[:, None].float() / 5))))[:, 0]
        due = labels if self.named == "labels" else target
        loss = None if due is None else ((found - due) ** 2).mean()
        more = {"squares": found**2, "cubes": found**3}
        if self.mapped:
            return {**({} if loss is None else {"loss": loss}), "logits": found, **more}
        return ((loss,) if loss is not None else ()) + (found, *more.values())


def _metrics(found: Any) -> dict[str, float]:
    parts = found.predictions if isinstance(found.predictions, tuple) else (found.predictions,)
    labels = found.label_ids if isinstance(found.label_ids, tuple) else (found.label_ids,)
    losses = getattr(found, "losses", None)
    losses = [] if losses is None else losses
    inputs = found.inputs if getattr(found, "inputs", None) is not None else []
    return {
        "sum": float(sum(part.sum() for part in parts)),
        "number": len(parts),
        "labels": float(labels[0].sum()),
        "inputs": float(sum(inputs)) if len(inputs) else 0.0,
        "losses": len(losses),
    }


def _trainer(base: Any, model: Any = None, rows: Any = None, evals: Any = None, **options: Any) -> Any:
    class InOrder(base):  # type: ignore[misc]
        def _get_train_sampler(self, *given: Any) -> Any:
            return torch.utils.data.SequentialSampler(given[0] if given else self.train_dataset)

    own = InOrder if rows is None or hasattr(rows, "__len__") else base
    more = {name: options.pop(name) for name in ("compute_metrics", "callbacks") if name in options}
    return own(
        model=Wide(True) if model is None else model,
        train_dataset=numbered() if rows is None else rows,
        args=arguments(**{"optim": "sgd", "per_device_train_batch_size": 2, **options}),
        eval_dataset=evals,
        **more,
    )


def _untimed(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in metrics.items() if not any(time in name for time in TIMES)}


def _state(trainer: Any) -> list[Any]:
    """Return what is logged, weights, saved files and the state at the end."""
    logs = [_untimed(entry) for entry in trainer.state.log_history]
    state = trainer.state
    files = sorted(
        str(path.relative_to(trainer.args.output_dir))
        for path in Path(trainer.args.output_dir).rglob("*")
        if "checkpoint" in str(path) and path.is_file()
    )
    best = state.best_model_checkpoint and Path(state.best_model_checkpoint).name
    weights = [float(value.detach().double().sum()) for value in trainer.model.parameters()]
    numbers_of = [state.global_step, state.max_steps, state.epoch, state.num_train_epochs, state.total_flos]
    return [
        logs,
        weights,
        files,
        numbers_of,
        [best, state.best_metric, getattr(state, "best_global_step", None)],
    ]


EVERY: Mapping[str, Any] = {"logging_steps": 1}
EVALUATED: Mapping[str, Any] = {"eval_strategy": "steps", "eval_steps": 2, **EVERY}
SAVED: Mapping[str, Any] = {
    "save_strategy": "steps",
    "save_steps": 2,
    "eval_strategy": "steps",
    "eval_steps": 2,
}
RUNS: Mapping[str, Mapping[str, Any]] = {
    "each epoch": {"logging_strategy": "epoch", "num_train_epochs": 2, "eval_strategy": "epoch"},
    "the first step": {"logging_first_step": True, "logging_steps": 3, "num_train_epochs": 2},
    "parts of a run": {"logging_steps": 0.3, "eval_steps": 0.5, "eval_strategy": "steps", "max_steps": 8},
    "delayed evaluations": {**EVALUATED, "eval_delay": 3, "max_steps": 7},
    "evaluations at the start": {**EVALUATED, "eval_on_start": True, "max_steps": 3},
    "the best of metrics": {
        **SAVED,
        "load_best_model_at_end": True,
        "metric_for_best_model": "sum",
        "max_steps": 8,
        "greater_is_better": True,
        "save_total_limit": 2,
        "learning_rate": 0.3,
    },
    "the best of losses": {
        **SAVED,
        "load_best_model_at_end": True,
        "max_steps": 8,
        "save_total_limit": 1,
        "learning_rate": 0.2,
    },
    "saves of the best": {
        "save_strategy": "best",
        "eval_strategy": "steps",
        "eval_steps": 1,
        "max_steps": 6,
        "metric_for_best_model": "eval_loss",
        "learning_rate": 0.2,
    },
    "only the model": {**SAVED, "save_only_model": True, "max_steps": 4},
    "micro-batches": {**EVERY, "gradient_accumulation_steps": 3, "num_train_epochs": 2},
    "no last batch": {**EVERY, "dataloader_drop_last": True, "num_train_epochs": 2},
    "norms that are cut": {**EVERY, "max_grad_norm": 0.1, "num_train_epochs": 1},
    "no norms": {**EVERY, "max_grad_norm": 0.0, "num_train_epochs": 1},
    "decay and warm-up": {
        **EVERY,
        "optim": "adamw_torch",
        "weight_decay": 0.3,
        "warmup_steps": 2,
        "adam_beta1": 0.5,
        "adam_beta2": 0.7,
        "adam_epsilon": 0.01,
        "num_train_epochs": 2,
    },
    "a part of warm-up": {**EVERY, "warmup_ratio": 0.5, "lr_scheduler_type": "cosine", "num_train_epochs": 2},
    "Adagrad": {**EVERY, "optim": "adagrad", "num_train_epochs": 1},
    "RMSprop": {
        **EVERY,
        "optim": "rmsprop",
        "optim_args": "alpha=0.5,eps=0.1,momentum=0.3",
        "num_train_epochs": 1,
    },
    "SGD with arguments": {
        **EVERY,
        "optim_args": "momentum=0.5,nesterov=True,dampening=0",
        "num_train_epochs": 2,
    },
    "Adafactor": {**EVERY, "optim": "adafactor", "weight_decay": 0.1, "num_train_epochs": 2},
    "rates by losses": {
        **EVALUATED,
        "lr_scheduler_type": "reduce_lr_on_plateau",
        "max_steps": 8,
        "learning_rate": 0.2,
        "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5},
        "metric_for_best_model": "eval_loss",
    },
    "metrics with inputs": {**EVALUATED, "include_for_metrics": ["inputs", "loss"], "max_steps": 2},
    "losses alone": {**EVALUATED, "prediction_loss_only": True, "max_steps": 2},
    "evaluations in parts": {
        **EVALUATED,
        "eval_accumulation_steps": 1,
        "per_device_eval_batch_size": 2,
        "max_steps": 2,
    },
    "a minimal rate": {
        **EVERY,
        "lr_scheduler_type": "cosine_with_min_lr",
        "lr_scheduler_kwargs": {"min_lr": 0.02},
        "num_train_epochs": 2,
    },
    "a stable rate": {
        **EVERY,
        "lr_scheduler_type": "warmup_stable_decay",
        "warmup_steps": 2,
        "max_steps": 9,
        "lr_scheduler_kwargs": {"num_decay_steps": 3},
    },
}


def _run(options: Mapping[str, Any], base: Any) -> list[Any]:
    """Return the state of a run with its evaluations."""
    evals = numbered(5, first=20) if "eval_strategy" in options else None
    trainer = _trainer(base, evals=evals, compute_metrics=_metrics, **options)
    found = trainer.train()
    return [found.global_step, found.training_loss, _state(trainer)]


def _streams(base: Any) -> list[Any]:
    """Return states of runs on rows without a known number: fewer and more than steps, and none."""
    found: list[Any] = []
    for number, options in (
        (7, {"max_steps": 3}),
        (5, {"max_steps": 6}),
        (0, {"max_steps": 2}),
        (7, {}),
        (7, {"max_steps": 4, "gradient_accumulation_steps": 3}),
    ):

        def call(number: int = number, options: Any = options) -> Any:
            trainer = _trainer(base, rows=Stream(number), **EVERY, **options)
            return [trainer.train().global_step, _state(trainer)]

        found.append(refusal(call))
    evaluated = _trainer(base, evals=Stream(5), compute_metrics=_metrics, per_device_eval_batch_size=2)
    metrics = evaluated.evaluate()
    found.append(_untimed(metrics))
    loaders = (evaluated.get_eval_dataloader(), evaluated.get_train_dataloader())
    found += [refusal(partial(evaluated.num_examples, one)) for one in loaders]
    return found


NAMED: Sequence[Mapping[str, Any]] = (
    {}, {"label_names": ["target"]}, {"label_names": []}, {"prediction_loss_only": True},
)  # fmt: skip


def _outputs(base: Any) -> list[Any]:
    """Return predictions of models by the form of outputs, keys left out, names of labels and several sets."""
    found: list[Any] = []
    for mapped in (False, True):
        for options in NAMED:
            for ignored in (None, ["cubes"], ["logits", "squares"]):
                named = "target" if options.get("label_names") else "labels"
                model = Wide(mapped, named)
                if mapped:
                    model.config = type("Config", (), {"keys_to_ignore_at_inference": ["squares"]})()
                rows = [{"number": row["number"], named: row["labels"]} for row in numbered(5)]

                def call(
                    model: Any = model, rows: Any = rows, options: Any = options, ignored: Any = ignored
                ) -> Any:
                    trainer = _trainer(
                        base, model, per_device_eval_batch_size=2, remove_unused_columns=False, **options
                    )
                    out = trainer.predict(rows, ignore_keys=ignored, metric_key_prefix="own")
                    names = sorted(name for name in out.metrics if not any(time in name for time in TIMES))
                    return [out.predictions, out.label_ids, names, [out.metrics[name] for name in names]]

                found.append(refusal(call))
    trainer = _trainer(
        base, evals={"one": numbered(3), "two": numbered(4, first=9)}, compute_metrics=_metrics
    )
    for given in (None, "two", {"x": numbered(2)}, numbered(3)):
        out = refusal(lambda given=given: trainer.evaluate(given, metric_key_prefix="own"))
        found.append(out if isinstance(out, str) else _untimed(out))
    return found


def _asked(base: Any) -> list[Any]:
    """Return what a trainer says of its weights, optimizer and sizes of batches."""
    trainer = _trainer(base, optim="adamw_torch", weight_decay=0.2, gradient_accumulation_steps=3)
    model = trainer.model
    model.first.bias.requires_grad_(False)
    calls = (
        lambda: trainer.get_decay_parameter_names(model),
        lambda: trainer.get_num_trainable_parameters(),
        lambda: trainer.get_learning_rates(),
        lambda: trainer.create_optimizer() and None,
        lambda: trainer.get_learning_rates(),
        lambda: [[len(group["params"]), group["weight_decay"]] for group in trainer.get_optimizer_group()],
        lambda: trainer.get_optimizer_group(model.last.weight)["weight_decay"],
        lambda: trainer.get_optimizer_group(model.norm.weight)["weight_decay"],
        lambda: trainer.get_total_train_batch_size(trainer.args),
        lambda: trainer.get_tp_size(),
        lambda: list(trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())),
        lambda: list(trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader(), 6)),
        lambda: trainer.num_tokens(trainer.get_train_dataloader()),
        lambda: trainer.floating_point_ops({"number": torch.ones(2)}),
        lambda: [trainer.is_world_process_zero(), trainer.is_local_process_zero()],
        lambda: trainer.get_test_dataloader(numbered(3)).batch_size,
        lambda: trainer.num_examples(trainer.get_train_dataloader()),
    )
    return [refusal(call) for call in calls]


def _own_loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    return outputs["logits"].mean() * (num_items_in_batch or 1)


def _losses(base: Any) -> list[Any]:
    """Return losses of a model of tokens by labels, counts, smoothing and a custom function."""
    found: list[Any] = []
    ids = torch.arange(40, 52).reshape(2, 6)
    labels = ids.clone()
    labels[0, :3] = -100
    batches: Sequence[Mapping[str, Any]] = ({"input_ids": ids, "labels": labels}, {"input_ids": ids})
    for options in ({}, {"label_smoothing_factor": 0.2}):
        for own in (
            None,
            lambda outputs, labels, num_items_in_batch=None: (
                outputs["logits"].mean() * (num_items_in_batch or 1)
            ),
        ):
            trainer = base(
                model=tiny_model(tiny_tokenizer(), 0), args=arguments(**options), compute_loss_func=own
            )
            for batch in batches:
                for count in (None, 4):
                    call = partial(trainer.compute_loss, trainer.model, dict(batch), num_items_in_batch=count)
                    found.append(refusal(call))
            given = trainer.get_batch_samples(iter([dict(batches[0])] * 3), 2, torch.device("cpu"))
            found.append([len(given[0]), given[1]])
    return found


TRAINER = "transformers:Trainer"
CALLS: Sequence[Call] = (
    *(Call("steps", TRAINER, f"a run, {name}", partial(_run, options)) for name, options in RUNS.items()),
    Call("batches", TRAINER, "rows without a known number", _streams),
    Call("validations", TRAINER, "outputs of every form", _outputs),
    Call("states", TRAINER, "what it says of weights and batches", _asked),
    Call("formulas", TRAINER, "losses of tokens by options", _losses),
)
RUN_CALL_ROWS = rows_of(CALLS)
