"""Worked examples of PEFT's names: layers that options name, patterns, and sizes that a base model gives."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from seatrial.targets.common.worked_rows import Row
from seatrial.targets.peft.worked.functions import OTHERS, TUNERS, Nested, refused_calls


def _config(**options: Any) -> Any:
    import peft

    return peft.LoraConfig(**{"r": 2, **options})


KEYS = (
    "model.layers.0.q_proj",
    "model.layers.1.q_proj",
    "model.layers.11.q_proj",
    "model.layers.1.experts.0.q_proj",
    "model.blocks.1.q_proj",
    "q_proj",
    "model.layers.0.my_q_proj",
    "lm_head",
    "model.lm_head.inner.q_proj",
    "my_lm_head",
)


def _matched(function: Callable[..., Any], **options: Any) -> list[int]:
    """Return the positions in `KEYS` of the names that match."""
    config = _config(**options)
    return [place for place, key in enumerate(KEYS) if function(config, key)]


def _matches(function: Callable[..., Any]) -> dict[str, list[int]]:
    return {
        "end of a name": _matched(function, target_modules=["q_proj"]),
        "two ends": _matched(function, target_modules=["q_proj", "lm_head"]),
        "expression": _matched(function, target_modules=r"model\.layers\.\d\.q_proj"),
        "excluded ends": _matched(
            function, target_modules=["q_proj"], exclude_modules=["1.q_proj", "q_proj"]
        ),
        "one excluded": _matched(function, target_modules=["q_proj"], exclude_modules=["0.q_proj"]),
        "expression excluded": _matched(
            function, target_modules=["q_proj"], exclude_modules=r".*layers\.1\..*"
        ),
        "saved": _matched(function, target_modules=["q_proj", "lm_head"], modules_to_save=["lm_head"]),
        "one layer": _matched(function, target_modules=["q_proj"], layers_to_transform=1),
        "two layers": _matched(function, target_modules=["q_proj"], layers_to_transform=[0, 11]),
        "no layers": _matched(function, target_modules=["q_proj"], layers_to_transform=[]),
        "a layer of a list": _matched(
            function, target_modules=["q_proj"], layers_to_transform=[1], layers_pattern="layers"
        ),
        "a layer of two lists": _matched(
            function, target_modules=["q_proj"], layers_to_transform=[1], layers_pattern=["blocks", "layers"]
        ),
    }


MATCHES: Mapping[str, Sequence[int]] = {
    "end of a name": [0, 1, 2, 3, 4, 5, 8],
    "two ends": [0, 1, 2, 3, 4, 5, 7, 8],
    "expression": [0, 1],
    "excluded ends": [],
    "one excluded": [1, 2, 4, 5, 8],
    "expression excluded": [0, 2, 4, 5, 8],
    "saved": [0, 1, 2, 3, 4, 5],
    "one layer": [1, 3, 4, 5],
    "two layers": [0, 2, 5],
    "no layers": [0, 1, 2, 3, 4, 5, 8],
    "a layer of a list": [1, 3, 5],
    "a layer of two lists": [1, 3, 4, 5],
}


def _fewest(function: Callable[..., Any]) -> dict[str, Any]:
    decoder = [f"decoder.{layer}.{part}" for layer in range(3) for part in ("q", "v")]
    return {
        "apart": function(decoder, ["decoder.0.k", "head"]),
        "one part": function(decoder, ["encoder.0.q", "decoder.0.k"]),
        "all": function(["q"], ["k.q"]),
        "refused": refused_calls(function, ("q", ["k"]), ([], ["k"]), (["q", ""], ["k"]), (["q"], ["q"])),
    }


def _all_linear(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the layers of `all-linear` in a plain model, with an adapter, and in Transformers' models."""
    import peft
    import transformers

    from seatrial.targets.peft.bases import base

    plain = Nested()
    every = function(_config(target_modules="All-Linear"), copy.deepcopy(plain)).target_modules
    adapted = peft.get_peft_model(copy.deepcopy(plain), _config(target_modules=["q_proj"])).base_model.model
    library: Any = transformers
    sizes = {"vocab_size": 8, "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    classifier = library.BertForSequenceClassification(library.BertConfig(**sizes, intermediate_size=8))
    found = function(_config(target_modules="all-linear", task_type="SEQ_CLS"), classifier).target_modules
    causal = function(_config(target_modules="all-linear"), base("linear", torch.float32)).target_modules
    return {
        "plain": sorted(every)
        == sorted(name for name, one in plain.named_modules() if isinstance(one, nn.Linear)),
        "adapted": function(_config(target_modules="all-linear"), adapted).target_modules == every,
        "classifier left out": "classifier" not in found and any(name.endswith("query") for name in found),
        "head left out": "lm_head" not in causal and len(causal) == 14,
        "as given": function(_config(target_modules=["mlp"]), plain).target_modules,
    }


NEEDED: Mapping[str, Mapping[str, Any]] = {
    "AdaLoraConfig": {"total_step": 10},
    "IA3Config": {"feedforward_modules": []},
    "OFTConfig": {"r": 0, "oft_block_size": 4},
}
"""Options without which a class is not made."""
KEEPS_LISTS = ("AdaptionPromptConfig", "LNTuningConfig", "OSFConfig", "TrainableTokensConfig")
CONFLICTS: Mapping[str, str] = {
    "layers of an expression": "AdaLora C3A Deft Delora FourierFT HRA Hira Lora Miss Psoft Shadow UniLora WaveFT",
    "a pattern of an expression": "AdaLora BOFT C3A Deft Delora FourierFT Frod HRA Hira Lily LoHa LoKr Lora Miss OFT "
    "Peanut Psoft Pvera Shadow TinyLora UniLora VBLoRA Vera WaveFT",
    "a pattern without layers": "AdaLora BOFT Deft Delora FourierFT Frod HRA Lily LoHa LoKr Lora OFT Peanut Psoft "
    "Pvera Shadow TinyLora VBLoRA Vera WaveFT",
    "layers": "",
    "layers of a pattern": "",
}
"""Classes of options that refuse what has no effect on them."""
LAYERS: Mapping[str, Mapping[str, Any]] = {
    "layers of an expression": {"target_modules": "a|b", "layers_to_transform": [1]},
    "a pattern of an expression": {"target_modules": "a|b", "layers_pattern": "layers"},
    "a pattern without layers": {"target_modules": ["a"], "layers_pattern": "layers"},
    "layers": {"target_modules": ["a"], "layers_to_transform": [1]},
    "layers of a pattern": {"target_modules": ["a"], "layers_to_transform": [1], "layers_pattern": "layers"},
}


def _lists(classes: Mapping[Any, Any]) -> list[str]:
    """Return what classes of options make of lists and strings of names, where it is not a set and the string."""
    wrong: list[str] = []
    for made in classes.values():
        kind, known = made.__name__, {item.name for item in dataclasses.fields(made)}
        needed = {"target_modules": ["c"], **NEEDED.get(kind, {})}
        if "target_modules" not in known or kind == "AdamssConfig":  # which needs scikit-learn
            continue
        for name in ("target_modules", "exclude_modules"):
            for given in (["a", "b"], "a|b") if name in known else ():
                found = getattr(made(**{**needed, name: given}), name)
                due = set(given) if isinstance(given, list) and kind not in KEEPS_LISTS else given
                wrong += [] if found == due else [f"{kind}.{name} of {given}: {found}"]
        for what, options in LAYERS.items() if "layers_pattern" in known else ():
            refused = kind.removesuffix("Config") in CONFLICTS[what].split()
            try:
                made(**{**needed, **options})
            except ValueError as error:
                wrong += [] if refused else [f"{kind}, {what}: {error}"]
            else:
                wrong += [f"{kind}, {what}: taken"] if refused else []
    return wrong


def _submodules(function: Callable[..., Any]) -> list[Any]:
    model = Nested()
    layers: Any = model.model["layers"]
    block = layers[1]
    parent, target, name = function(model, "model.layers.1.mlp")
    top = function(model, "lm_head")
    return [parent is block, target is block["mlp"], name, top[0] is model, top[1] is model.lm_head, top[2]]


def _prepared(function: Callable[..., Any]) -> dict[str, Any]:
    """Return what is read of a base model's configuration for virtual tokens, by the names that models give it."""
    import peft

    found = {}
    for name, given in (
        ("hidden", {"num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 4}),
        ("layers", {"num_layers": 2, "d_model": 16, "num_heads": 2}),
        ("short", {"n_layer": 5, "n_embd": 24, "n_head": 3}),
        ("encoder", {"num_layers": 2, "d_model": 16, "encoder_attention_heads": 8}),
        ("in a text", {"text_config": {"num_layers": 2, "d_model": 16, "num_heads": 2}, "num_layers": 9}),
        ("shared keys", {"num_layers": 2, "d_model": 16, "num_heads": 4, "num_key_value_heads": 2}),
        (
            "wide heads",
            {"num_layers": 2, "d_model": 16, "num_heads": 4, "num_key_value_heads": 2, "head_dim": 10},
        ),
    ):
        made = function(peft.PrefixTuningConfig(num_virtual_tokens=2), given)
        found[name] = [made.num_layers, made.token_dim, made.num_attention_heads, made.encoder_hidden_size]
    config = peft.PromptEncoderConfig(
        num_virtual_tokens=2, num_layers=1, token_dim=6, num_attention_heads=3, encoder_hidden_size=7
    )
    made = function(config, {"num_layers": 2, "d_model": 16, "num_heads": 4, "num_key_value_heads": 2})
    found["given"] = [made.num_layers, made.token_dim, made.num_attention_heads, made.encoder_hidden_size]
    return found


ROWS: Sequence[Row] = (
    Row("parts", f"{TUNERS}check_target_module_exists", "names", _matches, MATCHES, since="0.20"),
    Row(
        "parts",
        f"{TUNERS}_find_minimal_target_modules",
        "ends of names",
        _fewest,
        {
            "apart": {"q", "v"},
            "one part": {"decoder.0.q", "1.q", "2.q", "v"},
            "all": {"q"},
            "refused": [True] * 4,
        },
        since="0.15",
    ),
    Row(
        "parts",
        f"{TUNERS}_maybe_include_all_linear_layers",
        "all linear layers",
        _all_linear,
        {
            "plain": True,
            "adapted": True,
            "classifier left out": True,
            "head left out": True,
            "as given": {"mlp"},
        },
        since="0.15",
    ),
    Row("options", "peft.mapping:PEFT_TYPE_TO_CONFIG_MAPPING", "lists of names", _lists, [], since="0.20"),
    Row(
        "parts",
        f"{OTHERS}_get_submodules",
        "within and at the top",
        _submodules,
        [True, True, "mlp", True, True, "lm_head"],
    ),
    Row(
        "parts",
        f"{OTHERS}get_pattern_key",
        "ends and expressions of names",
        lambda function: [
            function(["k_proj", "q_proj"], "model.layers.0.q_proj"),
            function([r"layers\.\d\.q_proj", "q_proj"], "model.layers.0.q_proj"),
            function(["q"], "model.layers.0.q_proj"),
            function(["proj"], "model.q_proj"),
            function(["q_proj"], "q_proj"),
            function([], "q_proj"),
        ],
        ["q_proj", r"layers\.\d\.q_proj", "model.layers.0.q_proj", "model.q_proj", "q_proj", "q_proj"],
        since="0.15",
    ),
    Row(
        "parts",
        f"{OTHERS}_is_valid_match",
        "whole parts of names",
        lambda function: [
            function("a.b.c", "b.c"),
            function("a.bb.c", "b.c"),
            function("b.c", "b.c"),
            function("b.c", "a.b.c"),
        ],
        [True, False, True, False],
        since="0.4",
    ),
    Row(
        "models",
        f"{OTHERS}_prepare_prompt_learning_config",
        "sizes of a base model",
        _prepared,
        {
            "hidden": [3, 32, 4, 32],
            "layers": [2, 16, 2, 16],
            "short": [5, 24, 3, 24],
            "encoder": [2, 16, 8, 16],
            "in a text": [2, 16, 2, 16],
            "shared keys": [2, 8, 2, 8],
            "wide heads": [2, 20, 2, 20],
            "given": [1, 6, 3, 7],
        },
        since="0.19",
    ),
)
