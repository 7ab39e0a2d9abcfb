"""A run of refrl held to its configuration while it runs: sampling, rows, reference, validations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from refrl.algorithms.batching import Batch
from refrl.config import GRPORunConfig
from refrl.generation.base import Completion, SamplingParams
from refrl.rollout.sync import Rollouts
from refrl.training.observed import TrainedStep
from refrl.training.session import Session
from seatrial.guards import Guards

ROUNDING = 1e-4
RATIO_TOLERANCE = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.2}
"""Of |log ratio| by precision: two passes cut the rows differently."""


class AsConfigured:
    """Counts what goes through the model in a step, and asks whether the step is the one that was configured."""

    def __init__(self, config: GRPORunConfig, guards: Guards) -> None:
        """Begin with nothing counted."""
        self._config, self._guards = config, guards
        grpo = config.grpo
        self.num_rows = grpo.num_prompts_per_step * grpo.num_generations_per_prompt
        self.num_updates = self.num_rows // config.policy.train_global_batch_size
        self._shares = torch.zeros(2)
        self._is_filtered = grpo.overlong_filtering or grpo.zero_variance_filter
        self._has_moved = self._has_resumed = False

    def started(self, session: Session) -> None:
        """Completions are sampled as configured, and prompts for training are not those of validation."""
        self._has_resumed = session.attempt.step > 0
        wanted, given = self._config.policy.generation, session.sampling
        same = (
            (wanted.max_new_tokens, wanted.temperature, wanted.top_p, wanted.top_k)
            == (given.max_new_tokens, given.temperature, given.top_p, given.top_k)
        ) and wanted.stop_token_ids in (None, given.stop_token_ids)
        self._guards.hold("sampling as configured", same, f"completions are drawn with {given}", number=1)
        held_out = {(example.prompt, example.media) for example in session.validation}
        trained = session.train_examples
        both = [one.prompt for one in trained if (one.prompt, one.media) in held_out]
        self._guards.hold(
            "held-out prompts", not both, f"{len(both)} are trained on too", number=len(held_out)
        )

    def passed(self, batch: Batch, num_tokens: Tensor, num_seqs: Tensor) -> None:
        """Count the share that a micro-batch is of its update, by tokens and by sequences."""
        tokens, rows = batch.num_valid_tokens / num_tokens, batch.num_valid_seqs / num_seqs
        self._shares = self._shares.to(tokens.device) + torch.stack([tokens, rows]).detach()

    def trained(self, session: Session, step: TrainedStep, num_updates: int) -> None:
        """Ask what can be asked of one step."""
        self._hold_shares(session, num_updates)
        self._hold_prompts(session, step)
        self._hold_endings(step.rollouts.completions, session.sampling)
        self._hold_scores(step, has_moved=self._has_moved)
        # A gradient of zero leaves the policy where the reference is.
        self._has_moved = self._has_moved or step.metrics["grad_norm"] > 0 < step.metrics["lr"]

    def validated(self, session: Session, step: int, rollouts: Rollouts) -> None:
        """Every held-out prompt is answered, once and in order."""
        asked = [example.prompt_id for example in rollouts.examples]
        right = [example.prompt_id for example in session.validation]
        trained = {example.prompt_id for example in session.train_examples}
        good = asked == right and not trained.intersection(asked)
        self._guards.hold(
            "validation prompts", good, f"step {step}: not those that are held out", number=len(asked)
        )

    def _hold_shares(self, session: Session, num_updates: int) -> None:
        wrong = f"{num_updates} updates were taken, configured are {self.num_updates}"
        good = num_updates == self.num_updates or (self._is_filtered and num_updates < self.num_updates)
        self._guards.hold("updates as configured", good, wrong, number=num_updates)
        shares, self._shares = self._shares.tolist(), torch.zeros(2)
        if session.world.size == 1:
            good = all(abs(share - num_updates) <= ROUNDING * num_updates for share in shares)
            wrong = (
                f"micro-batches are together {shares[0]:.4g} updates by tokens and {shares[1]:.4g} by sequences, and "
                f"{num_updates} were taken: rows are left out or taken twice, or divided by other counts"
            )
            self._guards.hold("shares of an update", good, wrong, number=num_updates)

    def _hold_prompts(self, session: Session, step: TrainedStep) -> None:
        grpo = self._config.grpo
        known = {example.prompt_id for example in session.train_examples}
        trained = {example.prompt_id for example in step.rollouts.examples}
        number = len(step.rollouts.examples)
        wrong = "" if number == self.num_rows else f"{number} rows, configured are {self.num_rows}"
        if not trained <= known:
            wrong = wrong or "a prompt is none of those to train on"
        if len(trained) < 2 <= min(grpo.num_prompts_per_step, len(known)):
            wrong = wrong or "all rows have one prompt"
        if not grpo.use_dynamic_sampling and not grpo.async_grpo.enabled:
            drawn = len(step.served)
            wrong = wrong or ("" if drawn == grpo.num_prompts_per_step else f"{drawn} prompts were drawn")
        self._guards.hold("prompts as configured", not wrong, f"step {step.step}: {wrong}", number=number)

    def _hold_endings(self, completions: Sequence[Completion], sampling: SamplingParams) -> None:
        stops = set(sampling.stop_token_ids or ())
        wrong = [
            place
            for place, one in enumerate(completions)
            if (one.finish_reason == "stop") != (one.ids[-1] in stops)
            or (one.finish_reason == "length" and len(one.ids) != sampling.max_new_tokens)
            or any(token in stops for token in one.ids[:-1] if one.mask is None)
        ]
        self._guards.hold(
            "endings",
            not wrong,
            f"rows {wrong[:3]}: finish reason and last token disagree",
            number=len(completions),
        )

    def _hold_scores(self, step: TrainedStep, *, has_moved: bool) -> None:
        """The old and the reference policy are scored by models of their own."""
        batch = step.batch
        keep = batch.mask_BT.bool()
        old, reference = batch.old_logprobs_BT, batch.ref_logprobs_BT
        if old is None or not keep.any():
            return
        # A token that was certain has the log-probability 0 by both.
        uncertain = keep & (old != 0)
        copied = bool((old == batch.sampling_logprobs_BT)[uncertain].all()) and int(uncertain.sum()) > 50
        wrong = "the old log-probabilities are the sampler's to the last bit" if copied else ""
        if reference is not None and has_moved and bool((old == reference)[keep].all()):
            wrong = wrong or "the reference's log-probabilities are the policy's to the last bit"
        if reference is not None and not has_moved and not self._has_resumed:
            off = float((old - reference).abs()[keep].max())
            if not off <= RATIO_TOLERANCE[self._config.policy.precision]:
                wrong = wrong or f"before any update the reference is the policy, and off by {off:.3g}"
        self._guards.hold("scores", not wrong, f"step {step.step}: {wrong}", number=int(keep.sum()))
