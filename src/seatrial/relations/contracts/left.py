"""Contract of what a run leaves on disk: its log, its record of itself, its rows, its directories.

Part of `seatrial.relations.contracts`, which lists every component. Options are those of `contracts.run`, and
`logger.tensorboard_enabled`, `logger.log_train_data`, `checkpointing.enabled`: all on where a law names none. The value
`failing` of `data.verifier` is a verifier that judges as `graded` does, and fails, by the stack's own means, on each
completion of which `unjudgeable` is true.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from seatrial.relations.records.run import RunRecord

PROBES = ("reverse abc=", "  two  words\n", "Straße, naïve, 数", "<think>3</think>")
"""Texts that the exported tokenizer is tried on."""


def unjudgeable(completion: str) -> bool:
    """Return whether the verifier `failing` fails on a completion: about one in three."""
    return sum(completion.encode(errors="surrogatepass")) % 3 == 0


@dataclass(frozen=True, kw_only=True)
class LeftRow:
    """One trained row as the run wrote it."""

    step: int
    prompt_id: int
    token_ids: tuple[int, ...]
    """Prompt and completion."""
    completion: str
    sampling_logprobs: tuple[float, ...]
    reward: float
    advantage: float
    judged: bool
    """Whether the verifier could judge it."""
    mask: tuple[int, ...] | None = None
    """1 on the tokens of the completion that train; None where it is not written."""
    weight_version: int | None = None
    """The step whose weights sampled it, 0 for the initial ones; None where it is not written."""


@dataclass(frozen=True, kw_only=True)
class LeftRun:
    """A run's directory, read when the run has ended."""

    record: RunRecord
    """What an observer inside the loop saw of the same run."""
    series: Mapping[str, tuple[tuple[int, float], ...]]
    """The log: (step, value) by the name of the series."""
    seed: int | None
    """Seed of the loop, as the run's record of itself says; None where there is none."""
    options: Mapping[str, Any]
    """The configuration, as the run's record of itself says, by dotted name."""
    rows: tuple[LeftRow, ...]
    """In the order of steps, and of a step's rows."""
    modes: Mapping[str, int]
    """Permission bits by path below the run's directory; the path of a directory ends in `/`."""
    exported_ids: tuple[tuple[int, ...], ...] | None
    """Ids of `PROBES` by the exported tokenizer; None where none is exported."""
    given_ids: tuple[tuple[int, ...], ...]
    """Ids of `PROBES` by the tokenizer of the model that the run started from."""
    seconds: float
    """That the run took by a clock outside of it."""


@runtime_checkable
class LeftRuns(Protocol):
    """Short runs of the real loop that write everything they can write."""

    def left_run(self, options: Mapping[str, Any], *, seed: int) -> LeftRun:
        """Run the loop as `contracts.run.ShortRun.short_run` does, in an empty directory, and read what it left."""
        ...

    def documented_series(self) -> Mapping[str, bool]:
        """Return patterns (`fnmatch`) of the names of series, and whether every run with validations has them."""
        ...

    def documented_paths(self) -> Sequence[str]:
        """Return patterns of the paths of files that a run leaves, all that there may be."""
        ...
