"""Short runs for laws: the options they start from, and a cache so that laws share a run.

A run is made once for its options and seed as long as a `RunCache` is in use; its results are never changed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from seatrial.relations.cases.case import Case
from seatrial.relations.contracts.compared import ComparedPlan, ComparedRun
from seatrial.relations.contracts.left import LeftRun
from seatrial.relations.contracts.placements import PlacedRun
from seatrial.relations.contracts.resume import Kill, ResumedRun
from seatrial.relations.contracts.resumed_training import TrainedRun, TrainingPlan
from seatrial.relations.contracts.supervised import EpochsPlan, SupervisedUpdate
from seatrial.relations.contracts.trainers import TrainerPlan, TrainerRecord
from seatrial.relations.records.run import RunRecord
from seatrial.relations.records.tuning import TuningRecord

BASE: Mapping[str, Any] = {
    "grpo.num_prompts_per_step": 2,
    "grpo.num_generations_per_prompt": 4,
    "grpo.max_num_steps": 2,
    "grpo.advantage.estimator": "grpo",
    "grpo.advantage.epsilon": 1e-6,
    "loss_fn.kind": "ppo_clip",
    "loss_fn.ratio_clip_min": 0.2,
    "loss_fn.ratio_clip_max": 0.2,
    "loss_fn.reduction": "token",
    "loss_fn.reference_policy_kl_penalty": 0.1,
    "loss_fn.reference_policy_kl_type": "k3",
    "policy.train_global_batch_size": 4,
    "policy.train_micro_batch_size": 2,
    "policy.max_grad_norm": 1.0,
    "policy.optimizer.lr": 0.01,
    "policy.optimizer.weight_decay": 0.01,
    "policy.optimizer.betas": (0.8, 0.95),
    "policy.optimizer.eps": 1e-8,
    "policy.scheduler.name": "constant",
    "policy.scheduler.warmup_steps": 0,
    "policy.generation.max_new_tokens": 6,
    "policy.generation.temperature": 0.8,
    "policy.generation.top_p": 1.0,
    "policy.generation.top_k": None,
    "data.num_train": 6,
}
"""Two prompts of four completions, two updates a step, temperature not 1, a reference, weight decay."""
TUNING: Mapping[str, Any] = {
    "sft.max_num_steps": 3,
    "sft.val_period": 2,
    "sft.val_at_start": True,
    **{
        name: value for name, value in BASE.items() if name.startswith("policy.") and "generation" not in name
    },
    "policy.optimizer.lr": 0.01,
    "data.num_train": 6,
}
"""Default options of fine-tuning runs: three steps of four answers in micro-batches of two."""
SEVERAL_TURNS: Mapping[str, Any] = {
    "data__environment": "answering",
    "policy__train_global_batch_size": 8,
    "policy__generation__max_new_tokens": 24,
}
"""Episodes of two turns, as `run_cases` takes it; laws of several relations share the run."""
STOP_EVERY = 5
"""Every fifth id ends a completion, so that lengths differ although the model is untrained."""


@dataclass
class RunCache:
    """Runs by stack, options and seed."""

    records: dict[tuple[str, int, str, int], Any] = field(default_factory=dict)
    steps: OrderedDict[Hashable, Any] = field(default_factory=OrderedDict)
    """The last few training steps, see `steps.py`."""
    stacks: list[Any] = field(default_factory=list)
    """Kept alive, because the keys use their `id()`."""

    def keep(self, stack: Any) -> None:
        """Keep a stack alive as long as the cache."""
        if not any(stack is known for known in self.stacks):
            self.stacks.append(stack)


_in_use: list[RunCache] = []


@contextmanager
def sharing_runs(cache: RunCache | None = None) -> Iterator[RunCache]:
    """Share runs in this block: through the given cache, the one in use, or a new one."""
    chosen = cache or (_in_use[-1] if _in_use else RunCache())
    _in_use.append(chosen)
    try:
        yield chosen
    finally:
        _in_use.pop()


def run(stack: Any, options: Mapping[str, Any], seed: int) -> RunRecord:
    """Return a run with these options, which override the adapter's attribute `options`, which overrides `BASE`."""
    with sharing_runs() as cache:
        chosen = {**_defaults(stack), **options}
        if "policy.generation.stop_token_ids" not in chosen:
            chosen["policy.generation.stop_token_ids"] = _stop_ids(stack, cache)
        record: RunRecord = _cached(stack, chosen, seed, cache)
        return record


