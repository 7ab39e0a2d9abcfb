"""Worked examples of refrl's programs that are rewarded: their limits, their outputs, the sandbox that is reported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from refrl.rewards.code import code_output, extract_code, sandbox_of
from refrl.rewards.sandbox import Isolation, SandboxLimits, SandboxResult, run_python
from refrl.rewards.scoring import make_verifier
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example, refused


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_programs()
    yield from _of_outputs()


def _of_programs() -> Iterator[WorkedExample]:
    for locks, right in (
        ((True, True, True), "bubblewrap"),
        ((True, False, True), "bubblewrap, without a lock on files"),
        ((False, True, False), "bubblewrap, without a lock on network, processes"),
    ):
        yield example(f"a sandbox with locks {locks}", right, Isolation("bubblewrap", *locks).describe)
    for outcome, code, succeeded in (
        ("exited", 0, True),
        ("exited", 1, False),
        ("killed", 0, False),
        ("timeout", 0, False),
    ):
        result = SandboxResult(outcome, code, "", "", 0.0, Isolation("bubblewrap", True, True, True))  # type: ignore[arg-type]
        yield example(f"a program that {outcome} with {code}", succeeded, lambda of=result: of.succeeded)
    limits = SandboxLimits(cpu_seconds=2, memory_bytes=3, file_bytes=4, num_processes=5, num_open_files=6)
    names = ("CPU", "AS", "FSIZE", "NPROC", "NOFILE", "CORE")
    by_name = dict(zip((f"RLIMIT_{name}" for name in names), (2, 3, 4, 5, 6, 0), strict=True))
    yield example("limits of a program", by_name, limits.as_rlimits)
    yield refused("memory_bytes=0", "a limit of nothing", SandboxLimits, memory_bytes=0)
    yield example("a program in a block", "print(1)\n", extract_code, "so\n```python\nprint(1)\n```\nis it")
    yield example("the last of two blocks", "b\n", extract_code, "```\na\n```\n```py\nb\n```")
    yield example("no block", "print(1)", extract_code, "print(1)")
    tests = json.dumps([{"stdin": "", "stdout": "2\n3\n"}])
    # The C library falls back from `clone3`, which the sandbox does not know, to a `clone` that makes a thread.
    # The stacks of two threads that live at once differ in the bit that distinguishes a thread from a process.
    in_threads = (
        "import threading as t; print(2); t.stack_size(2**20 + 2**16); done = t.Event(); "
        "[one.start() for one in (t.Thread(target=lambda: done.wait() and print(3)), t.Thread(target=done.set))]"
    )
    for program, share in ((in_threads, 1.0), ("print(2, 3)", 0.0)):
        yield example(f"lines of {program[:40]}", share, make_verifier("code_output"), program, tests)
    yield example("no sandbox for other verifiers", None, sandbox_of, ["exact_match", None])
    for words in ("", "[]", "{}", '[{"stdin": "a"}]', json.dumps([{"stdin": 1, "stdout": "1"}])):
        yield refused(
            "code_output needs", f"tests {words!r}", make_verifier("code_output"), "print(1)", words
        )


def _of_outputs() -> Iterator[WorkedExample]:
    limits = SandboxLimits(wall_seconds=30, file_bytes=2**16)
    for streams, given, right in (
        ((3000, 1), limits, (3000, 1)),
        ((2**16, 2**16 - 1), limits, (2**16, 2**16 - 1)),
        ((2**16 + 1, 2**16 + 9), limits, (2**16, 2**16)),
        ((2**20, 0), None, (2**20, 0)),
    ):
        yield example(f"{streams} bytes of output", right, _sizes, streams, given)
    yield example("a program and an input of many bytes", True, _long_input)
    lines = json.dumps([{"stdin": "", "stdout": "\n".join(map(str, range(2000)))}])
    for last, reward in ((2000, 1.0), (1999, 0.0)):
        yield example(f"{last} lines", reward, code_output, f"for n in range({last}): print(n)", lines)


def _sizes(streams: tuple[int, int], limits: SandboxLimits | None) -> Any:
    """Return the sizes of what comes back of both streams, if it is what was written."""
    text = "b'ab' * (size // 2) + b'c' * (size % 2)"
    program = f"import os\nfor one, size in zip((1, 2), {streams}): os.write(one, {text})"
    result = run_python(program, limits=limits)
    for text in (result.stdout, result.stderr):
        assert text.rstrip("c") == "ab" * (len(text) // 2), text[:9]
    return len(result.stdout), len(result.stderr)


def _long_input() -> bool:
    text = "é\n" * 50_000
    program = f"import sys\nword = {'x' * 100_000!r}\nsys.stdout.write(sys.stdin.read() + word)"
    return run_python(program, text).stdout == text + "x" * 100_000
