"""Worked examples over random inputs: messages, transfers of weights, cached rows; against lists and plain loops."""

from __future__ import annotations

import math
import random
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from refrl.config.policy import DeltaCompressionConfig
from refrl.generation.base import SamplingParams
from refrl.generation.decoding import SampledRow, _Running, compacting_order
from refrl.generation.lean_decoder import KVCache
from refrl.generation.messages import Message, pack_parts, receive, send, unpack_parts
from refrl.generation.process import _tuples
from refrl.generation.static.decoding import decode_in_blocks
from refrl.timing import Timer
from refrl.weight_sync.base import Part
from refrl.weight_sync.changes import changes
from refrl.weight_sync.receiver import Receiver
from refrl.weight_sync.tensors import fingerprint
from refrl.weight_sync.transferred import TransferredWeights, bucketed
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.device_passes import of_devices
from seatrial.targets.reference.worked.made import example, for_all, made_tensor, refused

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.bool)


def examples() -> Iterator[WorkedExample]:
    """Yield an example of each property: the seeds of the random inputs for which it does not hold are none."""
    yield from for_all(PROPERTIES)
    yield from of_devices()
    for value in (math.nan, math.inf, -math.inf):
        for harvest in (_harvested, _harvested_in_blocks):
            due = (1, 1 if harvest is _harvested else 2), (-0.5, -0.5)
            how = f"{harvest.__name__.strip('_').replace('_', ' ')}: {value}"
            yield refused("not finite", f"a log-probability that is {how}", harvest, value, 0)
            yield example(f"a log-probability after a row's end, {how}", due, harvest, value, 2)
    yield example("fingerprints cover all places of a tensor", [], _fingerprints)
    for enabled, name, dtype, right in (
        (False, "bfloat16", torch.float32, (torch.float32, True)),
        (True, None, torch.float32, (torch.float32, False)),
        (True, "bfloat16", torch.float32, (torch.bfloat16, False)),
        (True, "bfloat16", torch.int64, (torch.int64, False)),
    ):
        yield example(f"what travels of {dtype}: {enabled}, {name}", right, _travels, enabled, name, dtype)
    # A float32 value with an int32 place takes 8 bytes.
    for most, loads in ((7, [8, 8, 0]), (20, [16, 8, 0]), (24, [24, 8, 0]), (999, [32, 8, 0])):
        yield example(
            f"the largest load of each of three syncs, of {most} bytes at most", loads, _loads, most
        )


def _travels(enabled: bool, name: Any, dtype: torch.dtype) -> Any:
    """Return the type in which a tensor is sent, and whether it is the tensor itself."""
    sync: Any = SimpleNamespace(_delta=DeltaCompressionConfig(enabled=enabled, dtype=name))
    tensor = torch.tensor([1001], dtype=dtype)
    sent = TransferredWeights._as_sent(sync, tensor)
    return sent.dtype, sent.data_ptr() == tensor.data_ptr()


def _loads(most: int) -> list[int]:
    """Return the largest loads that one receiver reports: of four changed values, of one, and of whole tensors."""
    own = {"a": torch.zeros(4)}
    receiver = Receiver(lambda: iter(own.items()), load_batch_bytes=most)
    found = []
    for version, places in enumerate(([0, 1, 2, 3], [2], None), start=1):
        now = own["a"].clone()
        now[slice(None) if places is None else places] = float(version)
        indices = None if places is None else torch.tensor(places, dtype=torch.int32)
        receiver.begin(version, version - 1)
        receiver.receive([Part("a", now if places is None else now[places], 0, indices)])
        found.append(receiver.commit({"a": fingerprint(now)}).largest_load_bytes)
    return found


def _harvested(value: float, place: int) -> Any:
    """Return the two tokens of a row of which one place has this log-probability, in the second of two columns."""
    logprobs = torch.full((3, 2), -0.5)
    logprobs[:, 0], logprobs[place, 1] = value, value
    running = _Running([4, 0], logprobs, torch.ones(3, 2, dtype=torch.long), logprobs)
    into: list[SampledRow | None] = [None] * 5
    running.harvest([1], 2, into)
    return into[0] and (into[0].ids, into[0].logprobs)


