"""Worked examples of options together: what one needs, what it excludes, and what it leaves without effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from pydantic import BaseModel

from refrl.config import DataConfig
from refrl.config.base import SwitchedSection
from refrl.config.run import GRPORunConfig, SFTRunConfig
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.configuration import table
from seatrial.targets.reference.worked.edges import RANGES
from seatrial.targets.reference.worked.made import example
from seatrial.targets.reference.worked.options import refuses

APART: Mapping[str, Any] = {"policy.generation.colocated.enabled": False}
ASYNC: Mapping[str, Any] = {**APART, "grpo.async_grpo.enabled": True}
LORA = {"policy.lora_cfg.enabled": True}
DTENSOR, MEGATRON = {"policy.dtensor_cfg.enabled": True}, {"policy.megatron_cfg.enabled": True}
PACKED, DYNAMIC = {"policy.sequence_packing.enabled": True}, {"policy.dynamic_batching.enabled": True}
SHAPED = {"grpo.reward_shaping.enabled": True, "grpo.reward_shaping.overlong_buffer_length": 2}


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_ranges()
    yield from _of_switches()
    yield from _of_refusals()
    yield from _of_sources()
    yield from _of_processes()


SWITCHED: Mapping[str, tuple[Mapping[str, Any], Sequence[Any], Sequence[Any]]] = {
    "policy.train_micro_batch_size": ({}, (1,), (0,)),
    "policy.train_global_batch_size": ({}, (1, 8), (0,)),
    "policy.sequence_packing.train_mb_tokens": (PACKED, (128, None), (127,)),
    "policy.sequence_packing.logprob_mb_tokens": (PACKED, (128, None), (127,)),
    "policy.dynamic_batching.train_mb_tokens": (DYNAMIC, (128, None), (127,)),
    "policy.dynamic_batching.logprob_mb_tokens": (DYNAMIC, (128, None), (127,)),
    "policy.logprob_chunk_size": ({}, (0, None), (-1,)),
    "policy.router_aux_loss_coef": ({}, (0.0,), (-0.1,)),
    "policy.lora_cfg.dim": (LORA, (1,), (0,)),
    "policy.lora_cfg.alpha": (LORA, (0.5,), (0.0,)),
    "policy.lora_cfg.seed": (LORA, (0, 2**32 - 1), (-1, 2**32)),
    "policy.dtensor_cfg.tensor_parallel_size": (DTENSOR, (1,), (0,)),
    "policy.dtensor_cfg.context_parallel_size": (DTENSOR, (1,), (0,)),
    "policy.dtensor_cfg.expert_parallel_size": (DTENSOR, (1,), (0,)),
    "policy.megatron_cfg.tensor_model_parallel_size": (MEGATRON, (1,), (0,)),
    "policy.megatron_cfg.pipeline_model_parallel_size": (MEGATRON, (1,), (0,)),
    "policy.megatron_cfg.context_parallel_size": (MEGATRON, (1,), (0,)),
    "policy.megatron_cfg.expert_model_parallel_size": (MEGATRON, (1,), (0,)),
    "policy.megatron_cfg.expert_tensor_parallel_size": (MEGATRON, (1, None), (0, 2)),
    "policy.generation.vllm_cfg.gpu_memory_utilization": ({}, (0.1, 1.0), (0.0, 1.1)),
    "policy.generation.colocated.resources.gpus_per_node": (
        {**APART, "policy.generation.placement": "process"},
        (1, None),
        (0,),
    ),
    "policy.generation.weight_bucket_size_bytes": ({}, (1,), (0,)),
    "policy.generation.timeout_seconds": ({}, (0.5,), (0.0,)),
    "policy.generation.delta_compression.full_sync_interval": ({}, (1,), (0,)),
    "policy.generation.delta_compression.sparse_bucket_size_bytes": ({}, (1,), (0,)),
    "policy.generation.delta_compression.delta_load_batch_size_bytes": ({}, (1,), (0,)),
    "data.num_validation": ({}, (1,), (0,)),
    "cluster.num_processes": ({}, (1,), (0,)),
    "grpo.num_prompts_per_step": ({}, (2,), (0,)),
    "grpo.reward_shaping.overlong_buffer_length": (SHAPED, (1, 7), (0, 8)),
    "grpo.reward_shaping.overlong_buffer_penalty": (SHAPED, (0.5,), (0.0,)),
    "grpo.reward_shaping.max_response_length": (SHAPED, (2, None, 8), (0, 1, 9)),
    "grpo.dynamic_sampling_max_gen_batches": ({"grpo.use_dynamic_sampling": True}, (1, None), (0,)),
    "grpo.batch_multiplier": ({"grpo.use_dynamic_sampling": True}, (1.0, 1.5), (0.9,)),
    "grpo.async_grpo.max_trajectory_age_steps": (ASYNC, (1,), (0,)),
    "grpo.async_grpo.num_replicas": (ASYNC, (1,), (0,)),
    "grpo.async_grpo.stall_timeout_seconds": (ASYNC, (0.5,), (0.0,)),
    "grpo.async_grpo.drop_longer_than": (ASYNC, (1, None), (0,)),
    "loss_fn.ratio_clip_min": ({}, (0.0,), (-0.1,)),
    "loss_fn.ratio_clip_max": ({}, (0.0,), (-0.1,)),
    "loss_fn.ratio_clip_c": ({}, (1.1, None), (1.0,)),
    "loss_fn.fixed_length": ({"loss_fn.reduction": "fixed_length"}, (1,), (0,)),
    "loss_fn.reference_policy_kl_penalty": ({}, (0.0,), (-0.1,)),
    "loss_fn.importance_sampling_max": ({}, (1.1,), (1.0,)),
    "loss_fn.importance_sampling_min": ({}, (0.1, 1.0), (0.0, 1.1)),
    "data_plane.timeout_s": ({"data_plane.implementation": "ray"}, (0.5,), (0.0,)),
    "policy.max_total_sequence_length": ({}, (2,), (1,)),
    "sft.max_num_steps": ({}, (1,), (0,)),
    "sft.val_period": ({}, (0,), (-1,)),
    "sft.max_val_samples": ({}, (1,), (0,)),
    "sft.seed": ({}, (0, 2**32 - 1), (-1, 2**32)),
    "sft.stop_at_accuracy": ({"sft.val_period": 1}, (0.1, 1.0, None), (0.0, 1.1)),
}
"""By option: other options that it goes with, values at the edges of what is taken, and those beyond."""


def _of_ranges() -> Iterator[WorkedExample]:
    for name, (others, taken, beyond) in SWITCHED.items():
        tunes, section = name.startswith("sft."), name.rpartition(".")[0]
        for value in taken:
            yield example(f"{name}={value}", "", refuses, {**others, name: value}, tunes=tunes)
        for value in beyond:
            yield example(
                f"{name}={value} is refused",
                True,
                lambda given={**others, name: value}, tunes=tunes, section=section: (
                    section in refuses(given, tunes=tunes)
                ),
            )
    yield example(
        "every option with a bound has its edges here",
        [],
        lambda: sorted({*_bounded(GRPORunConfig), *_bounded(SFTRunConfig)} - SWITCHED.keys() - RANGES.keys()),
    )


def _sections(schema: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted name, section, field) of each option."""
    for name, field in schema.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _sections(kind, f"{path}{name}.")
        else:
            yield f"{path}{name}", schema, field


