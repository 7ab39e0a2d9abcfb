"""The journal of a control: every change as a line of JSON, from which a crashed control is restored."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from refrl.data_plane.control import ControlState
from refrl.data_plane.errors import DataPlaneError
from refrl.data_plane.partition import PartitionSpec
from refrl.data_plane.records import NewBlock


class Journal:
    """A file that is added to. A line that the death of its writer cut short is left out, as its change never was."""

    def __init__(self, path: Path) -> None:
        """Open it, and begin it where there is none."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = _whole_lines(path)
        self._file = path.open("r+b" if path.exists() else "w+b")
        self._file.truncate(whole)
        self._file.seek(whole)

    def log(self, operation: str, words: Mapping[str, Any]) -> None:
        """Write a change, so that it outlives this process."""
        self._file.write(json.dumps([operation, words]).encode() + b"\n")
        self._file.flush()

    def play(self, state: ControlState) -> int:
        """Make every change again, and return how many there were.

        Raises:
            DataPlaneError: the file is not a journal.
        """
        number = 0
        with self.path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    operation, words = json.loads(line)
                    _AGAIN[operation](state, words)
                except (ValueError, KeyError, TypeError) as error:
                    raise DataPlaneError(
                        f"{self.path}, line {number}, is no change of a data plane: {error}"
                    ) from error
        return number


def restored(path: Path, clock: Callable[[], float] = time.monotonic) -> ControlState:
    """Return the state that a journal records, with further changes appended to it; leases begin again."""
    journal = Journal(path)
    state = ControlState(clock)
    journal.play(state)
    state.log = journal.log
    return state


def _whole_lines(path: Path) -> int:
    """Return the bytes up to the end of the last whole line."""
    return path.read_bytes().rfind(b"\n") + 1 if path.exists() else 0


def _register(state: ControlState, words: dict[str, Any]) -> None:
    state.register(words["partition_id"], PartitionSpec.from_json(words["spec"]))


def _publish(state: ControlState, words: dict[str, Any]) -> None:
    state.publish(**{**words, "blocks": [NewBlock(**block) for block in words["blocks"]]})


_AGAIN: Mapping[str, Callable[[ControlState, dict[str, Any]], None]] = {
    "register": _register,
    "publish": _publish,
    "lease": lambda state, words: state.lease(**words),
    "acknowledge": lambda state, words: state.acknowledge(**words),
    "release": lambda state, words: state.release(**words),
    "clear": lambda state, words: _nothing(state.clear(**words)),
    "move": lambda state, words: _nothing(state.move(**words)),
}


def _nothing(waste: object) -> None:
    """The blocks that a change left behind were dropped when it was made."""
