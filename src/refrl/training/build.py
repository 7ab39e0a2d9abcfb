"""Builds the parts of a run from its configuration, one function a part.

The loops and their tests both get their parts here, so what is tested is what runs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    ConfigError,
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
from refrl.policy.backends import PolicyRequest, make_policy
from refrl.policy.base import LossFunction, Policy
from refrl.policy.hf import HFPolicy
from refrl.policy.optimizer import ClippedAdamW
from refrl.policy.scoring import make_scoring
from refrl.rewards import make_verifier, make_weighted_verifier
from refrl.rewards.verifiers import Verifier
from refrl.tasks import Example, PromptSource, Splits, default_verifier, longest_prompts, make_splits


@dataclass(frozen=True)
class PromptIds:
    """Encodes the prompts of examples; nothing is cached, so a file of any size may be trained on."""

    encoder: PromptEncoder
    policy: Policy
    config: PolicyConfig

    def __post_init__(self) -> None:
        """Raise a ConfigError if the longest sequence exceeds the model's positions."""
        limit, positions = self.config.max_total_sequence_length, self.policy.max_positions
        if positions is not None and limit > positions:
            raise ConfigError(
                f"policy.max_total_sequence_length={limit} is more than the {positions} positions of "
                f"{self.config.model_name}"
            )

    def __call__(self, examples: Sequence[Example]) -> list[tuple[int, ...]]:
        """Return the ids of each example's prompt; a repeated prompt is encoded once.

        Raises:
            ConfigError: a prompt has an id that is not in the vocabulary, or is too long for a completion to follow.
        """
        texts = {example.prompt_id: example.prompt for example in examples}
        ids = dict(zip(texts, self.encoder.prompts(list(texts.values())), strict=True))
        self._check(list(ids.values()))
        return [ids[example.prompt_id] for example in examples]

    def _check(self, prompts: Sequence[Sequence[int]]) -> None:
        config, num_known = self.config, self.policy.vocab_size
        largest = max(max(prompt) for prompt in prompts)
        if largest >= num_known:
            raise ConfigError(
                f"the tokenizer produces id {largest}, and the model in {config.model_name} has {num_known} ids: they "
                "do not belong together; set policy.tokenizer.name to the model's own"
            )
        longest = max(map(len, prompts))
        new_tokens = config.generation.max_new_tokens
        if longest + new_tokens > config.max_total_sequence_length:
            raise ConfigError(
                f"the longest prompt has {longest} tokens and policy.generation.max_new_tokens={new_tokens}, together "
                f"more than policy.max_total_sequence_length={config.max_total_sequence_length}"
            )


Advantages = Callable[[Tensor, Tensor], Tensor]
"""(rewards_B, group_ids_B) -> advantages_B."""


def build_rewards(config: DataConfig) -> Verifier:
    """Return the verifier, or the weighted mean of several verifiers.

    Raises:
        ConfigError: a verifier is unknown.
    """
    if config.verifiers is not None:
        return make_weighted_verifier(config.verifiers)
    return make_verifier(config.verifier or default_verifier(config))


def verifier_name(config: DataConfig) -> str | None:
    """Return the name of the effective verifier; None for a weighted mean of several."""
    return None if config.verifiers is not None else config.verifier or default_verifier(config)


def build_splits(config: DataConfig) -> Splits:
    """Return the training prompts and the held-out prompts.

    Raises:
        ConfigError: the data cannot be loaded as configured.
    """
    return make_splits(config)


def build_prompts(config: DataConfig, splits: Splits, *, seed: int) -> PromptSource:
    """Return the source of training prompts, in the order that the loop's seed gives."""
    return PromptSource(splits.train, seed=seed, shuffle=config.shuffle)


def build_tokenizer(config: PolicyConfig) -> PreTrainedTokenizerBase:
    """Return the tokenizer from its own directory, or from the model's.

    Raises:
        ConfigError: the model does not exist, or the tokenizer cannot be loaded.
    """
    check_model_directory(Path(config.model_name))
    return load_tokenizer(Path(config.tokenizer.name or config.model_name))


def build_encoder(
    config: PolicyConfig, data: DataConfig, tokenizer: PreTrainedTokenizerBase
) -> PromptEncoder:
    """Return the encoder that turns prompts and answers into ids.

    Raises:
        ConfigError: a chat template is configured but the tokenizer has none.
    """
    return PromptEncoder(
        tokenizer,
        chat_template=config.tokenizer.chat_template,
        system_prompt=data.system_prompt,
        media_token_id=media_token_id(Path(config.model_name)),
    )


def build_device(config: ClusterConfig, seed: int) -> torch.device:
    """Set the thread count and the global seed (nothing should draw from it); return the device of this process.

    Raises:
        ConfigError: CUDA is configured but missing, or there are too few devices.
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
    """Return the policy on its device and in its precision, with a frozen reference if `with_reference`.

    Args:
        config: model directory, batch sizes, layout, precision, optimizer, sampling temperature.
        tokenizer: exported with the model.
        device: where the model computes.
        num_updates: optimizer steps of the whole run, for the learning-rate schedule.
        with_reference: keep a frozen copy of the initial model.
        world: the processes that share the rows of a batch.
        temperature: of the distribution that rows are scored under; None takes the sampling temperature.

    Raises:
        ConfigError: the model cannot be loaded, scored, checkpointed or distributed as configured.
    """
    if config.backend != "hf":
        return make_policy(
            PolicyRequest(
                config=config,
                tokenizer=tokenizer,
                device=device,
                num_updates=num_updates,
                with_reference=with_reference,
                world=world,
                temperature=temperature or config.generation.temperature,
            )
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
    """Return the sampling parameters; completions end at the configured ids, or all end ids of model and tokenizer."""
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
    """Return the prompt encoder; it checks the longest prompts of each split now and the others when they are drawn.

    Raises:
        ConfigError: a prompt does not fit the model or `max_total_sequence_length`.
    """
    prompt_ids = PromptIds(encoder, policy, config)
    for examples in splits:
        prompt_ids(longest_prompts(examples))
    return prompt_ids


def build_batch(samples: Sequence[TrainSample], config: PolicyConfig, *, pad_token_id: int) -> Batch:
    """Pad samples into a batch whose width the configuration allows.

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
    """Return the function that turns rewards into advantages."""

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
