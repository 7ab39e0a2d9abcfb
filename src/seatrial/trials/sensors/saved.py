"""Checkpoints of a run: which steps there are, and the weights and moments of one, in the forms of several stacks.

Forms of a step's folder: refrl's (safetensors whose names begin with `model.` or `optimizer.`), and that of Hugging
Face's trainers (`model.safetensors` or `adapter_model.safetensors`, and `optimizer.pt`, which numbers its moments).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seatrial.errors import BlockedError
from seatrial.evidence.weights import StoredTensor, stored_tensors
from seatrial.trials.run_evidence import RunEvidence

WEIGHT, OPTIMIZER = "model.", "optimizer."
"""What comes before the name of a tensor of the model, and of a moment."""
MOMENTS = ("exp_avg", "exp_avg_sq")
HUGGING_FACE = ("config.json", "adapter_config.json", "optimizer.pt")
"""Files of which a checkpoint of Hugging Face's trainers holds at least one."""
MOST_HELD = 16 * 2**20
"""Bytes of a checkpoint whose tensors are kept in memory for the next sensor; larger ones are read each time."""
PEFT = "base_model.model."
"""What PEFT puts before the name of every tensor."""


@dataclass(frozen=True, kw_only=True)
class LoadedTensor(StoredTensor):
    """A tensor in memory: of a file that only torch reads, or that several sensors read."""

    values: npt.NDArray[Any]

    def read(self) -> npt.NDArray[Any]:
        """Return the values."""
        return self.values


def saved_steps(root: Path, form: str) -> list[int]:
    """Return the steps whose checkpoints are in a folder, in order.

    Args:
        root: the folder of all checkpoints.
        form: a step's place below it, with `{step}`: `checkpoint-{step}`.
    """
    first = form.split("/")[0]
    pattern = re.compile(re.escape(first).replace(re.escape("{step}"), r"(\d+)"))
    found = (pattern.fullmatch(path.name) for path in root.glob(first.replace("{step}", "*")))
    return sorted(int(match[1]) for match in found if match)


def tensors_at(evidence: RunEvidence, step: int) -> Mapping[str, StoredTensor]:
    """Return the tensors of a step's checkpoint (`checkpoint_tensors`), read once for all sensors where they are small.

    Raises:
        BlockedError: the target does not say where checkpoints are, or one cannot be read.
    """
    job = evidence.job
    if job.checkpoint_dir is None:
        raise BlockedError("the target does not say where the run saves its checkpoints")
    if step not in evidence.checkpoints:
        tensors = checkpoint_tensors(job.checkpoint_dir / job.checkpoint_form.format(step=step))
        if sum(tensor.end - tensor.start for tensor in tensors.values()) <= MOST_HELD:
            tensors = {name: _loaded(tensor) for name, tensor in tensors.items()}
        evidence.checkpoints[step] = tensors
    return evidence.checkpoints[step]


def _loaded(tensor: StoredTensor) -> StoredTensor:
    if isinstance(tensor, LoadedTensor):
        return tensor
    where = {field.name: getattr(tensor, field.name) for field in fields(StoredTensor)}
    values = tensor.read()
    values.flags.writeable = False
    return LoadedTensor(**where, values=values)


def checkpoint_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return weights as `model.NAME`, and moments as `optimizer.NAME.exp_avg_sq`, or `optimizer.0.exp_avg_sq`.

    A checkpoint of adapters alone has their names as the exported adapter has them, without PEFT's prefix.

    Raises:
        BlockedError: the folder holds no checkpoint of a known form, or a file is damaged.
    """
    stored = stored_tensors(folder)
    if not any((folder / name).exists() for name in HUGGING_FACE):
        return stored
    moments = folder / "optimizer.pt"
    return {**_weights(stored), **(dict(_moments(moments)) if moments.exists() else {})}


def _weights(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    return {f"{WEIGHT}{name.removeprefix(PEFT)}": tensor for name, tensor in stored.items()}


def _moments(file: Path) -> Iterator[tuple[str, StoredTensor]]:
    """Yield the moments of an optimizer that torch saved, by number; nothing but tensors and numbers is loaded."""
    try:
        import torch
    except ImportError as error:
        raise BlockedError(f"{file}: reading it needs torch: pip install 'seatrial[stack]'") from error
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)["state"]
    except Exception as error:  # of torch's unpickler, whose error types are its own
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BlockedError(f"{file} is no optimizer that can be read: {first}") from error
    for number, held in state.items():
        for moment in MOMENTS:
            if isinstance(value := held.get(moment), torch.Tensor):
                values = value.float().numpy()
                yield (
                    f"{OPTIMIZER}{number}.{moment}",
                    LoadedTensor(
                        file=file,
                        dtype="F32",
                        shape=values.shape,
                        start=0,
                        end=values.nbytes,
                        values=np.asarray(values),
                    ),
                )
