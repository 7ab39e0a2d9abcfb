"""Several verifiers as one, with the time and the failures of each."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from refrl.rewards.verifiers import Verifier, VerifierError, VerifierTimeout, judge


@dataclass
class VerifierStats:
    """What one verifier did so far."""

    num_calls: int = 0
    num_errors: int = 0
    """Completions that it could not judge, time-outs included."""
    num_timeouts: int = 0
    seconds: float = 0.0
    total_reward: float = 0.0
    """Sum over the completions that it judged."""


@dataclass(frozen=True)
class Part:
    """One verifier of several."""

    name: str
    verifier: Verifier
    weight: float


@dataclass
class WeightedVerifier:
    """A verifier: the weighted mean of its parts, so that it stays in [0, 1]."""

    parts: Sequence[Part]
    stats: dict[str, VerifierStats] = field(init=False)
    """By the name of the part."""

    def __post_init__(self) -> None:
        """Refuse no parts, equal names, and weights that are not positive (ValueError)."""
        names = [part.name for part in self.parts]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"a weighted verifier needs parts with different names, got {names}")
        bad = [part.name for part in self.parts if not 0 < part.weight < math.inf]
        if bad:
            raise ValueError(f"weights must be positive and finite; those of {bad} are not")
        self.stats = {name: VerifierStats() for name in names}

    def __call__(self, completion: str, answer: str) -> float:
        """Return the weighted mean; every part is asked, even after one has failed.

        Raises:
            VerifierError: a part could not judge; `stats` says which and how often. A share of the reward that is
                missing would look like a bad completion.
        """
        shares, failures = [], []
        for part in self.parts:
            try:
                shares.append(part.weight * self._ask(part, completion, answer))
            except VerifierError as error:
                failures.append(f"{part.name}: {error}")
        if failures:
            raise VerifierError("; ".join(failures))
        # Exact sums: full rewards of all parts give 1 and not 0.9999999999999999, which no test for success passes.
        return math.fsum(shares) / math.fsum(part.weight for part in self.parts)

    def take_stats(self) -> dict[str, VerifierStats]:
        """Return the statistics of each part since the last call, and reset them."""
        taken, self.stats = self.stats, {part.name: VerifierStats() for part in self.parts}
        return taken

    def _ask(self, part: Part, completion: str, answer: str) -> float:
        stats, started = self.stats[part.name], time.perf_counter()
        stats.num_calls += 1
        try:
            reward = judge(part.verifier, completion, answer)
        except VerifierError as error:
            stats.num_errors += 1
            stats.num_timeouts += isinstance(error, VerifierTimeout)
            raise
        finally:
            stats.seconds += time.perf_counter() - started
        stats.total_reward += reward
        return reward
