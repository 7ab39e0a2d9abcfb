"""Worked examples of a spread model: the meshes of processes, what is spread over which, and whole tensors of it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard

from refrl.config import DTensorConfig
from refrl.distributed import World
from refrl.policy import tensors
from refrl.policy.dtensor import meshes, spread_model
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example, refused


def of_spread_models() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_meshes()
    yield from _of_models()
    forms = {"Tensor": 1, "DTensor[Shard(dim=0)]": 2, "DTensor[Replicate(), Shard(dim=1)]": 1}
    for size in (1, 2):
        yield example(f"forms of tensors that are spread over {size}", forms, _forms, size)


def _of_meshes() -> Iterator[WorkedExample]:
    for size, layout, dense, experts, data in (
        (1, (1, 1, 1), (1, 1, 1), (1, 1, 1), 1),
        (8, (2, 1, 1), (4, 1, 2), (4, 1, 2), 4),
        (8, (2, 2, 1), (2, 2, 2), (4, 1, 2), 2),
        (8, (2, 2, 4), (2, 2, 2), (1, 4, 2), 2),
        (12, (1, 3, 2), (4, 3, 1), (6, 2, 1), 4),
    ):
        right = {
            "meshes": [
                ("cpu", dense, ("data", "context", "tensor")),
                ("cpu", experts, ("expert_copies", "experts", "expert_tensor")),
            ],
            "data": ("rank of data", data, "group of data"),
            "parts": ["context", "tensor", "data+context as shards", "experts", "expert_copies"],
            "starts": [],
        }
        yield example(f"meshes of {size} processes laid out as {layout}", right, _meshes, size, layout)
    yield example("sizes of meshes", {"data": 2, "context": 3, "tensor": 4, "expert": 5}, _sizes)
    yield example("the group of a process that is alone", ["gloo", 0, 1], _alone)
    for words, size, layout in (
        ("num_processes=6 is no multiple of", 6, (2, 2, 1)),
        ("num_processes=2 is no multiple of", 2, (2, 2, 1)),
        ("expert_parallel_size=4 does not divide the 2 processes", 4, (2, 1, 4)),
        ("expert_parallel_size=2 does not divide the 3 processes", 3, (1, 1, 2)),
    ):
        yield refused(words, f"meshes of {size} processes laid out as {layout}", _meshes, size, layout)


def _forms(size: int) -> dict[str, int]:
    class Spread(SimpleNamespace):
        pass

    mesh = SimpleNamespace(size=lambda: size, ndim=1, shape=(size,))
    of_one = Spread(placements=(Shard(0),), device_mesh=mesh)
    given: list[Any] = [of_one, torch.ones(1), of_one]
    given.append(Spread(placements=(Replicate(), Shard(1)), device_mesh=mesh))
    with patch.object(tensors, "DTensor", Spread):
        return tensors.forms(given)


def _meshes(size: int, layout: tuple[int, int, int], is_there: bool = True) -> Any:
    tensor, context, experts = layout
    config: Any = SimpleNamespace(
        tensor_parallel_size=tensor, context_parallel_size=context, expert_parallel_size=experts
    )
    noted: list[Any] = []
    starts: list[Any] = []

    class Made:
        def __getitem__(self, name: Any) -> Any:
            if isinstance(name, tuple):
                return SimpleNamespace(_flatten=lambda new: f"{'+'.join(name)} as {new}")
            one = {"get_local_rank": lambda: f"rank of {name}", "get_group": lambda: f"group of {name}"}
            return SimpleNamespace(**one) if name == "data" else name

    def init(device: str, shape: Any, *, mesh_dim_names: Any) -> Made:
        noted.append((device, shape, mesh_dim_names))
        return Made()

    def start(backend: str, *, store: Any, rank: int, world_size: int) -> None:
        starts.extend([backend, rank, world_size])

    with (
        patch.object(meshes, "init_device_mesh", init),
        patch.object(torch.distributed, "is_initialized", lambda: is_there),
        patch.object(torch.distributed, "init_process_group", start),
    ):
        made = meshes.make_meshes(config, World(0, size), torch.device("cpu"))
    if not is_there:
        return starts
    parts = [made.context, made.tensor, made.shards, made.experts, made.expert_copies]
    data = made.data
    return {"meshes": noted, "data": (data.rank, data.size, data.group), "parts": parts, "starts": starts}


def _sizes() -> dict[str, int]:
    made: dict[str, Any] = {
        name: SimpleNamespace(size=lambda of=number: of)
        for number, name in enumerate(("context", "tensor", "experts", "shards", "expert_copies"), start=3)
    }
    return meshes.Meshes(data=World(0, 2), **made).sizes()


def _alone() -> Any:
    return _meshes(1, (1, 1, 1), is_there=False)


def _of_models() -> Iterator[WorkedExample]:
    for layout, shares in (
        ((1, 1, 1), False),
        ((2, 1, 1), False),
        ((2, 1, 1), True),
        ((1, 2, 1), False),
        ((1, 1, 2), False),
    ):
        for dtype in (torch.float32, torch.bfloat16):
            tensor, context, experts = layout
            steps: list[Any] = [
                *[("experts", "mesh of experts")] * (experts > 1),
                *[("tensor", "mesh of tensor", shares)] * (tensor > 1),
                *[("context", "mesh of context")] * (context > 1),
            ]
            computes = None if dtype == torch.float32 else dtype
            whole = {
                "mesh": "mesh of shards", "reshard_after_forward": True,
                "precision": (computes, torch.float32, None, True),
                "ignored": ["kept", "frozen"] * (experts > 1),
            }  # fmt: skip
            wrapped = [(name, whole) for name in ("layers.0", "layers.1", "")]
            scaled = [(name, [1.0], [True]) for name in ("", "layers.0", "layers.1")]
            right = [steps, wrapped, scaled, ["kept"] * (experts > 1)]
            yield example(
                f"a model of {dtype} spread as {layout}, in parts of sequences: {shares}",
                right,
                _spread,
                layout,
                dtype,
                shares,
            )
    for adapts in (False, True):
        own = ["lora"] if adapts else ["weight", "bias", "late"]
        yield example(f"what is trained of a spread model, adapted: {adapts}", own, _own_weights, adapts)
        yield example(f"a spread model as it is loaded, adapted: {adapts}", [adapts], _loaded, adapts)
        for writes in (False, True):
            right_files: Any = (
                [adapts and "merged", {"lora": 2.0}] if adapts else [{"weight": 2.0, "bias": 0.5}, "extra"]
            )
            yield example(
                f"a spread model that is saved, adapted: {adapts}, by the first process: {writes}",
                right_files if writes else [], _saved, adapts, writes,
            )  # fmt: skip
    # An adapter is rounded as the model computes with it: 4 * 64 * 1.0078125 - 256, of 1.0117.
    yield example(
        "weights of a spread model in bfloat16 with adapters merged", ["a", 2.0, "b", 1.0], _rounded
    )
    for dtype in (torch.bfloat16, torch.float32):
        right_types = [[str(dtype), 1.0, False], ["torch.int64", 3.0, False]]
        yield example(f"tensors of a spread model in {dtype}", right_types, _whole, dtype)


class Layer(nn.Module):
    """A layer that is sharded as one."""

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Note it."""
        vars(self).setdefault("factors", []).append(factor)

    def set_force_sum_reduction_for_comms(self, sums: bool) -> None:
        """Note it."""
        vars(self).setdefault("sums", []).append(sums)


