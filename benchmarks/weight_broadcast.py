"""Weights broadcast in packed buckets to another process against a raw broadcast of the same bytes to it.

    python benchmarks/weight_broadcast.py [--megabytes 256] [--tensors 64] [--bucket-megabytes 16] [--repeats 9]
        [--device cuda]

Prints the bytes a second of both, medians of repeats that take turns, and the ratio. The raw broadcast is gloo's, or
NCCL's from one CUDA device to another (`--device cuda`), of one tensor after another, into memory that is there. A sync
goes through `refrl.generation.broadcast_link`, as in a run: buckets are packed, announced, broadcast, and put in their
places on the other side; fingerprints are left out of both.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from refrl.generation import process
from refrl.generation.broadcast_link import BroadcastLink
from refrl.generation.messages import Message, pack_parts, receive, send
from refrl.runtime.generator_process import GeneratorServer
from refrl.weight_sync.base import Part
from refrl.weight_sync.receiver import Receiver
from refrl.weight_sync.transferred import bucketed


def made(megabytes: int, num_tensors: int, device: torch.device) -> dict[str, Tensor]:
    """Return bfloat16 weights of so many bytes."""
    size = megabytes * 2**20 // 2 // num_tensors
    return {
        f"layers.{number}": torch.zeros(size, dtype=torch.bfloat16, device=device)
        for number in range(num_tensors)
    }


def device_of(kind: str, rank: int) -> torch.device:
    """Return the device of a process: the first or second one of CUDA, or the CPU."""
    if kind == "cpu":
        return torch.device(kind)
    torch.cuda.set_device(rank)
    return torch.device(kind, rank)


def join(rank: int, store: str, kind: str) -> None:
    """Make the group of both processes for the raw broadcast."""
    backend = "gloo" if kind == "cpu" else "nccl"
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=2)


def broadcast(weights: Mapping[str, Tensor]) -> None:
    """Broadcast tensor by tensor."""
    for tensor in weights.values():
        dist.broadcast(tensor, src=0)


class Places:
    """An engine that has places for weights, and nothing else."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        """Take them."""
        self._receiver = Receiver(lambda: iter(weights.items()), load_batch_bytes=2**26)
        self.begin, self.receive = self._receiver.begin, self._receiver.receive
        self.weight_version = 0

    def named_weights(self) -> dict[str, Tensor]:
        """Return nothing, when the last bucket has been put in its place: called at the end of a sync."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return {}


def serve(store: str, kind: str, megabytes: int, num_tensors: int, descriptor: int) -> None:
    """Take broadcasts and syncs, as the other side gives them."""
    weights = made(megabytes, num_tensors, device_of(kind, 1))
    join(1, store, kind)
    server = GeneratorServer()
    engine: Any = Places(weights)
    server._engine = engine
    with socket.socket(fileno=descriptor) as connection:
        while True:
            try:
                message = receive(connection)
            except EOFError:
                return
            if message.kind == "leave":
                dist.destroy_process_group()
                send(connection, Message("left"))
                continue
            if message.kind == "raw":
                broadcast(weights)
                if kind == "cuda":
                    torch.cuda.synchronize()
                send(connection, Message("taken"))
                continue
            send(connection, server.answer(message))


def seconds(work: Callable[[], None]) -> float:
    """Return how long a call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2], sys.argv[3], *map(int, sys.argv[4:]))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--tensors", type=int, default=64)
    parser.add_argument("--bucket-megabytes", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    asked = parser.parse_args()
    device = device_of(asked.device, 0)
    weights = made(asked.megabytes, asked.tensors, device)
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/store"
        process.COMMAND = (
            *(sys.executable, __file__, "serve", store, asked.device),
            *(str(asked.megabytes), str(asked.tensors)),
        )
        link = BroadcastLink(engine_device=torch.device(asked.device, 1 if asked.device == "cuda" else None))
        join(0, store, asked.device)

        def raw() -> None:
            send(link._connection, Message("raw"))
            broadcast(weights)
            receive(link._connection)

        def packed() -> None:
            link.ask(Message("begin", {"version": 0, "based_on": None}))
            parts = (Part(name, tensor) for name, tensor in weights.items())
            for bucket in bucketed(parts, asked.bucket_megabytes * 2**20):
                link.ask(pack_parts(bucket))
            link.ask(Message("weights"))

        raw()
        packed()
        found: dict[str, list[float]] = {"raw": [], "packed": []}
        for _ in range(asked.repeats):
            found["raw"].append(seconds(raw))
            found["packed"].append(seconds(packed))
        send(link._connection, Message("leave"))
        dist.destroy_process_group()
        receive(link._connection)
        link.close()
    num_bytes = sum(tensor.nbytes for tensor in weights.values())
    rate = {name: num_bytes / statistics.median(times) / 1e9 for name, times in found.items()}
    print(f"raw broadcast {rate['raw']:.2f} GB/s, packed {rate['packed']:.2f} GB/s: ", end="")
    print(f"{rate['packed'] / rate['raw']:.2f} of it")


if __name__ == "__main__":
    main()
