"""Worked examples of sandboxes and of the verifier that keeps a process: locks, limits, ends, failures."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from refrl.rewards import sandbox_child
from refrl.rewards.code import code_output, program_form, sandbox_of
from refrl.rewards.math import MAX_LETTERS, MathVerifier
from refrl.rewards.sandbox import (
    SandboxLimits,
    SandboxResult,
    _head,
    _of_bubblewrap,
    _possible,
    _size,
    _wait,
    isolation,
    run_python,
)
from refrl.rewards.sandbox_kinds import KINDS, Kind, command_of, order_of
from refrl.rewards.verifiers import VerifierError, VerifierTimeout
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example, refused

LIMITS = SandboxLimits(
    wall_seconds=30, cpu_seconds=7, memory_bytes=2**28, file_bytes=2**16, num_processes=17, num_open_files=19
)
PROBE = """
import json, os, resource, socket, sys
def attempt(call):
    try:
        call()
    except (OSError, ValueError, MemoryError) as error:
        return type(error).__name__
    return "done"
def write(path, size=1):
    with open(path, "wb") as file:
        file.write(bytes(size))
LIMITS = ("CPU", "AS", "FSIZE", "NPROC", "NOFILE", "CORE")
print(json.dumps({
    "fork": attempt(lambda: os.fork() or os._exit(0)),
    "signal": attempt(lambda: os.kill(os.getppid(), 0)),
    "memory file": attempt(lambda: os.memfd_create("x")),
    "socket": attempt(lambda: socket.socket().connect(("127.0.0.1", 9))),
    "outside": attempt(lambda: write("/var/tmp/refrl-probe")),
    "users": attempt(lambda: open("/etc/passwd").read()),
    "library": attempt(lambda: open(os.__file__).read()),
    "change of the library": attempt(lambda: open(os.__file__, "r+b")),
    "file in the library": attempt(lambda: os.open(os.path.dirname(os.__file__), os.O_TMPFILE | os.O_WRONLY)),
    "inside": attempt(lambda: write("own")),
    "largest": attempt(lambda: write("largest", 2**16)),
    "a byte too large": attempt(lambda: write("larger", 2**16 + 1)),
    "too large": attempt(lambda: write("large", 2**17)),
    "memory": attempt(lambda: bytearray(2**29)),
    "null": attempt(lambda: write("/dev/null")),
    "random": attempt(lambda: open("/dev/urandom", "rb").read(1)),
    "raised": attempt(lambda: resource.setrlimit(resource.RLIMIT_CPU, (8, 8))),
    "limits": {name: resource.getrlimit(getattr(resource, "RLIMIT_" + name)) for name in LIMITS},
    "environment": sorted(set(os.environ) - {"LC_CTYPE", "PWD"}),
    "files": sorted(set(os.listdir(".")) - {"own", "large", "largest", "larger"}),
    "isolated": (sys.flags.isolated, sys.flags.no_site, sys.flags.utf8_mode),
    "input": sys.stdin.read(),
}))
"""
"""Attempts everything that a sandbox refuses or allows, and says what came of it."""


UNCHANGED = ("change of the library", "file in the library")
RIGHTS = {version: 2 ** (12 + version) - 1 for version in (1, 2, 3)}
"""All rights on paths by version of Landlock: 13 of the first, one more of each of the next two (linux/landlock.h)."""


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_locks()
    yield from _of_ends()
    yield from _of_small_parts()
    yield from _of_a_process()


def _of_locks() -> Iterator[WorkedExample]:
    for kind in KINDS:
        yield example(f"what a program does in a sandbox of {kind}", [], _wrong, kind)
    yield example(
        "the strongest kind that runs", True, lambda: isolation().kind == next(filter(_runs, KINDS))
    )
    for version in (1, 2, 3, 9):
        yield example(f"rules on paths of version {version}", _right_rules(version), _rules, version)
    yield example("the sandbox of a run", True, lambda: sandbox_of(["code_output"]) == isolation().describe())


def _right_rules(version: int) -> Any:
    """Return the due rights: 1 executes, 2 writes a file, 4 reads one, 8 lists a folder, 2^14 truncates a file."""
    everything = RIGHTS[min(version, 3)]
    by_path = {
        "own": everything,
        "read": 1 + 4 + 8,
        "read.so": 1 + 4,
        "device": everything & (1 + 2 + 4 + 2**14),
    }
    return 0, everything, by_path, [7]


def _rules(version: int) -> Any:
    """Return what a kernel gets: the rights that are ruled, those of each path, and which rules take effect."""
    granted: dict[str, int] = {}
    ruled, used = [0], []

    def syscall(number: int, *words: Any) -> int:
        if number == sandbox_child.LANDLOCK_CREATE:
            if words[0] is None:
                return version
            ruled[0] = struct.unpack("=Q", words[0].raw[:8])[0]
            return 7
        if number == sandbox_child.LANDLOCK_ADD:
            rights, opened = struct.unpack("=Qi", words[2].raw[:12])
            granted[Path(f"/proc/self/fd/{opened}").readlink().name] = rights
        else:
            used.append(words[0])
        return 0

    close, library = os.close, type("Library", (), {"syscall": staticmethod(syscall)})()
    with tempfile.TemporaryDirectory() as folder:
        for name in ("own", "read"):
            Path(folder, name).mkdir()
        for name in ("read.so", "device"):
            Path(folder, name).touch()
        paths = [f"{folder}/{name}" for name in ("own", "read", "read.so", "device")]
        with (
            patch.object(sandbox_child, "_libc", library),
            patch("os.close", lambda number: None if number == 7 else close(number)),
        ):
            status = sandbox_child._allow_files(paths[0], paths[1:3], paths[3:])
    return status, ruled[0], granted, used


@cache
def _probed(kind: Kind) -> SandboxResult | str:
    """Return what the probe does in a kind of sandbox, or why the kind does not run here."""
    try:
        return run_python(PROBE, "é\n", LIMITS, kind)
    except VerifierError as error:
        return str(error)


def _runs(kind: Kind) -> bool:
    return not isinstance(_probed(kind), str)


def _wrong(kind: Kind) -> list[str]:
    """Return what differs from the locks that a kind reports, or why it does not run where it could."""
    result = _probed(kind)
    if isinstance(result, str):
        could = kind == "audit hook" or (kind == "landlock" and _has_landlock())
        return [result] if could else []
    if not result.succeeded:
        return [f"{result.outcome} with {result.return_code}: {result.stderr[-200:]}"]
    seen, locks = json.loads(result.stdout), result.isolation
    due: dict[str, Any] = {"inside": "done", "random": "done", "raised": "ValueError"}
    due |= {"environment": [], "files": ["program.py"], "isolated": [1, 1, 1], "input": "é\n"}
    due |= {"too large": "OSError", "memory": "MemoryError", "library": "done"}
    due |= {"largest": "done", "a byte too large": "OSError"}
    due |= {} if kind == "audit hook" else {"null": "done"}
    limits = {"CPU": 7, "AS": 2**28, "FSIZE": 2**16, "NPROC": 17, "NOFILE": 19, "CORE": 0}
    due["limits"] = {name: [value, value] for name, value in limits.items()}
    if locks.processes:
        due |= {"fork": "PermissionError", "signal": "PermissionError", "memory file": "PermissionError"}
        due["socket"] = "PermissionError"
    wrong = [f"{name}: {seen[name]}, right is {value}" for name, value in due.items() if seen[name] != value]
    refused_names = [*UNCHANGED, "outside", "users"] * (locks.files or kind == "audit hook") + [
        "socket"
    ] * locks.network
    wrong += [f"{name} is not refused" for name in refused_names if seen[name] == "done"]
    wrong += [f"it is reported as {locks.kind}"] * (locks.kind != kind)
    wrong += ["no lock on files"] * (kind != "audit hook" and not locks.files)
    return wrong


def _has_landlock() -> bool:
    """Return whether the kernel has rules on paths (landlock_create_ruleset asked for its version)."""
    return int(ctypes.CDLL(None, use_errno=True).syscall(444, None, 0, 1)) >= 1


def _of_ends() -> Iterator[WorkedExample]:
    yield example(
        "a program that a signal ends",
        ("killed", "a"),
        _ended,
        "print('a', end='', flush=True); import os; os.abort()",
    )
    small = SandboxLimits(file_bytes=5)
    yield example(
        "output of a program that is cut",
        ("exited", "12345"),
        _ended,
        "import os; os.write(1, b'123456789')",
        small,
    )
    yield example(
        "half of the tests", 0.5, code_output, "print(int(input()) + 1)", _tests("1", "2", "5", "5")
    )


def _ended(program: str, limits: SandboxLimits | None = None) -> Any:
    result = run_python(program, limits=limits)
    return result.outcome, result.stdout


def _tests(*words: str) -> str:
    pairs = zip(words[::2], words[1::2], strict=True)
    return json.dumps([{"stdin": f"{one}\n", "stdout": other} for one, other in pairs])


class _Endless:
    """A process that does not end; it notes how long it is waited for."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def wait(self, seconds: float) -> int:
        self.waits.append(seconds)
        raise subprocess.TimeoutExpired("made", seconds)


