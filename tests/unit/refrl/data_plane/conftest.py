"""A local data plane, its clock, and rows to put into it."""

from collections.abc import Callable

import pytest
import torch

from refrl.config.run import DataPlaneConfig
from refrl.data_plane import DataPlaneClient, KVBatchMeta, build_data_plane_client

FIELDS = ("input_ids", "logprobs", "content")


@pytest.fixture
def client() -> DataPlaneClient:
    """Return a client with the partition `train` for the tasks `train` and `score`."""
    client = build_data_plane_client(DataPlaneConfig())
    client.register_partition("train", FIELDS, 100_000, ["train", "score"])
    return client


@pytest.fixture
def put(client: DataPlaneClient) -> Callable[..., KVBatchMeta]:
    """Return a function that puts samples with one field, row i full of its number, and a version tag."""

    def put(*samples: str, version: int = 0, first: int = 0) -> KVBatchMeta:
        rows = torch.arange(first, first + len(samples)).unsqueeze(1).repeat(1, 4)
        return client.put_samples(
            samples, "train", {"input_ids": rows}, [{"weight_version": version}] * len(samples)
        )

    return put
