"""R13.run: a run that is stopped and started again equals the run that was not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from seatrial.relations.cases.case import Case
from seatrial.relations.contracts.resume import ResumedRun
from seatrial.relations.law import Measure, Relation
from seatrial.relations.measures.ranks import tensor_error
from seatrial.relations.not_served import NotServed
from seatrial.relations.records.evidence import same
from seatrial.relations.runs import BASE, dotted, resumable_run

ACROSS = 1e-5
"""Between backends, which sum in different orders; the largest difference seen is 8e-8."""
ADAPTERS: dict[str, Any] = {
    "policy__lora_cfg__enabled": True,
    "policy__lora_cfg__dim": 3,
    "policy__lora_cfg__alpha": 12,
}
BACKENDS = ("dtensor", "megatron")
"""Backends that may continue a run of another one."""


@dataclass(frozen=True, kw_only=True)
class ResumeCase(Case):
    """A run that is started several times."""

    options: Mapping[str, Any]
    seed: int
    num_starts: int
    last: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the last start."""

    def smaller(self) -> Iterator[ResumeCase]:
        """Yield the run with one start less."""
        if self.num_starts > 2:
            yield replace(self, num_starts=self.num_starts - 1)

    def describe(self) -> Mapping[str, Any]:
        """Return seed, starts and options as JSON values."""
        return {**super().describe(), "options": {**BASE, **self.options}, "last": dict(self.last)}

    def run(self, stack: Any, num_starts: int | None = None) -> ResumedRun:
        """Return the run, started `num_starts` times; by default as often as the case says."""
        starts = self.num_starts if num_starts is None else num_starts
        return resumable_run(stack, self.options, self.seed, starts, self.last if starts > 1 else {})


