"""Worked examples of sandboxes: the probe, what is watched and closed, what the audit hook refuses."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from refrl.rewards import sandbox, sandbox_audit, sandbox_child
from refrl.rewards.sandbox import Isolation, SandboxLimits, SandboxResult
from refrl.rewards.sandbox_kinds import AUDIT, CHILD, KINDS, command_of, executable, order_of, readable_paths
from refrl.rewards.verifiers import VerifierError
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example, refused

PATHS = (
    *("chdir", "chmod", "chown", "link", "listxattr", "getxattr", "setxattr", "mkdir", "remove", "rename"),
    *("rmdir", "symlink", "truncate", "utime"),
)
"""Events of `os` about paths, which are refused outside of the program's folder."""
REFUSED = (
    *("ctypes.dlopen", "socket.connect", "subprocess.Popen", "os.exec", "os.fork", "os.forkpty"),
    *("os.posix_spawn", "os.system", "os.kill", "os.killpg"),
)
MODULES = ("ctypes", "_ctypes", "_posixshmem", "mmap", "multiprocessing", "_multiprocessing")
LOCKS = {"network_namespace": False, "files": False, "processes": False}


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    right: Any
    for num_failing in range(3):
        right = (KINDS[num_failing], list(KINDS[: num_failing + 1]), {(60, 30)}, min(num_failing, 1))
        yield example(
            f"the sandbox where the first {num_failing} kinds do not run", right, _probed, num_failing
        )
    first = ["--unshare-all", "--die-with-parent", "--cap-drop", "ALL", "--uid", "65534", "--gid", "65534"]
    binds = ["--ro-bind", str(CHILD), "/sandbox_child.py", "--ro-bind", "/r", "/r", "--dev-bind", "/d", "/d"]
    binds += ["--size", "7", "--tmpfs", "/sandbox", "--ro-bind", "/p", "/sandbox/program.py"]
    right = [*first, *binds, "--remount-ro", "/", "--chdir", "/sandbox", "--"]
    yield example("the words of bwrap", ("bwrap", right, 3), _words, "bubblewrap")
    for kind in ("namespaces", "landlock", "audit hook"):
        yield example(f"the words of a child in {kind}", (executable(), [str(CHILD)], 3), _words, kind)
    for kind in KINDS:
        yield example(f"what a child in {kind} is given", [], _order, kind)
    yield refused("audit hook: exited with 1: why", "no sandbox that runs", _probed, len(KINDS))
    for kind in KINDS:
        is_watched = kind in ("landlock", "audit hook")
        yield example(f"a program in {kind}", (is_watched, 0), _ran, kind, True)
    yield example(
        "a sandbox that cannot be started", ("the sandbox cannot start /none", 0), _ran, KINDS[0], False
    )
    for number in (
        signal.SIGKILL,
        signal.SIGXCPU,
        signal.SIGXFSZ,
        signal.SIGSEGV,
        signal.SIGABRT,
        signal.SIGSYS,
    ):
        yield example(f"bwrap's code for {number.name}", True, _of_signal, number)
    yield example("bwrap's code for SIGTERM", False, _of_signal, signal.SIGTERM)
    for names, right in (
        (("network_namespace",), (True, False, False)),
        (("processes",), (True, False, True)),
        (("files",), (False, True, False)),
    ):
        yield example(f"the locks of a report with {names}", right, _locks, names)
    yield example("descriptors of rules on paths", [9, 9, 9, 7], _closed_rules)
    yield from _of_hooks()


def _words(kind: Any) -> Any:
    """Return what is started, the words before the order of a child, and its last word."""
    order = {"kind": kind, "readable": ["/r"], "devices": ["/d"], "scratch_bytes": 7, "program": "/p"}
    with patch("shutil.which", lambda name: None):
        first, *words = command_of(order, 3)
    place = words.index("-I")
    given = [executable()] if kind == "bubblewrap" else []
    script = "/sandbox_child.py" if kind == "bubblewrap" else str(CHILD)
    assert words[place + 1 : place + 4] == ["-S", "-B", script] and json.loads(words[-2]) == order
    assert words[max(place - 1, 0) : place] == given
    return first, words[: place - 1] if kind == "bubblewrap" else [script], int(words[-1])


def _order(kind: Any) -> list[str]:
    """Return the names of what an order has wrong."""
    limits = {"RLIMIT_CPU": 2}
    found = order_of(kind, limits=limits, scratch_bytes=7, program=Path("/p"), root=Path("/o"))
    devices = [path for path in ("/dev/null", "/dev/urandom") if Path(path).exists()]
    right = {
        "kind": kind,
        "executable": executable(),
        "limits": {"RLIMIT_CPU": 2},
        "scratch_bytes": 7,
        "program": "/p",
        "root": "/o",
        "devices": devices,
        "audit": str(AUDIT),
        "readable": [*readable_paths(), *([str(AUDIT)] if kind == "audit hook" else [])],
    }
    assert found["limits"] is not limits and any(map(Path(os.__file__).is_relative_to, readable_paths()))
    return [name for name in {**found, **right} if found.get(name) != right.get(name)]


