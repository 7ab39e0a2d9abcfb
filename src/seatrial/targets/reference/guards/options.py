"""The configuration of a run of refrl held to its command line: the file, and the words after it, the last one wins."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from refrl.config import GRPORunConfig, SFTRunConfig
from refrl.recipes import find_config
from seatrial.guards import Guards

_WORD = re.compile(r"(\w+(?:\.\w+)*)=(.*)", re.DOTALL)


def hold_options(config: GRPORunConfig | SFTRunConfig, guards: Guards, words: Sequence[str]) -> None:
    """Every option that the file or a word of the command line names has that value.

    Args:
        config: in force.
        guards: that are asked.
        words: of the command line (`sys.argv`); without `--config` nothing is asked.
    """
    at = words.index("--config") + 1 if "--config" in words[:-1] else 0
    if not at:
        return
    tree = yaml.safe_load(find_config(words[at]).read_text(encoding="utf-8"))
    for word in (*words[:at], *words[at + 1 :]):
        found = _WORD.fullmatch(word)
        if found is not None:
            _put(tree, found[1].split("."), _Text(found[2]))
    asked, has = _leaves(tree), _leaves(config.model_dump(mode="json"))
    wrong = [
        f"{name} is {has[name]!r}, asked for is {value!r}"
        for name, value in asked.items()
        if name in has and not _is_same(value, has[name])
    ]
    wrong += [f"{name} is asked for and unknown" for name in asked if not _is_known(name, has)]
    guards.hold("options as asked for", not wrong, "; ".join(wrong[:3]), number=len(asked))


class _Text(str):
    """A value as it stands on the command line."""

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


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        inner = isinstance(value, Mapping) and value
        found |= _leaves(value, f"{prefix}{name}.") if inner else {f"{prefix}{name}": value}
    return found


def _is_known(name: str, has: Mapping[str, Any]) -> bool:
    """Say whether an option, or the section that it is of, is there: a section may be given as nothing."""
    return name in has or any(one.startswith(f"{name}.") for one in has)


def _is_same(asked: Any, has: Any) -> bool:
    """Say whether a value is the one asked for, text on the command line or parsed from the file."""
    if isinstance(asked, _Text):
        return str(asked) == has or _is_same(_parsed(asked), has)
    if isinstance(has, bool) or has is None:
        return asked is has or (has is None and asked in ({}, "null", "~", ""))
    if isinstance(has, int | float):
        try:
            return math.isclose(float(asked), has, rel_tol=1e-12)
        except (TypeError, ValueError):
            return False
    if isinstance(has, list) and isinstance(asked, list):
        return len(has) == len(asked) and all(map(_is_same, asked, has))
    return bool(asked == has)
