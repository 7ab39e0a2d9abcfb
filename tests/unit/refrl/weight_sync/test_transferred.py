"""A sync in parts: whatever the buckets, the receiver has the sender's bits or refuses to serve."""

from collections.abc import Iterator, Mapping, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from refrl.config import DeltaCompressionConfig
from refrl.timing import Timer
from refrl.weight_sync.base import Part, Receipt, TensorSpec, WeightSyncError
from refrl.weight_sync.receiver import Receiver
from refrl.weight_sync.tensors import fingerprint
from refrl.weight_sync.transferred import TransferredWeights, bucketed

DELTA = DeltaCompressionConfig(enabled=True)


def tensors() -> dict[str, Tensor]:
    """More than ten layers, a matrix, a scalar, an empty tensor, integers."""
    stream = torch.Generator().manual_seed(0)
    layers = {f"layers.{number}.weight": torch.randn(3, 5, generator=stream) for number in range(12)}
    return {**layers, "scale": torch.tensor(2.0), "nothing": torch.empty(0), "ids": torch.arange(7)}


class Source:
    """Weights that a test changes by hand."""

    shares_weights = True

    def __init__(self, weights: dict[str, Tensor]) -> None:
        """Start at version 0."""
        self.weights = weights
        self.version = 0

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield them."""
        yield from self.weights.items()


class Generator:
    """A receiver with tensors of its own, which counts what arrives and can lose it."""

    def __init__(self, like: Mapping[str, Tensor]) -> None:
        """Take tensors of these shapes, full of sevens."""
        self.weights = {name: torch.full_like(tensor, 7) for name, tensor in like.items()}
        self.receiver = Receiver(lambda: iter(self.weights.items()), load_batch_bytes=16)
        self.buckets: list[list[Part]] = []
        self.drop: str | None = None

    @property
    def weight_version(self) -> int:
        """The receiver's."""
        return self.receiver.weight_version

    @weight_version.setter
    def weight_version(self, version: int) -> None:
        self.receiver.weight_version = version

    def specs(self) -> Mapping[str, TensorSpec]:
        """The receiver's."""
        return self.receiver.specs()

    def begin(self, version: int, based_on: int | None) -> None:
        """The receiver's."""
        self.receiver.begin(version, based_on)

    def receive(self, parts: Sequence[Part]) -> None:
        """Pass on what is not to be lost."""
        self.buckets.append(list(parts))
        self.receiver.receive([part for part in parts if part.name != self.drop])

    def commit(self, fingerprints: Mapping[str, str]) -> Receipt:
        """The receiver's."""
        return self.receiver.commit(fingerprints)


def synced(
    source: Source, generator: Generator, delta: DeltaCompressionConfig = DELTA, bucket_bytes: int = 24
) -> TransferredWeights:
    """Return a sync that has sent the weights once."""
    return TransferredWeights(source, generator, bucket_bytes=bucket_bytes, delta=delta, timer=Timer())


def change(source: Source, name: str, index: int, value: float) -> None:
    """Change one element, as an update would."""
    source.weights[name].view(-1)[index] = value
    source.version += 1


@pytest.mark.parametrize("bucket_bytes", [1, 7, 8, 20, 61, 10**6])
@pytest.mark.parametrize("delta", [DeltaCompressionConfig(), DELTA], ids=["whole", "delta"])
def test_the_receiver_has_the_senders_bits(bucket_bytes: int, delta: DeltaCompressionConfig) -> None:
    """In buckets down to less than an element, and after updates of a part."""
    delta = delta.model_copy(update={"sparse_bucket_size_bytes": bucket_bytes})
    source = Source(tensors())
    generator = Generator(source.weights)
    sync = synced(source, generator, delta, bucket_bytes)
    for value in (float("nan"), -0.0, 3.0):
        assert all(
            fingerprint(generator.weights[name]) == fingerprint(of) for name, of in source.weights.items()
        )
        change(source, "layers.11.weight", 4, value)
        change(source, "layers.2.weight", 14, value)
        report = sync.sync()
        assert report["weight_sync/tensors_verified"] == len(source.weights)
        assert generator.weight_version == source.version
    assert all(fingerprint(generator.weights[name]) == fingerprint(of) for name, of in source.weights.items())


def test_a_delta_carries_what_changed() -> None:
    """And nothing else; a version that was sent is not sent again."""
    source = Source(tensors())
    generator = Generator(source.weights)
    sync = synced(source, generator)
    change(source, "layers.10.weight", 3, 9.0)
    generator.buckets.clear()
    assert sync.sync()["weight_sync/full"] == 0
    (part,) = (part for bucket in generator.buckets for part in bucket)
    assert part.name == "layers.10.weight"
    assert part.indices_N is not None
    assert (part.indices_N.tolist(), part.values_N.tolist()) == ([3], [9.0])
    generator.buckets.clear()
    sync.sync()
    assert generator.buckets == []


def test_a_tensor_that_changed_everywhere_goes_whole() -> None:
    """Places and values would take twice the bytes."""
    source = Source(tensors())
    generator = Generator(source.weights)
    sync = synced(source, generator)
    source.weights["layers.3.weight"].add_(1.0)
    source.version += 1
    generator.buckets.clear()
    sync.sync()
    sent = [part for bucket in generator.buckets for part in bucket]
    assert {part.name for part in sent} == {"layers.3.weight"}
    assert all(part.indices_N is None for part in sent)


