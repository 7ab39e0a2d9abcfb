"""Losses as pure functions of log-probabilities: policy gradient, supervised, preference and reward model.

Every loss is a share: divided by GLOBAL counts, so that the sum over micro-batches and ranks is the loss, and the sum
of their gradients the gradient, of the whole batch.

The names below are imported on demand: a configuration reads a loss's options without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refrl.algorithms.losses.policy import policy_loss
    from refrl.algorithms.losses.preference import dpo_loss, reward_model_loss
    from refrl.algorithms.losses.supervised import sequence_logprobs, sft_loss

__all__ = ["dpo_loss", "policy_loss", "reward_model_loss", "sequence_logprobs", "sft_loss"]

_MODULES = {
    "policy_loss": "refrl.algorithms.losses.policy",
    "dpo_loss": "refrl.algorithms.losses.preference",
    "reward_model_loss": "refrl.algorithms.losses.preference",
    "sequence_logprobs": "refrl.algorithms.losses.supervised",
    "sft_loss": "refrl.algorithms.losses.supervised",
}


def __getattr__(name: str) -> Any:
    """Import the module of a name (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
