"""Worked examples of refrl's kernels in Triton: their own code, run by an interpreter of Triton's words in torch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from types import ModuleType, SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional

from refrl.algorithms import chunked
from refrl.algorithms.ops import compute_logprobs
from refrl.generation.base import SamplingParams
from refrl.generation.lean_norms import Norm
from refrl.generation.lean_rotary import Rotary
from refrl.generation.static.ops import Counters, TorchOps, Turns
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example, made_tensor
from seatrial.targets.reference.worked.made_packages import imported_with, package


class _Pointer:
    """Places in the memory of a tensor."""

    def __init__(self, values: Tensor, places: Any = 0) -> None:
        self.values, self.places = values, torch.as_tensor(places)
        self.dtype = SimpleNamespace(element_ty=values.dtype)

    def __add__(self, more: Any) -> _Pointer:
        return _Pointer(self.values, self.places + more)


def _load(pointer: _Pointer, mask: Tensor | None = None, other: float = 0.0) -> Tensor:
    if mask is None:
        return pointer.values[pointer.places]
    places = pointer.places.expand(mask.shape)
    found = torch.full(mask.shape, other, dtype=pointer.values.dtype)
    found[mask] = pointer.values[places[mask]]
    return found


def _store(pointer: _Pointer, values: Any, mask: Tensor | None = None) -> None:
    if mask is None:
        pointer.values[pointer.places] = values
    else:
        pointer.values[pointer.places[mask]] = values[mask]


def _over(reduction: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a reduction over one dimension, or over all."""
    return lambda values, axis=None: reduction(values, tuple(range(values.ndim)) if axis is None else axis)


