"""Worked examples of what surrounds runs of Transformers' trainer: ranks, progress, memory and precision."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np
import torch
from torch import nn

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.tiny import tiny_model, tiny_tokenizer
from seatrial.targets.common.worked_rows import Row, unlike
from seatrial.targets.transformers.short_runs import Line
from seatrial.targets.transformers.worked.debugged import Two
from seatrial.targets.transformers.worked.runs import arguments, numbered


def _ranked(arguments_class: Any) -> list[Any]:
    """Return what options say of processes of two nodes: their numbers, who logs and saves, and levels of logs."""
    found = []
    for process, local in ((0, 0), (1, 1), (2, 0), (3, 1)):
        for own in (False, True):
            made = arguments(
                log_on_each_node=own, save_on_each_node=own, log_level="error", log_level_replica="info",
            )  # fmt: skip
            made.distributed_state = SimpleNamespace(
                num_processes=4,
                process_index=process,
                local_process_index=local,
                distributed_type="MULTI_CPU",
            )
            found.append(
                [
                    made.world_size, made.process_index, made.local_process_index, made.should_log, made.should_save,
                    logging.getLevelName(made.get_process_log_level()), made.parallel_mode.value,
                ]
            )  # fmt: skip
    return found


def _rank(process: int, local: int, first: bool) -> list[Any]:
    return [4, process, local, first, first, "ERROR" if first else "INFO", "distributed"]


RANKS = ((0, 0, True, True), (1, 1, False, False), (2, 0, False, True), (3, 1, False, False))
"""Processes of two nodes, those on their node, and whether each is the first one of all, and of its node."""
RANKED = [
    _rank(process, local, first)
    for process, local, one, other in RANKS
    for first in (one, other)
]  # fmt: skip


def _progress(callback: Any) -> list[Any]:
    """Return what bars count and write of a run, and whether logs stay as they are."""
    import transformers
    import transformers.trainer_callback

    bars: list[Any] = []

    def made_bar(**given: Any) -> Any:
        bars.append(MagicMock())
        bars[-1].total = given["total"]
        return bars[-1]

    state: Any = transformers.TrainerState(max_steps=5)
    logs = {"loss": 0.123456, "note": "w" * 130, "total_flos": 3.0, "count": 12345678, "small": 0.00001234}
    kept = dict(logs)
    with patch.object(transformers.trainer_callback, "tqdm", made_bar):
        made = callback()
        made.on_train_begin(None, state, None)
        for step in (1, 2, 5):
            state.global_step = step
            made.on_step_end(None, state, None)
        made.on_log(None, state, None, logs=logs)
        for _ in range(2):
            made.on_prediction_step(None, state, None, eval_dataloader=[1, 2, 3])
        made.on_evaluate(None, state, None)
        made.on_prediction_step(None, state, None, eval_dataloader=[1])
        made.on_predict(None, state, None)
        made.on_train_end(None, state, None)
        state.is_world_process_zero = False
        made.on_train_begin(None, state, None)
    written = bars[0].write.call_args.args[0]
    words = ("'loss'", "0.1235", "12345678", "1.234e-05", "total_flos")
    return [
        [one.total for one in bars], [call.args[0] for call in bars[0].update.call_args_list],
        [one.update.call_count for one in bars[1:]], [one.close.call_count for one in bars],
        [one in written for one in words if one != "0.1235"], "0.123" in written, logs == kept,
    ]  # fmt: skip


def _handled(handler: Any) -> list[Any]:
    """Return callbacks after they are added, taken out and removed, by class and by object."""
    import transformers

    class One(transformers.TrainerCallback):
        pass

    class Two(transformers.TrainerCallback):
        pass

    one, two, flow = One(), Two(), transformers.trainer_callback.DefaultFlowCallback
    made = handler([flow, one], None, None, None, None)

    def names() -> list[str]:
        return [type(callback).__name__.replace("DefaultFlowCallback", "Flow") for callback in made.callbacks]

    found: list[Any] = []
    made.add_callback(two)
    made.add_callback(Two)
    found.append([names(), made.callback_list.split("\n")[0].replace("DefaultFlowCallback", "Flow")])
    found.append([made.pop_callback(One) is one, names()])
    found.append([made.pop_callback(two) is two, names()])
    found.append([made.pop_callback(One), names()])
    made.remove_callback(Two)
    found.append(names())
    return found


HANDLED = [
    [["Flow", "One", "Two", "Two"], "Flow"], [True, ["Flow", "Two", "Two"]], [True, ["Flow", "Two"]],
    [None, ["Flow", "Two"]], ["Flow"],
]  # fmt: skip


def _measured(tracker: Any) -> list[Any]:
    """Return memory of stages: what they begin with, allocate, and free again, and those within others."""
    sizes = iter([100, 130, 130, 150, 150, 110, 110, 170])
    psutil: Any = SimpleNamespace(
        Process=lambda: SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=next(sizes, 0)))
    )
    with patch.dict(sys.modules, {"psutil": psutil}), contextlib.ExitStack() as patches:
        patches.enter_context(patch("transformers.trainer_utils.is_psutil_available", lambda: True))
        made = tracker(skip_memory_metrics=False)
        made.peak_monitor_func = lambda: setattr(made, "cpu_mem_used_peak", 160)
        found: list[Any] = []
        metrics: dict[str, Any] = {}

        def evaluate() -> None:
            made.start()
            made.stop_and_update_metrics(metrics)

        def train() -> None:
            made.start()
            evaluate()
            made.stop_and_update_metrics(metrics)

        def __init__() -> None:  # noqa: N807
            made.start()
            made.stop_and_update_metrics()

        for stage in (__init__, train, evaluate):
            stage()
            found.append({name: value for name, value in metrics.items() if "cpu" in name})
            metrics.clear()
        try:
            made.start()
        except ValueError as error:
            found.append("was called from" in str(error))
        found.append(tracker(skip_memory_metrics=True).start())
        return found


MEASURED = [
    {},
    {
        "init_mem_cpu_alloc_delta": 30, "init_mem_cpu_peaked_delta": 30, "train_mem_cpu_alloc_delta": 20,
        "train_mem_cpu_peaked_delta": 10, "before_init_mem_cpu": 100,
    },
    {"eval_mem_cpu_alloc_delta": -40, "eval_mem_cpu_peaked_delta": 50}, True, None,
]  # fmt: skip


def _layerwise(function: Any) -> list[Any]:
    """Return rates of the optimizer of a weight, which its own schedule lowers after each gradient."""
    import transformers.trainer_pt_utils

    weight = nn.Parameter(torch.ones(1))
    own = torch.optim.SGD([weight], lr=0.5)
    made: Any = transformers.trainer_pt_utils.LayerWiseDummyOptimizer
    optimizer = made(optimizer_dict={weight: own}, lr=0.5)
    schedule = function("linear", optimizer, num_warmup_steps=0, num_training_steps=4)
    found = [list(schedule.get_last_lr())]
    for _ in range(2):
        total: Any = (weight * 2).sum()
        total.backward()
        found.append([own.param_groups[0]["lr"]])
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()
    return [*found, schedule.get_last_lr(), float(weight.grad or 0), float(weight.detach())]


LAYERWISE = [[0.5], [0.375], [0.25], [0.25], 4.0, 1.0]


def _wrapped(trainer_class: Any) -> list[Any]:
    """Return options of models that processes share, by what is given and by the kind of a model."""
    from transformers.training_args import ParallelMode

    found: list[Any] = []
    for kind, given in (
        ("module", {}), ("model", {}), ("model", {"gradient_checkpointing": True}),
        ("model", {"ddp_find_unused_parameters": True, "gradient_checkpointing": True}),
        ("module", {"ddp_bucket_cap_mb": 7, "ddp_broadcast_buffers": False}),
    ):  # fmt: skip
        model: Any = Line() if kind == "module" else tiny_model(tiny_tokenizer(), 0)
        trainer = trainer_class(model=model, args=arguments(**given))
        if hasattr(trainer, "_build_accelerator_args"):
            handler = trainer._build_accelerator_args()["kwargs_handlers"][0]
        else:
            if given.get("gradient_checkpointing"):
                model.gradient_checkpointing_enable()
            with patch.object(type(trainer.args), "parallel_mode", ParallelMode.DISTRIBUTED):
                trainer._wrap_model(model)
            handler = trainer.accelerator.ddp_handler
        found.append([handler.find_unused_parameters, handler.bucket_cap_mb, handler.broadcast_buffers])
    return found


WRAPPED = [[True, 25, True], [True, 25, True], [False, 25, True], [True, 25, True], [True, 7, False]]


def _lower(trainer_class: Any) -> list[str]:
    """Return where a run in bfloat16 is not that of torch's own autocasts, weights in full precision."""
    trainer = trainer_class(
        model=Two(),
        args=arguments(bf16=True, optim="sgd", max_steps=3, per_device_train_batch_size=7, logging_steps=1),
        train_dataset=numbered(),
    )
    trainer.train()
    model = Two()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    batch = {name: torch.tensor([row[name] for row in numbered()]) for name in ("number", "labels")}
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(**batch)["loss"]
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    found = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    wrong = unlike(found, losses, "losses", 1e-4)
    own = dict(trainer.model.named_parameters())
    return wrong + [
        f"weight {name}" for name, value in model.named_parameters()
        if own[name].dtype != torch.float32 or not torch.allclose(own[name], value, atol=1e-5)
    ]  # fmt: skip


