"""Worked examples of an engine in another process: what is sent, what answers mean, signals, ends and time limits."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

import refrl
from refrl.generation import process
from refrl.generation.base import Completion, SamplingParams
from refrl.generation.broadcast_link import BroadcastLink
from refrl.generation.messages import Message
from refrl.generation.process import ERRORS, START_SECONDS, GeneratorLostError, ProcessGenerator, SocketLink
from refrl.generation.vllm.engine import completion
from refrl.lifeline import PARENT
from refrl.weight_sync.base import Part
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.configuration import policy_configuration
from seatrial.targets.reference.worked.made import example, refused
from seatrial.targets.reference.worked.values import of_values

OPENED: Mapping[str, Any] = {"engine": "made 1.0", "stop_ids": [2, 5], "specs": {"w": [[2, 3], "bfloat16"]}}
ROWS = [
    Completion((1, 2), (3,), (-0.5,), "stop", weight_version=4),
    Completion((1,), (3, 4), (-0.5, -1.0), "length", kept_ids=((3, 5), (4,)), mask=(1, 0)),
    Completion((1,), (3, 4), (-0.5, -1.0), "abort", kept_ids=(), version_segments=((0, 3), (1, 4))),
]


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_answers()
    yield from _of_links()
    yield from _of_environments()
    yield from _of_tokens()
    yield from of_values("vllm")


class _Link:
    """A link that answers as planned, and notes what is sent with the time that it may take."""

    is_local = True
    pid = 7

    def __init__(self, answers: Mapping[str, Message]) -> None:
        self._answers = {"open": Message("opened", OPENED), **answers}
        self.timeout_seconds = 1.0
        self.sent: list[tuple[str, Any, float]] = []

    def ask(self, message: Message) -> Message:
        self.sent.append((message.kind, dict(message.fields), self.timeout_seconds))
        self.tensors = list(message.tensors)
        return self._answers.get(message.kind, Message("done"))

    def abort(self) -> None:
        self.sent.append(("abort", {}, 0.0))

    def resume(self) -> None:
        self.sent.append(("resume", {}, 0.0))

    def close(self) -> None:
        self.sent.append(("close", {}, 0.0))


def _with(
    call: Callable[[Any, Any], Any], options: Mapping[str, Any] | None = None, **answers: Message
) -> Any:
    """Return what a call returns of a generator and its link."""
    link: Any = _Link(answers)
    config = policy_configuration(dict(options or {}))
    made = ProcessGenerator(config, pad_token_id=9, device=torch.device("cpu"), connect=lambda: link)
    return call(made, link)


def _of_answers() -> Iterator[WorkedExample]:
    for seconds in (3.0, 2 * START_SECONDS):
        options = {"generation.timeout_seconds": seconds}
        right = (max(seconds, START_SECONDS), seconds, 9, "cpu", seconds, torch.get_num_threads())
        yield example(f"the time to start with a limit of {seconds} s", right, _with, _times, options)
    facts = ("made 1.0", [2, 5], {"w": ((2, 3), "torch.bfloat16")}, 7, 0)
    yield example("what an engine says of itself", facts, _with, _facts)
    plain = [
        {**vars(row), **{name: list(value) for name, value in vars(row).items() if isinstance(value, tuple)}}
        for row in ROWS
    ]
    state = torch.Generator().manual_seed(8).get_state()
    answer = Message("generated", {"completions": plain}, [state])
    yield example("rows of an engine", (True, True, True, 1.25), _with, _generated, generate=answer)
    receipt = Message("committed", {"version": 6, "num_tensors": 3, "seconds": 0.5, "largest_load_bytes": 8})
    sent = [
        ("begin", {"version": 6, "based_on": 4}),
        ("receive", {"parts": [["w", 2, True], ["v", 0, False]]}),
        ("commit", {"fingerprints": {"w": "f"}}),
    ]
    yield example("weights in parts", (sent, (3, 0.5, 8), 6, 3), _with, _synced, commit=receipt)
    weights = Message("weights", {"names": ["a", "b"]}, [torch.tensor([1.0]), torch.tensor([2.0])])
    yield example(
        "weights that are read back",
        [("a", [1.0]), ("b", [2.0])],
        _with,
        lambda made, link: [(name, one.tolist()) for name, one in made.named_weights()],
        weights=weights,
    )
    for name in ERRORS:
        failed = Message("error", {"error": name, "message": "why"})
        yield example(f"an engine that raises {name}", f"{name}: why", _with, _raised, generate=failed)
    yield refused(
        "why",
        "an engine that cannot load",
        _with,
        _facts,
        open=Message("error", {"error": "ConfigError", "message": "why"}),
    )
    yield refused(
        "shares no weights", "weights that are shared", _with, lambda made, link: made.share_weights(iter(()))
    )
    yield refused(
        "in parts", "weights that are loaded", _with, lambda made, link: made.load_weights(iter(()), 3)
    )
    yield example("signals and the end", ["abort", "resume", "close"], _with, _signalled)


def _times(made: Any, link: Any) -> Any:
    kind, fields, seconds = link.sent[0]
    assert kind == "open"
    limit = fields["policy"]["generation"]["timeout_seconds"]
    return (
        seconds,
        link.timeout_seconds,
        fields["pad_token_id"],
        fields["device"],
        limit,
        fields["num_threads"],
    )


def _facts(made: Any, link: Any) -> Any:
    specs = {name: (spec.shape, str(spec.dtype)) for name, spec in made.specs().items()}
    return made.engine, sorted(made.stop_ids()), specs, made.pid, made.weight_version


def _generated(made: Any, link: Any) -> Any:
    stream = torch.Generator().manual_seed(3)
    before = stream.get_state()
    params = SamplingParams(max_new_tokens=5, temperature=1.25, top_k=3, stop_token_ids=(4,), greedy=True)
    rows = made.generate([(1, 2), (1,)], params, stream)
    fields = link.sent[-1][1]
    assert fields["prompts"] == [[1, 2], [1]] and SamplingParams(**fields["params"]) == params
    moved = torch.equal(stream.get_state(), torch.Generator().manual_seed(8).get_state())
    return rows == ROWS, torch.equal(link.tensors[0], before), moved, fields["params"]["temperature"]


def _synced(made: Any, link: Any) -> Any:
    made.begin(6, 4)
    made.receive([Part("w", torch.ones(1), start=2, indices_N=torch.tensor([0])), Part("v", torch.ones(2))])
    num = len(link.tensors)
    receipt = made.commit({"w": "f"})
    sent = [(kind, fields) for kind, fields, _ in link.sent[1:]]
    return sent, (receipt.num_tensors, receipt.seconds, receipt.largest_load_bytes), made.weight_version, num


def _raised(made: Any, link: Any) -> str:
    try:
        made.generate([(1,)], SamplingParams(max_new_tokens=1), torch.Generator())
    except tuple(ERRORS.values()) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def _signalled(made: Any, link: Any) -> list[str]:
    made.abort()
    made.resume()
    made.close()
    return [kind for kind, _, _ in link.sent[1:]]


ANSWERS = """
import os, signal, socket, sys, time
own = socket.socket(fileno=int(sys.argv[-1]))
for number in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda which, frame: own.send(bytes([which])))
own.send(b"!")
word = sys.argv[1]
while word == "signals":
    time.sleep(60)
