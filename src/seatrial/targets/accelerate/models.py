"""Accelerate's utilities on models; see `contracts.placed.PlacedModels`. All of it runs in one process, on the CPU."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.contracts.placed import ModelTrait, PlacedModel, PlacedPlan, Placing
from seatrial.targets.accelerate.known import OF_ITS_OWN
from seatrial.targets.accelerate.ranked import new_accelerator
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.common.target import find_name

WIDTH = 16
PART = "2KB"
"""Size of a part of a file: less than that of three layers."""


class _Block(torch.nn.Module):
    """A layer with a parameter and buffers of its own."""

    shift: Tensor
    scale: Tensor
    count: Tensor

    def __init__(self, trait: ModelTrait) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)
        self.trait = trait
        if trait == "buffers":
            self.register_buffer("shift", torch.linspace(-1, 1, WIDTH))
            self.register_buffer("scale", torch.linspace(0.5, 1.5, WIDTH), persistent=False)
            self.register_buffer("count", torch.tensor(3))
            self.norm = torch.nn.BatchNorm1d(WIDTH)

    def forward(self, x_BD: Tensor) -> Tensor:
        """Return [B, D]."""
        made_BD: Tensor = torch.tanh(self.linear(x_BD))
        if self.trait == "buffers":
            made_BD = self.norm(made_BD * self.scale + self.shift) / self.count
        return made_BD


class Tiny(torch.nn.Module):
    """Two layers between an input and an output layer."""

    def __init__(self, trait: ModelTrait) -> None:
        """Make it with random weights."""
        super().__init__()
        self.trait = trait
        self.first = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.blocks = torch.nn.ModuleList([_Block(trait), _Block(trait)])
        self.last = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        if trait == "tied":
            self.last.weight = self.first.weight
        if trait == "shared layer":
            self.blocks[1] = self.blocks[0]
        if trait == "own parameter":
            self.gain = torch.nn.Parameter(0.5 + torch.rand(WIDTH))

    def tie_weights(self) -> None:
        """Share the weight of the first and the last layer, where that is the trait."""
        if self.trait == "tied":
            self.last.weight = self.first.weight

    def forward(self, x_BD: Tensor) -> Tensor:
        """Return [B, D]."""
        x_BD = self.first(x_BD)
        for block in self.blocks:
            x_BD = block(x_BD)
        if self.trait == "own parameter":
            x_BD = x_BD * self.gain
        made_BD: Tensor = self.last(x_BD)
        return made_BD


def made(trait: ModelTrait, seed: int) -> Tiny:
    """Return a model in evaluation mode whose weights and buffers are those of the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Tiny(trait)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_()
    return (model.to(torch.bfloat16) if trait == "half" else model).eval()


def _outputs(model: Any, trait: ModelTrait) -> Tensor:
    x_BD = torch.linspace(-1, 1, 3 * WIDTH).reshape(3, WIDTH)
    with torch.no_grad():
        outputs_BD: Tensor = model(x_BD.to(torch.bfloat16) if trait == "half" else x_BD)
    return outputs_BD.clone()


def _state(model: Any) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _listed(model: Tiny, plan: PlacedPlan, folder: Path) -> tuple[Any, Mapping[str, Tensor]]:
    """Look at the model through every utility that lists what it has."""
    from accelerate.utils import modeling

    _add_namesake(model)
    list(modeling.named_module_tensors(model, recurse=True, remove_non_persistent=True))
    modeling.get_non_persistent_buffers(model, recurse=True)
    sizes = modeling.compute_module_sizes(model)
    modeling.get_max_layer_size(list(model.named_children()), sizes, [])
    modeling.find_tied_parameters(model)
    modeling.calculate_maximum_sizes(model)
    modeling.infer_auto_device_map(model, max_memory={"cpu": 10**9})
    return model, _state(model)


def _prepared(model: Tiny, plan: PlacedPlan, folder: Path) -> tuple[Any, Mapping[str, Tensor]]:
    in_half = plan.placing == "prepared in bfloat16"
    accelerator = new_accelerator(mixed_precision="bf16" if in_half else "no")
    prepared = accelerator.prepare(model)
    return prepared, accelerator.get_state_dict(prepared)


def _saved(model: Tiny, plan: PlacedPlan, folder: Path) -> tuple[Any, Mapping[str, Tensor]]:
    other = _read_again(model, plan, folder)
    return other, _state(other)


def _read_again(model: Any, plan: PlacedPlan, folder: Path) -> Tiny:
    """Return another model with the file of this one."""
    from accelerate.utils import load_checkpoint_in_model

    _save(model, plan, folder)
    other = made(plan.trait, plan.seed + 1)
    load_checkpoint_in_model(other, str(folder))
    return other


def _save(model: Any, plan: PlacedPlan, folder: Path) -> None:
    new_accelerator().save_model(
        model,
        str(folder),
        max_shard_size="10GB" if plan.placing == "saved" else PART,
        safe_serialization=plan.placing != "saved in parts without safetensors",
    )


def _made_empty(plan: PlacedPlan) -> Tiny:
    from accelerate import init_empty_weights

    with init_empty_weights(include_buffers=False):
        model = Tiny(plan.trait)
    model.tie_weights()
    return (model.to(torch.bfloat16) if plan.trait == "half" else model).eval()