def _recomputed(trainer_class: Any) -> list[str]:
    """Return where activations that are computed again change weights, losses or norms of a run."""
    ends: list[Any] = []
    for again in (None, {"use_reentrant": False}, {"use_reentrant": True}):
        rows = [{"input_ids": [40 + row, 41, 42], "labels": [40 + row, 41, 42]} for row in range(4)]
        args = arguments(
            gradient_checkpointing=again is not None, gradient_checkpointing_kwargs=again, max_steps=3, logging_steps=1,
            max_grad_norm=0.5, optim="sgd", per_device_train_batch_size=2,
        )  # fmt: skip
        model = tiny_model(tiny_tokenizer(), 0)
        trainer = trainer_class(model=model, args=args, train_dataset=rows)
        trainer.train()
        logs = [
            one[name] for one in trainer.state.log_history for name in ("loss", "grad_norm") if name in one
        ]
        ends.append([*logs, *(float(value.detach().double().norm()) for value in model.parameters())])
    return (
        unlike(ends[1], ends[0], "not reentrant", 1e-5)[:2] + unlike(ends[2], ends[0], "reentrant", 1e-5)[:2]
    )


def _noisy(trainer_class: Any) -> list[Any]:
    """Return whether embeddings have noise within a run and none after it, with an adapter and without."""
    from peft import LoraConfig, get_peft_model

    found: list[Any] = []
    for adapted in (False, True):
        model = tiny_model(tiny_tokenizer(), 0)
        config: Any = LoraConfig(r=2, target_modules=["q_proj"])
        model = get_peft_model(model, config) if adapted else model
        layer = model.get_input_embeddings()
        rows = [{"input_ids": [40, 41, 42], "labels": [40, 41, 42]}] * 4
        args = arguments(
            neftune_noise_alpha=3.0, max_steps=2, learning_rate=0.0, per_device_train_batch_size=2
        )
        trainer = trainer_class(model=model, args=args, train_dataset=rows)
        seen: list[float] = []
        step = trainer.training_step

        def watched(
            model: Any, inputs: Any, *more: Any, layer: Any = layer, step: Any = step, seen: Any = seen
        ) -> Any:
            model.train()
            seen.append(float((layer(inputs["input_ids"]) - layer.weight[inputs["input_ids"]]).abs().max()))
            return step(model, inputs, *more)

        trainer.training_step = watched
        trainer.train()
        layer.train()
        bound = 3.0 / (3 * layer.weight.shape[1]) ** 0.5
        ids = torch.tensor([[40, 41]])
        found.append(
            [all(0.5 * bound < one <= bound for one in seen), torch.equal(layer(ids), layer.weight[ids])]
        )
    return found


