"""Setups of `SFTTrainer`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seatrial.relations.cases.examples import ObjectiveSpec
from seatrial.targets.trl.setup import (
    EVALUATION_LOSS,
    EXPERTS,
    MEANS_OF_SFT,
    NUM_TOKENS,
    SFT_SCALARS,
    SUMS_AT_THE_END,
    TOKENS,
    Setup,
)
from seatrial.targets.trl.setups.shared import EPOCH, OWN_ROUTERS, SCHEDULE


def sft(options: Mapping[str, Any], **more: Any) -> Setup:
    """Return a setup of `SFTTrainer` on prompts with completions, where nothing else is given."""
    objective = more.pop("objective", ObjectiveSpec(kind="sft"))
    given = {
        "data": "texts",
        "padding_side": "right",
        "scalars": SFT_SCALARS,
        "spells_end": True,
        **more,
        "known_failures": more.get("known_failures", (NUM_TOKENS,)),
    }
    return Setup(trainer="SFT", objective=objective, options={"max_length": 64, **options}, **given)


ALL = ObjectiveSpec(kind="sft", trains="all")
SUPERVISED: Mapping[str, Setup] = {
    "whole-sft": sft({}),
    "whole-sft-turns": sft({}, data="messages", form="turns with system", objective=ALL, thorough=True),
    "whole-sft-answers": sft(
        {}, form="turns with system", thorough=True, known_failures=(NUM_TOKENS, MEANS_OF_SFT)
    ),
    "whole-sft-packing": sft(
        {"packing": True, "packing_strategy": "bfd", "max_length": 40},
        thorough=True,
        known_failures=(NUM_TOKENS, MEANS_OF_SFT, SUMS_AT_THE_END),
    ),
    "whole-sft-padding-free": sft({"padding_free": True, "max_length": None}, thorough=True),
    "whole-sft-truncated": sft(
        {"max_length": 14}, objective=ObjectiveSpec(kind="sft", max_length=14), is_long=True, thorough=True
    ),
    "whole-sft-lora": sft({}, lora="made", thorough=True),
    "whole-sft-virtual": sft(
        {},
        lora="virtual tokens",
        model_options={"initializer_range": 0.5},  # so that entropies of tokens differ
        updates_only=True,
        thorough=True,
    ),
    "whole-sft-schedule": sft(
        {**SCHEDULE, "loss_type": "dft", "pad_to_multiple_of": 8},
        objective=ObjectiveSpec(kind="sft", weights_tokens=True),
        scalars={**SFT_SCALARS, "num_input_tokens_seen": TOKENS["num_tokens"]},
        known_failures=(NUM_TOKENS, EVALUATION_LOSS),
        thorough=True,
    ),
    "whole-sft-epoch": sft(
        {**EPOCH, "completion_only_loss": False, "label_smoothing_factor": 0.2},
        objective=ObjectiveSpec(kind="sft", trains="all", label_smoothing=0.2),
        thorough=True,
        known_failures=(NUM_TOKENS, MEANS_OF_SFT, EVALUATION_LOSS),
    ),
    "whole-sft-template": sft(
        {"chat_template_path": "template.jinja", "assistant_only_loss": True, "data_seed": 5, "optim": "sgd"},
        data="messages",
        form="bracketed",
        thorough=True,
    ),
    "whole-sft-words": sft(
        {
            "dataset_text_field": "words",
            "eos_token": "<eos>",
            "shuffle_dataset": True,
            "train_sampling_strategy": "sequential",
            "truncation_mode": "keep_end",
            "max_length": 26,
        },
        objective=ObjectiveSpec(kind="sft", trains="all", max_length=26, keep="end"),
        data="whole",
        end="<eos>",
        spells_end=False,
        is_long=True,
        thorough=True,
        known_failures=(NUM_TOKENS, MEANS_OF_SFT),
    ),
    "whole-sft-ids": sft(
        {"dataset_kwargs": {"skip_prepare_dataset": True}, "model_init_kwargs": {"rms_norm_eps": 0.3}},
        data="ids",
        thorough=True,
        known_failures=(NUM_TOKENS, MEANS_OF_SFT),
    ),
    "whole-sft-packing-split": sft(
        {"packing": True, "packing_strategy": "bfd_split", "eval_packing": False, "max_length": 40},
        thorough=True,
        known_failures=(NUM_TOKENS, MEANS_OF_SFT),
    ),
    "whole-sft-edges": sft({}, edges="all", updates_only=True, thorough=True),
    "whole-sft-edges-packing": sft(
        {"packing": True, "packing_strategy": "bfd_split", "max_length": 64},
        edges="all",
        updates_only=True,
        thorough=True,
        known_failures=(NUM_TOKENS, MEANS_OF_SFT),
    ),
    "whole-sft-experts-own": sft(
        {},
        trait="experts",
        model_options=OWN_ROUTERS,
        updates_only=True,
        thorough=True,
        known_failures=(NUM_TOKENS, MEANS_OF_SFT),
    ),
    "whole-sft-experts": sft(
        {"router_aux_loss_coef": 0.5},
        trait="experts",
        thorough=True,
        known_failures=(NUM_TOKENS, MEANS_OF_SFT, EXPERTS),
    ),
}
