"""What the losses of GRPO and RLOO are by their definitions, row by row in float64, of a batch that is made here.

Ratios, advantages and lengths are far apart, some tokens are not the model's own and a row may have none that trains,
so that each option, bound and divisor shows in the loss, its gradients or the figures that are logged of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seatrial.targets.common.tiny import ordinary_ids, tiny_model, tiny_tokenizer

LENGTHS = ((2, 5), (4, 3), (3, 6), (1, 2))
"""Tokens of the prompt and of the completion, by row."""
ADVANTAGES = (1.2, -0.7, 0.4, -1.5)
SHIFTS = (-0.1, 0.3, 0.2, 0.1)
"""Of the old policy's log-probabilities from the present ones, in the mean."""
EXTERNAL, AWAY = ((0, 1), (1, 2), (2, 3), (2, 4)), 3.0
"""Row and place of tokens that are not the model's own, and how much larger all that is given of them is."""
NUM_ITEMS = 37
"""Tokens that train in the whole window."""


class Line(NamedTuple):
    """A row of the batch, without padding: its ids, and what is given of each token of its completion."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    advantage: float
    old: tuple[float, ...]
    reference: tuple[float, ...]
    trains: tuple[int, ...]


class Numbers(NamedTuple):
    """What is worked out of a batch."""

    loss: Tensor
    figures: Mapping[str, float]


@lru_cache(maxsize=1)
def _plain() -> Any:
    return tiny_model(tiny_tokenizer(), 0).double().eval()


def _logits(model: Any, line: Line, temperature: float) -> Tensor:
    """Return the logits of the completion's tokens, [T, V]."""
    ids = torch.tensor([[*line.prompt, *line.completion]])
    found: Tensor = model(input_ids=ids, use_cache=False).logits[0, len(line.prompt) - 1 : -1] / temperature
    return found


def lines_of(
    temperature: float, masked: Sequence[int], *, external: bool = False, negative: bool = False
) -> list[Line]:
    """Return the rows; of those whose place is in `masked`, no token trains."""
    known, stream = ordinary_ids(tiny_tokenizer()), torch.Generator().manual_seed(5)

    def noise(count: int, scale: float) -> list[float]:
        return (scale * torch.randn(count, generator=stream, dtype=torch.float64)).tolist()

    found = []
    for number, (asked, said) in enumerate(LENGTHS):
        ids = [known[int(at)] for at in torch.randint(len(known), (asked + said,), generator=stream)]
        made = Line(tuple(ids[:asked]), tuple(ids[asked:]), ADVANTAGES[number], (), (), ())
        if negative:
            made = made._replace(advantage=-abs(made.advantage))
        with torch.no_grad():
            own = _own(_logits(_plain(), made, temperature), made).tolist()
        outside = {place for row, place in EXTERNAL if row == number and external}
        apart = [[SHIFTS[number] + one for one in noise(said, 0.4)], noise(said, 0.7)]
        old, reference = (
            [
                one + more + AWAY * (at in outside)
                for at, (one, more) in enumerate(zip(own, each, strict=True))
            ]
            for each in apart
        )
        trains = tuple(int(number not in masked and place not in outside) for place in range(said))
        found.append(made._replace(old=tuple(old), reference=tuple(reference), trains=trains))
    return found


def _own(logits_TV: Tensor, line: Line) -> Tensor:
    return logits_TV.log_softmax(-1).gather(-1, torch.tensor(line.completion)[:, None])[:, 0]


def trained_of(values: Iterable[Any], line: Line) -> list[Any]:
    return [value for value, on in zip(values, line.trains, strict=True) if on]


def _ratio(own: Tensor, line: Line, level: str) -> Tensor:
    """Return the ratio of a row's tokens to the old policy, [T]; at the level of sequences all are one."""
    moved = own - torch.tensor(line.old, dtype=own.dtype)
    if level == "sequence":
        return torch.exp(sum(trained_of(list(moved), line), own.sum() * 0) / max(1, sum(line.trains))).expand(
            len(own)
        )
    return torch.exp(moved)


