"""Small models of each family that is converted, with more than ten layers and experts where names are sorted."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.unit.refrl.policy.megatron.rows import ragged_rows
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig

from refrl.algorithms.batching import Batch
from refrl.config import PolicyConfig, validate_config
from refrl.models.tokenization import make_byte_tokenizer
from refrl.policy.base import Policy
from refrl.training.build import build_policy

pytest.importorskip(
    "megatron.core", reason="Megatron-core is not installed: pip install 'seatrial[megatron]'"
)

SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 259,
    "initializer_range": 0.1,
    "max_position_embeddings": 128,
    "pad_token_id": 194,  # rows of `ragged_rows` have it among their tokens: its embedding is not trained
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
EXPERTS = {"head_dim": 24, "moe_intermediate_size": 20, "num_experts": 12, "num_experts_per_tok": 3}
CONFIGS = {
    "llama": LlamaConfig(**SHAPE, num_hidden_layers=11, rope_parameters=LLAMA3_ROPE),
    "qwen2": Qwen2Config(**SHAPE, num_hidden_layers=2, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SHAPE, num_hidden_layers=2, head_dim=24),
    "qwen3_moe": Qwen3MoeConfig(
        **SHAPE, **EXPERTS, num_hidden_layers=11, norm_topk_prob=True, mlp_only_layers=[1]
    ),
    "qwen3_moe_before": Qwen3MoeConfig(**SHAPE, **EXPERTS, num_hidden_layers=2, norm_topk_prob=False),
}
"""`before`: a token's experts are weighted by a softmax over all experts, which is not scaled to 1 again."""

MakePolicy = Callable[..., Policy]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the directory of a model of each family; no weight is 0 or 1, norms and biases included."""
    folder = tmp_path_factory.mktemp("families")
    for name, config in CONFIGS.items():
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            if parameter.ndim == 1:
                torch.nn.init.normal_(parameter, 1.0, 0.1)
        model.save_pretrained(folder / name)
        make_byte_tokenizer().save_pretrained(folder / name)
    return {name: folder / name for name in CONFIGS}


@pytest.fixture
def make_policy(models: dict[str, Path]) -> MakePolicy:
    """Return a function that makes a policy of a family on a backend; keywords replace values of `policy.*`."""
    if torch.cuda.is_available():
        pytest.skip("Megatron-core takes the CUDA device that is here: tests/gpu/test_megatron_gpu.py")

    def make(family: str, backend: str, *, with_reference: bool = False, **changes: object) -> Policy:
        values = {
            "model_name": str(models[family]),
            "train_global_batch_size": 6,
            "train_micro_batch_size": 2,
            "logprob_batch_size": 4,
            "max_total_sequence_length": 32,
            # A larger epsilon than usual: Adam divides gradients that are rounding alone to the size of the others.
            "optimizer": {"lr": 1e-3, "eps": 1e-4, "weight_decay": 0.1},
            **({"megatron_cfg": {"enabled": True}} if backend == "megatron" else {}),
            **changes,
        }
        return build_policy(
            validate_config(PolicyConfig, values, source="test"),
            make_byte_tokenizer(),
            device=torch.device("cpu"),
            num_updates=10,
            with_reference=with_reference,
        )

    return make


@pytest.fixture
def batch() -> Batch:
    """Return six rows of unequal length."""
    return ragged_rows()
