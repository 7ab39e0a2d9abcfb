"""Worked examples of broadcasts between two processes: devices, stores, bytes, and errors that come late."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from refrl.generation import broadcast_link, process
from refrl.generation.broadcast_link import BroadcastLink
from refrl.generation.messages import Message
from refrl.weight_sync import broadcast
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example, for_all, made_tensor

TYPES = (torch.float32, torch.bfloat16)


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from for_all({"messages of weights": (_exchanged, 15)})
    yield from _of_broadcasts()


def _of_broadcasts() -> Iterator[WorkedExample]:
    for policy, engine, own, other in (
        ("cuda:0", "cuda:1", "cuda:0", "cuda:1"),
        ("cuda:1", "cuda:0", "cuda:1", "cuda:0"),
        ("cuda:0", "cuda:0", "cpu", "cpu"),
        ("cpu", "cuda:0", "cpu", "cpu"),
        ("cuda:0", "cpu", "cpu", "cpu"),
        ("cpu", "cpu", "cpu", "cpu"),
    ):
        said = {"port": 77, "timeout_seconds": 9.0, "device": other}
        right = [("made", None, 9.0, own), ("said", "join", said), "joined", "answered", "kept"]
        yield example(f"a broadcast from {policy} to {engine}", right, _pair, policy, engine)
    for port, made in (
        (None, ("127.0.0.1", 0, True, False, 4.0, 0)),
        (7, ("127.0.0.1", 7, False, False, 4.0, 1)),
    ):
        yield example(f"the store of a broadcast at {port}", made, _store, port)
    for device, name in (("cpu", "gloo"), ("cuda", "nccl")):
        for rank in (0, 1):
            due = [name, "store", rank, 2, 4.0, *["127.0.0.1"] * (name == "gloo")]
            yield example(f"the group of rank {rank} over {name}", due, _group, device, rank)
    yield example("bytes of any number", [3, 5, 2, 0, 6], _received)


def _pair(policy: str, engine: str) -> list[Any]:
    noted: list[Any] = []

    def made(*, port: int | None, timeout_seconds: float, device: torch.device) -> Any:
        noted.append(("made", port, timeout_seconds, str(device)))
        return SimpleNamespace(port=77, join=lambda: noted.append("joined"))

    link: Any = object.__new__(BroadcastLink)
    link._engine_device, link.timeout_seconds, link._connection = torch.device(engine), 9.0, None
    with (
        patch.object(broadcast_link, "BroadcastPair", made),
        patch.object(
            broadcast_link, "send", lambda to, said: noted.append(("said", said.kind, dict(said.fields)))
        ),
        patch.object(broadcast_link, "receive", lambda of: noted.append("answered")),
    ):
        pair = link._join(torch.device(policy))
    return [*noted, *["kept"] * (link._pair is pair)]


def _exchanged(stream: random.Random) -> bool:
    """Return whether an error of weights is the answer to the next message, which is not sent, and bytes arrive."""
    kinds = [stream.choice([broadcast_link.WEIGHTS] * 3 + ["finish"]) for _ in range(6)]
    answers = [stream.choice(["taken", "taken", "error"]) for _ in kinds]
    given = [
        [
            made_tensor(stream, (stream.randint(0, 5), 2), stream.choice((torch.float32, torch.bfloat16)))
            for _ in range(2)
        ]
        for _ in kinds
    ]
    sent: list[Any] = []
    left = iter(enumerate(answers))

    def receive(connection: Any) -> Message:
        number, word = next(left)
        return Message(word, {"number": number})

    link: Any = object.__new__(BroadcastLink)
    link._connection, link._num_unanswered = None, 0
    link._pair = SimpleNamespace(device=torch.device("cpu"), send=lambda of: sent.append(of.clone()))
    due: list[tuple[str, int | None]] = []
    unanswered: int | None = None
    number = 0
    for kind in kinds:
        if unanswered is not None and answers[unanswered] == "error":
            due.append(("error", unanswered))
            unanswered = None
            continue
        is_sent = kind == broadcast_link.WEIGHTS
        due.append(("sent", None) if is_sent else (answers[number], number))
        unanswered = number if is_sent else None
        number += 1
    with ExitStack() as stack:
        for module in (broadcast_link, process):
            stack.enter_context(patch.object(module, "send", lambda of, message: sent.append(message)))
            stack.enter_context(patch.object(module, "receive", receive))
        found = [
            link._exchange(Message(kind, {"of": 1}, one)) for kind, one in zip(kinds, given, strict=True)
        ]
    same = [(one.kind, one.fields.get("number")) for one in found] == due
    tensors = [one for one, answer in zip(given, found, strict=True) if answer.kind == "sent"]
    for at, message in enumerate(sent):
        if not isinstance(message, Tensor) and message.kind == "broadcast":
            listed = [(getattr(torch, name), shape) for name, shape in message.fields["listed"]]
            arrived, own = broadcast.unpack(sent[at + 1], listed), tensors.pop(0)
            same &= message.fields["fields"] == {"of": 1} and message.fields["bytes"] == len(sent[at + 1])
            same &= all(map(torch.equal, arrived, own))
    return same and not tensors


def _store(port: int | None) -> Any:
    seen: list[Any] = []

    def made(host: str, at: int, *, is_master: bool, wait_for_workers: bool, timeout: Any) -> Any:
        seen.extend([host, at, is_master, wait_for_workers, timeout.total_seconds()])
        return SimpleNamespace(port=at or 55)

    with patch.object(broadcast, "_torch", SimpleNamespace(TCPStore=made)):
        pair = broadcast.BroadcastPair(port=port, timeout_seconds=4.0, device=torch.device("cpu"))
    assert pair.port == (port or 55)
    return *seen, pair._rank


def _group(device: str, rank: int) -> list[Any]:
    """Return the group that a process joins: its transport, store, rank, size, seconds, and host."""
    made: list[Any] = []

    class Given:
        _timeout, _devices = timedelta(minutes=30), ("any",)

    def transport(name: str) -> Any:
        class Made:
            Options = _Options = Given

            def __init__(self, store: str, rank: int, size: int, options: Any) -> None:
                made.extend([name, store, rank, size, options._timeout.total_seconds()])
                made.extend(options._devices if name == "gloo" else ())

            @staticmethod
            def create_device(*, hostname: str) -> str:
                return hostname

        return Made

    pair: Any = object.__new__(broadcast.BroadcastPair)
    pair.device, pair._rank, pair._store = SimpleNamespace(type=device), rank, "store"
    pair._timeout, pair._broadcast = timedelta(seconds=4.0), lambda bytes_N: None
    groups = SimpleNamespace(ProcessGroupNCCL=transport("nccl"), ProcessGroupGloo=transport("gloo"))
    calls = SimpleNamespace(
        zeros=lambda *shape, **options: None, uint8=None, cuda=SimpleNamespace(synchronize=lambda of: None)
    )
    with patch.object(broadcast, "_torch", groups), patch.object(broadcast, "torch", calls):
        pair.join()
    assert pair._group is not None
    return made


def _received() -> list[int]:
    pair: Any = object.__new__(broadcast.BroadcastPair)
    pair.device, pair._received_N = torch.device("cpu"), torch.empty(0, dtype=torch.uint8)
    pair._broadcast = lambda bytes_N: bytes_N.fill_(len(bytes_N))
    found = []
    for count in (3, 5, 2, 0, 6):
        got = pair.receive(count)
        assert got.tolist() == [count] * count
        found.append(len(got))
    return found
