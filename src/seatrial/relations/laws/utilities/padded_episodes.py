"""R31.padded: episodes of unequal lengths become one batch: ids, masks, rewards and extras of each row are its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.contracts.utilities import Rollout
from seatrial.relations.laws.utilities.numbers import Numbers
from seatrial.relations.laws.utilities.plain import Plain, add_laws, relation_of

PADDED = relation_of(
    "padded",
    "a-batch-has-each-episode-as-it-was",
    "A batch of episodes has each row's ids, masks, log-probabilities, reward, experts and extras, and padding.",
)
P, T = 5, 7
LAYERS, TOP = 2, 3
LENGTHS: Sequence[tuple[int, int]] = ((3, 4), (5, 7), (1, 1), (4, 6), (2, 2))
"""Of prompts and answers: both full, both of a single token."""


def episodes(
    case: Numbers, *, rewarded: bool = True, with_logprobs: bool = True, routed: bool = True
) -> list[Rollout]:
    """Return rows of unequal lengths; some have a tool's output inside, and extras that others do not have."""
    generator = case.generator()
    found = []
    for row, (num_prompt, num_answer) in enumerate([(P, T)] * 5 if case.tidy else LENGTHS):
        ids = torch.randint(10, 90, (num_prompt + num_answer,), generator=generator).tolist()
        mask = [0 if num_answer > 5 and place in (2, 3) else 1 for place in range(num_answer)]
        logprobs = [-1.0 - row - 0.125 * place if on else 0.0 for place, on in enumerate(mask)]
        # The last token was sampled and not read: it went to no expert.
        size = (num_prompt + num_answer - 1, LAYERS, TOP)
        experts = torch.randint(1, 9, size, generator=generator, dtype=torch.int16)
        found.append(
            Rollout(
                prompt_ids=ids[:num_prompt],
                response_ids=ids[num_prompt:],
                mask=mask,
                logprobs=logprobs if with_logprobs else None,
                experts_SLK=experts if routed else None,
                reward=0.25 * row - 0.5 if rewarded else None,
                num_turns=2 + row,
                extras={"source": f"row {row}", **({"only": row} if row == 3 else {})},
            )
        )
    return found


def _row(ids: Sequence[Any], width: int, fill: Any, left: bool = False) -> list[Any]:
    padding = [fill] * (width - len(ids))
    return [*padding, *ids] if left else [*ids, *padding]


def batch_of(rows: Sequence[Rollout], pad_id: int, widths: tuple[int, int] = (P, T)) -> dict[str, Any]:
    """Return the columns of a batch: prompts are padded on the left, answers on the right, each to its width."""
    P, T = widths
    prompts = [_row(row.prompt_ids, P, pad_id, left=True) for row in rows]
    answers = [_row(row.response_ids, T, pad_id) for row in rows]
    shown = [
        _row([1] * len(row.prompt_ids), P, 0, left=True) + _row([1] * len(row.response_ids), T, 0)
        for row in rows
    ]
    found: dict[str, Any] = {
        "prompts": torch.tensor(prompts),
        "responses": torch.tensor(answers),
        "input_ids": torch.tensor([one + other for one, other in zip(prompts, answers, strict=True)]),
        "attention_mask": torch.tensor(shown),
        "response_mask": torch.tensor([_row(row.mask, T, 0) for row in rows]),
        "positions of shown": [list(range(len(row.prompt_ids) + len(row.response_ids))) for row in rows],
        "turns": [row.num_turns for row in rows],
        "source": [row.extras.get("source") for row in rows],
        "only": [row.extras.get("only") for row in rows],
    }
    if rows[0].logprobs is not None:
        found["rollout_log_probs"] = torch.tensor([_row(row.logprobs or [], T, 0.0) for row in rows])
    if rows[0].reward is not None:
        found["rm_scores"] = torch.tensor(
            [_row([*[0.0] * (len(row.response_ids) - 1), row.reward], T, 0.0) for row in rows]
        )
    if rows[0].experts_SLK is not None:
        found["routed_experts"] = torch.stack([_experts(row) for row in rows])
    return found


def _experts(row: Rollout) -> Tensor:
    found = torch.zeros(P + T, LAYERS, TOP, dtype=torch.int16)
    assert row.experts_SLK is not None
    for place, taken in enumerate(row.experts_SLK):
        found[P - len(row.prompt_ids) + place] = taken
    return found


def columns_of(row: Rollout) -> dict[str, Any]:
    """Return the columns of a row by itself; tokens that went to no expert are at its end, and have zeros."""
    found: dict[str, Any] = {
        "prompts": torch.tensor(row.prompt_ids),
        "responses": torch.tensor(row.response_ids),
        "response_mask": torch.tensor(row.mask),
    }
    if row.logprobs is not None:
        found["rollout_log_probs"] = torch.tensor(row.logprobs)
    if row.reward is not None:
        found["rm_scores"] = torch.tensor([*[0.0] * (len(row.response_ids) - 1), row.reward])
    if row.experts_SLK is not None:
        size = len(row.prompt_ids) + len(row.response_ids)
        found["routed_experts"] = torch.zeros(size, LAYERS, TOP, dtype=torch.int16)
        found["routed_experts"][: len(row.experts_SLK)] = row.experts_SLK
    return found


add_laws(
    PADDED,
    (
        Plain(
            name="columns of an episode",
            law="an episode by itself",
            suspects="experts of another token, a reward or a mask at another place",
            cases=lambda case: [
                (row,)
                for row in (
                    *episodes(case),
                    episodes(case, rewarded=False, with_logprobs=False, routed=False)[0],
                )
            ],
            right=columns_of,
        ),
        Plain(
            name="batch of episodes",
            law="a batch of episodes",
            suspects="a reward in the padding, a mask of another length, experts of another token, extras of row 0",
            cases=lambda case: [
                (episodes(case), 0),
                (episodes(case, rewarded=False), 0),
                (episodes(case, with_logprobs=False, routed=False), 0),
                (episodes(case, rewarded=False, with_logprobs=False, routed=False), 0),
                (episodes(case, routed=False), 0),
                (episodes(case)[2:3], 0),
                (episodes(case)[::-1], 0),
            ],
            right=batch_of,
        ),
    ),
)
