"""Worked examples of small edges: widths, vocabularies, ratios far off, ranks that share a claim, draws by name."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch

from refrl.algorithms.chunked import compute_logprobs_chunked
from refrl.algorithms.kept_ids import gather_kept_ids
from refrl.algorithms.losses.ratios import sequence_ratio
from refrl.algorithms.metrics import approx_entropy
from refrl.algorithms.packing import compute_logprobs_packed, pack_batch
from refrl.checkpointing import tensors
from refrl.config import DataConfig
from refrl.data_plane.column_io import jagged
from refrl.data_plane.factory import local_client
from refrl.data_plane.flow import ConsumePlan, consume
from refrl.tasks.base import make_splits
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import PAD, batch, example, refused


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    for width in (3, 5):
        yield refused("a head of width", f"hidden states of 4 and a head of {width}", _scored, width)
    yield refused("outside the vocabulary", "kept ids of packed rows beyond the vocabulary", _packed, 9)
    yield example("kept ids of packed rows in the vocabulary", (3, 3), _packed, 8)
    for gap in (-20.0, 0.0, 3.0, 200.0):
        yield example(f"the ratio of a sequence {gap} away", math.exp(min(gap, 80.0)), _ratio, gap)
    yield example("the entropy of rows that another policy drew", 2 * math.exp(-1.5), _entropy)
    yield refused("too small for a row of 3", "tokens of a row that is longer", _cut, [1, 3])
    for num in (1, 2):
        yield example(f"rows that {num} ranks trained on", (4, 0), _left, num)
    yield example("threads of a writer in the background", [(1, "checkpoint")], _writer)
    for task in ("add", "reverse"):
        yield example(f"prompts of {task} that a seed holds out", True, _held_out, task)


def _scored(width: int) -> Any:
    ids, lens = torch.tensor([[1]]), torch.tensor([1])
    return compute_logprobs_chunked(torch.ones(1, 2, 4), torch.ones(6, width), ids, lens)


def _packed(kept: int) -> Any:
    """Return the shape of the scores of rows whose first token had these ids to be drawn from, of nine."""
    made = batch()
    packed = pack_batch(made, pack_length=16, pad_token_id=PAD)
    ids = gather_kept_ids([[(2, kept)], [], []], 3)
    logits = torch.zeros(*packed.input_ids_PS.shape, 9)
    found, _ = compute_logprobs_packed(
        logits, packed, made.completion_ids_BT, mask_BT=made.mask_BT, kept_ids=ids
    )
    return tuple(found.shape)


def _ratio(gap: float) -> float:
    current = torch.tensor([[gap, gap, 7.0]], dtype=torch.float64)
    mask = torch.tensor([[1.0, 1.0, 0.0]])
    found = sequence_ratio(current * mask, torch.zeros(1, 3, dtype=torch.float64), mask)
    return float(found[0, 0])


def _entropy() -> float:
    current, drawn = torch.tensor([[-2.0, 5.0]]), torch.tensor([[-0.5, 0.0]])
    return float(approx_entropy(current, drawn, torch.tensor([[1.0, 0.0]]), 1.0))


def _cut(lengths: list[int]) -> Any:
    return jagged({"input_ids": torch.ones(2, 2)}, lengths)


def _left(num_ranks: int) -> Any:
    """Return how many rows ranks trained on, and how many the store has afterwards."""
    client = local_client(lease_s=60.0)
    client.register_partition("p", ["x"], 4, ["t"])
    client.put_samples(list("abcd"), "p", {"x": torch.ones(4)})
    plan = ConsumePlan(
        partition_id="p", task_name="t", fields=["x"], batch_size=4, min_batch_size=4, dp_world=num_ranks
    )
    trained: list[int] = []
    consume(
        client,
        plan,
        lambda batches: trained.extend(one.meta.size for one in batches),
        current_weight_version=0,
    )
    return sum(trained), client.status("p").num_rows


def _writer() -> list[Any]:
    made: list[Any] = []
    with patch.object(tensors, "ThreadPoolExecutor", lambda *words: made.append(words)):
        tensors.BackgroundWriter(background=True)
        tensors.BackgroundWriter(background=False)
    return made


def _held_out(task: str) -> bool:
    """Return whether a seed draws as it always has: other prompts would be trained on that were held out before."""
    found = make_splits(DataConfig(task=task, num_train=5, num_validation=3, seed=4))
    stream = random.Random(f"splits of {task}: 4")
    space = 10**4 if task == "add" else sum(26**length for length in range(1, 5))
    return [one.prompt_id for one in found.validation] == stream.sample(range(space), 3)
