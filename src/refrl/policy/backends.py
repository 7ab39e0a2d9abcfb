"""Policy backends that distribute a model over processes, each imported on demand."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol

import torch
from transformers import PreTrainedTokenizerBase

from refrl.config import PolicyConfig
from refrl.distributed import World
from refrl.policy.base import Policy

MAKERS = {"dtensor": "refrl.policy.dtensor.policy", "megatron": "refrl.policy.megatron.making"}
"""Modules with a function `make_policy`, by `PolicyConfig.backend`."""


class MakePolicy(Protocol):
    """Makes a policy from its configuration."""

    def __call__(
        self,
        config: PolicyConfig,
        tokenizer: PreTrainedTokenizerBase,
        *,
        device: torch.device,
        num_updates: int,
        with_reference: bool,
        world: World,
        temperature: float,
    ) -> Policy:
        """Return the policy (see `refrl.training.build.build_policy`).

        Raises:
            ConfigError: the model cannot be loaded, scored or distributed as configured.
        """
        ...


def policy_maker(backend: str) -> MakePolicy:
    """Return what makes policies of a backend."""
    make: MakePolicy = import_module(MAKERS[backend]).make_policy
    return make
