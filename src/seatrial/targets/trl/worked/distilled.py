"""Worked examples of distillation: divergences from a teacher, its inputs, and words of two tokenizers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log
from types import SimpleNamespace
from typing import Any

import torch

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.trl.former import NO_ANSWER, SWAPPED
from seatrial.targets.trl.worked.rows import Row

GOLD = "trl.experimental.gold.gold_trainer"
STUDENT, TEACHER = (0.25, 0.75), (0.5, 0.5)
LABELS: Sequence[Sequence[int]] = ((-100, 1), (-100, -100))
"""Of two rows, of which the second has no answer."""


def _divergence(of: Sequence[float], other: Sequence[float]) -> float:
    return sum(p * log(p / q) for p, q in zip(of, other, strict=True))


def _jsd(beta: float) -> float:
    """Return the divergence of a token (Agarwal et al. 2024, equation 1), whose limits are the two of Kullback."""
    if beta in (0.0, 1.0):
        return _divergence(TEACHER, STUDENT) if beta == 0.0 else _divergence(STUDENT, TEACHER)
    mixture = [(1 - beta) * one + beta * other for one, other in zip(STUDENT, TEACHER, strict=True)]
    return beta * _divergence(TEACHER, mixture) + (1 - beta) * _divergence(STUDENT, mixture)


def _losses(trainer_class: Any) -> dict[str, float]:
    """Return the losses of a batch by beta, and that of logits twice as large at a temperature of 2."""
    return {
        **{f"beta {beta}": _loss(trainer_class, LABELS, beta=beta) for beta in (0.0, 0.3, 1.0)},
        "temperature": _loss(trainer_class, LABELS, 2.0, beta=0.3, temperature=2.0),
    }


def _loss(trainer_class: Any, labels: Sequence[Sequence[int]], factor: float = 1.0, **options: Any) -> float:
    logits = [
        factor * torch.log(torch.tensor(one, dtype=torch.float64)).expand(2, 2, 2)
        for one in (STUDENT, TEACHER)
    ]
    return float(trainer_class.generalized_jsd_loss(*logits, labels=torch.tensor(labels), **options))


LOSSES: Mapping[str, float] = {
    **{f"beta {beta}": _jsd(beta) for beta in (0.0, 0.3, 1.0)},
    "temperature": _jsd(0.3),
}


def _teacher_rows(build: Callable[..., Any]) -> list[Any]:
    """Return what the teacher sees of each row, and which part of it is compared."""
    tokenizer = tiny_tokenizer()
    ids, labels, mask, *_ = build(tokenizer, ["ab", "defgh", "i"], ["klm", "n", "opqrst"])
    return [
        [
            tokenizer.decode(row[shown.bool()]),
            tokenizer.decode(row[trained != -100]),
            _is_one_piece(shown.tolist()),
        ]
        for row, trained, shown in zip(ids, labels, mask, strict=True)
    ]


def _is_one_piece(mask: Sequence[Any]) -> bool:
    on = [place for place, one in enumerate(mask) if one]
    return on == list(range(on[0], on[-1] + 1))


def _teacher_due() -> list[Any]:
    end = "<|im_end|>"
    pairs = (("ab", "klm"), ("defgh", "n"), ("i", "opqrst"))
    return [[f"{prompt}{answer}{end}", f"{answer}{end}", True] for prompt, answer in pairs]


def _merged(loss_class: Any) -> list[float]:
    """Return the probabilities of a token, and of a word of two tokens with each id as its first one."""
    merge = loss_class._merge_probabilities_with_alignment_groups
    probs = torch.tensor([[0.1, 0.6, 0.3], [0.2, 0.3, 0.5], [0.7, 0.2, 0.1]], dtype=torch.float64)
    ids = torch.tensor([1, 1, 2])
    own = SimpleNamespace(token_merge_strategy="observed")
    count = merge.__code__.co_argcount
    found = merge(own, probs, [[0], [1, 2]], *([ids] if count > 3 else []))
    if found.shape != (2, 3):
        raise NotServed(f"merged probabilities are of the shape {tuple(found.shape)}")
    actual: list[float] = [*found[0].tolist(), found[1, 1].item()]
    return actual


TRAINERS = ("trl.experimental.gkd:GKDTrainer trl:GKDTrainer", "trl.experimental.gold:GOLDTrainer")

DISTILLED_ROWS: Sequence[Row] = (
    *(
        row
        for places in TRAINERS
        for row in (
            Row("formulas", places, "divergences by beta, a temperature", _losses, LOSSES, known=SWAPPED),
            Row(
                "formulas",
                places,
                "a batch without an answer",
                lambda one: _loss(one, [LABELS[1], LABELS[1]], beta=0.3),
                0.0,
                known=NO_ANSWER,
            ),
        )
    ),
    Row(
        "rollouts",
        f"{GOLD}:build_teacher_inputs_from_texts",
        "prompts and answers of other lengths",
        _teacher_rows,
        _teacher_due(),
    ),
    Row(
        "formulas",
        f"{GOLD}:ULDLoss",
        "the probability of a word of two tokens",
        _merged,
        [0.1, 0.6, 0.3, 0.3 * 0.1],
    ),
)
