"""The configuration that the relations try refrl under, on a tiny model that is made once per process."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, TypeVar

from refrl.config import ConfigError, GRPORunConfig, PolicyConfig, SFTRunConfig, load_config, validate_config
from refrl.masking import masked
from refrl.models.tiny import TinyModelSpec, make_model
from seatrial.packaged import read_table
from seatrial.relations import NotServed
from seatrial.relations.cases.pairwise import names_of, pairwise

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


TABLES = Path(__file__).with_name("tables")
Config = TypeVar("Config", GRPORunConfig, SFTRunConfig, PolicyConfig)


@cache
def table(name: str) -> Any:
    """Return the values of a YAML file of `tables/`."""
    return read_table("seatrial.targets.reference", "tables", f"{name}.yaml")


@cache
def model_directory() -> Path:
    """Return the directory of the tiny model; it goes with the process."""
    folder = Path(tempfile.mkdtemp(prefix="seatrial-model-"))
    # At the end of this process; one that multiprocessing forked does not call what atexit knows.
    Finalize(None, shutil.rmtree, args=(folder, True), exitpriority=0)
    make_model(MODEL, folder / "model")
    return folder / "model"


def new_directory(name: str) -> Path:
    """Make and return an empty folder next to the tiny model, which goes with it.

    Processes that judge relations are forked after the tiny model was made, so each gets a folder of its own.
    """
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=model_directory().parent))


@cache
def wide_model_directory(*, tied: bool) -> Path:
    """Return the directory of a model with heads as wide as every engine takes; tied: its head is its embedding."""
    output = new_directory("tied" if tied else "wide")
    make_model(replace(MODEL, hidden_size=64, tie_word_embeddings=tied), output)
    return output


@cache
def others_model_directory() -> Path:
    """Return the directory of a model like the tiny one, with other random weights."""
    output = new_directory("others")
    make_model(replace(MODEL, seed=MODEL.seed + 1), output)
    return output


OTHER_MODELS: Mapping[str, Mapping[str, Any]] = {
    "lengths": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "window": {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0},
}
"""What the configuration of a model of another kind adds to that of the tiny one."""


@cache
def other_model_directory(name: str) -> Path:
    """Return the directory of one of `OTHER_MODELS`."""
    folder = new_directory(name)
    shutil.copytree(model_directory(), folder, dirs_exist_ok=True)
    path = folder / "config.json"
    written = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**written, **OTHER_MODELS[name]}), encoding="utf-8")
    return folder


@cache
def _base() -> dict[str, Any]:
    config = load_config(
        GRPORunConfig, TABLES / "conformance.yaml", [f"policy.model_name={model_directory()}"]
    )
    return config.model_dump(mode="json")


def configuration(options: Mapping[str, Any]) -> GRPORunConfig:
    """Return the configuration of `conformance.yaml` with dotted options replaced.

    Several verifiers (`data.verifiers`) stand in place of the one there.

    Raises:
        NotServed: the schema refuses the combination.
    """
    several = {"data.verifier": None} if options.get("data.verifiers") else {}
    return _validated(GRPORunConfig, _with(_base(), {**several, **options}))


def tuning_configuration(options: Mapping[str, Any]) -> SFTRunConfig:
    """Return the same configuration for supervised fine-tuning; sections that it has not are left out.

    Raises:
        NotServed: the schema refuses the combination.
    """
    known = SFTRunConfig.model_fields
    shared = {name: section for name, section in _base().items() if name in known}
    chosen = {name: value for name, value in options.items() if name.partition(".")[0] in known}
    return _validated(SFTRunConfig, _with({**shared, "sft": {"max_num_steps": 1}}, chosen))


def policy_configuration(options: Mapping[str, Any]) -> PolicyConfig:
    """Return the section `policy` of the same configuration with options, dotted within the section, replaced.

    Raises:
        NotServed: the schema refuses the combination.
    """
    return _validated(PolicyConfig, _with(_base()["policy"], options))


def _with(base: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested values with those of dotted names replaced; sections without one are those of the base."""
    tree = dict(base)
    for dotted, value in options.items():
        *sections, leaf = dotted.split(".")
        place = tree
        for section in sections:
            place[section] = dict(place[section])
            place = place[section]
        place[leaf] = value
    return tree


def _validated(schema: type[Config], tree: Mapping[str, Any]) -> Config:
    """Return the configuration that nested values make.

    Raises:
        NotServed: the schema refuses them.
    """
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


@cache
def _unmade() -> dict[str, Any]:
    """Return the values of `conformance.yaml` without a model: none is made."""
    return load_config(GRPORunConfig, TABLES / "conformance.yaml", []).model_dump(mode="json")


def refusal_of(options: Mapping[str, Any]) -> str:
    """Return the message with which the schema refuses dotted options; empty where it takes them. No model is made."""
    try:
        validate_config(GRPORunConfig, _with(_unmade(), options), source="conformance")
    except ConfigError as error:
        return str(error)
    return ""


def effective(config: GRPORunConfig) -> dict[str, Any]:
    """Return every option by dotted name, with the resolved values of defaults."""
    return dotted(masked(config.model_dump(mode="json"))) | {
        "grpo.advantage.scale": config.grpo.advantage.resolved_scale
    }


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
    return {name: value for name, value in effective(config).items() if name not in given}


def dotted(tree: Mapping[str, Any], prefix: str = "", *, keep_empty: bool = False) -> dict[str, Any]:
    """Return nested values under dotted names; empty mappings are values if `keep_empty`."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping) and (value or not keep_empty):
            found |= dotted(value, f"{prefix}{name}.", keep_empty=keep_empty)
        else:
            found[f"{prefix}{name}"] = value
    return found


def cells() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each cell of the conformance matrix (`tables/cells.yaml`): its name, and its options."""
    dimensions: dict[str, dict[str, dict[str, Any]]] = table("cells")
    values = {name: list(options.values()) for name, options in dimensions.items()}

    def chosen(row: Mapping[str, int]) -> list[dict[str, Any]]:
        return [values[name][index] for name, index in row.items()]

    def options_of(row: Mapping[str, int]) -> dict[str, Any]:
        return {key: value for options in chosen(row) for key, value in options.items()}

    def may_be(row: Mapping[str, int]) -> bool:
        merged = options_of(row)
        # Two dimensions may set one option.
        together = all(merged[key] == value for options in chosen(row) for key, value in options.items())
        return together and allowed(merged)

    names = {name: list(options) for name, options in dimensions.items()}
    for row in pairwise({name: len(of) for name, of in values.items()}, may_be):
        yield names_of(row, names), options_of(row)