def _of_small_parts() -> Iterator[WorkedExample]:
    for kind, code, right in (
        ("bubblewrap", 128 + signal.SIGKILL, True),
        ("bubblewrap", 128 + signal.SIGXCPU, True),
        ("bubblewrap", 1, False),
        ("bubblewrap", 0, False),
        ("namespaces", 128 + signal.SIGKILL, False),
    ):
        yield example(f"{kind} with {code} is a signal", right, _of_bubblewrap, {"kind": kind}, code)
    yield example("a folder that outgrows its size", "killed", _waited, 4096)
    yield example("a folder within its size, and no time left", "timeout", _waited, 2**20)
    yield example("no time left", ("timeout", True), _out_of_time)
    yield example("limits of a program below those of this process", True, _limited)
    yield example("bytes of a file", "ab\ufffd", _read, b"ab\xffcd", 3)
    yield example("bytes of a folder", 8192, _folder)
    for text, similarity in (
        ("print(1)", 1.0),
        ("```python\nprint(23)\n```", 1.0),
        ("", 0.0),
        ("print(", (5 + 1 - 1 / 255) / 7),
        ("printa)", (5 + 1 - (97 - 40) / 255 + 1) / 7),
    ):
        yield example(f"the form of {text!r}", similarity, program_form, text, "")
    yield example("devices and what is readable in bubblewrap", [], _words)


