"""The target `trl`."""

from __future__ import annotations

from typing import Any

from seatrial.targets.common.target import ComponentsTarget, available


class TRLTarget(ComponentsTarget):
    """TRL's trainers as they are installed."""

    name = "trl"
    modules = ("trl", "transformers", "datasets", "accelerate")
    packages = ("trl", "transformers", "accelerate", "torch")

    def components(self) -> dict[str, Any]:
        """Return the adapters by name; a trainer that the release does not have says so."""
        self.preflight()
        from seatrial.targets.trl import preferences, rollouts, supervised, texts

        adapters: dict[str, type] = {
            "sft": supervised.SFT,
            "sft-pad-is-end": supervised.SFTPadIsEnd,
            "sft-padding-free": supervised.SFTPaddingFree,
            "sft-quantized-lora": supervised.SFTQuantizedLoRA,
            "dpo": preferences.DPO,
            "dpo-keep-end": preferences.DPOKeepEnd,
            "cpo": preferences.CPO,
            "orpo": preferences.ORPO,
            "grpo": rollouts.GRPO,
            "grpo-sampling": rollouts.GRPOSampling,
            "chatml": texts.ChatML,
            "gkd": texts.GKD,
        }
        return available(adapters)
