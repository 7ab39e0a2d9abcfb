"""The way to a generator's process on which torch.distributed broadcasts weights, and all else goes in messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from refrl.generation.messages import Message, dtype_name, named_dtype, receive, send
from refrl.generation.process import SocketLink
from refrl.weight_sync.broadcast import BroadcastPair, pack, packed_size, unpack

CPU = torch.device("cpu")
WEIGHTS = "receive"
"""Kind of the messages whose tensors are broadcast."""


class BroadcastLink(SocketLink):
    """A `refrl.generation.process.Link`. A bucket is packed while the other side puts the one before it in its places.

    So the answer to a bucket is known with the next message: an error comes one message late, and before the sync ends.
    """

    _pair: BroadcastPair | None = None
    _bytes_N = torch.empty(0, dtype=torch.uint8)
    _num_unanswered = 0

    def __init__(self, python: str | None = None, *, engine_device: torch.device = CPU) -> None:
        """Start the process (see `SocketLink`).

        Args:
            python: interpreter of the process.
            engine_device: where its engine computes.
        """
        super().__init__(python)
        self._engine_device = engine_device

    def close(self) -> None:
        """End the process, and what waits for it on the device."""
        super().close()
        if self._pair is not None:
            self._pair.close()
            self._pair = None

    def _exchange(self, message: Message) -> Message:
        if message.kind != WEIGHTS:
            earlier = self._earlier()
            return super()._exchange(message) if earlier is None else earlier
        pair = self._pair or self._join(message.tensors[0].device)
        size = packed_size(message.tensors)
        if self._bytes_N.numel() < size:
            self._bytes_N = torch.empty(size, dtype=torch.uint8, device=pair.device)
        pack(message.tensors, self._bytes_N)
        earlier = self._earlier()
        if earlier is not None:
            return earlier
        listed = [[dtype_name(tensor.dtype), list(tensor.shape)] for tensor in message.tensors]
        send(
            self._connection,
            Message("broadcast", {"fields": dict(message.fields), "listed": listed, "bytes": size}),
        )
        pair.send(self._bytes_N[:size])
        self._num_unanswered = 1
        return Message("sent")

    def _earlier(self) -> Message | None:
        """Return the answer to the bucket before, where it is an error."""
        if not self._num_unanswered:
            return None
        self._num_unanswered = 0
        answer = receive(self._connection)
        return answer if answer.kind == "error" else None

    def _join(self, policy_device: torch.device) -> BroadcastPair:
        uses_nccl = {policy_device.type, self._engine_device.type} == {"cuda"} and (
            policy_device != self._engine_device
        )
        ends = (policy_device, self._engine_device) if uses_nccl else (CPU, CPU)
        self._pair = BroadcastPair(port=None, timeout_seconds=self.timeout_seconds, device=ends[0])
        joining = {
            "port": self._pair.port,
            "timeout_seconds": self.timeout_seconds,
            "device": str(ends[1]),
        }
        send(self._connection, Message("join", joining))
        self._pair.join()
        receive(self._connection)
        return self._pair


class BroadcastEnd:
    """The generator's side."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        """Join, as a message `join` says."""
        self._pair = BroadcastPair(
            port=fields["port"],
            timeout_seconds=fields["timeout_seconds"],
            device=torch.device(fields["device"]),
        )
        self._pair.join()

    def whole(self, message: Message) -> Message:
        """Return the message of weights that a message `broadcast` announces, with its tensors.

        Raises:
            refrl.weight_sync.broadcast.PeerLostError: the other side is gone.
        """
        bytes_N: Tensor = self._pair.receive(message.fields["bytes"])
        listed = [(named_dtype(dtype), shape) for dtype, shape in message.fields["listed"]]
        return Message(WEIGHTS, message.fields["fields"], unpack(bytes_N, listed))
