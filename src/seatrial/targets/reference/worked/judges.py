"""Worked examples of processes that judge answers: what they are started with, wait for and are locked into."""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from refrl.rewards import math as math_rewards
from refrl.rewards import math_worker, sandbox, sandbox_child
from refrl.rewards.sandbox import SandboxLimits
from refrl.rewards.sandbox_kinds import KINDS, Kind
from refrl.rewards.verifiers import VerifierError, judge
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked import equivalences
from seatrial.targets.reference.worked.made import example, refused

SECONDS = SandboxLimits(wall_seconds=3.0, cpu_seconds=9)


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_verifiers()
    yield from _of_mounts()
    yield from _of_locks()
    yield from equivalences.examples()
    said = "seatrial.targets.reference.worked.judges:_raises raised ValueError: two lines"
    yield example("words of a verifier's error", said, _words)


def _of_verifiers() -> Iterator[WorkedExample]:
    for words, last in (("echo one >&2; echo two >&2", "two"), ("exit 3", "exited")):
        yield refused(
            f"the sandbox could not be set up: {last}", f"a sandbox that does {words!r}", _set_up, words
        )
    look = 1 / sandbox._LOOKS_PER_SECOND
    for end, size, is_watched, right in (
        (None, 0, False, ("timeout", 3.0, 3.0)),
        (2.5, 0, False, ("exited", 2.5, 3.0)),
        (None, 0, True, ("timeout", 3.0, look)),
        (1.0, 0, True, ("exited", 1.0, look)),
        (None, SECONDS.scratch_bytes, True, ("timeout", 3.0, look)),
        (None, SECONDS.scratch_bytes + 1, True, ("killed", look, look)),
    ):
        what = f"a program that ends at {end} with {size} bytes, watched: {is_watched}"
        yield example(what, right, _waited, end, size, is_watched)
    yield example("the process of a verifier", (True, True, 1, True, [120.0], 2), _process)
    answers = [{"ready": True}, {"equal": "a1"}, {"equal": "b2"}]
    for hard, limit in ((-1, 4 * 2**30), (2**20, 2**20), (2**40, 4 * 2**30)):
        yield example(f"a worker under a limit of {hard}", (answers, [(limit, limit)]), _worker, hard)


def _set_up(words: str) -> Any:
    def command(*_: Any) -> list[str]:
        return ["/bin/sh", "-c", words]

    with tempfile.TemporaryDirectory() as folder, patch.object(sandbox, "command_of", command):
        files = {name: Path(folder, name) for name in ("stdin", "stdout", "stderr")}
        files["stdin"].touch()
        return sandbox._run(Path(folder), files, SECONDS, {"kind": "audit hook"})


def _waited(end: float | None, size: int, is_watched: bool) -> Any:
    """Return how a program ends, when, and how long was waited at first; on a clock that the waiting moves."""
    now, waits = [100.0], []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if end is not None and now[0] + seconds >= 100.0 + end:
            now[0] = 100.0 + end
            return
        now[0] += seconds
        raise subprocess.TimeoutExpired("program", seconds)

    with (
        patch.object(sandbox, "time", SimpleNamespace(monotonic=lambda: now[0])),
        patch.object(sandbox, "_size", lambda folder: size),
    ):
        outcome = sandbox._wait(SimpleNamespace(wait=wait), SECONDS, Path() if is_watched else None)  # type: ignore[arg-type]
    return outcome, now[0] - 100.0, waits[0]


def _process() -> Any:
    """Return how a verifier's process is started and kept, how often it is made, and that its end is due at exit."""
    made: list[Any] = []
    due: list[Any] = []
    read: list[float] = []

    def popen(command: Sequence[str], **options: Any) -> Any:
        made.append((tuple(command), options))
        return SimpleNamespace(
            poll=lambda: ends.get(len(made)), pid=0, wait=lambda: 0, stdin=None, stdout=None
        )

    ends: dict[int, int] = {}
    fake: Any = SimpleNamespace(Popen=popen, PIPE=-1, DEVNULL=-3)
    with (
        patch.object(math_rewards, "subprocess", fake),
        patch.object(math_rewards, "atexit", SimpleNamespace(register=due.append)),
        patch.object(math_rewards.MathVerifier, "_read", lambda self, worker, seconds: read.append(seconds)),
    ):
        verifier = math_rewards.MathVerifier()
        same = verifier._running() is verifier._running()
        first = (len(made), list(read), due == [verifier.close])
        ends[1] = 0
        verifier._running()
        command, options = made[0]
        piped = options["stdin"] == options["stdout"] == -1
        apart = command == math_rewards.COMMAND and options["start_new_session"] and piped
    return same, apart, first[0], first[2], first[1], len(made)


