"""Broadcasts bytes from one process to another by torch.distributed, in a separate group of the two.

With NCCL the bytes are on a CUDA device on both sides, one for each process; with gloo they are in host memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_ALIGNED = 8
"""Every tensor begins at a multiple of this many bytes, so that it can be used in place."""


def packed_size(tensors: Sequence[Tensor]) -> int:
    """Return how many bytes `pack` needs."""
    return sum(_padded_size(tensor.nbytes) for tensor in tensors)


def pack(tensors: Sequence[Tensor], into_N: Tensor) -> None:
    """Write tensors, of any device, into bytes one after another.

    Args:
        tensors: each in row-major order.
        into_N: uint8, N at least `packed_size`.
    """
    start = 0
    for tensor in tensors:
        into_N[start : start + tensor.nbytes].view(tensor.dtype).copy_(tensor.detach().reshape(-1))
        start += _padded_size(tensor.nbytes)


def unpack(bytes_N: Tensor, listed: Sequence[tuple[torch.dtype, Sequence[int]]]) -> list[Tensor]:
    """Return the tensors in a byte buffer, without a copy.

    Args:
        bytes_N: uint8.
        listed: type and shape of each, in their order.

    Raises:
        ValueError: the buffer is too short for them.
    """
    found, start = [], 0
    for dtype, shape in listed:
        size = prod(shape) * dtype.itemsize
        if size < 0 or start + size > bytes_N.numel():
            raise ValueError(f"tensors of more than {bytes_N.numel()} bytes are listed, and so many arrived")
        found.append(bytes_N[start : start + size].view(dtype).view(tuple(shape)))
        start += _padded_size(size)
    return found


def _padded_size(num_bytes: int) -> int:
    return num_bytes + -num_bytes % _ALIGNED


_HOST = "127.0.0.1"
_torch: Any = dist
"""Groups that are made by hand have no types."""


class PeerLostError(OSError):
    """The other process is gone, or did not take part in time."""


class BroadcastPair:
    """A group of a sender (rank 0) and a receiver (rank 1) on one host."""

    def __init__(self, *, port: int | None, timeout_seconds: float, device: torch.device) -> None:
        """Join, when the other side joins.

        Args:
            port: of the sender; None: be the sender, whose `port` must be passed to the receiver before `join`.
            timeout_seconds: how long the other side may take, here and later.
            device: where the bytes are in this process: a CUDA device with NCCL, the CPU with gloo, as on the other
                side.
        """
        self._rank = int(port is not None)
        self._timeout = timedelta(seconds=timeout_seconds)
        self.device = device
        self._received_N = torch.empty(0, dtype=torch.uint8, device=device)
        with _naming("did not open a group"):
            self._store = _torch.TCPStore(
                _HOST, port or 0, is_master=port is None, wait_for_workers=False, timeout=self._timeout
            )
        self.port: int = self._store.port

    def join(self) -> None:
        """Return when both have joined.

        Raises:
            PeerLostError: the other one did not.
        """
        with _naming("did not join"):
            if self.device.type == "cuda":
                options = _torch.ProcessGroupNCCL.Options()
                options._timeout = self._timeout
                self._group = _torch.ProcessGroupNCCL(self._store, self._rank, 2, options)
                # NCCL opens its connection with the first collective.
                self._broadcast(torch.zeros(1, dtype=torch.uint8, device=self.device))
                torch.cuda.synchronize(self.device)
                return
            options = _torch.ProcessGroupGloo._Options()
            options._timeout = self._timeout
            options._devices = [_torch.ProcessGroupGloo.create_device(hostname=_HOST)]
            self._group = _torch.ProcessGroupGloo(self._store, self._rank, 2, options)

    def close(self) -> None:
        """Give up what the other side has not taken part in: a kernel of NCCL would wait for it for ever."""
        if self.device.type == "cuda":
            self._group.abort()

    def send(self, bytes_N: Tensor) -> None:
        """Send so many bytes, which the other side receives at the same time.

        With NCCL this returns before the bytes are sent; what the current stream runs next waits for them.

        Raises:
            PeerLostError: it is gone.
        """
        self._broadcast(bytes_N)

    def receive(self, count: int) -> Tensor:
        """Return so many bytes, uint8; they are valid until the next call.

        Raises:
            PeerLostError: the other side is gone.
        """
        if self._received_N.numel() < count:
            self._received_N = torch.empty(count, dtype=torch.uint8, device=self.device)
        bytes_N = self._received_N[:count]
        self._broadcast(bytes_N)
        return bytes_N

    def _broadcast(self, bytes_N: Tensor) -> None:
        if bytes_N.numel():
            with _naming("did not take part in a broadcast"):
                options = _torch.BroadcastOptions()
                options.rootRank = 0
                self._group.broadcast([bytes_N], options).wait()


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Raise what torch.distributed raises as one error."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLostError(f"the other process {what}: {str(error).splitlines()[0]}") from error
