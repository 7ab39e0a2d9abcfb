"""Python's parser without warnings."""

from __future__ import annotations

import ast
import warnings

CANNOT_PARSE = (SyntaxError, ValueError, RecursionError)
"""Exceptions that `parse` raises."""


def parse(content: bytes, filename: str = "<unknown>") -> ast.Module:
    """Parse a file and suppress its warnings.

    Raises:
        SyntaxError: it is not Python.
        ValueError: it contains null bytes.
        RecursionError: it is nested too deeply.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(content, filename)
