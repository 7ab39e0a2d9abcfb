"""Equal parts of a list of trials, relations or faults, for machines that each take one: `--shard i/n`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from seatrial.errors import UsageError

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One of several equal parts of a list: `2/3` is the second of three."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read `i/n`.

        Raises:
            UsageError: it is something else, or i is not within 1 and n.
        """
        number, slash, count = text.partition("/")
        if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
            raise UsageError(f"--shard {text}: write i/n with i from 1 to n, such as 1/4")
        return cls(number=int(number), count=int(count))

    def take(self, items: Sequence[Item]) -> list[Item]:
        """Return every n-th item, from the i-th: neighbours, which often take as long, go to different shards."""
        return list(items[self.number - 1 :: self.count])