def made_triton() -> dict[str, ModuleType]:
    """Return packages whose kernels run in this process, one program after the other; a tensor must be contiguous."""
    at: list[Tensor] = []

    class Kernel:
        def __init__(self, function: Callable[..., None]) -> None:
            self._function = function

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            def launch(*words: Any, num_warps: int = 4, **constants: Any) -> None:
                given = [_Pointer(word.view(-1)) if isinstance(word, Tensor) else word for word in words]
                for place in product(*map(range, grid)):
                    at[:] = map(torch.tensor, place)
                    self._function(*given, **constants)

            return launch

    language = package(
        "triton.language",
        constexpr=object,
        **{name: getattr(torch, name) for name in ("float32", "float64", "int32", "int64")},
        **{name: getattr(torch, name) for name in ("exp", "log", "rsqrt", "where", "maximum", "minimum")},
        cumsum=lambda values, axis: values.cumsum(axis),
        dot=lambda one, other, input_precision: one.float() @ other.float(),
        trans=torch.t,
        zeros=lambda shape, kind: torch.zeros(shape, dtype=kind),
        full=lambda shape, value, kind: torch.full(shape, value, dtype=kind),
        program_id=lambda axis: at[axis],
        arange=torch.arange,
        load=_load,
        store=_store,
        max=_over(torch.amax),
        sum=_over(torch.sum),
    )
    whole = package(
        "triton",
        jit=Kernel,
        cdiv=lambda one, other: -(-one // other),
        next_power_of_2=lambda number: 1 << (number - 1).bit_length(),
        language=language,
    )
    return {"triton": whole, "triton.language": language}


def of_kernels() -> Iterator[WorkedExample]:
    """Yield a tile's sums, and the gradients of log-probabilities and entropies, at temperatures of any size."""
    for temperature in (0.5, 1.0, 2.0):
        name = f"tiles of logits at temperature {temperature}"
        yield example(name, [], _wrong, temperature, torch.float32, 1e-5)
    yield example("tiles of logits in bfloat16", [], _wrong, 0.5, torch.bfloat16, 1e-2)
    for temperature, keep in ((0.5, 0), (2.0, 99)):
        name = f"scores and gradients through kernels at temperature {temperature}, of which {keep} bytes are kept"
        yield example(name, [True] * 4, _scored, temperature, keep)
    for is_cuda, is_filtered, dtype, is_fused in (
        *((True, False, dtype, True) for dtype in (torch.float32, torch.bfloat16, torch.float16)),
        (False, False, torch.float32, False), (True, True, torch.float32, False), (True, False, torch.float64, False),
    ):  # fmt: skip
        what = f"kernels for {dtype}, on a GPU: {is_cuda}, with a filter of sampling: {is_filtered}"
        yield example(what, is_fused, _is_fused, is_cuda, is_filtered, dtype)


def of_token_steps() -> Iterator[WorkedExample]:
    """Yield the operations of a token step, which are those of plain torch."""
    for name, step in (
        ("added and normalised", _add_norm),
        ("that attend", _attend),
        ("that are gated", _gate),
        ("that are sampled", _sample),
    ):
        yield example(f"rows {name} as in plain torch", [], _differing, step)


def _wrong(temperature: float, dtype: torch.dtype, tolerance: float) -> list[str]:
    """Return which results of three rows, in tiles of six and five entries, are not those of whole rows in float64."""
    stream = torch.Generator().manual_seed(3)
    whole_NV = torch.randn(3, 11, generator=stream).to(dtype)
    ids_N, weights_N, slopes_N = (
        torch.tensor([0, 7, 10]),
        torch.tensor([1.5, -0.5, 2.0]),
        torch.tensor([-1.0, 3.0, 0.5]),
    )
    exact_NV = whole_NV.double().requires_grad_()
    logits_NV = exact_NV / temperature
    scores_NV = logits_NV.log_softmax(1)
    scores_N = scores_NV.gather(1, ids_N[:, None])[:, 0]
    entropies_N = -(scores_NV.exp() * scores_NV).sum(1)
    centred_NV = logits_NV - logits_NV.amax(1, keepdim=True)
    due = {
        "largest": logits_NV.amax(1),
        "sums": centred_NV.exp().sum(1),
        "weighted": (centred_NV.exp() * centred_NV).sum(1),
        "targets": logits_NV.gather(1, ids_N[:, None])[:, 0],
    }
    (plain_NV,) = torch.autograd.grad((weights_N * scores_N).sum(), exact_NV, retain_graph=True)
    total = (weights_N * scores_N + slopes_N * entropies_N).sum()
    (both_NV,) = torch.autograd.grad(total, exact_NV)
    due |= {"gradients": plain_NV, "gradients with those of entropies": both_NV}
    tiles = [(first, whole_NV[:, first : first + 6].contiguous()) for first in (0, 6)]
    found = {name: torch.zeros(3) for name in ("largest", "sums", "weighted", "targets")}
    found["largest"] -= torch.inf
    lse_N, mean_N = logits_NV.logsumexp(1), (logits_NV.softmax(1) * logits_NV).sum(1)
    sums = (lse_N.detach().float(), mean_N.detach().float())
    with (
        imported_with(made_triton(), ["refrl.algorithms.chunked_triton"]) as (kernels,),
        patch.object(kernels, "BLOCK", 4),
    ):
        for first, tile in tiles:
            kernels.fold_tile(tile, ids_N, first, temperature, *found.values())
        for name, slopes in (
            ("gradients", None),
            ("gradients with those of entropies", slopes_N / temperature),
        ):
            parts = [
                kernels.grad_tile(tile, ids_N, first, temperature, *sums, weights_N / temperature, slopes)
                for first, tile in tiles
            ]
            found[name] = torch.cat(parts, 1)
    types = {name: dtype if "gradients" in name else torch.float32 for name in due}
    return [
        f"{name}: {found[name].tolist()}"
        for name, right in due.items()
        if found[name].dtype != types[name]
        or not torch.allclose(found[name].double(), right.detach(), rtol=tolerance, atol=tolerance)
    ]


def _scored(temperature: float, keep_bytes: int) -> list[bool]:
    """Return which of log-probabilities, entropies and two gradients are those of whole rows."""
    ids, lens = torch.tensor([[0, 7, 10], [4, 4, 9]]), torch.tensor([1, 2])
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 1.0]])
    options: Any = {"temperature": temperature, "mask_BT": mask}
    tiled = {**options, "vocab_chunk": 6, "row_chunk": 2, "keep_bytes": keep_bytes}
    stream = torch.Generator().manual_seed(3)
    hidden, head = (
        torch.randn(shape, generator=stream, requires_grad=True) for shape in ((2, 4, 3), (11, 3))
    )
    found = []
    with (
        imported_with(made_triton(), ["refrl.algorithms.chunked_triton"]) as (kernels,),
        patch.object(chunked, "_fused_kernels", lambda hidden, support: kernels),
    ):
        for scores in (
            compute_logprobs(hidden @ head.T, ids, lens, **options),
            chunked.compute_logprobs_chunked(hidden, head, ids, lens, **tiled),
        ):
            sums = scores[0].square().sum() + 3 * scores[1].square().sum()
            found.append((*scores, *torch.autograd.grad(sums, (hidden, head))))
    return [torch.allclose(one, other, atol=1e-4) for one, other in zip(*found, strict=True)]


