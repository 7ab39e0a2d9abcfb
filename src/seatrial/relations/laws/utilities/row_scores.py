"""R31.scores: scores of prompts with several rows, of beams and of guidance, are those of their definition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.numbers import Numbers
from seatrial.relations.laws.utilities.plain import FLOAT32, Arguments, Plain, add_laws
from seatrial.relations.laws.utilities.scores import NEVER, SCORES, V, only


def allowed(
    ids: Tensor, scores: Tensor, beams: int, tokens: Mapping[tuple[int, int], Sequence[int]]
) -> Tensor:
    """Return scores of allowed tokens; 0 for those of a prompt none of whose beams has any left.

    Args:
        ids: of beams, those of a prompt next to each other.
        scores: the same.
        beams: of each prompt.
        tokens: by the number of the prompt and the last id of the beam.
    """
    lists = [tokens[row // beams, int(own[-1])] for row, own in enumerate(ids)]
    rows = [only(own, kept) for own, kept in zip(scores.double().tolist(), lists, strict=True)]
    for start in range(0, len(rows), beams):
        if all(max(row) == NEVER for row in rows[start : start + beams]):
            rows[start : start + beams] = [only([0.0] * V, one) for one in lists[start : start + beams]]
    return torch.tensor(rows, dtype=torch.float64)


def _allowed_cases(case: Numbers) -> Iterable[Arguments]:
    scores = torch.randn(4, V, generator=case.generator())
    scores[2:, [1, 8]] = NEVER
    ids = torch.tensor([[9, 2], [9, 3], [9, 2], [9, 3]])
    tokens = {(0, 2): [4], (0, 3): [0, 7], (1, 2): [1, 5], (1, 3): [8], (2, 2): [5], (3, 3): [1, 6]}
    return [(ids, scores, 2, tokens), (ids, scores, 1, {**tokens, (1, 3): [3, 2]})]


def _forbidden_cases(case: Numbers) -> Iterable[Arguments]:
    scores = torch.full((4, V), NEVER)
    scores[:2, 3] = scores[2:, [2, 5]] = 1.5
    ids = torch.tensor([[9, 2], [9, 3], [9, 2], [9, 3]])
    return [(ids, scores, 2, {(0, 2): [4], (0, 3): [3], (1, 2): [1, 8], (1, 3): [8]})]


def guided(scores: Tensor, scale: float) -> Tensor:
    """Return the scores of classifier-free guidance; rows with the condition come first."""
    with_it, without_it = scores.double().chunk(2)
    return without_it + scale * (with_it - without_it)


def _guided_cases(case: Numbers) -> Iterable[Arguments]:
    made = torch.randn(4, V, generator=case.generator())
    return [(made, scale) for scale in (1.5, 3.0)]


ROW_SCORE_FUNCTIONS: Sequence[Plain] = (
    Plain(
        name="allowed scores",
        law="allowed tokens",
        suspects="tokens of another prompt or beam",
        cases=_allowed_cases,
        right=allowed,
        bound=FLOAT32,
    ),
    Plain(
        name="allowed scores",
        law="allowed tokens, none of which is left",
        suspects="a prompt that is left without scores",
        cases=_forbidden_cases,
        right=allowed,
    ),
    Plain(
        name="guided scores",
        law="guidance",
        suspects="rows in another order, a scale of the wrong difference",
        cases=_guided_cases,
        right=guided,
        bound=FLOAT32,
    ),
)
add_laws(SCORES, ROW_SCORE_FUNCTIONS)
