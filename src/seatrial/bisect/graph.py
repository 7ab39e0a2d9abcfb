"""Where the commits stand when their graph is drawn: one column a commit, one lane a line of development."""

from __future__ import annotations

from dataclasses import dataclass

from seatrial.bisect.history import History

MOST_LANES = 8
"""Lines of development side by side; further ones share the last lane."""


@dataclass(frozen=True)
class Graph:
    """Positions are those of the history: GOOD is 0, BAD the last."""

    lanes: tuple[int, ...]
    """Lane of each position; the line that leads to BAD by first parents is lane 0."""
    edges: tuple[tuple[int, int], ...]
    """(parent, child) positions; a parent outside the range is drawn as GOOD, on whose side it is."""

    @property
    def num_lanes(self) -> int:
        """How many lanes are used."""
        return 1 + max(self.lanes)


def graph_of(history: History) -> Graph:
    """Lay out a history, from BAD back to GOOD, giving each open line of development the lowest free lane."""
    position = {history.commit(p).sha: p for p in range(history.num_suspects + 1)}
    parents = {
        p: list(dict.fromkeys(position.get(sha, 0) for sha in history.commit(p).parents)) or [0]
        for p in range(1, history.num_suspects + 1)
    }
    lanes = [0] * (history.num_suspects + 1)
    awaited: list[int | None] = [history.bad_position]
    for child in range(history.num_suspects, 0, -1):
        waiting = [lane for lane, expected in enumerate(awaited) if expected == child]
        lane = waiting[0] if waiting else _free_lane(awaited)
        lanes[child] = min(lane, MOST_LANES - 1)
        for other in waiting:
            awaited[other] = None
        first, *others = parents[child]
        awaited[lane] = first
        for other in others:
            if other not in awaited:
                awaited[_free_lane(awaited)] = other
    edges = [(parent, child) for child, found in parents.items() for parent in found]
    return Graph(tuple(lanes), tuple(sorted(edges)))


def _free_lane(awaited: list[int | None]) -> int:
    """Return the lowest lane that awaits no commit, adding one if need be."""
    for lane, expected in enumerate(awaited):
        if expected is None:
            return lane
    awaited.append(None)
    return len(awaited) - 1
