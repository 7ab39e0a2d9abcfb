"""R13: a run that is ended and started again is the run that was not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from seatrial.relations.contracts.resume import ResumedRun
from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.measures.ranks import tensor_error
from seatrial.relations.runs import BASE

ACROSS = 1e-5
"""Between backends, which round sums in other orders; 8e-8 was the most seen."""
ADAPTERS = {"policy.lora_cfg.enabled": True, "policy.lora_cfg.dim": 3, "policy.lora_cfg.alpha": 12}


@dataclass(frozen=True, kw_only=True)
class ResumeCase:
    """A run that is started several times."""

    options: Mapping[str, Any]
    seed: int
    num_starts: int
    last: Mapping[str, Any] = field(default_factory=dict)

    def smaller(self) -> Iterator[ResumeCase]:
        """Yield the run with one start less."""
        if self.num_starts > 2:
            yield replace(self, num_starts=self.num_starts - 1)

    def describe(self) -> Mapping[str, Any]:
        """Return seed, starts and options as JSON values."""
        return {
            "seed": self.seed,
            "num_starts": self.num_starts,
            "options": {**BASE, **self.options},
            "last": dict(self.last),
        }

    def run(self, stack: Any, num_starts: int | None = None) -> ResumedRun:
        """Return the run, started as often as the case says, or otherwise."""
        import torch

        options = {**BASE, **getattr(stack, "options", {}), **self.options}
        starts = self.num_starts if num_starts is None else num_starts
        with torch.enable_grad():
            left: ResumedRun = stack.resumable_run(
                options, seed=self.seed, num_starts=starts, last=self.last if starts > 1 else {}
            )
        return left


def resuming(num_starts: int, num_steps: int, last: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """Return a law's `make`: a run with these options, dots written as two underscores."""
    chosen = {name.replace("__", "."): value for name, value in options.items()}
    chosen["grpo.max_num_steps"] = num_steps

    def make(stack: Any, seed: int, tidy: bool) -> ResumeCase:
        return ResumeCase(options=chosen, seed=seed, num_starts=num_starts, last=last or {})

    return make


def by(backend: str) -> dict[str, Any]:
    """Return the option that has a backend serve the policy, as `resuming` takes it."""
    return {f"policy__{backend}_cfg__enabled": True}


def same_as_unbroken(stack: Any, case: ResumeCase) -> Measure:
    """Hold everything that the run left against the run that was started once."""
    whole, resumed = case.run(stack, 1), case.run(stack)
    wrong = [f"{tag} holds a step twice" for tag in resumed.steps_twice]
    if resumed.went_on_from != tuple(range(case.num_starts)):
        wrong.append(f"the starts went on from {resumed.went_on_from}")
    for what in ("log", "served", "state", "exported", "adapters"):
        one, other = getattr(whole, what), getattr(resumed, what)
        if what == "state" and case.last:
            continue  # the last start may save nothing
        wrong += [f"{what}: {name}" for name in {**one, **other} if not _same(one.get(name), other.get(name))]
    error = float(len(wrong)) if whole.log and whole.exported else math.inf
    return Measure(error=error, bound=0, what=f"differences from the unbroken run ({wrong[:3] or 'none'})")


def same_to_rounding(stack: Any, case: ResumeCase) -> Measure:
    """Hold what a run exports whose last start is served otherwise against the run that was started once."""
    whole, resumed = case.run(stack, 1), case.run(stack)
    error, where = tensor_error(resumed.exported, whole.exported)
    if resumed.steps_twice or resumed.went_on_from != tuple(range(case.num_starts)):
        error, where = math.inf, f"the starts went on from {resumed.went_on_from}"
    if resumed.served != whole.served:
        error, where = math.inf, "other prompts were served"
    return Measure(
        error=error, bound=ACROSS, what=f"exported weights, relative to the unbroken run's ({where})"
    )


def kept_as_configured(stack: Any, case: ResumeCase) -> Measure:
    """With one metric for all, the latest is the best, and the only one to be kept."""
    left = case.run(stack)
    wanted = (case.options["grpo.max_num_steps"],)
    return Measure(
        error=float(left.kept_steps != wanted),
        bound=0,
        what=f"checkpoints kept: {left.kept_steps}, of {wanted}",
    )


def last_step_is_saved(stack: Any, case: ResumeCase) -> Measure:
    """A run that ends between two periods saves its last step, too, so that nothing is trained again."""
    left = case.run(stack)
    period, last = case.options["checkpointing.save_period"], case.options["grpo.max_num_steps"]
    wanted = tuple(step for step in range(1, last + 1) if step % period == 0 or step == last)
    return Measure(
        error=float(left.kept_steps != wanted),
        bound=0,
        what=f"checkpoints of {left.kept_steps}, due {wanted}",
    )


def _same(one: Any, other: Any) -> bool:
    import torch

    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return bool(one == other) or repr(one) == repr(other)  # NaN is the same as itself here


