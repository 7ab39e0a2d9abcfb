"""Calls a function in several processes of one gloo group, for adapters whose stack averages over ranks.

The processes are started at the first call and kept, since importing a stack takes seconds; they end with this one.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from multiprocessing.util import Finalize
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from seatrial.relations.cases.examples import Example
from seatrial.relations.contracts.ranks import Layout
from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import ProcessError
from seatrial.relations.records import StepResult
from seatrial.targets.common.forked_worker import ForkedWorker
from seatrial.targets.common.rank_worker import RENDEZVOUS

RANK_COMMAND = "SEATRIAL_RANK_COMMAND"
"""Variable with the module, and its first words, that a rank runs in place of the worker: a fault is planted so."""
ANSWER_SECONDS = 300.0
"""Time limit in seconds for an answer from all ranks."""
GRACE_SECONDS = 2.0
"""For the others to end after one has failed."""


class RankError(ProcessError):
    """Raised if a rank raises, crashes or does not answer; the text says which and how."""


class _Group:
    """A group of connected processes."""

    def __init__(self, num_ranks: int, preload: Sequence[str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="seatrial-ranks-")
        self.folder = Path(self._folder.name)
        self._num_calls = 0
        self.is_in_step = True
        """Whether all ranks have ended the last call alike, so that they can be called again."""
        self._preload = preload
        self._processes: list[subprocess.Popen[str] | ForkedWorker] = []
        try:
            for rank in range(num_ranks):
                self._processes.append(self._start(rank, num_ranks))
        except OSError:
            self.end()
            raise

    def _start(self, rank: int, num_ranks: int) -> subprocess.Popen[str] | ForkedWorker:
        words = os.environ.get(RANK_COMMAND, "seatrial.targets.common.rank_worker").split()
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            RENDEZVOUS: (self.folder / "rendezvous").as_uri(),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(num_ranks),
            "LOCAL_WORLD_SIZE": str(num_ranks),
        }
        path = self.folder / f"rank{rank}.err"
        if self._preload and RANK_COMMAND not in os.environ:
            return ForkedWorker(self._preload, environment, path)
        with path.open("wb") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                text=True,
                start_new_session=True,
            )

    def call(self, function: str, payload: Mapping[str, Any]) -> list[Any]:
        """Return what each rank's function returned, in their order."""
        self._num_calls += 1
        self.is_in_step = False
        outputs = [self.folder / f"{self._num_calls}.{rank}.pt" for rank in range(len(self._processes))]
        for process, output in zip(self._processes, outputs, strict=True):
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it has exited, which its answer shows
                print(
                    json.dumps({"function": function, "payload": payload, "output": str(output)}),
                    file=process.stdin,
                    flush=True,
                )
        self._judge(self._answers())
        results = [torch.load(output, weights_only=True) for output in outputs]
        for output in outputs:
            output.unlink()
        return results

    def _answers(self) -> dict[int, dict[str, Any]]:
        """Return the answers by rank; after one that is bad the others have a short time, for they may wait for it."""
        answers: dict[int, dict[str, Any]] = {}
        end = time.monotonic() + ANSWER_SECONDS
        with selectors.DefaultSelector() as waiting:
            for rank, process in enumerate(self._processes):
                assert process.stdout is not None
                waiting.register(process.stdout, selectors.EVENT_READ, rank)
            while len(answers) < len(self._processes) and time.monotonic() < end:
                for key, _ in waiting.select(max(0.0, end - time.monotonic())):
                    line = key.fileobj.readline()  # type: ignore[union-attr]
                    answers[key.data] = json.loads(line) if line else {"failed": self._last_words(key.data)}
                    waiting.unregister(key.fileobj)
                    if answers[key.data]:
                        end = min(end, time.monotonic() + GRACE_SECONDS)
        return answers

    def _judge(self, answers: Mapping[int, Mapping[str, Any]]) -> None:
        """Raise what the first rank said that went wrong; one that says nothing waits for another, or is too slow."""
        for rank, answer in sorted(answers.items()):
            if "missing" in answer:
                raise ModuleNotFoundError(answer["text"], name=answer["missing"])
            if "failed" in answer:
                raise RankError(f"rank {rank}: {answer['failed']}", **answer.get("raised", {}))
        refusals = [answer["not_served"] for answer in answers.values() if answer]
        if refusals:
            self.is_in_step = len(refusals) == len(self._processes)
            raise NotServed(refusals[0])
        silent = [rank for rank in range(len(self._processes)) if rank not in answers]
        if silent:
            raise RankError(f"rank {silent[0]}: no answer within {ANSWER_SECONDS:.0f} s")
        self.is_in_step = True

    def _last_words(self, rank: int) -> str:
        text = (self.folder / f"rank{rank}.err").read_text(encoding="utf-8", errors="replace")
        return f"it ended; its last words: {text[-800:] or 'none'}"

    def end(self) -> None:
        """Let every process end by itself, and end it by its own id where it does not."""
        for process in self._processes:
            assert process.stdin is not None and process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for process in self._processes:
            try:
                process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()
        self._folder.cleanup()


