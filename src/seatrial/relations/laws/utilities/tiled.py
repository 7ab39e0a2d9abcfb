"""R31.tiled: log-probabilities, divergences and gradients that are computed tile by tile are those of whole logits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.numbers import Numbers
from seatrial.relations.laws.utilities.plain import Arguments, Plain, add_laws, relation_of

TILED = relation_of(
    "tiled",
    "tiles-make-the-whole",
    "Outputs and gradients of a head or a divergence in tiles are those of the whole logits, wherever tiles end.",
)
ROWS, IDS, WIDTH = 11, 37, 6
TILES = (5, 16, 37, 64)
"""Ids of a tile: none divides the vocabulary, but the one that is all of it, and one that is larger."""
SHAPES: Sequence[Mapping[str, Any]] = (
    {},
    {"temperature": 0.7},
    {"softcap": 2.0, "temperature": 1.3},
    {"scale": 0.25},
    {"scale": 3.0, "softcap": 4.0, "temperature": 0.5},
)
LEVELS = (None, 0.0, -9.0)
"""Means of the bias, or none; with the last one all logits are negative."""
BOUND = 1e-4
"""Float32 sums of some tens of terms, and their quotients, against float64."""


def logits_of(hidden: Tensor, weight: Tensor, bias: Tensor | None, options: Mapping[str, Any]) -> Tensor:
    """Return scaled, capped logits over the temperature."""
    made = hidden.double() @ weight.double().T
    made = (made if bias is None else made + bias.double()) * options.get("scale", 1.0)
    if (cap := options.get("softcap")) is not None:
        made = cap * torch.tanh(made / cap)
    found: Tensor = made / options.get("temperature", 1.0)
    return found


def _made(case: Numbers, level: float | None) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Return hidden states, weights, a bias around a level or none, and targets; some largest logits are shared."""
    stream = case.generator()
    hidden = torch.randn(ROWS, WIDTH, generator=stream)
    weight = torch.randn(IDS, WIDTH, generator=stream)
    targets = torch.randint(IDS, (ROWS,), generator=stream)
    if level is None:  # whole numbers, so that equal logits are equal in every tile
        hidden, weight = hidden.round(), weight.round()
        weight[IDS // 2 :] = weight[: IDS - IDS // 2].flip(0)
    logits = hidden @ weight.T
    targets[::3] = logits[::3].argmax(-1)  # certain ones among them, and the ends of the vocabulary
    targets[1], targets[2] = 0, IDS - 1
    if level is None:
        targets[3::3] = (logits[3::3] + torch.arange(IDS) * 1e-3).argmax(-1)  # the last of the largest ones
    return hidden, weight, None if level is None else level + torch.randn(IDS, generator=stream), targets


def _heads(case: Numbers) -> Iterable[Arguments]:
    for options, level, tile in product(SHAPES, LEVELS, TILES):
        hidden, weight, offset, targets = _made(case, level)
        yield hidden, weight, offset, targets, options, tile


def head(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    options: Mapping[str, Any],
    tile: int,
) -> dict[str, Any]:
    """Return outputs of a head by name, and gradients of a weighted sum of log-probabilities and entropies."""
    given = [one.double().requires_grad_() for one in (hidden, weight, *(() if bias is None else (bias,)))]
    logits = logits_of(given[0], given[1], given[2] if bias is not None else None, options)
    logprobs = logits.log_softmax(-1)
    own = logprobs.gather(-1, targets[:, None])[:, 0]
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    total = (own * weights_of(own) + entropy * weights_of(entropy).flip(0)).sum()
    gradients = torch.autograd.grad(total, given)
    return {
        "log-probabilities": own.detach(),
        "entropy": entropy.detach(),
        "squares": (2 * logprobs.detach()).logsumexp(-1),
        "mean": logits.detach().mean(-1),
        "first": (logits.argmax(-1) == targets).tolist(),
        "gradients": list(gradients),
    }


def weights_of(values: Tensor) -> Tensor:
    """Return a weight for each row: unequal, and of both signs."""
    return torch.linspace(-1.0, 2.0, len(values), dtype=values.dtype)


def _divergences(case: Numbers) -> Iterable[Arguments]:
    stream = case.generator()
    for beta, temperature in product((0.0, 0.3, 0.5, 1.0), (1.0, 0.6)):
        student = [torch.randn(*shape, generator=stream) for shape in ((ROWS, WIDTH), (IDS, WIDTH))]
        teacher = [torch.randn(*shape, generator=stream) for shape in ((ROWS, WIDTH + 2), (IDS, WIDTH + 2))]
        for options in ({}, {"scale": 0.5, "softcap": 3.0}):
            yield student, teacher, beta, temperature, options


def divergence_of(student: Tensor, teacher: Tensor, beta: float) -> Tensor:
    """Return the divergence of log-probabilities [..., V]: forward at 0, reverse at 1, of a mixture between."""
    if beta == 0:
        return (teacher.exp() * (teacher - student)).sum(-1)
    if beta == 1:
        return (student.exp() * (student - teacher)).sum(-1)
    mixture = ((1 - beta) * student.exp() + beta * teacher.exp()).log()
    of_teacher = (teacher.exp() * (teacher - mixture)).sum(-1)
    of_student = (student.exp() * (student - mixture)).sum(-1)
    return beta * of_teacher + (1 - beta) * of_student


def divergence(
    student: Sequence[Tensor],
    teacher: Sequence[Tensor],
    beta: float,
    temperature: float,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Return divergences of heads, entropies of the student, and the gradients of its tensors."""
    given = [one.double().requires_grad_() for one in student]
    shaped = {**options, "temperature": temperature}
    own = logits_of(given[0], given[1], None, shaped).log_softmax(-1)
    other = logits_of(teacher[0], teacher[1], None, shaped).log_softmax(-1)
    found = divergence_of(own, other, beta)
    gradients = torch.autograd.grad((found * weights_of(found)).sum(), given)
    return {
        "divergence": found.detach(),
        "entropy": -(own.exp() * own).sum(-1).detach(),
        "gradients": list(gradients),
    }


def _top(case: Numbers) -> Iterable[Arguments]:
    stream = case.generator()
    for alpha, tail, number in product((0.0, 0.5, 0.8, 1.0), (False, True), (1, 4)):
        student, teacher = (2 * torch.randn(3, 4, 9, generator=stream) for _ in range(2))
        if tail or number > 1:
            yield student, teacher, number, tail, alpha


def top_divergence(student: Tensor, teacher: Tensor, number: int, tail: bool, alpha: float) -> Tensor:
    """Return the divergence over the student's largest ids, made one with the rest in one bucket, or without it."""
    one, other = student.double().log_softmax(-1), teacher.double().log_softmax(-1)
    places = student.topk(number, -1).indices
    kept = [values.exp().gather(-1, places) for values in (one, other)]
    if tail:
        kept = [torch.cat([values, 1 - values.sum(-1, keepdim=True)], -1) for values in kept]
    logs = [(values / values.sum(-1, keepdim=True)).log() for values in kept]
    return divergence_of(logs[0], logs[1], alpha)


def _whole(case: Numbers) -> Iterable[Arguments]:
    stream = case.generator()
    for alpha in (0.0, 0.2, 0.5, 1.0):
        yield *(2 * torch.randn(3, 4, 9, generator=stream) for _ in range(2)), alpha


def _whole_divergence(student: Tensor, teacher: Tensor, alpha: float) -> Tensor:
    return divergence_of(student.double().log_softmax(-1), teacher.double().log_softmax(-1), alpha)


def _log_pairs(case: Numbers) -> Iterable[Arguments]:
    return ((one.log_softmax(-1), other.log_softmax(-1), alpha) for one, other, alpha in _whole(case))


def _parts(case: Numbers) -> Iterable[Arguments]:
    whole = (3 * torch.randn(3, 4, 9, generator=case.generator())).log_softmax(-1)
    return ((whole[..., :number],) for number in (1, 4, 8))


def with_rest(logprobs: Tensor) -> Tensor:
    """Return log-probabilities with that of all other ids behind them."""
    rest = 1 - logprobs.double().exp().sum(-1, keepdim=True)
    return torch.cat([logprobs.double(), rest.log()], -1)


def _weighted(case: Numbers) -> Iterable[Arguments]:
    stream = case.generator()
    for most in (0.5, 1.0, 2.0, 1e12):
        losses, now, before = (3 * torch.randn(3, 5, generator=stream) for _ in range(3))
        now[0, 0], before[0, 0] = 30.0, -30.0
        yield losses, now, before, most


def weighted_losses(losses: Tensor, now: Tensor, before: Tensor, most: float) -> dict[str, Tensor]:
    """Return losses times the ratio of probabilities, which is at most `most` and exp(20), with gradients of both."""
    ratio = (now.double() - before.double()).clamp(-20, 20).exp().clamp(max=most)
    return {"losses": losses * ratio, "of losses": ratio, "of probabilities": torch.zeros_like(ratio)}


def _sampled(case: Numbers) -> Iterable[Arguments]:
    stream = case.generator()
    student, teacher = (2 * torch.randn(3, 4, 9, generator=stream) for _ in range(2))
    yield student, teacher, torch.randint(9, (3, 4), generator=stream)


def sampled_divergence(student: Tensor, teacher: Tensor, ids: Tensor) -> dict[str, Tensor]:
    """Return the gradient of the reverse divergence, as sampled ids [B, T] estimate it, by the student's logits."""
    logits = student.double().requires_grad_()
    own, other = (
        values.log_softmax(-1).gather(-1, ids[..., None])[..., 0] for values in (logits, teacher.double())
    )
    (gradient,) = torch.autograd.grad(((own - other).detach() * own).sum(), logits)
    return {"gradient": gradient}


Offsets = Sequence[tuple[int, int]]


def _cuts(case: Numbers) -> Iterable[Arguments]:
    """Yield the tokens of one text by two tokenizers, of which one may stop before its end."""
    stream = case.generator()
    for size in (1, 8, 20, 20, 20):
        both = []
        for _ in range(2):
            inner = (torch.rand(size - 1, generator=stream) < 0.5).nonzero()[:, 0] + 1
            ends = [*inner.tolist(), size]
            both.append(list(zip([0, *ends], ends, strict=False)))
        yield both[0], both[1]
        yield both[0], both[1][: len(both[1]) // 2]


def words_of(one: Offsets, other: Offsets) -> tuple[list[list[int]], list[list[int]]]:
    """Return the tokens between boundaries that both have, and in the end those behind the last of them."""
    ends = sorted({end for _, end in one} & {end for _, end in other})
    found = []
    for offsets in (one, other):
        places = [0, *(next(at for at, span in enumerate(offsets) if span[1] == end) + 1 for end in ends)]
        found.append([list(range(*pair)) for pair in zip(places, [*places[1:], len(offsets)], strict=True)])
    if not found[0][-1] and not found[1][-1]:
        found = [groups[:-1] for groups in found]
    return found[0], found[1]


def _words(case: Numbers) -> Iterable[Arguments]:
    stream = case.generator()
    for merge in ("observed", "bayesian"):
        probs = torch.randn(7, 9, generator=stream).softmax(-1)
        yield probs, [[0], [1, 2], [3, 4, 5], [6]], torch.randint(9, (7,), generator=stream), merge


def word_probabilities(probs: Tensor, words: Sequence[Sequence[int]], ids: Tensor, merge: str) -> Tensor:
    """Return the probabilities of words [W, V] of several tokens, by the chain rule.

    Of ids at a word's first token, with those that follow it there ("observed"), or at its last one ("bayesian").
    """
    found = []
    for word in words:
        varied = word[0] if merge == "observed" else word[-1]
        others = [probs.double()[place, ids[place]] for place in word if place != varied]
        found.append(probs.double()[varied] * torch.stack([*others, torch.tensor(1.0)]).prod())
    return torch.stack(found)


FUNCTIONS_OF_TILES: Sequence[Plain] = (
    Plain(
        name="words of two tokenizers",
        law="words of two tokenizers",
        suspects="a boundary of one alone, a last word that is lost",
        cases=_cuts,
        right=words_of,
    ),
    Plain(
        name="probabilities of words",
        law="probabilities of words of several tokens",
        suspects="a mean or a sum in place of the product, the ids of other places",
        cases=_words,
        right=word_probabilities,
        bound=BOUND,
    ),
    Plain(
        name="divergence of log-probabilities",
        law="divergence of log-probabilities",
        suspects="the other direction, weights of a mixture that change places",
        cases=_log_pairs,
        right=lambda student, teacher, alpha: divergence_of(student.double(), teacher.double(), alpha),
        bound=BOUND,
    ),
    Plain(
        name="rest of ids",
        law="the rest of all ids",
        suspects="a rest of logits, a sum of log-probabilities",
        cases=_parts,
        right=with_rest,
        bound=BOUND,
    ),
    Plain(
        name="weighted losses",
        law="losses times ratios",
        suspects="a ratio upside down, one that has a gradient, a limit on the wrong side",
        cases=_weighted,
        right=weighted_losses,
        bound=BOUND,
    ),
    Plain(
        name="divergence of sampled ids",
        law="divergence of sampled ids",
        suspects="a gradient through the difference, the teacher's sign",
        cases=_sampled,
        right=sampled_divergence,
        bound=BOUND,
    ),
    Plain(
        name="head in tiles",
        law="head in tiles",
        suspects="a target in another tile, the largest of the last tile, a bias or a cap left out of the gradient",
        cases=_heads,
        right=head,
        bound=BOUND,
    ),
    Plain(
        name="divergence in tiles",
        law="divergence in tiles",
        suspects="weights of a mixture that change places, a temperature of one side",
        cases=_divergences,
        right=divergence,
        bound=BOUND,
    ),
    Plain(
        name="divergence of the largest",
        law="divergence of the student's largest ids",
        suspects="the teacher's largest, a rest that is not counted, or counted twice",
        cases=_top,
        right=top_divergence,
        bound=BOUND,
    ),
    Plain(
        name="divergence of logits",
        law="divergence of logits",
        suspects="the other direction",
        cases=_whole,
        right=_whole_divergence,
        bound=BOUND,
    ),
)
add_laws(TILED, FUNCTIONS_OF_TILES)
