"""Checks the rewards of a run of refrl: by rules written apart from its verifiers, or by calling a verifier twice."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

from refrl.rollout.sync import Rollouts
from seatrial.evidence.ledger.laws.rewards import REWARDS, answer_of
from seatrial.guards import Guards
from seatrial.targets.reference.guards.base import RunConfig, check
from seatrial.targets.reference.target import effective_verifier

TOLERANCE = 1e-6
FORM = "format_match"
"""Judged here alone: its expression is in the configuration of this run, which other logs do not have."""
NUM_REPEATED = 2
"""Rows for which a custom verifier is called twice more."""


class RewardGuard:
    """Checks of each row whether its reward is the one that its own text earns."""

    def __init__(self, config: RunConfig, guards: Guards) -> None:
        """Find the verifiers and their weights."""
        self._guards = guards
        weights = config.data.verifiers
        name = None if weights is not None else effective_verifier(config.data)
        self._weights: Mapping[str, float] = weights or {name or "": 1.0}

    def check(self, rollouts: Rollouts, where: str, metrics: Mapping[str, float] | None = None) -> None:
        """Check that rewards before shaping are the weighted mean of the verifiers, and that unjudgeable rows failed.

        Args:
            rollouts: all that were judged.
            where: for messages.
            metrics: scalars of the single verifiers, where they are of these rows alone.
        """
        wrong, number = [], 0
        scores = rollouts.scores
        rows = zip(rollouts.examples, rollouts.texts, scores.verified, scores.failed, strict=True)
        for row, (example, text, reward, failed) in enumerate(rows):
            computed = answer_of(example.prompt)
            answer = example.answer if computed is None else computed
            right = self._earned(text, answer, repeats=row < NUM_REPEATED)
            if right is None:
                continue
            number += 1
            if math.isnan(right):
                wrong += [] if failed else [f"row {row}: nothing can judge it, and it has not failed"]
            elif failed or not abs(reward - right) <= TOLERANCE:
                wrong.append(
                    f"row {row}: {text!r} for {example.prompt!r} earns {right:.6g}, not {reward:.6g}"
                )
        wrong += self._wrong_parts(rollouts, metrics or {})
        check(self._guards, "rewards judged again", wrong[:1], where=f"{where}, ", number=number)

    def _wrong_parts(self, rollouts: Rollouts, metrics: Mapping[str, float]) -> list[str]:
        """Return which logged reward of one verifier of several is not the mean of what it gives these rows."""
        wrong = []
        for name in self._weights:
            logged = metrics.get(f"verifier/{name}/reward")
            if logged is None or name not in REWARDS:
                continue
            pairs = zip(rollouts.texts, rollouts.examples, strict=True)
            rewards = (REWARDS[name](text, example.answer) for text, example in pairs)
            earned = [reward for reward in rewards if not math.isnan(reward)]
            right = math.fsum(earned) / max(1, len(earned))
            if not abs(logged - right) <= TOLERANCE:
                wrong.append(f"verifier/{name}/reward is {logged:.6g}, its rows have {right:.6g}")
        return wrong

    def _earned(self, text: str, answer: str, *, repeats: bool) -> float | None:
        """Return the reward; NaN where a verifier cannot judge, None where one of them is unknown."""
        shares = []
        for name, weight in self._weights.items():
            if name in REWARDS:
                reward = REWARDS[name](text, answer)
            elif name == FORM:
                reward = _form(text, answer)
            elif ":" in name and repeats:
                first, second = (_called(name, text, answer) for _ in range(2))
                # One that draws, or calls another service, may give anything.
                if first != second and not (math.isnan(first) and math.isnan(second)):
                    return None
                reward = first
            else:
                return None
            shares.append(weight * reward)
        return math.fsum(shares) / math.fsum(self._weights.values())


def _form(text: str, expression: str) -> float:
    """Return whether the whole text is of a form; NaN where the form is no regular expression."""
    try:
        return float(re.fullmatch(expression, text, re.DOTALL) is not None)
    except re.error:
        return math.nan


def _called(path: str, text: str, answer: str) -> float:
    """Return what a custom verifier returns; NaN where it raises."""
    module, _, name = path.partition(":")
    verifier: Any = import_module(module)
    for part in name.split("."):
        verifier = getattr(verifier, part)
    verifier = verifier() if isinstance(verifier, type) else verifier
    with suppress(Exception):  # a custom verifier may raise anything: it could not judge
        return float(verifier(text, answer))
    return math.nan
