"""Contract of advantages of tokens: rewards, values and masks of a batch to an advantage and a return for each token.

Part of `seatrial.relations.contracts`, which lists every component. One advantage for each row: `advantages` there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

Estimator = Literal[
    "gae",
    "grpo",
    "gdpo",
    "passk",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "rloo",
    "opo",
    "remax",
    "gpg",
    "token_baseline",
]
"""`gae` (Schulman et al. 2016), `grpo` (Shao et al. 2024), `gdpo` (arXiv 2601.05242: GRPO of each reward, then their
weighted sum), `passk` (arXiv 2503.19595: the best row of a group has the margin to the second, others 0),
`reinforce_plus_plus` and its form with the mean of the group (Hu 2025), `rloo` (Ahmadian et al. 2024), `opo` (Hao et
al. 2025: the mean weighted by length), `remax` (Li et al. 2024), `gpg` (Chu et al. 2025), `token_baseline` (a baseline
for each token: rewards to go, weighted by the sum of 1 - 2 p + sum of p squared from the first token on)."""
OWN_RETURNS = frozenset(("gae", "reinforce_plus_plus", "remax", "token_baseline"))
"""Estimators whose returns are not their advantages."""


@dataclass(frozen=True, kw_only=True)
class EstimatorSpec:
    """What the stack says that it computes."""

    kind: Estimator
    scaled: bool = True
    """Of `grpo`, `gdpo` and `passk`: whether a group is divided by its deviation, with n - 1, plus `epsilon`."""
    whitened: bool = False
    """Whether the advantages of all trained tokens are then centred and divided by their standard deviation."""
    whitened_unbiased: bool = True
    """Whether the variance of whitening divides by one less than the number of tokens."""
    epsilon: float = 1e-6
    gamma: float = 1.0
    lam: float = 1.0
    weights: tuple[float, ...] = ()
    """Of `gdpo`: of each reward."""
    inner_masks: bool = True
    """Whether rows may have tokens in their middle that do not train, such as a tool's output."""
    unequal_groups: bool = True
    """Whether groups may have unequal numbers of rows."""
    alone: Literal["score", "zero"] | None = None
    """Advantage of the only row of a group: its score, as if the mean were 0 and the deviation 1, or 0; None: a
    group has to have several."""
    dtype: Literal["float64", "float32"] = "float64"
    """What it computes in."""


@dataclass(frozen=True, kw_only=True)
class EstimatorInputs:
    """A batch; rows of a group are those with one prompt id, in any place. Padding is on the right."""

    rewards_BT: Tensor
    """0 on tokens that do not train; of an outcome, the reward at the last token that trains."""
    mask_BT: Tensor
    prompt_ids_B: Tensor
    values_BT: Tensor
    """They hold anything where the mask is 0, and so do the two tensors below."""
    logprobs_BT: Tensor
    squared_probabilities_BT: Tensor
    """Sum over the vocabulary of the squares of the probabilities."""
    baselines_B: Tensor
    """Reward of the greedy completion of each row's prompt."""
    components: Mapping[str, Tensor] = field(default_factory=dict)
    """Rewards of each row by the name of the reward; `rewards_BT` is their sum."""


@runtime_checkable
class TokenAdvantages(Protocol):
    """An estimator of advantages."""

    estimator_spec: EstimatorSpec

    def token_advantages(self, inputs: EstimatorInputs) -> tuple[Tensor, Tensor]:
        """Return advantages and returns, [B, T] each; what they are where the mask is 0 does not count."""
        ...
