"""R17: dynamic sampling keeps exactly the groups that have a learning signal."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.loss.advantages import RewardCase


def _make(stack: Any, seed: int, tidy: bool) -> RewardCase:
    if tidy:
        return RewardCase(rewards=(1.0, 0.0) * 4, prompt_ids=(0, 0, 0, 0, 1, 1, 1, 1))
    rng = np.random.default_rng([seed, 170])
    rows = []
    for prompt, kind in enumerate(rng.permutation(["ones", "zeros", "tenths", "mixed", "near", "single"])):
        size = 1 if kind == "single" else int(rng.integers(2, 6))
        constant = {"ones": 1.0, "zeros": 0.0, "tenths": 0.1}.get(str(kind), 0.5)
        rewards = [constant] * size
        if kind == "mixed":
            rewards[0] = -1.0
        if kind == "near":
            rewards[-1] += 1e-3
        rows += [(reward, 40 - 7 * prompt) for reward in rewards]
    order = rng.permutation(len(rows))
    return RewardCase(
        rewards=tuple(rows[row][0] for row in order), prompt_ids=tuple(rows[row][1] for row in order)
    )


FILTER = Relation(
    id="R17.filter",
    name="filter-keeps-the-signal",
    component="group_filter",
    statement="A filter on spread keeps every row of the groups whose rewards differ, and no other row.",
    catalogue="SB148",
    cost="CPU, milliseconds",
    cases=_make,
)


@FILTER.law(
    "groups that differ",
    "the test inverted, groups formed by position, rows judged instead of groups, spread over the batch",
)
def keeps_groups_that_differ(stack: Any, case: RewardCase) -> Measure:
    """Check that the filter keeps each row of a group whose rewards differ, and no other row."""
    kept_B = stack.keep_rows(torch.tensor(case.rewards), torch.tensor(case.prompt_ids))
    wrong = []
    for prompt, rows in case.groups().items():
        differs = len({case.rewards[row] for row in rows}) > 1
        wrong += [f"row {row} of prompt {prompt}" for row in rows if bool(kept_B[row]) != differs]
    if len(kept_B) != len(case.rewards):
        wrong.append(f"{len(kept_B)} results for {len(case.rewards)} rows")
    return Measure.count(wrong, "rows kept without a signal, or dropped with one")
