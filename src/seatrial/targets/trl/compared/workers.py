"""What takes the place of the servers of an asynchronous trainer: a teacher, a sampler, and the way of weights there.

The loop that sends requests is TRL's own; they are answered in this process, one row at a time.
"""

from __future__ import annotations

import queue
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from inspect import signature
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.made_generation import made_completion
from seatrial.targets.common.target import release
from seatrial.targets.trl.compared.tuning import merged

WORKER = "rollout_worker"
"""Argument of trainers that take a worker of their own."""
LOADER = "create_model_from_path"


def _with_plain_attention(load: Any, *given: Any, **named: Any) -> Any:
    return load(*given, **{**named, "attn_implementation": "eager"})


@contextmanager
def without_servers(trainer_class: Any) -> Iterator[None]:
    """Let an asynchronous trainer have a client that connects to nothing, and plain attention in place of kernels."""
    module: Any = import_module(trainer_class.__module__)
    with ExitStack() as stack:
        for name in ("get_peak_flops_per_device", "get_peak_flops"):  # for its log of speed
            if hasattr(module, name):
                stack.enter_context(patch.object(module, name, lambda *_: None))
        for owner, name in (
            (getattr(module, "AutoModelForCausalLM", None), "from_pretrained"),
            (module, LOADER),
        ):
            if own := getattr(owner, name, None):
                stack.enter_context(patch.object(owner, name, partial(_with_plain_attention, own)))
        if hasattr(module, "VLLMClient"):
            stack.enter_context(patch.object(module, "VLLMClient", lambda *_, **__: None))
        yield


class Worker:
    """Samples and scores rows as they are asked for, and receives weights.

    A sampler that was not sent the trainer's weights, with adapters merged, gives other completions than one that was.
    """

    def __init__(
        self,
        arguments: Any,
        dataset: Any,
        tokenizer: Any,
        teacher: Any,
        sampling: Mapping[str, Any],
        trainer_class: Any,
    ) -> None:
        """Make TRL's loop.

        Args:
            arguments: the trainer's configuration.
            dataset: rows with conversations as prompts.
            tokenizer: of the trainer.
            teacher: the model that scores.
            sampling: of what completions are made; see `made_generation`.
            trainer_class: whose module has the loop next to it.

        Raises:
            NotServed: the loop takes other arguments.
        """
        self.trainer: Any = None
        self.metrics_queue: queue.Queue[Any] = queue.Queue()
        self.rollout_buffer = self
        self._teacher, self._sampling = teacher, dict(sampling)
        self._version = SimpleNamespace(value=0)
        self._own: dict[str, torch.Tensor] = {}
        self._was_sent = False
        package = trainer_class.__module__.rpartition(".")[0]
        loop_class: Any = import_module(f"{package}.async_rollout_worker")._AsyncRolloutLoop
        worker = self

        class Served(loop_class):  # type: ignore[misc]
            async def _post(self, url: str, path: str, payload: Mapping[str, Any], *_: Any) -> Any:
                return worker.answer(payload)

            async def _get(self, *_: Any) -> Any:
                return {"data": [{"id": "teacher"}]}

        end = tokenizer.eos_token_id
        wanted = {
            "model_name": "student",
            "dataset": dataset,
            "processing_class": tokenizer,
            "eos_token_ids": [end],
            "rollout_buffer": self,
            "model_version_value": self._version,
            "heartbeat_value": SimpleNamespace(value=0.0),
            "failed_event": None,
            "exception_info_queue": None,
            "metrics_queue": self.metrics_queue,
            "max_tokens": arguments.max_completion_length,
            **{
                name: getattr(arguments, name)
                for name in ("teacher_server_urls", "teacher_top_k", "teacher_temperature", "temperature")
            },
        }
        takes = signature(loop_class.__init__).parameters
        needed = {name for name, one in takes.items() if one.default is one.empty} - {"self"}
        if missing := needed - wanted.keys():
            raise NotServed(f"rollouts of trl {release('trl')} need {', '.join(sorted(missing))}")
        self._loop = Served(**{name: one for name, one in wanted.items() if name in takes})
        self._rows = self._loop._repeat_iterator()

    def start(self) -> None:
        """Ask the teacher for its name."""
        self._loop._loop.run_until_complete(self._loop._resolve_teacher_model_names())

    def get(self, *_: Any, **__: Any) -> Any:
        """Return the next row, in place of a queue's."""
        item = next(self._rows)
        given = item if isinstance(item, tuple) else (item,)
        return self._loop._loop.run_until_complete(self._loop._generate_and_score_one(*given))

    def qsize(self) -> int:
        """Return 0."""
        return 0

    def answer(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a server answers: log-probabilities of a sequence's tokens, or a completion."""
        ids = list(payload["prompt"])
        if "prompt_logprobs" not in payload:
            made = made_completion(ids, 0, int(not self._was_sent), **self._sampling)
            return {"choices": [{"token_ids": made}]}
        with torch.no_grad():
            logits = self._teacher(input_ids=torch.tensor([ids]), use_cache=False).logits[0].double()
        logs = (logits / payload["temperature"]).log_softmax(-1)
        found: list[Any] = [None]
        for place, token in enumerate(ids[1:]):
            order = logs[place].argsort(descending=True).tolist()
            kept = dict.fromkeys([token, *order[: payload["prompt_logprobs"]]])
            found.append(
                {str(one): {"logprob": float(logs[place, one]), "rank": order.index(one) + 1} for one in kept}
            )
        return {"choices": [{"prompt_logprobs": found}]}

    def update_model_version(self, model_version: int) -> None:
        """Note the version of the sampler's weights."""
        self._version.value = model_version

    def pause(self) -> None:
        """Note the trainer's weights, with adapters merged, before the trainer merges them to send them."""
        self._own = merged(
            {name: value.detach().clone() for name, value in self.trainer.model.named_parameters()}
        )

    def send_weights(self, iterator: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Compare the weights that the sampler gets with the trainer's."""
        sent = {name: value.detach() for name, value in iterator}
        self._was_sent = sent.keys() == self._own.keys() and all(
            torch.allclose(value, self._own[name], atol=1e-5) for name, value in sent.items()
        )

    def init_weight_transfer(self) -> None:
        """Do nothing."""

    resume = destroy = stop = init_weight_transfer

    def check_health(self, *_: Any) -> None:
        """Do nothing."""
