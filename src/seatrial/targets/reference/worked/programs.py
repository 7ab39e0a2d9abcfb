"""Worked examples of refrl's programs that are rewarded: their limits, their outputs, the sandbox that is reported."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from refrl.rewards import code as code_rewards
from refrl.rewards import sandbox, sandbox_child
from refrl.rewards.code import code_output, extract_code, sandbox_of
from refrl.rewards.sandbox import Isolation, SandboxLimits, SandboxResult, run_python
from refrl.rewards.scoring import make_verifier
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked import sandbox_edges
from seatrial.targets.reference.worked.made import example, refused


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_programs()
    yield from _of_outputs()
    yield from _of_tests()
    yield from _of_children()
    yield from _of_filters()
    yield from sandbox_edges.examples()


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


def _of_tests() -> Iterator[WorkedExample]:
    limits = SandboxLimits(cpu_seconds=1)
    for given in (None, limits):
        asked = [("x", "", given), ("x", "in", given)]
        yield example(f"what is run of two tests under {given}", (0.5, asked), _run, "x", given)
    for printed, right in (
        ("1\n 2\n", 1.0),
        ("1 \r\n 2\t\n\n", 1.0),
        ("1\n2\n", 0.0),
        ("\n1\n 2\n", 0.0),
        ("1\n\n 2\n", 0.0),
    ):
        yield example(f"the output {printed!r}", right, lambda of=printed: _run("x", None, of)[0])


def _run(program: str, limits: SandboxLimits | None, printed: str = "in\n") -> Any:
    """Return the reward of a program that always prints this, and the arguments of each run."""
    calls: list[Any] = []
    result = SandboxResult("exited", 0, printed, "", 0.0, Isolation("bubblewrap", True, True, True))

    def run(*words: Any) -> SandboxResult:
        calls.append(words)
        return result

    tests = (
        [{"stdout": "1\n 2"}] if printed != "in\n" else [{"stdout": "other"}, {"stdin": "in", "stdout": "in"}]
    )
    with patch.object(code_rewards, "run_python", run):
        return code_output(program, json.dumps(tests), limits), calls


def _long_input() -> bool:
    text = "é\n" * 50_000
    program = f"import sys\nword = {'x' * 100_000!r}\nsys.stdout.write(sys.stdin.read() + word)"
    return run_python(program, text).stdout == text + "x" * 100_000


CHILD = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import subprocess, sys, time; "
    "print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"], stdout=subprocess.PIPE)
os.write(int(sys.argv[1]), b"{}")
print(child.pid, int(child.stdout.readline()), flush=True)
"""
ENDS = {
    "exited": "",
    "killed": "os.kill(os.getpid(), 9)",
    "timeout": "time.sleep(60)",
}
"""What a program does last, by how it ends."""


def _of_children() -> Iterator[WorkedExample]:
    for outcome, last in ENDS.items():
        yield example(f"children of a program that ends as {outcome}", (outcome, 2, []), _left, last)


def _left(last: str) -> Any:
    """Return how a program ends that no lock keeps from making processes, their number, and which live on."""
    with tempfile.TemporaryDirectory() as folder:
        inside = Path(folder, "work")
        inside.mkdir()
        files = {name: Path(folder, name) for name in ("stdin", "stdout", "stderr")}
        files["stdin"].touch()
        words = [sys.executable, "-S", "-c", CHILD + last]
        wait, limits = sandbox._wait, SandboxLimits(wall_seconds=60.0)

        def started(process: Any, limits: SandboxLimits, watched: Path | None) -> Any:
            """Run out of time once everything is started, on a slow machine too."""
            while "sleep" in last and not files["stdout"].read_text() and process.poll() is None:
                time.sleep(0.005)
            return wait(process, replace(limits, wall_seconds=0.01) if "sleep" in last else limits, watched)

        with (
            patch.object(sandbox, "command_of", lambda order, report_fd: [*words, str(report_fd)]),
            patch.object(sandbox, "_wait", started),
        ):
            outcome, *_ = sandbox._run(inside, files, limits, {"kind": "landlock"})
        pids = [int(word) for word in files["stdout"].read_text().split()]
    end = time.monotonic() + 5
    while (living := [pid for pid in pids if _lives(pid)]) and time.monotonic() < end:
        time.sleep(0.005)
    for pid in living:
        os.kill(pid, signal.SIGKILL)
    return outcome, len(pids), living


