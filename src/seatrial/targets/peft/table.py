"""The types of adapters of PEFT, each with options that its laws can see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seatrial.targets.common.known import KnownFailure
from seatrial.targets.peft import known as known_failures
from seatrial.targets.peft import known_merges, known_moves
from seatrial.targets.peft.families import ADAPTERS as FAMILIES
from seatrial.targets.peft.kinds import PeftAdapters, adapter_of
from seatrial.targets.peft.layers import LAYERS
from seatrial.targets.peft.lora import ATTENTION, LINEAR, MANY, TRANSPOSED, lora
from seatrial.targets.peft.lora_forms import FORMS
from seatrial.targets.peft.loraplus import LoraPlus
from seatrial.targets.peft.prepared import PREPARED
from seatrial.targets.peft.varied import varied

TIED = ("model.embed_tokens.weight", "lm_head.weight")
DECOMPOSED = {"changes_base": True, "start_bound": 1e-3}


def _on(
    config: str, *, also: Sequence[KnownFailure] = (), mixes: bool = False, **options: Any
) -> type[PeftAdapters]:
    """Return the class of another type; `mixes` says that a batch may name an adapter for each row."""
    known = (*also, *([] if mixes else [known_failures.MIXED]))
    return adapter_of(config, known=known, **{"target_modules": LINEAR, **options})


_VIRTUAL = (
    known_failures.MIXED,
    known_failures.GENERATED,
    known_failures.PROMPTS_TRAIN,
    known_failures.TRAINS_FOR_INFERENCE,
    known_moves.PROMPTS_FOR_INFERENCE,
)
PROMPTS = (*_VIRTUAL, known_failures.PADDED)
PREFIXES = (*_VIRTUAL, known_failures.PADDED_PREFIX, known_failures.GENERATED_PREFIX)

LORA: dict[str, type[Any]] = {
    "lora": lora(combining=True),
    "lora-rslora": lora(known=[known_failures.RSLORA_SUMS], combining=True, use_rslora=True),
    "lora-dora": lora(use_dora=True, spec={"refuses": ("mixed batch",)}),
    "lora-dora-rslora": lora(use_dora=True, use_rslora=True, spec={"refuses": ("mixed batch",)}),
    "lora-bias": lora(
        known=[known_failures.BIAS_SUMS], combining=True, lora_bias=True, target_modules=ATTENTION
    ),
    "lora-trained-biases": lora(
        known=[known_failures.TRAINS_FOR_INFERENCE],
        bias="all",
        spec={"also_trains": ("bias",), "disables_all": False},
    ),
    "lora-only-biases": lora(
        known=[known_failures.TRAINS_FOR_INFERENCE],
        bias="lora_only",
        spec={"also_trains": ("q_proj.base_layer.bias",), "disables_all": False},
    ),
    "lora-patterns": lora(
        combining=True,
        rank_pattern={"q_proj": 8, "layers.1.self_attn.o_proj": 2},
        alpha_pattern={"up_proj": 10},
    ),
    "lora-rank-patterns": lora(  # whose scaling is 1 in every layer
        combining=True,
        lora_alpha=4,
        rank_pattern={"q_proj": 8, "layers.1.self_attn.o_proj": 2},
        alpha_pattern={"q_proj": 8, "layers.1.self_attn.o_proj": 2},
    ),
    "lora-rslora-patterns": lora(use_rslora=True, rank_pattern={"q_proj": 8}, alpha_pattern={"up_proj": 10}),
    "lora-one-layer": lora(layers_to_transform=[1]),
    "lora-head-saved": lora(
        modules_to_save=["lm_head"],
        spec={"refuses": ("two at once",), "also_trains": ("lm_head.modules_to_save",)},
    ),
    "lora-norms-saved": lora(
        modules_to_save=["input_layernorm"],
        spec={"refuses": ("two at once", "mixed batch"), "also_trains": ("input_layernorm.modules_to_save",)},
    ),
    "lora-embedding": lora(combining=True, target_modules=["embed_tokens", "q_proj"]),
    "lora-head": lora(target_modules=["lm_head", "q_proj"]),
    "lora-embedding-and-head": lora(target_modules=["embed_tokens", "lm_head"]),
    "lora-dora-embedding": lora(
        use_dora=True, target_modules=["embed_tokens", "q_proj"], spec={"refuses": ("mixed batch",)}
    ),
    "lora-all-linear": lora(target_modules="all-linear"),
    "lora-many-names": lora(target_modules=MANY),
    "lora-excluded": lora(target_modules="all-linear", exclude_modules=["k_proj", "gate_proj"]),
    "lora-tokens": lora(
        known=[known_failures.TOKENS_ELSEWHERE, known_merges.TOKENS_TRAIN],
        trainable_token_indices={"embed_tokens": [5, 9, 20]},
        spec={"refuses": ("two at once",)},
    ),
    "lora-tied": lora(trait="tied"),
    "lora-tied-saved": lora(
        known=[known_failures.TIED_SECOND_SAVED],
        trait="tied",
        modules_to_save=["embed_tokens"],
        ensure_weight_tying=True,
        spec={
            "refuses": ("two at once",),
            "also_trains": ("embed_tokens.modules_to_save",),
            "one_weight": TIED,
        },
    ),
    "lora-tied-head": lora(
        trait="tied",
        modules_to_save=["lm_head"],
        spec={"refuses": ("two at once",), "also_trains": ("lm_head.modules_to_save",)},
    ),
    "lora-tied-both": lora(
        known=[*known_failures.TIED],
        trait="tied",
        target_modules=["embed_tokens", "q_proj"],
        ensure_weight_tying=True,
        spec={"one_weight": TIED},
    ),
    "lora-tied-tokens": lora(
        trait="tied", trainable_token_indices={"embed_tokens": [5, 9, 20]}, spec={"refuses": ("two at once",)}
    ),
    "lora-untied-saved": lora(
        modules_to_save=["embed_tokens"],
        ensure_weight_tying=True,
        spec={"refuses": ("two at once",), "also_trains": ("embed_tokens.modules_to_save",)},
    ),
    "lora-untied-both": lora(target_modules=["embed_tokens", "q_proj"], ensure_weight_tying=True),
    "lora-conv1d": lora(combining=True, trait="conv1d", target_modules=TRANSPOSED, fan_in_fan_out=True),
    "lora-conv1d-dora": lora(
        trait="conv1d",
        target_modules=TRANSPOSED,
        fan_in_fan_out=True,
        use_dora=True,
        spec={"refuses": ("mixed batch",)},
    ),
    "lora-conv1d-embedding": lora(trait="conv1d", target_modules=["wte", "c_attn"], fan_in_fan_out=True),
    "lora-experts": lora(
        trait="experts",
        target_modules=ATTENTION,
        target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
        dropout=None,
        spec={"refuses": ("mixed batch",)},
    ),
    "lora-experts-rslora": lora(
        trait="experts",
        target_modules=[],
        target_parameters=["mlp.experts.down_proj"],
        use_rslora=True,
        dropout=None,
        spec={"refuses": ("mixed batch",)},
    ),
    "lora-gaussian": lora(init_lora_weights="gaussian"),
    "lora-orthogonal": lora(init_lora_weights="orthogonal", since="0.16", spec={"start_bound": 1e-4}),
    "lora-pissa": lora(init_lora_weights="pissa", spec=DECOMPOSED),
    "lora-pissa-rslora": lora(init_lora_weights="pissa", use_rslora=True, spec=DECOMPOSED),
    "lora-pissa-conv1d": lora(
        init_lora_weights="pissa",
        trait="conv1d",
        target_modules=TRANSPOSED,
        fan_in_fan_out=True,
        spec=DECOMPOSED,
    ),
    "lora-olora": lora(init_lora_weights="olora", spec=DECOMPOSED),
    "lora-olora-conv1d": lora(
        known=[known_failures.OLORA_OTHER],
        init_lora_weights="olora",
        trait="conv1d",
        target_modules=["c_attn"],
        fan_in_fan_out=True,
        spec=DECOMPOSED,
    ),
    "lora-olora-conv1d-square": lora(
        known=[known_failures.OLORA_SQUARE],
        init_lora_weights="olora",
        trait="conv1d",
        target_modules=["attn.c_proj"],
        fan_in_fan_out=True,
        spec=DECOMPOSED,
    ),
    "lora-mica": lora(init_lora_weights="mica", since="0.20"),
    "lora-mica-conv1d": lora(
        init_lora_weights="mica",
        since="0.20",
        trait="conv1d",
        target_modules=TRANSPOSED,
        fan_in_fan_out=True,
    ),
    **LAYERS,
    **FORMS,
}
OTHERS: dict[str, type[Any]] = {
    "adalora": _on(
        "AdaLoraConfig",
        mixes=True,
        init_r=6,
        target_r=3,
        lora_alpha=6,
        total_step=10,
        dropout="lora_dropout",
        spec={"adds_to_loss": True},
    ),
    "ia3": _on("IA3Config", feedforward_modules=["down_proj"]),
    "ia3-many-names": _on(
        "IA3Config",
        target_modules=MANY,
        feedforward_modules=[name for name in MANY if name.endswith("down_proj")],
    ),
    "ia3-conv1d": _on(
        "IA3Config",
        trait="conv1d",
        target_modules=["c_attn", "mlp.c_proj"],
        feedforward_modules=["mlp.c_proj"],
        fan_in_fan_out=True,
    ),
    "loha": _on("LoHaConfig", dropout="module_dropout", r=4, alpha=6, spec={"rescales_dropout": False}),
    "lokr": _on("LoKrConfig", dropout="rank_dropout", r=2, alpha=3, spec={"rescales_dropout": False}),
    "lokr-both": _on(
        "LoKrConfig",
        dropout="module_dropout",
        r=2,
        alpha=3,
        decompose_both=True,
        decompose_factor=8,
        spec={"rescales_dropout": False},
    ),
    # Both divide by the part that is kept, which is nothing at a rate of 1.
    "loha-ranks-dropped": _on("LoHaConfig", dropout="rank_dropout", r=4, alpha=6, spec={"drops_all": False}),
    "lokr-ranks-dropped": _on(
        "LoKrConfig", dropout="rank_dropout", rank_dropout_scale=True, r=2, alpha=3, spec={"drops_all": False}
    ),
    "vera": _on("VeraConfig", r=8, dropout="vera_dropout"),
    "vera-conv1d": _on("VeraConfig", r=8, trait="conv1d", target_modules=TRANSPOSED, fan_in_fan_out=True),
    "vera-keeps-no-projection": _on("VeraConfig", r=8, save_projection=False),
    "fourierft": _on("FourierFTConfig", n_frequency=40, scaling=20.0, spec={"starts_as_base": False}),
    "oft": _on(
        "OFTConfig",
        r=0,
        also=[known_merges.OFT_TWO, known_failures.OFT_DROPOUT],
        oft_block_size=8,
        dropout="module_dropout",
        spec={"rescales_dropout": False},
    ),
    "oft-neumann": _on(
        "OFTConfig",
        r=0,
        also=[known_merges.OFT_TWO],
        oft_block_size=8,
        use_cayley_neumann=True,
    ),
    "boft": _on(
        "BOFTConfig",
        also=[known_merges.BOFT_IN_BFLOAT16],
        dropout="boft_dropout",
        boft_block_size=4,
        boft_n_butterfly_factor=2,
        spec={"drops_all": False, "rescales_dropout": None},  # one of the factors is dropped
    ),
    "hra": _on("HRAConfig", r=4),
    "hra-gram-schmidt": _on("HRAConfig", also=[known_failures.HRA_START], r=4, apply_GS=True),
    "vblora": _on(
        "VBLoRAConfig",
        r=2,
        num_vectors=8,
        vector_length=8,
        dropout="vblora_dropout",
        spec={"starts_as_base": False},
    ),
    "vblora-top-k": _on(
        "VBLoRAConfig",
        r=2,
        num_vectors=8,
        vector_length=8,
        save_only_topk_weights=True,
        spec={"starts_as_base": False},
    ),
    "randlora": _on("RandLoraConfig", r=8, dropout="randlora_dropout"),
    "miss": _on("MissConfig", r=8, dropout="miss_dropout"),
    "miss-bat": _on("MissConfig", r=8, init_weights="bat"),
    "miss-mini": _on("MissConfig", also=[known_merges.MISS_MINI], r=8, mini_r=4, init_weights="mini"),
    "road": _on("RoadConfig", mixes=True, group_size=8),
    "road-4": _on("RoadConfig", mixes=True, group_size=8, variant="road_4"),
    "shira": _on("ShiraConfig", r=4, random_seed=3),
    "c3a": _on("C3AConfig", also=[known_merges.C3A_TWO], block_size=16, spec={"starts_as_base": False}),
    "waveft": _on("WaveFTConfig", n_frequency=60),
    "delora": _on("DeloraConfig", dropout="module_dropout", r=4, delora_lambda=3),
    "gralora": _on("GraloraConfig", r=8, alpha=16, gralora_k=2, dropout="gralora_dropout"),
    "gralora-hybrid": _on("GraloraConfig", r=8, hybrid_r=4, alpha=16, gralora_k=2),
    "hira": _on("HiraConfig", also=[known_merges.HIRA_IN_TURN], r=4, dropout="hira_dropout"),
    "psoft": _on("PsoftConfig", r=8, psoft_alpha=8, spec={"start_bound": 1e-3}, dropout="psoft_dropout"),
    "lily": _on("LilyConfig", also=[known_failures.LILY_SECOND, known_failures.LILY_ROWS], r=4),
    "peanut": _on("PeanutConfig", r=4, spec={"merges": True}),
    "tinylora": _on("TinyLoraConfig", dropout="tinylora_dropout", r=2, u=8),
    "unilora": _on(
        "UniLoraConfig", r=4, theta_d_length=64, dropout="unilora_dropout", spec={"starts_as_base": False}
    ),
    "pvera": _on("PveraConfig", dropout="pvera_dropout", r=8, spec={"starts_as_base": True}),
    "frod": _on(
        "FrodConfig",
        dropout="frod_dropout",
        also=[known_failures.FROD_BFLOAT16, known_failures.FROD_ELSEWHERE],
        progressbar=False,
    ),
    "glora": _on("GloraConfig", mixes=True, r=4),
    "adamss": _on("AdamssConfig", r=8, num_subspaces=2, subspace_rank=1, needs="sklearn"),
    "beft": _on("BeftConfig", target_modules=ATTENTION, spec={"weights": frozenset()}),
    "deft": _on(
        "DeftConfig",
        also=[known_merges.DEFT_IN_TURN],
        r=4,
        dropout="deft_dropout",
        spec={"drops_added": False},
    ),
    "osf": _on("OSFConfig", also=[known_failures.OSF_DISABLED, known_failures.OSF_TWICE], effective_rank=16),
    "supertuning": _on("SupertuningConfig", sparsity=0.9, spec={"drops_all": False}),
    "ln-tuning": _on(
        "LNTuningConfig",
        also=[known_failures.NOWHERE_ELSE, known_failures.SAVED_WHILE_MERGED, *known_merges.NORMS],
        target_modules=["input_layernorm", "norm"],
        spec={"refuses": ("two at once",), "keeps_dtype": True},
    ),
    "trainable-tokens": _on(
        "TrainableTokensConfig",
        target_modules=["embed_tokens"],
        token_indices=[5, 9, 20],
        spec={"refuses": ("two at once",)},
    ),
    "prompt": adapter_of(
        "PromptTuningConfig",
        known=PROMPTS,
        num_virtual_tokens=4,
        spec={"starts_as_base": False, "merges": False},
    ),
    "prefix": adapter_of(
        "PrefixTuningConfig",
        known=PREFIXES,
        num_virtual_tokens=4,
        spec={"refuses": ("checkpointing",), "starts_as_base": False, "merges": False},
    ),
    "prefix-projected": adapter_of(
        "PrefixTuningConfig",
        known=PREFIXES,
        num_virtual_tokens=4,
        encoder_hidden_size=16,
        prefix_projection=True,
        spec={"refuses": ("checkpointing",), "starts_as_base": False, "merges": False},
    ),
    "p-tuning": adapter_of(
        "PromptEncoderConfig",
        known=PROMPTS,
        num_virtual_tokens=4,
        encoder_hidden_size=16,
        spec={"starts_as_base": False, "merges": False},
    ),
}
_NAMES = (
    "lora lora-rslora lora-dora lora-bias lora-trained-biases lora-patterns lora-head-saved "
    "lora-embedding lora-tokens lora-tied-both lora-conv1d lora-conv1d-dora lora-experts "
    "lora-scaled-embedding lora-conv2 lora-conv2-dilated lora-attention lora-layers-of-experts "
    "lora-replicated lora-and-lokr lora-pissa adalora ia3 loha lokr vera oft boft vblora miss road delora "
    "ln-tuning trainable-tokens prompt prefix p-tuning"
)
ORDINARY = frozenset(_NAMES.split())
"""Those that an ordinary run judges, one of each kind of layer, option or type; the rest is for a thorough run."""
for _name, _adapter in (*LORA.items(), *OTHERS.items()):
    _adapter.thorough = _name not in ORDINARY
ADAPTERS: dict[str, type[Any]] = {
    **LORA,
    **OTHERS,
    **varied(OTHERS),
    **PREPARED,
    "lora-plus": LoraPlus,
    **FAMILIES,
}