def _spread(layout: tuple[int, int, int], dtype: torch.dtype, shares: bool) -> Any:
    """Return how a model is spread, in order: parts, shards, and how each sums gradients; and its trained experts."""
    tensor, context, experts = layout
    config: Any = DTensorConfig.model_construct(
        tensor_parallel_size=tensor,
        context_parallel_size=context,
        expert_parallel_size=experts,
        sequence_parallel=shares,
    )
    model = Layer()
    model.layers = nn.ModuleList([Layer(), Layer()])
    names = {id(module): name for name, module in model.named_modules()}
    kept, frozen = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1), requires_grad=False)
    labels = {id(kept): "kept", id(frozen): "frozen"}
    steps: list[Any] = []
    wrapped: list[Any] = []

    def share(given: Any, mesh: str) -> list[Any]:
        steps.append(("experts", mesh))
        return [kept, frozen]

    def shard(module: Any, *, mp_policy: Any, ignored_params: Any, **options: Any) -> None:
        precision = (
            mp_policy.param_dtype,
            mp_policy.reduce_dtype,
            mp_policy.output_dtype,
            mp_policy.cast_forward_inputs,
        )
        own = sorted((labels[id(one)] for one in ignored_params), reverse=True)
        wrapped.append((names[id(module)], {**options, "precision": precision, "ignored": own}))

    of = ("tensor", "context", "shards", "experts", "expert_copies")
    made: Any = SimpleNamespace(**{name: f"mesh of {name}" for name in of})
    given = {
        "share_experts": share,
        "parallelize": lambda model, mesh, *, sequence_parallel: steps.append(
            ("tensor", mesh, sequence_parallel)
        ),
        "share_sequences": lambda model, mesh: steps.append(("context", mesh)),
        "fully_shard": shard,
        "FSDPModule": Layer,
    }
    with ExitStack() as stack:
        for name, function in given.items():
            stack.enter_context(patch.object(spread_model, name, function))
        # The model is of the same class as its layers, and is sharded last.
        stack.enter_context(patch.object(spread_model, "GradientCheckpointingLayer", _Inner(model)))
        trained = spread_model.spread(model, config, made, dtype)  # type: ignore[arg-type]
    scaled = [
        (name, vars(one).get("factors"), vars(one).get("sums"))
        for name, one in model.named_modules()
        if isinstance(one, Layer)
    ]
    return [steps, wrapped, scaled, [labels[id(one)] for one in trained]]


