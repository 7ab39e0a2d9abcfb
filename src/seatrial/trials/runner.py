"""Take a target through its trials, and keep `results.json` true at every moment."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import seatrial
from seatrial.errors import BlockedError, UsageError
from seatrial.evidence.identity.collect import Repository, collect_identity, imports_as_json, repository_of
from seatrial.evidence.identity.redaction import Redactor
from seatrial.targets.base import Target
from seatrial.trials.base import ShowProgress, Trial, TrialContext
from seatrial.trials.plan import all_trials
from seatrial.trials.results import Results, TrialResult, TrialState
from seatrial.trials.rundir import RunDirectory
from seatrial.verdict import Outcome, Verdict

CAN_RUN = "the trial can run"
"""Name of the verdict on a trial that the environment prevented."""
SEATRIAL_PACKAGES = ("seatrial", "numpy", "pydantic", "tensorboard", "psutil")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What somebody asked for."""

    trials: Sequence[Trial]
    words: str
    """The request in words: `level 0,6`."""
    seed: int
    overrides: Sequence[str]
    timeout_seconds: float
    """Time limit of each launched command."""


def new_results(directory: RunDirectory, target: Target, request: Request, redactor: Redactor) -> Results:
    """Return the results of a run at its start: every requested trial pending, the others not requested."""
    wanted = {trial.name for trial in request.trials}
    return Results(
        run=directory.path.name,
        target=getattr(target, "source", target.name),
        requested=request.words,
        seed=request.seed,
        overrides=redactor.argv(request.overrides),
        timeout_seconds=request.timeout_seconds,
        started_at=_now(),
        seatrial_version=seatrial.__version__,
        trials=[
            TrialResult(
                name=trial.name,
                level=trial.level,
                summary=trial.summary,
                proves=trial.proves,
                does_not_prove=trial.does_not_prove,
                state=TrialState.PENDING if trial.name in wanted else TrialState.NOT_REQUESTED,
            )
            for trial in _with_unknown(request.trials)
        ],
    )


def _with_unknown(trials: Sequence[Trial]) -> list[Trial]:
    """Return all trials, with those of the request that the plan does not list."""
    known = {trial.name: trial for trial in all_trials()}
    known.update({trial.name: trial for trial in trials})
    return sorted(known.values(), key=lambda trial: trial.level)


def run_trials(
    directory: RunDirectory,
    results: Results,
    target: Target,
    request: Request,
    say: ShowProgress,
    concluded: Callable[[TrialResult], None] = lambda result: None,
) -> Results:
    """Run every requested trial that has not concluded; write `results.json` before each command and after each trial.

    Args:
        directory: the run's folder.
        results: as `new_results` gave them, or as an earlier, interrupted run left them.
        target: the stack under trial.
        request: what was asked for.
        say: shows what is being waited for.
        concluded: called after each trial, also one that an earlier run concluded.

    Raises:
        KeyboardInterrupt: the run was interrupted; what is known is written.
        BlockedError: `results.json` itself cannot be written.
    """
    environment = dict(os.environ)
    # The value of a secret-named setting must not appear in a verdict either.
    redactor = Redactor({**environment, **dict(word.partition("=")[::2] for word in request.overrides)})
    identity = begin(directory, results, target, say)
    by_name = {trial.name: trial for trial in request.trials}
    for result in results.requested_trials():
        if result.state is TrialState.CONCLUDED:
            concluded(result)
            continue
        context = _context(directory, results, result, target, request, environment, redactor, say)
        try:
            _run_one(by_name[result.name], context)
        finally:
            identity["runs"][result.name] = imports_as_json(context.imports, redactor)
            directory.write_identity(identity)
        concluded(result)
    finish(directory, results)
    return results


def begin(directory: RunDirectory, results: Results, target: Target, say: ShowProgress) -> dict[str, Any]:
    """Write the results of a run that begins or continues, and what it runs on; return the latter.

    Raises:
        BlockedError: they cannot be written.
    """
    environment = dict(os.environ)
    results.finished_at = None
    directory.write_results(results)
    say("reading commits, packages and devices")
    repositories = _repositories(target)
    results.repositories = {name: state.describe() for name, state in repositories.items()}
    identity = collect_identity(
        repositories=repositories,
        modules=("seatrial", *target.modules),
        packages=(*SEATRIAL_PACKAGES, *target.packages),
        environment=environment,
        redactor=Redactor(environment),
    )
    directory.write_identity(identity)
    return identity


def finish(directory: RunDirectory, results: Results) -> None:
    """Write the results of a run that is over."""
    results.finished_at = _now()
    directory.write_results(results)


def _context(
    directory: RunDirectory,
    results: Results,
    result: TrialResult,
    target: Target,
    request: Request,
    environment: dict[str, str],
    redactor: Redactor,
    say: ShowProgress,
) -> TrialContext:
    """Set a trial to its beginning: nothing of an abandoned attempt counts."""
    folder = directory.begin_trial(result.level, result.name)
    result.verdicts = []
    result.commands = []
    result.limitations = []
    result.directory = str(folder.relative_to(directory.path))
    return TrialContext(
        directory=folder,
        target=target,
        seed=request.seed,
        overrides=request.overrides,
        timeout_seconds=request.timeout_seconds,
        environment=environment,
        redactor=redactor,
        say=say,
        result=result,
        save=lambda: _save(directory, results, result, redactor),
    )


def _save(directory: RunDirectory, results: Results, result: TrialResult, redactor: Redactor) -> None:
    """Write the results; the verdicts of a trial may quote a setting with credentials."""
    result.verdicts = [
        replace(
            verdict, reason=redactor.sentence(verdict.reason), details=_redacted(verdict.details, redactor)
        )
        for verdict in result.verdicts
    ]
    directory.write_results(results)


def _redacted(value: Any, redactor: Redactor) -> Any:
    """Return JSON values with the secrets in their texts redacted."""
    if isinstance(value, str):
        return redactor.sentence(value)
    if isinstance(value, Mapping):
        return {key: _redacted(item, redactor) for key, item in value.items()}
    return [_redacted(item, redactor) for item in value] if isinstance(value, list | tuple) else value


def _run_one(trial: Trial, context: TrialContext) -> None:
    started = time.monotonic()
    result = context.result
    result.state = TrialState.RUNNING
    context.save()
    try:
        trial.run(context)
        result.state = TrialState.CONCLUDED
    except (BlockedError, UsageError) as error:
        # Settings that one trial takes and another does not are found here, after the run has begun.
        result.verdicts.append(Verdict(name=CAN_RUN, outcome=Outcome.BLOCKED, reason=str(error)))
        result.state = TrialState.CONCLUDED
    except KeyboardInterrupt:
        result.state = TrialState.INTERRUPTED
        raise
    finally:
        result.seconds = time.monotonic() - started
        context.save()


def _repositories(target: Target) -> dict[str, Repository]:
    folders = {"seatrial": Path(seatrial.__file__).parent, **target.expected_origins()}
    return {name: repository_of(folder) for name, folder in folders.items() if folder.is_dir()}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