def _loaded(model: Tiny, plan: PlacedPlan, folder: Path) -> tuple[Any, Mapping[str, Tensor]]:
    from accelerate import load_checkpoint_and_dispatch

    _save(model, plan, folder / "saved")
    if plan.placing == "made empty and loaded":
        loaded = load_checkpoint_and_dispatch(
            _made_empty(plan), str(folder / "saved"), device_map={"": "cpu"}
        )
        return loaded, _state(loaded)
    places = {"first": "cpu", "blocks.0": "cpu", "blocks.1": "disk", "last": "disk"}
    if plan.trait == "own parameter":
        places["gain"] = "cpu"
    if plan.trait == "tied":
        places["last"] = "cpu"
    if plan.trait == "shared layer":
        places["blocks.1"] = "cpu"
    loaded = load_checkpoint_and_dispatch(
        _made_empty(plan), str(folder / "saved"), device_map=places, offload_folder=str(folder / "offloaded")
    )
    return loaded, _state(_read_again(loaded, plan, folder / "again"))


def _offloaded(model: Tiny, plan: PlacedPlan, folder: Path) -> tuple[Any, Mapping[str, Tensor]]:
    from accelerate import cpu_offload, disk_offload
    from accelerate.hooks import remove_hook_from_submodules

    device = torch.device("cpu")
    if plan.placing == "offloaded to disk":
        offloaded = disk_offload(model, str(folder / "disk"), execution_device=device, offload_buffers=True)
    else:
        offloaded = cpu_offload(model, execution_device=device, offload_buffers=True)
    if plan.placing == "offloaded and brought back":
        _outputs(offloaded, plan.trait)
        remove_hook_from_submodules(offloaded)
        return offloaded, _state(offloaded)
    return offloaded, _state(_read_again(offloaded, plan, folder / "again"))


def _prepared_twice(model: Tiny, plan: PlacedPlan, folder: Path) -> tuple[Any, Mapping[str, Tensor]]:
    """Prepare a model that is prepared; the state is what the files of a checkpoint hold, with their number."""
    from safetensors.torch import load_file

    accelerator = new_accelerator()
    prepared = accelerator.prepare_model(accelerator.prepare_model(model))
    accelerator.save_state(str(folder))
    files = sorted(folder.glob("model*.safetensors"))
    held = [(name, value) for file in files for name, value in load_file(str(file)).items()]
    return prepared, {
        name + " again" * ([one for one, _ in held[:place]].count(name)): value
        for place, (name, value) in enumerate(held)
    }


def _with_later_buffers(model: Tiny, plan: PlacedPlan, folder: Path) -> tuple[Any, Mapping[str, Tensor]]:
    accelerator = new_accelerator()
    prepared = accelerator.prepare(model)
    accelerator.get_state_dict(prepared)
    _add_buffers(accelerator.unwrap_model(prepared))
    return prepared, accelerator.get_state_dict(prepared)


def _add_buffers(model: Any) -> None:
    model.register_buffer("later", torch.linspace(2, 3, WIDTH))
    model.register_buffer("later_not_kept", torch.linspace(2, 3, WIDTH), persistent=False)


def _add_namesake(model: Tiny) -> None:
    """Add a buffer that is saved to the model; layers with buffers have one of the name that is not saved."""
    model.register_buffer("scale", torch.linspace(2, 3, WIDTH))


HOW: Mapping[Placing, Callable[[Tiny, PlacedPlan, Path], tuple[Any, Mapping[str, Tensor]]]] = {
    "listed": _listed,
    "prepared": _prepared,
    "prepared in bfloat16": _prepared,
    "prepared twice": _prepared_twice,
    "buffers added later": _with_later_buffers,
    "saved": _saved,
    "saved in parts": _saved,
    "saved in parts without safetensors": _saved,
    "made empty and loaded": _loaded,
    "loaded half to disk": _loaded,
    "offloaded": _offloaded,
    "offloaded to disk": _offloaded,
    "offloaded and brought back": _offloaded,
}


class Models(KnowsFailures):
    """Utilities of models, big ones among them."""

    known_failures = (
        KnownFailure(
            "a buffer that is saved leaves the state where a layer has one of its name that is not saved",
            finding="Accelerate: buffers that are listed",
            releases=before("accelerate", "1.15"),
        ).of("R30.placed/listed: buffers"),
        KnownFailure(
            "a model that is prepared twice is in a checkpoint twice",
            finding="Accelerate: models that are prepared twice",
            releases=before("accelerate", "1.14"),
        ).of("R30.placed/prepared twice"),
        KnownFailure(
            "buffers of a module on disk are not read from the checkpoint unless buffers are offloaded as well",
            finding="Accelerate: buffers of modules on disk",
        ).of("R30.placed/loaded half to disk: buffers"),
        OF_ITS_OWN,
    )

    def __init__(self) -> None:
        """Find the functions."""
        find_name("accelerate", ["accelerate:load_checkpoint_and_dispatch"])

    def placed(self, plan: PlacedPlan) -> PlacedModel:
        plain = made(plan.trait, plan.seed)
        plain_outputs_BD = _outputs(plain, plan.trait)
        if plan.placing == "buffers added later":
            _add_buffers(plain)
        if plan.placing == "listed":
            _add_namesake(plain)
        with tempfile.TemporaryDirectory(prefix="seatrial-") as folder:
            model, tensors = HOW[plan.placing](made(plan.trait, plan.seed), plan, Path(folder))
            return PlacedModel(
                outputs=_outputs(model, plan.trait),
                plain_outputs=plain_outputs_BD,
                tensors={name: value.detach().clone() for name, value in tensors.items()},
                plain_tensors=_state(plain),
            )
