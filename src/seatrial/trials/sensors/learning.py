"""Verdicts on learning: the rise on held-out prompts, the trend of training, and signs of a silent freeze."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from seatrial.evidence.ledger.schema import ValidationRow
from seatrial.statistics.paired_test import paired_test, power
from seatrial.trials.run_evidence import RunEvidence
from seatrial.trials.sensors.run import Sensor, need_logged
from seatrial.verdict import Outcome, Verdict

ALPHA = 1e-3
"""Probability that a stack which does not learn passes the test of the rise."""
POWER_BETTER, POWER_WORSE = 0.40, 0.08
"""Shares of prompts that get better and worse, at which the power of the test is stated."""
WINDOW_SHARE = 0.2
"""Share of the steps that make the first and the last window of the training reward."""
MAX_SILENT_SHARE = 0.5
"""Largest share of steps whose groups all have equal rewards, so that nothing is learned from them."""

Outcomes = Mapping[int, float]
"""Reward by prompt id."""


def validation_outcomes(evidence: RunEvidence) -> tuple[Outcomes, Outcomes]:
    """Return the rewards of the held-out prompts before the first step and after the last.

    Raises:
        BlockedError: a row is damaged.
        ValueError: a validation is missing, or the two do not have the same prompts.
    """
    steps = evidence.validation
    last = evidence.job.num_steps
    for step in (0, last):
        if step not in steps:
            there = ", ".join(map(str, steps)) or "none"
            raise ValueError(f"no validation at step {step} of {last} (there are: {there})")
    before, after = _by_prompt(steps[0]), _by_prompt(steps[last])
    if before.keys() != after.keys():
        raise ValueError(f"the validations at step 0 and {last} have different prompts")
    return before, after


def _by_prompt(rows: Sequence[ValidationRow]) -> Outcomes:
    outcomes = {row.prompt_id: row.reward for row in rows}
    if len(outcomes) != len(rows):
        raise ValueError(f"a prompt is there twice in the validation of step {rows[0].step}")
    return outcomes


def rise_verdict(
    runs: Sequence[tuple[Outcomes, Outcomes]], num_steps: int, *, alpha: float = ALPHA
) -> Verdict:
    """Judge the rise over several runs on the same held-out prompts.

    The unit is the prompt: its outcome is the mean over the runs, so that runs which share prompts are not
    counted as independent. Every run must have risen, and the exact paired test must reject at `alpha`.
    """
    name = f"validation reward rises by more than chance ({len(runs)} seeds)"
    prompts = sorted(set.intersection(*(set(before) for before, _ in runs))) if runs else []
    if not prompts:
        return Verdict(name=name, outcome=Outcome.FAIL, reason="the runs share no held-out prompt")
    before = [float(np.mean([run[0][prompt] for run in runs])) for prompt in prompts]
    after = [float(np.mean([run[1][prompt] for run in runs])) for prompt in prompts]
    test = paired_test(before, after)
    rises = [float(np.mean(list(late.values())) - np.mean(list(early.values()))) for early, late in runs]
    fell = [index for index, rise in enumerate(rises) if not rise > 0]
    good = test.p_value <= alpha and not fell
    strength = power(len(prompts), POWER_BETTER, POWER_WORSE, alpha)
    reason = (
        f"{test.mean_before:.3f} to {test.mean_after:.3f}; {test.num_better} prompts better, {test.num_worse} worse "
        f"of {test.num_pairs}, p = {test.p_value:.2g} (exact one-sided McNemar; a stack that does not learn passes "
        f"with probability {alpha:g} at most; power {strength:.3f} when {POWER_BETTER:.0%} get better and "
        f"{POWER_WORSE:.0%} worse)"
    )
    if fell:
        reason += f"; not every run rose: {', '.join(f'{rises[index]:+.3f}' for index in fell)}"
    return Verdict(
        name=name,
        outcome=Outcome.PASS if good else Outcome.FAIL,
        reason=reason,
        value=test.rise,
        bound=f"> 0 in each run, p <= {alpha:g}",
        num_samples=test.num_pairs * len(runs),
        steps=(0, num_steps),
        source="hand-set",
        details={"p_value": test.p_value, "rises": rises, "power": strength, "alpha": alpha},
    )


def trend(evidence: RunEvidence) -> Verdict:
    """The training reward is not flat, and its last window is above its first: not best-of, not one point."""
    name = TREND.name
    need_logged(["train/reward"], evidence)
    series = evidence.series("train/reward")
    evidence.need_whole_log()
    if series is None or len(series) < 4:
        number = 0 if series is None else len(series)
        return Verdict(
            name=name,
            outcome=Outcome.FAIL,
            reason=f"train/reward has {number} points; a trend needs 4",
            num_samples=number,
        )
    width = max(2, int(len(series) * WINDOW_SHARE))
    first, last = float(series.values[:width].mean()), float(series.values[-width:].mean())
    flat = float(np.ptp(series.values)) == 0
    good = last > first and not flat
    return Verdict(
        name=name,
        outcome=Outcome.PASS if good else Outcome.FAIL,
        reason=("the reward is the same at every step" if flat else f"{first:.3f} to {last:.3f}")
        + f" (mean of the first and the last {width} steps; best {float(series.values.max()):.3f})",
        value=last - first,
        bound="> 0",
        num_samples=len(series),
        steps=(int(series.steps[0]), int(series.steps[-1])),
        source="hand-set",
    )


def gradient_alive(evidence: RunEvidence) -> Verdict:
    """No step with a signal has a zero gradient, and most steps have a signal."""
    name = GRADIENT_ALIVE.name
    need_logged(["train/grad_norm"], evidence)
    series = evidence.series("train/grad_norm")
    if series is None or not len(series):
        return Verdict(name=name, outcome=Outcome.FAIL, reason="train/grad_norm is not logged")
    silent = set(evidence.steps_without_signal)
    dead = [
        int(step)
        for step, value in zip(series.steps, series.values, strict=True)
        if not value > 0 and int(step) not in silent
    ]
    share = len(silent) / len(series)
    good = not dead and share <= MAX_SILENT_SHARE and bool(evidence.ledger)
    if dead:
        reason = f"zero gradient at {len(dead)} steps that had a signal, first at step {dead[0]}"
    elif not evidence.ledger:
        reason = "the ledger holds no rows"
    else:
        reason = (
            f"{len(silent)} of {len(series)} steps had groups of equal rewards only: nothing to learn from"
        )
    return Verdict(
        name=name,
        outcome=Outcome.PASS if good else Outcome.FAIL,
        reason=reason,
        value=share,
        bound=f"no zero gradient where rewards differ; <= {MAX_SILENT_SHARE:g} of steps without a signal",
        num_samples=len(series),
        steps=(int(series.steps.min()), int(series.steps.max())),
        source="hand-set",
    )


TREND = Sensor("training reward: last window above the first", trend)
GRADIENT_ALIVE = Sensor("no silent freeze: the gradient is alive", gradient_alive)