def _harvested_in_blocks(value: float, place: int) -> Any:
    """Return the two tokens of a row, decoded in blocks, of which one place has this log-probability."""
    logprobs = torch.full((3, 1), -0.5)
    logprobs[place] = value
    decoder: Any = SimpleNamespace(
        start=lambda *words: None, sampled=lambda num: ([[1], [2], [1]], logprobs), kept=lambda: None
    )
    params = SamplingParams(max_new_tokens=3)
    (row,) = decode_in_blocks(
        decoder, [(3,)], params, torch.zeros(1, 3), stop_ids=frozenset([2]), pad_token_id=0
    )
    return row.ids, row.logprobs


def _changed(stream: random.Random) -> bool:
    """Return whether places, by a loop over bits, have four bytes each, of tensors of any type and number."""
    num, dtype = stream.randrange(1, 70), stream.choice(DTYPES[:-1])
    before = made_tensor(stream, [num], dtype)
    now, chance = before.clone(), stream.choice((0.0, 0.1, 0.9))
    for place in range(num):
        if stream.random() < chance:
            now[place] = stream.randrange(9)
    places, values = changes(now, before)
    due = [place for place in range(num) if now[place] != before[place]]
    found = (str(places.dtype), places.tolist(), str(values.dtype), values.tolist())
    return found == ("torch.int32", due, str(dtype), now[due].tolist())


def _part(stream: random.Random, name: str) -> Part:
    dtype, num = stream.choice(DTYPES), stream.randrange(5)
    places = sorted(stream.sample(range(99), num))
    indices = torch.tensor(places, dtype=stream.choice((torch.int32, torch.int64)))
    sparse = stream.random() < 0.5
    return Part(name, made_tensor(stream, [num], dtype), stream.randrange(9), indices if sparse else None)


def _plain(part: Part) -> Any:
    indices = None if part.indices_N is None else (str(part.indices_N.dtype), part.indices_N.tolist())
    return part.name, part.start, str(part.values_N.dtype), part.values_N.tolist(), indices


def _messages(stream: random.Random) -> bool:
    parts = [_part(stream, f"w.{number}") for number in range(stream.randrange(4))]
    fields: Mapping[str, Any] = {"a": stream.choice((None, "é\u2028", [1, [2.5, "x"]], {"b": {}}))}
    more = Message(
        "m", fields, [made_tensor(stream, shape, stream.choice(DTYPES)) for shape in ((), (2, 0), (2, 3))]
    )
    one, other = socket.socketpair()
    with one, other:
        send(one, pack_parts(parts))
        send(one, more)
        found, again = receive(other), receive(other)
    return (
        list(map(_plain, unpack_parts(found))) == list(map(_plain, parts))
        and (again.kind, again.fields) == ("m", fields)
        and [(one.dtype, one.tolist()) for one in again.tensors]
        == [(one.dtype, one.tolist()) for one in more.tensors]
    )


def _nested(stream: random.Random) -> bool:
    def plain(depth: int) -> Any:
        if not depth:
            return [stream.randrange(5) for _ in range(stream.randrange(3))]
        return [plain(depth - 1) for _ in range(stream.randrange(1, 3))]

    def tuples(value: Any) -> Any:
        return tuple(map(tuples, value)) if isinstance(value, list) else value

    made = plain(stream.randrange(4))
    return bool(_tuples(made) == tuples(made)) and _tuples("ab") == "ab" and _tuples(None) is None


def _num_bytes(part: Part) -> int:
    return part.values_N.nbytes + (0 if part.indices_N is None else part.indices_N.nbytes)


