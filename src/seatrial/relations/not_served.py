"""The exception by which an adapter says that an input is, by design, not served."""

from __future__ import annotations


class NotServed(Exception):  # noqa: N818  not an error of the stack: a declaration
    """The stack excludes this input by design; the text says why. A law that meets it is not exercised.

    `NotImplementedError` is not taken for it: torch raises that for a missing kernel.
    """
