"""Worked examples of rollouts: columns and back, what filters keep and mask."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from refrl.algorithms.batching import TrainSample
from refrl.algorithms.filters import DynamicSampling
from refrl.data_plane import KVBatchMeta, LengthFilter, StalenessFilter, WholeGroups, ZeroVarianceFilter
from refrl.data_plane.column_io import kv_first_write, read_columns, shard_meta_for_dp
from refrl.data_plane.columns import pad
from refrl.data_plane.factory import local_client
from refrl.data_plane.flow import ConsumePlan, apply_filters, consume
from refrl.errors import TrainingError
from refrl.rollout.columns import FIELDS, from_columns, from_plain, to_columns, to_plain, to_tags
from refrl.rollout.sync import Rollouts, join_rollouts
from refrl.training.asynchronous import build_filters, build_schedule
from refrl.training.grpo import mask_filtered, rollout_advantages
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.configuration import configuration
from seatrial.targets.reference.worked.made import batch, example, refused, rollouts, sample


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_columns()
    yield from _of_filters()
    yield from _of_dynamic_sampling()
    yield from _of_masks()


def _of_columns() -> Iterator[WorkedExample]:
    yield example("rows come back from a store", True, lambda: _through_a_store(rollouts()) == rollouts())
    bare = rollouts().rows([1, 3])
    bare = replace(bare, scores=replace(bare.scores, penalties=None, unshaped=None))
    yield example("rows without penalties come back", True, lambda: _through_a_store(bare) == bare)
    yield example(
        "rows come back from a checkpoint",
        True,
        lambda: from_plain(json.loads(json.dumps(to_plain(rollouts())))) == rollouts(),
    )
    yield refused(
        "columns of lengths", "a text too few", lambda: from_plain({**to_plain(rollouts()), "texts": ["x"]})
    )
    tag = {"weight_version": 3, "group_id": 7, "prompt_id": 5}
    other = {"weight_version": 5, "group_id": 8, "prompt_id": 3}
    yield example(
        "tags of rows",
        [{**tag, "reward": 1.0}, {**tag, "reward": 0.5}, {**other, "reward": 0.0}, {**other, "reward": 0.0}],
        to_tags,
        rollouts(),
        [7, 7, 8, 8],
    )
    yield example(
        "joined rows",
        True,
        lambda: join_rollouts([rollouts().rows([0, 1]), rollouts().rows([2, 3])]) == rollouts(),
    )
    samples = rollouts().samples()
    yield example(
        "what trains of a row",
        ((1, 2), (3, 8, 8, 5, 6), 0.25, 5, (1, 0, 0, 1, 1), 3, ((6, 2),)),
        lambda: (
            *(samples[1].prompt_ids, samples[1].completion_ids, samples[1].reward, samples[1].group_id),
            *(samples[1].completion_mask, samples[1].weight_version, samples[2].kept_ids),
        ),
    )
    yield example(
        "what filters look at",
        [1.0, 0.5, 0.0, 0.0],
        lambda: [one.reward for one in rollouts().verified_samples()],
    )
    yield example("the last turn of a row", (5, 6), lambda: rollouts().completions[1].last_turn)
    ragged = [torch.tensor([1, 2]), torch.tensor([3])]
    yield example("padded rows", [[1, 2, 9, 9], [3, 9, 9, 9]], pad, ragged, 9, 4)
    yield example("padded rows, as wide as the longest", [[1, 2], [3, 9]], pad, ragged, 9)
    yield refused("a row has 2 tokens", "rows wider than the width", pad, ragged, 9, 1)
    yield example(
        "fields with fills and a width of their own",
        {
            "input_ids": [[1, 2, 7, 7], [3, 7, 7, 7]],
            "prev_logprobs": [[0.5, 0.25, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]],
        },
        _read_back,
    )
    meta = KVBatchMeta(partition_id="p", sample_ids=list("abcdefgh"))
    yield example("rows of a plan that names what fills them up", [[[1, 2], [3, 7]]], _consumed)
    yield example(
        "shares of two batches", ([list("abef"), list("cdgh")], [0, 1, 4, 5, 2, 3, 6, 7]), _shared, meta, 2, 4
    )
    yield example("shares of one batch", ([list("abcd"), list("efgh")], None), _shared, meta, 2, None)
    yield refused("cannot be shared", "rows that do not divide", _shared, meta, 3, None)


def _through_a_store(rows: Rollouts) -> Rollouts:
    client = local_client(lease_s=600.0)
    names = [f"{row}_g0" for row in range(len(rows.texts))]
    client.register_partition("p", FIELDS, len(names), ["train"])
    meta = kv_first_write(to_columns(rows), names, client, "p", tags=to_tags(rows, list(range(len(names)))))
    return from_columns(read_columns(client, meta, FIELDS, layout="jagged"))


def _read_back() -> Mapping[str, Any]:
    client = local_client(lease_s=600.0)
    client.register_partition("p", ["input_ids", "prev_logprobs", "input_lengths"], 2, ["train"])
    made = {
        "input_ids": torch.tensor([[1, 2], [3, 99]]),
        "prev_logprobs": torch.tensor([[0.5, 0.25], [1.0, 99.0]]),
        "input_lengths": torch.tensor([2, 1]),
    }
    meta = kv_first_write(made, ["a", "b"], client, "p", extra_info={"global_forward_pad_seqlen": 4})
    return read_columns(client, meta, ["input_ids", "prev_logprobs"], pad_values={"input_ids": 7})


def _consumed() -> Any:
    """Return the tokens that a plan with values for padding trains on."""
    client = local_client(lease_s=600.0)
    fields = ["input_ids", "input_lengths"]
    client.register_partition("p", fields, 2, ["train"])
    made = {"input_ids": torch.tensor([[1, 2], [3, 99]]), "input_lengths": torch.tensor([2, 1])}
    tags = [{"weight_version": 0}] * 2
    kv_first_write(made, ["a", "b"], client, "p", tags=tags, extra_info={"global_forward_pad_seqlen": 4})
    plan = ConsumePlan(
        partition_id="p",
        task_name="train",
        fields=fields,
        batch_size=2,
        min_batch_size=2,
        pad_values={"input_ids": 7},
    )
    trained: list[Any] = []
    consume(client, plan, trained.extend, current_weight_version=0)
    return [batch.columns["input_ids"].tolist() for batch in trained]


def _shared(meta: KVBatchMeta, ranks: int, size: int | None) -> Any:
    shards, inverse = shard_meta_for_dp(meta, ranks, size)
    return [shard.sample_ids for shard in shards], inverse


def _meta(versions: Sequence[int], rewards: Sequence[float], lengths: Sequence[int]) -> KVBatchMeta:
    """Return groups of two rows each."""
    numbers = range(len(versions))
    return KVBatchMeta(
        partition_id="p",
        sample_ids=[f"{number // 2}_g{number % 2}" for number in numbers],
        sequence_lengths=list(lengths),
        tags=[
            {"weight_version": version, "reward": reward, "group_id": number // 2, "input_lengths": length}
            for number, version, reward, length in zip(numbers, versions, rewards, lengths, strict=True)
        ],
    )


def _of_filters() -> Iterator[WorkedExample]:
    meta = _meta([3, 3, 4, 4, 2, 2], [1.0, 0.0, 0.5, 0.5, 0.0, 0.0], [4, 9, 5, 5, 8, 8])

    def numbers(parts: Any) -> Any:
        return [[int(name[0]) for name in part.sample_ids[::2]] for part in parts]

    for filter_, right in (
        (StalenessFilter(1), [[0, 1], [2]]),
        (StalenessFilter(0), [[1], [0, 2]]),
        (WholeGroups(LengthFilter(8)), [[1, 2], [0]]),
        (ZeroVarianceFilter(), [[0], [1, 2]]),
    ):
        yield example(
            f"the filter {filter_.name} keeps {right[0]}",
            right,
            lambda of=filter_: numbers(of(meta, current_weight_version=4)),
        )
    yield example(
        "filters one after the other",
        ([0], ["stale", [2]], ["zero variance", [1]]),
        lambda: _filtered(meta, [StalenessFilter(1), ZeroVarianceFilter()]),
    )
    yield example("no filter of a claim", ([0, 1, 2],), lambda: _filtered(meta, []))
    options = {"grpo.async_grpo.enabled": True, "policy.generation.colocated.enabled": False}
    yield example(
        "filters as configured",
        ([], ["too long"], ["zero variance"], ["too long", "zero variance"]),
        lambda: tuple(
            [
                one.name
                for one in build_filters(
                    configuration(
                        {
                            **options,
                            "grpo.async_grpo.drop_longer_than": longest,
                            "grpo.async_grpo.drop_zero_variance": equal,
                        }
                    ).grpo.async_grpo
                )
            ]
            for longest, equal in ((None, False), (9, False), (None, True), (9, True))
        ),
    )
    yield example(
        "a schedule of asynchronous rollouts",
        (3, [True] * 4),
        lambda: _scheduled({**options, "grpo.async_grpo.max_trajectory_age_steps": 3}),
    )


def _scheduled(options: Mapping[str, Any]) -> Any:
    made = build_schedule(configuration(options).grpo)
    return made.max_staleness, [made.syncs_sampler(step) for step in range(1, 5)]


def _filtered(meta: KVBatchMeta, filters: Sequence[Any]) -> Any:
    kept, out = apply_filters(meta, filters, current_weight_version=4)
    groups = [
        sorted({int(name[0]) for name in part.sample_ids}) for part in (kept, *(part for _, part in out))
    ]
    return (groups[0], *([name, of] for (name, _), of in zip(out, groups[1:], strict=True)))


def _group(number: int, *rewards: float) -> list[TrainSample]:
    return [sample([1], [2], group=number, reward=reward) for reward in rewards]


def _of_dynamic_sampling() -> Iterator[WorkedExample]:
    def added(batches: Sequence[Sequence[TrainSample]], most: int = 3) -> Any:
        made = DynamicSampling(num_groups=2, max_generation_batches=most)
        full = [made.add(one) for one in batches]
        counts = (made.num_generation_batches, made.num_dropped_groups, made.num_discarded_valid_samples)
        return full, [one.group_id for one in made.kept], counts

    even, mixed = _group(1, 0.0, 0.0), _group(2, 1.0, 0.0)
    yield example(
        "a full batch", ([True], [2, 2, 3, 3], (1, 1, 0)), added, [[*even, *mixed, *_group(3, 0.0, 1.0)]]
    )
    surplus = [*mixed, *_group(3, 0.0, 1.0), *_group(4, 0.0, 1.0, 0.0)]
    yield example("a surplus", ([True], [2, 2, 3, 3], (1, 0, 3)), added, [surplus])
    later = [[*even, *mixed], _group(5, 1.0, 1.0), [*_group(6, 0.0, 1.0), *_group(7, 0.0, 1.0)]]
    yield example("filled by the third batch", ([False, False, True], [2, 2, 6, 6], (3, 2, 2)), added, later)
    yield refused("2 generation batches gave 1 of 2 groups", "never filled", added, later, 2)
    yield example(
        "rows of a group that are apart", ([False], [2, 2], (1, 1, 0)), added, [[mixed[0], *even, mixed[1]]]
    )
    nearly = [sample([1], [2], group=1, reward=reward) for reward in (0.7, 0.7 + 1e-9)]
    yield example("rewards that differ by rounding", ([False], [], (1, 1, 0)), added, [nearly])


def _of_masks() -> Iterator[WorkedExample]:
    def masked(**options: bool) -> Any:
        made = rollouts()
        whole = replace(batch().rows([0, 1, 2, 0]), group_ids_B=torch.tensor([5, 5, 3, 3]))
        config = configuration({f"grpo.{name}": value for name, value in options.items()}).grpo
        found = mask_filtered(whole, made, config, 7)
        return list(found.rows), found.batch.mask_BT.sum(1).tolist(), dict(found.counts)

    tokens = [2.0, 2.0, 1.0, 2.0]
    yield example("no filter", ([False] * 4, tokens, {}), masked)
    yield example(
        "rows that were cut off",
        ([False, True, False, True], [2.0, 0.0, 1.0, 0.0], {"num_overlong_filtered": 2.0}),
        masked,
        overlong_filtering=True,
    )
    yield example(  # by the verifier's rewards, which are equal in the second group
        "groups without spread",
        ([False, False, True, True], [2.0, 2.0, 0.0, 0.0], {"num_zero_variance_filtered": 2.0}),
        masked,
        zero_variance_filter=True,
    )
    yield example(
        "both filters",
        (
            [False, True, True, True],
            [2.0, 0.0, 0.0, 0.0],
            {"num_overlong_filtered": 2.0, "num_zero_variance_filtered": 2.0},
        ),
        masked,
        zero_variance_filter=True,
        overlong_filtering=True,
    )
    unsampled = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    yield example(
        "a row without sampled tokens that no filter excludes",
        ([False] * 3, {"num_overlong_filtered": 0.0}),
        lambda: mask_filtered(
            replace(batch(), mask_BT=unsampled),
            rollouts().rows([0, 2, 0]),
            configuration({"grpo.overlong_filtering": True}).grpo,
            1,
        )[1:],
    )
    yield example("filters that leave nothing", "TrainingError", _nothing_left)
    options = {
        "loss_fn.reference_policy_kl_penalty": 0.5,
        "loss_fn.reference_policy_kl_type": "k1",
        "loss_fn.kl_in": "reward",
        "grpo.advantage.estimator": "dr_grpo",
    }
    # Rewards 1, 0.25, 0 less half of 2, 4 and 1 (sums of KLs over sampled tokens); groups of rows 0 and 2, and of 1.
    yield example("advantages of rewards less the KL", [0.25, 0.0, -0.25], lambda: _advantages(options))
    yield example(
        "advantages where the KL is in the loss",
        [0.5, 0.0, -0.5],
        lambda: _advantages({**options, "loss_fn.kl_in": "loss"}),
    )


def _nothing_left() -> str:
    config = configuration({"grpo.zero_variance_filter": True}).grpo
    made = rollouts().rows([2, 3])
    try:
        mask_filtered(batch().rows([0, 2]), made, config, 7)
    except TrainingError as error:
        return type(error).__name__
    return "trained"


def _advantages(options: Mapping[str, Any]) -> Any:
    made = replace(
        batch(),
        old_logprobs_BT=torch.tensor([[1.0, 1.0, 9.0], [2.0, 9.0, 2.0], [1.0, 9.0, 9.0]]),
        ref_logprobs_BT=torch.zeros(3, 3),
    )
    return rollout_advantages(made, configuration(options))
