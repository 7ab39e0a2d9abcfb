"""Worked examples of verl's configurations: what they derive, what they refuse, and methods by their names."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from seatrial.targets.common.target import find_name
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.verl.worked.tools import raised

CONFIGURATIONS = "verl.workers.config:"
CORRECTION = "verl.trainer.config.algorithm:RolloutCorrectionConfig"
FIELDS = (
    "rollout_is",
    "rollout_is_threshold",
    "rollout_rs",
    "rollout_rs_threshold",
    "bypass_mode",
    "loss_type",
)


def refusals(make: Callable[..., Any], *options: Mapping[str, Any]) -> list[str]:
    """Return the types of the errors that options raise, or `nothing`."""
    return [raised(make, **one) for one in options]


def _methods(config: Any) -> dict[str, list[Any]]:
    """Return the options of each method of correction, with thresholds of its own."""
    given: Mapping[str, Mapping[str, Any]] = {
        "decoupled_token_is": {"threshold": 3.0},
        "decoupled_seq_is": {"threshold": 3.0},
        "decoupled_token_icepop": {"threshold": 4.0, "threshold_lower": 0.25},
        "decoupled_seq_is_rs": {"is_threshold": 3.0, "rs_threshold": "0.1_5"},
        "decoupled_geo_rs": {"rs_threshold": "0.1_5"},
        "bypass_ppo_clip": {},
        "bypass_ppo_clip_geo_rs": {"rs_threshold": "0.1_5"},
        "bypass_ppo_clip_k3_rs": {"rs_threshold": 0.5},
        "bypass_pg_is": {"threshold": 3.0},
        "bypass_pg_token_icepop": {"threshold": 4.0, "threshold_lower": 0.25},
        "bypass_pg_geo_rs": {"rs_threshold": "0.1_5"},
        "decoupled_geo_rs_seq_tis": {"is_threshold": 3.0, "rs_threshold": "0.1_5"},
        "decoupled_geo_rs_token_tis": {"is_threshold": 3.0, "rs_threshold": "0.1_5"},
        "bypass_pg_geo_rs_seq_tis": {"is_threshold": 3.0, "rs_threshold": "0.1_5"},
        "bypass_pg_geo_rs_token_tis": {"is_threshold": 3.0, "rs_threshold": "0.1_5"},
        "decoupled_k3_rs": {"rs_threshold": 0.5},
        "decoupled_k3_rs_seq_tis": {"is_threshold": 3.0, "rs_threshold": 0.5},
        "decoupled_k3_rs_token_tis": {"is_threshold": 3.0, "rs_threshold": 0.5},
        "disabled": {},
    }
    return {
        name: [getattr(getattr(config, name)(**options), field) for field in FIELDS]
        for name, options in given.items()
    }


# By their names: decoupled from the rollout's policy or bypassing the old one; weights of tokens or of sequences, cut
# above (or at both sides, icepop); rejection by the mean of k1 (geo) or of k3; a policy gradient (pg) or PPO's loss.
_GEO, _THIRD, _PG = ["seq_mean_k1", "0.1_5"], ["seq_mean_k3", 0.5], [True, "reinforce"]
_PPO, _APART, _NO = [True, "ppo_clip"], [False, "ppo_clip"], [None, None]
METHODS: Mapping[str, Sequence[Any]] = {
    "decoupled_token_is": ["token", 3.0, *_NO, *_APART],
    "decoupled_seq_is": ["sequence", 3.0, *_NO, *_APART],
    "decoupled_token_icepop": ["token", "0.25_4.0", *_NO, *_APART],
    "decoupled_seq_is_rs": ["sequence", 3.0, "seq_sum_k1", "0.1_5", *_APART],
    "decoupled_geo_rs": [None, 2.0, *_GEO, *_APART],
    "bypass_ppo_clip": [None, 2.0, *_NO, *_PPO],
    "bypass_ppo_clip_geo_rs": [None, 2.0, *_GEO, *_PPO],
    "bypass_ppo_clip_k3_rs": [None, 2.0, *_THIRD, *_PPO],
    "bypass_pg_is": ["sequence", 3.0, *_NO, *_PG],
    "bypass_pg_token_icepop": ["token", "0.25_4.0", *_NO, *_PG],
    "bypass_pg_geo_rs": [None, 2.0, *_GEO, *_PG],
    "decoupled_geo_rs_seq_tis": ["sequence", 3.0, *_GEO, *_APART],
    "decoupled_geo_rs_token_tis": ["token", 3.0, *_GEO, *_APART],
    "bypass_pg_geo_rs_seq_tis": ["sequence", 3.0, *_GEO, *_PG],
    "bypass_pg_geo_rs_token_tis": ["token", 3.0, *_GEO, *_PG],
    "decoupled_k3_rs": [None, 2.0, *_THIRD, *_APART],
    "decoupled_k3_rs_seq_tis": ["sequence", 3.0, *_THIRD, *_APART],
    "decoupled_k3_rs_token_tis": ["token", 3.0, *_THIRD, *_APART],
    "disabled": [None, 2.0, *_NO, *_APART],
}


def _rollouts(config: Any) -> list[Any]:
    """Return what options of a rollout refuse, and the sizes of TensorRT-LLM that are left to it."""
    own = {"name": "vllm"}
    trt = {"name": "trtllm", "tensor_model_parallel_size": 4}
    refused = refusals(
        config,
        {**own, "mode": "sync"},
        {**own, "expert_parallel_size": 4, "tensor_model_parallel_size": 2, "data_parallel_size": 1},
        {**own, "expert_parallel_size": 4, "tensor_model_parallel_size": 2, "data_parallel_size": 2},
        {**own, "moe_tensor_parallel_size": 2},
        {**own, "pipeline_model_parallel_size": 2},
        {"name": "hf", "pipeline_model_parallel_size": 2},
        {**trt, "expert_parallel_size": 2, "moe_tensor_parallel_size": 2},
        {**trt, "expert_parallel_size": 2, "moe_tensor_parallel_size": 4},
        {"name": "hf", "disaggregation": {"enabled": True}},
        {"name": "sglang", "disaggregation": {"enabled": True}},
        {**own, "disaggregation": 3},
    )
    one = config(**trt)
    split = config(name="vllm", disaggregation={"enabled": True, "decode_replicas": 3})
    return [
        refused,
        [one.expert_parallel_size, one.moe_tensor_parallel_size],
        [type(split.disaggregation).__name__, split.disaggregation.decode_replicas],
    ]


def _disaggregated(config: Any) -> list[Any]:
    """Return what a rollout in two parts refuses, and the size of the part that decodes."""
    on = {"enabled": True}
    refused = refusals(
        config,
        {**on, "transfer_backend": "none"},
        {"transfer_backend": "none"},
        {**on, "prefill_replicas": 0},
        {**on, "decode_replicas": 0},
        {**on, "bootstrap_port": 0},
        {**on, "bootstrap_port": 65536},
        {**on, "bootstrap_port": 65535},
        {**on, "transfer_backend": "mooncake", "mooncake_protocol": "none"},
        {**on, "mooncake_protocol": "none"},
        *({**on, "transfer_backend": name} for name in ("mooncake", "ascend", "mori", "fake")),
    )
    sizes = [config(decode_tensor_model_parallel_size=size).effective_decode_tp(4) for size in (None, 2)]
    return [refused, sizes]


_REFUSED, _FINE = "ValueError", "nothing"


def _actors(config: Any) -> list[Any]:
    """Return sizes of batches that an actor refuses when it is made, and when a run is checked."""
    sequence = find_name("verl", [f"{CONFIGURATIONS}FSDPActorConfig"])
    own: dict[str, Any] = {"strategy": "fsdp", "rollout_n": 1}
    made = refusals(
        config,
        own,
        {**own, "use_dynamic_bsz": True},
        {**own, "ppo_micro_batch_size": 1},
        {**own, "ppo_micro_batch_size": 1, "ppo_micro_batch_size_per_gpu": 1},
        {**own, "ppo_micro_batch_size_per_gpu": 1, "loss_agg_mode": "none"},
        {"strategy": "fsdp", "ppo_micro_batch_size_per_gpu": 1},
        {"rollout_n": 1, "ppo_micro_batch_size_per_gpu": 1},
    )

    def checked(gpus: int, batch: int, model: Any = None, **options: Any) -> str:
        with contextlib.redirect_stdout(io.StringIO()):
            one = sequence(rollout_n=1, **options)
        return raised(one.validate, gpus, batch, model)

    mini = {"ppo_mini_batch_size": 8}
    split = {"ulysses_sequence_parallel_size": 2, "ppo_micro_batch_size": 2}
    found = [
        checked(1, 7, **mini, ppo_micro_batch_size_per_gpu=1),
        checked(1, 8, **mini, ppo_micro_batch_size_per_gpu=1),
        checked(1, 7, **mini, use_dynamic_bsz=True),
        checked(1, 8, **mini, ppo_micro_batch_size=3),
        checked(4, 8, **mini, ppo_micro_batch_size=2),
        checked(4, 8, {"use_remove_padding": True}, **mini, **split),
        checked(4, 8, {"use_remove_padding": False}, **mini, **split),
        checked(5, 8, {"use_remove_padding": True}, **mini, **split),
    ]
    engine = sequence(rollout_n=1, use_dynamic_bsz=True, ulysses_sequence_parallel_size=2, strategy="fsdp2")
    return [
        made,
        found,
        [
            engine.engine is engine.fsdp_config,
            engine.engine.strategy,
            engine.engine.ulysses_sequence_parallel_size,
        ],
    ]


def _critics(config: Any) -> list[Any]:
    """Return sizes of batches that a critic refuses when it is made, and when a run is checked."""
    own: dict[str, Any] = {"rollout_n": 1, "ppo_mini_batch_size": 8}
    made = refusals(
        config,
        own,
        {**own, "use_dynamic_bsz": True},
        {**own, "ppo_micro_batch_size": 2},
        {**own, "ppo_micro_batch_size": 3},
        {**own, "ppo_micro_batch_size": 2, "ppo_micro_batch_size_per_gpu": 1},
    )
    calls: Sequence[tuple[int, int, Mapping[str, Any]]] = (
        (1, 7, {"ppo_micro_batch_size_per_gpu": 1}),
        (1, 8, {"ppo_micro_batch_size_per_gpu": 1}),
        (4, 8, {"ppo_micro_batch_size": 2}),
        (4, 8, {"ppo_micro_batch_size": 2, "ulysses_sequence_parallel_size": 2}),
        (4, 7, {"use_dynamic_bsz": True}),
    )
    return [made, [raised(config(**own, **options).validate, gpus, batch) for gpus, batch, options in calls]]


def _teacher(config: Any, **options: Any) -> Any:
    rollout = find_name("verl", [f"{CONFIGURATIONS}RolloutConfig"])
    inference = {"name": "vllm", "prompt_length": 5, "response_length": 3, "tensor_model_parallel_size": 2}
    inference |= options.pop("inference", {})
    return config(**{"key": "a", "model_path": "m", "inference": rollout(**inference), **options})


def _teachers(config: Any) -> list[Any]:
    """Return the sizes and lengths of a teacher, which reads a whole row, and what is refused."""
    size = _teacher(config, num_replicas=3, inference={"data_parallel_size": 4})
    one = _teacher(config, inference={"max_model_len": 9})
    one.validate_and_prepare_for_distillation(use_topk=True, topk=7)
    kept = _teacher(config, inference={"engine_kwargs": {"vllm": {"max_logprobs": 9, "more": 1}}})
    kept.validate_and_prepare_for_distillation(use_topk=True, topk=7)
    plain = _teacher(config)
    plain.validate_and_prepare_for_distillation(use_topk=False, topk=None)

    def refused(top: Any = 7, **inference: Any) -> str:
        made = _teacher(config, inference=inference)
        return raised(made.validate_and_prepare_for_distillation, use_topk=True, topk=top)

    return [
        [size.per_replica_world_size, size.world_size],
        [one.inference.prompt_length, one.inference.response_length, one.inference.engine_kwargs],
        kept.inference.engine_kwargs,
        plain.inference.engine_kwargs,
        [
            refused(max_model_len=8),
            refused(top=None),
            refused(engine_kwargs={"vllm": {"max_logprobs": 6}}),
            refused(name="hf"),
            refused(name="sglang"),
        ],
        [
            raised(_teacher(config, **{name: None}).check_configured)
            for name in ("model_path", "key", "num_replicas")
        ],
    ]


def _pool(config: Any) -> list[Any]:
    """Return teachers by their keys: the only one fills the pool of devices, and several have sizes of their own."""
    teacher = find_name("verl", [f"{CONFIGURATIONS}DistillationTeacherModelConfig"])

    def made(models: Mapping[str, Any], nodes: int = 2) -> Any:
        return config(enabled=True, n_gpus_per_node=4, nnodes=nodes, teacher_models=dict(models))

    one = made({"teacher_model": _teacher(teacher, key=None, inference={"data_parallel_size": 2})})
    several = {"teacher_model": _teacher(teacher, key=None)}
    several |= {key: _teacher(teacher, key=key, num_replicas=2) for key in "xy"}
    two = made(several)
    twice = {**several, "y": _teacher(teacher, key="x", num_replicas=2)}
    uneven = {"teacher_model": _teacher(teacher, inference={"tensor_model_parallel_size": 3})}
    return [
        {key: own.num_replicas for key, own in one.teacher_models.items()},
        {key: own.num_replicas for key, own in two.teacher_models.items()},
        [raised(made, *given) for given in ((several, 3), (twice,), (uneven,))],
        config(enabled=False, teacher_models={}).teacher_models,
    ]


def _optimizers(config: Any) -> list[Any]:
    """Return what options of an optimizer derive and refuse."""
    fsdp = find_name("verl", [f"{CONFIGURATIONS}FSDPOptimizerConfig"])
    return [
        refusals(
            fsdp, {"lr": 1e-3, "lr_scheduler_type": "none"}, {"lr": 1e-3, "lr_scheduler_type": "cosine"}
        ),
        refusals(config, {"lr": 1e-3}),
    ]


ROWS: Sequence[Row] = (
    Row("options", CORRECTION, "methods by their names", _methods, METHODS, since="0.4"),
    Row(
        "options",
        f"{CONFIGURATIONS}RolloutConfig",
        "sizes and parts",
        _rollouts,
        [
            [
                *(_REFUSED, "AssertionError", _FINE, "AssertionError", "NotImplementedError", _FINE),
                *(_FINE, "AssertionError", _REFUSED, _FINE, "TypeError"),
            ],
            [None, None],
            ["DisaggregationConfig", 3],
        ],
        since="0.9",
    ),
    Row(
        "options",
        f"{CONFIGURATIONS}DisaggregationConfig verl.workers.config.disaggregation:DisaggregationConfig",
        "parts",
        _disaggregated,
        [
            [
                *(_REFUSED, _FINE, _REFUSED, _REFUSED, _REFUSED, _REFUSED, _FINE, _REFUSED, _FINE),
                *([_FINE] * 4),
            ],
            [4, 2],
        ],
        since="0.9",
    ),
    Row(
        "options",
        f"{CONFIGURATIONS}ActorConfig",
        "sizes of batches",
        _actors,
        [
            ["AssertionError", _FINE, _FINE, _REFUSED, _REFUSED, "AssertionError", "AssertionError"],
            [_REFUSED, _FINE, _FINE, _REFUSED, _REFUSED, _FINE, _REFUSED, _REFUSED],
            [True, "fsdp2", 2],
        ],
        since="0.8",
    ),
    Row(
        "options",
        f"{CONFIGURATIONS}FSDPCriticConfig",
        "sizes of batches",
        _critics,
        [
            [_REFUSED, _FINE, _FINE, _REFUSED, _REFUSED],
            [_REFUSED, _FINE, _REFUSED, _FINE, _FINE],
        ],
        since="0.8",
    ),
    Row(
        "options",
        f"{CONFIGURATIONS}DistillationTeacherModelConfig",
        "lengths and log-probabilities",
        _teachers,
        [
            [8, 24],
            [8, 1, {"vllm": {"max_logprobs": 7}}],
            {"vllm": {"max_logprobs": 9, "more": 1}},
            {},
            [_REFUSED, _REFUSED, _REFUSED, "NotImplementedError", _FINE],
            [_REFUSED] * 3,
        ],
        since="0.4",
    ),
    Row(
        "options",
        f"{CONFIGURATIONS}DistillationConfig",
        "teachers of a pool",
        _pool,
        [{"default": 2}, {"x": 2, "y": 2}, [_REFUSED] * 3, {}],
        since="0.4",
    ),
    Row(
        "options",
        f"{CONFIGURATIONS}OptimizerConfig",
        "schedules",
        _optimizers,
        [["AssertionError", _FINE], [_FINE]],
        since="0.4",
    ),
)
