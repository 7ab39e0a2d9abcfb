"""Worked examples of files that do not fit a model, with every pair of faults and options: what is said and read."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.cases.pairwise import names_of, pairwise
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.small_models import model_class as of_name
from seatrial.targets.transformers.worked.pairs_models import KINDS, ties, unlike_tensors, wide
from seatrial.targets.transformers.worked.weights import saved, tensors

OPTIONS: Mapping[str, Sequence[str]] = {
    "kind": tuple(name for name in KINDS if name != "a list of Llamas"),
    "missing": ("", "missing", "much missing"),
    "extra": ("", "left over"),
    "sizes": ("", "other sizes"),
    "names": ("", "names mapped", "names mapped by groups"),
    "files": ("one file", "three files"),
    "type": ("", "as bfloat16", "as float64", "auto"),
    "device": ("", "cpu", "low memory"),
    "read": ("by its class", "by an Auto class"),
    "tables": ("", "options of the configuration"),
    "default": ("", "default float64"),
}
"""Values of each option, in words."""
EXTRA = {"extra.weight": 5, "another.0.bias": 2}


def cases() -> Iterator[dict[str, str]]:
    """Yield choices that together have every pair of values of two options."""
    for row in pairwise({name: len(values) for name, values in OPTIONS.items()}, lambda row: True):
        yield {name: OPTIONS[name][index] for name, index in row.items()}


def write_files(values: Mapping[str, Tensor], path: Path, parts: int) -> None:
    """Replace the tensors of a folder, in one file or in several with an index, or in one of torch where 0 is given."""
    from safetensors.torch import save_file

    for old in path.glob("*.safetensors"):
        old.unlink()
    if not parts:
        torch.save(dict(values), path / "pytorch_model.bin")
        return
    if parts == 1:
        save_file(dict(values), path / "model.safetensors", {"format": "pt"})
        return
    places: dict[str, str] = {}
    for part in range(parts):
        file = f"model-{part + 1:05}-of-{parts:05}.safetensors"
        names = sorted(values)[part::parts]
        save_file({name: values[name] for name in names}, path / file, {"format": "pt"})
        places |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def _own_names(model: Any, written: Mapping[str, Tensor]) -> list[str]:
    """Return names of parameters that files and model share, and that are one tensor each."""
    shared = {name for names in ties(model) for name in names}
    return [
        name
        for name, value in model.named_parameters()
        if name in written and name not in shared and value.shape == written[name].shape
    ]


def _renamed(name: str, by_groups: bool) -> str:
    """Return another name: the last part begins or ends otherwise."""
    before, _, last = name.rpartition(".")
    if not before:
        return name
    return f"{name}_was" if by_groups else f"{before}.old_{last}"


def _read(chosen: Mapping[str, str], model_base: Any) -> list[str]:
    """Return what is said or read of files with faults that is not due."""
    kind = KINDS[chosen["kind"]]
    model = kind.model()
    path = saved(model)
    written = {name: value.clone() for name, value in tensors(path).items()}
    own = _own_names(model, written)
    if len(own) < 4:
        raise NotServed("its files share too few names with it")
    gone: list[str] = []
    if chosen["missing"]:
        gone = own[1::3][:2] if chosen["missing"] == "missing" else own[len(own) // 2 :]
    kept = [name for name in own if name not in gone]
    large = [name for name in kept if len(written[name].shape) == 2][-1:] if chosen["sizes"] else []
    files = {name: value for name, value in written.items() if name not in gone}
    for name in large:
        files[name] = torch.cat([files[name], files[name][:2]])
    options: dict[str, Any] = {"ignore_mismatched_sizes": True} if large else {}
    if chosen["names"]:
        by_groups = "groups" in chosen["names"]
        options["key_mapping"] = {r"^(.*)_was$": r"\1"} if by_groups else {r"\.old_": "."}
        files = {_renamed(name, by_groups): value for name, value in files.items()}
    if chosen["extra"]:
        files |= {name: torch.ones(size) for name, size in EXTRA.items()}
    write_files(files, path, 1 if chosen["files"] == "one file" else 3)
    kinds = {"as bfloat16": torch.bfloat16, "as float64": torch.float64, "": torch.float32}
    dtype = kinds.get(chosen["type"], torch.float32)
    options["dtype"] = "auto" if chosen["type"] == "auto" else dtype
    devices: Mapping[str, Mapping[str, Any]] = {
        "cpu": {"device_map": "cpu"},
        "low memory": {"low_cpu_mem_usage": True},
    }
    options |= devices.get(chosen["device"], {})
    options |= {"output_hidden_states": True} if chosen["tables"] else {}
    reader = kind.cls if chosen["read"] == "by its class" else of_name(kind.auto)
    with _default(chosen):
        read, said = reader.from_pretrained(path, output_loading_info=True, **options)
    missing = {*said["missing_keys"]} - {*large}
    wrong = [] if missing == {*gone} else [f"missing: {sorted(missing ^ {*gone})[:3]} more or less"]
    extra = {*EXTRA} if chosen["extra"] else set()
    if {*said["unexpected_keys"]} != extra:
        wrong.append(f"left over: {sorted({*said['unexpected_keys']} ^ extra)[:3]} more or less")
    # Releases of 4 say the name alone, later ones both sizes too.
    if {one if isinstance(one, str) else one[0] for one in said["mismatched_keys"]} != {*large}:
        wrong.append(f"other sizes: {said['mismatched_keys']}")
    begun = {*gone, *large}
    due = {
        name: value.to(wide(model, name, dtype)) if value.is_floating_point() else value
        for name, value in model.state_dict().items()
        if name not in begun
    }
    found = {name: value for name, value in read.state_dict().items() if name not in begun}
    wrong += unlike_tensors(found, due, "read")
    wrong += [] if ties(read) == ties(model) else [f"ties: {ties(read)}"]
    wrong += _of_begun(read, model, begun, dtype)
    if read.training or not all(value.requires_grad for value in read.parameters()):
        wrong.append("it is in training, or parameters do not train")
    if bool(read.config.output_hidden_states) != bool(chosen["tables"]):
        wrong.append("options of the configuration")
    return wrong[:3]


@contextlib.contextmanager
def _default(chosen: Mapping[str, str]) -> Iterator[None]:
    torch.set_default_dtype(torch.float64 if chosen["default"] else torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def _of_begun(read: Any, model: Any, names: set[str], dtype: torch.dtype) -> list[str]:
    """Return weights that begin again and are of another type or shape, not finite, or unlike fresh ones."""
    wrong, right = [], type(model)(model.config).state_dict()
    for name, value in read.state_dict().items():
        if name not in names:
            continue
        if value.dtype is not wide(model, name, dtype) or value.shape != right[name].shape:
            wrong.append(f"{name} begins as {value.dtype} {list(value.shape)}")
        elif not bool(value.isfinite().all()):
            wrong.append(f"{name} begins with values that are not finite")
        elif bool((right[name] == right[name].flatten()[0]).all()):
            # Zeros of biases and ones of norms are no draws.
            if not torch.equal(value.double(), right[name].double()):
                wrong.append(f"{name} begins as {value.flatten()[:2]}")
        elif value.numel() > 20 and not 0.3 < float(value.double().std() / right[name].double().std()) < 3:
            wrong.append(f"{name} begins with a spread of {float(value.double().std())}")
    return wrong


def _table() -> Iterator[Row]:
    for chosen in cases():
        index = {name: OPTIONS[name].index(value) for name, value in chosen.items()}
        name = f"files that do not fit: {chosen['kind']}, {names_of({**index, 'kind': 0}, OPTIONS)}"
        yield Row("files", "transformers:PreTrainedModel", name, partial(_read, chosen), [], since="4.57")


# Sources: the documentation of from_pretrained (ignore_mismatched_sizes, key_mapping, output_loading_info).
PAIRED_DAMAGED_ROWS: Sequence[Row] = tuple(_table())
