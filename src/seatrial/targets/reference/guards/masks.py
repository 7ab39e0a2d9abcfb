"""The rows of a step of refrl held to what trains: what filters leave out, what an environment wrote, what was kept."""

from __future__ import annotations

import math
from collections.abc import Sequence

from refrl.algorithms.batching import TrainSample
from refrl.config import GRPORunConfig
from refrl.generation.base import Completion
from refrl.training.build import build_batch
from refrl.training.observed import TrainedStep
from refrl.training.session import Session
from seatrial.guards import Guards

NO_SPREAD = 1e-6
"""Rewards of a group that differ by less are one reward, or two: float32 decides."""


def hold_masks(step: TrainedStep, config: GRPORunConfig, guards: Guards) -> None:
    """A row trains on every token that was sampled, or on none where a configured filter leaves it out."""
    completions, grpo = step.rollouts.completions, config.grpo
    trains = step.batch.mask_BT.sum(1).tolist()
    spreads = _spreads(step)
    wrong = ""
    for row, completion in enumerate(completions):
        is_overlong = grpo.overlong_filtering and completion.finish_reason == "length"
        is_flat = grpo.zero_variance_filter and spreads[row] == 0
        is_near = grpo.zero_variance_filter and 0 < spreads[row] < NO_SPREAD
        right = 0 if is_overlong or is_flat else completion.num_sampled
        if trains[row] != right and not is_near:
            wrong = wrong or (
                f"row {row} ({completion.finish_reason}) trains on {trains[row]:g} tokens, sampled and not filtered "
                f"are {right}"
            )
        wrong = wrong or _wrong_turns(row, completion)
    guards.hold("rows that train", not wrong, f"step {step.step}: {wrong}", number=len(completions))


def _wrong_turns(row: int, completion: Completion) -> str:
    """What is masked between turns has no log-probability of the sampler: the environment wrote it."""
    pairs = zip(completion.mask or (), completion.logprobs, strict=False)
    own = sum(not sampled and logprob != 0 for sampled, logprob in pairs)
    return f"row {row}: {own} tokens that were sampled count as the environment's" if own else ""


def _spreads(step: TrainedStep) -> list[float]:
    """Return for each row how far apart the verified rewards of its prompt are."""
    of_group: dict[int, list[float]] = {}
    rows = list(zip(step.rollouts.examples, step.rollouts.scores.verified, strict=True))
    for example, reward in rows:
        of_group.setdefault(example.prompt_id, []).append(reward)
    return [max(of_group[one.prompt_id]) - min(of_group[one.prompt_id]) for one, _ in rows]


def hold_kept(
    session: Session, config: GRPORunConfig, guards: Guards, completions: Sequence[Completion]
) -> None:
    """What top-p and top-k kept has the mass, or the number, that is configured.

    Under the weights that sampled: the log-probability of a token among all ids, less that among the kept ones, is the
    logarithm of their mass.
    """
    wanted = config.policy.generation
    size = session.policy.vocab_size
    if not completions or any(one.kept_ids is None for one in completions):
        return
    number = sum(len(one.ids) for one in completions)
    wrong = ""
    if wanted.top_k is not None and wanted.top_p == 1.0:
        few = [len(kept) for one in completions for kept in one.kept_ids or ()]
        least = min(wanted.top_k, size)
        wrong = f"{min(few)} ids were kept, top_k is {wanted.top_k}" if min(few) < least else ""
    elif wanted.top_k is None:
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
        masses = [
            math.exp(among_all - among_kept)
            for row, one in enumerate(completions)
            for among_all, among_kept in zip(whole_BT[row], one.logprobs, strict=False)
        ]
        good = min(masses) >= wanted.top_p - 1e-3
        wrong = (
            ""
            if good
            else f"the ids that were kept have a mass of {min(masses):.5g}, top_p is {wanted.top_p}"
        )
    guards.hold("kept ids as configured", not wrong, wrong, number=number)
