"""The way to a generation engine that runs in a Ray actor, wherever in the cluster."""

from __future__ import annotations

import contextlib
import importlib
import os
from dataclasses import replace
from functools import partial
from typing import Any

import ray
import ray.exceptions
import torch
from torch import Tensor

from refrl.config import PolicyConfig
from refrl.generation.messages import Message
from refrl.generation.process import START_SECONDS, GeneratorLostError, ProcessGenerator

SERVER = "refrl.runtime.generator_process:GeneratorServer"
"""What runs in the actor: it answers messages as the process that `refrl.generation.process` starts does."""
PLACE_SECONDS = 300.0
"""For finding a place in the cluster and starting there."""
CONTROL = "control"
"""Group of threads of the actor that takes what must not wait for an answer."""


class GeneratorActor:
    """The actor. Messages are answered one after another; an abort comes in between."""

    def __init__(self) -> None:
        """Wait to be opened."""
        module, _, name = SERVER.partition(":")
        self._server = getattr(importlib.import_module(module), name)()

    def answer(self, message: Message) -> Message:
        """Answer a message."""
        answered: Message = self._server.answer(message)
        return replace(answered, tensors=[_own(tensor) for tensor in answered.tensors])

    def where(self) -> tuple[int, str]:
        """Return the process and the address of its node."""
        return os.getpid(), ray.util.get_node_ip_address()

    def abort(self) -> None:
        """Have the engine give up what it generates."""
        self._server.abort()

    def resume(self) -> None:
        """Have it generate to the end again."""
        self._server.resume()


class RayLink:
    """A `refrl.generation.process.Link` to an actor of the Ray cluster that this process has joined."""

    def __init__(self, *, num_gpus: int = 0) -> None:
        """Start the actor, on the node that has the fewest.

        Raises:
            GeneratorLostError: Ray is not initialised, or has no place for it.
        """
        if not ray.is_initialized():
            raise GeneratorLostError(
                "policy.generation.placement=ray, and Ray is not initialised in this process: `refrl grpo` does it; "
                "else use refrl.runtime.ray_cluster, or call ray.init first"
            )
        self.timeout_seconds = START_SECONDS
        actor = ray.remote(concurrency_groups={CONTROL: 1})(GeneratorActor)
        self._actor = actor.options(
            num_cpus=1, num_gpus=num_gpus, scheduling_strategy="SPREAD", max_restarts=0
        ).remote()
        try:
            self.pid, address = ray.get(self._control("where"), timeout=PLACE_SECONDS)
        except (ray.exceptions.RayError, TimeoutError) as error:
            self.close()
            raise GeneratorLostError(
                f"a generator's actor did not start in {PLACE_SECONDS:g} s: {_first_line(error)}; the cluster needs a "
                f"CPU {'and a GPU ' if num_gpus else ''}for each replica, and one more for validations"
            ) from error
        self.is_local = address == ray.util.get_node_ip_address()
        self.node = address

    def ask(self, message: Message) -> Message:
        """Send a message and wait for the answer (see `refrl.generation.process.Link.ask`)."""
        sent = replace(message, tensors=[_own(tensor) for tensor in message.tensors])
        try:
            answered: Message = ray.get(self._actor.answer.remote(sent), timeout=self.timeout_seconds)
        except (ray.exceptions.RayError, TimeoutError) as error:
            self.close()
            late = isinstance(error, TimeoutError)
            how = "did not answer in time and was stopped" if late else f"is lost: {_first_line(error)}"
            raise GeneratorLostError(
                f"the generator's actor (process {self.pid}) {how}, asked to {message.kind}"
            ) from error
        return answered

    def abort(self) -> None:
        """Have the engine give up what it generates after the next token, until `resume`."""
        self._control("abort")

    def resume(self) -> None:
        """Have it generate to the end again, from when this returns: what is asked next must not be given up."""
        with contextlib.suppress(
            ray.exceptions.RayError, TimeoutError
        ):  # the next request raises for a lost actor
            ray.get(self._control("resume"), timeout=self.timeout_seconds)

    def close(self) -> None:
        """End the actor."""
        with contextlib.suppress(ray.exceptions.RayError):
            if ray.is_initialized():
                ray.kill(self._actor)

    def _control(self, method: str) -> Any:
        """Call a method that does not wait for an answer that is being made; they come in order."""
        return getattr(self._actor, method).options(concurrency_group=CONTROL).remote()


def actor_generator(config: PolicyConfig, *, pad_token_id: int, device: torch.device) -> ProcessGenerator:
    """Return a generator whose engine runs in an actor; it has a GPU where the training computes on one.

    Raises:
        ConfigError: the model cannot be loaded.
        GeneratorLostError: the actor ended, or there is no place for it.
    """
    connect = partial(RayLink, num_gpus=int(device.type == "cuda"))
    return ProcessGenerator(config, pad_token_id=pad_token_id, device=device, connect=connect)


def _own(tensor: Tensor) -> Tensor:
    """Return a tensor on the CPU whose storage is no larger than itself: Ray sends the whole storage of a view."""
    here = tensor.detach().cpu()
    return here if here.untyped_storage().nbytes() == here.nbytes else here.clone()


def _first_line(error: Any) -> str:
    return str(error).strip().partition("\n")[0]
