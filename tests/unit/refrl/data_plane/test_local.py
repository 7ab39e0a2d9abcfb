"""The local data plane through its public calls."""

import threading
from collections import Counter
from collections.abc import Callable

import pytest
import torch

from refrl.data_plane import (
    DataPlaneClient,
    DataPlaneError,
    KVBatchMeta,
    PartitionFullError,
    UnknownPartitionError,
)

Put = Callable[..., KVBatchMeta]


def test_the_client_is_what_the_protocol_asks_for(client: DataPlaneClient) -> None:
    assert isinstance(client, DataPlaneClient)


def test_concurrent_claimers_and_producers_lose_and_double_nothing(client: DataPlaneClient, put: Put) -> None:
    """Two producers, four claimers, as threads."""
    expected = [f"{producer}-{group}_g{row}" for producer in "ab" for group in range(30) for row in range(8)]
    claimed: list[str] = []
    wrong_tags: list[str] = []

    def produce(producer: str) -> None:
        for group in range(30):
            put(*(f"{producer}-{group}_g{row}" for row in range(8)), version=group)

    def consume() -> None:
        while len(claimed) < len(expected):
            meta = client.claim_meta("train", "train", ["input_ids"], 5, blocking=False)
            client.acknowledge(meta)
            claimed.extend(meta.sample_ids)
            for sample, tags in zip(meta.sample_ids, meta.tags or (), strict=True):
                if tags != {"weight_version": int(sample.split("-")[1].split("_")[0])}:
                    wrong_tags.append(sample)

    threads = [threading.Thread(target=produce, args=(name,)) for name in "ab"]
    threads += [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert Counter(claimed) == Counter(expected)
    assert not wrong_tags
    assert client.check_consumption_status("train", ["train"])


def test_a_blocking_claim_gets_what_another_thread_puts_later(client: DataPlaneClient, put: Put) -> None:
    waiting = threading.Event()
    got: list[KVBatchMeta] = []

    def claim() -> None:
        waiting.set()
        got.append(client.claim_meta("train", "train", ["input_ids"], 8, min_batch_size=3, timeout_s=30))

    thread = threading.Thread(target=claim)
    thread.start()
    waiting.wait(30)
    put("a")
    put("b", "c")
    thread.join(30)
    assert got[0].sample_ids == ["a", "b", "c"]


def test_memory_is_given_back_when_rows_are_cleared(client: DataPlaneClient) -> None:
    for put in range(4):
        samples = [f"{put}_g{row}" for row in range(8)]
        client.put_samples(samples, "train", {"input_ids": torch.zeros(8, 512, dtype=torch.long)})
        client.clear_samples(samples[1:], "train")
    assert client.status("train").bytes_held == client.status("train").bytes_live == 4 * 512 * 8
    assert client.get_samples(["3_g0"], "train", ["input_ids"])["input_ids"].shape == (1, 512)
    client.clear_samples([f"{put}_g0" for put in range(4)], "train")
    assert client.status("train").bytes_held == 0


def test_a_full_partition_holds_producers_back(client: DataPlaneClient) -> None:
    client.register_partition("small", ["input_ids"], 2, ["train"])
    client.put_samples(["a", "b"], "small", {"input_ids": torch.zeros(2)})
    with pytest.raises(PartitionFullError, match="2 live samples and 1 new"):
        client.put_samples(["b", "c"], "small", {"input_ids": torch.zeros(2)})
    client.put_samples(["b"], "small", {"input_ids": torch.ones(1)})
    client.clear_samples(["a"], "small")
    client.put_samples(["c"], "small", {"input_ids": torch.zeros(1)})
    assert client.status("small").num_rows == 2


def test_registering_otherwise_is_refused_and_clearing_whole_allows_it(
    client: DataPlaneClient, put: Put
) -> None:
    put("a")
    with pytest.raises(ValueError, match="is registered as"):
        client.register_partition("train", ["other"], 5, ["train"])
    client.clear_samples(None, "train")
    with pytest.raises(UnknownPartitionError, match="no partition 'train'"):
        put("a")
    client.register_partition("train", ["other"], 5, ["train"])
    assert client.partitions() == ["train"]


def test_tags_are_held_to_what_was_registered(client: DataPlaneClient) -> None:
    client.register_partition(
        "strict", ["x"], 9, ["t"], enums={"status": ["done", "failed"]}, required_tags=["weight_version"]
    )
    with pytest.raises(ValueError, match="lack the tag 'weight_version'"):
        client.put_samples(["a"], "strict", {"x": torch.zeros(1)})
    with pytest.raises(ValueError, match="allowed: done, failed"):
        client.put_samples(["a"], "strict", {"x": torch.zeros(1)}, [{"weight_version": 1, "status": "odd"}])
    client.put_samples(["a"], "strict", {"x": torch.zeros(1)}, [{"weight_version": 1}])
    client.put_samples(["a"], "strict", tags=[{"status": "done"}])
    assert client.claim_meta("strict", "t", ["x"], 1).tags == [{"weight_version": 1, "status": "done"}]


def test_a_tag_that_is_no_scalar_is_refused(client: DataPlaneClient) -> None:
    with pytest.raises(TypeError, match="tag 'v' is list"):
        client.put_samples(["a"], "train", {"input_ids": torch.zeros(1)}, [{"v": [1]}])
    assert client.status("train").num_rows == 0


def test_a_closed_client_says_so(client: DataPlaneClient) -> None:
    client.close()
    client.close()
    with pytest.raises(DataPlaneError, match="closed"):
        client.partitions()
