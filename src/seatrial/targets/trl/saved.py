"""Checkpoints of a Hugging Face `Trainer` in the form that the trials read: the model's tensors and Adam's moments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_FOLDER = re.compile(r"checkpoint-(\d+)")
_WEIGHTS = ("model.safetensors", "adapter_model.safetensors")
_PEFT = "base_model.model."


def write_checkpoints(trainer: Any, saved: Path, output: Path) -> None:
    """Copy what a trainer saved to `step_<N>/policy/state.safetensors`; what it did not save is not there.

    Args:
        trainer: after training; its optimizer says which moment is whose.
        saved: the trainer's output folder, with `checkpoint-<N>` in it.
        output: where the copies go.
    """
    from safetensors.torch import load_file, save_file

    for folder in sorted(saved.glob("checkpoint-*")):
        match = _FOLDER.fullmatch(folder.name)
        if match is None:
            continue
        files = [folder / name for name in _WEIGHTS if (folder / name).is_file()]
        weights = {name: value for file in files for name, value in load_file(file).items()}
        tensors = {f"model.{_plain(name)}": value for name, value in weights.items()}
        tensors.update(_moments(trainer, folder / "optimizer.pt"))
        place = output / f"step_{match[1]}" / "policy"
        place.mkdir(parents=True, exist_ok=True)
        save_file({name: value.contiguous() for name, value in tensors.items()}, place / "state.safetensors")


def _moments(trainer: Any, file: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the moments of a saved optimizer by the name of their parameter."""
    if not file.is_file():
        return
    stored = torch.load(file, map_location="cpu", weights_only=True)
    names = {id(value): _plain(name) for name, value in trainer.model.named_parameters()}
    for group, live in zip(stored["param_groups"], trainer.optimizer.param_groups, strict=True):
        for number, value in zip(group["params"], live["params"], strict=True):
            for moment in ("exp_avg", "exp_avg_sq"):
                if number in stored["state"]:
                    yield f"optimizer.{names[id(value)]}.{moment}", stored["state"][number][moment]


def _plain(name: str) -> str:
    """Return a tensor's name as the exported model or adapter has it."""
    return name.removeprefix(_PEFT).replace(".default.", ".")
