"""Carrying checks over from shell scripts that call NeMo RL's checker (`tests/check_metrics.py FILE 'expr' ...`)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from seatrial.checks.grammar import parse_check
from seatrial.checks.lint import Finding, lint_check
from seatrial.checks.nodes import Check
from seatrial.checks.shell import read_commands
from seatrial.checks.shell_values import ShellValues
from seatrial.checks.shell_words import ShellError, Word, expand
from seatrial.errors import UsageError

CHECKER = "check_metrics.py"
MAX_BYTES = 2_000_000
"""Size of a script."""
_MAX_STEPS = re.compile(r"(?:\w+\.)?max_num_steps=(\d+)$")


@dataclass(frozen=True, kw_only=True)
class CarriedCheck:
    """One expression that is in the language."""

    check: Check
    line: int
    findings: tuple[Finding, ...]


@dataclass(frozen=True, kw_only=True)
class LeftBehind:
    """One expression, or a whole call, that could not be carried over."""

    text: str
    line: int
    reason: str


@dataclass
class CheckerCall:
    """One call of the checker: the metrics file as the script writes it, and its expressions."""

    metrics: str
    line: int
    carried: list[CarriedCheck] = field(default_factory=list)


@dataclass
class Migration:
    """What one script gives."""

    script: Path
    calls: list[CheckerCall] = field(default_factory=list)
    left_behind: list[LeftBehind] = field(default_factory=list)
    max_num_steps: int | None = None

    @property
    def carried(self) -> list[CarriedCheck]:
        """Return every expression carried over."""
        return [item for call in self.calls for item in call.carried]


def find_scripts(paths: Iterable[Path]) -> list[Path]:
    """Return the scripts among paths; directories are searched for `*.sh`.

    Raises:
        UsageError: a path does not exist.
    """
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path}: no such file or directory")
        found += sorted(path.rglob("*.sh")) if path.is_dir() else [path]
    return list(dict.fromkeys(found))


def migrate_script(path: Path) -> Migration:
    """Read the calls of the checker in one script; nothing is run.

    Raises:
        UsageError: the script cannot be read, or a quote in it is not closed.
    """
    try:
        raw = path.read_bytes()
        if len(raw) > MAX_BYTES:
            raise UsageError(f"{path}: {len(raw):,} bytes; at most {MAX_BYTES:,} are read")
        commands = list(read_commands(raw.decode("utf-8", errors="replace").replace("\r\n", "\n")))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except ShellError as error:
        raise UsageError(f"{path}: not a shell script that can be read: {error}") from error
    reader = _ScriptReader(Migration(script=path))
    for command in commands:
        reader.read(command)
    return reader.finish()


class _ScriptReader:
    """Follows the assignments of a script and reads the checker's calls."""

    def __init__(self, migration: Migration) -> None:
        self.migration = migration
        self.values = ShellValues()

    def read(self, command: list[Word]) -> None:
        """Read one command."""
        command = self.values.follow(command)
        place = next((n for n, word in enumerate(command) if (word.literal or "").endswith(CHECKER)), None)
        if place is None:
            self._note_max_steps(command)
        else:
            self._call(command[place], command[place + 1 :])

    def finish(self) -> Migration:
        """Return the migration, with faults of the checks that are known now."""
        if self.migration.max_num_steps is None:
            self.migration.max_num_steps = _whole(self.values.known.get("MAX_STEPS"))
        for call in self.migration.calls:
            call.carried = [
                CarriedCheck(
                    check=item.check,
                    line=item.line,
                    findings=tuple(lint_check(item.check, max_num_steps=self.migration.max_num_steps)),
                )
                for item in call.carried
            ]
        return self.migration

    def _note_max_steps(self, command: list[Word]) -> None:
        """Remember the largest `grpo.max_num_steps=N` that a run is started with."""
        for word in command:
            value = expand(word, self.values.known)
            match = _MAX_STEPS.search(value[0]) if isinstance(value, list) and value else None
            if match:
                self.migration.max_num_steps = max(self.migration.max_num_steps or 0, int(match.group(1)))

    def _call(self, name: Word, words: list[Word]) -> None:
        """Read one call: options, the metrics file, the expressions."""
        words = _without_options(words)
        if not words:
            self.migration.left_behind.append(
                LeftBehind(
                    text=CHECKER, line=name.line, reason="the call has no metrics file and no expression"
                )
            )
            return
        call = CheckerCall(metrics=_as_written(words[0]), line=name.line)
        self.migration.calls.append(call)
        for word in words[1:]:
            texts = expand(word, self.values.known)
            if isinstance(texts, str):
                self.migration.left_behind.append(
                    LeftBehind(text=_as_written(word), line=word.line, reason=texts)
                )
                continue
            for text in texts:
                self._expression(call, text, word.line)

    def _expression(self, call: CheckerCall, text: str, line: int) -> None:
        try:
            call.carried.append(
                CarriedCheck(check=parse_check(" ".join(text.split())), line=line, findings=())
            )
        except UsageError as error:
            self.migration.left_behind.append(
                LeftBehind(text=text, line=line, reason=str(error).split("\n")[0])
            )


def _without_options(words: list[Word]) -> list[Word]:
    """Drop the checker's one option, `--table-width N`."""
    kept: list[Word] = []
    skip = False
    for word in words:
        literal = word.literal or ""
        if skip:
            skip = False
        elif literal == "--table-width":
            skip = True
        elif not literal.startswith("--table-width="):
            kept.append(word)
    return kept


def _as_written(word: Word) -> str:
    """Return a word with its variables by name."""
    told = ""
    for part in word.parts:
        told += (
            part
            if isinstance(part, str)
            else getattr(part, "text", None) or f"${{{getattr(part, 'name', '')}}}"
        )
    return told


def _whole(value: str | list[str] | None) -> int | None:
    return int(value) if isinstance(value, str) and value.isascii() and value.isdecimal() else None


def suite_texts(migration: Migration) -> dict[str, str]:
    """Return file name -> YAML of each suite: one per metrics file that the script judges."""
    groups: dict[str, list[CarriedCheck]] = {}
    for call in migration.calls:
        groups.setdefault(call.metrics, []).extend(call.carried)
    texts = {}
    for number, (metrics, carried) in enumerate((item for item in groups.items() if item[1]), start=1):
        name = migration.script.stem + (f"-{number}" if number > 1 else "")
        texts[f"{name}.yaml"] = _suite_text(name, migration.script.name, metrics, carried)
    return texts


def _suite_text(name: str, script: str, metrics: str, carried: list[CarriedCheck]) -> str:
    """Return one suite as YAML, with what is wrong with a check as a comment above it."""
    head = {"name": name, "description": f"carried over from {script}, which judged {metrics}"}
    lines = [yaml.safe_dump(head, sort_keys=False, width=1000, allow_unicode=True).rstrip(), "checks:"]
    for item in carried:
        for finding in item.findings:
            lines.append(f"  # {finding.kind.value}: {' '.join(finding.message.split())}")
        entry = {
            "expression": item.check.text,
            "why": f"{script} line {item.line} holds the run to it",
            "source": f"hand-set in {script} line {item.line}",
        }
        text = yaml.safe_dump([entry], sort_keys=False, width=1000, allow_unicode=True).rstrip()
        lines += [f"  {line}" for line in text.splitlines()]
    return "\n".join(lines) + "\n"
