"""Worked examples of Megatron-core: what replaces devices on a CPU, and scores and metrics that ranks share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor, nn

from refrl.distributed import World
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import batch, example
from seatrial.targets.reference.worked.made_ranks import Group, by_rank


def of_megatron_ranks() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_replacements()
    yield from _of_scores()


def _of_replacements() -> Iterator[WorkedExample]:
    for rank, size, right in ((0, 1, [0, 1, 2, 3]), (0, 2, [0, 3]), (1, 2, [1, 2])):
        yield example(f"positions of rank {rank} of {size}", right, _positions, rank, size)
    for device, due in (("cuda", "cpu"), ("cuda:0", "cpu"), ("cpu", "cpu"), ("meta", "meta"), (None, "cpu")):
        yield example(f"a tensor that is made on {device}", due, _placed, device)
    yield example("a part that is computed again", [2, 2.0, 2.0], _again)
    yield example("streams and random states that are none", [True, "done", None, None], _streams)
    for cuda in (False, True):
        yield example(
            f"what is replaced, on a device: {cuda}",
            ["everywhere", *["without"] * (not cuda)],
            _prepared,
            cuda,
        )


def _positions(rank: int, size: int) -> list[int]:
    from refrl.policy.megatron import cpu

    group = SimpleNamespace(rank=lambda: rank, size=lambda: size)
    return cpu._own_positions(torch.arange(4)[None, :, None], 1, group).flatten().tolist()


def _placed(device: str | None) -> str:
    from refrl.policy.megatron import cpu

    given: dict[str, Any] = {} if device is None else {"device": device}
    made = cpu._on_cpu(torch.zeros)(2, pin_memory=True, dtype=torch.int8, **given)
    assert made.dtype == torch.int8 and made.shape == (2,)
    return str(made.device)


def _again() -> list[Any]:
    """Return how often a part is computed for its gradient, its result, and the gradient."""
    from refrl.policy.megatron import cpu

    calls: list[float] = []

    def part(values: Tensor, factor: float) -> Tensor:
        calls.append(factor)
        return values * values * factor

    values = torch.tensor(2.0, requires_grad=True)
    found = cpu._checkpoint(part, True, values, 0.5)
    found.backward()
    return [len(calls), float(found.detach()), float(cast(Any, values.grad))]


def _streams() -> list[Any]:
    from refrl.policy.megatron import cpu

    stream = cpu._Stream("any", priority=1)
    event = stream.record_event()
    with cpu._no_fork(None, "name"):
        done = "done"
    return [event is stream, done, event.wait(stream), stream.synchronize()]


def _prepared(cuda: bool) -> list[str]:
    from refrl.policy.megatron import cpu

    noted: list[str] = []
    with (
        patch.object(torch.cuda, "is_available", lambda: cuda),
        patch.object(cpu, "_on_every_machine", lambda: noted.append("everywhere")),
        patch.object(cpu, "_without_cuda", lambda: noted.append("without")),
    ):
        cpu.prepare()
    return noted


def _of_scores() -> Iterator[WorkedExample]:
    scored = [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [2.0, 0.0, 0.0]]
    yield example("scores of two ranks that share rows", [scored] * 2, _scored)
    parts = [[{"loss": 0.5}, {"loss": 1.5}]] * 2
    yield example("metrics of two ranks that share rows", parts, by_rank, 2, _metrics)
    yield example("metrics of one rank", [[{"loss": 0.5}]], by_rank, 1, _metrics)


def _policy(group: Group, rank: int) -> Any:
    from refrl.policy.megatron.policy import MegatronPolicy

    made = object.__new__(MegatronPolicy)
    parallel = SimpleNamespace(
        alone=group.size() == 1, expert=SimpleNamespace(size=lambda: 1), from_last_stage=lambda values: values,
        objects_from_last_stage=lambda items: items,
    )  # fmt: skip
    rows = World(rank, group.size(), cast(Any, group))
    vars(made).update(
        {"_rows": rows, "_parallel": parallel, "_device": torch.device("cpu"), "_scorer": "scorer"}
    )
    return made


_MODULE = nn.Identity()


def _scored() -> list[Any]:
    """Return the scores of three rows on two ranks, which score one or two, each in a pass of its own."""
    from refrl.policy.megatron import forward

    def run(*, data_iterator: Any, **options: Any) -> list[Tensor]:
        assert options["forward_only"]
        passes = list(data_iterator)
        assert len(passes) == 2  # on each of the ranks that share experts, of which one has a single row
        return [torch.full(micro.mask_BT.shape, _number(micro)) for micro in passes]

    def call(group: Group, rank: int) -> Any:
        own = _policy(group, rank)
        own._parallel.expert = group
        own._logprob_cut = SimpleNamespace(
            micro_batches=lambda rows: [
                ([place], rows.rows([place], trim=True)) for place in range(rows.num_rows)
            ]
        )
        return own._score(_MODULE, batch())[:, :3].tolist()

    with patch.object(
        forward, "get_forward_backward_func", lambda: run
    ):  # around the threads, which share it
        return by_rank(2, call)


def _number(micro: Any) -> float:
    """Return the number of the row of `made.rows` that is alone in a micro-batch."""
    return {1: 0.0, 4: 1.0, 2: 2.0}[int(micro.input_ids_BS[0, 0])]


def _metrics(group: Group, rank: int) -> Sequence[Any]:
    own: Sequence[Any] = _policy(group, rank)._parts([{"loss": torch.tensor(0.5 + rank)}])
    return [{name: float(value) for name, value in part.items()} for part in own]
