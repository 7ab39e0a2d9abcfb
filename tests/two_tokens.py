"""A model of two tokens, whose distribution is known, and 20,000 completions held to it. Imported beside vLLM too."""

from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from refrl.config import ConfigError, PolicyConfig, validate_config
from refrl.generation.base import Completion, Generator, SamplingParams
from refrl.models.loading import load_model
from refrl.training.build_generation import build_engine

NUM_SAMPLES = 20_000
PROMPT = (0, 1, 1)
LIMIT = 16
"""Most tokens of a prompt and its completion."""
CRITICAL = 21.1
"""Of chi-square with three degrees of freedom: exceeded by one sound engine in ten thousand."""


def make(output: Path) -> Path:
    """Write the model, whose two tokens are unlike in probability, after one another too; return its directory."""
    torch.manual_seed(1)
    shape = Qwen2Config(
        hidden_size=64,
        intermediate_size=48,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_hidden_layers=1,
        vocab_size=2,
        max_position_embeddings=LIMIT,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    model = AutoModelForCausalLM.from_config(shape)
    model.save_pretrained(output)
    return output


def open_engine(directory: Path, generation: Mapping[str, Any]) -> Generator:
    """Return an engine that samples with it."""
    values = {
        "model_name": str(directory),
        "train_global_batch_size": 4,
        "train_micro_batch_size": 4,
        "max_total_sequence_length": LIMIT,
        "generation": {"colocated": {"enabled": False}, **generation},
    }
    config = validate_config(PolicyConfig, values, source="test")
    return build_engine(config, pad_token_id=0, device=torch.device("cpu"))


def probabilities(directory: Path) -> Mapping[tuple[int, int], float]:
    """Return the probability of each completion of two tokens, from the model's own forward pass."""
    model = load_model(directory)
    with torch.no_grad():
        rows = {
            pair: model(torch.tensor([[*PROMPT, *pair]])).logits[0].log_softmax(-1)
            for pair in product((0, 1), repeat=2)
        }
    start = len(PROMPT) - 1
    return {
        pair: float((logprobs_SV[start, pair[0]] + logprobs_SV[start + 1, pair[1]]).exp())
        for pair, logprobs_SV in rows.items()
    }


def chi_square(completions: list[Completion], expected: Mapping[tuple[int, int], float]) -> float:
    """Return the statistic of the completions' counts."""
    counts = Counter(row.ids for row in completions)
    assert set(counts) <= set(expected)
    number = len(completions)
    return sum((counts[ids] - number * share) ** 2 / (number * share) for ids, share in expected.items())


def hold(directory: Path, generation: Mapping[str, Any], *, num_samples: int = NUM_SAMPLES) -> None:
    """Hold an engine to the distribution, its log-probabilities, where rows stop, and how long prompts may be."""
    expected = probabilities(directory)
    assert min(expected.values()) > 0.01
    with closing(open_engine(directory, generation)) as engine:
        params = SamplingParams(max_new_tokens=2, stop_token_ids=())
        rows = engine.generate([PROMPT] * num_samples, params, torch.Generator().manual_seed(0))
        statistic = chi_square(rows, expected)
        assert statistic < CRITICAL, f"chi-square {statistic:.1f} of {Counter(row.ids for row in rows)}"
        said = {row.ids: torch.tensor(row.logprobs).sum().exp().item() for row in rows}
        assert max(abs(said[ids] - expected[ids]) for ids in said) < 1e-5

        stops = SamplingParams(max_new_tokens=3, stop_token_ids=(1,))
        for row in engine.generate([PROMPT] * 64, stops, torch.Generator().manual_seed(1)):
            ends = 1 in row.ids
            assert row.finish_reason == ("stop" if ends else "length")
            assert row.ids.index(1) == len(row.ids) - 1 if ends else len(row.ids) == 3

        edges = [(0,), (1,) * (LIMIT - 2), (0,)]
        lone = [engine.generate([edge], params, torch.Generator().manual_seed(2))[0] for edge in edges]
        assert [len(row.ids) for row in lone] == [2, 2, 2]
        together = engine.generate(edges, params, torch.Generator().manual_seed(2))
        assert [row.prompt_ids for row in together] == edges
        for row in together:
            same = [one for one in lone if one.prompt_ids == row.prompt_ids and one.ids == row.ids]
            for one in same:
                assert torch.allclose(torch.tensor(one.logprobs), torch.tensor(row.logprobs), atol=1e-5)
        for refused in ([], [2], [0] * (LIMIT - 1)):
            try:
                engine.generate([refused], params, torch.Generator())
            except (ConfigError, ValueError):
                continue
            raise AssertionError(f"a prompt of {len(refused)} tokens {refused[:3]} was taken")
