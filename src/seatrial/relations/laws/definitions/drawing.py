"""R35.drawing: tokens are drawn from the configured distribution, each with its own random number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.definitions.made import Seeded, seeded, without
from seatrial.relations.oracles.runs import configured_support

VOCABULARY = 23
LAST = 1.0 - 2.0**-53
"""The largest number below 1: that of the last token that can be drawn."""
MARGIN = 1e-5
"""Probability within which a token may be drawn for its neighbour's number: rounding of float32."""
SETTINGS: Sequence[Mapping[str, Any]] = (
    {},
    {"temperature": 0.3},
    {"temperature": 2.5},
    {"top_k": 1},
    {"top_k": 5, "temperature": 1.7},
    {"top_k": VOCABULARY},
    {"top_k": VOCABULARY + 7},
    {"top_p": 0.6},
    {"top_p": 1e-6},
    {"top_k": 6, "top_p": 0.7, "temperature": 1.4},
    {"greedy": True},
    {"greedy": True, "top_k": 4, "temperature": 0.5},
)
REQUESTS = 3
"""Parts of a request after the first."""

DRAWING = Relation(
    id="R35.drawing",
    name="tokens-are-drawn-by-definition",
    component="definitions",
    statement="A token is the one at which the configured distribution passes its own random number; rows, requests "
    "and their parts have numbers of their own.",
    catalogue="SB038 SB039 SB040 SB051 SB056 SB120",
    cost="CPU, milliseconds",
    cases=seeded,
)


@DRAWING.law(
    "tokens follow the distribution",
    "filters before the temperature, ties cut by their ids, a bound off by one, another distribution reported",
    excluded=without("draw"),
)
def tokens_follow_the_distribution(stack: Any, case: Seeded) -> Measure:
    """Draw with each setting from logits with ties, and compare ids, log-probabilities and kept ids."""
    stream = case.stream()
    wrong: list[str] = []
    for settings in SETTINGS:
        for dtype in (torch.float32, torch.bfloat16):
            logits_BV = (3 * torch.randn(7, VOCABULARY, generator=stream)).to(dtype)
            if not {"top_k", "top_p"} <= settings.keys():  # what ties may be kept for either filter's reason
                logits_BV[1, 4:9] = logits_BV[1, 4]
            numbers_B = torch.rand(7, generator=stream, dtype=torch.float64)
            numbers_B[:2] = torch.tensor([0.0, LAST], dtype=torch.float64)
            ids, logprobs, kept_BV = stack.definitions["draw"](logits_BV.clone(), numbers_B, settings)
            wrong += [
                f"{dict(settings)}, {dtype}: {why}"
                for why in drawn_otherwise(logits_BV.float(), numbers_B, settings, ids, logprobs, kept_BV)
            ]
    return Measure.count(wrong, "tokens that are not those of the distribution")


def drawn_otherwise(
    logits_BV: Tensor,
    numbers_B: Tensor,
    settings: Mapping[str, Any],
    ids_B: Sequence[int],
    logprobs_B: Sequence[float],
    kept_BV: Sequence[Sequence[int]] | None,
) -> Iterator[str]:
    """Yield how tokens differ from those of the settings.

    Args:
        logits_BV: of the model.
        numbers_B: random numbers of the rows.
        settings: `temperature`, `top_k`, `top_p` and `greedy`; those that are missing change nothing.
        ids_B: drawn.
        logprobs_B: reported.
        kept_BV: ids that the filters kept, ascending; None: no filter was at work.
    """
    temperature, greedy = settings.get("temperature", 1.0), settings.get("greedy", False)
    top_k, top_p = settings.get("top_k"), settings.get("top_p", 1.0)
    supports = configured_support(logits_BV, temperature, top_k, top_p)
    size = logits_BV.shape[-1]
    filters = not greedy and ((top_k or size) < size or top_p < 1.0)
    if filters != (kept_BV is not None):
        yield f"kept ids are {'missing' if filters else 'given without a filter'}"
    for row, (must, may) in enumerate(supports):
        kept = set(range(size)) if kept_BV is None else set(kept_BV[row])
        if kept_BV is not None and not must <= kept <= may:
            yield f"row {row} keeps {sorted(kept)}, the definition {sorted(must)} to {sorted(may)}"
            continue
        # A greedy token has its probability under the distribution that would have been sampled from.
        chosen = sorted(may if kept_BV is None else kept)
        probs_V = torch.zeros(size, dtype=torch.float64)
        probs_V[chosen] = (logits_BV[row].double() / temperature)[chosen].softmax(0)
        token, number = int(ids_B[row]), float(numbers_B[row])
        before = float(probs_V[:token].sum())
        if greedy:
            right = float(logits_BV[row].max() - logits_BV[row, token]) <= MARGIN
        else:
            right = (
                float(probs_V[token]) > 0
                and before - MARGIN <= number <= before + float(probs_V[token]) + MARGIN
            )
        if not right:
            yield f"row {row} draws {token} for {number:.3g}, which is that of {before:.3g} and more"
        elif not abs(float(logprobs_B[row]) - math.log(probs_V[token])) <= 1e-4:
            yield f"row {row} reports {float(logprobs_B[row]):.4g} for {math.log(probs_V[token]):.4g}"


