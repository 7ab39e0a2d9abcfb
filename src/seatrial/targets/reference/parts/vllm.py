"""refrl's vLLM engine over a stand-in of vLLM: what it requests, and what it makes of the answers and the weights."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from refrl.generation.base import Completion, SamplingParams
from refrl.generation.receiving import StagedEngine
from refrl.generation.vllm.engine import VllmGenerator
from refrl.generation.vllm.weights import served_weights, unpacked

LINEAR, VOCABULARY = (
    "vllm.model_executor.layers.linear",
    "vllm.model_executor.layers.vocab_parallel_embedding",
)
EXPERTS = "vllm.model_executor.layers.fused_moe.experts.cpu_moe"


class _Linear(nn.Module):
    """A layer of several outputs side by side, whose matrix is not read but applied."""

    def __init__(self, weights: Sequence[Tensor], bias: Tensor | None = None) -> None:
        super().__init__()
        self._hidden = torch.cat(list(weights))
        self.weight = torch.empty(0)
        self.bias = bias
        self.output_sizes = [len(weight) for weight in weights]
        self.input_size = self.embedding_dim = self._hidden.shape[1]
        self.params_dtype = self._hidden.dtype
        self.quant_method = SimpleNamespace(
            apply=lambda layer, inputs, bias: functional.linear(inputs, layer._hidden, bias)
        )


class _Head(_Linear):
    """The output head, with rows beyond the vocabulary."""


class _Embedding(nn.Module):
    """The embedding."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self._hidden = weight
        self.weight = torch.empty(0)
        self.org_vocab_size = len(weight)

    def forward(self, ids: Tensor) -> Tensor:
        return functional.embedding(ids, self._hidden)


@contextlib.contextmanager
def _vllm() -> Iterator[None]:
    """Let modules of vLLM be importable that hold the stand-ins."""
    holds: Mapping[str, Mapping[str, Any]] = {
        "vllm": {"SamplingParams": lambda **given: SimpleNamespace(**given)},
        "vllm.sampling_params": {"RequestOutputKind": SimpleNamespace(DELTA="delta")},
        LINEAR: {"LinearBase": _Linear},
        VOCABULARY: {"ParallelLMHead": _Head, "VocabParallelEmbedding": _Embedding},
        EXPERTS: {"CPUUnquantizedExperts": type("CPUUnquantizedExperts", (), {})},
    }
    before = {name: sys.modules.get(name) for name in holds}
    for name, values in holds.items():
        module = ModuleType(name)
        module.__dict__.update(values)
        sys.modules[name] = module
    try:
        yield
    finally:
        for name, module_before in before.items():
            if module_before is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module_before


class _Engine:
    """Draws each request's tokens with given numbers; greedy ones come with the log-probabilities of raw logits."""

    def __init__(self, model: Any, numbers_BT: Tensor) -> None:
        self._model, self._numbers_BT = model, numbers_BT
        self._requests: dict[str, tuple[list[int], Any, list[float]]] = {}
        self._seeds: set[int] = set()
        self._num_new: dict[str, int] = {}

    def add_request(self, name: str, prompt: Mapping[str, Any], params: Any) -> None:
        if params.seed in self._seeds:
            raise ValueError(f"two requests of one call have the seed {params.seed}")
        numbers = self._numbers_BT[len(self._seeds)].tolist()
        self._seeds.add(params.seed)
        self._num_new[name] = 0
        self._requests[name] = list(prompt["prompt_token_ids"]), params, numbers

    def has_unfinished_requests(self) -> bool:
        return bool(self._requests)

    def step(self) -> list[Any]:
        outputs = []
        for name, (ids, params, numbers) in list(self._requests.items()):
            logprobs_V = self._logprobs(ids, params)
            token = int(logprobs_V.argmax())
            if params.temperature > 0:
                token = int(
                    torch.searchsorted(logprobs_V.exp().cumsum(0), numbers[self._num_new[name]], right=True)
                )
            ids.append(token)
            self._num_new[name] += 1
            shown = range(len(logprobs_V)) if params.logprobs == -1 else [token]
            at = {other: SimpleNamespace(logprob=float(logprobs_V[other])) for other in shown}
            part = SimpleNamespace(token_ids=[token], logprobs=[at])
            outputs.append(SimpleNamespace(request_id=name, outputs=[part]))
            if token in params.stop_token_ids or self._num_new[name] == params.max_tokens:
                del self._requests[name]
        return outputs

    @torch.no_grad()
    def _logprobs(self, ids: Sequence[int], params: Any) -> Tensor:
        logits_V: Tensor = (
            self._model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0, -1].double()
        )
        if params.temperature == 0:
            return torch.log_softmax(logits_V, 0)
        logits_V = logits_V / params.temperature
        if params.top_k:
            logits_V[logits_V < logits_V.topk(min(params.top_k, len(logits_V))).values[-1]] = -torch.inf
        if params.top_p < 1:
            probs_V, order_V = logits_V.softmax(0).sort(descending=True)
            logits_V[order_V[probs_V.cumsum(0) - probs_V >= params.top_p]] = -torch.inf
        return torch.log_softmax(logits_V, 0)


