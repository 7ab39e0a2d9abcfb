"""Checks that functions of refrl, in the process of a run that used them, give results that were worked out by hand.

What a run logs shows the cases that it meets. Edges, refusals, and options that it does not set are executed, too, and
leave no trace: the worked examples of the relations (`worked/`) ask for them after the last step, in the same process
and, where a second core may be idle, in a copy of it.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import torch

from refrl.config import GRPORunConfig
from refrl.distributed import SHARING
from refrl.lifeline import LISTENING, RENDEZVOUS, TORCHRUN
from refrl.training.build import verifier_name
from seatrial.guards import Guards
from seatrial.relations.contracts.worked import SUBJECTS
from seatrial.relations.laws.functions.worked import mistake
from seatrial.relations.not_served import NotServed
from seatrial.targets.reference.guards.base import RunConfig, check
from seatrial.targets.reference.worked.examples import ReferenceExamples

WORKED = "worked examples"
Subjects = Sequence[tuple[Callable[[RunConfig], bool], Sequence[str]]]
OWN: Subjects = (
    (lambda run: run.policy.backend != "hf", ("processes", "ranks", "shares")),
    (lambda run: run.policy.backend == "megatron", ("megatron",)),
    (lambda run: run.policy.lora_cfg.enabled, ("models", "returns", "shares", "states")),
    (
        lambda run: run.policy.generation.placement != "inline",
        ("broadcasts", "engines", "links", "models", "processes", "transfers"),
    ),
    (lambda run: bool(run.policy.generation.block_tokens), ("samplers", "states")),
    (lambda run: run.policy.generation.quantization is not None, ("engines", "processes", "samplers")),
    (lambda run: run.policy.draft.enabled, ("models", "offers", "states")),
    (lambda run: run.data.task in ("colour", "pitch"), ("edges", "offers", "tasks", "texts")),
    (
        lambda run: not isinstance(run, GRPORunConfig),
        ("chats", "loops", "parts", "starts", "texts", "validations"),
    ),
    (
        lambda run: isinstance(run, GRPORunConfig) and run.grpo.async_grpo.enabled,
        ("asynchronous", "building", "clients", "collecting", "leases", "pools", "rollouts", "stores"),
    ),
)
"""Subjects of what sets a run apart from a plain one."""
MORE: Subjects = (
    (lambda run: run.checkpointing.metric_name is not None, ("checkpoints", "metrics")),
    (
        lambda run: "code_output" in (run.data.verifiers or [verifier_name(run.data)]),
        ("programs", "sandboxes"),
    ),
)
"""Subjects of options that any run may have."""
ELSEWHERE = (
    *("asynchronous", "broadcasts", "links", "megatron", "pools"),
    *("processes", "programs", "sandboxes", "shares", "transfers"),
)
"""Subjects that a plain run leaves out: it has none of their parts."""
RANK_VARIABLES = (*("RANK", "LOCAL_RANK", "WORLD_SIZE"), TORCHRUN, RENDEZVOUS, LISTENING, SHARING)
"""By which a process knows that it is a rank."""
FIRST = ("sessions", "samplers", "changes", "models", "checkpoints", "programs", "sandboxes")
"""Subjects that take longest; asked first, two processes end at about the same time."""


def subjects_of(config: RunConfig) -> Sequence[str]:
    """Return the subjects of what sets a run apart from a plain one; of a plain run, the others."""
    own = {subject for applies, subjects in OWN if applies(config) for subject in subjects}
    if not own:
        own = SUBJECTS.keys() - {*ELSEWHERE}
    own |= {subject for applies, subjects in MORE if applies(config) for subject in subjects}
    return sorted(own, key=lambda subject: (subject not in FIRST, subject))


@dataclass
class Found:
    """What examples showed."""

    number: int = 0
    """Examples with a result."""
    wrong: list[str] = field(default_factory=list)
    blocked: list[str] = field(default_factory=list)
    """What the environment prevented, with the reason."""
    packages: set[str] = field(default_factory=set)
    """What is not installed, so that the run does not use it, and examples need."""

    def add(self, other: Found) -> None:
        """Add what others showed."""
        self.number += other.number
        self.wrong += other.wrong
        self.blocked += other.blocked
        self.packages |= other.packages


def check_worked(config: RunConfig, guards: Guards, *, shared: bool = False) -> None:
    """Call the functions of each subject on its examples; what they print is not the run's.

    Args:
        config: of the run.
        guards: where the result is recorded.
        shared: a copy of this process takes a part of the subjects. Autograd cannot run in a copy of a process that
            has used an accelerator: there, all are asked here.
    """
    subjects = subjects_of(config)
    with _apart():
        found = (
            _ask_in_two(subjects) if shared and not torch.accelerator.is_available() else _ask_all(subjects)
        )
    check(guards, WORKED, found.wrong, number=found.number)
    for package in sorted(found.packages):
        guards.hold(f"{WORKED} that need {package}, which is not installed", True, "", number=0)
    if found.blocked:
        guards.block(WORKED, "; ".join(found.blocked))


@contextlib.contextmanager
def _apart() -> Iterator[None]:
    """Context in which nothing is printed, and functions do not find themselves in a rank of the run."""
    with (
        patch.dict(os.environ),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        for name in RANK_VARIABLES:
            os.environ.pop(name, None)
        yield


def _ask_all(subjects: Sequence[str]) -> Found:
    found = Found()
    for subject in subjects:
        found.add(ask(subject))
    return found


def ask(subject: str) -> Found:
    """Call the functions of a subject on its examples."""
    found = Found()
    for example in ReferenceExamples().worked_examples(subject):
        try:
            said = mistake(example)
        except NotServed as error:
            found.blocked.append(f"{example.name}: {error}")
        except ImportError as error:
            package = (error.name or "").partition(".")[0]
            if package and find_spec(package) is None:
                found.packages.add(package)
            else:
                found.wrong.append(f"{example.name}: {error}")
        else:
            found.number += 1
            found.wrong += [] if said is None else [said]
    return found


def _ask_in_two(subjects: Sequence[str]) -> Found:
    """Ask in this process and in a copy of it; each takes the next subject when it has done one."""
    turns, places = os.pipe()
    os.write(places, bytes(range(len(subjects))))
    os.close(places)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    copy = context.Process(target=_take_turns, args=(subjects, turns, sender.send), daemon=True)
    copy.start()
    sender.close()
    by_subject: dict[str, Found] = {}
    _take_turns(subjects, turns, lambda done: by_subject.update([done]))
    with contextlib.suppress(EOFError):
        while True:
            by_subject.update([receiver.recv()])
    copy.join()
    os.close(turns)
    found = Found()
    for subject in subjects:
        found.add(by_subject.get(subject) or _of_ended(subject, copy.exitcode))
    return found


def _take_turns(subjects: Sequence[str], turns: int, done: Callable[[tuple[str, Found]], Any]) -> None:
    # One byte is read by one process alone.
    while place := os.read(turns, 1):
        subject = subjects[place[0]]
        done((subject, ask(subject)))


def _of_ended(subject: str, status: int | None) -> Found:
    """Return what is said of a subject whose process ended: the system kills one when memory is short."""
    said = f"the process that was asked for {subject} ended with {status}"
    return Found(blocked=[said]) if status == -signal.SIGKILL else Found(wrong=[said])
