"""What is added to verified rewards before advantages: the soft penalty on length of DAPO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from refrl.config import RewardShapingConfig
from refrl.rewards.scoring import Scores
from refrl.rewards.text_rules import soft_overlong_penalty


def penalise_length(
    scores: Scores, num_tokens: Sequence[int], config: RewardShapingConfig, max_new_tokens: int
) -> Scores:
    """Return scores less the penalty on each completion's length; unchanged where shaping is switched off.

    Args:
        scores: of the verifier.
        num_tokens: of each completion, the end token included.
        config: buffer, weight, longest response.
        max_new_tokens: the longest response where the configuration names none.
    """
    if not config.enabled or config.overlong_buffer_length is None:
        return scores
    longest = config.max_response_length or max_new_tokens
    buffer, weight = config.overlong_buffer_length, config.overlong_buffer_penalty
    penalties = [weight * soft_overlong_penalty(num, max_length=longest, buffer=buffer) for num in num_tokens]
    rewards = [reward + penalty for reward, penalty in zip(scores.rewards, penalties, strict=True)]
    return replace(scores, rewards=rewards, penalties=penalties, unshaped=scores.rewards)
