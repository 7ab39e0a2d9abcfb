"""Weights that a class, or a model within it, keeps in float32 when it is read in half precision, by every way to read.

What a class requests is in its attributes `_keep_in_fp32_modules` (in float16 alone) and `_keep_in_fp32_modules_strict`
(in bfloat16 too): names of modules or parameters, which each model within another one requests itself as well.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.worked_rows import Row, Worked
from seatrial.targets.transformers.family_options import draw_by_names
from seatrial.targets.transformers.small_models import fresh_model, is_small, model_class
from seatrial.targets.transformers.worked.every_class import classes, configuration, release_on_record
from seatrial.targets.transformers.worked.weights import T5, _word, folder, saved

LARGEST = 3_000_000
HALVES = (torch.float16, torch.bfloat16)
LISTS = ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict")

Parts = Mapping[str, bool]
"""Whether a parameter stays wide, by name; those about which a class and its parts do not agree are left out."""


def kept(model: Any, half: torch.dtype) -> dict[str, bool]:
    """Return which parameters stay in float32, of the classes of a model and of those within it."""
    asked: list[tuple[str, str]] = []
    for place, module in model.named_modules():
        for attribute in LISTS if half is torch.float16 else LISTS[1:]:
            asked += [(place, one) for one in sorted(getattr(type(module), attribute, None) or ())]
    found: dict[str, bool] = {}
    for name, _ in model.named_parameters(remove_duplicate=False):
        named = [place for place, one in asked if re.search(rf"(^|\.){one}($|\.)", name)]
        within = [place for place in named if not place or name.startswith(f"{place}.")]
        if within or not named:  # what a part requests is unsaid of the other parts
            found[name] = bool(within)
    return found


def _on_disk(model: Any) -> dict[str, str]:
    """Return a map of devices that leaves the parts of every list of layers, but the first one's, on the disk."""
    found: dict[str, str] = {}
    first = True

    def place(module: nn.Module, name: str) -> None:
        nonlocal first
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        children = [*module.named_children()]
        layers = isinstance(module, nn.ModuleList)
        if own or not children:
            found[name] = "cpu" if first or not name else "disk"
            first = False
            return
        for at, (child, inner) in enumerate(children):
            where = f"{name}.{child}" if name else child
            if layers and at:
                found[where] = "disk"
            else:
                place(inner, where)

    place(model, "")
    return found


def _dtypes(model: Any) -> dict[str, torch.dtype]:
    """Return the type of each parameter, of those on the disk in the way in which a call reads them."""
    found = {name: value.dtype for name, value in model.named_parameters(remove_duplicate=False)}
    for place, module in model.named_modules():
        values = getattr(getattr(module, "_hf_hook", None), "weights_map", None)
        for name, value in module.named_parameters(recurse=False):
            if value.device.type == "meta" and values is not None:
                found[f"{place}.{name}"] = values[name].dtype
    return found


Reader = Callable[[Any, torch.dtype, Any], Any]
"""(class, half precision, the model that is saved) -> the model that is read."""


def _by_name(made: Any, half: torch.dtype, model: Any) -> Any:
    return made.from_pretrained(saved(model), **{_word(): str(half).removeprefix("torch.")})


def _on_a_map(made: Any, half: torch.dtype, model: Any) -> Any:
    path = saved(model, max_shard_size="20KB")
    return made.from_pretrained(path, **{_word(): half}, device_map="cpu")


def _from_disk(made: Any, half: torch.dtype, model: Any) -> Any:
    given = _on_disk(model)
    if "disk" not in given.values():
        raise NotServed("one part alone")
    return made.from_pretrained(
        saved(model), **{_word(): half}, device_map=given, offload_folder=str(folder())
    )


def _again(made: Any, half: torch.dtype, model: Any) -> Any:
    read = made.from_pretrained(saved(model), **{_word(): half})
    return made.from_pretrained(saved(read), **{_word(): "auto"})


def _narrow_files(made: Any, half: torch.dtype, model: Any) -> Any:
    return made.from_pretrained(saved(copy.deepcopy(model).to(half)), **{_word(): half})


