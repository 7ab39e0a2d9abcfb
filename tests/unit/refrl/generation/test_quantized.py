"""A generator with int8 weights has the trainer's, rounded: each element to its row's own scale, at every sync."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from refrl.config import ConfigError, GenerationConfig, PolicyConfig, validate_config
from refrl.generation.base import SamplingParams
from refrl.models.tiny import TinyModelSpec, make_model
from refrl.training.build_generation import build_engine

PLAIN = {"quantization": "int8", "colocated": {"enabled": False}}


def engine(directory: Path, **generation: object):  # type: ignore[no-untyped-def]
    """Return an engine as a run builds it."""
    values = {
        "model_name": str(directory),
        "train_global_batch_size": 1,
        "train_micro_batch_size": 1,
        "max_total_sequence_length": 32,
        "generation": {"colocated": {"enabled": False}, **generation},
    }
    config = validate_config(PolicyConfig, values, source="test")
    return build_engine(config, pad_token_id=256, device=torch.device("cpu"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model of one layer."""
    directory = tmp_path_factory.mktemp("int8") / "model"
    make_model(TinyModelSpec(hidden_size=32, num_layers=1, num_heads=2, num_kv_heads=1), directory)
    return directory


def test_a_sync_rounds_each_row_by_its_own_scale(tiny: Path) -> None:
    """Worked out here by numpy; norms, the embedding and the head arrive as they are."""
    plain, rounded = engine(tiny), engine(tiny, quantization="int8")
    stream = torch.Generator().manual_seed(1)
    sent: dict[str, Tensor] = {
        name: tensor + torch.randn(tensor.shape, generator=stream) for name, tensor in plain.named_weights()
    }
    rounded.load_weights(iter(sent.items()), 3)
    held = dict(rounded.named_weights())
    in_int8 = {name for name, tensor in held.items() if tensor.dtype == torch.int8}
    assert in_int8 == {name for name in sent if name.endswith("_proj.weight")}
    assert rounded.weight_version == 3
    for name, tensor in sent.items():
        if name not in in_int8:
            assert torch.equal(held[name], tensor), name
            continue
        weight = tensor.numpy().astype(np.float64)
        scale = np.abs(weight).max(1, keepdims=True) / 127
        assert np.allclose(held[f"{name}_scale"].numpy(), scale[:, 0], rtol=1e-6)
        assert np.abs(held[name].numpy() * scale - weight).max() <= 0.5001 * scale.max()
        assert (np.abs(held[name].numpy()).max(1) == 127).all()


def test_what_is_sampled_is_likely_under_the_rounded_weights(tiny: Path) -> None:
    """Log-probabilities are those of a float model with the products, and not of the weights that were sent."""
    rounded, products, plain = engine(tiny, quantization="int8"), engine(tiny), engine(tiny)

    def dequantised() -> Iterator[tuple[str, Tensor]]:
        held = dict(rounded.named_weights())
        for name, _ in products.named_weights():
            scale = held.get(f"{name}_scale")
            yield name, held[name] if scale is None else held[name] * scale[:, None]

    products.load_weights(dequantised(), 0)

    def logprobs(generator) -> list[float]:  # type: ignore[no-untyped-def]
        params = SamplingParams(max_new_tokens=6, greedy=True, stop_token_ids=())
        (row,) = generator.generate([(7, 8, 9)], params, torch.Generator().manual_seed(0))
        return list(row.logprobs)

    assert logprobs(rounded) == pytest.approx(logprobs(products), abs=1e-5)
    assert abs(logprobs(rounded)[0] - logprobs(plain)[0]) > 1e-5


@pytest.mark.parametrize(
    "changes",
    [{"colocated": {"enabled": True}}, {"placement": "process"}, {"backend": "vllm"},
     {"delta_compression": {"enabled": True}}],
)  # fmt: skip
def test_where_weights_are_not_rounded_it_is_refused(changes: dict[str, object]) -> None:
    """By the name of the option."""
    with pytest.raises(ConfigError, match="quantization"):
        validate_config(GenerationConfig, {**PLAIN, **changes}, source="test")
