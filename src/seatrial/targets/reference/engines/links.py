"""refrl's links to its engines, with stand-ins at their other end: `seatrial.relations.contracts.links`."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from refrl.config.run import DataPlaneConfig
from refrl.data_plane import build_data_plane_client
from refrl.generation.broadcast_link import BroadcastLink
from refrl.generation.messages import Message, send
from refrl.generation.process import SocketLink
from refrl.weight_sync.broadcast import BroadcastPair, PeerLostError

CPU = torch.device("cpu")
LINKS: Mapping[str, type[SocketLink]] = {"messages": SocketLink, "broadcast": BroadcastLink}


class ReferenceLinks:
    """See `seatrial.relations.contracts.links`."""

    @property
    def links(self) -> Sequence[str]:
        return tuple(LINKS)

    def failures_reported(self, link: str, num_messages: int, failing: int) -> Sequence[bool]:
        with _answered(LINKS[link], num_messages + 1, failing) as opened:
            reported: list[bool] = []
            for number in range(num_messages + 1):
                weights = (torch.full((3,), float(number)),)
                last = number == num_messages
                answer = opened.ask(Message("commit") if last else Message("receive", {}, weights))
                reported.append(answer.kind == "error")
                if reported[-1]:
                    break
            return reported

    def waits(self) -> Mapping[str, Callable[[float], object]]:
        return {
            "a broadcast that nothing joins": _joined_alone,
            "a claim of rows that are never put": _claimed,
        }


@contextlib.contextmanager
def _answered(link: type[SocketLink], num_messages: int, failing: int) -> Iterator[Any]:
    """Open a link without a process; all its answers are there already, one of them an error."""
    own, other = socket.socketpair()
    with own, other:
        for number in range(num_messages):
            send(other, Message("error", {"what": "made"}) if number == failing else Message("done"))
        opened: Any = link.__new__(link)
        opened._connection, opened.timeout_seconds = own, 60.0
        opened._pair = SimpleNamespace(device=CPU, send=lambda bytes_N: None, close=lambda: None)
        yield opened


def _joined_alone(seconds: float) -> None:
    # torch writes a line to the console for each wait that ends.
    with contextlib.suppress(PeerLostError), _without_errors():
        BroadcastPair(port=None, timeout_seconds=seconds, device=CPU).join()


def _claimed(seconds: float) -> None:
    client: Any = build_data_plane_client(DataPlaneConfig())
    client.register_partition("waits", ["ids"], 1, ["train"])
    with contextlib.suppress(TimeoutError):
        client.claim_meta("waits", "train", ["ids"], 1, timeout_s=seconds)


@contextlib.contextmanager
def _without_errors() -> Iterator[None]:
    """Drop what this process writes to its standard error."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
