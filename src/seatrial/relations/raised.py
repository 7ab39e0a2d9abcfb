"""Distinguishes the exceptions of a stack: a refusal, a call that does not fit the release, or a crash."""

from __future__ import annotations

import ast
import dis
import inspect
import linecache
import re
import sys
import traceback
from collections.abc import Sequence
from types import CodeType, FrameType, TracebackType
from typing import Any

_REFUSAL = re.compile(
    r"\bnot (?:yet |currently )?(?:be )?(?:supported|implemented|compatible|available)\b"
    r"|\bunsupported\b|\bincompatible\b|\b(?:does not|doesn't|do not|don't|cannot) support\b"
    r"|\bonly (?:supports?|supported|available|compatible|works)\b|\bcannot be (?:used|combined) (?:together )?with\b",
    re.IGNORECASE,
)
_NEEDS_A_GPU = re.compile(
    r"Torch not compiled with CUDA enabled|Found no NVIDIA driver|No CUDA GPUs are available"
)
_OF_THE_CALL = re.compile(r"\bargument\b|\bnot callable\b")
_LIBRARIES = ("torch", "seatrial", "contextlib", "functools", "importlib")
"""Their frames do not say where in a stack an exception was raised."""
SIGNATURE_CHARS = 400


class ProcessError(RuntimeError):
    """An exception of another process, which that process has already classified."""

    def __init__(self, text: str, *, error: str = "", at: str = "", misfit: str | None = None) -> None:
        """Keep what that process found.

        Args:
            text: for a reader: which process, and its traceback.
            error: as `error_line` gives it there.
            at: as `place_of` gives it there.
            misfit: as `misfit_of` gives it there.
        """
        super().__init__(text)
        self.error, self.at, self.misfit = error, at, misfit


def error_line(error: BaseException) -> str:
    """Return the exception's type and text on one line."""
    if isinstance(error, ProcessError) and error.error:
        return error.error
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def place_of(error: BaseException) -> str:
    """Return `file:line` of the innermost frame in the stack's own code; of the innermost one if there is none."""
    if isinstance(error, ProcessError) and error.at:
        return error.at
    frames = _frames(error)
    if not frames:
        return "an unknown place"
    own = [found for found in frames if _root(found[0]) not in _LIBRARIES]
    frame, line = (own or frames)[-1]
    return f"{_short_path(frame)}:{line}"


def is_stated(error: BaseException) -> bool:
    """Return whether a `raise` statement of the stack raised an error, and not a crash in it or in torch."""
    found = innermost(error)
    if found is None or _root(found.tb_frame) in _LIBRARIES:
        return False
    return _is_raise(found.tb_frame.f_code, found.tb_lasti)


def refusal_of(error: BaseException) -> str | None:
    """Return the words with which a stack's own `raise` statement says that it does not serve an input; else None.

    A missing kernel of torch is no refusal: no statement of Python raises it.
    """
    if not isinstance(error, (NotImplementedError, ValueError)) or not is_stated(error):
        return None
    if not isinstance(error, NotImplementedError) and not _REFUSAL.search(str(error)):
        return None
    return error_line(error)


def misfit_of(error: BaseException, adapter_package: str) -> str | None:
    """Return how a call of an adapter does not fit the installed release or this machine; else None.

    A call that does not fit has its signature with it. Torch's own words say that a call needs a GPU.

    Args:
        error: a TypeError, ImportError or AttributeError that an adapter's own line raised, or torch's of a GPU.
        adapter_package: the package that the adapters are in, such as `seatrial.targets`.
    """
    if isinstance(error, ProcessError):
        return error.misfit
    if _NEEDS_A_GPU.search(str(error)) and isinstance(error, (AssertionError, RuntimeError)):
        return f"it needs a GPU: {error_line(error)} at {place_of(error)}"
    if not isinstance(error, (TypeError, ImportError, AttributeError)) or (found := innermost(error)) is None:
        return None
    module = str(found.tb_frame.f_globals.get("__name__", ""))
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] not in sys.modules:
        return None  # the package is missing, not a name that this release gave another place
    if not f"{module}.".startswith(f"{adapter_package}."):
        return None
    text = f"{error_line(error)} at {_short_path(found.tb_frame)}:{found.tb_lineno}"
    called = _called(found) if isinstance(error, TypeError) and _OF_THE_CALL.search(str(error)) else None
    if called is None:
        return text
    try:
        signature = f"{getattr(called, '__qualname__', called)}{inspect.signature(called)}"
    except (TypeError, ValueError):
        return text
    return f"{text}; it takes {signature[:SIGNATURE_CHARS]}"


def _frames(error: BaseException) -> list[tuple[FrameType, int]]:
    return list(traceback.walk_tb(error.__traceback__))


def innermost(error: BaseException) -> TracebackType | None:
    """Return the entry of an exception's traceback for the frame that raised it."""
    found = error.__traceback__
    while found is not None and found.tb_next is not None:
        found = found.tb_next
    return found


def _root(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _short_path(frame: FrameType) -> str:
    """Return the file's path from its package on."""
    name, path = str(frame.f_globals.get("__name__", "")), frame.f_code.co_filename
    parts: Sequence[str] = path.replace("\\", "/").split("/")
    root = name.partition(".")[0]
    start = len(parts) - 1 - parts[::-1].index(root) if root in parts else len(parts) - 1
    return "/".join(parts[start:])


def _is_raise(code: CodeType, place: int) -> bool:
    return code.co_code[place] == dis.opmap["RAISE_VARARGS"]


def _called(found: TracebackType) -> Any | None:
    """Return what the failing call of this frame called, if its expression is a name or an attribute."""
    positions = list(found.tb_frame.f_code.co_positions())[found.tb_lasti // 2]
    first, last, start, end = positions
    if first is None or last is None or start is None or end is None:
        return None
    lines = [
        linecache.getline(found.tb_frame.f_code.co_filename, number).encode()
        for number in range(first, last + 1)
    ]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    try:
        tree = ast.parse(b"(" + b"".join(lines) + b")", mode="eval").body
    except SyntaxError:
        return None
    return _value(tree.func, found.tb_frame) if isinstance(tree, ast.Call) else None


def _value(node: ast.expr, frame: FrameType) -> Any | None:
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        owner = _value(node.value, frame)
        return None if owner is None else getattr(owner, node.attr, None)
    return None
