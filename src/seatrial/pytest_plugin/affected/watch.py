"""Records what a Python process uses of a project: modules, data files, folders, environment variables.

In pytest's process the plugin receives every use. In a child process (at any depth, Ray workers included)
`startup/sitecustomize.py` loads this file by its path, and uses are appended to a log. So this module needs only the
standard library, and must never disturb its process.

Python's audit events cover what an import hook or a patched `open` would miss, without a cost per line or call.
"""

# ruff: noqa: PTH100, PTH109, PTH112, PTH113, PTH117, PTH118, PTH119, PTH120
# pathlib would double the start time of each child process.

from __future__ import annotations

import functools
import importlib
import os
import sys
from _thread import get_ident
from collections.abc import Callable
from opcode import opname
from types import CodeType, FrameType, ModuleType
from typing import Any, Final

PY: Final = "py"
"""A Python file of the project, imported or executed."""
FILE: Final = "file"
"""A data file that was read, or searched and not found."""
DIR: Final = "dir"
"""A folder whose entries were listed."""
ENV: Final = "env"
"""An environment variable read by the project's code."""
OUT: Final = "out"
"""A file that was opened for writing: a later reader depends on the writer, not on the file."""
RUN: Final = "run"
"""A Python file that another process was started with."""
UNWATCHED: Final = "unwatched"
"""A process that cannot be watched: the test that starts or calls it always runs."""

TOKEN_VARIABLE = "SEATRIAL_WATCH"
"""Folder of the session's logs; a process with it in its environment is watched."""

Emit = Callable[[str, str, "FrameType | None"], None]
"""Receives each use: its kind, its name (a path in the project, or a variable), and the frame that used it."""
Executing = Callable[[CodeType, str], None]

_IGNORED_PARTS = {".git", ".hg", "__pycache__", "site-packages", "node_modules", ".pytest_cache", ".seatrial"}
_IGNORED_PARTS |= {".mypy_cache", ".ruff_cache", ".hypothesis", ".tox", ".nox", ".venv", "venv"}
_IGNORED_VARIABLES = ("PYTEST_", TOKEN_VARIABLE, "COVERAGE_", "COV_CORE_")
_SUBSCRIPTS = ("BINARY_SUBSCR", "BINARY_OP")
_LISTINGS = {"os.listdir", "os.scandir"}
_STARTS = {"os.posix_spawn", "os.exec"}
_EVENTS = {"open", "exec", "import", "cpython.run_file", "sqlite3.connect", "pickle.find_class"}
_EVENTS |= {"subprocess.Popen", "os.system", *_LISTINGS, *_STARTS}
_STARTUP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup")
# These read a program's source for a traceback, or a module, which `exec` reports.
_READERS_OF_SOURCE = ("linecache", "tokenize", "inspect", "traceback", "pkgutil", "zipimport", "runpy")
# Exceptions that a faulty observer could raise inside the observed program; none may reach that program.
_OWN_FAULTS = (OSError, ValueError, TypeError, AttributeError, LookupError)


