"""Records where named modules are imported from, in this process and in every Python process it starts.

Python imports `sitecustomize` at its start, so this reaches children of any kind (Ray workers, torchrun ranks)
without their cooperation. It needs only the standard library and must never disturb its process: if it cannot write,
it does nothing, and the harness notices the missing line.

`SEATRIAL_IMPORTS_FILE`: JSON lines {"pid", "ppid", "module", "file", "program"} are appended to it.
`SEATRIAL_IMPORTS_MODULES`: names of the modules, separated by commas.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class _Observer:
    """A finder before all others that delegates to them and records what they found."""

    def __init__(self, path: str, modules: list[str]) -> None:
        self._path = path
        self._modules = set(modules)
        self._written: set[tuple[str, str | None]] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._modules:
            return None
        for finder in list(sys.meta_path):
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                places = list(spec.submodule_search_locations or ())
                file = spec.origin if spec.has_location else (places[0] if places else spec.origin)
                if (name, file) not in self._written:
                    self._written.add((name, file))
                    self._write(name, file)
                return spec
        return None

    def _write(self, module: str, file: str | None) -> None:
        row = {
            "pid": os.getpid(),
            "ppid": os.getppid(),
            "module": module,
            "file": None if file is None else os.path.abspath(file),  # noqa: PTH100
            "program": list(sys.orig_argv[:4]) if hasattr(sys, "orig_argv") else list(sys.argv[:4]),
        }
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                # One write of one short line: appends of several processes do not mix.
                os.write(descriptor, (json.dumps(row) + "\n").encode())
            finally:
                os.close(descriptor)
        except OSError:
            return


def _observe() -> None:
    path = os.environ.get("SEATRIAL_IMPORTS_FILE")
    modules = [name for name in os.environ.get("SEATRIAL_IMPORTS_MODULES", "").split(",") if name]
    if path and modules:
        sys.meta_path.insert(0, _Observer(path, modules))


def _chain() -> None:
    """Run the sitecustomize that this one hides, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    others = [place for place in sys.path if os.path.abspath(place or ".") != here]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_observe()
_chain()
