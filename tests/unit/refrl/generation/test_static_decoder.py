"""Decoding in blocks with static shapes samples what decoding token by token samples."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch

from refrl.generation.base import Completion, SamplingParams
from refrl.generation.decoding import decode
from refrl.generation.lean_decoder import LeanDecoder
from refrl.generation.sampling import row_uniforms
from refrl.generation.static.decoder import StaticDecoder, rows_in_buckets
from refrl.generation.static.decoding import decode_in_blocks
from refrl.generation.torch_engine import TorchGenerator

from .conftest import LEAN_NAMES, largest_gap, make_model

STOPS = (5, 17, 31, 44)
PARAMS = {
    "plain": SamplingParams(13, stop_token_ids=STOPS),
    "endless": SamplingParams(13, stop_token_ids=()),
    "temperature": SamplingParams(13, temperature=0.7, stop_token_ids=STOPS),
    "top-k": SamplingParams(13, top_k=5, stop_token_ids=STOPS),
    "top-p": SamplingParams(13, top_p=0.6, temperature=1.3, stop_token_ids=STOPS),
    "greedy": SamplingParams(13, greedy=True, stop_token_ids=STOPS),
    "one token": SamplingParams(1),
}


def sample(
    engine: TorchGenerator, prompts: Sequence[Sequence[int]], params: SamplingParams, seed: int = 0
) -> list[Completion]:
    return engine.generate(prompts, params, torch.Generator().manual_seed(seed))


def assert_alike(found: Sequence[Completion], right: Sequence[Completion]) -> None:
    for one, other in zip(found, right, strict=True):
        assert one.ids == other.ids
        assert one.finish_reason == other.finish_reason
        assert one.kept_ids == other.kept_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


@pytest.mark.parametrize("block_tokens", [1, 4, 64])
@pytest.mark.parametrize("name", list(PARAMS))
def test_blocks_sample_what_single_tokens_do(
    name: str, block_tokens: int, ragged_prompts: list[list[int]]
) -> None:
    model, prompts = make_model("qwen3"), ragged_prompts * 3
    blocks = sample(TorchGenerator(model, 0, block_tokens=block_tokens), prompts, PARAMS[name])
    assert_alike(blocks, sample(TorchGenerator(model, 0, block_tokens=0), prompts, PARAMS[name]))


@pytest.mark.parametrize("name", LEAN_NAMES)
def test_logprobs_equal_the_plain_forward(name: str, ragged_prompts: list[list[int]]) -> None:
    model = make_model(name)
    rows = sample(TorchGenerator(model, 0, block_tokens=4), ragged_prompts, PARAMS["endless"])
    assert largest_gap(model, rows) < 1e-5


def test_one_engine_serves_calls_of_other_sizes(ragged_prompts: list[list[int]]) -> None:
    """Larger, smaller, other lengths, other parameters: nothing of a call is left in the next."""
    model = make_model("llama")
    engine = TorchGenerator(model, 0, block_tokens=4)
    calls = [
        (ragged_prompts, PARAMS["plain"]),
        (ragged_prompts[:1], PARAMS["top-k"]),
        ([[9] * 40, [4]] * 5, SamplingParams(30, stop_token_ids=STOPS)),
        (ragged_prompts, PARAMS["plain"]),
        ([[7, 3]], PARAMS["greedy"]),
    ]
    for number, (prompts, params) in enumerate(calls):
        fresh = sample(TorchGenerator(model, 0, block_tokens=4), prompts, params, seed=number)
        assert sample(engine, prompts, params, seed=number) == fresh


@pytest.mark.parametrize("name", ["llama-tied-biased", "qwen3", "qwen2"])
def test_each_weight_that_changes_in_place_is_seen_by_the_next_call(name: str) -> None:
    """Some are read where they are, others through copies that joined them."""
    model = make_model(name)
    engine = TorchGenerator(model, 0, block_tokens=4)
    prompts = [[7, 9, 11], [4]]
    before = sample(engine, prompts, PARAMS["endless"])
    for weight_name, weight in model.named_parameters():
        saved = weight.detach().clone()
        with torch.no_grad():
            weight.add_(torch.randn_like(weight) * 0.3)
        after = sample(engine, prompts, PARAMS["endless"])
        assert [row.logprobs for row in after] != [row.logprobs for row in before], weight_name
        assert largest_gap(model, after) < 2e-5, weight_name
        with torch.no_grad():
            weight.copy_(saved)
    assert sample(engine, prompts, PARAMS["endless"]) == before


def test_weights_in_other_places_are_taken(ragged_prompts: list[list[int]]) -> None:
    model, other = make_model("qwen3"), make_model("qwen3")
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    engine = TorchGenerator(model, 0, block_tokens=4)
    sample(engine, ragged_prompts, PARAMS["plain"])
    engine.share_weights(iter([*other.named_parameters(), *other.named_buffers()]))
    right = sample(TorchGenerator(copy.deepcopy(other), 0, block_tokens=4), ragged_prompts, PARAMS["plain"])
    assert sample(engine, ragged_prompts, PARAMS["plain"]) == right


def test_an_abort_ends_rows_after_a_block(ragged_prompts: list[list[int]]) -> None:
    """Rows that ended inside the block are whole; the others keep the block's tokens."""
    model = make_model("qwen3")
    whole = sample(TorchGenerator(model, 0, block_tokens=0), ragged_prompts, PARAMS["plain"])
    engine = TorchGenerator(model, 0, block_tokens=4)
    engine.abort()
    for cut, full in zip(sample(engine, ragged_prompts, PARAMS["plain"]), whole, strict=True):
        assert cut.ids == full.ids[: len(cut.ids)]
        assert len(cut.ids) == min(len(full.ids), 1)
        assert cut.finish_reason == ("stop" if cut.ids[-1] in STOPS else "abort")


def test_logits_that_are_not_finite_are_refused() -> None:
    model = make_model("qwen3")
    with torch.no_grad():
        model.model.norm.weight[0] = float("nan")
    with pytest.raises(FloatingPointError, match="not finite"):
        sample(TorchGenerator(model, 0, block_tokens=4), [[7, 9]], PARAMS["plain"])


def test_a_bucket_holds_its_rows_and_few_more() -> None:
    buckets = {rows: rows_in_buckets(rows) for rows in range(1, 2000)}
    assert all(rows <= bucket <= rows * 1.25 for rows, bucket in buckets.items())
    assert len({bucket for rows, bucket in buckets.items() if 64 < rows <= 128}) == 4
    assert all(buckets[bucket] == bucket for bucket in buckets.values() if bucket < 2000)


def test_rows_that_fill_a_bucket_change_nothing(
    ragged_prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a CUDA device, with more rows in the buffers than in the call, and compaction between blocks."""
    model, prompts = make_model("qwen3"), [tuple(prompt) for prompt in ragged_prompts * 3]
    params = PARAMS["plain"]
    uniforms_BT = row_uniforms(len(prompts), params.max_new_tokens, torch.Generator().manual_seed(0))
    monkeypatch.setattr(StaticDecoder, "_bucket", lambda self, num_rows: rows_in_buckets(num_rows) + 3)
    with torch.no_grad():
        found = decode_in_blocks(
            StaticDecoder(model, block_tokens=2, captures=False),
            prompts,
            params,
            uniforms_BT,
            stop_ids=frozenset(STOPS),
            pad_token_id=0,
        )
        right = decode(
            LeanDecoder(model, params.max_new_tokens),
            prompts,
            params,
            uniforms_BT,
            stop_ids=frozenset(STOPS),
            pad_token_id=0,
        )
    assert [row.ids for row in found] == [row.ids for row in right]
