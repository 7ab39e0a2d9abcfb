"""Reward whole batches of completions; a verifier that cannot judge is counted, never hidden."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from refrl.config import ConfigError
from refrl.rewards.registry import VERIFIERS
from refrl.rewards.verifiers import Verifier, VerifierError
from refrl.rewards.weighted import Part, WeightedVerifier


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


def make_verifier(name: str) -> Verifier:
    """Return a verifier by name.

    Raises:
        ConfigError: it is unknown.
    """
    if name not in VERIFIERS:
        raise ConfigError(f"data.verifier={name!r} is unknown; known: {', '.join(sorted(VERIFIERS))}")
    return VERIFIERS[name]


def make_weighted_verifier(weights: Mapping[str, float]) -> WeightedVerifier:
    """Return the weighted mean of verifiers by name.

    Raises:
        ConfigError: one is unknown.
    """
    unknown = sorted(set(weights) - set(VERIFIERS))
    if unknown:
        raise ConfigError(f"data.verifiers: {unknown[0]!r} is unknown; known: {', '.join(sorted(VERIFIERS))}")
    return WeightedVerifier([Part(name, VERIFIERS[name], weight) for name, weight in weights.items()])


def join_scores(parts: Sequence[Scores]) -> Scores:
    """Return the scores of parts of a batch as those of the whole."""
    errors = [part.first_error for part in parts if part.first_error is not None]
    joined = Scores(
        [reward for part in parts for reward in part.rewards],
        sum(part.num_errors for part in parts),
        errors[0] if errors else None,
    )
    if any(part.penalties is not None for part in parts):
        joined = replace(joined, penalties=[penalty for part in parts for penalty in part.penalties or ()])
    return joined


def score_completions(
    completions: Sequence[str], answers: Sequence[str], verifier: Verifier, *, first_row: int = 0
) -> Scores:
    """Reward each completion against the answer of its own row; messages count rows from `first_row`.

    Raises:
        ValueError: the numbers of completions and answers disagree, or a reward lies outside [0, 1].
    """
    rewards: list[float] = []
    errors: list[str] = []
    for row, (completion, answer) in enumerate(zip(completions, answers, strict=True), start=first_row):
        try:
            reward = verifier(completion, answer)
        except VerifierError as error:
            errors.append(f"row {row}: {error}")
            reward = 0.0
        if not 0.0 <= reward <= 1.0:
            raise ValueError(
                f"row {row}: the verifier gave {reward} for {completion!r}; rewards lie in [0, 1]"
            )
        rewards.append(reward)
    return Scores(rewards, len(errors), errors[0] if errors else None)
