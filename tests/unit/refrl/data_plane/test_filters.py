"""The filters: what is kept, what is dropped, and what cannot be judged."""

from typing import Any

import numpy as np
import pytest

from refrl.data_plane import (
    BaseRolloutFilter,
    KVBatchMeta,
    LengthFilter,
    StalenessFilter,
    WholeGroups,
    ZeroVarianceFilter,
)


def meta(*tags: dict[str, Any], lengths: list[int] | None = None) -> KVBatchMeta:
    return KVBatchMeta(
        partition_id="train",
        sample_ids=[f"s{row}" for row in range(len(tags))],
        tags=list(tags),
        sequence_lengths=lengths,
    )


def versions(*values: Any) -> KVBatchMeta:
    return meta(*({"weight_version": value} for value in values))


def test_the_window_of_staleness_is_inclusive() -> None:
    keep, drop = StalenessFilter(2)(versions(5, 2, 3, 4, 1), current_weight_version=5)
    assert (keep.sample_ids, drop.sample_ids) == (["s0", "s2", "s3"], ["s1", "s4"])


def test_integers_of_numpy_are_versions() -> None:
    keep, drop = StalenessFilter(0)(versions(np.int64(3), np.int32(2)), current_weight_version=np.int64(3))
    assert (keep.size, drop.size) == (1, 1)


@pytest.mark.parametrize("value", [None, 1.0, True, np.float64(1), np.bool_(True), "1"])
def test_a_version_that_is_no_integer_is_an_error(value: Any) -> None:
    with pytest.raises(TypeError, match="weight_version of sample s1"):
        StalenessFilter(1)(versions(1, value), current_weight_version=1)
    with pytest.raises((TypeError, ValueError), match="current_weight_version"):
        StalenessFilter(1)(versions(1), current_weight_version=value)


def test_a_missing_key_missing_tags_and_a_missing_current_version_are_errors() -> None:
    with pytest.raises(KeyError, match="weight_version"):
        StalenessFilter(1)(meta({"weight_version": 1}, {"version": 1}), current_weight_version=1)
    untagged = KVBatchMeta(partition_id="train", sample_ids=["a"])
    with pytest.raises(ValueError, match="no tags for 1 samples"):
        StalenessFilter(1)(untagged, current_weight_version=1)
    with pytest.raises(ValueError, match="current_weight_version is missing"):
        StalenessFilter(1)(versions(1))


def test_misaligned_tags_are_an_error() -> None:
    broken = versions(1, 1)
    broken.tags.pop()  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="1 sets of tags for 2 samples"):
        StalenessFilter(1)(broken, current_weight_version=1)


def test_samples_of_versions_yet_to_come_are_an_error() -> None:
    with pytest.raises(ValueError, match="after the current one, 3"):
        StalenessFilter(1)(versions(3, 4), current_weight_version=3)


def test_both_halves_are_fresh_copies_with_aligned_tags() -> None:
    claim = versions(1, 5)
    keep, drop = StalenessFilter(0)(claim, current_weight_version=5)
    assert keep.tags is not None and drop.tags is not None
    keep.tags[0]["weight_version"] = drop.tags[0]["weight_version"] = -1
    keep.sample_ids[0] = "changed"
    assert claim == versions(1, 5)
    assert len(drop.tags) == drop.size == 1


def test_groups_without_spread_are_dropped_whole() -> None:
    rewards = [("a", 0.0), ("b", 1), ("a", 1.0), ("b", 1.0), ("c", 0.5)]
    claim = meta(*({"group_id": group, "reward": reward} for group, reward in rewards))
    keep, drop = ZeroVarianceFilter()(claim)
    assert (keep.sample_ids, drop.sample_ids) == (["s0", "s2"], ["s1", "s3", "s4"])


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), None, True, "1"])
def test_a_reward_that_cannot_be_judged_is_an_error(reward: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="tag reward"):
        ZeroVarianceFilter()(meta({"group_id": "a", "reward": reward}))


def test_the_length_bound_is_inclusive_and_needs_lengths() -> None:
    keep, drop = LengthFilter(7)(meta({}, {}, {}, lengths=[7, 8, 1]))
    assert (keep.sample_ids, drop.sample_ids) == (["s0", "s2"], ["s1"])
    with pytest.raises(ValueError, match="no sequence_lengths"):
        LengthFilter(7)(meta({}))


def test_a_group_is_dropped_whole_where_one_of_its_samples_is() -> None:
    claim = meta(*({"group_id": group} for group in ("a", "b", "a", "b", "c")), lengths=[7, 1, 8, 7, 2])
    by_group = WholeGroups(LengthFilter(7))
    keep, drop = by_group(claim)
    assert (keep.sample_ids, drop.sample_ids) == (["s1", "s3", "s4"], ["s0", "s2"])
    assert by_group.name == LengthFilter.name
    with pytest.raises(KeyError, match="group_id"):
        by_group(meta({}, lengths=[1]))


def test_a_filter_that_judges_other_than_every_sample_is_an_error() -> None:
    class Short(BaseRolloutFilter):
        name = "short"

        def keeps(self, meta: KVBatchMeta, **state: Any) -> list[bool]:
            return [True]

    with pytest.raises(ValueError, match="1 judgements of 2 samples"):
        Short()(meta({}, {}))


def test_the_base_is_abstract_and_bounds_are_checked() -> None:
    with pytest.raises(TypeError, match="abstract"):
        BaseRolloutFilter()  # type: ignore[abstract]
    for wrong in (lambda: StalenessFilter(-1), lambda: LengthFilter(0)):
        with pytest.raises(ValueError, match="at least"):
            wrong()
