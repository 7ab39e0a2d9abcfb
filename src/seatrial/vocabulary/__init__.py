"""Canonical metric names, and what each stack calls them. The tables are data: canonical.yaml and stacks.yaml.

Tags that no table lists pass through under their own names.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

import yaml

from seatrial.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A canonical metric."""

    name: str
    unit: str
    meaning: str
    low: float | None = None
    """Smallest value that is possible by construction."""
    high: float | None = None
    """Largest value that is possible by construction."""
    better: Literal["higher", "lower"] | None = None
    """Which direction is an improvement, where one is."""


@dataclass(frozen=True, kw_only=True)
class Stack:
    """What one stack logs."""

    name: str
    source: str
    """Where the names were read: project, commit, date, files."""
    tells: tuple[str, ...]
    """Tags by which a log of this stack is recognised."""
    tags: Mapping[str, str]
    """Canonical name of each tag."""


@cache
def metrics() -> Mapping[str, Metric]:
    """Return every canonical metric by name."""
    return {name: Metric(name=name, **fields) for name, fields in _table("canonical.yaml").items()}


@cache
def stacks() -> Mapping[str, Stack]:
    """Return every known stack by name."""
    return {
        name: Stack(name=name, source=fields["source"], tells=tuple(fields["tells"]), tags=fields["tags"])
        for name, fields in _table("stacks.yaml").items()
    }


def stack_named(name: str) -> Stack:
    """Return a stack; dashes and underscores are alike.

    Raises:
        UsageError: the stack is unknown; the nearest names are given.
    """
    known = stacks()
    wanted = name.replace("-", "_")
    if wanted not in known:
        near = difflib.get_close_matches(wanted, known, n=2) or sorted(known)
        raise UsageError(f"no stack {name!r} in the vocabulary; did you mean {' or '.join(near)}?")
    return known[wanted]


def recognise(tags: Collection[str]) -> Stack | None:
    """Return the stack whose telling tags are all or mostly in a log, or None when no two are."""
    present = set(tags)
    scores = {stack.name: len(present.intersection(stack.tells)) for stack in stacks().values()}
    # refrl logs NeMo RL's names and some more: the stack with the larger share of its own tells wins.
    best = max(
        stacks().values(), key=lambda stack: (scores[stack.name] / len(stack.tells), scores[stack.name])
    )
    return best if scores[best.name] >= 2 else None


def canonical(tag: str, stack: Stack | None) -> Metric | None:
    """Return the canonical metric of a tag, or None when the vocabulary does not know it.

    A tag without its stack's `train/` prefix is looked up with it, as consoles and state files write it.
    """
    if stack is None:
        return None
    name = stack.tags.get(tag) or stack.tags.get(f"train/{tag}")
    return metrics()[name] if name else None


def _table(name: str) -> Mapping[str, Mapping[str, Any]]:
    text = resources.files("seatrial.vocabulary").joinpath(name).read_text(encoding="utf-8")
    table: Mapping[str, Mapping[str, Any]] = yaml.safe_load(text)
    return table
