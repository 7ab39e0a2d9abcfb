"""Worked examples of the verifier of mathematical answers: its requests, its process, what that process compares."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from refrl.rewards import math as math_rewards
from refrl.rewards import math_worker
from refrl.rewards.math import MathVerifier
from refrl.rewards.verifiers import VerifierError
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example

LONGEST = 20_000
"""Characters at the end of a completion that are compared."""
NO_LIMIT = {"parsing_timeout": None}


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_requests()
    yield from _of_ends()
    yield from _of_comparisons()


def _of_requests() -> Iterator[WorkedExample]:
    right: Any
    last = "b" * (LONGEST - 1) + "é"
    request = json.dumps({"completion": last, "answer": "7"}).encode() + b"\n"
    for seconds in (None, 0.25):
        right = ([("write", request), ("flush", b"")], [5.0 if seconds is None else seconds], 1.0)
        yield example(f"a long completion, compared for {seconds} s", right, _asked, "a" + last, seconds)
    parts = [b'{"eq', b'ual": t', b"rue}\n"]
    for times, right in (
        ([0.0, 1.0, 2.5], ({"equal": True}, [4.0, 3.0, 1.5], 0)),
        ([0.0, 1.0, 4.5], ("VerifierTimeout: math_equivalence: no verdict within 4 s", [4.0, 3.0, 0.0], 1)),
    ):
        yield example(f"an answer in parts that come at {times}", right, _read, parts, times)
    ended = "VerifierError: math_equivalence: its process ended (is math-verify installed?)"
    yield example("an answer of which half comes", (ended, [4.0, 4.0], 1), _read, parts[:1], [0.0, 0.0])
    broken = ("VerifierError: math_equivalence: its process ended: gone", 1)
    yield example("a process that reads no more", broken, _broken)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _asked(completion: str, seconds: float | None) -> Any:
    """Return what is written to the process, for how long its answer is waited for, and the reward."""
    written: list[tuple[str, bytes]] = []
    waits: list[float] = []

    def read(self: MathVerifier, worker: Any, limit: float) -> dict[str, Any]:
        waits.append(limit)
        return {"equal": 1}

    stdin = SimpleNamespace(
        write=lambda data: written.append(("write", data)), flush=lambda: written.append(("flush", b""))
    )
    verifier = MathVerifier() if seconds is None else MathVerifier(timeout_seconds=seconds)
    with (
        patch.object(MathVerifier, "_running", lambda self: SimpleNamespace(stdin=stdin)),
        patch.object(MathVerifier, "_read", read),
    ):
        return written, waits, verifier(completion, "7")


def _read(parts: Sequence[bytes], times: Sequence[float]) -> Any:
    """Return an answer that comes in parts, how long each is waited for at most, and how often it is stopped."""
    now, waits, closed = [100.0], [], []
    left, steps = list(parts), iter(times[1:])

    def select(streams: Any, *others: Any) -> Any:
        waits.append(others[-1])
        if now[0] >= 104.0:
            return [], [], []
        now[0] = 100.0 + next(steps, now[0] - 100.0)
        return streams, [], []

    with (
        patch.object(math_rewards, "time", SimpleNamespace(monotonic=lambda: now[0])),
        patch.object(math_rewards, "select", SimpleNamespace(select=select)),
        patch.object(
            math_rewards, "os", SimpleNamespace(read=lambda number, size: left.pop(0) if left else b"")
        ),
        patch.object(MathVerifier, "close", lambda self: closed.append(True)),
    ):
        worker: Any = SimpleNamespace(stdout=SimpleNamespace(fileno=lambda: 3))
        try:
            found: Any = MathVerifier()._read(worker, 4.0)
        except VerifierError as error:
            found = _said(error)
    return found, waits, len(closed)


def _broken() -> Any:
    closed = []

    def write(data: bytes) -> None:
        raise BrokenPipeError("gone")

    with patch.object(MathVerifier, "close", lambda self: closed.append(True)):
        try:
            MathVerifier()._exchange(SimpleNamespace(stdin=SimpleNamespace(write=write)), b"")  # type: ignore[arg-type]
        except VerifierError as error:
            return _said(error), len(closed)
    return "", 0


def _of_ends() -> Iterator[WorkedExample]:
    killed = [("kill", 77, signal.SIGKILL), "wait", "close stdin", "close stdout"]
    for own, status, right in (
        (True, None, killed),
        (True, 0, killed[1:]),
        (False, None, []),
    ):
        what = f"the end of a process with status {status}, own: {own}"
        yield example(what, (right, False), _ended, own, status)
    yield example("the process of a verifier that was forked", (True, 2), _forked)


def _process(noted: list[Any], status: int | None) -> Any:
    return SimpleNamespace(
        pid=77,
        poll=lambda: status,
        wait=lambda: noted.append("wait"),
        stdin=SimpleNamespace(close=lambda: noted.append("close stdin")),
        stdout=SimpleNamespace(close=lambda: noted.append("close stdout")),
    )


def _ended(own: bool, status: int | None) -> Any:
    """Return what is done with a verifier's process, which this one started or not, and whether it is kept."""
    noted: list[Any] = []
    verifier = MathVerifier()
    verifier._worker, verifier._owner = _process(noted, status), os.getpid() if own else 1
    with patch.object(os, "killpg", lambda pid, number: noted.append(("kill", pid, number))):
        verifier.close()
        verifier.close()
    return noted, verifier._worker is not None


