"""Checks the loss of a run of refrl: its value, its gradient at each log-probability, and the share of every row.

The closed forms are those of the relations (`seatrial.relations.oracles`): plain loops in float64 that share no code
with refrl.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from refrl.algorithms.batching import Batch
from refrl.algorithms.losses.base import TokenInputs
from refrl.config import GRPORunConfig, SFTRunConfig
from refrl.config.algorithms import LOSSES
from refrl.training.session import PassedBatch, Session
from seatrial.guards import Guards
from seatrial.relations import oracles
from seatrial.relations.oracles.options import loss_spec
from seatrial.targets.reference.guards.base import RunConfig, check, options_of, updates_per_step

ROUNDING = 1e-3
"""Relative: float32 on one side, float64 on the other, over sums of some thousand tokens."""
SHARE_ROUNDING = 1e-4


class _Passed(NamedTuple):
    """What the loss is differentiated by, of a micro-batch in the training pass: log-probabilities or entropies."""

    of: str
    right_BT: Tensor
    """Gradient of the configured loss."""
    seen: list[Tensor]
    """The gradient that arrived; empty where none did."""


class LossGuard:
    """Compares loss and gradients with those of the configured loss."""

    def __init__(self, config: RunConfig, guards: Guards) -> None:
        """Begin without any micro-batch."""
        self._config, self._guards, self._options = config, guards, options_of(config)
        self._passed: list[_Passed] = []
        self._number, self._share, self._loss = 0, 0.0, 0.0

    def passed(self, micro: PassedBatch) -> None:
        """Watch the gradients that come back to the log-probabilities and entropies of a micro-batch."""
        if micro.logprobs_BT.requires_grad and self._has_closed_form():
            right_BT, loss = self._gradient(micro)
            self._watch("log-probabilities", micro.logprobs_BT, right_BT)
            if micro.entropy_BT.requires_grad:
                self._watch("entropies", micro.entropy_BT, self._entropy_gradient(micro))
            self._number += 1
            self._loss += loss
            self._share += float(micro.batch.mask_BT.sum() / micro.global_valid_tokens)

    def _watch(self, of: str, value_BT: Tensor, right_BT: Tensor) -> None:
        """Keep the gradient that arrives at a tensor with the right one."""
        seen: list[Tensor] = []
        watch = value_BT.register_hook
        watch(lambda gradient: seen.append(gradient.detach()))  # type: ignore[no-untyped-call]
        self._passed.append(_Passed(of, right_BT, seen))

    def check_step(self, step: int, metrics: Mapping[str, float], num_updates: int) -> None:
        """Check the logged loss and all gradients of a step; of fine-tuning also that no row is left out."""
        number, share, right = self._number, self._share, self._loss / max(1, num_updates)
        if number:
            good = abs(metrics["loss"] - right) <= ROUNDING * max(0.1, abs(right))
            wrong = f"step {step}: {metrics['loss']:.6g}, its rows give {right:.6g}"
            self._guards.hold("loss of the rows", good, wrong, number=number)
        self._check_gradients(step)
        if number and isinstance(self._config, SFTRunConfig):
            good = math.isclose(share, 1, rel_tol=ROUNDING)
            wrong = f"step {step}: micro-batches are {share:.5g} of the step by their tokens"
            self._guards.hold("shares of a step", good, wrong, number=number)

    def _has_closed_form(self) -> bool:
        """Return whether the loss is built in, or a custom one reduced as `_custom_gradient` does."""
        if isinstance(self._config, SFTRunConfig) or self._config.loss_fn.is_built_in:
            return True
        loss = self._config.loss_fn
        return loss.reduction == "token" and loss.importance_sampling == "none"

    def _check_gradients(self, step: int) -> None:
        """The gradient at every log-probability and entropy is that of the configured loss."""
        passed, self._passed = self._passed, []
        self._number, self._share, self._loss = 0, 0.0, 0.0
        wrong = ""
        for one in passed:
            found_BT = one.seen[0].cpu().double() if one.seen else torch.zeros_like(one.right_BT)
            largest = float(one.right_BT.abs().max())
            off = float((found_BT - one.right_BT).abs().max())
            if not off <= ROUNDING * largest + 1e-9:
                wrong = (
                    wrong or f"{one.of} of a micro-batch: off by {off:.3g} where the largest is {largest:.3g}"
                )
        if passed:
            check(self._guards, "gradient of the loss", wrong, where=f"step {step}, ", number=len(passed))

    def _gradient(self, micro: PassedBatch) -> tuple[Tensor, float]:
        """Return the gradient of the configured loss at the log-probabilities of a micro-batch, and its value."""
        batch = micro.batch
        if isinstance(self._config, SFTRunConfig):
            right_BT = (-batch.mask_BT / micro.global_valid_tokens).cpu().double()
            return right_BT, float((right_BT * micro.logprobs_BT.detach().cpu().double()).sum())
        assert batch.advantages_B is not None
        current_BT = micro.logprobs_BT.detach()
        if not self._config.loss_fn.is_built_in:
            return self._custom_gradient(micro, self._config)
        return self._oracle_gradient(
            micro, current_BT, batch.sampling_logprobs_BT, batch.advantages_B, batch.mask_BT
        )

    def _entropy_gradient(self, micro: PassedBatch) -> Tensor:
        """Return the gradient of the entropy bonus at the entropies of a micro-batch: zeros where there is none."""
        mask_BT = micro.batch.mask_BT.cpu().double()
        if isinstance(self._config, SFTRunConfig):
            return torch.zeros_like(mask_BT)
        spec = loss_spec(self._options)
        counts = float(micro.global_valid_tokens), float(micro.global_valid_seqs)
        weights = [
            oracles.token_weight(spec, length, *counts) if length else 0.0
            for length in map(int, mask_BT.sum(1).tolist())
        ]
        return -spec.entropy_coefficient * mask_BT * torch.tensor(weights, dtype=torch.float64).unsqueeze(1)

    def _oracle_gradient(
        self,
        micro: PassedBatch,
        current_BT: Tensor,
        sampling_BT: Tensor,
        advantages_B: Tensor,
        mask_BT: Tensor,
        **options: str,
    ) -> tuple[Tensor, float]:
        """Return gradient and value of the loss that the options name, by plain loops."""
        batch = micro.batch
        old, ref = (
            (current_BT if one is None else one).tolist()
            for one in (batch.old_logprobs_BT, batch.ref_logprobs_BT)
        )
        found = oracles.policy_loss(
            current_BT.tolist(),
            old,
            ref,
            sampling_BT.tolist(),
            micro.entropy_BT.tolist(),
            advantages_B.tolist(),
            mask_BT.tolist(),
            loss_spec({**self._options, **options}),
            float(micro.global_valid_tokens),
            float(micro.global_valid_seqs),
        )
        return torch.tensor(found.gradient_BT, dtype=torch.float64), found.loss

    def _custom_gradient(self, micro: PassedBatch, config: GRPORunConfig) -> tuple[Tensor, float]:
        """Return gradient and value of a custom loss as configured, with its KL penalty and entropy bonus."""
        batch, section = micro.batch, config.loss_fn
        assert batch.advantages_B is not None
        made_by = LOSSES.find(section.kind, "loss_fn.kind")
        loss = made_by(section)
        loss.options = made_by.Options(**section.options)
        mask_BT = batch.mask_BT.detach()
        logprobs_BT = (micro.logprobs_BT.detach() * mask_BT).requires_grad_()
        old_BT = logprobs_BT.detach() if batch.old_logprobs_BT is None else batch.old_logprobs_BT * mask_BT
        sampling_BT = batch.sampling_logprobs_BT * mask_BT
        inputs = TokenInputs(logprobs_BT, old_BT, sampling_BT, batch.advantages_B.unsqueeze(1), mask_BT)
        with torch.enable_grad():
            total = (loss.surrogate(inputs).loss_BT * mask_BT).sum() / micro.global_valid_tokens
            (own_BT,) = torch.autograd.grad(total, logprobs_BT, allow_unused=True)
        # Advantages of zero leave the KL penalty and the entropy bonus alone.
        right_BT, penalty = self._oracle_gradient(
            micro,
            logprobs_BT.detach(),
            sampling_BT,
            torch.zeros_like(batch.advantages_B),
            mask_BT,
            **{"loss_fn.kind": "ppo_clip"},
        )
        if own_BT is not None:
            right_BT = right_BT + own_BT.cpu().double() * mask_BT.cpu()
        return right_BT, float(total.detach()) + penalty


class ShareGuard:
    """Checks that the micro-batches of a step of GRPO are together its configured updates."""

    def __init__(self, config: GRPORunConfig, guards: Guards) -> None:
        """Begin with nothing counted."""
        self._guards = guards
        self._num_updates = updates_per_step(config)
        self._is_filtered = config.grpo.overlong_filtering or config.grpo.zero_variance_filter
        self._shares = torch.zeros(2)

    def passed(self, batch: Batch, num_tokens: Tensor, num_seqs: Tensor) -> None:
        """Count the share that a micro-batch is of its update, by tokens and by sequences."""
        tokens, rows = batch.num_valid_tokens / num_tokens, batch.num_valid_seqs / num_seqs
        self._shares = self._shares.to(tokens.device) + torch.stack([tokens, rows]).detach()

    def check_step(self, session: Session, num_updates: int) -> None:
        """Check the number of updates, and that they have every row once."""
        wrong = f"{num_updates} updates were taken, configured are {self._num_updates}"
        good = num_updates == self._num_updates or (self._is_filtered and num_updates < self._num_updates)
        self._guards.hold("updates as configured", good, wrong, number=num_updates)
        shares, self._shares = self._shares.tolist(), torch.zeros(2)
        if session.world.size == 1:
            good = all(abs(share - num_updates) <= SHARE_ROUNDING * num_updates for share in shares)
            wrong = (
                f"micro-batches are together {shares[0]:.4g} updates by tokens and {shares[1]:.4g} by sequences, and "
                f"{num_updates} were taken: rows are left out or taken twice, or divided by other counts"
            )
            self._guards.hold("shares of an update", good, wrong, number=num_updates)
