"""The rewards of a run of refrl judged again: by rules written apart from its verifiers, or by asking one twice."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

from refrl.config import GRPORunConfig, SFTRunConfig
from refrl.rollout.sync import Rollouts
from seatrial.evidence.ledger.laws.rewards import REWARDS, answer_of
from seatrial.guards import Guards
from seatrial.targets.reference.target import verifier_in_force

TOLERANCE = 1e-6
FORM = "format_match"
"""Judged here alone: the expression is the configuration's, which the run asks as well, and no stranger's log's."""
ASKED_AGAIN = 2
"""Rows whose verifier, where it is the user's own, is asked a second and a third time."""


class AsRewarded:
    """Asks of each row whether its reward is the one that its own text earns."""

    def __init__(self, config: GRPORunConfig | SFTRunConfig, guards: Guards) -> None:
        """Find out what judges."""
        self._guards = guards
        weights = config.data.verifiers
        name = None if weights is not None else verifier_in_force(config.data)
        self._weights: Mapping[str, float] = weights or {name or "": 1.0}

    def hold(self, rollouts: Rollouts, where: str, metrics: Mapping[str, float] | None = None) -> None:
        """Rewards before any shaping are the weighted mean of what the rules give; what none can judge has failed.

        Args:
            rollouts: all that were judged.
            where: for messages.
            metrics: scalars of the parts, where they are of these rows alone.
        """
        wrong, number = "", 0
        rows = zip(
            rollouts.examples,
            rollouts.texts,
            rollouts.scores.verified,
            rollouts.scores.failed,
            strict=True,
        )
        for row, (example, text, reward, failed) in enumerate(rows):
            worked_out = answer_of(example.prompt)
            answer = example.answer if worked_out is None else worked_out
            right = self._earned(text, answer, asks_again=row < ASKED_AGAIN)
            if right is None:
                continue
            number += 1
            if math.isnan(right):
                wrong = wrong or ("" if failed else f"row {row}: nothing can judge it, and it has not failed")
            elif failed or not abs(reward - right) <= TOLERANCE:
                wrong = (
                    wrong or f"row {row}: {text!r} for {example.prompt!r} earns {right:.6g}, not {reward:.6g}"
                )
        wrong = wrong or self._wrong_parts(rollouts, metrics or {})
        self._guards.hold("rewards judged again", not wrong, f"{where}, {wrong}", number=number)

    def _wrong_parts(self, rollouts: Rollouts, metrics: Mapping[str, float]) -> str:
        """Return which logged reward of one verifier of several is not the mean of what it gives these rows."""
        pairs = [
            (text, example.answer) for text, example in zip(rollouts.texts, rollouts.examples, strict=True)
        ]
        for name in self._weights:
            logged = metrics.get(f"verifier/{name}/reward")
            if logged is None or name not in REWARDS:
                continue
            earned = [reward for reward in (REWARDS[name](*pair) for pair in pairs) if not math.isnan(reward)]
            right = math.fsum(earned) / max(1, len(earned))
            if not abs(logged - right) <= TOLERANCE:
                return f"verifier/{name}/reward is {logged:.6g}, its rows have {right:.6g}"
        return ""

    def _earned(self, text: str, answer: str, *, asks_again: bool) -> float | None:
        """Return the reward; NaN where a verifier cannot judge, None where nothing is known of one of them."""
        shares = []
        for name, weight in self._weights.items():
            if name in REWARDS:
                reward = REWARDS[name](text, answer)
            elif name == FORM:
                reward = _form(text, answer)
            elif ":" in name and asks_again:
                first, second = (_asked(name, text, answer) for _ in range(2))
                # One that draws, or waits for another service, may say anything.
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


def _asked(path: str, text: str, answer: str) -> float:
    """Return what a verifier of the user's own says; NaN where it raises."""
    module, _, name = path.partition(":")
    verifier: Any = import_module(module)
    for part in name.split("."):
        verifier = getattr(verifier, part)
    verifier = verifier() if isinstance(verifier, type) else verifier
    with suppress(Exception):  # a verifier of the user's may raise anything: it is one that could not judge
        return float(verifier(text, answer))
    return math.nan
