"""Worked examples of the tensors of PEFT's adapters: embeddings, biases and whole modules, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from seatrial.targets.common.worked_rows import Row
from seatrial.targets.peft.bases import base
from seatrial.targets.peft.worked.calls import NEXT
from seatrial.targets.peft.worked.models import adapted, is_refused, lora, same, text


def _embeddings(state: Callable[..., Any]) -> dict[str, list[str]]:
    """Return which embeddings are in the state of an adapter, by its layers and the option."""
    import peft

    found: dict[str, list[str]] = {}
    for name, options in (
        ("attention", {"target_modules": ["q_proj"]}),
        ("embedding", {"target_modules": ["q_proj", "embed_tokens"]}),
        ("expression", {"target_modules": r".*(q_proj|embed_tokens)"}),
        ("other expression", {"target_modules": r".*q_proj"}),
        ("tokens", {"target_modules": ["q_proj"], "trainable_token_indices": [3, 5]}),
    ):
        model = peft.get_peft_model(base("linear", torch.float32), lora(**options))
        for asked in (False, "auto") if name == "tokens" else (True, False, "auto"):
            keys = state(model, save_embedding_layers=asked)
            whole = [key for key in keys if "lora_" not in key and "token_adapter" not in key]
            found[f"{name}, {asked}"] = sorted(
                key.removeprefix("base_model.model.").replace("model.", "") for key in whole
            )
    return found


BOTH, ONE = ["embed_tokens.weight", "lm_head.weight"], ["embed_tokens.base_layer.weight"]
EMBEDDINGS: Mapping[str, Sequence[str]] = {
    "attention, True": BOTH,
    "attention, False": [],
    "attention, auto": [],
    "embedding, True": ONE,
    "embedding, False": [],
    "embedding, auto": ONE,
    "expression, True": ONE,
    "expression, False": [],
    "expression, auto": ONE,
    "other expression, True": BOTH,
    "other expression, False": [],
    "other expression, auto": [],
    "tokens, False": [],
    "tokens, auto": [],
}


def _whole_state(state: Callable[..., Any]) -> dict[str, Any]:
    """Return the tensors of a state, of the adapter that is named, and whether they are those of the model."""
    model = adapted(modules_to_save=["head"])
    model.add_adapter("second", lora(modules_to_save=["head"]))
    given = {name: value + 1 for name, value in model.state_dict().items()}
    first, second, other = state(model), state(model, adapter_name="second"), state(model, state_dict=given)
    return {
        "first": sorted(name.removeprefix("base_model.model.") for name in first),
        "second": sorted(name.removeprefix("base_model.model.") for name in second),
        "given": all(torch.equal(other[name], value + 1) for name, value in first.items()),
        "refused": is_refused(lambda: state(model, adapter_name="none")),
    }


def _biases(state: Callable[..., Any]) -> dict[str, list[str]]:
    """Return the tensors of an adapter by the biases that it trains, without its factors."""
    import peft

    found = {}
    for bias in ("none", "lora_only", "all"):
        names = state(peft.get_peft_model(text(), lora(bias=bias)))
        found[bias] = sorted(name.removeprefix("base_model.model.") for name in names if "lora_" not in name)
    return found


OF_SECOND = ["head.bias", "head.weight", "proj.lora_A.weight", "proj.lora_B.weight"]
STATE: Mapping[str, Any] = {
    "first": OF_SECOND,
    "second": OF_SECOND,
    "given": True,
    "refused": True,
}


def _set(set_state: Callable[..., Any]) -> dict[str, Any]:
    """Return what setting a state changes: the named adapter alone is set."""
    import peft

    model = adapted(modules_to_save=["head"])
    state = peft.get_peft_model_state_dict(model)
    target = peft.get_peft_model(text(), lora(modules_to_save=["head"]))
    target.add_adapter("second", lora(modules_to_save=["head"]))
    before = target.base_model.model.proj.lora_A["default"].weight.clone()
    result = set_state(target, state, adapter_name="second")
    first_stays = torch.equal(before, target.base_model.model.proj.lora_A["default"].weight)
    target.set_adapter("second")
    return {
        "unexpected": list(result.unexpected_keys),
        "the named one": same(target, model),
        "the other one": first_stays,
    }


def _set_keeps_what_is_given(set_state: Callable[..., Any]) -> bool:
    """Return whether the given dictionary has the same names after it was set."""
    import peft

    model = adapted(modules_to_save=["head"])
    state = peft.get_peft_model_state_dict(model)
    names = sorted(state)
    set_state(model, state)
    return sorted(state) == names


ROWS: Sequence[Row] = (
    Row(
        "checkpoints",
        "peft:get_peft_model_state_dict",
        "embeddings in a file",
        _embeddings,
        EMBEDDINGS,
        since="0.17",
    ),
    Row(
        "checkpoints",
        "peft:get_peft_model_state_dict",
        "of the named adapter",
        _whole_state,
        STATE,
        since="0.14",
    ),
    Row(
        "checkpoints",
        "peft:set_peft_model_state_dict",
        "of the named adapter",
        _set,
        {"unexpected": [], "the named one": True, "the other one": True},
        since="0.14",
    ),
    Row(
        "checkpoints",
        "peft:get_peft_model_state_dict",
        "biases",
        _biases,
        {
            "none": [],
            "lora_only": ["proj.base_layer.bias"],
            "all": ["head.bias", "proj.base_layer.bias"],
        },
        since=NEXT,
    ),
    Row(
        "checkpoints",
        "peft:set_peft_model_state_dict",
        "the given state stays",
        _set_keeps_what_is_given,
        True,
        since=NEXT,
    ),
)
