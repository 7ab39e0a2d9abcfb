"""`seatrial baseline record|compare`: learn the noise of repeated runs and judge new runs by it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from seatrial.cli.progress import StatusLine
from seatrial.cli.verdict_table import print_verdicts
from seatrial.comparisons.baseline_compare import Wanted, compare, sensitivity
from seatrial.comparisons.baselines import (
    DEFAULT_WINDOW,
    MIN_REPEATS,
    Baseline,
    Provenance,
    choose_tags,
    learn,
    load_baseline,
)
from seatrial.comparisons.repeats import FOLDER, foreign_changes, run_repeats
from seatrial.errors import UsageError
from seatrial.evidence.identity.collect import host_facts, package_versions, repository_of
from seatrial.evidence.identity.redaction import Redactor
from seatrial.evidence.read import read_logs
from seatrial.files import write_text
from seatrial.launch.interrupts import termination_interrupts
from seatrial.report.rows import printable
from seatrial.verdict import EXIT_FAIL, EXIT_PASS, combine, exit_code

PACKAGES = (
    "seatrial", "numpy", "torch", "transformers", "accelerate", "peft", "trl", "vllm", "sglang", "ray",
    "megatron-core", "transformer-engine", "flash-attn", "verl", "openrlhf", "nemo-rl",
)  # fmt: skip
"""Distributions whose versions a baseline records."""
DEFAULT_TIMEOUT_SECONDS = 86_400.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the two actions."""
    actions = parser.add_subparsers(dest="action", metavar="record|compare", required=True)
    record = actions.add_parser("record", help="learn the noise from repeated runs", allow_abbrev=False)
    record.add_argument(
        "--output", type=Path, required=True, metavar="FILE", help="JSON file to write the baseline to"
    )
    _add_runs(record, "logs of the repeats; or, after -- and with --repeats, the command to repeat")
    record.add_argument(
        "--metric", action="append", default=[], metavar="TAG", help="series to learn, or a pattern of them"
    )
    record.add_argument(
        "--window",
        type=int,
        default=DEFAULT_WINDOW,
        metavar="N",
        help="number of last points averaged for the final value",
    )
    record.add_argument(
        "--expires-days", type=float, metavar="DAYS", help="the baseline expires after so many days"
    )
    record.add_argument(
        "--repository", type=Path, default=Path(), metavar="DIR", help="checkout that ran (default: here)"
    )
    record.add_argument(
        "--allow-dirty",
        action="store_true",
        help="also record from uncommitted changes; the file says so",
    )
    judge = actions.add_parser("compare", help="judge new runs", allow_abbrev=False)
    judge.add_argument(
        "--baseline", type=Path, required=True, metavar="FILE", help="file written by `record`"
    )
    _add_runs(judge, "logs of the new runs; or, after -- and with --repeats, the command to run")
    judge.add_argument(
        "--metric", action="append", default=[], metavar="TAG", help="compare only this one (repeatable)"
    )
    wanted = Wanted()
    judge.add_argument(
        "--alpha",
        type=float,
        default=wanted.alpha,
        metavar="A",
        help="probability of a false alarm over all metrics (default: 0.01)",
    )
    judge.add_argument(
        "--power",
        type=float,
        default=wanted.power,
        metavar="P",
        help="probability of detecting the shift (default: 0.95)",
    )
    judge.add_argument(
        "--shift",
        type=float,
        metavar="SD",
        help="report Blocked unless a shift of this size would be detected (default: the smallest detectable shift)",
    )
    judge.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the verdicts to this file as JSON"
    )


def _add_runs(parser: argparse.ArgumentParser, words: str) -> None:
    parser.add_argument("runs", nargs="*", metavar="LOGS", help=words)
    parser.add_argument("--repeats", type=int, metavar="N", help="run the command after -- this many times")
    parser.add_argument(
        "--logs",
        metavar="PLACE",
        default=FOLDER,
        help="where the command writes its log (default: {folder}, a folder for each repeat)",
    )
    parser.add_argument("--work", type=Path, metavar="DIR", help="where to create the folders of the repeats")
    parser.add_argument(
        "--timeout",
        type=float,
        default=DEFAULT_TIMEOUT_SECONDS,
        metavar="SECONDS",
        help="time limit of a repeat",
    )


def run(arguments: argparse.Namespace) -> int:
    """Record or compare.

    Returns:
        record: 0, or 1 if no baseline can be learned from the repeats. compare: 0 Pass, 1 Fail, 3 Blocked.
    """
    return _record(arguments) if arguments.action == "record" else _compare(arguments)


def _record(arguments: argparse.Namespace) -> int:
    if arguments.window < 1:
        raise UsageError(f"--window {arguments.window}: give 1 or more points")
    if arguments.expires_days is not None and not 0 < arguments.expires_days < 36_500:
        raise UsageError(f"--expires-days {arguments.expires_days:g}: give a positive number of days")
    provenance = _provenance(arguments)
    places = _places(arguments, MIN_REPEATS)
    logs = {str(place): read_logs(place) for place in places}
    created = datetime.now(UTC).replace(microsecond=0)
    days = arguments.expires_days
    baseline, faults = learn(
        logs,
        choose_tags(list(logs.values()), arguments.metric),
        window=arguments.window,
        provenance=provenance,
        created_at=created,
        expires_at=created + timedelta(days=days) if days is not None else None,
    )
    if baseline is None:
        for fault in faults:
            print(printable(f"Fail    {fault.tag}: {fault.reason}"))
        print(f"Fail: {len(faults)} faults; no baseline was written")
        return EXIT_FAIL
    write_text(arguments.output, baseline.to_text())
    _print_baseline(baseline, arguments.output)
    return EXIT_PASS


