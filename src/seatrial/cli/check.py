"""`seatrial check LOGS 'expression' ...`: judge logs that any stack left."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from seatrial.checks import (
    KNOWN_RANGES,
    Check,
    FindingKind,
    Interval,
    evaluate_check,
    lint_check,
    parse_check,
)
from seatrial.checks.known_ranges import ranges_of_stack
from seatrial.cli.verdict_table import print_verdicts, printable
from seatrial.errors import BlockedError, UsageError
from seatrial.evidence.read import read_logs
from seatrial.evidence.runlog import RunLog
from seatrial.verdict import EXIT_FAIL, EXIT_PASS, Outcome, Verdict, combine, exit_code
from seatrial.vocabulary import recognise

if TYPE_CHECKING:
    from seatrial.checks.suites import Suite

JSON_SCHEMA = 1


class _Request(NamedTuple):
    """What is asked, read before any log is touched."""

    checks: list[Check]
    suites: list[Suite]
    ranges: Mapping[str, Interval]

    def all_checks(self) -> list[Check]:
        return [*self.checks, *(item.read() for suite in self.suites for item in suite.checks)]

    def tags(self, run: str | None) -> frozenset[str]:
        return frozenset(tag for check in self.all_checks() for tag in check.tags(run))

    def runs(self) -> frozenset[str]:
        return frozenset(run for check in self.all_checks() for run in check.runs)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `seatrial check`."""
    parser.add_argument(
        "logs",
        metavar="LOGS",
        help="TensorBoard folder, metrics.json or any other log; with --lint the file of tags, or the first expression",
    )
    parser.add_argument(
        "expressions", metavar="EXPRESSION", nargs="*", help="such as 'max(data[\"train/loss\"]) < 2'"
    )
    parser.add_argument(
        "--suite", metavar="FILE", type=Path, action="append", default=[], help="checks kept in YAML"
    )
    parser.add_argument("--run", metavar="NAME=LOGS", action="append", default=[], help='log of run("NAME")')
    parser.add_argument(
        "--allow-nonfinite",
        metavar="TAG",
        action="append",
        default=[],
        help="leave out NaN and infinity of this tag",
    )
    parser.add_argument(
        "--range",
        metavar="TAG=LOW:HIGH",
        action="append",
        default=[],
        help="values that a tag can take by construction",
    )
    parser.add_argument(
        "--strict", action="store_true", help="a check that cannot fail or cannot pass is wrong usage"
    )
    parser.add_argument(
        "--lint", action="store_true", help="only look for faults of the checks; no run is judged"
    )
    parser.add_argument("--max-num-steps", metavar="N", type=int, help="last step of the run, for --lint")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the verdicts there as JSON as well")
    parser.add_argument("--junit", metavar="FILE", type=Path, help="write the verdicts there as JUnit XML")


def run(arguments: argparse.Namespace) -> int:
    """Judge the logs.

    Returns:
        0 Pass, 1 Fail, 3 Blocked, 5 when every check was skipped.

    Raises:
        UsageError: no expression, or one that is not in the language; a run that is not given.
    """
    if arguments.lint:
        return _lint(arguments)
    if arguments.max_num_steps is not None:
        raise UsageError("--max-num-steps goes with --lint: a run that is judged says itself how far it came")
    request = _read_request(arguments, arguments.expressions)
    if not request.all_checks():
        raise UsageError(f"nothing to check in {arguments.logs}: give an expression or --suite FILE")
    if arguments.strict:
        _refuse_findings(request)
    logs = _named_paths(arguments.run)
    missing = sorted(request.runs() - logs.keys())
    if missing:
        raise UsageError(f'run("{missing[0]}") is not given: add --run {missing[0]}=LOGS')
    verdicts = _judge(request, Path(arguments.logs), logs, arguments.allow_nonfinite)
    outcome = combine(verdicts)
    if arguments.json:
        _write_json(arguments.json, outcome, verdicts)
    print_verdicts(verdicts, outcome)
    _publish(arguments, verdicts)
    return exit_code(outcome)


def _publish(arguments: argparse.Namespace, verdicts: Sequence[Verdict]) -> None:
    """Write JUnit where asked for, and tell GitHub where it listens; the views are slow to import."""
    name = f"seatrial check {arguments.logs}"
    if arguments.junit:
        from seatrial.report.junit import verdicts_junit
        from seatrial.trials.rundir import write_text

        write_text(
            arguments.junit,
            verdicts_junit(name, verdicts, datetime.now(UTC).isoformat(timespec="seconds")),
        )
    if os.environ.get("GITHUB_STEP_SUMMARY"):
        from seatrial.report.github import tell_github

        tell_github(name, "", verdicts, os.environ)


def _read_request(arguments: argparse.Namespace, expressions: Sequence[str]) -> _Request:
    ranges = {**KNOWN_RANGES, **dict(_range(text) for text in arguments.range)}
    checks = [parse_check(text) for text in expressions]
    suites: list[Suite] = []
    if arguments.suite:
        from seatrial.checks.suites import load_suite  # Its schema library is slow to import.

        suites = [load_suite(path) for path in arguments.suite]
    return _Request(checks=checks, suites=suites, ranges=ranges)


