"""Worked examples of an engine's process: what it answers, how long, and how it is opened."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from refrl.generation.base import Completion, SamplingParams
from refrl.generation.messages import Message, pack_parts
from refrl.runtime import generator_process
from refrl.weight_sync.base import Part, Receipt
from refrl.weight_sync.broadcast import PeerLostError
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.configuration import policy_configuration
from seatrial.targets.reference.worked.made import example


def of_servers() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_lives()
    yield from _of_answers()


def _of_lives() -> Iterator[WorkedExample]:
    for asked, sent, right in (
        (["one", "two", EOFError()], 2, ["one", "two"]),
        (["one", OSError()], 1, ["one"]),
        (["lost", "two"], 0, ["lost"]),
        (["one", "two"], 0, ["one"]),
    ):
        yield example(f"what a process answers that gets {asked}", right, _served, asked, sent)
    yield example("the connection of a process", ["served", 5, True], _connected)


def _served(asked: Sequence[Any], writable: int) -> list[str]:
    """Return the messages that are answered until the process ends.

    Args:
        asked: the messages, and what receiving raises.
        writable: how many answers can be sent.
    """
    left = iter(asked)
    sent: list[Any] = []
    answered: list[Any] = []

    def receive(connection: Any) -> Any:
        one = next(left)
        if isinstance(one, Exception):
            raise one
        return one

    def answer(self: Any, message: Any) -> Any:
        answered.append(message)
        if message == "lost":
            raise PeerLostError("lost")
        return message

    def send(connection: Any, message: Any) -> None:
        if len(sent) == writable:
            raise OSError("closed")
        sent.append(message)

    connection: Any = None
    with (
        patch.object(generator_process, "receive", receive),
        patch.object(generator_process, "send", send),
        patch.object(generator_process.GeneratorServer, "answer", answer),
        patch("signal.signal", lambda *words: None),
    ):
        generator_process.serve(connection)
    assert sent == answered[:writable]
    return answered


def _connected() -> list[Any]:
    """Return which connection a process serves that is given a descriptor, and whether it is closed at the end."""
    own, other = socket.socketpair()
    noted: list[Any] = []

    def serve(connection: socket.socket) -> None:
        noted.extend(["served", connection.send(b"hello")])

    with (
        patch.object(sys, "argv", ["x", str(other.detach())]),
        patch.object(generator_process, "serve", serve),
    ):
        generator_process.main()
    assert own.recv(5) == b"hello"
    own.settimeout(5.0)
    noted.append(own.recv(1) == b"")
    own.close()
    return noted


class _Engine:
    """An engine that notes what it is asked."""

    engine, weight_version = "made 1", 4

    def __init__(self) -> None:
        self.noted: list[Any] = []

    def specs(self) -> Any:
        return {"a": SimpleNamespace(shape=(2, 3), dtype=torch.bfloat16)}

    def stop_ids(self) -> frozenset[int]:
        return frozenset((9, 2, 5))

    def generate(self, prompts: Any, params: Any, stream: torch.Generator) -> list[Completion]:
        self.noted.extend([prompts, params, float(torch.rand(1, generator=stream))])
        return [
            Completion(prompt_ids=(1,), ids=(2,), logprobs=(-0.5,), finish_reason="stop", weight_version=4)
        ]

    def receive(self, parts: Any) -> None:
        self.noted.append([one.name for one in parts])

    def commit(self, fingerprints: Any) -> Receipt:
        self.noted.append(dict(fingerprints))
        return Receipt(num_tensors=1, seconds={"load": 0.123456789}, largest_load_bytes=8)

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield "b", torch.ones(2, requires_grad=True)
        yield "a", torch.zeros(1, dtype=torch.int8)


def _of_answers() -> Iterator[WorkedExample]:
    for device, right in (("cpu", []), ("cuda:1", ["cuda:1"])):
        opened = {"engine": "made 1", "stop_ids": [2, 5, 9], "specs": {"a": ([2, 3], "bfloat16")}}
        yield example(
            f"an engine that is opened on {device}",
            ["opened", opened, (3, right), (7, device, True)],
            _opened,
            device,
        )
    for stop in (None, [4, 6]):
        yield example(f"rows of a process, with the end tokens {stop}", [], _sampled, stop)
    committed = {"num_tensors": 1, "seconds": {"load": 0.123456789}, "largest_load_bytes": 8, "version": 4}
    yield example(
        "what a commit answers",
        ("committed", committed, [{"a": "x"}]),
        _answer,
        "commit",
        {"fingerprints": {"a": "x"}},
    )
    yield example("a process that joins broadcasts", _JOINED, _joins)
    parts = pack_parts([Part("w", torch.ones(2), 3), Part("v", torch.ones(1), indices_N=torch.tensor([4]))])
    yield example(
        "weights in parts that a process takes",
        ("received", {}, [["w", "v"]]),
        lambda: _answer("receive", parts.fields, parts.tensors),
    )
    yield example(
        "the weights of a process",
        ("weights", {"names": ["b", "a"]}, [[1.0, 1.0], [0]], ["torch.float32", "torch.int8"]),
        _weights,
    )


def _opened(device: str) -> list[Any]:
    """Return the answer to what opens an engine; its threads and current device; padding, device and policy it has."""
    config = policy_configuration({"precision": "bfloat16"})
    threads: list[Any] = []
    devices: list[str] = []
    made: list[Any] = []

    def build(policy: Any, *, pad_token_id: int, device: torch.device) -> Any:
        made.extend(
            [pad_token_id, str(device), policy.model_dump(mode="json") == config.model_dump(mode="json")]
        )
        return _Engine()

    message = Message(
        "open",
        {"policy": config.model_dump(mode="json"), "pad_token_id": 7, "device": device, "num_threads": 3},
    )
    with (
        patch.object(torch, "set_num_threads", threads.append),
        patch.object(torch.cuda, "set_device", lambda of: devices.append(str(of))),
        patch.object(generator_process, "build_engine", build),
    ):
        answer = generator_process.GeneratorServer().answer(message)
    return [answer.kind, dict(answer.fields), (threads[0], devices), tuple(made)]


def _server() -> tuple[Any, _Engine]:
    server, engine = generator_process.GeneratorServer(), _Engine()
    server._engine = engine  # type: ignore[assignment]
    return server, engine


def _sampled(stop: list[int] | None) -> list[str]:
    """Return what differs of a request for rows: prompts, parameters, stream and rows."""
    server, engine = _server()
    given = SamplingParams(max_new_tokens=3, top_k=5, stop_token_ids=None if stop is None else tuple(stop))
    stream = torch.Generator().manual_seed(8)
    fields = {**asdict(given), "stop_token_ids": stop}
    answer = server.answer(
        Message("generate", {"prompts": [[1], [2]], "params": fields}, [stream.get_state()])
    )
    prompts, params, number = engine.noted
    due = float(torch.rand(1, generator=stream))
    row = {**answer.fields["completions"][0]}
    found: Mapping[str, Callable[[], bool]] = {
        "kind": lambda: answer.kind == "sampled",
        "prompts": lambda: prompts == [[1], [2]],
        "parameters": lambda: params == given,
        "stream": lambda: number == due,
        "stream afterwards": lambda: torch.equal(answer.tensors[0], stream.get_state()),
        "row": lambda: (row["ids"], row["logprobs"], row["weight_version"]) == ((2,), (-0.5,), 4),
        "fields": lambda: row.keys() == vars(Completion((1,), (2,), (-0.5,), "stop")).keys(),
    }
    return [name for name, holds in found.items() if not holds()]


_JOINED: Sequence[Any] = [
    ("ended at", {"port": 5}), ("joined", {}), ("whole", "taken"), ("committed", 4), ("ended at", {"port": 6}),
    ("joined", {}),
]  # fmt: skip
"""What a process does that is asked to join, for a commit by broadcast, and to join again."""


def _joins() -> list[Any]:
    """Return what is answered to broadcasts, and what their end is asked for."""
    noted: list[Any] = []

    def end(fields: Mapping[str, Any]) -> Any:
        def whole(message: Message) -> Message:
            noted.append(("whole", message.fields["as"]))
            return Message("commit", {"fingerprints": {}})

        noted.append(("ended at", fields))
        return SimpleNamespace(whole=whole)

    server, _ = _server()
    with patch.object(generator_process, "BroadcastEnd", end):
        for message in (
            Message("join", {"port": 5}),
            Message("broadcast", {"as": "taken"}),
            Message("join", {"port": 6}),
        ):
            answer = server.answer(message)
            noted.append((answer.kind, answer.fields.get("version", dict(answer.fields))))
    return noted


def _answer(kind: str, fields: Mapping[str, Any], tensors: Sequence[torch.Tensor] = ()) -> Any:
    server, engine = _server()
    answer = server.answer(Message(kind, fields, list(tensors)))
    return answer.kind, dict(answer.fields), engine.noted


def _weights() -> Any:
    answer = _server()[0].answer(Message("weights"))
    assert not any(tensor.requires_grad for tensor in answer.tensors)
    kinds = [str(tensor.dtype) for tensor in answer.tensors]
    return answer.kind, dict(answer.fields), [tensor.tolist() for tensor in answer.tensors], kinds
