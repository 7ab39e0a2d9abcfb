"""Checks that bounds of the configuration hold where they are reached: generation batches of a step, and turns.

Whether a run reaches them depends on what its policy samples, so made groups and a made conversation do.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from refrl.algorithms.batching import TrainSample
from refrl.algorithms.filters import DynamicSampling
from refrl.config import GRPORunConfig
from refrl.generation.base import Completion, SamplingParams
from refrl.rollout.collect import MAX_GENERATION_BATCHES
from refrl.rollout.multi_turn import take_turns
from refrl.training.session import Session
from seatrial.guards import Guards
from seatrial.targets.reference.guards.base import RunConfig, check

TOKENS = 16
"""Most tokens of a turn with the answer to it."""


def check_bounds(session: Session, config: RunConfig, guards: Guards) -> None:
    """Check each bound that the run's options make effective."""
    if not isinstance(config, GRPORunConfig):
        return
    if config.grpo.use_dynamic_sampling:
        bound = config.grpo.dynamic_sampling_max_gen_batches or MAX_GENERATION_BATCHES
        number = batches_without_spread(config.grpo.num_prompts_per_step, bound)
        wrong = "" if number == bound else f"{number} batches are sampled, {bound} are configured at most"
        check(guards, "generation batches within their bound", wrong, number=bound)
    environment = session.worker.environment
    if environment is not None:
        number, bound = turns_of_a_conversation(session, environment.max_turns), environment.max_turns
        wrong = "" if number == bound else f"a conversation has {number} turns, its bound is {bound}"
        check(guards, "turns within their bound", wrong, number=bound)


def batches_without_spread(num_groups: int, bound: int) -> int:
    """Return after how many generation batches dynamic sampling ends where no rewards differ; one more at most."""
    sampling = DynamicSampling(num_groups=num_groups, max_generation_batches=bound)
    samples = [
        TrainSample((1,), (2,), (-1.0,), reward=0.0, group_id=group)
        for group in range(num_groups)
        for _ in range(2)
    ]
    for number in range(1, bound + 1):
        try:
            sampling.add(samples)
        except RuntimeError:
            return number
    return bound + 1


def turns_of_a_conversation(session: Session, max_turns: int) -> int:
    """Return the turns of a conversation whose every turn the environment answers, until such a bound."""
    sampler = _Caller()
    params = SamplingParams(max_new_tokens=TOKENS * (max_turns + 1))
    take_turns(
        sampler, _Answers(max_turns), session.tokenizer, [(1,)], params, torch.Generator().manual_seed(0)
    )
    return sampler.num_turns


class _Answers:
    """Answers every turn."""

    def __init__(self, max_turns: int) -> None:
        self.max_turns = max_turns

    def respond(self, turns: Sequence[str]) -> str | None:
        """Return some words."""
        return "yes"


class _Caller:
    """Samples one token a turn, and counts the turns."""

    def __init__(self) -> None:
        self.num_turns = 0

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, generator: torch.Generator
    ) -> list[Completion]:
        """Return a completion of one token that ended by itself."""
        self.num_turns += 1
        return [Completion(tuple(prompt), (2,), (-1.0,), "stop") for prompt in prompts]
