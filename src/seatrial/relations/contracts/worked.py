"""Contract of worked examples: calls of a stack's own functions, each with the result that is right by its manual.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

SUBJECTS: Mapping[str, str] = {
    "asynchronous": "rollouts that are sampled during training: ages, drops, a resume",
    "batches": "rows padded, cut, chosen, split and packed",
    "broadcasts": "bytes and errors between two processes",
    "building": "buffers, replicas and collectors that are built of options",
    "calls": "single functions: what they take by default, their edges and their words",
    "changes": "inputs of a resumed run, files in the way, sizes in bytes, caches after syncs, ranks that drift",
    "chats": "conversations under templates: what is trained on, and templates that are refused",
    "checkpoints": "which are written, kept and found again, and what they contain",
    "clients": "clients of a data plane: calls that are watched or fail, filters, the replay buffer",
    "collecting": "prompts that are drawn and sampled, turns, and states of rollouts",
    "combinations": "options that need, exclude or silence one another",
    "commands": "command lines, their exit codes and words",
    "counts": "groups, averages, pairs and cadences of any size",
    "edges": "ranges of options and tasks",
    "engines": "engines, devices, syncs and sampling that are built of options",
    "files": "rows of data files, their splits and their order",
    "formulas": "advantages and losses of any options, with gradients",
    "inputs": "scores, gradients and supports of any rows, and what is refused",
    "judges": "processes that judge answers: their start, time limits, mounts and words",
    "leases": "what the state of a data plane grants, keeps and counts",
    "links": "an engine in another process: messages, answers, signals, ends and time limits",
    "loops": "what loops open a session with, and do in order",
    "megatron": "tokens, stages, tensors and passes that ranks of Megatron-core share",
    "metrics": "what is logged of a step, a validation and its seconds",
    "models": "tiny models that are made, and directories of models and tokenizers",
    "offers": "recipes, files to start from, tiny models, the page of options",
    "options": "configurations that are read, changed, refused and described",
    "parts": "parts of a run whose others are replaced: what they ask of them, in which order",
    "pools": "samplers of several engines: rows, losses and weights that change",
    "processes": "ranks and engines in processes of their own",
    "programs": "programs that are rewarded: limits, outputs, the sandbox that is reported",
    "properties": "rows, packs, steps and orders of any size",
    "ranks": "what ranks exchange, sum and compare, and how a run joins them",
    "rates": "rates of a step, costs of a model, shares of a device's peaks, and seconds",
    "refusals": "what rows, losses, stores, files and names are refused for, and what is just taken",
    "returns": "what comes back from files, ids and seeds, zero and missing values included",
    "rewards": "verifiers, several at once, their failures and penalties",
    "rollouts": "rows between sampler and trainer, and what filters keep of them",
    "samplers": "how sampled rows end, engines and their weights, requests in parts, rows with media",
    "sandboxes": "locks and limits of programs that are rewarded, and a verifier's own process",
    "sessions": "what a run is built of, and what each part gets",
    "shares": "tensors, sequences and experts that ranks share",
    "starts": "how a run begins, continues, saves and ends",
    "states": "nested and derived values, calls after an error or a resume, layers in each of their forms",
    "steps": "what steps train on, log, save and pass to observers",
    "stores": "parts of a data plane: metadata, partitions, columns and journals",
    "tasks": "tasks with images or sounds, tasks and verifiers by name, and what is said of data files",
    "texts": "prompts and answers as ids, and media",
    "transfers": "messages, weights and cached rows of any size",
    "validations": "what validations and fine-tuning sample, train on and log",
    "wrappers": "calls that are passed on, tasks in the background, stores and folders that end",
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
    """Functions of a stack with worked examples; one with few subjects names them in `worked_subjects`."""

    def worked_examples(self, subject: str) -> Sequence[WorkedExample]:
        """Return the examples of one of `SUBJECTS`, in any order; none where the stack has no such functions."""
        ...
