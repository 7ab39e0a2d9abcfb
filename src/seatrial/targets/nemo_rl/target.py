"""The target `nemo-rl`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seatrial.targets.common.checkout_trials import CheckoutTrials


class NemoRLTarget(CheckoutTrials):
    """NeMo RL's formulas and batches, from a checkout on the path or as it is installed.

    Its trials are the stages of a checkout (`stages.yaml`).
    """

    name = "nemo-rl"
    package = "seatrial.targets.nemo_rl"
    variable = "NEMO_RL_REPO"
    modules = ("nemo_rl",)
    packages = ("torch",)

    def adapters(self) -> Mapping[str, type[Any]]:
        """Return the adapters by name."""
        from seatrial.targets.nemo_rl import advantages, losses, packing, tables

        return {
            "policy-loss": losses.ClippedLoss,
            "policy-loss-with-reference": losses.ReferenceLoss,
            "policy-loss-of-rows": losses.SequenceLoss,
            "gspo-loss": losses.GSPOLoss,
            "cispo-loss": losses.CISPOLoss,
            "truncated-loss": losses.TruncatedLoss,
            "icepop-loss": losses.IcePopLoss,
            "grpo-advantages": advantages.GRPOAdvantages,
            "grpo-advantages-leave-one-out": advantages.LeaveOneOutAdvantages,
            "rloo-advantages": advantages.RLOOAdvantages,
            "kl": advantages.KL,
            "value-loss": losses.ClippedValueLoss,
            "packer": packing.Packer,
            "concatenative-packer": packing.ConcatenativePacker,
            "first-fit-packer": packing.FirstFitPacker,
            "shuffle-packer": packing.ShufflePacker,
            "tables": tables.Tables,
            "tables-of-shards": tables.ShardedTables,
        }
