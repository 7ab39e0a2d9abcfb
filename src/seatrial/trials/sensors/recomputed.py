"""The checks of a run of GRPO that compute again what it logged, and what a trial claims by them."""

from __future__ import annotations

from seatrial.trials.base import Claim
from seatrial.trials.sensors.console import CONSOLE
from seatrial.trials.sensors.defined import DEFINED
from seatrial.trials.sensors.exported import EXPORTED, EXPORTED_TYPES
from seatrial.trials.sensors.filters import rows_are_filtered
from seatrial.trials.sensors.first_step import drawn_as_configured
from seatrial.trials.sensors.held_out import HELD_OUT_ROWS
from seatrial.trials.sensors.later_steps import later_scores, later_updates
from seatrial.trials.sensors.optimizer import updates_are_adamws
from seatrial.trials.sensors.paths import sensor
from seatrial.trials.sensors.phases import PHASES
from seatrial.trials.sensors.processes import PROCESSES
from seatrial.trials.sensors.prompts import PROMPTS
from seatrial.trials.sensors.record import record_is_whole
from seatrial.trials.sensors.row_files import ROW_FILES
from seatrial.trials.sensors.run_record import RECORD_TRUE
from seatrial.trials.sensors.scalars import scalars_follow
from seatrial.trials.sensors.updates import first_update

SCALARS = sensor(
    "every step: scalars follow from the rows", "sums of the rows, within rounding", scalars_follow
)
DRAWN = sensor(
    "step 1: tokens are drawn and scored as configured",
    "temperature, then top-k, then top-p, of the initial model",
    drawn_as_configured,
)
UPDATE = sensor(
    "step 1: loss, entropy and gradient are those of the rows", "of the initial model", first_update
)
LATER_DRAWN = sensor(
    "later steps: tokens are drawn and scored by the weights of their step",
    "saved weights, of the row's version and of the step before",
    later_scores,
)
LATER_UPDATE = sensor(
    "later steps: loss, entropy and gradient are those of the rows", "of the saved weights", later_updates
)
OPTIMIZER = sensor(
    "saved steps: each update is the optimizer's", "AdamW, from saved moments", updates_are_adamws
)
FILTERED = sensor(
    "every step: the rows in the loss are those that the filters leave",
    "and none is longer than allowed",
    rows_are_filtered,
)
RECORD = sensor("the run records its whole configuration", "every option, at its value", record_is_whole)

RECOMPUTED = (
    SCALARS,
    FILTERED,
    DRAWN,
    UPDATE,
    LATER_DRAWN,
    LATER_UPDATE,
    OPTIMIZER,
    DEFINED,
    PROMPTS,
    RECORD,
    EXPORTED,
    EXPORTED_TYPES,
    HELD_OUT_ROWS,
    CONSOLE,
    RECORD_TRUE,
    ROW_FILES,
    PHASES,
    PROCESSES,
)
"""Every such check, in order."""

RECOMPUTED_CLAIMS = (
    Claim(text="the logged scalars are those of the rows, at every step", verdicts=(SCALARS.name,)),
    Claim(text="the steps train on the rows that the filters leave", verdicts=(FILTERED.name,)),
    Claim(text="tokens are drawn and scored by the configured distribution", verdicts=(DRAWN.name,)),
    Claim(text="the first update is the configured loss's, on the rows", verdicts=(UPDATE.name,)),
    Claim(
        text="later steps are sampled, scored and trained with their own weights",
        verdicts=(LATER_DRAWN.name, LATER_UPDATE.name),
    ),
    Claim(text="every update is the optimizer's, at the schedule's rate", verdicts=(OPTIMIZER.name,)),
    Claim(
        text="prompts are those of the task and its splits, each as often as the others",
        verdicts=(PROMPTS.name,),
    ),
    Claim(
        text="scalars of validations, groups and verifiers follow from what is recorded",
        verdicts=(DEFINED.name,),
    ),
    Claim(text="the run records its whole configuration", verdicts=(RECORD.name,)),
    Claim(
        text="validations take place when they are due, and draw as configured",
        verdicts=(HELD_OUT_ROWS.name,),
    ),
    Claim(text="the console shows what is logged", verdicts=(CONSOLE.name,)),
    Claim(
        text="the run records truly how it began, and what its checkpoints hold", verdicts=(RECORD_TRUE.name,)
    ),
    Claim(text="files of rows have one object a line, with any text", verdicts=(ROW_FILES.name,)),
    Claim(text="the export keeps the model's settings and tokenizer", verdicts=(EXPORTED.name,)),
)
