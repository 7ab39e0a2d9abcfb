"""Checks how a run of GRPO samples and scores: parameters, prompts, ends of rows, old and reference scores."""

from __future__ import annotations

from refrl.config import GRPORunConfig
from refrl.rollout.sync import Rollouts
from refrl.training.session import Session, TrainedStep
from seatrial.guards import Guards
from seatrial.relations.measures.rows import ending_error
from seatrial.targets.reference.guards.base import check, rows_per_step

RATIO_TOLERANCE = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.2}
"""Of |log ratio| by precision: two passes cut the rows differently."""


class SamplingGuard:
    """Checks that rollouts are those of the configuration."""

    def __init__(self, config: GRPORunConfig, guards: Guards) -> None:
        """Begin."""
        self._config, self._guards = config, guards
        self._has_moved = self._has_resumed = False

    def started(self, session: Session) -> None:
        """Check the sampling parameters, and that no prompt of validation is trained on."""
        self._has_resumed = session.attempt.step > 0
        wanted, given = self._config.policy.generation, session.sampling
        names = ("max_new_tokens", "temperature", "top_p", "top_k")
        same = all(getattr(wanted, name) == getattr(given, name) for name in names)
        same = same and wanted.stop_token_ids in (None, given.stop_token_ids)
        wrong = "" if same else f"completions are drawn with {given}"
        check(self._guards, "sampling as configured", wrong, number=1)
        held_out = {(example.prompt, example.media) for example in session.validation}
        both = sum((one.prompt, one.media) in held_out for one in session.train_examples)
        wrong = f"{both} are trained on too" if both else ""
        check(self._guards, "held-out prompts", wrong, number=len(held_out))

    def check_step(self, session: Session, step: TrainedStep) -> None:
        """Check the prompts, the ends of rows and the scores of a step."""
        self._check_prompts(session, step)
        self._check_endings(session, step)
        self._check_scores(step)
        # A gradient of zero leaves the policy where the reference is.
        self._has_moved = self._has_moved or step.metrics["grad_norm"] > 0 < step.metrics["lr"]

    def validated(self, session: Session, step: int, rollouts: Rollouts) -> None:
        """Check that every held-out prompt is answered, once and in order."""
        answered = [example.prompt_id for example in rollouts.examples]
        trained = {example.prompt_id for example in session.train_examples}
        right = [example.prompt_id for example in session.validation]
        good = answered == right and not trained.intersection(answered)
        wrong = f"step {step}: not those that are held out"
        self._guards.hold("validation prompts", good, wrong, number=len(answered))

    def _check_prompts(self, session: Session, step: TrainedStep) -> None:
        grpo, num_rows = self._config.grpo, rows_per_step(self._config)
        known = {example.prompt_id for example in session.train_examples}
        trained = {example.prompt_id for example in step.rollouts.examples}
        number, drawn = len(step.rollouts.examples), len(step.served)
        wrong = [] if number == num_rows else [f"{number} rows, configured are {num_rows}"]
        if not trained <= known:
            wrong.append("a prompt is none of those to train on")
        if len(trained) < 2 <= min(grpo.num_prompts_per_step, len(known)):
            wrong.append("all rows have one prompt")
        is_even = not grpo.use_dynamic_sampling and not grpo.async_grpo.enabled
        if is_even and drawn != grpo.num_prompts_per_step:
            wrong.append(f"{drawn} prompts were drawn")
        check(self._guards, "prompts as configured", wrong[:1], where=f"step {step.step}: ", number=number)

    def _check_endings(self, session: Session, step: TrainedStep) -> None:
        stops, limit = set(session.sampling.stop_token_ids or ()), session.sampling.max_new_tokens
        completions = step.rollouts.completions
        wrong = [
            row
            for row, one in enumerate(completions)
            if ending_error(one.ids, one.finish_reason, stops, limit, one_turn=one.mask is None)
        ]
        text = f"rows {wrong[:3]}: finish reason and last token disagree" if wrong else ""
        check(self._guards, "endings", text, number=len(completions))

    def _check_scores(self, step: TrainedStep) -> None:
        """Check that the old and the reference policy are scored, each by its own model."""
        batch = step.batch
        keep = batch.mask_BT.bool()
        old, reference = batch.old_logprobs_BT, batch.ref_logprobs_BT
        if old is None or not keep.any():
            return
        # A token that was certain has the log-probability 0 by both.
        uncertain = keep & (old != 0)
        wrong = []
        if int(uncertain.sum()) > 50 and bool((old == batch.sampling_logprobs_BT)[uncertain].all()):
            wrong.append("the old log-probabilities are the sampler's to the last bit")
        if reference is not None and self._has_moved and bool((old == reference)[keep].all()):
            wrong.append("the reference's log-probabilities are the policy's to the last bit")
        if reference is not None and not self._has_moved and not self._has_resumed:
            off = float((old - reference).abs()[keep].max())
            if not off <= RATIO_TOLERANCE[self._config.policy.precision]:
                wrong.append(f"before any update the reference is the policy, and off by {off:.3g}")
        check(self._guards, "scores", wrong[:1], where=f"step {step.step}: ", number=int(keep.sum()))