_GROUPS: dict[tuple[int, tuple[str, ...]], _Group] = {}


def call_on_ranks(
    function: str, payload: Mapping[str, Any], num_ranks: int, preload: Sequence[str] = ()
) -> list[Any]:
    """Call a function in so many processes that have joined one gloo group; return what each returned.

    Args:
        function: `module:name`; called with the payload, within `torch.distributed`.
        payload: JSON values.
        num_ranks: processes; a rank has the variables RANK, LOCAL_RANK and WORLD_SIZE, as under torchrun.
        preload: modules that a server imports, which forks the ranks; without any each rank is a new process.

    Returns:
        Tensors, numbers and texts, in dictionaries and lists.

    Raises:
        NotServed: a rank raised it.
        RankError: a rank raised anything else, or crashed; the next call starts new processes.
        ModuleNotFoundError: a rank misses a package.
    """
    key = num_ranks, tuple(preload)
    if key not in _GROUPS:
        _GROUPS[key] = _Group(num_ranks, preload)
        # A process that multiprocessing forked calls no function of atexit, and waits at its end for those it started.
        Finalize(None, _end_all, exitpriority=10)
    try:
        return _GROUPS[key].call(function, payload)
    finally:
        if not _GROUPS[key].is_in_step:
            _GROUPS.pop(key).end()


@atexit.register
def _end_all() -> None:
    while _GROUPS:
        _GROUPS.popitem()[1].end()


class StepsOnRanks(ABC):
    """Gives an adapter of an `Objective` the method of `contracts.Ranks`: each rank makes its own adapter."""

    rank_arguments: Mapping[str, Any] = MappingProxyType({})
    """Of the adapter's constructor, as JSON values."""
    rank_preload: Sequence[str] = ()
    """Modules that may be imported before ranks are forked (see `call_on_ranks`)."""

    @abstractmethod
    def objective_rank_step(self, examples: Sequence[Example], layout: Layout, rank: int) -> StepResult:
        """Train one optimizer batch as this rank, within `torch.distributed`; return what it has at the end."""

    def objective_on_ranks(self, examples: Sequence[Example], layout: Layout) -> Sequence[StepResult]:
        """See `contracts.Ranks`."""
        cls = type(self)
        payload = {
            "adapter": f"{cls.__module__}:{cls.__qualname__}",
            "arguments": dict(self.rank_arguments),
            "examples": [vars(example) for example in examples],
            "layout": [[list(part) for part in rank] for rank in layout],
        }
        found = call_on_ranks(f"{__name__}:step_of_rank", payload, len(layout), self.rank_preload)
        return [StepResult(**fields) for fields in found]


def _example(fields: Mapping[str, Any]) -> Example:
    plain: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()
    }
    return Example(**plain)


def step_of_rank(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Make the adapter that is named and take its step; runs in each rank."""
    module, _, name = payload["adapter"].partition(":")
    adapter: StepsOnRanks = getattr(importlib.import_module(module), name)(**payload["arguments"])
    examples = [_example(fields) for fields in payload["examples"]]
    step = adapter.objective_rank_step(examples, payload["layout"], int(os.environ["RANK"]))
    return {
        "loss": step.loss,
        "gradients": {name: gradient.detach().cpu() for name, gradient in step.gradients.items()},
        "metrics": dict(step.metrics),
    }