def surrogate_of(options: Mapping[str, Any], own: Tensor, ratio: Tensor, line: Line) -> Tensor:
    """Return the terms of a row's tokens, [T]."""
    kind, gain = str(options["loss_type"]), line.advantage
    low, high = options["epsilon"], options["epsilon_high"]
    if kind == "cispo":
        return -ratio.clamp(max=high).detach() * gain * own
    if kind == "sapo":
        heat: float = options["sapo_temperature_pos" if gain > 0 else "sapo_temperature_neg"]
        return torch.sigmoid(heat * (ratio - 1)) * (-4 / heat * gain)
    if kind == "vespo":
        return -_gamma(options, own, line) * gain * own
    cut = ratio.clamp(1 - low, 1 + high)
    bounded = ratio if options["delta"] is None else ratio.clamp(max=options["delta"])
    return -torch.minimum(bounded * gain, cut * gain)


def _gamma(options: Mapping[str, Any], own: Tensor, line: Line) -> float:
    """Return VESPO's weight of a row: e^l w^k e^(-l w), w being the ratio of the whole row."""
    sign = "pos" if line.advantage >= 0 else "neg"
    power, rate = options[f"vespo_k_{sign}"], max(options[f"vespo_lambda_{sign}"], 1e-4)
    moved = sum(trained_of((own.detach() - torch.tensor(line.old)).tolist(), line))
    weight = min(max(moved, math.log(1e-8)), 20.0)
    return math.exp(rate + power * weight - rate * math.exp(weight))


BIAS = "use_bias_correction_kl"
"""An option whose default releases have changed."""
DEFAULTS: Mapping[str, Any] = {
    "loss_type": "dapo",
    "beta": 0.0,
    "epsilon": 0.2,
    "epsilon_high": 0.2,
    "delta": None,
    "importance_sampling_level": "token",
    "temperature": 0.8,
    "top_entropy_quantile": 1.0,
    "off_policy_mask_threshold": None,
    BIAS: False,
    "entropy_coef": 0.0,
    "max_completion_length": 8,
}
"""What the definition reads where a case says nothing."""


def _of_grpo(options: Mapping[str, Any], lines: Sequence[Line], model: Any, parts: int) -> Numbers:
    """Return GRPO's loss of the rows, one micro-batch of `parts` of a step, and what is logged of them."""
    heat, level, kind = (options[one] for one in ("temperature", "importance_sampling_level", "loss_type"))
    logits = [_logits(model, line, heat) for line in lines]
    owns = [_own(one, line) for one, line in zip(logits, lines, strict=True)]
    entropies = [-(one.softmax(-1) * one.log_softmax(-1)).sum(-1) for one in logits]
    ratios = [_ratio(own, line, level) for own, line in zip(owns, lines, strict=True)]
    every = [
        float(value) for one, line in zip(entropies, lines, strict=True) for value in trained_of(one, line)
    ]
    bound = -math.inf
    if options["top_entropy_quantile"] < 1:
        bound = float(torch.tensor(every).quantile(1 - options["top_entropy_quantile"]))
    terms, kls, chosen = [], [], []
    for line, own, ratio, entropy in zip(lines, owns, ratios, entropies, strict=True):
        term = surrogate_of(options, own, ratio, line)
        if (limit := options["off_policy_mask_threshold"]) is not None and line.advantage < 0:
            moved = trained_of((torch.tensor(line.old) - own.detach()).tolist(), line)
            term = term * float(sum(moved) / max(1, len(moved)) <= limit)
        chosen.append(trained_of((entropy.float() >= bound - 1e-6).tolist(), line))
        term = term * (entropy.float() >= bound - 1e-6)
        apart = torch.tensor(line.reference, dtype=own.dtype) - own
        kl = torch.exp(apart) - apart - 1
        kl = kl * ratio if options[BIAS] else kl
        terms.append(trained_of(term + options["beta"] * kl if options["beta"] else term, line))
        kls += [float(one) for one in trained_of(kl, line)]
    sums = torch.stack([sum(one, owns[0].sum() * 0) for one in terms])
    counts = [len(one) for one in terms]
    if kind in ("grpo", "sapo"):
        loss = (sums / torch.tensor([max(1, one) for one in counts])).mean() / parts
    elif kind == "bnpo":
        loss = sums.sum() / max(1, sum(counts)) / parts
    elif kind == "dr_grpo":
        loss = sums.sum() / (len(lines) * options["max_completion_length"]) / parts
    elif kind == "luspo":
        loss = sums.mean() / parts
    else:
        loss = sums.sum() / (NUM_ITEMS * options["share"])
    own_entropies = [
        value for one, line in zip(entropies, lines, strict=True) for value in trained_of(one, line)
    ]
    if options["entropy_coef"]:
        flags = [flag for one in chosen for flag in one]
        kept = [one for one, flag in zip(own_entropies, flags, strict=True) if flag]
        loss = loss - options["entropy_coef"] * torch.stack(kept).mean() / parts
    figures = {"entropy": float(torch.stack(own_entropies).mean())}
    if options["beta"]:
        figures["kl"] = sum(kls) / len(kls)
    return Numbers(loss, {**figures, **_clipped(options, ratios, lines)})


