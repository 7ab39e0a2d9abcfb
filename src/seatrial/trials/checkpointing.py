"""Level 1: do adapters train and nothing else, and do checkpoints hold what a run needs?"""

from __future__ import annotations

from seatrial.targets.base import TrainingJob
from seatrial.trials.base import Claim, TrialContext
from seatrial.trials.grpo_smoke import (
    AGREEMENT_CHECKS,
    LEDGER_SENSORS,
    guard_sensors,
    on_policy_checks,
    sharp_model,
    train_and_judge,
    within_reach,
)
from seatrial.trials.sensors.adapters import ADAPTED
from seatrial.trials.sensors.checkpoints import (
    ADAPTERS_TRAINED,
    BASE_FROZEN,
    CHECKPOINTS_AS_HELD,
    CHECKPOINTS_DIFFER,
    CHECKPOINTS_WHOLE,
    LAST_IS_THE_EXPORT,
    MOMENTS_SAVED,
)
from seatrial.trials.sensors.recomputed import LATER_DRAWN, LATER_UPDATE, RECOMPUTED
from seatrial.trials.sensors.run import (
    FINITE,
    GRADIENT_POSITIVE,
    LEFT_REFERENCE,
    LOG_UNDAMAGED,
    PARAMETERS_MOVED,
    STEPS_REACHED,
    Sensor,
    check_sensor,
)

KL_SMALL = check_sensor(
    'max(data["train/gen_kl_error"]) < 0.001', "the sampler's distribution is the trainer's"
)
"""Of NeMo RL's grpo_megatron_lora; the merged weights of the sampler against the unmerged of the trainer."""
REWARDED = check_sensor('max(data["train/reward"]) > 0.03', "some completion was rewarded")
"""Of NeMo RL's grpo_megatron_lora."""


class _OneRun:
    """A few steps of GRPO that save."""

    name: str
    level = 1
    own_sensors: tuple[Sensor, ...]
    own_claims: tuple[Claim, ...]

    def sensors(self, job: TrainingJob) -> list[Sensor]:
        """Return every check of the run, in order; guards in one process record what checkpoints should hold."""
        is_recorded = job.guards_file is not None and not job.mesh
        return [
            LOG_UNDAMAGED,
            STEPS_REACHED,
            FINITE,
            *on_policy_checks(job),
            GRADIENT_POSITIVE,
            *(sensor for sensor in self.own_sensors if sensor is not CHECKPOINTS_AS_HELD or is_recorded),
            *guard_sensors(job),
            *LEDGER_SENSORS,
            *RECOMPUTED,
        ]

    def run(self, context: TrialContext) -> None:
        """Prepare, launch, collect, sense."""
        context.target.preflight()
        recipe = self.name if self.name.startswith("grpo-") else f"grpo-{self.name}"
        train_and_judge(context, recipe, self.sensors, self.claims, sharp_model(context.target))

    def claims(self, job: TrainingJob) -> list[Claim]:
        """Return what the run proves."""
        agreement = AGREEMENT_CHECKS[job.precision].name
        agree = Claim(text="sampler and trainer agree", verdicts=(agreement,))
        asked = {sensor.name for sensor in self.sensors(job)}
        claims = [claim for claim in (*self.own_claims, agree) if asked.issuperset(claim.verdicts)]
        return within_reach(claims, job)


class GrpoLora(_OneRun):
    """Adapters on a frozen model. A `seatrial.trials.base.Trial`."""

    name = "grpo-lora"
    summary = "GRPO that trains low-rank adapters on a frozen model"
    proves = (
        "adapters train and nothing else does; merged and unmerged agree; the export is base plus adapters"
    )
    does_not_prove = (
        "that the model learns (level 6), layouts of several processes (relation R2), dropout in adapters"
    )
    own_sensors = (
        KL_SMALL,
        REWARDED,
        ADAPTED,
        ADAPTERS_TRAINED,
        BASE_FROZEN,
        CHECKPOINTS_WHOLE,
        LAST_IS_THE_EXPORT,
        MOMENTS_SAVED,
    )
    own_claims = (
        Claim(
            text="adapters are on the configured layers, with the rank and scale", verdicts=(ADAPTED.name,)
        ),
        Claim(text="every adapter trains", verdicts=(GRADIENT_POSITIVE.name, ADAPTERS_TRAINED.name)),
        Claim(
            text="the model under the adapters is frozen, and the export is both merged",
            verdicts=(BASE_FROZEN.name,),
        ),
        Claim(text="the sampler has the adapters", verdicts=(KL_SMALL.name,)),
        Claim(
            text="later steps are sampled, scored and trained with the adapters of their step",
            verdicts=(LATER_DRAWN.name, LATER_UPDATE.name),
        ),
        Claim(text="the reference is scored without the adapters", verdicts=(LEFT_REFERENCE.name,)),
        Claim(
            text="checkpoints hold the adapters and their moments",
            verdicts=(CHECKPOINTS_WHOLE.name, LAST_IS_THE_EXPORT.name, MOMENTS_SAVED.name),
        ),
    )


class CheckpointSave(_OneRun):
    """Checkpoints of a run. A `seatrial.trials.base.Trial`."""

    name = "checkpoint-save"
    summary = "GRPO that saves after every step, and keeps the best and the latest"
    proves = "checkpoints are whole, hold weights and moments, are kept as configured, and the last is what is exported"
    does_not_prove = "that a run continues from them (sft-resume-diamond), saving on a full disk, speed"
    own_sensors = (
        PARAMETERS_MOVED,
        CHECKPOINTS_WHOLE,
        CHECKPOINTS_AS_HELD,
        CHECKPOINTS_DIFFER,
        LAST_IS_THE_EXPORT,
        MOMENTS_SAVED,
    )
    own_claims = (
        Claim(
            text="the checkpoints that were to be kept are there, whole", verdicts=(CHECKPOINTS_WHOLE.name,)
        ),
        Claim(
            text="they hold the weights, as exported, and the optimizer's moments",
            verdicts=(LAST_IS_THE_EXPORT.name, MOMENTS_SAVED.name),
        ),
        Claim(text="each holds the tensors of its own step", verdicts=(CHECKPOINTS_AS_HELD.name,)),
        Claim(text="what was saved had moved", verdicts=(PARAMETERS_MOVED.name,)),
    )
