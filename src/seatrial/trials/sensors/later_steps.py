"""Verdicts on steps after the first, computed again from their rows with the weights that the run saved before them.

Where a run saves after every step, the weights before each step are known, and so are those that a row was sampled
with. Nothing of the stack is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from seatrial.evidence.ledger.schema import LedgerRow
from seatrial.trials.run_evidence import NotGivenError, RunEvidence
from seatrial.trials.sensors.draws import Draws, are_all_drawn, is_filtered
from seatrial.trials.sensors.first_step import compare_scores
from seatrial.trials.sensors.model import Model
from seatrial.trials.sensors.options import options_of, steps_of
from seatrial.trials.sensors.saved_models import SavedModels
from seatrial.trials.sensors.updates import compare_update

SAMPLED = "generation_logprobs"


def later_scores(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """Every row is drawn and scored by the weights of its version, and scored by those before its step and the first.

    Raises:
        NotGivenError: the evidence does not say what is needed.
        BlockedError: a checkpoint or a model cannot be read.
    """
    options, precision = options_of(evidence), evidence.job.precision
    models = SavedModels(evidence, options)
    later = [(step, rows) for step, rows in steps_of(evidence).items() if step > 1]
    asked = (
        (models.at(at), columns, chosen)
        for step, rows in later
        for at, columns, chosen in _asked(step, rows, models, options)
    )
    return _scored(asked, [row for _, rows in later for row in rows], options, precision)


def int8_scores(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """Each token is drawn and scored by the weights of its version, with every linear layer rounded to int8.

    Raises:
        NotGivenError: the evidence does not say what is needed.
        BlockedError: a checkpoint or a model cannot be read.
    """
    options = options_of(evidence)
    models = SavedModels(evidence, options)
    known = {
        step: [row for row in rows if row.weight_version == step - 1 and not row.version_segments]
        for step, rows in steps_of(evidence).items()
        if step - 1 in models.steps
    }
    asked = ((models.rounded_at(step - 1), (SAMPLED,), rows) for step, rows in known.items())
    every = [row for rows in known.values() for row in rows]
    return _scored(asked, every, options, options["policy.precision"])


def _scored(
    asked: Iterable[tuple[Model, Sequence[str], Sequence[LedgerRow]]],
    every: Sequence[LedgerRow],
    options: Mapping[str, Any],
    precision: str,
) -> tuple[list[str], str, int]:
    """Compare columns of rows with what models give, and the draws of the sampled ones.

    Args:
        asked: models with the columns and the rows that each computes.
        every: all rows.
        options: of the run.
        precision: of what is compared.

    Raises:
        NotGivenError: no row is computed.
    """
    draws = Draws(are_all=are_all_drawn(every, options, precision))
    wrong, largest, number = [], 0.0, 0
    for model, columns, rows in asked:
        seen = draws if SAMPLED in columns else None
        found = compare_scores(model, rows, options, precision, columns, seen)
        wrong += found.wrong
        largest, number = max(largest, found.largest), number + found.number * len(columns)
    if not number:
        raise NotGivenError("the weights of no such row are known")
    wrong = [*draws.too_many(), *draws.alike(), *draws.unlikely(), *wrong]
    return wrong[:3], f"{number} log-probabilities, at most {largest:.2g} nats apart", number


def later_updates(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """Loss, entropy and gradient of the last step whose weights are known are those of its rows.

    Raises:
        NotGivenError: the evidence does not say what is needed, or an option is not computed again.
        BlockedError: a checkpoint or a model cannot be read.
    """
    options = options_of(evidence)
    models = SavedModels(evidence, options)
    step, rows = list(_later(evidence, models))[-1]
    wrong, seen = compare_update(
        evidence, models.at(step - 1), rows, options, has_gradient=models.has_gradient(step - 1)
    )
    return wrong[:3], f"step {step}: {seen}", len(rows)


def _asked(
    step: int, rows: Sequence[LedgerRow], models: SavedModels, options: Mapping[str, Any]
) -> Iterator[tuple[int, Sequence[str], Sequence[LedgerRow]]]:
    """Yield columns of a step with the step whose weights they were scored with, and the rows.

    What top-k and top-p leave is the sampler's choice, which other weights do not make again.
    """
    filtered = is_filtered(options)
    own = [row for row in rows if row.weight_version == step - 1 and not row.version_segments]
    others = [row for row in rows if row.weight_version != step - 1 or row.version_segments]
    sampled = (SAMPLED,) if models.are_the_samplers else ()
    if step - 1 in models.steps:
        yield step - 1, ("prev_logprobs", *sampled), own
    if not filtered:
        if step - 1 in models.steps:
            yield step - 1, ("prev_logprobs",), others
        yield 0, ("reference_logprobs",), [row for row in rows if row.reference_logprobs]
    parts = [part for row in others for part in _by_version(row)] if sampled else []
    for version in sorted({part.weight_version or 0 for part in parts} & models.steps):
        yield version, sampled, [part for part in parts if part.weight_version == version]


def _by_version(row: LedgerRow) -> Iterator[LedgerRow]:
    """Yield a row once for each version that sampled some of it, with these tokens alone in the loss."""
    if not row.version_segments:
        yield row
        return
    start, mask = row.prompt_length or 0, row.loss_mask or ()
    ends = [*(first for first, _ in row.version_segments[1:]), len(row.sampled_ids)]
    for (first, version), end in zip(row.version_segments, ends, strict=True):
        kept = tuple(on if first <= place - start < end else 0 for place, on in enumerate(mask))
        yield replace(row, loss_mask=kept, weight_version=version)


def _later(evidence: RunEvidence, models: SavedModels) -> list[tuple[int, Sequence[LedgerRow]]]:
    """Return the steps after the first whose weights before are known, with their rows.

    Raises:
        NotGivenError: there are none.
    """
    found: list[tuple[int, Sequence[LedgerRow]]] = [
        (step, rows) for step, rows in steps_of(evidence).items() if step > 1 and step - 1 in models.steps
    ]
    if not found:
        raise NotGivenError("no step follows a saved one")
    return found
