"""What modules of Transformers declare, on record: options of configurations, classes, conversions of weights, tables.

A module's entry has checksums by what is declared. Options that are given one by one show what a configuration computes
of each. Ranges are narrow: another release may rightly declare something else.
"""

from __future__ import annotations

import copy
import enum
import importlib
import inspect
import pkgutil
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.every_class import attributes_of, crc
from seatrial.targets.transformers.worked.records.answers import REFUSED, answered, record, unlike_record
from seatrial.targets.transformers.worked.records.loaded import classes_of, modules
from seatrial.targets.transformers.worked.records.parsed import assigned, constants_of, defaults_of, text_of

RECORD = "declared_record"
PLACE = "transformers:PretrainedConfig"
SHARED = "="
"""The first character of names of entries that are not of one module of models."""
NOTED = (
    "transformers_version",
    "_name_or_path",
    "_commit_hash",
    "_attn_implementation",
    "_experts_implementation",
)
"""Options that say how a configuration was made."""
OF_CLASSES = (
    "attribute_map", "keys_to_ignore_at_inference", "base_model_tp_plan", "base_model_pp_plan", "base_model_ep_plan",
    "sub_configs", "model_type", "base_config_key", "has_no_defaults_at_init", "is_composition",
    "default_theta", "ignore_keys_at_rope_validation", "_auto_class",
)  # fmt: skip
"""Attributes of classes of configurations."""
GENERATION: Mapping[str, Any] = {
    "max_length": 7, "num_beams": 3, "pad_token_id": 3, "eos_token_id": [4, 5], "bos_token_id": 6,
    "decoder_start_token_id": 8, "temperature": 0.5, "do_sample": True, "forced_eos_token_id": 4,
}  # fmt: skip
"""Options of generation that older files of configurations have."""
AUTO = ("modeling", "configuration", "processing", "feature_extraction")
"""Modules of tables by type of model."""
INSTALLED = ("tokenization", "image_processing", "video_processing")
"""Such modules whose tables depend on packages: their text is on record."""


