"""Judges a log repeatedly while it grows; an alarm that was raised is kept."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from seatrial.errors import BlockedError
from seatrial.evidence.configuration import find_configuration
from seatrial.evidence.read import read_logs
from seatrial.evidence.readers.attempts import is_time_stepped
from seatrial.evidence.runlog import RunLog
from seatrial.rules.engine import Judged, judge_streams
from seatrial.rules.healthy import Baseline, HealthyRuns
from seatrial.rules.rule import Level, Rule, Streams, streams_of
from seatrial.vocabulary import Stack

REST = 200.0
"""A look is followed by a rest of this many times its length: half a percent of one core."""
MIN_REST_SECONDS = 1.0
MAX_REST_SECONDS = 60.0
LAST_STEP_OPTIONS = frozenset(
    (
        "max_steps",
        "max_num_steps",
        "total_training_steps",
        "total_steps",
        "max_train_steps",
        "num_train_steps",
    )
)
"""Options that hold the last step of a run: Hugging Face and torchtune, NeMo RL, verl, and custom loops."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """What one look at the log found."""

    streams: Streams | None
    """None while nothing can be read: the run has not logged yet, or its log is being replaced."""
    judged: Sequence[Judged]
    """The finding of every rule; an alarm or notice of an earlier look is kept where this one is lower."""
    news: Sequence[Judged]
    """Findings with a higher level than at the look before."""
    waiting: str = ""
    """Why nothing could be read."""
    seconds: float = 0.0
    """How long the look took."""
    num_points: int = 0
    shrunk: bool = False
    """Whether the log holds fewer points than before: it was truncated, rotated, or belongs to a new attempt."""

    @property
    def rest(self) -> float:
        """Seconds to rest before the next look."""
        return min(MAX_REST_SECONDS, max(MIN_REST_SECONDS, REST * self.seconds))

    @property
    def last_step(self) -> int | None:
        """The last step of any series, except for those on their own clock."""
        if self.streams is None:
            return None
        known = [one for several in self.streams.by_name.values() for one in several]
        every = known or [one for tag, one in self.streams.log.series.items() if not is_time_stepped(tag)]
        return max((int(one.steps[-1]) for one in every if len(one)), default=None)

    @property
    def stride(self) -> int:
        """The usual distance between two steps of the log."""
        if self.streams is None:
            return 1
        series = max((several[0] for several in self.streams.by_name.values()), key=len, default=None)
        return int(np.median(np.diff(series.steps))) if series is not None and len(series) > 1 else 1

    @property
    def total_steps(self) -> int | None:
        """The last step that the run is to reach, by its log or its configuration; None where neither says one."""
        if self.streams is None:
            return None
        if self.streams.log.total_steps is not None:
            return self.streams.log.total_steps
        options = self.streams.configuration or {}
        named = {
            value
            for key, value in options.items()
            if key.rpartition(".")[2] in LAST_STEP_OPTIONS and isinstance(value, int) and value > 1
        }
        return named.pop() if len(named) == 1 else None


@dataclass
class Monitor:
    """Judges one growing log."""

    path: Path
    rules: Sequence[Rule]
    stack: Stack | None = None
    healthy: HealthyRuns | None = None
    """Earlier runs of the same configuration, with which the log is compared."""
    newest_only: bool = False
    """Leave earlier runs out that are in the same log."""
    _kept: dict[str, Judged] = field(default_factory=dict, init=False)
    _num_points: int = field(default=0, init=False)

    def look(self) -> Look:
        """Read all that is there, and judge it."""
        began = time.process_time()
        try:
            streams = streams_of(_whole_columns(read_logs(self.path)), self.stack, self._baseline())
        except BlockedError as error:
            spent = time.process_time() - began
            return Look(
                streams=None, judged=list(self._kept.values()), news=[], waiting=str(error), seconds=spent
            )
        num_points = sum(len(series) for series in streams.log.series.values())
        shrunk, self._num_points = num_points < self._num_points, num_points
        judged = self._judge(streams)
        news = [item for item in judged if self._is_louder(item)]
        for item in judged:
            if item.rule.id not in self._kept or item.finding.level >= self._kept[item.rule.id].finding.level:
                self._keep(item)
        return Look(
            streams=streams,
            judged=[self._kept[rule.id] for rule in self.rules],
            news=news,
            seconds=time.process_time() - began,
            num_points=num_points,
            shrunk=shrunk,
        )

    def _judge(self, streams: Streams) -> list[Judged]:
        """Judge a log, and each run or writer in it separately; the worst finding of each rule counts."""
        judged = judge_streams(streams, self.rules)
        parts = {} if self.newest_only else streams.log.parts
        for name, series in parts.items():
            part = replace(streams.log, series=series, parts={}, runs=[])
            for place, item in enumerate(judge_streams(streams_of(part, self.stack), self.rules)):
                if item.finding.level > judged[place].finding.level:
                    finding = replace(item.finding, reason=f"{name}: {item.finding.reason}")
                    judged[place] = Judged(item.rule, finding)
        return judged

    def _baseline(self) -> Baseline | None:
        if self.healthy is None:
            return None
        return Baseline(runs=self.healthy, configuration=find_configuration(self.path))

    def _is_louder(self, item: Judged) -> bool:
        before = self._kept.get(item.rule.id)
        quiet = before.finding.level if before else Level.QUIET
        return item.finding.level > max(quiet, Level.QUIET)

    def _keep(self, item: Judged) -> None:
        """Keep a finding; of two with the same level the first is kept, unless neither fired."""
        before = self._kept.get(item.rule.id)
        if before is None or item.finding.level > before.finding.level or item.finding.level <= Level.QUIET:
            self._kept[item.rule.id] = item


def _whole_columns(log: RunLog) -> RunLog:
    """Return a log without the columns that hold text among their numbers, and a note on each."""
    lost = {item.tag: item.what for item in log.damage if item.tag is not None}
    if not lost:
        return log
    return replace(
        log,
        series={tag: one for tag, one in log.series.items() if tag not in lost},
        parts={
            name: {tag: one for tag, one in part.items() if tag not in lost}
            for name, part in log.parts.items()
        },
        notes=[*log.notes, *(f"column not judged: {what}" for what in lost.values())],
    )
