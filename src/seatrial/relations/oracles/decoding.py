"""What options of generation make of raw logits, in float64, as their documentation and papers say.

The order is that of Transformers' documentation: penalties and bans, temperature, then cuts of the distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Step = Mapping[str, Any]
"""`ids` so far, the prompt's included; `num_prompt`; `num_new`, the limit; `end`, the id."""
NEVER = -math.inf


def sequence_bias(scores_V: Tensor, value: Mapping[tuple[int, ...], float], step: Step) -> None:
    """Add a bias to the last id of a sequence whose other ids are the last ones so far."""
    for sequence, bias in value.items():
        if list(sequence[:-1]) == _last(step["ids"], len(sequence) - 1):
            scores_V[sequence[-1]] += bias


def repetition_penalty(scores_V: Tensor, value: float, step: Step) -> None:
    """Divide positive scores of ids so far by the penalty, and multiply negative ones (Keskar et al. 2019)."""
    for token in set(step["ids"]):
        scores_V[token] = scores_V[token] / value if scores_V[token] > 0 else scores_V[token] * value


def no_repeat_ngram_size(scores_V: Tensor, value: int, step: Step) -> None:
    """Ban ids that would complete a sequence of this many ids that is there already."""
    ids = list(step["ids"])
    for start in range(len(ids) - value + 1):
        if ids[start : start + value - 1] == _last(ids, value - 1):
            scores_V[ids[start + value - 1]] = NEVER


def bad_words_ids(scores_V: Tensor, value: Sequence[Sequence[int]], step: Step) -> None:
    """Ban the last id of each sequence whose other ids are the last ones so far."""
    for word in value:
        if list(word[:-1]) == _last(step["ids"], len(word) - 1):
            scores_V[word[-1]] = NEVER


def min_length(scores_V: Tensor, value: int, step: Step) -> None:
    """Ban the end as long as there are fewer ids, those of the prompt included."""
    if len(step["ids"]) < value:
        scores_V[step["end"]] = NEVER


def min_new_tokens(scores_V: Tensor, value: int, step: Step) -> None:
    """Ban the end as long as there are fewer new ids."""
    if len(step["ids"]) - step["num_prompt"] < value:
        scores_V[step["end"]] = NEVER


def forced_eos_token_id(scores_V: Tensor, value: int, step: Step) -> None:
    """Leave the given end alone at the last step."""
    if len(step["ids"]) - step["num_prompt"] == step["num_new"] - 1:
        scores_V.fill_(NEVER)
        scores_V[value] = 0.0


def exponential_decay_length_penalty(scores_V: Tensor, value: tuple[int, float], step: Step) -> None:
    """Raise the end's score by a share of its size that grows with every id after a number of new ids."""
    start, factor = value
    beyond = len(step["ids"]) - step["num_prompt"] - start
    if beyond > 0:
        scores_V[step["end"]] += scores_V[step["end"]].abs() * (factor**beyond - 1)


def suppress_tokens(scores_V: Tensor, value: Sequence[int], step: Step) -> None:
    """Ban ids."""
    scores_V[list(value)] = NEVER


def begin_suppress_tokens(scores_V: Tensor, value: Sequence[int], step: Step) -> None:
    """Ban ids at the first step."""
    if len(step["ids"]) == step["num_prompt"]:
        scores_V[list(value)] = NEVER


def temperature(scores_V: Tensor, value: float, step: Step) -> None:
    """Divide by it."""
    scores_V /= value


def top_k(scores_V: Tensor, value: int, step: Step) -> None:
    """Keep as many of the largest; 0 keeps all."""
    if value:
        scores_V[scores_V < scores_V.topk(value).values[-1]] = NEVER


def top_p(scores_V: Tensor, value: float, step: Step) -> None:
    """Keep the fewest of the largest whose probability together is at least this (Holtzman et al. 2020)."""
    order = scores_V.argsort(descending=True)
    before_V = scores_V.softmax(0)[order].cumsum(0) - scores_V.softmax(0)[order]
    scores_V[order[before_V >= value]] = NEVER


def min_p(scores_V: Tensor, value: float, step: Step) -> None:
    """Keep those of at least this share of the largest probability (Nguyen et al. 2024)."""
    probs_V = scores_V.softmax(0)
    scores_V[probs_V < value * probs_V.max()] = NEVER


def typical_p(scores_V: Tensor, value: float, step: Step) -> None:
    """Keep the fewest whose information is nearest to the entropy, of this probability (Meister et al. 2022)."""
    probs_V = scores_V.softmax(0)
    entropy = -torch.special.xlogy(probs_V, probs_V).sum()
    order = (-scores_V.log_softmax(0) - entropy).abs().argsort()
    before_V = probs_V[order].cumsum(0) - probs_V[order]
    scores_V[order[before_V >= value]] = NEVER


def epsilon_cutoff(scores_V: Tensor, value: float, step: Step) -> None:
    """Keep those of at least this probability, and the largest (Hewitt et al. 2022)."""
    _cut(scores_V, value)


def eta_cutoff(scores_V: Tensor, value: float, step: Step) -> None:
    """Keep those of at least min(eta, sqrt(eta) exp(-entropy)), and the largest (Hewitt et al. 2022)."""
    probs_V = scores_V.softmax(0)
    entropy = -torch.special.xlogy(probs_V, probs_V).sum()
    _cut(scores_V, min(value, math.sqrt(value) * math.exp(-float(entropy))))


def _cut(scores_V: Tensor, least: float) -> None:
    probs_V = scores_V.softmax(0)
    cut_V = probs_V < least
    cut_V[probs_V.argmax()] = False
    scores_V[cut_V] = NEVER


def _last(ids: Sequence[int], number: int) -> list[int]:
    return list(ids[len(ids) - number :]) if number else []


RULES: Mapping[str, Callable[[Tensor, Any, Step], None]] = {
    rule.__name__: rule
    for rule in (
        sequence_bias,
        repetition_penalty,
        no_repeat_ngram_size,
        bad_words_ids,
        min_length,
        min_new_tokens,
        forced_eos_token_id,
        exponential_decay_length_penalty,
        suppress_tokens,
        begin_suppress_tokens,
        temperature,
        top_k,
        top_p,
        min_p,
        typical_p,
        epsilon_cutoff,
        eta_cutoff,
    )
}
"""By the option's name, in the order in which they apply."""


def probabilities(logits_V: Tensor, options: Mapping[str, Any], step: Step) -> Tensor:
    """Return the probabilities [V] that the next id is drawn with."""
    scores_V = logits_V.double().clone()
    for name, rule in RULES.items():
        if name in options:
            rule(scores_V, options[name], step)
    return scores_V.softmax(0)
