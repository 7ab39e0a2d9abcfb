"""Errors that the user can fix: one message with the remedy, no traceback."""

from __future__ import annotations


class UsageError(Exception):
    """Wrong usage: an unknown key, target, level or expression. The command exits 2."""


class BlockedError(Exception):
    """The environment prevented the evidence: missing GPU, full disk, unreadable log. The command exits 3."""
