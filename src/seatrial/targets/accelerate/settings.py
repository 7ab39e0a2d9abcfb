"""Settings of Accelerate that come from variables of the environment; see `contracts.settings.Settings`."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from seatrial.relations.contracts.settings import Setting
from seatrial.targets.accelerate.ranked import new_accelerator
from seatrial.targets.common.known import KnownFailure, KnowsFailures
from seatrial.targets.common.target import Gone, find_name, release

CLASSES: Mapping[str, str] = {
    "fsdp": "accelerate.utils:FullyShardedDataParallelPlugin",
    "fsdp2": "accelerate.utils:FullyShardedDataParallelPlugin",
    "dynamo": "accelerate.utils:TorchDynamoPlugin",
    "parallelism": "accelerate.parallelism_config:ParallelismConfig",
    "accelerator": "accelerate:Accelerator",
}
"""The class of an object by its name here."""
ALWAYS: Mapping[str, Mapping[str, Any]] = {"fsdp": {"fsdp_version": 1}, "fsdp2": {"fsdp_version": 2}}
"""Arguments of every object, where the release has them."""
SIZE, LAYERS = (
    {"FSDP_AUTO_WRAP_POLICY": "SIZE_BASED_WRAP"},
    {"FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP"},
)
SHARDED, WHOLE = "SHARDED_STATE_DICT", "FULL_STATE_DICT"
POLICY, CLASSES_TO_WRAP = "auto_wrap_policy", "transformer_cls_names_to_wrap"
BY_SIZE, BY_LAYER = "size_based_auto_wrap_policy", "transformer_auto_wrap_policy"
FULL, BEFORE, AFTER = "FULL_SHARD", "BACKWARD_PRE", "BACKWARD_POST"
PREFIXES = ("FSDP_", "ACCELERATE_", "PARALLELISM_CONFIG_")
"""Of the variables that objects read."""
COMPOSED = ("", "ACCELERATE_DYNAMO_", *PREFIXES)
"""Beginnings that the code of a release adds to the rest of a variable's name."""
# fmt: off
ROWS: tuple[tuple[Any, ...], ...] = (
    (
        "fsdp",
        "FSDP_SHARDING_STRATEGY",
        "SHARD_GRAD_OP",
        "sharding_strategy",
        "SHARD_GRAD_OP",
        FULL,
        "NO_SHARD",
    ),
    ("fsdp", "FSDP_SHARDING_STRATEGY", "no_shard", "sharding_strategy", "NO_SHARD", FULL, "HYBRID_SHARD"),
    ("fsdp", "FSDP_SHARDING_STRATEGY", "4", "sharding_strategy", "HYBRID_SHARD", FULL, "SHARD_GRAD_OP"),
    ("fsdp", "FSDP_OFFLOAD_PARAMS", "true", "cpu_offload", True, False, False),
    ("fsdp", "FSDP_OFFLOAD_PARAMS", "False", "cpu_offload", False, False, True),
    ("fsdp", "FSDP_BACKWARD_PREFETCH", "BACKWARD_POST", "backward_prefetch", AFTER, None, BEFORE),
    ("fsdp", "FSDP_BACKWARD_PREFETCH", "backward_pre", "backward_prefetch", BEFORE, None, AFTER),
    ("fsdp", "FSDP_BACKWARD_PREFETCH", "NO_PREFETCH", "backward_prefetch", None, None, BEFORE),
    ("fsdp", "FSDP_STATE_DICT_TYPE", SHARDED, "state_dict_type", SHARDED, WHOLE, "LOCAL_STATE_DICT"),
    (
        "fsdp",
        "FSDP_AUTO_WRAP_POLICY",
        "SIZE_BASED_WRAP",
        POLICY,
        BY_SIZE,
        None,
        "transformer_based_wrap",
        BY_LAYER,
    ),
    (
        "fsdp",
        "FSDP_AUTO_WRAP_POLICY",
        "transformer_based_wrap",
        POLICY,
        BY_LAYER,
        None,
        "SIZE_BASED_WRAP",
        BY_SIZE,
    ),
    ("fsdp", "FSDP_MIN_NUM_PARAMS", "123", "min_num_params", 123, 0, 7, None, SIZE),
    ("fsdp", "FSDP_TRANSFORMER_CLS_TO_WRAP", "A,B", CLASSES_TO_WRAP, ["A", "B"], None, ["C"], None, LAYERS),
    ("fsdp", "FSDP_USE_ORIG_PARAMS", "true", "use_orig_params", True, False, False),
    ("fsdp", "FSDP_FORWARD_PREFETCH", "yes", "forward_prefetch", True, False, False),
    ("fsdp", "FSDP_ACTIVATION_CHECKPOINTING", "1", "activation_checkpointing", True, False, False),
    ("fsdp", "FSDP_IGNORED_MODULES", ".*head", "ignored_modules", ".*head", None, ".*norm"),
    ("fsdp2", "FSDP_RESHARD_AFTER_FORWARD", "false", "reshard_after_forward", False, True, True),
    ("fsdp2", "FSDP_OFFLOAD_PARAMS", "true", "cpu_offload", True, False, False),
    ("fsdp2", "FSDP_STATE_DICT_TYPE", WHOLE, "state_dict_type", WHOLE, SHARDED, SHARDED),
    ("fsdp2", "FSDP_CPU_RAM_EFFICIENT_LOADING", "true", "cpu_ram_efficient_loading", True, False, False),
    ("fsdp2", "FSDP_CPU_RAM_EFFICIENT_LOADING", "false", "cpu_ram_efficient_loading", False, False, True),
    ("fsdp2", "FSDP_ACTIVATION_CHECKPOINTING", "true", "activation_checkpointing", True, False, False),
    ("dynamo", "ACCELERATE_DYNAMO_BACKEND", "inductor", "backend", "INDUCTOR", "NO", "eager", "EAGER"),
    (
        "dynamo",
        "ACCELERATE_DYNAMO_MODE",
        "reduce-overhead",
        "mode",
        "reduce-overhead",
        "default",
        "max-autotune",
    ),
    ("dynamo", "ACCELERATE_DYNAMO_USE_FULLGRAPH", "true", "fullgraph", True, False, False),
    ("dynamo", "ACCELERATE_DYNAMO_USE_DYNAMIC", "true", "dynamic", True, None, False),
    ("dynamo", "ACCELERATE_DYNAMO_USE_DYNAMIC", "false", "dynamic", False, None, True),
    (
        "dynamo",
        "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION",
        "true",
        "use_regional_compilation",
        True,
        False,
        False,
    ),
    ("parallelism", "PARALLELISM_CONFIG_DP_REPLICATE_SIZE", "2", "dp_replicate_size", 2, 1, 3),
    ("parallelism", "PARALLELISM_CONFIG_DP_SHARD_SIZE", "3", "dp_shard_size", 3, 1, 2),
    ("parallelism", "PARALLELISM_CONFIG_TP_SIZE", "2", "tp_size", 2, 1, 4),
    ("parallelism", "PARALLELISM_CONFIG_CP_SIZE", "5", "cp_size", 5, 1, 2),
    ("accelerator", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4", "gradient_accumulation_steps", 4, 1, 2),
    ("accelerator", "ACCELERATE_MIXED_PRECISION", "bf16", "mixed_precision", "bf16", "no", "no"),
)
# fmt: on
"""By Accelerate's documentation: object, variable, text, field, value, default, argument, what is kept of it, needs."""


def _row(*values: Any) -> Setting:
    of, variable, text, field, value, default, given, *more = values
    kept, needs = (*more, None, {})[:2] if len(more) != 1 else (more[0], {})
    return Setting(
        of=of,
        variable=variable,
        text=text,
        field=field,
        value=value,
        default=default,
        given=given,
        kept=kept,
        needs=needs,
    )


class SettingsOfVariables(KnowsFailures):
    """Those that the installed release has."""

    known_failures = (
        KnownFailure(
            "ACCELERATE_GRADIENT_ACCUMULATION_STEPS overrules gradient_accumulation_steps",
            finding="Accelerate: the variable of accumulation steps",
        ).of("R32.settings/arguments go first"),
        KnownFailure(
            "a plugin writes cpu_ram_efficient_loading into the environment, where the next one reads it",
            finding="Accelerate: a plugin of FSDP after another one",
        ).of("R32.settings/one after another"),
    )

    def __init__(self) -> None:
        """Find the classes, and the arguments that they take."""
        self._takes = {}
        for name, place in CLASSES.items():
            try:
                self._takes[name] = find_name("accelerate", [place])
            except Gone:
                continue
        self.settings = tuple(one for one in (_row(*row) for row in ROWS) if self._is_there(one))
        if not self.settings:
            raise Gone(f"accelerate {release('accelerate')} has none of these classes")

    def _is_there(self, one: Setting) -> bool:
        if one.of not in self._takes:
            return False
        known = inspect.signature(self._takes[one.of]).parameters
        return (
            one.field in known
            and (one.of != "fsdp2" or "fsdp_version" in known)
            and any(one.variable.removeprefix(prefix) in source() for prefix in COMPOSED)
        )

    def settled(
        self, of: str, variables: Mapping[str, str], given: Mapping[str, Any] | None = None
    ) -> Mapping[str, Any]:
        with _environment(variables):
            options = dict(given or {})
            if of == "accelerator":
                made = new_accelerator(**options)
            else:
                known = inspect.signature(self._takes[of]).parameters
                fixed = {name: value for name, value in ALWAYS.get(of, {}).items() if name in known}
                made = self._takes[of](**fixed, **options)
            return {one.field: plain(getattr(made, one.field)) for one in self.settings if one.of == of}

    def clear(self) -> None:
        for name in [name for name in os.environ if name.startswith(PREFIXES)]:
            del os.environ[name]


@cache
def source() -> str:
    """Return the code of the installed release: a variable that it does not name is not read."""
    package = find_name("accelerate", ["accelerate:__file__"])
    return "".join(path.read_text(encoding="utf-8") for path in sorted(Path(package).parent.rglob("*.py")))


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for a block; what else the block sets stays."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, text in before.items():
            if text is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = text


def plain(value: Any) -> Any:
    """Return a value as the table has it: names of enumerations and functions, and whether parameters go to the CPU."""
    if isinstance(value, enum.Enum):
        return value.name
    if type(value).__name__ in ("CPUOffload", "CPUOffloadPolicy", "OffloadPolicy"):
        return bool(getattr(value, "offload_params", type(value).__name__ == "CPUOffloadPolicy"))
    if callable(value) and hasattr(value, "__name__"):
        return value.__name__
    return (
        dataclasses.asdict(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type)
        else value
    )
