"""Worked examples of configurations of DeepSpeed that runs read without it, for pairs of options: values and types.

The rules are those of the documentation: "auto" becomes the value of the run, or one of the width of the model, another
number than that of the run is refused, and the weights are of the type of the mixed precision that is enabled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from seatrial.targets.common.trainers import CPU_OPTIONS, new_folder
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.answered_pairs import Table, cases_of_pairs

STEPS, WIDTH, RATE, BETAS = 40, 48, 0.25, [0.5, 0.75]
OWN: Mapping[str, Any] = {
    "per_device_train_batch_size": 3, "gradient_accumulation_steps": 5, "max_grad_norm": 0.5, "learning_rate": RATE,
    "adam_beta1": BETAS[0], "adam_beta2": BETAS[1], "adam_epsilon": 0.125, "weight_decay": 0.0625, "warmup_steps": 7,
}  # fmt: skip
DUE: Mapping[str, Any] = {
    "train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 5, "train_batch_size": 15,
    "gradient_clipping": 0.5, "optimizer.params.lr": RATE, "optimizer.params.betas": BETAS,
    "optimizer.params.eps": 0.125, "optimizer.params.weight_decay": 0.0625, "scheduler.params.warmup_min_lr": 0,
    "scheduler.params.warmup_max_lr": RATE, "scheduler.params.total_num_steps": STEPS,
    "scheduler.params.warmup_num_steps": 7, "zero_optimization.reduce_bucket_size": WIDTH * WIDTH,
    "zero_optimization.stage3_prefetch_bucket_size": int(0.9 * WIDTH * WIDTH),
    "zero_optimization.stage3_param_persistence_threshold": 10 * WIDTH,
}  # fmt: skip
"""What "auto" becomes in a run with these options, by the name of a value."""
UNJUDGED = ("zero_optimization.", "scheduler.params.warmup_min_lr")
"""Beginnings of names of values that are no options of the run: any number is taken."""
BATCHES = ("train_micro_batch_size_per_gpu", "train_batch_size")
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "batches": ("train_micro_batch_size_per_gpu", "train_batch_size"),
    "steps": ("gradient_accumulation_steps",),
    "clipping": ("gradient_clipping",),
    "optimizer": tuple(name for name in DUE if name.startswith("optimizer")),
    "scheduler": tuple(name for name in DUE if name.startswith("scheduler")),
    "buckets": tuple(name for name in DUE if name.startswith("zero")),
}
GIVEN = {"auto": "auto", "left out": None, "the run's": "own", "another number": 11}
ENABLED: Mapping[str, Any] = {
    "left out": None, "empty": {}, "on": {"enabled": True}, "off": {"enabled": False}, "auto": {"enabled": "auto"},
    "auto with a scale": {"enabled": "auto", "loss_scale": 0},
}  # fmt: skip
VALUES: Table = {
    **dict.fromkeys(SECTIONS, GIVEN),
    "stage": {"no stage": 0, "stage 2": 2, "stage 3": 3},
    "width": {"a width": "hidden_size", "widths": "hidden_sizes", "a text's width": "text",
              "a text's widths": "texts", "no width": ""},
    "finds": {"": False, "finds its batch": True},
    "node": {"": False, "each node": True},
    "form": {"a mapping": False, "a file": True},
}  # fmt: skip
TYPES: Table = {
    "fp16": ENABLED,
    "bf16": ENABLED,
    "run": {name or "no option": name for name in ("", "fp16", "bf16", "fp16_full_eval", "bf16_full_eval")},
    "stage": {"no stage": 0, "stage 2": 2, "stage 3": 3},
    "form": {"a mapping": False, "a file": True},
}


def _made(given: Mapping[str, Any], in_file: bool) -> Any:
    """Return the configuration of a run; that DeepSpeed is installed is not checked."""
    import transformers.integrations.deepspeed as module
    from accelerate.utils.deepspeed import HfDeepSpeedConfig

    made: Any = type("OfRun", (module.HfTrainerDeepSpeedConfig, HfDeepSpeedConfig), {})
    source: Any = json.loads(json.dumps(given))  # no two sections are one object
    if in_file:
        path = Path(new_folder()) / "deepspeed.json"
        path.write_text(json.dumps(source), encoding="utf-8")
        source = str(path)
    with patch.object(module, "dep_version_check", lambda *names, **more: None):
        return made(source)


def _arguments(function: Any, **options: Any) -> Any:
    made = function(output_dir=new_folder(), **{**CPU_OPTIONS, **OWN})
    halves = dict.fromkeys(("fp16", "bf16", "fp16_full_eval", "bf16_full_eval"), False)
    for name, value in {**halves, **options}.items():  # half precision is refused on a CPU
        setattr(made, name, value)
    return made


def _written(names: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration in sections, of values by their whole names."""
    found: dict[str, Any] = {}
    for name, value in names.items():
        *sections, last = name.split(".")
        node = found
        for one in sections:
            node = node.setdefault(one, {})
        node[last] = value
    return found


