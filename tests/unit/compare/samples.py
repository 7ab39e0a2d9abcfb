"""Made runs of a trial on one side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from seatrial.compare.runs import Sample
from seatrial.trials.results import TrialResult, TrialState
from seatrial.verdict import Outcome, Verdict

LETTERS = {"P": Outcome.PASS, "F": Outcome.FAIL, "B": Outcome.BLOCKED, "S": Outcome.SKIPPED}


def verdict(name: str, letter: str) -> Verdict:
    """Return a verdict by the first letter of its outcome."""
    outcome = LETTERS[letter]
    return Verdict(name=name, outcome=outcome, reason=f"{name} {letter}", num_samples=1)


def sample(
    seed: int,
    verdicts: Mapping[str, str],
    *,
    state: TrialState = TrialState.CONCLUDED,
    seconds: float | None = None,
    logs: Mapping[str, Path] | None = None,
) -> Sample:
    """Return a run with these verdicts, by letter."""
    result = TrialResult(
        name="trial",
        level=0,
        summary="a trial",
        proves="something",
        does_not_prove="everything",
        state=state,
        seconds=seconds,
        verdicts=[verdict(name, letter) for name, letter in verdicts.items()],
    )
    return Sample(seed=seed, result=result, logs=logs or {})


def runs(*letters: str, name: str = "check") -> list[Sample]:
    """Return a run for each letter; an empty text has no such verdict, but another that passes."""
    return [sample(seed, {name: letter} if letter else {"other": "P"}) for seed, letter in enumerate(letters)]


def write_log(path: Path, series: Mapping[str, Sequence[float]]) -> Path:
    """Write a metrics.json."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        tag: {str(step): value for step, value in enumerate(values, 1)} for tag, values in series.items()
    }
    path.write_text(json.dumps(content))
    return path
