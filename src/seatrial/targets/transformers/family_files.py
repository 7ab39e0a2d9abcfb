"""Files of a family's tiny model in every form; see `contracts.model_files`."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from packaging.version import Version
from torch import Tensor

from seatrial.relations.contracts.model_files import FileForm
from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import error_line
from seatrial.targets.common.target import find_name, release
from seatrial.targets.common.trainers import new_folder

SMALLEST_SHARD = "4KB"


def _written(model: Any, **options: Any) -> Path:
    folder = Path(new_folder())
    try:
        model.save_pretrained(folder, **options)
    except RuntimeError as error:
        if "shared tensors" in str(error):
            raise NotServed(error_line(error)) from error
        raise
    return folder


def written_tensors(model: Any) -> dict[str, Tensor]:
    """Return what a model writes, by the names in its files."""
    from safetensors.torch import load_file

    files = sorted(_written(model).glob("*.safetensors"))
    return {name: value for file in files for name, value in load_file(file).items()}


def _read(model: Any, folder: Path, **options: Any) -> tuple[Any, list[str]]:
    """Return what is read from a folder, and names that are missing or unexpected.

    Args:
        model: of whose class it is, with its kind of attention.
        folder: of the files.
        options: of `from_pretrained`.
    """
    found, reported = type(model).from_pretrained(
        folder, attn_implementation=model.config._attn_implementation, output_loading_info=True, **options
    )
    wrong = [
        f"{name} is {kind.partition('_')[0]}"
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")
        for name in reported[kind]
    ]
    return found, wrong


def _differences(found: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> Iterator[str]:
    for name, value in right.items():
        if name not in found:
            yield f"{name} is not there"
        elif found[name].is_meta:
            yield f"{name} has no values"
        elif found[name].shape != value.shape or not torch.equal(found[name].double(), value.double()):
            yield f"{name} has other values"


def _unsaved(found: Any, model: Any) -> Iterator[str]:
    """Yield what differs of that which is in no file: buffers, and names that are one tensor."""
    right = dict(model.named_buffers())
    for name, value in found.named_buffers():
        if name not in right:
            yield f"the buffer {name} is none of the model"
        elif not torch.equal(value.nan_to_num(), right[name].to(value.dtype).nan_to_num()):
            yield f"the buffer {name} has other values"
    for name in _names_of_one(model) ^ _names_of_one(found):
        yield f"{' and '.join(sorted(name))} are one tensor in one of both alone"


def _names_of_one(model: Any) -> set[frozenset[str]]:
    """Return the names of each parameter that has several."""
    names: dict[int, set[str]] = {}
    for name, value in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(value), set()).add(name)
    return {frozenset(one) for one in names.values() if len(one) > 1}


def _as_it_is(family: Any) -> list[str]:
    model = family.model()
    found, wrong = _read(model, _written(model))
    return [*wrong, *_differences(found.state_dict(), model.state_dict()), *_unsaved(found, model)]


def _in_shards(family: Any) -> list[str]:
    model = family.model()
    folder = _written(model, max_shard_size=SMALLEST_SHARD)
    if len(list(folder.glob("*.safetensors"))) < 2:
        raise NotServed("one shard holds the model")
    found, wrong = _read(model, folder)
    return [*wrong, *_differences(found.state_dict(), model.state_dict())]


def _in_bfloat16(family: Any) -> list[str]:
    model = copy.deepcopy(family.model()).bfloat16()
    folder = _written(model)
    takes = inspect.signature(type(model).from_pretrained).parameters
    name = "dtype" if "dtype" in takes else "torch_dtype"
    own, wrong = _read(model, folder, **{name: "auto"})
    wide, _ = _read(model, folder, **{name: torch.float32})
    kinds = [
        f"the embeddings are {one.get_input_embeddings().weight.dtype}, {due} is right"
        for one, due in ((own, torch.bfloat16), (wide, torch.float32))
        if one.get_input_embeddings().weight.dtype is not due
    ]
    right = model.state_dict()
    usual = dict(family.model().named_buffers())
    for name, value in own.named_buffers():
        if name.endswith("inv_freq") and not torch.equal(value, usual[name]):
            kinds.append(f"the buffer {name} is not that of float32")
    return [
        *wrong,
        *kinds,
        *_differences(own.state_dict(), right),
        *(f"in float32 {one}" for one in _differences(wide.state_dict(), right)),
    ]


def _base_of_whole(family: Any) -> list[str]:
    model = family.model()
    base = model.base_model
    if base is model:
        raise NotServed("the model has no base of its own")
    auto: Any = find_name("transformers", ["transformers:AutoModel"])
    if type(model.config) not in auto._model_mapping:
        raise NotServed("the base has no class of its own")
    found = auto.from_pretrained(_written(model))
    if type(found) is not type(base):
        raise NotServed("the base is of another class")
    return list(_differences(found.state_dict(), base.state_dict()))


def _whole_of_base(family: Any) -> list[str]:
    model = family.model()
    if model.base_model is model:
        raise NotServed("the model has no base of its own")
    found, _ = _read(model, _written(model.base_model))
    return list(_differences(found.base_model.state_dict(), model.base_model.state_dict()))


def _another_tied_name(family: Any) -> list[str]:
    from safetensors.torch import load_file, save_file

    if Version(release("transformers")) < Version("5"):
        raise NotServed("tied weights are read by the name that this release writes")
    if not family.family_ties(reloaded=False):
        raise NotServed("a head of its own")
    model = family.tied_model
    weight = model.get_input_embeddings().weight
    names = [name for name, value in model.named_parameters(remove_duplicate=False) if value is weight]
    folder = _written(model)
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    own = next((name for name in names if name in tensors), None)
    if own is None:
        raise NotServed("files have other names than the model")
    wrong = []
    for name in names:
        save_file(
            {name if one == own else one: value for one, value in tensors.items()}, file, {"format": "pt"}
        )
        found, missing = _read(model, folder)
        wrong += [
            f"as {name}: {one}" for one in (*missing, *_differences(found.state_dict(), model.state_dict()))
        ]
    return wrong


FORMS: Mapping[FileForm, Callable[[Any], list[str]]] = {
    "as it is": _as_it_is,
    "in shards": _in_shards,
    "in bfloat16": _in_bfloat16,
    "base of the whole": _base_of_whole,
    "whole of the base": _whole_of_base,
    "another tied name": _another_tied_name,
}


def file_errors(family: Any, form: FileForm) -> list[str]:
    """Return what differs after a family's model was written and read."""
    return FORMS[form](family)
