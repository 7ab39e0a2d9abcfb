"""The configuration that the relations try refrl under, on a tiny model that is made once per process."""

from __future__ import annotations

import atexit
import copy
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from refrl.config import GRPORunConfig, SFTRunConfig, load_config, validate_config
from refrl.models.tiny import TinyModelSpec, make_model
from seatrial.relations import NotServed

MODEL = TinyModelSpec(
    hidden_size=32,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    intermediate_size=48,
    max_positions=256,
    # Wider than usual: the distribution is peaked, so that wrong positions and temperatures show.
    initializer_range=0.25,
    seed=20,
)


Config = TypeVar("Config", GRPORunConfig, SFTRunConfig)


@cache
def model_directory() -> Path:
    """Return the directory of the tiny model; it goes with the process."""
    folder = Path(tempfile.mkdtemp(prefix="seatrial-model-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    make_model(MODEL, folder / "model")
    return folder / "model"


@cache
def _base() -> dict[str, Any]:
    recipe = Path(str(resources.files("seatrial.targets.reference").joinpath("conformance.yaml")))
    config = load_config(GRPORunConfig, recipe, [f"policy.model_name={model_directory()}"])
    return config.model_dump(mode="json")


def configuration(options: Mapping[str, Any]) -> GRPORunConfig:
    """Return the configuration of `conformance.yaml` with dotted options replaced.

    Raises:
        NotServed: the schema refuses the combination.
    """
    return _validated(GRPORunConfig, _with(_base(), options))


def tuning_configuration(options: Mapping[str, Any]) -> SFTRunConfig:
    """Return the same configuration for supervised fine-tuning; options of GRPO and its loss are left out.

    Raises:
        NotServed: the schema refuses the combination.
    """
    shared = {name: section for name, section in _base().items() if name not in ("grpo", "loss_fn")}
    chosen = {name: value for name, value in options.items() if not name.startswith(("grpo.", "loss_fn."))}
    return _validated(SFTRunConfig, _with({**shared, "sft": {"max_num_steps": 1}}, chosen))


def _with(base: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested values with those of dotted names replaced."""
    tree = copy.deepcopy(dict(base))
    for dotted, value in options.items():
        *sections, leaf = dotted.split(".")
        place = tree
        for section in sections:
            place = place[section]
        place[leaf] = value
    return tree


def _validated(schema: type[Config], tree: Mapping[str, Any]) -> Config:
    """Return the configuration that nested values make.

    Raises:
        NotServed: the schema refuses them.
    """
    from refrl.config import ConfigError

    try:
        return validate_config(schema, tree, source="conformance")
    except ConfigError as error:
        raise NotServed(str(error)) from error


def allowed(options: Mapping[str, Any]) -> bool:
    """Return whether the schema takes these options together."""
    try:
        configuration(options)
    except NotServed:
        return False
    return True


def least() -> dict[str, Any]:
    """Return every option of a configuration that names only what has no default, by dotted name."""
    needed = {
        "policy": {
            "model_name": "model",
            "train_global_batch_size": 4,
            "train_micro_batch_size": 4,
            "max_total_sequence_length": 64,
        },
        "grpo": {"num_prompts_per_step": 2, "num_generations_per_prompt": 2, "max_num_steps": 1},
        "data": {"task": "reverse"},
        "logger": {"log_dir": "log"},
        "checkpointing": {"checkpoint_dir": "checkpoints"},
    }
    config = _validated(GRPORunConfig, needed)
    given = dotted(needed)
    found = {
        name: value for name, value in dotted(config.model_dump(mode="json")).items() if name not in given
    }
    return found | {"grpo.advantage.scale": config.grpo.advantage.resolved_scale}


def dotted(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values under dotted names."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        inner = isinstance(value, dict)
        found |= dotted(value, f"{prefix}{name}.") if inner else {f"{prefix}{name}": value}
    return found
