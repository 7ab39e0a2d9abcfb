"""refrl's decoders over tiny models of many architectures, and the models' own parts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from refrl.generation import lean_weights, torch_engine
from refrl.generation.base import SamplingParams
from refrl.generation.decoding import decode
from refrl.generation.lean_decoder import LeanDecoder
from refrl.generation.lean_support import supports_lean
from refrl.generation.lean_weights import read_weights
from refrl.generation.static.decoder import StaticDecoder
from refrl.generation.static.decoding import decode_in_blocks
from refrl.generation.static.ops import DeviceOps
from refrl.generation.torch_engine import CachedDecoder, TorchGenerator
from refrl.models.loading import load_model
from seatrial.targets.reference.configuration import new_directory
from seatrial.targets.reference.limits.models import model_of
from seatrial.targets.reference.parts.vllm import sample_by_vllm, served

BLOCK = 3
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
MODELS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"attention_bias": True, "mlp_bias": True, "rope_scaling": LLAMA3}),
    "mistral": ("mistral", {"sliding_window": 4, "tie_word_embeddings": False}),
    "qwen2": ("qwen2", {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "gemma2": (
        "gemma2",
        {
            "num_hidden_layers": 3,  # what a layer sees of later tokens shows in the layer after it
            "sliding_window": 4,
            "query_pre_attn_scalar": 8,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 5.0,
        },
    ),
    "cohere2": ("cohere2", {"sliding_window": 4, "num_hidden_layers": 4}),
    "gemma3": (
        "gemma3_text",
        {
            "sliding_window": 4,
            "query_pre_attn_scalar": 8,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "yarn": ("qwen3", {"rope_scaling": YARN}),
    "granite": ("granite", {"embedding_multiplier": 2.0, "residual_multiplier": 0.5, "logits_scaling": 1.5}),
}
"""Architectures that the lean decoder serves, by the traits that they have."""
FURTHER: Mapping[str, tuple[str, dict[str, Any]]] = {
    "olmo2": ("olmo2", {}),
    "glm": ("glm", {"partial_rotary_factor": 0.5, "attention_bias": True}),
    "nemotron": ("nemotron", {"partial_rotary_factor": 0.5}),
    "phi": ("phi", {"partial_rotary_factor": 0.5, "qk_layernorm": False}),
}
"""Others that it serves: norms of all heads together, parts of heads that turn, no gate, layers next to each other."""
OWN: Mapping[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "qwen3_moe": ("qwen3_moe", {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 8}),
}
"""Architectures that their own code decodes: one with learned positions, one with experts."""


@cache
def _model(name: str) -> Any:
    kind, changes = {**MODELS, **FURTHER, **OWN}[name]
    return model_of(kind, **changes)


def decoders() -> list[tuple[str, str]]:
    """Return every decoder with the models that it serves."""
    lean = [(decoder, name) for decoder in ("lean", "blocks") for name in MODELS]
    lean += [("lean", name) for name in FURTHER]
    device = [("device", name) for name in ("mistral", "qwen3", "gemma2")]
    engine = [("engine", name) for name in ("gemma3", "yarn", "qwen3_moe")]
    engine += [("engine in blocks", name) for name in ("gemma3", "qwen2")]
    engine += [("engine, model's own", name) for name in ("gemma3", "llama")]
    large = [("large", name) for name in ("llama", "qwen2")]
    vllm = [("vllm", name) for name in ("llama", "qwen2", "qwen3", "gpt2")]
    return [*lean, *device, *engine, *large, *(("own", name) for name in ("qwen2", *OWN)), *vllm]


@torch.no_grad()
def model_logits(name: str, ids: Sequence[int]) -> Tensor:
    """Return logits [S, V] of the model's own forward, without a cache."""
    logits: Tensor = _model(name)(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]
    return logits


@torch.no_grad()
def sample(
    decoder: str,
    name: str,
    prompts: Sequence[tuple[int, ...]],
    numbers_BT: Tensor,
    settings: Mapping[str, Any],
    ends: frozenset[int],
) -> list[tuple[tuple[int, ...], tuple[float, ...], Any]]:
    """Return ids, log-probabilities and kept ids of each row."""
    model, (_, num_tokens) = _model(name), numbers_BT.shape
    params = SamplingParams(max_new_tokens=num_tokens, **settings)
    if decoder == "vllm":
        completions = sample_by_vllm(model, prompts, numbers_BT, replace(params, stop_token_ids=tuple(ends)))
        return [(row.ids, row.logprobs, row.kept_ids) for row in completions]
    if decoder.startswith("engine"):
        return _by_engine(decoder, model, prompts, numbers_BT, replace(params, stop_token_ids=tuple(ends)))
    if decoder != "own" and not supports_lean(model):
        raise RuntimeError(f"the lean decoder does not serve {name}")
    given: dict[str, Any] = {"stop_ids": ends, "pad_token_id": 0}
    if decoder in ("blocks", "device"):
        # One decoder for two calls of unequal size: the second one finds the buffers of the first.
        static: Any = StaticDecoder(model, block_tokens=BLOCK, captures=False)
        if decoder == "device":
            static._ops = DeviceOps()
        decode_in_blocks(static, prompts[:2], params, numbers_BT[:2, :4], **given)
        rows = decode_in_blocks(static, prompts, params, numbers_BT, **given)
    else:
        with _joining(0 if decoder == "large" else lean_weights.JOIN_LIMIT_BYTES):
            made = CachedDecoder(model) if decoder == "own" else LeanDecoder(model, num_tokens)
        rows = decode(made, prompts, params, numbers_BT, **given)
    return [(row.ids, row.logprobs, row.kept_ids) for row in rows]


