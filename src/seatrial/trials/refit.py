"""Level 2: do the weights arrive in a generator that shares nothing with the policy?"""

from __future__ import annotations

from typing import NamedTuple

from seatrial.targets.base import TrainingJob
from seatrial.trials.base import Claim, TrialContext
from seatrial.trials.grpo_smoke import (
    AGREEMENT_CHECKS,
    LEDGER_SENSORS,
    guard_sensors,
    on_policy_checks,
    sharp_model,
    train_and_judge,
)
from seatrial.trials.run_evidence import NotGivenError, RunEvidence
from seatrial.trials.sensors.guards import READ_BACK
from seatrial.trials.sensors.paths import sensor
from seatrial.trials.sensors.recomputed import RECOMPUTED
from seatrial.trials.sensors.run import (
    FINITE,
    GRADIENT_POSITIVE,
    LOG_UNDAMAGED,
    PARAMETERS_MOVED,
    STEPS_REACHED,
    Sensor,
    check_sensor,
)
from seatrial.trials.sensors.sent import (
    BYTES,
    FULL,
    VERIFIED,
    messages_are_bounded,
    sizes_of_syncs,
    syncs_carry_changes,
)
from seatrial.verdict import Outcome, Verdict

CONSUMER = "timing/train/prepare_for_generation/weight_transfer/consumer/"
WRITING = ("decode_sparse", "load_delta")
"""Phases in which a generator writes changes, of which each is timed."""
VERSIONS = "ledger: weight versions are in order"


def every_tensor_verified(evidence: RunEvidence) -> Verdict:
    """At every step as many tensors were held against their fingerprints as the model has, or more (buffers)."""
    name = "every tensor held against its fingerprint, at every step"
    series = evidence.series(VERIFIED)
    wanted = len(evidence.weights.changes)
    num_steps = evidence.job.num_steps
    if series is None or not len(series):
        return Verdict(
            name=name,
            outcome=Outcome.FAIL,
            reason=f"{VERIFIED} was not logged: no sync was verified",
            bound=f">= {wanted} at each of {num_steps} steps",
        )
    least = float(series.values.min())
    steps = sorted({int(step) for step in series.steps})
    good = wanted > 0 and least >= wanted and steps == list(range(1, num_steps + 1))
    return Verdict(
        name=name,
        outcome=Outcome.PASS if good else Outcome.FAIL,
        reason=f"the model has {wanted} tensors; {VERIFIED} covers steps {steps[0]} to {steps[-1]}",
        value=least,
        bound=f">= {wanted} at each of {num_steps} steps",
        num_samples=len(series),
        steps=(steps[0], steps[-1]),
    )


def deltas_between_full_syncs(evidence: RunEvidence) -> Verdict:
    """There were full syncs and others; each of the others carried less than any full one, and something.

    A sync of weights that did not change since the one before carries nothing, where the saved weights say so.

    Raises:
        NotGivenError: the weights changed before fewer than two of the others.
    """
    name = "changes alone travelled between full syncs"
    full, size = evidence.series(FULL), evidence.series(BYTES)
    if full is None or size is None or len(full) != len(size) or not len(full):
        return Verdict(
            name=name, outcome=Outcome.FAIL, reason=f"{FULL} and {BYTES} were not logged at the same steps"
        )
    still = {step for step, sizes in sizes_of_syncs(evidence).items() if not sizes.changed}
    syncs = list(zip(full.steps.tolist(), full.values.tolist(), size.values.tolist(), strict=True))
    whole = [sent for _, is_full, sent in syncs if is_full == 1]
    deltas = [sent for step, is_full, sent in syncs if is_full == 0 and not (step in still and sent == 0)]
    num_empty = sum(is_full == 0 for _, is_full, _ in syncs) - len(deltas)
    if num_empty and len(deltas) < 2 <= len(whole):
        raise NotGivenError(f"{num_empty} of the syncs between full ones carried no change: there was none")
    for phase in WRITING:
        if any(deltas) and evidence.series(f"{CONSUMER}{phase}") is None:
            return Verdict(name=name, outcome=Outcome.FAIL, reason=f"{CONSUMER}{phase} was not logged")
    good = (
        len(whole) >= 2 and len(deltas) >= 2 and all(0 < sent < all_of for sent in deltas for all_of in whole)
    )
    return Verdict(
        name=name,
        outcome=Outcome.PASS if good else Outcome.FAIL,
        reason=f"{len(whole)} full syncs of {min(whole, default=0):.0f} bytes or more, {len(deltas)} of changes, "
        f"of {min(deltas, default=0):.0f} to {max(deltas, default=0):.0f} bytes, {num_empty} of weights that had not "
        "changed",
        value=float(max(deltas, default=0)),
        bound="two of each at least; 0 < bytes of changes < bytes of a full sync",
        num_samples=len(full),
    )