def _named(trainer_class: Any) -> list[Any]:
    """Return tokens of models after those of a tokenizer, or of that of a processor."""
    found: list[Any] = []
    try:
        from transformers.processing_utils import ProcessorMixin
    except ImportError as error:
        raise NotServed(str(error)) from error

    class Processor(ProcessorMixin):
        attributes = ()

        def __init__(self, tokenizer: Any) -> None:
            self.tokenizer = tokenizer

    for processes in (False, True):
        tokenizer, model = tiny_tokenizer(), tiny_model(tiny_tokenizer(), 0)
        tokenizer.pad_token, tokenizer.bos_token = "b", None
        trainer = trainer_class(
            model=model, args=arguments(max_steps=1), processing_class=Processor(tokenizer) if processes else tokenizer,
            train_dataset=[{"input_ids": [40, 41], "labels": [40, 41]}] * 2,
            data_collator=lambda rows: {name: torch.tensor([row[name] for row in rows]) for name in rows[0]},
        )  # fmt: skip
        trainer.train()
        due = tokenizer.convert_tokens_to_ids("b")
        found.append([model.config.pad_token_id == due, model.generation_config.pad_token_id == due,
                      model.config.bos_token_id, model.generation_config.bos_token_id])  # fmt: skip
    return found


def _empty(function: Any) -> list[Any]:
    """Return arrays of more rows, filled with the padding, of arrays alone and in a structure."""
    alone = function(np.zeros((2, 3)), 1, padding_index=7)
    pair = function((np.zeros(2, dtype=np.int64), [np.zeros((1, 2))]), 3)
    return [alone.tolist(), pair[0].tolist(), pair[1][0].tolist(), type(pair).__name__]


