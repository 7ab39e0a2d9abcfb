"""Levels 1 and 4: is a run that ends after its first step and is resumed the same as an unbroken one?"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from seatrial.errors import BlockedError
from seatrial.evidence.read import read_logs
from seatrial.evidence.weights import compare_weights
from seatrial.targets.base import JobRequest
from seatrial.trials.base import Claim, TrialContext
from seatrial.trials.grpo_smoke import guard_sensors, judge_run, prepare_model, within_reach
from seatrial.trials.launching import exit_verdict, train
from seatrial.trials.run_evidence import NotGivenError, RunEvidence, find_series
from seatrial.trials.sensors.console import CONSOLE
from seatrial.trials.sensors.damage import DAMAGE_SEEN, damage_seen, damaged_copies
from seatrial.trials.sensors.held_out import HELD_OUT_ROWS
from seatrial.trials.sensors.recomputed import OPTIMIZER
from seatrial.trials.sensors.resumed import RESUME_SAID, resume_is_said
from seatrial.trials.sensors.run import (
    FINITE,
    LOG_UNDAMAGED,
    PARAMETERS_MOVED,
    STEP_TAG,
    STEPS_REACHED,
    as_expected,
    not_given,
)
from seatrial.trials.sensors.run_record import RECORD_TRUE
from seatrial.trials.sensors.same_runs import compare_other_series, compare_rows
from seatrial.trials.sensors.served import need, served
from seatrial.trials.sensors.tuning import COUNTED, HELD_OUT, LEARNED, TUNED
from seatrial.verdict import Outcome, Verdict

RECIPE = "sft-resume-diamond"
ACROSS = 1e-5
"""Between backends, which round sums in other orders: relative, of weights to each tensor's norm."""
FIRST_SERVED, LAST_SERVED = "diamond: what served the first start", "diamond: what served the second"
COMPARED: Mapping[str, tuple[str, ...]] = {
    "loss": ("train/loss", "train/grad_norm", "validation/val_loss"),
    "learning rate": ("train/lr",),
    "counters": ("train/global_valid_toks", "train/global_valid_seqs", "train/total_num_tokens"),
}
"""Series that must be the same, by what they mean."""
CONTINUED, WEIGHTS = "diamond: the second start continues where the first ended", "diamond: same weights"

SAME_SERIES, SAME_ROWS = "diamond: same other series", "diamond: same rows"


def compare_series(what: str, whole: RunEvidence, resumed: RunEvidence, *, tolerance: float = 0.0) -> Verdict:
    """Compare series of the two runs step by step; differences are relative where values are above 1."""
    wrong, largest, num, steps = [], 0.0, 0, set()
    written = [tag for tag in COMPARED[what] if tag not in whole.job.unlogged]
    if not written:
        raise NotGivenError(f"the stack logs no {what} ({', '.join(COMPARED[what])})")
    for tag in written:
        one, other = whole.series(tag), resumed.series(tag)
        if one is not None:
            logged = one.steps >= resumed.job.first_step
            one = replace(one, steps=one.steps[logged], values=one.values[logged])
        if one is None or other is None or not len(one):
            wrong.append(f"{tag} is not logged by {'both' if one is other else 'one of the two'}")
        elif one.steps.tolist() != other.steps.tolist() or other.duplicates or other.abandoned:
            wrong.append(
                f"{tag} is logged at the steps {other.steps.tolist()}, expected {one.steps.tolist()}"
            )
        else:
            errors = np.abs(one.values - other.values) / np.maximum(1.0, np.abs(one.values))
            largest = float(np.max([largest, *errors]))
            num += len(one)
            steps |= set(one.steps.tolist())
    good = not wrong and num > 0 and largest <= tolerance
    return Verdict(
        name=f"diamond: same {what}",
        outcome=Outcome.PASS if good else Outcome.FAIL,
        reason="; ".join(wrong) or f"{', '.join(written)}: largest difference {largest:g}",
        value=largest,
        bound=f"<= {tolerance:g} at every step",
        num_samples=num,
        steps=(min(steps), max(steps)) if steps else None,
    )


