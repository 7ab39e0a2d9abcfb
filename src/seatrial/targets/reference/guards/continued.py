"""Checks how refrl continues a request that was given up: rows that ended by themselves stay as they are.

Whether a run gives up a request of which some rows have ended depends on timing, so a made one is continued.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from refrl.generation.base import Completion, FinishReason, SamplingParams
from refrl.generation.pool import GenerationRequest, answer
from seatrial.guards import Guards
from seatrial.targets.reference.guards.base import check

LIMIT, NEXT, END = 4, 7, 9
"""Most tokens of a completion; the token that the engine samples, and one that ends a row."""


class _Engine:
    """Samples `NEXT` up to the limit, with weights that are a version newer, and remembers the prompts."""

    def __init__(self) -> None:
        self.prompts: list[tuple[int, ...]] = []

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, generator: torch.Generator
    ) -> list[Completion]:
        self.prompts += map(tuple, prompts)
        return [
            _completion(tuple(prompt), (NEXT,) * params.max_new_tokens, "length", version=1)
            for prompt in prompts
        ]


def check_continued(guards: Guards) -> None:
    """Check that rows which were given up, and no others, are continued to the limit, each in its place."""
    parts = (
        _completion((1,), (2, END), "stop"),
        _completion((1,), (3, 4), "abort"),
        _completion((1,), (5,) * LIMIT, "length"),
        _completion((1,), (6,), "abort"),
        _completion((1,), (), "abort"),
    )
    engine, params = _Engine(), SamplingParams(max_new_tokens=LIMIT, stop_token_ids=(END,))
    request = GenerationRequest(tuple(one.prompt_ids for one in parts), params, 0, 0, parts, 1)
    found = answer(engine, request).completions
    wrong = []
    for row, (part, whole) in enumerate(zip(parts, found, strict=True)):
        is_open = part.finish_reason == "abort"
        right = part.ids + (NEXT,) * (LIMIT - len(part.ids)) if is_open else part.ids
        reason = "length" if is_open else part.finish_reason
        if (whole.ids, whole.finish_reason) != (right, reason) or len(whole.logprobs) != len(right):
            wrong.append(
                f"row {row}, {part.ids} that ended with {part.finish_reason}, became {whole.ids} with "
                f"{whole.finish_reason}, not {right} with {reason}"
            )
    asked = sorted(one.prompt_ids + one.ids for one in parts if one.finish_reason == "abort")
    if sorted(engine.prompts) != asked:
        wrong.append(f"the engine continued {sorted(engine.prompts)}, given up were {asked}")
    check(guards, "ended rows are not continued", wrong, number=len(parts))


def _completion(
    prompt: tuple[int, ...], ids: tuple[int, ...], reason: FinishReason, version: int = 0
) -> Completion:
    return Completion(
        prompt_ids=prompt, ids=ids, logprobs=(-1.0,) * len(ids), finish_reason=reason, weight_version=version
    )