def _with_adapters(stack: Any, seed: int, tidy: bool) -> ResumeCase:
    return ResumeCase(options={**ADAPTERS, "grpo.max_num_steps": 3}, seed=seed, num_starts=2)


BACKENDS = ("dtensor", "megatron")
"""That may go on with what another one began."""
OF_EXPERTS = "experts in another order, halves of a fused tensor exchanged, a router that is not saved"
SUSPECTS = "a moment, a float32 copy, a counter or a cursor that is not saved, or not loaded"
RELATIONS = (
    Relation(
        id="R13.run",
        name="resume-equals-unbroken",
        component="resume",
        statement="A run that is ended after a save and started again leaves the log, rows, state and model of an "
        "unbroken one.",
        catalogue=(
            "SB222",
            "SB228",
            "SB233",
            "SB296",
            "SB298",
            "SB299",
            "SB300",
            "SB302",
            "SB303",
            "SB304",
            "SB306",
            "SB307",
            "SB309",
            "SB313",
            "SB317",
            "SB391",
        ),
        cost="CPU, tens of seconds",
        laws=(
            Law(
                name="ended once",
                make=resuming(2, 3, policy__scheduler__name="linear"),
                measure=same_as_unbroken,
                suspects=SUSPECTS,
            ),
            Law(
                name="ended twice in a row, at the end of an epoch",
                make=resuming(3, 4, data__num_train=4),
                measure=same_as_unbroken,
                suspects="a state that the second save takes from elsewhere than the first; an epoch begun anew",
            ),
            Law(
                name="in bfloat16",
                make=resuming(2, 3, policy__precision="bfloat16"),
                measure=same_as_unbroken,
                suspects="float32 copies made of rounded weights",
                seeded=False,
            ),
            Law(
                name="with adapters",
                make=_with_adapters,
                measure=same_as_unbroken,
                suspects="adapters that are saved without their moments, or merged twice",
                seeded=False,
            ),
            Law(
                name="saving turned off",
                make=resuming(2, 3, {"checkpointing.save_period": 0}),
                measure=same_as_unbroken,
                suspects="what is loaded depends on what will be saved",
                seeded=False,
            ),
            *(
                Law(
                    name=f"gone on with by {backend}",
                    make=resuming(2, 3, {f"policy.{backend}_cfg.enabled": True}, policy__optimizer__eps=1e-4),
                    measure=same_to_rounding,
                    suspects="tensors under other names, in another layout or order, moments left out",
                    seeded=False,
                )
                for backend in BACKENDS
            ),
            *(
                Law(
                    name=f"with adapters, gone on with by {backend}",
                    make=resuming(
                        2,
                        3,
                        {f"policy.{backend}_cfg.enabled": True},
                        policy__optimizer__eps=1e-4,
                        **{name.replace(".", "__"): value for name, value in ADAPTERS.items()},
                    ),
                    measure=same_to_rounding,
                    suspects="adapters of another layer, or of layers that lie in one laid out otherwise",
                    seeded=False,
                )
                for backend in BACKENDS
            ),
            *(
                Law(
                    name=f"with experts, by {backend}",
                    make=resuming(2, 3, policy__model_name="experts", **by(backend)),
                    measure=same_as_unbroken,
                    suspects=OF_EXPERTS,
                    seeded=False,
                )
                for backend in BACKENDS
            ),
            *(
                Law(
                    name=f"with experts, gone on with by {backend}",
                    make=resuming(
                        2,
                        3,
                        {f"policy.{backend}_cfg.enabled": True},
                        policy__model_name="experts",
                        policy__optimizer__eps=1e-4,
                    ),
                    measure=same_to_rounding,
                    suspects=OF_EXPERTS,
                    seeded=False,
                )
                for backend in BACKENDS
            ),
            Law(
                name="with a draft head",
                make=resuming(
                    2,
                    3,
                    policy__model_name="drafts",
                    policy__draft__enabled=True,
                    policy__scheduler__name="linear",
                ),
                measure=same_as_unbroken,
                suspects="a head whose weights, moments or schedule start anew",
                seeded=False,
            ),
            Law(
                name="more than ten steps",
                make=resuming(12, 12, grpo__num_generations_per_prompt=2),
                measure=same_as_unbroken,
                suspects="checkpoints sorted as text",
                seeded=False,
            ),
            Law(
                name="of equal checkpoints the later",
                # The rate is the metric, and must be the same at every step whatever the cell's schedule.
                make=resuming(
                    1,
                    3,
                    checkpointing__keep_top_k=1,
                    checkpointing__metric_name="train:lr",
                    policy__scheduler__name="constant",
                ),
                measure=kept_as_configured,
                suspects="a sort that leaves equals in their order",
                seeded=False,
            ),
            Law(
                name="the last step is saved",
                make=resuming(1, 3, checkpointing__save_period=2),
                measure=last_step_is_saved,
                suspects="a period that alone decides when to save",
                seeded=False,
            ),
        ),
    ),
)
