"""Setups of two features at once, each of which other setups have alone: Liger's losses, and adapters of the head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from seatrial.relations.cases.examples import ObjectiveSpec
from seatrial.targets.trl.setup import Setup
from seatrial.targets.trl.setups.options import cpo, gkd, orpo
from seatrial.targets.trl.setups.preferences import PREFERENCES, dpo, kto, reward
from seatrial.targets.trl.setups.rollouts import LIGER, ROLLOUTS, grpo, grpo_tools, rloo
from seatrial.targets.trl.setups.rows import ROWS
from seatrial.targets.trl.setups.supervised import SUPERVISED, sft

KL: Mapping[str, Any] = {"loss_type": "dapo", "beta": 0.2}
MADE: Mapping[str, Any] = {"lora": "made", "reference": "base"}
SEQUENCES: Mapping[str, Any] = {"loss_type": "grpo", "importance_sampling_level": "sequence"}
FUSED: Mapping[str, Setup] = {
    **{name.removeprefix("whole-"): one for name, one in SUPERVISED.items() if name != "whole-sft-epoch"},
    **{name.removeprefix("rows-"): one for name, one in ROWS.items() if name.startswith("rows-sft")},
    "sft-weighted": sft({"loss_type": "dft"}, objective=ObjectiveSpec(kind="sft", weights_tokens=True)),
    "sft-weighted-packing": sft(
        {"loss_type": "dft", "packing": True, "packing_strategy": "bfd", "max_length": 40},
        objective=ObjectiveSpec(kind="sft", weights_tokens=True),
    ),
    **{
        name.removeprefix("whole-"): PREFERENCES[name]
        for name in (
            "whole-dpo", "whole-dpo-lora", "whole-dpo-truncated", "whole-dpo-turns", "whole-dpo-sppo_hard",
            "whole-dpo-nca_pair", "whole-dpo-apo_zero", "whole-dpo-apo_down", "whole-dpo-experts-own", "whole-kto",
        )
    },
    "kto-lora": replace(kto({}, objective={}), **MADE),
    "kto-truncated": replace(
        kto({"max_length": 14}, objective={"max_length": 14}, is_long=True), optional={}
    ),
    "gkd": gkd({}),
    "reward": reward({}),
    **{
        name.removeprefix("whole-"): ROLLOUTS[name]
        for name in (
            "whole-grpo", "whole-grpo-bnpo", "whole-grpo-dr", "whole-grpo-cispo", "whole-grpo-sapo",
            "whole-grpo-luspo", "whole-grpo-vespo", "whole-grpo-sequence", "whole-grpo-two-sided",
            "whole-grpo-masked", "whole-grpo-lora", "whole-grpo-experts",
        )
    },
    "grpo-kl-corrected": grpo(
        {"loss_type": "grpo", "beta": 0.2, "num_iterations": 2, "use_bias_correction_kl": True},
        beta=0.2,
        reduction="rows",
        num_uses=2,
    ),
    "grpo-kl-sequence": grpo(
        {**SEQUENCES, "beta": 0.2, "num_iterations": 2}, ratio="mean", beta=0.2, reduction="rows", num_uses=2
    ),
    "grpo-sapo-kl": grpo(
        {"loss_type": "sapo", "beta": 0.2, "sapo_temperature_pos": 0.5, "sapo_temperature_neg": 3.0},
        loss="sapo",
        sapo_temperatures=(0.5, 3.0),
        beta=0.2,
        reduction="rows",
    ),
}  # fmt: skip
"""Trainers with Liger's loss in place of their own."""
HEADS: Mapping[str, Setup] = {
    "sft": sft({}, lora="made"),
    "sft-given": sft({}, lora="given"),
    "dpo": dpo({}, **MADE),
    "dpo-precomputed": dpo({"precompute_ref_log_probs": True}, **MADE),
    "dpo-given": dpo({}, lora="given", reference="adapted"),
    "kto": replace(kto({}, objective={}), **MADE),
    "grpo": grpo(KL, beta=0.2, **MADE),
    "grpo-given": grpo(KL, beta=0.2, lora="given", reference="adapted"),
    "rloo": rloo({}, **MADE),
}
"""Trainers of adapters."""
EXPERTS: Mapping[str, Setup] = {
    "sft-packing": sft({"packing": True, "packing_strategy": "bfd", "max_length": 40}),
    "sft-flat": sft({"padding_free": True, "max_length": None}),
    "sft-multiple": sft({"pad_to_multiple_of": 32}),
    "sft-lora": sft({}, lora="made"),
    "sft-weighted": sft({"loss_type": "dft"}, objective=ObjectiveSpec(kind="sft", weights_tokens=True)),
    "dpo-flat": dpo({"padding_free": True}),
    "dpo-precomputed": dpo({"precompute_ref_log_probs": True}),
    "dpo-lora": dpo({}, **MADE),
    "dpo-norm": dpo({"loss_type": ["sigmoid_norm"]}, per_token=True),
    "kto-lora": replace(kto({}, objective={}), **MADE),
    "kto-apo": kto({"loss_type": "apo_zero_unpaired"}, objective={"reference_point": "zero"}),
    "grpo-kl": grpo(KL, beta=0.2),
    "grpo-lora": grpo(KL, beta=0.2, **MADE),
    "grpo-reuse": grpo({"loss_type": "dapo", "num_iterations": 2}, num_uses=2),
    "rloo-lora": rloo({}, **MADE),
    "rloo-reuse": rloo({"num_iterations": 2}, num_uses=2),
}
"""Trainers of models with experts, whose loss of balance is over the tokens of a batch without its padding."""
TUNED: Mapping[str, Setup] = {
    "reward-lora": reward({}, lora="made"),
    "reward-lora-checkpoints": reward({"gradient_checkpointing": True}, lora="made"),
    "cpo-lora": cpo({}, lora="made"),
    "orpo-lora": orpo({}, lora="made"),
    "gkd-lora": replace(gkd({}), lora="made"),
    "sft-virtual-multiple": sft({"pad_to_multiple_of": 8}, lora="virtual tokens"),
    "sft-virtual-assistant": sft(
        {"assistant_only_loss": True}, lora="virtual tokens", form="bracketed", spells_end=False
    ),
    "dpo-virtual": dpo({}, lora="virtual tokens", reference="base"),
    "kto-virtual": replace(kto({}, objective={}), lora="virtual tokens", reference="base"),
    "dpo-lora-tails": dpo(
        {"ld_alpha": 0.4, "f_divergence_type": "js_divergence"}, tail_weight=0.4, divergence="js", **MADE
    ),
    "dpo-given-flat": dpo({"padding_free": True}, lora="given", reference="adapted"),
    "dpo-lora-reference": dpo({}, lora="made", reference="given"),
    "kto-given-precomputed": replace(
        kto({"precompute_ref_log_probs": True}, objective={}), lora="given", reference="adapted"
    ),
    "grpo-given-reuse": grpo(
        {**KL, "num_iterations": 2}, beta=0.2, num_uses=2, lora="given", reference="adapted"
    ),
    "grpo-given-tools": grpo_tools({**KL}, beta=0.2, lora="given", reference="adapted"),
    "rloo-given-checkpoints": rloo({"gradient_checkpointing": True}, lora="given", reference="adapted"),
}
"""Trainers of adapters with what other setups have without them."""
FUSED_HEADS = ("sft", "dpo", "kto", "grpo")


def fused(setup: Setup) -> Setup:
    """Return a setup with Liger's loss."""
    return replace(setup, options={**setup.options, **LIGER})


def _of(setup: Setup, **fields: Any) -> Setup:
    """Return a setup that is run for its updates; what is known of its log is other setups'."""
    return replace(setup, thorough=True, updates_only=True, scalars={}, **fields)


COMBINED: Mapping[str, Setup] = {
    **{f"liger-{name}": _of(fused(one)) for name, one in FUSED.items()},
    **{
        f"head-{name}-{how}": _of(one, head=how)
        for name, one in HEADS.items()
        for how in ("adapted", "saved")
    },
    **{
        f"experts-{name}": _of(
            replace(
                one,
                trait="experts",
                options={**one.options, "router_aux_loss_coef": 0.5},
            )
        )
        for name, one in EXPERTS.items()
    },
    **{f"tuned-{name}": _of(one) for name, one in TUNED.items()},
    **{
        f"liger-{name}-{how}": _of(fused(HEADS[name]), head=how)
        for name in FUSED_HEADS
        for how in ("adapted", "saved")
    },
}
"""Setups of combinations."""
