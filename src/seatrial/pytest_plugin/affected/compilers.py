"""Finds files that pass functions to a compiler, or read their source: their calls cannot all be seen."""

from __future__ import annotations

import ast
import re

from seatrial.pytest_plugin.affected.functions import STATEMENT_FIELDS, walk
from seatrial.pytest_plugin.affected.parsing import CANNOT_PARSE, parse

_OF_BYTECODE = rb"torch\.compile|torch_compile|torch import\b[^\n]*\bcompile|_dynamo|numba|njit"
_BYTECODE_COMPILERS = re.compile(rb"\b(" + _OF_BYTECODE + rb")\b")
_MARKS = (b"compile", b"_dynamo", b"numba", b"njit", b"torch.jit", b"triton", b"jax.jit", b"getsource")
"""Each match of the patterns contains one of these; searching for them first is ten times as fast."""
_COMPILERS = re.compile(rb"\b(" + _OF_BYTECODE + rb"|torch\.jit|triton|jax\.jit|getsource|getsourcelines)\b")
"""Tools that run a function in another form than Python's, or read its source: its calls are not visible."""


def may_be_compiled(content: bytes) -> bool:
    """Return whether a file names a tool that runs functions in another form, or reads their source."""
    return _has_mark(content) and _COMPILERS.search(content) is not None


def compiles_bytecode(content: bytes) -> bool:
    """Return whether a file's code names a compiler of bytecode, which would see the probes in it.

    Tools that read a function's source (`torch.jit`, `triton`) or run it (`jax.jit`) do not see them. Comments and bare
    strings, such as docstrings, are not code.
    """
    if not _has_mark(content) or _BYTECODE_COMPILERS.search(content) is None:
        return False
    try:
        tree = parse(content)
    except CANNOT_PARSE:
        return True
    for node in walk(tree):
        for field in STATEMENT_FIELDS:
            held = getattr(node, field, None)
            if isinstance(held, list) and held:
                held[:] = [child for child in held if not _is_bare_string(child)] or [ast.Pass()]
    code = ast.unparse(ast.fix_missing_locations(tree))
    return _BYTECODE_COMPILERS.search(code.encode(errors="replace")) is not None


def _has_mark(content: bytes) -> bool:
    return any(mark in content for mark in _MARKS)


def _is_bare_string(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