def run_as_given(stack: Any, options: Mapping[str, Any], seed: int) -> RunRecord:
    """Return a run with these options and the stack's own defaults, shared as well."""
    with sharing_runs() as cache:
        record: RunRecord = _cached(stack, options, seed, cache)
        return record


def tuning(stack: Any, options: Mapping[str, Any], seed: int) -> TuningRecord:
    """Return a run of supervised fine-tuning with these options, which override `TUNING`; shared as runs are."""
    with sharing_runs() as cache:
        record: TuningRecord = _cached(stack, {**TUNING, **options}, seed, cache, "short_tuning")
        return record


def placed(stack: Any, placement: str, options: Mapping[str, Any], seed: int) -> PlacedRun:
    """Return a run whose ranks are started in one of the stack's ways, shared as runs are."""
    with sharing_runs() as cache:
        stop_ids = _stop_ids(stack, cache)
        chosen = {**_defaults(stack), "policy.generation.stop_token_ids": stop_ids, **options}
        found: PlacedRun = _cached(stack, {**chosen, "placement": placement}, seed, cache, "placed_run")
        return found


def left(stack: Any, options: Mapping[str, Any], seed: int) -> LeftRun:
    """Return the files that a run with these options wrote, shared as runs are."""
    with sharing_runs() as cache:
        record: LeftRun = _cached(stack, {**_defaults(stack), **options}, seed, cache, "left_run")
        return record


def _defaults(stack: Any) -> dict[str, Any]:
    return {**BASE, **getattr(stack, "options", {})}


def _stop_ids(stack: Any, cache: RunCache) -> tuple[int, ...]:
    """Return every fifth id of the vocabulary; a run of one short step reports its size."""
    short = {"grpo.max_num_steps": 1, "policy.generation.max_new_tokens": 1}
    probe = {**_defaults(stack), **short, "policy.generation.stop_token_ids": ()}
    return tuple(range(0, _cached(stack, probe, 0, cache).vocab_size, STOP_EVERY))


def _cached(
    stack: Any, options: Mapping[str, Any], seed: int, cache: RunCache, method: str = "short_run"
) -> Any:
    with sharing_runs(cache):
        return _shared(
            stack, method, sorted(options.items()), seed, lambda: getattr(stack, method)(options, seed=seed)
        )


def trainer_run(stack: Any, plan: TrainerPlan) -> TrainerRecord:
    """Return the run of a whole trainer by a plan, shared as runs are."""
    record: TrainerRecord = _shared(stack, "trainer_run", plan, plan.seed, lambda: stack.trainer_run(plan))
    return record


def compared_run(stack: Any, plan: ComparedPlan) -> ComparedRun:
    """Return the run of a compared trainer by a plan, shared as runs are."""
    found: ComparedRun = _shared(stack, "compared_run", plan, plan.seed, lambda: stack.compared_run(plan))
    return found


def supervised_run(stack: Any, plan: EpochsPlan) -> Sequence[SupervisedUpdate]:
    """Return the updates of a run over epochs, shared as runs are."""
    updates: Sequence[SupervisedUpdate] = _shared(
        stack, "supervised_run", plan, plan.seed, lambda: stack.supervised_run(plan)
    )
    return updates


def planned_training(stack: Any, plan: TrainingPlan) -> TrainedRun:
    """Return a run of training that may be stopped and resumed, by a plan; shared as runs are."""
    found: TrainedRun = _shared(
        stack, "train_as_planned", plan, plan.seed, lambda: stack.train_as_planned(plan)
    )
    return found


