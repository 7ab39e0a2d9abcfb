"""R13.async: a run with asynchronous rollouts whose process is killed continues as if it had not been."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from seatrial.relations.cases.case import Case
from seatrial.relations.contracts.resume import Kill, ResumedRun
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.run.asynchronous import ASYNC
from seatrial.relations.laws.run.resume import ADAPTERS, BACKENDS, differences, served_by
from seatrial.relations.runs import BASE, dotted, killed_run


@dataclass(frozen=True, kw_only=True)
class KilledCase(Case):
    """A run with asynchronous rollouts, and when its process is killed."""

    options: Mapping[str, Any]
    seed: int
    kills: tuple[Kill, ...]

    def smaller(self) -> Iterator[KilledCase]:
        """Yield the run without its first kill."""
        if len(self.kills) > 1:
            yield replace(self, kills=self.kills[1:])

    def describe(self) -> Mapping[str, Any]:
        """Return seed, kills and options as JSON values."""
        return {**super().describe(), "options": {**BASE, **self.options}}


def killed(kills: Sequence[Kill], **options: Any) -> Any:
    """Return a law's `cases`: a run with these options, dots written as two underscores, and its kills."""
    chosen = dotted({**ASYNC, "data__num_train": 5, **options})
    return lambda stack, seed, tidy: KilledCase(options=chosen, seed=seed, kills=tuple(kills))


AHEAD = {"grpo__async_grpo__max_trajectory_age_steps": 2, "grpo__async_grpo__num_replicas": 2}
SAMPLING = killed([Kill("sampling", 5)], **AHEAD, grpo__max_num_steps=5)
TRAINING = killed(
    [Kill("training", 3)],
    grpo__use_dynamic_sampling=True,
    data__num_train=24,
    data__verifier="coarse",
    **ADAPTERS,
)
SYNCING = killed([Kill("syncing", 2)], grpo__async_grpo__drop_zero_variance=True, data__num_train=24)
SAVING = killed(
    [Kill("saving", 1), Kill("saving", 3)],
    **AHEAD,
    policy__precision="bfloat16",
    policy__scheduler__name="linear",
)
KILLED = Relation(
    id="R13.async",
    name="killed-async-run-equals-unbroken",
    component="killed_run",
    statement="A run with asynchronous rollouts that is killed and started again has the log, rows, groups, state and "
    "model of one that is not killed.",
    catalogue="SB277 SB289 SB300 SB302 SB384",
    cost="CPU, ten seconds",
    seeded=False,
)


@KILLED.law(
    "while it samples",
    "prompts that are served again, or never: the position of what is sampled ahead",
    cases=SAMPLING,
)
@KILLED.law(
    "while it trains",
    "groups in the buffer that a checkpoint leaves out, prompts of the start again",
    cases=TRAINING,
)
@KILLED.law(
    "while weights are synced", "samplers that continue with other weights than the policy's", cases=SYNCING
)
@KILLED.law("while it saves, twice", "a checkpoint that is half written and counts as whole", cases=SAVING)
def equals_unkilled_run(stack: Any, case: KilledCase) -> Measure:
    """Compare everything that the run left with the run that was not killed."""
    whole, resumed = (killed_run(stack, case.options, case.seed, kills) for kills in ((), case.kills))
    wrong = differences(whole, resumed, ("log", "served", "groups", "state", "exported", "adapters"))
    starts = resumed.went_on_from
    # The first checkpoint may not have been written.
    if len(starts) != len(case.kills) + 1 or starts[0] != 0 or starts[-1] < 1:
        wrong.append(f"the starts continued from {starts}")
    return Measure.count(wrong, "differences from the run that was not killed")


for _backend in BACKENDS:
    KILLED.law(
        f"while it saves, by {_backend}",
        "tensors that are read into copies, moments or counts of updates that start again",
        cases=killed([Kill("saving", 2)], **AHEAD, **served_by(_backend)),
    )(equals_unkilled_run)
for _backend in BACKENDS:
    KILLED.law(
        f"with adapters, while it samples, by {_backend}",
        "samplers that get weights merged before the checkpoint was read",
        cases=killed(
            [Kill("sampling", 5)], **AHEAD, **ADAPTERS, **served_by(_backend), grpo__max_num_steps=5
        ),
        thorough=True,
    )(equals_unkilled_run)


@KILLED.law("each group once over all starts", "a group that two starts train on, or none", cases=SAMPLING)
@KILLED.law("each group once, dropped ones too", "a number that is given to two groups", cases=SYNCING)
def each_group_once(stack: Any, case: KilledCase) -> Measure:
    """Check that every group has one fate, and that rows of a step are those of the groups that it took."""
    run = killed_run(stack, case.options, case.seed, case.kills)
    return Measure.count(misused_groups(run), "groups that were lost, or used twice")


def misused_groups(run: ResumedRun) -> list[str]:
    """Return a line for each group without exactly one fate, and for each step whose rows are of other groups."""
    fates = Counter(group.number for groups in run.groups.values() for group in groups)
    wrong = [f"group {number} has {num} fates" for number, num in fates.items() if num != 1]
    wrong += [f"group {number} has no fate" for number in range(max(fates, default=0)) if number not in fates]
    for step, rows in run.served.items():
        taken = Counter(group.prompt_id for group in run.groups.get(step, ()) if group.fate == "trained")
        served = Counter(rows)
        size, rest = divmod(len(rows), max(1, taken.total()))
        if rest or served != Counter({prompt: size * num for prompt, num in taken.items()}):
            wrong.append(f"step {step}: rows of prompts {dict(served)} for groups of {dict(taken)}")
    if not fates or not run.served:
        wrong.append("the run has no groups or no rows")
    return wrong