class _Source:
    """Weights that change, and their version."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self.weights, self.version, self.shares_weights = dict(weights), 0, False

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.weights.items()


class _Counting(Receiver):
    """A receiver that notes how many bytes arrive at a time."""

    sizes: list[int]

    def receive(self, parts: Sequence[Part]) -> None:
        self.sizes.append(sum(map(_num_bytes, parts)))
        super().receive(parts)


def _transfers(stream: random.Random) -> bool:
    """Every sync brings the weights bit for bit, in messages of the configured size, and reports what it sent."""
    shapes = {"a": (7,), "b": (3, 5), "c": (1,), "d": (40,), "e": (), "f": (0, 2), "n": (3,)}
    kinds = dict.fromkeys(shapes, stream.choice((torch.float32, torch.bfloat16))) | {"n": torch.int64}
    source = _Source({name: made_tensor(stream, shape, kinds[name]) for name, shape in shapes.items()})
    own = {name: torch.zeros(shape, dtype=kinds[name]) for name, shape in shapes.items()}
    receiver = _Counting(lambda: iter(own.items()), load_batch_bytes=stream.choice((1, 24, 999)))
    receiver.sizes = []
    enabled, interval = stream.random() < 0.7, stream.randint(1, 3)
    sent: Any = stream.choice((None, "bfloat16")) if enabled else None
    delta = DeltaCompressionConfig(
        enabled=enabled, sparse_bucket_size_bytes=40, full_sync_interval=interval, dtype=sent
    )
    sync = TransferredWeights(source, receiver, delta=delta, bucket_bytes=56, timer=Timer())
    since_full, most = 0, 40 if enabled else 56
    for step in range(6):
        if step:
            receiver.sizes = []
            changed = {name for name in shapes if stream.random() < 0.5} if step != 4 else set()
            for name in changed - {"f"}:
                now = source.weights[name].clone(memory_format=torch.contiguous_format)
                now.view(-1)[stream.randrange(math.prod(shapes[name])) :: 9] += 2 if name == "n" else 0.5
                # The elements of a matrix at times lie in another order.
                source.weights[name] = now.T.contiguous().T if now.ndim == 2 and step % 2 else now
            source.version += stream.randrange(1, 3)
        report = sync.sync()
        full = not step or not enabled or since_full + 1 >= interval
        since_full = 0 if full else since_full + 1
        whole = sum(
            tensor.numel() * (2 if sent and tensor.is_floating_point() else tensor.itemsize)
            for tensor in source.weights.values()
        )
        if not (
            all(torch.equal(own[name], source.weights[name]) for name in shapes)
            and receiver.weight_version == source.version
            and max(receiver.sizes, default=0) <= most
            and report["weight_sync/full"] == float(full)
            and report["weight_sync/bytes_sent"] == sum(receiver.sizes)
            and report["weight_sync/largest_message_bytes"] == max(receiver.sizes, default=0)
            and report["weight_sync/tensors_verified"] == len(shapes)
            and (sum(receiver.sizes) == whole if full else sum(receiver.sizes) <= whole)
            and sync.sync() == report
        ):
            return False
    return True


def _buckets(stream: random.Random) -> bool:
    parts = [_part(stream, f"w{number}") for number in range(stream.randrange(5))]
    size = stream.choice((1, 16, 40))
    buckets = list(bucketed(parts, size))
    pieces = [piece for bucket in buckets for piece in bucket]

    def elements(given: Sequence[Part]) -> list[Any]:
        return [
            (part.name, part.start + place if part.indices_N is None else int(part.indices_N[place]), value)
            for part in given
            for place, value in enumerate(part.values_N.tolist())
        ]

    sizes = [sum(map(_num_bytes, bucket)) for bucket in buckets]
    singles = [sum(part.values_N.numel() for part in bucket) <= 1 for bucket in buckets]
    return elements(pieces) == elements(parts) and all(
        total <= size or single for total, single in zip(sizes, singles, strict=True)
    )


def _bounds(stream: random.Random) -> bool:
    """Parts beyond the end of a tensor, by one element too, are refused, and none within it."""
    own = {"a": torch.zeros(4)}
    receiver = Receiver(lambda: iter(own.items()), load_batch_bytes=8)
    for start, count in ((0, 4), (1, 3), (3, 1), (4, 0), (0, 5), (4, 1), (2, 3), (-1, 2)):
        for sparse in (False, True):
            receiver.begin(1, None)
            indices = torch.arange(start, start + count, dtype=torch.int32) if sparse else None
            if sparse and (start < 0 or not count):
                continue
            try:
                receiver.receive([Part("a", torch.ones(count), 0 if sparse else start, indices)])
                taken = True
            except (ValueError, IndexError) as error:
                taken = type(error).__name__ != "WeightSyncError"
            if taken != (start >= 0 and start + count <= 4):
                return False
    return True


def _caches(stream: random.Random) -> bool:
    """A cache of keys and values against lists: slots that are written, copied and dropped with their rows."""
    cache = KVCache(num_layers=2, num_rows=2, num_heads=2, num_slots=9, head_dim=2, like=torch.zeros(1))
    rows: list[list[list[float]]] = [[], []]
    for step in range(6):
        kind = ("extend", "expand", "keep", "extend", "keep", "extend")[step]
        if kind == "extend":
            num = stream.randint(1, 3)
            values = made_tensor(stream, [2, len(rows), 2, num, 2])
            for layer, slots in enumerate(cache.extend(num)):
                slots.new_keys_BKTH.copy_(values[layer])
                slots.new_values_BKTH.copy_(-values[layer])
            for row, held in enumerate(rows):
                held += [values[:, row, :, slot].flatten().tolist() for slot in range(num)]
        elif kind == "expand":
            chosen = [stream.randrange(len(rows)) for _ in range(5)]
            cache.expand(torch.tensor(chosen))
            rows = [list(rows[row]) for row in chosen]
        else:
            ended = stream.sample(range(len(rows)), stream.randint(1, 2))
            going = compacting_order(len(rows), ended)
            if sorted(going) != sorted({*range(len(rows))} - {*ended}):
                return False
            cache.keep(torch.tensor(going))
            rows = [rows[row] for row in going]
        keys, negated = cache.filled_L2BKSH[:, 0], cache.filled_L2BKSH[:, 1]
        found = [
            [keys[:, row, :, slot].flatten().tolist() for slot in range(keys.shape[3])]
            for row in range(keys.shape[1])
        ]
        if found != rows or not torch.equal(keys, -negated):
            return False
    return True


def _rows_that_run(stream: random.Random) -> bool:
    """Rows that end early, by lists: each gets its own ids and log-probabilities, wherever its column was."""
    num_rows, num_tokens = stream.randint(2, 6), 5
    ends = [stream.randint(1, num_tokens) for _ in range(num_rows)]
    uniforms = made_tensor(stream, [num_tokens, num_rows])
    running = _Running([*range(num_rows)], uniforms, torch.zeros(num_tokens, num_rows, dtype=torch.long),
                       torch.zeros(num_tokens, num_rows))  # fmt: skip
    into: list[SampledRow | None] = [None] * num_rows
    for token in range(num_tokens):
        if running.uniforms_TR[token].tolist() != [float(uniforms[token, row]) for row in running.rows]:
            return False
        running.ids_TR[token] = torch.tensor([10 * row + token for row in running.rows])
        running.logprobs_TR[token] = torch.tensor([-float(row) - token / 8 for row in running.rows])
        ended = [column for column, row in enumerate(running.rows) if ends[row] == token + 1]
        running.harvest(ended, token + 1, into)
        if len(ended) == len(running.rows):
            break
        running.keep(torch.tensor(compacting_order(len(running.rows), ended)))
    right = [
        (
            tuple(10 * row + token for token in range(end)),
            tuple(-float(row) - token / 8 for token in range(end)),
        )
        for row, end in enumerate(ends)
    ]
    return [(one.ids, one.logprobs) for one in into if one is not None] == right


PROPERTIES: Mapping[str, tuple[Callable[[random.Random], bool], int]] = {
    "messages arrive as they were sent": (_messages, 8),
    "lists of any depth are tuples": (_nested, 12),
    "weights are transferred bit for bit": (_transfers, 12),
    "places of changes are int32": (_changed, 30),
    "buckets hold what their parts held": (_buckets, 12),
    "parts beyond a tensor are refused": (_bounds, 1),
    "a cache is lists of slots": (_caches, 5),
    "rows that run keep their own": (_rows_that_run, 8),
}
"""By name: whether a property holds for the random inputs of a stream, and how many streams are tried."""


def _fingerprints() -> list[str]:
    """Return the types of tensors whose fingerprint does not cover every place that is changed."""
    wrong = []
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        prints = {fingerprint(torch.zeros(3, 2**16, dtype=dtype))}
        places = (0, 1, 2**14, 2**16, 2**17 - 1, 3 * 2**16 - 1)
        for place in places:
            changed = torch.zeros(3, 2**16, dtype=dtype)
            changed.view(-1)[place] = 1
            prints.add(fingerprint(changed))
        wrong += [str(dtype)] * (len(prints) != 1 + len(places))
    return wrong
