"""refrl's functions that read no configuration, offered to the relations as they are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from torch import Tensor

from refrl.algorithms.chunked import compute_logprobs_chunked
from refrl.algorithms.filters import groups_with_spread
from refrl.algorithms.kl import KLKind, kl_estimate
from refrl.algorithms.ops import compute_logprobs
from refrl.algorithms.schedule import Schedule, make_schedule
from refrl.generation.pool import GenerationPool
from seatrial.relations.records import PoolReply


class ReferenceFormulas:
    """See the contracts of the same names in `seatrial.relations.contracts`."""

    def kl_estimate(self, logprobs_BT: Tensor, ref_logprobs_BT: Tensor, kind: KLKind) -> Tensor:
        return kl_estimate(logprobs_BT, ref_logprobs_BT, kind)

    def token_logprobs(
        self, logits_BSV: Tensor, completion_ids_BT: Tensor, prompt_lens_B: Tensor, temperature: float
    ) -> Tensor:
        return compute_logprobs(logits_BSV, completion_ids_BT, prompt_lens_B, temperature=temperature)[0]

    def fused_logprobs(
        self,
        hidden_BSD: Tensor,
        head_VD: Tensor,
        completion_ids_BT: Tensor,
        prompt_lens_B: Tensor,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        return compute_logprobs_chunked(  # small chunks, so that every edge is met
            hidden_BSD,
            head_VD,
            completion_ids_BT,
            prompt_lens_B,
            temperature=temperature,
            vocab_chunk=16,
            row_chunk=3,
            keep_bytes=200,
        )

    def keep_rows(self, rewards_B: Tensor, prompt_ids_B: Tensor) -> Tensor:
        return groups_with_spread(rewards_B, prompt_ids_B)

    def make_schedule(self, **cadences: Any) -> Schedule:
        return make_schedule(**cadences)

    def open_pool(
        self, engines: Sequence[Callable[[int], Awaitable[PoolReply]]], *, capacity: int
    ) -> GenerationPool[int, PoolReply]:
        return GenerationPool(engines, capacity=capacity)