def plain(value: Any, depth: int = 0) -> Any:
    """Return a value as a checksum takes it: numbers, words, lists and tables of these, and names of classes."""
    if depth > 6:
        return "..."
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, Mapping):
        return {str(name): plain(one, depth + 1) for name, one in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(str(plain(one, depth + 1)) for one in value)
    if isinstance(value, (list, tuple)):
        return [plain(one, depth + 1) for one in value]
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if isinstance(value, re.Pattern):
        return value.pattern
    if inspect.isclass(value) or inspect.isroutine(value):
        return value.__name__
    if hasattr(value, "to_dict") and hasattr(value, "model_type"):
        return options_of(value)
    return type(value).__name__


def options_of(config: Any) -> dict[str, Any]:
    """Return the options of a configuration by name."""
    return {name: plain(one) for name, one in config.to_dict().items() if name not in NOTED}


def _digits(values: Mapping[str, Any]) -> list[Any]:
    """Return names, and the last three digits of each value's checksum, as one word."""
    return [crc(sorted(values)), "".join(f"{crc(values[name]) % 4096:03x}" for name in sorted(values))]


@cache
def _configs(kind: str) -> Mapping[str, Any]:
    """Return the classes of configurations of a module by name."""
    from transformers import PretrainedConfig

    package = importlib.import_module(f"transformers.models.{kind}")
    found = {}
    for one in pkgutil.iter_modules(package.__path__):
        if one.name.startswith("configuration_"):
            place = f"{package.__name__}.{one.name}"
            for name, made in vars(importlib.import_module(place)).items():
                if inspect.isclass(made) and issubclass(made, PretrainedConfig) and made.__module__ == place:
                    found[name] = made
    return found


def _read(config: Any) -> dict[str, Any]:
    """Return options as code reads them: by other names, and those that are computed."""
    names = [*getattr(type(config), "attribute_map", {})]
    names += [name for name, one in inspect.getmembers(type(config)) if isinstance(one, property)]
    found = {}
    for name in names:
        if not name.startswith("_") and name not in ("rope_scaling", "name_or_path"):
            try:
                found[name] = plain(getattr(config, name))
            except REFUSED as error:
                found[name] = type(error).__name__
    return found


def _other(value: Any) -> Any:
    """Return another value of an option, None where there is none."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value * 2 if value > 0 else value + 1
    if isinstance(value, float):
        return value / 2 if value else 0.25
    return None


def _one_by_one(made: Any) -> list[Any]:
    """Return what changes with each option, of those that are numbers."""
    base = made()
    before = {**options_of(base), **_read(base)}
    found: dict[str, Any] = {}
    for name in inspect.signature(made.__init__).parameters:
        other = _other(before.get(name))
        if other is None:
            continue
        try:
            config = made(**{name: other})
            after = {**options_of(config), **_read(config)}
        except REFUSED as error:
            found[name] = type(error).__name__
            continue
        found[name] = {
            one: value for one, value in after.items() if one not in before or before[one] != value
        }
    return _digits(found)


def _parts(made: Any) -> list[Any]:
    """Return checksums of configurations whose parts are given as tables, as objects, and read from a table."""
    known: Any = getattr(made, "sub_configs", None) or {}
    if not known:
        raise NotServed("it has no parts")
    base, found = made(), []
    for name in sorted(known):
        part: Any = getattr(base, name, None)
        if not hasattr(part, "to_dict"):
            found.append([name, type(part).__name__])
            continue
        changed = {
            one: _other(value)
            for one, value in part.to_dict().items()
            if "hidden_size" in one and _other(value)
        }
        table = {**changed, "model_type": part.model_type}
        row: list[Any] = [name, type(part).__name__]
        for given in (lambda: dict(table), lambda: type(part)(**changed)):  # noqa: B023
            try:
                config = made(**{name: given()})
                row += [crc(options_of(config)), crc(options_of(made.from_dict(config.to_dict())))]
            except REFUSED as error:
                row.append(type(error).__name__)
        found.append(row)
    return found


def _generation(made: Any) -> list[int]:
    """Return checksums of the options of generation of a configuration, and of one with those of older files."""
    from transformers import GenerationConfig

    found = []
    for options in ({}, GENERATION):
        config = made.from_dict(copy.deepcopy(dict(options)))
        values = GenerationConfig.from_model_config(config).to_dict()
        found.append(crc({name: plain(one) for name, one in values.items() if name not in NOTED}))
        found.append(crc({name: one for name, one in options_of(config).items() if name in GENERATION}))
    return found


def _difference(made: Any) -> int:
    found = made().to_diff_dict()
    return crc({name: plain(one) for name, one in found.items() if name not in NOTED})


OF_CONFIGS: Mapping[str, Callable[[Any], Any]] = {
    "options": lambda made: _digits(options_of(made())),
    "options that are read": lambda made: _digits(_read(made())),
    "differences": _difference,
    "attributes": lambda made: crc(
        {name: plain(getattr(made, name)) for name in OF_CLASSES if hasattr(made, name)}
    ),
    "each option": _one_by_one,
    "parts": _parts,
    "generation": _generation,
}
"""What is on record of a class of configurations."""


def _of_model(made: Any) -> int:
    more = {
        "config": getattr(made.config_class, "__name__", None),
        "bases": [one.__name__ for one in made.__mro__[1:3]],
    }
    return crc({**attributes_of(made), **more})


def _files(kind: str) -> list[str]:
    """Return the modules of an entry: of a folder of models, or those that all share."""
    if not kind.startswith(SHARED):
        root = Path(str(importlib.import_module(f"transformers.models.{kind}").__file__)).parent
        ends = sorted(
            one.stem for one in root.glob("*.py") if not one.stem.startswith(("__", "convert_", "modular_"))
        )
        return [
            f"transformers.models.{kind}.{one}" for one in ends if "_tf_" not in one and "_flax_" not in one
        ]
    return [f"transformers.{kind.removeprefix(SHARED)}"]


def _shared() -> list[str]:
    """Return names of entries of modules that all models share, below the package."""
    import transformers

    root = Path(str(transformers.__file__)).parent
    folders = (
        ".",
        "data",
        "data/processors",
        "generation",
        "integrations",
        "loss",
        "quantizers",
        "utils",
        "pipelines",
    )
    found = []
    for folder in folders:
        for one in sorted((root / folder).glob("*.py")):
            name = ".".join((*Path(folder).parts, one.stem))
            if (
                not one.stem.startswith(("__", "dummy_", "import_utils", "dependency"))
                and "_tf" not in one.stem
            ):
                found.append(f"{SHARED}{name}")
    return found


@cache
def _conversions() -> Mapping[str, Any]:
    try:
        import transformers.conversion_mapping as module
    except ImportError as error:
        raise NotServed(str(error)) from error
    build: Any = module._build_checkpoint_conversion_mapping
    return dict(build())


def _conversion(one: Any) -> Any:
    operations = [
        [type(operation).__name__, plain(vars(operation))]
        for operation in getattr(one, "operations", None) or ()
    ]
    more = {name: plain(getattr(one, name)) for name in ("prefix_to_add", "prefix_to_remove", "model_prefix", "offset")
            if hasattr(one, name)}  # fmt: skip
    return [type(one).__name__, plain(one._original_source_patterns), plain(one._original_target_patterns), operations,
            more, one.compiled_sources.pattern]  # fmt: skip


def _ask(kind: str, made: Any, case: str) -> Any:
    name, _, what = case.partition(": ")
    if what in ("constants", "defaults"):
        return (constants_of if what == "constants" else defaults_of)(f"transformers.{name}")
    if kind == f"{SHARED}conversions":
        return crc([_conversion(one) for one in _conversions()[name]])
    if kind == f"{SHARED}auto":
        module = importlib.import_module(f"transformers.models.auto.{name}_auto")
        return crc(plain(getattr(module, what)))
    if what == "class":
        return _of_model(classes_of(kind)[name])
    return OF_CONFIGS[what](_configs(kind)[name])


def cases_of(kind: str) -> Iterator[str]:
    """Yield the cases of an entry."""
    if kind == f"{SHARED}conversions":
        yield from (f"{name}: patterns" for name in _conversions())
        return
    if kind == f"{SHARED}auto":
        yield from (f"models.auto.{name}_auto: constants" for name in INSTALLED)
        for name in AUTO:
            module = importlib.import_module(f"transformers.models.auto.{name}_auto")
            own = assigned(text_of(module.__name__).body)
            yield from (f"{name}: {one}" for one in own if one.endswith(("NAMES", "ALIASES", "MAP")))
        return
    if not kind.startswith(SHARED):
        yield from (f"{name}: {what}" for name in _configs(kind) for what in OF_CONFIGS)
        yield from (f"{name}: class" for name in classes_of(kind))
    for place in _files(kind):
        yield from (f"{place.removeprefix('transformers.')}: {what}" for what in ("constants", "defaults"))


def given_now(only: Sequence[str] = ()) -> dict[str, Any]:
    """Return what the installed release gives, of all entries or those that are named."""
    found: dict[str, Any] = {}
    for kind in only or (f"{SHARED}conversions", f"{SHARED}auto", *_shared(), *modules()):
        try:
            cases = list(cases_of(kind))
        except REFUSED as error:
            print(f"{kind}: {error!r}"[:200], file=sys.stderr, flush=True)
            continue
        for case in cases:
            try:
                found.setdefault(kind, {})[case] = answered(partial(_ask, kind), None, case)
            except REFUSED as error:
                print(f"{kind}, {case}: {error!r}"[:160], file=sys.stderr, flush=True)
    return found


def _unlike(kind: str, made: Any) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return unlike_record(RECORD, kind, partial(_ask, kind), False, made)


# Source: what releases 4.57.6 and 5.24 declare; `given_now` makes an entry.
DECLARED_ROWS: Sequence[Row] = tuple(
    Row(
        "options",
        PLACE,
        f"what {kind.removeprefix(SHARED)} declares",
        partial(_unlike, kind),
        [],
        since="4.57.6",
    )
    for kind in record(RECORD)
)
