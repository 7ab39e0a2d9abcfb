"""`seatrial compare BASE HEAD`: run the same trials on two commits, or two releases, and name what HEAD broke."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from seatrial.cli.progress import StatusLine
from seatrial.cli.run import DEFAULT_TIMEOUT_SECONDS
from seatrial.compare.quarantine import read_quarantine
from seatrial.compare.runs import Runner
from seatrial.compare.session import Request, compare, new_results
from seatrial.compare.sides import NAMES, Engine, Side, checked_out, interpreter, own_seatrial
from seatrial.compare.verdicts import BEFORE, BROKE, FIXED, KIND
from seatrial.errors import UsageError
from seatrial.launch.container import ENGINES, check_engine, find_engine, parse_mount
from seatrial.launch.interrupts import termination_interrupts
from seatrial.report.files import write_views
from seatrial.report.github import write_to_github
from seatrial.report.markdown import report_markdown
from seatrial.report.rows import WORDS, printable
from seatrial.targets import get_target, target_names
from seatrial.trials.plan import parse_levels, select_trials
from seatrial.trials.results import Results, TrialResult
from seatrial.trials.rundir import RunDirectory
from seatrial.verdict import Outcome, Verdict, exit_code

MAX_SHOWN = 300
"""Characters of a reason on the console; the report has all of them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "words",
        nargs="*",
        metavar="BASE HEAD [key=value ...]",
        help="two commits of the repository, and settings of the stack; no commits with --python or --path",
    )
    parser.add_argument(
        "--target",
        default="reference",
        metavar="NAME|FILE",
        help=f"stack to test: {', '.join(target_names())}, or a YAML file (default: reference, which is "
        "refrl of Seatrial's own repository)",
    )
    parser.add_argument(
        "--level", metavar="LEVELS", help="such as 0, or 0,6 (default: 0 without --relations)"
    )
    parser.add_argument(
        "--trial", action="append", default=[], metavar="NAME", help="run this trial; may be repeated"
    )
    parser.add_argument(
        "--relations", action="store_true", help="also compare the laws that the stack's components satisfy"
    )
    parser.add_argument(
        "--relation",
        action="append",
        default=[],
        metavar="ID",
        help="only this relation, such as R12; may be repeated",
    )
    parser.add_argument(
        "--adapter",
        action="append",
        default=[],
        metavar="NAME",
        help="only this adapter; may be repeated",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=1,
        metavar="N",
        help="run each trial with N seeds on both (default: 1, and one more where something differs); 5 judge curves "
        "and speed",
    )
    parser.add_argument(
        "--python",
        nargs=2,
        metavar=("BASE_ENV", "HEAD_ENV"),
        help="interpreters, or folders of environments, that have the two releases",
    )
    parser.add_argument(
        "--path",
        nargs=2,
        metavar=("BASE_DIR", "HEAD_DIR"),
        help="folders to import from first, several separated as in PYTHONPATH",
    )
    parser.add_argument(
        "--image",
        nargs=2,
        metavar=("BASE_IMAGE", "HEAD_IMAGE"),
        help="images of containers that the two run in; their python3, or --python, needs Seatrial's dependencies",
    )
    parser.add_argument(
        "--engine", choices=ENGINES, help="container engine (default: the first that is installed)"
    )
    parser.add_argument(
        "--gpus", default="none", help="GPUs of the containers: none, all, or devices (default: none)"
    )
    parser.add_argument(
        "--mount",
        action="append",
        default=[],
        metavar="SOURCE[:TARGET[:ro]]",
        help="mount a folder in both containers; may be repeated",
    )
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME", help="pass a variable to both; may be repeated"
    )
    parser.add_argument(
        "--quarantine", type=Path, metavar="FILE", help="YAML file of known failures with reason and last day"
    )
    parser.add_argument(
        "--repo", type=Path, default=Path(), metavar="DIR", help="repository of the commits (default: here)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("runs"),
        metavar="DIR",
        help="folder for run directories (default: runs)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=DEFAULT_TIMEOUT_SECONDS,
        metavar="SECONDS",
        help="time limit of each command of a trial (default: 600)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Compare, and return 1 if HEAD broke something, 3 if that cannot be known, 0 otherwise."""
    request = _request(arguments)
    sides = _sides(arguments)
    engine = _engine(arguments)
    with termination_interrupts(), ExitStack() as stack:
        status = stack.enter_context(StatusLine())
        if request.commits:
            status.say("checking both commits out")
            sides = stack.enter_context(checked_out(arguments.repo, request.commits, sides))
        directory = stack.enter_context(RunDirectory.create(arguments.output.absolute(), "compare"))
        runner = Runner(
            directory=directory.path,
            own=own_seatrial(directory.path / "own"),
            words=["--timeout", f"{arguments.timeout:g}", *request.overrides],
            say=status.say,
            engine=engine,
        )
        results = new_results(directory.path.name, request, sides)
        directory.write_results(results)
        try:
            notes = compare(runner, sides, request, results, directory, _print_part)
        finally:
            # Written after an interruption too, with what is known.
            report = write_views(directory.path, results)
    for note in notes:
        print(printable(note))
    _print_whole(results, report)
    judged = [verdict for trial in results.requested_trials() for verdict in trial.verdicts]
    write_to_github("seatrial compare", report_markdown(results), judged, os.environ)
    return exit_code(results.outcome)


def _request(arguments: argparse.Namespace) -> Request:
    """Check the options before anything starts."""
    commits = [word for word in arguments.words if "=" not in word]
    installed = any(one is not None for one in (arguments.python, arguments.path, arguments.image))
    if len(commits) != 2 and not (installed and not commits):
        raise UsageError(
            f"{len(commits)} commits given; name BASE and HEAD, or two releases by --python BASE_ENV HEAD_ENV "
            "or --image BASE_IMAGE HEAD_IMAGE"
        )
    if arguments.seeds < 1:
        raise UsageError(f"--seeds {arguments.seeds}: give 1 or more")
    if not arguments.timeout > 0:
        raise UsageError(f"--timeout {arguments.timeout:g} is not positive")
    relations = arguments.relations or bool(arguments.relation)
    if arguments.adapter and not relations:
        raise UsageError("--adapter goes with --relations")
    levels = parse_levels(arguments.level) if arguments.level is not None else None
    if levels is None and not arguments.trial and not relations:
        levels = [0]
    target = get_target(arguments.target)
    trials = (
        select_trials(levels, arguments.trial, getattr(target, "trials", None))
        if levels is not None or arguments.trial
        else []
    )
    words = [f"--relation={name}" for name in arguments.relation]
    words += [f"--adapter={name}" for name in arguments.adapter]
    return Request(
        commits=commits,
        overrides=[word for word in arguments.words if "=" in word],
        trials=trials,
        relation_words=words if relations else None,
        num_seeds=arguments.seeds,
        timeout_seconds=arguments.timeout,
        target=arguments.target,
        quarantine=read_quarantine(arguments.quarantine) if arguments.quarantine is not None else [],
    )


def _sides(arguments: argparse.Namespace) -> list[Side]:
    """Return both sides, without checkouts."""
    if arguments.image is not None:
        pythons = arguments.python or ["python3", "python3"]
    else:
        pythons = [interpreter(word) for word in arguments.python or (sys.executable, sys.executable)]
    paths: list[tuple[Path, ...]] = [
        tuple(Path(part).absolute() for part in word.split(os.pathsep) if part)
        for word in arguments.path or ("", "")
    ]
    for path in (one for of_side in paths for one in of_side):
        if not path.is_dir():
            raise UsageError(f"--path {path}: no such folder")
    given = arguments.image or arguments.path or arguments.python or NAMES
    target = arguments.target
    if target.endswith((".yaml", ".yml")):
        target = str(Path(target).absolute())
    return [
        Side(name=name, label=label, python=python, paths=of_side, target=target, image=image)
        for name, label, python, of_side, image in zip(
            NAMES, given, pythons, paths, arguments.image or (None, None), strict=True
        )
    ]


def _engine(arguments: argparse.Namespace) -> Engine | None:
    """Return how containers are started; None where nothing runs in one."""
    if arguments.image is None:
        for option in ("engine", "mount", "env"):
            if getattr(arguments, option):
                raise UsageError(f"--{option} goes with --image BASE_IMAGE HEAD_IMAGE")
        return None
    if missing := [name for name in arguments.env if name not in os.environ]:
        raise UsageError(f"--env {missing[0]}: the variable is not set here")
    name = find_engine(arguments.engine)
    check_engine(name)
    return Engine(
        name=name,
        mounts=tuple(parse_mount(text) for text in arguments.mount),
        variables=tuple(arguments.env),
        gpus=arguments.gpus,
    )


def _print_part(result: TrialResult) -> None:
    """Print one line for a trial, then what HEAD broke, what is blocked, what it fixed and what was broken before."""
    kinds = Counter(str(verdict.details.get(KIND, verdict.outcome.value)) for verdict in result.verdicts)
    counts = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
    print(f"{WORDS[result.outcome]:<13} level {result.level} {result.name:<30} {counts}", flush=True)
    for verdict in sorted(result.verdicts, key=_order):
        if _order(verdict) < len(_SHOWN_KINDS):
            text = f"{verdict.name}: {verdict.reason}"
            print(printable(f"    {WORDS[verdict.outcome]:<10}{text[:MAX_SHOWN]}"), flush=True)


_SHOWN_KINDS = (Outcome.FAIL, Outcome.BLOCKED, FIXED, BEFORE)


def _order(verdict: Verdict) -> int:
    """Return the place of a verdict on the console: failures first; verdicts that are not shown last."""
    own = (verdict.outcome, verdict.details.get(KIND))
    return next((place for place, one in enumerate(_SHOWN_KINDS) if one in own), len(_SHOWN_KINDS))


def _print_whole(results: Results, report: Path) -> None:
    verdicts = [verdict for trial in results.requested_trials() for verdict in trial.verdicts]
    broken = sum(one.details.get(KIND) == BROKE and one.outcome is Outcome.FAIL for one in verdicts)
    blocked = next((one.reason for one in verdicts if one.outcome is Outcome.BLOCKED), "it was interrupted")
    said = {
        Outcome.FAIL: f"HEAD broke {broken} verdict{'s' * (broken != 1)}",
        Outcome.PASS: "HEAD broke nothing that was compared",
    }.get(results.outcome, f"it is not known whether HEAD broke something: {blocked[:MAX_SHOWN]}")
    print(printable(f"{WORDS[results.outcome]} - {results.target}: {said}"))
    print(f"report: {report} (for a browser: {report.with_suffix('.html').name})")
