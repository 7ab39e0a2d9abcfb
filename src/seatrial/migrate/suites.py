"""Migrates checks from shell scripts that call NeMo RL's checker (`tests/check_metrics.py FILE 'expr' ...`)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from seatrial.checks.language.grammar import parse_check
from seatrial.checks.language.nodes import Check
from seatrial.checks.lint import Finding, lint_check
from seatrial.errors import UsageError
from seatrial.migrate.shell import ShellError, Word, expand, parse_script
from seatrial.migrate.shell_walk import Branch, ScriptWalk, StepGuard

MAX_CONFIG_BYTES = 1_000_000
"""Largest size of a configuration."""
_STEPS, _INHERITED = "max_num_steps", "defaults"
_MOST_INHERITED = 10


def find_config(script: Path, written: str) -> Path | None:
    """Return the file that a script gives as `--config`, or None if it cannot be found.

    Args:
        script: the script; the file is searched next to it and in the folders above.
        written: the path in the script, such as `${ROOT}/examples/run.yaml`; a variable at the start is ignored.
    """
    tail = written.partition("/")[2] if written.startswith("$") else written
    if not tail or "$" in tail:
        return None
    return next((path for folder in script.resolve().parents if (path := folder / tail).is_file()), None)


def steps_of_config(path: Path, depth: int = 0) -> int | None:
    """Return `max_num_steps` of the only section that has it, or of an inherited configuration."""
    content = _mapping(path)
    sections = [value for value in content.values() if isinstance(value, Mapping)]
    found = {value for section in sections if isinstance(value := section.get(_STEPS), int)}
    if found:
        return found.pop() if len(found) == 1 else None
    inherited = content.get(_INHERITED)
    names = inherited if isinstance(inherited, list) else [inherited]
    if depth == _MOST_INHERITED or not all(isinstance(name, str) for name in names):
        return None
    # If several define it, the last one wins.
    bases = (steps_of_config(path.parent / str(name), depth + 1) for name in reversed(names))
    return next((steps for steps in bases if steps is not None), None)


def _mapping(path: Path) -> Mapping[object, object]:
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            return {}
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError):
        return {}
    return content if isinstance(content, Mapping) else {}


CHECKER = "check_metrics.py"
MAX_BYTES = 2_000_000
"""Largest size of a script."""
_MAX_STEPS = re.compile(r"(?:\w+\.)?max_num_steps=(\d+)$")


@dataclass(frozen=True, kw_only=True)
class CarriedCheck:
    """One expression that the check language supports."""

    check: Check
    line: int
    findings: tuple[Finding, ...]


@dataclass(frozen=True, kw_only=True)
class LeftBehind:
    """One expression, or a whole call, that could not be migrated."""

    text: str
    line: int
    reason: str


@dataclass(frozen=True)
class AskedSteps:
    """The number of steps that a run is started with."""

    steps: int
    config: str | None = None
    """Name of the configuration that sets it; None: the command sets it."""


@dataclass
class CheckerCall:
    """One call of the checker: the metrics file as written in the script, and its expressions."""

    metrics: str
    line: int
    path: tuple[Branch, ...] = ()
    """The branches of the script that lead to it."""
    guards: tuple[StepGuard, ...] = ()
    """What the script requires of a run before it calls the checker."""
    asked_steps: AskedSteps | None = None
    """Steps of the run before the call, if its command or its configuration sets them."""
    carried: list[CarriedCheck] = field(default_factory=list)
    left_behind: list[LeftBehind] = field(default_factory=list)


@dataclass
class Migration:
    """The result for one script."""

    script: Path
    calls: list[CheckerCall] = field(default_factory=list)
    left_behind: list[LeftBehind] = field(default_factory=list)
    max_num_steps: int | None = None

    @property
    def carried(self) -> list[CarriedCheck]:
        """Return every migrated expression."""
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
    """Read the checker calls of one script; nothing is executed.

    Raises:
        UsageError: the script cannot be read, or a quote in it is not closed.
    """
    try:
        raw = path.read_bytes()
        if len(raw) > MAX_BYTES:
            raise UsageError(f"{path}: {len(raw):,} bytes; at most {MAX_BYTES:,} are read")
        if CHECKER.encode() not in raw:
            return Migration(script=path)
        root = parse_script(raw.decode("utf-8", errors="replace").replace("\r\n", "\n"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except ShellError as error:
        raise UsageError(f"{path}: not a shell script that can be read: {error}") from error
    reader = _ScriptReader(Migration(script=path))
    walk = ScriptWalk(reader.read)
    walk.walk(root)
    return reader.finish(walk)


class _ScriptReader:
    """Reads the checker calls of a script, with the steps of the runs before them."""

    def __init__(self, migration: Migration) -> None:
        self.migration = migration
        self.asked_steps: AskedSteps | None = None

    def read(self, walk: ScriptWalk, command: list[Word]) -> None:
        """Read one command."""
        place = next((n for n, word in enumerate(command) if (word.literal or "").endswith(CHECKER)), None)
        if place is None:
            self._note_max_steps(walk, command)
        else:
            self._call(walk, command[place], command[place + 1 :])

    def finish(self, walk: ScriptWalk) -> Migration:
        """Return the migration, with the lint findings of its checks."""
        if self.migration.max_num_steps is None:
            self.migration.max_num_steps = _whole(walk.values.get("MAX_STEPS"))
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

    def _note_max_steps(self, walk: ScriptWalk, command: list[Word]) -> None:
        """Record the `grpo.max_num_steps=N` of a run, and the largest of all runs."""
        words = [expand(word, walk.values) for word in command]
        texts = [text for found in words if isinstance(found, list) for text in found]
        asked = [int(match[1]) for text in texts if (match := _MAX_STEPS.search(text))]
        if asked:
            self.asked_steps = AskedSteps(asked[-1])
            self.migration.max_num_steps = max(self.migration.max_num_steps or 0, asked[-1])
            return
        for option, value in itertools.pairwise(command):
            if option.literal == "--config":
                path = find_config(self.migration.script, _as_written(value))
                if path is not None and (steps := steps_of_config(path)) is not None:
                    self.asked_steps = AskedSteps(steps, path.name)

    def _call(self, walk: ScriptWalk, name: Word, words: list[Word]) -> None:
        """Read one call: options, the metrics file, the expressions."""
        words = _without_options(words)
        if not words:
            self.migration.left_behind.append(
                LeftBehind(
                    text=CHECKER, line=name.line, reason="the call has no metrics file and no expression"
                )
            )
            return
        call = CheckerCall(
            metrics=_as_written(words[0]),
            line=name.line,
            path=walk.path,
            guards=walk.guards,
            asked_steps=self.asked_steps,
        )
        self.migration.calls.append(call)
        for guard in walk.guards:
            if isinstance(guard.steps, str):
                text = f"the run must have logged the step {guard.steps.split(' ')[0]}"
                self._leave_behind(call, text, guard.line, guard.steps)
        if call.path and call.asked_steps is not None and not call.guards:
            text = f"the run is started for {call.asked_steps.steps} steps"
            self._leave_behind(
                call, text, name.line, "the script may stop it earlier: add steps where it does not"
            )
        for word in words[1:]:
            texts = expand(word, walk.values)
            if isinstance(texts, str):
                self._leave_behind(call, _as_written(word), word.line, texts)
                continue
            for text in texts:
                self._expression(call, text, word.line)

    def _expression(self, call: CheckerCall, text: str, line: int) -> None:
        try:
            call.carried.append(
                CarriedCheck(check=parse_check(" ".join(text.split())), line=line, findings=())
            )
        except UsageError as error:
            self._leave_behind(call, text, line, str(error).split("\n")[0])

    def _leave_behind(self, call: CheckerCall, text: str, line: int, reason: str) -> None:
        left = LeftBehind(text=text, line=line, reason=reason)
        call.left_behind.append(left)
        self.migration.left_behind.append(left)


def _without_options(words: list[Word]) -> list[Word]:
    """Remove the checker's only option, `--table-width N`."""
    kept: list[Word] = []
    pending = iter(words)
    for word in pending:
        literal = word.literal or ""
        if literal == "--table-width":
            next(pending, None)
        elif not literal.startswith("--table-width="):
            kept.append(word)
    return kept


def _as_written(word: Word) -> str:
    """Return a word with its variables by name."""
    return "".join(
        part if isinstance(part, str) else getattr(part, "text", None) or f"${{{getattr(part, 'name', '')}}}"
        for part in word.parts
    )


def _whole(value: str | list[str] | None) -> int | None:
    return int(value) if isinstance(value, str) and value.isascii() and value.isdecimal() else None
