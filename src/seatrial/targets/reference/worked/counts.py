"""Worked examples over odd but legal inputs: groups, counts and cadences against loops over lists."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch

from refrl.algorithms.advantages import compute_advantages
from refrl.algorithms.batching import TrainSample, make_batch
from refrl.algorithms.filters import DynamicSampling, groups_with_spread, mask_overlong, mask_rows
from refrl.algorithms.losses.preference import dpo_loss, reward_model_loss
from refrl.algorithms.microbatches import micro_batches_by_tokens, split_by_rows
from refrl.algorithms.reductions import reduce_tokens
from refrl.algorithms.schedule import make_schedule
from refrl.config import AdvantageConfig
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import (
    PAD,
    close,
    example,
    for_all,
    made_tensor,
    mask_of_any_kind,
    refused,
    sample,
)

ODD_IDS = (-(2**62), -1, 0, 2**31, 2**53 + 1, 2**53)
"""Ids of groups; the last two are equal in float64, and most do not fit 32 bits."""


def examples() -> Iterator[WorkedExample]:
    """Yield an example of each property, whose right result is no seed of inputs without it; and of schedules."""
    yield from for_all(PROPERTIES)
    yield from _of_schedules()


def _of_schedules() -> Iterator[WorkedExample]:
    yield example(
        "cadences",
        (3, 2, 4, 1, [True, True, False], [True, False, True, False, True]),
        lambda: _answers(
            make_schedule(
                prompts_per_step=6,
                prompts_per_forward_backward=2,
                prompts_per_sync=12,
                prompts_per_reference_sync=24,
                max_staleness=1,
            )
        ),
    )
    yield refused(
        "prompts_per_sync", "a cadence that is no multiple", make_schedule,
        prompts_per_step=6, prompts_per_forward_backward=2, prompts_per_sync=9,
    )  # fmt: skip
    yield refused(
        "max_staleness=0", "a sync that is too rare", make_schedule,
        prompts_per_step=6, prompts_per_forward_backward=2, prompts_per_sync=12,
    )  # fmt: skip


def _answers(made: Any) -> Any:
    fresh = [made.is_fresh(version, 4) for version in (4, 3, 2)]
    syncs = [made.syncs_sampler(version) for version in range(5)]
    return (
        made.accumulation_steps,
        made.sync_every,
        made.reference_sync_every,
        made.required_staleness,
        fresh,
        syncs,
    )


def _groups(stream: random.Random) -> bool:
    """Ids of any size name groups; rewards that differ by rounding are equal, of any size and sign."""
    ids = stream.sample(ODD_IDS, 3)
    groups = [stream.choice(ids) for _ in range(stream.randint(1, 9))]
    size = stream.choice((1.0, -3.0, 1e-20, 1e6))
    step = stream.choice((1e-8, 1e-7, 1e-5, 0.5))
    rewards = [size * (1 + step * stream.randrange(2)) for _ in groups]
    members = {
        one: [reward for reward, own in zip(rewards, groups, strict=True) if own == one] for one in ids
    }
    right = [
        max(members[one]) - min(members[one]) > 4 * 2**-23 * max(map(abs, members[one])) for one in groups
    ]
    rewards_B, ids_B = torch.tensor(rewards, dtype=torch.float64), torch.tensor(groups)
    before = rewards_B.clone()
    found = groups_with_spread(rewards_B, ids_B).tolist()
    config = AdvantageConfig.model_validate({"estimator": stream.choice(("grpo", "rloo", "dr_grpo"))})
    advantages = compute_advantages(rewards_B, ids_B, config)
    sums = {
        one: sum(a for a, own in zip(advantages.tolist(), groups, strict=True) if own == one) for one in ids
    }
    largest = float(advantages.abs().max()) or 1.0
    return (
        found == right
        and (advantages != 0).tolist() == right
        and all(abs(total) <= 1e-6 * largest for total in sums.values())
        and torch.equal(rewards_B, before)
    )


def _collected(stream: random.Random) -> bool:
    """Groups of unequal size are collected until a step is full: the first ones that differ, whole, in their order."""
    num, most = stream.randint(1, 4), stream.randint(1, 3)
    state = DynamicSampling(num_groups=num, max_generation_batches=most)
    other = DynamicSampling(num_groups=num, max_generation_batches=most)
    kept: list[TrainSample] = []
    dropped = surplus = 0
    for number in range(1, most + 1):
        ids = [number * 10 + one for one in range(stream.randint(1, 4))]
        rows = [
            sample([1], [2], group=one, reward=stream.randrange(2) / 3)
            for one in ids
            for _ in range(stream.randint(1, 3))
        ]
        stream.shuffle(rows)
        members = {row.group_id: [one for one in rows if one.group_id == row.group_id] for row in rows}
        differ = [group for group in members.values() if len({row.reward for row in group}) > 1]
        missing = num - len({row.group_id for row in kept})
        kept += [row for group in differ[:missing] for row in group]
        surplus += sum(len(group) for group in differ[missing:])
        dropped += len(members) - len(differ)
        full = len(differ) >= missing
        try:
            found = state.add(rows)
        except RuntimeError as error:
            have = len({row.group_id for row in kept})
            words = f"{number} generation batches gave {have} of {num} groups"
            return (
                not full and number == most and words in str(error) and f"({dropped} dropped)" in str(error)
            )
        if found != full or (not full and number == most) or state.kept != kept:
            return False
        if (state.num_dropped_groups, state.num_discarded_valid_samples) != (dropped, surplus):
            return False
        if full:
            break
    return state.num_generation_batches == number and not other.kept


def _reduced(stream: random.Random) -> bool:
    """Masks of any kind choose tokens; a row without any adds 0, and a masked NaN has no gradient."""
    B, T = stream.randint(1, 4), stream.randint(1, 4)
    mask = [[int(stream.random() < 0.5) for _ in range(T)] for _ in range(B)]
    values = made_tensor(stream, (B, T), torch.float64)
    mask_BT = mask_of_any_kind(stream, mask)
    values_BT = torch.where(mask_BT.bool(), values, stream.choice((math.nan, math.inf))).requires_grad_()
    kind: Literal["token", "sequence", "fixed_length"] = stream.choice(("token", "sequence", "fixed_length"))
    counts: dict[str, Any] = {"global_valid_tokens": 7.0, "global_valid_seqs": torch.tensor(3)}
    found = reduce_tokens(
        values_BT,
        mask_BT,
        kind,
        **counts,
        fixed_length=stream.choice((1, 5)) if kind != "fixed_length" else 5,
    )
    found.backward()  # type: ignore[no-untyped-call]
    assert values_BT.grad is not None
    shares = []
    for row in mask:
        divisor = {"token": 7.0, "sequence": max(sum(row), 1) * 3.0, "fixed_length": 15.0}[kind]
        shares.append([on / divisor for on in row])
    total = sum(
        share * float(values[row, place]) for row, own in enumerate(shares) for place, share in enumerate(own)
    )
    return math.isclose(float(found.detach()), total, abs_tol=1e-12) and close(values_BT.grad, shares)


def _cadences(stream: random.Random) -> bool:
    """Every cadence is a whole number of steps, or refused with the number to take; a sample's age has a bound."""
    step, passes = stream.randint(0, 6), stream.randint(0, 3)
    sync, reference = stream.choice((None, *range(13))), stream.choice((None, *range(13)))
    stale = stream.randrange(3)
    pairs = [(step, passes), (step if sync is None else sync, step)]
    pairs += [] if reference is None else [(reference, step)]
    bad = [pair for pair in pairs if min(pair) < 1 or pair[0] % pair[1]]
    every = 0 if bad else pairs[1][0] // step
    try:
        made = make_schedule(
            prompts_per_step=step,
            prompts_per_forward_backward=passes,
            prompts_per_sync=sync,
            prompts_per_reference_sync=reference,
            max_staleness=stale,
        )
    except ValueError as error:
        if not bad:
            remedy = f"{every - 1} or more, or prompts_per_sync to {(stale + 1) * step} or less"
            return stale < every - 1 and remedy in str(error)
        value, of = bad[0]
        multiples = list(range(of, value + 1, of)) if of > 0 else []
        words = "must be positive" if min(bad[0]) < 1 else f"take {multiples[-1] if multiples else of}"
        return f"={value}" in str(error) and f"={of}" in str(error) and str(error).endswith(words)
    fresh = [made.is_fresh(version, 5) for version in range(6)]
    apart = None if reference is None else reference // step
    return (
        not bad
        and (made.accumulation_steps, made.sync_every, made.reference_sync_every)
        == (step // passes, every, apart)
        and made.required_staleness == every - 1 <= stale
        and fresh == [5 - version <= stale for version in range(6)]
        and [made.syncs_sampler(number) for number in range(13)]
        == [number % every == 0 for number in range(13)]
        and [made.syncs_reference(number) for number in range(13)]
        == [apart is not None and number % apart == 0 for number in range(13)]
    )


def _cut(stream: random.Random) -> bool:
    """Micro-batches hold every row once; rows that are masked lose their tokens alone; the batch stays as it was."""
    made = [
        sample([3] * stream.randint(1, 4), [*range(1, stream.randint(2, 5))], group=number, reward=number / 2)
        for number in range(stream.randint(1, 6))
    ]
    side: Literal["right", "left"] = stream.choice(("right", "left"))
    rows = make_batch(made, pad_token_id=PAD, padding_side=side)
    before = rows.mask_BT.clone()
    dropped = [stream.randrange(2) for _ in made]
    masked = stream.choice((mask_rows, mask_overlong))(rows, torch.tensor(dropped))
    size = stream.randint(1, 7)
    by_rows = split_by_rows(len(made), size)
    parts = micro_batches_by_tokens(masked, stream.randint(8, 20))
    seen: list[int] = []
    for part in parts:
        own = part.group_ids_B.tolist()
        seen += own
        again = make_batch([made[row] for row in own], pad_token_id=PAD, padding_side=side)
        tokens = [0 if dropped[row] else len(made[row].completion_ids) for row in own]
        if (
            part.input_ids_BS.tolist() != again.input_ids_BS.tolist()
            or part.mask_BT.sum(1).tolist() != tokens
        ):
            return False
        if part.completion_starts_B.tolist() != again.completion_starts_B.tolist():
            return False
    return (
        sorted(seen) == [*range(len(made))]
        and [row for part in by_rows for row in part] == [*range(len(made))]
        and {len(part) for part in by_rows[:-1]} <= {size}
        and 0 < len(by_rows[-1]) <= size
        and torch.equal(rows.mask_BT, before)
    )


def _preferences(stream: random.Random) -> bool:
    """Losses of pairs, their gradients and their counts, with references and labels of any certainty."""
    P, beta = stream.randint(1, 4), stream.choice((0.1, 1.0))
    smoothing = stream.choice((0.0, 0.0, 0.2))
    values = [made_tensor(stream, (P,), torch.float64) / 8 for _ in range(4)]
    chosen, rejected = (value.requires_grad_() for value in values[:2])
    trains_scores = stream.random() < 0.3
    if trains_scores:
        loss, metrics = reward_model_loss(chosen, rejected, global_num_pairs=5.0)
        beta, smoothing, references = 1.0, 0.0, [torch.zeros(P)] * 2
    else:
        references = values[2:]
        options: dict[str, Any] = {"label_smoothing": smoothing} if smoothing else {}
        loss, metrics = dpo_loss(chosen, rejected, *references, beta=beta, global_num_pairs=5.0, **options)
    loss.backward()  # type: ignore[no-untyped-call]
    gains = [
        [beta * (float(own) - float(reference)) for own, reference in zip(value.detach(), kept, strict=True)]
        for value, kept in zip((chosen, rejected), references, strict=True)
    ]
    total, slopes = 0.0, []
    for better, worse in zip(*gains, strict=True):
        right = 1 / (1 + math.exp(worse - better))
        total -= ((1 - smoothing) * math.log(right) + smoothing * math.log(1 - right)) / 5
        slopes.append(-beta * ((1 - smoothing) * (1 - right) - smoothing * right) / 5)
    due = {
        "loss": total,
        "preference_loss": total,
        "accuracy": sum(better > worse for better, worse in zip(*gains, strict=True)) / 5,
        "rewards_chosen_mean": sum(gains[0]) / 5,
        "rewards_rejected_mean": sum(gains[1]) / 5,
        "num_valid_samples": P,
    }
    assert chosen.grad is not None and rejected.grad is not None
    return (
        metrics.keys() == due.keys()
        and all(
            math.isclose(float(metrics[name]), value, rel_tol=1e-6, abs_tol=1e-9)
            for name, value in due.items()
        )
        and math.isclose(float(loss.detach()), total, rel_tol=1e-6)
        and close(chosen.grad, slopes)
        and close(rejected.grad, [-slope for slope in slopes])
    )


PROPERTIES: Mapping[str, tuple[Callable[[random.Random], bool], int]] = {
    "groups of any ids and rewards of any size": (_groups, 30),
    "groups are collected until a step is full": (_collected, 30),
    "tokens are averaged by any kind of mask": (_reduced, 16),
    "cadences are whole numbers of steps": (_cadences, 60),
    "micro-batches hold every row once": (_cut, 12),
    "losses of pairs are those of single pairs": (_preferences, 12),
}
"""By name: whether a property holds for the random inputs of a stream, and how many streams are tried."""
