"""Made rollouts as the tensors that component contracts take, and the distances between results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from seatrial.relations import oracles
from seatrial.relations.cases import Rollout
from seatrial.relations.records import LossInputs, LossSpec, Row
from seatrial.relations.worst import Worst, largest

FIELDS = ("old_logprobs", "ref_logprobs", "sampling_logprobs")
MOVED = 0.4
"""Spread of what the current log-probabilities moved by: beyond both bounds of the usual clip."""
HARDLY_MOVED = 0.02


def inputs_of(
    case: Rollout,
    rows: Sequence[Row] | None = None,
    *,
    counts: tuple[float, float] | None = None,
    extra_columns: int = 0,
    poison: float = 0.0,
) -> LossInputs:
    """Return the loss inputs of a made rollout, or of some of its rows; see `loss_inputs`."""
    return loss_inputs(
        case.rows if rows is None else rows,
        seed=case.seed,
        extra_columns=extra_columns,
        poison=poison,
        counts=counts,
        moved=HARDLY_MOVED if case.tidy else MOVED,
    )


def loss_inputs(
    rows: Sequence[Row],
    *,
    seed: int,
    dtype: torch.dtype = torch.float64,
    extra_columns: int = 0,
    poison: float = 0.0,
    counts: tuple[float, float] | None = None,
    moved: float = MOVED,
) -> LossInputs:
    """Return loss inputs of the rows; the current log-probabilities are the old ones, moved a little by the seed.

    Args:
        rows: rows of the micro-batch.
        seed: moves the current log-probabilities; a row's movement depends on the row alone.
        dtype: of the float tensors.
        extra_columns: padded columns beyond the longest row.
        poison: the value at every position whose mask is 0.
        counts: global valid tokens and sequences; None counts these rows.
        moved: spread of the movement.
    """
    T = max(len(row.completion_ids) for row in rows) + extra_columns
    mask = _padded([row.completion_mask for row in rows], T, 0.0, dtype)
    valid = mask.bool()
    tensors = {name: _padded([getattr(row, name) for row in rows], T, poison, dtype) for name in FIELDS}
    moves = [_movement(row, seed, moved) for row in rows]
    current = tensors["old_logprobs"] + _padded(moves, T, 0.0, dtype)
    entropy = _padded([[abs(move) + 1.0 for move in row] for row in moves], T, poison, dtype)
    hole = torch.full((), poison, dtype=dtype)
    tokens = float(mask.sum())
    sequences = float((mask.sum(1) > 0).sum())
    return LossInputs(
        logprobs_BT=torch.where(valid, current, hole).requires_grad_(),
        old_logprobs_BT=torch.where(valid, tensors["old_logprobs"], hole),
        ref_logprobs_BT=torch.where(valid, tensors["ref_logprobs"], hole),
        sampling_logprobs_BT=torch.where(valid, tensors["sampling_logprobs"], hole),
        advantages_B=torch.tensor([row.advantage for row in rows], dtype=dtype),
        mask_BT=mask,
        entropy_BT=torch.where(valid, entropy, hole),
        global_valid_tokens=counts[0] if counts else tokens,
        global_valid_seqs=counts[1] if counts else sequences,
    )


def counts_of(rows: Sequence[Row]) -> tuple[float, float]:
    """Return the number of training tokens and of rows that have one."""
    lengths = [sum(row.completion_mask) for row in rows]
    return float(sum(lengths)), float(sum(length > 0 for length in lengths))


def loss_oracle(inputs: LossInputs, spec: LossSpec) -> oracles.LossOracle:
    """Return the float64 oracle of the policy loss of these inputs, by the definition of what is claimed."""
    return oracles.policy_loss(
        inputs.logprobs_BT.detach().tolist(),
        inputs.old_logprobs_BT.tolist(),
        inputs.ref_logprobs_BT.tolist(),
        inputs.sampling_logprobs_BT.tolist(),
        inputs.entropy_BT.tolist(),
        inputs.advantages_B.tolist(),
        inputs.mask_BT.tolist(),
        spec,
        inputs.global_valid_tokens,
        inputs.global_valid_seqs,
    )


def gradient_of(loss: Tensor, inputs: LossInputs) -> Tensor:
    """Return d loss / d logprobs as [B, T]; a loss that does not reach the log-probabilities gives zeros."""
    (gradient,) = torch.autograd.grad(loss, inputs.logprobs_BT, allow_unused=True)
    return torch.zeros_like(inputs.logprobs_BT) if gradient is None else gradient


def largest_difference(left: Tensor, right: Tensor) -> float:
    """Return the largest absolute difference relative to the largest magnitude (at least 1e-30); NaN if any is."""
    if left.shape != right.shape:
        return float("inf")
    if not left.numel():
        return 0.0
    scale = max(float(right.abs().max()), float(left.abs().max()), 1e-30)
    return float((left - right).abs().max()) / scale


def loss_difference(
    found: float, right: float, found_BT: Tensor, right_BT: Tensor, *more: float, scale: float | None = None
) -> float:
    """Return the largest relative difference of a loss and its gradient; other errors may be added."""
    scale = max(abs(right), 1e-3) if scale is None else scale
    return largest((abs(found - right) / scale, largest_difference(found_BT, right_BT), *more))


def largest_gradient_difference(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> tuple[float, str]:
    """Return the largest difference over parameters, relative to the largest gradient, and the parameter's name."""
    if left.keys() != right.keys():
        return float("inf"), ", ".join(sorted(left.keys() ^ right.keys()))
    scale = max((float(value.abs().max()) for value in right.values()), default=1.0) or 1e-30
    worst = Worst(place="none")
    for name in sorted(left):
        worst.add(float((left[name].double() - right[name].double()).abs().max()) / scale, name)
    return worst.error, worst.place


def _padded(rows: Sequence[Sequence[float]], T: int, fill: float, dtype: torch.dtype) -> Tensor:
    return torch.tensor([[*map(float, row), *[fill] * (T - len(row))] for row in rows], dtype=dtype)


@lru_cache(maxsize=4096)
def _movement(row: Row, seed: int, spread: float) -> tuple[float, ...]:
    """Return how far each current log-probability is from the old one."""
    generator = torch.Generator().manual_seed(hash((seed, row.completion_ids, row.prompt_ids)) & 0x7FFFFFFF)
    moves = torch.randn(len(row.completion_ids), generator=generator, dtype=torch.float64) * spread
    return tuple(float(move) for move in moves)


def largest_score_difference(
    left: Sequence[Sequence[float]], right: Sequence[Sequence[float]]
) -> tuple[float, str]:
    """Return the largest difference between two lists of per-token log-probabilities, and where it is."""
    worst = Worst(place="no token")
    if len(left) != len(right):
        return float("inf"), f"{len(left)} and {len(right)} rows"
    for row, (one, other) in enumerate(zip(left, right, strict=True)):
        if len(one) != len(other):
            return float("inf"), f"row {row}: {len(one)} and {len(other)} tokens"
        for token, (a, b) in enumerate(zip(one, other, strict=True)):
            worst.add(abs(a - b), f"row {row}, token {token}")
    return worst.error, worst.place
