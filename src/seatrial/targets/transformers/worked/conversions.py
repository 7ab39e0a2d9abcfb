"""Worked examples of what Transformers makes of tensors and names in files: parts, lists, turns, and ways back."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from seatrial.targets.common.target import find_name
from seatrial.targets.common.worked_rows import Row

MODULE = "transformers.core_model_loading"


def _part(name: str) -> Any:
    return find_name("transformers", [f"{MODULE}:{name}"])


def _numbers(*shape: int) -> Tensor:
    size = 1
    for one in shape:
        size *= one
    return torch.arange(float(size)).reshape(shape)


def _converted(
    operation: Any, given: dict[str, Any], targets: Sequence[str], **more: Any
) -> dict[str, Tensor]:
    sources = list(given)
    found: dict[str, Any] = operation.convert(
        dict(given),
        source_patterns=sources,
        target_patterns=list(targets),
        full_layer_name=targets[0],
        **more,
    )
    return {name: value[0] if isinstance(value, list) else value for name, value in found.items()}


def _joined(made: Any) -> list[Any]:
    """Return tensors that are joined in the order of their names, lists of them too, and cut into them again."""
    found: list[Any] = []
    for dim in (0, 1):
        one, other = _numbers(2, 4), _numbers(2, 4) + 100
        whole = _converted(made(dim=dim), {"b": [one], "a": [other]}, ["whole"])
        found.append(torch.equal(whole["whole"], torch.cat([one, other], dim)))
        back = _converted(made(dim=dim).reverse_op, whole, ["b", "a"])
        found.append(torch.equal(back["b"], one) and torch.equal(back["a"], other))
        found.append(all(value.is_contiguous() for value in back.values()))
    parts = [_numbers(1, 4) + number for number in range(3)]
    whole = _converted(made(dim=0), {"p": parts}, ["whole"])
    return [*found, torch.equal(whole["whole"], torch.cat(parts))]


def _listed(made: Any) -> list[Any]:
    """Return lists of tensors that are stacked, one list and two, and taken apart again with their numbers."""
    found: list[Any] = []
    for dim in (0, 1):
        parts = [_numbers(3, 2) + 10 * number for number in range(12)]
        whole = _converted(made(dim=dim), {"e.*.w": parts}, ["e.w"])
        found.append(torch.equal(whole["e.w"], torch.stack(parts, dim)))
        back = _converted(made(dim=dim).reverse_op, {"e.w": whole["e.w"]}, ["e.*.w"])
        found.append(all(torch.equal(back[f"e.{number}.w"], part) for number, part in enumerate(parts)))
    two = _converted(
        made(dim=0), {"e.*.a": [torch.zeros(1, 2)] * 2, "e.*.b": [torch.ones(1, 2)] * 2}, ["e.ab"]
    )
    return [*found, {name: value.tolist() for name, value in two.items()}]


def _alternating(made: Any) -> list[Any]:
    """Return rows that alternate between two halves, taken apart into these and back, in both dimensions."""
    plain = torch.arange(6.0)
    found: list[Any] = [_converted(made(dim=0), {"a": plain}, ["b"])["b"].tolist()]
    for dim in (0, 1):
        table = _numbers(4, 6)
        there = _converted(made(dim=dim), {"a": table}, ["b"])["b"]
        back = _converted(made(dim=dim).reverse_op, {"b": there}, ["a"])["a"]
        found.append(torch.equal(back, table) and not torch.equal(there, table))
    return found


def _turned(made: Any) -> list[Any]:
    """Return a tensor whose dimensions are exchanged, one that already has the sizes of the model, and the way back."""
    table = _numbers(2, 3)
    model = SimpleNamespace(get_parameter=lambda name: torch.zeros(3, 2))
    back = _converted(made(0, 1).reverse_op, {"b": table.T}, ["a"])["a"]
    return [
        _converted(made(0, 1), {"a": table}, ["b"])["b"].tolist(),
        _converted(made(0, 1, check_dims=True), {"a": table}, ["b"], model=model)["b"].shape[0],
        _converted(made(0, 1, check_dims=True), {"a": table.T}, ["b"], model=model)["b"].shape[0],
        torch.equal(back, table), list(_converted(made(1, 2), {"a": _numbers(2, 3, 4)}, ["b"])["b"].shape),
    ]  # fmt: skip


def _rotary(made: Any) -> list[Any]:
    """Return rows of heads whose pairs lie side by side, as halves; of a matrix, of a vector, of a part, and back."""
    config = SimpleNamespace(num_attention_heads=2, part=SimpleNamespace(num_attention_heads=1))
    vector = torch.arange(8.0)
    found: list[Any] = [
        _converted(made(), {"a": [vector]}, ["b"], config=config)["b"].tolist(),
        _converted(made(), {"a": [_numbers(8, 1)]}, ["b"], config=config)["b"].flatten().tolist(),
        _converted(made(subconfig_key="part"), {"a": [vector]}, ["b"], config=config)["b"].tolist(),
        _converted(made(permute_layer_names=["q"]), {"a": [vector]}, ["b"], config=config)["b"].tolist(),
    ]
    there = _converted(made(), {"q": [vector]}, ["r"], config=config)["r"]
    return [*found, _converted(made().reverse_op, {"r": [there]}, ["q"], config=config)["q"].tolist()]


def _renamed(made: Any) -> list[Any]:
    """Return names after a change: of a whole word alone, of several, with a part that is kept, once, and back."""
    plain = made("old.norm", "new.norm")
    groups = made(r"^layers\.(\d+)\.a", r"model.layers.\1.a")
    several = made(["gamma", "beta"], "weight")
    names = ("x.old.norm.weight", "x.old.normal.weight", "old.norm.old.norm")
    return [
        [plain.rename_source_key(name)[0] for name in names],
        [groups.rename_source_key(name)[0] for name in ("layers.12.a.b", "x.layers.1.a")],
        [several.rename_source_key(name)[0] for name in ("n.gamma", "n.beta", "n.gammas")],
        plain.reverse_transform().rename_source_key("x.new.norm.weight")[0], plain.was_used(),
    ]  # fmt: skip


def _prefixed(made: Any) -> list[Any]:
    """Return names with a prefix that is added where it is not, one that is removed, both within a model, and back."""
    add, remove = made(prefix_to_add="model"), made(prefix_to_remove="old")
    inner = made(prefix_to_add="text", model_prefix="model")
    return [
        [add.rename_source_key(name)[0] for name in ("a.b", "model.a.b", "models.a")],
        [remove.rename_source_key(name)[0] for name in ("old.a", "older.a", "x.old.a")],
        [inner.rename_source_key(name)[0] for name in ("model.a", "model.text.a", "a")],
        [add.reverse_transform().rename_source_key("model.a")[0], remove.reverse_transform().rename_source_key("a")[0]],
    ]  # fmt: skip


def _order(function: Any) -> list[str]:
    return sorted(["e.10.w", "e.9.w", "e.1.w", "d.2.w"], key=function)


# Sources: the documentation of each operation; pairs of rotary embeddings as in RoFormer and as in GPT-NeoX.
CONVERSION_ROWS: Sequence[Row] = (
    Row("states", f"{MODULE}:Concatenate", "parts", _joined, [True] * 7, since="5.16"),
    Row(
        "states",
        f"{MODULE}:MergeModulelist",
        "lists",
        _listed,
        [True] * 4 + [{"e.*.a": [[[0.0, 0.0]]] * 2, "e.*.b": [[[1.0, 1.0]]] * 2}],
        since="5",
    ),
    Row(
        "states", f"{MODULE}:Interleave", "halves", _alternating, [[0.0, 2.0, 4.0, 1.0, 3.0, 5.0], True, True]
    ),
    Row(
        "states",
        f"{MODULE}:Transpose",
        "dimensions",
        _turned,
        [[[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]], 3, 3, True, [2, 4, 3]],
        since="5.8",
    ),
    Row(
        "states",
        f"{MODULE}:PermuteForRope",
        "pairs of rotary embeddings",
        _rotary,
        [
            [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0],
            [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0],
            [0.0, 2.0, 4.0, 6.0, 1.0, 3.0, 5.0, 7.0],
            [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
            [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
        ],
        since="5.24",
    ),
    Row(
        "states",
        f"{MODULE}:WeightRenaming",
        "names",
        _renamed,
        [
            ["x.new.norm.weight", "x.old.normal.weight", "new.norm.old.norm"],
            ["model.layers.12.a.b", "x.layers.1.a"],
            ["n.weight", "n.weight", "n.gammas"],
            "x.old.norm.weight",
            True,
        ],
        since="5.23",
    ),
    Row(
        "states",
        f"{MODULE}:PrefixChange",
        "prefixes",
        _prefixed,
        [
            ["model.a.b", "model.a.b", "model.models.a"],
            ["a", "older.a", "x.old.a"],
            ["model.text.a", "model.text.a", "a"],
            ["a", "old.a"],
        ],
        since="5.16",
    ),
    Row(
        "states",
        f"{MODULE}:dot_natural_key",
        "numbers in names",
        _order,
        ["d.2.w", "e.1.w", "e.9.w", "e.10.w"],
    ),
)
