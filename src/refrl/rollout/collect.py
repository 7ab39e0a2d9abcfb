"""The rollouts of a step: one generation batch, or as many as fill it with groups that have a signal."""

from __future__ import annotations

from collections.abc import Sequence

from refrl.algorithms.filters import DynamicSampling
from refrl.config import GRPORunConfig
from refrl.rollout.sync import Rollouts, join_rollouts
from refrl.session import Session, TrainingError
from refrl.streams import random_stream
from refrl.tasks import Example

MAX_GENERATION_BATCHES = 10
"""Where the configuration names no other bound; NeMo RL's."""


def collect_rollouts(session: Session, config: GRPORunConfig, step: int) -> tuple[Rollouts, dict[str, float]]:
    """Sample and reward the rows of a step.

    Returns:
        The rollouts, and what dynamic sampling did to get them (nothing where it is off).

    Raises:
        TrainingError: dynamic sampling has not filled the step within its bound.
    """
    time, num_prompts = session.timer.time, config.grpo.num_prompts_per_step
    with time("data_processing"):
        prompts = session.prompts.draw(num_prompts)
    with time("prepare_for_generation/total"):
        session.policy.prepare_for_generation()
    if not config.grpo.use_dynamic_sampling:
        return _generate(session, config, prompts, step, "rollout"), {}
    bound = config.grpo.dynamic_sampling_max_gen_batches or MAX_GENERATION_BATCHES
    sampling = DynamicSampling(num_groups=num_prompts, max_generation_batches=bound)
    parts: list[Rollouts] = []
    full = False
    while not full:
        # The first batch of a step is sampled as it is without dynamic sampling.
        number = sampling.num_generation_batches
        purpose = f"rollout, batch {number}" if number else "rollout"
        rollouts = _generate(session, config, _unseen(session, sampling, prompts), step, purpose)
        samples = rollouts.samples()
        num_kept = len(sampling.kept)
        try:
            full = sampling.add(samples)
        except RuntimeError as error:
            raise TrainingError(f"step {step}: {error}") from error
        added = {id(sample) for sample in sampling.kept[num_kept:]}
        parts.append(rollouts.rows([row for row, sample in enumerate(samples) if id(sample) in added]))
        if not full:
            prompts = session.prompts.draw(num_prompts)
    return join_rollouts(parts), {
        "dynamic_sampling_num_gen_batches": float(sampling.num_generation_batches),
        "dynamic_sampling_num_dropped_groups": float(sampling.num_dropped_groups),
        "dynamic_sampling_num_discarded_valid_samples": float(sampling.num_discarded_valid_samples),
    }


def _unseen(session: Session, sampling: DynamicSampling, drawn: Sequence[Example]) -> list[Example]:
    """Return prompts that the step does not hold, each once: rows of one prompt are one group."""
    held = {sample.group_id for sample in sampling.kept}
    while True:
        fresh = {example.prompt_id: example for example in drawn if example.prompt_id not in held}
        if fresh:
            return list(fresh.values())
        drawn = session.prompts.draw(sampling.num_groups)


def _generate(
    session: Session, config: GRPORunConfig, prompts: Sequence[Example], step: int, purpose: str
) -> Rollouts:
    """Sample a group for each prompt, reward it, and take off the penalty on length."""
    examples = [prompt for prompt in prompts for _ in range(config.grpo.num_generations_per_prompt)]
    with session.timer.time("generation"):
        stream = random_stream(config.grpo.seed, purpose, step)
        completions = session.worker.sample(examples, session.sampling, stream)
    with session.timer.time("reward_calculation"):
        rollouts = session.worker.reward(examples, completions, session.verifier)
        return rollouts.penalised(config.grpo.reward_shaping, session.sampling.max_new_tokens)
