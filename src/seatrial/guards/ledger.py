"""What became of each sample: drawn, trained, or left out with a reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable


class SampleLedger:
    """Counts of samples between drawing and training; ids are what the loop tells its samples by."""

    def __init__(self) -> None:
        """Begin with nothing drawn."""
        self._open: Counter[Hashable] = Counter()
        self._wrong: list[str] = []
        self.num_drawn = 0
        self.num_trained = 0
        self.dropped: Counter[str] = Counter()
        """Samples left out, by reason."""

    def drawn(self, ids: Iterable[Hashable]) -> None:
        """Note samples that the sampler gave."""
        for one in ids:
            self.num_drawn += 1
            if self._open[one]:
                self._wrong.append(f"{one} is drawn again before it was trained")
            self._open[one] += 1

    def trained(self, ids: Iterable[Hashable]) -> None:
        """Note samples that an update trained on."""
        for one in ids:
            self.num_trained += 1
            self._close(one, "trained")

    def left_out(self, ids: Iterable[Hashable], reason: str) -> None:
        """Note samples that are not trained on, and why."""
        for one in ids:
            self.dropped[reason] += 1
            self._close(one, f"left out ({reason})")

    def _close(self, one: Hashable, how: str) -> None:
        if not self._open[one]:
            self._wrong.append(f"{one} is {how} and was not drawn, or is so a second time")
            del self._open[one]
            return
        self._open[one] -= 1
        if not self._open[one]:
            del self._open[one]

    def settle(self, *, in_flight: int = 0) -> list[str]:
        """Return what is wrong; `in_flight` samples may be open, as in an asynchronous run."""
        number = sum(self._open.values())
        lost = (
            [f"{number} samples were drawn and never trained nor left out, such as {next(iter(self._open))}"]
            if number > in_flight
            else []
        )
        return [*self._wrong, *lost]
