"""The layout of the commit graph: one column per commit, one lane per line of development."""

from __future__ import annotations

from dataclasses import dataclass

from seatrial.bisect.history import History

MOST_LANES = 8
"""Lanes side by side; further lines of development share the last lane."""


@dataclass(frozen=True)
class Graph:
    """Positions are those of the history: GOOD is 0, BAD is last."""

    lanes: tuple[int, ...]
    """Lane of each position; lane 0 is the first-parent line that leads to BAD."""
    edges: tuple[tuple[int, int], ...]
    """(parent, child) positions; a parent outside the range is drawn as GOOD."""

    @property
    def num_lanes(self) -> int:
        """How many lanes are used."""
        return 1 + max(self.lanes)


def graph_of(history: History) -> Graph:
    """Lay out a history from BAD back to GOOD; each open line of development gets the lowest free lane."""
    index = {history.commit(p).sha: p for p in range(history.num_suspects + 1)}
    parents = {
        p: list(dict.fromkeys(index.get(sha, 0) for sha in history.commit(p).parents)) or [0]
        for p in range(1, history.num_suspects + 1)
    }
    lanes = [0] * (history.num_suspects + 1)
    expected: list[int | None] = [history.bad_position]
    for child in range(history.num_suspects, 0, -1):
        waiting = [lane for lane, position in enumerate(expected) if position == child]
        lane = waiting[0] if waiting else _free_lane(expected)
        lanes[child] = min(lane, MOST_LANES - 1)
        for other in waiting:
            expected[other] = None
        first, *others = parents[child]
        expected[lane] = first
        for other in others:
            if other not in expected:
                expected[_free_lane(expected)] = other
    edges = [(parent, child) for child, found in parents.items() for parent in found]
    return Graph(tuple(lanes), tuple(sorted(edges)))


def _free_lane(expected: list[int | None]) -> int:
    """Return the lowest lane that expects no commit; add one if there is none."""
    if None not in expected:
        expected.append(None)
    return expected.index(None)