TRAINER, CALLBACKS = "transformers:Trainer", "transformers.trainer_callback"
ENTRIES: Sequence[tuple[str, str, str, Callable[[Any], Any], Any]] = (
    ("processes", "transformers:TrainingArguments", "processes of two nodes", _ranked, RANKED),
    (
        "metrics", f"{CALLBACKS}:ProgressCallback", "bars and what they write", _progress,
        [[5, 3, 1], [1, 1, 3], [2, 1], [1, 1, 1], [True, True, True, False], True, True],
    ),
    ("loops", f"{CALLBACKS}:CallbackHandler", "callbacks that are added and taken out", _handled, HANDLED),
    ("metrics", "transformers.trainer_utils:TrainerMemoryTracker", "memory of stages", _measured, MEASURED),
    ("rates", "transformers.optimization:get_scheduler", "a schedule of each weight", _layerwise, LAYERWISE),
    (
        "calls", "transformers.trainer_pt_utils:nested_new_like", "of any structure", _empty,
        [[[7.0] * 3], [-100] * 3, [[-100.0, -100.0]] * 3, "tuple"],
    ),
    ("processes", TRAINER, "options of models that processes share", _wrapped, WRAPPED),
    ("steps", TRAINER, "a run in bfloat16", _lower, []),
    ("steps", TRAINER, "a run whose activations are computed again", _recomputed, []),
    ("steps", TRAINER, "a run with noise, and with an adapter", _noisy, [[True, True]] * 2),
    ("starts", TRAINER, "tokens of a tokenizer and of a processor", _named, [[True, True, None, None]] * 2),
)  # fmt: skip
# Sources: the documentation of Trainer, TrainingArguments and of the classes named.
SURROUNDING_ROWS: Sequence[Row] = tuple(
    Row(subject, place, name, call, right, since="4.57") for subject, place, name, call, right in ENTRIES
)