def compare_final_weights(whole: RunEvidence, resumed: RunEvidence, *, tolerance: float = 0.0) -> Verdict:
    """Compare the exported weights of the two runs; the tolerance is relative to each tensor's norm."""
    whole.need("export")
    found = compare_weights(whole.job.final_model, resumed.job.final_model)
    wrong = [*found.only_before, *found.only_after, *found.reshaped]
    wrong += [
        change.name
        for change in found.changes
        if not change.relative_change <= tolerance or change.num_nonfinite
    ]
    return Verdict(
        name=WEIGHTS,
        outcome=Outcome.PASS if found.changes and not wrong else Outcome.FAIL,
        reason=f"{len(wrong)} of {len(found.changes)} tensors differ: {', '.join(wrong[:3])}"
        if wrong
        else f"{len(found.changes)} tensors are {'bitwise equal' if not tolerance else 'equal to rounding'}",
        value=max((change.relative_change for change in found.changes), default=None),
        bound=f"<= {tolerance:g} in every tensor",
        num_samples=len(found.changes),
    )


def went_on(evidence: RunEvidence, before: frozenset[str]) -> Verdict:
    """Judge whether the second start logged exactly the steps after the first.

    `before` holds the log files of the first start.
    """
    log_dir = evidence.job.log_dir
    new = {str(path) for path in log_dir.rglob("*") if path.is_file()} - before
    series = find_series(read_logs(log_dir, sources=new), STEP_TAG) if new else None
    steps = [] if series is None else series.steps.tolist()
    wanted = list(range(max(2, evidence.job.first_step), evidence.job.num_steps + 1))
    return Verdict(
        name=CONTINUED,
        outcome=Outcome.PASS if steps == wanted else Outcome.FAIL,
        reason=f"it logged the steps {steps}" if steps else "it logged nothing of its own",
        bound=f"the steps {wanted}",
        num_samples=len(steps),
        steps=(steps[0], steps[-1]) if steps else None,
    )


