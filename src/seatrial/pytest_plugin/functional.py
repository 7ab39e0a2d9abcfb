"""Functional tests as pytest items: run the command, read and judge its logs, show the metric table.

A test is about ten lines of YAML: a command, its overrides, the number of steps, the checks of its logs.

    command: python -m refrl grpo --config grpo-smoke
    overrides:
      - grpo.max_num_steps={steps}
      - logger.log_dir={dir}/logs
    steps: 3
    checks:
      - median(data["train/token_mult_prob_error"]) < 1.1

`{dir}` is a new folder for this run, `{steps}` the number of steps, `{root}` pytest's root directory.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from seatrial.checks import Check, parse_check
from seatrial.checks.judge import Questions, judge_logs
from seatrial.checks.language.doubts import Terms
from seatrial.errors import BlockedError, UsageError
from seatrial.evidence.identity.redaction import Redactor
from seatrial.launch.local import Launched, run_command
from seatrial.pytest_plugin.results import VERDICTS_PROPERTY
from seatrial.strict_yaml import read_yaml
from seatrial.verdict import Outcome, Verdict, combine

SUFFIX = ".functional.yaml"
DEFAULT_TIMEOUT_SECONDS = 3600.0
_KEYS = frozenset({"command", "overrides", "steps", "checks", "logs", "timeout", "env", "markers"})


@dataclass(frozen=True, kw_only=True)
class FunctionalSpec:
    """One functional test."""

    command: tuple[str, ...]
    """Program and arguments with overrides; placeholders are not yet replaced."""
    steps: int | None
    """The run must log this step or a later one; None: no requirement."""
    checks: tuple[Check, ...]
    logs: str
    """Where the run leaves its logs."""
    timeout_seconds: float
    env: Mapping[str, str]
    """Variables set for the command, in addition to pytest's environment."""
    markers: tuple[str, ...]

    def fill(self, text: str, directory: Path, root: Path) -> str:
        """Return a text with its placeholders replaced; other braces stay."""
        steps = "" if self.steps is None else str(self.steps)
        return text.replace("{dir}", str(directory)).replace("{root}", str(root)).replace("{steps}", steps)

    def argv(self, directory: Path, root: Path) -> list[str]:
        """Return the command line; `python` as the first word is the Python that runs pytest."""
        words = [self.fill(word, directory, root) for word in self.command]
        return [sys.executable, *words[1:]] if words[0] == "python" else words


def parse_spec(data: Any) -> FunctionalSpec:
    """Read the content of the YAML file.

    Raises:
        UsageError: names the key, its value and what is allowed; for a check, also the column.
    """
    if not isinstance(data, dict):
        raise UsageError(f"a functional test is a table of keys, not {type(data).__name__}")
    unknown = sorted(str(key) for key in data if key not in _KEYS)
    if unknown:
        raise UsageError(f"key {unknown[0]!r} is unknown; known: {', '.join(sorted(_KEYS))}")
    for key in ("command", "checks"):
        if not data.get(key):
            raise UsageError(f"key {key!r} is missing or empty: without it nothing is tested")
    steps = data.get("steps")
    if steps is not None and (not isinstance(steps, int) or isinstance(steps, bool) or steps < 1):
        raise UsageError(f"steps must be a number of steps from 1, not {steps!r}")
    timeout = data.get("timeout", DEFAULT_TIMEOUT_SECONDS)
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or timeout <= 0:
        raise UsageError(f"timeout must be a number of seconds, not {timeout!r}")
    return FunctionalSpec(
        command=(*_command(data["command"]), *_texts(data, "overrides")),
        steps=steps,
        checks=tuple(parse_check(text) for text in _texts(data, "checks")),
        logs=str(data.get("logs", "{dir}/logs")),
        timeout_seconds=float(timeout),
        env=_environment(data.get("env", {})),
        markers=_texts(data, "markers"),
    )


