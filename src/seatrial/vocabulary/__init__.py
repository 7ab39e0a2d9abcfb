"""Canonical metric names, and what each stack calls them.

The tables are data: canonical.yaml, stacks.yaml, and plain.yaml for custom training loops.

Tags that no table lists pass through under their own names.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Literal

from seatrial.errors import UsageError
from seatrial.nearest import hint
from seatrial.packaged import read_table

MACHINE_UNITS = frozenset({"seconds", "tokens per second", "per second", "GiB"})
"""Units of what the machine does, not the training."""


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
    signature: tuple[str, ...]
    """Tags by which a log of this stack is recognised; a star matches anything."""
    tags: Mapping[str, str]
    """Canonical name of each tag."""
    also: Mapping[str, str] = field(default_factory=dict)
    """Canonical names of tags that other versions write; the tag in `tags` counts where a log holds both."""
    families: Mapping[str, str | None] = field(default_factory=dict)
    """Canonical names by pattern, for tags of which a log holds many; the first match counts, None is no metric."""
    generic: bool = False
    """Whether other stacks write its signature too: it is recognised only where no other is, and by all of it."""


@cache
def metrics() -> Mapping[str, Metric]:
    """Return every canonical metric by name."""
    return {name: Metric(name=name, **fields) for name, fields in _table("canonical.yaml").items()}


@cache
def stacks() -> Mapping[str, Stack]:
    """Return every known stack by name."""
    return {
        name: Stack(name=name, **{**fields, "signature": tuple(fields["signature"])})
        for name, fields in _table("stacks.yaml").items()
    }


@cache
def plain_names() -> Mapping[str, str]:
    """Return canonical names of tags that custom loops write; they are used where no stack is recognised."""
    return dict(_table("plain.yaml"))


def stack_named(name: str) -> Stack:
    """Return a stack; dashes and underscores are alike.

    Raises:
        UsageError: the stack is unknown; the nearest name is given.
    """
    known = stacks()
    wanted = name.replace("-", "_")
    if wanted not in known:
        raise UsageError(f"no stack {name!r} in the vocabulary; {hint(wanted, sorted(known))}")
    return known[wanted]


def forms_of(tag: str) -> tuple[str, ...]:
    """Return a tag and the form in which TensorBoard would hold it: `x` is `train/x`, `eval_x` is `eval/x`."""
    if tag.startswith(("train/", "eval/")):
        return (tag,)
    return (tag, f"eval/{tag.removeprefix('eval_')}" if tag.startswith("eval_") else f"train/{tag}")


def recognise(tags: Collection[str]) -> Stack | None:
    """Return the stack whose signature tags are all or mostly in a log, or None if no two are."""
    present = {form for tag in tags for form in forms_of(tag)}
    scores = {stack.name: _num_matches(stack, present) for stack in stacks().values()}
    special = [stack for stack in stacks().values() if not stack.generic]
    # refrl logs NeMo RL's names and some more: the stack with the larger share of its signature wins.
    best = max(special, key=lambda stack: (scores[stack.name] / len(stack.signature), scores[stack.name]))
    if scores[best.name] >= 2:
        return best
    # A stack with a long signature may lose to one tag of another.
    best = max(special, key=lambda stack: scores[stack.name])
    if scores[best.name] >= 2:
        return best
    # A log of rewards under a trainer's names is that of a loop of its own.
    of_rewards = any(by_parts(tag) == "reward/mean" for tag in tags)
    general = [one for one in stacks().values() if one.generic and scores[one.name] == len(one.signature)]
    return general[0] if general and not of_rewards else None


def _num_matches(stack: Stack, present: Collection[str]) -> int:
    return sum(
        any(fnmatchcase(tag, mark) for tag in present) if "*" in mark else mark in present
        for mark in stack.signature
    )


def canonical(tag: str, stack: Stack | None) -> Metric | None:
    """Return the canonical metric of a tag, or None when the vocabulary does not know it.

    A tag without its stack's `train/` prefix is looked up with it, as consoles and state files write it.
    """
    if stack is None:
        return None
    for table in (stack.tags, stack.also):
        for form in forms_of(tag):
            if form in table:
                return metrics()[table[form]]
    # A plain name means the same in every stack.
    plain = plain_names().get(tag)
    if plain is not None:
        return metrics()[plain]
    for pattern, name in stack.families.items():
        if any(fnmatchcase(form, pattern) for form in forms_of(tag)) and not tag.endswith(("/std", "_std")):
            return None if name is None else metrics()[name]
    return None


_VALIDATION = frozenset(("eval", "evaluation", "val", "valid", "validation", "test"))
_TRAINING = frozenset(("train", "training", "trainer"))
_SCORE = re.compile(
    r"(?:accuracy|acc|score|scores|reward|rewards|pass_(?:at_|rate)?\d*|(?:recall|ndcg|precision|hit|mrr|map)(?:_at)?_\d+"
    r"|f1|em|exact_match|win_?rate|success_?rate|solve_?rate)(?:_score)?"
)
_RANKING = re.compile(r"(?:recall|ndcg|precision|hit|mrr|map|pass)(?:_at)?_\d+")
_EVALUATES = re.compile(r"(?:^|[/_.])(?:eval|evaluation|heldout|held_out|holdout)(?:[/_.]|$)", re.IGNORECASE)


def words_of(tag: str) -> list[str]:
    """Return the words of a tag in lower case: `train/meanReward (avg)` has four."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", "_", tag)
    return [word for word in re.split(r"[/.\s_:@()\[\],|-]+", apart.lower()) if word]