ALL_VERIFIED = Sensor("every tensor held against its fingerprint, at every step", every_tensor_verified)
DELTAS = Sensor("changes alone travelled between full syncs", deltas_between_full_syncs)
SENT = sensor(
    "every sync carries as many bytes as the weights that it brings",
    "of all weights, or of those that changed; all of them at the interval; every tensor verified",
    syncs_carry_changes,
)
MESSAGES = sensor(
    "no message of a sync is larger than configured",
    "and one is full where a sync has several",
    messages_are_bounded,
)
TRANSFER_TIMED = check_sensor(
    'min(data["timing/train/prepare_for_generation/transfer_and_update_weights"]) > 0',
    "the transfer was timed at every step",
)


CARRIED = Claim(text="every sync carries what changed, or all", verdicts=(SENT.name,))
BOUNDED = Claim(text="messages are as large as configured at most", verdicts=(MESSAGES.name,))


class Form(NamedTuple):
    """What sets the trials of a refit apart."""

    recipe: str
    sensors: tuple[Sensor, ...]
    claims: tuple[Claim, ...]
    made: str | None = None
    """Architecture of the model (`prepare_model`); None: a sharp one."""


WHOLE = Form(
    "grpo-refit-noncolocated",
    sensors=(PARAMETERS_MOVED, SENT, MESSAGES),
    claims=(
        Claim(text="the weights that were sent had moved", verdicts=(PARAMETERS_MOVED.name,)),
        CARRIED,
        BOUNDED,
    ),
)
CHANGES = Form(
    "grpo-refit-delta",
    made="peaked",  # with weights of the usual size a sampler that errs is within the rounding of bfloat16
    sensors=(DELTAS, SENT, MESSAGES),
    claims=(
        CARRIED,
        BOUNDED,
        Claim(
            text="between full syncs changes alone travel, and leave the generator with the same bits",
            verdicts=(DELTAS.name, ALL_VERIFIED.name),
        ),
    ),
)


def _is_read_back(job: TrainingJob) -> bool:
    """Whether the guards read the generator's tensors back at every sync: of a policy in one process."""
    return job.guards_file is not None and not job.mesh


def refit_sensors(job: TrainingJob, form: Form) -> list[Sensor]:
    """Return every check of a run, in order."""
    return [
        LOG_UNDAMAGED,
        STEPS_REACHED,
        FINITE,
        ALL_VERIFIED,
        *form.sensors,
        TRANSFER_TIMED,
        *on_policy_checks(job),
        GRADIENT_POSITIVE,
        *([READ_BACK] if _is_read_back(job) else []),
        *guard_sensors(job),
        *LEDGER_SENSORS,
        *RECOMPUTED,
    ]


def refit_claims(job: TrainingJob, form: Form) -> list[Claim]:
    """Return what a run proves."""
    return [
        Claim(
            text="before every generation each tensor of a generator in its own process is the policy's, to the bit",
            verdicts=(
                ALL_VERIFIED.name,
                *((READ_BACK.name,) if _is_read_back(job) else ()),
            ),
        ),
        Claim(text="rows are sampled with the weights of their step", verdicts=(VERSIONS,)),
        Claim(text="sampler and trainer agree", verdicts=(AGREEMENT_CHECKS[job.precision].name,)),
        *form.claims,
    ]


class _Refit:
    """A few steps of GRPO whose generator gets its weights in messages."""

    level = 2
    num_processes = 2
    does_not_prove = "another generation backend (level 3), transfer between hosts or over NCCL, speed"
    form: Form

    def run(self, context: TrialContext) -> None:
        """Prepare, launch, collect, sense."""
        context.target.preflight()
        train_and_judge(
            context,
            self.form.recipe,
            lambda job: refit_sensors(job, self.form),
            lambda job: refit_claims(job, self.form),
            self.form.made or sharp_model(context.target),
        )


class RefitNoncolocated(_Refit):
    """All weights before every generation. A `seatrial.trials.base.Trial`."""

    name = "refit-noncolocated"
    summary = "GRPO with the generator in a process of its own, all weights sent before every generation"
    proves = (
        "weights arrive whole and in the right version in a generator that shares nothing with the policy"
    )
    form = WHOLE


class RefitDelta(_Refit):
    """What changed since the last generation, in bfloat16. A `seatrial.trials.base.Trial`."""

    name = "refit-delta"
    summary = "GRPO with the generator in a process of its own, sent what changed since the last generation"
    proves = "changes alone bring the generator to the policy's bits, between full syncs and after them"
    form = CHANGES