def resuming(num_starts: int, num_steps: int, last: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """Return a law's `cases`: a run with these options, dots written as two underscores."""
    chosen = dotted({**options, "grpo__max_num_steps": num_steps})
    return lambda stack, seed, tidy: ResumeCase(
        options=chosen, seed=seed, num_starts=num_starts, last=last or {}
    )


def continued_by(backend: str, **options: Any) -> Any:
    """Return a law's `cases`: a run whose second start uses another backend."""
    return resuming(2, 3, {f"policy.{backend}_cfg.enabled": True}, policy__optimizer__eps=1e-4, **options)


def served_by(backend: str) -> dict[str, Any]:
    """Return the option that selects a policy backend, as `resuming` takes it."""
    return {f"policy__{backend}_cfg__enabled": True}


RESUME = Relation(
    id="R13.run",
    name="resume-equals-unbroken",
    component="resume",
    statement="A run that is stopped after a save and started again has the log, rows, state and model of an "
    "unbroken one.",
    catalogue="SB222 SB228 SB233 SB296 SB298 SB299 SB300 SB302 SB303 SB304 SB306 SB307 SB309 SB313 SB317 SB391",
    cost="CPU, tens of seconds",
    seeded=False,
)
EXPERTS = "experts in another order, halves of a fused tensor exchanged, a router that is not saved"


@RESUME.law(
    "stopped once",
    "a moment, a float32 copy, a counter or a cursor that is not saved, or not loaded",
    cases=resuming(2, 3, policy__scheduler__name="linear"),
    seeded=True,
)
@RESUME.law(
    "stopped twice, at the end of an epoch",
    "a state that the second save takes from elsewhere than the first; an epoch that starts again",
    cases=resuming(3, 4, data__num_train=4),
)
@RESUME.law(
    "in bfloat16",
    "float32 copies made of rounded weights",
    cases=resuming(2, 3, policy__precision="bfloat16"),
)
@RESUME.law(
    "with adapters",
    "adapters that are saved without their moments, or merged twice",
    cases=resuming(2, 3, **ADAPTERS),
)
@RESUME.law(
    "saving turned off",
    "what is loaded depends on what will be saved",
    cases=resuming(2, 3, {"checkpointing.save_period": 0}),
)
def equals_unbroken_run(stack: Any, case: ResumeCase) -> Measure:
    """Compare everything that the run left with the run that was started once."""
    whole, resumed = case.run(stack, 1), case.run(stack)
    wrong = [f"{tag} has a step twice" for tag in resumed.steps_twice]
    if resumed.went_on_from != tuple(range(case.num_starts)):
        wrong.append(f"the starts continued from {resumed.went_on_from}")
    # The last start may save nothing.
    state = () if case.last else ("state",)
    wrong += differences(whole, resumed, ("log", "served", *state, "exported", "adapters"))
    return Measure.count(wrong, "differences from the unbroken run")


def differences(whole: ResumedRun, resumed: ResumedRun, parts: Iterable[str]) -> list[str]:
    """Return the names of what differs between two runs in these fields; an unbroken run that left nothing is named."""
    wrong = []
    for what in parts:
        one, other = getattr(whole, what), getattr(resumed, what)
        wrong += [f"{what}: {name}" for name in {**one, **other} if not _same(one.get(name), other.get(name))]
    if not (whole.log and whole.exported):
        wrong.append("the unbroken run has no log or no export")
    return wrong


def _same(one: Any, other: Any) -> bool:
    return getattr(one, "dtype", None) == getattr(other, "dtype", None) and same(one, other)


def equals_unbroken_run_up_to_rounding(stack: Any, case: ResumeCase) -> Measure:
    """Compare the export of a run that another backend finished with the run that was started once."""
    whole, resumed = case.run(stack, 1), case.run(stack)
    error, where = tensor_error(resumed.exported, whole.exported)
    if resumed.steps_twice or resumed.went_on_from != tuple(range(case.num_starts)):
        error, where = math.inf, f"the starts continued from {resumed.went_on_from}"
    if resumed.served != whole.served:
        error, where = math.inf, "other prompts were served"
    return Measure(
        error=error, bound=ACROSS, what=f"exported weights, relative to the unbroken run's ({where})"
    )


for _backend in BACKENDS:
    RESUME.law(
        f"continued by {_backend}",
        "tensors under other names, in another layout or order, moments left out",
        cases=continued_by(_backend),
    )(equals_unbroken_run_up_to_rounding)
for _backend in BACKENDS:
    RESUME.law(
        f"with adapters, continued by {_backend}",
        "adapters of another layer, or of layers that are fused into one in the other layout",
        cases=continued_by(_backend, **ADAPTERS),
    )(equals_unbroken_run_up_to_rounding)
for _backend in BACKENDS:
    RESUME.law(
        f"with experts, by {_backend}",
        EXPERTS,
        cases=resuming(2, 3, policy__model_name="experts", **served_by(_backend)),
    )(equals_unbroken_run)
for _backend in BACKENDS:
    RESUME.law(
        f"with experts, continued by {_backend}",
        EXPERTS,
        cases=continued_by(_backend, policy__model_name="experts"),
    )(equals_unbroken_run_up_to_rounding)
RESUME.law(
    "with a draft head",
    "a head whose weights, moments or schedule start again",
    cases=resuming(
        2, 3, policy__model_name="drafts", policy__draft__enabled=True, policy__scheduler__name="linear"
    ),
)(equals_unbroken_run)
RESUME.law(
    "more than ten steps",
    "checkpoints sorted as text",
    cases=resuming(11, 11, grpo__num_generations_per_prompt=2),
)(equals_unbroken_run)


@RESUME.law(
    "over other answers",
    "a digest of prompts alone",
    cases=resuming(2, 2, {"data.answers": "other"}, data__answers="own"),
)
@RESUME.law(
    "over another base, with adapters",
    "a digest of names and shapes alone",
    cases=resuming(2, 2, {"policy.model_name": "others"}, **ADAPTERS),
)
@RESUME.law(
    "over another reference",
    "a reference that is loaded again and not compared",
    cases=resuming(2, 2, {"policy.model_name": "others"}),
)
def other_run_is_refused(stack: Any, case: ResumeCase) -> Measure:
    """Check that no run continues over other data or frozen weights; by itself the last start must be accepted."""
    replace(case, options={**case.options, **case.last}, num_starts=1).run(stack)
    try:
        case.run(stack)
    except NotServed:
        raise
    except Exception:  # noqa: BLE001  the stack chooses the type of its error
        return Measure.count([], "runs that continue")
    return Measure.count([f"{name}={value}" for name, value in case.last.items()], "runs that continue")


@RESUME.law(
    "of equal checkpoints the latest is kept",
    "a sort that leaves equals in their order",
    # The rate is the metric, and must be the same at every step for every schedule of the stack.
    cases=resuming(
        1,
        3,
        checkpointing__keep_top_k=1,
        checkpointing__metric_name="train:lr",
        policy__scheduler__name="constant",
    ),
)
def latest_of_equals_is_kept(stack: Any, case: ResumeCase) -> Measure:
    """Check that the latest checkpoint is the one that is kept, if all have the same metric."""
    return _kept(case.run(stack).kept_steps, (case.options["grpo.max_num_steps"],))


@RESUME.law(
    "the last step is saved",
    "a period that alone decides when to save",
    cases=resuming(1, 3, checkpointing__save_period=2),
)
def last_step_is_saved(stack: Any, case: ResumeCase) -> Measure:
    """Check that a run that ends between two periods saves its last step too."""
    period, last = case.options["checkpointing.save_period"], case.options["grpo.max_num_steps"]
    due = tuple(step for step in range(1, last + 1) if step % period == 0 or step == last)
    return _kept(case.run(stack).kept_steps, due)


def _kept(found: tuple[int, ...], due: tuple[int, ...]) -> Measure:
    return Measure(error=float(found != due), bound=0, what=f"checkpoints of steps {found}, due {due}")
