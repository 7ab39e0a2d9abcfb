"""Equivalence classes: configurations that must give the same trajectory, compared with one reference.

A class is a YAML file (those of seatrial are in `classes/`). In its words `{folder}` is a configuration's own folder,
`{work}` the folder of all, `{python}` the interpreter that runs Seatrial. Each metric is compared in two ways, since
each hides what the other shows: the worst step (largest absolute residual) and the drift (mean signed residual: many
small deviations in one direction).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from seatrial.comparisons.comparable import nonfinite, why_not_comparable
from seatrial.comparisons.repeats import ShowProgress
from seatrial.errors import BlockedError, UsageError
from seatrial.evidence.identity.redaction import Redactor
from seatrial.evidence.read import read_logs
from seatrial.evidence.runlog import RunLog
from seatrial.launch.local import Launched, run_command
from seatrial.strict_yaml import read_yaml
from seatrial.verdict import Outcome, Verdict

Text = Annotated[str, Field(min_length=1)]
Bound = Annotated[FiniteFloat, Field(ge=0)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Configuration(_Part):
    """One way to run the command."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """Also the name of its folder."""
    overrides: tuple[Text, ...] = ()
    """Words added to the command."""


class Tolerance(_Part):
    """How far a member may be from the reference, in units of the metric."""

    worst: Bound
    """Largest absolute residual of a step."""
    drift: Bound
    """Absolute value of the mean signed residual over the steps."""


class EquivalenceClass(_Part):
    """The content of a file."""

    name: Text
    why: Text
    """Why these configurations must agree."""
    command: tuple[Text, ...] = Field(min_length=1)
    prepare: tuple[Text, ...] = ()
    """A command that runs once before all configurations, for example one that creates a model."""
    logs: Text
    """Where a configuration writes its log; contains `{folder}`."""
    reference: Configuration
    members: tuple[Configuration, ...] = Field(min_length=1)
    metrics: dict[str, Tolerance] = Field(min_length=1)
    source: Text = "hand-set"
    """Where the tolerances come from."""
    timeout_seconds: Annotated[FiniteFloat, Field(gt=0)] = 3600.0

    @model_validator(mode="after")
    def _sound(self) -> EquivalenceClass:
        if "{folder}" not in self.logs:
            raise ValueError("logs: write {folder} in it, or all configurations would log to one place")
        names = [self.reference.name, *(member.name for member in self.members)]
        if len(set(names)) != len(names):
            raise ValueError("two configurations have the same name")
        for member in self.members:
            if member.overrides == self.reference.overrides:
                raise ValueError(
                    f"{member.name} has the same overrides as the reference: it could not differ"
                )
        return self


def load_class(path: Path) -> EquivalenceClass:
    """Read a class.

    Raises:
        UsageError: the file cannot be read, or is not an equivalence class.
    """
    content = read_yaml(path, "equivalence class")
    try:
        return EquivalenceClass.model_validate(content)
    except ValidationError as error:
        faults = [
            f"{'.'.join(str(part) for part in fault['loc']) or 'the file'}: {fault['msg']}"
            for fault in error.errors(include_url=False)[:5]
        ]
        raise UsageError(f"equivalence class {path}: {'; '.join(faults)}") from error


def run_class(
    group: EquivalenceClass, work: Path, environment: Mapping[str, str], say: ShowProgress = lambda text: None
) -> Iterator[Verdict]:
    """Run the reference and the members, and yield the verdicts of each member when it finishes.

    Args:
        group: the class.
        work: gets one folder per configuration; must contain none of them yet.
        environment: the whole environment of the commands.
        say: receives progress messages.

    Raises:
        UsageError: a configuration's folder already exists.
        BlockedError: nothing can be started or written; or the preparation did not exit with status 0.
    """
    if group.prepare:
        prepared = _launch(group.prepare, group, "prepare", work, environment, say)
        if not prepared.ok:
            raise BlockedError(
                f"the preparation ended with {prepared.describe()}; its output is in {prepared.log_path}"
            )
    reference = _run(group.reference, group, work, environment, say)
    if isinstance(reference, Verdict):
        yield reference
    for member in group.members:
        if isinstance(reference, Verdict):
            reason = f"there is no reference to compare it with: {reference.reason}"
            yield Verdict(name=f"{group.name}: {member.name}", outcome=Outcome.BLOCKED, reason=reason)
            continue
        log = _run(member, group, work, environment, say)
        if isinstance(log, Verdict):
            yield log
        else:
            yield from compare_member(group, member.name, reference, log)


def compare_member(group: EquivalenceClass, member: str, reference: RunLog, log: RunLog) -> Iterator[Verdict]:
    """Yield two verdicts per metric, worst step and drift; one if the runs cannot be compared."""
    for tag, tolerance in group.metrics.items():
        name = f"{group.name}: {member}: {tag}"
        unfitness = _unfit(tag, group.reference.name, reference, member, log)
        if unfitness is not None:
            yield Verdict(name=name, outcome=unfitness[0], reason=unfitness[1], source=group.source)
            continue
        steps = reference.series[tag].steps
        with np.errstate(over="ignore", invalid="ignore"):
            residuals = log.series[tag].values - reference.series[tag].values
            drift = float(residuals.mean())
        place = int(np.abs(residuals).argmax())
        worst = abs(float(residuals[place]))
        same = "equal to the bit" if worst == 0 else ""
        for kind, value, size, bound, words in (
            ("worst step", worst, worst, tolerance.worst, f"largest residual at step {steps[place]}"),
            ("drift", drift, abs(drift), tolerance.drift, "mean signed residual"),
        ):
            yield Verdict(
                name=f"{name}: {kind}",
                outcome=Outcome.PASS if size <= bound else Outcome.FAIL,
                reason=same or f"{words} against {group.reference.name} is {value:.3g}",
                value=value,
                bound=f"<= {bound:g}" if kind == "worst step" else f"within {bound:g} of 0",
                num_samples=len(residuals),
                steps=(int(steps[0]), int(steps[-1])),
                source=group.source,
            )


def _unfit(
    tag: str, reference_name: str, reference: RunLog, member: str, log: RunLog
) -> tuple[Outcome, str] | None:
    series = reference.series.get(tag)
    if reference.damage or series is None or not len(series) or nonfinite(series):
        found = why_not_comparable(tag, (), f"the reference {reference_name}", reference)
        return found or (Outcome.FAIL, f"{tag!r} has no points in the reference {reference_name}")
    return why_not_comparable(tag, [int(step) for step in series.steps], member, log)


def _run(
    configuration: Configuration,
    group: EquivalenceClass,
    work: Path,
    environment: Mapping[str, str],
    say: ShowProgress,
) -> RunLog | Verdict:
    """Run a configuration and return its log, or the verdict that says why there is none."""
    folder = work / configuration.name
    launched = _launch(
        (*group.command, *configuration.overrides), group, configuration.name, work, environment, say
    )
    name = f"{group.name}: {configuration.name} runs"
    if not launched.ok:
        outcome = Outcome.BLOCKED if launched.killed_from_outside else Outcome.FAIL
        reason = f"it ended with {launched.describe()}; its output is in {launched.log_path}"
        return Verdict(name=name, outcome=outcome, reason=reason, value=launched.describe(), num_samples=1)
    try:
        return read_logs(Path(_fill(group.logs, folder, work)), set(group.metrics))
    except BlockedError as error:
        return Verdict(name=name, outcome=Outcome.BLOCKED, reason=str(error))


def _launch(
    words: tuple[str, ...],
    group: EquivalenceClass,
    name: str,
    work: Path,
    environment: Mapping[str, str],
    say: ShowProgress,
) -> Launched:
    folder = work / name
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        raise UsageError(f"{folder} already exists from an earlier run; give a new --work folder") from error
    except OSError as error:
        raise BlockedError(f"cannot make {folder}: {error.strerror}") from error
    return run_command(
        [_fill(word, folder, work) for word in words],
        log_path=folder / "run.log",
        environment=environment,
        timeout_seconds=group.timeout_seconds,
        progress=lambda seconds, line: say(f"{name}: {seconds:.0f} s  {line}"),
        redact=Redactor(environment).text,
    )


def _fill(word: str, folder: Path, work: Path) -> str:
    return (
        word.replace("{folder}", str(folder)).replace("{work}", str(work)).replace("{python}", sys.executable)
    )