class Watch:
    """Reports to `emit` what this process uses of the project, and to `executing` each module's code before it runs."""

    def __init__(self, root: str, emit: Emit, executing: Executing | None = None) -> None:
        self.root = os.path.realpath(root)
        self._executing = executing
        self.active = False
        self._prefixes = tuple({os.path.join(self.root, ""), os.path.join(os.path.abspath(root), "")})
        self._emit = emit
        self.known: dict[str, str | None] = {}
        """Paths relative to the project, by path; None for paths outside."""
        self._busy: set[int] = set()
        self.standard = os.path.join(os.path.dirname(os.__file__), "")
        self._undo: list[Callable[[], None]] = []

    def start(self) -> None:
        """Start. The audit hook stays for the life of the process, because Python cannot remove one."""
        if self.active:
            return
        self._patch_environ()
        self._patch_import_module()
        self.active = True

        # Python calls a plain function in a third of the time of a method.
        def audit(event: str, arguments: tuple[Any, ...]) -> None:
            if event in _EVENTS and self.active:
                self.undisturbed(self._handle, event, arguments, _caller())

        sys.addaudithook(audit)

    def stop(self) -> None:
        """Stop; the audit hook stays without effect."""
        self.active = False
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def relative(self, path: str) -> str | None:
        """Return a path relative to the project; None for paths outside, and for ignored ones."""
        found = self.known.get(path, "")
        if found != "":
            return found
        # Code without a file, and paths that are clearly outside, need no closer look.
        may_be_inside = path.startswith(self._prefixes) or "/." in path or "//" in path
        if path.startswith("<") or (path.startswith("/") and not may_be_inside):
            self.known[path] = None
            return None
        absolute = os.path.abspath(path)
        relative = next((absolute[len(p) :] for p in self._prefixes if absolute.startswith(p)), None)
        found = None if relative is None or is_ignored(relative) else relative
        if os.path.isabs(path):
            self.known[path] = found
        return found

    def undisturbed(self, look: Callable[..., None], *arguments: Any) -> None:
        """Call an observer; its own uses and faults do not affect the watched program."""
        thread = get_ident()
        if thread in self._busy:
            return
        self._busy.add(thread)
        try:
            look(*arguments)
        except _OWN_FAULTS:
            return
        finally:
            self._busy.discard(thread)

    def _handle(self, event: str, arguments: tuple[Any, ...], frame: FrameType | None) -> None:
        if event == "open":
            self._opened(arguments, frame)
        elif event == "exec":
            code = arguments[0]
            if isinstance(code, CodeType) and code.co_name == "<module>":
                self._executed(code, frame)
        elif event == "import":
            if len(arguments) > 1 and isinstance(arguments[1], str):  # an extension module
                self._use(FILE, arguments[1], frame)
        elif event in _LISTINGS:
            self._listed(arguments[0], frame)
        elif event == "subprocess.Popen":
            self._started(arguments[0], arguments[1], arguments[2], arguments[3], frame)
        elif event in _STARTS:
            self._started(arguments[0], arguments[1], None, arguments[2], frame)
        elif event == "os.system":
            self._started(None, [arguments[0]], None, None, frame)
        elif event == "pickle.find_class":
            self._loaded(sys.modules.get(arguments[0]), frame)
        else:  # cpython.run_file, sqlite3.connect
            self._use(PY if event == "cpython.run_file" else FILE, _text(arguments[0]), frame)

    def _use(self, kind: str, path: str | None, frame: FrameType | None) -> None:
        relative = self.relative(path) if path else None
        if relative is not None:
            self._emit(kind, relative, frame)

    def _executed(self, code: CodeType, frame: FrameType | None) -> None:
        path = self.relative(code.co_filename)
        if path is not None:
            self._emit(PY, path, frame)
            if self._executing is not None:
                self._executing(code, path)

    def _opened(self, arguments: tuple[Any, ...], frame: FrameType | None) -> None:
        path, mode, flags = arguments
        name = _text(path)
        relative = self.relative(name) if name else None
        if relative is None or relative.endswith((".pyc", ".pyo")):
            return
        if _writes(mode, flags):
            self._emit(OUT, relative, frame)
        elif not self._reads_source(frame, relative) and not os.path.isdir(name or ""):
            self._emit(FILE, relative, frame)

    def _listed(self, path: Any, frame: FrameType | None) -> None:
        name = "." if path is None else _text(path)
        if not name or self._reads_source(frame, ""):
            return
        absolute = os.path.abspath(name)
        if absolute + os.sep in self._prefixes:
            self._emit(DIR, ".", frame)
        else:
            self._use(DIR, absolute, frame)

    def _reads_source(self, frame: FrameType | None, relative: str) -> bool:
        """Return whether Python's import system, or code that shows tracebacks, is reading."""
        if frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        if not relative.endswith(".py"):
            return False
        depth = 0
        while frame is not None and depth < 4:
            name = frame.f_globals.get("__name__", "")
            if name in _READERS_OF_SOURCE:
                return True
            frame, depth = frame.f_back, depth + 1
        return False

    def _started(
        self, executable: Any, argv: Any, cwd: Any, environment: Any, frame: FrameType | None
    ) -> None:
        """Record a started process: the files on its command line, and whether it can be watched."""
        words = [argv] if isinstance(argv, str | bytes) else list(argv or ())
        texts = [text for text in (_text(word) for word in words) if text]
        base = _text(cwd) or os.getcwd()
        for text in texts:
            for piece in {text, *text.replace("=", " ").replace('"', " ").replace("'", " ").split()}:
                path = piece if os.path.isabs(piece) else os.path.join(base, piece)
                if os.path.isfile(path):
                    self._use(RUN if piece.endswith(".py") else FILE, path, frame)
        program = os.path.basename(texts[0] if texts else _text(executable) or "")
        if program.startswith(("python", "pypy")) and _is_unwatched(texts[1:], environment):
            self._emit(UNWATCHED, " ".join([program, *texts[1:]])[:200], frame)

    def _loaded(self, module: ModuleType | None, frame: FrameType | None) -> None:
        """Record a module that was requested by name, even if it was imported long ago."""
        self._use(PY, getattr(module, "__file__", None), frame)

    def _patch_environ(self) -> None:
        kind: Any = type(os.environ)
        original = kind.__getitem__
        watch, known = self, self.known

        def get_item(environ: Any, key: Any) -> Any:
            if watch.active and isinstance(key, str) and not key.startswith(_IGNORED_VARIABLES):
                frame = sys._getframe(1)
                reader: FrameType | None = frame
                # os.getenv and Mapping.get are between the reader and the variable.
                while reader is not None and reader.f_code.co_filename.startswith("<frozen "):
                    reader = reader.f_back
                # Most readers are known to be outside the project.
                if reader is not None and known.get(reader.f_code.co_filename, "") is not None:
                    watch.undisturbed(watch._read_variable, key, frame, reader)
            return original(environ, key)

        kind.__getitem__ = functools.wraps(original)(get_item)
        self._undo.append(functools.partial(setattr, kind, "__getitem__", original))

    def _read_variable(self, name: str, frame: FrameType, reader: FrameType) -> None:
        # Copying the whole environment for a child process is not reading a variable.
        if self.relative(reader.f_code.co_filename) is not None and _instruction(frame) in _SUBSCRIPTS:
            self._emit(ENV, name, reader)

    def _patch_import_module(self) -> None:
        original = importlib.import_module
        watch = self

        @functools.wraps(original)
        def import_module(name: str, package: str | None = None) -> ModuleType:
            module = original(name, package)
            if watch.active:
                watch.undisturbed(watch._loaded, module, _caller())
            return module

        importlib.import_module = import_module
        self._undo.append(functools.partial(setattr, importlib, "import_module", original))


