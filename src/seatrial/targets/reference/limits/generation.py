"""What refrl's sampling and weight syncs refuse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from refrl.generation.base import SamplingParams
from refrl.generation.decoding import check_finite
from refrl.generation.lean_check import difference
from refrl.generation.pool import Router
from refrl.generation.receiving import StagedEngine
from refrl.generation.sampling import check_prompts, check_stop_ids
from refrl.generation.torch_engine import CachedDecoder
from refrl.weight_sync.base import Part
from refrl.weight_sync.broadcast import pack, packed_size, unpack
from refrl.weight_sync.receiver import Receiver
from refrl.weight_sync.tensors import copy_tensors, fingerprints, share_tensors
from seatrial.relations.contracts.refusals import Trial
from seatrial.targets.reference.limits.models import VOCABULARY, model_of

LIMIT = 8


def sampling_trials() -> Iterator[Trial]:
    """Yield the calls about prompts and settings of sampling."""

    def prompts(rows: Sequence[Sequence[int]], says: str | None, limit: int | None = LIMIT) -> Trial:
        def call() -> None:
            check_prompts(rows, vocab_size=VOCABULARY, limit=limit, max_new_tokens=5)

        return Trial(what=f"prompts {rows} of at most {limit} tokens with 5 new ones", call=call, says=says)

    yield prompts([(1,), ()], "empty")
    yield prompts([(1, VOCABULARY)], f"{VOCABULARY}")
    yield prompts([(1,), (-1, 2)], "-1")
    yield prompts([(1,), (1, 2, 3, 4)], "max_new_tokens")
    yield prompts([(0, 2, VOCABULARY - 1), (1,)], None)
    yield prompts([(1, 2, 3, 4)], None, limit=None)
    for ids, says in ((range(VOCABULARY), None), ([VOCABULARY], str(VOCABULARY)), ([3, -1], "-1")):
        yield Trial(
            what=f"end tokens {list(ids)[:2]}..",
            call=partial(check_stop_ids, ids, VOCABULARY),
            says=says,
        )
    settings: Sequence[tuple[dict[str, Any], str | None]] = (
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"max_new_tokens": 1, "temperature": 0.01, "top_p": 1.0, "top_k": 1}, None),
        ({"top_k": None, "top_p": 0.01}, None),
    )
    for given, says in settings:
        yield Trial(
            what=f"sampling with {given}",
            call=partial(SamplingParams, **{"max_new_tokens": 3, **given}),
            says=says,
        )
    for value, says in ((float("nan"), "not finite"), (float("-inf"), "not finite"), (-80.0, None)):
        yield Trial(
            what=f"a log-probability of {value}",
            call=partial(check_finite, torch.tensor([[-1.0, value]])),
            says=says,
        )
    yield Trial(what="a decoder of a model with states", call=lambda: CachedDecoder(_states()), says="Mamba")
    yield Trial(
        what="logits of NaN weights", call=lambda: difference(_not_numbers("gemma2")), says="not finite"
    )
    yield Trial(what="a pool without replicas", call=lambda: Router(0, 1), says="num_replicas=0")
    yield Trial(what="a pool without slots", call=lambda: Router(1, 0), says="capacity=0")
    yield Trial(what="a slot that is free", call=lambda: Router(2, 2).release_slot(1, 1), says="not in use")


def _states() -> Any:
    return model_of("mamba", state_size=4, conv_kernel=2, expand=2)


def _not_numbers(kind: str) -> Any:
    model = model_of(kind)
    embedding: Any = model.get_input_embeddings()
    torch.nn.init.constant_(embedding.weight, float("nan"))
    return model


def sync_trials() -> Iterator[Trial]:
    """Yield the calls about tensors that do not arrive as they were sent."""
    for name, into in (("shared", share_tensors), ("copied", copy_tensors)):
        model = model_of("llama", tie_word_embeddings=False)
        weights = {
            key: tensor.detach().clone()
            for key, tensor in (*model.named_parameters(), *model.named_buffers())
        }
        first = next(iter(weights))
        given = {
            "all tensors": (weights, None),
            "all but one tensor": ({key: one for key, one in weights.items() if key != first}, first),
            "an unknown tensor": ({**weights, "other.weight": weights[first]}, "other.weight"),
            "a tensor of another shape": ({**weights, first: weights[first].T}, first),
        }
        for what, (tensors, says) in given.items():
            yield Trial(
                what=f"{what} {name}",
                call=partial(into, model, tensors),
                says=says,
            )
    yield from (Trial(what=what, call=partial(_received, steps), says=says) for what, steps, says in _SYNCS)
    for what, alters, says in (
        ("takes", 0, None),
        ("leaves out", 1, "does not compute"),
        ("alters", 2, "does not compute"),
    ):
        yield Trial(what=f"a library that {what} weights", call=partial(_staged, alters), says=says)
    yield Trial(what="a library with another buffer", call=lambda: _staged(3), says="buffers")
    two = [torch.arange(3.0), torch.arange(5, dtype=torch.int16)]
    listed = [(tensor.dtype, tensor.shape) for tensor in two]
    for missing, says in ((0, None), (8, "bytes")):

        def unpacked(missing: int = missing) -> list[Tensor]:
            into = torch.empty(packed_size(two), dtype=torch.uint8)
            pack(two, into)
            return unpack(into[: len(into) - missing], listed)

        yield Trial(what=f"packed tensors without {missing} bytes", call=unpacked, says=says)


_A, _B = torch.arange(6.0), torch.arange(4.0)
_WHOLE = (Part("a", _A), Part("b", _B))
_CUT = (Part("a", _A[:2]), Part("a", _A[2:], start=2), _WHOLE[1])
_CHANGED = Part("a", torch.tensor([9.0]), indices_N=torch.tensor([2], dtype=torch.int32))
_BEYOND = Part("a", _B[:1], indices_N=torch.tensor([6]))
_BEGIN: tuple[Any, ...] = ("begin", 1, None)
_END: tuple[Any, ...] = ("commit",)
_ALL = (_BEGIN, ("receive", _WHOLE))
_SECOND = (("begin", 2, 1), ("receive", (_CHANGED,)))
_SYNCS: Sequence[tuple[str, Sequence[Any], str | None]] = (
    ("parts of a sync", (*_ALL, _END), None),
    ("a tensor in two parts", (_BEGIN, ("receive", _CUT), _END), None),
    ("a change", (*_ALL, _END, *_SECOND, _END), None),
    ("parts without a sync", (("receive", _WHOLE),), "no sync is open"),
    ("an end without a sync", (_END,), "not open"),
    ("a tensor that is not there", (_BEGIN, ("receive", (Part("c", _A),))), "no tensor"),
    ("more elements than there are", (_BEGIN, ("receive", (Part("a", _A, start=1),))), "elements"),
    ("a place before the first", (_BEGIN, ("receive", (Part("a", _A, start=-1),))), "elements"),
    ("a place beyond the last", (_BEGIN, ("receive", (_BEYOND,))), "elements"),
    ("half of a tensor", (_BEGIN, ("receive", (Part("a", _A[:3]), _WHOLE[1])), _END), "3 of 6"),
    ("a tensor left out", (_BEGIN, ("receive", _WHOLE[:1]), _END), "0 of 4"),
    ("changes to another version", (*_ALL, _END, ("begin", 3, 2)), "version 2"),
    ("changes after half a sync", (_BEGIN, ("receive", _WHOLE[:1]), ("begin", 2, 1)), "none that is whole"),
    ("use within a sync", (*_ALL, ("whole",)), "not whole"),
    ("use before a sync", (("whole",),), None),
    ("use after a sync", (*_ALL, _END, ("whole",)), None),
    ("a tensor that another wrote", (*_ALL, _END, ("write", "b"), *_SECOND, _END), "fingerprint"),
    ("a change that went wrong", (*_ALL, _END, *_SECOND, ("write", "a"), _END), "fingerprint"),
    ("names on one side", (*_ALL, ("commit", "c")), "differ"),
)
"""By name: what a receiver of two tensors gets, and the word of the error."""


def _received(steps: Sequence[Any]) -> None:
    held = {"a": torch.zeros(6), "b": torch.zeros(4)}
    sent: dict[str, Tensor] = {"a": _A.clone(), "b": _B.clone()}
    receiver = Receiver(lambda: iter(held.items()), load_batch_bytes=8)
    for kind, *arguments in steps:
        if kind == "begin":
            receiver.begin(*arguments)
        elif kind == "receive":
            receiver.receive(*arguments)
            for part in arguments[0]:
                if part is _CHANGED:
                    sent["a"][2] = 9.0
        elif kind == "whole":
            receiver.check_whole()
        elif kind == "write":
            held[arguments[0]][0] += 1.0
        else:
            receiver.commit(fingerprints({**sent, **dict.fromkeys(arguments, _A)}))


class _Library(StagedEngine):
    """An engine whose library takes weights, leaves the last one out (1), or alters it (2)."""

    library = "made"

    def __init__(self, alters: int) -> None:
        super().__init__(model_of("llama", tie_word_embeddings=False), load_batch_bytes=64)
        self._alters = alters
        self._own = {name: tensor.detach().clone() for name, tensor in self._model.named_parameters()}

    def _take(self, parameters: Sequence[tuple[str, Tensor]]) -> None:
        for name, tensor in parameters[: len(parameters) - (self._alters == 1)]:
            self._own[name] = tensor.detach().clone()
        if self._alters == 2:
            self._own[parameters[-1][0]].view(-1)[-1] += 1e-3

    def _served(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._own.items()

    def _clear_caches(self) -> None:
        """Nothing is kept."""


def _staged(alters: int) -> None:
    engine = _Library(alters)
    model = model_of("llama", seed=1, tie_word_embeddings=False)
    if alters == 3:
        next(model.buffers()).add_(1.0)
    engine.load_weights(iter((*model.named_parameters(), *model.named_buffers())), version=1)
