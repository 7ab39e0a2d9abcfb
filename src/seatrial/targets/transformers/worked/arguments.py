"""Worked examples of Transformers' `TrainingArguments`: what follows, is refused, set or written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from seatrial.relations.contracts.worked import Refused
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.common.worked_rows import Row

PLACE = "transformers:TrainingArguments"
Options = Mapping[str, Any]


def _made(arguments: Any, options: Options) -> Any:
    return arguments(**{"output_dir": new_folder(), "use_cpu": True, "report_to": "none", **options})


def _value(found: Any) -> Any:
    """Return a value of an option as it is written."""
    if isinstance(found, list):
        return [_value(one) for one in found]
    return getattr(found, "value", found)


def _derived(options: Options, names: Sequence[str], arguments: Any) -> dict[str, Any]:
    made = _made(arguments, options)
    return {name: _value(getattr(made, name)) for name in names}


STEPS = {"eval_strategy": "steps"}
DERIVED: Sequence[tuple[str, Options, Options]] = (
    ("evaluations at the steps of logs", {**STEPS, "logging_steps": 7}, {"eval_steps": 7, "do_eval": True}),
    ("steps of evaluations of their own", {**STEPS, "logging_steps": 7, "eval_steps": 3}, {"eval_steps": 3}),
    ("no evaluation", {"logging_steps": 7}, {"eval_steps": None, "do_eval": False, "eval_strategy": "no"}),
    ("evaluations that are asked for", {"do_eval": True}, {"do_eval": True, "eval_strategy": "no"}),
    (
        "whole steps",
        {**STEPS, "logging_steps": 5.0, "eval_steps": 4.0, "save_steps": 6.0},
        {"logging_steps": 5, "eval_steps": 4, "save_steps": 6},
    ),
    (
        "shares of steps",
        {**STEPS, "logging_steps": 0.5, "eval_steps": 0.25, "save_steps": 0.75},
        {"logging_steps": 0.5, "eval_steps": 0.25, "save_steps": 0.75},
    ),
    (
        "the best by the loss",
        {"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "epoch"},
        {"metric_for_best_model": "loss", "greater_is_better": False},
    ),
    (
        "the best by saves of the best",
        {"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "best"},
        {"metric_for_best_model": "loss", "greater_is_better": False, "save_strategy": "best"},
    ),
    ("no best", {}, {"metric_for_best_model": None, "greater_is_better": None}),
    ("the best by a score", {"metric_for_best_model": "accuracy"}, {"greater_is_better": True}),
    ("the best by a loss of a name", {"metric_for_best_model": "eval_loss"}, {"greater_is_better": False}),
    ("the best by a word in loss", {"metric_for_best_model": "lossless"}, {"greater_is_better": True}),
    (
        "a direction that is given",
        {"metric_for_best_model": "accuracy", "greater_is_better": False},
        {"greater_is_better": False},
    ),
    (
        "a loss to be raised",
        {"metric_for_best_model": "loss", "greater_is_better": True},
        {"greater_is_better": True},
    ),
    (
        "rates by a metric",
        {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"},
        {"metric_for_best_model": "loss", "greater_is_better": False},
    ),
    ("no reports", {"report_to": ["none"]}, {"report_to": []}),
    ("one report", {"report_to": "tensorboard"}, {"report_to": ["tensorboard"]}),
    ("two reports", {"report_to": ["tensorboard", "wandb"]}, {"report_to": ["tensorboard", "wandb"]}),
    ("all tokens counted", {"include_num_input_tokens_seen": True}, {"include_num_input_tokens_seen": "all"}),
    ("no tokens counted", {"include_num_input_tokens_seen": False}, {"include_num_input_tokens_seen": "no"}),
    (
        "tokens counted without padding",
        {"include_num_input_tokens_seen": "non_padding"},
        {"include_num_input_tokens_seen": "non_padding"},
    ),
    ("a word of debugging", {"debug": "underflow_overflow"}, {"debug": ["underflow_overflow"]}),
    (
        "options of a schedule in a text",
        {"lr_scheduler_kwargs": '{"num_cycles": "3", "rate": "0.5", "a": "true", "b": {"c": "FALSE", "d": "x"}}'},
        {"lr_scheduler_kwargs": {"num_cycles": 3, "rate": 0.5, "a": True, "b": {"c": False, "d": "x"}}},
    ),
    (
        "options of checkpoints in a text",
        {"gradient_checkpointing_kwargs": '{"use_reentrant": false}'},
        {"gradient_checkpointing_kwargs": {"use_reentrant": False}},
    ),
    ("bfloat16", {"bf16": True}, {"mixed_precision": "bf16", "bf16": True, "fp16": False}),
    ("full precision", {"bf16": False}, {"mixed_precision": "no"}),
    (
        "a mode of compilation",
        {"torch_compile_mode": "reduce-overhead"},
        {"torch_compile": True, "torch_compile_backend": "inductor"},
    ),
    (
        "a backend of compilation",
        {"torch_compile_backend": "eager"},
        {"torch_compile": True, "torch_compile_backend": "eager", "torch_compile_mode": None},
    ),
    (
        "sizes of batches",
        {"per_device_train_batch_size": 3, "per_device_eval_batch_size": 5},
        {"train_batch_size": 3, "eval_batch_size": 5, "world_size": 1, "process_index": 0, "n_gpu": 0},
    ),
    ("one process", {"log_on_each_node": False}, {"should_log": True, "should_save": True, "local_process_index": 0}),
    ("no pinned memory", {"dataloader_pin_memory": True}, {"dataloader_pin_memory": False}),
    ("names of labels", {"label_names": ["a", "b"]}, {"label_names": ["a", "b"]}),
    ("a schedule and an optimizer", {"lr_scheduler_type": "cosine", "optim": "sgd"}, {"lr_scheduler_type": "cosine",
        "optim": "sgd"}),
    ("strategies", {"logging_strategy": "epoch", "save_strategy": "no"}, {"logging_strategy": "epoch",
        "save_strategy": "no"}),
)  # fmt: skip
"""A name, options, and what follows."""
RECENT: Sequence[tuple[str, Options, Options]] = (
    ("activations again", {"gradient_checkpointing": True}, {"activation_checkpointing": True,
        "gradient_checkpointing": True}),
    ("activations again, by their name", {"activation_checkpointing": True}, {"gradient_checkpointing": True}),
    (
        "activations kept, in two ways", {"gradient_checkpointing": True, "activation_checkpointing": False},
        {"activation_checkpointing": False, "gradient_checkpointing": False},
    ),
    ("activations kept", {}, {"activation_checkpointing": False, "gradient_checkpointing": False}),
)  # fmt: skip
BEST = {"load_best_model_at_end": True, "eval_strategy": "steps", "save_strategy": "steps"}
REFUSED: Sequence[tuple[str, Options, str]] = (
    ("logs after no step", {"logging_steps": 0}, "non-zero --logging_steps"),
    ("logs after 1.5 steps", {"logging_steps": 1.5}, "--logging_steps must be an integer"),
    ("evaluations after 2.5 steps", {**STEPS, "eval_steps": 2.5}, "--eval_steps must be an integer"),
    ("saves after 3.5 steps", {"save_steps": 3.5}, "--save_steps must be an integer"),
    ("the best without evaluations", {"load_best_model_at_end": True}, "save and eval strategy to match"),
    ("saves between evaluations", {**BEST, "eval_steps": 3, "save_steps": 4}, "round multiple"),
    ("saves more often than evaluations", {**BEST, "eval_steps": 4, "save_steps": 2}, "round multiple"),
    ("a share and a number of steps", {**BEST, "eval_steps": 0.4, "save_steps": 3}, "mixing ratio and absolute"),
    ("shares that do not fit", {**BEST, "eval_steps": 0.2, "save_steps": 0.3}, "not a multiple"),
    ("two precisions", {"fp16": True, "bf16": True}, "At most one of fp16 and bf16"),
    ("two precisions of evaluations", {"fp16_full_eval": True, "bf16_full_eval": True}, "At most one of fp16 and bf16"),
    ("rates by a metric of no evaluation", {"lr_scheduler_type": "reduce_lr_on_plateau"}, "requires an eval strategy"),
    ("a warmup before the start", {"warmup_steps": -1}, "warmup_steps"),
    ("batches loaded before without workers", {"dataloader_prefetch_factor": 2}, "dataloader_num_workers"),
    ("a cache that is emptied after no step", {"torch_empty_cache_steps": 0}, "bigger than 0"),
    ("a cache that is emptied after half a step", {"torch_empty_cache_steps": 0.5}, "bigger than 0"),
    ("evaluations after no step", {**STEPS, "logging_strategy": "no", "logging_steps": 0}, "non-zero --eval_steps"),
    ("a schedule of another name", {"lr_scheduler_type": "steep"}, "steep is not a valid"),
    ("an optimizer of another name", {"optim": "steep"}, "steep is not a valid"),
    ("a strategy of another name", {"eval_strategy": "steep"}, "steep is not a valid"),
)  # fmt: skip
ACCEPTED: Sequence[Options] = (
    {**BEST, "eval_steps": 0.1, "save_steps": 0.3},
    {**BEST, "eval_steps": 2, "save_steps": 4},
    {**BEST, "eval_steps": 0.05, "save_steps": 0.35},
    {**STEPS, "eval_steps": 3, "save_steps": 4},
    {"torch_empty_cache_steps": 1},
    {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 3, "save_strategy": "best"},
    {"dataloader_prefetch_factor": 2, "dataloader_num_workers": 1},
)


def _accepted(arguments: Any) -> list[str]:
    """Return which options are refused though they fit."""
    wrong = []
    for options in ACCEPTED:
        try:
            _made(arguments, options)
        except ValueError as error:
            wrong.append(f"{dict(options)}: {error}")
    return wrong


GROUPS: Mapping[str, Mapping[str, tuple[str, Any, Any]]] = {
    "set_training": {
        "learning_rate": ("learning_rate", 0.3, 5e-5), "batch_size": ("per_device_train_batch_size", 3, 8),
        "weight_decay": ("weight_decay", 0.2, 0), "num_epochs": ("num_train_epochs", 5, 3), "max_steps": ("max_steps",
            9, -1),
        "gradient_accumulation_steps": ("gradient_accumulation_steps", 4, 1), "seed": ("seed", 7, 42),
        "gradient_checkpointing": ("gradient_checkpointing", True, False),
    },
    "set_evaluate": {
        "strategy": ("eval_strategy", "steps", "no"), "steps": ("eval_steps", 3, 500),
            "batch_size": ("per_device_eval_batch_size", 6, 8),
        "accumulation_steps": ("eval_accumulation_steps", 2, None), "delay": ("eval_delay", 4, None),
        "loss_only": ("prediction_loss_only", True, False),
    },
    "set_testing": {"batch_size": ("per_device_eval_batch_size", 6, 8), "loss_only": ("prediction_loss_only", True,
        False)},
    "set_save": {
        "strategy": ("save_strategy", "epoch", "steps"), "steps": ("save_steps", 3, 500),
            "total_limit": ("save_total_limit", 2, None),
        "on_each_node": ("save_on_each_node", True, False),
    },
    "set_logging": {
        "strategy": ("logging_strategy", "epoch", "steps"), "steps": ("logging_steps", 3, 500), "level": ("log_level",
            "error", "passive"),
        "first_step": ("logging_first_step", True, False), "nan_inf_filter": ("logging_nan_inf_filter", True, False),
        "on_each_node": ("log_on_each_node", True, False), "replica_level": ("log_level_replica", "debug", "passive"),
    },
    "set_optimizer": {
        "name": ("optim", "adafactor", "adamw_torch"), "learning_rate": ("learning_rate", 0.3, 5e-5),
        "weight_decay": ("weight_decay", 0.2, 0), "beta1": ("adam_beta1", 0.7, 0.9), "beta2": ("adam_beta2", 0.8,
            0.999),
        "epsilon": ("adam_epsilon", 0.1, 1e-8), "args": ("optim_args", "a=1", None),
    },
    "set_lr_scheduler": {
        "name": ("lr_scheduler_type", "cosine", "linear"), "num_epochs": ("num_train_epochs", 5, 3.0),
            "max_steps": ("max_steps", 9, -1),
        "warmup_steps": ("warmup_steps", 2, 0),
    },
    "set_dataloader": {
        "train_batch_size": ("per_device_train_batch_size", 3, 8), "eval_batch_size": ("per_device_eval_batch_size",
            6, 8),
        "drop_last": ("dataloader_drop_last", True, False), "num_workers": ("dataloader_num_workers", 2, 0),
        "pin_memory": ("dataloader_pin_memory", False, True), "persistent_workers": ("dataloader_persistent_workers",
            True, False),
        "prefetch_factor": ("dataloader_prefetch_factor", 3, None), "auto_find_batch_size": ("auto_find_batch_size",
            True, False),
        "ignore_data_skip": ("ignore_data_skip", True, False), "sampler_seed": ("data_seed", 5, None),
    },
    "set_push_to_hub": {
        "strategy": ("hub_strategy", "end", "every_save"), "token": ("hub_token", "word", None),
        "private_repo": ("hub_private_repo", True, None), "always_push": ("hub_always_push", True, False),
    },
}  # fmt: skip
"""Methods, and of each argument: the option that it sets, a value, and the default."""
SWITCHES = {
    "set_training": "do_train", "set_testing": "do_predict", "set_evaluate": "do_eval",
        "set_push_to_hub": "push_to_hub",
}  # fmt: skip


def _set(method: str, arguments: Any) -> list[str]:
    """Return which options a method does not set as given, and what it changes besides."""
    wrong = []
    more = {"model_id": "me/mine"} if method == "set_push_to_hub" else {}
    for name, (_, value, _) in GROUPS[method].items():
        made = _made(arguments, {})
        given = {**more, name: value}
        if getattr(made, method)(**given) is not made:
            wrong.append(f"{method} does not return the options")
        for other, (own, _, default) in GROUPS[method].items():
            due, found = (value if other == name else default), _value(getattr(made, own))
            wrong += [] if found == due else [f"{method} of {name}: {own} is {found}, {due} is due"]
        if method in SWITCHES:
            due = value == "steps" if method == "set_evaluate" else True
            found = getattr(made, SWITCHES[method])
            wrong += [] if found is due else [f"{method} of {name}: {SWITCHES[method]} is {found}"]
        others = {"train_sampling_strategy", "fp16", "bf16", "max_grad_norm", "label_smoothing_factor"}
        fresh = _made(arguments, {})
        wrong += [
            f"{method} changes {other}"
            for other in others
            if getattr(made, other, None) != getattr(fresh, other, None)
        ]
    for refused in ("set_evaluate", "set_save", "set_logging"):
        if method == refused:
            try:
                getattr(_made(arguments, {}), method)(strategy="steps", steps=0)
                wrong.append(f"{method} takes no steps")
            except ValueError:
                pass
    return wrong


def _warmups(arguments: Any) -> list[int]:
    """Return the steps of a warm-up: a number, or a share of all steps that is rounded up."""
    found = []
    for given, steps in ((0, 10), (1, 10), (5, 10), (0.3, 10), (0.25, 10), (0.01, 10), (0.5, 7), (20, 10)):
        found.append(_made(arguments, {"warmup_steps": given}).get_warmup_steps(steps))
    return found


def _written(arguments: Any) -> list[Any]:
    """Return what is written of options, and whether options of it are the same."""
    made = _made(
        arguments,
        {
            "learning_rate": 0.25, "optim": "sgd", "lr_scheduler_type": "cosine", "hub_token": "secret",
                "debug": "underflow_overflow",
            "lr_scheduler_kwargs": {"num_cycles": 2}, "accelerator_config": {"split_batches": True},
        },
    )  # fmt: skip
    kept = json.loads(made.to_json_string())
    names = ("learning_rate", "optim", "lr_scheduler_type", "hub_token", "debug", "lr_scheduler_kwargs")
    again = arguments(**{**kept, "hub_token": None})
    flat = made.to_sanitized_dict()
    return [
        [kept[name] for name in names],
        kept["accelerator_config"]["split_batches"],
        "secret" in str(made) or "secret" in made.to_json_string(),
        again.learning_rate == 0.25 and again.optim == made.optim and again.accelerator_config.split_batches,
        [flat["train_batch_size"], flat["lr_scheduler_kwargs"], flat["learning_rate"]],
    ]


def _accelerated(arguments: Any) -> list[Any]:
    """Return options of Accelerate from a dictionary, a text and a file, and whether other words are refused."""
    file = Path(new_folder()) / "options.json"
    file.write_text(json.dumps({"even_batches": False, "split_batches": True}), encoding="utf-8")
    found: list[Any] = []
    options = {"even_batches": False, "split_batches": True}
    for given in (options, json.dumps(options), str(file)):
        made = _made(arguments, {"accelerator_config": given}).accelerator_config
        found.append(
            [made.even_batches, made.split_batches, made.use_seedable_sampler, made.dispatch_batches]
        )
    file.write_text(json.dumps({"even": False}), encoding="utf-8")
    try:
        _made(arguments, {"accelerator_config": str(file)})
    except ValueError as error:
        found.append("unknown keys" in str(error))
    return found


def _levels(arguments: Any) -> list[int]:
    """Return levels of logs by word, and that of the package where none is given."""
    from transformers.utils import logging

    kept = logging.get_verbosity()
    words = ("debug", "info", "warning", "error", "critical")
    found = [_made(arguments, {"log_level": word}).get_process_log_level() for word in words]
    made = _made(arguments, {"log_level": "passive", "log_level_replica": "debug"})
    return [*found, made.get_process_log_level() - kept]


def _sharded(config: Options, names: Options, arguments: Any) -> dict[str, Any]:
    """Return options of FSDP; a run's other options stay as they are."""
    made = _made(arguments, {"fsdp": True, "fsdp_config": dict(config)})
    found = made.fsdp_plugin_args
    return {name: found.get(name, "not given") for name in names}


