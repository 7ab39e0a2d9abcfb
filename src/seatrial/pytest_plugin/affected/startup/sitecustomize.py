"""Starts `watch` in every process with this folder on PYTHONPATH: Python runs this module at startup.

The folder is then removed from the process's own path, and the `sitecustomize` that it shadows is run.
"""

# ruff: noqa: PTH100, PTH112, PTH118, PTH120, PTH123
# pathlib would double the start time of each child process.

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))


def _load(name: str) -> ModuleType | None:
    """Load a module by its path; its package may not be importable in this environment."""
    path = os.path.join(os.path.dirname(_HERE), f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"_seatrial_{name}", path)
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _watch() -> None:
    folder = os.environ.get("SEATRIAL_WATCH", "")
    if sys.version_info < (3, 10) or not os.path.isdir(folder):
        return
    child, watch, stats = _load("child"), _load("watch"), _load("stats")
    if child is None or watch is None or stats is None:
        return
    try:
        with open(os.path.join(folder, child.ROOT), encoding="utf-8") as file:
            root = file.read()
    except OSError:
        return
    emit = child.ChildLog(folder).emit
    watching = watch.Watch(root, emit)
    watching.start()
    stats.StatWatch(watching, emit).start()


def _chain() -> None:
    """Run the `sitecustomize` that this one shadows, if there is one."""
    places = [os.path.abspath(place or ".") for place in sys.path]
    after = sys.path[places.index(_HERE) + 1 :] if _HERE in places else list(sys.path)
    sys.path[:] = [place for place, where in zip(sys.path, places, strict=True) if where != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", after)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


# Two such modules that chain to each other would recurse forever.
if not hasattr(sys, "_seatrial_watched"):
    sys._seatrial_watched = True  # type: ignore[attr-defined]
    _watch()
    _chain()
