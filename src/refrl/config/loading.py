"""Read a YAML configuration, apply `a.b=value` overrides, and validate the whole against a schema.

YAML is read by the rules of version 1.2 for floats (`1e-3` is a number); a key that is there twice is an error.
Values are validated strictly: `seed: true` or `seed: "3"` is not an integer.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
import types
import typing
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from refrl.errors import ConfigError as ConfigError

SchemaT = TypeVar("SchemaT", bound=BaseModel)


def load_config(schema: type[SchemaT], path: Path, overrides: Sequence[str] = ()) -> SchemaT:
    """Read a YAML file, apply `a.b=value` overrides (values are YAML), and validate.

    Raises:
        ConfigError: the file cannot be read, an override is malformed, a key is unknown (the nearest known
            one is named), or a value has the wrong type or range.
    """
    data = _read_yaml(path)
    known = leaf_annotations(schema)
    for override in overrides:
        _apply_override(data, override, known)
    return validate_config(schema, data, source=str(path))


def validate_config(schema: type[SchemaT], data: Mapping[str, Any], *, source: str) -> SchemaT:
    """Validate nested data; `source` opens the message.

    Raises:
        ConfigError: as one line that names each dotted key at fault.
    """
    try:
        text = json.dumps(data)
    except TypeError as error:
        raise ConfigError(
            f"{source}: a value is not a plain number, text, list or mapping: {error}"
        ) from error
    try:
        return schema.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise ConfigError(f"{source}: {describe_problems(schema, error)}") from error


def describe_problems(schema: type[BaseModel], error: ValidationError, *, prefix: str = "") -> str:
    """Say in one line what each dotted key, with the prefix before it, has wrong."""
    known = [prefix + name for name in leaf_annotations(schema)]
    problems = [
        {**problem, "loc": (*prefix.split(".")[:-1], *problem["loc"])}
        for problem in error.errors(include_url=False)
    ]
    return "; ".join(dict.fromkeys(_describe(problem, known) for problem in problems))


@functools.cache
def leaf_annotations(schema: type[BaseModel], prefix: str = "") -> Mapping[str, Any]:
    """Return every dotted key of a schema that holds a value, with the type it takes."""
    leaves: dict[str, Any] = {}
    for name, field in schema.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            leaves |= leaf_annotations(annotation, f"{prefix}{name}.")
        else:
            leaves[f"{prefix}{name}"] = annotation
    return leaves


_UNION_TAGS = ("int", "float", "str", "bool")
"""What pydantic appends to the key of a value that may have several types, once for each type."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML with floats of version 1.2 and without duplicate keys.

    The parser in C takes a tenth of the time; not every build of PyYAML has it.
    """


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)$"),
    list("-+0123456789."),
)


def _construct_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Hashable, Any]:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    for key in keys:
        if keys.count(key) > 1:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {key!r} is there twice", node.start_mark
            )
    return yaml.constructor.SafeConstructor.construct_mapping(loader, node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _construct_mapping)


def _parse_yaml(text: str) -> Any:
    return yaml.load(text, Loader=_Loader)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"configuration file {path} does not exist") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {path} cannot be read: {error}") from error
    try:
        data = _parse_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {_one_line(error)}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} holds no mapping of sections (policy:, data:, ...)")
    return data


def _apply_override(data: dict[str, Any], override: str, known: Mapping[str, Any]) -> None:
    key, equals, text = override.partition("=")
    names = key.split(".")
    if not equals or not all(re.fullmatch(r"\w+", name) for name in names):
        raise ConfigError(f"override {override!r} is malformed; write it as section.key=value")
    section = data
    for depth, name in enumerate(names[:-1]):
        if section.get(name) is None:
            section[name] = {}
        section = section[name]
        if not isinstance(section, dict):
            raise ConfigError(
                f"override {override!r}: {'.'.join(names[: depth + 1])} is a value, not a section"
            )
    section[names[-1]] = _override_value(override, text, known.get(key))


def _override_value(override: str, text: str, annotation: Any) -> Any:
    """Parse the value as YAML; a key that takes text takes it unchanged (`log_dir=2026` is a path)."""
    union = (types.UnionType, typing.Union)  # `Directory | None` is of the second kind
    choices = typing.get_args(annotation) if typing.get_origin(annotation) in union else (annotation,)
    choices = tuple(getattr(choice, "__origin__", choice) for choice in choices)
    if str in choices:
        return None if type(None) in choices and text in ("null", "~", "") else text
    try:
        return _parse_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"override {override!r}: the value is not valid YAML: {_one_line(error)}"
        ) from error


def _describe(problem: Mapping[str, Any], known: Sequence[str]) -> str:
    """Say in words what pydantic found wrong with one key."""
    *path, last = problem["loc"] or ("",)
    if last in _UNION_TAGS:
        return f"{'.'.join(map(str, path))}: input should be a number, a text or a boolean, got {problem['input']!r}"
    key = ".".join(map(str, problem["loc"]))
    if problem["type"] == "extra_forbidden":
        return f"unknown key {key!r}; the nearest known key is {_nearest(key, problem['input'], known)!r}"
    if problem["type"] == "missing":
        return f"required key {key!r} is missing"
    if problem["type"] == "value_error":
        return str(problem["ctx"]["error"])
    message = problem["msg"][0].lower() + problem["msg"][1:]
    return f"{key}: {message}, got {problem['input']!r}"


def _nearest(key: str, value: Any, known: Sequence[str]) -> str:
    """Return the known section nearest to a mapping's key; for a value a key of the same last name, if there is one."""
    if isinstance(value, Mapping):
        candidates = [name.rpartition(".")[0] for name in known]
    else:
        last = key.rpartition(".")[2]
        candidates = [name for name in known if name.rpartition(".")[2] == last] or list(known)
    return difflib.get_close_matches(key, candidates, n=1, cutoff=0.0)[0]


def _one_line(error: object) -> str:
    return " ".join(str(error).split())
