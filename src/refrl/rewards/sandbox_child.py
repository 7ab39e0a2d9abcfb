"""What stands between the sandbox and the program: locks this process down, then becomes the program.

Run as a file by `refrl.rewards.sandbox`; imports nothing but the standard library and prints nothing. Every lock is
tried; which of them took is written to the report as JSON, for the caller to show. x86-64 and AArch64 Linux.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import resource
import struct
import sys
from collections.abc import Callable
from pathlib import Path

CLONE_NEWUSER, CLONE_NEWNET, CLONE_THREAD = 0x10000000, 0x40000000, 0x00010000
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
EPERM, ENOSYS = 1, 38
# (architecture of the audit interface, {what is refused: system call numbers}); clone3 is said not to exist, so
# that the C library falls back to clone, whose flags a filter can read.
ARCHITECTURES = {
    "x86_64": (
        0xC000003E,
        {
            "fork": (57, 58),
            "clone": (56,),
            "clone3": (435,),
            "signal": (62, 200, 234, 129, 297, 424, 101, 310, 311),
            "network": (41, 53, 425),
            "limits": (160,),
            "prlimit": (302,),
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "fork": (),
            "clone": (220,),
            "clone3": (435,),
            "signal": (129, 130, 131, 138, 240, 424, 117, 270, 271),
            "network": (198, 199, 425),
            "limits": (164,),
            "prlimit": (261,),
        },
    ),
}
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
# Write, remove, make of every kind; refer and truncate came with versions 2 and 3.
LANDLOCK_WRITES = {1: 0x1FF2, 2: 0x3FF2, 3: 0x7FF2}
_libc = ctypes.CDLL(None, use_errno=True)


def main(limits: dict[str, int], report_fd: int, program: str) -> None:
    """Lock down, report, become the program."""
    report = {
        "network_namespace": _succeeds(lambda: _libc.unshare(CLONE_NEWUSER | CLONE_NEWNET)),
    }
    _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    report["files"] = _succeeds(lambda: _allow_writes_only_in(str(Path.cwd())))
    for name, value in limits.items():
        resource.setrlimit(getattr(resource, name), (value, value))
    report["processes"] = _succeeds(_filter_system_calls)
    with os.fdopen(report_fd, "w") as stream:
        json.dump(report, stream)
    os.execv(sys.executable, [sys.executable, "-I", "-S", "-B", "-X", "utf8", program])


def _succeeds(action: Callable[[], int]) -> bool:
    with contextlib.suppress(OSError):
        return action() == 0
    return False


def _allow_writes_only_in(folder: str) -> int:
    """Landlock: refuse every write outside the folder (and /dev/null)."""
    version = _libc.syscall(LANDLOCK_CREATE, None, 0, 1)
    if version < 1:
        return -1
    writes = LANDLOCK_WRITES[min(version, max(LANDLOCK_WRITES))]
    rules = ctypes.create_string_buffer(struct.pack("=Q", writes), 8)
    ruleset = _libc.syscall(LANDLOCK_CREATE, rules, 8, 0)
    if ruleset < 0:
        return -1
    for path, access in ((folder, writes), ("/dev/null", writes & 0x4002)):
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        beneath = ctypes.create_string_buffer(struct.pack("=Qi", access, opened), 12)
        if _libc.syscall(LANDLOCK_ADD, ruleset, 1, beneath, 0):
            return -1
        os.close(opened)
    done: int = _libc.syscall(LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)
    return done


def _filter_system_calls() -> int:
    """Seccomp: no new process, no socket, no signal to another process, no change of limits."""
    if platform.machine() not in ARCHITECTURES:
        return -1
    architecture, numbers = ARCHITECTURES[platform.machine()]
    program = [
        _instruction(0x20, 4),  # the architecture of the call
        _instruction(0x15, architecture, 1, 0),
        _instruction(0x06, KILL),
        _instruction(0x20, 0),  # its number
        _instruction(0x35, 0x40000000, 0, 1),  # x32 calls have other numbers
        _instruction(0x06, KILL),
    ]
    for what in ("fork", "signal", "network", "limits"):
        for number in numbers[what]:
            program += [_instruction(0x15, number, 0, 1), _instruction(0x06, ERRNO | EPERM)]
    for number in numbers["clone3"]:
        program += [_instruction(0x15, number, 0, 1), _instruction(0x06, ERRNO | ENOSYS)]
    for number in numbers["clone"]:  # threads only
        program += [
            _instruction(0x15, number, 0, 4),
            _instruction(0x20, 16),
            _instruction(0x45, CLONE_THREAD, 0, 1),
            _instruction(0x06, ALLOW),
            _instruction(0x06, ERRNO | EPERM),
        ]
    for number in numbers["prlimit"]:  # reading one's own limits only: process 0, no new limit
        program += [_instruction(0x15, number, 0, 8)]
        for skip, offset in ((5, 16), (3, 32), (1, 36)):
            program += [_instruction(0x20, offset), _instruction(0x15, 0, 0, skip)]
        program += [_instruction(0x06, ALLOW), _instruction(0x06, ERRNO | EPERM)]
    program += [_instruction(0x06, ALLOW)]
    code = ctypes.create_string_buffer(b"".join(program))
    filtered = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    done: int = _libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filtered, 0, 0)
    return done


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Return one instruction of the filter; jumps count instructions to skip."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
