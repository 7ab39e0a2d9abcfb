"""Plants a fault in refrl: in this process before refrl is imported, or in a separate process that calls a function.

The source of one module is changed as it is imported, so that everything that a run or a relation builds is built with
the fault in it: registries, caches, names imported elsewhere. A process that is asked a question has imported refrl,
and changes the module's functions where these alone differ (`in_place.py`). Nothing on disk is changed.
"""

from __future__ import annotations

import gc
import importlib
import importlib.abc
import importlib.machinery
import json
import multiprocessing
import multiprocessing.util
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from seatrial.faults.in_place import change_functions

PRELOAD = (
    "numpy",
    "scipy.stats",
    "torch",
    "torch.distributed",
    "transformers.modeling_utils",
    "transformers.models.qwen3.modeling_qwen3",
    "transformers.tokenization_utils_fast",
    "seatrial.relations.engine",
    "seatrial.targets.reference.components",
    "seatrial.relations.preloaded",
)
"""Imported once, before a process is forked for each fault."""
WITH_REFRL = ("refrl", "seatrial.targets.reference")
"""Packages that are imported again with a fault that cannot be planted in loaded modules."""
SCRIPTS = {
    "refrl.rewards.sandbox_child": ("refrl.rewards.sandbox_kinds", "CHILD"),
    "refrl.rewards.sandbox_audit": ("refrl.rewards.sandbox_kinds", "AUDIT"),
    "refrl.rewards.math_worker": ("refrl.rewards.math", "COMMAND"),
}
"""Modules that run as files, with the module and the attribute that name the file or the command."""
SECONDS = 600.0
"""Time limit of one call in a separate process."""


class Change(Protocol):
    """A fault as an edit: text that occurs exactly once in a module, and its replacement."""

    @property
    def id(self) -> str:
        """Id of the fault."""
        ...

    @property
    def module(self) -> str:
        """Module of refrl that is changed."""
        ...

    @property
    def old(self) -> str:
        """Text that occurs exactly once in the module."""
        ...

    @property
    def new(self) -> str:
        """Replacement of the text."""
        ...


class PlantingError(RuntimeError):
    """Raised if a fault cannot be planted or its process crashes."""


class _ChangedLoader(SourceFileLoader):
    """Reads a changed source; bytecode on disk is neither read nor written."""

    change: Change

    def get_data(self, path: str) -> bytes:
        """Return the changed source."""
        if path != self.path:
            raise OSError(f"{path} is not the file of the changed module")
        return changed_source(super().get_data(path).decode("utf-8"), self.change).encode("utf-8")

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Write no bytecode."""


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, change: Change) -> None:
        self._change = change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for the changed module only."""
        if fullname != self._change.module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None:
            raise PlantingError(f"fault {self._change.id}: there is no module {fullname}")
        loader = _ChangedLoader(fullname, spec.origin)
        loader.change = self._change
        spec.loader = loader
        return spec


def changed_source(source: str, change: Change) -> str:
    """Return a module's source with the fault in it.

    Raises:
        PlantingError: the text does not stand exactly once: the table is out of date.
    """
    count = source.count(change.old)
    if count != 1:
        raise PlantingError(
            f"fault {change.id}: its text occurs {count} times in {change.module} instead of once; correct the table"
        )
    return source.replace(change.old, change.new)


def plant(change: Change) -> None:
    """Plant a fault in this process permanently.

    Raises:
        PlantingError: the module is imported already.
    """
    if change.module in sys.modules:
        raise PlantingError(f"fault {change.id}: {change.module} is already imported; plant the fault before")
    sys.meta_path.insert(0, _Finder(change))


def plant_engines(change: Change) -> None:
    """Plant a fault also in the generation engine processes that this process starts.

    They get the whole edit: an engine in another environment has few of the packages that the tables of faults need.
    """
    process = importlib.import_module("refrl.generation.process")
    edit = {name: getattr(change, name) for name in ("id", "module", "old", "new")}
    process.__dict__["COMMAND"] = (sys.executable, "-m", "seatrial.faults.engine", json.dumps(edit))


def plant_scripts(change: Change) -> None:
    """Plant a fault also in processes that run a module of refrl as a file: sandboxes and the verifier of answers."""
    if change.module not in SCRIPTS:
        return
    name, attribute = SCRIPTS[change.module]
    spec = PathFinder.find_spec(change.module, importlib.import_module("refrl.rewards").__path__)
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    # This folder is removed when the process ends.
    path = Path(multiprocessing.util.get_temp_dir(), f"{change.module}-{os.getpid()}.py")
    path.write_text(changed_source(source, change), encoding="utf-8")
    starter = importlib.import_module(name)
    starter.__dict__[attribute] = path if attribute != "COMMAND" else (sys.executable, str(path))


def ask(question: Callable[..., Any], change: Change | None, *arguments: Any) -> Any:
    """Return the result of a function called in a separate process, with or without a planted fault.

    Args:
        question: a function of an importable module, whose module imports no refrl before it is called.
        change: the fault; None plants none.
        arguments: of the function; they and its answer are pickled between our own processes.

    Raises:
        PlantingError: the function raised, the process crashed, or it took longer than `SECONDS`.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOAD))
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sending, question, change, arguments))
    process.start()
    sending.close()
    try:
        if not receiving.poll(SECONDS):
            raise PlantingError(f"no answer within {SECONDS:.0f} s{_of(change)}")
        kind, answer = receiving.recv()
    except EOFError as error:
        process.join()
        raise PlantingError(f"the process exited with status {process.exitcode}{_of(change)}") from error
    finally:
        if process.is_alive() and not receiving.closed:
            process.join(5)
        if process.is_alive():
            process.kill()
            process.join()
        receiving.close()
    if kind == "error":
        raise PlantingError(f"{answer}{_of(change)}")
    return answer


def _of(change: Change | None) -> str:
    return "" if change is None else f" (fault {change.id} in {change.module})"


def _answer(
    sending: Any, question: Callable[..., Any], change: Change | None, arguments: Sequence[Any]
) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    torch.set_num_threads(1)
    try:
        if change is not None:
            _plant_anywhere(change)
            os.environ["SEATRIAL_RANK_COMMAND"] = f"seatrial.faults.ranks {change.id}"
            os.environ["SEATRIAL_REFRL_COMMAND"] = f"seatrial.faults.launch {change.id} --"
            plant_engines(change)
            plant_scripts(change)
        gc.freeze()  # it would be looked through for what could be freed, and so be copied
        sending.send(("answer", question(*arguments)))
    except Exception:  # noqa: BLE001  sent to the parent process, which raises it
        sending.send(("error", traceback.format_exc(limit=-4)))
    sending.close()


def _plant_anywhere(change: Change) -> None:
    """Plant a fault in a process that has imported refrl, though perhaps not a module whose packages are missing."""
    if change.module not in sys.modules:
        plant(change)
        return
    file = sys.modules[change.module].__file__
    assert file is not None
    source = Path(file).read_text(encoding="utf-8")
    if change_functions(change.module, source, changed_source(source, change)):
        return
    for name in list(sys.modules):
        if name in WITH_REFRL or name.startswith(tuple(f"{package}." for package in WITH_REFRL)):
            del sys.modules[name]
    plant(change)
