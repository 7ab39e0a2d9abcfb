"""The suspect commits, and which of them each run contains.

Shapes: H hypotheses (one per suspect commit), P positions that can be probed (GOOD first, then the suspects).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from seatrial.errors import UsageError

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Commit:
    """One commit."""

    sha: str
    subject: str = ""
    parents: tuple[str, ...] = ()
    tree: str = ""
    """Hash of the content that a run can depend on; commits with equal hashes share results."""


@dataclass(frozen=True)
class History:
    """GOOD and the suspects: parents before children, BAD last."""

    good: Commit
    suspects: tuple[Commit, ...]
    affected_PH: BoolArray = field(repr=False)
    """True if a run at position p contains the change of suspect h."""
    _twins: Mapping[str, tuple[int, ...]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, good: Commit, suspects: Sequence[Commit]) -> History:
        """Build a history from commits in topological order; parents outside the range are on GOOD's side.

        Raises:
            UsageError: there is no suspect, because GOOD already contains BAD.
        """
        if not suspects:
            raise UsageError(f"GOOD {good.sha[:12]} already contains BAD: there is no commit between them")
        index = {commit.sha: number for number, commit in enumerate(suspects)}
        affected = np.zeros((len(suspects) + 1, len(suspects)), dtype=np.bool_)
        for number, commit in enumerate(suspects):
            row = affected[number + 1]
            row[number] = True
            for parent in commit.parents:
                if parent in index:
                    row |= affected[index[parent] + 1]
        twins: dict[str, tuple[int, ...]] = {}
        for position, commit in enumerate((good, *suspects)):
            twins[commit.tree] = (*twins.get(commit.tree, ()), position)
        return cls(good, tuple(suspects), affected, twins)

    @classmethod
    def linear(cls, num_suspects: int) -> History:
        """Return a linear history of made-up commits, for simulation."""
        good = Commit(sha=f"{0:040x}", tree="t0")
        commits = [
            Commit(sha=f"{n:040x}", parents=(f"{n - 1:040x}",), tree=f"t{n}")
            for n in range(1, num_suspects + 1)
        ]
        return cls.of(good, commits)

    @property
    def num_suspects(self) -> int:
        """H, the number of suspects."""
        return len(self.suspects)

    @property
    def bad_position(self) -> int:
        """The position of BAD."""
        return len(self.suspects)

    def commit(self, position: int) -> Commit:
        """Return the commit at a position (0 is GOOD)."""
        return self.good if position == 0 else self.suspects[position - 1]

    def position(self, sha: str) -> int | None:
        """Return the position of a commit given by a unique prefix of its hash, or None."""
        found = [p for p in range(len(self.suspects) + 1) if self.commit(p).sha.startswith(sha)]
        return found[0] if len(found) == 1 else None

    def twins(self, position: int) -> tuple[int, ...]:
        """Return the positions whose content equals this one's, itself included."""
        tree = self.commit(position).tree
        return self._twins[tree] if tree else (position,)

    def content(self, position: int) -> str:
        """Return the key of the content at this position; commits with equal keys share results."""
        commit = self.commit(position)
        return commit.tree or commit.sha

    def contents(self) -> dict[str, tuple[int, ...]]:
        """Return the positions of each content."""
        return {self.content(p): self.twins(p) for p in range(len(self.suspects) + 1)}


def suspect_weights(history: History, factors: Mapping[str, float] | None = None) -> FloatArray:
    """Return prior weights of the suspects, summing to 1.

    A suspect gets weight 0 if its guilt would make two commits of equal content behave differently.

    Args:
        history: the commits.
        factors: by hash, the relative prior weight of a commit (from the paths that it touches); 1 by default.

    Raises:
        UsageError: no suspect is left, because GOOD and BAD have equal content.
    """
    weights = np.array([(factors or {}).get(commit.sha, 1.0) for commit in history.suspects])
    for positions in history.contents().values():
        rows = history.affected_PH[list(positions)]
        weights[rows.any(axis=0) & ~rows.all(axis=0)] = 0.0
    if weights.sum() <= 0:
        raise UsageError(
            "GOOD and BAD do not differ in what a run depends on, so no commit between them can be the culprit; "
            "look at data, packages and machines, or widen --paths"
        )
    return np.asarray(weights / weights.sum(), dtype=np.float64)


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
