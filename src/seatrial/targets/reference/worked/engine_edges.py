"""Worked examples of engines: ranges, weights that a library did not take, requests by name, and adapters' files."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from refrl.config import LoraConfig
from refrl.generation import torch_engine
from refrl.generation.base import SamplingParams
from refrl.generation.lean_norms import CentredNorm, Norm
from refrl.generation.lean_rotary import Rotary
from refrl.generation.pool import Router
from refrl.generation.quantized import Int8Linear
from refrl.generation.receiving import StagedEngine
from refrl.generation.static.ops import Counters, DeviceOps, Turns
from refrl.generation.torch_engine import TorchGenerator
from refrl.generation.vllm import engine as vllm
from refrl.policy.adapter_files import CONFIG, PREFIX, WEIGHTS, read_adapters, save_adapters
from refrl.weight_sync.base import WeightSyncError
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.checkpoints import in_folder
from seatrial.targets.reference.worked.kernels import made_triton
from seatrial.targets.reference.worked.made import example, refused
from seatrial.targets.reference.worked.made_packages import imported_with, package


def of_engine_edges() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_ranges()
    yield from _of_weights()
    yield from _of_requests()
    yield from _of_files()


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
        if words is None:
            yield example(f"{name}={value}", value, _params, name, value)
        else:
            yield refused(f"{name}={value} {words}", f"{name}={value}", _params, name, value)
    for replicas, capacity in ((0, 1), (1, 0), (-1, 2)):
        words = f"num_replicas={replicas} and capacity={capacity} must be at least 1"
        yield refused(words, f"{replicas} replicas of {capacity} slots", Router, replicas, capacity)
    for slot in (-1, 1, 2):
        yield refused(
            f"slot {slot} of replica 0 is not in use", f"slot {slot}, given back", _given_back, slot
        )
    yield example(
        "slots that are taken and given back", [(1, 1), [(0, 0), (1, 0), (0, 1), (1, 0)], (2, 1)], _slots
    )
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


def _slots() -> list[Any]:
    """Return loads and slots of two replicas of two; a slot is given back before the last one."""

    async def call() -> list[Any]:
        router = Router(2, 2)
        slots = [tuple(await router.acquire_slot()) for _ in range(2)]
        loads = router.loads
        slots.append(tuple(await router.acquire_slot()))
        router.release_slot(1, 0)
        slots.append(tuple(await router.acquire_slot()))
        return [loads, slots, router.loads]

    return asyncio.run(call())


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
        served.update({name: served[name] for name in ("a.weight", "b.weight", "c.weight", "d.weight")})
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
    model.device = torch.device("cpu")
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
    """Return the tokens of two calls of two rows each, the second row's of the first; the number of names; and which
    requests are given up. vLLM answers in the other order, a token at a time."""
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
        return vllm._start(config, torch.device("cpu"), 8)


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
                counters = Counters(torch.device("cpu"))
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
        served: Any = SimpleNamespace(layers=[SimpleNamespace(**own)], rotaries=[rotary])
        return [*wrong, *["slots that are read"] * ops.reads_all_slots(served)]


def _of_files() -> Iterator[WorkedExample]:
    own = in_folder(_read)
    yield example(
        "files of an adapter",
        [{"q.lora_A.weight": [[2.0, 2.0]], "q.lora_B.weight": [[3.0]]}, ["q"], 4.0],
        own,
    )
    for name, value in (
        ("bias", None),
        ("rank_pattern", None),
        ("modules_to_save", []),
        ("alpha_pattern", {}),
    ):
        if value is not None or name != "bias":
            yield example(f"files of an adapter with {name}={value}", True, own, {name: value}, short=True)
    for changes, words in (
        ({"r": 2}, "r=2, and this run needs 1: set policy.lora_cfg.dim and alpha"), ({"lora_alpha": 3},
        "lora_alpha=3, and"),
        ({"r": None}, "r=None, and this run needs 1"), ({"peft_type": "LOHA"},
        "peft_type='LOHA', and this run needs 'LORA'"),
        ({"bias": "all"}, "bias='all', and this run needs 'none': it is no plain LoRA"), ({"use_dora": True},
        "use_dora=True"),
        ({"use_rslora": True}, "use_rslora=True"), ({"fan_in_fan_out": True}, "fan_in_fan_out=True"),
        ({"modules_to_save": ["x"]}, "modules_to_save=['x']"), ({"rank_pattern": {"q": 2}}, "rank_pattern={'q': 2}"),
        ({"alpha_pattern": {"q": 2}}, "alpha_pattern={'q': 2}"), ({"layers_to_transform": [0]},
        "layers_to_transform=[0]"),
        ({"lora_bias": True}, "lora_bias=True"),
    ):  # fmt: skip
        yield refused(words, f"files of an adapter with {changes}", own, changes)
    for damage, words in (
        ("config", "holds no adapter in PEFT's format"), ("weights", "holds no adapter in PEFT's format"),
        ("text", "holds no adapter in PEFT's format"), ("bytes", "holds no adapter in PEFT's format"),
        ("missing", "it is missing 1 tensors ['q.lora_B.weight'] and has 0 unknown ones []"),
        ("unknown", "it is missing 0 tensors [] and has 1 unknown ones ['v.lora_A.weight']"),
        ("shape", "q.lora_B.weight has shape (2, 1), and the model needs (1, 1)"),
    ):  # fmt: skip
        yield refused(words, f"files of an adapter, damaged: {damage}", own, {}, damage)


def _read(
    folder: Path, changes: Mapping[str, Any] | None = None, damage: str = "", *, short: bool = False
) -> Any:
    """Return what is read of an adapter that was written, then changed or damaged; its layers and alpha."""
    lora = LoraConfig(enabled=True, dim=1, alpha=4)
    weights = {"q.lora_A.weight": torch.full((1, 2), 2.0), "q.lora_B.weight": torch.full((1, 1), 3.0)}
    output = folder / "adapter"
    save_adapters(weights, lora, "base", output)
    path = output / CONFIG
    described = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**described, **(changes or {})}), encoding="utf-8")
    more = {"v.lora_A.weight": torch.ones(1)} if damage == "unknown" else {}
    if damage in ("unknown", "missing", "shape"):
        kept = {name: one for name, one in weights.items() if damage != "missing" or "lora_A" in name} | more
        if damage == "shape":
            kept["q.lora_B.weight"] = torch.ones(2, 1)
        save_file({PREFIX + name: one for name, one in kept.items()}, output / WEIGHTS)
    for name, file in (("config", CONFIG), ("weights", WEIGHTS)):
        if damage == name:
            (output / file).unlink()
    for name, file in (("text", CONFIG), ("bytes", WEIGHTS)):
        if damage == name:
            (output / file).write_bytes(b"{")
    found = read_adapters(output, lora, {name: tuple(one.shape) for name, one in weights.items()})
    if short:
        return all(torch.equal(found[name], one) for name, one in weights.items())
    names = cast(Any, described["target_modules"])
    return [{name: one.tolist() for name, one in sorted(found.items())}, names, described["lora_alpha"]]
