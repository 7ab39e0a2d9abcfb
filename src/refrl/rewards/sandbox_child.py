"""The process between the sandbox and the program: restricts itself, then executes the program.

Run as a file by `refrl.rewards.sandbox`; imports nothing but the standard library and prints nothing. Every restriction
is tried; those that took effect are written to the report as JSON. If one that the sandbox kind relies on fails, the
child exits with the error. x86-64 and AArch64 Linux.
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
from typing import Any

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x08000000, 0x10000000, 0x40000000
CLONE_THREAD = 0x00010000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_NOATIME, MS_NODIRATIME, MS_BIND, MS_REC, MS_PRIVATE, MS_RELATIME = (
    32, 1024, 2048, 4096, 16384, 1 << 18, 1 << 21,
)  # fmt: skip
MNT_DETACH = 2
NUM_INODES = 1024
"""Files and folders of the scratch folder, those that stand for what is readable included."""
OVERFLOW_ID = 65534
WORK = "/sandbox"
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
EPERM, ENOSYS = 1, 38
# (architecture of the audit interface, {what is refused: system call numbers}); clone3 is said not to exist, so
# that the C library falls back to clone, whose flags a filter can read.
# "shared": System V and POSIX shared memory, semaphores and queues, memory files, keys: they outlive a process, or are
# not counted as its memory. "kernel": mounts and namespaces, other processes, what only the system may do.
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
            "shared": (29, 30, 31, 64, 65, 66, 68, 69, 70, 71, 220, 240, 319, 447, 248, 249, 250),
            "kernel": (
                165, 166, 155, 161, 272, 308, 428, 429, 430, 431, 432, 433, 442, 303, 304, 434, 438, 440, 426, 427,
                298, 321, 323, 175, 313, 246, 320, 167, 169,
            ),
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
            "shared": (194, 195, 196, 197, 190, 191, 192, 193, 186, 187, 188, 189, 180, 279, 447, 217, 218, 219),
            "kernel": (
                40, 39, 41, 51, 97, 268, 428, 429, 430, 431, 432, 433, 442, 264, 265, 434, 438, 440, 426, 427,
                241, 280, 282, 105, 273, 104, 294, 224, 142,
            ),
        },
    ),
}  # fmt: skip
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
# Everything: execute, read, write, remove, make of every kind; refer and truncate came with versions 2 and 3.
LANDLOCK_ALL = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF}
LANDLOCK_READ, LANDLOCK_OF_FILES = 0x000D, 0x4007
_libc = ctypes.CDLL(None, use_errno=True)


def main(order: dict[str, Any], report_fd: int) -> None:
    """Lock down, report, become the program."""
    kind, readable, devices = order["kind"], order["readable"], order["devices"]
    if kind == "namespaces":
        _private_root(order["root"], order["program"], [*readable, *devices], order["scratch_bytes"])
        network = True
    else:
        network = kind == "bubblewrap" or _succeeds(lambda: _libc.unshare(CLONE_NEWUSER | CLONE_NEWNET))
    _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    ruled = kind != "audit hook" and _succeeds(lambda: _allow_files(str(Path.cwd()), readable, devices))
    if kind == "landlock" and not ruled:
        raise OSError(ENOSYS, "the kernel has no Landlock")
    for name, value in order["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    filtered = _succeeds(_filter_system_calls)
    report = {
        "network_namespace": network,
        "files": ruled or kind in ("bubblewrap", "namespaces"),
        "processes": filtered,
    }
    with os.fdopen(report_fd, "w") as stream:
        json.dump(report, stream)
    words = [order["executable"], "-I", "-S", "-B", "-X", "utf8"]
    if kind == "audit hook":
        words += [order["audit"], json.dumps([str(Path.cwd()), *readable, *devices])]
    os.execv(order["executable"], [*words, "program.py"])


def _private_root(root: str, program: str, readable: list[str], scratch_bytes: int) -> None:
    """Make `root`, an empty folder, the root of this process: what is readable, and a scratch folder in memory."""
    if platform.machine() not in PIVOT_ROOT:
        raise OSError(ENOSYS, f"the number of pivot_root on {platform.machine()} is not known")
    text = Path(program).read_bytes()
    user, group = os.getuid(), os.getgid()
    _must("unshare", _libc.unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC))
    for name, line in (
        ("setgroups", "deny"),
        ("uid_map", f"{OVERFLOW_ID} {user} 1"),
        ("gid_map", f"{OVERFLOW_ID} {group} 1"),
    ):
        Path("/proc/self", name).write_text(line)
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    options = f"size={scratch_bytes},nr_inodes={NUM_INODES},mode=0755"
    _mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, options)
    for path in readable:
        _show(path, root + path)
    Path(root + WORK).mkdir()
    Path(root + WORK, "program.py").write_bytes(text)
    os.chdir(root)
    _must("pivot_root", _libc.syscall(PIVOT_ROOT[platform.machine()], b".", b"."))
    _must("umount2", _libc.umount2(b".", MNT_DETACH))
    os.chdir(WORK)


def _show(path: str, place: str) -> None:
    """Bind a file or folder into the new root, for reading."""
    if Path(path).is_dir():
        Path(place).mkdir(parents=True, exist_ok=True)
    else:
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        Path(place).touch()
    _mount(path, place, None, MS_BIND | MS_REC)
    # A namespace may not drop the flags that the original mount has.
    kept = os.statvfs(place).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME | MS_NODIRATIME)
    relative = MS_RELATIME if os.statvfs(place).f_flag & os.ST_RELATIME else 0
    _mount("none", place, None, MS_BIND | MS_REMOUNT | MS_RDONLY | kept | relative)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, options)]
    _must(f"mount {target}", _libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]))


def _must(what: str, status: int) -> None:
    if status != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def _succeeds(action: Callable[[], int]) -> bool:
    with contextlib.suppress(OSError):
        return action() == 0
    return False


def _allow_files(folder: str, readable: list[str], devices: list[str]) -> int:
    """Landlock: writes in the folder alone, reads there and of what a Python program needs."""
    version = _libc.syscall(LANDLOCK_CREATE, None, 0, 1)
    if version < 1:
        return -1
    everything = LANDLOCK_ALL[min(version, max(LANDLOCK_ALL))]
    rules = ctypes.create_string_buffer(struct.pack("=Q", everything), 8)
    ruleset = _libc.syscall(LANDLOCK_CREATE, rules, 8, 0)
    if ruleset < 0:
        return -1
    allowed = [(folder, everything), *((path, LANDLOCK_READ) for path in readable)]
    for path, access in [*allowed, *((path, everything) for path in devices)]:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        of_kind = access if Path(path).is_dir() else access & LANDLOCK_OF_FILES
        beneath = ctypes.create_string_buffer(struct.pack("=Qi", of_kind, opened), 12)
        if _libc.syscall(LANDLOCK_ADD, ruleset, 1, beneath, 0):
            return -1
        os.close(opened)
    done: int = _libc.syscall(LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)
    return done


def _filter_system_calls() -> int:
    """Seccomp: no new process, no socket, no signal to another process, no change of limits, no shared memory."""
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
    for what in ("fork", "signal", "network", "limits", "shared", "kernel"):
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
    main(json.loads(sys.argv[1]), int(sys.argv[2]))
