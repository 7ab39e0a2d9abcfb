"""Advantages worked out again from logged rewards, apart from the stack's own code, in float64."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from seatrial.evidence.ledger import LedgerRow
from seatrial.targets.base import AdvantageFacts


def advantages_of(rows: Sequence[LedgerRow], facts: AdvantageFacts) -> npt.NDArray[np.float64]:
    """Work out the advantages of one step's rows from their rewards, in float64, group by group.

    GRPO: (r - mean) / (std + epsilon); Dr. GRPO: r - mean; RLOO: r minus the mean of the others;
    REINFORCE++ baseline: r - mean, over the batch's std. A std is that of a sample (n - 1).
    """
    groups: Mapping[int, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        groups[row.prompt_id].append(place)
    centred = np.zeros(len(rows))
    divisor = np.ones(len(rows))
    for places in groups.values():
        rewards = [rows[place].reward for place in places]
        mean = math.fsum(rewards) / len(rewards)
        for place, reward in zip(places, rewards, strict=True):
            others = math.fsum(rewards) - reward
            rloo = facts.estimator == "rloo" and len(rewards) > 1
            centred[place] = reward - (others / (len(rewards) - 1) if rloo else mean)
        if facts.scale == "group":
            divisor[places] = _sample_std(rewards) + facts.epsilon
    if facts.scale == "batch":
        whitened = facts.estimator == "reinforce_plus_plus_baseline"
        spread = list(centred) if whitened else [row.reward for row in rows]
        divisor[:] = _sample_std(spread) + facts.epsilon
    return np.asarray(centred / divisor, dtype=np.float64)


def _sample_std(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return (
        math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
        if len(values) > 1
        else 0.0
    )
