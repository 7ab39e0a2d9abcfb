"""Plants a fault in an already imported module, if the fault changes only the code of functions.

A function is changed for everybody who holds it: registries, closures, names imported elsewhere. So a process that has
imported refrl can be forked for a fault; importing all of refrl again would take most of the time.
"""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Iterator
from importlib.abc import InspectLoader
from types import CodeType, FunctionType

_FUNCTION = inspect.CO_OPTIMIZED | inspect.CO_NEWLOCALS
_OWN = ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_flags", "co_exceptiontable")
"""What a code object does, except for its constants."""

_Place = tuple[str, int]


def change_functions(module: str, source: str, changed: str) -> bool:
    """Replace the code of an imported module's functions by that of its changed source.

    Args:
        module: its name.
        source: that it was imported from.
        changed: the same with the fault.

    Returns:
        Whether the module is now as if its changed source had been imported; if not, import it again. It is not
        where a default, a constant, a class or anything else that was made at its import differs.
    """
    path = sys.modules[module].__file__
    assert path is not None
    codes: dict[_Place, CodeType] = {}
    outermost: set[_Place] = set()
    if not _compare(_code(source, path), _code(changed, path), codes, outermost):
        return False
    functions: dict[_Place, list[FunctionType]] = {}
    for one in gc.get_objects():
        if type(one) is FunctionType and one.__code__.co_filename == path:
            functions.setdefault(_place(one.__code__), []).append(one)
    if not outermost <= functions.keys():
        return False  # what ran once, at the import
    try:
        for place, code in codes.items():
            for function in functions.get(place, ()):
                function.__code__ = code
    except ValueError:  # it closes over something else
        return False
    return True


def _code(source: str, path: str) -> CodeType:
    return InspectLoader.source_to_code(source, path)


def _place(code: CodeType) -> _Place:
    return code.co_qualname, code.co_firstlineno


def _compare(old: CodeType, new: CodeType, codes: dict[_Place, CodeType], outermost: set[_Place]) -> bool:
    """Collect the functions that differ; return whether nothing else does."""
    if _equal(old, new):
        return True
    if old.co_flags & _FUNCTION == _FUNCTION:
        outermost.add(_place(old))
        _note(old, new, codes)
        return True
    inner = zip(_nested(old), _nested(new), strict=False)
    return _own(old) == _own(new) and all(_compare(one, other, codes, outermost) for one, other in inner)


def _note(old: CodeType, new: CodeType, codes: dict[_Place, CodeType]) -> None:
    """Collect a function and its inner functions, whose closures may exist already."""
    codes[_place(old)] = new
    for one, other in zip(_nested(old), _nested(new), strict=False):
        _note(one, other, codes)


def _equal(old: CodeType, new: CodeType) -> bool:
    """Return whether two code objects do the same, regardless of their place in a file."""
    inner = zip(_nested(old), _nested(new), strict=False)
    return _own(old) == _own(new) and all(_equal(one, other) for one, other in inner)


def _nested(code: CodeType) -> Iterator[CodeType]:
    return (one for one in code.co_consts if isinstance(one, CodeType))


def _own(code: CodeType) -> tuple[object, ...]:
    constants = [
        one.co_name if isinstance(one, CodeType) else (type(one), repr(one)) for one in code.co_consts
    ]
    return (code.co_name, *(getattr(code, name) for name in _OWN), constants)
