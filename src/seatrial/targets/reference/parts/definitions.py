"""Small parts of refrl, each called alone: `seatrial.relations.contracts.definitions`."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from refrl.generation.base import Completion, SamplingParams
from refrl.generation.messages import Message, pack_parts, receive, send, unpack_parts
from refrl.generation.pool import GenerationReply, GenerationRequest, answer, carry_on, join
from refrl.generation.pooled import PooledSampler
from refrl.generation.quantized import Int8Linear
from refrl.generation.sampling import draw, row_uniforms
from refrl.policy.lora import merge
from refrl.policy.megatron.checkpoint_files import write_tensors
from refrl.policy.optimizer import ClippedAdamW, clip_spread_gradients
from refrl.weight_sync.base import Part
from refrl.weight_sync.broadcast import pack, packed_size, unpack
from refrl.weight_sync.changes import changes
from refrl.weight_sync.tensors import fingerprint
from refrl.weight_sync.transferred import bucketed
from seatrial.targets.reference.configuration import policy_configuration
from seatrial.targets.reference.parts.adapters import adapted_layers, first_adapter, write_adapter
from seatrial.targets.reference.parts.decoders import (
    decoders,
    layer_parts,
    loaded,
    model_logits,
    read_back,
    sample,
)
from seatrial.targets.reference.parts.policies import learned
from seatrial.targets.reference.parts.recorded import end_ids_of, phases, sizes
from seatrial.targets.reference.parts.splits import joined
from seatrial.targets.reference.parts.updates import cuts, updates

Update = tuple[dict[str, Tensor], dict[str, Tensor], float, float]


class ReferenceDefinitions:
    """See `seatrial.relations.contracts.definitions`."""

    @property
    def definitions(self) -> Mapping[str, Callable[..., Any]]:
        return {
            "draw": _draw,
            "row numbers": _row_numbers,
            "continuation numbers": _continuation_numbers,
            "shares of requests": _shares,
            "join parts": _join_parts,
            "decoders": decoders,
            "logits": model_logits,
            "sample": sample,
            "layer parts": layer_parts,
            "loaded": loaded,
            "read back": read_back,
            "optimize": _optimize,
            "resume": _resume,
            "travel": _travel,
            "changes": changes,
            "fingerprint": fingerprint,
            "int8": _int8,
            "merge": merge,
            "join": joined,
            "write": _write,
            "phases": phases,
            "sizes": sizes,
            "end ids": end_ids_of,
            "clip": _clip,
            "learned": learned,
            "adapted layers": adapted_layers,
            "first adapter": first_adapter,
            "write adapter": write_adapter,
            "cuts": cuts,
            "updates": updates,
        }


def _draw(logits_BV: Tensor, numbers_B: Tensor, settings: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    ids_B, logprobs_B, kept_BV = draw(logits_BV, numbers_B, SamplingParams(max_new_tokens=1, **settings))
    kept = None if kept_BV is None else [row.nonzero().flatten().tolist() for row in kept_BV]
    return ids_B.tolist(), logprobs_B.tolist(), kept


def _row_numbers(num_rows: int, num_tokens: int, seed: int) -> Tensor:
    return row_uniforms(num_rows, num_tokens, torch.Generator().manual_seed(seed))


class _Recording:
    """An engine that gives up each time, and keeps the random numbers that it would draw with."""

    def __init__(self) -> None:
        self.drawn: list[list[float]] = []

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, generator: torch.Generator
    ) -> list[Completion]:
        self.drawn.append(row_uniforms(len(prompts), 3, generator).flatten().tolist())
        return [Completion(tuple(prompt), (5,), (-1.0,), "abort") for prompt in prompts]


def _continuation_numbers(seed: int, first_row: int, num_parts: int) -> list[list[float]]:
    engine: Any = _Recording()
    params = SamplingParams(max_new_tokens=20)
    request = GenerationRequest(((3,), (4, 5)), params, seed, first_row)
    for _ in range(1 + num_parts):
        reply: GenerationReply = answer(engine, request)
        request = carry_on(request, reply)
    return list(engine.drawn)


def _shares(prompts: Sequence[tuple[int, ...]], num_replicas: int) -> list[tuple[list[tuple[int, ...]], int]]:
    pooled: Any = SimpleNamespace(_replicas=range(num_replicas), _pool=SimpleNamespace(losses={}))
    requests = PooledSampler._requests(pooled, prompts, SamplingParams(max_new_tokens=1), 0)
    return [(list(request.prompts), request.first_row) for request in requests]


def _join_parts(parts: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    made = [
        Completion((3,), ids, logprobs, reason, kept_ids=kept, mask=mask)
        for ids, logprobs, reason, kept, mask in parts
    ]
    whole = made[0]
    for part in made[1:]:
        whole = join(whole, part)
    return whole.ids, whole.logprobs, whole.finish_reason, whole.kept_ids, whole.mask


def _updates(
    optimizer: ClippedAdamW, model: nn.ParameterDict, updates: Sequence[Sequence[Mapping[str, Tensor]]]
) -> Iterator[Update]:
    for micro_batches in updates:
        for gradients in micro_batches:
            for name, gradient in gradients.items():
                model[name].grad = gradient.clone()
            optimizer.add_gradients()
            if model["bias"].dtype == torch.float32:
                # A float32 model is its own master: what backward would add up is added up here.
                _hold(model)
        if model["bias"].dtype == torch.float32:
            _release(model)
        norm, rate = optimizer.step()
        own = {name: weight.detach().clone() for name, weight in zip(model, optimizer.weights, strict=True)}
        yield own, {name: weight.detach().clone() for name, weight in model.items()}, norm, rate


def _hold(model: nn.ParameterDict) -> None:
    for weight in model.values():
        if weight.grad is not None:
            held = getattr(weight, "held", None)
            weight.held = weight.grad if held is None else held + weight.grad
            weight.grad = None


def _release(model: nn.ParameterDict) -> None:
    for weight in model.values():
        weight.grad, weight.held = getattr(weight, "held", None), None


def _made(
    options: Mapping[str, Any], weights: Mapping[str, Tensor], dtype: torch.dtype, num_updates: int
) -> tuple[ClippedAdamW, nn.ParameterDict]:
    given = {name.removeprefix("policy."): value for name, value in options.items()}
    precision = str(dtype).removeprefix("torch.")
    config = policy_configuration({**given, "precision": precision})
    model = nn.ParameterDict({name: nn.Parameter(weight.clone()) for name, weight in weights.items()})
    optimizer = ClippedAdamW(model, config, num_updates)
    return optimizer, model.to(dtype)


def _optimize(
    options: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    updates: Sequence[Sequence[Mapping[str, Tensor]]],
    dtype: torch.dtype,
    num_updates: int,
) -> list[Update]:
    return list(_updates(*_made(options, weights, dtype, num_updates), updates))


def _resume(
    options: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    updates: Sequence[Sequence[Mapping[str, Tensor]]],
    dtype: torch.dtype,
    num_updates: int,
    num_done: int,
) -> list[Update]:
    first, model = _made(options, weights, dtype, num_updates)
    before = list(_updates(first, model, updates[:num_done]))
    second, other = _made(options, weights, dtype, num_updates)
    with torch.no_grad():
        for name, weight in model.items():
            other[name].copy_(weight)
        saved, taken = first.state_tensors(), second.state_tensors()
        for name in taken:
            taken[name].copy_(saved[name])
    second.num_updates_done = first.num_updates_done
    return [*before, *_updates(second, other, updates[num_done:])]


def _travel(tensors: Mapping[str, Tensor], num_bytes: int) -> dict[str, dict[str, Tensor]]:
    return {
        "messages": _by_messages(tensors),
        "parts": _in_parts(tensors, num_bytes),
        "broadcast": _broadcast(tensors),
    }


def _sent(message: Message) -> Message:
    one, other = socket.socketpair()
    with one, other:
        send(one, message)
        return receive(other)


def _by_messages(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    arrived = _sent(Message("made", {"names": list(tensors)}, list(tensors.values())))
    return dict(zip(arrived.fields["names"], arrived.tensors, strict=True))


def _in_parts(tensors: Mapping[str, Tensor], num_bytes: int) -> dict[str, Tensor]:
    """Return tensors that travel in buckets, the first half of the elements as changes at their places."""
    arrived = {name: torch.zeros_like(tensor.contiguous()) for name, tensor in tensors.items()}
    parts = []
    for name, tensor in tensors.items():
        flat_N = tensor.contiguous().reshape(-1)
        half = flat_N.numel() // 2
        parts.append(Part(name, flat_N[:half], indices_N=torch.arange(half, dtype=torch.int32)))
        parts.append(Part(name, flat_N[half:], start=half))
    for bucket in bucketed(parts, num_bytes):
        for part in unpack_parts(_sent(pack_parts(bucket))):
            flat_N = arrived[part.name].view(-1)
            if part.indices_N is None:
                flat_N[part.start : part.start + part.values_N.numel()] = part.values_N
            else:
                flat_N[part.indices_N.long()] = part.values_N
    return arrived


def _broadcast(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    given = [tensor.contiguous() for tensor in tensors.values()]
    into = torch.empty(packed_size(given), dtype=torch.uint8)
    pack(given, into)
    return dict(zip(tensors, unpack(into, [(one.dtype, one.shape) for one in given]), strict=True))


def _int8(weight_OI: Tensor) -> Tensor:
    linear = nn.Linear(weight_OI.shape[1], weight_OI.shape[0], bias=False)
    linear.weight = nn.Parameter(weight_OI.clone())
    with torch.no_grad():
        computed: Tensor = Int8Linear(linear)(torch.eye(weight_OI.shape[1])).T
    return computed


def _write(tensors: Mapping[str, Tensor], folder: Path, num_bytes: int) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    write_tensors(tensors.items(), shapes, folder, shard_bytes=num_bytes)


def _clip(gradients: Sequence[Tensor | None], limit: float) -> dict[str, tuple[float, list[Tensor | None]]]:
    found: dict[str, tuple[float, list[Tensor | None]]] = {}
    for name, clip in (("plain", nn.utils.clip_grad_norm_), ("spread", clip_spread_gradients)):
        weights = [nn.Parameter(torch.zeros(3)) for _ in gradients]
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = None if gradient is None else gradient.clone()
        norm = float(clip(weights, limit))
        found[name] = norm, [weight.grad for weight in weights]
    return found
