"""LoRA on layers that PEFT has code of their own for: scaled embeddings, convolutions, attention, experts, replicas."""

from __future__ import annotations

from typing import Any

from seatrial.targets.peft import known as known_failures
from seatrial.targets.peft import known_merges, known_moves
from seatrial.targets.peft.kinds import MixedAdapters
from seatrial.targets.peft.lora import ATTENTION, lora

CLASSIFIES: dict[str, Any] = {
    "refuses": ("two at once", "mixed batch", "rescaling"),
    "closed_form": False,
}
"""An adapter for classification has the head too, which PEFT saves by itself."""
LAYERS: dict[str, type[Any]] = {
    "lora-scaled-embedding": lora(trait="scaled embedding", target_modules=["embed_tokens", "q_proj"]),
    "lora-scaled-tokens": lora(
        known=[known_failures.TOKENS_ELSEWHERE, known_merges.TOKENS_TRAIN],
        trait="scaled embedding",
        trainable_token_indices={"embed_tokens": [5, 9, 20]},
        spec={"refuses": ("two at once",)},
    ),
    "lora-scaled-dora": lora(
        trait="scaled embedding",
        use_dora=True,
        target_modules=["embed_tokens", "q_proj"],
        spec={"refuses": ("mixed batch",)},
    ),
    **{
        f"lora-{name}": lora(
            known=[known_failures.CONVOLUTION] if "-" in name and trait != "conv2 of one" else [],
            trait=trait,
            target_modules=["layer"],
            spec={"refuses": ("checkpointing", "mixed batch")},
        )
        for name, trait in (
            ("conv1", "conv1"),
            ("conv2", "conv2"),
            ("conv2-of-one", "conv2 of one"),
            ("conv2-dilated", "conv2 dilated"),
            ("conv2-circular", "conv2 circular"),
            ("conv3", "conv3"),
        )
    },
    "lora-conv2-grouped": lora(
        trait="conv2 grouped",
        target_modules=["layer"],
        spec={"refuses": ("checkpointing", "mixed batch"), "merges": False, "closed_form": False},
    ),
    "lora-conv2-dora": lora(
        trait="conv2",
        target_modules=["layer"],
        use_dora=True,
        spec={"refuses": ("checkpointing", "mixed batch")},
    ),
    "lora-conv2-bias-rslora": lora(
        trait="conv2",
        target_modules=["layer"],
        use_rslora=True,
        lora_bias=True,
        spec={"refuses": ("checkpointing", "mixed batch")},
    ),
    "lora-attention": lora(
        known=[known_failures.ATTENTION, known_failures.ATTENTION_DRIFT],
        trait="attention",
        target_modules=["layer"],
        dropout=None,
        spec={"refuses": ("checkpointing", "mixed batch")},
    ),
    "lora-tokens-classified": lora(
        known=[known_moves.SWAPPED],
        trait="tokens classified",
        spec={**CLASSIFIES, "also_trains": ("score.modules_to_save",)},
    ),
    "lora-texts-classified": lora(
        known=[known_moves.SWAPPED],
        trait="texts classified",
        target_modules=["query", "value"],
        spec={**CLASSIFIES, "also_trains": ("classifier.modules_to_save",)},
    ),
    "lora-layers-saved": lora(
        known=[known_moves.CONVERTED_WITHIN],
        trait="modules after it",
        target_modules=["layer"],
        modules_to_save=["tail", "tail2", "tail3", "tail4"],
        spec={
            "refuses": ("two at once", "mixed batch", "checkpointing"),
            "also_trains": tuple(f"{name}.modules_to_save" for name in ("tail", "tail2", "tail3", "tail4")),
        },
    ),
    "lora-layers-of-experts": lora(
        trait="experts of modules",
        target_modules=["up", "down"],
        layers_to_transform=[1],
        spec={"refuses": ("checkpointing",)},
    ),
    "lora-layers-of-experts-pattern": lora(
        trait="experts of modules",
        target_modules=["up"],
        layers_to_transform=[0, 2],
        layers_pattern="layers",
        rank_pattern={"experts.1.up": 2},
        alpha_pattern={"layers.2.experts.0.up": 9},
        spec={"refuses": ("checkpointing",)},
    ),
    "lora-replicated": lora(
        known=[known_failures.REPLICATED_SECOND, known_failures.REPLICATED_MERGE],
        trait="replicated",
        target_modules=ATTENTION,
        layer_replication=[(0, 2), (1, 2)],
        spec={
            "refuses": ("checkpointing",),
            "one_weight": tuple(f"model.layers.{number}.mlp.up_proj.weight" for number in (1, 2)),
        },
    ),
    "lora-and-lokr": lora(
        parent=MixedAdapters,
        target_modules=ATTENTION,
        spec={"refuses": ("mixed batch", "checkpointing"), "saves_all": False},
    ),
}