def _worker(hard: int) -> Any:
    lines = "".join(
        json.dumps({"completion": one, "answer": str(at)}) + "\n" for at, one in ((1, "a"), (2, "b"))
    )
    limits: list[Any] = []
    fake = SimpleNamespace(
        RLIMIT_AS=9,
        RLIM_INFINITY=-1,
        getrlimit=lambda of: (5, hard),
        setrlimit=lambda of, pair: limits.append(pair),
    )
    with (
        redirect_stdout(io.StringIO()) as printed,
        patch.object(math_worker, "resource", fake),
        patch.object(math_worker, "sys", SimpleNamespace(stdin=io.StringIO(lines))),
        patch.object(math_worker, "judge", lambda completion, answer: {"equal": completion + answer}),
    ):
        math_worker.main()
    return [json.loads(line) for line in printed.getvalue().splitlines()], limits


def _of_locks() -> Iterator[WorkedExample]:
    for kind in KINDS:
        for network, files, calls in ((0, 0, 0), (-1, 0, -1), (0, -1, 0)):
            what = f"the locks of {kind} where the kernel answers {network}, {files}, {calls}"
            if kind == "landlock" and files:
                yield refused("the kernel has no Landlock", what, _locked, kind, network, files, calls)
            else:
                yield example(what, _locks(kind, network, files, calls), _locked, kind, network, files, calls)
    for failing in range(4):
        yield example(f"rules on paths of which call {failing} fails", -1, _ruled, failing)
    yield example("rules on paths", 0, _ruled, None)


def _locks(kind: Kind, network: int, files: int, calls: int) -> list[Any]:
    """Return the due calls of the kernel, the report and the program, in this order."""
    own_root = [("root", "/root", "/program", ["/read", "/null"], 4096)]
    unshared = [("unshare", 0x10000000 + 0x40000000)]  # CLONE_NEWUSER + CLONE_NEWNET
    first = {"namespaces": own_root, "bubblewrap": []}.get(kind, unshared)
    is_ruled = kind != "audit hook" and files == 0
    report = {
        "network_namespace": kind in ("namespaces", "bubblewrap") or network == 0,
        "files": is_ruled or kind in ("namespaces", "bubblewrap"),
        "processes": calls == 0,
    }
    hook = ["audit.py", [str(Path.cwd()), "/read", "/null"]] if kind == "audit hook" else []
    return [
        *first,
        ("prctl", 38, 1),  # PR_SET_NO_NEW_PRIVS
        *([] if kind == "audit hook" else [("files", str(Path.cwd()), ["/read"], ["/null"])]),
        ("limit", resource.RLIMIT_CPU, (7, 7)),
        ("limit", resource.RLIMIT_CORE, (0, 0)),
        "calls",
        report,
        ("program", "/python", ["/python", "-I", "-S", "-B", "-X", "utf8", *hook, "program.py"]),
    ]


def _locked(kind: Kind, network: int, files: int, calls: int) -> list[Any]:
    """Return what a child does before it becomes the program, where the kernel answers so."""
    noted: list[Any] = []

    def asked(answer: int, *words: Any) -> int:
        noted.append(words if len(words) > 1 else words[0])
        return answer

    def become(path: str, words: Sequence[str]) -> None:
        read = [json.loads(word) if word.startswith("[") else word for word in words]
        noted.append(("program", path, read))

    order = {
        "kind": kind,
        "readable": ["/read"],
        "devices": ["/null"],
        "root": "/root",
        "program": "/program",
        "scratch_bytes": 4096,
        "limits": {"RLIMIT_CPU": 7, "RLIMIT_CORE": 0},
        "executable": "/python",
        "audit": "audit.py",
    }
    library = SimpleNamespace(
        unshare=lambda number: asked(network, "unshare", number),
        prctl=lambda of, value, *zeros: asked(0, "prctl", of, value),
    )
    with tempfile.TemporaryFile("w+") as report, ExitStack() as stack:
        kept = os.dup(report.fileno())
        for owner, name, fake in (
            (sandbox_child, "_libc", library),
            (sandbox_child, "_private_root", lambda *words: asked(0, "root", *words)),
            (sandbox_child, "_allow_files", lambda *words: asked(files, "files", *words)),
            (sandbox_child, "_filter_system_calls", lambda: asked(calls, "calls")),
            (resource, "setrlimit", lambda of, pair: asked(0, "limit", of, pair)),
            (os, "execv", become),
        ):
            stack.enter_context(patch.object(owner, name, fake))
        try:
            sandbox_child.main(order, kept)
        except OSError:
            os.close(kept)
            raise
        report.seek(0)
        noted.insert(-1, json.load(report))
    return noted