def _probed(num_failing: int) -> Any:
    """Return the kind that holds programs, those tried, the limits of the probes, and the number of warnings."""
    tried: list[Any] = []
    given: set[Any] = set()

    def run(program: str, *, limits: SandboxLimits, kind: Any) -> SandboxResult:
        tried.append(kind)
        given.add((limits.wall_seconds, limits.cpu_seconds))
        held = Isolation(kind, True, True, True)
        if len(tried) <= num_failing:
            if len(tried) == 1:
                raise VerifierError("no")
            return SandboxResult("exited", 1, "", " why\n", 0.0, held)
        return SandboxResult("exited", 0, "42\n", "", 0.0, held)

    with patch.object(sandbox, "run_python", run), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found = sandbox.isolation.__wrapped__()
    return found.kind, tried, given, len(warned)


def _descriptors() -> int:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def _ran(kind: str, starts: bool) -> Any:
    """Return whether the program's folder is watched, or the error, and how many descriptors stay open."""
    watched: list[Any] = []

    def command(order: Any, report_fd: int) -> list[str]:
        return ["/bin/sh", "-c", f"echo '{{}}' >&{report_fd}"] if starts else ["/none"]

    def wait(process: Any, limits: SandboxLimits, folder: Path | None) -> str:
        process.wait()
        watched.append(folder is not None)
        return "exited"

    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(sandbox, "command_of", command),
        patch.object(sandbox, "_wait", wait),
    ):
        files = {name: Path(folder, name) for name in ("stdin", "stdout", "stderr")}
        files["stdin"].touch()
        before = _descriptors()
        try:
            sandbox._run(Path(folder), files, SandboxLimits(), {"kind": kind})
        except VerifierError as error:
            watched.append(str(error).partition(":")[0])
        return watched[0], _descriptors() - before


def _of_signal(number: signal.Signals) -> bool:
    return sandbox._of_bubblewrap({"kind": "bubblewrap"}, 128 + number)


def _locks(names: Sequence[str]) -> Any:
    """Return the locks that a run reports of a child's report."""
    report = {**LOCKS, **dict.fromkeys(names, True)}
    with patch.object(sandbox, "_run", lambda inside, files, *more: _done(files, report)):
        held = sandbox.run_python("", kind="landlock").isolation
    return held.network, held.files, held.processes


def _done(files: Any, report: Any) -> Any:
    for name in ("stdout", "stderr"):
        files[name].touch()
    return "exited", 0, 0.0, report


def _closed_rules() -> list[int]:
    closed: list[int] = []
    answers = iter((3, 7, *(0,) * 9))
    with (
        patch.object(sandbox_child, "_libc", SimpleNamespace(syscall=lambda *words: next(answers))),
        patch.object(os, "open", lambda path, flags: 9),
        patch.object(os, "close", closed.append),
    ):
        sandbox_child._allow_files("/own", ["/read"], ["/null"])
    return closed


def _of_hooks() -> Iterator[WorkedExample]:
    path: Any
    hook = sandbox_audit._guard("/own", ("/read",))
    for name in PATHS:
        for path, permits in (("/own/a", True), ("/read/a", False), ("/own/../a", False)):
            yield _asked(hook, f"os.{name}", (path, -1), permits)
    for name in ("rename", "link", "symlink"):
        yield _asked(hook, f"os.{name}", ("/own/a", "/read/b", -1, -1), False)
    for name in ("os.listdir", "os.scandir"):
        for path, permits in (("/own", True), ("/read", True), ("/etc", False), (b"/etc", False)):
            yield _asked(hook, name, (path,), permits)
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC, os.O_APPEND):
        yield _asked(hook, "open", ("/read/a", None, flags), False)
    for path, permits in ((2, True), (3, False), (None, True), ("/ownly/a", False), ("/own/a", True)):
        yield _asked(hook, "open", (path, None, os.O_RDWR), permits)
    for event in REFUSED:
        yield _asked(hook, event, (), False)
    for name in MODULES:
        yield _asked(hook, "import", (name, None), False)
    for event in ("compile", "os.getcwd", "time.sleep"):
        yield _asked(hook, event, ("x",), True)
    error = ("PermissionError", 1, "the sandbox permits no access", "/etc")
    yield example("the error of the audit hook", error, _refusal, hook, ("open", ("/etc", None, 0)))


def _asked(hook: Any, event: str, words: tuple[Any, ...], permits: bool) -> WorkedExample:
    name = f"the audit hook of one folder and {event} of {words}"
    return (
        example(name, None, hook, event, words)
        if permits
        else refused("the sandbox", name, hook, event, words)
    )


def _refusal(hook: Any, asked: tuple[str, Any]) -> Any:
    try:
        hook(*asked)
    except OSError as error:
        return type(error).__name__, error.errno, error.strerror, error.filename
    return None
