"""R31.expert_load: the load of experts in rollouts, by answered tokens, of one batch and of several steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.numbers import Numbers
from seatrial.relations.laws.utilities.plain import FLOAT32, Plain, add_laws, relation_of

LOAD = relation_of(
    "expert_load",
    "the-load-of-experts-is-that-of-answered-tokens",
    "Each token that the model has answered and read again counts once for each expert that it went to, in each layer.",
)
NUM_EXPERTS = 12
"""More than ten, so that an order by name is not one by number."""
NUM_LAYERS = 3
TOP = 2
P, T = 3, 6


class Routed(NamedTuple):
    """A batch of rollouts."""

    experts_BSLK: Tensor
    """Of prompts and answers; the slot of the last answered token and of padding is 0."""
    mask_BT: Tensor
    """1 on tokens that the model answered; a tool's output between is 0."""


def routed(case: Numbers, number: int = 0, masks: Sequence[Sequence[int]] | None = None) -> Routed:
    """Return rows of unequal lengths, one with a tool's output and one of a single token."""
    own = torch.Generator().manual_seed(1000 * case.seed + number)
    masks = masks or ([1] * T, [1, 1, 0, 0, 1, 1], [1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0])
    mask_BT = torch.tensor(masks)
    # Routers that are out of balance: squares of uniform numbers prefer the first experts.
    drawn = torch.rand(len(masks), P + T, NUM_LAYERS, TOP, generator=own).square() * NUM_EXPERTS
    experts_BSLK = drawn.long()
    for row, mask in enumerate(masks):
        answered = [place for place, on in enumerate(mask) if on]
        last = answered[-1] if answered else 0
        experts_BSLK[row, P + last :] = 0
    return Routed(experts_BSLK, mask_BT)


def counts_of(batches: Sequence[Routed]) -> list[list[int]]:
    """Return how often each expert of each layer was taken; the last answered token of a row was not read again."""
    counts = [[0] * NUM_EXPERTS for _ in range(NUM_LAYERS)]
    for batch in batches:
        for experts_SLK, mask_T in zip(batch.experts_BSLK.tolist(), batch.mask_BT.tolist(), strict=True):
            answered = [place for place, on in enumerate(mask_T) if on]
            for place in answered[:-1]:
                for layer, taken in enumerate(experts_SLK[P + place]):
                    for expert in taken:
                        counts[layer][expert] += 1
    return counts


def load_of(batches: Sequence[Routed]) -> dict[str, float]:
    """Return the violation of a balanced load by layer, and over layers; nothing if no token counts."""
    counts = counts_of(batches)
    if not any(map(sum, counts)):
        return {}
    found: dict[str, float] = {}
    kinds: dict[str, list[float]] = {"max_vio": [], "min_vio": [], "avg_vio": []}
    for layer, own in enumerate(counts):
        deviations = [NUM_EXPERTS * one / sum(own) - 1.0 for one in own]
        violations = {
            "max_vio": max(deviations),
            "min_vio": min(deviations),
            "avg_vio": math.fsum(map(abs, deviations)) / NUM_EXPERTS,
        }
        for kind, value in violations.items():
            found[f"rollout/moe/{kind}/layer_{layer}"] = value
            kinds[kind].append(value)
    for kind, values in kinds.items():
        found[f"rollout/moe/{kind}/max"] = max(values)
        found[f"rollout/moe/{kind}/avg"] = math.fsum(values) / len(values)
    return found


def load_of_batch(batch: Routed, num_experts: int) -> dict[str, float]:
    """Return the metrics of one batch."""
    return load_of([batch])


def load_of_steps(batches: Sequence[Routed], interval: int, num_experts: int) -> list[dict[str, float]]:
    """Return what each step logs, from step 1 on: every `interval` steps, the load of the steps since the last time."""
    found: list[dict[str, float]] = []
    since: list[Routed] = []
    for step, batch in enumerate(batches, 1):
        since.append(batch)
        if interval <= 0 or step % interval:
            found.append({})
            continue
        total = sum(map(sum, counts_of(since)))
        found.append(
            {
                **load_of(since),
                "rollout/moe/routed_experts_found": float(total > 0),
                "rollout/moe/routed_expert_assignments": float(total),
            }
        )
        since = []
    return found


NOTHING = ([0] * T, [0] * T)
ONE_EACH = ([1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0])


def _steps(case: Numbers) -> list[Routed]:
    """Return batches of five steps, the third of which has no token that counts."""
    return [routed(case, number, NOTHING if number == 2 else None) for number in range(5)]


def number_of_experts(config: Any) -> int | None:
    """Return the number that a configuration has, by whichever of its names."""
    return None if config is None else NUM_EXPERTS


def configurations() -> Mapping[str, Any]:
    """Return configurations of models in the forms that they come in, by what they are; a dense one is left out."""
    inner = SimpleNamespace(model_type="qwen3_moe", num_experts=NUM_EXPERTS)
    return {
        "num_experts": {"model_type": "qwen3_moe", "num_experts": NUM_EXPERTS},
        "n_routed_experts": SimpleNamespace(model_type="deepseek_v3", n_routed_experts=NUM_EXPERTS),
        "num_local_experts": SimpleNamespace(model_type="mixtral", num_local_experts=NUM_EXPERTS),
        "of a text model": SimpleNamespace(model_type="qwen3_vl_moe", text_config=inner),
        "of a worker's model": {"path": "/nowhere", "hf_config": inner},
    }


add_laws(
    LOAD,
    (
        Plain(
            name="expert load",
            law="the load of one batch",
            suspects="prompts or tools counted, the last token's empty slot taken for expert 0, one expert of several",
            cases=lambda case: [
                (routed(case), NUM_EXPERTS),
                (routed(case, 7, [[1] * T]), NUM_EXPERTS),
                (routed(case, 8, NOTHING), NUM_EXPERTS),
                (routed(case, 9, ONE_EACH), NUM_EXPERTS),
            ],
            right=load_of_batch,
            bound=FLOAT32,
        ),
        Plain(
            name="expert load of steps",
            law="the load of several steps",
            suspects="counts of earlier intervals, a mean of steps' ratios, steps without a token, every step logged",
            cases=lambda case: [(_steps(case), interval, NUM_EXPERTS) for interval in (1, 2, 5, 0)],
            right=load_of_steps,
            bound=FLOAT32,
        ),
        Plain(
            name="number of experts",
            law="numbers of experts of models",
            suspects="a name of one family, the number a token goes to, a configuration within another",
            cases=lambda case: [(one,) for one in configurations().values()],
            right=number_of_experts,
        ),
    ),
)
