"""The process of a generator: `python -m refrl.runtime.generator_process DESCRIPTOR`, started by the one that trains.

It answers one message after another (`refrl.generation.messages`) until the connection ends.
"""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict

import torch

from refrl.config import PolicyConfig
from refrl.generation.base import Generator, SamplingParams
from refrl.generation.messages import Message, dtype_name, receive, send, unpack_parts
from refrl.generation.process import ABORT, ERRORS, RESUME
from refrl.training.build import build_engine


def main() -> None:
    """Serve the connection whose descriptor is the first argument."""
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        serve(connection)


def serve(connection: socket.socket) -> None:
    """Answer messages until the other side is gone."""
    engine: Generator | None = None
    while True:
        try:
            message = receive(connection)
        except (EOFError, OSError):
            return
        try:
            if engine is None:
                engine, answer = _open(message)
            else:
                answer = _ANSWERS[message.kind](engine, message)
        except tuple(ERRORS.values()) as error:
            name = next(name for name, kind in ERRORS.items() if isinstance(error, kind))
            answer = Message("error", {"error": name, "message": str(error)})
        try:
            send(connection, answer)
        except OSError:
            return


def _open(message: Message) -> tuple[Generator, Message]:
    config = PolicyConfig.model_validate(message.fields["policy"])
    engine = build_engine(
        config, pad_token_id=message.fields["pad_token_id"], device=torch.device(message.fields["device"])
    )
    signal.signal(ABORT, lambda *_: engine.abort())
    signal.signal(RESUME, lambda *_: engine.resume())
    specs = {name: (list(spec.shape), dtype_name(spec.dtype)) for name, spec in engine.specs().items()}
    return engine, Message("opened", {"stop_ids": sorted(engine.stop_ids()), "specs": specs})


def _generate(engine: Generator, message: Message) -> Message:
    stream = torch.Generator()
    stream.set_state(message.tensors[0])
    params = dict(message.fields["params"])
    if params["stop_token_ids"] is not None:
        params["stop_token_ids"] = tuple(params["stop_token_ids"])
    completions = engine.generate(message.fields["prompts"], SamplingParams(**params), stream)
    return Message("sampled", {"completions": [asdict(row) for row in completions]}, [stream.get_state()])


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