def _lives(pid: int) -> bool:
    """Return whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


ALLOWED, REFUSED, MISSING, KILLED = 0x7FFF0000, 0x50001, 0x50026, 0x80000000
"""What a filter returns: seccomp(2), with EPERM and ENOSYS."""
AUDITED = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
READ = {"x86_64": 0, "aarch64": 63}
WHOLE = 2**32 + 1
"""An argument of which both halves are set."""


def _of_filters() -> Iterator[WorkedExample]:
    for machine, audited in AUDITED.items():
        for name, right, words in _filtered(sandbox_child.ARCHITECTURES[machine][1], READ[machine]):
            yield example(f"the filter of {machine} and {name}", right, _verdict, machine, audited, *words)
        yield example(
            f"the filter of {machine} and another machine", KILLED, _verdict, machine, 0x40000003, 3
        )


def _filtered(numbers: Mapping[str, Sequence[int]], read: int) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    """Yield calls by what they ask for: the verdict, and the number of the call with its arguments."""
    for kind in ("fork", "signal", "network", "limits", "shared", "kernel"):
        for number in numbers[kind]:
            yield f"{kind} {number}", REFUSED, (number,)
    yield "a read", ALLOWED, (read, WHOLE, WHOLE, WHOLE)
    yield "a call of another size of words", KILLED, (0x40000000 + read,)
    (new,), (limits,), (clone,) = numbers["clone3"], numbers["prlimit"], numbers["clone"]
    yield "a new process of the third kind", MISSING, (new,)
    thread = 0x3D0F00  # the flags of the C library for a thread
    for name, right, flags in (
        ("a thread", ALLOWED, thread), ("a thread alone", ALLOWED, 0x10000), ("a process", REFUSED, 0x1200011),
        ("a process with a thread's other flags", REFUSED, thread - 0x10000), ("no flags", REFUSED, 0),
    ):  # fmt: skip
        yield f"a clone with {name}", right, (clone, flags)
    for name, right, words in (
        ("its own", ALLOWED, (0, 7, 0, WHOLE)), ("those of a process", REFUSED, (1, 7, 0, WHOLE)),
        ("those of a process of a high number", REFUSED, (2**31, 7, 0, WHOLE)),
        ("new ones", REFUSED, (0, 7, 1, WHOLE)), ("new ones from a high place", REFUSED, (0, 7, 2**32, WHOLE)),
        ("new ones of a process", REFUSED, (5, 7, WHOLE, WHOLE)),
    ):  # fmt: skip
        yield f"limits: {name}", right, (limits, *words)


def _verdict(machine: str, audited: int, number: int, *words: int) -> int:
    """Return what a machine's filter says of a call: classic BPF (linux/filter.h) over struct seccomp_data."""
    given = (*words, *(0,) * (6 - len(words)))
    data = struct.pack("=IIQ6Q", number, audited, 0, *given)
    place, value = 0, 0
    program = _program(machine)
    while True:
        code, if_true, if_false, operand = program[place]
        place += 1
        if code == 0x06:
            return operand
        if code == 0x20:
            (value,) = struct.unpack_from("=I", data, operand)
        else:
            holds = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[code]
            place += if_true if holds else if_false


@cache
def _program(machine: str) -> list[tuple[int, int, int, int]]:
    """Return the instructions that a machine's kernel would get."""
    found: list[bytes] = []

    def prctl(option: int, mode: int, filtered: Any, *rest: int) -> int:
        length, address = struct.unpack("HxxxxxxP", filtered.raw[: struct.calcsize("HxxxxxxP")])
        found.append(ctypes.string_at(address, 8 * length))
        return 0

    with (
        patch.object(sandbox_child, "_libc", SimpleNamespace(prctl=prctl)),
        patch("platform.machine", lambda: machine),
    ):
        assert sandbox_child._filter_system_calls() == 0
    return list(struct.iter_unpack("=HBBI", found[0]))
