"""Delta compression of weights against a memory copy of the same bytes, in one process.

    python benchmarks/weight_transfer.py [--megabytes 256] [--share 0.01] [--repeats 5] [--device cpu]

Prints the bytes of the model a second, over the medians of the repeats: encoding (finding what changed and gathering
it), decoding (putting it in its places), and the fingerprints of both sides, each beside a copy of all weights.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator

import torch
from torch import Tensor

from refrl.config import DeltaCompressionConfig
from refrl.timing import Timer
from refrl.weight_sync.receiver import Receiver
from refrl.weight_sync.tensors import fingerprints
from refrl.weight_sync.transferred import TransferredWeights

PHASES = "prepare_for_generation/weight_transfer"
NUM_TENSORS = 16


class Source:
    """Weights of which a share changes at every step."""

    def __init__(self, num_bytes: int, share: float, device: str) -> None:
        """Make bfloat16 tensors of so many bytes together."""
        size = num_bytes // 2 // NUM_TENSORS
        self.weights = {
            f"layers.{number}": torch.randn(size, device=device).bfloat16() for number in range(NUM_TENSORS)
        }
        self.version, self._share = 0, share

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield them."""
        yield from self.weights.items()

    def train(self) -> None:
        """Change a share of the elements, here and there."""
        for tensor in self.weights.values():
            places = torch.randperm(tensor.numel(), device=tensor.device)[: int(tensor.numel() * self._share)]
            tensor[places] += 1
        self.version += 1


def seconds(work: object, device: str) -> float:
    """Return how long a call takes, with the device's work."""
    if device != "cpu":
        torch.cuda.synchronize()
    started = time.perf_counter()
    work()  # type: ignore[operator]
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    source = Source(arguments.megabytes * 2**20, arguments.share, arguments.device)
    copies = {name: torch.empty_like(tensor) for name, tensor in source.weights.items()}
    receiver = Receiver(lambda: iter(copies.items()), load_batch_bytes=64 * 2**20)
    timer = Timer()
    delta = DeltaCompressionConfig(enabled=True, full_sync_interval=10**6)
    sync = TransferredWeights(source, receiver, bucket_bytes=64 * 2**20, delta=delta, timer=timer)
    found: dict[str, list[float]] = {"copy": [], "encode": [], "decode": [], "fingerprint": []}
    for _ in range(arguments.repeats):
        source.train()
        timer.take()
        sync.sync()
        spent = timer.take()
        found["encode"].append(
            spent[f"{PHASES}/producer/sparse_nonzero"] + spent[f"{PHASES}/producer/sparse_encode"]
        )
        found["decode"].append(
            spent[f"{PHASES}/consumer/decode_sparse"] + spent[f"{PHASES}/consumer/load_delta"]
        )
        others = {name: torch.empty_like(tensor) for name, tensor in copies.items()}
        for other in others.values():
            other.zero_()
        found["copy"].append(
            seconds(
                lambda into=others: [into[name].copy_(of) for name, of in source.named_weights()],
                arguments.device,
            )
        )
        found["fingerprint"].append(seconds(lambda: fingerprints(source.weights), arguments.device))
    num_bytes = sum(tensor.nbytes for tensor in copies.values())
    rate = {name: num_bytes / statistics.median(times) / 1e9 for name, times in found.items()}
    for name, value in rate.items():
        print(f"{name:12} {value:7.2f} GB/s   {value / rate['copy']:.2f} of a copy")


if __name__ == "__main__":
    main()
