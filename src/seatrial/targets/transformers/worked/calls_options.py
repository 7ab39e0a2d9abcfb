"""Calls that set options of Transformers' trainer whose results are on record; see `recorded_calls`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from seatrial.targets.transformers.worked.recorded_calls import Call, refusal, rows_of
from seatrial.targets.transformers.worked.runs import arguments

SETTERS: Sequence[tuple[str, Mapping[str, Any]]] = (
    (
        "set_training",
        {
            "learning_rate": 0.3,
            "batch_size": 5,
            "weight_decay": 0.1,
            "num_epochs": 2,
            "max_steps": 9,
            "gradient_accumulation_steps": 3,
            "seed": 8,
            "gradient_checkpointing": True,
        },
    ),
    (
        "set_evaluate",
        {
            "strategy": "steps",
            "steps": 7,
            "batch_size": 3,
            "accumulation_steps": 4,
            "delay": 2.0,
            "loss_only": True,
        },
    ),
    ("set_evaluate", {"strategy": "epoch"}),
    ("set_evaluate", {"strategy": "steps", "steps": 0}),
    ("set_testing", {"batch_size": 3, "loss_only": True}),
    ("set_save", {"strategy": "steps", "steps": 9, "total_limit": 3, "on_each_node": True}),
    ("set_save", {"strategy": "no"}),
    (
        "set_logging",
        {
            "strategy": "steps",
            "steps": 11,
            "report_to": "none",
            "level": "error",
            "first_step": True,
            "nan_inf_filter": False,
            "on_each_node": False,
            "replica_level": "info",
        },
    ),
    (
        "set_push_to_hub",
        {
            "model_id": "a/b",
            "strategy": "end",
            "token": "t",
            "private_repo": True,
            "always_push": True,
            "revision": "r",
        },
    ),
    (
        "set_optimizer",
        {
            "name": "adamw_torch",
            "learning_rate": 0.2,
            "weight_decay": 0.1,
            "beta1": 0.5,
            "beta2": 0.6,
            "epsilon": 0.01,
            "args": "a=1",
        },
    ),
    (
        "set_lr_scheduler",
        {"name": "cosine", "num_epochs": 4, "max_steps": 6, "warmup_ratio": 0.3, "warmup_steps": 5},
    ),
    (
        "set_dataloader",
        {
            "train_batch_size": 3,
            "eval_batch_size": 4,
            "drop_last": True,
            "num_workers": 2,
            "pin_memory": False,
            "persistent_workers": True,
            "prefetch_factor": 3,
            "auto_find_batch_size": True,
            "ignore_data_skip": True,
            "sampler_seed": 6,
        },
    ),
)


def _words(args: Any) -> dict[str, Any]:
    """Return options without those of a machine."""
    left = ("output_dir", "logging_dir", "run_name")
    return {name: str(value) for name, value in sorted(args.to_dict().items()) if name not in left}


def _set(kind: Any) -> list[Any]:
    """Return which options change by each call that sets some, and steps of warm-up."""
    found: list[Any] = []
    for name, given in SETTERS:
        made = arguments()
        before = _words(made)
        out = refusal(partial(getattr(made, name), **given))
        after = _words(made)
        found.append(
            [
                name,
                out if isinstance(out, str) else out is made,
                {one: after[one] for one in after if after[one] != before.get(one)},
            ]
        )
    for options in (
        {"warmup_steps": 3},
        {"warmup_steps": 0.25},
        {"warmup_ratio": 0.26},
        {"warmup_ratio": 0.1, "warmup_steps": 2},
    ):
        found.append(refusal(lambda options=options: arguments(**options).get_warmup_steps(11)))
    made = arguments(per_device_train_batch_size=3, per_device_eval_batch_size=5, hub_token="secret")
    words = made.to_sanitized_dict()
    return [
        *found,
        [words["train_batch_size"], words["eval_batch_size"], made.to_dict()["hub_token"]],
        sorted({type(value).__name__ for value in words.values()}),
        "secret" in made.to_json_string(),
        made.ddp_timeout_delta.total_seconds(),
        made.train_batch_size,
        made.eval_batch_size,
        made.world_size,
        made.place_model_on_device,
    ]


SHARED: Sequence[Mapping[str, Any]] = tuple(
    {"fsdp": fsdp, "fsdp_config": config}
    for fsdp in ("full_shard auto_wrap", ["shard_grad_op", "offload"], True, "other", "hybrid_shard")
    for config in (
        {},
        {"version": 2, "reshard_after_forward": False, "cpu_ram_efficient_loading": True},
        {"version": 1, "min_num_params": 2000, "backward_prefetch": "backward_pre", "forward_prefetch": True},
        {
            "transformer_layer_cls_to_wrap": ["A", "B"],
            "limit_all_gathers": False,
            "activation_checkpointing": True,
        },
        {
            "fsdp_transformer_layer_cls_to_wrap": "A",
            "state_dict_type": "FULL_STATE_DICT",
            "sync_module_states": True,
        },
    )
)


def _sharded(kind: Any) -> list[Any]:
    """Return what options of shared weights become: for Accelerate, and in the environment."""
    found: list[Any] = []
    for options in SHARED:
        kept = dict(os.environ)

        def call(options: Any = options, kept: Any = kept) -> Any:
            made = arguments(**options)
            words = {
                name: value
                for name, value in os.environ.items()
                if "FSDP" in name and kept.get(name) != value
            }
            return [str(made.fsdp), made.fsdp_config, str(getattr(made, "fsdp_plugin_args", None)), words]

        found.append(refusal(call))
        for name in set(os.environ) - set(kept):
            del os.environ[name]
        os.environ.update(kept)
    return found


OPTIONS = "transformers:TrainingArguments"
CALLS: Sequence[Call] = (
    Call("states", OPTIONS, "options that are set by calls", _set),
    Call("states", OPTIONS, "options of shared weights", _sharded),
)
OPTION_CALL_ROWS = rows_of(CALLS)
