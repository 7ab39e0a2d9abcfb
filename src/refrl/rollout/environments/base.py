"""The interface of an environment: it reads the model's turns, and answers or ends the episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Environment(Protocol):
    """Answers between the turns of a model. One instance serves all rows, so its state must come from the turns."""

    max_turns: int
    """Turns of the model after which an episode ends."""

    def respond(self, turns: Sequence[str]) -> str | None:
        """Return the text that follows the model's last turn, or None to end the episode.

        Args:
            turns: texts of the model's turns so far, the last one last, without special tokens.
        """
        ...
