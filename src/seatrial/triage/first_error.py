"""The first error of the first process that failed, from a log of many processes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
_WRAPPINGS = (
    # Ray: `(Worker pid=12, ip=10.0.0.1) text`, `(pid=12) text`.
    re.compile(r"^\((?P<name>[^()]*?)\s?pid=(?P<number>\d+)(?:, ip=[\w.:]+)?\)\s?"),
    # PyTorch: `[rank1]: text`; torchrun --tee: `[default1]:text`, `[trainer1]:text`.
    re.compile(r"^\[(?P<name>rank|default|trainer|worker)(?P<number>\d+)\]:\s?"),
    # Ray's autoscaler: `(autoscaler +26s) text`.
    re.compile(r"^\((?P<name>autoscaler) \+(?P<number>\w+)\)\s?"),
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
    r"\S+: error: |ERROR:? .{10,}|Error: .{5,}|Signal 9 \(SIGKILL\)|Out of memory: Killed)|"
    r"^\S*python\S*: can't open file"
)
_WRAPPERS = re.compile(
    r"(?:RayTaskError|ChildFailedError|ProcessRaisedException|ProcessExitedException|CalledProcessError|"
    r"EngineDeadError|Engine core initialization failed|EngineCore failed|BrokenProcessPool|SystemExit|"
    r"FAILED$|Root Cause)"
)
_NOISE = re.compile(
    r"(?:Exception ignored in|leaked (?:semaphore|shared_memory)|resource_tracker|destroy_process_group|"
    r"atexit|Sending process \d+ closing signal|SIGTERM handler|warnings\.warn|FutureWarning|DeprecationWarning|"
    r"failed \(exitcode: -?\d+\) local_rank|error_file|To enable traceback)"
)
_NOTICED = re.compile(
    r"Connection (?:reset|closed) by (?:remote )?peer|Connection refused|Broken pipe|Socket closed|"
    r"remote worker crashing",
    re.IGNORECASE,
)
"""What a process prints when its neighbour failed: torchrun may see it fail first."""
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
        found = next((frame for text in reversed(self.frames) if (frame := _FRAME.match(text))), None)
        return f"{found['function']}, {found['file']} line {found['line']}" if found else ""


def first_error(lines: Sequence[Line]) -> FirstError | None:
    """Return the first error that is no wrapper and no noise of a shutdown; a wrapper where nothing else is."""
    candidates = list(_candidates(lines))
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
    for line in lines:
        text = line.text.strip()
        if text.startswith("Exception ignored in"):
            # What follows up to its error is noise of the same process.
            ignored.add(line.who)
        is_error = bool(_ERROR.match(line.text) or _FATAL.match(text))
        if not is_error or _NOISE.search(text):
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
