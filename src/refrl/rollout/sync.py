"""Synchronous rollouts: every completion of a step is sampled before any is trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from refrl.generation.base import Completion, Generator, SamplingParams
from refrl.rewards import Scores, score_completions
from refrl.rewards.verifiers import Verifier
from refrl.tasks import Example
from refrl.tokenization import decode_completions


@dataclass(frozen=True)
class Rollouts:
    """Completions with their texts and rewards; row b of each belongs to example b."""

    examples: Sequence[Example]
    completions: Sequence[Completion]
    texts: Sequence[str]
    scores: Scores

    def metrics(self) -> dict[str, float]:
        """Return reward, lengths and how completions ended, under NeMo RL's names."""
        num = len(self.completions)
        prompt_lens = [len(completion.prompt_ids) for completion in self.completions]
        lens = [len(completion.ids) for completion in self.completions]
        truncated = sum(completion.finish_reason == "length" for completion in self.completions)
        return {
            "reward": sum(self.scores.rewards) / num,
            "mean_prompt_length": sum(prompt_lens) / num,
            "mean_gen_tokens_per_sample": sum(lens) / num,
            "max_gen_tokens_per_sample": float(max(lens)),
            "mean_total_tokens_per_sample": (sum(prompt_lens) + sum(lens)) / num,
            "total_num_tokens": float(sum(prompt_lens) + sum(lens)),
            "truncation_rate": truncated / num,
            "natural_termination_rate": (num - truncated) / num,
            "num_verifier_errors": float(self.scores.num_errors),
        }


@dataclass(frozen=True)
class RolloutWorker:
    """Samples completions of examples and rewards them."""

    generator: Generator
    tokenizer: PreTrainedTokenizerBase
    prompt_ids: Mapping[int, tuple[int, ...]]
    """Tokens of each prompt by `Example.prompt_id`."""

    def sample(
        self, examples: Sequence[Example], params: SamplingParams, stream: torch.Generator
    ) -> list[Completion]:
        """Sample one completion per example; repeat an example for a group."""
        return self.generator.generate(
            [self.prompt_ids[example.prompt_id] for example in examples], params, stream
        )

    def reward(
        self, examples: Sequence[Example], completions: Sequence[Completion], verifier: Verifier
    ) -> Rollouts:
        """Decode and reward completions, each against the answer of its own example."""
        texts = decode_completions(self.tokenizer, [completion.ids for completion in completions])
        scores = score_completions(texts, [example.answer for example in examples], verifier)
        return Rollouts(examples, completions, texts, scores)
