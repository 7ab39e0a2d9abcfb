"""The asynchronous filter flow on a store of a Ray cluster, driven by a producer actor; run by test_data_plane.py.

The pipeline asserts nothing: it runs once, and each test asks one thing of what it left.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil
import pytest
import ray
import torch

from refrl.config.run import DataPlaneConfig
from refrl.data_plane import (
    ConsumePlan,
    KVBatchMeta,
    RankBatch,
    StalenessFilter,
    build_data_plane_client,
    consume,
    kv_first_write,
)
from seatrial.targets.reference.data_plane.ray import start_ray

CONFIG = DataPlaneConfig(implementation=os.environ["IMPLEMENTATION"], name="flow", timeout_s=20)  # type: ignore[arg-type]
FIELDS = ["input_ids", "input_lengths", "content"]
STALE, FRESH = [f"s{row}" for row in range(6)], [f"f{row}" for row in range(8)]


class Producer:
    """An actor that stands for a rollout worker: it has a weight version, and writes what it makes in one call."""

    def __init__(self) -> None:
        """Join the store."""
        self.client = build_data_plane_client(CONFIG, bootstrap=False)
        self.version = 0

    def set_weight_version(self, version: int) -> None:
        """Take new weights; samples made from now on are theirs."""
        self.version = version

    def rollout(self, partition_id: str, samples: list[str]) -> list[str]:
        """Make rows of unequal lengths and write them."""
        lengths = torch.tensor([3 + int(sample[1:]) for sample in samples])
        content = np.empty(len(samples), dtype=object)
        content[:] = [[{"role": "user", "content": sample}] for sample in samples]
        batch = {
            "input_ids": torch.tensor([[int(sample[1:])] * 16 for sample in samples]),
            "input_lengths": lengths,
            "content": content,
        }
        tags = [{"weight_version": self.version, "of": sample} for sample in samples]
        kv_first_write(batch, samples, self.client, partition_id, tags=tags)
        return samples

    def write_without_end(self, partition_id: str) -> None:
        """Write groups until killed."""
        for group in range(10**6):
            self.rollout(partition_id, [f"g{10 * group + row}" for row in range(4)])

    def claim_and_hold(self, partition_id: str) -> list[str]:
        """Claim for two seconds and do nothing with it."""
        return self.client.claim_meta(partition_id, "train", ["input_ids"], 3, lease_s=2.0).sample_ids

    def pid(self) -> int:
        """Return this process."""
        return os.getpid()


class Recording(StalenessFilter):
    """The filter, with what it was given and gave."""

    def __call__(self, meta: KVBatchMeta, **state: Any) -> tuple[KVBatchMeta, KVBatchMeta]:
        """See `BaseRolloutFilter`."""
        self.claimed, (self.keep, self.drop) = meta, super().__call__(meta, **state)
        return self.keep, self.drop


@dataclass
class Flow:
    """What the pipeline left."""

    client: Any
    drained: bool = False
    filter: Recording = field(default_factory=lambda: Recording(1))
    batches: list[RankBatch] = field(default_factory=list)
    result: Any = None


@pytest.fixture(scope="module")
def client() -> Any:
    start_ray()
    return build_data_plane_client(CONFIG)


@pytest.fixture(scope="module")
def producer(client: Any) -> Any:
    return ray.remote(Producer).options(num_cpus=0).remote()


@pytest.fixture(scope="module")
def flow(client: Any, producer: Any) -> Flow:
    flow = Flow(client)
    client.register_partition("rollouts", FIELDS, 64, ["train"], required_tags=["weight_version"])
    # Calls of one actor come one after the other: each version lands before the rollout behind it.
    producer.set_weight_version.remote(1)
    stale = producer.rollout.remote("rollouts", STALE)
    producer.set_weight_version.remote(4)
    fresh = producer.rollout.remote("rollouts", FRESH)
    ray.get([stale, fresh])

    def train(batches: Any) -> None:
        flow.drained = client.check_consumption_status("rollouts", ["train"])
        flow.batches.extend(batches)

    plan = ConsumePlan(
        partition_id="rollouts",
        task_name="train",
        fields=FIELDS,
        batch_size=14,
        min_batch_size=14,
        filters=[flow.filter],
        dp_world=2,
    )
    flow.result = consume(client, plan, train, current_weight_version=4)
    return flow


def test_a_blocking_claim_takes_all_rows_at_once(flow: Flow) -> None:
    assert Counter(flow.filter.claimed.sample_ids) == Counter(STALE + FRESH)


def test_the_cursor_has_advanced_by_the_status_and_not_by_an_empty_poll(flow: Flow) -> None:
    assert flow.drained


def test_stale_and_fresh_rows_are_parted_exactly(flow: Flow) -> None:
    assert Counter(flow.filter.drop.sample_ids) == Counter(STALE)
    assert Counter(flow.filter.keep.sample_ids) == Counter(FRESH)


def test_the_version_lands_before_the_rollout_behind_it(flow: Flow) -> None:
    versions = {tags["of"]: tags["weight_version"] for tags in flow.filter.claimed.tags or ()}
    assert versions == {**dict.fromkeys(STALE, 1), **dict.fromkeys(FRESH, 4)}


def test_both_halves_have_tags_of_their_length_aligned_by_id(flow: Flow) -> None:
    for half in (flow.filter.keep, flow.filter.drop):
        assert half.tags is not None and len(half.tags) == half.size
        assert [tags["of"] for tags in half.tags] == half.sample_ids


def test_both_halves_are_fresh_copies(flow: Flow) -> None:
    flow.filter.keep.tags[0]["weight_version"] = -1  # type: ignore[index]
    assert -1 not in [tags["weight_version"] for tags in flow.filter.claimed.tags or ()]


def test_lengths_are_the_producers_aligned_by_id(flow: Flow) -> None:
    claimed = flow.filter.claimed
    assert claimed.sequence_lengths == [3 + int(sample[1:]) for sample in claimed.sample_ids]


def test_the_ranks_cover_the_kept_rows_as_a_multiset(flow: Flow) -> None:
    assert Counter(sample for batch in flow.batches for sample in batch.meta.sample_ids) == Counter(FRESH)
    assert [batch.meta.size for batch in flow.batches] == [4, 4]


def test_each_rank_reads_its_rows_padded(flow: Flow) -> None:
    for batch in flow.batches:
        for row, sample in zip(batch.columns["input_ids"].tolist(), batch.meta.sample_ids, strict=True):
            number = int(sample[1:])
            assert row[: 3 + number] == [number] * (3 + number)
            assert set(row[3 + number :]) <= {0}


def test_objects_come_with_their_rows(flow: Flow) -> None:
    for batch in flow.batches:
        said = [messages[0]["content"] for messages in batch.columns["content"]]
        assert said == batch.meta.sample_ids


def test_dropped_rows_are_told_with_their_reason(flow: Flow) -> None:
    assert {name: sorted(samples) for name, samples in flow.result.dropped.items()} == {"stale": STALE}


def test_the_partition_is_empty_at_the_end(flow: Flow) -> None:
    status = flow.client.status("rollouts")
    assert (status.num_rows, status.num_leased, status.bytes_held) == (0, 0, 0)


def test_the_store_serves_on_after_another_clients_close(flow: Flow) -> None:
    build_data_plane_client(CONFIG, bootstrap=False).close()
    assert flow.client.partitions() == ["rollouts"]


def _kill(actor: Any) -> None:
    pid = ray.get(actor.pid.remote())
    os.kill(pid, signal.SIGKILL)
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)


def test_a_consumer_killed_after_its_claim_gives_its_rows_back(client: Any) -> None:
    client.register_partition("held", FIELDS, 64, ["train"])
    consumer = ray.remote(Producer).options(num_cpus=0).remote()
    ray.get(consumer.rollout.remote("held", FRESH))
    held = ray.get(consumer.claim_and_hold.remote("held"))
    _kill(consumer)
    rest = client.claim_meta("held", "train", ["input_ids"], 8).sample_ids
    back = client.claim_meta("held", "train", ["input_ids"], 8, min_batch_size=3, timeout_s=20).sample_ids
    assert (sorted(rest + held), sorted(back)) == (sorted(FRESH), sorted(held))
    assert client.get_samples(back, "held", ["input_ids"])["input_ids"][0].tolist()
    client.clear_samples(None, "held")


@pytest.mark.parametrize("seed", range(int(os.environ.get("NUM_KILLS", "1"))))
def test_a_producer_killed_while_it_writes_leaves_whole_rows_or_none(client: Any, seed: int) -> None:
    partition = f"killed-{seed}"
    client.register_partition(partition, FIELDS, 100_000, ["train"])
    writer = ray.remote(Producer).options(num_cpus=0, max_concurrency=2).remote()
    ray.get(writer.pid.remote())
    writer.write_without_end.remote(partition)
    first = client.claim_meta(partition, "train", FIELDS, 4, min_batch_size=4, timeout_s=30)
    time.sleep(np.random.default_rng(seed).uniform(0, 0.1))  # where in its writing it dies
    _kill(writer)
    rest = client.claim_meta(partition, "train", FIELDS, 100_000, blocking=False)
    samples = first.sample_ids + rest.sample_ids
    assert client.status(partition).num_rows == len(samples)
    assert len(samples) % 4 == 0
    assert [tags["of"] for tags in [*(first.tags or ()), *(rest.tags or ())]] == samples
    rows = client.get_samples(samples, partition, ["input_ids"])["input_ids"]
    assert all(set(row.tolist()) == {int(sample[1:])} for row, sample in zip(rows, samples, strict=True))
    assert client.check_consumption_status(partition, ["train"])
    client.clear_samples(None, partition)
