"""Definitions of the options that change scores of the next id, in plain loops over one row in float64.

Source: the documentation of `GenerationConfig` and the papers that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

OUT = -torch.inf


class Place(NamedTuple):
    """Where a row is when its next id is chosen."""

    seen: Sequence[int]
    """Ids that options may see: the prompt, padded, with new ids; after embeddings the new ids alone."""
    new: Sequence[int]
    prompt: Sequence[int]
    """Ids that went into the encoder, padded, or the padded prompt; none after embeddings."""
    length: int
    """Ids so far, with the padding of the prompt."""
    longest: int
    """The largest length of the whole."""
    row: int
    """The number of the prompt in its batch."""
    ends: Sequence[int]


Rule = Callable[[Tensor, Place, Any], Tensor]
"""Takes scores of shape (V,), a place and the value of an option, and returns scores."""


def _without(scores: Tensor, ids: Sequence[int]) -> Tensor:
    scores = scores.clone()
    scores[list(ids)] = OUT
    return scores


def _only(scores: Tensor, token: int) -> Tensor:
    found = torch.full_like(scores, OUT)
    found[token] = 0
    return found


def _penalized(scores: Tensor, ids: Sequence[int], penalty: float) -> Tensor:
    scores = scores.clone()
    for token in {*ids}:
        scores[token] = scores[token] * penalty if scores[token] < 0 else scores[token] / penalty
    return scores


def _following(row: Sequence[int], known: Sequence[int], size: int) -> list[int]:
    """Return ids that would complete a sequence of a size that is known."""
    if len(row) + 1 < size:
        return []
    tail = list(row[len(row) + 1 - size :])
    return [
        known[at + size - 1] for at in range(len(known) - size + 1) if [*known[at : at + size - 1]] == tail
    ]


def _bad(scores: Tensor, place: Place, bad: Sequence[Sequence[int]]) -> Tensor:
    # A word that is an end alone is not a bad one.
    words = [one for one in bad if len(one) > 1 or one[0] not in place.ends]
    return _without(
        scores, [one[-1] for one in words if [*place.seen[len(place.seen) - len(one) + 1 :]] == [*one[:-1]]]
    )


def _biased(scores: Tensor, place: Place, table: Sequence[tuple[Sequence[int], float]]) -> Tensor:
    scores = scores.clone()
    for ids, bias in table:
        if [*place.seen[len(place.seen) - len(ids) + 1 :]] == [*ids[:-1]]:
            scores[ids[-1]] += bias
    return scores


def _decayed(scores: Tensor, place: Place, value: tuple[int, float]) -> Tensor:
    start, factor = value
    scores = scores.clone()
    if len(place.new) > start:
        for end in place.ends:
            scores[end] += abs(scores[end]) * (factor ** (len(place.new) - start) - 1)
    return scores


def allowed_ids(batch_id: int, seen: Sequence[int], number: int) -> list[int]:
    """Return two thirds of all ids, by the row's number and length: for `prefix_allowed_tokens_fn`."""
    return [one for one in range(number) if (one + batch_id + len(seen)) % 3]


def of_caller(scores: Tensor, length: int) -> Tensor:
    """Return scores of a processor of the caller's, by the number of ids that it sees."""
    scores = scores.clone()
    scores[..., (length * 5) % scores.shape[-1]] += 2.5
    return scores


RULES: Mapping[str, Rule] = {
    "sequence_bias": _biased,
    "encoder_repetition_penalty": lambda scores, place, value: _penalized(scores, place.prompt, 1 / value),
    "repetition_penalty": lambda scores, place, value: _penalized(scores, place.seen, value),
    "no_repeat_ngram_size": lambda scores, place, value: _without(
        scores, _following(place.seen, place.seen, value)
    ),
    "encoder_no_repeat_ngram_size": lambda scores, place, value: _without(
        scores, _following(place.seen, place.prompt, value)
    ),
    "bad_words_ids": _bad,
    "min_length": lambda scores, place, value: (
        _without(scores, place.ends) if place.length < value else scores
    ),
    "min_new_tokens": lambda scores, place, value: (
        _without(scores, place.ends) if len(place.new) < value else scores
    ),
    "allowed": lambda scores, place, value: _without(
        scores,
        sorted({*range(len(scores))} - {*allowed_ids(place.row, place.seen, len(scores))}),
    ),
    "forced_bos_token_id": lambda scores, place, value: _only(scores, value) if place.length == 1 else scores,
    "forced_eos_token_id": lambda scores, place, value: (
        _only(scores, value) if place.length == place.longest - 1 else scores
    ),
    "remove_invalid_values": lambda scores, place, value: scores,
    "exponential_decay_length_penalty": _decayed,
    "suppress_tokens": lambda scores, place, value: _without(scores, value),
    "begin_suppress_tokens": lambda scores, place, value: (
        _without(scores, value) if not place.new else scores
    ),
    "caller": lambda scores, place, value: of_caller(scores, len(place.seen)),
}
"""Options that change scores in any way to decode, in the order in which they do."""


