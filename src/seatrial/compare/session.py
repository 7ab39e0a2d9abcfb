"""One comparison: every trial and relation on both sides, and the results that the report is drawn from."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import seatrial
from seatrial.compare.curves import compare_curves
from seatrial.compare.laws import compare_laws
from seatrial.compare.quarantine import Entry, apply_quarantine, unused
from seatrial.compare.runs import Runner, Sample
from seatrial.compare.sides import BASE, HEAD, Side
from seatrial.compare.verdicts import APART, KIND, MIN_SEEDS, compare_trial, differs
from seatrial.errors import BlockedError
from seatrial.evidence.identity.redaction import Redactor
from seatrial.trials.base import Trial
from seatrial.trials.results import Results, TrialResult, TrialState
from seatrial.trials.rundir import RunDirectory
from seatrial.verdict import Outcome, Verdict, combine

RELATIONS = "relations"
"""Name of the part of the results that has the laws."""
COMPARED = "something could be compared"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is compared, after a look at every option."""

    target: str
    commits: Sequence[str]
    """BASE and HEAD; empty for two releases."""
    overrides: Sequence[str]
    """`key=value` words for the stack."""
    trials: Sequence[Trial]
    relation_words: Sequence[str] | None
    """Words of `seatrial relations`; None: relations are not compared."""
    quarantine: Sequence[Entry]
    num_seeds: int
    timeout_seconds: float
    """Of each command of a trial."""


def new_results(run: str, request: Request, sides: Sequence[Side]) -> Results:
    """Return the results of a comparison at its start: every part pending."""
    parts = [
        TrialResult(
            name=trial.name,
            level=trial.level,
            summary=f"{trial.summary}, on both",
            proves="HEAD broke nothing that this trial judges at BASE",
            does_not_prove="that BASE or HEAD is good: what fails on both is named and does not fail",
        )
        for trial in request.trials
    ]
    if request.relation_words is not None:
        parts.append(
            TrialResult(
                name=RELATIONS,
                level=0,
                summary="the laws that the components satisfy, on both",
                proves="HEAD broke no law that holds at BASE",
                does_not_prove="that every law holds: what is broken on both is named and does not fail",
            )
        )
    return Results(
        run=run,
        target=f"{request.target}: {sides[0].label} against {sides[1].label}",
        requested=", ".join(part.name for part in parts),
        seed=0,
        overrides=Redactor(os.environ).argv(request.overrides),
        timeout_seconds=request.timeout_seconds,
        started_at=_now(),
        seatrial_version=seatrial.__version__,
        repositories={side.name: f"{side.label}, {side.python}" for side in sides},
        trials=parts,
    )


def compare(
    runner: Runner,
    sides: Sequence[Side],
    request: Request,
    results: Results,
    directory: RunDirectory,
    concluded: Callable[[TrialResult], None],
) -> list[str]:
    """Run everything on both sides, and fill in the results, which are written after each part.

    Args:
        runner: runs commands on a side.
        sides: BASE and HEAD.
        request: what is compared.
        results: as `new_results` returned them.
        directory: folder of the comparison.
        concluded: called after each part.

    Returns:
        Notes on entries of the quarantine that name no failure or have expired.

    Raises:
        KeyboardInterrupt: interrupted; what is known is in the results.
    """
    by_name = {part.name: part for part in results.trials}
    today = datetime.now(UTC).date()
    used = {entry.number: 0 for entry in request.quarantine}

    def conclude(part: TrialResult) -> None:
        for number, count in apply_quarantine(request.quarantine, [part], today).items():
            used[number] += count
        part.state = TrialState.CONCLUDED
        directory.write_results(results)
        concluded(part)

    samples = _samples(runner, sides, request)
    for trial in request.trials:
        of_base, of_head = samples[BASE][trial.name], samples[HEAD][trial.name]
        part = by_name[trial.name]
        part.verdicts = [*compare_trial(of_base, of_head), *compare_curves(of_base, of_head)]
        folder = directory.path / "trials" / f"{trial.level}-{trial.name}"
        part.directory = str(folder.relative_to(directory.path)) if folder.is_dir() else None
        part.model = of_head[0].result.model
        part.commands = of_head[0].result.commands
        conclude(part)
    if request.relation_words is not None:
        part = by_name[RELATIONS]
        part.verdicts = _relations(runner, sides, request.relation_words, results)
        conclude(part)
    _need_something(results)
    results.finished_at = _now()
    directory.write_results(results)
    return unused(request.quarantine, used, today)


def _samples(runner: Runner, sides: Sequence[Side], request: Request) -> dict[str, dict[str, list[Sample]]]:
    """Run the trials, and return the samples by side and trial; what differs gets one seed more if there is but one."""
    found: dict[str, dict[str, list[Sample]]] = {
        side.name: {trial.name: [] for trial in request.trials} for side in sides
    }

    def once(trials: Sequence[Trial], seed: int) -> None:
        # BASE and HEAD alternate, so that a machine that gets slower does not slow one side alone.
        for side in sides:
            for name, sample in runner.trials(side, trials, seed).items():
                found[side.name][name].append(sample)

    for seed in range(request.num_seeds if request.trials else 0):
        once(request.trials, seed)
    if request.num_seeds < MIN_SEEDS:
        doubtful = [
            trial
            for trial in request.trials
            if differs(compare_trial(found[BASE][trial.name], found[HEAD][trial.name]))
        ]
        if doubtful:
            once(doubtful, request.num_seeds)
    return found


def _relations(
    runner: Runner, sides: Sequence[Side], words: Sequence[str], results: Results
) -> list[Verdict]:
    try:
        found = [runner.relations(side, words) for side in sides]
    except BlockedError as error:
        return [Verdict(name=RELATIONS, outcome=Outcome.BLOCKED, reason=str(error), details={KIND: APART})]
    for side, (_, releases) in zip(sides, found, strict=True):
        versions = ", ".join(f"{name} {version}" for name, version in releases.items())
        results.repositories = {**results.repositories, side.name: f"{side.label}, {side.python}: {versions}"}
    return compare_laws(found[0][0], found[1][0])


def _need_something(results: Results) -> None:
    """Add a Blocked verdict if nothing was judged on both sides: that is no Pass."""
    if combine(part.outcome for part in results.trials) is not Outcome.SKIPPED:
        return
    verdicts = [verdict for part in results.trials for verdict in part.verdicts]
    if any(verdict.details.get(KIND) != APART for verdict in verdicts):
        return
    reason = verdicts[0].reason if verdicts else "neither side left a verdict"
    part = results.trials[0]
    part.verdicts = [
        *part.verdicts,
        Verdict(name=COMPARED, outcome=Outcome.BLOCKED, reason=f"nothing was judged on both: {reason}"),
    ]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
