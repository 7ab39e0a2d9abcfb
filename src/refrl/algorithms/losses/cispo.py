"""`cispo`: a clipped, detached ratio as the weight of log-probabilities (MiniMax-M1, arXiv 2506.13585, equation 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from refrl.algorithms.losses.base import Surrogate, TokenInputs, TokenLoss

if TYPE_CHECKING:
    from refrl.config import LossConfig


class CISPO(TokenLoss):
    """-detach(clip(ratio)) A log c: a clipped weight, and a gradient at every token."""

    @classmethod
    def check(cls, config: LossConfig) -> None:
        """Refuse a dual clip, which has no effect here (ValueError)."""
        if config.ratio_clip_c is not None:
            raise ValueError("loss_fn.ratio_clip_c has no effect with loss_fn.kind=cispo: leave it out")

    def surrogate(self, inputs: TokenInputs) -> Surrogate:
        """See `TokenLoss`."""
        from refrl.algorithms.losses.ratios import token_ratio

        ratio_BT = token_ratio(inputs.logprobs_BT, inputs.old_logprobs_BT)
        low, high = 1 - self.config.ratio_clip_min, 1 + self.config.ratio_clip_max
        clamped_BT = ratio_BT.detach().clamp(low, high)
        return Surrogate(-clamped_BT * inputs.advantages_B1 * inputs.logprobs_BT, ratio_BT, clamped_BT)

    @classmethod
    def specification(cls, config: LossConfig) -> dict[str, object]:
        """See `TokenLoss`."""
        return {
            "kind": "cispo",
            "ratio_clip_min": config.ratio_clip_min,
            "ratio_clip_max": config.ratio_clip_max,
        }
