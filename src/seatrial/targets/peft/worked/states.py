"""Worked examples of PEFT's models: status, types of added adapters, checkpoints of layers that were renamed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import release
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.peft.worked.models import TYPES, WIDTH, Text, config_of, moved

HALF = (torch.bfloat16, torch.float16)


class Saved(nn.Module):
    """A model before its layers are renamed: `language_model.model.proj`."""

    def __init__(self) -> None:
        """Make the layers; their values are the same every time."""
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.language_model = nn.ModuleDict({"model": Text()})

    def forward(self, x_BD: Tensor) -> Tensor:
        """Return [B, D]."""
        found: Tensor = self.language_model["model"](x_BD)
        return found


class Renamed(nn.Module):
    """The model after it: `model.language_model.proj`, which it says as Transformers' models do."""

    _checkpoint_conversion_mapping: Mapping[str, str] = {
        "^visual": "model.visual",
        "^language_model.model": "model.language_model",
    }

    def __init__(self) -> None:
        """Make the layers with the values of `Saved`."""
        super().__init__()
        self.model = nn.ModuleDict({"language_model": copy.deepcopy(Saved().language_model["model"])})

    def forward(self, x_BD: Tensor) -> Tensor:
        """Return [B, D]."""
        found: Tensor = self.model["language_model"](x_BD)
        return found


def _status(get_status: Callable[[Any], Any]) -> list[str]:
    """Return where a status is not that of the adapters and of the layers that are trained in whole."""
    import peft

    wrong = []
    for kind in TYPES:
        for kept in ([], ["head"]):
            parts = [("proj", ("proj",))] + [(name, ("modules_to_save",)) for name in kept]
            for frozen in ([], *([part] for part in parts), parts) if kept else ([], parts):
                model = peft.get_peft_model(Text(), config_of(kind, modules_to_save=kept or None))
                for name, value in model.named_parameters():
                    if any(f".{part}." in name and value.requires_grad for part, _ in frozen):
                        value.requires_grad = False
                status = get_status(model)
                left = len(parts) - len(frozen)
                due = True if not frozen else False if not left else "irregular"
                found = (status.requires_grad, status.num_adapter_layers, status.available_adapters)
                if found != ({"default": due}, len(parts), ["default"]):
                    wrong.append(
                        f"{kind}, whole {kept}, frozen {[name for name, _ in frozen]}: {found}, {due} is due"
                    )
    return wrong


def _layers(get_status: Callable[[Any], Any]) -> list[str]:
    """Return layers that are not in the status, by type."""
    import peft

    wrong = []
    for kind in TYPES:
        for kept in ([], ["head"]):
            model = peft.get_peft_model(Text(), config_of(kind, modules_to_save=kept or None))
            found = sorted(one.name.rpartition(".")[2] for one in get_status(model))
            if found != sorted(["proj", *kept]):
                wrong.append(f"{kind}, whole {kept}: {found}")
    return wrong


def _types(of: Any) -> list[str]:
    """Return adapters over a base of 16 bits whose weights are not in float32, by the way in which they came.

    Raises:
        NotServed: the release 0.18.1, which was made from the branch of 0.18.0, without the change.
    """
    if release("peft") == "0.18.1":
        raise NotServed("peft 0.18.1 casts the first adapter alone")
    return [fault for kind in TYPES for dtype in HALF for fault in _narrow(kind, dtype)]


def _narrow(kind: str, dtype: torch.dtype) -> Iterator[str]:
    import peft

    model = peft.get_peft_model(Text().to(dtype), config_of(kind), adapter_name="first")
    folder = new_folder()
    model.save_pretrained(folder)
    model.add_adapter("added", config_of(kind))
    model.load_adapter(f"{folder}/first", adapter_name="loaded", is_trainable=True)
    for name in ("first", "added", "loaded"):
        model.set_adapter(name)
        model.requires_grad_(False)
        model.set_adapter(name)
        types = {value.dtype for value in model.parameters() if value.requires_grad}
        if types != {torch.float32}:
            yield f"{kind} over {dtype}, the {name} adapter: {sorted(map(str, types))}"


def _renamed(of: Any) -> list[str]:
    """Return adapters whose output is another one after layers of the base are renamed.

    Raises:
        NotServed: the release 0.15.2, which was made from the branch of 0.15.0, without the change.
    """
    import peft

    if release("peft") == "0.15.2":
        raise NotServed("peft 0.15.2 does not convert names")

    x_BD, wrong = torch.linspace(-1, 1, 3 * WIDTH).reshape(3, WIDTH), []
    for kind in TYPES:
        for kept in ([], ["head"]):
            model = moved(peft.get_peft_model(Saved(), config_of(kind, modules_to_save=kept or None)))
            folder = new_folder()
            model.save_pretrained(folder)
            with torch.no_grad():
                due_BD = model.eval()(x_BD)
                for how in ("from_pretrained", "load_adapter"):
                    try:
                        found_BD = _loaded(of, how, folder, config_of(kind, modules_to_save=kept or None))(
                            x_BD
                        )
                    except KeyError as error:
                        wrong.append(f"{kind}, whole {kept}, {how}: no {error}")
                        continue
                    error_of = float((found_BD - due_BD).abs().max())
                    if not error_of < 1e-5:
                        wrong.append(f"{kind}, whole {kept}, {how}: outputs differ by {error_of:.3g}")
    return wrong


def _loaded(of: Any, how: str, folder: str, config: Any) -> Any:
    """Return the renamed model with an adapter that was saved before."""
    import peft

    if how == "from_pretrained":
        return of.from_pretrained(Renamed(), folder).eval()
    model = peft.get_peft_model(Renamed(), config, adapter_name="first")
    mapping = Renamed._checkpoint_conversion_mapping
    model.load_adapter(folder, adapter_name="default", key_mapping=mapping)
    model.set_adapter("default")
    return model.eval()


# Sources: the documentation of get_model_status, get_layer_status, add_adapter (autocast_adapter_dtype) and
# from_pretrained (key_mapping). The versions of trees are those that lead to the releases.
ROWS: Sequence[Row] = (
    Row("states", "peft:get_model_status", "layers trained in whole", _status, [], since="0.17.2.dev0"),
    Row("states", "peft:get_layer_status", "layers trained in whole", _layers, [], since="0.17.2.dev0"),
    Row("steps", "peft:PeftModel", "types of added adapters", _types, [], since="0.18.1.dev0"),
    Row("checkpoints", "peft:PeftModel", "layers that were renamed since", _renamed, [], since="0.15.2.dev0"),
)
