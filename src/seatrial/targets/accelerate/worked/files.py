"""Worked examples of weights in files: checkpoints that are loaded, tensors that are offloaded."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.targets.accelerate.worked.placed import WIDTH, differing, inputs, net
from seatrial.targets.common.known import KnownFailure
from seatrial.targets.common.worked_rows import Row

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int8, torch.bool)


def _values() -> dict[str, Tensor]:
    made = {f"a.{dtype}": (torch.arange(6).reshape(2, 3) - 2).to(dtype) for dtype in DTYPES}
    made["scalar"] = torch.tensor(2.5)
    made["scalar.half"] = torch.tensor(2.5, dtype=torch.bfloat16)
    return {name.replace("torch.", ""): value for name, value in made.items()}


def _read_back(loader: Callable[..., Any]) -> list[str]:
    """Return which tensors of a folder, a dictionary and files of safetensors are not those that were written."""
    from accelerate.utils import offload_state_dict
    from safetensors.torch import save_file

    state, wrong = _values(), []
    with tempfile.TemporaryDirectory(prefix="seatrial-") as folder:
        names = list(state)
        offload_state_dict(folder, {name: state[name] for name in names[:3]})
        offload_state_dict(folder, {name: state[name] for name in names[3:]})
        read = loader(save_folder=folder)
        wrong += differing({name: read[name].clone() for name in read}, state, "folder: ")
        wrong += [] if len(read) == len(state) else [f"{len(read)} names"]
        other = torch.full((2, 3), 7.0)
        both = loader(state_dict={names[0]: other, "new": other}, save_folder=folder)
        due = {**state, names[0]: other, "new": other}
        wrong += differing({name: both[name].clone() for name in both}, due, "folder and dictionary: ")
        file = str(Path(folder) / "model.safetensors")
        save_file({"in.file": other}, file)
        index = {"x": {"safetensors_file": file, "weight_name": "in.file", "dtype": "bfloat16"}}
        wrong += differing({"x": loader(index=index)["x"]}, {"x": other.bfloat16()}, "safetensors: ")
    return wrong


def _submodules(extract: Callable[..., Any]) -> list[str]:
    state = net(blocks=11).state_dict()
    due = ["blocks.1.bias", "blocks.1.weight", "gain", "norm.bias", "norm.weight"]
    found = extract(state, ["blocks.1", "gain", "norm"])
    return [*(set(due) ^ set(found)), *differing(found, {name: state[name] for name in found})]


def _checkpoint(folder: Path, form: str, state: Mapping[str, Tensor]) -> Path:
    """Write a checkpoint of a form, and return what is given to the function."""
    from safetensors.torch import save_file

    names = sorted(state)
    if form == "file of torch":
        torch.save(dict(state), folder / "any.bin")
        return folder / "any.bin"
    if form == "folder of torch":
        torch.save(dict(state), folder / "pytorch_model.bin")
    if form == "folder of safetensors":
        save_file(dict(state), str(folder / "model.safetensors"), metadata={"format": "pt"})
    if form in ("index", "folder with an index"):
        parts = {f"model-{part}.safetensors": names[part::2] for part in range(2)}
        for file, own in parts.items():
            save_file({name: state[name] for name in own}, str(folder / file), metadata={"format": "pt"})
        weights = {name: file for file, own in parts.items() for name in own}
        index = {"metadata": {}, "weight_map": weights} if form == "index" else weights
        path = folder / "model.safetensors.index.json"
        path.write_text(json.dumps(index), encoding="utf-8")
        return path if form == "index" else folder
    return folder


FORMS = ("file of torch", "folder of torch", "folder of safetensors", "index", "folder with an index")


def _loaded(load: Callable[..., Any]) -> list[str]:
    """Return what is not that of the checkpoint, by its form and the places of modules."""
    state, wrong = net(seed=5).state_dict(), []
    parts = {"first": "cpu", "blocks": "cpu", "norm": "cpu", "gain": "cpu", "scale": "cpu"}
    for form in FORMS:
        for places in (None, parts):
            for more in ({}, {"offload_state_dict": True}) if places and form == "index" else ({},):
                with tempfile.TemporaryDirectory(prefix="seatrial-") as folder:
                    model = net()
                    load(model, str(_checkpoint(Path(folder), form, state)), device_map=places, **more)
                    wrong += differing(model.state_dict(), state, f"{form}, {places}, {more}: ")
    return wrong


def _loaded_as(load: Callable[..., Any]) -> list[str]:
    """Return dtypes and values of a checkpoint that is loaded in another precision."""
    state, wrong = net(seed=5).state_dict(), []
    for dtype, kept in ((torch.bfloat16, None), ("torch.float16", None), (torch.float16, ["norm", "gain"])):
        with tempfile.TemporaryDirectory(prefix="seatrial-") as folder:
            model = net()
            path = _checkpoint(Path(folder), "index", state)
            load(model, str(path), device_map={"": "cpu"}, dtype=dtype, keep_in_fp32_modules=kept)
            low = torch.bfloat16 if dtype is torch.bfloat16 else torch.float16
            due = {
                name: value if kept and name.split(".")[0] in kept else value.to(low)
                for name, value in state.items()
            }
            wrong += differing(model.state_dict(), due, f"{dtype}, {kept}: ")
    return wrong


def _loaded_strictly(is_less: bool, load: Callable[..., Any]) -> list[Any]:
    """Return whether a checkpoint that has a name too much, or one less, is refused: not strictly, strictly."""
    state = dict(net(seed=5).state_dict())
    given = {name: value for name, value in state.items() if name != "gain" or not is_less}
    found: list[Any] = []
    for strict in (False, True):
        with tempfile.TemporaryDirectory(prefix="seatrial-") as folder:
            model, more = net(), {} if is_less else {"more": torch.ones(1)}
            try:
                load(model, str(_checkpoint(Path(folder), "file of torch", {**given, **more})), strict=strict)
            except (RuntimeError, KeyError, ValueError):
                found.append("refused")
            else:
                found.append(differing({name: model.state_dict()[name] for name in given}, given))
    return found


def _loaded_to_disk(load: Callable[..., Any]) -> list[str]:
    """Return outputs and weights of a model half of which is read from disk, in its own and in another precision."""
    state, wrong = net(seed=5).state_dict(), []
    plain = net(seed=5)
    places = {
        "first": "disk",
        "blocks.0": "cpu",
        "blocks.1": "disk",
        "norm": "disk",
        "gain": "cpu",
        "scale": "cpu",
    }
    with tempfile.TemporaryDirectory(prefix="seatrial-") as folder:
        path = _checkpoint(Path(folder), "index", state)
        for more in ({}, {"offload_buffers": True}, {"offload_state_dict": True}):
            other = Path(folder) / f"offloaded{len(more)}{next(iter(more), '')}"
            model = load(net(), str(path), device_map=places, offload_folder=str(other), **more)
            if not torch.allclose(model(inputs()), plain(inputs()), atol=1e-6):
                wrong.append(f"outputs, {more}")
            if not torch.allclose(model(inputs()), plain(inputs()), atol=1e-6):
                wrong.append(f"outputs of a second pass, {more}")
    return wrong


def _set(function: Callable[..., Any]) -> list[str]:
    """Return what is wrong with a tensor that is set: its values, dtype, gradient, kind, and the others."""
    wrong = []
    cases: Sequence[tuple[str, Tensor | None, Any, Tensor]] = (
        ("first.weight", torch.full((WIDTH, WIDTH), 3.0), None, torch.full((WIDTH, WIDTH), 3.0)),
        (
            "first.weight",
            torch.full((WIDTH, WIDTH), 3.0, dtype=torch.bfloat16),
            None,
            torch.full((WIDTH, WIDTH), 3.0),
        ),
        (
            "blocks.1.bias",
            torch.full((WIDTH,), 3.0),
            torch.float16,
            torch.full((WIDTH,), 3.0, dtype=torch.float16),
        ),
        ("scale", torch.full((WIDTH,), 3.0), None, torch.full((WIDTH,), 3.0)),
    )
    for name, value, dtype, due in cases:
        model = net()
        frozen = name == "blocks.1.bias"
        if frozen:
            model.blocks[1].bias.requires_grad_(False)
        function(model, name, "cpu", value=value, dtype=dtype)
        found = dict(model.named_parameters()) | dict(model.named_buffers())
        wrong += differing({name: found[name]}, {name: due}, "set: ")
        others = {key: one for key, one in net().state_dict().items() if key != name}
        wrong += differing(
            {key: one for key, one in model.state_dict().items() if key != name}, others, f"{name}: "
        )
        if name != "scale" and found[name].requires_grad is frozen:
            wrong.append(f"{name}: its gradient")
        if isinstance(found[name], nn.Parameter) is (name == "scale"):
            wrong.append(f"{name}: its kind")
    return wrong


LOSES = KnownFailure(
    "a checkpoint without a weight is loaded with strict=True",
    finding="Accelerate: strict checkpoints",
)


MODELING, OFFLOAD = "accelerate.utils.modeling", "accelerate.utils.offload"
FILE_ROWS: Sequence[Row] = (
    Row("states", f"{OFFLOAD}:OffloadedWeightsLoader", "a folder, a dictionary, files", _read_back, []),
    Row("states", f"{OFFLOAD}:extract_submodules_state_dict", "names that begin alike", _submodules, []),
    Row("checkpoints", f"{MODELING}:load_checkpoint_in_model", "forms and places", _loaded, []),
    Row("checkpoints", f"{MODELING}:load_checkpoint_in_model", "another precision", _loaded_as, []),
    Row(
        "checkpoints",
        f"{MODELING}:load_checkpoint_in_model",
        "a name too much",
        partial(_loaded_strictly, False),
        [[], "refused"],
    ),
    Row(
        "checkpoints",
        f"{MODELING}:load_checkpoint_in_model",
        "a name less",
        partial(_loaded_strictly, True),
        [[], "refused"],
        known=LOSES,
    ),
    Row("checkpoints", "accelerate:load_checkpoint_and_dispatch", "half on disk", _loaded_to_disk, []),
    Row("checkpoints", f"{MODELING}:set_module_tensor_to_device", "values, dtypes, gradients", _set, []),
)