while word == "silent" or own.recv(4096):
    if word == "silent":
        own.recv(4096)
        time.sleep(60)
    if word == "ends":
        sys.exit(3)
    if word == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
"""
"""A process that reports signals, does not answer, or ends when it is asked something."""


@contextmanager
def _linked(word: str, seconds: float = 30.0) -> Iterator[Any]:
    """Yield a link to such a process, after it has begun to listen."""
    before = process.COMMAND
    process.__dict__["COMMAND"] = (sys.executable, "-S", "-c", ANSWERS, word)
    try:
        link: Any = SocketLink()
    finally:
        process.__dict__["COMMAND"] = before
    try:
        assert link._connection.recv(1) == b"!"
        link.timeout_seconds = seconds
        yield link
    finally:
        link._process.kill()
        link.close()


def _of_links() -> Iterator[WorkedExample]:
    yield example(
        "signals of an engine's process",
        [int(signal.SIGUSR1), int(signal.SIGUSR2), int(signal.SIGUSR1)],
        _signals,
    )
    for word, seconds, right in (
        ("ends", 30.0, "ended with exit status 3, asked to sample"),
        ("killed", 30.0, "ended by signal 9, asked to sample"),
        ("silent", 0.2, "did not answer in time and was stopped, asked to sample"),
    ):
        yield example(f"a process that is {word}", (right, True, True), _lost, word, seconds)
    yield refused(
        "the interpreter /no/such cannot be started",
        "an interpreter that is not there",
        SocketLink,
        "/no/such",
    )


def _of_environments() -> Iterator[WorkedExample]:
    """Yield the command, PYTHONPATH and other variables that engines' processes are started with."""
    source = str(Path(refrl.__file__).parents[1])
    for kind in (SocketLink, BroadcastLink):
        for given, with_other in (
            (None, source),
            ("", source),
            ("/one", f"{source}:/one"),
            ("/one:/two", f"{source}:/one:/two"),
        ):
            for python, path in ((None, given), ("/other/python", with_other)):
                yield example(
                    f"{kind.__name__} with PYTHONPATH={given} and the interpreter {python}",
                    ([python or process.COMMAND[0], *process.COMMAND[1:]], path, "kept", str(os.getpid())),
                    _started,
                    kind,
                    python,
                    given,
                )


