"""What every made input can do: yield simpler ones, and describe itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any


class Case:
    """A made input. A case without simpler ones need not define `smaller`; one of plain values need not `describe`."""

    def smaller(self) -> Iterator[Any]:
        """Yield simpler cases of the same kind, simplest first."""
        return iter(())

    def describe(self) -> Mapping[str, Any]:
        """Return the case as JSON values, enough to replay it."""
        return {item.name: getattr(self, item.name) for item in fields(self)}  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class AsItIs(Case):
    """What the stack makes by itself: there is nothing to choose."""


def as_it_is(stack: Any, seed: int, tidy: bool) -> AsItIs:
    """Return a law's case where there is nothing to choose."""
    return AsItIs()
