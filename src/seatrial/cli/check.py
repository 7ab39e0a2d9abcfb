"""`seatrial check LOGS 'expression' ...`: judge the logs of any stack."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from seatrial.checks import KNOWN_RANGES, FindingKind, Interval, lint_check, parse_check
from seatrial.checks.judge import Questions, judge_logs, known_ranges_of
from seatrial.checks.language.doubts import Terms
from seatrial.cli.verdict_table import print_verdicts, verdicts_json
from seatrial.errors import UsageError
from seatrial.evidence.read import read_logs
from seatrial.files import write_text
from seatrial.report.rows import printable
from seatrial.verdict import EXIT_FAIL, EXIT_PASS, Verdict, combine, exit_code

if TYPE_CHECKING:
    from seatrial.checks.suites import Suite


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
        "--suite",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="YAML file of checks, or the name of a suite that comes with seatrial, such as grpo-smoke",
    )
    parser.add_argument("--run", metavar="NAME=LOGS", action="append", default=[], help='log of run("NAME")')
    parser.add_argument(
        "--allow-nonfinite",
        metavar="TAG",
        action="append",
        default=[],
        help="ignore NaN and infinity in this tag",
    )
    parser.add_argument(
        "--range",
        metavar="TAG=LOW:HIGH",
        action="append",
        default=[],
        help="range of values that a tag can take by construction",
    )
    parser.add_argument(
        "--steps", metavar="N", type=int, help="the run must have logged this step, or a later one"
    )
    parser.add_argument(
        "--conflicts",
        choices=["last"],
        help="use the last value written if a step has several different ones (without it: Blocked)",
    )
    parser.add_argument(
        "--several-runs",
        choices=["newest", "each"],
        help="judge the newest run or each run if the files look like several (without it: Blocked)",
    )
    parser.add_argument(
        "--strict", action="store_true", help="treat a check that cannot fail or cannot pass as wrong usage"
    )
    parser.add_argument(
        "--lint", action="store_true", help="only look for mistakes in the checks; no run is judged"
    )
    parser.add_argument("--max-num-steps", metavar="N", type=int, help="last step of the run, for --lint")
    parser.add_argument(
        "--json",
        metavar="FILE",
        type=Path,
        help="write the verdicts to this file as JSON; - is standard output",
    )
    parser.add_argument(
        "--junit", metavar="FILE", type=Path, help="write the verdicts to this file as JUnit XML"
    )


def run(arguments: argparse.Namespace) -> int:
    """Judge the logs.

    Returns:
        0 Pass, 1 Fail, 3 Blocked, 5 when every check was skipped.

    Raises:
        UsageError: there is no expression, an expression is invalid, or a run is not given.
    """
    if arguments.lint:
        return _lint(arguments)
    if arguments.max_num_steps is not None:
        raise UsageError("--max-num-steps goes with --lint; a judged run's log has its last step")
    request = _read_request(arguments, arguments.expressions)
    if not request.names():
        raise UsageError(f"nothing to check in {arguments.logs}: give an expression or --suite FILE")
    if arguments.strict:
        _refuse_findings(request)
    logs = _named_paths(arguments.run)
    missing = sorted(request.runs() - logs.keys())
    if missing:
        raise UsageError(f'run("{missing[0]}") is not given: add --run {missing[0]}=LOGS')
    verdicts = judge_logs(Path(arguments.logs), request, logs)
    outcome = combine(verdicts)
    if arguments.json == Path("-"):
        print(verdicts_json(verdicts, argv=sys.argv[1:]), end="")
    elif arguments.json:
        write_text(arguments.json, verdicts_json(verdicts, argv=sys.argv[1:]), option="--json")
    with redirect_stdout(sys.stderr if arguments.json == Path("-") else sys.stdout):
        print_verdicts(verdicts, outcome)
        _print_notes(verdicts)
    _publish(arguments, verdicts)
    return exit_code(outcome)


def _print_notes(verdicts: Sequence[Verdict]) -> None:
    """Print the reader's notes on the log, each once."""
    for note in dict.fromkeys(note for verdict in verdicts for note in verdict.details.get("notes", ())):
        print(printable(f"note: {note}"))


def _publish(arguments: argparse.Namespace, verdicts: Sequence[Verdict]) -> None:
    """Write JUnit XML if requested, and the job summary inside GitHub Actions."""
    name = f"seatrial check {arguments.logs}"
    if arguments.junit:
        from seatrial.files import write_text
        from seatrial.report.junit import verdicts_junit

        write_text(
            arguments.junit,
            verdicts_junit(name, verdicts, datetime.now(UTC).isoformat(timespec="seconds")),
            option="--junit",
        )
    if os.environ.get("GITHUB_STEP_SUMMARY"):
        from seatrial.report.github import write_to_github

        write_to_github(name, "", verdicts, os.environ)


def _read_request(arguments: argparse.Namespace, expressions: Sequence[str]) -> Questions:
    """Return the checks and options to judge, before any log is read."""
    suites: list[Suite] = []
    if arguments.suite:
        from seatrial.checks.suites import load_suite  # Its schema library is slow to import.
        from seatrial.packaged import find_file

        suites = [load_suite(find_file("suite", path)) for path in arguments.suite]
    return Questions(
        checks=[parse_check(text) for text in expressions],
        suites=suites,
        allow_nonfinite=arguments.allow_nonfinite,
        ranges=dict(_range(text) for text in arguments.range),
        terms=Terms(
            steps=arguments.steps,
            conflicts=arguments.conflicts or "ask",
            several_runs="newest" if arguments.several_runs == "newest" else "ask",
        ),
        each_run=arguments.several_runs == "each",
    )


def _lint(arguments: argparse.Namespace) -> int:
    """Print the mistakes in the checks; return 1 if there are any."""
    for option in ("json", "junit", "run", "allow_nonfinite"):
        if getattr(arguments, option):
            raise UsageError(f"--{option.replace('_', '-')} does not go with --lint, which judges no run")
    words = [arguments.logs, *arguments.expressions]
    first_is_path = Path(arguments.logs).exists() if len(arguments.logs) < 1000 else False
    request = _read_request(arguments, words[1:] if first_is_path else words)
    if not request.all_checks():
        raise UsageError("nothing to lint: give an expression or --suite FILE")
    known, ranges = None, {**KNOWN_RANGES, **request.ranges}
    if first_is_path:
        log = read_logs(Path(arguments.logs), ())
        known, ranges = log.tags(), known_ranges_of(log, request.ranges)
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


def _refuse_findings(request: Questions) -> None:
    """Refuse checks that cannot fail or cannot pass.

    Raises:
        UsageError: the first such check.
    """
    for check in request.all_checks():
        for finding in lint_check(check, ranges={**KNOWN_RANGES, **request.ranges}):
            if finding.kind in (FindingKind.CANNOT_FAIL, FindingKind.CANNOT_PASS):
                raise UsageError(str(finding))


def _named_paths(words: Sequence[str]) -> dict[str, Path]:
    """Return the paths of NAME=LOGS words by name.

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
    """Return the tag and interval of a TAG=LOW:HIGH word.

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
