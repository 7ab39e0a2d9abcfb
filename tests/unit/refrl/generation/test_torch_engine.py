"""The engine: rows are independent, stop where they should, cost nothing once finished, and bad input is named."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from refrl.config import ConfigError
from refrl.generation.base import SamplingParams
from refrl.generation.torch_engine import TorchGenerator

from .conftest import largest_gap, make_model
from .tiny_models import END_IDS, VOCAB

ENDLESS = SamplingParams(16, stop_token_ids=())


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(params=[True, False], ids=["lean", "generic"])
def lean(request: pytest.FixtureRequest) -> bool:
    return request.param


def test_first_tokens_follow_the_distribution_of_the_plain_forward(lean: bool) -> None:
    """Chi-square over the vocabulary; a correct engine is rejected once in 10,000 (the seed is fixed)."""
    model = make_model("qwen3")
    num_draws = 6000
    params = SamplingParams(1, temperature=1.3)
    rows = TorchGenerator(model, 0, lean=lean).generate([[7, 9, 11]] * num_draws, params, seeded(2))
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[7, 9, 11]])).logits[0, -1].double() / 1.3
    expected = torch.softmax(logits, dim=-1).numpy()
    counts = np.bincount([row.ids[0] for row in rows], minlength=VOCAB)
    assert expected.min() * num_draws > 5
    assert stats.chisquare(counts, expected * num_draws).pvalue > 1e-4


@pytest.mark.parametrize("temperature", [0.6, 1.0, 2.0])
def test_logprobs_are_those_of_the_temperature_sampled_at(lean: bool, temperature: float) -> None:
    model = make_model("llama")
    params = SamplingParams(10, temperature=temperature, stop_token_ids=())
    rows = TorchGenerator(model, 0, lean=lean).generate([[7], [9, 11]] * 3, params, seeded())
    assert largest_gap(model, rows, temperature=temperature) < 1e-5


def test_filtered_logprobs_are_renormalised_over_the_kept_tokens(lean: bool) -> None:
    model = make_model("llama")
    rows = TorchGenerator(model, 0, lean=lean).generate(
        [[7, 9]] * 40, SamplingParams(1, top_k=3, stop_token_ids=()), seeded()
    )
    found = {row.ids[0]: row.logprobs[0] for row in rows}
    assert len(found) == 3
    assert sum(np.exp(list(found.values()))) == pytest.approx(1, abs=1e-5)


def test_a_row_does_not_depend_on_its_batch_mates(lean: bool, ragged_prompts: list[list[int]]) -> None:
    engine = TorchGenerator(make_model("qwen3"), 0, lean=lean)
    whole = engine.generate(ragged_prompts, ENDLESS, seeded())
    for number in range(1, len(ragged_prompts)):
        others = [[number, 1]] * number
        row = engine.generate([*others, ragged_prompts[number]], ENDLESS, seeded())[number]
        assert row.ids == whole[number].ids
        np.testing.assert_allclose(row.logprobs, whole[number].logprobs, atol=1e-5)


def test_samples_of_one_prompt_differ_and_a_seed_repeats_them(lean: bool) -> None:
    engine = TorchGenerator(make_model("qwen3"), 0, lean=lean)
    rows = engine.generate([[7, 9]] * 12, ENDLESS, seeded(4))
    assert len({row.ids for row in rows}) == 12
    assert engine.generate([[7, 9]] * 12, ENDLESS, seeded(4)) == rows
    assert engine.generate([[7, 9]] * 12, ENDLESS, seeded(5)) != rows


def test_stopping_only_cuts_what_would_have_been_sampled(lean: bool, ragged_prompts: list[list[int]]) -> None:
    """Rows leave the batch at different steps; what the others sample must not change."""
    engine = TorchGenerator(make_model("qwen3"), 0, lean=lean)
    prompts = ragged_prompts * 4
    stops = (4, 9, 13, 20, 31)
    endless = engine.generate(prompts, SamplingParams(40, stop_token_ids=()), seeded())
    stopped = engine.generate(prompts, SamplingParams(40, stop_token_ids=stops), seeded())
    for full, cut in zip(endless, stopped, strict=True):
        ends = [place for place, token in enumerate(full.ids) if token in stops]
        length = ends[0] + 1 if ends else 40
        assert cut.ids == full.ids[:length]
        assert cut.finish_reason == ("stop" if ends else "length")
        np.testing.assert_allclose(cut.logprobs, full.logprobs[:length], atol=1e-5)
    assert len({len(row.ids) for row in stopped}) > 5


def test_an_end_token_at_the_last_place_is_a_stop(lean: bool) -> None:
    engine = TorchGenerator(make_model("qwen3"), 0, lean=lean)
    rows = engine.generate([[7]] * 4, SamplingParams(1, stop_token_ids=tuple(range(VOCAB))), seeded())
    assert [(len(row.ids), row.finish_reason) for row in rows] == [(1, "stop")] * 4


def test_without_stop_ids_all_end_ids_of_the_model_stop(lean: bool) -> None:
    model = make_model("qwen3")
    model.generation_config.eos_token_id = 8
    engine = TorchGenerator(model, 0, lean=lean)
    assert engine.stop_ids() == {*END_IDS, 8}
    rows = engine.generate([[7]] * 200, SamplingParams(8), seeded())
    last = {row.ids[-1] for row in rows if row.finish_reason == "stop"}
    assert last == {*END_IDS, 8}
    assert not any(set(row.ids[:-1]) & last for row in rows)


def test_equal_prompts_are_read_once_and_finished_rows_leave_the_batch() -> None:
    model = make_model("qwen3")
    shapes: list[tuple[int, ...]] = []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    rows = TorchGenerator(model, 0).generate(
        [[7, 9, 1]] * 5 + [[8, 1, 2]] * 5, SamplingParams(30, stop_token_ids=(4, 9, 13, 20, 31)), seeded()
    )
    assert shapes[0] == (2, 3)
    running = [sum(len(row.ids) > token for row in rows) for token in range(1, 30)]
    assert [rows for rows, width in shapes[1:]] == list(itertools.takewhile(bool, running))
    assert running[0] > running[8]


def test_greedy_follows_the_most_likely_token(lean: bool, ragged_prompts: list[list[int]]) -> None:
    model = make_model("qwen3")
    params = SamplingParams(6, greedy=True, stop_token_ids=())
    for row in TorchGenerator(model, 0, lean=lean).generate(ragged_prompts, params, seeded()):
        ids = list(row.prompt_ids)
        for token in row.ids:
            with torch.no_grad():
                assert token == int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
            ids.append(token)


@pytest.mark.parametrize("fails", [False, True])
def test_modes_are_restored_and_dropout_is_off(lean: bool, fails: bool) -> None:
    model = make_model("llama")
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    model.train()
    model.model.layers[0].mlp.eval()
    modes = {name: module.training for name, module in model.named_modules()}
    engine = TorchGenerator(model, 0, lean=lean)
    if fails:
        model.lm_head.weight.data[5] = float("nan")
        with pytest.raises(FloatingPointError):
            engine.generate([[7, 9]], ENDLESS, seeded())
    else:
        rows = engine.generate([[7, 9]] * 3, ENDLESS, seeded())
    assert {name: module.training for name, module in model.named_modules()} == modes
    if not fails:
        assert largest_gap(model.eval(), rows) < 1e-5


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("greedy", [True, False])
def test_logits_that_are_not_finite_are_an_error(lean: bool, value: float, greedy: bool) -> None:
    model = make_model("qwen2")
    model.model.norm.weight.data[:] = value
    with pytest.raises(FloatingPointError, match="not finite"):
        TorchGenerator(model, 0, lean=lean).generate([[7]], SamplingParams(3, greedy=greedy), seeded())


@pytest.mark.parametrize(
    ("prompts", "error", "message"),
    [
        ([[7], []], ValueError, "prompt 1 is empty"),
        ([[7, VOCAB]], ValueError, f"id {VOCAB}, outside the vocabulary of {VOCAB}"),
        ([[-1]], ValueError, "id -1"),
        ([[7], [7] * 113], ConfigError, "prompt 1 has 113 tokens.*max_new_tokens=16.*128 positions"),
    ],
)
def test_bad_prompts_are_named(prompts: list[list[int]], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        TorchGenerator(make_model("llama"), 0).generate(prompts, ENDLESS, seeded())


def test_the_last_position_of_the_model_can_be_used(lean: bool) -> None:
    model = make_model("llama")
    rows = TorchGenerator(model, 0, lean=lean).generate([[7] * 112, [7]], ENDLESS, seeded())
    assert largest_gap(model, rows) < 1e-5


def test_no_prompts_give_no_completions() -> None:
    assert TorchGenerator(make_model("llama"), 0).generate([], ENDLESS, seeded()) == []


def test_the_pad_token_is_only_a_filler(lean: bool, ragged_prompts: list[list[int]]) -> None:
    model = make_model("qwen3")
    first, second = (
        TorchGenerator(model, pad, lean=lean).generate(ragged_prompts, ENDLESS, seeded()) for pad in (0, 47)
    )
    assert first == second
