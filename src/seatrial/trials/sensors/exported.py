"""Verdict on the files of an export: readable, whole, nothing left over, of the model that it was trained from."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from seatrial.errors import BlockedError
from seatrial.evidence.weights import stored_tensors
from seatrial.trials.run_evidence import RunEvidence
from seatrial.trials.sensors.options import options_of
from seatrial.trials.sensors.paths import read_object, sensor

READ = 0o444
INDEX = "*.safetensors.index.json"
SETTINGS = {
    "config.json": ("dtype", "torch_dtype", "transformers_version", "use_cache"),
    "generation_config.json": ("transformers_version",),
    "tokenizer_config.json": ("tokenizer_class", "backend", "local_files_only", "is_local"),
}
"""Files of a model whose values training does not change, and the values that depend on what writes them."""
TYPES = {"float32": "F32", "bfloat16": "BF16"}
"""Types of safetensors by the policy's precision."""
TOKENIZER = "tokenizer.json"
INPUTS = ("input_ids", "attention_mask")
"""What a decoder is called with."""


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
    wrong += _other_parts(evidence.job.initial_model, final)
    if evidence.job.byte_level:
        wrong += _other_roles(final)
    wrong += _other_tokens(evidence.job.initial_model / TOKENIZER, final / TOKENIZER)
    return wrong[:3], f"{len(paths)} files and folders, readable by {readers:o}", len(paths)


EXPORTED = sensor(
    "export: its files are readable, and none is left over",
    "as config.json, no part missing",
    files_are_exported,
)


def types_are_exported(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """Every tensor of the export has the policy's type, and its configuration names that type.

    Raises:
        NotGivenError: the run exports no model, or the target does not say how the run is configured.
        BlockedError: a file cannot be read.
    """
    precision = options_of(evidence)["policy.precision"]
    evidence.need("export")
    before, after = evidence.job.initial_model, evidence.job.final_model
    known, tensors = stored_tensors(before).keys(), stored_tensors(after)
    wrong = [
        f"{name} is exported as {tensor.dtype}, the policy has {precision}"
        for name, tensor in tensors.items()
        if name in known and tensor.dtype != TYPES.get(precision)
    ]
    facts = read_object(after / "config.json")
    said = facts.get("dtype", facts.get("torch_dtype"))
    if said is not None and said != precision:
        wrong.append(f"config.json of the export has dtype={said}, the policy has {precision}")
    return wrong[:3], f"{len(tensors)} tensors of {precision}", len(tensors)


EXPORTED_TYPES = sensor(
    "export: its tensors have the policy's type",
    "those of the initial model, and as config.json says",
    types_are_exported,
)


def _changed_settings(before: Path, after: Path, left_out: Sequence[str]) -> Iterator[str]:
    """Yield numbers, texts and flags of a file of the initial model that the export has otherwise, and lost ids.

    What writes a file may write a value under another name, or leave it out where it is the default.

    Raises:
        BlockedError: a file cannot be read.
    """
    if not before.exists():
        return
    if not after.exists():
        yield f"{after.name} is missing"
        return
    old, new = read_object(before), read_object(after)
    for key, value in old.items():
        is_id = key.endswith("_token_id")
        if key in left_out or key.startswith("_") or not (is_id or isinstance(value, (int, float, str))):
            continue
        if (key in new or is_id) and new.get(key) != value:
            yield f"{key} of {after.name} is {str(new.get(key))[:40]}, the model has {str(value)[:40]}"


def _other_parts(before: Path, after: Path) -> Iterator[str]:
    """Yield values that models in folders of the export, such as a draft head, have otherwise than the initial one's.

    Raises:
        BlockedError: a file cannot be read.
    """
    for path in sorted(before.glob("*/config.json")):
        other = after / path.relative_to(before)
        old, new = read_object(path), read_object(other) if other.exists() else {}
        for key in sorted(old.keys() | new.keys()):
            if old.get(key) != new.get(key):
                yield f"{key} of {path.relative_to(before)} is {new.get(key)}, the model has {old.get(key)}"


def _other_roles(folder: Path) -> Iterator[str]:
    """Yield special tokens whose ids differ between a made model's files; those of others differ by design.

    Raises:
        BlockedError: a file cannot be read.
    """
    if not all((folder / name).exists() for name in (TOKENIZER, "tokenizer_config.json")):
        return
    ids = {one["content"]: one["id"] for one in read_object(folder / TOKENIZER).get("added_tokens", ())}
    said, model = read_object(folder / "tokenizer_config.json"), read_object(folder / "config.json")
    for role in ("bos", "eos", "pad"):
        token, number = said.get(f"{role}_token"), model.get(f"{role}_token_id")
        if isinstance(token, str) and isinstance(number, int) and ids.get(token) != number:
            yield f"{role}_token of tokenizer_config.json is {token}, of id {ids.get(token)}; config.json has {number}"
    names = said.get("model_input_names", INPUTS)
    if set(INPUTS) - set(names):
        yield f"model_input_names of tokenizer_config.json are {names}, without one of {', '.join(INPUTS)}"


def _other_tokens(before: Path, after: Path) -> Iterator[str]:
    """Yield that the export's tokenizer has other tokens than the initial model's.

    Raises:
        BlockedError: a file cannot be read.
    """
    if not (before.exists() and after.exists()):
        return
    old, new = read_object(before), read_object(after)
    if new.get("model", {}).get("vocab") != old.get("model", {}).get("vocab"):
        yield f"{after.name} has another vocabulary than the model's"
    ids = [{one["content"]: one["id"] for one in of.get("added_tokens", ())} for of in (old, new)]
    if ids[0] != ids[1]:
        yield f"{after.name} has the added tokens {str(ids[1])[:40]}, the model has {str(ids[0])[:40]}"


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
