"""A run trains on the distribution that it sampled from, top-p and top-k included, and can end where it is told to."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from refrl.config import ConfigError, GRPORunConfig, load_config
from refrl.training.grpo import run_grpo

from .conftest import CONFIGS

Overrides = Callable[[str], list[str]]

FILTERS = {
    "top_p": ["policy.generation.top_p=0.5"],
    "top_k": ["policy.generation.top_k=3"],
    "both": [
        "policy.generation.top_p=0.8",
        "policy.generation.top_k=20",
        "policy.generation.temperature=0.7",
    ],
}
FORMS = {
    "padded": [],
    "packed": ["policy.sequence_packing.enabled=true"],
    "dynamic batching": ["policy.dynamic_batching.enabled=true"],
    "chunked": ["policy.logprob_chunk_size=5"],
    "packed, chunked, checkpointed": [
        "policy.sequence_packing.enabled=true",
        "policy.logprob_chunk_size=5",
        "policy.activation_checkpointing=true",
    ],
}


def run(overrides: list[str], *more: str) -> GRPORunConfig:
    config = load_config(
        GRPORunConfig,
        CONFIGS / "grpo-smoke.yaml",
        [
            *overrides,
            *("grpo.val_at_start=false", "grpo.val_at_end=false", "policy.logprob_batch_size=8"),
            *more,
        ],
    )
    run_grpo(config)
    return config


def scalars(config: GRPORunConfig, tag: str) -> dict[int, float]:
    (path,) = (Path(config.logger.log_dir) / "tensorboard").iterdir()
    return {
        event.step: value.tensor.float_val[0]
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
        if value.tag == tag
    }


def rows(config: GRPORunConfig, step: int) -> list[dict[str, Any]]:
    path = Path(config.logger.log_dir) / f"train_data_step{step}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", FILTERS)
def test_the_ratio_is_one_and_sampler_and_trainer_agree(overrides: Overrides, name: str, form: str) -> None:
    """In every form; by the whole distribution, tokens would be less likely by the mass that was cut off."""
    config = run(overrides("a"), *FILTERS[name], *FORMS[form])
    for step in (1, 2, 3):
        for tag in ("probs_ratio", "probs_ratio_min", "probs_ratio_max"):
            assert scalars(config, f"train/{tag}")[step] == pytest.approx(1.0, abs=1e-6)
        assert scalars(config, "train/token_mult_prob_error")[step] == pytest.approx(1.0, abs=1e-5)
        assert scalars(config, "train/kl_penalty")[step] == pytest.approx(0.0, abs=1e-6) or step > 1
        for row in rows(config, step):
            assert row["prev_logprobs"] == pytest.approx(row["generation_logprobs"], abs=2e-5)
    assert scalars(config, "train/grad_norm")[1] > 1e-3
    assert scalars(config, "train/kl_penalty")[3] > 1e-5


def test_scores_are_those_of_the_filtered_distribution(overrides: Overrides, tiny_model: Path) -> None:
    """Against a plain forward of the model that the run began with, filtered by sorting."""
    from transformers import AutoModelForCausalLM

    config = run(overrides("a"), *FILTERS["both"], "grpo.max_num_steps=1")
    model = AutoModelForCausalLM.from_pretrained(str(tiny_model))
    for row in rows(config, 1):
        with torch.no_grad():
            logits_SV = model(torch.tensor([row["token_ids"]])).logits[0].double() / 0.7
        for token, logprob in enumerate(row["prev_logprobs"]):
            position = row["prompt_length"] + token
            largest, order = logits_SV[position - 1].sort(descending=True)
            shares = largest[:20].softmax(0)
            num_kept = int((shares.cumsum(0) - shares < 0.8).sum())
            place = order.tolist().index(row["token_ids"][position])
            assert place < num_kept
            assert logprob == pytest.approx(math.log(shares[place] / shares[:num_kept].sum()), abs=2e-5)


def test_every_form_takes_the_same_update(overrides: Overrides) -> None:
    """The weights after one step are those of padded rows, to rounding."""
    ends = []
    for name, form in FORMS.items():
        changes = ["grpo.max_num_steps=1", "policy.optimizer.eps=1e-4"]
        config = run(overrides(name), *FILTERS["top_p"], *form, *changes)
        ends.append(load_file(Path(config.checkpointing.checkpoint_dir) / "final" / "model.safetensors"))
    start = load_file(Path(config.policy.model_name) / "model.safetensors")
    for end in ends[1:]:
        for name, weight in end.items():
            torch.testing.assert_close(weight, ends[0][name], rtol=0, atol=2e-5)
    assert any(not torch.equal(weight, start[name]) for name, weight in ends[0].items())


def test_an_update_off_policy_keeps_the_recorded_support(overrides: Overrides) -> None:
    """Later updates of one rollout move the ratio, and it stays finite: no sampled id ever leaves its support."""
    config = run(
        overrides("a"),
        *FILTERS["top_k"],
        *("policy.train_global_batch_size=4", "policy.optimizer.lr=1e-2", "policy.train_micro_batch_size=4"),
    )
    ratios = scalars(config, "train/probs_ratio_max")
    assert all(math.isfinite(value) for value in ratios.values())
    assert ratios[1] > 1.05


def test_a_stop_id_that_the_model_does_not_know_ends_the_run_before_its_first_step(
    overrides: Overrides,
) -> None:
    """Nothing would ever stop there."""
    with pytest.raises(
        ConfigError, match=r"policy.generation.stop_token_ids: 259 outside the vocabulary of 259"
    ):
        run(overrides("a"), "policy.generation.stop_token_ids=[258,259]")
