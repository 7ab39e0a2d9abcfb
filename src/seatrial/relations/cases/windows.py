"""Made windows of rollouts: groups of completions with rewards, as a trainer of GRPO's kind takes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from seatrial.relations.cases.case import Case
from seatrial.relations.records import AdvantageSpec


@dataclass(frozen=True, kw_only=True)
class WindowSpec:
    """What the stack declares that it computes from a window; the policy is on-policy, so that every ratio is 1."""

    advantage: AdvantageSpec = field(default_factory=AdvantageSpec)
    reduction: Literal["token", "sequence", "sequence-sum"] = "token"
    """Mean over the trained tokens of the window, or over its rows of the mean, or the sum, over a row's trained
    tokens: the sum is the gradient of a whole sequence's log-probability, as in RLOO (Ahmadian et al. 2024)."""


@dataclass(frozen=True, kw_only=True)
class WindowRow:
    """One completion; rows with one prompt are a group."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    """Ends with the end token unless it was truncated."""
    reward: float | None
    """None where no reward function could score it: it has no advantage, and is not in its group's baseline."""


@dataclass(frozen=True, kw_only=True)
class WindowCase(Case):
    """The rows of one optimizer step; all groups have the same size."""

    rows: tuple[WindowRow, ...]
    num_generations: int
    max_completion_length: int
    eos_id: int
    temperature: float = 1.0
    masks_truncated: bool = False
    """Whether truncated completions are to be left out of the loss."""
    seed: int = 0

    def smaller(self) -> Iterator[WindowCase]:
        """Yield the window with one group, then with shorter completions."""
        if len(self.rows) > self.num_generations:
            yield replace(self, rows=self.rows[: self.num_generations])
            yield replace(self, rows=self.rows[-self.num_generations :])
        for index, row in enumerate(self.rows):
            if len(row.completion_ids) > 3:
                shorter = replace(row, completion_ids=row.completion_ids[len(row.completion_ids) // 2 :])
                yield replace(self, rows=(*self.rows[:index], shorter, *self.rows[index + 1 :]))

    def describe(self) -> Mapping[str, Any]:
        """Return the window as JSON values."""
        return {
            "seed": self.seed,
            "temperature": self.temperature,
            "masks_truncated": self.masks_truncated,
            "rows": [
                {
                    "prompt_ids": list(row.prompt_ids),
                    "completion_ids": list(row.completion_ids),
                    "reward": row.reward,
                }
                for row in self.rows
            ],
        }

    def is_trained(self, row: WindowRow) -> bool:
        """Return whether a row's tokens are in the loss."""
        return not self.masks_truncated or row.completion_ids[-1] == self.eos_id


def make_window(
    seed: int,
    *,
    ordinary_ids: Sequence[int],
    eos_id: int,
    lengths: Literal["equal", "unequal"] = "equal",
    prompts: Literal["equal", "unequal"] = "equal",
    temperature: float = 1.0,
    unscored: bool = False,
    truncated: bool = False,
    num_prompts: int = 2,
    num_generations: int = 4,
    max_completion_length: int = 12,
) -> WindowCase:
    """Return a made window; every option other than the seed is a separate trap.

    Args:
        seed: of everything that is drawn.
        ordinary_ids: ids that occur in texts.
        eos_id: ends every completion that is not truncated.
        lengths: of the completions.
        prompts: lengths of the prompts; unequal ones differ by three tokens from group to group.
        temperature: that sampling and scoring share.
        unscored: whether the second completion of the first group has no reward.
        truncated: whether every other completion ends at the limit without the end token, and is left out.
        num_prompts: groups.
        num_generations: rows of each.
        max_completion_length: in tokens, the end token included.
    """
    rng = np.random.default_rng([seed, num_prompts, num_generations, max_completion_length])

    def ids(length: int) -> tuple[int, ...]:
        return tuple(int(token) for token in rng.choice(list(ordinary_ids), size=length))

    rows = []
    for group in range(num_prompts):
        prompt_ids = ids(4 + (3 * group if prompts == "unequal" else 0))
        for index in range(num_generations):
            length = 6 if lengths == "equal" else 3 + (2 * index + group) % (max_completion_length - 3)
            completion = (*ids(length - 1), eos_id)
            if truncated and index % 2:
                completion = ids(max_completion_length)
            none = unscored and group == 0 and index == 1
            reward = None if none else float(np.round(rng.normal(0.3, 1.0), 3))
            rows.append(WindowRow(prompt_ids=prompt_ids, completion_ids=completion, reward=reward))
    return WindowCase(
        rows=tuple(rows),
        num_generations=num_generations,
        max_completion_length=max_completion_length,
        eos_id=eos_id,
        temperature=temperature,
        masks_truncated=truncated,
        seed=seed,
    )
