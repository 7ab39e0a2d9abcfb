"""What every generation engine offers: prompts in, sampled completions with their log-probabilities out.

Shapes: P prompts, B rows, T new tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch

from refrl.weight_sync.base import WeightReceiver

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class SamplingParams:
    """How completions are drawn. The order is temperature, then top-k, then top-p."""

    max_new_tokens: int
    """Most tokens of a completion, the end token included."""
    temperature: float = 1.0
    """Logits are divided by it; positive. For the most likely token use `greedy`."""
    top_p: float = 1.0
    """Keep the fewest most likely tokens whose probabilities sum to at least this; at least one is kept."""
    top_k: int | None = None
    """Keep the k most likely tokens and all that tie with the k-th; None or more than V keeps all."""
    stop_token_ids: tuple[int, ...] | None = None
    """Ids that end a completion; None takes all end-of-sequence ids of the model, () never stops early."""
    greedy: bool = False
    """Take the most likely token (the lowest id of a tie), for evaluation."""

    def __post_init__(self) -> None:
        """Refuse values outside their range.

        Raises:
            ValueError: names the field, the value and the range.
        """
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={self.max_new_tokens} must be at least 1")
        if not 0 < self.temperature < float("inf"):
            raise ValueError(
                f"temperature={self.temperature} must be positive and finite; greedy=True takes the top token"
            )
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} must be in (0, 1]")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k={self.top_k} must be at least 1, or None to keep every token")


@dataclass(frozen=True)
class Completion:
    """One sampled continuation of one prompt."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    """Sampled ids, a sampled end token included."""
    logprobs: tuple[float, ...]
    """Natural log-probability of each id, in float32, under the distribution it was sampled from (temperature
    and filters applied). With `greedy`, under the distribution that would have been sampled from."""
    finish_reason: FinishReason
    """`stop`: the last id is a stop id. `length`: the token limit was reached first. `abort`: the engine was aborted
    before either; `refrl.generation.pooled` continues such completions and returns none."""
    kept_ids: tuple[tuple[int, ...], ...] | None = None
    """Ids, ascending, that top-p and top-k kept at each token: the support of the distribution it was sampled from.
    None: no filter was on, or `greedy`."""
    weight_version: int = 0
    """Optimizer steps that the weights it was sampled with had seen when its first token was sampled."""
    version_segments: tuple[tuple[int, int], ...] = ()
    """Where weights changed while it was sampled: (first token, version) of each segment, the first one included.
    Empty: every token is of `weight_version`."""
    mask: tuple[int, ...] | None = None
    """1 on sampled tokens, 0 on those that an environment wrote between turns (log-probability 0); None: all were
    sampled."""

    @property
    def num_sampled(self) -> int:
        """Tokens that were sampled."""
        return len(self.ids) if self.mask is None else sum(self.mask)

    @property
    def last_turn(self) -> tuple[int, ...]:
        """Ids sampled after the environment's last words: what is judged."""
        if self.mask is None or 0 not in self.mask:
            return self.ids
        return self.ids[len(self.mask) - self.mask[::-1].index(0) :]


class Sampler(Protocol):
    """Prompts in, completions out."""

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, generator: torch.Generator
    ) -> list[Completion]:
        """Sample one completion per prompt, in the order of the prompts.

        Equal prompts get independent samples: repeat a prompt G times for a group of G completions. Each row
        has a random stream of its own, seeded from `generator` by its position.

        Raises:
            ValueError: a prompt is empty or holds an id outside the vocabulary.
            refrl.config.ConfigError: a prompt is too long for a completion to follow.
        """
        ...


@runtime_checkable
class MediaSampler(Sampler, Protocol):
    """A sampler whose prompts may hold an image or a sound."""

    def generate_with_media(
        self,
        prompts: Sequence[Sequence[int]],
        media: Sequence[str | None],
        params: SamplingParams,
        generator: torch.Generator,
    ) -> list[Completion]:
        """Sample as `Sampler.generate` does, with the image or sound of each prompt (`refrl.media`)."""
        ...


class Generator(Sampler, WeightReceiver, Protocol):
    """A generation engine. It takes weights by name, whole (`refrl.weight_sync.base.WeightTarget`) or in parts."""

    @property
    def engine(self) -> str:
        """The library that samples, and its version, read where it runs: `torch 2.13.0`."""
        ...

    def abort(self) -> None:
        """Give up, after its next token, what another thread lets it generate, until `resume`."""
        ...

    def resume(self) -> None:
        """Generate to the end again."""
        ...

    def stop_ids(self) -> frozenset[int]:
        """Return the end-of-sequence ids of its model."""
        ...

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every parameter and buffer that it samples with, by name."""
        ...

    def share_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Sample with these very tensors from now on."""
        ...

    def load_weights(self, weights: Iterator[tuple[str, torch.Tensor]], version: int) -> None:
        """Copy the weights into its own."""
        ...

    def close(self) -> None:
        """Give back what it holds outside this process; it samples no more."""
        ...
