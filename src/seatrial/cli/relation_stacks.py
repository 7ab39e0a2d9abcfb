"""Finds the adapters that `seatrial relations` judges: a user's object, or those of a target."""

from __future__ import annotations

import importlib
import inspect
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seatrial.errors import UsageError
from seatrial.evidence.identity.collect import package_versions
from seatrial.nearest import hint
from seatrial.targets import get_target
from seatrial.targets.common.target import Unavailable
from seatrial.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from seatrial.relations.law import Relation

PACKAGES = (
    "accelerate", "deepspeed", "megatron-core", "nemo-rl", "openrlhf", "peft", "ray", "sglang", "torch", "transformers",
    "trl", "verl", "vllm",
)  # fmt: skip
"""Distributions whose versions are reported if an adapter imports them."""


@dataclass(frozen=True, kw_only=True)
class Stacks:
    """The adapters to judge, by name; the name is empty for a single adapter."""

    adapters: Mapping[str, Any]
    unavailable: Mapping[str, Unavailable] = field(default_factory=dict)
    seeds: Sequence[int] = ()
    """Default seeds of the cases; empty if the target does not set them."""
    releases: Mapping[str, str] = field(default_factory=dict)
    """Version by package."""
    jobs: int = 1
    """Processes that judge relations at once, by default."""
    adapter_package: str | None = None
    """See `seatrial.relations.engine.run_relation`."""

    def missing(self, *, thorough: bool = True) -> Iterator[Verdict]:
        """Yield a verdict for every adapter that cannot be made in this environment, or of this release.

        Args:
            thorough: whether to yield those that only a thorough run judges too.
        """
        for name, unavailable in self.unavailable.items():
            if unavailable.thorough and not thorough:
                continue
            missing = {"missing_packages": [unavailable.package]} if unavailable.package else {}
            yield Verdict(
                name=name,
                outcome=Outcome.BLOCKED if unavailable.blocked else Outcome.NOT_REQUESTED,
                reason=unavailable.reason,
                details={**missing, **({"uncovered": True} if unavailable.uncovered else {})},
            )

    def pairs(self, relations: Iterable[Relation]) -> Iterator[tuple[Relation, str]]:
        """Yield each relation with the adapter to run it on; several adapters get only relations they support."""
        chosen = list(relations)
        for name, adapter in self.adapters.items():
            components = components_of(adapter) if name else ()
            for relation in chosen:
                if not name or relation.component in components:
                    yield relation, name


def components_of(adapter: Any) -> set[str]:
    """Return the names of the components whose contracts an adapter satisfies."""
    from seatrial.relations.contracts import COMPONENTS

    return {name for name, protocol in COMPONENTS.items() if _satisfies(adapter, protocol)}


def _satisfies(adapter: Any, protocol: type) -> bool:
    """Return whether an adapter has what a contract names; of a property that raises, its laws say what it raised."""
    try:
        return isinstance(adapter, protocol)
    except Exception:  # noqa: BLE001  the stack's own code: one adapter must not end the command
        names = (name for name in dir(protocol) if not name.startswith("_"))
        return all(inspect.getattr_static(adapter, name, None) is not None for name in names)


def find_stacks(stack: str | None, target: str | None, names: Sequence[str]) -> Stacks:
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
        adapter = _imported(stack)
        imported = [name for name in PACKAGES if name.replace("-", "_") in sys.modules]
        own = stack.partition(":")[0].partition(".")[0]
        return Stacks(adapters={"": adapter}, releases=_releases([own, *imported]))
    assert target is not None
    chosen = get_target(target)
    found = chosen.components()
    releases = _releases(getattr(chosen, "packages", ()))
    if found is None:
        raise UsageError(f"target {target} offers no components; name your adapter: MODULE:OBJECT")
    if not isinstance(found, Mapping):
        if names:
            raise UsageError(f"target {target} has one adapter; leave --adapter out")
        return Stacks(adapters={"": found}, releases=releases, jobs=getattr(chosen, "relation_jobs", 1))
    for name in names:
        if name not in found:
            raise UsageError(f"target {target} has no adapter {name!r}; {hint(name, sorted(found))}")
    wanted = {name: adapter for name, adapter in found.items() if not names or name in names}
    return Stacks(
        adapters={name: one for name, one in wanted.items() if not isinstance(one, Unavailable)},
        unavailable={name: one for name, one in wanted.items() if isinstance(one, Unavailable)},
        seeds=getattr(chosen, "relation_seeds", ()),
        releases=releases,
        jobs=getattr(chosen, "relation_jobs", 1),
        adapter_package=getattr(chosen, "adapter_package", None),
    )


def _releases(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of packages that are installed, and ours."""
    versions = package_versions(list(dict.fromkeys([*packages, "seatrial"])))
    return {name: version for name, version in versions.items() if version}


def expect_more(adapters: Mapping[str, Any], file: Path) -> None:
    """Add the failures that a file declares for the installed release to those that adapters expect; see `--expect`.

    Raises:
        UsageError: the file cannot be read, has another form, or names an adapter that is not judged.
    """
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"--expect {file} cannot be read: {error}") from error
    by_adapter: Mapping[str, Any] = {"": document} if list(adapters) == [""] else document
    for name, declared in by_adapter.items():
        if name not in adapters:
            raise UsageError(f"--expect {file}: {name!r} is not judged here; {hint(name, sorted(adapters))}")
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
    # As `python -m` does: modules of the working directory can be imported.
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise UsageError(f"cannot import {module}: {error}") from error
    except AttributeError as error:
        raise UsageError(f"module {module} has no {name}") from error
    return found() if isinstance(found, type) else found
