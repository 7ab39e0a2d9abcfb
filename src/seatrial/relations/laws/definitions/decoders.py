"""R35.decoders: every decoder samples as the model's own forward computes, for every trait of an architecture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.definitions.drawing import drawn_otherwise
from seatrial.relations.laws.definitions.made import Seeded, seeded, without

NUM_TOKENS = 7
ROUNDED = 0.005
"""Share of elements that may differ by rounding: sums in another order, and not a rounding more or less."""
SETTINGS: Sequence[dict[str, Any]] = (
    {},
    {"top_k": 7, "temperature": 1.3},
    {"top_p": 0.8},
    {"greedy": True, "temperature": 0.7, "top_k": 9},
)
DECODERS = Relation(
    id="R35.decoders",
    name="decoders-follow-the-model",
    component="definitions",
    statement="Each decoder draws from the logits of the model's own forward, for every trait, row and token, and "
    "rounds where the model rounds.",
    catalogue="SB007 SB038 SB050 SB053 SB060 SB134",
    cost="CPU, seconds",
    cases=seeded,
    seeded=False,
)


@DECODERS.law(
    "samples are those of the model",
    "a window off by one, positions of padding, rows exchanged when one ends, a scale or a bias left out",
    excluded=without("sample"),
)
def samples_are_those_of_the_model(stack: Any, case: Seeded) -> Measure:
    """Sample rows of unequal prompts that end at different tokens; draw each token again from the model's logits."""
    wrong = []
    for number, (decoder, model) in enumerate(stack.definitions["decoders"]()):
        stream = torch.Generator().manual_seed(100 * case.seed + number)
        size = int(stack.definitions["logits"](model, [3]).shape[-1])
        prompts = [
            tuple(torch.randint(3, size, (length,), generator=stream).tolist()) for length in (5, 2, 7)
        ]
        rows = [prompts[0], prompts[1], prompts[0], prompts[2], prompts[1], prompts[2]]
        numbers_BT = torch.rand(len(rows), NUM_TOKENS, generator=stream, dtype=torch.float64)
        ends = frozenset(torch.randperm(size, generator=stream)[: size // 6].tolist())
        settings = SETTINGS[number % len(SETTINGS)]
        # The second call has rows of one length, which need no padding, and ends before any of them.
        for given, numbers, end in (
            (rows, numbers_BT, ends),
            (rows[:1], numbers_BT[-1:, :2], frozenset[int]()),
        ):
            sampled = stack.definitions["sample"](decoder, model, given, numbers, settings, end)
            wrong += [
                f"{decoder} decoder of {model}: {why}"
                for why in _errors(stack, model, given, sampled, numbers, settings, end)
            ]
    return Measure.count(wrong, "rows that are not those of the model's own logits")


def _errors(
    stack: Any,
    model: str,
    prompts: Sequence[tuple[int, ...]],
    sampled: Sequence[Any],
    numbers_BT: Tensor,
    settings: dict[str, Any],
    ends: frozenset[int],
) -> list[str]:
    """Return what is wrong with rows: (ids, log-probabilities, kept ids of each token or None)."""
    found = [f"{len(sampled)} rows for {len(prompts)} prompts"] * (len(sampled) != len(prompts))
    for row, (prompt, (ids, logprobs, kept)) in enumerate(zip(prompts, sampled, strict=False)):
        due = next((place for place, token in enumerate(ids, 1) if token in ends), numbers_BT.shape[1])
        if len(ids) != due or len(logprobs) != due or (kept is not None and len(kept) != due):
            found.append(f"row {row} has {len(ids)} tokens, expected {due}")
            continue
        logits_TV = stack.definitions["logits"](model, [*prompt, *ids])[len(prompt) - 1 : -1]
        found += [
            f"row {row}: {why}"
            for why in drawn_otherwise(
                logits_TV.float(), numbers_BT[row, : len(ids)], settings, ids, logprobs, kept
            )
        ]
    return found


@DECODERS.law(
    "layers round as the model's",
    "a norm rounded after its weight, a product that is not rounded, frequencies in the type of the weights",
    excluded=without("layer parts"),
)
@torch.no_grad()
def layers_round_as_the_model(stack: Any, case: Seeded) -> Measure:
    """Compare the bits of each part of a layer in bfloat16 with those of the model's own part."""
    found = []
    for name, own, models, inputs in stack.definitions["layer parts"](case.seed):
        one, other = own(inputs), models(inputs)
        if one.dtype != other.dtype or one.shape != other.shape:
            found.append((1.0, f"{name}: {one.dtype} {tuple(one.shape)}"))
            continue
        found.append((float((one != other).double().mean()), name))
    return Measure.largest(found, ROUNDED, "share of elements that differ from the model's")


@DECODERS.law(
    "loaded models compute as their class",
    "a kind of attention that leaves a trait out, a type of the files that is kept, a weight that is not read",
    excluded=without("loaded"),
)
def loaded_models_compute(stack: Any, case: Seeded) -> Measure:
    """Compare the logits of models loaded from files with those of their class in float32, relative to their spread."""
    found = [
        (float((own - other).abs().max() / other.std()), name)
        for name, own, other in stack.definitions["loaded"]()
    ]
    return Measure.largest(found, 1e-4, "logits of a loaded model")
