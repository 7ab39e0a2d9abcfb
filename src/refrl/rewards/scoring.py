"""Reward whole batches of completions; a verifier that cannot judge is counted, never hidden."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from refrl.config import ConfigError, RewardShapingConfig
from refrl.config.registry import Registry
from refrl.rewards.verifiers import RewardError, Verifier, VerifierError, judge, soft_overlong_penalty
from refrl.rewards.weighted import Part, WeightedVerifier

VERIFIERS: dict[str, Any] = {
    "exact_match": "refrl.rewards.verifiers:exact_match",
    "character_match": "refrl.rewards.verifiers:character_match",
    "byte_closeness": "refrl.rewards.verifiers:byte_closeness",
    "integer_match": "refrl.rewards.verifiers:integer_match",
    "math_equivalence": "refrl.rewards.math:math_equivalence",
    "multiple_choice": "refrl.rewards.verifiers:multiple_choice",
    "code_output": "refrl.rewards.code:code_output",
    "program_form": "refrl.rewards.code:program_form",
    "format_match": "refrl.rewards.verifiers:format_match",
}
"""The built-in verifiers by the name that `data.verifier` takes."""

VERIFIER_REGISTRY = Registry("verifier", "refrl.verifiers", VERIFIERS)
"""What `data.verifier` and `data.verifiers` may name: built in, of an installed package, or by import path."""


@dataclass(frozen=True)
class Scores:
    """Rewards of a batch, in its order."""

    rewards: Sequence[float]
    num_errors: int
    """Completions that the verifier could not judge; their reward is 0."""
    first_error: str | None
    """Message of the first of them."""
    penalties: Sequence[float] | None = None
    """What was added to each verified reward (never positive); None where no shaping is asked for."""
    failed: Sequence[bool] = ()
    """Whether the verifier could not judge the row."""

    @property
    def verified(self) -> Sequence[float]:
        """The verifier's rewards, before any shaping."""
        return self.rewards if self.unshaped is None else self.unshaped

    unshaped: Sequence[float] | None = None
    """`verified` where penalties were added; None where they are `rewards`."""

    def rows(self, index: Sequence[int]) -> Scores:
        """Return the chosen rows in the order of `index`, with the number of their own errors."""
        failed = [self.failed[row] for row in index]

        def chosen(values: Sequence[float] | None) -> list[float] | None:
            return None if values is None else [values[row] for row in index]

        return replace(
            self,
            rewards=[self.rewards[row] for row in index],
            penalties=chosen(self.penalties),
            unshaped=chosen(self.unshaped),
            failed=failed,
            num_errors=sum(failed),
            first_error=self.first_error if any(failed) else None,
        )


def make_verifier(name: str, key: str = "data.verifier") -> Verifier:
    """Return a verifier: built in, of an installed package, or by import path; of a class an instance.

    Raises:
        ConfigError: it is unknown, cannot be imported, or cannot be called; `key` is named in the message.
    """
    found = VERIFIER_REGISTRY.find(name, key)
    if isinstance(found, type):
        try:
            found = found()
        except Exception as error:
            raise ConfigError(
                f"{key}={name}: making one failed with {type(error).__name__}: {error}"
            ) from error
    if not callable(found):
        raise ConfigError(f"{key}={name} is no verifier: it must be called with a completion and an answer")
    verifier: Verifier = found
    return verifier


def make_weighted_verifier(weights: Mapping[str, float]) -> WeightedVerifier:
    """Return the weighted mean of verifiers by name.

    Raises:
        ConfigError: one is unknown.
    """
    parts = [Part(name, make_verifier(name, "data.verifiers"), weight) for name, weight in weights.items()]
    return WeightedVerifier(parts)


def join_scores(parts: Sequence[Scores]) -> Scores:
    """Return the scores of parts of a batch as those of the whole."""
    errors = [part.first_error for part in parts if part.first_error is not None]
    joined = Scores(
        [reward for part in parts for reward in part.rewards],
        sum(part.num_errors for part in parts),
        errors[0] if errors else None,
        failed=[failed for part in parts for failed in part.failed],
    )
    if any(part.penalties is not None for part in parts):
        joined = replace(
            joined,
            penalties=[penalty for part in parts for penalty in part.penalties or ()],
            unshaped=[reward for part in parts for reward in part.verified],
        )
    return joined


def score_completions(
    completions: Sequence[str], answers: Sequence[str], verifier: Verifier, *, first_row: int = 0
) -> Scores:
    """Reward each completion against the answer of its own row; messages count rows from `first_row`.

    Raises:
        ValueError: the numbers of completions and answers disagree.
        RewardError: the verifier gave something else than a number between 0 and 1.
    """
    rewards: list[float] = []
    errors: list[str] = []
    failed: list[bool] = []
    for row, (completion, answer) in enumerate(zip(completions, answers, strict=True), start=first_row):
        try:
            reward = judge(verifier, completion, answer)
            failed.append(False)
        except VerifierError as error:
            errors.append(f"row {row}: {error}")
            failed.append(True)
            reward = 0.0
        except RewardError as error:
            raise RewardError(f"row {row}: {error}") from error
        rewards.append(reward)
    return Scores(rewards, len(errors), errors[0] if errors else None, failed=failed)


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
