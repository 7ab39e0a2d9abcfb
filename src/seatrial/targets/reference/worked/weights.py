"""Worked examples of weights that are sent, held in int8, or gathered where they are spread."""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor, nn

from refrl.config.policy import DeltaCompressionConfig
from refrl.generation.quantized import Int8Linear, load_tensors, num_quantized, quantize_layers
from refrl.policy.dtensor.policy import DTensorPolicy
from refrl.policy.dtensor.spread_model import SpreadModel
from refrl.timing import Timer
from refrl.weight_sync import changes
from refrl.weight_sync.base import Part, WeightSyncError
from refrl.weight_sync.broadcast import pack, packed_size, unpack
from refrl.weight_sync.colocated import CopiedWeights
from refrl.weight_sync.receiver import Receiver
from refrl.weight_sync.tensors import copy_tensors, fingerprint, fingerprints, share_tensors
from refrl.weight_sync.transferred import TransferredWeights, bucketed
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example, for_all, refused


def of_weights() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from for_all({"buckets of parts": (_buckets, 20)})
    for target, source in ((3, 4), (4, 4), (5, 4)):
        due = [("weights", source)] * (target != source)
        yield example(f"version {source} for a generator at {target}", due, _copied, target, source)
    for dtype in (torch.float32, torch.bfloat16):
        right: Any = (1, [[127, -64], [0, 0]], [255 / 127, 1.0], "torch.float32", [1.0, 2.0])
        yield example(f"weights of {dtype} that are held in int8", right, _held, dtype)
    for weight in (1.0, 9.0):
        right = {"a.weight": weight, "a.bias": 0.5}, {"a.weight": 1.0, "a.bias": 0.5}
        yield example(f"gathered weights, with adapters: {weight > 1}", right, _gathered, weight > 1)
    for is_kept, right in ((True, (["in", "scored m", "out"], "s")), (False, ([], None))):
        yield example(f"scores of a reference that is spread: {is_kept}", right, _reference, is_kept)
    yield from _of_receivers()
    yield from _of_places()
    for fails_at in (None, 1, 2):
        yield example(f"syncs of which number {fails_at} fails", _SYNCS[fails_at], _interrupted, fails_at)


def _copied(target: int, source: int) -> list[Any]:
    """Return what a generator of one version loads of a policy of another."""
    loaded: list[Any] = []
    generator = SimpleNamespace(weight_version=target, load_weights=lambda *words: loaded.append(words))
    policy = SimpleNamespace(version=source, named_weights=lambda: "weights")
    made: Any = SimpleNamespace(_source=policy, _target=generator)
    assert CopiedWeights.sync(made) == {}
    return loaded


def _buckets(stream: random.Random) -> bool:
    """Return whether buckets keep all values in their order, and each but the last has no space for another."""
    sizes = [stream.randint(0, 9) for _ in range(stream.randint(0, 4))]
    parts = [Part(str(place), torch.arange(size, dtype=torch.float32)) for place, size in enumerate(sizes)]
    most = stream.choice((4, 8, 12, 100))
    found = [[(one.name, one.values_N.tolist()) for one in bucket] for bucket in bucketed(parts, most)]
    flat = [(name, value) for bucket in found for name, values in bucket for value in values]
    counts = [sum(len(values) for _, values in bucket) for bucket in found]
    most_values = most // 4
    due = [(str(place), float(value)) for place, size in enumerate(sizes) for value in range(size)]
    is_full = all(count == most_values for count in counts[:-1])
    return flat == due and is_full and all(count <= most_values for count in counts)


def _held(dtype: torch.dtype) -> Any:
    """Return how many layers hold int8, and what one of them holds once it takes weights in."""
    model: Any = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to(dtype)
    model.get_output_embeddings = lambda: model[1]
    quantize_layers(model)
    layer: Any = model[0]
    assert isinstance(layer, Int8Linear)
    weights = {
        name: one.detach().clone() for name, one in model.named_parameters() if not name.startswith("0.")
    }
    values = {"0.weight": [[255.0, -128.0], [0.0, 0.0]], "0.bias": [1.0, 2.0]}
    weights |= {name: torch.tensor(value).to(dtype) for name, value in values.items()}
    load_tensors(model, weights)
    scale = layer.weight_scale
    return num_quantized(model), layer.weight.tolist(), scale.tolist(), str(scale.dtype), layer.bias.tolist()