def _bounded(schema: Any) -> Iterator[str]:
    for name, _, field in _sections(schema):
        if any(hasattr(one, bound) for one in field.metadata for bound in ("gt", "ge", "lt", "le")):
            yield name


def _other(field: Any) -> Any:
    """Return a value that an option takes, other than its default."""
    words = str(field.annotation)
    if field.annotation is bool:
        return not field.default
    if "tuple" in words:
        return ("made",)
    if "int" in words or "float" in words:
        return (field.default or 1) + 1
    return "made"


def _of_switches() -> Iterator[WorkedExample]:
    for name, schema, field in _sections(GRPORunConfig):
        if issubclass(schema, SwitchedSection) and not name.endswith(".enabled"):
            yield example(
                f"{name} alone",
                True,
                lambda name=name, field=field: (
                    f"{name} has no effect without" in refuses({name: _other(field)})
                ),
            )
    for name, value in (
        ("overlong_buffer_length", 2),
        ("max_response_length", 5),
        ("overlong_buffer_penalty", 0.5),
    ):
        yield example(
            f"grpo.reward_shaping.{name} alone",
            True,
            lambda name=name, value=value: (
                "has no effect without" in refuses({f"grpo.reward_shaping.{name}": value})
            ),
        )


def _of_refusals() -> Iterator[WorkedExample]:
    for number, pair in enumerate(table("pairs")):
        words, bad, good = pair["says"], pair["refused"], pair["taken"]
        yield example(
            f"{number} {words}: {sorted(bad)}", True, lambda words=words, bad=bad: words in refuses(bad)
        )
        yield example(f"{number} taken: {sorted(good)}", "", refuses, good)


