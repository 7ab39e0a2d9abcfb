"""Checks that functions of refrl, in the process of a run that used them, give results that were worked out by hand.

What a run logs shows the cases that it meets. Edges, refusals, and options that it does not set are executed, too, and
leave no trace: the worked examples of the relations (`worked/`) ask for them, in a copy of the process that is made
before the run begins and works at the same time, and in the process itself after the last step.
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
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest.mock import patch

from refrl.config import GRPORunConfig
from refrl.distributed import SHARING
from refrl.lifeline import (
    LISTENING,
    PARENT,
    RAY_CLUSTER,
    RAY_NODE,
    RENDEZVOUS,
    TORCHRUN,
    end_with_parent,
    is_started,
)
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
RANK_VARIABLES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    *(TORCHRUN, RENDEZVOUS, LISTENING, SHARING, RAY_NODE, RAY_CLUSTER),
)
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


class WorkedExamples:
    """The examples of a run's subjects, and the processes that are asked for them.

    What examples print is not the run's. Threads do not come along into a copy of a process, and PyTorch's do not
    notice, so that a copy is made only where there are none: before anything has been computed.
    """

    def __init__(self, config: RunConfig) -> None:
        """Begin in a copy of this process, if it has one thread and is no rank."""
        self._subjects = subjects_of(config)
        self._turns, places = os.pipe()
        os.write(places, bytes(range(len(self._subjects))))
        os.close(places)
        self._copy = None if is_started() or not _has_one_thread() else self._begin_copy()

    def _begin_copy(self) -> tuple[BaseProcess, Connection]:
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)
        arguments = (os.getpid(), self._subjects, self._turns, sender.send)
        copy = context.Process(target=_work_in_copy, args=arguments, daemon=True)
        copy.start()
        sender.close()
        return copy, receiver

    def drop(self) -> None:
        """End without a result."""
        os.close(self._turns)
        if self._copy is not None:
            self._copy[0].kill()
            self._copy[0].join()

    def check(self, guards: Guards) -> None:
        """Ask for what is left here, and record what was found."""
        by_subject: dict[str, Found] = {}
        with _apart():
            _take_turns(self._subjects, self._turns, lambda done: by_subject.update([done]))
        status = None
        if self._copy is not None:
            copy, receiver = self._copy
            with contextlib.suppress(EOFError):
                while True:
                    by_subject.update([receiver.recv()])
            copy.join()
            status = copy.exitcode
        os.close(self._turns)
        found = Found()
        for subject in self._subjects:
            found.add(by_subject.get(subject) or _of_ended(subject, status))
        check(guards, WORKED, found.wrong, number=found.number)
        for package in sorted(found.packages):
            guards.hold(f"{WORKED} that need {package}, which is not installed", True, "", number=0)
        if found.blocked:
            guards.block(WORKED, "; ".join(found.blocked))


def _has_one_thread() -> bool:
    """Return whether the kernel knows of no other thread of this process; False where it cannot be asked."""
    tasks = Path("/proc/self/task")
    return tasks.is_dir() and len(list(tasks.iterdir())) == 1


def _work_in_copy(
    parent: int, subjects: Sequence[str], turns: int, send: Callable[[tuple[str, Found]], Any]
) -> None:
    """Take turns in a copy of the run's process, which ends with it."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.environ[PARENT] = str(parent)
    end_with_parent()
    with _apart():
        _take_turns(subjects, turns, send)


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


def _take_turns(subjects: Sequence[str], turns: int, done: Callable[[tuple[str, Found]], Any]) -> None:
    # One byte is read by one process alone.
    while place := os.read(turns, 1):
        subject = subjects[place[0]]
        done((subject, ask(subject)))


def _of_ended(subject: str, status: int | None) -> Found:
    """Return what is said of a subject whose process ended: the system kills one when memory is short."""
    said = f"the process that was asked for {subject} ended with {status}"
    return Found(blocked=[said]) if status == -signal.SIGKILL else Found(wrong=[said])
