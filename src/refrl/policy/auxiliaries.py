"""Builds what is trained or measured in addition to the policy loss of a Hugging Face model."""

from __future__ import annotations

from torch import Tensor
from transformers import PreTrainedModel

from refrl.config import PolicyConfig
from refrl.policy.auxiliary import WHOLE, Auxiliary, Positions, Together
from refrl.policy.draft import Read, make_draft
from refrl.policy.routers import make_router_loss


def make_auxiliary(
    config: PolicyConfig,
    model: PreTrainedModel,
    *,
    num_updates: int,
    temperature: float,
    positions: Positions = WHOLE,
    read: Read = Tensor.detach,
) -> Auxiliary:
    """Return the router balance loss and the draft head's training, as far as they are configured.

    Args:
        config: of the policy.
        model: that is trained, on its device.
        num_updates: optimizer steps of the whole run, for the schedule.
        temperature: of the distribution that rows are scored under.
        positions: of the rows that the model's layers have in this process.
        read: gives a weight of the model as it computes with it, whole.

    Raises:
        ConfigError: the model has no routers, or there is no draft head that fits it.
    """
    draft = make_draft(config, model, num_updates=num_updates, temperature=temperature, read=read)
    return Together([make_router_loss(config, model, positions), draft])
