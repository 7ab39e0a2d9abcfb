"""What each weight sync had to carry, computed from the weights that the run saved, and what it carried.

The sync of a step brings the weights that the step before left; what the generator has then are those of the sync
before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seatrial.evidence.weights import StoredTensor, stored_tensors
from seatrial.trials.run_evidence import NotGivenError, RunEvidence
from seatrial.trials.sensors.options import options_of, steps_of, updates_of
from seatrial.trials.sensors.paths import by_step, first_step_of_command
from seatrial.trials.sensors.saved import WEIGHT, saved_steps, tensors_at

FULL = "train/weight_sync/full"
BYTES = "train/weight_sync/bytes_sent"
LARGEST = "train/weight_sync/largest_message_bytes"
LOADED = "train/weight_sync/largest_load_bytes"
VERIFIED = "train/weight_sync/tensors_verified"
PLACE_BYTES = 4
"""Of the place of an element that changed."""
MOST_OF_ELEMENT = 16
"""Bytes of an element and its place, in the widest types: what may be left free in a message that is full."""


class SyncSizes(NamedTuple):
    """What a sync has to carry."""

    whole: int
    """Bytes of all elements."""
    changed: int
    """Bytes of the elements that changed, with their places."""
    num_tensors: int
    largest_change: int
    """Bytes of the changes of the tensor with the most of them that does not travel whole, with their places."""


def sizes_of_syncs(evidence: RunEvidence) -> dict[int, SyncSizes]:
    """Return, by step, what its sync has to carry, where the weights before and after it are known.

    A tensor whose changes take as much as all of it travels whole.
    """
    job = evidence.job
    if job.checkpoint_dir is None or job.num_updates_per_step != 1:
        return {}
    options = options_of(evidence)
    if options["policy.lora_cfg.enabled"]:
        return {}  # what travels is merged, and what is saved is not
    delta = "policy.generation.delta_compression"
    travels = options[f"{delta}.dtype"] if options[f"{delta}.enabled"] else None
    initial, held = stored_tensors(job.initial_model), {}
    for step in saved_steps(job.checkpoint_dir, job.checkpoint_form):
        tensors = tensors_at(evidence, step)
        model = {name.removeprefix(WEIGHT): of for name, of in tensors.items() if name.startswith(WEIGHT)}
        held[step] = {name: _bits(tensor, tensor.dtype, travels) for name, tensor in model.items()}
        # Tables that a model computes from its configuration travel too; its folder does not hold them.
        held.setdefault(
            0,
            {name: _bits(initial.get(name, tensor), tensor.dtype, travels) for name, tensor in model.items()},
        )
    found = {}
    for step in range(1, job.num_steps + 1):
        now, before = held.get(step - 1), held.get(step - 2)
        if now is None or (step > 1 and before is None):
            continue
        whole = sum(bits.nbytes for bits in now.values())
        changes = [-whole] if before is None else _changed(now, before)
        found[step] = SyncSizes(whole, sum(map(abs, changes)), len(now), max(0, *changes))
    return found


def syncs_carry_changes(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """Every sync carries as many bytes as all weights have, or as those that changed, and is checked tensor by tensor.

    Which syncs are full follows from the interval.

    Raises:
        NotGivenError: the weights before and after each step are not saved.
    """
    wanted = sizes_of_syncs(evidence)
    full, sent = by_step(evidence, FULL), by_step(evidence, BYTES)
    if not wanted:
        raise NotGivenError("the weights of each sync are not saved")
    options, rows = options_of(evidence), steps_of(evidence)
    wrong, number = [], 0
    verified, due = by_step(evidence, VERIFIED), _full_syncs(evidence, options)
    for step, (whole, changed, num_tensors, _) in wanted.items():
        if step > 1 and not updates_of(rows.get(step - 1, []), options):
            continue  # without an update there is no sync, and what the last one carried is logged again
        right = whole if full.get(step) == 1 else changed
        number += 1
        if sent.get(step) != right:
            wrong.append(f"step {step}: {BYTES} is {sent.get(step)}, the weights give {right}")
        if verified.get(step) != num_tensors:
            wrong.append(
                f"step {step}: {VERIFIED} is {verified.get(step)}, the policy has {num_tensors} tensors"
            )
        if step in due and full.get(step) != due[step]:
            wrong.append(
                f"step {step}: {FULL} is {full.get(step)}, the interval of full syncs gives {due[step]:g}"
            )
    return wrong[:3], f"{number} syncs, {sum(full.values()):g} of them full", number


def _full_syncs(evidence: RunEvidence, options: Mapping[str, Any]) -> dict[int, float]:
    """Return, by step, whether its sync is full: the first one, and from there each one at the interval; else 0.

    A step without an update brings no other weights, so that no sync follows it. Nothing is known of a resumed run.
    """
    delta, rows, found, number = "policy.generation.delta_compression", steps_of(evidence), {}, 0
    if first_step_of_command(evidence) > 1:
        return {}
    interval = options[f"{delta}.full_sync_interval"] if options[f"{delta}.enabled"] else 1
    for step in range(1, evidence.job.num_steps + 1):
        number += step > 1 and bool(updates_of(rows.get(step - 1, []), options))
        found[step] = float(number % interval == 0)
    return found


def messages_are_bounded(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """The largest message of a sync is as large as configured, or is all of a smaller sync.

    Messages are filled up: a tensor is cut where a message is full, down to single elements.

    Raises:
        NotGivenError: the target does not say how the run is configured.
    """
    options = options_of(evidence)
    where = "policy.generation"
    name = f"{where}.weight_bucket_size_bytes"
    if options[f"{where}.delta_compression.enabled"]:
        name = f"{where}.delta_compression.sparse_bucket_size_bytes"
    largest, sent = by_step(evidence, LARGEST), by_step(evidence, BYTES)
    wrong = []
    for step in range(evidence.job.first_step, evidence.job.num_steps + 1):
        size, most = largest.get(step), min(options[name], sent.get(step, 0))
        least = most if sent.get(step, 0) <= options[name] else most - MOST_OF_ELEMENT
        if size is None or not least <= size <= most:
            wrong.append(
                f"step {step}: {LARGEST} is {size}, of {sent.get(step)} bytes, with {name}={options[name]}"
            )
    wrong += _wrong_loads(evidence, options)
    seen = f"at most {max(largest.values(), default=0):.0f} bytes of {max(sent.values(), default=0):.0f}"
    return wrong[:3], seen, len(largest)


def _wrong_loads(evidence: RunEvidence, options: Mapping[str, Any]) -> Iterator[str]:
    """Yield syncs of which the generator put more or fewer changed values in their places at a time than configured.

    It takes them piece by piece: a tensor of a message's size or less is cut in two at most.
    """
    name = "policy.generation.delta_compression.delta_load_batch_size_bytes"
    loaded, full, largest = (by_step(evidence, tag) for tag in (LOADED, FULL, LARGEST))
    known = sizes_of_syncs(evidence) if loaded else {}
    for step, size in loaded.items():
        most = 0.0 if full.get(step) == 1 else min(options[name], largest.get(step, 0.0))
        piece = min(known[step].largest_change, largest.get(step, 0.0)) / 2 if step in known else 0.0
        least = max(0.0, min(most, piece) - MOST_OF_ELEMENT)
        if not least <= size <= most:
            yield f"step {step}: {LOADED} is {size:g}, not within {least:g} and {most:g}, with {name}={options[name]}"


def _changed(now: Mapping[str, npt.NDArray[Any]], before: Mapping[str, npt.NDArray[Any]]) -> list[int]:
    """Return the bytes of each tensor's changes with their places; of one that travels whole, its own, negative."""
    found = []
    for name, bits in now.items():
        size = int(np.count_nonzero(bits != before[name])) * (bits.itemsize + PLACE_BYTES)
        found.append(size if size < bits.nbytes else -bits.nbytes)
    return found


def _bits(tensor: StoredTensor, kind: str, travels: str | None) -> npt.NDArray[Any]:
    """Return the elements of a tensor as integers, in the type in which they travel.

    Args:
        tensor: as it is stored.
        kind: its type in the policy.
        travels: the type in which all tensors travel; None: their own.
    """
    bits: npt.NDArray[Any] = tensor.read().astype(np.float32).view(np.uint32)
    for is_rounded in (kind == "BF16", travels == "bfloat16"):
        bits = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16) << 16 if is_rounded else bits
    return (bits >> 16).astype(np.uint16) if (travels or kind) in ("bfloat16", "BF16") else bits