def _spread(adapts: bool) -> Any:
    low, high = torch.full((1, 1), 2.0), torch.full((1, 1), 1.0)
    layer = SimpleNamespace(
        lora_A=SimpleNamespace(weight=low), lora_B=SimpleNamespace(weight=high), scaling=4.0
    )
    base = {"a.weight": torch.ones(1, 1), "a.bias": torch.full((1,), 0.5)}
    adapters = SimpleNamespace(layers={"a": layer}, base_weights=lambda: iter(base.items()))
    model = SimpleNamespace(named_parameters=lambda: iter(base.items()), named_buffers=lambda: iter(()))
    options: Any = {"model": model, "meshes": None, "experts": [], "dtype": torch.float32}
    return SpreadModel(**options, adapters=cast(Any, adapters) if adapts else None)


def _gathered(adapts: bool) -> Any:
    spread = _spread(adapts)
    with patch.object(SpreadModel, "whole", lambda self, tensor: tensor):
        merged = {name: float(weight) for name, weight in spread.named_weights()}
        return merged, {name: float(weight) for name, weight in spread.base_weights()}


def _reference(is_kept: bool) -> Any:
    """Return what is done, and the scores of a reference, if one is kept."""
    noted: list[str] = []

    @contextlib.contextmanager
    def loaded() -> Iterator[None]:
        noted.append("in")
        yield
        noted.append("out")

    def score(model: Any, made: Any) -> str:
        noted.append(f"scored {model}")
        return "s"

    kept = SimpleNamespace(model="m", as_loaded=loaded) if is_kept else None
    policy: Any = SimpleNamespace(_reference=kept, _score=score)
    found = DTensorPolicy.reference_logprobs(policy, cast(Any, None))
    return noted, found


class _Received:
    """A receiver of a tensor `a` of four elements and its transposed neighbour `t`, with calls in short."""

    def __init__(self) -> None:
        self.own = {"a": torch.zeros(2, 2), "t": torch.zeros(2, 3).T}
        self.receiver = Receiver(lambda: iter(self.own.items()), load_batch_bytes=99)

    def part(self, name: str, *values: float, start: int = 0) -> None:
        self.receiver.receive([Part(name, torch.tensor(values), start)])

    def whole(self, version: int, *, of_t: bool = True) -> None:
        """Send every element, and close; without `of_t` the receiver has no `t`."""
        if not of_t:
            self.own.pop("t", None)
        self.receiver.begin(version, None)
        self.part("a", 1.0, 2.0, 3.0, 4.0)
        self.commit()

    def commit(self, **other: str) -> Any:
        due = fingerprints({**self.own, **{name: torch.ones(1) for name in other if name not in self.own}})
        return self.receiver.commit({**due, **{name: text for name, text in other.items() if text}})


def _syncs(calls: Sequence[tuple[str, tuple[Any, ...], Mapping[str, Any]]]) -> Any:
    """Return the version, whether prompts are served, and values, after calls of a receiver or of what has it."""
    made = _Received()
    for name, words, options in calls:
        getattr(made if hasattr(made, name) else made.receiver, name)(*words, **options)
    made.receiver.check_whole()
    return made.receiver.weight_version, made.own["a"].flatten().tolist()


def _call(name: str, *words: Any, **options: Any) -> tuple[str, tuple[Any, ...], Mapping[str, Any]]:
    return name, words, options


