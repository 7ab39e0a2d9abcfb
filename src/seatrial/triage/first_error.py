"""The first error of the first process that failed, from a log of many processes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from seatrial.packaged import read_table

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
_WRAPPINGS = (
    # Ray: `(Worker pid=12, ip=10.0.0.1) text`, `(pid=12) text`.
    re.compile(r"^\((?P<name>[^()]*?)\s?pid=(?P<number>\d+)(?:, ip=[\w.:]+)?\)\s?"),
    # PyTorch: `[rank1]: text`; torchrun --tee: `[default1]:text`, `[trainer1]:text`.
    re.compile(r"^\[(?P<name>rank|default|trainer|worker)(?P<number>\d+)\]:\s?"),
    # Ray's autoscaler: `(autoscaler +26s) text`.
    re.compile(r"^\((?P<name>autoscaler) \+(?P<number>\w+)\)\s?"),
    # deepspeed on several hosts: `work-1: text`.
    re.compile(r"^(?P<name>(?:work(?:er)?|node)-?)(?P<number>\d+): "),
    # srun --label: `1: text`.
    re.compile(r"^(?P<name>)(?P<number>\d{1,5}): "),
)


class Line(NamedTuple):
    """A line of a log."""

    number: int
    """From 1."""
    who: str
    """The process as the launcher names it: `rank 1`, `Worker 1234`; empty if unknown."""
    text: str


def console_lines(text: str) -> Iterator[Line]:
    """Yield the lines of a log."""
    for number, raw in enumerate(text.splitlines(), start=1):
        line = _COLOUR.sub("", raw.rsplit("\r", 1)[-1]).rstrip()
        who = ""
        while (found := _wrapping(line)) is not None:
            who = who or f"{found['name'] or 'process'} {found['number']}".strip()
            line = line[found.end() :]
        yield Line(number, who, line)


def _wrapping(line: str) -> re.Match[str] | None:
    return next((found for wrapping in _WRAPPINGS if (found := wrapping.match(line))), None)


_ERROR = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Interrupt|Failure|Timeout|NotFound|Exit)|Exception)"
    r"(?:\(\w+\))?(?::\s.*|:?)$"
)
_FATAL = re.compile(
    r"^(?:Segmentation fault|Killed|Bus error|Aborted|Fatal Python error|terminate called|FATAL|fatal:|F\d{4} |"
    r"E\d{4} .*(?:failed|error)|slurmstepd: error|srun: error|sbatch: error|ninja: build stopped|make: \*\*\*|"
    r"\S+: (?:line )?\d+: .*(?:not found|No such file|Killed|Permission denied)|"
    r"\S+: error: |Accelerate [\w ]+: error: |error: subprocess-exited|(?:× )?Failed to build |ERROR:? .{10,}|"
    r"\(raylet[^)]*\) A worker \w+ or was killed|Error: .{5,}|Signal 9 \(SIGKILL\)|Out of memory: Killed)|"
    r"^\S*python\S*: can't open file"
)
_WRAPPERS = re.compile(
    r"(?:RayTaskError|ChildFailedError|ProcessRaisedException|ProcessExitedException|CalledProcessError|"
    r"EngineDeadError|Engine core initialization failed|EngineCore failed|BrokenProcessPool|SystemExit|"
    r"FAILED$|Root Cause)"
)
_NOTICED = re.compile(
    r"Connection (?:reset|closed) by (?:remote )?peer|Connection refused|Broken pipe|Socket closed|"
    r"remote worker crashing|A worker \w+ or was killed while executing a task",
    re.IGNORECASE,
)
"""What a process prints when its neighbour failed: torchrun may see it fail first."""
_AFTER_TRACEBACK = re.compile(r"^[A-Za-z_][\w.]*(?::\s|:?$)")
"""The last line of a traceback, also where the name does not end in Error: `pyarrow.lib.ArrowInvalid: text`."""
_TRACEBACK = "Traceback (most recent call last):"
_PROGRESS = re.compile(r"^\{'loss': |\bstep:\d+ - |\d+%\|.*\d+/\d+ \[|\bstep \d+.*\b(?:loss|reward)\b")
"""What a run prints while it trains: rows of metrics and progress bars."""
_SURVIVED = 3
"""After so many lines of progress, an error was not what ended the run."""
_NOT_OWN = re.compile(
    r"site-packages|dist-packages|^<|lib/python3|\.pyx$|/bin/\w+$|multiprocessing/spawn\.py$"
)
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
_ROOT_RANK = re.compile(r"^\s*rank\s*: (\d+)")
_FRAME = re.compile(
    r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>(?!<(?:list|set|dict)comp>|<genexpr>).+)$'
)
_RAY_TASK = re.compile(r"RayTaskError\(\w+\): ray::(?P<task>[^ ]+) \(pid=(?P<pid>\d+)")
_SHOWN_LINES = 6


@dataclass(frozen=True, kw_only=True)
class FirstError:
    """An error as a process printed it."""

    line: int
    """Number of its line, from 1."""
    who: str
    """The process as the launcher names it at the start of each line; empty if unknown."""
    process: str
    """The same, or else the Ray task whose error it is; empty if unknown."""
    text: str
    """The error's own line."""
    context: Sequence[str]
    """The lines of the same process that lead to it, at most six: the last frames of its traceback."""
    frames: Sequence[str] = ()
    """The code of every frame of its traceback."""
    raised: bool = False
    """Whether it is an exception of the program itself, not one about the end of another process."""

    @property
    def raised_in(self) -> str:
        """Function, file and line of the innermost frame of its traceback; empty if the log has no traceback."""
        return self._innermost(re.compile("(?!)"))

    @property
    def own_frame(self) -> str:
        """The same of the innermost frame in a file that is no installed package; empty if there is none."""
        return self._innermost(_NOT_OWN)

    def _innermost(self, passed_over: re.Pattern[str]) -> str:
        found = [frame for text in reversed(self.frames) if (frame := _FRAME.match(text))]
        frame = next((one for one in found if not passed_over.search(one["file"])), None)
        return f"{frame['function']}, {frame['file']} line {frame['line']}" if frame else ""


