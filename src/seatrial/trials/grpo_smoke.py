"""Level 0: does the loop close?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from seatrial.errors import BlockedError
from seatrial.evidence import dump
from seatrial.evidence.identity.origins import driver_origin, run_origin
from seatrial.evidence.ledger.laws.rewards import REWARDS
from seatrial.files import write_text
from seatrial.targets.base import Job, JobRequest, MakesArchitectures, Target, TrainingJob
from seatrial.trials.base import Claim, TrialContext
from seatrial.trials.launching import exit_verdict, launch, train
from seatrial.trials.run_evidence import RunEvidence
from seatrial.trials.sensors import ledger as ledger_sensors
from seatrial.trials.sensors.adapters import ADAPTED
from seatrial.trials.sensors.checkpoints import ADAPTERS_TRAINED, BASE_FROZEN
from seatrial.trials.sensors.guards import GUARDS_HOLD
from seatrial.trials.sensors.recomputed import RECOMPUTED, RECOMPUTED_CLAIMS
from seatrial.trials.sensors.run import (
    FINITE,
    GRADIENT_POSITIVE,
    LEFT_REFERENCE,
    LOG_UNDAMAGED,
    PARAMETERS_MOVED,
    STEPS_REACHED,
    Sensor,
    ask,
    check_sensor,
    not_judged,
)
from seatrial.trials.sensors.scoring import unreached_experts
from seatrial.verdict import Outcome, Verdict

MAKING = "make-model.log"
OF_MADE = "a tiny made model: nothing is said about pretrained weights or real sizes"
SHARP = "sharp"
"""Architecture of a model whose weights are five times as large as usual."""
RATIO_CHECKS = (
    check_sensor('min(data["train/probs_ratio_min"]) > 0.79', "no token's ratio is low before clamping"),
    check_sensor('max(data["train/probs_ratio_max"]) < 1.21', "no token's ratio is high before clamping"),
)
"""For a step of one update: ratios are 1 up to rounding. They are read before clamping, which hides them."""
AGREEMENT_CHECKS = {
    "float32": check_sensor(
        'max(data["train/token_mult_prob_error"]) <= 1.0001', "sampler and trainer agree to 1e-4 in float32"
    ),
    "bfloat16": check_sensor(
        'max(data["train/token_mult_prob_error"]) < 1.05', "sampler and trainer agree within 5 % on average"
    ),
    "int8": check_sensor(
        'max(data["train/token_mult_prob_error"]) < 1.05',
        "an int8 sampler and the trainer agree within 5 % on average",
    ),
}
"""By precision; the bound in bfloat16 is that of the seed's smoke, and int8 has the same."""


def _ledger_sensor(name: str, judge: ledger_sensors.LedgerSensor) -> Sensor:
    return Sensor(name, lambda evidence: judge(evidence.ledger, evidence.job))


LEDGER_SENSORS = tuple(_ledger_sensor(name, judge) for name, judge in ledger_sensors.LEDGER_SENSORS.items())


def smoke_sensors(job: TrainingJob) -> list[Sensor]:
    """Return every check of the smoke, in order."""
    return [
        LOG_UNDAMAGED,
        STEPS_REACHED,
        FINITE,
        *on_policy_checks(job),
        *(check_sensor(text, meaning) for text, meaning in job.own_checks.items()),
        GRADIENT_POSITIVE,
        *moved_sensors(job),
        *guard_sensors(job),
        *LEDGER_SENSORS,
        *RECOMPUTED,
    ]


def on_policy_checks(job: TrainingJob) -> list[Sensor]:
    """Return the checks of ratios, of sampler against trainer, and of the policy against its reference.

    Ratios are bounded where a step takes one update: with several, later ones are taken off the policy that sampled.
    The distance to the reference is 0 until the first update has been taken.
    """
    return [
        *(RATIO_CHECKS if job.num_updates_per_step == 1 else ()),
        AGREEMENT_CHECKS[job.precision],
        *([LEFT_REFERENCE] if job.has_reference and job.num_steps > 1 else []),
    ]


