"""Worked examples of adapters in files of earlier names of modules, of every kind of model that renames its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.small_models import fresh_model, model_class
from seatrial.targets.transformers.worked.adapters import with_any_peft
from seatrial.targets.transformers.worked.every_class import (
    classes,
    configuration,
    drawn_model,
    release_on_record,
)
from seatrial.targets.transformers.worked.weights import saved, tensors

LARGEST, RANK, NUM_MODULES = 6_000_000, 2, 6


def _made(name: str, kind: str) -> Any:
    return drawn_model(lambda: fresh_model(model_class(name), configuration(kind), LARGEST))


def _earlier(model: Any) -> dict[str, str]:
    """Return the names in files of linear modules that have another one there, by their names in the model."""
    written = tensors(saved(model))
    places = [value.data_ptr() for value in model.state_dict().values()]
    found: dict[str, str] = {}
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear) or f"{name}.weight" in written:
            continue
        if places.count(module.weight.data_ptr()) > 1:  # tied: it is in files under the name of the other
            continue
        own = [one for one, value in written.items() if value.shape == module.weight.shape]
        same = [one for one in own if torch.equal(written[one], module.weight)]
        if len(same) == 1 and same[0].endswith(".weight"):
            found[name] = same[0].removesuffix(".weight")
    first: dict[str, str] = {}
    for name in found:  # one module of each part, then others
        first.setdefault(".".join(part for part in name.split(".") if not part.isdecimal()), name)
    return {name: found[name] for name in [*first.values()][-NUM_MODULES:]}


def _drawn(model: Any, names: Mapping[str, str]) -> dict[str, tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    found = {}
    for name in names:
        out, size = model.get_submodule(name).weight.shape
        found[name] = (
            torch.randn(RANK, size, generator=generator),
            torch.randn(out, RANK, generator=generator),
        )
    return found


def _renamed(kind: str, mixin: Any) -> list[str]:
    """Return the modules whose adapter is not read under the names of files, or of the model, by class."""
    from peft import LoraConfig

    release_on_record()
    wrong, num = [], 0
    for class_name in classes().get(kind, ()):
        if not class_name.endswith(("ForConditionalGeneration", "ForRetrieval", "Model")):
            continue
        model = _made(class_name, kind)
        earlier = _earlier(model)
        if not earlier:
            continue
        num += 1
        factors = _drawn(model, earlier)
        made: Any = LoraConfig
        for how, names in (("files", earlier), ("the model", {name: name for name in earlier})):
            for prefix in ("base_model.model.", ""):
                given = {
                    f"{prefix}{names[name]}.lora_{letter}.weight": value.clone()
                    for name, pair in factors.items()
                    for letter, value in zip("AB", pair, strict=True)
                }
                read = _made(class_name, kind)
                read.load_adapter(
                    adapter_state_dict=given,
                    peft_config=made(r=RANK, target_modules=list(earlier)),
                    adapter_name="one",
                )
                for name, (a, b) in factors.items():
                    layer = read.get_submodule(name)
                    if not (
                        torch.equal(layer.lora_A["one"].weight, a)
                        and torch.equal(layer.lora_B["one"].weight, b)
                    ):
                        wrong.append(f"{class_name}, names of {how}, {prefix or 'no prefix'}: {names[name]}")
                        break
    if not num:
        raise NotServed(f"files of {kind} have the names of the model")
    return wrong[:4]


KINDS: Sequence[str] = (
    "aria", "aya_vision", "gemma3", "got_ocr2", "internvl", "llava", "llava_next", "llava_next_video",
    "llava_onevision", "mistral3", "paligemma", "qwen2_5_vl", "qwen2_vl", "video_llava", "vipllava",
)  # fmt: skip
# Source: the documentation of load_adapter: an adapter of the weights in files goes to the modules that have them now.
ADAPTER_NAME_ROWS: Sequence[Row] = tuple(
    Row(
        "states",
        "transformers:PreTrainedModel",
        f"adapters in the names of files of {kind}",
        with_any_peft(partial(_renamed, kind)),
        [],
        since="4.57",
    )
    for kind in KINDS
)
