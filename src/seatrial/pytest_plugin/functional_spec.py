"""A functional test in about ten lines of YAML: a command, its overrides, the number of steps, the checks of its logs.

    command: python -m refrl grpo --config grpo-smoke
    overrides:
      - grpo.max_num_steps={steps}
      - logger.log_dir={dir}/logs
    steps: 3
    checks:
      - median(data["train/token_mult_prob_error"]) < 1.1

`{dir}` is a new folder for this run, `{steps}` the number of steps, `{root}` pytest's root directory.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seatrial.checks import Check, parse_check
from seatrial.errors import UsageError

SUFFIX = ".functional.yaml"
DEFAULT_TIMEOUT_SECONDS = 3600.0
_KEYS = frozenset({"command", "overrides", "steps", "checks", "logs", "timeout", "env", "markers"})


@dataclass(frozen=True, kw_only=True)
class FunctionalSpec:
    """One functional test."""

    command: tuple[str, ...]
    """Program and arguments with overrides; placeholders are not yet replaced."""
    steps: int | None
    """The run must log this step or a later one; None: no requirement."""
    checks: tuple[Check, ...]
    logs: str
    """Where the run leaves its logs."""
    timeout_seconds: float
    env: Mapping[str, str]
    """Variables set for the command, in addition to pytest's environment."""
    markers: tuple[str, ...]

    def fill(self, text: str, directory: Path, root: Path) -> str:
        """Return a text with its placeholders replaced; other braces stay."""
        steps = "" if self.steps is None else str(self.steps)
        return text.replace("{dir}", str(directory)).replace("{root}", str(root)).replace("{steps}", steps)

    def argv(self, directory: Path, root: Path) -> list[str]:
        """Return the command line; `python` as the first word is the Python that runs pytest."""
        words = [self.fill(word, directory, root) for word in self.command]
        return [sys.executable, *words[1:]] if words[0] == "python" else words


def parse_spec(data: Any) -> FunctionalSpec:
    """Read the content of the YAML file.

    Raises:
        UsageError: names the key, its value and what is allowed; for a check, also the column.
    """
    if not isinstance(data, dict):
        raise UsageError(f"a functional test is a table of keys, not {type(data).__name__}")
    unknown = sorted(str(key) for key in data if key not in _KEYS)
    if unknown:
        raise UsageError(f"key {unknown[0]!r} is unknown; known: {', '.join(sorted(_KEYS))}")
    for key in ("command", "checks"):
        if not data.get(key):
            raise UsageError(f"key {key!r} is missing or empty: without it nothing is tested")
    steps = data.get("steps")
    if steps is not None and (not isinstance(steps, int) or isinstance(steps, bool) or steps < 1):
        raise UsageError(f"steps must be a number of steps from 1, not {steps!r}")
    timeout = data.get("timeout", DEFAULT_TIMEOUT_SECONDS)
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or timeout <= 0:
        raise UsageError(f"timeout must be a number of seconds, not {timeout!r}")
    return FunctionalSpec(
        command=(*_command(data["command"]), *_texts(data, "overrides")),
        steps=steps,
        checks=tuple(parse_check(text) for text in _texts(data, "checks")),
        logs=str(data.get("logs", "{dir}/logs")),
        timeout_seconds=float(timeout),
        env=_environment(data.get("env", {})),
        markers=_texts(data, "markers"),
    )


def _command(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        try:
            return tuple(shlex.split(value))
        except ValueError as error:
            raise UsageError(f"command {value!r}: {error}") from error
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return tuple(value)
    raise UsageError(f"command must be a text or a list of texts, not {value!r}")


def _texts(data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = data.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UsageError(f"{key} must be a list of texts, not {value!r}")
    return tuple(value)


def _environment(value: Any) -> Mapping[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str | int | float) for item in value.values()):
        raise UsageError(f"env must be a table of variables, not {value!r}")
    return {str(name): str(item) for name, item in value.items()}