def moved_sensors(job: TrainingJob) -> list[Sensor]:
    """Return the checks of what trained: every tensor, or adapters alone, on the layers that the options name."""
    if job.adapter_dir is None:
        return [PARAMETERS_MOVED]
    return [ADAPTED, *([ADAPTERS_TRAINED] if job.checkpoint_steps else []), BASE_FROZEN]


def guard_sensors(job: TrainingJob) -> list[Sensor]:
    """Return the check of the guards where guards watch the run."""
    return [] if job.guards_file is None else [GUARDS_HOLD]


STEPS_TAKEN = Claim(
    text="every step is taken, and every logged value is finite", verdicts=(STEPS_REACHED.name, FINITE.name)
)


def smoke_claims(job: TrainingJob) -> list[Claim]:
    """Return what a run of the smoke proves; a claim that the job's own choices put out of reach is not made."""
    claims = [
        *([STEPS_TAKEN] if "rows" in job.absent else []),
        Claim(
            text="the loop closes: policy, reference, rollout, reward, log-probabilities and optimizer run together",
            verdicts=(STEPS_REACHED.name, FINITE.name, "ledger: every trained row is there, once"),
        ),
        Claim(
            text="sampler and trainer agree",
            verdicts=(AGREEMENT_CHECKS[job.precision].name, "ledger: sampler and trainer agree per token"),
        ),
        Claim(text="a gradient flows at every step", verdicts=(GRADIENT_POSITIVE.name,)),
        Claim(
            text="every trainable tensor moves", verdicts=tuple(sensor.name for sensor in moved_sensors(job))
        ),
    ]
    if job.verifier in REWARDS:
        claims.append(
            Claim(
                text="rewards belong to their rows", verdicts=("ledger: rewards recomputed equal the logged",)
            )
        )
    if job.advantage is not None:
        claims.append(
            Claim(
                text="advantages belong to their rows",
                verdicts=("ledger: advantages recomputed equal the logged",),
            )
        )
    return within_reach(claims, job)


def within_reach(claims: Sequence[Claim], job: TrainingJob) -> list[Claim]:
    """Return the claims that rest on nothing which the stack is known to fail."""
    return [claim for claim in claims if not job.expected_failures.keys() & set(claim.verdicts)]


class GrpoSmoke:
    """A few steps of GRPO, every part of the loop looked at. A `seatrial.trials.base.Trial`."""

    name = "grpo-smoke"
    level = 0
    summary = "a few steps of GRPO on a tiny model"
    proves = (
        "the loop closes: policy, reference, rollout, reward, log-probabilities and optimizer run together, "
        "sampler and trainer agree, rewards and advantages belong to their rows, every trainable tensor moves"
    )
    does_not_prove = (
        "that the model learns (level 6), convergence, other backends, parallelism, save and resume"
    )

    def run(self, context: TrialContext) -> None:
        """Prepare, launch, collect, sense."""
        check_origins(context)
        train_and_judge(context, self.name, smoke_sensors, self.claims, sharp_model(context.target))

    def claims(self, job: TrainingJob) -> list[Claim]:
        """Return what the run proves."""
        return [*smoke_claims(job), *within_reach(RECOMPUTED_CLAIMS, job)]


def sharp_model(target: Target) -> str | None:
    """Return the architecture of a model whose attention depends on its weights; None where the target makes none.

    With weights of the usual size the logits of a random model are almost those of its last token's embedding.
    """
    return SHARP if isinstance(target, MakesArchitectures) else None


def check_origins(context: TrialContext) -> None:
    """Check that the stack can run here, and record where this process imports its modules from.

    Raises:
        BlockedError: something is missing.
    """
    context.target.preflight()
    if getattr(context.target, "runs_elsewhere", False):
        return
    for module, folder in context.target.expected_origins().items():
        context.record(driver_origin(module, folder))


