"""Worked examples of what only a CUDA device does, with stand-ins for it: steps repeated as graphs, fused passes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from refrl.generation.base import SamplingParams
from refrl.generation.sampling import row_uniforms
from refrl.generation.static import decoder as decoders
from refrl.generation.static.decoding import decode_in_blocks
from refrl.policy import fused
from refrl.policy.scoring import padded_forward
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import batch, example
from seatrial.targets.reference.worked.made_packages import package

SIZES = {
    "vocab_size": 11,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
KINDS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "llama": (LlamaForCausalLM, LlamaConfig),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config),
}


def of_devices() -> Iterator[WorkedExample]:
    """Yield the examples."""
    for number, right in (
        (1, 1),
        (8, 8),
        (9, 10),
        (16, 16),
        (17, 20),
        (20, 20),
        (33, 40),
        (64, 64),
        (65, 80),
    ):
        yield example(f"rows of a graph for {number}", right, decoders.rows_in_buckets, number)
    yield example("calls of any size through graphs, other than without", [], _captured)
    yield example("graphs that are held after each call", [call[-1] for call in CALLS], _held)
    cuda = {"device": "cuda"}
    for options, right_why in (
        ({"device": "cpu"}, "the model is on cpu"),
        ({**cuda, "kind": "GPT2LMHeadModel"}, "GPT2LMHeadModel is not served"),
        ({**cuda, "act": "gelu"}, "the activation gelu is not served"),
        ({**cuda, "there": False}, "the package liger_kernel is not installed"),
        (cuda, None),
    ):
        yield example(f"whether fused kernels serve {options}", right_why, _why_not, **options)
    for kind in KINDS:
        yield example(f"a fused pass of {kind}", [True, True, True, True, True], _fused, kind)


@cache
def _model(kind: str = "llama") -> Any:
    """Return a tiny model of random weights, wide enough that its choices differ."""
    make, config = KINDS[kind]
    model = make(config(**SIZES, head_dim=4, tie_word_embeddings=False)).eval().requires_grad_(False)
    stream = torch.Generator().manual_seed(5)
    for weight in model.parameters():
        weight.copy_(torch.randn(weight.shape, generator=stream) * 0.5 + (1.0 if weight.ndim == 1 else 0.0))
    return model


@contextmanager
def _graphs(decoder: Callable[[], Any]) -> Iterator[list[Any]]:
    """Yield the graphs that are made. What is captured is done at each replay alone."""
    made: list[Any] = []

    class Graph:
        num_rows = 0

        def __init__(self) -> None:
            made.append(self)

        def pool(self) -> str:
            return "pool"

        def replay(self) -> None:
            decoder()._step(self.num_rows)

    @contextmanager
    def capture(graph: Graph, *, pool: Any, capture_error_mode: str) -> Iterator[None]:
        own = decoder()
        assert capture_error_mode == "thread_local" and decoders.CAPTURING.locked()
        assert pool == ("pool" if own.num_graphs else None)
        rows: list[int] = []
        with patch.object(own, "_step", rows.append):
            yield
        (graph.num_rows,) = rows

    with patch.object(torch.cuda, "CUDAGraph", Graph), patch.object(torch.cuda, "graph", capture):
        yield made


CALLS: Sequence[tuple[int, int, dict[str, Any], str, int]] = (
    (12, 20, {"top_k": 3}, "", 1),
    (3, 5, {}, "", 2),
    (9, 6, {}, "", 3),
    (11, 4, {}, "", 4),
    (12, 6, {"top_k": 3}, "in place", 4),
    (17, 6, {"top_k": 3}, "", 1),
    (2, 5, {"temperature": 0.5}, "elsewhere", 1),
    (2, 4, {"temperature": 0.5}, "", 1),
    (2, 5, {"temperature": 0.75}, "", 2),
)
"""Rows, tokens, parameters, how weights change before, and the graphs that are held after it if no row ends early."""


def _run(captures: bool, stops: tuple[int, ...] = (7,)) -> tuple[list[Any], list[int]]:
    """Return what is sampled in a row of calls, and how many graphs are held after each."""
    model = _model()
    kept = {name: weight.data for name, weight in model.named_parameters()}
    decoder = decoders.StaticDecoder(model, block_tokens=3, captures=captures)
    found, held = [], []
    with _graphs(lambda: decoder):
        for number, (rows, tokens, options, change, _) in enumerate(CALLS):
            for weight in model.parameters() if change else ():
                if change == "elsewhere":
                    weight.data = weight.data.clone()
                weight.mul_(1.25)
            stream = torch.Generator().manual_seed(number)
            prompts = [((1, 2, 3), (4, 5), (6,))[row % 3] for row in range(rows)]
            sampled = decode_in_blocks(
                decoder,
                prompts,
                SamplingParams(max_new_tokens=tokens, **options),
                row_uniforms(rows, tokens, stream),
                stop_ids=frozenset(stops),
                pad_token_id=0,
            )
            found.append([(row.ids, row.logprobs, row.kept_ids) for row in sampled])
            held.append(decoder.num_graphs)
    for name, weight in model.named_parameters():
        weight.data = kept[name]
    for weight in model.parameters():
        weight.div_(1.25)
    return found, held


def _captured() -> list[str]:
    """Return the calls in which graphs sample other tokens, log-probabilities or kept ids."""
    graphs, plain = _run(True)[0], _run(False)[0]
    return [
        f"call {number}, row {row}: {one[0]} for {other[0]}"
        for number, (own, others) in enumerate(zip(graphs, plain, strict=True))
        for row, (one, other) in enumerate(zip(own, others, strict=True))
        if (one[0], one[2]) != (other[0], other[2])
        or any(abs(a - b) > 1e-5 for a, b in zip(one[1], other[1], strict=True))
    ]


def _held() -> list[int]:
    return _run(True, ())[1]


def _why_not(
    device: str, kind: str = "LlamaForCausalLM", act: str = "silu", there: bool = True
) -> str | None:
    model: Any = SimpleNamespace(device=torch.device(device), config=SimpleNamespace(hidden_act=act))
    made = type(kind, (SimpleNamespace,), {})
    own: Any = made(**vars(model))
    with (
        patch.object(fused, "FUSED_MODELS", (made,) if kind == "LlamaForCausalLM" else ()),
        patch.object(fused, "find_spec", lambda name: "there" if there and name == "liger_kernel" else None),
    ):
        return fused.why_not_fused(own)


def _fused(kind: str) -> list[bool]:
    """Return whether a fused pass scores as a plain one, through each kernel, and leaves the model as it was."""
    model, rows = _model(kind), batch()
    modeling: Any = sys.modules[type(model).__module__]
    noted: list[str] = []

    def gated(gate: Tensor, up: Tensor) -> Tensor:
        noted.append("gate")
        return functional.silu(gate) * up

    def turned(queries: Tensor, keys: Tensor, cos: Tensor, sin: Tensor, places: Any, axis: int) -> Any:
        noted.append("turn")
        assert places is None
        return plain(queries, keys, cos, sin, unsqueeze_dim=axis)

    norm = functional.rms_norm
    plain = modeling.apply_rotary_pos_emb

    def normed(*words: Any, **options: Any) -> Tensor:
        noted.append("norm")
        return norm(*words, **options)

    parts = {
        "liger_kernel.ops.swiglu": {"LigerSiLUMulFunction": SimpleNamespace(apply=gated)},
        "liger_kernel.ops.rope": {"LigerRopeFunction": SimpleNamespace(apply=turned)},
    }
    made = {name: package(name, **own) for name, own in parts.items()}
    forward = padded_forward(0.5)
    due = forward(model, rows)
    with patch.dict("sys.modules", made), patch.object(functional, "rms_norm", normed):
        found = fused.FusedForward(forward)(model, rows)
    norms = 2 * 2 + 1 + (2 * 2 if kind == "qwen3" else 0)
    left = [name for name, module in model.named_modules() if "forward" in vars(module)]
    return [
        all(torch.allclose(one, other, atol=1e-5) for one, other in zip(found, due, strict=True)),
        noted.count("norm") == norms,
        noted.count("gate") == 2,
        noted.count("turn") == 2,
        not left and modeling.apply_rotary_pos_emb is plain,
    ]
