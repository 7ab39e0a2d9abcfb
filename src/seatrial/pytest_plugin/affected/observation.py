"""Watches this process and its children, from before the first conftest is imported.

The processes of a session share a folder; those of killed sessions are removed. Tests that call Ray run functions in
its workers. Ray is never imported from here. The workers of a cluster that was started inside the session inherit its
environment and report what they use; those of another cluster do not, and a test that calls them always runs.
"""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from seatrial.pytest_plugin.affected.child import CURRENT, ROOT, TOKEN_BYTES
from seatrial.pytest_plugin.affected.syntax import compiles_bytecode
from seatrial.pytest_plugin.affected.watch import TOKEN_VARIABLE, UNWATCHED, is_ignored
from seatrial.pytest_plugin.affected.windows import Windows

_PREFIX = "seatrial-watch-"
_LOCK = "lock"
_held: list[int] = []
"""Descriptors of this process's locks; the kernel releases them when the process exits."""


def make_folder() -> Path:
    """Return a new folder of this process, and remove those of processes that no longer exist."""
    place = Path(tempfile.gettempdir())
    for folder in place.glob(f"{_PREFIX}*"):
        if _is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    descriptor = os.open(folder / _LOCK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    _held.append(descriptor)
    return folder


def _is_abandoned(folder: Path) -> bool:
    """Return whether no process holds the lock of a folder of ours."""
    try:
        if folder.stat().st_uid != os.getuid():
            return False
        descriptor = os.open(folder / _LOCK, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:  # it is being created, or belongs to another user
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


_CALLERS = {"ray.actor": ("ActorMethod", "ActorClass"), "ray.remote_function": ("RemoteFunction",)}
"""Classes whose `_remote` every call of an actor or task goes through, by module."""


class RayUse:
    """Records which tests call Ray."""

    def __init__(self, windows: Windows, folder: Path) -> None:
        self._windows = windows
        self._folder = folder
        self._watched: dict[str, bool] = {}
        self._undo: list[Callable[[], None]] = []

    def start(self) -> None:
        """Start, whether Ray is already imported or will be."""
        for name in _CALLERS:
            self._windows.runs.after_import[name] = self._patch
            if name in sys.modules:
                self._patch(sys.modules[name])

    def stop(self) -> None:
        """Restore Ray's methods."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def _patch(self, module: ModuleType) -> None:
        for name in _CALLERS[module.__name__]:
            owner: Any = getattr(module, name, None)
            original = getattr(owner, "_remote", None)
            if original is None:
                continue

            @functools.wraps(original)
            def remote(caller: Any, *values: Any, _original: Any = original, **named: Any) -> Any:
                self._called()
                return _original(caller, *values, **named)

            owner._remote = remote
            self._undo.append(functools.partial(setattr, owner, "_remote", original))

    def _called(self) -> None:
        if not self._windows.watch.active or os.getpid() != self._windows.process:
            return
        window = self._windows.current
        window.hides = True
        ray: Any = sys.modules["ray"]
        if not ray.is_initialized():  # the call itself starts a cluster inside the session
            return
        node = getattr(sys.modules["ray._private.worker"].global_worker, "node", None)
        address = str(getattr(node, "gcs_address", "a Ray client"))
        if address not in self._watched:
            with self._windows.paused():
                self._watched[address] = node is not None and all(map(self._is_ours, ray.nodes()))
        if not self._watched[address]:
            window.uses.add((UNWATCHED, f"the Ray cluster at {address}"))

    def _is_ours(self, node: dict[str, Any]) -> bool:
        """Return whether the processes of a node inherit this session's environment."""
        socket = str(node.get("RayletSocketName", ""))
        return not node.get("Alive") or _has_process(socket, f"{TOKEN_VARIABLE}={self._folder}")


def _has_process(word: str, variable: str) -> bool:
    """Return whether a process of this machine has a word in its command line and a variable in its environment."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (entry / "cmdline").read_bytes():
                variables = (entry / "environ").read_bytes().split(b"\0")
                if variable.encode() in variables:
                    return True
        except OSError:  # it exited, or is not readable
            continue
    return False


_STARTUP = Path(__file__).parent / "startup"


class Observation:
    """Everything that is watched in one process of the session."""

    def __init__(self, root: Path) -> None:
        self.environ = dict(os.environ)
        self.folder = make_folder()
        (self.folder / ROOT).write_text(str(root))
        (self.folder / CURRENT).write_text(" " * TOKEN_BYTES)
        # A compiler of bytecode would see the probes of Python 3.11; later versions need none.
        self.compiled_by = None if hasattr(sys, "monitoring") else compiles_functions(root)
        self.windows = Windows(root, self.folder, with_probes=self.compiled_by is None)
        self._ray = RayUse(self.windows, self.folder)
        later = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(_STARTUP), later] if later else [str(_STARTUP)])
        os.environ[TOKEN_VARIABLE] = str(self.folder)
        self.windows.start()
        self._ray.start()

    def stop(self) -> None:
        """Stop watching, and restore the environment."""
        self._ray.stop()
        self.windows.stop()
        for name in ("PYTHONPATH", TOKEN_VARIABLE):
            if name in self.environ:
                os.environ[name] = self.environ[name]
            else:
                os.environ.pop(name, None)
        shutil.rmtree(self.folder, ignore_errors=True)


def compiles_functions(root: Path) -> str | None:
    """Return a file of the project that passes functions to a compiler of bytecode; None if there is none."""
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in sorted(folders) if not name.startswith(".") and not is_ignored(name)]
        for name in files:
            path = Path(folder, name)
            try:
                if name.endswith(".py") and compiles_bytecode(path.read_bytes()):
                    return path.relative_to(root).as_posix()
            except OSError:  # deleted or not readable: then it is not imported either
                continue
    return None