def _is_fused(is_cuda: bool, is_filtered: bool, dtype: torch.dtype) -> bool:
    """Return whether a tile is left to kernels."""
    hidden, support = (
        SimpleNamespace(is_cuda=is_cuda, dtype=dtype),
        SimpleNamespace() if is_filtered else None,
    )
    with imported_with(made_triton(), ["refrl.algorithms.chunked_triton"]) as (kernels,):
        return chunked._fused_kernels(cast(Any, hidden), cast(Any, support)) is kernels


def _differing(step: Callable[[Any, random.Random], Sequence[Tensor]]) -> list[int]:
    """Return the streams of random inputs for which a step of decoding is not that of plain torch."""
    with (
        imported_with(made_triton(), ["refrl.generation.static.triton_ops"]) as (kernels,),
        patch.object(kernels, "VOCABULARY_BLOCK", 4),
        patch.object(kernels, "SLOTS_BLOCK", 4),
    ):
        found = [
            [step(ops, random.Random(seed)) for ops in (kernels.TritonOps(), TorchOps())] for seed in range(4)
        ]
    return [
        seed
        for seed, (own, right) in enumerate(found)
        if not all(
            one.dtype == other.dtype and torch.allclose(one, other, rtol=1e-5, atol=1e-5)
            for one, other in zip(own, right, strict=True)
        )
    ]


def _add_norm(ops: Any, stream: random.Random) -> Sequence[Tensor]:
    hidden, delta, weight = (made_tensor(stream, shape) for shape in ((3, 6), (3, 6), (6,)))
    found: Sequence[Tensor] = ops.add_norm(
        hidden, delta if stream.random() < 0.5 else None, Norm(weight, 0.25)
    )
    return found


def _attend(ops: Any, stream: random.Random) -> Sequence[Tensor]:
    """Return what rows of 4 query heads and 2 key heads of width 6 gather, and the cache."""
    norm = Norm(made_tensor(stream, (6, 6)), 0.25) if stream.random() < 0.5 else None
    layer = SimpleNamespace(
        num_query_heads=4, num_kv_heads=2, window=None, score_cap=None, attention_scale=0.5, qk_norm=norm
    )
    rotary = Rotary.of(torch.tensor([1.0, 0.5, 0.1]), 1.25, head_dim=6)
    turns = Turns(rotary, torch.stack(rotary.tables(12, torch.float32)))
    heads, cache = made_tensor(stream, (3, 8, 6)) / 8, made_tensor(stream, (2, 3, 2, 11, 6)) / 8
    counters, slot = Counters(torch.device("cpu")), stream.randint(0, 10)
    counters.set(slot, 0)
    first = torch.tensor([0, slot, stream.randint(0, slot)])
    return ops.attend(layer, heads, turns, cache, first, counters), cache


def _gate(ops: Any, stream: random.Random) -> Sequence[Tensor]:
    layer = SimpleNamespace(is_gated=True, activation=functional.silu)
    return [ops.activated(layer, made_tensor(stream, (3, 10)))]


def _sample(ops: Any, stream: random.Random) -> Sequence[Tensor]:
    """Return the second tokens of two rows, their log-probabilities, and the last tokens."""
    params = SamplingParams(max_new_tokens=3, temperature=stream.choice((0.5, 1.0, 2.0)))
    ids, logprobs, last = torch.zeros(3, 2).long(), torch.zeros(3, 2), torch.zeros(2).long()
    uniforms = torch.tensor([[stream.random() for _ in range(2)] for _ in range(3)])
    counters = Counters(torch.device("cpu"))
    counters.set(0, 1)
    logits = made_tensor(stream, (2, 11)) / 8
    assert ops.sample(logits, params, uniforms, ids, logprobs, last, counters) is None
    return ids, logprobs, last