def _of_receivers() -> Iterator[WorkedExample]:
    first, one = _call("whole", 3, of_t=False), [1.0, 2.0, 3.0, 4.0]
    sparse = _call("receive", [Part("a", torch.tensor([9.0, 8.0]), indices_N=torch.tensor([0, 3]))])
    opened, based = _call("begin", 4, None), _call("begin", 4, 3)
    for name, calls, right in (
        ("a whole sync", [first], (3, one)),
        ("changes to it", [first, based, sparse, _call("commit")], (4, [9.0, 2.0, 3.0, 8.0])),
        ("no changes to it", [first, based, _call("commit")], (4, one)),
        ("values in two parts", [first, opened, _call("part", "a", 5.0), _call("part", "a", 6.0, 7.0, 8.0, start=1),
                                 _call("commit")], (4, [5.0, 6.0, 7.0, 8.0])),
    ):  # fmt: skip
        yield example(f"what a generator has after {name}", right, _syncs, calls)
    part = _call("part", "a", 5.0, 6.0)
    for words, calls in (
        ("changes to version 2 arrived, and the generator has version 3: send", [first, _call("begin", 4, 2)]),
        ("changes to version 3 arrived, and the generator has none that is whole", [first, opened, based]),
        ("weights arrived, and no sync is open", [part]),
        ("weights arrived, and no sync is open", [first, part]),
        ("a sync was closed that was not open", [first, _call("commit")]),
        ("x arrived, and the generator has no tensor of that name", [opened, _call("part", "x", 1.0)]),
        ("t does not lie in row-major order", [opened, _call("part", "t", 1.0)]),
        ("a has 4 elements, and values for 5 of them", [opened, _call("part", "a", 1.0, 2.0, start=3)]),
        ("of the sync to version 4 there arrived a (2 of 4 elements)", [first, opened, part, _call("commit")]),
        ("a (2 of 4 elements), t (0 of 6 elements)", [opened, part, _call("commit")]),
        ("a (2 of 4 elements)", [first, opened, part, opened, part, _call("commit")]),
        ("a (2 of 4 elements)", [first, opened, _call("part", "a", 7.0, 8.0, start=2), _call("commit")]),
        ("of sender and generator differ x (on one side only)", [first, based, _call("commit", x="")]),
        ("w (on one side only), x (on one side only), y (on one side only) and 1 more",
         [first, based, _call("commit", z="", y="", x="", w="")]),
        ("after the sync to version 4 the generator's fingerprint is not the sender's a (another)",
         [first, based, _call("commit", a="0")]),
        ("a sync is open, or failed half-way", [first, based]),
    ):  # fmt: skip
        yield refused(
            words, f"a generator that is sent {[name for name, *_ in calls]}: {words}", _syncs, calls
        )
    specs = {"a": ((2, 2), "torch.float32"), "t": ((3, 2), "torch.float32")}
    yield example("the tensors that a generator says it has", specs, _specs)
    for what in ("part", "commit"):
        yield example(f"a generator after a {what} that failed", (3, False), _failed, what)
    for given, words in (
        ({"weight": (2, 3), "extra": (1,)}, "lack 1 tensors of the generator ['bias'] and have 1 that it does not"),
        ({"weight": (2, 3)}, "lack 1 tensors of the generator ['bias'] and have 0"),
        ({"weight": (2, 3), "bias": (2,), "b": (1,), "a": (1,)}, "have 2 that it does not know ['a', 'b']"),
        ({"bias": (2,), "weight": (3, 2)}, "weight has shape (3, 2), and the generator's (2, 3)"),
    ):  # fmt: skip
        for put in (share_tensors, copy_tensors):
            yield example(f"{put.__name__} of {given}", (words, 0.0), _put, put, given, words)
    yield example("a model that shares tensors", (True, [False, False], True, ["tied"]), _shares)


def _specs() -> Any:
    return {name: (one.shape, str(one.dtype)) for name, one in _Received().receiver.specs().items()}


def _failed(what: str) -> Any:
    """Return the version and whether prompts are served after a sync to version 4 that failed."""
    made = _Received()
    made.whole(3, of_t=False)
    made.receiver.begin(4, 3)
    try:
        made.part("x", 1.0) if what == "part" else made.commit(a="0")
    except WeightSyncError:
        return made.receiver.weight_version, made.receiver._is_whole
    return None


def _put(put: Any, given: Mapping[str, Sequence[int]], words: str) -> Any:
    """Return the expected words if they are said, or what is, and the sum of what was copied of the tensors."""
    layer: Any = nn.Linear(3, 2).requires_grad_(False)
    layer.tie_weights = lambda: None
    for tensor in layer.parameters():
        tensor.zero_()
    try:
        put(layer, {name: torch.ones(tuple(shape)) for name, shape in given.items()})
    except WeightSyncError as error:
        return words if words in str(error) else str(error), float(
            sum(one.sum() for one in layer.parameters())
        )
    return "nothing", 0.0


