"""From configuration to the parts of a run, one function a part.

The loops get their parts here, and so does whoever tests them: what is tested is what runs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from refrl.algorithms.advantages import compute_advantages
from refrl.algorithms.batching import Batch, TrainSample, make_batch
from refrl.algorithms.losses import policy_loss
from refrl.config import (
    AdvantageConfig,
    ClusterConfig,
    DataConfig,
    GenerationConfig,
    LossConfig,
    PolicyConfig,
)
from refrl.distributed import ALONE, World, local_device
from refrl.generation.base import Generator, SamplingParams
from refrl.models.loading import check_model_directory, load_model, media_token_id
from refrl.models.prompts import PromptEncoder
from refrl.models.tokenization import load_tokenizer
from refrl.policy.activations import compile_layers
from refrl.policy.adapter_files import make_adapters
from refrl.policy.auxiliaries import make_auxiliary
from refrl.policy.backends import policy_maker
from refrl.policy.base import LossFunction, Policy
from refrl.policy.hf import HFPolicy
from refrl.policy.optimizer import ClippedAdamW
from refrl.policy.scoring import make_scoring
from refrl.rewards import make_verifier, make_weighted_verifier
from refrl.rewards.verifiers import Verifier
from refrl.tasks import Example, PromptSource, Splits, default_verifier, longest_prompts, make_splits
from refrl.training.prompt_ids import PromptIds

Advantages = Callable[[Tensor, Tensor], Tensor]
"""(rewards_B, group_ids_B) -> advantages_B."""


def build_rewards(config: DataConfig) -> Verifier:
    """Return the verifier, or the weighted mean of several.

    Raises:
        ConfigError: one is unknown.
    """
    if config.verifiers is not None:
        return make_weighted_verifier(config.verifiers)
    return make_verifier(config.verifier or default_verifier(config))


def verifier_name(config: DataConfig) -> str | None:
    """Return the name of the verifier in force; None for a mean of several."""
    return None if config.verifiers is not None else config.verifier or default_verifier(config)


def build_splits(config: DataConfig) -> Splits:
    """Return the prompts to train on and those held out.

    Raises:
        ConfigError: the data cannot be had as configured.
    """
    return make_splits(config)


def build_prompts(config: DataConfig, splits: Splits, *, seed: int) -> PromptSource:
    """Return what serves training prompts, in the order that the loop's seed gives."""
    return PromptSource(splits.train, seed=seed, shuffle=config.shuffle)


def build_tokenizer(config: PolicyConfig) -> PreTrainedTokenizerBase:
    """Return the tokenizer: its own directory's, or the model's.

    Raises:
        ConfigError: there is no model, or the tokenizer cannot be loaded.
    """
    check_model_directory(Path(config.model_name))
    return load_tokenizer(Path(config.tokenizer.name or config.model_name))


def build_encoder(
    config: PolicyConfig, data: DataConfig, tokenizer: PreTrainedTokenizerBase
) -> PromptEncoder:
    """Return what makes ids of prompts and answers.

    Raises:
        ConfigError: there is no chat template where one is asked for.
    """
    return PromptEncoder(
        tokenizer,
        chat_template=config.tokenizer.chat_template,
        system_prompt=data.system_prompt,
        media_token_id=media_token_id(Path(config.model_name)),
    )


def build_device(config: ClusterConfig, seed: int) -> torch.device:
    """Set threads and the global seed (nothing should draw from it), and return the device of this process.

    Raises:
        ConfigError: CUDA is asked for and there is none, or not enough of it.
    """
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    torch.manual_seed(seed)
    return local_device(config)


def build_optimizer(model: nn.Module, config: PolicyConfig, *, num_updates: int) -> ClippedAdamW:
    """Return the optimizer of a model's trainable weights; build it before the model is cast to its precision."""
    return ClippedAdamW(model, config, num_updates)