def train_and_judge(
    context: TrialContext,
    recipe: str,
    sensors: Callable[[TrainingJob], list[Sensor]],
    claims: Callable[[TrainingJob], Sequence[Claim]],
    made: str | None = None,
) -> None:
    """Prepare a model, train by one recipe of the target, ask the sensors, and claim what the run proves.

    Args:
        context: the trial.
        recipe: as in `JobRequest.recipe`.
        sensors: returns every question to a job's run, in order.
        claims: returns what such a run proves.
        made: architecture of the model (`prepare_model`); None: the target's own.
    """
    model = prepare_model(context, context.directory / "model", context.seed, made)
    if model is None:
        return
    job = context.target.job(
        JobRequest(
            recipe=recipe,
            model=model,
            directory=context.directory,
            seed=context.seed,
            overrides=context.overrides,
            runs_examples=True,
        )
    )
    evidence = train(context, job, context.directory / "run.log")
    if judge_run(context, evidence, sensors(evidence.job)):
        context.claim(*claims(evidence.job))


def prepare_model(
    context: TrialContext, output: Path, seed: int, architecture: str | None = None, log: str = MAKING
) -> Path | None:
    """Return the given model, or make one, of an architecture or the target's own; None when making it failed.

    Args:
        context: the trial.
        output: folder of the model.
        seed: of its weights.
        architecture: None: the target's own.
        log: name of the console log of the command that makes it, in the trial's folder.

    Raises:
        BlockedError: the target makes no models of that architecture.
    """
    given = context.target.given_model(context.overrides)
    if given is not None:
        context.result.model = str(given)
        return given
    context.result.model = "tiny byte-level model with random weights, made here"
    if OF_MADE not in context.result.limitations:
        context.result.limitations.append(OF_MADE)
    launched = launch(context, _making(context.target, output, seed, architecture), context.directory / log)
    if launched.ok:
        return output
    context.record(exit_verdict("a model is made", launched))
    return None


def _making(target: Target, output: Path, seed: int, architecture: str | None) -> Job:
    if architecture is None:
        return target.make_model(output, seed)
    if not isinstance(target, MakesArchitectures):
        raise BlockedError(
            f"the target {target.name} makes no model of the architecture {architecture}: give policy.model_name=DIR"
        )
    return target.make_architecture(architecture, output, seed)


def judge_run(context: TrialContext, evidence: RunEvidence, sensors: list[Sensor], prefix: str = "") -> bool:
    """Judge how the run ended and whose code it was; when both say something, ask the sensors.

    Args:
        context: the trial.
        evidence: what the run left.
        sensors: the questions.
        prefix: put before each verdict's name, where a trial has several runs.

    Returns:
        Whether the sensors were asked.
    """
    evidence.find_unreached = unreached_experts
    record = context.record
    gates = [
        exit_verdict(f"{prefix}training ends with status 0", evidence.launched),
        *(
            _prefixed(prefix, run_origin(module, folder, evidence.imports))
            for module, folder in context.target.expected_origins().items()
        ),
    ]
    record(*gates)
    gates += [verdict for verdict in context.result.verdicts if verdict.name.startswith("origin of")]
    closed = next((gate for gate in gates if gate.outcome is Outcome.BLOCKED), None)
    named = [Sensor(f"{prefix}{sensor.name}", sensor.judge) for sensor in sensors]
    if closed is not None:
        not_judged(named, closed, record)
        return False
    _keep_metrics(evidence)
    ask(named, evidence, record)
    return True


def _prefixed(prefix: str, verdict: Verdict) -> Verdict:
    return replace(verdict, name=f"{prefix}{verdict.name}")


def _keep_metrics(evidence: RunEvidence) -> None:
    """Write the logged series next to the log in NeMo RL's form; nothing is written if the log cannot be read."""
    try:
        log = evidence.log
    except BlockedError:
        return
    write_text(
        evidence.launched.log_path.with_name("metrics.json"), "".join(f"{line}\n" for line in dump.lines(log))
    )
