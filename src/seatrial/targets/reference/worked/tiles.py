"""Worked examples of precision and memory: sums in wide types, tiles of logits that are kept, rows that are cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from refrl.algorithms import chunked
from refrl.algorithms.advantages import compute_advantages
from refrl.algorithms.batching import make_batch
from refrl.algorithms.chunked import Tiling, compute_logprobs_chunked
from refrl.config import AdvantageConfig
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import PAD, example, sample


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
