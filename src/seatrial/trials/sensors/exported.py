"""Verdict on the files of an export: readable, whole, nothing left over, of the model that it was trained from."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from seatrial.errors import BlockedError
from seatrial.trials.run_evidence import RunEvidence
from seatrial.trials.sensors.options import options_of
from seatrial.trials.sensors.paths import sensor

READ = 0o444
INDEX = "*.safetensors.index.json"
SETTINGS = {
    "config.json": ("dtype", "torch_dtype", "transformers_version", "use_cache"),
    "generation_config.json": ("transformers_version",),
    "tokenizer_config.json": ("tokenizer_class", "backend", "local_files_only", "is_local"),
    "tokenizer.json": (),
}
"""Files of a model whose values training does not change, and the values that depend on what writes them."""


def files_are_exported(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """Every file of the export is readable by all who can read config.json, none is left over, and the settings stay.

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
    for name, left_out in SETTINGS.items():
        wrong += _changed_settings(evidence.job.initial_model / name, final / name, left_out)
    return wrong[:3], f"{len(paths)} files and folders, readable by {readers:o}", len(paths)


EXPORTED = sensor(
    "export: its files are readable, and none is left over",
    "as config.json, no part missing",
    files_are_exported,
)


def _changed_settings(before: Path, after: Path, left_out: Sequence[str]) -> Iterator[str]:
    """Yield values of a file of the initial model that the export has otherwise, or not at all.

    Raises:
        BlockedError: a file cannot be read.
    """
    if not before.exists():
        return
    if not after.exists():
        yield f"{after.name} is missing"
        return
    values = []
    for path in (before, after):
        try:
            values.append(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise BlockedError(f"{path} cannot be read: {error}") from error
    for key, value in values[0].items():
        if key not in left_out and not key.startswith("_") and values[1].get(key) != value:
            yield f"{key} of {after.name} is {str(values[1].get(key))[:40]}, the model has {str(value)[:40]}"


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