@DRAWING.law(
    "rows have numbers of their own",
    "a seed for all rows, numbers that change with the length",
    excluded=without("row numbers"),
)
def rows_have_their_numbers(stack: Any, case: Seeded) -> Measure:
    """Check that a row's numbers begin alike for any length and number of rows, and differ from other rows'."""
    numbers = stack.definitions["row numbers"]
    long_BT, short_BT, other_BT = (
        numbers(5, 9, case.seed),
        numbers(3, 4, case.seed),
        numbers(5, 9, case.seed + 1),
    )
    wrong = ["a shorter call draws other numbers"] * (not torch.equal(long_BT[:3, :4], short_BT))
    wrong += ["another call repeats them"] * bool(torch.isin(long_BT, other_BT).any())
    wrong += ["two tokens have one number"] * (len(set(long_BT.flatten().tolist())) < long_BT.numel())
    wrong += ["a number is not in [0, 1)"] * (not bool(((long_BT >= 0) & (long_BT < 1)).all()))
    return Measure.count(wrong, "random numbers of rows that are wrong")


@DRAWING.law(
    "parts have numbers of their own",
    "a continuation that draws the numbers of its first part, or of another request, again",
    excluded=without("continuation numbers"),
)
def parts_have_their_numbers(stack: Any, case: Seeded) -> Measure:
    """Check that parts of requests draw different numbers, and the same ones for the same seed."""
    numbers = stack.definitions["continuation numbers"]
    drawn = {
        f"part {part} of the request from row {row}, seed {seed}": tuple(values)
        for seed in (case.seed, case.seed + 1)
        for row in (0, 4)
        for part, values in enumerate(numbers(seed, row, REQUESTS))
    }
    names = list(drawn)
    wrong = [
        f"{one} and {other}"
        for place, one in enumerate(names)
        for other in names[:place]
        if set(drawn[one]) & set(drawn[other])
    ]
    again = [tuple(values) for values in numbers(case.seed, 0, REQUESTS)]
    wrong += ["a repeated request draws others"] * (again != [drawn[name] for name in names[: len(again)]])
    return Measure.count(wrong, "parts that share random numbers")


@DRAWING.law(
    "requests share the rows out",
    "rows counted by groups, a share without its first row",
    excluded=without("shares of requests"),
    seeded=False,
)
def requests_share_the_rows(stack: Any, case: Seeded) -> Measure:
    """Check that requests have all rows once, in order, from the places that they name, and prompts stay together."""
    wrong = []
    for copies, replicas in ((1, 3), (4, 3), (3, 2), (2, 5), (5, 1), (0, 2)):
        prompts = [(1 + number, 7) for number in range(5) for _ in range(copies)]
        requests = stack.definitions["shares of requests"](prompts, replicas)
        rows = [tuple(prompt) for share, _ in requests for prompt in share]
        firsts = [sum(len(share) for share, _ in requests[:number]) for number in range(len(requests))]
        named = [first for _, first in requests]
        what = f"{copies} copies of 5 prompts for {replicas} replicas"
        wrong += [f"{what}: {rows}"] * (rows != prompts)
        wrong += [f"{what}: rows from {named}, expected {firsts}"] * (named != firsts)
        wrong += [f"{what}: {len(requests)} requests"] * (len(requests) > replicas)
        together = all(len(set(share)) * copies == len(share) for share, _ in requests)
        wrong += [f"{what}: a prompt is in two requests"] * (not together)
    return Measure.count(wrong, "requests that are not their share of the rows")


@DRAWING.law(
    "rare tokens keep their probability",
    "a sum in float32, in which tokens of little probability are lost",
    excluded=without("draw"),
    seeded=False,
)
def rare_tokens_keep_theirs(stack: Any, case: Seeded) -> Measure:
    """Draw for numbers within, before and after the share of a token of one in ten thousand million."""
    logits_V = torch.tensor([0.0, -23.0, -30.0])
    share = float(logits_V.double().softmax(0)[1:].sum())
    numbers_B = torch.tensor([0.5, 1 - 1.5 * share, 1 - 0.5 * share], dtype=torch.float64)
    ids, _, _ = stack.definitions["draw"](logits_V.repeat(3, 1), numbers_B, {})
    return Measure.count(
        [f"{list(ids)}, expected [0, 0, 1]"] * (list(ids) != [0, 0, 1]), "tokens for these numbers"
    )


@DRAWING.law(
    "parts make one completion",
    "kept ids or a mask of one part alone, the finish reason of the first part",
    excluded=without("join parts"),
    seeded=False,
)
def parts_make_one_completion(stack: Any, case: Seeded) -> Measure:
    """Join parts with and without kept ids and masks; a part without a mask was sampled whole."""
    first, second, third = (((5, 6), (-1.0, -2.0)), ((7,), (-3.0,)), ((8, 9), (-4.0, -5.0)))
    kept = ((5,), (6, 9)), ((1, 7),), ((8,), (2, 9))
    wrong = []
    for masks in ((None, None, None), ((1, 0), None, (0, 1)), (None, (0,), None), (None, None, (1, 0))):
        for filtered in (False, True):
            parts = [
                (*part, "abort" if number < 2 else "stop", kept[number] if filtered else None, masks[number])
                for number, part in enumerate((first, second, third))
            ]
            whole = stack.definitions["join parts"](parts)
            mask = tuple(
                on for part, own in zip(parts, masks, strict=True) for on in (own or (1,) * len(part[0]))
            )
            due = (
                (5, 6, 7, 8, 9),
                (-1.0, -2.0, -3.0, -4.0, -5.0),
                "stop",
                tuple(ids for part in kept for ids in part) if filtered else None,
                mask if any(masks) else None,
            )
            wrong += [
                f"{one}, expected {other}" for one, other in zip(whole, due, strict=True) if one != other
            ]
    return Measure.count(wrong, "fields of a completion that are not its parts'")
