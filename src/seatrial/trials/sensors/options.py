"""The options of a run, as its target configured it: what sensors compute from, never the run's own record."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from seatrial.evidence.ledger.schema import LedgerRow
from seatrial.trials.run_evidence import NotGivenError, RunEvidence


class Options(dict[str, Any]):
    """Options by dotted name."""

    def __missing__(self, name: str) -> Any:
        """Say that a version of the stack does not have an option, so that what needs it is not judged.

        Raises:
            NotGivenError: always.
        """
        raise NotGivenError(f"the run has no option {name}")


def options_of(evidence: RunEvidence) -> Options:
    """Return the options by dotted name; one that is missing raises NotGivenError.

    Raises:
        NotGivenError: the target does not say what it configured.
    """
    if not evidence.job.configuration:
        raise NotGivenError("the target does not say how the run is configured (TrainingJob.configuration)")
    return Options(flat(evidence.job.configuration))


def loop_of(options: Mapping[str, Any]) -> str:
    """Return the section of the options that describes the loop: `grpo` or `sft`."""
    return "grpo" if "grpo.seed" in options else "sft"


def flat(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value of nested sections with its dotted name; an empty section is a value."""
    for name, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def steps_of(evidence: RunEvidence) -> dict[int, list[LedgerRow]]:
    """Return the trained rows of each step, in the order of the batch.

    Raises:
        NotGivenError: the target gives no rows.
    """
    steps: dict[int, list[LedgerRow]] = {}
    for row in sorted(evidence.ledger, key=lambda row: (row.step, row.index)):
        steps.setdefault(row.step, []).append(row)
    return steps


def mask_of(row: LedgerRow) -> list[float]:
    """Return what the loss of each token of the completion is multiplied by."""
    start = row.prompt_length or 0
    return [float(value) for value in (row.loss_mask or ())[start : len(row.token_ids or ())]]


def updates_of(rows: Sequence[LedgerRow], options: Mapping[str, Any]) -> list[Sequence[LedgerRow]]:
    """Return the rows of each update of a step; one without a token to train on is not taken."""
    size = int(options["policy.train_global_batch_size"])
    parts = [rows[start : start + size] for start in range(0, len(rows), size)]
    return [part for part in parts if any(any(mask_of(row)) for row in part)]


def verified_reward(row: LedgerRow) -> float:
    """Return the verifier's reward, before a penalty on length."""
    return math.nan if row.reward is None else row.reward - (row.length_penalty or 0.0)
