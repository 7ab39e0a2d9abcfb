"""Ids of prompts, encoded when a prompt is drawn and checked against the model's and the configuration's limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from refrl.config import ConfigError, PolicyConfig
from refrl.models.prompts import PromptEncoder
from refrl.policy.base import Policy
from refrl.tasks import Example


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
