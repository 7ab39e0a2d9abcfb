"""`python -m tests.forked.server SOCKET PYTHON`: imports the stack, or pytest, and forks a child for each request.

It ends with its standard input.
"""

import ast
import atexit
import contextlib
import ctypes
import gc
import importlib
import importlib.util
import marshal
import multiprocessing
import os
import random
import runpy
import select
import signal
import socket
import sys
import threading
import time
import traceback
import types
import warnings
import weakref
from importlib.machinery import PathFinder
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from tests.forked.activation import PYTEST_PYTHON, TESTS_PYTHON
from tests.forked.client import WORKER

from seatrial.files import write_whole

IMPORTS = (
    "refrl.cli.train",
    "refrl.training.grpo",
    "refrl.training.sft",
    "refrl.training.recorder",
    "refrl.policy.dtensor.policy",
    "refrl.policy.megatron.policy",
    "refrl.policy.megatron.making",
    "transformers.models.qwen3.modeling_qwen3",
    "seatrial.targets.reference.components",
    "seatrial.targets.reference.guards.observer",
    "seatrial.cli.bisect",
    "seatrial.bisect.console",
    "seatrial.bisect.drive",
    "seatrial.bisect.report",
    "seatrial.bisect.judge",
    "tensorboard.compat.proto.event_pb2",
    "tensorboard.compat.proto.summary_pb2",
    "tensorboard.summary.writer.record_writer",
    "scipy.stats",
)
OURS = ("refrl", "seatrial")
PYTHON = sys.executable
AT_START = {name: value for name, value in os.environ.items() if name.startswith("PYTHON")}
"""What Python has read already."""
PATH = [place for place in sys.path[1:] if place not in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
"""Where every Python of this environment looks."""
MADV_COLLAPSE = 25
"""Of `madvise`, in Linux's `mman.h`."""
FIRST_FREE = 512
"""Number above those of the files that a command inherits, and of the server's own."""
NUM_LOOKS, LOOK_SECONDS = 5, 0.1
"""For children to end after the last request, so that their time is counted."""


def main(number: str, python: str) -> None:
    """Serve on a socket that listens; children with the stack start others by this python, but those that run tests."""
    gc.disable()
    if Path(python).name == PYTEST_PYTHON:
        _import_pytest()
    else:
        if Path(python).name != TESTS_PYTHON:
            sys.executable = python
            multiprocessing.set_executable(python)
        _import_stack()
    gc.freeze()
    gc.enable()
    if sys.platform == "linux":
        _use_large_pages()
    assert threading.active_count() == 1, "a thread does not live on in a child"
    with socket.socket(fileno=int(number)) as listening:
        Server(listening).serve()


class Server:
    """Forks the processes that are asked for, hands signals on to them, and says how each ended.

    One process does all of it: to fork another that looks after a child would take as long as to fork the child.
    """

    def __init__(self, listening: socket.socket) -> None:
        """Listen on a socket, until standard input ends."""
        self._listening = listening
        self._ended, wake = socket.socketpair()
        for end in (self._ended, wake):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        self._wake = wake
        self._children: dict[int, socket.socket] = {}
        """By process: the socket of whoever asked for it."""
        self._asking: dict[socket.socket, int] = {}
        """The same, the other way round, until whoever asked is gone."""

    def serve(self) -> None:
        """Serve until standard input ends."""
        while True:
            ready, _, _ = select.select([self._listening, sys.stdin, self._ended, *self._asking], [], [])
            if sys.stdin in ready:
                break
            for one in ready:
                if one is self._listening:
                    self._start(self._listening.accept()[0])
                elif one is self._ended:
                    self._ended.recv(2**12)
                    self._bury()
                elif one in self._asking:
                    self._hand_on(one)
        for _ in range(NUM_LOOKS):
            self._bury()
            if not self._children:
                break
            time.sleep(LOOK_SECONDS)

    def _start(self, asked: socket.socket) -> None:
        """Fork the process that was asked for."""
        size, files, _, _ = socket.recv_fds(asked, 4, 64)
        text = b""
        while part := asked.recv(min(2**20, int.from_bytes(size, "big") - len(text))):
            text += part
        if not size or len(text) < int.from_bytes(size, "big"):  # whoever asked is gone
            child = 0
        elif not (child := os.fork()):
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os._exit(_run(marshal.loads(text), files))
        for file in files:
            os.close(file)
        if child:
            self._children[child], self._asking[asked] = asked, child
        else:
            asked.close()

    def _hand_on(self, asked: socket.socket) -> None:
        """Hand on a signal; one that cannot be caught if whoever asked is gone."""
        number = b""
        with contextlib.suppress(OSError):
            number = asked.recv(1)
        os.kill(self._asking[asked], number[0] if number else signal.SIGKILL)
        if not number:
            del self._asking[asked]

    def _bury(self) -> None:
        """Say of the children that have ended how they did."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                child, status = ended
                asked = self._children.pop(child)
                self._asking.pop(asked, None)
                with contextlib.suppress(OSError):
                    asked.sendall(str(os.waitstatus_to_exitcode(status)).encode())
                asked.close()


def _import_pytest() -> None:
    """Import pytest with its own plugins, which a session imports before any other."""
    from _pytest.config import default_plugins

    for name in default_plugins:
        importlib.import_module(f"_pytest.{name}")


def _import_stack() -> None:
    """Import IMPORTS, and make their tables."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in IMPORTS:
            with contextlib.suppress(ModuleNotFoundError):  # of what need not be installed
                importlib.import_module(name)
        _make_tables()
    # PyTorch would take each of its operators out of its tables when a child ends, on pages to be copied for that.
    for finalizer in list(weakref.finalize._registry):
        finalizer.atexit = False


def _make_tables() -> None:
    """Have Transformers make its table of converted names, and load the laws of our own relations.

    Relations of other packages are for each command to find on its own path.
    """
    from transformers import conversion_mapping

    from seatrial.relations.registry import own_relations

    conversion_mapping.get_checkpoint_conversion_mapping("qwen3")
    own_relations()


def _use_large_pages() -> None:
    """Have Linux (6.1) move memory into pages of 2 MB: a fork copies a shorter table. An older one does nothing."""
    libc = ctypes.CDLL(None)
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        place, rights, _, _, file, *_ = line.split()
        if rights == "rw-p" and file == "0":
            begin, end = (int(number, 16) for number in place.split("-"))
            libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), MADV_COLLAPSE)