def _kept(scores: Tensor, keep: Sequence[int], least: int) -> Tensor:
    """Return scores of the ids that are kept, and of the `least` largest."""
    best = scores.argsort(descending=True)[:least].tolist()
    found = torch.full_like(scores, OUT)
    for one in {*keep, *best}:
        found[one] = scores[one]
    return found


def _ranked(scores: Tensor) -> list[tuple[int, float]]:
    """Return ids and their probabilities, the likeliest first."""
    chances = scores.softmax(-1)
    return [(one, float(chances[one])) for one in chances.argsort(descending=True).tolist()]


def _entropy(scores: Tensor) -> float:
    chances = scores.softmax(-1)
    logs = scores.log_softmax(-1)
    return -sum(float(chances[one] * logs[one]) for one in range(len(scores)) if chances[one] > 0)


def _top_p(scores: Tensor, mass: float, least: int) -> Tensor:
    keep, total = [], 0.0
    for token, chance in _ranked(scores):
        if total < mass:
            keep.append(token)
        total += chance
    return _kept(scores, keep, least)


def _top_h(scores: Tensor, share: float, least: int) -> Tensor:
    del least
    keep, total, most = [], 0.0, share * _entropy(scores)
    for token, chance in _ranked(scores):
        total -= chance * float(torch.tensor(chance).log()) if chance > 0 else 0.0
        if total <= most:
            keep.append(token)
    return _kept(scores, keep, 1)


def _typical(scores: Tensor, mass: float, least: int) -> Tensor:
    logs, entropy = scores.log_softmax(-1), _entropy(scores)
    nearest = sorted(range(len(scores)), key=lambda one: abs(-float(logs[one]) - entropy))
    keep, total = nearest[:least], 0.0
    for token in nearest:
        if total < mass:
            keep.append(token)
        total += float(logs[token].exp())
    found = torch.full_like(scores, OUT)
    for one in keep:
        found[one] = scores[one]
    return found


def _eta(scores: Tensor, epsilon: float, least: int) -> Tensor:
    cut = min(epsilon, epsilon**0.5 * float(torch.tensor(-_entropy(scores)).exp()))
    return _kept(scores, [one for one, chance in _ranked(scores) if chance >= cut], least)


WARPERS: Mapping[str, Callable[[Tensor, Any, int], Tensor]] = {
    "temperature": lambda scores, value, least: scores / value,
    "top_h": _top_h,
    "top_k": lambda scores, value, least: _kept(scores, [one for one, _ in _ranked(scores)[:value]], least),
    "top_p": _top_p,
    "min_p": lambda scores, value, least: _kept(
        scores, [one for one, chance in _ranked(scores) if chance >= value * _ranked(scores)[0][1]], least
    ),
    "typical_p": _typical,
    "epsilon_cutoff": lambda scores, value, least: _kept(
        scores, [one for one, chance in _ranked(scores) if chance >= value], least
    ),
    "eta_cutoff": _eta,
}
"""Options that change what is sampled from, in the order in which they do; `least` is how many ids remain at least."""


def scored(scores: Tensor, place: Place, options: Mapping[str, Any], least: int) -> Tensor:
    """Return the scores of the next id, of shape (V,) and any offset, by all options."""
    for name, rule in RULES.items():
        if name in options:
            scores = rule(scores, place, options[name])
    if options.get("do_sample"):
        for name, warp in WARPERS.items():
            if name in options:
                scores = warp(scores, options[name], least)
    return scores.log_softmax(-1) if options.get("renormalize_logits") else scores