DISK = "from the disk"
READERS: Mapping[str, Reader] = {
    "in memory": _by_name,
    "shards, on a map of devices": _on_a_map,
    DISK: _from_disk,
    "read again": _again,
    "from files in half precision": _narrow_files,
}
ROUNDED = ("from files in half precision",)
"""Ways to read that give other values."""


def _read(made: Any, config: Any, how: str) -> Iterator[str]:
    """Yield the parameters that are of another type than the classes ask for, or were rounded all the same."""
    model = fresh_model(made, copy.deepcopy(config), LARGEST)
    draw_by_names(model)
    # On the disk, what stays wide in float16 alone is narrow in release 5.24, which is a finding.
    for half in HALVES[1:] if how == DISK else HALVES:
        due = kept(model, half)
        if not any(due.values()) and half is not torch.float16:
            continue
        read = READERS[how](made, half, model)
        types, values = _dtypes(read), dict(read.named_parameters())
        for name, wide in due.items():
            right = torch.float32 if wide else half
            if name not in types:
                yield f"{half}: no {name}"
            elif types[name] is not right:
                yield f"{half}: {name} is {types[name]}, {right} is due"
            elif wide and how not in ROUNDED and name in values:
                value = values[name]
                if value.device.type != "meta" and not torch.equal(value, model.get_parameter(name)):
                    yield f"{half}: {name} was rounded"


def _with_t5(kind: str) -> Any:
    """Return a configuration of a kind whose language model is a T5."""
    config = configuration(kind)
    config.text_config = model_class("T5Config")(**T5)
    config.use_decoder_only_language_model = False
    return config


KINDS: Mapping[str, Callable[[], Any]] = {
    **{kind: partial(configuration, kind) for kind in (
        "afmoe", "axk1", "axk2", "bailing_hybrid", "beam", "blip-2", "deepseek_v2", "deepseek_v3", "deepseek_v32",
        "deepseek_v4", "dots1", "ernie4_5_moe", "exaone_moe", "flint", "glm4_moe", "glm4_moe_lite", "glm4v_moe",
        "glm_moe_dsa", "gpt_oss", "hy_v3", "hy_v4",
        "inkling_text", "instructblip", "instructblipvideo", "kimi_k25", "kolibri1", "mimo_v2_flash", "mistral_large4",
        "mt5", "muse_spark_text", "nemotron_h", "openai_privacy_filter", "pop2piano", "rwkv", "slanext",
        "solar_open", "t5", "udop", "umt5", "voxtral")},
    "blip-2 on a T5": partial(_with_t5, "blip-2"),
}  # fmt: skip
"""Kinds with a small class that names modules, or has a model within it that does."""


def _kind(kind: str, how: str, function: Any) -> list[str]:
    """Return the parameters of the widest class of a kind that have another type than is requested."""
    release_on_record()
    name = kind.partition(" ")[0]
    names = [one for one in classes().get(name, ()) if not one.endswith("Model")] or classes().get(name, [])
    for one in sorted(names, key=lambda one: not one.endswith(("ForCausalLM", "ForConditionalGeneration"))):
        made = model_class(one)
        if is_small(made, KINDS[kind](), LARGEST):
            return list(_read(made, KINDS[kind](), how))[:4]
    raise NotServed(f"no small model of {kind} is made")


PLACE = "transformers:PreTrainedModel"


OF_QUERIES = ("blip-2", "instructblip")
"""Beginnings of kinds whose first weight is wide, so that their files name float32 as the type of the whole."""


def _row(kind: str, how: str) -> Row:
    return Row(
        "models", PLACE, f"weights of {kind} that stay wide, {how}", partial(_kind, kind, how), [],
        since="5.1" if how == DISK or kind.startswith("blip-2 on") else "4.57",
    )  # fmt: skip


# Source: the documentation of the two attributes, in the class PreTrainedModel.
WIDE_ROWS: Sequence[Row] = tuple(_row(kind, how) for kind in KINDS for how in READERS
    if not (how == "read again" and kind.startswith(OF_QUERIES)))  # fmt: skip


class OfWide(Worked):
    """Weights that stay in float32; see `contracts.worked`."""

    package = "transformers"
    worked_rows = WIDE_ROWS


ADAPTERS: dict[str, type[Any]] = {"worked-kept-wide": OfWide}
