"""`seatrial dump LOGS --output metrics.json`: write all scalars of a log in NeMo RL's form."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from seatrial.errors import BlockedError, UsageError
from seatrial.evidence import dump
from seatrial.evidence.read import read_logs
from seatrial.evidence.runlog import RunLog
from seatrial.verdict import EXIT_BLOCKED, EXIT_FAIL, EXIT_PASS
from seatrial.words import counted

_MAX_NAMES = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `seatrial dump`."""
    parser.add_argument("logs", metavar="LOGS", help="TensorBoard folder or any other log")
    parser.add_argument(
        "--output", "--output_path", metavar="FILE", type=Path, required=True, help="metrics.json to write"
    )
    parser.add_argument(
        "--error-on-conflicts",
        action="store_true",
        help="exit 1 and write nothing if a step was logged again with another value",
    )
    parser.add_argument(
        "--require-tag-prefix",
        metavar="PREFIX",
        action="append",
        default=[],
        help="exit 1 and write nothing if no tag starts with this prefix",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the dump.

    Returns:
        0; 1 if the log does not meet a requirement; 3 if part of it could not be read (the rest is written).

    Raises:
        UsageError: the output is a folder, or its folder does not exist.
        BlockedError: nothing could be read, or the output cannot be written.
    """
    output: Path = arguments.output
    partial = _open_temporary(output)
    try:
        log = read_logs(Path(arguments.logs))
        refusal = _refusal(log, arguments)
        if refusal:
            print(f"seatrial dump: {refusal}; {output} was not written", file=sys.stderr)
            return EXIT_FAIL
        _write(log, partial, output)
    finally:
        partial.unlink(missing_ok=True)
    return _report(log, output)


def _open_temporary(output: Path) -> Path:
    """Create the temporary file next to the output first, so that a bad --output fails before any work."""
    if output.is_dir():
        raise UsageError(
            f"--output {output} is a folder; name a file in it, such as {output / 'metrics.json'}"
        )
    if not output.parent.is_dir():
        raise UsageError(f"--output {output}: there is no folder {output.parent}; make it first")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{output.name}.", dir=output.parent)
    except OSError as error:
        raise BlockedError(
            f"{output.parent} cannot be written to: {error.strerror}; name another --output"
        ) from error
    os.close(handle)
    return Path(name)


def _refusal(log: RunLog, arguments: argparse.Namespace) -> str | None:
    conflicts = {tag: one.conflicts for tag, one in log.series.items() if one.conflicts}
    if arguments.error_on_conflicts and conflicts:
        worst = sorted(conflicts, key=lambda tag: (-conflicts[tag], tag))[:_MAX_NAMES]
        named = ", ".join(f"{tag} {conflicts[tag]}" for tag in worst)
        return f"logged again with another value: {counted(sum(conflicts.values()), 'point')} ({named})"
    for prefix in arguments.require_tag_prefix:
        if not any(tag.startswith(prefix) for tag in log.tags()):
            found = ", ".join(log.tags()[:_MAX_NAMES]) or "none"
            return f"no tag begins with {prefix!r}; the log has {found}"
    return None


def _write(log: RunLog, partial: Path, output: Path) -> None:
    try:
        with partial.open("w", encoding="utf-8") as stream:
            stream.writelines(line + "\n" for line in dump.lines(log))
            stream.flush()
            os.fsync(stream.fileno())
        partial.chmod(0o666 & ~_umask())
        partial.replace(output)
    except OSError as error:
        raise BlockedError(
            f"{output} could not be written: {error.strerror}; an earlier file is unchanged. Free space or name "
            "another --output"
        ) from error


def _umask() -> int:
    """Return the process's mask of permissions; it can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _report(log: RunLog, output: Path) -> int:
    num_points = sum(len(series) for series in log.series.values()) + len(log.scalars)
    num_tags = len(log.series) + len(log.scalars)
    print(f"{output}: {counted(num_points, 'point')} of {counted(num_tags, 'tag')}")
    for note in log.notes:
        print(f"  note: {note}")
    for tag, kind in sorted(log.unread.items())[:_MAX_NAMES]:
        print(f"  not a scalar: {tag} ({kind})")
    if len(log.unread) > _MAX_NAMES:
        print(f"  not a scalar: {len(log.unread) - _MAX_NAMES} more tags")
    if not log.damage:
        return EXIT_PASS
    for item in log.damage:
        print(f"seatrial dump: Blocked: {item.path}: {item.what}", file=sys.stderr)
    return EXIT_BLOCKED
