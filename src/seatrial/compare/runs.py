"""Runs `seatrial run` and `seatrial relations` on each side, and returns what they concluded."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from seatrial.compare.sides import Engine, Side
from seatrial.errors import BlockedError
from seatrial.evidence.identity.redaction import Redactor
from seatrial.launch import Launched, run_command
from seatrial.triage.patterns import last_lines
from seatrial.trials.base import Trial
from seatrial.trials.results import TrialResult, TrialState
from seatrial.trials.rundir import make_directory, read_results
from seatrial.trials.runner import CAN_RUN
from seatrial.verdict import Outcome, Verdict

ShowProgress = Callable[[str], None]
LOG = "metrics.json"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One run of a trial on one side."""

    seed: int
    result: TrialResult
    logs: Mapping[str, Path]
    """The log of each training run of the trial, by its folder below the trial's."""


@dataclass(frozen=True, kw_only=True)
class Runner:
    """Runs commands on a side."""

    directory: Path
    """Folder of the comparison."""
    own: Path
    """Folder with this `seatrial` alone; see `Side.environment`."""
    words: Sequence[str]
    """Words of `seatrial run` after the trials: `--timeout`, `key=value`."""
    say: ShowProgress
    engine: Engine | None = None
    """Of sides with an image."""

    def trials(self, side: Side, trials: Sequence[Trial], seed: int) -> dict[str, Sample]:
        """Run trials once on a side, and return the sample of each by its name.

        Raises:
            BlockedError: nothing can be written.
            KeyboardInterrupt: interrupted; the side's processes have been stopped.
        """
        folder = self.directory / "runs" / f"{side.name}-seed-{seed}"
        number = 2
        while folder.exists():
            folder, number = folder.with_name(f"{side.name}-seed-{seed}-{number}"), number + 1
        make_directory(folder)
        names = [word for trial in trials for word in ("--trial", trial.name)]
        argv = ["run", "--target", side.target, *names, "--seed", str(seed), "--output", str(folder)]
        launched = self._launch(side, [*argv, *self.words], folder / "run.log", f"seed {seed}")
        found = list(folder.glob("*/results.json"))
        results: dict[str, TrialResult] = {}
        refused = ""
        if found:
            try:
                results = {one.name: one for one in read_results(found[0].parent).requested_trials()}
            except BlockedError as error:
                refused = str(error)
        return {
            trial.name: self._sample(side, trial, seed, results.get(trial.name), found, refused, launched)
            for trial in trials
        }

    def relations(self, side: Side, words: Sequence[str]) -> tuple[list[Verdict], Mapping[str, str]]:
        """Check the components of a side, and return the verdicts of its relations and its releases.

        Raises:
            BlockedError: it left no verdicts; the message has its last words.
        """
        folder = self.directory / "relations" / side.name
        make_directory(folder)
        report = folder / "relations.json"
        argv = ["relations", "--target", side.target, "--json", str(report), *words]
        argv += ["--log", str(folder / "stack.log")]
        launched = self._launch(side, argv, folder / "run.log", "relations")
        if not report.is_file():
            raise BlockedError(f"relations of {side.name}: {_last_words(launched)}")
        document: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
        return [Verdict.from_json(one) for one in document["verdicts"]], document["releases"]

    def _launch(self, side: Side, words: Sequence[str], log: Path, what: str) -> Launched:
        environment = side.environment(os.environ, self.own)
        argv: Sequence[str] = [side.python, "-m", "seatrial", *words]
        if self.engine is not None:
            made = self.engine.inside(side, argv, environment, [self.directory])
            argv, environment = made.argv, dict(made.environment)
        return run_command(
            argv,
            log_path=log,
            environment=environment,
            timeout_seconds=math.inf,
            directory=side.tree,
            progress=partial(_report, self.say, f"{side.name}, {what}"),
            redact=Redactor(environment).text,
        )

    def _sample(
        self,
        side: Side,
        trial: Trial,
        seed: int,
        result: TrialResult | None,
        found: Sequence[Path],
        refused: str,
        launched: Launched,
    ) -> Sample:
        if result is None or (not result.verdicts and result.state is not TrialState.CONCLUDED):
            # Nothing was concluded: the command itself failed, and its last words say why.
            result = TrialResult(
                name=trial.name,
                level=trial.level,
                summary=trial.summary,
                proves=trial.proves,
                does_not_prove=trial.does_not_prove,
                state=TrialState.CONCLUDED,
                verdicts=[
                    Verdict(name=CAN_RUN, outcome=Outcome.BLOCKED, reason=refused or _last_words(launched))
                ],
            )
            return Sample(seed=seed, result=result, logs={})
        logs: dict[str, Path] = {}
        if result.directory is not None:
            folder = found[0].parent / result.directory
            shown = self.directory / "trials" / f"{trial.level}-{trial.name}" / f"{side.name}-seed-{seed}"
            for log in sorted(folder.rglob(LOG)):
                name = str(log.parent.relative_to(folder))
                # Both sides' curves below one folder: the report draws them in one chart.
                make_directory(shown / name, exist_ok=True)
                shutil.copyfile(log, shown / name / LOG)
                logs[name] = log
        return Sample(seed=seed, result=result, logs=logs)


def _last_words(launched: Launched) -> str:
    said = last_lines(launched.log_path, 1)
    return f"{launched.describe()}: {said[0].strip()[:300] if said else 'it printed nothing'}"


def _report(say: ShowProgress, name: str, seconds: float, line: str) -> None:
    say(f"{name}: {seconds:.0f} s  {line}")
