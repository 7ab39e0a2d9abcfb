"""Verdicts on supervised fine-tuning, computed again from its rows with the weights before each step.

The loss is the mean negative log-likelihood of the answers' tokens. Nothing of the stack is used.

Shapes: S positions of a row, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from seatrial.errors import BlockedError
from seatrial.evidence.ledger.schema import LedgerRow
from seatrial.relations.oracles.options import learning_rate
from seatrial.trials.run_evidence import NotGivenError, RunEvidence
from seatrial.trials.sensors.console import CONSOLE
from seatrial.trials.sensors.defined import DEFINED
from seatrial.trials.sensors.exported import EXPORTED, EXPORTED_TYPES
from seatrial.trials.sensors.held_out import HELD_OUT_ROWS
from seatrial.trials.sensors.model import Model
from seatrial.trials.sensors.options import mask_of, options_of, steps_of
from seatrial.trials.sensors.paths import by_step, sensor
from seatrial.trials.sensors.processes import PROCESSES
from seatrial.trials.sensors.prompts import PROMPTS, validation_rows
from seatrial.trials.sensors.recomputed import RECORD
from seatrial.trials.sensors.row_files import ROW_FILES
from seatrial.trials.sensors.run_record import RECORD_TRUE
from seatrial.trials.sensors.saved_models import SavedModels
from seatrial.trials.sensors.scalars import ROUNDING
from seatrial.trials.sensors.times import tuned_times
from seatrial.trials.sensors.updates import GRADIENT, LOSS

COUNTED = "sft: scalars of every step follow from its answers"
LEARNED = "sft: loss and gradient are those of the answers, under the weights before the step"
HELD_OUT = "sft: the validation loss is that of the held-out answers"


def answers_are_counted(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """Each row learns all of its prompt's answer and nothing else; the counts and the rate follow.

    Raises:
        NotGivenError: the target does not say how the run is configured, or gives no rows.
    """
    options = options_of(evidence)
    evidence.need_whole_log()
    wrong, number = [], 0
    steps = _steps(evidence)
    for step, rows in steps.items():
        for row in rows:
            wrong += [f"{row.where()} {what}" for what in _wrong_row(row, evidence.job.byte_level)]
        lengths = [math.fsum(mask_of(row)) for row in rows]
        prompts = [row.prompt_length or 0 for row in rows]
        wanted = {
            "global_valid_toks": math.fsum(lengths),
            "num_unmasked_tokens": math.fsum(lengths),
            "global_valid_seqs": float(len(rows)),
            "num_valid_samples": float(len(rows)),
            "total_num_tokens": float(sum(len(row.token_ids or ()) for row in rows)),
            "mean_prompt_length": sum(prompts) / len(rows),
            "lr": learning_rate(options, step, evidence.job.num_steps),
        }
        for name, value in wanted.items():
            logged = by_step(evidence, f"train/{name}").get(step, math.nan)
            number += 1
            if not math.isclose(logged, value, rel_tol=ROUNDING, abs_tol=1e-12):
                wrong.append(
                    f"step {step}: train/{name} is logged as {logged:.7g}, the rows give {value:.7g}"
                )
        if len(rows) != options["policy.train_global_batch_size"]:
            wrong.append(f"step {step} has {len(rows)} rows")
    wrong += tuned_times(evidence, options, steps)
    return wrong[:3], f"{number} values of {len(steps)} steps", number


def answers_are_learned(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """Loss and gradient's norm of each step whose weights before are known are those of its rows.

    Raises:
        NotGivenError: the model is not computed again, or adapters train.
        BlockedError: the log is damaged, or a checkpoint or a model cannot be read.
    """
    options = options_of(evidence)
    evidence.need_whole_log()
    if options["policy.lora_cfg.enabled"]:
        raise NotGivenError("adapters train, whose values before step 1 are not saved")
    models, precision = SavedModels(evidence, options), options["policy.precision"]
    wrong, number, seen = [], 0, []
    for step, rows in _steps(evidence).items():
        if step - 1 not in models.steps:
            continue
        model = models.at(step - 1)
        loss, norm = _mean_loss(model, rows, with_gradient=True)
        number += len(rows)
        seen.append(f"{loss:.6g}")
        allowed = {"loss": LOSS[precision] * max(1.0, loss), "grad_norm": GRADIENT[precision] * norm}
        for name, value in {"loss": loss, "grad_norm": norm}.items():
            logged = by_step(evidence, f"train/{name}").get(step, math.nan)
            if not abs(logged - value) <= allowed[name]:
                wrong.append(
                    f"step {step}: train/{name} is logged as {logged:.7g}, the rows give {value:.7g}"
                )
    return wrong[:3], f"losses {', '.join(seen)}", number


def held_out_loss(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """Each validation's loss is that of the held-out answers, which it samples for too, under the weights then.

    Raises:
        NotGivenError: the model is not computed again, or answers are not what is learned.
        BlockedError: the log is damaged, or a file cannot be read.
    """
    options = options_of(evidence)
    evidence.need_whole_log()
    models, precision = SavedModels(evidence, options), options["policy.precision"]
    trained = [row for rows in _steps(evidence).values() for row in rows]
    if any(row.completion != row.answer for row in trained) or not evidence.job.byte_level:
        raise NotGivenError("the tokens of the held-out answers are not known")
    end = (trained[0].token_ids or ())[-1]
    wrong, number, validations = [], 0, validation_rows(evidence)
    for step, logged in by_step(evidence, "validation/val_loss").items():
        if step not in models.steps:
            continue
        rows = [_answer_row(row, end) for row in validations.get(step, [])]
        loss, _ = _mean_loss(models.at(step), rows, with_gradient=False)
        number += len(rows)
        if not abs(logged - loss) <= LOSS[precision] * max(1.0, loss):
            wrong.append(f"step {step}: validation/val_loss is {logged:.7g}, the answers give {loss:.7g}")
    if not number:
        raise NotGivenError("no validation's weights are known")
    return wrong[:3], f"{number} held-out answers", number


TUNED = (
    PROMPTS,
    DEFINED,
    sensor(COUNTED, "the answer's tokens and the schedule", answers_are_counted),
    sensor(LEARNED, "of the saved weights", answers_are_learned),
    sensor(HELD_OUT, "of the saved weights", held_out_loss),
    HELD_OUT_ROWS,
    EXPORTED,
    EXPORTED_TYPES,
    CONSOLE,
    RECORD,
    RECORD_TRUE,
    ROW_FILES,
    PROCESSES,
)
"""Every check of a run of fine-tuning that computes again what it logged, in order."""


def _steps(evidence: RunEvidence) -> dict[int, list[LedgerRow]]:
    """Return the rows of each step.

    Raises:
        NotGivenError: the rows are not those of answers.
    """
    try:
        return steps_of(evidence)
    except BlockedError as error:
        raise NotGivenError(f"the run writes no rows of its answers: {error}") from error


def _wrong_row(row: LedgerRow, byte_level: bool | None) -> Iterator[str]:
    ids, start = row.token_ids or (), row.prompt_length or 0
    if any((row.loss_mask or ())[:start]) or not all(mask_of(row)):
        yield "does not learn its answer's tokens and those alone"
    if byte_level:
        text, end = tuple((row.completion or "").encode()), ids[start:][-1:]
        if ids[start:] != text + end or not end or end[0] < 256:
            yield f"has the answer {row.completion!r} as {ids[start:]}"
        if (
            not bytes(one for one in ids[:start] if one < 256).decode(errors="replace").find(row.prompt or "")
            >= 0
        ):
            yield f"does not hold its prompt {row.prompt!r}"


def _mean_loss(model: Model, rows: Sequence[LedgerRow], *, with_gradient: bool) -> tuple[float, float]:
    """Return the mean negative log-likelihood of the trained tokens, and the norm of its gradient."""
    count = math.fsum(sum(mask_of(row)) for row in rows)
    losses = []
    for row in rows:
        logits_SV = model.logits(row)
        shifted_SV = logits_SV - logits_SV.max(-1, keepdims=True)
        logprobs_SV = shifted_SV - np.log(np.exp(shifted_SV).sum(-1, keepdims=True))
        gradient_SV, start = np.zeros_like(logits_SV), (row.prompt_length or 0) - 1
        for place, on in enumerate(mask_of(row)):
            if on:
                token = row.sampled_ids[place]
                losses.append(-float(logprobs_SV[start + place, token]))
                gradient_SV[start + place] = np.exp(logprobs_SV[start + place]) / count
                gradient_SV[start + place, token] -= 1 / count
        if with_gradient:
            model.backward(gradient_SV)
    norm = math.sqrt(math.fsum(norm**2 for norm in model.norms().values()))
    return math.fsum(losses) / count, norm


def _answer_row(row: Mapping[str, Any], end: int) -> LedgerRow:
    """Return a held-out prompt followed by its answer."""
    length = int(row["prompt_length"])
    answer = (*str(row["answer"]).encode(), end)
    return LedgerRow(
        step=int(row["step"]),
        index=int(row["index"]),
        prompt_id=int(row["prompt_id"]),
        prompt_length=length,
        token_ids=(*row["token_ids"][:length], *answer),
        loss_mask=(0,) * length + (1,) * len(answer),
    )
