"""Level 1: are two steps at once the same as one step, an end, and another?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from seatrial.errors import BlockedError
from seatrial.evidence.read import read_logs
from seatrial.evidence.weights import compare_weights
from seatrial.targets.base import JobRequest
from seatrial.trials.base import Claim, TrialContext
from seatrial.trials.grpo_smoke import judge_run, prepare_model
from seatrial.trials.launching import exit_verdict, launch
from seatrial.trials.run_evidence import RunEvidence
from seatrial.trials.sensors.run import (
    FINITE,
    LOG_UNDAMAGED,
    PARAMETERS_MOVED,
    STEP_TAG,
    STEPS_REACHED,
)
from seatrial.verdict import Outcome, Verdict

COMPARED: Mapping[str, tuple[str, ...]] = {
    "loss": ("train/loss", "train/grad_norm", "validation/val_loss"),
    "learning rate": ("train/lr",),
    "counters": ("train/global_valid_toks", "train/global_valid_seqs", "train/total_num_tokens"),
}
"""Series that must be the same, by what they tell."""
WENT_ON, WEIGHTS = "diamond: the second start goes on where the first ended", "diamond: same weights"


def compare_series(what: str, whole: RunEvidence, resumed: RunEvidence) -> Verdict:
    """Hold series of the two runs against one another, step by step."""
    wrong, largest, num, steps = [], 0.0, 0, set()
    for tag in COMPARED[what]:
        one, other = whole.series(tag), resumed.series(tag)
        if one is None or other is None or not len(one):
            wrong.append(f"{tag} is not logged by {'both' if one is other else 'one of the two'}")
        elif one.steps.tolist() != other.steps.tolist() or other.duplicates or other.abandoned:
            wrong.append(
                f"{tag} is there at the steps {other.steps.tolist()}, and should be at {one.steps.tolist()}"
            )
        else:
            largest = max(largest, float(np.max(np.abs(one.values - other.values))))
            num += len(one)
            steps |= set(one.steps.tolist())
    good = not wrong and num > 0 and largest <= 0
    return Verdict(
        name=f"diamond: same {what}",
        outcome=Outcome.PASS if good else Outcome.FAIL,
        reason="; ".join(wrong) or f"{', '.join(COMPARED[what])}: largest difference {largest:g}",
        value=largest,
        bound="== 0 at every step",
        num_samples=num,
        steps=(min(steps), max(steps)) if steps else None,
    )


def compare_final_weights(whole: RunEvidence, resumed: RunEvidence) -> Verdict:
    """Hold the exported weights of the two runs against one another."""
    found = compare_weights(whole.job.final_model, resumed.job.final_model)
    wrong = [*found.only_before, *found.only_after, *found.reshaped]
    wrong += [change.name for change in found.changes if change.num_changed or change.num_nonfinite]
    return Verdict(
        name=WEIGHTS,
        outcome=Outcome.PASS if found.changes and not wrong else Outcome.FAIL,
        reason=f"{len(wrong)} of {len(found.changes)} tensors differ: {', '.join(wrong[:3])}"
        if wrong
        else f"{len(found.changes)} tensors are bitwise equal",
        value=max((change.max_abs_change for change in found.changes), default=None),
        bound="== 0 in every tensor",
        num_samples=len(found.changes),
    )


def went_on(evidence: RunEvidence, before: frozenset[str]) -> Verdict:
    """The second start logged the steps after the first one's, and not those again.

    `before` are the log files that the first one left.
    """
    log_dir = evidence.job.log_dir
    new = {str(path) for path in log_dir.rglob("*") if path.is_file()} - before
    series = read_logs(log_dir, sources=new).series.get(STEP_TAG) if new else None
    steps = [] if series is None else series.steps.tolist()
    wanted = list(range(2, evidence.job.num_steps + 1))
    return Verdict(
        name=WENT_ON,
        outcome=Outcome.PASS if steps == wanted else Outcome.FAIL,
        reason=f"it logged the steps {steps}" if steps else "it logged nothing of its own",
        bound=f"the steps {wanted}",
        num_samples=len(steps),
        steps=(steps[0], steps[-1]) if steps else None,
    )


class SftResumeDiamond:
    """Two steps against one plus one. A `seatrial.trials.base.Trial`."""

    name = "sft-resume-diamond"
    level = 1
    summary = "SFT: two steps at once against one step, an end, and another in a new process"
    proves = (
        "save and resume lose nothing: loss, learning rate, counters, weights are those of an unbroken run"
    )
    does_not_prove = (
        "resuming on another policy backend or world size, rollouts in flight, a machine that loses power"
    )

    def run(self, context: TrialContext) -> None:
        """Prepare, launch three times, collect, compare."""
        target = context.target
        target.preflight()
        model = prepare_model(context, context.directory / "model", context.seed)
        if model is None:
            return
        evidence = {}
        for way in ("whole", "resumed"):
            request = JobRequest(
                recipe=self.name,
                model=model,
                directory=context.directory / way,
                seed=context.seed,
                overrides=context.overrides,
            )
            request.directory.mkdir()
            before: frozenset[str] = frozenset()
            if way == "resumed":
                first = target.job(request.ending_early())
                launched = launch(context, first, request.directory / "first.log")
                context.record(exit_verdict("resumed: the first start ends with status 0", launched))
                files = (path for path in first.log_dir.rglob("*") if path.is_file())
                before = frozenset(map(str, files))
            job = target.job(request)
            evidence[way] = RunEvidence(
                job, launch(context, job, request.directory / "run.log"), context.imports
            )
            sensors = [LOG_UNDAMAGED, STEPS_REACHED, FINITE]
            if not judge_run(context, evidence[way], sensors, f"{way}: "):
                return
        self._compare(context, evidence["whole"], evidence["resumed"], before)

    def _compare(
        self, context: TrialContext, whole: RunEvidence, resumed: RunEvidence, before: frozenset[str]
    ) -> None:
        verdicts: list[Callable[[], Verdict]] = [
            partial(went_on, resumed, before),
            *(partial(compare_series, what, whole, resumed) for what in COMPARED),
            partial(compare_final_weights, whole, resumed),
            partial(PARAMETERS_MOVED.judge, whole),
        ]
        for ask in verdicts:
            try:
                context.record(ask())
            except BlockedError as error:
                context.record(Verdict(name="diamond: evidence", outcome=Outcome.BLOCKED, reason=str(error)))
        context.claim(
            Claim(
                text="the second start is a resume",
                verdicts=(WENT_ON, "resumed: the first start ends with status 0"),
            ),
            *(
                Claim(text=f"resuming keeps the {what}", verdicts=(f"diamond: same {what}",))
                for what in COMPARED
            ),
            Claim(
                text="resuming keeps the weights, which had moved", verdicts=(WEIGHTS, PARAMETERS_MOVED.name)
            ),
        )
