"""The question of a bisect, as one value that the journal contains in full."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from seatrial.bisect.evidence_model import Question
from seatrial.bisect.judge import Criteria
from seatrial.bisect.likelihood import MetricPrior, Noise, Settings, Worse
from seatrial.checks import Check, parse_check
from seatrial.checks.language.nodes import (
    Aggregate,
    Arithmetic,
    Comparison,
    Expression,
    Negate,
    Number,
    Point,
    SeriesRef,
)
from seatrial.errors import UsageError
from seatrial.vocabulary import Metric, metrics_called


@dataclass(frozen=True, kw_only=True)
class Task:
    """A bisect that can be repeated from this value alone (and the environment of the user who runs it)."""

    repository: str
    """Absolute path of the user's repository; read only."""
    good: str
    """Full hash."""
    bad: str
    """Full hash."""
    command: tuple[str, ...]
    checks: tuple[str, ...] = ()
    metric: str | None = None
    test: str | None = None
    """pytest node id."""
    logs: str = "{logs}"
    """Where a run logs: `{logs}` is a fresh folder of the run; a relative path is in its checkout."""
    prepare: str | None = None
    """Command that builds the environment of a commit, once per checkout."""
    script: str | None = None
    """Test script in the checkout that SED_CLAUSES edits."""
    carry: tuple[str, ...] = ()
    """Files and folders of the user's checkout, as of the start, that are copied into every checkout."""
    sed_clauses: str = ""
    extra_script_args: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables set for every run."""
    first_parent: bool = False
    paths: tuple[str, ...] = ()
    prior_paths: Mapping[str, float] = field(default_factory=dict)
    launcher: str = "local"
    launch_options: tuple[str, ...] = ()
    poll_seconds: float | None = None
    jobs: int = 1
    noise: str = Noise.AUTO.value
    credibility: float = 0.95
    metric_sd: float | None = None
    healthy_values: tuple[float, ...] = ()
    """The metric of earlier healthy runs, read from their logs when the bisect began."""
    worse: str | None = None
    """`higher` or `lower`."""
    smallest_rate_change: float = 0.35
    max_runs: int = 400
    budget_minutes: float | None = None
    timeout_minutes: float = 24 * 60.0
    on_signal: str = "blocked"
    on_timeout: str = "skip"
    read_obstacles: bool = True
    retry_wait_seconds: float = 30.0
    most_trees: int = 8

    @property
    def question(self) -> Question:
        """Return what each run answers."""
        return Question.METRIC if self.metric else Question.PASS_FAIL

    def settings(self) -> Settings:
        """Return the settings of the search."""
        return Settings(
            noise=Noise(self.noise),
            credibility=self.credibility,
            metric=MetricPrior(
                sd=self.metric_sd,
                healthy=self.healthy_values,
                worse=Worse(self.worse) if self.worse else None,
            ),
            smallest_rate_change=self.smallest_rate_change,
            max_runs=self.max_runs,
        )

    def criteria(self) -> Criteria:
        """Return what a run is checked against.

        Raises:
            UsageError: an expression cannot be read.
        """
        return Criteria(
            checks=tuple(parse_check(text) for text in self.checks),
            metric=metric_check(self.metric) if self.metric else None,
            junit=self.test is not None,
            signals_are_failures=self.on_signal == "fail",
            timeouts_are_failures=self.on_timeout == "fail",
            read_obstacles=self.read_obstacles,
        )

    def words(self) -> list[str]:
        """Return the command with the extra arguments appended, placeholders not yet filled in."""
        words = [*self.command]
        if self.test is not None:
            words += [self.test, "--junit-xml={run}/junit.xml", "-p", "no:cacheprovider"]
        return words + shlex.split(self.extra_script_args)

    def validate(self) -> None:
        """Reject invalid settings before anything runs.

        Raises:
            UsageError: names the option and the remedy.
        """
        self.criteria()
        if not self.command:
            raise UsageError(
                "no command: write it after --, as in `seatrial bisect --good G --bad B -- pytest tests/x.py`"
            )
        if sum(map(bool, (self.checks, self.metric, self.test))) > 1:
            raise UsageError("--check, --metric and --test exclude one another: choose one question")
        if Path(self.logs).is_absolute() or ".." in Path(self.logs).parts:
            raise UsageError(
                f"--logs {self.logs}: a fixed place outside the run would be read again for the next commit; "
                "use {logs} in the command and leave --logs out, or give a path inside the tree"
            )
        if self.jobs < 1 or self.max_runs < 2:
            raise UsageError(
                f"--jobs {self.jobs} must be at least 1 and --max-runs {self.max_runs} at least 2"
            )
        if (self.budget_minutes is not None and self.budget_minutes <= 0) or self.timeout_minutes <= 0:
            raise UsageError(
                f"--budget {self.budget_minutes} and --timeout {self.timeout_minutes} are minutes, and must be above 0"
            )
        if not 0.5 < self.credibility < 1:
            raise UsageError(f"--credibility {self.credibility} must be between 0.5 and 1")
        if self.metric_sd is not None and (self.metric_sd <= 0 or not self.metric):
            raise UsageError(f"--metric-sd {self.metric_sd} must be above 0 and goes with --metric")
        if self.worse and not self.metric:
            raise UsageError(f"--worse {self.worse} goes with --metric")
        if self.healthy_values and (self.metric_sd is not None or not self.metric):
            raise UsageError("--baseline goes with --metric, and not with --metric-sd, which states the same")
        if self.sed_clauses and not self.script:
            raise UsageError(
                "SED_CLAUSES is set but the command names no script of the tree: give it with --script PATH"
            )

    def to_json(self) -> dict[str, Any]:
        """Return the task as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Task:
        """Read what `to_json` wrote.

        Raises:
            UsageError: the data is no task of this version.
        """
        known = {item.name for item in fields(cls)}
        unknown = sorted(set(data) - known)
        if unknown:
            raise UsageError(
                f"the journal has the setting {unknown[0]!r}, which this version does not support"
            )
        tuples = {name: tuple(value) for name, value in data.items() if isinstance(value, list)}
        try:
            return cls(**{**data, **tuples})
        except TypeError as error:
            raise UsageError(f"the journal's question is incomplete: {error}") from error


