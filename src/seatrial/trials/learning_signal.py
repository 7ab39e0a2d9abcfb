"""Level 6: does it learn?"""

from __future__ import annotations

from pathlib import Path

from seatrial.errors import BlockedError
from seatrial.targets.base import JobRequest, TrainingJob
from seatrial.trials.base import Claim, TrialContext
from seatrial.trials.grpo_smoke import LEDGER_SENSORS, check_origins, judge_run, prepare_model
from seatrial.trials.launching import exit_verdict, train
from seatrial.trials.run_evidence import NotGivenError
from seatrial.trials.sensors.learning import (
    GRADIENT_ALIVE,
    TREND,
    Outcomes,
    rise_verdict,
    validation_outcomes,
)
from seatrial.trials.sensors.recomputed import RECOMPUTED
from seatrial.trials.sensors.run import (
    FINITE,
    LOG_UNDAMAGED,
    PARAMETERS_MOVED,
    STEPS_REACHED,
    Sensor,
    check_sensor,
)
from seatrial.verdict import Outcome, Verdict

NUM_SEEDS = 3
LEFT_REFERENCE = check_sensor(
    'min(data["train/kl_penalty"], last(3)) > 0',
    "the policy has left its frozen reference: log-probabilities change",
)


def learning_sensors(job: TrainingJob) -> list[Sensor]:
    """Return every check of each run, in order."""
    left_reference = [LEFT_REFERENCE] if job.has_reference else []
    return [
        LOG_UNDAMAGED,
        STEPS_REACHED,
        FINITE,
        GRADIENT_ALIVE,
        *left_reference,
        PARAMETERS_MOVED,
        TREND,
        *LEDGER_SENSORS,
        *RECOMPUTED,
    ]


class LearningSignal:
    """GRPO from a briefly warmed tiny model, over several seeds. A `seatrial.trials.base.Trial`."""

    name = "learning-signal"
    level = 6
    summary = "GRPO from a briefly warmed tiny model, over several seeds"
    proves = "the reward on held-out prompts rises by more than chance explains, in every run, without a silent freeze"
    does_not_prove = "convergence, a benchmark result, learning at other sizes, tasks or precisions"

    def __init__(self, num_seeds: int = NUM_SEEDS) -> None:
        """Choose how many runs the verdict rests on."""
        self._num_seeds = num_seeds

    def run(self, context: TrialContext) -> None:
        """Warm up, train once per seed, sense each run, conclude over all."""
        target = context.target
        check_origins(context)
        model = self._warm_model(context)
        if model is None:
            return
        outcomes: list[tuple[Outcomes, Outcomes]] = []
        causes: list[Verdict] = []
        num_steps = 0
        for number in range(self._num_seeds):
            directory = context.directory / f"seed-{number}"
            directory.mkdir()
            job = target.job(
                JobRequest(
                    recipe="grpo-learning",
                    model=model,
                    directory=directory,
                    seed=context.seed,
                    number=number,
                    overrides=context.overrides,
                )
            )
            num_steps = job.num_steps
            evidence = train(context, job, directory / "run.log")
            launched = evidence.launched
            judge_run(context, evidence, learning_sensors(evidence.job), prefix=f"seed {number}: ")
            try:
                outcomes.append(validation_outcomes(evidence))
            except NotGivenError as error:
                raise BlockedError(f"nothing shows that the model learned: {error}") from error
            except (BlockedError, ValueError) as error:
                causes.append(_unanswered(error, number, launched.ok))
        context.record(self._conclude(context, outcomes, causes, num_steps))
        context.claim(Claim(text=self.proves, verdicts=(context.result.verdicts[-1].name,)))

    def _warm_model(self, context: TrialContext) -> Path | None:
        """Return the model that GRPO starts from; None when it could not be made (recorded)."""
        model = prepare_model(context, context.directory / "model", context.seed)
        if model is None or context.target.given_model(context.overrides) is not None:
            return model
        directory = context.directory / "warm-up"
        directory.mkdir()
        job = context.target.job(
            JobRequest(recipe="sft-warmup", model=model, directory=directory, seed=context.seed)
        )
        warmed = train(context, job, directory / "run.log")
        warmed.need("export")
        if warmed.launched.ok and warmed.job.final_model.is_dir():
            return warmed.job.final_model
        context.record(exit_verdict("the model is warmed up by SFT", warmed.launched))
        return None

    def _conclude(
        self,
        context: TrialContext,
        outcomes: list[tuple[Outcomes, Outcomes]],
        causes: list[Verdict],
        num_steps: int,
    ) -> Verdict:
        """Judge the rise, unless the runs are no evidence or not all of them were validated."""
        blocked = [
            verdict
            for verdict in context.result.verdicts
            if verdict.outcome is Outcome.BLOCKED
            and ("origin of" in verdict.name or "ends with" in verdict.name)
        ]
        verdict = rise_verdict(outcomes, num_steps)
        for cause in (*blocked, *causes):
            return Verdict(
                name=verdict.name,
                outcome=cause.outcome,
                reason=f"not judged: {cause.name}: {cause.reason}",
                bound=verdict.bound,
            )
        return verdict


def _unanswered(error: Exception, number: int, completed: bool) -> Verdict:
    """A run without its validations fails when it completed, and blocks when the rows cannot be read."""
    blocked = isinstance(error, BlockedError) or not completed
    return Verdict(
        name=f"seed {number}: validations",
        outcome=Outcome.BLOCKED if blocked else Outcome.FAIL,
        reason=str(error),
    )