def _waited(scratch: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "x").write_bytes(b"1" * 20_000)
        process: Any = _Endless()
        limits = SandboxLimits(wall_seconds=0.05, scratch_bytes=scratch)
        return _wait(process, limits, Path(folder))


def _out_of_time() -> Any:
    """Return how the wait for a process ends, and whether the wall clock alone limits it."""
    process: Any = _Endless()
    outcome = _wait(process, SandboxLimits(wall_seconds=0.01, cpu_seconds=9), None)
    return outcome, all(0 < seconds <= 0.01 for seconds in process.waits)


def _limited() -> bool:
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = _possible(SandboxLimits(num_open_files=2**40))["RLIMIT_NOFILE"]
    fewest = _possible(SandboxLimits(num_open_files=3))["RLIMIT_NOFILE"]
    return most == (2**40 if hard == resource.RLIM_INFINITY else hard) and fewest == 3


def _read(content: bytes, most: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x")
        path.write_bytes(content)
        return _head(path, most)


def _folder() -> int:
    """Return the size of a folder with files of 1 and 4,096 bytes, one of them in a folder within."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a").mkdir()
        Path(folder, "a", "x").write_bytes(b"1")
        Path(folder, "y").write_bytes(b"1" * 4096)
        blocks = sum(path.lstat().st_blocks * 512 for path in Path(folder).rglob("*") if path.is_file())
        return 8192 + _size(Path(folder)) - blocks


def _words() -> list[str]:
    """Return what is wrong with bubblewrap's words (its manual: bwrap(1))."""
    order = order_of("bubblewrap", limits={}, scratch_bytes=77, program=Path("/p.py"), root=Path("/r"))
    words = command_of(order, 5)
    pairs = {tuple(words[place : place + 3]) for place in range(len(words))}
    due = {("--dev-bind", path, path) for path in order["devices"]}
    due |= {("--ro-bind", path, path) for path in order["readable"]}
    due |= {("--size", "77", "--tmpfs"), ("--ro-bind", "/p.py", "/sandbox/program.py")}
    due |= {("--remount-ro", "/", "--chdir"), ("--chdir", "/sandbox", "--")}
    alone = {"--unshare-all", "--die-with-parent"} - set(words)
    return sorted(map(str, (due - pairs) | alone))


WORKER = """
import json, sys, time
for line in sys.stdin:
    request = json.loads(line)
    word = request["completion"]
    if word == "slow":
        time.sleep(60)
    if word == "die":
        break
    equal = word == request["answer"] or str(len(word)) == request["answer"]
    print(json.dumps({"error": "why"} if word == "fail" else {"equal": equal}), flush=True)
"""
"""Answers as the process of `refrl.rewards.math_worker` does."""


def _of_a_process() -> Iterator[WorkedExample]:
    for words, right in (
        ([("a", "a"), ("a", "b"), ("b", "b")], [1.0, 0.0, 1.0]),
        ([("x" * (MAX_LETTERS + 1), str(MAX_LETTERS))], [1.0]),
        ([("fail", "a"), ("a", "a")], ["VerifierError: math_equivalence: why", 1.0]),
        ([("die", "a")], ["VerifierError: math_equivalence: its process ended"]),
        ([("slow", "a")], ["VerifierTimeout: math_equivalence: no verdict within 0.2 s"]),
    ):
        yield example(f"a process that judges {words[0][0][:5]!r}", right, _judged, words)
    yield example("a process that is left alone by a child", (True, None), _not_ours)
    yield refused("", "a process that cannot be spoken to", _closed_input)


def _verifier(seconds: float = 30.0) -> Any:
    verifier: Any = MathVerifier(seconds)
    verifier._worker = subprocess.Popen(
        [sys.executable, "-S", "-c", WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    verifier._owner = os.getpid()
    return verifier


def _judged(words: list[tuple[str, str]]) -> list[Any]:
    verifier = _verifier(0.2 if words[0][0] == "slow" else 30.0)
    worker, found = verifier._worker, []
    try:
        for completion, answer in words:
            try:
                found.append(verifier(completion, answer))
            except (VerifierError, VerifierTimeout) as error:
                found.append(f"{type(error).__name__}: {str(error).split(' (')[0]}")
        # After an end or a time-out there is no process, and after an error there is the same one.
        assert verifier._worker is (None if words[0][0] in ("die", "slow") else worker)
    finally:
        verifier.close()
    assert worker.poll() is not None, "the process outlives its verifier"
    return found


def _not_ours() -> Any:
    verifier = _verifier()
    worker, verifier._owner = verifier._worker, -1
    verifier.close()
    is_running, left = worker.poll() is None, verifier._worker
    verifier._worker, verifier._owner = worker, os.getpid()
    verifier.close()
    return is_running, left


def _closed_input() -> None:
    verifier = _verifier()
    verifier._worker.stdin.close()
    try:
        verifier("a", "a")
    finally:
        verifier.close()
