"""Steps of distillation between tokenizers: GOLD's universal logit distillation (Boizard et al. 2025), by words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seatrial.targets.trl.compared.definitions.distilled import conversations
from seatrial.targets.trl.compared.definitions.setting import Setting, average, divergence, logprobs_of

SMALLEST = 1e-8
"""Probability that smaller ones count as."""


class Words(NamedTuple):
    """An answer as a model's tokens, its end of text left out."""

    ids: Sequence[int]
    ends: Sequence[int]
    """Byte of the answer's text at which each token ends."""
    probs: Tensor
    """Of the vocabulary [T, V]; of a token, or of what follows it where the merge strategy is `observed`."""


def universal(setting: Setting) -> Tensor:
    """Return the mean over rows of the distance of sorted probabilities, with the likelihood of the answers."""
    rows, likelihoods = [], []
    for prompt, answer in conversations(setting):
        likelihoods.append(-logprobs_of(setting.policy, prompt, answer))
        rows.append(_row(setting, prompt, answer))
    setting.evaluates = setting.option("lmbda") == 0  # evaluated answers are given
    weight: float = setting.option("uld_distillation_weight", 1.0)
    loss = weight * average(rows)
    if weight := setting.option("uld_crossentropy_weight", 0.0):
        loss = loss + weight * torch.cat(likelihoods).mean()
    return loss


def _row(setting: Setting, prompt: Sequence[int], answer: Sequence[int]) -> Tensor:
    option, other = setting.option, setting.teacher_tokenizer
    shown, text = (setting.tokenizer.decode(ids, skip_special_tokens=False) for ids in (prompt, answer))
    before, seen = (other(one, add_special_tokens=False)["input_ids"] for one in (shown, text))
    seen = [*seen, other.eos_token_id]
    student = _words(setting, setting.tokenizer, setting.policy, prompt, answer, "student")
    teacher = _words(setting, other, setting.teacher, before, seen, "teacher")
    if not student.ids or not teacher.ids:
        return 0.0 * student.probs.sum()
    if option("use_extended_uld", True):
        pairs = _aligned(student.ends, teacher.ends)
        left = torch.stack([_merged(setting, student, own) for own, _ in pairs])
        right = torch.stack([_merged(setting, teacher, own) for _, own in pairs]).detach()
    else:
        most = min(len(student.ids), len(teacher.ids))
        left, right = student.probs[:most], teacher.probs[:most].detach()
    if option("uld_use_hybrid_loss", False):
        return _hybrid(setting, left, right)
    return _sorted_distance(left, right)


def _words(
    setting: Setting, tokenizer: Any, model: Any, prompt: Sequence[int], ids: Sequence[int], role: str
) -> Words:
    logits = model(input_ids=torch.tensor([[*prompt, *ids]]), use_cache=False).logits[0]
    shift = setting.option("uld_token_merge_strategy") == "bayesian"
    logits = logits[len(prompt) - shift :][: len(ids)]
    probs = (logits / setting.option(f"uld_{role}_temperature", 1.0)).softmax(-1)
    # The teacher's end token, which is appended, has no text of its own.
    own = [*ids[:-1], None] if role == "teacher" else ids
    sizes = [0 if one is None else len(tokenizer.decode([one]).encode()) for one in own]
    ends = [sum(sizes[: place + 1]) for place in range(len(ids))]
    kept = len(ids) - bool(setting.option(f"uld_skip_{role}_eos", True))
    return Words(ids[:kept], ends[:kept], probs[:kept])


def _aligned(one: Sequence[int], other: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return the tokens of both sides between places where both end; what is left of both is a last pair."""
    found, left, right = [], 0, 0
    for end in sorted({*one} & {*other}):
        first, second = one.index(end) + 1, other.index(end) + 1
        found.append(([*range(left, first)], [*range(right, second)]))
        left, right = first, second
    rest = ([*range(left, len(one))], [*range(right, len(other))])
    return [*found, rest] if all(rest) else found


def _merged(setting: Setting, words: Words, group: Sequence[int]) -> Tensor:
    """Return the distribution of a word: that of one token, times the probabilities of the other ones."""
    is_last = setting.option("uld_token_merge_strategy") == "bayesian"
    own = group[-1] if is_last else group[0]
    merged = words.probs[own]
    for place in group:
        if place != own:
            merged = merged * words.probs[place, words.ids[place]].clamp(min=SMALLEST)
    return merged


def _sorted_distance(left: Tensor, right: Tensor) -> Tensor:
    width = max(left.shape[-1], right.shape[-1])
    ordered = [
        torch.nn.functional.pad(one.sort(-1, descending=True).values, (0, width - one.shape[-1]))
        for one in (left, right)
    ]
    return (ordered[0] - ordered[1]).abs().sum() / len(left)


def _hybrid(setting: Setting, left: Tensor, right: Tensor) -> Tensor:
    """Return the divergence of tokens that both vocabularies have, and the sorted distance of the others."""
    own, other = setting.tokenizer.get_vocab(), setting.teacher_tokenizer.get_vocab()
    both = sorted(own.keys() & other.keys())
    mine, theirs = [own[one] for one in both], [other[one] for one in both]
    logs = [values.clamp(min=SMALLEST).log() for values in (left[:, mine], right[:, theirs])]
    matched = divergence(logs[0], logs[1], setting.option("beta")).mean()
    rest = [
        values[:, [place for place in range(values.shape[-1]) if place not in {*used}]]
        for values, used in ((left, mine), (right, theirs))
    ]
    share = len(both) / right.shape[-1]
    weight = setting.option("uld_hybrid_matched_weight", share)
    other_weight = setting.option("uld_hybrid_unmatched_weight", 1 - share)
    loss: Tensor = weight * matched + other_weight * _sorted_distance(*rest)
    return loss
