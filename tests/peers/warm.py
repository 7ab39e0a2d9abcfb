"""Runs programs in an interpreter of a peer that has imported its large libraries once: each runs in a fork of it."""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import traceback
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LIBRARIES = ("torch", "transformers.trainer", "seatrial.relations.engine", "seatrial.relations.preloaded")
"""What takes seconds to import and is in every environment that judges adapters; the last keeps it all out of garbage
collections."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended, with what it wrote."""

    returncode: int
    stdout: str
    stderr: str


class Warm:
    """One interpreter that waits for programs, with the libraries imported."""

    def __init__(self, python: Path, paths: Sequence[Path], variables: Mapping[str, str]) -> None:
        """Start it; it imports while the caller goes on.

        Args:
            python: of the environment.
            paths: searched for modules first.
            variables: of the environment, in addition to this process's own.
        """
        self._process = subprocess.Popen(
            [str(python), "-W", "ignore", str(Path(__file__).resolve()), *LIBRARIES],
            env={**os.environ, **variables, "PYTHONPATH": os.pathsep.join(map(str, paths))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, program: str, words: Sequence[str]) -> Ended:
        """Run a program in a fork; return how it ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "program.py").write_text(program, encoding="utf-8")
            self._process.stdin.write(json.dumps([name, *words]) + "\n")
            self._process.stdin.flush()
            status = self._process.stdout.readline()
            assert status, f"the interpreter ended with status {self._process.wait()}"
            written = ((folder / part).read_text(encoding="utf-8") for part in ("stdout", "stderr"))
            return Ended(int(status), *written)

    def close(self) -> None:
        """End it: it reads the end of its input."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


MOST = 3
"""How many interpreters wait at once: each holds half a gigabyte."""
_warm: dict[tuple[str, ...], Warm] = {}
"""Those that wait, the one used last at the end."""


def run_warm(
    python: Path, paths: Sequence[Path], variables: Mapping[str, str], program: str, words: Sequence[str]
) -> Ended:
    """Run a program in an interpreter with these paths and variables, which later calls share."""
    key = (str(python), *map(str, paths), *(f"{name}={value}" for name, value in sorted(variables.items())))
    if key not in _warm:
        end_warm(MOST - 1)
        _warm[key] = Warm(python, paths, variables)
    _warm[key] = _warm.pop(key)
    return _warm[key].run(program, words)


@atexit.register
def end_warm(keep: int = 0) -> None:
    """End those that wait but for the last used ones."""
    for key in list(_warm)[: len(_warm) - keep]:
        _warm.pop(key).close()


def _serve(names: Sequence[str]) -> None:
    """Import the libraries, then fork for each line of the input, and answer it with the child's exit status."""
    gc.disable()
    for name in names:
        importlib.import_module(name)
    gc.enable()
    # PyTorch would take each of its operators out of its tables when a child ends, on pages to be copied for that.
    for finalizer in list(weakref.finalize._registry):
        finalizer.atexit = False
    for line in sys.stdin:
        child = os.fork()
        if not child:
            os._exit(_run(*json.loads(line)))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(status, flush=True)


def _run(folder: str, *words: str) -> int:
    """Run the folder's program as the main module of this process, and return its exit status; its output goes to files
    of the folder.

    The interpreter would take a third of a second to put all libraries away.
    """
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(Path(folder) / name, os.O_WRONLY | os.O_CREAT), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = ["program.py", *words]
    status: object = 1
    try:
        runpy.run_path(str(Path(folder) / "program.py"), run_name="__main__")
        status = 0
    except SystemExit as ended:
        status = ended.code
    except BaseException:  # noqa: BLE001  as the interpreter does
        traceback.print_exc()
    if isinstance(status, str):
        print(status, file=sys.stderr)
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return int(status or 0)


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file
    _serve(sys.argv[1:])
