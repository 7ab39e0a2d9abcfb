"""Python's parser, as everything here uses it."""

from __future__ import annotations

import ast
import warnings

CANNOT_PARSE = (SyntaxError, ValueError, RecursionError)
"""What `parse` raises."""


def parse(content: bytes, filename: str = "<unknown>") -> ast.Module:
    """Parse a file without a word of its warnings.

    Raises:
        SyntaxError: it is no Python.
        ValueError: it holds null bytes.
        RecursionError: it is nested too deeply.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(content, filename)
