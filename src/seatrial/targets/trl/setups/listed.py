"""Which trainers of TRL run with which options, and what the documentation says that they then compute.

A row of `SETUPS` is an adapter of `whole.Whole`. Objectives and scalars are written from TRL's documentation and the
papers that it names, never from its code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from seatrial.targets.trl.setup import Setup
from seatrial.targets.trl.setups.combined import COMBINED
from seatrial.targets.trl.setups.models import MODELS
from seatrial.targets.trl.setups.options import OPTIONS
from seatrial.targets.trl.setups.paired import PAIRED
from seatrial.targets.trl.setups.preferences import PREFERENCES
from seatrial.targets.trl.setups.rollouts import ROLLOUTS
from seatrial.targets.trl.setups.rows import ROWS
from seatrial.targets.trl.setups.supervised import SUPERVISED
from seatrial.targets.trl.setups.traits import TRAITS

SPREAD = (
    "whole-sft", "whole-sft-packing", "whole-sft-padding-free", "whole-dpo", "whole-dpo-precomputed",
    "whole-dpo-synchronised", "whole-reward", "whole-orpo", "whole-gkd", "whole-grpo", "whole-grpo-kl",
    "whole-grpo-sequence", "whole-grpo-dr", "whole-grpo-bnpo", "whole-grpo-slices", "whole-grpo-entropy", "whole-rloo",
    "whole-grpo-entropy-tokens", "whole-grpo-epoch", "whole-grpo-masked", "whole-grpo-luspo", "whole-rloo-clipped",
    "whole-rloo-epoch", "whole-sft-experts", "whole-sft-schedule", "whole-dpo-weighted", "whole-reward-centred",
)  # fmt: skip
"""Setups that run in two processes too: one for each way in which rows, tokens or rewards are averaged.

KTO's are left out: its reference point is a mean over all processes, and the oracle's is that of one micro-batch.
"""
SETUPS: Mapping[str, Setup] = {
    name: replace(setup, spreads=name in SPREAD)
    for name, setup in {
        **SUPERVISED,
        **PREFERENCES,
        **ROLLOUTS,
        **OPTIONS,
        **TRAITS,
        **ROWS,
        **PAIRED,
        **MODELS,
        **COMBINED,
    }.items()
}
