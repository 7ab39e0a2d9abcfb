"""Removes secrets from everything that is written or shown: commands, console logs, reports, identity.

A secret is found by its name (an environment variable, an option or a key that is named like a secret), or by its
shape (tokens of a known form). A mark is left in its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

MARK = "[redacted]"

_SECRET_NAME = re.compile(
    r"(?:^|[_\-.])(?:(?:api|access|private|session|secret|storage|account|license|encryption|signing)[_\-]?key|"
    r"secret|secrets|token|passwd|password|passphrase|credential|credentials|authorization|cookie)(?:$|[_\-.])",
    re.IGNORECASE,
)
_SECRET_WORD = re.compile(
    r"password|passwd|passphrase|secret(?!ar)|(?:api|access|private|secret|signing|encryption|storage)[_\-]?key|"
    r"(?:api|access|auth|bearer|refresh|session|hf)[_\-]?token(?![a-z])",
    re.IGNORECASE,
)
"""Words that name a secret wherever they are in a name (`PGPASSWORD`, `dbpassword`, `accesstoken`)."""
_SECRET_VARIABLE = re.compile(r"[A-Z0-9_]+_(?:KEY|TOKENS|AUTH|PAT|PWD)")
_PUBLIC_NAME = re.compile(
    r"(?:token_ids?|(?:pad|eos|bos|unk|mask|sep|cls|stop|image|end|start)_token|token_mult\w*|token_file)$|per_token",
    re.IGNORECASE,
)
_MIN_VALUE = 6
"""A shorter value of a secret-named variable is not searched for in text: it would redact ordinary words."""

_SHAPES: tuple[re.Pattern[str], ...] = (
    re.compile(r"\bhf_[A-Za-z0-9]{20,}\b"),
    re.compile(r"\bsk-(?:ant-|proj-)?[A-Za-z0-9_\-]{16,}"),
    re.compile(r"\bgh[pousr]_[A-Za-z0-9]{20,}\b"),
    re.compile(r"\bgithub_pat_[A-Za-z0-9_]{20,}\b"),
    re.compile(r"\bglpat-[A-Za-z0-9_\-]{16,}"),
    re.compile(r"\bnvapi-[A-Za-z0-9_\-]{16,}"),
    re.compile(r"\bxox[abprs]-[A-Za-z0-9\-]{10,}"),
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    re.compile(r"\bAIza[A-Za-z0-9_\-]{30,}"),
    re.compile(r"\beyJ[A-Za-z0-9_\-]{8,}\.eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]+"),
    re.compile(r"(?i)(?<=key)\W{1,3}[0-9a-f]{40}\b"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:.|\n)*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"),
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)(\s+)[A-Za-z0-9+/=._\-]{8,}")
_URL_CREDENTIALS = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*:/{1,2})[^\s/@:]*:(?:(?!\d{1,5}/)[^\s\"'<>]+|[^\s/@]+)@"
)
"""A password may contain `/` and `@`: it ends at the last `@`. A port and a path are no password.
One slash is enough: paths join two."""
_URL_TOKEN = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*:/{1,2})[^\s/@:]{12,}@")
_ASSIGNED = re.compile(
    r"(?P<name>[A-Za-z][A-Za-z0-9_.\-]*)(?P<quote>[\"']?)(?P<glue>\s*[=:]\s*[\"']?)(?P<value>[^\s\"',;&]+)"
)
_NO_VALUE = re.compile(r"none|null|true|false|~|[*x.]+|\[redacted\].*", re.IGNORECASE)
"""What a secret-looking key may have in place of a secret."""
_OPTION = re.compile(r"^--?(?P<name>[A-Za-z][A-Za-z0-9_\-]*)$")


def is_secret_name(name: str) -> bool:
    """Whether a variable, option or key of this name holds a secret.

    Names of the field that only contain such a word (`pad_token_id`, `max_new_tokens`) do not.
    """
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.lstrip("-"))
    named = _SECRET_NAME.search(name) or _SECRET_WORD.search(name) or _SECRET_VARIABLE.fullmatch(name)
    return bool(named) and not _PUBLIC_NAME.search(name)


class Redactor:
    """Takes secrets out of text; knows the values of the secret-named variables of one environment."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """Learn the values that must not appear."""
        values = {
            value.strip()
            for name, value in (environment or {}).items()
            if is_secret_name(name) and len(value.strip()) >= _MIN_VALUE and not value.strip().isdigit()
        }
        # The longest first, so that a value that contains another is taken out whole.
        self._values = tuple(sorted(values, key=len, reverse=True))

    def text(self, text: str) -> str:
        """Return the text with every secret replaced by `[redacted]`."""
        return _ASSIGNED.sub(_redact_assigned, self.sentence(text))

    def sentence(self, text: str) -> str:
        """Return prose without known values, tokens of a known form and credentials of URLs; `token: words` stays."""
        for value in self._values:
            text = text.replace(value, MARK)
        for shape in _SHAPES:
            text = shape.sub(MARK, text)
        text = _URL_CREDENTIALS.sub(rf"\g<scheme>{MARK}@", text)
        text = _URL_TOKEN.sub(rf"\g<scheme>{MARK}@", text)
        return _BEARER.sub(rf"\1\2{MARK}", text)

    def argv(self, argv: Sequence[str]) -> list[str]:
        """Return a command's words redacted; the word after a secret-named option (`--api-key X`) goes too."""
        words: list[str] = []
        after_secret = False
        for word in argv:
            option = _OPTION.match(word)
            name, equals, value = word.partition("=")
            if after_secret and not option:
                words.append(MARK)
            elif (
                equals
                and _SECRET_WORD.search(name)
                and is_secret_name(name)
                and not _NO_VALUE.fullmatch(value)
            ):
                words.append(f"{name}={MARK}")
            else:
                words.append(self.text(word))
            after_secret = option is not None and is_secret_name(option["name"])
        return words

    def environment(self, environment: Mapping[str, str], prefixes: Iterable[str]) -> dict[str, str]:
        """Return the variables whose name starts with a prefix, sorted, with secrets redacted."""
        wanted = tuple(prefixes)
        return {
            name: MARK if is_secret_name(name) else self.text(value)
            for name, value in sorted(environment.items())
            if name.startswith(wanted)
        }


def _redact_assigned(match: re.Match[str]) -> str:
    """Redact `name=value` and `"name": "value"`.

    A short or numeric value of a name such as `token` stays: it may be a count of tokens.
    """
    name, value = match["name"], match["value"]
    if not is_secret_name(name) or _NO_VALUE.fullmatch(value):
        return match[0]
    is_short = len(value) < _MIN_VALUE or value.replace(".", "").isdigit()
    if is_short and not _SECRET_WORD.search(name):
        return match[0]
    return f"{name}{match['quote']}{match['glue']}{MARK}"