def sample_by_vllm(
    model: Any, prompts: Sequence[tuple[int, ...]], numbers_BT: Tensor, params: SamplingParams
) -> list[Completion]:
    """Return what the engine makes of the stand-in's answers."""
    engine: Any = VllmGenerator.__new__(VllmGenerator)
    StagedEngine.__init__(engine, model, load_batch_bytes=1)
    engine._limit, engine._num_requests = 64, 3
    engine._vllm = SimpleNamespace(llm_engine=_Engine(model, numbers_BT))
    with _vllm():
        completions: list[Completion] = engine.generate(prompts, params, torch.Generator().manual_seed(0))
    return completions


def served(model: Any, seed: int) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield (name, tensor, what is read back of it) of a model that vLLM serves, and of packed experts."""
    own = dict(model.named_parameters())
    shapes = {name: tuple(tensor.shape) for name, tensor in own.items()}
    shapes["lm_head.weight"] = tuple(model.get_output_embeddings().weight.shape)
    with _vllm():
        for name, found in served_weights(_as_served(model), shapes):
            yield name, own.get(name, model.get_output_embeddings().weight), found
    stream = torch.Generator().manual_seed(seed)
    for dtype, size in ((torch.bfloat16, 40_000), (torch.float32, 35)):
        order_N = torch.randperm(size, generator=stream)
        values = torch.randn(size // 5, 5, generator=stream).to(dtype)
        packed = values.flatten()[order_N].view_as(values)
        found = unpacked(packed, partial(_exchanged, order_N))
        yield f"packed {dtype}", values, found


def _exchanged(order_N: Tensor, plain: Tensor) -> Tensor:
    return plain.flatten()[order_N].view_as(plain)


def _as_served(model: Any) -> Any:
    """Return a module with the names and joined layers of vLLM's own."""
    made: Any = nn.Module()
    made.packed_modules_mapping = {
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }
    made.model = nn.Module()
    made.model.embed_tokens = _Embedding(model.model.embed_tokens.weight)
    made.model.norm = model.model.norm
    made.model.layers = nn.ModuleList()
    for layer in model.model.layers:
        one: Any = nn.Module()
        one.self_attn, one.mlp = nn.Module(), nn.Module()
        for place, joined, names in (
            ("self_attn", "qkv_proj", ("q_proj", "k_proj", "v_proj")),
            ("self_attn", "o_proj", ("o_proj",)),
            ("mlp", "gate_up_proj", ("gate_proj", "up_proj")),
            ("mlp", "down_proj", ("down_proj",)),
        ):
            parts = [getattr(getattr(layer, place), name) for name in names]
            bias = None if parts[0].bias is None else torch.cat([part.bias for part in parts])
            setattr(getattr(one, place), joined, _Linear([part.weight for part in parts], bias))
        for name in ("q_norm", "k_norm"):
            if hasattr(layer.self_attn, name):
                setattr(one.self_attn, name, getattr(layer.self_attn, name))
        one.input_layernorm, one.post_attention_layernorm = (
            layer.input_layernorm,
            layer.post_attention_layernorm,
        )
        made.model.layers.append(one)
    padding = torch.zeros(3, model.config.hidden_size)
    made.lm_head = _Head([model.get_output_embeddings().weight, padding])
    return made