def _values(config: Mapping[str, Any], start: str = "") -> dict[str, Any]:
    """Return the values of a configuration by their whole names."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        own = _values(value, f"{start}{name}.") if isinstance(value, Mapping) else {f"{start}{name}": value}
        found.update(own)
    return found


def _model(width: str) -> Any:
    parts: dict[str, Any] = {"hidden_size": WIDTH} if width in ("hidden_size", "text") else {}
    parts = {"hidden_sizes": [WIDTH // 2, WIDTH, 3]} if width in ("hidden_sizes", "texts") else parts
    inner = SimpleNamespace(**parts)
    return SimpleNamespace(config=SimpleNamespace(text_config=inner) if width.startswith("text") else inner)


def _right(names: Mapping[str, Any], case: Mapping[str, Any]) -> tuple[dict[str, Any] | str, set[str]]:
    """Return the values after a run has read them, or why it refuses them, and which are refused."""
    due, refused = dict(names), set()
    for name, value in names.items():
        if name not in DUE:
            continue
        of_stage_3 = name.startswith("zero_optimization.stage3")
        if value == "auto" and (case["stage"] == 3 or not of_stage_3):
            due[name] = DUE[name]
        free = name.startswith(UNJUDGED) or (case["finds"] and name in BATCHES)
        if value != "auto" and value != DUE[name] and not free:
            refused.add(name)
    automatic = [
        name for name, value in names.items() if name.startswith("zero_optimization.") and value == "auto"
    ]
    if automatic and not case["width"]:
        return "no width", refused
    return due, refused


def _filled(case: Mapping[str, Any], function: Any) -> list[str]:
    """Return which values of a configuration are not the right ones after a run has read it."""
    names: dict[str, Any] = {"zero_optimization.stage": case["stage"]}
    for section, own in SECTIONS.items():
        value = case[section]
        for name in own if value is not None else ():
            names[name] = DUE[name] if value == "own" else value
    right, refused = _right(names, case)
    made = _made(_written(names), case["form"])
    args = _arguments(function, save_on_each_node=case["node"])
    made.trainer_config_process(args, case["finds"])
    try:
        made.trainer_config_finalize(args, _model(case["width"]), STEPS)
    except ValueError as error:
        if right == "no width":
            return [] if "hidden_size" in str(error) else [f"another refusal: {error}"]
        missing = [name for name in refused if f"ds {name}=" not in str(error)]
        wrong = [name for name in DUE if f"ds {name}=" in str(error) and name not in refused]
        return [f"{missing} are not refused, {wrong} are"] if missing or wrong or not refused else []
    if isinstance(right, str) or refused:
        return [f"not refused: {right if isinstance(right, str) else sorted(refused)}"]
    if case["node"]:
        right["checkpoint.use_node_local_storage"] = True
    found = _values(made.config)
    return [f"{name}: {found.get(name)}, {right.get(name)} is due"
            for name in sorted({*found, *right}) if found.get(name) != right.get(name)][:4]  # fmt: skip


def _half(given: Any, asked: bool) -> bool:
    enabled = (given or {}).get("enabled", False)
    return asked if enabled == "auto" else bool(enabled)


def _typed(case: Mapping[str, Any], function: Any) -> list[str]:
    """Return where the type of weights, what is enabled, or the stage that all code is given is not the right one."""
    import transformers.integrations.deepspeed as module

    names = {name: case[name] for name in ("fp16", "bf16") if case[name] is not None}
    made = _made({**names, "zero_optimization": {"stage": case["stage"]}}, case["form"])
    wrong = []
    try:
        made.dtype()
        wrong.append("a type before the options of the run are known")
    except ValueError:
        pass
    args = _arguments(function, **({case["run"]: True} if case["run"] else {}))
    made.trainer_config_process(args)
    halves = {name: _half(case[name], case["run"].startswith(name)) for name in ("fp16", "bf16")}
    due = torch.bfloat16 if halves["bf16"] else torch.float16 if halves["fp16"] else torch.float32
    wrong += [] if made.dtype() is due else [f"{made.dtype()}, {due} is due"]
    for name, on in halves.items():
        if "enabled" in (case[name] or {}) and made.config[name]["enabled"] is not on:
            wrong.append(f"{name}: {made.config[name]}")
    if module.is_deepspeed_zero3_enabled() is not (case["stage"] == 3):
        wrong.append("the stage that other code is given")
    if module.deepspeed_config() != made.config:
        wrong.append("the configuration that other code is given")
    module.unset_hf_deepspeed_config()
    if module.is_deepspeed_zero3_enabled() or module.deepspeed_config() is not None:
        wrong.append("a stage after the configuration is gone")
    return wrong


PLACE = "transformers:TrainingArguments"


def _table() -> Iterator[Row]:
    for name, case in cases_of_pairs(VALUES):
        yield Row("states", PLACE, f"DeepSpeed's values: {name}", partial(_filled, case), [], since="4.57")
    for name, case in cases_of_pairs(TYPES):
        # Release 4 takes float16 for a configuration that says nothing, as DeepSpeed did.
        yield Row("states", PLACE, f"DeepSpeed's type: {name}", partial(_typed, case), [], since="5")


# Source: the page of the documentation on DeepSpeed, and that of TrainingArguments.
PAIRED_DEEPSPEED_ROWS: Sequence[Row] = tuple(_table())
