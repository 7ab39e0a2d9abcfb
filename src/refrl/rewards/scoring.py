"""Reward whole batches of completions; a verifier that cannot judge is counted, never hidden."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from refrl.config import ConfigError
from refrl.rewards.registry import VERIFIERS
from refrl.rewards.verifiers import Verifier, VerifierError


@dataclass(frozen=True)
class Scores:
    """Rewards of a batch, in its order."""

    rewards: Sequence[float]
    num_errors: int
    """Completions that the verifier could not judge; their reward is 0."""
    first_error: str | None
    """Message of the first of them."""


def make_verifier(name: str) -> Verifier:
    """Return a verifier by name.

    Raises:
        ConfigError: it is unknown.
    """
    if name not in VERIFIERS:
        raise ConfigError(f"data.verifier={name!r} is unknown; known: {', '.join(sorted(VERIFIERS))}")
    return VERIFIERS[name]


def score_completions(completions: Sequence[str], answers: Sequence[str], verifier: Verifier) -> Scores:
    """Reward each completion against the answer of its own row.

    Raises:
        ValueError: the numbers of completions and answers disagree, or a reward lies outside [0, 1].
    """
    rewards: list[float] = []
    errors: list[str] = []
    for row, (completion, answer) in enumerate(zip(completions, answers, strict=True)):
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