def _clipped(options: Mapping[str, Any], ratios: Sequence[Tensor], lines: Sequence[Line]) -> dict[str, float]:
    """Return the shares of ratios that the clip holds, as they are logged."""
    kind, low, high = (options[one] for one in ("loss_type", "epsilon", "epsilon_high"))
    sequences = options["importance_sampling_level"] == "sequence"

    def parts(test: Callable[[float], bool], sign: int) -> list[list[bool]]:
        """Return by row the tokens, or the one sequence, for which a test of the ratio holds."""
        made = []
        for ratio, line in zip(ratios, lines, strict=True):
            kept = ratio[:1].tolist() if sequences else trained_of(ratio.tolist(), line)
            made.append([test(one) and line.advantage * sign > 0 for one in kept])
        return made

    def mean(rows: Sequence[Sequence[bool]]) -> float:
        flat = [one for row in rows for one in row]
        return sum(flat) / len(flat)

    if kind == "cispo":
        return {"cispo_clip_ratio": mean(parts(lambda one: one > high, 1))}
    if kind in ("sapo", "vespo"):
        return {}
    limit = math.inf if options["delta"] is None else options["delta"]
    lows = parts(lambda one: one < 1 - low, -1)
    highs = parts(lambda one: min(one, limit) > 1 + high, 1)
    return {
        "clip_ratio/low_mean": mean(lows),
        "clip_ratio/high_mean": mean(highs),
        "clip_ratio/region_mean": mean(lows) + mean(highs),
        "clip_ratio/low_min": min(sum(row) / len(row) for row in lows if row),
        "clip_ratio/high_max": max(sum(row) / len(row) for row in highs if row),
    }


def _of_rloo(options: Mapping[str, Any], lines: Sequence[Line], model: Any, parts: int) -> Numbers:
    """Return RLOO's loss of the rows, whose ratio is that of all their tokens."""
    logits = [_logits(model, line, options["temperature"]) for line in lines]
    terms, entropies, lows, highs = [], [], [], []
    low, high = options["epsilon"], options["epsilon_high"]
    for line, one in zip(lines, logits, strict=True):
        moved = trained_of(list(_own(one, line) - torch.tensor(line.old)), line)
        ratio = torch.exp(sum(moved, one.sum() * 0))
        terms.append(-torch.minimum(ratio * line.advantage, ratio.clamp(1 - low, 1 + high) * line.advantage))
        entropies += trained_of(list(-(one.softmax(-1) * one.log_softmax(-1)).sum(-1)), line)
        lows.append(float(ratio < 1 - low and line.advantage < 0))
        highs.append(float(ratio > 1 + high and line.advantage > 0))
    figures = {
        "entropy": float(torch.stack(entropies).mean()),
        "clip_ratio/low_mean": sum(lows) / len(lows),
        "clip_ratio/high_mean": sum(highs) / len(highs),
        "clip_ratio/region_mean": (sum(lows) + sum(highs)) / len(lows),
        "clip_ratio/low_min": min(lows),
        "clip_ratio/high_max": max(highs),
    }
    return Numbers(torch.stack(terms).mean(), figures)


DEFINITIONS: Mapping[str, Callable[..., Numbers]] = {"GRPO": _of_grpo, "RLOO": _of_rloo}