def by_parts(tag: str) -> str | None:
    """Return the canonical metric that the words of a tag name (`policy/entropy`, `kl_div`), or None."""
    scopes = frozenset(_table_of_parts()["scopes"])
    words = words_of(tag)
    if _VALIDATION & set(words[:2]):
        kept = "_".join(word for word in words if word not in scopes | _VALIDATION)
        if _parts().get(kept) == "loss":
            return "validation/loss"
        return "validation/score" if _SCORE.fullmatch(kept) else None
    # The scope may be all that there is: `policy/loss`, `grad/norm`, `loss/policy`.
    for dropped in (frozenset[str](), _TRAINING, scopes):
        found = _parts().get("_".join(word for word in words if word not in dropped))
        if found is not None:
            return found
    return None


def is_task_score(tag: str) -> bool:
    """Say whether a tag names how well the task is solved (`accuracy`, `recall@10`) and not on which prompts."""
    scopes = frozenset(_table_of_parts()["scopes"])
    words = "_".join(word for word in words_of(tag) if word not in scopes)
    return words in _table_of_parts()["tasks"] or _RANKING.fullmatch(words) is not None


def evaluates(tags: Collection[str]) -> bool:
    """Say whether a log has figures of held-out prompts in the rows of training."""
    return any(_EVALUATES.search(tag) for tag in tags)


@cache
def _parts() -> Mapping[str, str]:
    return {alias: name for name, aliases in _table_of_parts()["names"].items() for alias in aliases}


@cache
def _table_of_parts() -> Mapping[str, Any]:
    return _table("parts.yaml")


def tag_of(name: str, stack: Stack | None, present: Collection[str]) -> str | None:
    """Return the tag under which a log of a stack holds a canonical metric; None when it holds none.

    Families have no one tag.
    """
    if stack is None:
        return None
    for table in (stack.tags, stack.also):
        found = [tag for tag in present if any(table.get(form) == name for form in forms_of(tag))]
        if found:
            return min(found)
    return None


def tags_read_as(asked: Collection[str], present: Collection[str]) -> dict[str, str]:
    """Return, for tags that a log does not hold, those under which it holds the same metric.

    A tag may be asked for by its canonical name (`grad_norm`), by the name that another stack gives the metric, or in
    the other form of a Hugging Face trainer (`train/grad_norm`).
    """
    held = set(present)
    if held.issuperset(asked):
        return {}
    stack = recognise(held)
    found: dict[str, str] = {}
    for tag in asked:
        if tag in held:
            continue
        same = [other for other in twins_of(tag) if other in held]
        names = {tag} if tag in metrics() else _names_of(tag)
        other = same[0] if same else tag_of(names.pop(), stack, held) if len(names) == 1 else None
        if other is not None:
            found[tag] = other
    return found


def twins_of(tag: str) -> tuple[str, ...]:
    """Return a tag and the other form that a Hugging Face trainer has of it."""
    if tag.startswith("train/"):
        return (tag, tag.removeprefix("train/"))
    if tag.startswith("eval/"):
        return (tag, f"eval_{tag.removeprefix('eval/')}")
    return forms_of(tag)


def metrics_called(tag: str) -> tuple[Metric, ...]:
    """Return every canonical metric that any stack or a custom loop may mean by a tag."""
    names = _names_of(tag) | {tag} & metrics().keys()
    names |= {plain_names()[tag]} if tag in plain_names() else set()
    found = [canonical(tag, stack) for stack in stacks().values()]
    names |= {metric.name for metric in found if metric is not None}
    return tuple(metrics()[name] for name in sorted(names))


def _names_of(tag: str) -> set[str]:
    """Return the canonical names that any stack gives to a tag."""
    return {
        table[form]
        for stack in stacks().values()
        for table in (stack.tags, stack.also)
        for form in forms_of(tag)
        if form in table
    }


def _table(name: str) -> Mapping[str, Any]:
    table: Mapping[str, Any] = read_table("seatrial.vocabulary", name)
    return table
