"""What an environment is: it reads what was said, and answers, or ends the episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Environment(Protocol):
    """Answers between the turns of a model. One instance serves all rows: what it needs, it reads in the turns."""

    max_turns: int
    """Turns of the model after which an episode ends."""

    def respond(self, turns: Sequence[str]) -> str | None:
        """Return what is written after the model's last turn, or None where the episode ends.

        Args:
            turns: texts of the model's turns so far, the last one last, without special tokens.
        """
        ...
