"""Claim, filter, share, read, train, clear: as one, and where something breaks on the way."""

from collections.abc import Sequence

import pytest
import torch

from refrl.data_plane import (
    ConsumePlan,
    DataPlaneClient,
    KVBatchMeta,
    LeaseExpiredError,
    LengthFilter,
    RankBatch,
    StalenessFilter,
    consume,
    kv_first_write,
    read_columns,
    write_columns,
)
from refrl.data_plane.flow import Consumed
from refrl.data_plane.observability import ObservedClient, Operation


def produce(client: DataPlaneClient, samples: Sequence[str], version: int) -> None:
    """Write rows of unequal length: row i has 3 + i tokens, all of value version."""
    lengths = torch.arange(3, 3 + len(samples))
    batch = {"input_ids": torch.full((len(samples), 9), version), "input_lengths": lengths}
    kv_first_write(batch, samples, client, "rollouts", tags=[{"weight_version": version}] * len(samples))


@pytest.fixture
def rollouts(client: DataPlaneClient) -> DataPlaneClient:
    client.register_partition("rollouts", ["input_ids", "input_lengths", "advantages"], 64, ["train"])
    produce(client, ["a0", "a1", "a2"], 1)
    produce(client, ["b0", "b1", "b2", "b3", "b4"], 4)
    return client


def plan(**words: object) -> ConsumePlan:
    defaults: dict[str, object] = {
        "partition_id": "rollouts",
        "task_name": "train",
        "fields": ["input_ids"],
        "batch_size": 8,
        "filters": [StalenessFilter(1), LengthFilter(6)],
        "dp_world": 2,
        "timeout_s": 0.0,
    }
    return ConsumePlan(**{**defaults, **words})  # type: ignore[arg-type]


def run(client: DataPlaneClient, one: ConsumePlan, trained: list[RankBatch]) -> Consumed:
    return consume(client, one, trained.extend, current_weight_version=4)


def test_every_sample_is_trained_on_dropped_for_a_reason_or_given_back(rollouts: DataPlaneClient) -> None:
    trained: list[RankBatch] = []
    result = run(rollouts, plan(dp_world=3), trained)
    assert result.dropped == {"stale": ["a0", "a1", "a2"], "too long": ["b4"]}
    assert (result.trained.sample_ids, result.returned) == (["b0", "b1", "b2"], ["b3"])
    assert [batch.meta.sample_ids for batch in trained] == [["b0"], ["b1"], ["b2"]]
    assert rollouts.status("rollouts").num_rows == 1
    assert rollouts.claim_meta("rollouts", "train", ["input_ids"], 8).sample_ids == ["b3"]


def test_ranks_read_their_rows_padded_to_their_longest(rollouts: DataPlaneClient) -> None:
    trained: list[RankBatch] = []
    run(rollouts, plan(pad_values={"input_ids": -1}), trained)
    assert trained[0].columns["input_ids"].tolist() == [[4, 4, 4, -1], [4, 4, 4, 4]]
    assert trained[1].meta.sequence_lengths == [5, 6]
    assert rollouts.status("rollouts").num_rows == 0
    assert rollouts.status("rollouts").bytes_held == 0


def test_an_error_before_training_gives_the_samples_back(rollouts: DataPlaneClient) -> None:
    with pytest.raises(ValueError, match="after the current one"):
        consume(rollouts, plan(), lambda batches: None, current_weight_version=3)
    assert rollouts.claim_meta("rollouts", "train", ["input_ids"], 9).size == 8


def test_a_claim_that_ran_out_before_training_trains_on_nothing(rollouts: DataPlaneClient) -> None:
    trained: list[RankBatch] = []
    with pytest.raises(LeaseExpiredError):
        run(rollouts, plan(lease_s=1e-9), trained)
    assert trained == []


def test_samples_that_a_trainer_died_on_are_not_served_again_and_are_named(rollouts: DataPlaneClient) -> None:
    def die(batches: Sequence[RankBatch]) -> None:
        raise RuntimeError("killed in the step")

    with pytest.raises(RuntimeError, match="killed in the step"):
        consume(rollouts, plan(), die, current_weight_version=4)
    assert rollouts.claim_meta("rollouts", "train", ["input_ids"], 9, blocking=False).size == 0
    assert rollouts.acknowledged("rollouts", "train") == ["b0", "b1", "b2", "b3"]


def test_nothing_to_claim_is_a_timeout_that_says_what_is_missing(rollouts: DataPlaneClient) -> None:
    with pytest.raises(TimeoutError, match="does somebody write advantages"):
        run(rollouts, plan(fields=["advantages"]), [])


