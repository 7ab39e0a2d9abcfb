"""Synchronous rollouts: every completion of a step is sampled before any is trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedTokenizerBase

from refrl.algorithms.batching import TrainSample
from refrl.config import ConfigError, RewardShapingConfig
from refrl.distributed import ALONE, World
from refrl.generation.base import Completion, MediaSampler, Sampler, SamplingParams
from refrl.generation.sampling import skip_rows
from refrl.models.tokenization import decode_completions
from refrl.rewards import Scores, join_scores, score_completions
from refrl.rewards.scoring import penalise_length
from refrl.rewards.verifiers import Verifier
from refrl.rollout.environments import Environment
from refrl.rollout.multi_turn import take_turns
from refrl.tasks import Example


class SharedGenerator:
    """A `refrl.generation.base.Sampler`; its completions equal those of a single process."""

    def __init__(self, generator: Sampler, world: World) -> None:
        """Share the work of a generator that every process has."""
        self._generator = generator
        self._world = world

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, generator: torch.Generator
    ) -> list[Completion]:
        """Sample this process's rows with their own random streams, and gather."""
        own = self._own(len(prompts), generator)
        return self._world.gather(self._generator.generate(prompts[own], params, generator))

    def _own(self, num_rows: int, generator: torch.Generator) -> slice:
        """Return this process's rows; `generator` continues with the stream of the first of them."""
        own = self._world.share(num_rows)
        skip_rows(own.start, generator)
        return own


class SharedMediaGenerator(SharedGenerator):
    """A `refrl.generation.base.MediaSampler`."""

    def __init__(self, generator: MediaSampler, world: World) -> None:
        """Share the work of a generator that every process has."""
        super().__init__(generator, world)
        self._media_generator = generator

    def generate_with_media(
        self,
        prompts: Sequence[Sequence[int]],
        media: Sequence[str | None],
        params: SamplingParams,
        generator: torch.Generator,
    ) -> list[Completion]:
        """Sample this process's rows, each with its image or sound, and gather."""
        own = self._own(len(prompts), generator)
        completions = self._media_generator.generate_with_media(prompts[own], media[own], params, generator)
        return self._world.gather(completions)


def shared(generator: Sampler, world: World) -> Sampler:
    """Return what samples for all processes; alone, the generator itself."""
    if world.size == 1:
        return generator
    if isinstance(generator, MediaSampler):
        return SharedMediaGenerator(generator, world)
    return SharedGenerator(generator, world)


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
        lens = [completion.num_sampled for completion in self.completions]
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
            **self._penalty_metrics(),
        }

    def _penalty_metrics(self) -> dict[str, float]:
        """Return the mean penalty, the share of rows that have one, and the mean reward before it."""
        penalties = self.scores.penalties
        if penalties is None:
            return {}
        num, total = len(penalties), sum(penalties)
        return {
            "length_penalty/mean": total / num,
            "length_penalty/pct_penalised": sum(penalty < 0 for penalty in penalties) / num,
            "length_penalty/reward_before": (sum(self.scores.rewards) - total) / num,
        }

    def samples(self) -> list[TrainSample]:
        """Return what training needs of each row: its own reward and the id of its prompt."""
        return [
            TrainSample(
                prompt_ids=completion.prompt_ids,
                completion_ids=completion.ids,
                sampling_logprobs=completion.logprobs,
                reward=reward,
                group_id=example.prompt_id,
                completion_mask=completion.mask,
                weight_version=completion.weight_version,
                kept_ids=completion.kept_ids,
                media=example.media,
            )
            for example, completion, reward in zip(
                self.examples, self.completions, self.scores.rewards, strict=True
            )
        ]

    def verified_samples(self) -> list[TrainSample]:
        """Return `samples` with the verifier's rewards, before any shaping: what filters look at."""
        return [
            replace(sample, reward=reward)
            for sample, reward in zip(self.samples(), self.scores.verified, strict=True)
        ]

    def penalised(self, config: RewardShapingConfig, max_new_tokens: int) -> Rollouts:
        """Return the rollouts with the penalty on length in their rewards; unchanged where it is switched off."""
        lens = [completion.num_sampled for completion in self.completions]
        return replace(self, scores=penalise_length(self.scores, lens, config, max_new_tokens))

    def rows(self, index: Sequence[int]) -> Rollouts:
        """Return the chosen rows in the order of `index`."""
        return Rollouts(
            examples=[self.examples[row] for row in index],
            completions=[self.completions[row] for row in index],
            texts=[self.texts[row] for row in index],
            scores=self.scores.rows(index),
        )


def join_rollouts(parts: Sequence[Rollouts]) -> Rollouts:
    """Return the rows of several rollouts as one."""
    return Rollouts(
        examples=[example for part in parts for example in part.examples],
        completions=[completion for part in parts for completion in part.completions],
        texts=[text for part in parts for text in part.texts],
        scores=join_scores([part.scores for part in parts]),
    )


@dataclass(frozen=True)
class RolloutWorker:
    """Samples completions of examples and rewards them."""

    generator: Sampler
    tokenizer: PreTrainedTokenizerBase
    prompt_ids: Callable[[Sequence[Example]], list[tuple[int, ...]]]
    """Gives the tokens of each example's prompt."""
    world: World = ALONE
    """The processes that share the work of the verifier."""
    environment: Environment | None = None
    """Answers between turns; None: a completion is one turn."""

    def sample(
        self, examples: Sequence[Example], params: SamplingParams, stream: torch.Generator
    ) -> list[Completion]:
        """Sample one completion per example; repeat an example for a group.

        Raises:
            ConfigError: a prompt has an image or a sound, and what samples takes none.
        """
        prompts = self.prompt_ids(examples)
        media = [example.media for example in examples]
        if any(media):
            if self.environment is not None or not isinstance(self.generator, MediaSampler):
                raise ConfigError(
                    "data.task has images or sounds, which only the torch engine within the training processes takes, "
                    "in one turn: set policy.generation.backend=torch, placement=inline, and leave data.environment "
                    "and grpo.async_grpo out"
                )
            try:
                return self.generator.generate_with_media(prompts, media, params, stream)
            except (TypeError, ValueError, RuntimeError) as error:
                reason = " ".join(str(error).split())
                raise ConfigError(
                    f"data.task: the model does not take its images or sounds ({reason}); use a model for images or "
                    "sounds, and set data.task_args.num_features to the features that it makes of one"
                ) from error
        if self.environment is None:
            return self.generator.generate(prompts, params, stream)
        return take_turns(self.generator, self.environment, self.tokenizer, prompts, params, stream)

    def reward(
        self, examples: Sequence[Example], completions: Sequence[Completion], verifier: Verifier
    ) -> Rollouts:
        """Decode and reward completions, each against the answer of its own example.

        Each process judges its own rows: what a verifier says may depend on time, and all must train on one reward.
        """
        texts = decode_completions(self.tokenizer, [completion.last_turn for completion in completions])
        own = self.world.share(len(texts))
        answers = [example.answer for example in examples[own]]
        scores = score_completions(texts[own], answers, verifier, first_row=own.start)
        return Rollouts(examples, completions, texts, join_scores(self.world.gather([scores])))
