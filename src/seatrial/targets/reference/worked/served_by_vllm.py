"""Worked examples of an engine on vLLM, with a stand-in for it: its options, the order of calls, the weights it has."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from refrl.generation.base import SamplingParams
from refrl.generation.receiving import StagedEngine
from refrl.generation.sampling import row_seeds
from refrl.generation.vllm import engine as engines
from refrl.generation.vllm import weights
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example, for_all, refused
from seatrial.targets.reference.worked.made_packages import package

LAYERS = "vllm.model_executor.layers"


def of_vllm() -> Iterator[WorkedExample]:
    """Yield the examples."""
    for greedy, top_p, top_k in product((False, True), (1.0, 0.9), (None, 3)):
        words = {"greedy": greedy, "top_p": top_p, "top_k": top_k}
        right = {
            "temperature": 0.0 if greedy else 0.5,
            "top_p": 1.0 if greedy else top_p,
            "top_k": 0 if greedy or top_k is None else top_k,
            "seed": 7,
            "max_tokens": 5,
            "stop_token_ids": [2, 9],
            "ignore_eos": True,
            "logprobs": -1 if greedy or top_p < 1.0 or top_k is not None else 0,
            "detokenize": False,
            "output_kind": "delta",
        }
        yield example(f"vLLM's parameters of {words}", right, _params, words)
    for limit, positions, device in ((64, 32, "cpu"), (32, 64, "cuda")):
        right_made = [
            ("model", Path("there")), "eval", "frozen", torch.bfloat16, 1234,
            ("started", device, 32), "vllm 1.2", "ended",
        ]  # fmt: skip
        yield example(
            f"vLLM for {limit} tokens of {positions}", [right_made], _made, limit, positions, device
        )
    for stop in (None, (), (4,)):
        right_stop = [8, 9] if stop is None else list(stop)
        yield example(f"what vLLM samples with the end tokens {stop}", [right_stop, True], _generated, stop)
    yield refused("prompt 0 has 12 tokens", "prompts that are too long for vLLM", _generated, None, (1,) * 12)
    for tied in (False, True):
        names = {"a": (3, 2), "lm_head.weight": (3, 2)}
        yield example(f"shapes of vLLM's weights, tied: {tied}", names, _shapes, tied)
    calls = [("reload_weights", [("a", 1.0), ("b", 2.0)]), "head", "experts"]
    yield example("what vLLM loads weights by, in order", calls, _loaded)
    yield example("the weights that vLLM has", [("a", "of names")], _asked_for)
    yield example("caches that vLLM drops", None, _cleared, True)
    yield refused("kept keys and values of the weights of before", "caches that it keeps", _cleared, False)
    yield from _of_weights()


def _params(words: Mapping[str, Any]) -> Any:
    made = {
        "vllm": package("vllm", SamplingParams=dict),
        "vllm.sampling_params": package(
            "vllm.sampling_params", RequestOutputKind=SimpleNamespace(DELTA="delta")
        ),
    }
    params = SamplingParams(max_new_tokens=5, temperature=0.5, **words)
    with patch.dict("sys.modules", made):
        return engines.vllm_params(params, frozenset((9, 2)), 7)


def _made(limit: int, positions: int, device: str) -> list[Any]:
    """Return how a model is read and vLLM is started, and how it ends."""
    noted: list[Any] = []
    ended = SimpleNamespace(shutdown=lambda: noted.append("ended"))

    class Model:
        config = SimpleNamespace(max_position_embeddings=positions)

        def eval(self) -> Model:
            noted.append("eval")
            return self

        def requires_grad_(self, trains: bool) -> Model:
            noted.append("frozen" if not trains else "trains")
            return self

        def to(self, dtype: Any) -> Model:
            noted.append(dtype)
            return self

    def load(directory: Path) -> Model:
        noted.append(("model", directory))
        return Model()

    def start(config: Any, device: torch.device, limit: int) -> Any:
        noted.append(("started", str(device), limit))
        return SimpleNamespace(llm_engine=SimpleNamespace(engine_core=ended))

    loads = SimpleNamespace(delta_load_batch_size_bytes=1234)
    config: Any = SimpleNamespace(
        model_name="there", precision="bfloat16", max_total_sequence_length=limit,
        generation=SimpleNamespace(delta_compression=loads),
    )  # fmt: skip
    with (
        patch.object(engines, "load_model", load),
        patch.object(engines, "_start", start),
        patch.object(
            StagedEngine, "__init__", lambda self, model, *, load_batch_bytes: noted.append(load_batch_bytes)
        ),
        patch.dict("sys.modules", {"vllm": package("vllm", __version__="1.2")}),
    ):
        made = engines.VllmGenerator(config, device=torch.device(device))
        noted.append(made.engine)
        made.close()
    return [noted]


def _engine(**parts: Any) -> Any:
    """Return an engine of these parts, which was never started."""
    made = object.__new__(engines.VllmGenerator)
    vars(made).update(parts)
    return made


def _generated(stop: Sequence[int] | None, prompt: Sequence[int] = (1, 2)) -> Any:
    """Return the end tokens that vLLM gets, and whether its rows come in the order of prompts, with its own seed."""
    seen: list[Any] = []
    params = SamplingParams(max_new_tokens=3, stop_token_ids=None if stop is None else tuple(stop))
    prompts = [prompt, (3,)]

    def sample(rows: Any, own: Any, stop_ids: Any, seeds: Any) -> Any:
        seen.append((rows, own is params, sorted(stop_ids), list(seeds)))
        return ["first", "second"]

    engine = _engine(
        _limit=10, _check_serving=lambda: seen.append("serves"), weight_version=6, _sample=sample,
        _embedding=lambda: SimpleNamespace(num_embeddings=5), stop_ids=lambda: frozenset((8, 9)),
    )  # fmt: skip
    with (
        patch.object(engines.VllmGenerator, "weight_version", 6),
        patch.object(engines, "completion", lambda *words: words),
    ):
        found = engine.generate(prompts, params, torch.Generator().manual_seed(3))
    (serves, (rows, same, stop_ids, seeds)) = seen
    due = [
        ((*one,), of, params, frozenset(stop_ids), 6)
        for one, of in zip(prompts, ("first", "second"), strict=True)
    ]
    own = list(row_seeds(2, torch.Generator().manual_seed(3)))
    return [
        stop_ids,
        serves == "serves" and same and found == due and rows == [*map(tuple, prompts)] and seeds == own,
    ]


def _shapes(tied: bool) -> Any:
    model = nn.Module()
    model.a = nn.Parameter(torch.zeros(3, 2))
    if not tied:
        model.lm_head = nn.Linear(2, 3, bias=False)
    own: Any = model
    own.get_output_embeddings = lambda: SimpleNamespace(weight=model.a)
    return _engine(_model=model)._shapes()


def _loaded() -> Any:
    noted: list[Any] = []
    kinds = {weights.pack_tied_head: "head", weights.pack_experts: "experts"}

    def rpc(name: str, *, kwargs: Any) -> None:
        noted.append((name, [(one, float(tensor)) for one, tensor in kwargs["weights_iterator"]]))

    llm = SimpleNamespace(collective_rpc=rpc, apply_model=lambda call: noted.append(kinds[call]))
    _engine(_vllm=llm)._take(iter([("a", torch.tensor(1.0)), ("b", torch.tensor(2.0))]))
    return noted


def _asked_for() -> Any:
    llm = SimpleNamespace(apply_model=lambda call: [call("model")])
    with (
        patch.object(engines.VllmGenerator, "_shapes", lambda self: "names"),
        patch.object(engines, "served_weights", lambda model, names: [("a", f"of {names}")]),
    ):
        return list(_engine(_vllm=llm)._served())


def _cleared(is_reset: bool) -> None:
    _engine(_vllm=SimpleNamespace(reset_prefix_cache=lambda: is_reset))._clear_caches()


class Linear(nn.Module):
    """A layer of vLLM's kind: it computes with a matrix that nothing reads, and has an empty weight."""

    params_dtype = torch.float32

    def __init__(self, matrix: Tensor, sizes: Sequence[int] = ()) -> None:
        super().__init__()
        self.matrix, self.output_sizes, self.input_size = matrix, sizes, matrix.shape[1]
        self.weight = nn.Parameter(torch.zeros(0))
        self.bias = nn.Parameter(matrix.sum(1))
        self.quant_method = SimpleNamespace(apply=lambda layer, rows, bias: rows @ layer.matrix.t())