def _started(kind: Any, python: str | None, given: str | None) -> Any:
    noted: list[Any] = []

    def start(command: Any, *, pass_fds: Any, env: Mapping[str, str], **options: Any) -> Any:
        assert command[-1] == str(pass_fds[0])
        noted.extend((command[:-1], env.get("PYTHONPATH"), env.get("SEATRIAL_MADE"), env.get(PARENT)))
        return SimpleNamespace(pid=7, wait=lambda seconds=None: 0, returncode=0)

    made = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    made |= {"SEATRIAL_MADE": "kept", PARENT: "1", **({} if given is None else {"PYTHONPATH": given})}
    main = threading.main_thread()
    with (
        patch.dict(os.environ, made, clear=True),
        patch("subprocess.Popen", start),
        patch("threading.current_thread", lambda: main),
    ):
        kind(python).close()
    return tuple(noted)


def _signals() -> list[int]:
    with _linked("signals") as link:
        found = []
        for call in (link.abort, link.resume, link.abort):
            call()
            found.append(link._connection.recv(1)[0])
        return found


def _lost(word: str, seconds: float) -> Any:
    before, said = process._GRACE_SECONDS, []
    process.__dict__["_GRACE_SECONDS"] = 0.1
    try:
        with _linked(word, seconds) as link:
            for _ in range(2):  # the second is sent to a process that is gone
                try:
                    link.ask(Message("sample"))
                except GeneratorLostError as error:
                    said.append(str(error))
            first = said[0].partition(f"{link.pid} ")[2]
            return first, len(said) == 2, link._process.poll() is not None
    finally:
        process.__dict__["_GRACE_SECONDS"] = before


def _of_tokens() -> Iterator[WorkedExample]:
    # vLLM reports 1/2, 1/4, 1/4: of a likeliest token those before temperature and filters.
    squares, roots = math.log(2 / 3), math.log(1 / (1 + math.sqrt(2)))
    half = math.log(0.5)
    for settings, right in (
        ({}, (half, None)),
        ({"temperature": 0.5}, (half, None)),
        ({"greedy": True}, (half, None)),
        ({"greedy": True, "temperature": 0.5}, (squares, None)),
        ({"greedy": True, "temperature": 2.0}, (roots, None)),
        ({"greedy": True, "top_k": 1}, (0.0, None)),
        ({"greedy": True, "top_p": 0.5}, (0.0, None)),
        ({"greedy": True, "top_k": 3, "temperature": 0.5}, (squares, None)),
        ({"greedy": True, "top_p": 0.6, "temperature": 0.5}, (0.0, None)),
        ({"top_k": 3}, (half, None)),
        ({"top_k": 2}, (half, ((0, 1, 2),))),
        ({"top_p": 0.9, "temperature": 2.0}, (half, ((0, 1, 2),))),
    ):
        yield example(f"a token of vLLM with {settings}", right, _token, settings)
    yield example(
        "ids that vLLM's filters kept", ((0, 2),), lambda: _token({"top_k": 2}, (0.0, -math.inf, -1.0))[1]
    )
    yield refused("not finite", "a token of vLLM without a probability", _token, {}, (-math.inf, 0.0, 0.0))


def _token(settings: Mapping[str, Any], logprobs: tuple[float, ...] | None = None) -> Any:
    """Return log-probability and kept ids of token 0, as vLLM reports those of its vocabulary of three."""
    reported = logprobs or (math.log(0.5), math.log(0.25), math.log(0.25))
    place = {token: SimpleNamespace(logprob=value) for token, value in enumerate(reported)}
    params = SamplingParams(max_new_tokens=1, **settings)
    row = completion((1,), [(0, place)], params, frozenset(), 3)
    assert (row.ids, row.finish_reason, row.weight_version) == ((0,), "length", 3)
    return row.logprobs[0], row.kept_ids
