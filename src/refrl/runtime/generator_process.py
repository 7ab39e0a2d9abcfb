"""The process of a generator: `python -m refrl.runtime.generator_process DESCRIPTOR`, started by the trainer.

It answers messages one after another (`refrl.generation.messages`) until the connection closes.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping

from refrl.lifeline import end_with_parent

if __name__ == "__main__":
    end_with_parent()  # importing torch takes seconds

import torch

from refrl.config import PolicyConfig
from refrl.generation.base import Generator, SamplingParams
from refrl.generation.broadcast_link import BroadcastEnd
from refrl.generation.messages import Message, dtype_name, receive, send, unpack_parts
from refrl.generation.process import ABORT, ERRORS, RESUME
from refrl.training.build_generation import build_engine
from refrl.weight_sync.broadcast import PeerLostError


def main() -> None:
    """Serve the connection whose descriptor is the first argument."""
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        serve(connection)


def serve(connection: socket.socket) -> None:
    """Answer messages until the other side has closed the connection."""
    server = GeneratorServer()
    signal.signal(ABORT, lambda *_: server.abort())
    signal.signal(RESUME, lambda *_: server.resume())
    while True:
        try:
            message = receive(connection)
        except (EOFError, OSError):
            return
        try:
            answer = server.answer(message)
        except PeerLostError:
            return
        try:
            send(connection, answer)
        except OSError:
            return


class GeneratorServer:
    """Answers messages with an engine; the first message opens it. Also the class of a Ray actor."""

    def __init__(self) -> None:
        """Wait to be opened."""
        self._engine: Generator | None = None
        self._broadcasts: BroadcastEnd | None = None

    def answer(self, message: Message) -> Message:
        """Answer a message; exceptions in `refrl.generation.process.ERRORS` are returned as an answer."""
        try:
            if self._engine is None:
                self._engine, opened = _open(message)
                return opened
            if message.kind == "join":
                self._broadcasts = BroadcastEnd(message.fields)
                return Message("joined")
            if message.kind == "broadcast" and self._broadcasts is not None:
                message = self._broadcasts.whole(message)
            return _ANSWERS[message.kind](self._engine, message)
        except tuple(ERRORS.values()) as error:
            name = next(name for name, kind in ERRORS.items() if isinstance(error, kind))
            return Message("error", {"error": name, "message": str(error)})

    def abort(self) -> None:
        """Abort what the engine generates; called from another thread or a signal handler."""
        if self._engine is not None:
            self._engine.abort()

    def resume(self) -> None:
        """Let the engine generate to the end again."""
        if self._engine is not None:
            self._engine.resume()


def _open(message: Message) -> tuple[Generator, Message]:
    torch.set_num_threads(message.fields["num_threads"])
    config = PolicyConfig.model_validate(message.fields["policy"])
    device = torch.device(message.fields["device"])
    if device.type == "cuda":
        torch.cuda.set_device(device)  # kernels start on the current device
    engine = build_engine(config, pad_token_id=message.fields["pad_token_id"], device=device)
    specs = {name: (list(spec.shape), dtype_name(spec.dtype)) for name, spec in engine.specs().items()}
    opened = {"engine": engine.engine, "stop_ids": sorted(engine.stop_ids()), "specs": specs}
    return engine, Message("opened", opened)


def _generate(engine: Generator, message: Message) -> Message:
    stream = torch.Generator()
    stream.set_state(message.tensors[0])
    params = dict(message.fields["params"])
    if params["stop_token_ids"] is not None:
        params["stop_token_ids"] = tuple(params["stop_token_ids"])
    completions = engine.generate(message.fields["prompts"], SamplingParams(**params), stream)
    # Not `asdict`, which copies every tuple: the values are serialised right away.
    return Message("sampled", {"completions": [vars(row) for row in completions]}, [stream.get_state()])


def _begin(engine: Generator, message: Message) -> Message:
    engine.begin(message.fields["version"], message.fields["based_on"])
    return Message("begun")


def _receive(engine: Generator, message: Message) -> Message:
    engine.receive(unpack_parts(message))
    return Message("received")


def _commit(engine: Generator, message: Message) -> Message:
    receipt = engine.commit(message.fields["fingerprints"])
    return Message(
        "committed",
        {
            "num_tensors": receipt.num_tensors,
            "seconds": dict(receipt.seconds),
            "largest_load_bytes": receipt.largest_load_bytes,
            "version": engine.weight_version,
        },
    )


def _weights(engine: Generator, message: Message) -> Message:
    weights = dict(engine.named_weights())
    return Message("weights", {"names": list(weights)}, [tensor.detach() for tensor in weights.values()])


_ANSWERS: Mapping[str, Callable[[Generator, Message], Message]] = {
    "generate": _generate,
    "begin": _begin,
    "receive": _receive,
    "commit": _commit,
    "weights": _weights,
}


if __name__ == "__main__":
    main()
    # Nothing is left to write, and unloading the modules takes seconds during which training would wait.
    os._exit(0)