def is_ignored(relative: str) -> bool:
    """Return whether a path relative to the project is no dependency: caches, installed packages."""
    parts = relative.split("/")
    return not _IGNORED_PARTS.isdisjoint(parts) or parts[-1].startswith(".coverage")


def _caller() -> FrameType | None:
    """Return the frame that called our caller; None if the interpreter itself did."""
    own = sys._getframe().f_back
    return own.f_back if own is not None else None


def _instruction(frame: FrameType) -> str:
    """Return the name of the instruction that a frame is executing."""
    code, place = frame.f_code.co_code, frame.f_lasti
    while place > 0 and opname[code[place]] == "CACHE":  # belongs to the instruction before it
        place -= 2
    return opname[code[place]]


def _text(path: Any) -> str | None:
    """Return a path as text; None for file descriptors and other objects."""
    return os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else None


def _writes(mode: Any, flags: Any) -> bool:
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and (flags & (os.O_WRONLY | os.O_RDWR)) != 0


def _is_unwatched(arguments: list[str], environment: Any) -> bool:
    """Return whether a Python process with these arguments would not load our `sitecustomize`."""
    for word in arguments:
        if not word.startswith("-") or word in ("-c", "-m", "-"):
            break
        if not word.startswith("--") and set(word) & set("IES") and not word.startswith(("-X", "-W")):
            return True
    if environment is None:
        return False
    held = {_text(name): _text(environment[name]) or "" for name in environment}
    return TOKEN_VARIABLE not in held or _STARTUP not in held.get("PYTHONPATH", "").split(os.pathsep)