def _run(request: dict[str, Any], files: list[int]) -> int:
    """Return the exit status of `python -m MODULE WORDS`, or of `python -c PROGRAM`."""
    os.setsid()
    _place(files, request["files"])
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    places = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    options = request["options"]
    own = [] if options or os.environ.get("PYTHONSAFEPATH") else [request["folder"]]
    sys.path[:] = [*own, *places, *PATH]
    module, *words = request["words"]
    if _asks_python_itself(module):
        os.execv(PYTHON, [PYTHON, *options, *(() if module == "-c" else ("-m",)), module, *words])
    if module == "pytest":
        _forget(*OURS, "tests")
    elif module.startswith("seatrial.faults."):
        _forget(*OURS)
    elif module == "refrl":
        _remember_examples(Path(sys.executable).with_name("examples"))
    sys.argv = [module, *words]
    sys.orig_argv = [sys.executable, *options, "-m", module, *words]
    random.seed()
    status: Any = 1
    try:
        _customize(places)
        if words == [WORKER]:
            _run_tests()
        elif module == "-c":
            _serve_forks(words[0])
        else:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as ended:
        status = ended.code
    except BaseException:  # noqa: BLE001  as the interpreter does
        traceback.print_exc()
    if isinstance(status, str):
        print(status, file=sys.stderr)
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return int(status or 0)


def _serve_forks(program: str) -> None:
    """Be the fork server that the program `...; main(FILE, FILE, MODULES, **MORE)` of multiprocessing starts."""
    call = ast.parse(program.rpartition("; ")[2], mode="eval").body
    assert isinstance(call, ast.Call)
    (more,) = call.keywords
    forkserver.main(*map(ast.literal_eval, call.args), **ast.literal_eval(more.value))


def _run_tests() -> None:
    """Be the process of pytest-xdist that its program makes of a plain Python, which is asked for what a test starts.

    Files of tests, and those beside them, are not imported yet, so that pytest can rewrite their assertions.
    """
    _forget("tests")
    sys.argv = ["-c"]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(WORKER, vars(main))  # noqa: S102  it reads the rest from whoever asked


def _place(files: list[int], numbers: list[int]) -> None:
    """Give files the numbers that they have where they came from, and close all others."""
    moved = []
    for place, file in enumerate(files):
        moved.append(os.dup2(file, FIRST_FREE + place))
    os.closerange(0, FIRST_FREE)
    for file, number in zip(moved, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)


def _asks_python_itself(module: str) -> bool:
    """Tell whether what is imported, or what Python read when it started, would differ from the command's."""
    if module != "pytest":
        return any(_is_elsewhere(name) for name in OURS)
    asked = {name: value for name, value in os.environ.items() if name.startswith("PYTHON")}
    return {**asked, "PYTHONPATH": ""} != {**AT_START, "PYTHONPATH": ""}


def _is_elsewhere(package: str) -> bool:
    """Tell whether the command would import another copy of a package than is imported."""
    found = PathFinder.find_spec(package, sys.path)
    return found is None or found.origin != sys.modules[package].__file__


def _forget(*packages: str) -> None:
    """Take packages out of what is imported: a fault is planted, or a test's own package found, before."""
    for name in list(sys.modules):
        if name.partition(".")[0] in packages:
            del sys.modules[name]


def _remember_examples(folder: Path) -> None:
    """Have a run of refrl take worked examples for right that an earlier run of the same sources had right.

    They do not depend on the run, take longer than it, and are asked in full once in each run of pytest. A fault is
    planted by a module of `seatrial.faults` or in a copy of the sources, whose runs come to none of this.
    """
    from seatrial.targets.reference.guards import worked

    asked = worked.ask

    def ask(subject: str) -> worked.Found:
        kept = folder / subject
        if kept.is_file():
            number, *packages = kept.read_text(encoding="utf-8").split()
            return worked.Found(number=int(number), packages={*packages})
        found = asked(subject)
        if not (found.wrong or found.blocked):
            folder.mkdir(exist_ok=True)
            write_whole(kept, " ".join([str(found.number), *found.packages]))
        return found

    worked.ask = ask


def _customize(places: list[str]) -> None:
    """Run the `sitecustomize` of the command's own PYTHONPATH, and show what watches imports those that were made."""
    spec = PathFinder.find_spec("sitecustomize", places)
    if spec is None or spec.loader is None:
        return
    before = list(sys.meta_path)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    for finder in sys.meta_path:
        if finder not in before:
            for name in [name for name in sys.modules if "." not in name]:
                finder.find_spec(name, None)


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # the interpreter would take a second to put all of the stack away
