"""Checks the rewards and advantages that a step of refrl trains with."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from refrl.algorithms.advantages import compute_advantages
from refrl.algorithms.filters import groups_with_spread
from refrl.config import GRPORunConfig
from refrl.config.algorithms import ADVANTAGES
from refrl.training.session import TrainedStep
from seatrial.guards import Guards
from seatrial.relations.measures.rows import overlong_penalty, rewards_by_prompt
from seatrial.relations.oracles.runs import expected_advantages
from seatrial.relations.records.run import RunRow
from seatrial.targets.reference.configuration import effective
from seatrial.targets.reference.guards.base import check

ROUNDING = 1e-3
NEAR = (0.0, 1e-4, 1e-3, 0.01, 0.1)
"""Differences of two rewards of a group."""
NO_SPREAD = 1e-5
"""Rewards of a group that differ by less are one reward, or two: float32 decides."""


def check_shaped_rewards(step: TrainedStep, config: GRPORunConfig, guards: Guards) -> None:
    """Check that each reward is the verifier's, with the configured penalty on length."""
    scores, shaping = step.rollouts.scores, config.grpo.reward_shaping
    lengths = [len(one.ids) for one in step.rollouts.completions]
    longest = shaping.max_response_length or config.policy.generation.max_new_tokens
    buffer, wrong = shaping.overlong_buffer_length, []
    for row, (length, verified) in enumerate(zip(lengths, scores.verified, strict=True)):
        penalty = 0.0
        if shaping.enabled and buffer is not None:
            penalty = overlong_penalty(length, longest, buffer, shaping.overlong_buffer_penalty)
        given = float(step.batch.rewards_B[row])
        if not math.isclose(given, verified + penalty, rel_tol=1e-5, abs_tol=1e-5):
            wrong.append(
                f"row {row}: {given:.6g}, the verifier's {verified:.6g} and {penalty:.6g} for its length"
            )
    check(guards, "rewards as configured", wrong[:1], where=f"step {step.step}, ", number=len(lengths))


def check_advantages(
    step: TrainedStep, rows: Sequence[RunRow], config: GRPORunConfig, guards: Guards
) -> None:
    """Check that advantages are those of the rewards by the configured estimator, less a KL in the reward."""
    in_reward = config.loss_fn.kl_in == "reward"
    if in_reward and not all(all(row.mask) for row in rows):
        return
    if config.grpo.advantage.is_built_in:
        rights = expected_advantages(rows, effective(config))
    elif not in_reward:
        rights = _custom_advantages(rows, config)
    else:
        return
    largest = max(map(abs, rights))
    of_prompt = rewards_by_prompt((row.prompt_id for row in rows), (row.reward for row in rows))
    wrong = []
    for number, (row, right) in enumerate(zip(rows, rights, strict=True)):
        rewards = of_prompt[row.prompt_id]
        if max(rewards) - min(rewards) < NO_SPREAD and not in_reward:
            right = 0.0
        if not abs(row.advantage - right) <= ROUNDING * largest + 1e-6:
            wrong.append(f"row {number}: {row.advantage:.6g}, its group gives {right:.6g}")
    check(guards, "advantages as configured", wrong[:1], where=f"step {step.step}, ", number=len(rows))


def check_near_rewards(config: GRPORunConfig, guards: Guards) -> None:
    """Check that rewards which differ by little rank the rows of a group, and that equal ones do not.

    Rewards of a run are seldom so near, so the stack's functions are called with made ones.
    """
    if not config.grpo.advantage.is_built_in:
        return
    wrong = []
    for near in NEAR:
        rewards_B = torch.tensor([0.8, 0.8 + near, 0.0, 1.0])
        groups_B = torch.tensor([0, 0, 1, 1])
        low, high, *_ = compute_advantages(rewards_B, groups_B, config.grpo.advantage).tolist()
        varies = groups_with_spread(rewards_B, groups_B).tolist()
        if (high > low) is not (near > 0):
            wrong.append(f"rewards 0.8 and {0.8 + near:g} have advantages {low:.3g} and {high:.3g}")
        if varies != [near > 0, near > 0, True, True]:
            wrong.append(f"rewards 0.8 and {0.8 + near:g} {'vary' if varies[0] else 'count as equal'}")
    check(guards, "near rewards differ", wrong, number=len(NEAR))


def _custom_advantages(rows: Sequence[RunRow], config: GRPORunConfig) -> list[float]:
    """Return the advantages that a custom estimator, with the configured options, gives the rewards of a step."""
    section = config.grpo.advantage
    made_by = ADVANTAGES.find(section.estimator, "grpo.advantage.estimator")
    estimator = made_by(section)
    estimator.options = made_by.Options(**section.options)
    groups = sorted({row.prompt_id for row in rows})
    index_B = torch.tensor([groups.index(row.prompt_id) for row in rows])
    rewards = torch.tensor([row.reward for row in rows], dtype=torch.float64)
    found: list[float] = estimator.advantages(rewards, index_B).tolist()
    return found
