"""Verdict on the files of an export: as readable as its configuration, whole, and nothing left over."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

from seatrial.errors import BlockedError
from seatrial.trials.run_evidence import RunEvidence
from seatrial.trials.sensors.options import options_of
from seatrial.trials.sensors.paths import sensor

READ = 0o444
INDEX = "*.safetensors.index.json"


def files_are_exported(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """Every file and folder of the export is readable by all who can read config.json, and none is a leftover.

    Raises:
        NotGivenError: the run exports no model, or the target does not say how the run is configured.
        BlockedError: there is no export, or a file cannot be read.
    """
    options_of(evidence)
    evidence.need("export")
    final = evidence.job.final_model
    paths = sorted(final.rglob("*"))
    try:
        readers = stat.S_IMODE((final / "config.json").stat().st_mode) & READ
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in paths}
    except OSError as error:
        raise BlockedError(f"{error.filename}: {error.strerror}") from error
    wrong = [
        f"{path.relative_to(final)} has mode {mode:o}, config.json can be read by {readers:o}"
        for path, mode in modes.items()
        if mode & readers != readers
    ]
    wrong += [f"{path.relative_to(final)} is left over" for path in paths if path.name.startswith(".")]
    wrong += [
        f"{path.relative_to(final)} is empty" for path in paths if path.is_file() and not path.stat().st_size
    ]
    for path in paths:
        if path.match(INDEX):
            wrong += _lost_parts(path)
    return wrong[:3], f"{len(paths)} files and folders, readable by {readers:o}", len(paths)


EXPORTED = sensor(
    "export: its files are readable, and none is left over",
    "as config.json, no part missing",
    files_are_exported,
)


def _lost_parts(index: Path) -> Iterator[str]:
    """Yield the files that an index names and that are not there, and those of weights that it does not name.

    Raises:
        BlockedError: it cannot be read.
    """
    try:
        named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError) as error:
        raise BlockedError(f"{index} cannot be read: {error!r}") from error
    found = {path.name for path in index.parent.glob("*.safetensors")}
    yield from (f"{name} is named by {index.name} and missing" for name in sorted(named - found))
    yield from (f"{name} is not named by {index.name}" for name in sorted(found - named))