def killed_run(stack: Any, options: Mapping[str, Any], seed: int, kills: Sequence[Kill]) -> ResumedRun:
    """Return a run whose process was killed, with these options over the stack's over `BASE`; shared as runs are."""
    chosen = {**_defaults(stack), **options}
    left: ResumedRun = _shared(
        stack,
        "killed_run",
        (sorted(chosen.items()), kills),
        seed,
        lambda: stack.killed_run(chosen, seed=seed, kills=kills),
    )
    return left


def resumable_run(
    stack: Any, options: Mapping[str, Any], seed: int, num_starts: int, last: Mapping[str, Any]
) -> ResumedRun:
    """Return a run that was started several times, with these options over those of `BASE`; shared as runs are."""
    chosen = {**_defaults(stack), **options}
    left: ResumedRun = _shared(
        stack,
        "resumable_run",
        (sorted(chosen.items()), num_starts, sorted(last.items())),
        seed,
        lambda: stack.resumable_run(chosen, seed=seed, num_starts=num_starts, last=last),
    )
    return left


def _shared(stack: Any, method: str, words: Any, seed: int, make: Callable[[], Any]) -> Any:
    """Return what the cache in use has for a method's arguments; it is made where there is nothing yet."""
    with sharing_runs() as cache:
        cache.keep(stack)
        key = (method, id(stack), repr(words), seed)
        if key not in cache.records:
            import torch

            with torch.enable_grad():  # a law may have switched gradients off for its own arithmetic
                cache.records[key] = make()
        return cache.records[key]


def dotted(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options whose names have dots instead of double underscores."""
    return {name.replace("__", "."): value for name, value in options.items()}


@dataclass(frozen=True, kw_only=True)
class RunCase(Case):
    """The options of a run that override `BASE`."""

    options: Mapping[str, Any]
    seed: int

    def smaller(self) -> Iterator[RunCase]:
        """Yield the run of one step."""
        if self.options.get("grpo.max_num_steps", BASE["grpo.max_num_steps"]) != 1:
            yield replace(self, options={**self.options, "grpo.max_num_steps": 1})

    def describe(self) -> Mapping[str, Any]:
        """Return seed and options as JSON values."""
        return {"seed": self.seed, "options": {**BASE, **self.options}}

    def record(self, stack: Any, **more: Any) -> RunRecord:
        """Return the run; `more` are further options, dots written as two underscores."""
        return run(stack, {**self.options, **dotted(more)}, self.seed)

    def repeat(self, stack: Any) -> RunRecord:
        """Return a second run with the same options and seed, which is not shared."""
        with sharing_runs(RunCache()):
            return self.record(stack)


def run_cases(**options: Any) -> Any:
    """Return a law's `cases`: a run with these options, dots written as two underscores."""
    return lambda stack, seed, tidy: RunCase(options=dotted(options), seed=seed)


@dataclass(frozen=True, kw_only=True)
class TuningCase(Case):
    """The options of a run of fine-tuning that override `TUNING`."""

    options: Mapping[str, Any]
    seed: int

    def smaller(self) -> Iterator[TuningCase]:
        """Yield the run of one step."""
        if self.options.get("sft.max_num_steps", TUNING["sft.max_num_steps"]) != 1:
            yield replace(self, options={**self.options, "sft.max_num_steps": 1})

    def describe(self) -> Mapping[str, Any]:
        """Return seed and options as JSON values."""
        return {"seed": self.seed, "options": {**TUNING, **self.options}}

    def record(self, stack: Any) -> TuningRecord:
        """Return the run."""
        return tuning(stack, self.options, self.seed)

    def repeat(self, stack: Any) -> TuningRecord:
        """Return a second run with the same options and seed, which is not shared."""
        with sharing_runs(RunCache()):
            return self.record(stack)


def tuning_cases(**options: Any) -> Any:
    """Return a law's `cases`: a run of fine-tuning with these options, dots written as two underscores."""
    return lambda stack, seed, tidy: TuningCase(options=dotted(options), seed=seed)
