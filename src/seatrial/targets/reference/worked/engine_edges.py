"""Worked examples of engines: ranges, weights that a library did not take, and requests by name."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional

from refrl.generation import messages, torch_engine
from refrl.generation.base import Completion, SamplingParams
from refrl.generation.decoding import KeptRecorder
from refrl.generation.lean_norms import CentredNorm, Norm
from refrl.generation.lean_rotary import Rotary
from refrl.generation.pool import GenerationPool, Router, join
from refrl.generation.quantized import Int8Linear
from refrl.generation.receiving import StagedEngine
from refrl.generation.static.ops import Counters, DeviceOps, Turns
from refrl.generation.torch_engine import TorchGenerator
from refrl.generation.vllm import engine as vllm
from refrl.weight_sync.base import WeightSyncError
from seatrial.relations.contracts.worked import Refused, WorkedExample
from seatrial.targets.reference.worked.kernels import made_triton
from seatrial.targets.reference.worked.made import example, refused
from seatrial.targets.reference.worked.made_packages import imported_with, package

CPU = torch.device("cpu")


def of_engine_edges() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_ranges()
    yield from _of_weights()
    yield from _of_requests()


def _of_ranges() -> Iterator[WorkedExample]:
    for name, value, words in (
        ("max_new_tokens", 1, None), ("max_new_tokens", 0, "must be at least 1"), ("temperature", 1e-6, None),
        ("temperature", 0.0, "must be positive and finite"), ("temperature", -1.0, "must be positive and finite"),
        ("temperature", math.inf, "must be positive and finite"), ("temperature", math.nan,
        "must be positive and finite"),
        ("top_p", 1.0, None), ("top_p", 1e-9, None), ("top_p", 0.0, "must be in (0, 1]"), ("top_p", 1.01,
        "must be in (0, 1]"),
        ("top_p", math.nan, "must be in (0, 1]"), ("top_k", 1, None), ("top_k", 0, "must be at least 1, or None"),
        ("top_k", -1, "must be at least 1, or None"),
    ):  # fmt: skip
        taken = value if words is None else Refused(f"{name}={value} {words}")
        yield example(f"{name}={value}", taken, _params, name, value)
    for replicas, capacity in ((0, 1), (1, 0), (-1, 2)):
        words = f"num_replicas={replicas} and capacity={capacity} must be at least 1"
        yield refused(words, f"{replicas} replicas of {capacity} slots", Router, replicas, capacity)
    for slot in (-1, 1, 2):
        yield refused(
            f"slot {slot} of replica 0 is not in use", f"slot {slot}, given back", _given_back, slot
        )
    # Three times in pauses, which do not count, and twice besides; or three times without a pause.
    yield example("a request that is given up in pauses", ["stop", 6, (0,)], _given_up, 3, 5)
    words = "the engines gave up 3 times on one request"
    yield refused(words, "a request that is given up without a pause", _given_up, 0, 3)
    for kind, given, right_blocks in (
        ("cpu", None, 0), ("cuda", None, 16), ("cuda", 0, 0), ("cpu", 4, 4), ("cuda", 4, 4),
    ):  # fmt: skip
        model: Any = SimpleNamespace(device=SimpleNamespace(type=kind))
        name = f"blocks of {given} tokens on {kind}"
        yield example(name, right_blocks, _block_tokens, model, given)
    yield example("a message in bytes", ["x", {"a": 1}, [1.5, 2.5], 0], _in_bytes)
    yield example("kept ids of a large vocabulary", [((3, 69_999),)], _kept)
    for first, second in ((None, None), (((2,),), None), (None, ((2,),))):
        yield example(f"kept ids {first}, continued with {second}", None, _joined, first, second)
    for biased, dtype in ((False, torch.float32), (True, torch.float32), (True, torch.bfloat16)):
        right = [[[2.5 + biased, -0.5]], str(dtype)] if biased else [[[2.5, -1.0]], str(dtype)]
        yield example(f"a layer in int8 of {dtype}, with a bias: {biased}", right, _int8, biased, dtype)


def _params(name: str, value: Any) -> Any:
    return getattr(SamplingParams(**{"max_new_tokens": 5, name: value}), name)


def _given_back(slot: int) -> None:
    async def call() -> None:
        router = Router(1, 2)
        await router.acquire_slot()
        router.release_slot(0, slot)

    asyncio.run(call())


def _in_bytes() -> list[Any]:
    """Return a message that arrives byte by byte."""
    data = bytearray()
    message = messages.Message("x", {"a": 1}, [torch.tensor([1.5, 2.5])])
    messages.send(cast(Any, SimpleNamespace(sendall=data.extend)), message)

    def receive(view: memoryview) -> int:
        view[:1] = bytes([data.pop(0)])
        return 1

    found = messages.receive(cast(Any, SimpleNamespace(recv_into=receive)))
    return [found.kind, found.fields, found.tensors[0].tolist(), len(data)]


def _joined(first: Any, second: Any) -> Any:
    parts = [Completion((1,), (2,), (-0.5,), "abort", kept_ids=kept) for kept in (first, second)]
    return join(*parts).kept_ids


def _kept() -> Any:
    recorder, kept_RV = KeptRecorder(), torch.zeros(1, 70_000, dtype=torch.bool)
    kept_RV[0, [3, 69_999]] = True
    recorder.add([0], kept_RV, [2])
    return recorder.rows(1)


def _block_tokens(model: Any, given: int | None) -> int:
    return TorchGenerator(model, 0, block_tokens=given)._block_tokens


def _given_up(in_pauses: int, times: int) -> list[Any]:
    """Return how a request ends that engines give up so often, how often it was sent, and the loads afterwards."""
    sent: list[int] = []

    async def answer(request: int) -> Any:
        sent.append(request)
        pool._num_pauses += len(sent) <= in_pauses
        return SimpleNamespace(finish_reason="abort" if len(sent) <= times else "stop")

    pool: Any = GenerationPool([answer], capacity=1, max_aborts=2)
    return [asyncio.run(pool.generate(7)).finish_reason, len(sent), pool._router.loads]


def _int8(biased: bool, dtype: torch.dtype) -> list[Any]:
    """Return what a layer makes of the first of two inputs; its rows are multiples of their largest 127th."""
    layer = nn.Linear(2, 2, bias=biased, dtype=dtype)
    layer.weight.data = torch.tensor([[2.5, 0.0], [-1.0, 1.0]], dtype=dtype)
    if biased:
        layer.bias.data = torch.tensor([1.0, 0.5], dtype=dtype)
    found = Int8Linear(layer)(torch.tensor([[1.0, 0.0]], dtype=dtype))
    return [found.detach().float().tolist(), str(found.dtype)]


def _of_weights() -> Iterator[WorkedExample]:
    for stale, words in (
        (1, "weights that it was given: a.weight"),
        (4, "weights that it was given: a.weight, b.weight, c.weight and 1 more"),
    ):
        yield refused(
            f"made does not compute with the {words}", f"{stale} weights that are not taken", _staged, stale
        )
    yield refused(
        "made makes buffers of its own and takes none: late changed", "a buffer that changes", _staged, 0, 2.0
    )
    right = [
        ["took", "cleared"],
        7,
        {"a.weight": 3.0, "b.weight": 3.0, "c.weight": 3.0, "d.weight": 3.0, "late": 1.0},
        True,
    ]
    yield example("weights that an engine loads", right, _staged, 0)
    right_later = ["refused before", "open", "refused after a failure", "serves"]
    yield example("when an engine samples, by the state of its weights", right_later, _serving)
    yield example("a model that is compared", [[False, False], [True, False], None, 1], _compared)


def _engine(stale: int = 0) -> Any:
    """Return an engine whose library keeps so many of its four weights as they were, and what it does."""
    model: Any = nn.ModuleDict({name: nn.Linear(1, 1, bias=False) for name in "abcd"})
    model.register_buffer("late", torch.ones(1))
    noted: list[str] = []
    served = {name: one.detach().clone() for name, one in model.state_dict().items()}

    class Engine(StagedEngine):
        library = "made"

        def _take(self, parameters: Sequence[tuple[str, Tensor]]) -> None:
            noted.append("took")
            for name, tensor in parameters[stale:]:
                served[name] = tensor.detach().clone()

        def _served(self) -> Iterator[tuple[str, Tensor]]:
            yield from ((name, one) for name, one in reversed(served.items()) if name != "late")

        def _clear_caches(self) -> None:
            noted.append("cleared")

    made: Any = Engine(model, load_batch_bytes=64)
    if stale:
        made._served = lambda: iter([(name, served[name]) for name in model.state_dict() if name != "late"])
    return made, noted


def _staged(stale: int, late: float = 1.0) -> list[Any]:
    """Return what is done, the version, and the weights that are served, once all are loaded with 3."""
    engine, noted = _engine(stale)
    given = {f"{name}.weight": torch.full((1, 1), 3.0) for name in "abcd"}
    engine.load_weights(iter({**given, "late": torch.full((1,), late)}.items()), 7)
    served = {name: float(one) for name, one in engine.named_weights()}
    engine._check_serving()
    specs = {name: tuple(one.shape) for name, one in engine.specs().items()}
    return [noted, engine.weight_version, served, specs == {**dict.fromkeys(given, (1, 1)), "late": (1,)}]


def _serving() -> list[str]:
    engine, _ = _engine()
    found = []

    def state(otherwise: str) -> str:
        try:
            engine._check_serving()
        except WeightSyncError as error:
            return otherwise if "made did not take the weights of the last sync" in str(error) else "open"
        return "serves"

    engine._is_loaded = False
    found.append(state("refused before"))
    engine._is_loaded = True
    engine._receiver.begin(1, None)
    found.append(state("refused"))
    engine, _ = _engine(2)
    try:
        engine.load_weights(
            iter({**{f"{name}.weight": torch.ones(1, 1) for name in "abcd"}, "late": torch.ones(1)}.items()),
            2,
        )
    except WeightSyncError:
        found.append(state("refused after a failure"))
    engine, _ = _engine()
    return [*found, state("refused")]


def _compared() -> list[Any]:
    """Return modes of a model and its part as it is compared and afterwards, the answer, and how often it is asked."""
    model: Any = nn.Sequential(nn.Dropout()).train()
    model[0].eval()
    model.device = CPU
    modes: list[list[bool]] = []

    def difference(of: Any) -> None:
        modes.append([one.training for one in of.modules()])

    engine = TorchGenerator(model, 0)
    with patch.object(torch_engine, "difference", difference):
        answers = [engine._compare(tuple(model.modules())) for _ in range(2)]
    return [modes[0], [one.training for one in model.modules()], answers[0], len(modes)]


def _of_requests() -> Iterator[WorkedExample]:
    yield example("rows of two calls of vLLM", [[3, 4], [5, 6], 4, []], _by_name, False)
    yield example("rows of vLLM that are given up", [[3], [5], 4, ["0", "1", "2", "3"]], _by_name, True)
    for kind in (RuntimeError, ValueError, OSError):
        yield refused(
            "vLLM cannot load there: no such model", f"vLLM raises {kind.__name__}", _not_loaded, kind
        )
    yield example("operations that no kernel serves", [], _unserved)


def _by_name(gives_up: bool) -> list[Any]:
    """Return second rows of two calls, how many names there were, and which are given up; answers come backwards."""
    added: list[str] = []
    aborted: list[str] = []
    waiting: dict[str, list[int]] = {}

    def add(name: str, prompt: Mapping[str, Any], params: Any) -> None:
        added.append(name)
        waiting[name] = [prompt["prompt_token_ids"][0], prompt["prompt_token_ids"][0] + 1]

    def step() -> list[Any]:
        found = []
        for name in reversed(list(waiting)):
            token = waiting[name].pop(0)
            part = SimpleNamespace(token_ids=[token], logprobs=[{token: 0.0}])
            found.append(SimpleNamespace(request_id=name, outputs=[part]))
            if not waiting[name]:
                del waiting[name]
        return found

    def abort(names: Sequence[str]) -> None:
        aborted.extend(names)
        waiting.clear()

    llm = SimpleNamespace(
        add_request=add, step=step, has_unfinished_requests=lambda: bool(waiting), abort_request=abort
    )
    engine = object.__new__(vllm.VllmGenerator)
    aborting = SimpleNamespace(is_set=lambda: gives_up)
    vars(engine).update(_vllm=SimpleNamespace(llm_engine=llm), _num_requests=0, _aborting=aborting)
    params = SamplingParams(max_new_tokens=2)
    with patch.object(vllm, "vllm_params", lambda *words: None):
        calls = [engine._sample([(first,), (first + 2,)], params, frozenset(), [0, 1]) for first in (1, 3)]
    rows = [[token for token, _ in row] for call in calls for row in call]
    return [rows[1], rows[3], len(set(added)), aborted]


def _not_loaded(kind: type[Exception]) -> Any:
    def fail(**options: Any) -> None:
        raise kind("no\n such model")

    own = SimpleNamespace(enforce_eager=True, gpu_memory_utilization=0.5)
    config: Any = SimpleNamespace(
        model_name="there", precision="float32", generation=SimpleNamespace(vllm_cfg=own)
    )
    with patch.dict("sys.modules", {"vllm": package("vllm", LLM=fail)}), patch.dict("os.environ"):
        return vllm._start(config, CPU, 8)


def _unserved() -> list[str]:
    """Return the operations that are others than plain ones where no kernel serves the layer."""
    stream = torch.Generator().manual_seed(1)
    states, up = torch.randn(2, 4, generator=stream), torch.randn(2, 6, generator=stream)
    heads = torch.randn(2, 4, 4, generator=stream)
    rotary = Rotary.of(torch.tensor([0.5, 0.25]), 1.0, head_dim=4)
    half = Rotary.of(torch.tensor([0.5]), 1.0, head_dim=4)
    own: dict[str, Any] = {"num_query_heads": 2, "num_kv_heads": 1, "head_dim": 4, "attention_scale": 0.5,
    "qk_norm": None,
                           "rotary": 0, "window": None, "score_cap": None}  # fmt: skip
    first = torch.tensor([0, 1])
    wrong: list[str] = []
    with imported_with(made_triton(), ["refrl.generation.static.triton_ops"]) as (kernels,):
        ops, plain = kernels.TritonOps(), DeviceOps()
        for norm in (CentredNorm(torch.ones(4), None, 0.1), Norm(torch.ones(4), 0.1, rounds_last=True)):
            pairs = zip(ops.add_norm(states, states, norm), plain.add_norm(states, states, norm), strict=True)
            wrong += ["norm"] * (not all(torch.equal(one, other) for one, other in pairs))
        for gated, activation in (
            (False, functional.silu),
            (True, functional.gelu),
            (False, functional.gelu),
        ):
            layer: Any = SimpleNamespace(is_gated=gated, activation=activation)
            due = activation(up[:, :3]) * up[:, 3:] if gated else activation(up)
            wrong += [f"activation {gated}"] * (not torch.allclose(ops.activated(layer, up), due))
        for changes, turned in (
            ({"window": 1}, rotary),
            ({"score_cap": 0.5}, rotary),
            ({}, half),
            ({}, None),
        ):
            layer = SimpleNamespace(**{**own, **changes, "rotary": None if turned is None else 0})
            found = []
            for one in (ops, plain):
                counters = Counters(CPU)
                counters.set(2, 0)
                cache = torch.randn(2, 2, 1, 4, 4, generator=torch.Generator().manual_seed(2))
                turns = (
                    None if turned is None else Turns(turned, torch.stack(turned.tables(4, torch.float32)))
                )
                found.append((one.attend(layer, heads, turns, cache, first, counters), cache))
            same = torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])
            weights: Any = SimpleNamespace(
                layers=[SimpleNamespace(**own), layer], rotaries=[turned or rotary]
            )
            wrong += [f"attention {changes}"] * (not same) + ["slots"] * (not ops.reads_all_slots(weights))
        for params in (
            SamplingParams(max_new_tokens=1, greedy=True),
            SamplingParams(max_new_tokens=1, top_k=2),
        ):
            drawn = []
            for one in (ops, plain):
                to = torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, 2), torch.zeros(2, dtype=torch.long)
                kept = one.sample(
                    up, params, torch.full((1, 2), 0.5, dtype=torch.float64), *to, Counters(CPU)
                )
                drawn.append([*(values.tolist() for values in to), None if kept is None else kept.tolist()])
            wrong += [f"samples of {params}"] * (drawn[0] != drawn[1])
        served: Any = SimpleNamespace(layers=[SimpleNamespace(**own)], rotaries=[rotary])
        return [*wrong, *["slots that are read"] * ops.reads_all_slots(served)]