OWN: Mapping[str, tuple[set[str], Any]] = {
    "task_args": ({"task"}, {"max_length": 4}),
    "validation_path": ({"file", "files"}, "w"),
    "prompt_key": ({"file", "files"}, "q"),
    "answer_key": ({"file", "files"}, "a"),
    "solution_key": ({"file", "files"}, "s"),
    "on_overlap": ({"files"}, "drop"),
    "verifier": ({"task", "file", "files"}, "exact_match"),
    "verifiers": ({"task", "file", "files"}, {"exact_match": 1.0}),
    "environment": ({"task", "file", "files"}, "check"),
    "environment_args": (set(), {"max_turns": 3}),
    "system_prompt": ({"task", "file", "files"}, "be brief"),
    "num_train": ({"task", "file", "files"}, 9),
    "num_validation": ({"task", "file", "files"}, 9),
    "seed": ({"task", "file", "files"}, 9),
    "shuffle": ({"task", "file", "files"}, False),
}
"""By option of `data`: the sources of prompts that read it, given alone, and a value other than its default."""
SOURCES: Mapping[str, Mapping[str, Any]] = {
    "task": {"task": "reverse"},
    "file": {"train_path": "t"},
    "files": {"train_path": "t", "validation_path": "v"},
}


def _of_sources() -> Iterator[WorkedExample]:
    yield example(
        "every option of data is here", {*OWN, "task", "train_path"}, lambda: {*DataConfig.model_fields}
    )
    for name, (readers, value) in OWN.items():
        for source, given in SOURCES.items():
            right = "" if source in readers else f"data.{name} has no effect without"
            yield example(f"data.{name} of {source}", right, _read, {**given, name: value}, right)


def _read(given: Mapping[str, Any], words: str) -> str:
    """Return the words if the error has them, all of the error if not, and nothing if there is none."""
    try:
        DataConfig(**given)
    except ValueError as error:
        return words if words and words in str(error) else str(error)
    return ""


def _of_processes() -> Iterator[WorkedExample]:
    # Several processes work with local rows, sampled in step with training; generators in Ray need them to be there.
    for store, processes, asynchronous, placed, engine in product(
        ("local", "ray", "transfer_queue"), (1, 2, 4), (False, True), ("process", "ray"), ("process", "ray")
    ):
        given = {
            **APART,
            "data_plane.implementation": store,
            "cluster.num_processes": processes,
            "cluster.placement": placed,
            "policy.generation.placement": engine,
            "grpo.async_grpo.enabled": asynchronous,
        }
        taken = processes == 1 or (
            store == "local" and not asynchronous and (engine == "process" or placed == "ray")
        )
        name = f"{processes} processes, {store} rows, asynchronous: {asynchronous}, in {placed}, engine in {engine}"
        yield example(name, taken, lambda given=given: not refuses(given))
