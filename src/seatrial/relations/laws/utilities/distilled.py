"""R31.distilled: what distillation from a teacher's likeliest tokens gives for each token, and what it logs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.numbers import Numbers
from seatrial.relations.laws.utilities.plain import FLOAT32, Arguments, Plain, add_laws, relation_of

DISTILLED = relation_of(
    "distilled",
    "distillation-gives-and-logs-its-definitions",
    "Divergence, masses and overlap of likeliest tokens are those of whole distributions; logs see answers alone.",
)
V, K = 17, 4
"""Tokens of the vocabulary, and those that the teacher gives."""
ROWS = ((2, 3), (1, 5), (3, 1))
"""Lengths of prompts and of answers."""


def largest(
    logits: Tensor, teacher: Tensor, ids: Tensor, least: float | None, chunk: int | None
) -> dict[str, Tensor]:
    """Return for each token [N] the divergence, masses, and how the student's likeliest tokens are the teacher's.

    Args:
        logits: of the student [N, V].
        teacher: log-probabilities [N, K] of the teacher's likeliest tokens.
        ids: of these tokens.
        least: log-probabilities below it are raised to it, after the masses.
        chunk: tokens at once, which change nothing; None for all.
    """
    logprobs = logits.double().log_softmax(-1)
    student, teacher = logprobs.gather(-1, ids), teacher.double()
    found = {"student_mass": student.exp().sum(-1), "teacher_mass": teacher.exp().sum(-1)}
    if least is not None:
        student, teacher = student.clamp(min=least), teacher.clamp(min=least)
    terms = teacher.exp() * (teacher - student)
    own = logprobs.topk(ids.shape[-1]).indices
    shared = torch.tensor(
        [[one in mine for one in row] for row, mine in zip(ids.tolist(), own.tolist(), strict=True)]
    )
    number = shared.sum(-1)
    gain = torch.where(number > 0, -(terms * shared).sum(-1) / number.clamp(min=1), 0.0)
    return {
        **found,
        "distillation_losses": terms.sum(-1),
        "overlap_count": number,
        "overlap_token_advantage": gain,
    }


def _tokens(case: Numbers) -> Iterable[Arguments]:
    stream, number = case.generator(), sum(prompt + answer for prompt, answer in ROWS)
    logits = 3 * torch.randn(number, V, generator=stream)
    teacher, ids = (logits + torch.randn(number, V, generator=stream)).log_softmax(-1).topk(K)
    ids[0] = logits[0].topk(K, largest=False).indices  # of which the student has none
    for least in (None, -2.0):
        for chunk in (None, 5, 15, 64):
            yield logits, teacher, ids, least, chunk


def logged(
    columns: Mapping[str, Sequence[Tensor]], masks: Sequence[Sequence[int]], number: int
) -> dict[str, float]:
    """Return what is logged of tokens that train: extremes and means of losses and masses, shares of overlap.

    Args:
        columns: by name the values of each row's tokens, of which each is at the place before its own.
        masks: of the answers.
        number: of the teacher's tokens.
    """
    shown: dict[str, list[float]] = {name: [] for name in columns}
    for row, (mask, (prompt, _)) in enumerate(zip(masks, ROWS, strict=True)):
        for place, on in enumerate(mask):
            for name, values in columns.items():
                if on:
                    shown[name].append(float(values[row][prompt + place - 1]))
    losses = [max(0.0, one) for one in shown["distillation_losses"]]
    gains = [
        gain
        for gain, count in zip(shown["overlap_token_advantage"], shown["overlap_count"], strict=True)
        if count > 0
    ]
    found = {
        "loss_min": min(losses),
        "loss_max": max(losses),
        "overlap_ratio": sum(shown["overlap_count"]) / len(losses) / number,
        "overlap_token_advantage": sum(gains) / len(gains) if gains else 0.0,
    }
    for name in ("student_mass", "teacher_mass"):
        masses = shown[name]
        found |= {name: sum(masses) / len(masses), f"{name}_min": min(masses), f"{name}_max": max(masses)}
    return found


def _columns(case: Numbers) -> Iterable[Arguments]:
    stream = case.generator()

    def of_rows(values: Tensor) -> list[Tensor]:
        return list(torch.split(values, [prompt + answer for prompt, answer in ROWS]))

    number = sum(prompt + answer for prompt, answer in ROWS)
    counts = torch.randint(0, K + 1, (number,), generator=stream)
    columns = {
        "distillation_losses": torch.randn(number, generator=stream),
        "student_mass": torch.rand(number, generator=stream),
        "teacher_mass": torch.rand(number, generator=stream),
        "overlap_count": counts,
        "overlap_token_advantage": torch.where(counts > 0, torch.randn(number, generator=stream), 0.0),
    }
    for masks in ([[1] * answer for _, answer in ROWS], [[0, 1, 1], [1, 0, 0, 1, 0], [1]]):
        yield {name: of_rows(values) for name, values in columns.items()}, masks, K
    nothing = {**columns, "overlap_count": counts * 0, "overlap_token_advantage": torch.zeros(number)}
    yield {name: of_rows(values) for name, values in nothing.items()}, [[1] * answer for _, answer in ROWS], K


DISTILLED_FUNCTIONS = (
    Plain(
        name="likeliest tokens",
        law="divergence from a teacher's likeliest tokens",
        suspects="masses after the bound, overlap by place and not by token, the last chunk left out",
        cases=_tokens,
        right=largest,
        bound=32 * FLOAT32,
    ),
    Plain(
        name="metrics of distillation",
        law="what distillation logs",
        suspects="prompts or padding in the means and extremes, values of the place after",
        cases=_columns,
        right=logged,
        bound=32 * FLOAT32,
    ),
)
add_laws(DISTILLED, DISTILLED_FUNCTIONS)