def _by_engine(
    decoder: str, model: Any, prompts: Sequence[tuple[int, ...]], numbers_BT: Tensor, params: SamplingParams
) -> list[tuple[tuple[int, ...], tuple[float, ...], Any]]:
    """Sample with the torch engine, whose second call is the one that counts."""
    engine = TorchGenerator(
        model, 0, lean=decoder != "engine, model's own", block_tokens=BLOCK if "blocks" in decoder else 0
    )
    with _numbers(numbers_BT):
        engine.generate(prompts[::2], params, torch.Generator())
        rows = engine.generate(prompts, params, torch.Generator())
    return [(row.ids, row.logprobs, row.kept_ids) for row in rows]


@contextmanager
def _numbers(numbers_BT: Tensor) -> Iterator[None]:
    """Let the torch engine draw with these random numbers."""
    before = torch_engine.__dict__["row_uniforms"]
    torch_engine.__dict__["row_uniforms"] = lambda rows, tokens, generator: numbers_BT[:rows, :tokens]
    try:
        yield
    finally:
        torch_engine.__dict__["row_uniforms"] = before


@contextmanager
def _joining(limit_bytes: int) -> Iterator[None]:
    """Let the lean decoder join the projections of smaller models alone, as if the others were large."""
    before = lean_weights.JOIN_LIMIT_BYTES
    lean_weights.__dict__["JOIN_LIMIT_BYTES"] = limit_bytes
    try:
        yield
    finally:
        lean_weights.__dict__["JOIN_LIMIT_BYTES"] = before


def loaded() -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield logits [S, V] of each model as it is loaded from files in bfloat16, and those of its class."""
    ids = torch.arange(3, 12)[None]
    for name in ("qwen3", "gemma2", "gpt2"):
        kind, changes = {**MODELS, **OWN}[name]
        model: Any = model_of(kind, **changes)
        folder = new_directory("loaded")
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(weight.bfloat16())
            # Rounded one by one: frequencies of rotary embeddings stay as they are.
            model.save_pretrained(
                folder, state_dict={name: one.bfloat16() for name, one in model.state_dict().items()}
            )
            path = folder / "config.json"
            config = {**json.loads(path.read_text(encoding="utf-8")), "dtype": "bfloat16"}
            path.write_text(json.dumps(config), encoding="utf-8")
            own: Tensor = model(input_ids=ids, use_cache=False).logits[0]
            found: Tensor = load_model(folder)(input_ids=ids, use_cache=False).logits[0]
        yield name, found, own


def read_back(seed: int) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield (name, tensor, what is read back) of models as vLLM serves them."""
    for name in ("qwen2", "qwen3"):
        yield from ((f"{name}'s {what}", due, found) for what, due, found in served(_model(name), seed))


def layer_parts(
    seed: int,
) -> Iterator[tuple[str, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], Tensor]]:
    """Yield the parts of a layer of each architecture as the sampler and as the model computes them."""
    stream = torch.Generator().manual_seed(seed)
    for name, (kind, changes) in MODELS.items():
        model: Any = model_of(kind, dtype=torch.bfloat16, **changes)
        weights = read_weights(model)
        layer, own = weights.layers[0], model.model.layers[0]
        width = model.config.hidden_size
        inputs = (2 * torch.randn(40, width, generator=stream)).bfloat16()
        yield f"{name}'s norm", layer.attention_norm, own.input_layernorm, inputs
        yield f"{name}'s last norm", weights.final_norm, model.model.norm, inputs
        yield f"{name}'s feed-forward layer", _mlp(layer), own.mlp, inputs
        ids = torch.arange(40) % model.config.vocab_size
        if kind != "granite":  # its factor is not the embedding's
            yield f"{name}'s embedding", weights.embedded, model.model.embed_tokens, ids
        if layer.qk_norm is not None and hasattr(own.self_attn, "q_norm"):
            heads = torch.randn(
                40, layer.num_query_heads + layer.num_kv_heads, layer.head_dim, generator=stream
            )
            yield (
                f"{name}'s norm of heads",
                layer.qk_norm,
                _heads(own.self_attn, layer.num_query_heads),
                heads.bfloat16(),
            )


def _mlp(layer: Any) -> Callable[[Tensor], Tensor]:
    """Return the feed-forward layer as `LeanDecoder` and the static decoder compute it, which must agree."""

    def forward(inputs: Tensor) -> Tensor:
        up = layer.up(inputs)
        gate, rest = up.chunk(2, dim=-1)
        projection = getattr(layer.down, "projection", layer.down)
        computed: Tensor = projection(layer.activation(gate) * rest)
        return computed

    return forward


def _heads(attention: Any, num_queries: int) -> Callable[[Tensor], Tensor]:
    return lambda heads: torch.cat(
        [attention.q_norm(heads[:, :num_queries]), attention.k_norm(heads[:, num_queries:])], 1
    )
