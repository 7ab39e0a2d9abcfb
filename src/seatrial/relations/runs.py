"""Short runs for laws: the options they start from, and a cache so that laws share a run.

A run is made once for its options and seed as long as a `RunCache` is in use; the results of one are never changed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from seatrial.relations.contracts.left import LeftRun
from seatrial.relations.contracts.placements import PlacedRun
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
"""What runs of supervised fine-tuning start from: three steps of four answers in micro-batches of two."""
STOP_EVERY = 5
"""Every fifth id ends a completion, so that lengths differ though the model is not trained."""


@dataclass
class RunCache:
    """Runs by stack, options and seed."""

    records: dict[tuple[str, int, str, int], Any] = field(default_factory=dict)
    steps: OrderedDict[Hashable, Any] = field(default_factory=OrderedDict)
    """Steps of trainers, see `steps.py`: the last few."""
    stacks: list[Any] = field(default_factory=list)
    """Kept alive, so that no other one gets the identity of one."""

    def keep(self, stack: Any) -> None:
        """Keep a stack alive as long as the cache."""
        if not any(stack is known for known in self.stacks):
            self.stacks.append(stack)


_in_use: list[RunCache] = []


@contextmanager
def sharing_runs(cache: RunCache | None = None) -> Iterator[RunCache]:
    """Share runs in this block: through a cache of its own, the one that is in use already, or the one given."""
    chosen = cache or (_in_use[-1] if _in_use else RunCache())
    _in_use.append(chosen)
    try:
        yield chosen
    finally:
        _in_use.pop()


def run(stack: Any, options: Mapping[str, Any], seed: int) -> RunRecord:
    """Return a run with these options, made once for as long as runs are shared.

    They stand over the options that the adapter was made with (its attribute `options`, if any), and those over `BASE`.
    """
    with sharing_runs() as cache:
        chosen = {**_standing(stack), **options}
        if "policy.generation.stop_token_ids" not in chosen:
            chosen["policy.generation.stop_token_ids"] = _stop_ids(stack, cache)
        record: RunRecord = _made(stack, chosen, seed, cache)
        return record


def run_as_given(stack: Any, options: Mapping[str, Any], seed: int) -> RunRecord:
    """Return a run with these options over the stack's own, shared as well."""
    with sharing_runs() as cache:
        record: RunRecord = _made(stack, options, seed, cache)
        return record


def run_again(stack: Any, options: Mapping[str, Any], seed: int) -> RunRecord:
    """Return the same run made anew, whatever is shared."""
    with sharing_runs(RunCache()):
        return run(stack, options, seed)


def run_again_tuned(stack: Any, options: Mapping[str, Any], seed: int) -> TuningRecord:
    """Return the same run of fine-tuning made anew, whatever is shared."""
    with sharing_runs(RunCache()):
        return tuning(stack, options, seed)


def _standing(stack: Any) -> dict[str, Any]:
    """Return the options that stand where a law names none."""
    return {**BASE, **getattr(stack, "options", {})}


def _stop_ids(stack: Any, cache: RunCache) -> tuple[int, ...]:
    """Return every fifth id of the vocabulary, whose size a run of one short step tells."""
    short = {"grpo.max_num_steps": 1, "policy.generation.max_new_tokens": 1}
    probe = {**_standing(stack), **short, "policy.generation.stop_token_ids": ()}
    return tuple(range(0, _made(stack, probe, 0, cache).vocab_size, STOP_EVERY))


def tuning(stack: Any, options: Mapping[str, Any], seed: int) -> TuningRecord:
    """Return a run of supervised fine-tuning with these options over those of `TUNING`, shared as runs are."""
    with sharing_runs() as cache:
        record: TuningRecord = _made(stack, {**TUNING, **options}, seed, cache, "short_tuning")
        return record


def placed(stack: Any, placement: str, options: Mapping[str, Any], seed: int) -> PlacedRun:
    """Return a run whose ranks are started in one of the stack's ways, shared as runs are."""
    with sharing_runs() as cache:
        stop_ids = _stop_ids(stack, cache)
        chosen = {**_standing(stack), "policy.generation.stop_token_ids": stop_ids, **options}
        found: PlacedRun = _made(stack, {**chosen, "placement": placement}, seed, cache, "placed_run")
        return found


def left(stack: Any, options: Mapping[str, Any], seed: int) -> LeftRun:
    """Return what a run with these options over the standing ones wrote, shared as runs are."""
    with sharing_runs() as cache:
        record: LeftRun = _made(stack, {**_standing(stack), **options}, seed, cache, "left_run")
        return record


def _made(
    stack: Any, options: Mapping[str, Any], seed: int, cache: RunCache, method: str = "short_run"
) -> Any:
    cache.keep(stack)
    key = (method, id(stack), repr(sorted(options.items())), seed)
    if key not in cache.records:
        import torch

        with torch.enable_grad():  # a law may have switched gradients off for its own arithmetic
            cache.records[key] = getattr(stack, method)(options, seed=seed)
    return cache.records[key]


@dataclass(frozen=True, kw_only=True)
class RunCase:
    """The options of a run that are not those of `BASE`."""

    options: Mapping[str, Any]
    seed: int
    needed: tuple[str, ...] = ()
    """Options without which the law says nothing."""

    def smaller(self) -> Iterator[RunCase]:
        """Yield the run of one step, then without one option each."""
        if self.options.get("grpo.max_num_steps", BASE["grpo.max_num_steps"]) != 1:
            yield replace(self, options={**self.options, "grpo.max_num_steps": 1})
        for name in self.options:
            if name not in (*self.needed, "grpo.max_num_steps"):
                yield replace(
                    self, options={key: value for key, value in self.options.items() if key != name}
                )

    def describe(self) -> Mapping[str, Any]:
        """Return seed and options as JSON values."""
        return {"seed": self.seed, "options": {**BASE, **self.options}}

    def record(self, stack: Any, **more: Any) -> RunRecord:
        """Return the run; `more` are further options, dots written as two underscores."""
        further = {name.replace("__", "."): value for name, value in more.items()}
        return run(stack, {**self.options, **further}, self.seed)


def run_cases(needed: tuple[str, ...] = (), **options: Any) -> Any:
    """Return a law's `make`: a run with these options, dots written as two underscores."""
    chosen = {name.replace("__", "."): value for name, value in options.items()}

    def make(stack: Any, seed: int, tidy: bool) -> RunCase:
        return RunCase(options=chosen, seed=seed, needed=tuple(name.replace("__", ".") for name in needed))

    return make


@dataclass(frozen=True, kw_only=True)
class TuningCase:
    """The options of a run that are not those of `TUNING`."""

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


def tuning_cases(**options: Any) -> Any:
    """Return a law's `make`: a run of fine-tuning with these options, dots written as two underscores."""
    chosen = {key.replace("__", "."): value for key, value in options.items()}

    def make(stack: Any, seed: int, tidy: bool) -> TuningCase:
        return TuningCase(options=chosen, seed=seed)

    return make
