"""Checks that the effective configuration of a run of refrl matches its command line: file, then overrides."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from refrl.recipes import find_config
from seatrial.guards import Guards
from seatrial.targets.reference.configuration import dotted
from seatrial.targets.reference.guards.base import RunConfig

_OVERRIDE = re.compile(r"(\w+(?:\.\w+)*)=(.*)", re.DOTALL)


def check_options(config: RunConfig, guards: Guards, words: Sequence[str]) -> None:
    """Check that every option of the file or of an override has its value; of several overrides the last one wins.

    Args:
        config: the effective configuration.
        guards: where the result is recorded.
        words: of the command line (`sys.argv`); without `--config` nothing is checked.
    """
    at = words.index("--config") + 1 if "--config" in words[:-1] else 0
    if not at:
        return
    tree = yaml.safe_load(find_config(words[at]).read_text(encoding="utf-8"))
    for word in (*words[:at], *words[at + 1 :]):
        found = _OVERRIDE.fullmatch(word)
        if found is not None:
            _put(tree, found[1].split("."), _Text(found[2]))
    requested, has = (dotted(one, keep_empty=True) for one in (tree, config.model_dump(mode="json")))
    wrong = [
        f"{name} is {has[name]!r}, asked for is {value!r}"
        for name, value in requested.items()
        if name in has and not _is_same(value, has[name])
    ]
    wrong += [f"{name} is asked for and unknown" for name in requested if not _is_known(name, has)]
    guards.hold("options as asked for", not wrong, "; ".join(wrong[:3]), number=len(requested))


class _Text(str):
    """A value as it is written on the command line."""

    __slots__ = ()


def _put(tree: dict[str, Any], names: Sequence[str], text: _Text) -> None:
    *sections, leaf = names
    for name in sections:
        inner = tree.get(name)
        tree[name] = inner if isinstance(inner, dict) else {}
        tree = tree[name]
    value = _parsed(text)
    tree[leaf] = value if isinstance(value, dict) else text


def _parsed(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _is_known(name: str, has: Mapping[str, Any]) -> bool:
    """Return whether an option, or the section that it is of, is there: a section may be given as nothing."""
    return name in has or any(one.startswith(f"{name}.") for one in has)


def _is_same(requested: Any, has: Any) -> bool:
    """Return whether a value is the requested one: text on the command line, or parsed from the file."""
    if isinstance(requested, _Text):
        return str(requested) == has or _is_same(_parsed(requested), has)
    if isinstance(has, bool) or has is None:
        return requested is has or (has is None and requested in ({}, "null", "~", ""))
    if isinstance(has, int | float):
        try:
            return math.isclose(float(requested), has, rel_tol=1e-12)
        except (TypeError, ValueError):
            return False
    if isinstance(has, list) and isinstance(requested, list):
        return len(has) == len(requested) and all(map(_is_same, requested, has))
    return bool(requested == has)
