"""Functional tests as pytest items: run the command, read and judge its logs, show the metric table."""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from seatrial.checks.judge import Questions, judge_logs
from seatrial.checks.language.doubts import Terms
from seatrial.errors import BlockedError, UsageError
from seatrial.evidence.identity.redaction import Redactor
from seatrial.launch.local import Launched, run_command
from seatrial.pytest_plugin.functional_spec import SUFFIX, FunctionalSpec, parse_spec
from seatrial.pytest_plugin.results import VERDICTS_PROPERTY
from seatrial.strict_yaml import read_yaml
from seatrial.verdict import Outcome, Verdict, combine

_TAIL_LINES = 20


class FunctionalTestError(Exception):
    """The run or one of its checks failed; the text is the complete report."""


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
            raise FunctionalTestError(f"wrong usage: {error}") from error
        self.user_properties.append((VERDICTS_PROPERTY, json.dumps([v.to_json() for v in verdicts])))
        outcome = combine(verdicts)
        reasons = [f"{v.name}: {v.reason}" for v in verdicts if v.outcome is outcome]
        if outcome is Outcome.FAIL:
            raise FunctionalTestError(self._report(verdicts, directory, launched))
        if outcome is not Outcome.PASS:
            pytest.skip(f"{outcome.value}: {'; '.join(reasons)} (see {directory})")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the report of a failure without a traceback."""
        if isinstance(excinfo.value, FunctionalTestError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

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