def _judge(
    request: _Request, path: Path, named: Mapping[str, Path], allow_nonfinite: Collection[str]
) -> list[Verdict]:
    """Return a verdict for each check; where a log cannot be read at all, each is Blocked."""
    try:
        log = read_logs(path, request.tags(None))
        runs = {name: read_logs(named[name], request.tags(name)) for name in request.runs()}
    except BlockedError as error:
        return [
            Verdict(name=check.text, outcome=Outcome.BLOCKED, reason=str(error))
            for check in request.all_checks()
        ]
    ranges = _with_stack(request.ranges, log)
    verdicts = [
        evaluate_check(check, log, runs=runs, allow_nonfinite=allow_nonfinite, ranges=ranges)
        for check in request.checks
    ]
    if request.suites:
        from seatrial.checks.suites import evaluate_suite
    for suite in request.suites:
        verdicts += evaluate_suite(suite, log, runs=runs, allow_nonfinite=allow_nonfinite, ranges=ranges)
    return [_with_notes(verdict, log) for verdict in verdicts]


def _with_stack(ranges: Mapping[str, Interval], log: RunLog) -> Mapping[str, Interval]:
    """Add the ranges of the stack that wrote a log, where the vocabulary recognises one."""
    stack = recognise(log.tags())
    return ranges if stack is None else {**ranges_of_stack(stack), **ranges}


def _with_notes(verdict: Verdict, log: RunLog) -> Verdict:
    """Add what the reader had to say of the log to the evidence."""
    return replace(verdict, details={**verdict.details, "notes": list(log.notes)}) if log.notes else verdict


def _lint(arguments: argparse.Namespace) -> int:
    """Print the faults of the checks; 1 when there are any, 2 with --strict."""
    for option in ("json", "junit", "run", "allow_nonfinite"):
        if getattr(arguments, option):
            raise UsageError(f"--{option.replace('_', '-')} does not go with --lint, which judges no run")
    words = [arguments.logs, *arguments.expressions]
    first_is_path = Path(arguments.logs).exists() if len(arguments.logs) < 1000 else False
    request = _read_request(arguments, words[1:] if first_is_path else words)
    if not request.all_checks():
        raise UsageError("nothing to look at: give an expression or --suite FILE")
    known, ranges = None, request.ranges
    if first_is_path:
        log = read_logs(Path(arguments.logs), ())
        known, ranges = log.tags(), _with_stack(request.ranges, log)
    if arguments.strict:
        _refuse_findings(request)
    found = False
    for check in request.all_checks():
        findings = lint_check(check, known, ranges, arguments.max_num_steps)
        faults = [finding for finding in findings if not finding.kind.is_note]
        found = found or bool(faults)
        print(printable(f"{'fault' if faults else 'note' if findings else 'sound':8}{check.text}"))
        for finding in findings:
            print(printable(f"{'':8}{finding}"))
    return EXIT_FAIL if found else EXIT_PASS


def _refuse_findings(request: _Request) -> None:
    """Raise the first check that cannot fail or cannot pass.

    Raises:
        UsageError: there is one.
    """
    for check in request.all_checks():
        for finding in lint_check(check, ranges=request.ranges):
            if finding.kind in (FindingKind.CANNOT_FAIL, FindingKind.CANNOT_PASS):
                raise UsageError(str(finding))


def _named_paths(words: Sequence[str]) -> dict[str, Path]:
    """Read NAME=LOGS.

    Raises:
        UsageError: a word is not of that form, or a name is given twice.
    """
    named: dict[str, Path] = {}
    for word in words:
        name, sign, path = word.partition("=")
        if not (name and sign and path):
            raise UsageError(f"--run {word}: write NAME=LOGS, such as --run baseline=runs/old/logs")
        if name in named:
            raise UsageError(f"--run {word}: {name} is given twice")
        named[name] = Path(path)
    return named


def _range(word: str) -> tuple[str, Interval]:
    """Read TAG=LOW:HIGH.

    Raises:
        UsageError: the word is not of that form.
    """
    tag, _, bounds = word.rpartition("=")
    low, _, high = bounds.partition(":")
    try:
        if tag:
            return tag, Interval(float(low), float(high))
    except ValueError:
        pass
    raise UsageError(
        f"--range {word}: write TAG=LOW:HIGH, such as --range '*/probs_ratio_clamped_max=0.8:1.28'"
    )


def _write_json(path: Path, outcome: Outcome, verdicts: Sequence[Verdict]) -> None:
    """Write the verdicts whole or not at all.

    Raises:
        BlockedError: the file cannot be written.
    """
    document = {
        "schema_version": JSON_SCHEMA,
        "argv": sys.argv[1:],
        "outcome": outcome.value,
        "verdicts": [verdict.to_json() for verdict in verdicts],
    }
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise BlockedError(f"--json {path}: {error.strerror}; choose a path that can be written") from error
