"""Worked examples of weights that are sent, held in int8, or gathered where they are spread."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import nn

from refrl.generation.quantized import Int8Linear, load_tensors, num_quantized, quantize_layers
from refrl.policy.dtensor.policy import DTensorPolicy
from refrl.policy.dtensor.spread_model import SpreadModel
from refrl.weight_sync.base import Part
from refrl.weight_sync.colocated import CopiedWeights
from refrl.weight_sync.transferred import bucketed
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example, for_all


def of_weights() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from for_all({"buckets of parts": (_buckets, 20)})
    for target, source in ((3, 4), (4, 4), (5, 4)):
        due = [("weights", source)] * (target != source)
        yield example(f"version {source} for a generator at {target}", due, _copied, target, source)
    for dtype in (torch.float32, torch.bfloat16):
        right: Any = (1, [[127, -64], [0, 0]], [255 / 127, 1.0], "torch.float32", [1.0, 2.0])
        yield example(f"weights of {dtype} that are held in int8", right, _held, dtype)
    for weight in (1.0, 9.0):
        right = {"a.weight": weight, "a.bias": 0.5}, {"a.weight": 1.0, "a.bias": 0.5}
        yield example(f"gathered weights, with adapters: {weight > 1}", right, _gathered, weight > 1)
    for is_kept, right in ((True, (["in", "scored m", "out"], "s")), (False, ([], None))):
        yield example(f"scores of a reference that is spread: {is_kept}", right, _reference, is_kept)


def _copied(target: int, source: int) -> list[Any]:
    """Return what a generator of one version loads of a policy of another."""
    loaded: list[Any] = []
    generator = SimpleNamespace(weight_version=target, load_weights=lambda *words: loaded.append(words))
    policy = SimpleNamespace(version=source, named_weights=lambda: "weights")
    made: Any = SimpleNamespace(_source=policy, _target=generator)
    assert CopiedWeights.sync(made) == {}
    return loaded


def _buckets(stream: random.Random) -> bool:
    """Return whether buckets keep all values in their order, and each but the last has no space for another."""
    sizes = [stream.randint(0, 9) for _ in range(stream.randint(0, 4))]
    parts = [Part(str(place), torch.arange(size, dtype=torch.float32)) for place, size in enumerate(sizes)]
    most = stream.choice((4, 8, 12, 100))
    found = [[(one.name, one.values_N.tolist()) for one in bucket] for bucket in bucketed(parts, most)]
    flat = [(name, value) for bucket in found for name, values in bucket for value in values]
    counts = [sum(len(values) for _, values in bucket) for bucket in found]
    most_values = most // 4
    due = [(str(place), float(value)) for place, size in enumerate(sizes) for value in range(size)]
    is_full = all(count == most_values for count in counts[:-1])
    return flat == due and is_full and all(count <= most_values for count in counts)


def _held(dtype: torch.dtype) -> Any:
    """Return how many layers hold int8, and what one of them holds once it takes weights in."""
    model: Any = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to(dtype)
    model.get_output_embeddings = lambda: model[1]
    quantize_layers(model)
    layer: Any = model[0]
    assert isinstance(layer, Int8Linear)
    weights = {
        name: one.detach().clone() for name, one in model.named_parameters() if not name.startswith("0.")
    }
    values = {"0.weight": [[255.0, -128.0], [0.0, 0.0]], "0.bias": [1.0, 2.0]}
    weights |= {name: torch.tensor(value).to(dtype) for name, value in values.items()}
    load_tensors(model, weights)
    scale = layer.weight_scale
    return num_quantized(model), layer.weight.tolist(), scale.tolist(), str(scale.dtype), layer.bias.tolist()


def _spread(adapts: bool) -> Any:
    low, high = torch.full((1, 1), 2.0), torch.full((1, 1), 1.0)
    layer = SimpleNamespace(
        lora_A=SimpleNamespace(weight=low), lora_B=SimpleNamespace(weight=high), scaling=4.0
    )
    base = {"a.weight": torch.ones(1, 1), "a.bias": torch.full((1,), 0.5)}
    adapters = SimpleNamespace(layers={"a": layer}, base_weights=lambda: iter(base.items()))
    model = SimpleNamespace(named_parameters=lambda: iter(base.items()), named_buffers=lambda: iter(()))
    options: Any = {"model": model, "meshes": None, "experts": [], "dtype": torch.float32}
    return SpreadModel(**options, adapters=cast(Any, adapters) if adapts else None)


def _gathered(adapts: bool) -> Any:
    spread = _spread(adapts)
    with patch.object(SpreadModel, "whole", lambda self, tensor: tensor):
        merged = {name: float(weight) for name, weight in spread.named_weights()}
        return merged, {name: float(weight) for name, weight in spread.base_weights()}


def _reference(is_kept: bool) -> Any:
    """Return what is done, and the scores of a reference, if one is kept."""
    noted: list[str] = []

    @contextlib.contextmanager
    def loaded() -> Iterator[None]:
        noted.append("in")
        yield
        noted.append("out")

    def score(model: Any, made: Any) -> str:
        noted.append(f"scored {model}")
        return "s"

    kept = SimpleNamespace(model="m", as_loaded=loaded) if is_kept else None
    policy: Any = SimpleNamespace(_reference=kept, _score=score)
    found = DTensorPolicy.reference_logprobs(policy, cast(Any, None))
    return noted, found