def _forked() -> Any:
    """Return whether a fork starts a process of its own, and how many there are then."""
    made: list[Any] = []

    def popen(*words: Any, **options: Any) -> Any:
        made.append(_process([], None))
        return made[-1]

    fake = SimpleNamespace(Popen=popen, PIPE=-1, DEVNULL=-3)
    with (
        patch.object(math_rewards, "subprocess", fake),
        patch.object(math_rewards, "atexit", SimpleNamespace(register=lambda call: None)),
        patch.object(MathVerifier, "_read", lambda self, worker, seconds: None),
    ):
        verifier = MathVerifier()
        first = verifier._running()
        verifier._owner = 1  # as in a process that was forked from the first one
        return verifier._running() is not first, len(made)


def _of_comparisons() -> Iterator[WorkedExample]:
    parsed = {"$1/2$": ["half"], "so 0.5": ["point five"], "x": ["x"], "none": []}
    first = [("parse", "$1/2$", NO_LIMIT)]
    for completion, equal in (("so 0.5", True), ("so 0.5", False), ("none", True)):
        given = parsed[completion]
        verified = [("verify", ["half"], given, {"timeout_seconds": None, "raise_on_error": True})]
        calls = [*first, ("parse", completion, NO_LIMIT), *(verified if given else [])]
        right = ({"equal": bool(given) and equal}, calls)
        yield example(
            f"{completion!r} where the library says {equal}", right, _judged, parsed, completion, equal
        )
    plain = [("parse", "$x$", NO_LIMIT), ("parse", "x", NO_LIMIT), ("parse", "none", NO_LIMIT)]
    yield example(
        "an answer that is no formula", ({"equal": False}, plain), _judged, parsed, "none", True, "x"
    )
    unread = {"error": f"the answer {'?' * 80!r} is no mathematical expression"}
    calls = [("parse", "$" + "?" * 90 + "$", NO_LIMIT), ("parse", "?" * 90, NO_LIMIT)]
    yield example("an answer that is not read", (unread, calls), _judged, parsed, "x", True, "?" * 90)
    for kind in (ZeroDivisionError, AttributeError, RecursionError, TypeError, ValueError, MemoryError):
        said = {"error": f"{kind.__name__} while comparing: {'e' * 200}"}
        raised = kind("e" * 300)
        yield example(
            f"a library that raises {kind.__name__}", said, lambda of=raised: _judged(parsed, "so 0.5", of)[0]
        )
    yield example("the first line of a worker", [{"ready": True}, ("1", "1")], _started)


def _judged(
    parsed: Mapping[str, list[str]], completion: str, verdict: bool | Exception, answer: str = "1/2"
) -> Any:
    """Return what the process answers, and what it requests from a library that reads these texts."""
    calls: list[Any] = []

    def parse(text: str, **options: Any) -> list[str]:
        calls.append(("parse", text, options))
        return parsed.get(text, [])

    def verify(wanted: Any, given: Any, **options: Any) -> bool:
        calls.append(("verify", wanted, given, options))
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    with patch.dict("sys.modules", {"math_verify": SimpleNamespace(parse=parse, verify=verify)}):
        return math_worker.judge(completion, answer), calls


def _started() -> Any:
    """Return what a worker without requests prints, flushed, and what it compares first."""
    judged: list[Any] = []
    printed = io.StringIO()
    flushed: list[str] = []
    flush = printed.flush

    def flushing() -> None:
        flushed.append(printed.getvalue())
        flush()

    no_limits = SimpleNamespace(
        RLIMIT_AS=9, RLIM_INFINITY=-1, getrlimit=lambda of: (-1, -1), setrlimit=lambda of, pair: None
    )
    printed.flush = flushing  # type: ignore[method-assign]
    with (
        patch.object(math_worker, "resource", no_limits),
        patch.object(math_worker, "sys", SimpleNamespace(stdin=io.StringIO())),
        patch.object(math_worker, "judge", lambda *words: judged.append(words)),
        patch("sys.stdout", printed),
    ):
        math_worker.main()
    return [json.loads(flushed[-1]) if flushed else None, *judged]