class _Of(type):
    def __instancecheck__(cls, one: Any) -> bool:
        return isinstance(one, Layer) and one is not vars(cls)["outer"]


def _Inner(outer: Any) -> type:
    return _Of("Inner", (), {"outer": outer})


def _model(adapts: bool) -> tuple[Any, list[str]]:
    """Return a spread model of a weight, a bias and a buffer, and a list of what is done."""
    noted: list[str] = []
    model: Any = nn.Linear(1, 1)
    model.weight.data.fill_(2.0)
    model.bias.data.fill_(0.5)
    model.register_buffer("late", torch.ones(1), persistent=False)

    @contextmanager
    def off() -> Iterator[None]:
        noted.append("off")
        yield

    lora = {"lora": torch.full((1,), 2.0)}
    layer = SimpleNamespace(
        scaling=3.0, lora_A=nn.Linear(1, 1, bias=False), lora_B=nn.Linear(1, 1, bias=False)
    )
    layer.lora_A.weight.data.fill_(1.0)
    layer.lora_B.weight.data.fill_(2.0)
    adapters: Any = SimpleNamespace(
        layers={"weight": layer},
        weights=lambda: lora,
        off=off,
        base_weights=lambda: iter([("weight", model.weight)]),
    )
    options: Any = {"model": model, "meshes": None, "experts": [], "dtype": torch.float32}
    return spread_model.SpreadModel(**options, adapters=adapters if adapts else None), noted


def _own_weights(adapts: bool) -> list[str]:
    return [name for name, _ in _model(adapts)[0].own_weights()]


def _loaded(adapts: bool) -> list[bool]:
    model, noted = _model(adapts)
    with model.as_loaded():
        return [noted == ["off"]]


def _saved(adapts: bool, writes: bool) -> list[Any]:
    model, _ = _model(adapts)
    noted: list[Any] = []

    def plain(of: Any, tokenizer: Any, folder: Path, *, weights: Mapping[str, Tensor]) -> None:
        assert of is model.model and tokenizer == "tokenizer" and folder.is_dir()
        noted.append({name: float(weight) for name, weight in weights.items()})

    def merged(adapters: Any, tokenizer: Any, output: Path, *, merged: Any, weights: Any) -> None:
        assert adapters is model.adapters and tokenizer == "tokenizer"
        found = {name: float(weight) for name, weight in merged}
        noted.extend(
            [found == {"weight": 8.0} and "merged", {name: float(one) for name, one in weights.items()}]
        )

    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(spread_model, "write_model", plain),
        patch.object(spread_model, "save_merged", merged),
    ):
        model.save("tokenizer", Path(folder, "out"), lambda inner: noted.append("extra"), writes=writes)
        assert Path(folder, "out").is_dir() is (writes and not adapts)
    return noted


def _whole(dtype: torch.dtype) -> Any:
    model: Any = SimpleNamespace(dtype=dtype)
    given = [torch.ones(1, dtype=torch.float64, requires_grad=True), torch.tensor([3])]
    found = [spread_model.SpreadModel.whole(model, tensor) for tensor in given]
    return [[str(one.dtype), float(one), one.requires_grad] for one in found]


def _rounded() -> list[Any]:
    layer = SimpleNamespace(
        scaling=1.0, lora_A=SimpleNamespace(weight=torch.full((4, 1), 1.0117)),
        lora_B=SimpleNamespace(weight=torch.full((1, 4), 64.0)),
    )  # fmt: skip
    own = {"a.weight": torch.full((1, 1), -256.0), "b": torch.ones(1)}
    adapters: Any = SimpleNamespace(layers={"a": layer}, base_weights=lambda: iter(own.items()))
    parts: Any = {"model": None, "meshes": None, "experts": []}
    model = spread_model.SpreadModel(**parts, dtype=torch.bfloat16, adapters=adapters)
    return [
        part for name, one in model.named_weights() for part in (name.removesuffix(".weight"), float(one))
    ]
