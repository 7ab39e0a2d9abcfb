"""Launch a target's commands on behalf of a trial: observed, recorded, and judged by how they ended."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from seatrial.errors import BlockedError, UsageError
from seatrial.evidence.identity.origins import observing_environment, read_imports
from seatrial.files import write_text
from seatrial.launch import Launched, run_command
from seatrial.packaged import read_table
from seatrial.targets.base import Job, TrainingJob
from seatrial.triage.diagnose import diagnose_file
from seatrial.triage.patterns import environment_cause, last_lines
from seatrial.trials.base import TrialContext
from seatrial.trials.run_evidence import RunEvidence
from seatrial.verdict import EXIT_USAGE, Outcome, Verdict

Made = TypeVar("Made")


def own_options(trial: str) -> tuple[str, ...]:
    """Return the `a.b=value` words of a trial for options that its recipe leaves at their defaults: `variants.yaml`."""
    return tuple(read_table("seatrial.trials", "variants.yaml").get(trial, ()))


def with_own_options(trial: str, make: Callable[[Sequence[str]], Made]) -> Made:
    """Return what is made with a trial's own options, or without them where the user's overrides exclude them."""
    try:
        return make(own_options(trial))
    except UsageError:
        return make(())


def launch(context: TrialContext, job: Job, log_path: Path) -> Launched:
    """Run one command; its words go to the result and to command.txt, its imports to the context.

    Raises:
        BlockedError: it cannot be started, or nothing can be written.
        KeyboardInterrupt: the run was interrupted; the command has been stopped.
    """
    words = shlex.join(context.redactor.argv(job.argv))
    context.result.commands.append(words)
    context.save()
    _write_command(context, job, words)
    imports_file = log_path.with_name(f"{log_path.stem}.imports.jsonl")
    environment = observing_environment(
        {**context.environment, **job.environment}, context.target.modules, imports_file
    )
    launched = run_command(
        job.argv,
        log_path=log_path,
        environment=environment,
        timeout_seconds=context.timeout_seconds,
        progress=lambda seconds, line: context.say(f"{job.what}: {seconds:.0f} s  {line}"),
        redact=context.redactor.text,
    )
    context.imports += read_imports(imports_file)
    return launched


def train(context: TrialContext, job: TrainingJob, log_path: Path) -> RunEvidence:
    """Run a training command and what follows it; return the evidence that it left.

    Raises:
        BlockedError: it cannot be started, or its evidence is missing or ambiguous.
        KeyboardInterrupt: the run was interrupted; the command has been stopped.
    """
    launched = launch(context, job, log_path)
    if job.collect is not None:
        followers = (log_path.with_name(f"{log_path.stem}-{number}.log") for number in itertools.count(2))
        job, launched = job.collect(job, launched, lambda command: launch(context, command, next(followers)))
    context.result.limitations += [
        reason for reason in job.absent.values() if reason not in context.result.limitations
    ]
    return RunEvidence(job, launched, context.imports)


def _write_command(context: TrialContext, job: Job, words: str) -> None:
    """Add the command to command.txt, in a form that can be pasted."""
    path = context.directory / "command.txt"
    before = path.read_text() if path.exists() else f"# from {os.getcwd()}\n"  # noqa: PTH109
    variables = " ".join(
        f"{name}={shlex.quote(value)}"
        for name, value in context.redactor.environment(job.environment, [""]).items()
    )
    write_text(path, before + f"{variables} {words}\n".lstrip())


def exit_verdict(name: str, launched: Launched) -> Verdict:
    """Judge how a command ended: Pass on 0; Blocked where the environment ended it; else Fail."""
    if launched.ok:
        left = f"; {launched.num_stragglers} processes outlived it, ended" if launched.num_stragglers else ""
        return Verdict(
            name=name,
            outcome=Outcome.PASS,
            reason=f"ended by itself after {launched.seconds:.1f} s{left}{_traceback(launched.log_path)}",
            value=launched.describe(),
            bound="exit status 0",
            num_samples=1,
        )
    outcome, reason = _why(launched)
    return Verdict(
        name=name,
        outcome=outcome,
        reason=reason,
        value=launched.describe(),
        bound="exit status 0",
        num_samples=1,
        details={"last_lines": last_lines(launched.log_path, 5), "triage": _triage(launched.log_path)},
    )


def _traceback(log_path: Path) -> str:
    """Return the error of a traceback at the end of a log, in words; empty where there is none."""
    lines = [line.rstrip() for line in last_lines(log_path, 50)]
    starts = [
        place for place, line in enumerate(lines) if line.endswith("Traceback (most recent call last):")
    ]
    if not starts:
        return ""
    error = next(
        (line for line in lines[starts[-1] + 1 :] if line and not line.startswith(" ")), "unknown error"
    )
    return f"; a traceback is at the end of its log, so only the evidence shows what it did: {error[:200]}"


def _why(launched: Launched) -> tuple[Outcome, str]:
    said = last_lines(launched.log_path, 1)
    last = f"; last words: {said[0].strip()[:300]}" if said else "; it said nothing"
    if launched.timed_out:
        return Outcome.FAIL, f"{launched.describe()}{last}; a slow machine needs a larger --timeout"
    if launched.killed_from_outside:
        return Outcome.BLOCKED, f"{launched.describe()}: out of memory, or ended by somebody{last}"
    if cause := environment_cause(launched.log_path):
        return Outcome.BLOCKED, f"{launched.describe()}: {cause.line[:300]}; {cause.remedy}"
    if launched.returncode == EXIT_USAGE:
        return Outcome.BLOCKED, f"the stack refused its configuration{last}"
    known = _triage(launched.log_path)
    return Outcome.FAIL, f"{launched.describe()}{last}" + (f"; triage: {known}" if known else "")


def _triage(log_path: Path) -> str:
    """Return what the table of failures says of a log; empty where it says nothing."""
    try:
        diagnosis = diagnose_file(log_path)
    except BlockedError:
        return ""
    if diagnosis.error is None and diagnosis.pattern is None:
        return ""
    return diagnosis.verdict.reason
