"""Contract of worked examples: calls of a stack's own functions, each with the result that is right by its manual.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

SUBJECTS: Mapping[str, str] = {
    "asynchronous": "rollouts that are sampled during training: ages, drops, a resume",
    "building": "buffers, replicas and collectors that are built of options",
    "batches": "rows padded, cut, chosen, split and packed",
    "checkpoints": "which are written, kept and found again, and what they contain",
    "collecting": "prompts that are drawn and sampled, turns, and states of rollouts",
    "combinations": "options that need, exclude or silence one another",
    "commands": "command lines, their exit codes and words",
    "edges": "ranges of options and tasks",
    "engines": "engines, devices, syncs and sampling that are built of options",
    "files": "rows of data files, their splits and their order",
    "loops": "what loops open a session with, and do in order",
    "megatron": "tokens, stages, tensors and passes that ranks of Megatron-core share",
    "metrics": "what is logged of a step and a validation",
    "offers": "recipes, files to start from, tiny models, the page of options",
    "options": "configurations that are read, changed, refused and described",
    "processes": "ranks and engines in processes of their own",
    "rates": "rates of a step, costs of a model, shares of a device's peaks, and seconds",
    "ranks": "what ranks exchange, sum and compare, and how a run joins them",
    "rewards": "verifiers, several at once, their failures and penalties",
    "rollouts": "rows between sampler and trainer, and what filters keep of them",
    "sessions": "what a run is built of, and what each part gets",
    "shares": "tensors, sequences and experts that ranks share",
    "starts": "how a run begins, continues, saves and ends",
    "steps": "what steps train on, log, save and pass to observers",
    "texts": "prompts and answers as ids, and media",
    "validations": "what validations and fine-tuning sample, train on and log",
}
"""What the functions are about, by subject."""


@dataclass(frozen=True)
class Refused:
    """The expected result of a call that must raise; `words` are part of the message."""

    words: str = ""


@dataclass(frozen=True, kw_only=True)
class WorkedExample:
    """One call and its right result."""

    name: str
    call: Callable[[], Any]
    right: Any
    """Plain values in lists, tuples and mappings, worked out by hand; or `Refused`."""


@runtime_checkable
class WorkedExamples(Protocol):
    """Functions of a stack with worked examples."""

    def worked_examples(self, subject: str) -> Sequence[WorkedExample]:
        """Return the examples of one of `SUBJECTS`, in any order; none where the stack has no such functions."""
        ...
