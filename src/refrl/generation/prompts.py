"""Checks of an engine's prompts before it samples."""

from __future__ import annotations

from collections.abc import Sequence

from refrl.config import ConfigError


def check_prompts(
    rows: Sequence[Sequence[int]], *, vocab_size: int, limit: int | None, max_new_tokens: int
) -> None:
    """Refuse prompts that cannot be continued.

    Args:
        rows: ids of each prompt.
        vocab_size: ids below it are known.
        limit: positions of the model, or of its cache; None: it has no bound.
        max_new_tokens: that a completion may have.

    Raises:
        ValueError: a prompt is empty or holds an id outside the vocabulary.
        ConfigError: a prompt is too long for a completion to follow.
    """
    for number, row in enumerate(rows):
        if not row:
            raise ValueError(f"prompt {number} is empty: a completion needs at least one token to follow")
        unknown = next((token for token in row if not 0 <= token < vocab_size), None)
        if unknown is not None:
            raise ValueError(f"prompt {number} holds id {unknown}, outside the vocabulary of {vocab_size}")
        if limit is not None and len(row) + max_new_tokens > limit:
            raise ConfigError(
                f"prompt {number} has {len(row)} tokens; with policy.generation.max_new_tokens="
                f"{max_new_tokens} it exceeds the model's {limit} positions: shorten the prompt or lower "
                "max_new_tokens"
            )
