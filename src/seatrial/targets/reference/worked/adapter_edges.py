"""Worked examples of files of adapters: what is read of them, and what they are refused for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from refrl.config import LoraConfig
from refrl.policy.adapter_files import CONFIG, PREFIX, WEIGHTS, read_adapters, save_adapters
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.checkpoints import in_folder
from seatrial.targets.reference.worked.made import example, refused


def of_adapter_files() -> Iterator[WorkedExample]:
    """Yield the examples."""
    own = in_folder(_read)
    yield example(
        "files of an adapter",
        [{"q.lora_A.weight": [[2.0, 2.0]], "q.lora_B.weight": [[3.0]]}, ["q"], 4.0],
        own,
    )
    same: Sequence[Mapping[str, Any]] = (
        {"rank_pattern": None},
        {"modules_to_save": []},
        {"alpha_pattern": {}},
    )
    for one in same:
        yield example(f"files of an adapter with {one}", True, own, one, short=True)
    for changes, words in (
        ({"r": 2}, "r=2, and this run needs 1: set policy.lora_cfg.dim and alpha"), ({"lora_alpha": 3},
        "lora_alpha=3, and"),
        ({"r": None}, "r=None, and this run needs 1"), ({"peft_type": "LOHA"},
        "peft_type='LOHA', and this run needs 'LORA'"),
        ({"bias": "all"}, "bias='all', and this run needs 'none': it is no plain LoRA"), ({"use_dora": True},
        "use_dora=True"),
        ({"use_rslora": True}, "use_rslora=True"), ({"fan_in_fan_out": True}, "fan_in_fan_out=True"),
        ({"modules_to_save": ["x"]}, "modules_to_save=['x']"), ({"rank_pattern": {"q": 2}}, "rank_pattern={'q': 2}"),
        ({"alpha_pattern": {"q": 2}}, "alpha_pattern={'q': 2}"), ({"layers_to_transform": [0]},
        "layers_to_transform=[0]"),
        ({"lora_bias": True}, "lora_bias=True"),
    ):  # fmt: skip
        yield refused(words, f"files of an adapter with {changes}", own, changes)
    for damage, words in (
        ("config", "holds no adapter in PEFT's format"), ("weights", "holds no adapter in PEFT's format"),
        ("text", "holds no adapter in PEFT's format"), ("bytes", "holds no adapter in PEFT's format"),
        ("missing", "it is missing 1 tensors ['q.lora_B.weight'] and has 0 unknown ones []"),
        ("unknown", "it is missing 0 tensors [] and has 1 unknown ones ['v.lora_A.weight']"),
        ("shape", "q.lora_B.weight has shape (2, 1), and the model needs (1, 1)"),
    ):  # fmt: skip
        yield refused(words, f"files of an adapter, damaged: {damage}", own, {}, damage)


def _read(
    folder: Path, changes: Mapping[str, Any] | None = None, damage: str = "", *, short: bool = False
) -> Any:
    """Return what is read of an adapter that was written, then changed or damaged; its layers and alpha."""
    lora = LoraConfig(enabled=True, dim=1, alpha=4)
    weights = {"q.lora_A.weight": torch.full((1, 2), 2.0), "q.lora_B.weight": torch.full((1, 1), 3.0)}
    output = folder / "adapter"
    save_adapters(weights, lora, "base", output)
    path = output / CONFIG
    described = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**described, **(changes or {})}), encoding="utf-8")
    more = {"v.lora_A.weight": torch.ones(1)} if damage == "unknown" else {}
    if damage in ("unknown", "missing", "shape"):
        kept = {name: one for name, one in weights.items() if damage != "missing" or "lora_A" in name} | more
        if damage == "shape":
            kept["q.lora_B.weight"] = torch.ones(2, 1)
        save_file({PREFIX + name: one for name, one in kept.items()}, output / WEIGHTS)
    file = output / (CONFIG if damage in ("config", "text") else WEIGHTS)
    if damage in ("config", "weights"):
        file.unlink()
    if damage in ("text", "bytes"):
        file.write_bytes(b"{")
    found = read_adapters(output, lora, {name: tuple(one.shape) for name, one in weights.items()})
    if short:
        return all(torch.equal(found[name], one) for name, one in weights.items())
    read = {name: one.tolist() for name, one in sorted(found.items())}
    return [read, described["target_modules"], described["lora_alpha"]]