def _provenance(arguments: argparse.Namespace) -> Provenance:
    """Return the commit, packages, host and command of the runs.

    Raises:
        UsageError: the tree is dirty or not a checkout, without --allow-dirty.
    """
    state = repository_of(arguments.repository)
    if state.commit is not None:
        changes = foreign_changes(
            Path(state.path), state.dirty_files, arguments.output, _own_folders(arguments)
        )
        state = replace(state, dirty_files=changes)
    dirty = bool(state.dirty_files) or state.commit is None
    if dirty and not arguments.allow_dirty:
        first = state.dirty_files[0].strip() if state.dirty_files else "no commit is known"
        raise UsageError(
            f"{arguments.repository.resolve()}: {state.describe()} ({first}): the code that ran could not be restored; "
            "commit first, name the checkout with --repository, or give --allow-dirty"
        )
    return Provenance(
        commit=state.commit,
        dirty=dirty,
        dirty_files=state.dirty_files,
        packages={name: version for name, version in package_versions(PACKAGES).items() if version},
        host=host_facts(),
        command=tuple(Redactor(os.environ).argv(arguments.runs)) if arguments.repeats is not None else (),
    )


def _own_folders(arguments: argparse.Namespace) -> list[Path]:
    """Return the folders of logs and repeats, whose files do not count as uncommitted changes."""
    given = [Path(word) for word in arguments.runs] if arguments.repeats is None else []
    return [*given, *([arguments.work] if arguments.work is not None else [])]


def _places(arguments: argparse.Namespace, least: int) -> list[Path]:
    """Return the given logs, or run the command and return the logs of its repeats.

    Raises:
        UsageError: there are too few runs, or one is given twice.
    """
    if arguments.repeats is None:
        places = [Path(word) for word in arguments.runs]
        if len(places) < least:
            raise UsageError(
                f"{len(places)} runs given; at least {least} are needed: LOGS {'LOGS ...' * (least > 1)}"
            )
        seen = [place.resolve() for place in places]
        for place in seen:
            if seen.count(place) > 1:
                raise UsageError(f"{place} is given twice; give each run once")
        return places
    if arguments.repeats < least:
        raise UsageError(f"--repeats {arguments.repeats}: at least {least} are needed")
    if not arguments.runs:
        raise UsageError("--repeats needs a command after --, such as: --repeats 8 -- python train.py")
    folder = arguments.work or Path(tempfile.mkdtemp(prefix="seatrial-baseline-"))
    with termination_interrupts(), StatusLine() as status:
        return run_repeats(
            arguments.runs,
            num_repeats=arguments.repeats,
            folder=folder,
            logs=arguments.logs,
            environment=os.environ,
            timeout_seconds=arguments.timeout,
            say=status.say,
        )


def _print_baseline(baseline: Baseline, path: Path) -> None:
    from statistics import mean, stdev

    print(f"learned from {baseline.num_repeats} repeats, final window {baseline.window} points:")
    exact = []
    for tag, metric in baseline.metrics.items():
        if all(row == metric.trajectories[0] for row in metric.trajectories):
            exact.append(tag)
        print(
            printable(
                f"  {tag}: mean {mean(metric.means):.6g} sd {stdev(metric.means):.3g}, "
                f"final {mean(metric.final_window_means):.6g} sd {stdev(metric.final_window_means):.3g}, "
                f"{len(metric.steps)} steps{', bitwise equal' if tag in exact else ''}"
            )
        )
    if len(exact) == len(baseline.metrics):
        print("note: all repeats are equal; does the command take its seed from {repeat} or SEATRIAL_REPEAT?")
    origin = baseline.provenance
    print(f"commit {origin.commit}{' with uncommitted changes' if origin.dirty else ''}")
    print(f"written to {path}; compare with: seatrial baseline compare --baseline {path} LOGS ...")


def _compare(arguments: argparse.Namespace) -> int:
    wanted = _wanted(arguments)
    baseline = load_baseline(arguments.baseline)
    for tag in arguments.metric:
        if tag not in baseline.metrics:
            raise UsageError(f"--metric {tag}: the baseline has {', '.join(baseline.metrics)}")
    runs = {str(place): read_logs(place) for place in _places(arguments, 1)}
    verdicts = compare(baseline, runs, wanted, tags=arguments.metric)
    outcome = combine(verdicts)
    seen = sensitivity(baseline, len(runs), wanted, tags=arguments.metric)
    print_verdicts(verdicts, outcome)
    if seen is not None:
        print(f"note: {seen}")
    if arguments.json is not None:
        document = {
            "schema_version": 1,
            "argv": Redactor(os.environ).argv(sys.argv[1:]),
            "outcome": outcome.value,
            "sensitivity": seen,
            "verdicts": [verdict.to_json() for verdict in verdicts],
        }
        write_text(arguments.json, json.dumps(document, indent=2, allow_nan=False) + "\n", option="--json")
    return exit_code(outcome)


def _wanted(arguments: argparse.Namespace) -> Wanted:
    for name in ("alpha", "power"):
        value = getattr(arguments, name)
        if not 0 < value < 1:
            raise UsageError(f"--{name} {value:g}: give a probability between 0 and 1")
    if arguments.shift is not None and not 0 < arguments.shift < 1000:
        raise UsageError(f"--shift {arguments.shift:g}: give a positive number of standard deviations")
    return Wanted(alpha=arguments.alpha, power=arguments.power, shift_in_sd=arguments.shift)
