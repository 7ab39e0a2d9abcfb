"""The tool of the task `lookup`: a table of prices that the model cannot know."""

from __future__ import annotations

import re
from collections.abc import Sequence

from refrl.tasks.lookup import price_of

_ASKED = re.compile(r"\?([a-z]+)")


class LookupEnvironment:
    """Answers `?word` with `=price;`; a turn without a question ends the episode. An `Environment`."""

    def __init__(self, max_turns: int = 2) -> None:
        """Bound the turns.

        Raises:
            ValueError: fewer than two: the model would never read the answer.
        """
        if max_turns < 2:
            raise ValueError(f"max_turns={max_turns} must be at least 2: one to ask, one to answer")
        self.max_turns = max_turns

    def respond(self, turns: Sequence[str]) -> str | None:
        """Return the requested price."""
        asked = _ASKED.search(turns[-1])
        return None if asked is None else f"={price_of(asked[1])};"