def first_error(lines: Sequence[Line]) -> FirstError | None:
    """Return the first error that is no wrapper and is harmless in no list; a wrapper where nothing else is.

    An error after which the run continued counts only where there is no other.
    """
    candidates = list(_candidates(lines))
    ended = [line for line in candidates if line.number > _last_progress(lines)]
    candidates = ended or candidates
    rank = _root_rank(lines)
    own = [line for line in candidates if not _WRAPPERS.search(line.text)]
    of_rank = [line for line in own if rank is not None and line.who.split()[-1:] == [rank]]
    if not candidates:
        return None
    causes = [line for line in of_rank if not _NOTICED.search(line.text)]
    causes = causes or [line for line in own if not _NOTICED.search(line.text)]
    chosen = (causes or of_rank or own or candidates)[0]
    before = [
        line.text for line in lines[: chosen.number - 1] if line.who == chosen.who and line.text.strip()
    ]
    frames = _frames(before)
    task = _RAY_TASK.search(before[-len(frames) - 1]) if len(before) > len(frames) else None
    return FirstError(
        line=chosen.number,
        who=chosen.who,
        process=chosen.who or (f"Ray task {task['task']}, pid {task['pid']}" if task else ""),
        text=chosen.text.strip(),
        context=before[-_SHOWN_LINES:],
        frames=frames,
        raised=bool(_ERROR.match(chosen.text)) and chosen in causes,
    )


def _last_progress(lines: Sequence[Line]) -> int:
    """Return the number of the line up to which the run surely continued: the third-last line of progress."""
    numbers = [line.number for line in lines if _PROGRESS.search(line.text)]
    return numbers[-_SURVIVED] if len(numbers) >= _SURVIVED else 0


@cache
def harmless() -> re.Pattern[str]:
    """Return the expression of lines that look like an error and end nothing (harmless.yaml)."""
    return re.compile("|".join(row["pattern"] for row in read_table("seatrial.triage", "harmless.yaml")))


def last_of_chain(lines: Sequence[Line], error: FirstError) -> Line | None:
    """Return the exception that the program ended with, where it was raised from the first error; else None."""
    last, is_chained = None, False
    for line in lines[error.line :]:
        if line.who != error.who:
            continue
        if line.text.startswith(_CHAINED):
            is_chained = True
        elif is_chained and _ERROR.match(line.text):
            last, is_chained = line, False
    return last


def _frames(before: Sequence[str]) -> list[str]:
    """Return the indented lines of the traceback that ends there."""
    frames: list[str] = []
    for text in reversed(before):
        if not text.startswith(" "):
            break
        frames.append(text)
    return frames[::-1]


def _candidates(lines: Sequence[Line]) -> Iterator[Line]:
    """Yield lines that are errors, in the order in which they were written."""
    ignored: set[str] = set()
    in_traceback: set[str] = set()
    for line in lines:
        text = line.text.strip()
        if text.startswith("Exception ignored in"):
            # What follows up to its error is noise of the same process.
            ignored.add(line.who)
        is_error = bool(_ERROR.match(line.text) or _FATAL.match(text))
        if text == _TRACEBACK:
            in_traceback.add(line.who)
        elif line.who in in_traceback and text and not line.text.startswith(" "):
            in_traceback.discard(line.who)
            is_error = is_error or bool(_AFTER_TRACEBACK.match(line.text))
        if not is_error or harmless().search(text):
            continue
        if line.who in ignored:
            ignored.discard(line.who)
            continue
        yield line


def _root_rank(lines: Sequence[Line]) -> str | None:
    """Return the rank that torchrun saw fail first."""
    in_root = False
    for line in lines:
        in_root = in_root or line.text.startswith("Root Cause (first observed failure)")
        if in_root and (found := _ROOT_RANK.match(line.text)):
            return found[1]
    return None
