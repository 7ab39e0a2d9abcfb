"""Worked examples of models in other files: of torch, in parts of torch, in folders within folders; and of calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch

from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.weights import folder, llama, same


def _of_torch(model_class: Any) -> list[Any]:
    """Return what differs of files of torch: one, two with an index, next to safe ones, and within a folder."""
    model = llama()
    state = model.state_dict()
    path = folder()
    model.config.save_pretrained(path)
    torch.save(state, path / "pytorch_model.bin")
    found: list[Any] = [same(model_class.from_pretrained(path), model)]
    other = llama()
    with torch.no_grad():
        other.model.norm.weight.add_(1)
    other.save_pretrained(path)
    for options in ({}, {"use_safetensors": True}, {"use_safetensors": False}):
        read = model_class.from_pretrained(path, **options)
        found.append(float(read.model.norm.weight[0]))
    parts = folder()
    model.config.save_pretrained(parts)
    names = sorted(state)
    places = {name: f"pytorch_model-0000{1 + number % 2}-of-00002.bin" for number, name in enumerate(names)}
    for file in {*places.values()}:
        torch.save({name: state[name] for name in names if places[name] == file}, parts / file)
    (parts / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    found.append(same(model_class.from_pretrained(parts), model))
    outer = folder()
    model.save_pretrained(outer / "inner")
    found.append(same(model_class.from_pretrained(outer, subfolder="inner"), model))
    try:
        model_class.from_pretrained(outer)
    except OSError:
        found.append("refused")
    return found


def _kept(function: Any) -> list[Any]:
    """Return places of logits that are kept: all, the last ones, those of numbers, and none beyond the row."""
    states = torch.arange(10).reshape(2, 5, 1)
    return [
        function(states, keep)[..., 0].tolist()
        for keep in (0, 1, 3, 9, torch.tensor([0, 4]), torch.tensor([2]))
    ]


def _kept_of_each(function: Any) -> list[Any]:
    """Return places of logits that are kept of each row: by numbers, and by truth values."""
    states = torch.arange(10).reshape(2, 5, 1)
    seen = torch.tensor([[True, False, False, False, True], [False, True, False, False, False]])
    return [function(states, keep)[..., 0].tolist() for keep in (torch.tensor([[0, 4], [2, 1]]), seen)]


def _attention(model_class: Any) -> list[Any]:
    """Return kinds of attention after a change, whether logits are equal, and the refusal of an unknown kind."""
    model = llama()
    ids = torch.arange(3, 15).reshape(2, 6)
    mask = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])
    found: list[Any] = []
    kept = []
    for kind in ("eager", "sdpa", "eager"):
        model.set_attn_implementation(kind)
        with torch.no_grad():
            kept.append(model(input_ids=ids, attention_mask=mask).logits[:, 2:])
        found.append(model.config._attn_implementation)
    try:
        model.set_attn_implementation("no_such_attention")
    except ValueError:
        found.append("refused")
    return [*found, *(bool((one - kept[0]).abs().max() < 1e-5) for one in kept)]


def _types(function: Any) -> list[Any]:
    """Return the type of tensors by name: of the first that is floating, or of the first."""
    whole, half = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.float16)
    found = []
    for state in ({"a": whole, "b": half}, {"a": half, "b": torch.zeros(1)}, {"a": whole}):
        found.append(str(function(state)))
    return found


CAUSAL = "transformers:LlamaForCausalLM"
# Sources: the documentation of from_pretrained (use_safetensors, subfolder) and of set_attn_implementation.
OTHER_ROWS: Sequence[Row] = (
    Row("files", CAUSAL, "files of torch", _of_torch, [[], 2.0, 2.0, 1.0, [], [], "refused"], since="4.56"),
    Row(
        "calls",
        "transformers.modeling_utils:slice_logits_to_keep",
        "places",
        _kept,
        [
            [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]],
            [[4], [9]],
            [[2, 3, 4], [7, 8, 9]],
            [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]],
            [[0, 4], [5, 9]],
            [[2], [7]],
        ],
    ),
    Row(
        "calls",
        "transformers.modeling_utils:slice_logits_to_keep",
        "places of each row",
        _kept_of_each,
        [[[0, 4], [7, 6]], [0, 4, 6]],
        since="5.24",
    ),
    Row(
        "models",
        CAUSAL,
        "another kind of attention",
        _attention,
        ["eager", "sdpa", "eager", "refused", True, True, True],
        since="4.57.6",
    ),
    Row(
        "calls",
        "transformers.modeling_utils:get_state_dict_dtype",
        "the first type",
        _types,
        ["torch.float16", "torch.float16", "torch.int64"],
        since="5",
    ),
)
