"""The rows of a step of refrl held to what was sampled for it: ids, prompts, groups, age, each sample once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from refrl.config import GRPORunConfig
from refrl.generation.base import Completion
from refrl.media import stack
from refrl.rollout.sync import Rollouts
from refrl.tasks import Example
from refrl.training.observed import TrainedStep
from refrl.training.session import Session
from seatrial.guards import Guards
from seatrial.targets.reference.guards.computed import is_looked_at


def hold_rows(session: Session, step: TrainedStep, config: GRPORunConfig, guards: Guards) -> None:
    """Rows that train are those that were sampled, of the prompts as they are encoded, and a group is of one prompt."""
    completions, batch = step.rollouts.completions, step.batch
    if is_looked_at(step.step):
        places = _first_rows(step.rollouts.examples)
        asked = session.encoder.prompts([step.rollouts.examples[place].prompt for place in places])
        guards.same_prompts(asked, [completions[place].prompt_ids for place in places])
    lens = batch.attention_mask_BS.sum(1).tolist()
    rows = [(*c.prompt_ids, *c.ids)[:length] for c, length in zip(completions, lens, strict=True)]
    guards.same_ids(rows, batch.input_ids_BS, batch.attention_mask_BS)
    trains = [row for row, number in enumerate(batch.mask_BT.sum(1).tolist()) if number]
    lens = batch.completion_lens_B.tolist()
    guards.same_ids(
        [_sampled(completions[row], lens[row]) for row in trains],
        batch.completion_ids_BT[trains],
        batch.mask_BT[trains],
    )
    media = [example.media for example in step.rollouts.examples]
    if any(media):
        right, given = stack(media), batch.media_BX
        good = right is not None and given is not None and torch.equal(given.cpu(), right)
        guards.hold(
            "media of the rows", good, "a row does not have its own image or sound", number=len(media)
        )
    prompts = [(c.prompt_ids, one) for c, one in zip(completions, media, strict=True)]
    size = config.grpo.num_generations_per_prompt
    guards.group_identity(prompts, batch.group_ids_B.tolist(), size)


def hold_samples(step: TrainedStep, config: GRPORunConfig, guards: Guards, version: int) -> None:
    """No sample is too old for the weights that it trains, and each is trained once, or left out with a reason."""
    rollouts, size = config.grpo.async_grpo, config.grpo.num_generations_per_prompt
    num_updates = config.grpo.num_prompts_per_step * size // config.policy.train_global_batch_size
    window = rollouts.max_trajectory_age_steps * num_updates if rollouts.enabled else 0
    versions = [one for c in step.rollouts.completions for one in versions_of(c)]
    guards.lag(version, versions, window)
    if not rollouts.enabled:
        drawn = _ids(step.step, [one for one in step.served for _ in range(size)])
        trained = _ids(step.step, step.rollouts.examples)
        guards.ledger.drawn(drawn)
        guards.ledger.trained(trained)
        if config.grpo.use_dynamic_sampling:
            left = set(drawn).difference(trained)
            guards.ledger.left_out(left, "no spread, or beyond the step")
        guards.settled()


def hold_texts(session: Session, rollouts: Rollouts, guards: Guards, where: str) -> None:
    """What is judged is the text of what the model sampled after the environment's last words."""
    wrong = ""
    for row, (completion, text) in enumerate(zip(rollouts.completions, rollouts.texts, strict=True)):
        mask = completion.mask or ()
        heard = [place for place, own in enumerate(mask) if not own]
        own_ids = list(completion.ids[heard[-1] + 1 if heard else 0 :])
        right = session.tokenizer.decode(own_ids, skip_special_tokens=True)
        if text != right:
            wrong = wrong or f"row {row}: {text!r} is judged, its tokens are {right!r}"
    guards.hold("texts that are judged", not wrong, f"{where}, {wrong}", number=len(rollouts.texts))


def _first_rows(examples: Sequence[Example]) -> list[int]:
    """Return the first row of each prompt."""
    first: dict[int, int] = {}
    for row, example in enumerate(examples):
        first.setdefault(example.prompt_id, row)
    return list(first.values())


def _sampled(completion: Completion, length: int) -> list[int]:
    """Return the ids of a completion that were sampled and not written by an environment."""
    ids = completion.ids[:length]
    if not completion.mask:
        return list(ids)
    return [token for token, own in zip(ids, completion.mask, strict=False) if own]


def versions_of(completion: Completion) -> list[int]:
    """Return the versions of the weights that a completion was sampled with."""
    return [completion.weight_version, *(version for _, version in completion.version_segments)]


def _ids(step: int, examples: Sequence[Example]) -> list[Any]:
    """Return an id for each row: its step, its prompt, and the how-manyth row of the prompt it is."""
    seen: Counter[int] = Counter()
    ids = []
    for example in examples:
        ids.append((step, example.prompt_id, seen[example.prompt_id]))
        seen[example.prompt_id] += 1
    return ids