def test_columns_written_later_are_read_back_at_their_own_lengths(rollouts: DataPlaneClient) -> None:
    meta = rollouts.claim_meta("rollouts", "train", ["input_ids"], 3)
    assert meta.sequence_lengths == [3, 4, 5]
    write_columns(rollouts, meta, {"advantages": torch.tensor([0.5, -0.5, 0.0])})
    write_columns(rollouts, meta, {})
    read = read_columns(rollouts, meta.subset([2, 0]), ["advantages", "input_ids"])
    assert read["advantages"].tolist() == [0.0, 0.5]
    assert read["input_ids"].tolist() == [[1] * 5, [1, 1, 1, 0, 0]]


def test_a_first_write_needs_samples_lengths_and_fields_as_long_as_they_say(client: DataPlaneClient) -> None:
    ids = torch.zeros(1, 2, dtype=torch.long)
    with pytest.raises(ValueError, match="no samples"):
        kv_first_write({}, [], client, "train")
    with pytest.raises(ValueError, match="no field 'input_lengths'"):
        kv_first_write({"input_ids": ids}, ["a"], client, "train")
    with pytest.raises(ValueError, match="2 samples, 1 lengths"):
        kv_first_write({"input_ids": ids, "input_lengths": torch.tensor([2])}, ["a", "b"], client, "train")
    with pytest.raises(ValueError, match="too small for a row of 3"):
        kv_first_write({"input_ids": ids, "input_lengths": torch.tensor([3])}, ["a"], client, "train")


def test_a_watched_client_reports_every_call_and_the_bytes_outstanding(rollouts: DataPlaneClient) -> None:
    seen: list[Operation] = []
    watched = ObservedClient(rollouts, seen.append)
    assert isinstance(watched, DataPlaneClient)
    before = watched.bytes_outstanding()
    watched.put_samples(["c"], "rollouts", {"advantages": torch.zeros(1, dtype=torch.float64)})
    assert watched.bytes_outstanding() - before == 8
    with pytest.raises(TimeoutError):
        watched.claim_meta("rollouts", "train", ["advantages", "input_ids"], 1, timeout_s=0)
    watched.clear_samples(["c"], "rollouts")
    assert [(one.op, one.n_keys, one.n_bytes, one.status) for one in seen] == [
        ("put_samples", 1, 8, "ok"),
        ("claim_meta", 0, 0, "timeout"),
        ("clear_samples", 1, 0, "ok"),
    ]
    assert watched.totals.errors["claim_meta"] == 1
    assert watched.bytes_outstanding() == before


def test_fewer_than_are_to_be_left_are_given_back_and_claimed_again(rollouts: DataPlaneClient) -> None:
    """Three of the eight are stale: the five others wait until a sixth comes, and keep their place."""
    trained: list[RankBatch] = []
    waits: list[int] = []

    def wait() -> None:
        waits.append(rollouts.status("rollouts").num_leased)
        produce(rollouts, ["c0"], 4)

    one = plan(filters=[StalenessFilter(1)], min_batch_size=6, min_kept=6, dp_world=1, timeout_s=60.0)
    result = consume(rollouts, one, trained.extend, current_weight_version=4, on_wait=wait)
    assert result.trained.sample_ids == ["b0", "b1", "b2", "b3", "b4", "c0"]
    assert result.dropped == {"stale": ["a0", "a1", "a2"]}
    assert waits == [0]


def test_what_a_filter_drops_is_reported_when_it_is_gone(rollouts: DataPlaneClient) -> None:
    """Also where the flow then ends with an error."""
    heard: list[tuple[str, list[str], int]] = []

    def drop(name: str, meta: KVBatchMeta) -> None:
        heard.append((name, meta.sample_ids, rollouts.status("rollouts").num_rows))

    with pytest.raises(TimeoutError, match=r"waited for 0 s in all"):
        consume(
            rollouts,
            plan(min_batch_size=8, min_kept=8),
            lambda batches: None,
            current_weight_version=4,
            on_drop=drop,
        )
    assert heard == [("stale", ["a0", "a1", "a2"], 5), ("too long", ["b4"], 4)]
    assert rollouts.status("rollouts").num_leased == 0


def test_rows_are_read_jagged_where_the_plan_says_so(rollouts: DataPlaneClient) -> None:
    trained: list[RankBatch] = []
    run(rollouts, plan(layout="jagged", dp_world=1), trained)
    assert [row.tolist() for row in trained[0].columns["input_ids"]] == [[4] * 3, [4] * 4, [4] * 5, [4] * 6]


def test_a_plan_that_would_wait_for_ever_is_refused() -> None:
    with pytest.raises(ValueError, match="raise batch_size"):
        plan(min_kept=9)
