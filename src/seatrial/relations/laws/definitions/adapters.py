"""R35.adapters: adapters are in the configured layers, begin as PEFT's do, and are written as PEFT reads them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.definitions.made import Seeded, seeded, without

CHOICES: Sequence[Mapping[str, Any]] = (
    {},
    {"target_modules": ("q_proj",)},
    {"target_modules": ("q_proj", "down_proj"), "exclude_modules": ("model.layers.0.self_attn.q_proj",)},
    {"exclude_modules": ("k_proj", "up_proj")},
    {"target_modules": ("model.layers.1.mlp.gate_proj", "o_proj")},
    {"target_modules": ("self_attn.v_proj",), "exclude_modules": ("layers.1.self_attn.v_proj",)},
    {"target_modules": ("lm_head", "q_proj")},
)
DIM, INPUTS = 4, 600

ADAPTERS = Relation(
    id="R35.adapters",
    name="adapters-are-as-configured",
    component="definitions",
    statement="Adapters are in the layers that the options name, by PEFT's rule, begin with values of their own layer "
    "and seed, and are written whole under PEFT's names.",
    catalogue="SB056 SB295 SB340 SB345",
    cost="CPU, milliseconds",
    cases=seeded,
    seeded=False,
)


@ADAPTERS.law(
    "layers are those of the options",
    "exclusions that only count without targets, names compared by their ends without a dot, a head that is adapted",
    excluded=without("adapted layers"),
)
def layers_of_the_options(stack: Any, case: Seeded) -> Measure:
    """Compare the layers that get an adapter with PEFT's rule: a whole name, or its end after a dot."""
    wrong = []
    for options in CHOICES:
        linear, head, chosen = stack.definitions["adapted layers"](options)
        targets, excludes = options.get("target_modules"), options.get("exclude_modules", ())
        due = {name for name in linear if (name != head if targets is None else _is_named(name, targets))}
        due -= {name for name in due if _is_named(name, excludes)}
        if set(chosen) != due:
            wrong.append(f"{dict(options)}: {sorted(set(chosen) ^ due)[:3]}")
    return Measure.count(wrong, "layers with an adapter, or without, against the options")


def _is_named(name: str, targets: Sequence[str]) -> bool:
    return any(name == target or name.endswith(f".{target}") for target in targets)


@ADAPTERS.law(
    "adapters begin as PEFT's",
    "values of one layer in all, a seed that is ignored, a bound without its root, a B that is not zero",
    excluded=without("first adapter"),
)
def adapters_begin(stack: Any, case: Seeded) -> Measure:
    """Check that A is uniform within 1 / sqrt(inputs), another for each layer and seed, and B zero."""
    first = stack.definitions["first adapter"]
    made = {
        f"{layer}, seed {seed}": first(layer, seed, DIM, INPUTS)
        for layer in ("model.layers.0.q_proj", "model.layers.1.q_proj")
        for seed in (case.seed, case.seed + 1)
    }
    bound, wrong = INPUTS**-0.5, []
    for name, (low, high) in made.items():
        wrong += [f"B of {name}"] * bool(high.any())
        wrong += [f"A of {name} {tuple(low.shape)}"] * (tuple(low.shape) != (DIM, INPUTS))
        # Of 2400 uniform numbers the largest is within 2% of the bound, and the deviation within 5% of bound / sqrt(3).
        wrong += [f"A of {name} up to {float(low.abs().max()):.3g}"] * (
            not 0.98 * bound <= float(low.abs().max()) <= bound * (1 + 1e-6)
        )
        wrong += [f"A of {name} deviates {float(low.std()):.3g}"] * (
            abs(float(low.std()) / bound * 3**0.5 - 1) > 0.05
        )
    names = list(made)
    for place, one in enumerate(names):
        wrong += [
            f"A of {one} and of {other}"
            for other in names[:place]
            if torch.equal(made[one][0], made[other][0])
        ]
    again = first("model.layers.0.q_proj", case.seed, DIM, INPUTS)
    wrong += ["a repeated seed"] * (not torch.equal(again[0], made[names[0]][0]))
    return Measure.count(wrong, "first values of adapters that are wrong")


@ADAPTERS.law(
    "files are PEFT's",
    "a rank or a scale of the defaults, names without their prefix, layers that are not listed",
    excluded=without("write adapter"),
)
def files_are_peft(stack: Any, case: Seeded) -> Measure:
    """Write adapters and read their files with safetensors and JSON."""
    from safetensors.torch import load_file

    stream = case.stream()
    weights = {
        f"model.layers.{layer}.{part}.lora_{half}.weight": torch.randn(shape, generator=stream)
        for layer in (0, 11)
        for part in ("self_attn.q_proj", "mlp.up_proj")
        for half, shape in (("A", (3, 5)), ("B", (7, 3)))
    }
    wrong = []
    with tempfile.TemporaryDirectory() as created:
        folder = Path(created) / "adapter"
        stack.definitions["write adapter"](weights, 3, 12.0, "base-model", folder)
        config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        tensors = load_file(folder / "adapter_model.safetensors")
    due = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 3,
        "lora_alpha": 12.0,
        "base_model_name_or_path": "base-model",
        "bias": "none",
        "use_rslora": False,
        "use_dora": False,
    }
    wrong += [f"{name}={config.get(name)!r}" for name, value in due.items() if config.get(name) != value]
    layers = {name.rpartition(".lora_")[0] for name in weights}
    wrong += [f"layers {config['target_modules']}"] * (set(config["target_modules"]) != layers)
    wrong += [
        name
        for name, tensor in weights.items()
        if not torch.equal(tensors.get(f"base_model.model.{name}", torch.empty(0)), tensor)
    ]
    wrong += ["further tensors"] * (len(tensors) != len(weights))
    return Measure.count(wrong, "what is wrong with written adapters")
