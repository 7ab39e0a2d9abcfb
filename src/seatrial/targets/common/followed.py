"""What a stack offers by name, and the adapters whose laws run it, as a page.

A name is judged by an adapter if a law of it runs the code of that name: laws compare results, and what runs in none of
them cannot be seen to be wrong. The converse does not hold: code that runs may be called with one value of an argument.
Laws of several processes are not followed.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import sys
import threading
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType
from typing import Any

from seatrial.relations.registry import all_relations
from seatrial.targets.common import offered as names
from seatrial.targets.common.offered import Offered, undecorated
from seatrial.targets.common.target import ComponentsTarget, Unavailable, release


class _Followed:
    """Adapters by the code that ran while their laws measured."""

    def __init__(self) -> None:
        self.ran: dict[CodeType, dict[str, None]] = {}
        self.adapter = ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self.ran.setdefault(frame.f_code, {})[self.adapter] = None

    @contextlib.contextmanager
    def of(self, adapter: str) -> Iterator[None]:
        """Follow calls of this process while an adapter is judged."""
        self.adapter = adapter
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def judged(target: ComponentsTarget, adapters: Mapping[str, Any]) -> dict[CodeType, dict[str, None]]:
    """Return the adapters whose laws run each code."""
    from seatrial.relations.engine import run_relation

    followed = _Followed()
    for name, adapter in adapters.items():
        if isinstance(adapter, Unavailable):
            continue
        with followed.of(name), contextlib.redirect_stdout(io.StringIO()):
            for relation in all_relations():
                package = target.adapter_package
                run_relation(relation, adapter, seeds=(0,), adapter_package=package, shrink_seconds=0)
    return followed.ran


def codes_of(one: Any) -> Iterator[CodeType]:
    """Yield the code of a function, or of what a class itself defines."""
    members = vars(one).values() if inspect.isclass(one) else [one]
    for member in members:
        given = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        function = undecorated(given)
        if inspect.isfunction(function) and function.__module__ == one.__module__:
            yield function.__code__


def offered(
    target: ComponentsTarget, adapters: Mapping[str, Any], out_of_scope: Mapping[str, str]
) -> Iterator[Offered]:
    """Yield every public class and function of the installed release, module by module; see `page`."""
    ran = judged(target, adapters)

    def state_of(_: str, one: Any) -> str:
        codes = list(codes_of(one))
        if not codes:
            return f"{names.OUT}it has no code of its own"
        adapters = {adapter: None for code in codes for adapter in ran.get(code, {})}
        shown = list(adapters)[:3]
        return ", ".join(shown + [f"{len(adapters) - 3} others"][: len(adapters) > 3]) or names.UNCOVERED

    yield from names.offered(target.name, out_of_scope, state_of)


def page(
    target: ComponentsTarget, adapters: Mapping[str, Any], out_of_scope: Mapping[str, str], head: str
) -> str:
    """Return the page docs/evidence/STACK_names.md for the installed release of a stack.

    Args:
        target: the stack, named as its package.
        adapters: those whose laws are followed, by name.
        out_of_scope: see `seatrial.targets.common.offered.offered`.
        head: what is above the table.
    """
    rows, package = list(offered(target, adapters, out_of_scope)), target.name
    parts = [
        head,
        f"{names.summary(f'{package} {release(package)}', rows)}.",
        "",
        "| module | judged | uncovered |",
        "|---|---|---|",
    ]
    relevant = [row for row in rows if row.relevant]
    for module in dict.fromkeys(row.module for row in relevant):
        own = [row for row in relevant if row.module == module]
        covered = [f"`{row.name}` ({row.state})" for row in own if row.state != names.UNCOVERED]
        rest = [f"`{row.name}`" for row in own if row.state == names.UNCOVERED]
        parts.append(f"| `{module}` | {'; '.join(covered)} | {', '.join(rest)} |")
    parts += ["", "## Out of scope", "", "| reason | modules |", "|---|---|"]
    for reason in sorted({row.state for row in rows if not row.relevant}):
        modules = dict.fromkeys(row.module.removeprefix(f"{package}.") for row in rows if row.state == reason)
        text = ", ".join(f"`{name}`" for name in modules)
        parts.append(
            f"| {reason.removeprefix(names.OUT)} | {text if len(modules) < 12 else f'{len(modules)} modules'} |"
        )
    return "\n".join(parts) + "\n"
