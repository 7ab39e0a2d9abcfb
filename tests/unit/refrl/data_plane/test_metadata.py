"""Ids, tags and lengths stay aligned through every transform, and no two metas share anything."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refrl.data_plane import KVBatchMeta, shard_meta_for_dp


def meta(size: int = 4, prefix: str = "s") -> KVBatchMeta:
    return KVBatchMeta(
        partition_id="train",
        sample_ids=[f"{prefix}{row}" for row in range(size)],
        sequence_lengths=[10 + row for row in range(size)],
        tags=[{"of": f"{prefix}{row}"} for row in range(size)],
        lease_id="lease",
    )


def aligned(of: KVBatchMeta) -> bool:
    lengths = [10 + int(sample[1:]) for sample in of.sample_ids]
    return of.sequence_lengths == lengths and [tags["of"] for tags in of.tags or ()] == of.sample_ids


@given(st.lists(st.integers(0, 5), max_size=9), st.integers(-7, 7), st.integers(-7, 7))
def test_every_transform_keeps_rows_aligned(rows: list[int], start: int, stop: int) -> None:
    whole = meta(6)
    assert aligned(whole.subset(rows)) and whole.subset(rows).sample_ids == [f"s{row}" for row in rows]
    assert (
        aligned(whole.slice(start, stop))
        and whole.slice(start, stop).sample_ids == whole.sample_ids[start:stop]
    )
    left = whole.drop(rows)
    assert (left is None) == (set(rows) >= set(range(6)))
    assert left is None or (
        aligned(left) and set(left.sample_ids) == set(whole.sample_ids) - {f"s{row}" for row in rows}
    )
    assert aligned(whole.subset(rows).concat(whole, whole.slice(start, stop)))


@pytest.mark.parametrize(
    "transform",
    [
        lambda one: one.subset([0, 1, 2, 3]),
        lambda one: one.slice(0, 4),
        lambda one: one.concat(meta(1)),
        lambda one: one.drop([3]),
        lambda one: one.with_fields(["x"]),
        lambda one: one.stamp_tags({"std": [0.0] * 4}),
        lambda one: shard_meta_for_dp(one, 2)[0][0],
    ],
)
def test_a_transform_shares_no_tag_list_or_info_with_its_source(transform) -> None:
    source = meta()
    source.extra_info["buckets"] = [1]
    result = transform(source)
    result.tags[0]["of"] = "changed"
    result.sample_ids[0] = "changed"
    result.sequence_lengths[0] = -1
    result.extra_info["buckets"].append(2)
    assert aligned(source)
    assert source.extra_info == {"buckets": [1]}


def test_a_meta_shares_nothing_with_who_made_it() -> None:
    tags, ids = [{"v": 1}], ["a"]
    made = KVBatchMeta(partition_id="p", sample_ids=ids, tags=tags)
    tags[0]["v"] = 2
    ids[0] = "b"
    assert (made.sample_ids, made.tags) == (["a"], [{"v": 1}])


def test_a_meta_survives_pickling() -> None:
    assert pickle.loads(pickle.dumps(meta())) == meta()  # noqa: S301  our own bytes


@pytest.mark.parametrize("wrong", [{"tags": [{}]}, {"sequence_lengths": [1]}])
def test_tags_and_lengths_are_one_a_sample(wrong: dict[str, list[object]]) -> None:
    with pytest.raises(ValueError, match="of 2 samples"):
        KVBatchMeta(partition_id="p", sample_ids=["a", "b"], **wrong)


def test_joining_partitions_is_refused_and_a_missing_side_is_missing_in_the_whole() -> None:
    with pytest.raises(ValueError, match="cannot be joined"):
        meta().concat(KVBatchMeta(partition_id="val", sample_ids=["x"]))
    joined = meta(1).concat(KVBatchMeta(partition_id="train", sample_ids=["x"]))
    assert (joined.tags, joined.sequence_lengths, joined.lease_id) == (None, None, None)


def test_rows_that_are_not_there_are_refused() -> None:
    with pytest.raises(IndexError):
        meta().subset([-1])
    with pytest.raises(ValueError, match="3 values for 4 samples"):
        meta().stamp_tags({"std": [1, 2, 3]})


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_shards_hold_every_row_once_and_can_be_put_back(ranks: int, share: int, batches: int) -> None:
    whole = meta(ranks * share * batches)
    shards, places = shard_meta_for_dp(whole, ranks, ranks * share)
    laid = [sample for shard in shards for sample in shard.sample_ids]
    assert sorted(laid) == sorted(whole.sample_ids)
    assert all(
        aligned(shard) and shard.lease_id == "lease" and shard.size == share * batches for shard in shards
    )
    assert [laid[place] for place in places or range(whole.size)] == whole.sample_ids
    first = {sample for shard in shards for sample in shard.sample_ids[:share]}
    assert first == set(whole.sample_ids[: ranks * share])


@pytest.mark.parametrize(("size", "ranks", "batch"), [(0, 1, None), (3, 2, None), (4, 2, 3), (4, 0, None)])
def test_rows_that_do_not_divide_are_refused(size: int, ranks: int, batch: int | None) -> None:
    with pytest.raises(ValueError, match="cannot be shared"):
        shard_meta_for_dp(meta(size), ranks, batch)
