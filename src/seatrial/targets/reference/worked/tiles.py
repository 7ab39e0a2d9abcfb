"""Worked examples of precision and memory: sums in wide types, tiles of logits, rows that are cut, inputs that stay."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from refrl.algorithms import chunked, metrics
from refrl.algorithms.advantages import compute_advantages
from refrl.algorithms.batching import Batch, make_batch
from refrl.algorithms.chunked import Tiling, compute_logprobs_chunked
from refrl.algorithms.filters import mask_rows
from refrl.algorithms.losses.policy import policy_loss
from refrl.algorithms.microbatches import micro_batches_by_tokens
from refrl.algorithms.ops import compute_logprobs
from refrl.algorithms.packing import compute_logprobs_packed, pack_batch
from refrl.config import AdvantageConfig
from refrl.training import grpo, recorder, step_records
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.configuration import configuration
from seatrial.targets.reference.worked.made import PAD, batch, example, refused, rollouts, sample


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    rewards = [1e6, 1e6 + 0.0625, 1e6 + 0.125, 1e6 + 0.5]
    for estimator in ("grpo", "dr_grpo"):
        yield example(f"{estimator} of large rewards", True, _advantages, estimator, rewards)
    for buckets, most, cut in (((8,), 6, 4), ((6,), 8, 4), ((6,), None, 4), ((), 6, 4), ((), None, 8)):
        what = f"a row of ten tokens in buckets {buckets} of at most {most}"
        yield example(what, cut, _kept, buckets, most)
    yield example("a token of a tool without a log-probability", [-0.125, 0.0, -0.375], _unsampled)
    # Of 32, 16, 32, 16, 16 and 8 bytes: the last slice and the last tokens are smaller.
    for keep, right in ((0, []), (31, [1, 5]), (32, [0]), (96, [0, 1, 2, 3]), (120, [0, 1, 2, 3, 4, 5])):
        yield example(f"tiles that are kept in {keep} bytes", right, _tiles, keep)
    for grad in (True, False):
        yield example(f"the budget with gradients: {grad}", 7 if grad else 0, _budget, grad)
    for dtype in (torch.bfloat16, torch.float32):
        yield example(f"where gradients of {dtype} are summed", {torch.float32}, _summed, dtype)
    for given, due in (((None, None), (8, 5)), ((3, None), (3, 5)), ((None, 3), (8, 3)), ((2, 1), (2, 1))):
        yield example(f"the entries and rows of tiles where {given} are given", due, _sizes, *given)
    for bad in (0.0, -1.0, math.nan, math.inf):
        for name, score in _SCORES.items():
            yield refused(f"temperature is {bad}", f"{name} at temperature {bad}", score, temperature=bad)
    for name, call in _CALLS.items():
        yield example(f"what {name} changes of its batch", [], _changed, call)


def _advantages(estimator: str, rewards: Sequence[float]) -> bool:
    config = AdvantageConfig.model_validate({"estimator": estimator})
    found = compute_advantages(torch.tensor(rewards), torch.zeros(4, dtype=torch.long), config)
    exact = np.array(rewards) - np.mean(rewards)
    due = exact / (np.std(rewards, ddof=1) + config.epsilon) if estimator == "grpo" else exact
    return found.dtype == torch.float32 and bool(np.allclose(found.numpy(), due, rtol=1e-6))


def _kept(buckets: Sequence[int], most: int | None) -> int:
    """Return how many of eight tokens are kept after a prompt of two."""
    row = sample([1, 1], [2] * 8)
    made = make_batch([row], pad_token_id=PAD, sequence_buckets=buckets, max_sequence_length=most)
    return int(made.completion_lens_B[0])


def _unsampled() -> Any:
    row = sample([1], [2, 3, 4], completion_mask=(1, 0, 1))
    given = (row.sampling_logprobs[0], float("nan"), row.sampling_logprobs[2])
    made = make_batch([type(row)(**{**vars(row), "sampling_logprobs": given})], pad_token_id=PAD)
    return made.sampling_logprobs_BT[0]


def _tiles(keep_bytes: int) -> list[int]:
    """Return which of six tiles are kept for the backward pass: ten entries in three slices, three tokens in two."""
    hidden, head = torch.ones(3, 4, requires_grad=True), torch.ones(10, 4)
    tiling = Tiling(1.0, 4, 2, keep_bytes)
    scores: Any = chunked._ChunkedScore.apply(hidden, head, torch.tensor([1, 2, 9]), tiling, None)  # type: ignore[no-untyped-call]
    return sorted(scores[0].grad_fn.kept)


def _chunked(hidden: torch.Tensor, head: torch.Tensor, keep_bytes: int) -> torch.Tensor:
    ids, lens = torch.tensor([[1, 2, 9]]), torch.tensor([1])
    logprobs, entropy = compute_logprobs_chunked(
        hidden[None], head, ids, lens, vocab_chunk=4, row_chunk=2, keep_bytes=keep_bytes
    )
    return (logprobs + entropy).sum()


def _budget(grad: bool) -> int:
    """Return the bytes that a score may keep."""
    tilings: list[Tiling] = []

    def apply(
        hidden: torch.Tensor, head: torch.Tensor, ids: torch.Tensor, tiling: Tiling, support: Any
    ) -> Any:
        tilings.append(tiling)
        return torch.zeros(3), torch.zeros(3)

    with patch.object(chunked._ChunkedScore, "apply", apply), torch.set_grad_enabled(grad):
        _chunked(torch.ones(4, 4), torch.ones(10, 4), 7)
    return tilings[0].keep_bytes


def _packed_scores(**options: Any) -> Any:
    made = batch()
    packed = pack_batch(made, pack_length=16, pad_token_id=PAD)
    logits = torch.zeros(*packed.input_ids_PS.shape, 9)
    return compute_logprobs_packed(logits, packed, made.completion_ids_BT, **options)


_SCORES: Mapping[str, Callable[..., Any]] = {
    "packed rows": _packed_scores,
    "padded rows": lambda **of: compute_logprobs(
        torch.zeros(1, 2, 6), torch.tensor([[1]]), torch.tensor([1]), **of
    ),
    "rows in tiles": lambda **of: compute_logprobs_chunked(
        torch.ones(1, 2, 4), torch.ones(6, 4), torch.tensor([[1]]), torch.tensor([1]), **of
    ),
}


def _sizes(vocab_chunk: int | None, row_chunk: int | None) -> Any:
    """Return entries and rows of a tile, of which a CPU has 8 and 5 by default."""
    tilings: list[Tiling] = []

    def apply(hidden: Any, head: Any, ids: Any, tiling: Tiling, support: Any) -> Any:
        tilings.append(tiling)
        return torch.zeros(3), torch.zeros(3)

    with (
        patch.object(chunked._ChunkedScore, "apply", apply),
        patch.multiple(chunked, HOST_CHUNKS=(8, 5), DEVICE_CHUNKS=(99, 98)),
    ):
        ids, lens = torch.tensor([[1, 2, 9]]), torch.tensor([1])
        options: Any = {"vocab_chunk": vocab_chunk, "row_chunk": row_chunk}
        compute_logprobs_chunked(torch.ones(1, 4, 4), torch.ones(10, 4), ids, lens, **options)
    return tilings[0].vocab_chunk, tilings[0].row_chunk


def _configured(**options: Any) -> Any:
    return configuration({name.replace("__", "."): value for name, value in options.items()})


_CALLS: Mapping[str, Callable[[Batch], Any]] = {
    "rollout_advantages": lambda made: grpo.rollout_advantages(
        made, _configured(loss_fn__kl_in="reward", loss_fn__reference_policy_kl_penalty=0.5)
    ),
    "mask_filtered": lambda made: grpo.mask_filtered(
        made,
        rollouts().rows([0, 1, 2]),
        _configured(grpo__zero_variance_filter=True, grpo__overlong_filtering=True).grpo,
        1,
    ),
    "mask_rows": lambda made: mask_rows(made, torch.tensor([1, 0, 0])),
    "policy_loss": lambda made: policy_loss(
        torch.zeros(3, 3), made, _configured().loss_fn, global_valid_tokens=5.0, global_valid_seqs=3.0
    ),
    "pack_batch": lambda made: pack_batch(made, pack_length=9, pad_token_id=0),
    "micro_batches_by_tokens": lambda made: [
        part.mask_BT.zero_() for part in micro_batches_by_tokens(made, 7)
    ],
    "compute_logprobs": lambda made: compute_logprobs(
        torch.zeros(3, 6, 9), made.completion_ids_BT, made.prompt_lens_B, mask_BT=made.mask_BT
    ),
    "advantage_metrics": step_records.advantage_metrics,
    "baseline_metrics": lambda made: step_records.baseline_metrics(made.rewards_B, made.group_ids_B),
    "ratio_metrics": lambda made: metrics.ratio_metrics(
        made.sampling_logprobs_BT, made.mask_BT, made.mask_BT, 5.0
    ),
    "recorded_rows": lambda made: recorder.recorded_rows(rollouts().rows([0, 1, 2]), made),
    "the sequence of completions": lambda made: made.at_positions(made.mask_BT),
}
"""Calls with a batch, by their name; none may write into it."""


def _changed(call: Callable[[Batch], Any]) -> list[str]:
    """Return the tensors of a batch that a call changes, or replaces."""
    made = batch()
    made = replace(
        made,
        old_logprobs_BT=made.sampling_logprobs_BT - 1,
        ref_logprobs_BT=made.sampling_logprobs_BT - 2,
        advantages_B=torch.tensor([0.5, -0.5, 0.25]),
    )
    before, held = copy.deepcopy(vars(made)), dict(vars(made))
    call(made)
    return [
        name
        for name, value in vars(made).items()
        if held[name] is not value
        or (isinstance(value, torch.Tensor) and not torch.equal(value, before[name]))
    ]


def _summed(dtype: torch.dtype) -> set[torch.dtype]:
    """Return the types that gradients are summed in over tiles."""
    found: set[torch.dtype] = set()
    add = chunked._add_product

    def noted(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
        found.add(total.dtype)
        add(total, left, right)

    hidden = torch.ones(4, 4, dtype=dtype, requires_grad=True)
    head = torch.ones(10, 4, dtype=dtype, requires_grad=True)
    with patch.object(chunked, "_add_product", noted):
        _chunked(hidden, head, 0).backward()  # type: ignore[no-untyped-call]
    assert hidden.grad is not None and head.grad is not None and hidden.grad.dtype == head.grad.dtype == dtype
    return found
