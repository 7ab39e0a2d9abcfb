"""Cells of the table of syncs (docs/evidence/weight_sync.md): a kind of model, an engine, whole syncs or changes alone.

A policy is trained; after every update its weights are synced, and what the engine then has, and says of what it
samples, is held against the policy. Imported where vLLM is, too: refrl and Hugging Face alone are needed.
"""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3Config, Qwen3MoeConfig

from refrl.algorithms.batching import Batch, TrainSample
from refrl.config import GRPORunConfig, validate_config
from refrl.generation.base import Completion, Generator, SamplingParams
from refrl.models.tokenization import make_byte_tokenizer
from refrl.policy.base import Policy
from refrl.timing import Timer
from refrl.training import build
from refrl.training.build_generation import build_generator
from refrl.weight_sync.tensors import fingerprint
from refrl.weight_sync.transferred import TransferredWeights

CPU = torch.device("cpu")
BOUND = 1e-5
"""Nats, in float32, between the engine's log-probability of what it sampled and the policy's."""
SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 2,
    "vocab_size": 259,
    "max_position_embeddings": 128,
    "initializer_range": 0.1,
}
CONFIGS = {
    "dense": Qwen3Config(**SHAPE, head_dim=32, tie_word_embeddings=False),
    "tied": Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "moe": Qwen3MoeConfig(
        **SHAPE, head_dim=32, num_experts=12, num_experts_per_tok=3, moe_intermediate_size=32
    ),
}
LORA: dict[str, Any] = {"enabled": True, "dim": 4, "alpha": 8}
KINDS = ("dense", "tied", "moe", "lora")
PROMPTS = [[65, 66, 67], [68], [65, 66, 67], list(range(30))]
SAMPLING = SamplingParams(max_new_tokens=6, temperature=0.7, stop_token_ids=())


@dataclass(frozen=True)
class Held:
    """What was seen of a cell."""

    num_syncs: int
    num_tensors: int
    """Whose bits were equal on both sides after every sync."""
    worst: float
    """Largest difference of a log-probability, in nats."""


def write_models(folder: Path) -> Mapping[str, Path]:
    """Make a model of each kind that has files of its own."""
    for name, shape in CONFIGS.items():
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(shape)
        for parameter in model.parameters():
            if parameter.ndim == 1:
                torch.nn.init.normal_(parameter, 1.0, 0.1)
        model.save_pretrained(folder / name)
        make_byte_tokenizer().save_pretrained(folder / name)
    return {name: folder / name for name in CONFIGS}


def hold(directory: Path, kind: str, generation: Mapping[str, Any], *, num_syncs: int) -> Held:
    """Train, sync and compare so many times.

    Args:
        directory: of the model.
        kind: one of `KINDS`.
        generation: `policy.generation.*`: the engine, and how weights travel.
        num_syncs: after each of which everything is compared.
    """
    config = _configuration(directory, kind, generation)
    tokenizer = make_byte_tokenizer()
    policy = build.build_policy(
        config.policy, tokenizer, device=CPU, num_updates=num_syncs + 1, with_reference=False
    )
    with closing(build_generator(config.policy, tokenizer, device=CPU)) as generator:
        sync = TransferredWeights(
            policy,
            generator,
            bucket_bytes=5000,
            delta=config.policy.generation.delta_compression,
            timer=Timer(),
        )
        loss = build.build_loss(config.loss_fn)
        stream = torch.Generator().manual_seed(0)
        found: dict[str, str] = {}
        worst = 0.0
        for number in range(num_syncs):
            rows = generator.generate(PROMPTS, SAMPLING, stream)
            before = found
            policy.train(_batch(rows, policy, config), loss)
            sync.sync()
            found = _equal_tensors(policy, generator)
            assert found != before, f"update {number} moved nothing"
            assert generator.weight_version == policy.version == number + 1
            worst = max(worst, _worst(generator.generate(PROMPTS, SAMPLING, stream), policy, config))
            assert worst <= BOUND, f"sync {number}: {worst} nats"
    return Held(num_syncs, len(found), worst)


def _configuration(directory: Path, kind: str, generation: Mapping[str, Any]) -> GRPORunConfig:
    values = {
        "policy": {
            "model_name": str(directory),
            "train_global_batch_size": len(PROMPTS),
            "train_micro_batch_size": len(PROMPTS),
            "max_total_sequence_length": 64,
            "optimizer": {"lr": 1e-2},
            "generation": {
                "colocated": {"enabled": False},
                "temperature": SAMPLING.temperature,
                "timeout_seconds": 300,
                **generation,
            },
            **({"lora_cfg": LORA} if kind == "lora" else {}),
        },
        "grpo": {"num_prompts_per_step": 2, "num_generations_per_prompt": 2, "max_num_steps": 1},
        "loss_fn": {"reference_policy_kl_penalty": 0.0},
        "data": {"task": "reverse"},
        "logger": {"log_dir": "unused"},
        "checkpointing": {"checkpoint_dir": "unused"},
    }
    return validate_config(GRPORunConfig, values, source="test")


def _equal_tensors(policy: Policy, generator: Generator) -> dict[str, str]:
    """Return the fingerprints of the engine's tensors, read back, which are the policy's."""
    trained = {name: fingerprint(tensor) for name, tensor in policy.named_weights()}
    served = {name: fingerprint(tensor) for name, tensor in generator.named_weights()}
    assert served == trained
    return served


def _worst(rows: list[Completion], policy: Policy, config: GRPORunConfig) -> float:
    scored_BT = policy.logprobs(_batch(rows, policy, config, scores=False))
    said_BT = torch.tensor([row.logprobs for row in rows])
    return float((scored_BT - said_BT).abs().max())


def _batch(rows: list[Completion], policy: Policy, config: GRPORunConfig, *, scores: bool = True) -> Batch:
    samples = [
        TrainSample(
            prompt_ids=row.prompt_ids,
            completion_ids=row.ids,
            sampling_logprobs=row.logprobs,
            reward=float(number % 2),
            group_id=number // 2,
            advantage=1.0 - 2.0 * (number % 2),
        )
        for number, row in enumerate(rows)
    ]
    batch = build.build_batch(samples, config.policy, pad_token_id=0)
    if scores:
        old_BT: Tensor = policy.logprobs(batch)
        batch.old_logprobs_BT = old_BT
    return batch
