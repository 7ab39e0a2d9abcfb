"""Worked examples of ranges: values at the edges of what options and tasks take, and those beyond."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from refrl.tasks.base import make_task
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example, refused
from seatrial.targets.reference.worked.options import refuses


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_edges()
    yield from _of_ranges()


EDGES: Mapping[str, Mapping[str, tuple[Sequence[int], Sequence[int]]]] = {
    "reverse": {
        "alphabet_size": ((2, 26), (1, 27)),
        "min_length": ((0, 4), (-1, 5)),
        "max_length": ((1, 1000), (0, 1001)),
    },
    "add": {"digits": ((1, 1000), (0, 1001))},
    "count_letters": {"length": ((1,), (0, 1001)), "alphabet_size": ((2, 26), (1, 27))},
    "code_print": {"limit": ((2,), (1,)), "num_operators": ((1, 3), (0, 4))},
    "colour": {"size": ((2, 4), (0, 3)), "num_features": ((1,), (0,))},
    "pitch": {"num_bands": ((2, 9), (1, 10)), "num_features": ((1,), (0,))},
    "lookup": {"min_length": ((0, 2), (-1, 3)), "alphabet_size": ((2, 26), (1, 27))},
}
"""By task and argument: values at the edges of what is taken, and those beyond."""


def _of_edges() -> Iterator[WorkedExample]:
    for name, arguments in EDGES.items():
        for key, (taken, beyond) in arguments.items():
            for value in taken:
                yield example(
                    f"{name} with {key}={value}",
                    name,
                    lambda name=name, **given: make_task(name, given).name,
                    **{key: value},
                )
            for value in beyond:
                yield refused(f"{key}", f"{name} with {key}={value}", make_task, name, {key: value})


RANGES: Mapping[str, tuple[Sequence[Any], Sequence[Any]]] = {
    "grpo.seed": ((0, 2**32 - 1), (-1, 2**32)),
    "grpo.max_num_steps": ((1,), (0,)),
    "grpo.val_period": ((0,), (-1,)),
    "grpo.max_val_samples": ((1,), (0,)),
    "grpo.num_generations_per_prompt": ((4,), (1,)),
    "grpo.max_verifier_error_share": ((0.0, 1.0), (-0.1, 1.1)),
    "grpo.advantage.epsilon": ((1e-9,), (0.0,)),
    "data.num_train": ((1,), (0,)),
    "data.seed": ((0, 2**32 - 1), (-1, 2**32)),
    "policy.max_grad_norm": ((None, 1e-3), (0.0,)),
    "policy.optimizer.lr": ((0.0,), (-1e-3,)),
    "policy.optimizer.betas": (([0.0, 0.0],), ([1.0, 0.9], [0.9, 1.0])),
    "policy.optimizer.eps": ((1e-12,), (0.0,)),
    "policy.optimizer.weight_decay": ((0.0,), (-0.1,)),
    "policy.scheduler.warmup_steps": ((0,), (-1,)),
    "policy.scheduler.min_lr_ratio": ((0.0, 1.0), (-0.1, 1.1)),
    "policy.generation.temperature": ((1e-3,), (0.0,)),
    "policy.generation.top_p": ((1e-3, 1.0), (0.0, 1.1)),
    "policy.generation.top_k": ((1, None), (0,)),
    "policy.generation.max_new_tokens": ((1,), (0,)),
    "policy.generation.block_tokens": ((0, None), (-1,)),
    "policy.logprob_batch_size": ((1,), (0,)),
    "checkpointing.save_period": ((0,), (-1,)),
    "checkpointing.keep_top_k": ((None,), (0,)),
    "cluster.num_threads": ((1, 1024, None), (0, 1025)),
    "data_plane.lease_s": ((0.1,), (0.0,)),
}
"""By option: values at the edges of what is taken, and those beyond."""

COUNTS = (
    *("policy.train_global_batch_size", "policy.train_micro_batch_size", "policy.lora_cfg.dim"),
    *(
        f"policy.{form}.{key}"
        for form in ("sequence_packing", "dynamic_batching")
        for key in ("train_mb_tokens", "logprob_mb_tokens")
    ),
    *(f"policy.dtensor_cfg.{kind}_parallel_size" for kind in ("tensor", "context", "expert")),
    *(
        f"policy.megatron_cfg.{kind}_parallel_size"
        for kind in ("tensor_model", "pipeline_model", "context", "expert_model", "expert_tensor")
    ),
    *("policy.generation.colocated.resources.gpus_per_node", "policy.generation.weight_bucket_size_bytes"),
    *(
        f"policy.generation.delta_compression.{key}"
        for key in ("full_sync_interval", "sparse_bucket_size_bytes", "delta_load_batch_size_bytes")
    ),
    *("data.num_validation", "cluster.num_processes", "grpo.num_prompts_per_step"),
    *("grpo.reward_shaping.overlong_buffer_length", "grpo.reward_shaping.max_response_length"),
    *("grpo.dynamic_sampling_max_gen_batches", "loss_fn.fixed_length"),
    *(f"grpo.async_grpo.{key}" for key in ("max_trajectory_age_steps", "num_replicas", "drop_longer_than")),
)
"""Options that count something: from 1."""
NUMBERS: Mapping[str, tuple[Sequence[float], Sequence[float]]] = {
    **dict.fromkeys(COUNTS, ((1,), (0,))),
    "policy.max_total_sequence_length": ((2,), (1,)),
    "policy.logprob_chunk_size": ((0,), (-1,)),
    "policy.router_aux_loss_coef": ((0.0,), (-0.1,)),
    "policy.lora_cfg.alpha": ((1e-3, 0.5), (0.0,)),
    "policy.lora_cfg.seed": ((0, 2**32 - 1), (-1, 2**32)),
    "policy.generation.vllm_cfg.gpu_memory_utilization": ((1e-3, 1.0), (0.0, 1.1)),
    "policy.generation.timeout_seconds": ((1e-3, 0.5), (0.0,)),
    "grpo.max_verifier_error_share": ((0.5,), (-0.1, 1.1)),
    "grpo.reward_shaping.overlong_buffer_penalty": ((1e-3, 0.5), (0.0,)),
    "grpo.batch_multiplier": ((1.0, 1.5), (0.9,)),
    "grpo.async_grpo.stall_timeout_seconds": ((1e-3, 0.5), (0.0,)),
    "loss_fn.ratio_clip_min": ((0.0, 0.5), (-0.1,)),
    "loss_fn.ratio_clip_max": ((0.0, 0.5), (-0.1,)),
    "loss_fn.ratio_clip_c": ((1.1,), (1.0,)),
    "loss_fn.reference_policy_kl_penalty": ((0.0, 0.5), (-0.1,)),
    "loss_fn.importance_sampling_max": ((1.1, 1.9), (1.0,)),
    "loss_fn.importance_sampling_min": ((1e-3, 1.0), (0.0, 1.1)),
    "data_plane.timeout_s": ((1e-3, 0.5), (0.0,)),
}
"""By option: values within its own range, which other options may still exclude, and values beyond."""
TUNED: Mapping[str, tuple[Sequence[float], Sequence[float]]] = {
    "sft.max_num_steps": ((1,), (0,)),
    "sft.val_period": ((0,), (-1,)),
    "sft.max_val_samples": ((1,), (0,)),
    "sft.seed": ((0, 2**32 - 1), (-1, 2**32)),
    "sft.stop_at_accuracy": ((1e-3, 1.0), (0.0, 1.1)),
}
"""The same of a fine-tuning."""


def _out_of_range(name: str, value: float, *, tunes: bool) -> bool:
    """Return whether the range of an option refuses a value."""
    said = refuses({name: value}, tunes=tunes)
    return name in said and (" greater than " in said or " less than " in said)


def _of_ranges() -> Iterator[WorkedExample]:
    for name, (taken, beyond) in RANGES.items():
        for value in taken:
            yield example(f"{name}={value}", "", refuses, {name: value})
        for value in beyond:
            yield example(
                f"{name}={value} is refused",
                True,
                lambda name=name, value=value: name in refuses({name: value}),
            )
    for tunes, numbers in ((False, NUMBERS), (True, TUNED)):
        for name, sides in numbers.items():
            for refusal, values in zip((False, True), sides, strict=True):
                for number in values:
                    yield example(
                        f"the range of {name} and {number}", refusal, _out_of_range, name, number, tunes=tunes
                    )