def test_every_so_many_syncs_all_is_sent() -> None:
    """`full_sync_interval` counts syncs, the full one among them."""
    source = Source(tensors())
    sync = synced(source, Generator(source.weights), DELTA.model_copy(update={"full_sync_interval": 3}))
    full = []
    for step in range(6):
        change(source, "scale", 0, float(step))
        full.append(sync.sync()["weight_sync/full"])
    assert full == [0, 0, 1, 0, 0, 1]


def test_a_narrower_type_is_exact_in_that_type() -> None:
    """And nothing adds up over syncs: the values travel, not their differences."""
    source = Source(tensors())
    generator = Generator(source.weights)
    sync = synced(source, generator, DELTA.model_copy(update={"dtype": "bfloat16"}))
    for step in range(5):
        change(source, "layers.0.weight", step, 1.0 + 2.0**-12 * step)
        sync.sync()
    sent = source.weights["layers.0.weight"].bfloat16().float()
    assert torch.equal(generator.weights["layers.0.weight"], sent)
    assert torch.equal(generator.weights["ids"], source.weights["ids"])


@pytest.mark.parametrize("delta", [DeltaCompressionConfig(), DELTA], ids=["whole", "delta"])
def test_a_tensor_that_is_lost_is_named_and_nothing_is_served(delta: DeltaCompressionConfig) -> None:
    """Until a sync brings everything; the one after a failure sends every element."""
    source = Source(tensors())
    generator = Generator(source.weights)
    sync = synced(source, generator, delta)
    change(source, "layers.5.weight", 1, 4.0)
    generator.drop = "layers.5.weight"
    with pytest.raises(WeightSyncError, match=r"layers\.5\.weight"):
        sync.sync()
    with pytest.raises(WeightSyncError, match="not whole"):
        generator.receiver.check_whole()
    assert generator.weight_version == 0
    generator.drop = None
    assert sync.sync()["weight_sync/full"] == 1
    generator.receiver.check_whole()
    assert generator.weight_version == 1


def test_a_receiver_that_was_restarted_is_sent_everything() -> None:
    """A delta on weights that it does not have is refused, and the next sync is whole."""
    source = Source(tensors())
    generator = Generator(source.weights)
    sync = synced(source, generator)
    generator.receiver = Receiver(lambda: iter(generator.weights.items()), load_batch_bytes=16)
    generator.weight_version = 5
    change(source, "scale", 0, 4.0)
    with pytest.raises(WeightSyncError, match="send every element"):
        sync.sync()
    assert sync.sync()["weight_sync/full"] == 1


@pytest.mark.parametrize(
    ("change_names", "named"),
    [
        (lambda weights: weights.pop("scale"), "scale"),
        (lambda weights: weights.update(other=torch.ones(2)), "other"),
        (lambda weights: weights.update(scale=torch.ones(2)), "scale"),
    ],
    ids=["missing", "unknown", "of another shape"],
)
def test_names_are_a_closed_set(change_names: object, named: str) -> None:
    """A tensor too few, too many or of another shape stops the sync."""
    source = Source(tensors())
    generator = Generator(source.weights)
    change_names(source.weights)  # type: ignore[operator]
    with pytest.raises(WeightSyncError, match=named):
        synced(source, generator)


def test_weights_outside_a_sync_are_refused() -> None:
    """As is the end of one that was not begun."""
    generator = Generator(tensors())
    with pytest.raises(WeightSyncError, match="no sync is open"):
        generator.receive([Part("scale", torch.ones(1))])
    with pytest.raises(WeightSyncError, match="not open"):
        generator.commit({})


@given(sizes=st.lists(st.integers(0, 9), max_size=6), limit=st.integers(1, 40))
def test_buckets_lose_nothing_and_hold_what_fits(sizes: list[int], limit: int) -> None:
    """Every element is in one bucket, in order; a bucket over the limit is one element."""
    parts = [Part(str(number), torch.arange(size, dtype=torch.float32)) for number, size in enumerate(sizes)]
    buckets = list(bucketed(parts, limit))
    seen = {str(number): [] for number in range(len(sizes))}  # type: dict[str, list[float]]
    for bucket in buckets:
        nbytes = sum(part.values_N.nbytes for part in bucket)
        assert nbytes <= limit or [part.values_N.numel() for part in bucket if part.values_N.numel()] == [1]
        for part in bucket:
            assert part.start == len(seen[part.name])
            seen[part.name] += part.values_N.tolist()
    assert seen == {part.name: part.values_N.tolist() for part in parts}


def test_fingerprints_do_not_depend_on_the_layout() -> None:
    """And tell type, shape and every bit apart."""
    matrix_NM = torch.randn(4, 6)
    assert fingerprint(matrix_NM.t().contiguous().t()) == fingerprint(matrix_NM)
    others = [
        matrix_NM.t(),
        matrix_NM.reshape(6, 4),
        matrix_NM.double(),
        matrix_NM.nextafter(torch.tensor(9.0)),
    ]
    assert fingerprint(matrix_NM) not in {fingerprint(other) for other in others}
    assert fingerprint(torch.tensor(0.0)) != fingerprint(torch.tensor(-0.0))
    assert fingerprint(torch.tensor(float("nan"))) == fingerprint(torch.tensor(float("nan")))
