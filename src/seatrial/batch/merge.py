"""Merges the parts of a run that was split into shards: run directories, or the JSON of `seatrial relations`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seatrial.errors import BlockedError, UsageError
from seatrial.files import write_text
from seatrial.trials.results import Results, TrialResult
from seatrial.trials.rundir import RunDirectory, make_directory, read_results
from seatrial.verdict import Verdict, combine

MUST_AGREE = ("target", "seed", "overrides", "seatrial_version", "repositories")
"""What all parts of one run have in common."""


def merge_runs(paths: Sequence[Path], output: Path) -> Results:
    """Write a run directory with the trials of several; their evidence stays where it is.

    Args:
        paths: run directories.
        output: the new one.

    Raises:
        UsageError: the parts are not of one run, a trial is in two of them, or the output exists.
        BlockedError: a part cannot be read, or the output cannot be written.
    """
    parts = [read_results(path) for path in paths]
    first = parts[0]
    for path, part in zip(paths[1:], parts[1:], strict=True):
        for name in MUST_AGREE:
            if getattr(part, name) != getattr(first, name):
                raise UsageError(
                    f"{path} has the {name} {getattr(part, name)!r} and {paths[0]} {getattr(first, name)!r}: "
                    "they are not parts of one run"
                )
    try:
        make_directory(output)
    except FileExistsError as error:
        raise UsageError(f"--merge {output} already exists; name a new folder") from error
    whole: dict[str, TrialResult] = {}
    owner: dict[str, Path] = {}
    for path, part in zip(paths, parts, strict=True):
        for trial in part.trials:
            if trial.requested and trial.name in owner:
                output.rmdir()
                raise UsageError(f"{trial.name} is in {owner[trial.name]} and in {path}: name each part once")
            if trial.requested:
                owner[trial.name] = path
                if trial.directory is not None:
                    trial.directory = os.path.relpath(path / trial.directory, output)
            if trial.requested or trial.name not in whole:
                whole[trial.name] = trial
    ends = [part.finished_at for part in parts]
    results = first.model_copy(
        update={
            "run": output.name,
            "requested": "; ".join(part.requested for part in parts),
            "started_at": min(part.started_at for part in parts),
            "finished_at": None if None in ends else max(end for end in ends if end is not None),
            "left_out": {
                name: why for part in parts for name, why in part.left_out.items() if name not in owner
            },
            "trials": list(whole.values()),
        }
    )
    with RunDirectory(output) as directory:
        directory.write_results(results)
    return results


def is_relations(path: Path) -> bool:
    """Return whether a path names a JSON file that `seatrial relations --json` wrote."""
    return path.is_file() and path.suffix == ".json" and "verdicts" in _read(path)


def merge_relations(paths: Sequence[Path], output: Path) -> list[Verdict]:
    """Write one JSON file with the verdicts of several, and return them.

    Raises:
        UsageError: the parts are of different releases, or a relation is in two of them.
        BlockedError: a file cannot be read or written.
    """
    parts = [_read(path) for path in paths]
    for path, part in zip(paths[1:], parts[1:], strict=True):
        if part["releases"] != parts[0]["releases"]:
            raise UsageError(
                f"{path} is of {part['releases']} and {paths[0]} of {parts[0]['releases']}: no parts of one run"
            )
    owner: dict[str, Path] = {}
    found: list[Any] = []
    for path, part in zip(paths, parts, strict=True):
        for verdict in part["verdicts"]:
            name = str(verdict["name"])
            # Every shard says which adapters cannot be made.
            if name in owner and not _is_adapter(verdict):
                raise UsageError(f"{name} is in {owner[name]} and in {path}: name each part once")
            if name not in owner:
                owner[name] = path
                found.append(verdict)
    verdicts = [Verdict.from_json(verdict) for verdict in found]
    document = {**parts[0], "outcome": combine(verdicts).value, "verdicts": found}
    write_text(output, json.dumps(document, indent=2) + "\n", option="--merge")
    return verdicts


def _is_adapter(verdict: dict[str, Any]) -> bool:
    """Return whether a verdict is about an adapter that cannot be made: it has no laws."""
    return "laws" not in verdict["details"]


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BlockedError(f"cannot read {path}: {error}") from error
    return content if isinstance(content, dict) else {}
