"""Masks credentials in what a run writes and prints: in URLs, and values of keys that are named like a secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "[masked]"

_URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*:/{1,2})(?:[^\s/@:]*:(?:(?!\d{1,5}/)[^\s\"'<>]+|[^\s/@]+)|[^\s/@:]{12,})@"
)
"""A user with a password, or a long token alone. A password may contain `/` and `@`: it ends at the last `@`.
One slash is enough: paths join two."""
_SECRET = re.compile(
    r"password|passwd|passphrase|secret(?!ar)|credential|(?:api|access|private|secret|signing|encryption)[_-]?key|"
    r"(?:api|access|auth|bearer|refresh|session|hf)[_-]?token(?![a-z])|(?:^|\.)token$",
    re.IGNORECASE,
)
"""Names of secrets; those of special tokens (`pad_token`, `max_new_tokens`) are none."""
_ASSIGNED = re.compile(r"(?P<name>[A-Za-z][\w.\-]*)(?P<glue>[\"']?\s*[=:]\s*[\"']?)(?P<value>[^\s\"',;&{}]+)")


def masked_text(text: str) -> str:
    """Return a text with credentials in URLs and values of secret-looking names masked."""
    return _ASSIGNED.sub(_masked_value, _URL.sub(rf"\g<scheme>{MASK}@", text))


def masked_word(word: str) -> str:
    """Return a word of a command line; the whole value of a secret-looking `name=value` is masked."""
    name, equals, value = word.partition("=")
    return f"{name}={MASK}" if equals and value and _SECRET.search(name) else masked_text(word)


def masked(value: Any, name: str = "") -> Any:
    """Return JSON values with credentials masked.

    Args:
        value: mappings, lists and plain values.
        name: of the key that holds the value.
    """
    if isinstance(value, Mapping):
        return {key: masked(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [masked(inner, name) for inner in value]
    if value is not None and not isinstance(value, bool) and _SECRET.search(name):
        return MASK
    return masked_text(value) if isinstance(value, str) else value


def _masked_value(match: re.Match[str]) -> str:
    name, glue, value = match["name"], match["glue"], match["value"]
    return f"{name}{glue}{MASK}" if _SECRET.search(name) and value != MASK else match[0]
