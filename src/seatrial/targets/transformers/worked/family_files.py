"""Files of families on record: names and sizes of their tensors, and logits of a model that is read from such files.

A tensor's values are drawn by its name in the file, so that a name that is read into another place, or experts that are
merged in another order, give other logits.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seatrial.relations.contracts.families import ModelForm
from seatrial.targets.common.worked_rows import Row, Worked, unlike
from seatrial.targets.transformers.families import CausalFamily
from seatrial.targets.transformers.family_records import projection, rows
from seatrial.targets.transformers.worked.weights import rewrite, saved, tensors

RECORD = Path(__file__).with_name("recorded_files.json")
BOUND = 1e-3
"""Largest difference of a projection of logits, relative to the larger of 1 and the recorded one: float32."""


@cache
def record() -> Mapping[str, Sequence[Any]]:
    """Return by family the oldest release with these files, a digest of names and sizes, and projections of logits."""
    found: Mapping[str, Sequence[Any]] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def _drawn(name: str, like: Tensor) -> Tensor:
    """Return values of a tensor by its name; vectors are around one half."""
    numbers = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(tuple(like.shape)) * 0.3
    return torch.tensor(numbers + (0.5 if like.dim() < 2 else 0.0)).to(like.dtype)


def files_of(family: str) -> list[Any]:
    """Return the digest of names and sizes in a family's files, and projections of logits of what is read from them.

    Raises:
        Gone: the release has no such family.
    """
    one = type("OfFiles", (CausalFamily,), {"family": family})()
    model = one.model()
    path = saved(model)
    written = tensors(path)
    lines = "\n".join(f"{name} {tuple(value.shape)}" for name, value in sorted(written.items()))
    floating = {name: value for name, value in written.items() if value.is_floating_point()}
    drawn = {name: _drawn(name, value) for name, value in floating.items()}
    read, said = type(model).from_pretrained(
        rewrite(path, {**written, **drawn}), attn_implementation="eager", output_loading_info=True
    )
    one._models["eager"] = read.float().eval()
    found = []
    with torch.no_grad():
        for logits in one.family_logits(rows(), ModelForm()):
            found.append(projection(logits))
    digest = hashlib.sha256(lines.encode()).hexdigest()[:12]
    return [digest, len(said["missing_keys"]) + len(said["unexpected_keys"]), *found]


def _unlike(family: str, function: Any) -> list[str]:
    """Return what differs from the record."""
    _, digest, *numbers = record()[family]
    found, missing, *logits = files_of(family)
    wrong = [] if found == digest else ["other names or sizes in files"]
    wrong += [f"{missing} names are missing or unexpected"] if missing else []
    return [*wrong, *unlike(logits, numbers, "logits", BOUND)]


PLACE = "transformers:AutoModelForCausalLM"
# Source: what the release that each record begins with writes and computes; `files_of` makes a record.
FILE_ROWS: Sequence[Row] = tuple(
    Row("files", PLACE, f"files of {family}", partial(_unlike, family), [], since=found[0])
    for family, found in record().items()
)


class OfFiles(Worked):
    """Files of families; see `contracts.worked`."""

    package = "transformers"
    worked_rows = FILE_ROWS


ADAPTERS: dict[str, type[Any]] = {"worked-files": OfFiles}
