"""Text from outside (subjects, reasons, commands) made safe to show."""

from __future__ import annotations

import html


def plain(text: str) -> str:
    """Return text without what a terminal would obey."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


def escaped(text: str) -> str:
    """Return text as HTML shows it: nothing in it is markup, and no character is forbidden there."""
    return html.escape(plain(text))
