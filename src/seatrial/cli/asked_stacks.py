"""The adapters that `seatrial relations` is asked about: one of the user's own, or those of a target."""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seatrial.errors import UsageError
from seatrial.nearest import hint
from seatrial.targets import get_target
from seatrial.targets.common.target import Unavailable
from seatrial.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from seatrial.relations.law import Relation


@dataclass(frozen=True, kw_only=True)
class AskedStacks:
    """Adapters by name; the name is empty where there is one alone."""

    adapters: Mapping[str, Any]
    unavailable: Mapping[str, Unavailable] = field(default_factory=dict)
    seeds: Sequence[int] = ()
    """Of cases, by default; empty where the target does not say."""

    def gone(self) -> Iterator[Verdict]:
        """Yield a verdict for every adapter that the installed release has no component for."""
        for name, missing in self.unavailable.items():
            yield Verdict(name=name, outcome=Outcome.NOT_REQUESTED, reason=missing.reason)

    def pairs(self, relations: Iterable[Relation]) -> Iterator[tuple[Relation, str]]:
        """Yield what is to be run: of several adapters, each with the relations that it has the component for."""
        from seatrial.relations.contracts import COMPONENTS

        chosen = list(relations)
        for name, adapter in self.adapters.items():
            for relation in chosen:
                if not name or isinstance(adapter, COMPONENTS[relation.component]):
                    yield relation, name


def asked_stacks(stack: str | None, target: str | None, names: Sequence[str]) -> AskedStacks:
    """Return the adapters of `MODULE:OBJECT` or of a target.

    Args:
        stack: MODULE:OBJECT.
        target: name of a target, instead.
        names: of the target's adapters; all of them for none.

    Raises:
        UsageError: neither or both are given, or something that is named cannot be found.
        seatrial.errors.BlockedError: the target's stack is not installed here.
    """
    if (stack is None) == (target is None):
        raise UsageError("name one stack: MODULE:OBJECT of your adapter, or --target reference")
    if stack is not None:
        if names:
            raise UsageError("--adapter chooses among the adapters of a --target; MODULE:OBJECT is one")
        return AskedStacks(adapters={"": _imported(stack)})
    assert target is not None
    chosen = get_target(target)
    found = chosen.components()
    if found is None:
        raise UsageError(f"target {target} offers no components; name your adapter: MODULE:OBJECT")
    if not isinstance(found, Mapping):
        if names:
            raise UsageError(f"target {target} has one adapter; leave --adapter out")
        return AskedStacks(adapters={"": found})
    for name in names:
        if name not in found:
            raise UsageError(f"target {target} has no adapter {name!r}; {hint(name, sorted(found))}")
    wanted = {name: adapter for name, adapter in found.items() if not names or name in names}
    return AskedStacks(
        adapters={name: one for name, one in wanted.items() if not isinstance(one, Unavailable)},
        unavailable={name: one for name, one in wanted.items() if isinstance(one, Unavailable)},
        seeds=getattr(chosen, "relation_seeds", ()),
    )


def expect_more(adapters: Mapping[str, Any], file: Path) -> None:
    """Add what a file says of the installed release to the failures that adapters expect; see `--expect`.

    Raises:
        UsageError: the file cannot be read, is of another form, or names an adapter that is not asked about.
    """
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"--expect {file} cannot be read: {error}") from error
    by_adapter: Mapping[str, Any] = {"": document} if list(adapters) == [""] else document
    for name, declared in by_adapter.items():
        if name not in adapters:
            raise UsageError(f"--expect {file}: {name!r} is not asked about; {hint(name, sorted(adapters))}")
        if not isinstance(declared, dict) or not all(isinstance(reason, str) for reason in declared.values()):
            raise UsageError(
                f'--expect {file}: write a line `"RELATION/law" = "reason"` for each law, under [ADAPTER] where '
                "a target has several"
            )
        known = getattr(adapters[name], "expected_failures", {})
        adapters[name].expected_failures = {**known, **declared}


def _imported(stack: str) -> Any:
    module, _, name = stack.partition(":")
    if not name:
        raise UsageError(f"{stack!r} names no object; write MODULE:OBJECT, such as my_stack:Adapter")
    # As `python -m` does: the folder that one stands in holds one's own modules.
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise UsageError(f"cannot import {module}: {error}") from error
    except AttributeError as error:
        raise UsageError(f"module {module} has no {name}") from error
    return found() if isinstance(found, type) else found
