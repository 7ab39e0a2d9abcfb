"""`ppo_clip`: a ratio per token, clipped (PPO, arXiv 1707.06347, equation 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from refrl.algorithms.losses.base import Surrogate, TokenInputs, TokenLoss

if TYPE_CHECKING:
    from refrl.config import LossConfig


class PPOClip(TokenLoss):
    """-min(ratio A, clip(ratio) A), with clip-higher and a dual clip if configured."""

    def surrogate(self, inputs: TokenInputs) -> Surrogate:
        """See `TokenLoss`."""
        from refrl.algorithms.losses.ratios import clipped_surrogate, token_ratio

        ratio_BT = token_ratio(inputs.logprobs_BT, inputs.old_logprobs_BT)
        return clipped_surrogate(ratio_BT, inputs.advantages_B1, self.config)

    @classmethod
    def specification(cls, config: LossConfig) -> dict[str, object]:
        """See `TokenLoss`."""
        return {
            "kind": "ppo_clip",
            "ratio_clip_min": config.ratio_clip_min,
            "ratio_clip_max": config.ratio_clip_max,
            "ratio_clip_c": config.ratio_clip_c,
        }
