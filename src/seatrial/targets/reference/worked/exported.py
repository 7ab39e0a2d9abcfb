"""Worked examples of adapters: which layers get one, their files; and of what a policy compares and exports."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import nn

from refrl.config import LoraConfig
from refrl.policy import adapter_files, hf
from refrl.policy.hf import HFPolicy
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.adapter_edges import of_adapter_files
from seatrial.targets.reference.worked.made import example, refused


def of_exports() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_adapters()
    yield from of_adapter_files()
    yield from _of_policies()


def _of_adapters() -> Iterator[WorkedExample]:
    for enabled, path, right in (
        (False, None, [None, []]), (False, "there", [None, []]), (True, None, ["adapters", []]),
        (True, "there", ["adapters", ["there"]]),
    ):  # fmt: skip
        yield example(f"adapters, enabled: {enabled}, of {path}", right, _adapters, enabled, path)
    yield example("adapters that are read into a model", [[[1.0], [2.0]], {"a": (1,), "b": (1,)}], _read)
    yield example(
        "a model that is written with its adapters", [["w"], "there", ["lora", "config", "base"]], _written
    )
    for targets, excluded, right_names in (
        (None, [], ["x.q", "x.v", "y"]), (["q"], [], ["x.q"]), (["x.q", "y"], [], ["x.q", "y"]),
        (None, ["v"], ["x.q", "y"]),
        (["q", "v"], ["x.v"], ["x.q"]), (["head"], [], ["head"]),
    ):  # fmt: skip
        yield example(f"layers {targets} without {excluded}", right_names, _layers, targets, excluded)
    for words, targets, excluded in (
        ("no linear layer of Made is called z; there are head, q, v, y", ["q", "z"], []),
        ("no linear layer is left to adapt", ["q"], ["q"]),
        ("is called x", ["x"], []),
    ):
        yield refused(words, f"layers {targets} without {excluded}", _layers, targets, excluded)


def _adapters(enabled: bool, path: str | None) -> list[Any]:
    loaded: list[str] = []
    config: Any = SimpleNamespace(enabled=enabled, adapter_path=path)
    model: Any = "model"
    with (
        patch.object(
            adapter_files,
            "add_adapters",
            lambda of, own: "adapters" if (of, own) == (model, config) else None,
        ),
        patch.object(adapter_files, "load_adapters", lambda of, folder: loaded.append(str(folder))),
    ):
        return [adapter_files.make_adapters(model, config), loaded]


def _read() -> list[Any]:
    asked: list[Any] = []
    own = {"a": nn.Parameter(torch.zeros(1)), "b": nn.Parameter(torch.zeros(1))}
    adapters: Any = SimpleNamespace(weights=lambda: own, config="config")

    def read(folder: Path, config: str, shapes: Any) -> Any:
        assert (str(folder), config) == ("there", "config")
        asked.append(shapes)
        return {"b": torch.tensor([2.0]), "a": torch.tensor([1.0])}

    with patch.object(adapter_files, "read_adapters", read):
        adapter_files.load_adapters(adapters, Path("there"))
    return [[weight.tolist() for weight in own.values()], *asked]


def _written() -> list[Any]:
    """Return the weights that are written of a model, where its adapters are, and what is written of them."""
    found: list[Any] = []
    model: Any = SimpleNamespace(state_dict=lambda: {"w": 0}, config=SimpleNamespace(name_or_path="base"))
    adapters: Any = SimpleNamespace(model=model, config="config")

    def write(of: Any, tokenizer: str, folder: Path, *, weights: Any) -> None:
        assert (
            of is model
            and tokenizer == "tokenizer"
            and not any(one.requires_grad for one in weights.values())
        )
        (folder / "model").touch()
        found.append(list(weights))

    def save(weights: Any, config: str, base: str, output: Path) -> None:
        assert output.name == "adapter" and (output.parent / "model").exists()
        found.extend(["there", [*weights, config, base]])

    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(adapter_files, "write_model", write),
        patch.object(adapter_files, "save_adapters", save),
    ):
        merged = iter([("w", torch.ones(1, requires_grad=True)), ("late", torch.ones(1))])
        tokenizer: Any = "tokenizer"
        output = Path(folder, "out")
        adapter_files.save_merged(adapters, tokenizer, output, merged=merged, weights={"lora": torch.ones(1)})
        assert (output / "model").exists()
    return found


def _layers(targets: list[str] | None, excluded: list[str]) -> list[str]:
    from refrl.policy.lora import chosen_layers

    class Made(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = nn.ModuleDict({"q": nn.Linear(1, 1), "v": nn.Linear(1, 1)})
            self.y, self.head, self.norm = nn.Linear(1, 1), nn.Linear(1, 1), nn.LayerNorm(1)

        def get_output_embeddings(self) -> nn.Module:
            return self.head

        def get_input_embeddings(self) -> nn.Module:
            return nn.Embedding(1, 1)

    config = LoraConfig(
        enabled=True,
        target_modules=None if targets is None else tuple(targets),
        exclude_modules=tuple(excluded),
    )
    return sorted(chosen_layers(cast(Any, Made()), config))


def _of_policies() -> Iterator[WorkedExample]:
    yield example("gradients of a policy in half precision", {"one": [0.0], "two": [5.0]}, _gradients)
    yield example("weights that a policy trains", ["one", "two"], lambda: list(_policy().trained_weights()))
    for rank, adapts, right in (
        (0, False, ["plain", "tokenizer", "there", "write"]), (1, False, []), (1, True, []),
        (0, True, ["merged", "tokenizer", "there", "named", "weights"]),
    ):  # fmt: skip
        yield example(f"what rank {rank} exports, adapted: {adapts}", right, _exported, rank, adapts)
    yield example("weights that ranks compare after a step", [(0.5, ["w", "a"]), (0.5, 0.25)], _compared)


def _policy(**parts: Any) -> Any:
    made = object.__new__(HFPolicy)
    model = nn.ParameterDict(
        {"one": torch.tensor([1.0]), "two": torch.tensor([2.0]), "kept": torch.tensor([3.0])}
    )
    model["kept"].requires_grad_(False)
    vars(made).update({"model": model, "_adapters": None, **parts})
    return made


def _gradients() -> Any:
    masters = [nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))]
    masters[1].grad = torch.tensor([5.0])
    own = _policy(_optimizer=SimpleNamespace(weights=masters))
    found = own.named_gradients()
    masters[1].grad.fill_(9.0)
    return {name: gradient.tolist() for name, gradient in found.items()}


def _exported(rank: int, adapts: bool) -> list[Any]:
    noted: list[Any] = []
    adapters = SimpleNamespace(named_weights=lambda: "named", weights=lambda: "weights") if adapts else None
    own = _policy(
        _data=SimpleNamespace(rank=rank), _adapters=adapters, _tokenizer="tokenizer",
        _auxiliary=SimpleNamespace(write="write"),
    )  # fmt: skip

    def plain(model: Any, tokenizer: str, output: Path, extra: str) -> None:
        assert model is own.model
        noted.extend(["plain", tokenizer, str(output), extra])

    def merge(of: Any, tokenizer: str, output: Path, *, merged: str, weights: str) -> None:
        assert of is adapters
        noted.extend(["merged", tokenizer, str(output), merged, weights])

    with patch.object(hf, "save_directory", plain), patch.object(hf, "save_merged", merge):
        own.save(Path("there"))
    return noted


def _compared() -> Any:
    noted: list[Any] = []
    own = _policy(
        _optimizer=SimpleNamespace(step=lambda: (0.5, 0.25), weights=["w"]),
        _auxiliary=SimpleNamespace(step=lambda: None, weights=["a"]),
        _data=SimpleNamespace(check_agreement=lambda norm, weights: noted.append((norm, weights))),
    )
    found = own.step()
    return [*noted, found]
