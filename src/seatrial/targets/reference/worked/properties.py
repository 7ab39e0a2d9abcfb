"""Worked examples over random inputs: functions of refrl against plain definitions, loops over lists and scalars."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from refrl.algorithms.batching import TrainSample, make_batch
from refrl.algorithms.filters import groups_with_spread
from refrl.algorithms.metrics import MEAN_KEYS, merge_metrics
from refrl.algorithms.microbatches import split_by_tokens
from refrl.algorithms.packing import assign_packs, pack_batch
from refrl.data_plane.columns import Column
from refrl.policy.routers import balance
from refrl.policy.updates import Accumulated, split_updates, take_updates
from refrl.rollout.collect import DrawnPrompt, _fates
from refrl.tasks.base import PromptSource
from refrl.tasks.examples import Example
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import PAD, for_all, made_tensor, sample

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.bool)


def examples() -> Iterator[WorkedExample]:
    """Yield an example of each property: the seeds of the random inputs for which it does not hold are none."""
    yield from for_all(PROPERTIES)


def _ids(stream: random.Random, least: int, most: int) -> list[int]:
    return [stream.randrange(1, 50) for _ in range(stream.randint(least, most))]


def _samples(stream: random.Random, most: int = 6) -> list[TrainSample]:
    return [
        replace(
            sample(_ids(stream, 1, 5), completion := _ids(stream, 1, 5), group=stream.randrange(3)),
            reward=stream.randrange(3) / 2,
            completion_mask=tuple(stream.randrange(2) for _ in completion),
        )
        for _ in range(stream.randint(1, most))
    ]


def _batches(stream: random.Random) -> bool:
    made = _samples(stream)
    side: Literal["right", "left"] = "right" if stream.random() < 0.5 else "left"
    longest = stream.choice((None, 6))
    batch = make_batch(made, pad_token_id=PAD, padding_side=side, max_sequence_length=longest)
    lens = [min(len(one.completion_ids), (longest or 99) - len(one.prompt_ids)) for one in made]
    T = max(lens)
    S = max(len(one.prompt_ids) for one in made) + T
    assert batch.num_truncated_tokens_B is not None
    cut_off = batch.num_truncated_tokens_B.tolist()
    for row, (one, num) in enumerate(zip(made, lens, strict=True)):
        ids = [*one.prompt_ids, *one.completion_ids[:num]]
        before = 0 if side == "right" else S - T - len(one.prompt_ids)
        after = S - before - len(ids)
        mask = [*(one.completion_mask or ())[:num], *[0] * (T - num)]
        logprobs = [-(place + 1) / 8 if valid else 0.0 for place, valid in enumerate(mask)]
        if not (
            batch.input_ids_BS[row].tolist() == [*[PAD] * before, *ids, *[PAD] * after]
            and batch.attention_mask_BS[row].tolist() == [*[0] * before, *[1] * len(ids), *[0] * after]
            and batch.completion_ids_BT[row].tolist() == [*one.completion_ids[:num], *[PAD] * (T - num)]
            and batch.mask_BT[row].tolist() == mask
            and batch.sampling_logprobs_BT[row].tolist() == logprobs
            and cut_off[row] == len(one.completion_ids) - num
            and batch.position_ids_BS[row][batch.attention_mask_BS[row].bool()].tolist() == [*range(len(ids))]
        ):
            return False
    order = [stream.randrange(len(made)) for _ in range(3)]
    chosen, again = batch.rows(order, trim=True), make_batch([made[row] for row in order], pad_token_id=PAD,
                                                             max_sequence_length=longest)  # fmt: skip
    valid = batch.mask_BT.sum(1)
    return (
        int(batch.num_valid_tokens) == int(valid.sum())
        and int(batch.num_valid_seqs) == int((valid > 0).sum())
        and chosen.completion_ids_BT.tolist() == again.completion_ids_BT.tolist()
        and chosen.rewards_B.tolist() == again.rewards_B.tolist()
        and chosen.group_ids_B.tolist() == [made[row].group_id for row in order]
    )


def _packs(stream: random.Random) -> bool:
    made = _samples(stream, most=8)
    batch = make_batch(made, pad_token_id=PAD, padding_side=stream.choice(("right", "left")))
    length = 10 + stream.randrange(6)
    texts = [[*one.prompt_ids, *one.completion_ids] for one in made]
    packs: list[list[int]] = []
    for row in sorted(range(len(texts)), key=lambda row: (-len(texts[row]), row)):
        fits = [pack for pack in packs if sum(len(texts[one]) for one in pack) + len(texts[row]) <= length]
        if not fits:
            packs.append([])
        (fits[0] if fits else packs[-1]).append(row)
    packed = pack_batch(batch, pack_length=length, pad_token_id=PAD)
    values = torch.arange(packed.input_ids_PS.numel()).double().reshape(packed.input_ids_PS.shape)
    unpacked = packed.unpack(values[:, :, None])
    right = assign_packs([len(text) for text in texts], length) == packs
    for number, pack in enumerate(packs):
        left = length - sum(len(texts[row]) for row in pack)
        ids = [token for row in pack for token in texts[row]]
        places = [place for row in pack for place in range(len(texts[row]))]
        segments = [segment for segment, row in enumerate(pack, 1) for _ in texts[row]]
        right &= packed.input_ids_PS[number].tolist() == [*ids, *[PAD] * left]
        right &= packed.position_ids_PS[number].tolist() == [*places, *range(left)]
        right &= packed.segment_ids_PS[number].tolist() == [*segments, *[0] * left]
        first = number * length
        for row in pack:
            right &= (int(packed.first_B[row]), int(packed.lengths_B[row])) == (first, len(texts[row]))
            own = [float(place) for place in range(first, first + len(texts[row]))]
            right &= unpacked[row, :, 0].tolist() == [*own, *[0.0] * (unpacked.shape[1] - len(own))]
            first += len(texts[row])
    return right


def _budgets(stream: random.Random) -> bool:
    prompts = [stream.randint(1, 9) for _ in range(stream.randint(1, 12))]
    completions = [stream.randint(1, 9) for _ in prompts]
    budget = stream.randint(18, 60)
    cut = split_by_tokens(prompts, completions, budget)
    width = [max(prompts[row] for row in part) + max(completions[row] for row in part) for part in cut]
    order = [row for part in cut for row in part]
    longer = [
        (len(part) + 1) * sum(max(lens[row] for row in (*part, after[0])) for lens in (prompts, completions))
        > budget
        for part, after in pairwise(cut)
    ]
    return (
        order == sorted(range(len(prompts)), key=lambda row: -(prompts[row] + completions[row]))
        and all(len(part) * size <= budget for part, size in zip(cut, width, strict=True))
        and all(longer)
    )


def _merged(stream: random.Random) -> bool:
    names = ["loss", "x_min", "x_max", "count", *sorted(MEAN_KEYS)]
    odd = (math.nan, math.inf, -math.inf, 0.5, -2.0, 3.0)
    parts = [
        {name: stream.choice(odd if name.startswith("x_") else (0.0, 0.25, 2.5)) for name in names}
        for _ in range(stream.randint(1, 4))
    ]
    updates = stream.randint(1, 3)
    merged = merge_metrics(parts, num_updates=updates)
    for name in names:
        values = [part[name] for part in parts]
        finite = [value for value in values if math.isfinite(value)] or [-1.0]
        total = sum(values)
        right = {"x_min": min(finite), "x_max": max(finite)}.get(name)
        right = right if right is not None else total / (len(parts) if name in MEAN_KEYS else updates)
        if not math.isclose(merged[name], right):
            return False
    for changed in ({**parts[0], "more": 1.0}, {name: parts[0][name] for name in names[1:]}):
        for unequal in ([*parts, changed], [changed, *parts]):
            try:
                merge_metrics(unequal)
            except ValueError as error:
                if "different metrics" not in str(error):
                    return False
            else:
                return False
    return True


def _spread(stream: random.Random) -> bool:
    groups = [stream.randrange(4) for _ in range(stream.randint(1, 9))]
    rewards = [stream.randrange(2) / 3 for _ in groups]
    own = [
        {reward for reward, other in zip(rewards, groups, strict=True) if other == group} for group in groups
    ]
    found = groups_with_spread(torch.tensor(rewards).double(), torch.tensor(groups))
    return found.tolist() == [len(values) > 1 for values in own]


def _balances(stream: random.Random) -> bool:
    B, S, E, K = stream.randint(1, 3), 4, 5, 2
    logits = made_tensor(stream, [B, S, E]) / 4
    chosen = torch.tensor([[stream.sample(range(E), K) for _ in range(S)] for _ in range(B)])
    mask = torch.tensor([[float(stream.random() < 0.6) for _ in range(S)] for _ in range(B)])
    loss_B, load_E = balance(logits, chosen, mask)
    load = [0.0] * E
    for row in range(B):
        places = [place for place in range(S) if mask[row, place]]
        loss = 0.0
        for expert in range(E):
            sent = sum(expert in chosen[row, place].tolist() for place in places)
            load[expert] += sent
            probs = [float(logits[row, place].double().softmax(-1)[expert]) for place in places]
            if places:
                loss += E * sent / (K * len(places)) * sum(probs) / len(places)
        if not math.isclose(float(loss_B[row]), loss, rel_tol=1e-5, abs_tol=1e-7):
            return False
    return bool(load_E.tolist() == load)


class _Policy:
    """Notes what it trains on; the gradient norm of its last step may not be finite."""

    def __init__(self, norms: Sequence[float]) -> None:
        self.norms, self.trained, self.scored = list(norms), [], []  # type: ignore[var-annotated]

    def accumulate(self, update: Any, loss: Any, *, scores: bool, with_rows: bool) -> Accumulated:
        self.trained.append(update.rewards_B.tolist())
        self.scored.append(scores)
        rows = [[row] for row in range(update.num_rows)] if with_rows else []
        return Accumulated([{"loss": float(update.rewards_B.sum()), "x_min": 3.0}], rows)

    def named_gradients(self) -> dict[str, Tensor]:
        return {"a": torch.ones(1) * len(self.trained)}

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield "a", torch.ones(1) * -len(self.trained)

    def trained_weights(self) -> Mapping[str, Tensor]:
        return {}

    def step(self) -> tuple[float, float]:
        return self.norms.pop(0), 0.5 ** len(self.trained)


def _updates(stream: random.Random) -> bool:
    """Steps are taken in order, a masked one is left out, the first norm that is not finite is the last."""
    num, size = stream.randint(1, 9), stream.randint(1, 4)
    masked = [stream.random() < 0.5 for _ in range(num)]
    rows = [
        replace(sample([1], [2], reward=float(row)), completion_mask=(0 if masked[row] else 1,))
        for row in range(num)
    ]
    batch = make_batch(rows, pad_token_id=PAD)
    steps = [
        [*range(first, min(num, first + size))]
        for first in range(0, num, size)
        if not all(masked[first : first + size])
    ]
    norms = [1.0 + number for number in range(len(steps))]
    if len(steps) > 2 and stream.random() < 0.5:
        norms[1], steps = math.inf, steps[:2]
    policy, seen = _Policy(norms), []  # type: ignore[var-annotated]
    watch = seen.append if stream.random() < 0.5 else None
    if not steps:
        try:
            take_updates(policy, batch, None, watch, global_batch_size=size)  # type: ignore[arg-type]
        except ValueError as error:
            return "nothing to train on" in str(error) and not policy.trained
        return False
    found = take_updates(policy, batch, None, watch, global_batch_size=size)  # type: ignore[arg-type]
    right = {
        "loss": sum(map(sum, steps)) / len(steps),
        "x_min": 3.0,
        "grad_norm": sum(norms[: len(steps)]) / len(steps),
        "lr": sum(0.5**number for number in range(1, len(steps) + 1)) / len(steps),
    }
    noted = [
        (one.first_row, one.num_rows, one.micro_batches, float(one.gradients["a"]), float(one.weights["a"]))
        for one in seen
    ]
    return (
        policy.trained == [[float(row) for row in step] for step in steps]
        and policy.scored == [size >= num] * len(steps)
        and found.keys() == right.keys()
        and all(found[name] == value or math.isclose(found[name], value) for name, value in right.items())
        and (watch is None or noted == [
            (step[0], len(step), [[row] for row in step], float(number), -float(number))
            for number, step in enumerate(steps, 1)
        ])
        and [first for first, _ in split_updates(batch, size)] == [*range(0, num, size)]
    )  # fmt: skip


def _orders(stream: random.Random) -> bool:
    """Prompts epoch after epoch: each once, in another order, and the same after a resume at any place."""
    made = [Example(number, str(number), "", "made") for number in range(stream.randint(1, 7))]
    shuffle, seed = stream.random() < 0.7, stream.randrange(99)
    source = PromptSource(made, seed=seed, shuffle=shuffle)
    drawn: list[int] = []
    while len(drawn) < 4 * len(made):
        state = source.state_dict()
        again = PromptSource(made, seed=seed, shuffle=shuffle)
        again.draw(stream.randrange(3))
        again.load_state_dict(state)
        num = stream.randint(1, 5)
        ids = [one.prompt_id for one in source.draw(num)]
        if [one.prompt_id for one in again.draw(num)] != ids or source.num_prompts != len(made):
            return False
        drawn += ids
    epochs = [drawn[first : first + len(made)] for first in range(0, 4 * len(made), len(made))]
    sorted_ids = [*range(len(made))]
    return all(sorted(epoch) == sorted_ids for epoch in epochs) and (
        len(made) < 5 or ({tuple(epoch) for epoch in epochs} == {tuple(sorted_ids)}) != shuffle
    )


def _prompts_of_a_batch(stream: random.Random) -> bool:
    """What became of each drawn prompt: trained on, left over with or without a spread, or drawn a second time."""
    drawn = [Example(stream.randrange(5), "", "", "") for _ in range(6)]
    ids = list(dict.fromkeys(one.prompt_id for one in drawn))
    samples = [sample([1], [2], group=one, reward=stream.randrange(2) / 2) for one in ids for _ in range(2)]
    trained = {one for one in ids if stream.random() < 0.4}
    rewards = {one: [row.reward for row in samples if row.group_id == one] for one in ids}
    right: list[DrawnPrompt] = []
    seen: set[int] = set()
    for prompt in (one.prompt_id for one in drawn):
        left = "surplus" if len({*rewards[prompt]}) > 1 else "zero variance"
        fate = "trained" if prompt in trained else left
        again = prompt in seen
        right.append(
            DrawnPrompt(3, prompt, "held") if again else DrawnPrompt(3, prompt, fate, rewards[prompt])
        )
        seen.add(prompt)
    found = list(_fates(3, drawn, samples, [row.group_id in trained for row in samples]))
    return found == right


def _columns_of_rows(stream: random.Random) -> bool:
    lengths = tuple(stream.randrange(3) for _ in range(stream.randrange(3)))
    ragged = Column("jagged", torch.zeros(sum(lengths), 2, dtype=torch.int16), lengths)
    dense = Column("dense", torch.zeros(len(lengths), 3))
    sizes = (ragged.num_bytes, dense.num_bytes)
    return ragged.num_rows == dense.num_rows == len(lengths) and sizes == (
        4 * sum(lengths),
        12 * len(lengths),
    )


PROPERTIES: Mapping[str, tuple[Callable[[random.Random], bool], int]] = {
    "rows are padded as lists are": (_batches, 12),
    "rows are packed as lists are": (_packs, 12),
    "micro-batches fill a budget": (_budgets, 20),
    "metrics are merged as lists are": (_merged, 8),
    "groups with spread have two rewards": (_spread, 10),
    "experts are balanced by their tokens": (_balances, 4),
    "updates are taken of rows in their order": (_updates, 25),
    "each drawn prompt has a fate": (_prompts_of_a_batch, 8),
    "columns have a row for each length": (_columns_of_rows, 8),
    "prompts come once an epoch": (_orders, 6),
}
"""By name: whether a property holds for the random inputs of a stream, and how many streams are tried."""
