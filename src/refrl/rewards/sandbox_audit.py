"""The last resort of the sandbox: runs a program under a hook that refuses what the kernel cannot be asked to refuse.

Run as a file by `refrl.rewards.sandbox_child` where the machine permits neither namespaces nor Landlock. A hook inside
an interpreter stops ordinary Python, not somebody who knows the interpreter; hence the kind's name in the report.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_REFUSED_MODULES = frozenset(
    {"ctypes", "_ctypes", "_posixshmem", "mmap", "multiprocessing", "_multiprocessing"}
)
_CHANGES = (
    "chdir", "chmod", "chown", "link", "listxattr", "getxattr", "setxattr", "mkdir", "remove", "rename", "rmdir",
    "symlink", "truncate", "utime",
)  # fmt: skip
_OF_PATHS = frozenset(f"os.{name}" for name in _CHANGES)
_LISTS = frozenset({"os.listdir", "os.scandir"})
_REFUSED = (
    "ctypes.",
    "socket.",
    "subprocess.",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.system",
    "os.kill",
)


def _guard(own: str, readable: tuple[str, ...]) -> Any:
    """Return a hook that permits reading some paths and writing in one folder."""
    realpath, inside = os.path.realpath, os.path.commonpath

    def within(path: Any, places: tuple[str, ...]) -> bool:
        if isinstance(path, int):
            return path <= 2
        text = os.fsdecode(path)
        if ".." in text.split("/"):  # relative to a folder that the hook does not know
            return False
        real = realpath(text)
        return any(inside((real, place)) == place for place in places)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if path is not None and not within(path, (own,) if flags & _WRITES else (own, *readable)):
                raise PermissionError(1, "the sandbox permits no access", str(path))
        elif event in _OF_PATHS or event in _LISTS:
            permitted = (own, *readable) if event in _LISTS else (own,)
            for path in arguments[:2]:
                if isinstance(path, str | bytes) and not within(path, permitted):
                    raise PermissionError(1, "the sandbox permits no access", str(path))
        elif event.startswith(_REFUSED) or (event == "import" and arguments[0] in _REFUSED_MODULES):
            raise PermissionError(1, f"the sandbox permits no {event}")

    return hook


if __name__ == "__main__":
    own_folder, *others = json.loads(sys.argv[1])
    sys.argv = sys.argv[2:]
    sys.addaudithook(_guard(os.path.realpath(own_folder), tuple(os.path.realpath(path) for path in others)))
    runpy.run_path(sys.argv[0], run_name="__main__")
