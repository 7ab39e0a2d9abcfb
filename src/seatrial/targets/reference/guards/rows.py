"""Checks the rows of a step of refrl against what was sampled: ids, prompts, groups, age, each sample once, texts."""

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
from refrl.training.session import Session, TrainedStep
from seatrial.guards import Guards
from seatrial.targets.reference.guards.base import check, is_checked_closely, updates_per_step


def check_rows(session: Session, step: TrainedStep, config: GRPORunConfig, guards: Guards) -> None:
    """Check that rows that train are those that were sampled, that prompts are encoded right, and groups whole."""
    completions, examples, batch = step.rollouts.completions, step.rollouts.examples, step.batch
    if is_checked_closely(step.step):
        first = {example.prompt_id: row for row, example in reversed(list(enumerate(examples)))}
        encoded = session.encoder.prompts([examples[row].prompt for row in first.values()])
        guards.same_prompts(encoded, [completions[row].prompt_ids for row in first.values()])
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
    media = [example.media for example in examples]
    if any(media):
        right, given = stack(media), batch.media_BX
        good = right is not None and given is not None and torch.equal(given.cpu(), right)
        wrong = "" if good else "a row does not have its own image or sound"
        check(guards, "media of the rows", wrong, number=len(media))
    prompts = [(c.prompt_ids, one) for c, one in zip(completions, media, strict=True)]
    guards.group_identity(prompts, batch.group_ids_B.tolist(), config.grpo.num_generations_per_prompt)


def check_samples(step: TrainedStep, config: GRPORunConfig, guards: Guards, version: int) -> None:
    """Check that no sample is too old for the weights, and that each is trained once, or left out with a reason."""
    rollouts, size = config.grpo.async_grpo, config.grpo.num_generations_per_prompt
    window = rollouts.max_trajectory_age_steps * updates_per_step(config) if rollouts.enabled else 0
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


def check_texts(session: Session, rollouts: Rollouts, guards: Guards, where: str) -> None:
    """Check that what is judged is the text of what the model sampled after the environment's last words."""
    wrong = []
    for row, (completion, text) in enumerate(zip(rollouts.completions, rollouts.texts, strict=True)):
        written = [place for place, sampled in enumerate(completion.mask or ()) if not sampled]
        last_turn = list(completion.ids[written[-1] + 1 if written else 0 :])
        right = session.tokenizer.decode(last_turn, skip_special_tokens=True)
        if text != right:
            wrong.append(f"row {row}: {text!r} is judged, its tokens are {right!r}")
    check(guards, "texts that are judged", wrong[:1], where=f"{where}, ", number=len(rollouts.texts))


def versions_of(completion: Completion) -> list[int]:
    """Return the versions of the weights that a completion was sampled with."""
    return [completion.weight_version, *(version for _, version in completion.version_segments)]


def _sampled(completion: Completion, length: int) -> list[int]:
    """Return the ids of a completion that were sampled and not written by an environment."""
    ids = completion.ids[:length]
    if not completion.mask:
        return list(ids)
    return [token for token, own in zip(ids, completion.mask, strict=False) if own]


def _ids(step: int, examples: Sequence[Example]) -> list[Any]:
    """Return an id for each row: its step, its prompt, and its number among the rows of the prompt."""
    seen: Counter[int] = Counter()
    ids = []
    for example in examples:
        ids.append((step, example.prompt_id, seen[example.prompt_id]))
        seen[example.prompt_id] += 1
    return ids
