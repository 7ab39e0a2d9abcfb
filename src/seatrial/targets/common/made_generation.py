"""Completions that depend on their prompt alone, in place of those that a model of Transformers samples."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

ROLE = "_seatrial_role"
"""Attribute of a model: another one gives other completions."""


def made_completion(
    prompt: Sequence[int],
    number: int,
    role: int,
    *,
    letters: Sequence[int],
    ends: Sequence[int],
    equal: bool = False,
    limit: int | None = None,
) -> list[int]:
    """Return the completion of a prompt's ids that `made_generation` gives; see there."""
    stream = random.Random(f"{tuple(prompt)} {number} {role}")
    length = 5 if equal else stream.randint(1, 6)
    row = [stream.choice(letters) for _ in range(length)]
    row.append(ends[0] if len(ends) == 1 else stream.choice(ends))
    if limit is None or stream.random() < 0.5:
        return row
    return [stream.choice(letters) for _ in range(limit)]


@contextmanager
def made_generation(
    pad: int, *, letters: Sequence[int], ends: Sequence[int], equal: bool, limit: int | None = None
) -> Iterator[None]:
    """Let every model of Transformers in this block generate made completions.

    A completion follows from its prompt, from the number of the same prompt in the call, and from the model's role.

    Args:
        pad: id of padding.
        letters: ids that completions consist of.
        ends: ids of end tokens, one of which is the last of each completion.
        equal: whether completions have one length; otherwise two to seven tokens with the end.
        limit: tokens at which half of the completions are cut, before an end; none for None.
    """
    from transformers import GenerationMixin

    owner: Any = GenerationMixin
    own = owner.generate

    def generate(
        model: Any, inputs: Tensor | None = None, generation_config: Any = None, **given: Any
    ) -> Any:
        prompts_BS = given["input_ids"] if inputs is None else inputs
        mask_BS = given.get("attention_mask")
        mask_BS = prompts_BS != pad if mask_BS is None else mask_BS.bool()
        copies = (
            given.get("num_return_sequences") or getattr(generation_config, "num_return_sequences", 1) or 1
        )
        prompts_BS, mask_BS = (value.repeat_interleave(copies, 0) for value in (prompts_BS, mask_BS))
        seen: dict[tuple[int, ...], int] = {}
        rows = []
        for ids, shown in zip(prompts_BS, mask_BS, strict=True):
            prompt = tuple(ids[shown].tolist())
            number = seen[prompt] = seen.get(prompt, -1) + 1
            role = getattr(model, ROLE, 0)
            rows.append(
                made_completion(prompt, number, role, letters=letters, ends=ends, equal=equal, limit=limit)
            )
        T = max(map(len, rows))
        made_BT = torch.tensor([[*row, *[pad] * (T - len(row))] for row in rows])
        sequences_BS = torch.cat([prompts_BS, made_BT], 1)
        if not (
            given.get("return_dict_in_generate") or getattr(generation_config, "return_dict_in_generate", 0)
        ):
            return sequences_BS
        return _with_scores(model, sequences_BS, mask_BS, T, generation_config)

    owner.generate = generate
    try:
        yield
    finally:
        owner.generate = own


def _with_scores(model: Any, sequences_BS: Tensor, mask_BS: Tensor, T: int, settings: Any) -> Any:
    """Return sequences with the scores that their tokens have at the temperature of the settings."""
    from transformers.generation.utils import GenerateDecoderOnlyOutput

    shown_BS = torch.cat([mask_BS, torch.ones_like(sequences_BS[:, -T:], dtype=torch.bool)], 1).long()
    places_BS = (shown_BS.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        logits = model(input_ids=sequences_BS, attention_mask=shown_BS, position_ids=places_BS).logits
    temperature = getattr(settings, "temperature", None) or 1.0
    steps = [logits[:, place - 1] for place in range(-T, 0)]
    made: Any = GenerateDecoderOnlyOutput
    return made(sequences=sequences_BS, scores=tuple(one / temperature for one in steps), logits=tuple(steps))
