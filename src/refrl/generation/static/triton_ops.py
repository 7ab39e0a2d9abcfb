"""The operations of a token step as fused CUDA kernels in Triton; `ops.TorchOps` says what each computes.

The kernels serve root-mean-square norms that round first, gates with silu, and attention to all tokens with a rotary
embedding of whole heads by halves; other layers take the operations of `ops.DeviceOps`.

All kernels read the counters from device memory, so that a captured graph of one step serves every step.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch.nn import functional

from refrl.generation.base import SamplingParams
from refrl.generation.lean_norms import Norm, NormLike
from refrl.generation.lean_weights import LayerWeights, LeanWeights
from refrl.generation.static.ops import (
    Counters,
    DeviceOps,
    Turns,
    has_plain_attention,
    has_plain_rounding,
    needs_torch_sampling,
)

VOCABULARY_BLOCK = 2048
SLOTS_BLOCK = 64


class TritonOps(DeviceOps):
    """`refrl.generation.static.ops.Ops` on a CUDA device."""

    def reads_all_slots(self, weights: LeanWeights) -> bool:
        """See `Ops.reads_all_slots`: only layers that no kernel serves."""
        return not all(
            layer.rotary is not None and has_plain_attention(layer, weights.rotaries[layer.rotary])
            for layer in weights.layers
        )

    def add_norm(
        self, hidden_RD: torch.Tensor, delta_RD: torch.Tensor | None, norm: NormLike
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Ops.add_norm`."""
        if not has_plain_rounding(norm):
            return super().add_norm(hidden_RD, delta_RD, norm)
        assert isinstance(norm, Norm)
        num_rows, width = hidden_RD.shape
        sum_RD = hidden_RD if delta_RD is None else torch.empty_like(hidden_RD)
        normed_RD = torch.empty_like(hidden_RD)
        _add_norm_kernel[(num_rows,)](
            hidden_RD,
            hidden_RD if delta_RD is None else delta_RD,
            sum_RD,
            normed_RD,
            norm.weight,
            width,
            norm.eps,
            HAS_DELTA=delta_RD is not None,
            BLOCK=triton.next_power_of_2(width),
        )
        return sum_RD, normed_RD

    def attend(
        self,
        layer: LayerWeights,
        heads_RXH: torch.Tensor,
        turns: Turns | None,
        cache_2RKSH: torch.Tensor,
        first_slot_R: torch.Tensor,
        counters: Counters,
    ) -> torch.Tensor:
        """See `Ops.attend`."""
        if turns is None or not has_plain_attention(layer, turns.rotary):
            return super().attend(layer, heads_RXH, turns, cache_2RKSH, first_slot_R, counters)
        qk_norm = layer.qk_norm
        assert qk_norm is None or isinstance(qk_norm, Norm)
        rotary_2SH = turns.rotary_2SH
        num_rows, _, width = heads_RXH.shape
        num_queries, num_keys = layer.num_query_heads, layer.num_kv_heads
        keys_RKSH, values_RKSH = cache_2RKSH
        queries_RQH = torch.empty(
            num_rows, num_queries, width, dtype=heads_RXH.dtype, device=heads_RXH.device
        )
        _rotate_and_store_kernel[(num_rows, num_queries + 2 * num_keys)](
            heads_RXH,
            queries_RQH,
            keys_RKSH,
            values_RKSH,
            rotary_2SH,
            heads_RXH if qk_norm is None else qk_norm.weight,
            first_slot_R,
            counters.slot,
            0.0 if qk_norm is None else qk_norm.eps,
            num_queries,
            num_keys,
            width,
            rotary_2SH.stride(0),
            *keys_RKSH.stride()[:3],
            HAS_NORM=qk_norm is not None,
            HALF=triton.next_power_of_2(width // 2),
        )
        mixed_RQH = torch.empty_like(queries_RQH)
        _attention_kernel[(num_rows, num_keys)](
            queries_RQH,
            keys_RKSH,
            values_RKSH,
            mixed_RQH,
            first_slot_R,
            counters.slot,
            layer.attention_scale,
            num_queries,
            num_queries // num_keys,
            width,
            *keys_RKSH.stride()[:3],
            QUERIES=max(16, triton.next_power_of_2(num_queries // num_keys)),
            WIDTH=max(16, triton.next_power_of_2(width)),
            SLOTS=SLOTS_BLOCK,
            PRECISION="ieee" if heads_RXH.dtype == torch.float32 else "tf32",
        )
        return mixed_RQH.flatten(1)

    def activated(self, layer: LayerWeights, up: torch.Tensor) -> torch.Tensor:
        """See `Ops.activated`."""
        if not layer.is_gated or layer.activation is not functional.silu:
            return super().activated(layer, up)
        num_rows, twice = up.shape
        result_RI = torch.empty(num_rows, twice // 2, dtype=up.dtype, device=up.device)
        block = 1024
        _gated_kernel[(num_rows, triton.cdiv(twice // 2, block))](up, result_RI, twice // 2, BLOCK=block)
        return result_RI

    def sample(
        self,
        logits_RV: torch.Tensor,
        params: SamplingParams,
        uniforms_TR: torch.Tensor,
        ids_TR: torch.Tensor,
        logprobs_TR: torch.Tensor,
        last_ids_R: torch.Tensor,
        counters: Counters,
    ) -> torch.Tensor | None:
        """See `Ops.sample`: without a filter in two passes over the logits, else by `draw`."""
        num_rows, vocab_size = logits_RV.shape
        if needs_torch_sampling(params, vocab_size):
            return super().sample(logits_RV, params, uniforms_TR, ids_TR, logprobs_TR, last_ids_R, counters)
        num_blocks = triton.cdiv(vocab_size, VOCABULARY_BLOCK)
        stats_2RB = torch.empty(2, num_rows, num_blocks, dtype=torch.float32, device=logits_RV.device)
        _block_sums_kernel[(num_rows, num_blocks)](
            logits_RV,
            *stats_2RB,
            vocab_size,
            logits_RV.stride(0),
            num_blocks,
            1.0 / params.temperature,
            BLOCK=VOCABULARY_BLOCK,
        )
        _draw_kernel[(num_rows,)](
            logits_RV,
            *stats_2RB,
            uniforms_TR,
            ids_TR,
            logprobs_TR,
            last_ids_R,
            counters.token,
            vocab_size,
            logits_RV.stride(0),
            uniforms_TR.stride(0),
            ids_TR.stride(0),
            num_blocks,
            1.0 / params.temperature,
            BLOCK=VOCABULARY_BLOCK,
            BLOCKS=triton.next_power_of_2(num_blocks),
        )
        return None


@triton.jit
def _add_norm_kernel(
    hidden, delta, total, normed, weight, width, eps, HAS_DELTA: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    value = tl.load(hidden + row * width + column, mask=inside, other=0.0)
    if HAS_DELTA:
        # Rounded to the type of the weights, as the model's own addition is.
        value = value + tl.load(delta + row * width + column, mask=inside, other=0.0)
        tl.store(total + row * width + column, value, mask=inside)
    exact = value.to(tl.float32)
    scaled = exact * tl.rsqrt(tl.sum(exact * exact) / width + eps)
    scaled = scaled.to(value.dtype) * tl.load(weight + column, mask=inside, other=0.0)
    tl.store(normed + row * width + column, scaled, mask=inside)


@triton.jit
def _rotate_and_store_kernel(
    heads, queries, keys, values, rotary, norm_weight, first_slots, slots, eps, num_queries, num_keys, width,
    stride_rotary, stride_row, stride_head, stride_slot, HAS_NORM: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """One head of one row: norm, rotation by its position, and where it belongs: queries, cached keys or values."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(slots)
    half = width // 2
    column = tl.arange(0, HALF)
    inside = column < half
    source = heads + (row * (num_queries + 2 * num_keys) + head) * width + column
    first = tl.load(source, mask=inside, other=0.0)
    second = tl.load(source + half, mask=inside, other=0.0)
    dtype = first.dtype
    if head >= num_queries + num_keys:
        target = (
            values + row * stride_row + (head - num_queries - num_keys) * stride_head + slot * stride_slot
        )
        tl.store(target + column, first, mask=inside)
        tl.store(target + half + column, second, mask=inside)
    else:
        if HAS_NORM:
            one, two = first.to(tl.float32), second.to(tl.float32)
            scale = tl.rsqrt((tl.sum(one * one) + tl.sum(two * two)) / width + eps)
            gain = norm_weight + head * width + column
            first = (one * scale).to(dtype) * tl.load(gain, mask=inside, other=0.0)
            second = (two * scale).to(dtype) * tl.load(gain + half, mask=inside, other=0.0)
        position = slot - tl.load(first_slots + row)
        angle = rotary + position * width + column
        cos_1 = tl.load(angle, mask=inside, other=0.0)
        cos_2 = tl.load(angle + half, mask=inside, other=0.0)
        sin_1 = tl.load(angle + stride_rotary, mask=inside, other=0.0)
        sin_2 = tl.load(angle + stride_rotary + half, mask=inside, other=0.0)
        turned_1 = (first * cos_1).to(tl.float32) + second.to(tl.float32) * sin_1.to(tl.float32)
        turned_2 = (second * cos_2).to(tl.float32) + first.to(tl.float32) * sin_2.to(tl.float32)
        if head < num_queries:
            target = queries + (row * num_queries + head) * width
        else:
            target = keys + row * stride_row + (head - num_queries) * stride_head + slot * stride_slot
        tl.store(target + column, turned_1.to(dtype), mask=inside)
        tl.store(target + half + column, turned_2.to(dtype), mask=inside)


@triton.jit
def _attention_kernel(
    queries, keys, values, mixed, first_slots, slots, scale, num_queries, group, width,
    stride_row, stride_head, stride_slot, QUERIES: tl.constexpr, WIDTH: tl.constexpr, SLOTS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The queries of one key head of one row over its filled slots, with a running softmax (arXiv 1805.02867)."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    end = tl.load(slots) + 1
    begin = tl.load(first_slots + row)
    column = tl.arange(0, WIDTH)
    query = tl.arange(0, QUERIES)
    place = (row * num_queries + head * group + query[:, None]) * width + column[None, :]
    inside = (query[:, None] < group) & (column[None, :] < width)
    query_block = tl.load(queries + place, mask=inside, other=0.0)
    key_head = keys + row * stride_row + head * stride_head
    value_head = values + row * stride_row + head * stride_head
    highest = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    gathered = tl.zeros((QUERIES, WIDTH), tl.float32)
    for start in range(begin // SLOTS * SLOTS, end, SLOTS):
        slot = start + tl.arange(0, SLOTS)
        seen = (slot >= begin) & (slot < end)
        offset = slot[:, None] * stride_slot + column[None, :]
        loaded = seen[:, None] & (column[None, :] < width)
        key_block = tl.load(key_head + offset, mask=loaded, other=0.0)
        score = tl.dot(query_block, tl.trans(key_block), input_precision=PRECISION) * scale
        score = tl.where(seen[None, :], score, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(score, axis=1))
        shrink = tl.exp(highest - new_highest)
        weight = tl.exp(score - new_highest[:, None])
        total = total * shrink + tl.sum(weight, axis=1)
        value_block = tl.load(value_head + offset, mask=loaded, other=0.0)
        gathered = gathered * shrink[:, None] + tl.dot(
            weight.to(value_block.dtype), value_block, input_precision=PRECISION
        )
        highest = new_highest
    tl.store(mixed + place, (gathered / total[:, None]).to(query_block.dtype), mask=inside)


@triton.jit
def _gated_kernel(gate_up, result, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(gate_up + row * 2 * width + column, mask=inside, other=0.0)
    up = tl.load(gate_up + row * 2 * width + width + column, mask=inside, other=0.0)
    exact = gate.to(tl.float32)
    active = (exact / (1.0 + tl.exp(-exact))).to(gate.dtype)
    tl.store(result + row * width + column, active * up, mask=inside)


@triton.jit
def _block_sums_kernel(logits, highest, sums, vocab_size, stride, num_blocks, scale, BLOCK: tl.constexpr):
    """Of one block of one row: the largest logit, and the sum of exponentials relative to it."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    token = block * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(logits + row * stride + token, mask=token < vocab_size, other=float("-inf"))
    value = value.to(tl.float32) * scale
    top = tl.max(value)
    tl.store(highest + row * num_blocks + block, top)
    tl.store(sums + row * num_blocks + block, tl.sum(tl.exp(value - top)))


@triton.jit
def _draw_kernel(
    logits, highest, sums, uniforms, ids, logprobs, last_ids, counter, vocab_size, stride, stride_uniforms, stride_ids,
    num_blocks, scale, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Of one row: the block in which the running sum passes the row's random number, then the token in it."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.load(counter)
    block = tl.arange(0, BLOCKS)
    known = block < num_blocks
    tops = tl.load(highest + row * num_blocks + block, mask=known, other=float("-inf"))
    top = tl.max(tops)
    masses = tl.load(sums + row * num_blocks + block, mask=known, other=0.0) * tl.exp(tops - top)
    masses = tl.where(known, masses, 0.0).to(tl.float64)
    running = tl.cumsum(masses, axis=0)
    mass = tl.sum(masses)
    target = tl.load(uniforms + place * stride_uniforms + row) * mass
    # The last block that holds anything takes what rounding leaves over.
    last_block = tl.max(tl.where(masses > 0, block, 0))
    chosen = tl.minimum(tl.sum((running <= target).to(tl.int32)), last_block)
    before = tl.sum(tl.where(block < chosen, masses, 0.0))
    token = chosen * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(logits + row * stride + token, mask=token < vocab_size, other=float("-inf"))
    exact = value.to(tl.float32) * scale - top
    chances = tl.exp(exact).to(tl.float64)
    inner = tl.cumsum(chances, axis=0) + before
    last_token = tl.max(tl.where(chances > 0, tl.arange(0, BLOCK), 0))
    index = tl.minimum(tl.sum((inner <= target).to(tl.int32)), last_token)
    picked = chosen * BLOCK + index
    logprob = tl.sum(tl.where(tl.arange(0, BLOCK) == index, exact, 0.0)) - tl.log(mass.to(tl.float32))
    # A row of NaN gets a valid id; its log-probability shows it.
    logprob = tl.where(mass == mass, logprob, float("nan"))
    tl.store(ids + place * stride_ids + row, picked.to(tl.int64))
    tl.store(logprobs + place * stride_ids + row, logprob)
    tl.store(last_ids + row, picked.to(tl.int64))
