"""Captured graphs on a CUDA device sample what decoding token by token samples, and follow weights that change."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests.unit.refrl.generation.tiny_models import ARCHITECTURES, build, random_weights
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from refrl.generation.base import Completion, SamplingParams
from refrl.generation.torch_engine import TorchGenerator

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

STOPS = (5, 17, 31, 44, 60, 72, 90)
PROMPTS = [[7, 9, 11], [40, 3, 8, 21, 6, 45, 17, 1, 33], [7], [12, 13], [7]] * 8
PARAMS = {
    "plain": SamplingParams(50, temperature=0.9, stop_token_ids=STOPS),
    "endless": SamplingParams(50, stop_token_ids=()),
    "top-k": SamplingParams(50, top_k=9, stop_token_ids=STOPS),
    "top-p": SamplingParams(50, top_p=0.7, stop_token_ids=STOPS),
    "greedy": SamplingParams(50, greedy=True, stop_token_ids=STOPS),
}


@pytest.fixture
def model() -> PreTrainedModel:
    config = Qwen3Config(
        vocab_size=5003,
        hidden_size=96,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
    )
    torch.manual_seed(0)
    built = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for weight in built.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return built.eval().cuda()


def largest_gap(model: PreTrainedModel, rows: list[Completion], temperature: float = 1.0) -> float:
    """Return the largest distance of reported log-probabilities from those of one plain forward per row."""
    gaps = []
    for row in rows:
        ids = torch.tensor([row.prompt_ids + row.ids], device=model.device)
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits[0].float() / temperature
        start = len(row.prompt_ids)
        picked = torch.log_softmax(logits, -1)[start - 1 : -1].gather(-1, ids[0, start:, None]).squeeze(-1)
        gaps.append(float((picked.cpu() - torch.tensor(row.logprobs)).abs().max()))
    return max(gaps)


def sample(engine: TorchGenerator, params: SamplingParams, seed: int = 0) -> list[Completion]:
    return engine.generate(PROMPTS, params, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", list(PARAMS))
def test_graphs_sample_what_single_tokens_do(model: PreTrainedModel, name: str) -> None:
    """Float sums in another order may tip a choice that is nearly a tie, and with it the rest of that row."""
    blocks = sample(TorchGenerator(model, 0), PARAMS[name])
    single = sample(TorchGenerator(model, 0, block_tokens=0), PARAMS[name])
    same = [
        (one, other)
        for one, other in zip(blocks, single, strict=True)
        if one.ids == other.ids and one.kept_ids == other.kept_ids
    ]
    assert len(same) >= 0.9 * len(blocks)
    for one, other in same:
        assert one.finish_reason == other.finish_reason
        assert one.logprobs == pytest.approx(other.logprobs, abs=2e-4)


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_greedy_tokens_of_every_architecture_equal_those_of_hugging_face(name: str) -> None:
    """Float sums in another order may tip a choice that is nearly a tie, and with it the rest of that row."""
    model = random_weights(build(name)).cuda()
    params = SamplingParams(12, greedy=True, stop_token_ids=())
    prompts = [[7, 9, 11], [40, 3, 8, 21, 6, 45, 17, 1, 33], [7], [12, 13], [2, 2, 46, 5, 19]] * 2
    engine = TorchGenerator(model, 0, block_tokens=4)
    rows = engine.generate(prompts, params, torch.Generator().manual_seed(0))
    assert engine._static is not None
    assert engine._static.num_graphs > 0
    assert largest_gap(model, rows) < 2e-4
    same = 0
    for row in rows:
        ids = torch.tensor([row.prompt_ids], device="cuda")
        right = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=[],
            pad_token_id=0,
        )
        same += row.ids == tuple(right[0, ids.shape[1] :].tolist())
    assert same >= 0.9 * len(rows)


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_bfloat16_stays_within_its_rounding_on_every_architecture(name: str) -> None:
    model = random_weights(build(name)).to("cuda", torch.bfloat16)
    params = SamplingParams(12, stop_token_ids=())
    engine = TorchGenerator(model, 0, block_tokens=4)
    rows = engine.generate([[7, 9, 11], [40, 3, 8, 21], [7]] * 2, params, torch.Generator().manual_seed(0))
    assert engine._static is not None
    assert largest_gap(model, rows) < 0.15


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_two_runs_of_one_seed_are_bitwise_equal(model: PreTrainedModel, dtype: torch.dtype) -> None:
    model.to(dtype)
    engine = TorchGenerator(model, 0)
    first = sample(engine, PARAMS["plain"])
    assert sample(engine, PARAMS["plain"]) == first
    assert sample(TorchGenerator(model, 0), PARAMS["plain"]) == first
    assert sample(engine, PARAMS["plain"], seed=1) != first


def test_weights_that_change_in_place_keep_the_graphs_and_are_seen(model: PreTrainedModel) -> None:
    engine = TorchGenerator(model, 0)
    before = sample(engine, PARAMS["endless"])
    assert engine._static is not None
    held = engine._static.num_graphs
    for name, weight in model.named_parameters():
        with torch.no_grad():
            weight.add_(torch.randn_like(weight) * 0.05)
        after = sample(engine, PARAMS["endless"])
        assert largest_gap(model, after) < 2e-4, name
    assert engine._static.num_graphs == held > 0
    assert after != before


def test_no_graph_is_captured_twice(model: PreTrainedModel) -> None:
    engine = TorchGenerator(model, 0)
    sample(engine, PARAMS["plain"])
    assert engine._static is not None
    held = engine._static.num_graphs
    for seed in range(3):
        sample(engine, PARAMS["endless"], seed)
    assert held <= engine._static.num_graphs <= held + 1


def test_other_lengths_and_numbers_of_rows(model: PreTrainedModel) -> None:
    """Calls that fit the buffers, and calls that do not."""
    engine = TorchGenerator(model, 0)
    for prompts, length in (([[3]] * 5, 9), ([[4] * 200] * 3, 120), ([[8, 9]] * 300, 7), ([[3]] * 5, 9)):
        params = SamplingParams(length, stop_token_ids=STOPS)
        found, right = (
            one.generate(prompts, params, torch.Generator().manual_seed(3))
            for one in (engine, TorchGenerator(model, 0, block_tokens=0))
        )
        assert [row.ids for row in found] == [row.ids for row in right]


def test_calls_that_grow_capture_again(model: PreTrainedModel) -> None:
    """Each call needs larger buffers than those that are there, so that all graphs go before new ones are captured."""
    engine = TorchGenerator(model, 0)
    for rows in (2, 9, 30, 70):
        params = SamplingParams(8 + rows, stop_token_ids=STOPS)
        found, right = (
            one.generate([[3, 4]] * rows, params, torch.Generator().manual_seed(3))
            for one in (engine, TorchGenerator(model, 0, block_tokens=0))
        )
        assert [row.ids for row in found] == [row.ids for row in right]
        torch.cuda.empty_cache()


def test_engines_of_several_threads_capture_their_graphs(model: PreTrainedModel) -> None:
    """As replicas within one process do: each samples what it samples alone."""
    engines = [TorchGenerator(copy.deepcopy(model), 0) for _ in range(4)]
    alone = sample(TorchGenerator(model, 0), PARAMS["plain"])
    for _ in range(3):
        with ThreadPoolExecutor(len(engines)) as pool:
            assert all(rows == alone for rows in pool.map(lambda one: sample(one, PARAMS["plain"]), engines))
        engines = [TorchGenerator(copy.deepcopy(model), 0) for _ in range(4)]
