"""Weights in messages to another process against gloo's broadcast of the same bytes to it.

    python benchmarks/weight_messages.py [--megabytes 256] [--tensors 64] [--repeats 5]

Prints the bytes a second of both, medians of repeats that take turns, and the ratio. A broadcast is of one tensor after
another, into memory that is there. A sync packs the parts of a bucket of 64 MiB into a message, sends it as
`refrl.generation.process` does, and the other side puts them in their places; fingerprints are left out of both.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from refrl.generation.messages import Message, pack_parts, receive, send, unpack_parts
from refrl.weight_sync.base import Part
from refrl.weight_sync.receiver import Receiver
from refrl.weight_sync.transferred import bucketed

BUCKET_BYTES = 64 * 2**20


def join(rank: int, store: str) -> None:
    """Make the group of both processes."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)


def serve(connection: socket.socket, store: str, weights: dict[str, Tensor], repeats: int) -> None:
    """Take broadcasts and messages in turn, as the other side gives them."""
    join(1, store)
    receiver = Receiver(lambda: iter(weights.items()), load_batch_bytes=BUCKET_BYTES)
    for _ in range(repeats):
        for tensor in weights.values():
            dist.broadcast(tensor, src=0)
        dist.barrier()
        receiver.begin(0, None)
        while (message := receive(connection)).kind == "receive":
            receiver.receive(unpack_parts(message))
            send(connection, Message("received"))
        send(connection, Message("done"))
    dist.barrier()


def seconds(work: Callable[[], None]) -> float:
    """Return how long a call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--tensors", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    size = arguments.megabytes * 2**20 // 2 // arguments.tensors
    weights = {
        f"layers.{number}": torch.zeros(size, dtype=torch.bfloat16) for number in range(arguments.tensors)
    }
    own, other = socket.socketpair()
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/store"
        child = os.fork()
        if not child:
            own.close()
            try:
                serve(other, store, weights, arguments.repeats)
            finally:
                os._exit(0)
        other.close()
        join(0, store)

        def broadcast() -> None:
            for tensor in weights.values():
                dist.broadcast(tensor, src=0)
            dist.barrier()

        def messages() -> None:
            for bucket in bucketed((Part(name, tensor) for name, tensor in weights.items()), BUCKET_BYTES):
                send(own, pack_parts(bucket))
                receive(own)
            send(own, Message("end"))
            receive(own)

        found: dict[str, list[float]] = {"broadcast": [], "messages": []}
        for _ in range(arguments.repeats):
            found["broadcast"].append(seconds(broadcast))
            found["messages"].append(seconds(messages))
        dist.barrier()
        os.waitpid(child, 0)
    num_bytes = sum(tensor.nbytes for tensor in weights.values())
    rate = {name: num_bytes / statistics.median(times) / 1e9 for name, times in found.items()}
    print(f"broadcast {rate['broadcast']:.2f} GB/s, messages {rate['messages']:.2f} GB/s: ", end="")
    print(f"{rate['messages'] / rate['broadcast']:.2f} of a broadcast")


if __name__ == "__main__":
    main()
