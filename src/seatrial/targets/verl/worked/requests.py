"""Requests that verl's trainer sends to its workers, of which the flags are read; see `worked`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from seatrial.targets.common.stand_ins import import_without
from seatrial.targets.common.target import find_name
from seatrial.targets.verl.estimators import UNUSED


class _AskedError(Exception):
    """Ends a call of a worker, of which the request alone is read."""


def request_of(of: Any, method: str, **own: Any) -> dict[str, Any]:
    """Return the flags of the request that the trainer sends to a worker for log-probabilities or values."""
    trainer = import_without("verl.trainer.ppo.ray_trainer", UNUSED).RayPPOTrainer
    length, seen = 3, {}

    def asked(data: Any) -> None:
        names = set(data.keys())
        for name in ("calculate_entropy", "compute_loss", "no_lora_adapter"):
            if name in names:
                value = data.get(name)
                seen[name] = getattr(value, "data", value)
        raise _AskedError

    worker = SimpleNamespace(
        compute_log_prob=asked, compute_ref_log_prob=asked, infer_batch=asked, compute_values=asked
    )
    proto = find_name("verl", ["verl:DataProto", "verl.protocol:DataProto"])
    ids_BS = torch.arange(2 * 2 * length).reshape(2, 2 * length)
    batch = proto.from_dict(
        tensors={
            "prompts": ids_BS[:, :length],
            "responses": ids_BS[:, length:],
            "input_ids": ids_BS,
            "attention_mask": torch.ones_like(ids_BS),
            "response_mask": torch.ones(2, length),
            "position_ids": torch.arange(2 * length).repeat(2, 1),
        },
        meta_info={"temperature": 1.0},
    )
    given = {"ref_in_actor": False, "config": _Config(), **own}
    self = SimpleNamespace(actor_rollout_wg=worker, ref_policy_wg=worker, critic_wg=worker, **given)
    try:
        getattr(trainer, method)(self, batch)
    except _AskedError:
        return seen
    return {"not asked": True}


class _Config(SimpleNamespace):
    """Options of which every one is off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Config()

    def __bool__(self) -> bool:
        return False

    def get(self, name: str, default: Any = None) -> Any:
        """Return the default."""
        return default


def reference_requests(of: Any) -> list[dict[str, Any]]:
    """Return the flags of both forms of a reference: a worker of its own, and the actor without its adapter."""
    return [request_of(of, "_compute_ref_log_prob", ref_in_actor=inside) for inside in (False, True)]