def _command(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        try:
            return tuple(shlex.split(value))
        except ValueError as error:
            raise UsageError(f"command {value!r}: {error}") from error
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return tuple(value)
    raise UsageError(f"command must be a text or a list of texts, not {value!r}")


def _texts(data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = data.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UsageError(f"{key} must be a list of texts, not {value!r}")
    return tuple(value)


def _environment(value: Any) -> Mapping[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str | int | float) for item in value.values()):
        raise UsageError(f"env must be a table of variables, not {value!r}")
    return {str(name): str(item) for name, item in value.items()}


_TAIL_LINES = 20


class FunctionalTestError(Exception):
    """The run or one of its checks failed; the text is the complete report."""

    def __init__(self, report: str, summary: str) -> None:
        super().__init__(report)
        self.summary = summary
        """What failed, in one line."""


class FunctionalFile(pytest.File):
    """One `*.functional.yaml`."""

    def collect(self) -> Iterator[FunctionalItem]:
        """Read the file; all errors in it are found before anything runs.

        Raises:
            pytest.Collector.CollectError: the file is not a valid functional test.
        """
        try:
            spec = parse_spec(read_yaml(self.path, "functional test"))
        except UsageError as error:
            raise self.CollectError(f"{self.path.name}: {error}") from error
        item = FunctionalItem.from_parent(self, name=self.path.name.removesuffix(SUFFIX))
        item.prepare(spec)
        yield item


class FunctionalItem(pytest.Item):
    """One run of a command, and the checks of its logs."""

    spec: FunctionalSpec

    def prepare(self, spec: FunctionalSpec) -> None:
        """Set the test to run."""
        self.spec = spec
        for marker in spec.markers:
            self.add_marker(marker)

    def runtest(self) -> None:
        """Run the command and judge its logs.

        Raises:
            FunctionalTestError: the command or a check failed.
            pytest.skip.Exception: the environment prevented the evidence; the session ends as Blocked.
        """
        directory = self._make_directory()
        try:
            verdicts, launched = self._judge(directory)
        except UsageError as error:  # Only the log shows that a check uses a series as a number.
            raise FunctionalTestError(f"wrong usage: {error}", f"wrong usage: {error}") from error
        self.user_properties.append((VERDICTS_PROPERTY, json.dumps([v.to_json() for v in verdicts])))
        outcome = combine(verdicts)
        reasons = [f"{v.name}: {v.reason}" for v in verdicts if v.outcome is outcome]
        if outcome is Outcome.FAIL:
            raise FunctionalTestError(self._report(verdicts, directory, launched), "; ".join(reasons))
        if outcome is not Outcome.PASS:
            pytest.skip(f"{outcome.value}: {'; '.join(reasons)} (see {directory})")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the report of a failure without a traceback; pytest's short summary gets what failed."""
        if not isinstance(excinfo.value, FunctionalTestError):
            return super().repr_failure(excinfo, style)
        shown = excinfo.getrepr(style="value")
        if shown.reprcrash is not None:
            shown.reprcrash.message = excinfo.value.summary
        return shown

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the test's file and title."""
        return self.path, 0, f"functional: {self.name}"

    def _make_directory(self) -> Path:
        """Return a new folder, so that no log of an earlier run is judged."""
        chosen = self.config.option.functional_dir
        if chosen is None:
            # pytest keeps the folders of the last sessions and removes older ones.
            factory: pytest.TempPathFactory = getattr(self.config, "_tmp_path_factory")  # noqa: B009
            return factory.mktemp(f"functional-{self.name}")
        place = self.config.invocation_params.dir / chosen
        place.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=place))

    def _judge(self, directory: Path) -> tuple[list[Verdict], Launched | None]:
        spec, root = self.spec, self.config.rootpath
        environment = {**os.environ, **spec.env}
        try:
            launched = run_command(
                spec.argv(directory, root),
                log_path=directory / "run.log",
                environment=environment,
                timeout_seconds=spec.timeout_seconds,
                directory=root,
                redact=Redactor(environment).text,
            )
        except BlockedError as error:
            return [Verdict(name="command", outcome=Outcome.BLOCKED, reason=str(error))], None
        if not launched.ok:
            outcome = Outcome.BLOCKED if launched.killed_from_outside else Outcome.FAIL
            return [Verdict(name="command", outcome=outcome, reason=launched.describe())], launched
        logs = Path(spec.fill(spec.logs, directory, root))
        if not (root / logs).exists():
            reason = f"the command ended with 0 and left no log at {logs}"
            return [Verdict(name="logs", outcome=Outcome.FAIL, reason=reason)], launched
        return judge_logs(root / logs, Questions(checks=spec.checks, terms=Terms(steps=spec.steps))), launched

    def _report(self, verdicts: list[Verdict], directory: Path, launched: Launched | None) -> str:
        argv = Redactor(os.environ).argv(self.spec.argv(directory, self.config.rootpath))
        lines = [f"+ {shlex.join(argv)}"]
        if launched is not None:
            lines.append(
                f"{launched.describe()} after {launched.seconds:.1f} s; everything is in {directory}"
            )
        lines += [
            f"{v.outcome.value}: {v.name}: {v.reason}" for v in verdicts if v.outcome is not Outcome.PASS
        ]
        if launched is not None and not launched.ok:
            lines += [f"last lines of {launched.log_path}:", *_tail(launched.log_path)]
        return "\n".join(lines)


def _tail(path: Path) -> Iterable[str]:
    try:
        with path.open(errors="replace") as file:
            return [line.rstrip("\n") for line in deque(file, maxlen=_TAIL_LINES)]
    except OSError as error:
        return [f"(unreadable: {error.strerror})"]


def metric_table(title: str, verdicts: Iterable[Verdict], width: int) -> str:
    """Return the guide's table of metric checks: status, check, value, message."""
    from io import StringIO

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title)
    for heading in ("Status", "Check", "Value", "Message"):
        table.add_column(heading, no_wrap=heading == "Status", overflow="fold")
    for verdict in verdicts:
        status = verdict.outcome.value.upper()
        # Cells are plain text: a tag with brackets is not markup.
        value = "" if verdict.value is None else str(verdict.value)
        message = "" if verdict.outcome is Outcome.PASS else verdict.reason
        table.add_row(*(Text(cell) for cell in (status, verdict.name, value, message)))
    out = StringIO()
    Console(file=out, width=width, height=25, color_system=None).print(table)
    return out.getvalue()
