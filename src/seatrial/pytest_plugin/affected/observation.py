"""Watches this process and its children, from before the first conftest is imported."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from seatrial.pytest_plugin.affected.child import CURRENT, ROOT, TOKEN_BYTES
from seatrial.pytest_plugin.affected.compilers import compiles_bytecode
from seatrial.pytest_plugin.affected.folders import make_folder
from seatrial.pytest_plugin.affected.ray_use import RayUse
from seatrial.pytest_plugin.affected.watch import TOKEN_VARIABLE, is_ignored
from seatrial.pytest_plugin.affected.windows import Windows

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
