"""Worked examples of the data plane's clients: calls that are watched or fail, first writes, filters, the buffer."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from refrl.config.run import DataPlaneConfig
from refrl.data_plane import KVBatchMeta, LengthFilter, StalenessFilter, ZeroVarianceFilter, observability
from refrl.data_plane.column_io import kv_first_write, read_columns, write_columns
from refrl.data_plane.factory import (
    build_data_plane_client,
    data_plane_processes,
    local_client,
    opened_data_plane,
)
from refrl.data_plane.filters import BaseRolloutFilter
from refrl.data_plane.observability import ObservedClient, Operation
from refrl.rollout.replay import ReplayBuffer
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked import plane_calls
from seatrial.targets.reference.worked.made import example, for_all, refused, rollouts


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_clients()
    yield from _of_filters()
    yield from _of_the_buffer()
    yield from plane_calls.examples()


def _meta(names: str, **options: Any) -> KVBatchMeta:
    return KVBatchMeta(partition_id="p", sample_ids=list(names), **options)


def _two(client: Any, **options: Any) -> KVBatchMeta:
    """Register a partition and write two rows of two and one tokens."""
    client.register_partition(
        "p", ["input_ids", "input_lengths", "prev_logprobs", "extra"], 2, ["t"], **options
    )
    rows = {"input_ids": torch.tensor([[1, 2, 0], [3, 0, 0]]), "input_lengths": torch.tensor([2, 1])}
    return kv_first_write(rows, ["a", "b"], client, "p")


def _of_clients() -> Iterator[WorkedExample]:
    yield example("what passes through a client", *_watched())
    yield example("calls that fail", (["error", "timeout"], {"get_samples": 1, "claim_meta": 1}), _failed)
    yield example("milliseconds of a call that takes a quarter of a second", [250.0], _timed)
    yield example("groups whose names have the mark of a group", ["a_g0_g0", "a_g0_g1"], _whole_groups)
    for call in (
        ("status", "p"), ("partitions",), ("acknowledged", "p", "t"), ("clear_samples", ["a"], "p"),
        ("get_samples", ["a"], "p", ["input_ids"]), ("check_consumption_status", "p", ["t"]),
        ("register_partition", "q", ["x"], 1, ["t"]), ("claim_meta", "p", "t", ["input_ids"], 1),
        ("put_samples", ["a"], "p", {"extra": torch.zeros(1)}),
    ):  # fmt: skip
        yield refused("closed", f"{call[0]} of a closed client", _after_close, *call)
    yield example("another client of a store that is closed", 2, _attached)
    yield example("a local store", (True, {}), _opened)
    yield refused(
        "serves one process",
        "a local store that is joined",
        build_data_plane_client,
        DataPlaneConfig(),
        bootstrap=False,
    )
    written = {"prev_logprobs": [[0.5, 0.25], [0.125]], "extra": [7, 8]}
    yield example("further fields are cut", written, _written, True)
    yield refused("", "further fields without lengths are not cut", _written, False)
    yield example("no further fields", None, lambda: write_columns(local_client(lease_s=1.0), _meta("a"), {}))
    lengths = {"input_lengths": torch.tensor([2])}
    for words, batch, names, tags in (
        ("no samples", lengths, [], None),
        ("no field 'input_lengths'", {"x": torch.zeros(1)}, ["a"], None),
        ("2 samples, 1 lengths", lengths, ["a", "b"], None),
        ("and 2 tags", lengths, ["a"], [{}, {}]),
        ("too small for a row of 2", {**lengths, "input_ids": torch.zeros(1, 1)}, ["a"], None),
        ("has shape (1,), too small", {**lengths, "input_ids": torch.zeros(1)}, ["a"], None),
    ):
        yield refused(words, f"a first write of {names}, {tags}: {words}", kv_first_write, batch, names,
                      local_client(lease_s=1.0), "p", tags=tags)  # fmt: skip
    yield refused("more than the 1", "rows wider than the meta says", _narrow)


def _watched() -> tuple[Any, Any]:
    seen: list[Operation] = []

    def call() -> Any:
        client = ObservedClient(local_client(lease_s=60.0), seen.append)
        _two(client)
        claim = client.claim_meta("p", "t", ["input_ids"], 2)
        client.get_data(claim, ["input_ids"])
        client.get_samples(["b"], "p", ["input_lengths"])
        client.renew(claim)
        client.release(claim.subset([0]))
        client.acknowledge(claim.subset([1]))
        drained = client.check_consumption_status("p", ["t"])
        outstanding = client.bytes_outstanding()
        client.clear_samples(["a", "b"], "p")
        totals, keys = client.totals, [(one.op, one.n_keys, one.n_bytes, one.status) for one in seen]
        assert all(one.wall_ms >= 0 and one.partition_id == "p" for one in seen)
        sums = {
            op: (totals.calls[op], totals.keys[op], totals.bytes[op]) for op in ("put_samples", "get_samples")
        }
        return keys, sums, totals.max_bytes_per_key, drained, outstanding, client.bytes_outstanding()

    right = [
        ("register_partition", 0, 0, "ok"), ("put_samples", 2, 40, "ok"), ("claim_meta", 2, 0, "ok"),
        ("get_data", 2, 24, "ok"), ("get_samples", 1, 8, "ok"), ("renew", 2, 0, "ok"), ("release", 1, 0, "ok"),
        ("acknowledge", 1, 0, "ok"), ("check_consumption_status", 0, 0, "ok"), ("clear_samples", 2, 0, "ok"),
    ]  # fmt: skip
    sums = {"put_samples": (1, 2, 40), "get_samples": (1, 1, 8)}
    return (right, sums, 20.0, False, 40, 0), call


def _timed() -> list[float]:
    seen: list[Operation] = []
    client = ObservedClient(local_client(lease_s=60.0), seen.append)
    with patch.object(observability, "time", SimpleNamespace(perf_counter=iter((1.0, 1.25)).__next__)):
        client.register_partition("p", ["x"], 1, ["t"])
    return [one.wall_ms for one in seen]


def _whole_groups() -> list[str]:
    """Return the first two samples of whole groups, of two groups that are written in turn."""
    client = local_client(lease_s=60.0)
    client.register_partition("p", ["x"], 4, ["t"], grpo_group_size=2)
    client.put_samples(["a_g0_g0", "a_g1_g0", "a_g0_g1", "a_g1_g1"], "p", {"x": torch.zeros(4)})
    return list(client.claim_meta("p", "t", ["x"], 2).sample_ids)


def _failed() -> Any:
    seen: list[Operation] = []
    client = ObservedClient(local_client(lease_s=60.0), seen.append)
    client.register_partition("p", ["x"], 2, ["t"])
    for call in (
        lambda: client.get_samples(["a"], "p", ["x"]),
        lambda: client.claim_meta("p", "t", ["x"], 1, timeout_s=0.0),
    ):
        try:
            call()
        except (KeyError, TimeoutError, LookupError):
            continue
    failed = {op: count for op, count in client.totals.errors.items() if count}
    return [one.status for one in seen[1:]], failed


def _after_close(name: str, *words: Any) -> None:
    client = local_client(lease_s=60.0)
    _two(client)
    client.close()
    getattr(client, name)(*words)


def _attached() -> int:
    client = local_client(lease_s=60.0)
    other = client.attach()
    _two(client)
    client.close()
    return other.status("p").num_rows


def _opened() -> Any:
    with opened_data_plane(DataPlaneConfig()) as client:
        _two(client)
        rows = client.status("p").num_rows
    return rows == 2, data_plane_processes(DataPlaneConfig())


def _written(has_lengths: bool) -> Any:
    client = local_client(lease_s=60.0)
    meta = _two(client)
    if not has_lengths:
        meta = _meta("ab")
    wide = torch.tensor([[0.5, 0.25, 9.0], [0.125, 9.0, 9.0]])
    write_columns(client, meta, {"prev_logprobs": wide, "extra": torch.tensor([7, 8])})
    found = read_columns(client, meta, ["prev_logprobs", "extra"], layout="jagged")
    if not has_lengths:
        raise ValueError(found["prev_logprobs"][0].tolist())
    return {
        "prev_logprobs": [row.tolist() for row in found["prev_logprobs"]],
        "extra": found["extra"].tolist(),
    }


def _narrow() -> None:
    client = local_client(lease_s=60.0)
    meta = _two(client)
    read_columns(
        client,
        KVBatchMeta(
            partition_id="p", sample_ids=meta.sample_ids, extra_info={"global_forward_pad_seqlen": 1}
        ),
        ["input_ids"],
    )


def _of_filters() -> Iterator[WorkedExample]:
    now = {"current_weight_version": 4}
    version, reward = {"weight_version": 3, "group_id": 0, "reward": 1.0}, {"group_id": 0}
    for words, made, tags, state in (
        ("current_weight_version is missing", StalenessFilter(1), [version], {}),
        ("no tags", StalenessFilter(1), None, now),
        ("['a'] have no tag 'weight_version'", StalenessFilter(1), [reward], now),
        ("after the current one, 4", StalenessFilter(1), [{"weight_version": 5}], now),
        ("not an integer", StalenessFilter(1), [{"weight_version": 3.0}], now),
        ("not an integer", StalenessFilter(1), [{"weight_version": True}], now),
        ("not a number", ZeroVarianceFilter(), [{**reward, "reward": "1"}], now),
        ("not a number", ZeroVarianceFilter(), [{**reward, "reward": True}], now),
        ("is nan", ZeroVarianceFilter(), [{**reward, "reward": float("nan")}], now),
        ("no sequence_lengths", LengthFilter(3), [version], now),
    ):
        yield refused(words, f"{made.name} of {tags} with {state}", made, _meta("a", tags=tags), **state)
    yield refused("max_staleness=-1", "a negative age", StalenessFilter, -1)
    yield refused("max_length=0", "a length of nothing", LengthFilter, 0)
    lengths = _meta("abc", sequence_lengths=[3, 4, 2])
    yield example(
        "lengths at the bound",
        (list("ac"), ["b"]),
        lambda: tuple(one.sample_ids for one in LengthFilter(3)(lengths)),
    )
    for judgements in ([np.True_, np.False_, np.True_], np.array([True, False, True]), [1, 0, 1]):
        yield example(
            f"a filter that judges {judgements!r}",
            (list("ac"), ["b"]),
            lambda given=judgements: tuple(one.sample_ids for one in _Judges(given)(_meta("abc"))),
        )


class _Judges(BaseRolloutFilter):
    """Returns these judgements."""

    name = "fixed"

    def __init__(self, judgements: Sequence[bool]) -> None:
        self._judgements = judgements

    def keeps(self, meta: KVBatchMeta, **state: Any) -> Sequence[bool]:
        """See `BaseRolloutFilter`."""
        return self._judgements


def _buffer(capacity: int = 4, **options: Any) -> ReplayBuffer:
    return ReplayBuffer(
        local_client(lease_s=60.0),
        groups_per_step=1,
        group_size=2,
        capacity=capacity,
        timeout_s=0.0,
        **options,
    )


def _of_the_buffer() -> Iterator[WorkedExample]:
    yield example("a buffer from one step to the next", ([2, 1, 2], [0, 1], [(1, 3, 5)], 0), _stepped)
    yield refused(
        "1 rows are no whole groups of 2", "half a group", lambda: _buffer().add(rollouts().rows([0]))
    )
    yield refused(
        "completions of prompts [3, 5]",
        "a group of two prompts",
        lambda: _buffer().add(rollouts().rows([0, 2])),
    )
    yield from for_all({"groups that are put at once, some of two prompts": (_put_at_once, 30)})
    yield example("a full buffer", (1, ["full"], 1), _full)
    yield example("a buffer that is restored", (2, [(0, 5), (1, 3)], 2), _restored_buffer)
    for words, state in (
        ("has no groups", {"next_number": 1}),
        ("has no groups, next_number", {}),
        ("holds groups [0, 0] of 1", {"next_number": 1, "groups": [{"number": 0}, {"number": 0}]}),
        ("holds groups [1] of 1", {"next_number": 1, "groups": [{"number": 1}]}),
    ):
        yield refused(words, f"a buffer's state {state}", lambda of=state: _buffer().restore(of))


def _put_at_once(stream: random.Random) -> bool:
    """Return whether groups are put if each is of one prompt, and else none, by naming the first of several."""
    size, num, before = stream.choice((2, 3)), stream.randint(1, 4), stream.randint(0, 2)
    alike = [[stream.choice((0, 2))] * size for _ in range(num)]
    mixed = sorted(stream.sample(range(num), stream.choice((0, 1, min(2, num)))))
    for group in mixed:
        alike[group][stream.randrange(size)] ^= 2  # rows 0 and 2 are of the prompts 5 and 3
    buffer = ReplayBuffer(
        local_client(lease_s=60.0), groups_per_step=1, group_size=size, capacity=8, timeout_s=0.0
    )
    for _ in range(before):
        buffer.add(rollouts().rows([0] * size))
    said = ""
    try:
        buffer.add(rollouts().rows([row for group in alike for row in group]))
    except ValueError as error:
        said = str(error)
    due = f"group {before + mixed[0]} has completions of prompts [3, 5]" if mixed else ""
    there = before + (0 if mixed else num)
    return (said, len(buffer), buffer.next_number) == (due, there, there)


def _stepped() -> Any:
    buffer = _buffer()
    sizes: list[int] = []
    seen: list[int] = []
    buffer.add(rollouts())
    sizes.append(len(buffer))

    def train(groups: Sequence[Any], rows: Any) -> None:
        seen.extend(group.number for group in groups)

    buffer.consume(train, current_weight_version=9)
    sizes.append(len(buffer))
    buffer.add(rollouts().rows([2, 3]))
    sizes.append(len(buffer))
    buffer.consume(train, current_weight_version=9)
    left = [(group.number - 1, group.prompt_id, group.weight_version) for group in buffer.close()]
    return sizes, seen, left, len(buffer)


def _full() -> Any:
    buffer, said = _buffer(capacity=1), []
    buffer.add(rollouts().rows([0, 1]))
    try:
        buffer.add(rollouts().rows([2, 3]))
    except Exception as error:  # noqa: BLE001  only its kind is looked at
        said.append("full" if type(error).__name__ == "PartitionFullError" else str(error))
    return len(buffer), said, buffer.next_number


def _restored_buffer() -> Any:
    buffer, other = _buffer(), _buffer()
    buffer.add(rollouts())
    other.restore(json.loads(json.dumps(buffer.state())))
    return other.next_number, [(group.number, group.prompt_id) for group in other.close()], buffer.next_number
