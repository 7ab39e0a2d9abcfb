"""Generation on a CUDA device: the same numbers as the plain forward there, and as generation on the CPU."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from refrl.generation.base import Completion, SamplingParams
from refrl.generation.torch_engine import TorchGenerator

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

PROMPTS = [[7, 9, 11], [40, 3, 8, 21, 6, 45, 17, 1, 33], [7], [7, 9, 11], [7]] * 4
ENDLESS = SamplingParams(24, stop_token_ids=())


@pytest.fixture(params=[True, False], ids=["lean", "generic"])
def lean(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture(params=["qwen3", "llama"])
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    """Return a model of random weights, norms included, on the CPU in float32."""
    shape = {
        "vocab_size": 96,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 128,
        "eos_token_id": 3,
    }
    torch.manual_seed(0)
    built = (
        Qwen3ForCausalLM(Qwen3Config(**shape))
        if request.param == "qwen3"
        else LlamaForCausalLM(LlamaConfig(**shape))
    )
    with torch.no_grad():
        for weight in built.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return built.eval()


def generate(
    model: PreTrainedModel, params: SamplingParams = ENDLESS, *, lean: bool = True
) -> list[Completion]:
    return TorchGenerator(model, 0, lean=lean).generate(PROMPTS, params, torch.Generator().manual_seed(0))


def largest_gap(model: PreTrainedModel, rows: list[Completion]) -> float:
    """Return the largest distance of reported log-probabilities from those of one plain forward per row."""
    gaps = []
    for row in rows:
        ids = torch.tensor([row.prompt_ids + row.ids], device=model.device)
        with torch.no_grad():
            logprobs = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0].float(), dim=-1)
        start = len(row.prompt_ids)
        picked = logprobs[start - 1 : -1].gather(-1, ids[0, start:, None]).squeeze(-1).cpu()
        gaps.append(float((picked - torch.tensor(row.logprobs)).abs().max()))
    return max(gaps)


def test_float32_logprobs_equal_the_plain_forward(model: PreTrainedModel, lean: bool) -> None:
    model.cuda()
    assert largest_gap(model, generate(model, lean=lean)) < 1e-4


def test_bfloat16_logprobs_stay_within_its_rounding(model: PreTrainedModel, lean: bool) -> None:
    model.to("cuda", torch.bfloat16)
    assert largest_gap(model, generate(model, lean=lean)) < 0.2


def test_the_device_does_not_change_what_is_sampled(model: PreTrainedModel, lean: bool) -> None:
    on_cpu = [row.ids for row in generate(model, lean=lean)]
    on_gpu = [row.ids for row in generate(model.cuda(), lean=lean)]
    assert on_cpu == on_gpu


def test_stopping_only_cuts_what_would_have_been_sampled(model: PreTrainedModel, lean: bool) -> None:
    model.cuda()
    stops = (5, 17, 31, 44, 60, 72, 90)
    endless = generate(model, lean=lean)
    stopped = generate(model, SamplingParams(24, stop_token_ids=stops), lean=lean)
    for full, cut in zip(endless, stopped, strict=True):
        ends = [place for place, token in enumerate(full.ids) if token in stops]
        assert cut.ids == full.ids[: ends[0] + 1 if ends else None]
    assert len({len(row.ids) for row in stopped}) > 3


def test_a_generator_of_the_device_is_taken(model: PreTrainedModel) -> None:
    engine = TorchGenerator(model.cuda(), 0)
    first, again, other = (
        engine.generate(PROMPTS, ENDLESS, torch.Generator(device="cuda").manual_seed(seed))
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
