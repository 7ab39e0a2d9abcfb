"""Contract of trainers whose runs are compared with one another, without a definition of their objective.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from seatrial.relations.cases.case import Case

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class ComparedPlan(Case):
    """A short run of a trainer; a made input."""

    num_steps: int = 1
    num_micro_batches: int = 1
    """That the rows of an optimizer step are divided into in each process: a divisor of four."""
    num_ranks: int = 1
    """Processes that the rows of an optimizer step, and of an evaluation, are divided between: 1 or 2."""
    lengths: Literal["unequal", "equal"] = "unequal"
    """Of prompts, and of answers: with equal ones every mean over tokens is one number."""
    seed: int = 0
    process_seed: int = 0
    """Of the process's random numbers before the trainer is made."""
    variation: str = ""
    """One that the `CompareSpec` names; empty: none."""
    evaluates: Literal["never", "held out", "trained"] = "never"
    """Which rows are evaluated after every step; those that are trained on also before the first one."""
    evaluated_as: Literal["", "named", "passed", "passed by name", "streamed"] = ""
    """How the held-out rows reach the trainer: as `eval_dataset`, there in a mapping or iterated, or passed to
    `evaluate` alone or in a mapping after the last step."""
    num_evaluation_parts: int = 1
    """Batches of an evaluation: a divisor of four."""
    evaluated_every: int = 1
    """Steps between two evaluations."""
    logged_every: int = 1
    """Steps between two entries of the log."""
    num_batches: int = 1
    """Batches of four rows that the data set has, for as many steps of an epoch; with one every step has these rows."""
    adapters: bool = False
    """Whether the trainer adds low-rank adapters to the model, and trains them alone."""
    adapter_kind: str = ""
    """One that the `CompareSpec` names, in place of low-rank adapters that begin with random weights.

    Without `adapters`, `none`: as with adapters the reference is the model before it is trained.
    """
    ends_after: int = 0
    """Step after whose checkpoint the run is stopped and resumed; 0: none."""
    repeats: bool = False
    """Whether the run is made twice with the same configuration, data set and tokenizer, and the second one is kept."""

    def smaller(self) -> Iterator[ComparedPlan]:
        """Yield the plan of one step."""
        if self.num_steps > 1 and not self.ends_after:
            yield replace(self, num_steps=1)


@dataclass(frozen=True, kw_only=True)
class DefinedStep:
    """A step as the documentation of its objective defines it, from the step's first weights in float64."""

    loss: float
    gradients: Mapping[str, Tensor]
    scalars: Mapping[str, float]
    """By the name in the log, without a prefix."""
    evaluated: Mapping[str, float] | None = None
    """Loss and scalars that an evaluation of the same rows before the step has; None where it is not defined."""


@dataclass(frozen=True, kw_only=True)
class ComparedStep:
    """One optimizer step."""

    gradients: Mapping[str, Tensor]
    """As they reach the optimizer, without clipping; a tensor without a gradient is left out."""
    backward: float
    """Sum of the losses that were backpropagated."""
    logged: Mapping[str, float]
    """What was logged after the step, times and rates left out."""
    rows: tuple[int, ...] = ()
    """Rows of the data set whose prompts the policy saw, where it has several batches."""
    defined: DefinedStep | None = None
    """What the step should be; None where the adapter has no definition of it."""


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """What a run leaves."""

    steps: tuple[ComparedStep, ...]
    before: Mapping[str, Tensor]
    """Trainable tensors before the first step."""
    after: Mapping[str, Tensor]
    fixed_before: Mapping[str, Tensor]
    """Tensors of the other models that the trainer holds, and frozen ones of its own."""
    fixed_after: Mapping[str, Tensor]
    saved: Mapping[str, Tensor] | None
    """Tensors of the model that the trainer saved at the end, read again; None where it is read in no plain way."""
    kept: Mapping[str, Tensor] = field(default_factory=dict)
    """Tensors of the trained model that belong in `saved`."""
    unlike: tuple[str, ...] | None = None
    """Settings of the saved model, of its generation and of its tokenizer that are not those given; None where it is
    not read."""
    changed: tuple[str, ...] = ()
    """What the trainer changed in the caller's data set, options and callables' arguments."""
    num_steps: int = 0
    """Optimizer steps that the trainer counts."""
    evaluated: tuple[Mapping[str, float], ...] = ()
    """What each evaluation logged, without the prefix `eval_` and the name in a mapping, times and rates left out."""
    others: tuple[ComparedRun, ...] = ()
    """What the other processes have; this run is the first one's."""


@dataclass(frozen=True, kw_only=True)
class CompareSpec:
    """What a trainer declares."""

    neutral: Mapping[str, str]
    """Variations that give the gradients of another one, by name; those of the run without any for an empty text.

    What a variation means is the adapter's: an option, or the form of an argument.
    """
    effective: Sequence[str]
    """Variations that change the gradients of the run without any, and differ from one another."""
    means: Literal["rows", "tokens", "batch"] = "rows"
    """How micro-batches make a step: each row counts alone; the loss is a mean over the tokens of a micro-batch, so
    only rows of equal lengths count alone; or rows of a micro-batch are compared with one another."""
    neutral_of_adapted: Sequence[str] = ()
    """Variations of `neutral` that change nothing either where the trainer adds adapters."""
    defined: Sequence[str] = ()
    """Variations whose steps the adapter defines; empty for the run without any."""
    subjects: Mapping[str, Literal["rows", "completions", "models"]] = field(default_factory=dict)
    """What those of `defined` vary that do not vary options alone; laws of their own judge them."""
    orders: Mapping[str, int] = field(default_factory=dict)
    """Variations that give steps their rows in another way, with the number of steps that share theirs."""
    mixed: Sequence[str] = ()
    """Variations of several options at once whose steps the adapter defines; it may refuse some."""
    defined_of_adapted: Sequence[str] = ()
    """Variations of `defined` in which steps of adapters are defined, too."""
    mixed_scalars: str = ""
    """A pattern of the names of logged scalars that are no means of the step's rows."""
    logs_means: bool = True
    """Whether what is logged of several steps is of all of them, and not of the last one."""
    resumes: bool = True
    evaluates: bool = True
    evaluates_loss: bool = True
    """Whether an evaluation's loss is the loss of training."""
    adapts: bool = True
    """Whether the trainer takes a configuration of adapters."""
    neutral_adapters: Sequence[str] = ()
    """Kinds of adapters that change nothing before they are trained."""
    other_adapters: Sequence[str] = ()
    """Kinds that change the model from the beginning."""
    settings: str = ""
    """The variation in which the model has settings of its own, which are read again from what is saved."""


@runtime_checkable
class ComparedTrainer(Protocol):
    """Short runs of a trainer of which only invariances are known."""

    compare_spec: CompareSpec

    def compared_run(self, plan: ComparedPlan) -> ComparedRun:
        """Run the stack's own training loop and return what was observed.

        Raises:
            NotServed: the stack has no such option, by design.
        """
        ...
