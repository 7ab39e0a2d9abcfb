"""The target `trl`."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from seatrial.errors import BlockedError
from seatrial.targets.base import Job, JobRequest, TrainingJob
from seatrial.targets.common.target import ComponentsTarget


class TRLTarget(ComponentsTarget):
    """TRL's trainers as they are installed: by contract, and in short runs of their own."""

    name = "trl"
    modules = ("trl", "transformers", "datasets", "accelerate")
    packages = ("trl", "transformers", "accelerate", "torch")

    def adapters(self) -> Mapping[str, type[Any]]:
        """Return the adapters by name."""
        from seatrial.targets.trl import (
            configurations,
            conversations,
            distillation,
            drawing,
            packing,
            preferences,
            rewards,
            rollouts,
            supervised,
            texts,
            utilities,
            whole,
        )
        from seatrial.targets.trl.compared import adapter as compared
        from seatrial.targets.trl.worked import adapter as worked

        return {
            "sft": supervised.SFT,
            "sft-pad-is-end": supervised.SFTPadIsEnd,
            "sft-padding-free": supervised.SFTPaddingFree,
            "sft-quantized-lora": supervised.SFTQuantizedLoRA,
            "dpo": preferences.DPO,
            "dpo-keep-end": preferences.DPOKeepEnd,
            "dpo-pairs": preferences.DPOPairs,
            "cpo": preferences.CPO,
            "orpo": preferences.ORPO,
            "kto": preferences.KTO,
            "reward": rewards.Reward,
            "grpo": rollouts.GRPO,
            "rloo": rollouts.RLOO,
            "grpo-sampling": rollouts.GRPOSampling,
            "sft-conversations": conversations.SFTConversations,
            "chatml": texts.ChatML,
            "gkd": texts.GKD,
            **distillation.ADAPTERS,
            "packing": packing.BestFit,
            "packing-split": packing.BestFitSplit,
            "packing-wrapped": packing.Wrapped,
            **drawing.ADAPTERS,
            **utilities.ADAPTERS,
            **worked.ADAPTERS,
            **whole.ADAPTERS,
            **compared.ADAPTERS,
            **configurations.ADAPTERS,
        }

    def option_lines(self) -> Iterator[str]:
        """Yield the table of the trainers' options, line by line; see `options.table`."""
        from seatrial.targets.trl.options.table import lines, option_table

        self.preflight()
        yield from lines(option_table())

    def check_overrides(self, overrides: Sequence[str]) -> None:
        """Hold the words against the fields of TRL's `GRPOConfig`."""
        from seatrial.targets.trl.runs import check_options

        if overrides:
            self.preflight()
            check_options(overrides)

    def given_model(self, overrides: Sequence[str]) -> Path | None:
        """Return the folder of `model=DIR`, made absolute."""
        from seatrial.targets.trl.runs import model_of

        return model_of(overrides)

    def make_model(self, output: Path, seed: int) -> Job:
        """Return the command that makes a tiny model."""
        from seatrial.targets.trl.runs import making_job

        self._preflight_runs()
        return making_job(output, seed)

    def job(self, request: JobRequest) -> TrainingJob:
        """Return a short run of one of TRL's trainers."""
        from seatrial.targets.trl.runs import training_job

        self._preflight_runs()
        return training_job(request)

    def _preflight_runs(self) -> None:
        """Look for the packages that the runs need in addition to the stack."""
        self.preflight()
        missing = [name for name in ("tensorboard", "pyarrow") if importlib.util.find_spec(name) is None]
        if missing:
            raise BlockedError(
                f"{', '.join(missing)} not installed with TRL, which a run's log and rows are written with: "
                f"pip install {' '.join(missing)}"
            )