def build_policy(
    config: PolicyConfig,
    tokenizer: PreTrainedTokenizerBase,
    *,
    device: torch.device,
    num_updates: int,
    with_reference: bool,
    world: World = ALONE,
    temperature: float | None = None,
) -> Policy:
    """Return the policy on its device and in its precision, with a frozen copy of itself where one is asked for.

    Args:
        config: the model's directory, batch sizes and form, precision, optimizer, temperature of sampling.
        tokenizer: exported beside the model.
        device: where everything is computed.
        num_updates: optimizer steps of the whole run, for the schedule.
        with_reference: keep a frozen copy of the model as it is now.
        world: the processes that share the rows of a batch.
        temperature: of the distribution that rows are scored under; None is that of sampling.

    Raises:
        ConfigError: the model cannot be loaded, scored, checkpointed or spread, as the configuration asks.
    """
    if config.backend != "hf":
        return policy_maker(config.backend)(
            config,
            tokenizer,
            device=device,
            num_updates=num_updates,
            with_reference=with_reference,
            world=world,
            temperature=temperature or config.generation.temperature,
        )
    model = load_model(Path(config.model_name)).eval()
    model.to(device=device)
    adapters = make_adapters(model, config.lora_cfg)
    optimizer = build_optimizer(model, config, num_updates=num_updates)
    model.to(dtype=getattr(torch, config.precision))
    reference = None
    if with_reference:
        reference = model if adapters else copy.deepcopy(model).requires_grad_(False)
    if config.compile_layers:
        compile_layers(model)
    return HFPolicy(
        model,
        tokenizer,
        scoring=make_scoring(config, model, temperature or config.generation.temperature),
        optimizer=optimizer,
        reference=reference,
        global_batch_size=config.train_global_batch_size,
        world=world,
        adapters=adapters,
        auxiliary=make_auxiliary(
            config, model, num_updates=num_updates, temperature=temperature or config.generation.temperature
        ),
    )


def build_sampling(config: GenerationConfig, generator: Generator, encoder: PromptEncoder) -> SamplingParams:
    """Return how completions are drawn; they end at the ids named, or at every end id of model and tokenizer."""
    stop_token_ids = config.stop_token_ids
    if stop_token_ids is None:
        stop_token_ids = tuple(sorted(generator.stop_ids() | {encoder.end_token_id()}))
    return SamplingParams(
        max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        stop_token_ids=stop_token_ids,
    )


def build_prompt_ids(
    encoder: PromptEncoder, policy: Policy, config: PolicyConfig, splits: Sequence[Sequence[Example]]
) -> PromptIds:
    """Return what encodes prompts; the longest of each split are tried now, and the others when they are drawn.

    Raises:
        ConfigError: they do not fit the model, or the longest sequence.
    """
    prompt_ids = PromptIds(encoder, policy, config)
    for examples in splits:
        prompt_ids(longest_prompts(examples))
    return prompt_ids


def build_batch(samples: Sequence[TrainSample], config: PolicyConfig, *, pad_token_id: int) -> Batch:
    """Pad samples into a batch of the widths that the configuration allows.

    Raises:
        ValueError: as `refrl.algorithms.batching.make_batch`.
    """
    return make_batch(
        samples,
        pad_token_id=pad_token_id,
        sequence_buckets=config.sequence_length_buckets,
        max_sequence_length=config.max_total_sequence_length,
    )


def build_advantages(config: AdvantageConfig) -> Advantages:
    """Return what makes advantages of rewards."""

    def advantages(rewards_B: Tensor, group_ids_B: Tensor) -> Tensor:
        return compute_advantages(rewards_B, group_ids_B, config)

    return advantages


def build_loss(config: LossConfig) -> LossFunction:
    """Return the policy loss."""

    def loss(
        logprobs_BT: Tensor,
        entropy_BT: Tensor,
        batch: Batch,
        *,
        global_valid_tokens: Tensor,
        global_valid_seqs: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return policy_loss(
            logprobs_BT,
            batch,
            config,
            global_valid_tokens=global_valid_tokens,
            global_valid_seqs=global_valid_seqs,
            entropy_BT=entropy_BT,
        )

    return loss