class Embedding(nn.Module):
    """An embedding of three ids, whose table is padded."""

    params_dtype, org_vocab_size, embedding_dim = torch.float32, 3, 2

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(16.0).reshape(8, 2))

    def forward(self, ids: Tensor) -> Tensor:
        return self.weight[ids] + 1.0


class Head(Embedding):
    """A head that computes with another matrix than its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.quant_method = SimpleNamespace(apply=lambda layer, rows, bias: rows @ (self.weight * 2).t())


class Kernel:
    """A kernel that exchanges the elements of experts."""

    def __init__(self, uses_other: bool = False) -> None:
        self._use_zentorch, self.isa = uses_other, "made"
        self.packed: list[Any] = []

    def process_weights_after_loading(self, layer: Any) -> None:
        """Note the layer."""
        self.packed.append(layer)


class Experts(nn.Module):
    """Experts of a kernel, whose tensors are packed."""

    def __init__(self, kernel: Any, up: Tensor, down: Tensor) -> None:
        super().__init__()
        self.quant_method = SimpleNamespace(moe_kernel=SimpleNamespace(fused_experts=kernel))
        self.w13_weight, self.w2_weight = packed(up, "made"), packed(down, "made")


def packed(plain: Tensor, isa: str) -> Tensor:
    """Return a tensor with its elements in another order, always the same one."""
    assert isa == "made"
    order = torch.randperm(plain.numel(), generator=torch.Generator().manual_seed(plain.numel()))
    return plain.reshape(-1)[order].view(plain.shape)


@contextmanager
def _vllm() -> Iterator[None]:
    parts: dict[str, dict[str, Any]] = {
        f"{LAYERS}.linear": {"LinearBase": Linear},
        f"{LAYERS}.vocab_parallel_embedding": {"ParallelLMHead": Head, "VocabParallelEmbedding": Embedding},
        f"{LAYERS}.fused_moe.experts.cpu_moe": {"CPUUnquantizedExperts": Kernel},
        "vllm._custom_ops": {"cpu_prepack_moe_weight": packed},
    }
    with ExitStack() as stack:
        stack.enter_context(
            patch.dict("sys.modules", {name: package(name, **own) for name, own in parts.items()})
        )
        yield


def _model(kernel: Kernel | None = None) -> Any:
    """Return a model with joined layers, a norm, an embedding and a head that is larger than its vocabulary."""
    model = nn.Module()
    model.layer = nn.Module()
    model.layer.qkv_proj = Linear(torch.arange(12.0).reshape(6, 2), (3, 1, 2))
    model.layer.o_proj = Linear(torch.arange(6.0).reshape(2, 3) - 4)
    model.layer.norm = nn.LayerNorm(2, bias=False)
    model.embed_tokens, model.lm_head = Embedding(), Head()
    if kernel is not None:
        model.layer.experts = nn.Module()
        model.layer.experts.routed_experts = Experts(
            kernel, torch.arange(24.0).reshape(2, 6, 2), torch.arange(12.0).reshape(2, 2, 3)
        )
        other = model.layer.others = nn.Module()
        other.routed_experts = Experts(Kernel(True), torch.ones(2, 2), torch.ones(2, 2))
        other.routed = Experts(kernel, torch.ones(2, 2), torch.ones(2, 2))
    own: Any = model
    own.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}
    return model


def _of_weights() -> Iterator[WorkedExample]:
    whole = torch.arange(12.0).reshape(6, 2).tolist()
    sums = [sum(row) for row in whole]
    for name, shape, right in (
        ("layer.q_proj.weight", (3, 2), whole[:3]),
        ("layer.k_proj.weight", (1, 2), whole[3:4]),
        ("layer.v_proj.weight", (2, 2), whole[4:]),
        ("layer.k_proj.bias", (1,), sums[3:4]),
        ("layer.o_proj.weight", (2, 3), [[-4.0, -3.0, -2.0], [-1.0, 0.0, 1.0]]),
        ("layer.norm.weight", (2,), [1.0, 1.0]),
        ("embed_tokens.weight", (3, 2), [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
        ("lm_head.weight", (3, 2), [[0.0, 2.0], [4.0, 6.0], [8.0, 10.0]]),
        ("layer.experts.gate_up_proj", (2, 6, 2), torch.arange(24.0).reshape(2, 6, 2).tolist()),
        ("layer.experts.down_proj", (2, 2, 3), torch.arange(12.0).reshape(2, 2, 3).tolist()),
    ):
        yield example(f"vLLM's {name}", [(name, right)], _served, {name: shape})
    for words, name, shape in (
        ("has no layer layer.gate_proj", "layer.gate_proj.weight", (1, 2)),
        ("LayerNorm has no bias", "layer.norm.bias", (2,)),
        ("Module has no other", "layer.experts.other", (2, 2)),
        ("Module has no down_proj", "layer.experts.down_proj", (2, 2, 2)),
        ("Module has no down_proj", "layer.others.down_proj", (2, 2)),
    ):
        yield refused(words, f"vLLM's {name} of {shape}", _served, {name: shape})
    yield from for_all({"elements that a kernel exchanges": (_unpacked, 6)})
    yield example("experts that are packed again", [["layer.experts.routed_experts"], []], _packed_again)
    yield example("heads that are packed again", [True, None], _head_packed)


def _served(names: Mapping[str, tuple[int, ...]]) -> Any:
    with _vllm(), patch.object(weights, "_ROWS", 2):
        return [(name, tensor.tolist()) for name, tensor in weights.served_weights(_model(Kernel()), names)]


def _unpacked(stream: random.Random) -> bool:
    """Return whether elements come back to their places: of each size, and of more than a number of 14 bits has."""
    number = stream.choice((1, 6, 2**14, 2**14 + 1, 20000))
    dtype = stream.choice((torch.float32, torch.bfloat16, torch.float16))
    plain = torch.randn(number, generator=torch.Generator().manual_seed(number)).to(dtype).view(-1, 1)
    mixed = packed(plain, "made")
    return torch.equal(weights.unpacked(mixed, lambda given: packed(given, "made")), plain)


def _packed_again() -> Any:
    kernel = Kernel()
    model = _model(kernel)
    names = {id(layer): name for name, layer in model.named_modules()}
    with _vllm():
        weights.pack_experts(model)
        weights.pack_experts(nn.Module())
    others = model.layer.others.routed_experts.quant_method.moe_kernel.fused_experts.packed
    return [[names[id(layer)] for layer in kernel.packed], others]


def _head_packed() -> list[Any]:
    model = _model()
    seen: list[Any] = []
    model.lm_head.quant_method = SimpleNamespace(process_weights_after_loading=seen.append)
    weights.pack_tied_head(model)
    empty: Any = nn.Module()
    return [seen == [model.lm_head], weights.pack_tied_head(empty)]  # type: ignore[func-returns-value]