@dataclass(kw_only=True)
class SftResumeDiamond:
    """An unbroken run against one that stops and is resumed. A `seatrial.trials.base.Trial`."""

    name: str = RECIPE
    level: int = 1
    backends: tuple[str, str] | None = None
    """Of the first start, and of the second start and the unbroken run; None: the target's own."""
    summary: str = (
        "SFT: an unbroken run against one that stops after its first step and resumed in a new process"
    )
    proves: str = (
        "save and resume lose nothing: loss, learning rate, counters, weights are those of an unbroken run"
    )
    does_not_prove: str = (
        "resuming on another policy backend or world size, rollouts in flight, a machine that loses power"
    )

    @property
    def tolerance(self) -> float:
        """Of series and weights: none where one backend takes both steps."""
        first, last = self.backends or ("", "")
        return 0.0 if first == last else ACROSS

    def run(self, context: TrialContext) -> None:
        """Prepare, launch three times, collect, compare."""
        target = context.target
        target.preflight()
        need(*(self.backends or ()))
        model = prepare_model(context, context.directory / "model", context.seed)
        if model is None:
            return
        evidence = {}
        for way in ("whole", "resumed"):
            request = JobRequest(
                recipe=RECIPE,
                model=model,
                directory=context.directory / way,
                seed=context.seed,
                overrides=context.overrides,
                words=_words(self.backends and self.backends[1]),
                runs_examples=way == "whole",
            )
            request.directory.mkdir()
            before: frozenset[str] = frozenset()
            if way == "resumed":
                early = replace(request, words=_words(self.backends and self.backends[0]))
                first = target.job(early.ending_early())
                ended = train(context, first, request.directory / "first.log")
                evidence["first"] = ended
                context.record(exit_verdict("resumed: the first start ends with status 0", ended.launched))
                if self.backends is not None:
                    context.record(served(ended, self.backends[0], {}, name=FIRST_SERVED))
                files = (path for path in ended.job.log_dir.rglob("*") if path.is_file())
                before = frozenset(map(str, files))
            job = target.job(request)
            evidence[way] = train(context, job, request.directory / "run.log")
            sensors = [LOG_UNDAMAGED, STEPS_REACHED, FINITE, *guard_sensors(job), *TUNED, OPTIMIZER]
            if not judge_run(context, evidence[way], sensors, f"{way}: "):
                return
        seen = {} if self.backends else self._damage(context, model, evidence["whole"])
        seen[RESUME_SAID] = partial(resume_is_said, evidence["first"], evidence["resumed"])
        self._compare(context, evidence["whole"], evidence["resumed"], before, seen)

    def _damage(
        self, context: TrialContext, model: Path, whole: RunEvidence
    ) -> dict[str, Callable[[], Verdict]]:
        """Start the run among damaged copies of its first checkpoint; return the verdict to take."""
        request = JobRequest(
            recipe=RECIPE,
            model=model,
            directory=context.directory / "damaged",
            seed=context.seed,
            overrides=context.overrides,
        )

        def judge() -> Verdict:
            request.directory.mkdir()
            job = context.target.job(request.ending_early())
            copies = damaged_copies(whole, job.checkpoint_dir or request.directory)
            return damage_seen(train(context, job, request.directory / "run.log"), copies)

        return {DAMAGE_SEEN: judge}

    def _compare(
        self,
        context: TrialContext,
        whole: RunEvidence,
        resumed: RunEvidence,
        before: frozenset[str],
        further: Mapping[str, Callable[[], Verdict]],
    ) -> None:
        verdicts: dict[str, Callable[[], Verdict]] = {CONTINUED: partial(went_on, resumed, before)}
        for what in COMPARED:
            verdicts[f"diamond: same {what}"] = partial(
                compare_series, what, whole, resumed, tolerance=self.tolerance
            )
        verdicts[SAME_SERIES] = partial(
            compare_other_series,
            whole,
            resumed,
            [*itertools.chain(*COMPARED.values())],
            self.tolerance,
            name=SAME_SERIES,
        )
        verdicts[SAME_ROWS] = partial(compare_rows, whole, resumed, self.tolerance, name=SAME_ROWS)
        verdicts[WEIGHTS] = partial(compare_final_weights, whole, resumed, tolerance=self.tolerance)
        verdicts[PARAMETERS_MOVED.name] = partial(PARAMETERS_MOVED.judge, whole)
        if self.backends is not None:
            verdicts[LAST_SERVED] = partial(served, resumed, self.backends[1], {}, name=LAST_SERVED)
        verdicts |= further
        for name, ask in verdicts.items():
            try:
                context.record(as_expected(ask(), whole.job))
            except NotGivenError as error:
                context.record(not_given(name, str(error)))
            except BlockedError as error:
                context.record(Verdict(name="diamond: evidence", outcome=Outcome.BLOCKED, reason=str(error)))
        context.claim(*within_reach(self.claims(), whole.job))

    def claims(self) -> list[Claim]:
        """Return what the trial proves."""
        claims = [
            Claim(
                text="the second start is a resume",
                verdicts=(CONTINUED, "resumed: the first start ends with status 0"),
            ),
            *(
                Claim(text=f"resuming keeps the {what}", verdicts=(f"diamond: same {what}",))
                for what in COMPARED
            ),
            Claim(
                text="resuming keeps the weights, which had moved", verdicts=(WEIGHTS, PARAMETERS_MOVED.name)
            ),
        ]
        if self.backends is None:
            claims.append(
                Claim(
                    text="every step learns its answers, as logged",
                    verdicts=(f"whole: {COUNTED}", f"whole: {LEARNED}", f"whole: {HELD_OUT}"),
                )
            )
            claims.append(
                Claim(
                    text="validations, the console and the record are those of the run",
                    verdicts=(
                        f"whole: {HELD_OUT_ROWS.name}",
                        f"whole: {CONSOLE.name}",
                        f"resumed: {CONSOLE.name}",
                        f"whole: {RECORD_TRUE.name}",
                    ),
                )
            )
            claims.append(
                Claim(text="every update is the optimizer's", verdicts=(f"whole: {OPTIMIZER.name}",))
            )
            claims.append(Claim(text="a damaged checkpoint is refused, with a line", verdicts=(DAMAGE_SEEN,)))
        else:
            text = f"{self.backends[0]} saved, and {self.backends[1]} continued"
            claims.append(Claim(text=text, verdicts=(FIRST_SERVED, LAST_SERVED)))
        return claims


def _words(backend: str | None) -> tuple[str, ...]:
    return () if backend is None else (f"policy.{backend}_cfg.enabled=true",)


def backend_diamonds() -> list[SftResumeDiamond]:
    """Return the trials that resume on each distributed backend, and from one backend to the other."""
    pairs = (
        ("dtensor", "dtensor"),
        ("megatron", "megatron"),
        ("dtensor", "megatron"),
        ("megatron", "dtensor"),
    )
    return [
        SftResumeDiamond(
            name=f"{RECIPE}-{first}" if first == last else f"{RECIPE}-{first}-to-{last}",
            level=4,
            backends=(first, last),
            summary=f"SFT on {last}: an unbroken run against one begun on {first} and resumed in a new process",
            does_not_prove="resuming on another world size, rollouts in flight, a machine that loses power",
        )
        for first, last in pairs
    ]
