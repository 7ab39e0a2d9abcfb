"""Makes outside text (subjects, reasons, commands) safe to show."""

from __future__ import annotations

import html


def plain(text: str) -> str:
    """Return text without control characters that a terminal would interpret."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


def escaped(text: str) -> str:
    """Return text escaped for HTML, without control characters."""
    return html.escape(plain(text))
