"""Checks which tokens of a step of refrl train, and which ids top-p and top-k kept."""

from __future__ import annotations

import math
from collections.abc import Sequence

from refrl.algorithms.batching import TrainSample
from refrl.config import GRPORunConfig
from refrl.generation.base import Completion
from refrl.training.build import build_batch
from refrl.training.session import Session, TrainedStep
from seatrial.guards import Guards
from seatrial.relations.measures.rows import rewards_by_prompt
from seatrial.targets.reference.guards.base import check

NO_SPREAD = 1e-6
"""Rewards of a group that differ by less are one reward, or two: float32 decides."""


def check_masks(step: TrainedStep, config: GRPORunConfig, guards: Guards) -> None:
    """Check that a row trains on every token that was sampled, or on none where a configured filter leaves it out."""
    completions, grpo = step.rollouts.completions, config.grpo
    trains, spreads, wrong = step.batch.mask_BT.sum(1).tolist(), _spreads(step), []
    for row, completion in enumerate(completions):
        is_overlong = grpo.overlong_filtering and completion.finish_reason == "length"
        is_flat = grpo.zero_variance_filter and spreads[row] == 0
        is_near = grpo.zero_variance_filter and 0 < spreads[row] < NO_SPREAD
        right = 0 if is_overlong or is_flat else completion.num_sampled
        if trains[row] != right and not is_near:
            wrong.append(
                f"row {row} ({completion.finish_reason}) trains on {trains[row]:g} tokens, sampled and not filtered "
                f"are {right}"
            )
        # A token of the environment, which the mask leaves out, has no log-probability of the sampler.
        pairs = zip(completion.mask or (), completion.logprobs, strict=False)
        own = sum(not sampled and logprob != 0 for sampled, logprob in pairs)
        wrong += [f"row {row}: {own} tokens that were sampled count as the environment's"] if own else []
    check(guards, "rows that train", wrong[:1], where=f"step {step.step}: ", number=len(completions))


def _spreads(step: TrainedStep) -> list[float]:
    """Return for each row how far apart the verified rewards of its prompt are."""
    prompts = [example.prompt_id for example in step.rollouts.examples]
    of_prompt = rewards_by_prompt(prompts, step.rollouts.scores.verified)
    return [max(of_prompt[prompt]) - min(of_prompt[prompt]) for prompt in prompts]


def check_kept_ids(
    session: Session, config: GRPORunConfig, guards: Guards, completions: Sequence[Completion]
) -> None:
    """Check that the ids that top-p or top-k kept have the configured mass or number.

    Under the weights that sampled, the log-probability of a token among all ids, less that among the kept ones, is the
    logarithm of their mass.
    """
    wanted = config.policy.generation
    if not completions or any(one.kept_ids is None for one in completions):
        return
    wrong = ""
    if wanted.top_k is not None and wanted.top_p == 1.0:
        fewest = min(len(kept) for one in completions for kept in one.kept_ids or ())
        if fewest < min(wanted.top_k, session.policy.vocab_size):
            wrong = f"{fewest} ids were kept, top_k is {wanted.top_k}"
    elif wanted.top_k is None:
        smallest = min(_masses(session, config, completions))
        if not smallest >= wanted.top_p - 1e-3:
            wrong = f"the ids that were kept have a mass of {smallest:.5g}, top_p is {wanted.top_p}"
    check(guards, "kept ids as configured", wrong, number=sum(len(one.ids) for one in completions))


def _masses(session: Session, config: GRPORunConfig, completions: Sequence[Completion]) -> list[float]:
    """Return the mass of the ids that were kept at each token."""
    samples = [
        TrainSample(
            prompt_ids=one.prompt_ids,
            completion_ids=one.ids,
            sampling_logprobs=one.logprobs,
            reward=0.0,
            group_id=group,
        )
        for group, one in enumerate(completions)
    ]
    batch = build_batch(samples, config.policy, pad_token_id=session.tokenizer.pad_token_id)
    whole_BT = session.policy.logprobs(batch).tolist()
    return [
        math.exp(among_all - among_kept)
        for row, one in enumerate(completions)
        for among_all, among_kept in zip(whole_BT[row], one.logprobs, strict=False)
    ]
