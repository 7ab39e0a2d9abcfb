"""What verl's FSDP workers give the models of actor, reference and critic, and the rates that they log."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import release
from seatrial.targets.verl.places import in_float32
from seatrial.targets.verl.workers import source_of

WORKERS = "verl.workers.fsdp_workers"
METHODS: Mapping[str, tuple[str, str]] = {
    "actor": ("compute_log_prob", "old_log_probs"),
    "reference": ("compute_ref_log_prob", "ref_log_prob"),
    "critic": ("compute_values", "values"),
}
"""By role: the method, and the column that it returns."""


def settings_of_models(actor_class: Any, critic_class: Any, proto: Any) -> Callable[..., Any]:
    """Return what gives the settings that a model of a role computes with, and the column that comes back."""

    def given(role: str, options: Mapping[str, Mapping[str, Any]], temperature: float, values: Tensor) -> Any:
        seen: dict[str, Any] = {}
        source = source_of(actor_class)

        def computed(data: Any, **_: Any) -> Any:
            seen.update(data.meta_info)
            if role == "critic":
                return values.clone()
            if '["log_probs"]' in source:
                return {"log_probs": values.clone(), "entropys": values.clone()}
            return (values.clone(), values.clone()) if "calculate_entropy" in source else values.clone()

        model = SimpleNamespace(
            compute_log_prob=computed, compute_values=computed, actor_module=None, critic_module=None
        )
        worker = _made(critic_class if role == "critic" else actor_class, model)
        worker.config = _config(role, options, temperature)
        method, column = METHODS[role]
        found = _called(worker, method, _batch(proto, values))
        settings = {name: seen.get(name) for name in ("micro_batch_size", "max_token_len", "use_dynamic_bsz")}
        if role != "critic":
            settings["temperature"] = seen.get("temperature")
        return settings, found.batch[column]

    return given


def logged_rates(actor_class: Any, critic_class: Any, proto: Any) -> Callable[..., Any]:
    """Return what gives the rate that the step of a role logs."""

    def rate(role: str, rates: list[float]) -> float:
        left = list(rates)
        scheduler = SimpleNamespace(get_last_lr=lambda: [left[0]], step=lambda: left.pop(0))
        model = SimpleNamespace(update_policy=lambda data: {}, update_critic=lambda data: {})
        worker = _made(critic_class if role == "critic" else actor_class, model)
        worker.config = _config(role, {role: {"size": 1, "tokens": 1, "dynamic": False}}, 1.0)
        setattr(worker, f"{role}_lr_scheduler", scheduler)
        method = "update_critic" if role == "critic" else "update_actor"
        found = _called(worker, method, _batch(proto, torch.zeros(2, 3)))
        return float(found.meta_info["metrics"][f"{role}/lr"])

    return rate


def _made(worker_class: Any, model: Any) -> Any:
    """Return a worker without its `__init__`, of one process, with a model."""
    worker = object.__new__(worker_class)
    parts: dict[str, Any] = {
        **dict.fromkeys(("_is_actor", "_is_ref", "_is_rollout"), True),
        **dict.fromkeys(
            ("_is_lora", "_is_offload_param", "_is_offload_optimizer", "_is_offload_grad"), False
        ),
        **dict.fromkeys(("actor", "ref_policy", "critic"), model),
        "ulysses_sharding_manager": _Sharding(),
        "flops_counter": SimpleNamespace(estimate_flops=lambda *_, **__: (1.0, 1.0)),
        "tokenizer": SimpleNamespace(pad_token_id=0),
        "_world_size": 1,
        "_rank": 0,
    }
    for name, part in parts.items():
        setattr(worker, name, part)
    return worker


def _config(role: str, options: Mapping[str, Mapping[str, Any]], temperature: float) -> Any:
    from omegaconf import OmegaConf

    def own(role: str, prefix: str) -> dict[str, Any]:
        found = options.get(role, {"size": 1, "tokens": 1, "dynamic": False})
        return {
            f"{prefix}_micro_batch_size_per_gpu": found["size"],
            f"{prefix}_max_token_len_per_gpu": found["tokens"],
            f"{prefix}_use_dynamic_bsz": found["dynamic"],
        }

    if role == "critic":
        critic = own("critic", "forward")
        return OmegaConf.create(
            {**critic, "use_dynamic_bsz": critic["forward_use_dynamic_bsz"], "ppo_epochs": 1}
        )
    return OmegaConf.create(
        {
            "rollout": {**own("actor", "log_prob"), "temperature": temperature},
            "ref": own("reference", "log_prob"),
            "actor": {"ppo_epochs": 1},
        }
    )


def _batch(proto: Any, values: Tensor) -> Any:
    ids = torch.zeros(values.shape, dtype=torch.long)
    tensors = {name: ids.clone() for name in ("responses", "input_ids", "attention_mask", "position_ids")}
    return proto.from_dict(tensors=tensors, meta_info={"global_token_num": [1, 1]})


def _called(worker: Any, method: str, batch: Any) -> Any:
    """Call a method without what sends it to ranks, on a device without memory."""
    device = SimpleNamespace(
        max_memory_allocated=lambda: 0, max_memory_reserved=lambda: 0, current_device=lambda: "cpu"
    )
    module = sys.modules[type(worker).__module__]
    with in_float32(), mock.patch.object(module, "get_torch_device", lambda: device, create=True):
        try:
            return inspect.unwrap(getattr(type(worker), method))(worker, batch)
        except AttributeError as error:
            if f"'{type(worker).__name__}' object" not in str(error) and "Missing key" not in str(error):
                raise
            raise NotServed(f"the worker of verl {release('verl')} reads more: {error}") from error


class _Sharding:
    """Rows that are not divided."""

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def preprocess_data(self, data: Any) -> Any:
        return data

    def postprocess_data(self, data: Any) -> Any:
        return data
