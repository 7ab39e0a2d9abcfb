"""Level 0 of stacks without GRPO: a few steps of SFT or DPO, judged by their log and their exported weights."""

from __future__ import annotations

from collections.abc import Sequence

from seatrial.targets.base import TrainingJob
from seatrial.trials.base import Claim, TrialContext
from seatrial.trials.grpo_smoke import STEPS_TAKEN, check_origins, train_and_judge
from seatrial.trials.sensors.run import (
    FINITE,
    GRADIENT_POSITIVE,
    LOG_UNDAMAGED,
    PARAMETERS_MOVED,
    STEPS_REACHED,
    Sensor,
    check_sensor,
)

LOSS_FALLS = check_sensor(
    'last(data["train/loss"]) < first(data["train/loss"])', "a made model learns the form of the data at once"
)
STARTS_AT_REFERENCE = check_sensor(
    'abs(first(data["train/loss"]) - 0.693147) < 0.001',
    "the sigmoid loss is ln 2 while the policy is its reference",
)
MARGIN_GROWS = check_sensor(
    'last(data["train/rewards/margins"]) > 0', "chosen completions gain on rejected ones"
)


class _SupervisedSmoke:
    """A few steps without rollouts."""

    name: str
    level = 0
    own_sensors: tuple[Sensor, ...]
    own_claims: tuple[Claim, ...]

    def run(self, context: TrialContext) -> None:
        """Prepare, launch, collect, sense."""
        check_origins(context)
        train_and_judge(context, self.name, self.sensors, self.claims)

    def sensors(self, job: TrainingJob) -> list[Sensor]:
        """Return every check of the run, in order."""
        own = (check_sensor(text, meaning) for text, meaning in job.own_checks.items())
        return [
            *(LOG_UNDAMAGED, STEPS_REACHED, FINITE, GRADIENT_POSITIVE, PARAMETERS_MOVED),
            *self.own_sensors,
            *own,
        ]

    def claims(self, job: TrainingJob | None = None) -> Sequence[Claim]:
        """Return what the run proves."""
        return [
            STEPS_TAKEN,
            Claim(text="a gradient flows at every step", verdicts=(GRADIENT_POSITIVE.name,)),
            Claim(text="every trainable tensor moves", verdicts=(PARAMETERS_MOVED.name,)),
            *self.own_claims,
        ]


class SftSmoke(_SupervisedSmoke):
    """A few steps of SFT. A `seatrial.trials.base.Trial`."""

    name = "sft-smoke"
    summary = "a few steps of SFT on a tiny model, for a stack without GRPO"
    proves = "every step is taken and finite, a gradient flows, every trainable tensor moves, the loss falls"
    does_not_prove = "which tokens are trained on, save and resume (level 1), real sizes"
    own_sensors = (LOSS_FALLS,)
    own_claims = (Claim(text="the loss falls", verdicts=(LOSS_FALLS.name,)),)


class DpoSmoke(_SupervisedSmoke):
    """A few steps of DPO. A `seatrial.trials.base.Trial`."""

    name = "dpo-smoke"
    summary = "a few steps of DPO on a tiny model, for a stack without GRPO"
    proves = (
        "every step is taken and finite, a gradient flows, every trainable tensor moves, the policy starts at its "
        "reference, and chosen completions gain on rejected ones"
    )
    does_not_prove = "losses other than the sigmoid one, save and resume (level 1), real sizes"
    own_sensors = (STARTS_AT_REFERENCE, MARGIN_GROWS)
    own_claims = (
        Claim(text="the policy starts at its reference", verdicts=(STARTS_AT_REFERENCE.name,)),
        Claim(text="chosen completions gain on rejected ones", verdicts=(MARGIN_GROWS.name,)),
    )