def _ruled(failing: int | None) -> int:
    """Return the answer to rules on one folder, of which a call fails; none is an error without Landlock."""
    calls = iter(range(9))
    library = SimpleNamespace(
        syscall=lambda *words: -1 if (at := next(calls)) == failing else (3, 7, 0, 0)[at]
    )
    with (
        patch.object(sandbox_child, "_libc", library),
        patch.object(os, "open", lambda path, flags: 9),
        patch.object(os, "close", lambda number: None),
    ):
        return sandbox_child._allow_files("/", [], [])


def _of_mounts() -> Iterator[WorkedExample]:
    flags = sandbox_child
    keeps = (flags.MS_NOSUID, flags.MS_NODEV, flags.MS_NOEXEC, flags.MS_NOATIME, flags.MS_NODIRATIME)
    for had, due in (
        *((flag, flag) for flag in keeps),
        (sum(keeps), sum(keeps)),
        (0, 0),
        (os.ST_RELATIME, flags.MS_RELATIME),
        (os.ST_RDONLY, 0),
    ):
        yield example(f"mounts of a private root, of flags {had}", _mounts(due), _private, had)


def _mounts(kept: int) -> list[Any]:
    """Return the due calls: its own namespaces and a root in memory, with what is readable bound for reading."""
    bound, read_only = 4096 + 16384, 1 + 32 + 4096  # MS_BIND + MS_REC; MS_RDONLY + MS_REMOUNT + MS_BIND
    return [
        ("unshare", 0x00020000 + 0x10000000 + 0x40000000 + 0x08000000),
        ("setgroups", "deny"),
        ("uid_map", f"65534 {os.getuid()} 1"),
        ("gid_map", f"65534 {os.getgid()} 1"),
        ("mount", b"none", b"/", None, 16384 + 2**18, None),
        ("mount", b"tmpfs", b"", b"tmpfs", 2 + 4, b"size=4096,nr_inodes=1024,mode=0755"),
        *(
            ("mount", source, target, None, number, None)
            for name in (b"/file", b"/folder")
            for source, target, number in ((name, name, bound), (b"none", name, read_only + kept))
        ),
        ("chdir", ""),
        ("pivot_root", b".", b"."),
        ("umount2", b".", 2),
        ("chdir", "/sandbox"),
        ("written", True, True, "text"),
    ]


def _private(flags: int) -> list[Any]:
    """Return what the kernel is asked for a private root, with paths below the root and below the given ones."""
    noted: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        root, given = Path(folder, "root"), Path(folder, "given")
        for path in (root, given / "folder"):
            path.mkdir(parents=True)
        (given / "file").touch()
        program = given / "program"
        program.write_text("text")

        def short(word: bytes | None) -> bytes | None:
            for of in (os.fsencode(f"{root}{given}"), os.fsencode(given), os.fsencode(root)):
                word = None if word is None else word.removeprefix(of)
            return word

        def mount(source: Any, target: Any, kind: Any, number: Any, options: Any) -> int:
            noted.append(("mount", short(source), short(target), kind, number.value, options))
            return 0

        def syscall(number: int, *words: Any) -> int:
            noted.append((*(["pivot_root"] if number in (155, 41) else [number]), *words))
            return 0

        def asked(*words: Any) -> int:
            noted.append(words)
            return 0

        def wrote(self: Path, text: str) -> None:
            noted.append((self.name, text))

        library = SimpleNamespace(
            unshare=lambda number: asked("unshare", number),
            mount=mount,
            syscall=syscall,
            umount2=lambda of, number: asked("umount2", of, number),
        )
        with ExitStack() as stack:
            for owner, name, fake in (
                (sandbox_child, "_libc", library),
                (Path, "write_text", wrote),
                (os, "chdir", lambda to: noted.append(("chdir", os.fsdecode(short(os.fsencode(to)) or b"")))),
                (os, "statvfs", lambda place: SimpleNamespace(f_flag=flags)),
            ):
                stack.enter_context(patch.object(owner, name, fake))
            readable = [str(given / "file"), str(given / "folder")]
            sandbox_child._private_root(str(root), str(program), readable, 4096)
        shown = Path(f"{root}{given}")
        text = (root / "sandbox/program.py").read_text()
        noted.append(("written", (shown / "file").is_file(), (shown / "folder").is_dir(), text))
    return noted


def _raises(completion: str, answer: str) -> float:
    raise ValueError(completion)


def _words() -> str:
    try:
        judge(_raises, "two\n  lines\n", "")
    except VerifierError as error:
        return str(error)
    return ""
