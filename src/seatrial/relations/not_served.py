"""The exception that an adapter raises for an input that the stack does not serve, by design."""

from __future__ import annotations


class NotServed(Exception):  # noqa: N818  not an error of the stack: a declaration
    """The stack excludes this input by design; the text says why. A law during which it is raised is not exercised.

    Other exceptions are crashes, `NotImplementedError` included, which torch raises for a missing kernel. A refusal in
    the own words of a stack that is installed apart is recognised: see `raised.refusal_of`.
    """


class Absent(NotServed):
    """The release or the environment has no such class, option, argument or package; a record of it says nothing."""