SHARDED: Sequence[tuple[str, Options, Options]] = (
    ("its defaults", {}, {"fsdp_version": 2, "reshard_after_forward": True, "cpu_offload": "not given",
        "state_dict_type": "FULL_STATE_DICT"}),
    ("weights that stay", {"reshard_after_forward": False, "cpu_offload": True}, {"reshard_after_forward": False,
        "cpu_offload": True}),
    ("names with its prefix", {"fsdp_reshard_after_forward": "false"}, {"reshard_after_forward": False}),
    (
        "a class of layers", {"transformer_layer_cls_to_wrap": "Block"},
        {"transformer_cls_names_to_wrap": "Block", "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "min_num_params": "not given"},
    ),
    ("classes of layers", {"transformer_layer_cls_to_wrap": ["Block", "Other"]},
        {"transformer_cls_names_to_wrap": "Block,Other"}),
    (
        "sizes of layers", {"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 30,
            "transformer_layer_cls_to_wrap": "Block"},
        {"min_num_params": 30, "transformer_cls_names_to_wrap": "not given"},
    ),
    (
        "kinds of files", {"state_dict_type": "SHARDED_STATE_DICT", "activation_checkpointing": "true",
            "cpu_ram_efficient_loading": True},
        {"state_dict_type": "SHARDED_STATE_DICT", "activation_checkpointing": True, "cpu_ram_efficient_loading": True},
    ),
)  # fmt: skip
# Sources: the documentation of TrainingArguments.
ARGUMENT_ROWS: Sequence[Row] = (
    *(Row("options", PLACE, name, partial(_derived, given, list(due)), dict(due), since="4.57") for name, given,
        due in DERIVED),
    *(Row("options", PLACE, name, partial(_derived, given, list(due)), dict(due), since="5.20") for name, given,
        due in RECENT),
    *(Row("combinations", PLACE, name, partial(_derived, given, []), Refused(words), since="4.57") for name, given,
        words in REFUSED),
    Row("combinations", PLACE, "options that fit", _accepted, [], since="4.57"),
    *(Row("options", PLACE, f"the group of {method}", partial(_set, method), [], since="4.57") for method in GROUPS),
    Row("options", PLACE, "steps of a warm-up", _warmups, [0, 1, 5, 3, 3, 1, 4, 20], since="5"),
    Row(
        "options", PLACE, "options that are written", _written,
        [
            [0.25, "sgd", "cosine", "<HUB_TOKEN>", ["underflow_overflow"], {"num_cycles": 2}],
            True, False, True, [8, "{'num_cycles': 2}", 0.25],
        ],
        since="4.57",
    ),
    Row("options", PLACE, "options of Accelerate", _accelerated, [[False, True, True, None]] * 3 + [True],
        since="4.57"),
    Row("options", PLACE, "levels of logs", _levels, [10, 20, 30, 40, 50, 0], since="4.57"),
    *(Row("options", PLACE, f"FSDP, {name}", partial(_sharded, given, due), dict(due), since="5.20") for name, given,
        due in SHARDED),
)  # fmt: skip