def _shares() -> Any:
    """Return whether a model reads what is written into tensors it shares, which have gradients, and what is tied."""
    tied: list[str] = []
    model: Any = nn.ModuleDict({"in": nn.Linear(2, 2, bias=False), "norm": nn.BatchNorm1d(2, affine=False)})
    model.tie_weights = lambda: tied.append("tied")
    given = {"in.weight": torch.zeros(2, 2, requires_grad=True)}
    given |= {f"norm.{name}": tensor.clone() for name, tensor in model["norm"].named_buffers()}
    share_tensors(model, given)
    with torch.no_grad():
        given["in.weight"].fill_(3.0)
        given["norm.running_mean"].fill_(5.0)
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    same = all(torch.equal(own[name], tensor) for name, tensor in given.items())
    return (
        same,
        [own[name].requires_grad for name in ("in.weight", "norm.running_mean")],
        own.keys() == given.keys(),
        tied,
    )


class _Elsewhere(Tensor):
    """A tensor that is said to be on another device."""

    @property
    def device(self) -> Any:  # type: ignore[override]
        """Name the other one."""
        return SimpleNamespace(type="cuda")


def _changed(elsewhere: bool, most: int, dtype: torch.dtype) -> Any:
    """Return places, their type, and values of three changes of nine elements; a place of more than `most` is long."""
    before = torch.arange(9.0).to(dtype)
    before[4] = torch.nan
    now = before.clone()
    now[0], now[5], now[8] = -0.0, 7.0, 1.0
    if elsewhere:
        before, now = before.as_subclass(_Elsewhere), now.as_subclass(_Elsewhere)
    with patch.object(torch, "iinfo", lambda dtype: SimpleNamespace(max=most)):
        places, values = changes.changes(now, before)
    return places.tolist(), str(places.dtype), values.tolist(), values.dtype is dtype


def _of_places() -> Iterator[WorkedExample]:
    for elsewhere in (False, True):
        for most, kind in ((8, "torch.int64"), (9, "torch.int32")):
            for dtype in (torch.float32, torch.bfloat16):
                right = [0, 5, 8], kind, [0.0, 7.0, 1.0], True
                name = f"changes of {dtype}, elsewhere: {elsewhere}, places up to {most}"
                yield example(name, right, _changed, elsewhere, most, dtype)
    for dtype in (torch.float64, torch.bfloat16, torch.int8):
        yield example(f"changes of {dtype} in blocks of three words", [], _in_blocks, dtype)
    # Each tensor begins at a multiple of eight bytes: at 0, 8, 8, 24 and 32.
    tensors = [torch.tensor([1.0, 2.0, 3.0]).bfloat16(), torch.empty(0, 2), torch.arange(9).to(torch.int8),
               torch.tensor(5.0), torch.tensor([[True], [False]])]  # fmt: skip
    yield example("bytes of several tensors", (40, [0, 8, 8, 24, 32], True), _packed, tensors)
    for listed, num in (([(torch.float32, (3,))], 8), ([(torch.float32, (2,)), (torch.int8, (1,))], 8)):
        yield refused("are listed, and so many arrived", f"{listed} in {num} bytes", _unpacked, listed, num)
    yield refused("are listed", "a shape below zero", _unpacked, [(torch.int8, (-1,)), (torch.int8, (4,))], 8)
    yield example(
        "tensors that fill their bytes", [[2], [0]], _unpacked, [(torch.float32, (2,)), (torch.int8, (0,))], 8
    )
    for dtype, shape in ((torch.float32, (2, 3)), (torch.int8, (6,)), (torch.bfloat16, ())):
        yield example(f"the fingerprint of {dtype} of {shape}", True, _printed, dtype, shape)


