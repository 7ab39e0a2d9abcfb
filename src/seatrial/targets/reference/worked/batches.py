"""Worked examples of refrl's batches: padding, choices of rows, micro-batches, packs, advantages, sums."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from refrl.algorithms.advantages import compute_advantages, group_index, group_size, group_std, has_spread
from refrl.algorithms.batching import make_batch
from refrl.algorithms.filters import groups_with_spread, mask_rows
from refrl.algorithms.kept_ids import gather_kept_ids
from refrl.algorithms.kl import kl_estimate, kl_for_loss, penalise_rewards
from refrl.algorithms.losses.ratios import (
    clipped_surrogate,
    importance_weights,
    sequence_ratio,
    token_ratio,
)
from refrl.algorithms.losses.supervised import sequence_logprobs, sft_loss
from refrl.algorithms.microbatches import split_by_rows, split_by_tokens
from refrl.algorithms.ops import compute_logprobs
from refrl.algorithms.packing import assign_packs, pack_batch
from refrl.algorithms.reductions import reduce_tokens
from refrl.config import AdvantageConfig, LossConfig
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import PAD, batch, example, refused, rows, sample

MASK = torch.tensor([[1.0, 0.0, 1.0], [1.0, 0.0, 0.0]])


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_padding()
    yield from _of_cutting()
    yield from _of_packs()
    yield from _of_advantages()
    yield from _of_losses()


def _of_padding() -> Iterator[WorkedExample]:
    yield example(
        "rows of unequal lengths",
        {
            "ids": [[1, 2, 3, PAD, PAD, PAD], [4, 5, 6, 7, 8, 1], [2, 2, 3, PAD, PAD, PAD]],
            "attention": [[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]],
            "completions": [[2, 3, PAD], [7, 8, 1], [3, PAD, PAD]],
            "mask": [[1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [1.0, 0.0, 0.0]],
            "prompts": [1, 3, 2],
            "logprobs": [[-0.125, -0.25, 0.0], [-0.125, 0.0, -0.375], [-0.125, 0.0, 0.0]],
            "rewards": [1.0, 0.25, 0.0],
            "groups": [4, 2, 4],
            "cut": [0, 0, 0],
            "lengths": [2, 3, 1],
            "starts": [1, 3, 2],
            "counts": (5.0, 3.0),
            "positions": [[0, 1, 2, 2, 2, 2], [0, 1, 2, 3, 4, 5], [0, 1, 2, 2, 2, 2]],
        },
        lambda: _plain(batch()),
    )
    yield example(
        "rows padded on the left",
        {
            "ids": [[PAD, PAD, 1, 2, 3, PAD], [4, 5, 6, 7, 8, 1], [PAD, 2, 2, 3, PAD, PAD]],
            "starts": [3, 3, 3],
            "positions": [[0, 0, 0, 1, 2, 2], [0, 1, 2, 3, 4, 5], [0, 0, 1, 2, 2, 2]],
        },
        lambda: _chosen(batch(padding_side="left"), "ids", "starts", "positions"),
    )
    yield example(
        "a longest sequence of five",
        {"cut": [0, 1, 0], "lengths": [2, 2, 1], "mask": [[1.0, 1.0], [1.0, 0.0], [1.0, 0.0]]},
        lambda: _chosen(batch(max_sequence_length=5), "cut", "lengths", "mask"),
    )
    yield example(
        "widths of buckets",
        ((3, 8), (3, 4)),
        lambda: _shape(batch(sequence_buckets=(4, 8, 16), completion_buckets=(2, 4))),
    )
    yield example(
        "beyond the last bucket of completions",
        {"cut": [0, 1, 0], "lengths": [2, 2, 1]},
        lambda: _chosen(batch(completion_buckets=(1, 2)), "cut", "lengths"),
    )
    yield example(
        "values at their positions",
        [[0, 5, 6, 7, 0, 0], [0, 0, 0, 5, 6, 7], [0, 0, 5, 6, 7, 0]],
        lambda: batch().at_positions(torch.tensor([[5, 6, 7]] * 3)),
    )
    yield example(
        "chosen rows in another order, without empty columns",
        {
            "ids": [[2, 2, 3, PAD], [1, 2, 3, PAD]],
            "mask": [[1.0, 0.0], [1.0, 1.0]],
            "rewards": [0.0, 1.0],
            "prompts": [2, 1],
        },
        lambda: _chosen(batch().rows([2, 0], trim=True), "ids", "mask", "rewards", "prompts"),
    )
    kept = [sample([1], [2], kept_ids=((2, 5),)), sample([1, 1], [3, 4, 5], kept_ids=((3,), (4, 1, 0), (5,)))]
    yield example(
        "kept ids of rows and of the first tokens",
        ([2, 5, 3, 4, 1, 0, 5], [[2, 0, 0], [1, 3, 1]], [3, 4, 1, 0, 2, 5], [[1, 3], [2, 0]]),
        lambda: _kept(make_batch(kept, pad_token_id=PAD).kept_ids),
    )
    yield example(
        "ids that were not kept",
        [[True, False, True], [False, False, False], [False, True, False]],
        lambda: (
            gather_kept_ids([[(1,), (), (0, 2)]], 3)
            .at(torch.ones(1, 3).bool())
            .excluded(slice(0, 3), slice(0, 3))
        ),
    )
    yield example(
        "ids that were not kept at the last place alone",
        [[True, False, True, True]],
        lambda: (
            gather_kept_ids([[(0, 2), (), (1,)]], 3)
            .at(torch.tensor([[False, False, True]]))
            .excluded(slice(0, 1), slice(0, 4))
        ),
    )
    for words, bad in {
        "at least one sample": [],
        "row 1: prompt and completion": [rows()[0], sample([], [1])],
        "row 0: reward is nan": [sample([1], [1], reward=math.nan)],
        "row 0: 1 log-probabilities": [replace(sample([1], [1, 2]), sampling_logprobs=(0.0,))],
        "row 0, token 1: sampling log-probability": [
            replace(sample([1], [1, 2]), sampling_logprobs=(0.0, -math.inf))
        ],
        "row 0: completion_mask": [sample([1], [1, 2], completion_mask=(1, 2))],
        "row 0, token 0: id 1 is not among": [sample([1], [1], kept_ids=((2,),))],
        "1 of 2 samples have an advantage": [sample([1], [1], advantage=1.0), sample([1], [1])],
    }.items():
        yield refused(words, words, make_batch, bad, pad_token_id=PAD)
    yield refused("row 1: the prompt has 3", "a prompt without capacity", batch, max_sequence_length=3)


def _plain(made: Any) -> dict[str, Any]:
    return {
        "ids": made.input_ids_BS,
        "attention": made.attention_mask_BS,
        "completions": made.completion_ids_BT,
        "mask": made.mask_BT,
        "prompts": made.prompt_lens_B,
        "logprobs": made.sampling_logprobs_BT,
        "rewards": made.rewards_B,
        "groups": made.group_ids_B,
        "cut": made.num_truncated_tokens_B,
        "lengths": made.completion_lens_B,
        "starts": made.completion_starts_B,
        "counts": (float(made.num_valid_tokens), float(made.num_valid_seqs)),
        "positions": made.position_ids_BS,
    }


def _chosen(made: Any, *names: str) -> dict[str, Any]:
    found = _plain(made)
    return {name: found[name] for name in names}


def _shape(made: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(made.input_ids_BS.shape), tuple(made.completion_ids_BT.shape)


def _kept(kept: Any) -> Any:
    turned = kept.rows(torch.tensor([1, 0])).trimmed(2)
    return kept.ids_M, kept.counts_BT, turned.ids_M, turned.counts_BT


def _of_cutting() -> Iterator[WorkedExample]:
    yield example("seven rows by three", [[0, 1, 2], [3, 4, 5], [6]], split_by_rows, 7, 3)
    yield example("rows that divide evenly", [[0, 1], [2, 3]], split_by_rows, 4, 2)
    yield refused("must be positive", "no rows", split_by_rows, 0, 2)
    yield example(  # two rows of 3 + 1 and 1 + 3 tokens are padded to 3 + 3
        "tokens of padded rows", [[2], [0, 1], [3]], split_by_tokens, [3, 1, 4, 1], [1, 3, 4, 1], 12
    )
    yield example("a budget that a row fills", [[0], [1]], split_by_tokens, [2, 2], [2, 2], 4)
    yield refused("row 1 has 5", "a row beyond the budget", split_by_tokens, [1, 2], [1, 3], 4)
    yield refused("need as many", "unequal numbers", split_by_tokens, [1, 2], [1], 4)


def _of_packs() -> Iterator[WorkedExample]:
    yield example("first fit, longest first", [[1, 0], [3, 2, 4]], assign_packs, [2, 5, 2, 4, 1], 7)
    yield example("rows as long as a pack", [[0], [1]], assign_packs, [4, 4], 4)
    yield refused("row 1 has 5", "a row longer than a pack", assign_packs, [1, 5], 4)
    yield example(
        "packed rows",
        {
            "ids": [[4, 5, 6, 7, 8, 1, PAD], [1, 2, 3, 2, 2, 3, PAD]],
            "positions": [[0, 1, 2, 3, 4, 5, 0], [0, 1, 2, 0, 1, 2, 0]],
            "segments": [[1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 2, 2, 2, 0]],
            "first": [7, 0, 10],
            "unpacked": [[1, 2, 3, 0, 0, 0], [4, 5, 6, 7, 8, 1], [2, 2, 3, 0, 0, 0]],
        },
        _packed,
        batch(),
    )
    yield example(
        "packed rows that were padded on the left",
        [7, 0, 10],
        lambda: _packed(batch(padding_side="left"))["first"],
    )


def _packed(made: Any) -> dict[str, Any]:
    packed = pack_batch(made, pack_length=7, pad_token_id=PAD)
    return {
        "ids": packed.input_ids_PS,
        "positions": packed.position_ids_PS,
        "segments": packed.segment_ids_PS,
        "first": packed.first_B,
        "unpacked": packed.unpack(packed.input_ids_PS).long(),
    }


def _of_advantages() -> Iterator[WorkedExample]:
    rewards, groups = torch.tensor([1.0, 4.0, 0.0, 4.0, 0.5, 0.0, 3.0]), torch.tensor([8, 3, 8, 3, 1, 6, 6])
    # Group 8: 1, 0; group 3: equal; group 1: one row; group 6: 0, 3.
    centred = [0.5, 0.0, -0.5, 0.0, 0.0, -1.5, 1.5]
    eps, deviation = 0.5, math.sqrt(sum((r - 12.5 / 7) ** 2 for r in rewards.tolist()) / 6)
    of_centred = math.sqrt(5.0 / 6)
    for estimator, scale, right in (
        ("dr_grpo", None, centred),
        ("rloo", None, [2 * one for one in centred]),
        ("grpo", "none", centred),
        ("grpo", "batch", [one / (deviation + eps) for one in centred]),
        ("reinforce_plus_plus_baseline", None, [one / (of_centred + eps) for one in centred]),
        (
            "grpo",
            None,
            [
                one / (math.sqrt(0.5) + eps) if place < 4 else one / (math.sqrt(4.5) + eps)
                for place, one in enumerate(centred)
            ],
        ),
    ):
        config = AdvantageConfig(estimator=estimator, scale=scale, epsilon=eps)  # type: ignore[arg-type]
        yield example(
            f"advantages of {estimator}, {scale}", right, compute_advantages, rewards, groups, config
        )
    yield refused(
        "rows [1]",
        "a reward that is NaN",
        compute_advantages,
        torch.tensor([1.0, math.nan]),
        groups[:2],
        AdvantageConfig(),
    )
    yield refused(
        "must both be", "no rewards", compute_advantages, rewards[:0], groups[:0], AdvantageConfig()
    )
    index = torch.tensor([2, 1, 2, 1, 0, 3, 3])
    yield example("groups in the order of their ids", [3, 1, 3, 1, 0, 2, 2], group_index, groups)
    yield example("sizes of groups", [2, 2, 2, 2, 1, 2, 2], group_size, index)
    deviations = [math.sqrt(0.5), 0.0, math.sqrt(0.5), 0.0, 0.0, math.sqrt(4.5), math.sqrt(4.5)]
    yield example("deviations of groups", deviations, group_std, rewards.double(), index)
    spread = [True, False, True, False, False, True, True]
    yield example("groups with spread", spread, has_spread, rewards.double(), index)
    yield example("groups with spread, by id", spread, groups_with_spread, rewards, groups)
    zeros = torch.tensor([0.0, 0.0, -0.0, -1.0, -1.0, -2.0, 1.0, 1.0 + 1e-7], dtype=torch.float64)
    yield example(
        "no spread of zeros, of equal negatives and of rounding",
        [False, False, False, True, True, True, False, False],
        has_spread,
        zeros,
        torch.tensor([0, 0, 0, 1, 1, 1, 2, 2]),
    )
    yield example(
        "no spread of negatives alone",
        [False, False],
        has_spread,
        torch.tensor([-1.0, -1.0], dtype=torch.float64),
        torch.tensor([0, 0]),
    )
    masked = [[1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    yield example("a masked row", masked, lambda: mask_rows(batch(), torch.tensor([0, 1, 0])).mask_BT)
    yield example("the batch itself is not masked", 5.0, _masked_again)


def _masked_again() -> float:
    made = batch()
    mask_rows(made, torch.tensor([1, 1, 1]))
    return float(made.num_valid_tokens)


def _of_losses() -> Iterator[WorkedExample]:
    here, there = torch.tensor([[0.0, math.log(2)]]), torch.tensor([[math.log(2), 0.0]])
    for kind, right in (
        ("k1", [[-math.log(2), math.log(2)]]),
        ("k2", [[math.log(2) ** 2 / 2, math.log(2) ** 2 / 2]]),
        ("k3", [[1 - math.log(2), -0.5 + math.log(2)]]),
    ):
        yield example(f"{kind} of two tokens", right, kl_estimate, here, there, kind)
        yield example(f"{kind} with the gradient of k2", right, kl_for_loss, here, there, kind, "k2")
    yield refused("unknown KL", "k4", kl_estimate, here, there, "k4")
    nan = math.nan
    yield example(
        "KL taken off rewards",
        [1.0 - 0.5 * (1 + 2), 2.0 - 0.5 * 4],
        penalise_rewards,
        torch.tensor([1.0, 2.0]),
        torch.tensor([[1.0, nan, 2.0], [4.0, 9.0, 9.0]]),
        torch.zeros(2, 3),
        MASK,
        coefficient=0.5,
        kind="k1",
    )
    values = torch.tensor([[1.0, nan, 4.0], [6.0, nan, nan]])
    counts: Any = {"global_valid_tokens": 4.0, "global_valid_seqs": 5.0}
    for reduction, share in (("token", 11 / 4), ("sequence", (2.5 + 6) / 5), ("fixed_length", 11 / 10 / 5)):
        yield example(
            f"reduced by {reduction}",
            share,
            lambda of=reduction: float(reduce_tokens(values, MASK, of, fixed_length=10, **counts)),
        )
    yield example(
        "negative log-likelihood", -11 / 4, lambda: float(sft_loss(values, MASK, global_valid_tokens=4.0))
    )
    yield refused("global_valid_tokens", "no token", sft_loss, values, MASK, global_valid_tokens=0.0)
    yield example("log-probabilities of rows", [5.0, 6.0], sequence_logprobs, values, MASK)
    yield example("mean log-probabilities of rows", [2.5, 6.0], sequence_logprobs, values, MASK, average=True)
    new = torch.tensor([[math.log(8), 0.0, 0.0], [math.log(3), 0.0, 0.0]])
    yield example("ratios of tokens", [[8.0, 1.0, 1.0], [3.0, 1.0, 1.0]], token_ratio, new, torch.zeros(2, 3))
    yield example(  # two valid tokens, then one
        "ratios of sequences", [[math.sqrt(8)] * 3, [3.0] * 3], sequence_ratio, new, torch.zeros(2, 3), MASK
    )
    ratio, advantage = torch.tensor([[0.5, 1.0, 4.0], [0.5, 1.0, 4.0]]), torch.tensor([[1.0], [-1.0]])
    clip = LossConfig(ratio_clip_min=0.25, ratio_clip_max=0.5, ratio_clip_c=3.0)
    yield example(
        "clipped losses",
        [[-0.5, -1.0, -1.5], [0.75, 1.0, 3.0]],
        lambda: clipped_surrogate(ratio, advantage, clip).loss_BT,
    )
    for kind, weights in (("none", [[1.0, 1.0]]), ("truncated", [[0.25, 2.0]]), ("masked", [[0.0, 0.0]])):
        limits = {} if kind == "none" else {"importance_sampling_max": 2.0}
        limits |= {"importance_sampling_min": 0.5} if kind == "masked" else {}
        config = LossConfig(importance_sampling=kind, **limits)  # type: ignore[arg-type]
        yield example(
            f"weights of a sampler, {kind}",
            weights,
            lambda of=config: (
                importance_weights(
                    torch.tensor([[0.0, math.log(4)]]), torch.tensor([[math.log(4), 0.0]]), of
                ).weights_BT
            ),
        )
    logits = torch.tensor(
        [[[0.0, 9.0, 9.0], [0.0, 2 * math.log(3), -99.0], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]]
    )
    yield example(
        "log-probabilities of two tokens at temperature 2",
        [[math.log(0.75), -math.log(3)]],
        lambda: compute_logprobs(logits, torch.tensor([[1, 0]]), torch.tensor([2]), temperature=2.0)[0],
    )
    yield example(
        "log-probabilities among kept ids at temperature 2",
        [[math.log(0.75), -math.log(2)]],
        lambda: compute_logprobs(
            logits,
            torch.tensor([[1, 0]]),
            torch.tensor([2]),
            temperature=2.0,
            kept_ids=gather_kept_ids([[(0, 1), (0, 2)]], 2),
        )[0],
    )
