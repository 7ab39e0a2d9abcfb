"""Worked examples of PEFT's files: what is written, by which options it is read, and what does not fit."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from seatrial.targets.common.worked_rows import Row
from seatrial.targets.peft.bases import base
from seatrial.targets.peft.worked.calls import NEXT
from seatrial.targets.peft.worked.models import Text, adapted, folder, is_refused, lora, of_method, same, text


def _files(where: Path) -> list[str]:
    found = sorted(str(path.relative_to(where)) for path in where.rglob("*") if path.is_file())
    return [name for name in found if not name.endswith("README.md")]


def _saved(save: Callable[..., Any]) -> dict[str, Any]:
    """Return what is written by the options of `save_pretrained`."""
    import peft

    model = adapted()
    model.add_adapter("other", lora(r=3))
    model.add_adapter("third", lora())
    made: dict[str, Any] = {}
    for name, options in (
        ("all", {}),
        ("one", {"selected_adapters": ["other"]}),
        ("pickled", {"selected_adapters": ["default"], "safe_serialization": False}),
        ("not the main process", {"is_main_process": False}),
    ):
        where = folder()
        save(model, str(where), **options)
        made[name] = _files(where)
        if name == "pickled":
            again = peft.PeftModel.from_pretrained(text(), str(where))
            made["pickled is the same"] = same(again, model)
        if name == "all":
            written = json.loads((where / "adapter_config.json").read_text())
            made["written"] = [written["inference_mode"], written["auto_mapping"], written["r"]]
            made["kept"] = [config.inference_mode for config in model.peft_config.values()]
    file = folder() / "file"
    file.write_text("")
    unnamed = folder()
    made["refused"] = [
        is_refused(lambda: save(model, str(file))),
        is_refused(lambda: save(model, str(unnamed), selected_adapters=["other", "none"])),
    ]
    made["written of what is refused"] = _files(unnamed)
    given = {name: value + 1 for name, value in model.state_dict().items()}
    where = folder()
    save(model, str(where), selected_adapters=["default"], state_dict=given)
    found = peft.load_peft_weights(str(where), device="cpu")["base_model.model.proj.lora_A.weight"]
    made["of a given state"] = torch.equal(found, model.base_model.model.proj.lora_A["default"].weight + 1)
    return made


ONE_FILES = ["adapter_config.json", "adapter_model.safetensors"]
SAVED: Mapping[str, Any] = {
    "all": [*ONE_FILES, *(f"{name}/{file}" for name in ("other", "third") for file in ONE_FILES)],
    "one": [f"other/{file}" for file in ONE_FILES],
    "pickled": ["adapter_config.json", "adapter_model.bin"],
    "pickled is the same": True,
    "written": [True, {"base_model_class": "Text", "parent_library": Text.__module__}, 2],
    "kept": [False, False, False],
    "not the main process": [],
    "refused": [True, True],
    "written of what is refused": [],
    "of a given state": True,
}


def _loaded(load: Callable[..., Any]) -> dict[str, Any]:
    """Return what `from_pretrained` makes of its options."""
    import peft

    model, where = adapted(modules_to_save=["head"]), folder()
    model.save_pretrained(str(where / "inner"))
    found: dict[str, Any] = {}
    for name, options in (
        ("plain", {}),
        ("trained", {"is_trainable": True}),
        ("named", {"adapter_name": "mine"}),
        ("in place of memory", {"low_cpu_mem_usage": True}),
        ("from within", {"subfolder": "inner"}),
        (
            "with options",
            {"config": lora(modules_to_save=["head"], inference_mode=True), "is_trainable": True},
        ),
    ):
        path = where if "subfolder" in options else where / "inner"
        made = load(text(), str(path), **options)
        (adapter,) = made.peft_config
        trained = sum(one.requires_grad for one in made.parameters())
        found[name] = [adapter, same(made, model), trained, made.peft_config[adapter].inference_mode]
        found[name] += [made.active_adapter == adapter, any(one.is_meta for one in made.parameters())]
    found["evaluates"] = [
        load(text(), str(where / "inner"), is_trainable=one).training for one in (False, True)
    ]
    found["refused"] = [is_refused(lambda: load(text(), str(where / "inner"), config={"r": 2}))]
    prompt = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    virtual, place = peft.get_peft_model(base("linear", torch.float32), prompt), folder()
    virtual.save_pretrained(str(place))
    plain = base("linear", torch.float32)
    found["refused"] += [is_refused(lambda: load(plain, str(place), is_trainable=True))]
    return found


LOADED: Mapping[str, Any] = {
    "plain": ["default", True, 0, True, True, False],
    "trained": ["default", True, 4, False, True, False],
    "named": ["mine", True, 0, True, True, False],
    "in place of memory": ["default", True, 0, True, True, False],
    "from within": ["default", True, 0, True, True, False],
    "with options": ["default", True, 4, False, True, False],
    "evaluates": [False, True],
    "refused": [True, True],
}


def _half(load: Callable[..., Any]) -> dict[str, list[str]]:
    """Return the types of adapters over half precision, by the way in which they came and the option."""
    import peft

    model, where = adapted(), folder()
    model.save_pretrained(str(where))
    found = {}
    for cast in (True, False):
        half = text().to(torch.bfloat16)
        one = peft.get_peft_model(copy.deepcopy(half), lora(), autocast_adapter_dtype=cast)
        one.add_adapter("added", lora(), autocast_adapter_dtype=cast)
        one.load_adapter(str(where), "loaded", autocast_adapter_dtype=cast)
        other = load(copy.deepcopy(half), str(where), autocast_adapter_dtype=cast)
        layer = one.base_model.model.proj.lora_A
        types = [layer[name].weight.dtype for name in ("default", "added", "loaded")]
        types.append(other.base_model.model.proj.lora_B["default"].weight.dtype)
        found[str(cast)] = [str(one) for one in types]
    return found


def _loads(load: Callable[..., Any]) -> dict[str, Any]:
    """Return what `load_adapter` makes of its options, and what it says of tensors that do not fit."""
    model, wide, where = adapted(), adapted(r=3), folder()
    wide.save_pretrained(str(where / "wide"))
    model.save_pretrained(str(where / "first"))
    found: dict[str, Any] = {}
    result = load(model, str(where / "wide"), "wide")
    found["loaded"] = [list(result.missing_keys), list(result.unexpected_keys), model.active_adapter]
    found["loaded"] += [model.training]
    model.train()
    load(model, str(where / "wide"), "trained", is_trainable=True)
    found["trained"] = [model.training]
    found["trained"] += [model.peft_config[name].inference_mode for name in ("wide", "trained")]
    load(model, str(where / "wide"), "without memory", low_cpu_mem_usage=True)
    model.set_adapter("without memory")
    found["without memory"] = same(model, wide)
    model.set_adapter("default")
    found["of another size"] = is_refused(lambda: load(model, str(where / "wide"), "default"))
    load(model, str(where / "wide"), "default", ignore_mismatched_sizes=True)
    found["left as it was"] = same(model, adapted())
    with torch.no_grad():
        model.base_model.model.proj.lora_B["default"].weight.zero_()
    load(model, str(where / "first"), "default")
    found["in place"] = same(model, adapted())
    fewer = _without(where / "first", "lora_B")
    found["missing"] = [key.rpartition("proj.")[2] for key in load(model, fewer, "fewer").missing_keys]
    return found


LOADS: Mapping[str, Any] = {
    "loaded": [[], [], "default", False],
    "trained": [True, True, False],
    "without memory": True,
    "of another size": True,
    "left as it was": True,
    "in place": True,
    "missing": ["lora_B.fewer.weight"],
}


def _trained_by_loading(load: Callable[..., Any]) -> list[int]:
    """Return how many tensors train as adapters are loaded next to one: for inference, and to be trained."""
    model, where = adapted(), folder()
    model.save_pretrained(str(where))
    found = []
    for name, trained in (("inferred", False), ("trained", True)):
        load(model, str(where), name, is_trainable=trained)
        found.append(sum(one.requires_grad for one in model.parameters()))
    return found


def _without(where: Path, part: str) -> str:
    """Copy a saved adapter without some of its tensors, and with one that no model has; return the folder."""
    from safetensors.torch import load_file, save_file

    made = folder()
    tensors = load_file(where / "adapter_model.safetensors")
    kept = {name: value for name, value in tensors.items() if part not in name}
    save_file(
        {**kept, "base_model.model.none.lora_A.weight": torch.ones(1)}, made / "adapter_model.safetensors"
    )
    (made / "adapter_config.json").write_text((where / "adapter_config.json").read_text())
    return os.fspath(made)


def _weights(load: Callable[..., Any]) -> list[Any]:
    """Return names of tensors in a file: as they are, renamed, from an inner folder, and where there is none."""
    model, where = adapted(), folder()
    model.save_pretrained(str(where / "inner"))
    plain = load(str(where / "inner"), device="cpu")
    renamed = load(str(where / "inner"), device="cpu", key_mapping={"^proj": "first.proj"})
    within = load(str(where), device="cpu", subfolder="inner")
    return [sorted(plain), sorted(renamed), sorted(within) == sorted(plain)]


def _is_adapter(check: Callable[[str], bool]) -> list[bool]:
    where, empty = folder(), folder()
    adapted().save_pretrained(str(where))
    return [check(str(where)), check(str(empty))]


ROWS: Sequence[Row] = (
    Row(
        "checkpoints",
        "peft:PeftModel",
        "its options",
        of_method("save_pretrained", _saved),
        SAVED,
        since="0.14",
    ),
    Row(
        "checkpoints",
        "peft:PeftModel",
        "its options",
        of_method("from_pretrained", _loaded),
        LOADED,
        since="0.18",
    ),
    Row(
        "checkpoints",
        "peft:PeftModel",
        "types over half precision",
        of_method("from_pretrained", _half),
        {"True": ["torch.float32"] * 4, "False": ["torch.bfloat16"] * 4},
        since="0.19",
    ),
    Row(
        "checkpoints", "peft:PeftModel", "its options", of_method("load_adapter", _loads), LOADS, since="0.14"
    ),
    Row(
        "checkpoints",
        "peft:load_peft_weights peft.utils.save_and_load:load_peft_weights",
        "names in a file",
        _weights,
        [
            [f"base_model.model.proj.lora_{one}.weight" for one in "AB"],
            [f"base_model.model.first.proj.lora_{one}.weight" for one in "AB"],
            True,
        ],
        since="0.18",
    ),
    Row("files", "peft.helpers:check_if_peft_model", "a folder with and without", _is_adapter, [True, False]),
    Row(
        "checkpoints",
        "peft:PeftModel",
        "what trains after loading",
        of_method("load_adapter", _trained_by_loading),
        [2, 4],
        since=NEXT,
    ),
)