def metric_check(text: str) -> Check:
    """Read a metric: an expression of the check language without its comparison.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return parse_check(f"({text}) <= 1e18")
    except UsageError as error:
        raise UsageError(f"--metric {text!r} is not an expression over logged series: {error}") from error


def fill(text: str, places: Mapping[str, str]) -> str:
    """Replace the placeholders in a word: `{logs}`, `{run}`, `{tree}`, `{checkpoints}`, `{commit}`."""
    for name, value in places.items():
        text = text.replace("{" + name + "}", value)
    return text


def state_base(environment: Mapping[str, str]) -> Path:
    """Return the folder of all bisects: BISECT_SAVE_DIR, or one in the user's state directory."""
    if chosen := environment.get("BISECT_SAVE_DIR"):
        return Path(chosen).expanduser().resolve()
    base = environment.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    return Path(base).resolve() / "seatrial" / "bisect"


INCREASING = frozenset({"mean", "median", "min", "max", "quantile", "sum", "first", "last", "ratio_above"})
"""Aggregates that do not decrease when a value of the series increases."""


@dataclass(frozen=True, kw_only=True)
class Direction:
    """Which values are worse, and the metric that says so."""

    worse: Worse
    tag: str
    metric: Metric


def direction_of(text: str) -> Direction | None:
    """Return which values of a metric are worse, or None if its name does not say.

    The name says so if the expression rises or falls with a single series, and every stack that logs a series of this
    name agrees on which direction is better.

    Raises:
        UsageError: the metric cannot be read.
    """
    condition = metric_check(text).condition
    assert isinstance(condition, Comparison)
    found = _followed(condition.operands[0])
    if found is None:
        return None
    tag, rises = found
    known = metrics_called(tag)
    if len({metric.better for metric in known}) != 1 or known[0].better is None:
        return None
    higher_is_worse = (known[0].better == "lower") == rises
    return Direction(worse=Worse.HIGHER if higher_is_worse else Worse.LOWER, tag=tag, metric=known[0])


def _followed(node: Expression) -> tuple[str, bool] | None:
    """Return the one series that an expression depends on, and whether it rises with it; None if there is none."""
    match node:
        case SeriesRef(tag=tag, run=None):
            return tag, True
        case Point(series=series):
            return _followed(series)
        case Aggregate(function=name, series=series, argument=argument) if name in INCREASING and (
            argument is None or isinstance(argument, Number)
        ):
            return _followed(series)
        case Negate(operand=operand):
            return _turned(_followed(operand), turned=True)
        case Arithmetic(operator="+" | "-", left=left, right=Number()):
            return _followed(left)
        case Arithmetic(operator="+" | "-" as operator, left=Number(), right=right):
            return _turned(_followed(right), turned=operator == "-")
        case Arithmetic(operator="*" | "/", left=left, right=Number(value=value)) if value != 0:
            return _turned(_followed(left), turned=value < 0)
        case Arithmetic(operator="*", left=Number(value=value), right=right) if value != 0:
            return _turned(_followed(right), turned=value < 0)
        case _:
            return None


def _turned(found: tuple[str, bool] | None, *, turned: bool) -> tuple[str, bool] | None:
    return found if found is None else (found[0], found[1] != turned)
