"""`gspo`: one ratio per sequence, clipped (GSPO, arXiv 2507.18071, equations 5 and 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from refrl.algorithms.losses.base import Surrogate, TokenInputs, TokenLoss

if TYPE_CHECKING:
    from refrl.config import LossConfig


class GSPO(TokenLoss):
    """The clipped surrogate of the whole completion's ratio, taken to the power 1 / length."""

    @classmethod
    def check(cls, config: LossConfig) -> None:
        """Refuse a reduction that weighs sequences by their length (ValueError)."""
        if config.reduction != "sequence":
            raise ValueError(
                f"loss_fn.kind=gspo is a loss per sequence; loss_fn.reduction={config.reduction} would weigh "
                "sequences by their length: set loss_fn.reduction=sequence"
            )

    def surrogate(self, inputs: TokenInputs) -> Surrogate:
        """See `TokenLoss`."""
        from refrl.algorithms.losses.ratios import clipped_surrogate, sequence_ratio

        ratio_BT = sequence_ratio(inputs.logprobs_BT, inputs.old_logprobs_BT, inputs.mask_BT)
        return clipped_surrogate(ratio_BT, inputs.advantages_B1, self.config)

    @classmethod
    def specification(cls, config: LossConfig) -> dict[str, object]:
        """See `TokenLoss`."""
        return {
            "kind": "gspo",
            "ratio_clip_min": config.ratio_clip_min,
            "ratio_clip_max": config.ratio_clip_max,
            "ratio_clip_c": config.ratio_clip_c,
        }
