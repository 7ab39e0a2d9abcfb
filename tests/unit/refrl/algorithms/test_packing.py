"""Packed rows: laid out whole, read back exactly, and blind to one another inside a real model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from refrl.algorithms.batching import Batch, TrainSample, make_batch
from refrl.algorithms.ops import compute_logprobs
from refrl.algorithms.packing import PackedBatch, assign_packs, compute_logprobs_packed, pack_batch

V = 53
SHAPES = [(3, 2), (1, 6), (4, 1), (2, 4), (5, 5)]
SMALL = {
    "vocab_size": V,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def make(side: str = "right") -> Batch:
    generator = torch.Generator().manual_seed(0)
    samples = [
        TrainSample(
            tuple(torch.randint(1, V, (prompt,), generator=generator).tolist()),
            tuple(torch.randint(1, V, (completion,), generator=generator).tolist()),
            (-1.0,) * completion,
            0.0,
            0,
        )
        for prompt, completion in SHAPES
    ]
    return make_batch(samples, pad_token_id=0, padding_side=side)  # type: ignore[arg-type]


def model(kind: str, attention: str) -> Any:
    torch.manual_seed(0)
    config = {"qwen3": Qwen3Config, "llama": LlamaConfig}[kind](
        **SMALL, **({"head_dim": 8} if kind == "qwen3" else {}), attn_implementation=attention
    )
    made = {"qwen3": Qwen3ForCausalLM, "llama": LlamaForCausalLM}[kind](config)
    return made.double().eval()


def packed_logits(policy: Any, packed: PackedBatch, input_ids: Tensor | None = None) -> Tensor:
    output = policy(
        input_ids=packed.input_ids_PS if input_ids is None else input_ids,
        position_ids=packed.position_ids_PS,
        attention_mask=packed.attention_mask_P1SS(torch.float64),
        use_cache=False,
    )
    return output.logits


@given(st.lists(st.integers(1, 12), min_size=1, max_size=30), st.integers(12, 40))
def test_every_row_is_in_one_pack_that_holds_it(lengths: list[int], pack_length: int) -> None:
    packs = assign_packs(lengths, pack_length)
    assert sorted(row for pack in packs for row in pack) == list(range(len(lengths)))
    assert all(sum(lengths[row] for row in pack) <= pack_length for pack in packs)
    # First fit: no two packs could share one.
    loads = sorted(sum(lengths[row] for row in pack) for pack in packs)
    assert len(loads) < 2 or loads[0] + loads[1] > pack_length


def test_a_row_longer_than_a_pack_is_named() -> None:
    with pytest.raises(ValueError, match="row 4 has 10 tokens, more than a pack of 9"):
        pack_batch(make(), pack_length=9, pad_token_id=0)


@pytest.mark.parametrize("side", ["right", "left"])
def test_tokens_are_conserved_and_positions_restart(side: str) -> None:
    batch = make(side)
    packed = pack_batch(batch, pack_length=17, pad_token_id=0)
    unpacked = packed.unpack(packed.input_ids_PS)
    for row, (prompt, completion) in enumerate(SHAPES):
        own = batch.input_ids_BS[row][batch.attention_mask_BS[row].bool()]
        assert torch.equal(unpacked[row, : prompt + completion], own)
        assert (unpacked[row, prompt + completion :] == 0).all()
        assert packed.unpack(packed.position_ids_PS)[row, : prompt + completion].tolist() == list(
            range(prompt + completion)
        )
    assert int((packed.segment_ids_PS > 0).sum()) == sum(prompt + completion for prompt, completion in SHAPES)


def test_the_mask_is_causal_within_a_segment_and_closed_between() -> None:
    packed = pack_batch(make(), pack_length=17, pad_token_id=0)
    open_PSS = packed.attention_mask_P1SS().squeeze(1) == 0
    segments = packed.segment_ids_PS.tolist()
    for pack, segment in enumerate(segments):
        for query in range(17):
            for key in range(17):
                assert bool(open_PSS[pack, query, key]) == (key <= query and segment[key] == segment[query])


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("pack_length", [10, 17, 64])
def test_packed_and_padded_agree_in_value_and_gradient(kind: str, attention: str, pack_length: int) -> None:
    batch, policy = make(), model(kind, attention)
    mask_BT = batch.mask_BT.clone()
    mask_BT[1, 2] = 0
    weights = torch.linspace(-1, 1, mask_BT.numel(), dtype=torch.float64).view_as(mask_BT)

    def gradients(logprobs_BT: Tensor, entropy_BT: Tensor) -> list[Tensor]:
        policy.zero_grad()
        (weights * logprobs_BT + entropy_BT).sum().backward()
        return [parameter.grad.clone() for parameter in policy.parameters()]

    padded_logits = policy(input_ids=batch.input_ids_BS, attention_mask=batch.attention_mask_BS).logits
    padded = compute_logprobs(
        padded_logits, batch.completion_ids_BT, batch.prompt_lens_B, temperature=0.7, mask_BT=mask_BT
    )
    packed = pack_batch(batch, pack_length=pack_length, pad_token_id=0)
    joint = compute_logprobs_packed(
        packed_logits(policy, packed), packed, batch.completion_ids_BT, temperature=0.7, mask_BT=mask_BT
    )
    # The models' norms and eager softmax round to float32 inside, whatever their weights.
    for expected, value in zip(padded, joint, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-7)
    for expected, value in zip(gradients(*padded), gradients(*joint), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_a_change_in_one_row_leaves_its_neighbours_bit_for_bit(kind: str) -> None:
    policy = model(kind, "sdpa")
    packed = pack_batch(make(), pack_length=64, pad_token_id=0)
    assert len(packed.input_ids_PS) == 1
    changed_ids = packed.input_ids_PS.clone()
    first = int(packed.first_B[4])
    changed_ids[0, first : first + int(packed.lengths_B[4])] = 1
    with torch.no_grad():
        before = packed.unpack(packed_logits(policy, packed))
        after = packed.unpack(packed_logits(policy, packed, changed_ids))
    assert torch.equal(before[:4], after[:4])
    assert not torch.equal(before[4], after[4])


def test_positions_alone_tell_the_model_where_sequences_end() -> None:
    """Without a mask, position ids that restart make Hugging Face models build the block-diagonal one."""
    policy = model("qwen3", "sdpa")
    packed = pack_batch(make(), pack_length=64, pad_token_id=0)
    with torch.no_grad():
        by_positions = policy(
            input_ids=packed.input_ids_PS, position_ids=packed.position_ids_PS, use_cache=False
        ).logits
        by_mask = packed_logits(policy, packed)
    torch.testing.assert_close(packed.unpack(by_positions), packed.unpack(by_mask), rtol=1e-6, atol=1e-7)


def test_positions_past_a_rows_own_completion_give_zero() -> None:
    batch = make()
    packed = pack_batch(batch, pack_length=64, pad_token_id=0)
    logits = torch.randn(1, 64, V)
    logprobs, entropy = compute_logprobs_packed(logits, packed, batch.completion_ids_BT)
    assert torch.equal(logprobs != 0, batch.mask_BT.bool())
    assert torch.equal(entropy != 0, batch.mask_BT.bool())


def test_unpack_does_not_cut() -> None:
    packed = pack_batch(make(), pack_length=17, pad_token_id=0)
    assert packed.unpack(packed.input_ids_PS, 20).shape == (5, 20)
    with pytest.raises(ValueError, match="a row of 10 tokens does not fit 9"):
        packed.unpack(packed.input_ids_PS, 9)
