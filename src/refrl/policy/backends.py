"""Policy backends that distribute a model over processes, each imported on demand."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

import torch
from transformers import PreTrainedTokenizerBase

from refrl.config import PolicyConfig
from refrl.distributed import World
from refrl.policy.base import Policy

MAKERS = {"dtensor": "refrl.policy.dtensor.policy", "megatron": "refrl.policy.megatron.making"}
"""Modules with a function `make_policy` of a `PolicyRequest`, by `PolicyConfig.backend`."""


@dataclass(frozen=True, kw_only=True)
class PolicyRequest:
    """The arguments of `refrl.training.build.build_policy`."""

    config: PolicyConfig
    tokenizer: PreTrainedTokenizerBase
    device: torch.device
    num_updates: int
    with_reference: bool
    world: World
    temperature: float


def make_policy(request: PolicyRequest) -> Policy:
    """Return the policy of a backend other than `hf`.

    Raises:
        ConfigError: the model cannot be loaded, scored or distributed as configured.
    """
    policy: Policy = import_module(MAKERS[request.config.backend]).make_policy(request)
    return policy
