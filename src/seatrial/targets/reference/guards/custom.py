"""Advantages and losses of the user's own, asked with the options as they are configured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from refrl.algorithms.losses.base import TokenInputs
from refrl.config import GRPORunConfig
from refrl.config.algorithms import ADVANTAGES, LOSSES
from refrl.training.observed import PassedBatch
from seatrial.relations import oracles
from seatrial.relations.oracles.runs import loss_spec
from seatrial.relations.records.run import RunRow


def own_advantages(rows: Sequence[RunRow], config: GRPORunConfig) -> list[float]:
    """Return the advantages that the user's own estimator gives the rewards of a step."""
    section = config.grpo.advantage
    estimator = _with_options(
        ADVANTAGES.find(section.estimator, "grpo.advantage.estimator"), section, section.options
    )
    groups = sorted({row.prompt_id for row in rows})
    index_B = torch.tensor([groups.index(row.prompt_id) for row in rows])
    rewards = torch.tensor([row.reward for row in rows], dtype=torch.float64)
    found: list[float] = estimator.advantages(rewards, index_B).tolist()
    return found


def is_known(config: GRPORunConfig) -> bool:
    """Say whether the terms around the user's own loss are those that `own_gradient` adds to it."""
    loss = config.loss_fn
    return (
        loss.reduction == "token" and loss.importance_sampling == "none" and loss.entropy_coefficient == 0.0
    )


def own_gradient(micro: PassedBatch, config: GRPORunConfig, options: Any) -> tuple[Tensor, float]:
    """Return the gradient of the user's own loss, and of the KL beside it, at each log-probability; and its value.

    Args:
        micro: a micro-batch in the training pass.
        config: of the run.
        options: the same by dotted name.
    """
    batch, section = micro.batch, config.loss_fn
    assert batch.advantages_B is not None
    loss = _with_options(LOSSES.find(section.kind, "loss_fn.kind"), section, section.options)
    mask_BT = batch.mask_BT.detach()
    logprobs_BT = (micro.logprobs_BT.detach() * mask_BT).requires_grad_()
    old_BT = logprobs_BT.detach() if batch.old_logprobs_BT is None else batch.old_logprobs_BT * mask_BT
    inputs = TokenInputs(
        logprobs_BT,
        old_BT,
        batch.sampling_logprobs_BT * mask_BT,
        batch.advantages_B.unsqueeze(1),
        mask_BT,
    )
    with torch.enable_grad():
        total = (loss.surrogate(inputs).loss_BT * mask_BT).sum() / micro.global_valid_tokens
        (own_BT,) = torch.autograd.grad(total, logprobs_BT, allow_unused=True)
    other = oracles.policy_loss(
        logprobs_BT.tolist(),
        old_BT.tolist(),
        (old_BT if batch.ref_logprobs_BT is None else batch.ref_logprobs_BT).tolist(),
        inputs.sampling_logprobs_BT.tolist(),
        torch.zeros_like(mask_BT).tolist(),
        [0.0] * batch.num_rows,
        mask_BT.tolist(),
        loss_spec({**options, "loss_fn.kind": "ppo_clip"}),
        float(micro.global_valid_tokens),
        float(micro.global_valid_seqs),
    )
    right_BT = torch.tensor(other.gradient_BT, dtype=torch.float64)
    if own_BT is not None:
        right_BT = right_BT + own_BT.cpu().double() * mask_BT.cpu()
    return right_BT, float(total.detach()) + other.loss


def _with_options(made_by: Any, section: Any, options: Any) -> Any:
    """Return a part of the user's own, with the options that the configuration names and no others."""
    part = made_by(section)
    part.options = made_by.Options(**options)
    return part
