"""What refrl refuses of directories of models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from refrl.models.loading import check_model_directory, load_model
from seatrial.relations.contracts.refusals import Trial
from seatrial.targets.reference.configuration import model_directory, new_directory
from seatrial.targets.reference.limits.models import plain_trial


def file_trials() -> Iterator[Trial]:
    """Yield the calls about directories of models."""

    def changed(change: Callable[[dict[str, torch.Tensor], dict[str, Any]], None]) -> Path:
        folder = new_directory("changed")
        shutil.copytree(model_directory(), folder, dirs_exist_ok=True)
        path = folder / "model.safetensors"
        tensors, config = load_file(path), json.loads((folder / "config.json").read_text(encoding="utf-8"))
        change(tensors, config)
        save_file(tensors, path, metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return folder

    def loaded(change: Callable[[dict[str, torch.Tensor], dict[str, Any]], None]) -> object:
        return load_model(changed(change))

    name = "model.layers.1.self_attn.o_proj.weight"

    def nothing(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
        pass

    def old(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
        tensors["model.rotary_emb.inv_freq"] = torch.ones(2)

    def fewer(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
        del tensors[name]

    def shorter(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
        tensors[name] = tensors[name][:-1].clone()

    def cut(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
        config["num_hidden_layers"] = 1

    def unknown(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
        config["model_type"] = "other"

    changes = {
        "as it was made": (nothing, None),
        "with an old checkpoint's frequencies": (old, None),
        "without a weight": (fewer, name),
        "with a weight of another shape": (shorter, name),
        "with fewer layers": (cut, "num_hidden_layers"),
        "of an unknown kind": (unknown, "other"),
    }
    for what, (change, says) in changes.items():
        yield plain_trial(f"a model {what}", says, partial(loaded, change))
    empty = new_directory("empty")
    yield plain_trial(
        "a model that is not there", "not a directory", lambda: check_model_directory(empty / "model")
    )
    yield plain_trial("a model without a configuration", "config.json", lambda: check_model_directory(empty))

    def without_weights() -> None:
        folder = new_directory("no-weights")
        (folder / "config.json").write_text("{}", encoding="utf-8")
        check_model_directory(folder)

    yield plain_trial("a model without weights", "no weights", without_weights)