def _in_blocks(dtype: torch.dtype) -> list[int]:
    """Return the sizes of tensors, of several blocks and a rest, whose changes are not found at their places."""
    wrong, stream = [], random.Random(5)
    with patch.object(changes, "_BLOCK_WORDS", 3):
        for size in range(1, 70):
            before = torch.zeros(size, dtype=dtype)
            due = [place for place in range(size) if stream.random() < stream.choice((0.02, 0.1, 0.8))]
            now = before.clone()
            now[due] = 1
            places, values = changes.changes(now, before)
            wrong += [size] * (places.tolist() != due or values.tolist() != [1] * len(due))
    return wrong


def _packed(tensors: Sequence[Tensor]) -> Any:
    """Return the bytes of tensors, where each begins, and whether they come back."""
    bytes_N = torch.zeros(packed_size(tensors), dtype=torch.uint8)
    pack(tensors, bytes_N)
    found = unpack(bytes_N, [(one.dtype, one.shape) for one in tensors])
    starts = [one.data_ptr() - bytes_N.data_ptr() if one.numel() else 8 for one in found]
    return len(bytes_N), starts, all(torch.equal(*pair) for pair in zip(found, tensors, strict=True))


def _unpacked(listed: Sequence[tuple[torch.dtype, Sequence[int]]], num_bytes: int) -> Any:
    return [list(one.shape) for one in unpack(torch.zeros(num_bytes, dtype=torch.uint8), listed)]


def _printed(dtype: torch.dtype, shape: tuple[int, ...]) -> bool:
    """Return whether a fingerprint is the digest of type, shape and bits, of a tensor in any order of its memory."""
    tensor = torch.ones(shape[::-1]).to(dtype).permute(tuple(range(len(shape))[::-1]))
    words = f"{str(dtype).removeprefix('torch.')} {shape} ".encode()
    bits = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return fingerprint(tensor) == hashlib.blake2b(words + bits, digest_size=16).hexdigest()


_SYNCS: Mapping[int | None, Any] = {
    None: ([(1.0, 16.0), (0.0, 8.0), (0.0, 8.0), (1.0, 16.0), (0.0, 8.0), (0.0, 0.0)], 0, [True, True]),
    1: ([(1.0, 16.0), "failed", (1.0, 16.0), (0.0, 8.0), (0.0, 8.0), (1.0, 16.0)], 0, [True, True]),
    2: ([(1.0, 16.0), (0.0, 8.0), "failed", (1.0, 16.0), (0.0, 8.0), (0.0, 0.0)], 0, [True, True]),
}
"""By the number of the sync that fails: of each, whether it is whole, and its bytes; see `_interrupted`."""


def _interrupted(fails_at: int | None) -> Any:
    """Return what syncs of four floats send of which one changes each time, the last excepted, whole every third time.

    Also how many phases are wrong that have seconds, and whether the weights arrive, and are sent once a version.
    """
    own, source, timer = {"a": torch.zeros(4)}, {"a": torch.arange(4.0)}, Timer()
    version = [0]
    made = type("Source", (), {"version": property(lambda self: version[0])})
    policy: Any = made()
    policy.named_weights = lambda: iter(source.items())
    receiver = Receiver(lambda: iter(own.items()), load_batch_bytes=99)
    delta = DeltaCompressionConfig(enabled=True, full_sync_interval=3)
    found: list[Any] = []
    sync = TransferredWeights(policy, receiver, bucket_bytes=99, delta=delta, timer=timer)
    for number in range(6):
        if number:
            version[0] += 1
            source["a"][number % 4] += float(number != 5)
        try:
            with (
                patch.object(Receiver, "commit", _raises) if number == fails_at else contextlib.nullcontext()
            ):
                report = sync.sync()
            found.append((report["weight_sync/full"], report["weight_sync/bytes_sent"]))
        except WeightSyncError:
            found.append("failed")
    names = {name.removeprefix("prepare_for_generation/weight_transfer/") for name in timer.take()}
    due = {"producer/collect_tensors", "producer/sparse_nonzero", "producer/sparse_encode",
           "consumer/decode_sparse", "consumer/load_delta"}  # fmt: skip
    return found, len(names ^ due), [torch.equal(own["a"], source["a"]), sync.sync() is sync.sync()]


def _raises(self: Receiver, fingerprints: Mapping[str, str]) -> Any:
    raise WeightSyncError("made")
