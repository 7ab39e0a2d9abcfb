"""The kinds of sandbox, strongest first, and the one that this machine permits."""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

Kind = Literal["bubblewrap", "namespaces", "landlock", "audit hook"]
"""What holds a program:

- `bubblewrap`: bwrap's namespaces, a root of its own that holds Python and a scratch folder in memory;
- `namespaces`: the same by our own calls, where the machine has no bwrap;
- `landlock`: kernel rules on paths; the scratch folder is on disk and its size is checked from outside;
- `audit hook`: a hook of the interpreter, which stops ordinary Python alone.

The rules of Landlock and the filter of system calls are added to each kind if the kernel has them.
"""
KINDS: tuple[Kind, ...] = get_args(Kind)
CHILD = Path(__file__).with_name("sandbox_child.py")
AUDIT = Path(__file__).with_name("sandbox_audit.py")
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/nix/store", "/gnu/store", "/etc/ld.so.cache")
_DEVICES = ("/dev/null", "/dev/urandom")
_WORK, _CHILD_INSIDE = "/sandbox", "/sandbox_child.py"


@cache
def executable() -> str:
    """Return the interpreter itself, with the links of virtual environments resolved: its library is next to it."""
    return os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)


@cache
def readable_paths() -> tuple[str, ...]:
    """Return what a Python program needs to read: the interpreter, its library, shared libraries."""
    of_prefix = str(Path(sys.base_prefix, "lib"))
    wanted = [executable(), sysconfig.get_path("stdlib"), of_prefix, *_LIBRARIES]
    existing = dict.fromkeys(path for path in wanted if Path(path).exists())
    return tuple(
        path
        for path in existing
        if not any(path != other and Path(path).is_relative_to(other) for other in existing)
    )


def order_of(
    kind: Kind, *, limits: Mapping[str, int], scratch_bytes: int, program: Path, root: Path
) -> dict[str, Any]:
    """Return the child's instructions.

    Args:
        kind: of the sandbox.
        limits: by name in the module `resource`.
        scratch_bytes: size of a scratch folder in memory.
        program: its file.
        root: an empty folder, to become the root.
    """
    own = [str(AUDIT)] if kind == "audit hook" else []
    return {
        "kind": kind,
        "executable": executable(),
        "limits": dict(limits),
        "scratch_bytes": scratch_bytes,
        "program": str(program),
        "root": str(root),
        "readable": [*readable_paths(), *own],
        "devices": [path for path in _DEVICES if Path(path).exists()],
        "audit": str(AUDIT),
    }


def command_of(order: Mapping[str, Any], report_fd: int) -> list[str]:
    """Return the words that start a child with its order."""
    in_root = order["kind"] == "bubblewrap"
    script = _CHILD_INSIDE if in_root else str(CHILD)
    child = [executable(), "-I", "-S", "-B", script, json.dumps(order), str(report_fd)]
    return [*_bubblewrap(order), *child] if in_root else child


def _bubblewrap(order: Mapping[str, Any]) -> list[str]:
    """Return the words before the child: https://github.com/containers/bubblewrap, bwrap(1)."""
    words = [shutil.which("bwrap") or "bwrap", "--unshare-all", "--die-with-parent", "--cap-drop", "ALL"]
    words += ["--uid", "65534", "--gid", "65534"]
    words += ["--ro-bind", str(CHILD), _CHILD_INSIDE]
    for path in order["readable"]:
        words += ["--ro-bind", path, path]
    for path in order["devices"]:
        words += ["--dev-bind", path, path]
    words += ["--size", str(order["scratch_bytes"]), "--tmpfs", _WORK]
    words += [
        "--ro-bind",
        order["program"],
        f"{_WORK}/program.py",
        "--remount-ro",
        "/",
        "--chdir",
        _WORK,
        "--",
    ]
    return words
