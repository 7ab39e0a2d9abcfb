"""Worked examples of adapters that a model loads itself, for pairs of ways: what it computes, its mode, what trains.

Every result is that of PEFT's own model of the same files, also after PEFT has merged the adapter into the weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.small_models import model_class as of_name
from seatrial.targets.transformers.worked.adapter_kinds import (
    KINDS,
    _base,
    _config,
    _draw,
    _names,
    _same,
    need_own_peft,
)
from seatrial.targets.transformers.worked.adapters import CAUSAL, with_any_peft
from seatrial.targets.transformers.worked.answered_pairs import Table, cases_of_pairs
from seatrial.targets.transformers.worked.weights import folder, saved, tensors

AUTO = {
    "LlamaForCausalLM": "AutoModelForCausalLM",
    "LlamaForSequenceClassification": "AutoModelForSequenceClassification",
}
TABLE: Table = {
    "kind": {name: name for name in (
        "LoRA", "LoRA and a head", "LoRA and scores", "LoRA of embeddings", "LoRA and tokens", "IA3 and scores", "LoKr",
        "DoRA", "HRA")},
    "dropout": {"": False, "dropout": True},
    "how": {
        "load_adapter": ("", "folder"), "load_adapter of tensors": ("", "tensors"), "its class": ("own", "folder"),
        "an Auto class": ("auto", "folder"), "its class of a whole": ("own", "whole"),
        "an Auto class of a whole": ("auto", "whole"),
    },
    "trains": {"by default": {}, "to train": {"is_trainable": True}, "to use": {"is_trainable": False}},
    "mode": {"in evaluation": False, "in training": True},
    "name": {"": "default", "a name": "one"},
    "due": {"PEFT's model": False, "merged": True},
}  # fmt: skip
DROPS = ("LoRA", "DoRA")


def _fits(case: Mapping[str, Any]) -> bool:
    """Return whether a reader takes the files and options of a case."""
    if case["dropout"] and not case["kind"].startswith(DROPS):
        return False
    return not case["how"][0] or not (case["trains"] or case["mode"])


def _written(case: Mapping[str, Any]) -> tuple[Path, Path, Any]:
    """Return the folder of an adapter, that of its base, and PEFT's model of both."""
    import peft

    config = _config(case["kind"])
    if case["dropout"]:
        config.lora_dropout = 0.5
    base = _base(case["kind"])
    path, plain = folder(), saved(base)
    one = _draw(peft.get_peft_model(base, config, adapter_name="one"))
    one.save_pretrained(path)
    path /= "one"
    named = path / "adapter_config.json"
    words = json.loads(named.read_text(encoding="utf-8"))
    source = plain
    if case["how"][1] == "whole":  # the adapter's configuration names a model with other weights
        other = _base(case["kind"])
        with torch.no_grad():
            for value in other.parameters():
                value.mul_(1.5)
        source = saved(other)
        _base(case["kind"]).save_pretrained(path)
    named.write_text(json.dumps({**words, "base_model_name_or_path": str(source)}), encoding="utf-8")
    return path, plain, one


def _loaded(case: Mapping[str, Any], path: Path, plain: Path) -> Any:
    """Return the model after it has loaded the adapter."""
    made = KINDS[case["kind"]][0]
    if case["how"][0]:
        reader = of_name(made if case["how"][0] == "own" else AUTO[made])
        return reader.from_pretrained(path, adapter_name=case["name"])
    model = of_name(made).from_pretrained(plain).train(case["mode"])
    given: dict[str, Any] = {"adapter_name": case["name"], **case["trains"]}
    if case["how"][1] == "tensors":
        config = _config(case["kind"])
        config.inference_mode = not case["trains"].get("is_trainable", False)
        if case["dropout"]:
            config.lora_dropout = 0.5
        (file,) = path.glob("adapter_model.safetensors")
        values = tensors(file.parent)
        own = {name.removeprefix("base_model.model."): value for name, value in values.items()}
        model.load_adapter(adapter_state_dict=own, peft_config=config, **given)
    else:
        model.load_adapter(str(path), **given)
    return model


def _compared(case: Mapping[str, Any], function: Any) -> list[str]:
    """Return what differs from PEFT's model: the mode, what trains, logits as the model is, names of adapters."""
    if case["kind"].startswith("DoRA"):
        need_own_peft()
    path, plain, one = _written(case)
    model, wrong = _loaded(case, path, plain), []
    trains = case["trains"].get("is_trainable", False)
    if list(model.active_adapters()) != [case["name"]]:
        wrong.append(f"{model.active_adapters()} are active")
    if not trains:
        training = [name or "the model" for name, module in model.named_modules() if module.training]
        wrong += [f"in training mode: {training[:2]}"] if training else []
    due = [name.replace(".one", f".{case['name']}") for name in _names(one, True)] if trains else []
    found = [name for name in _names(model, True) if f".{case['name']}" in name]
    # Copies of modules train after a load for use: `own_adapters` has that finding.
    found = [name for name in found if trains or ".modules_to_save." not in name]
    wrong += [] if found == due else [f"trains: {sorted({*found} ^ {*due})[:2]}"]
    right = one.merge_and_unload() if case["due"] else one
    model = model.eval() if trains else model
    if not _same(model, right.eval()):
        wrong.append("other logits")
    if _same(model, _base(case["kind"])):
        wrong.append("logits of the base")
    return wrong


def _table() -> Iterator[Row]:
    for name, case in cases_of_pairs(TABLE, _fits):
        yield Row(
            "states", CAUSAL, f"an adapter that is loaded: {name}", with_any_peft(partial(_compared, case)), [],
            since="5.4" if case["how"][1] == "whole" else "4.57",
        )  # fmt: skip


# Sources: the documentation of load_adapter and from_pretrained, and PEFT's own models of the same files.
PAIRED_ADAPTER_ROWS: Sequence[Row] = tuple(_table())
