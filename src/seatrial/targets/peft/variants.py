"""Options that a variant of a type has at other values than the defaults, by the names of `table`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SAVED_HEAD = {"modules_to_save": ["lm_head"]}
COMMON: Mapping[str, Mapping[str, Any]] = {
    "excluded": {"target_modules": "all-linear", "exclude_modules": ["k_proj", "gate_proj"]},
    "one-layer": {"layers_to_transform": [1], "layers_pattern": "layers"},
    "saved-head": SAVED_HEAD,
    "all-biases": {"bias": "all"},
    "drawn": {"init_weights": False},
    "expression": {"target_modules": r".*layers\.0\.(self_attn\.(q|o)_proj|mlp\.up_proj)"},
    "transposed": {"trait": "conv1d", "target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True},
    "one-layer-saved-head": {"layers_to_transform": [0], **SAVED_HEAD},
    "conv2": {"trait": "conv2", "target_modules": ["layer"]},
    "conv2-of-one": {"trait": "conv2 of one", "target_modules": ["layer"]},
    "conv2-dilated": {"trait": "conv2 dilated", "target_modules": ["layer"]},
    "conv2-circular": {"trait": "conv2 circular", "target_modules": ["layer"]},
    "conv2-grouped": {"trait": "conv2 grouped", "target_modules": ["layer"]},
    "conv1": {"trait": "conv1", "target_modules": ["layer"]},
    "conv3": {"trait": "conv3", "target_modules": ["layer"]},
    "embedding": {"target_modules": ["embed_tokens", "q_proj"]},
    "scaled-embedding": {"trait": "scaled embedding", "target_modules": ["embed_tokens", "q_proj"]},
    "tokens-classified": {"trait": "tokens classified"},
    "texts-classified": {"trait": "texts classified"},
}
"""Variants that many types have, by name."""
TAKES: Mapping[str, str] = {
    "excluded": "ia3 adalora boft deft delora fourierft hira hra lily loha lokr miss oft peanut psoft vblora waveft",
    "one-layer": "adalora adamss boft c3a deft delora fourierft frod gralora hira hra lily loha lokr miss oft peanut "
    "psoft pvera randlora tinylora unilora vblora vera waveft",
    "one-layer-saved-head": "boft delora fourierft hra loha lokr miss oft randlora vblora vera waveft",
    "saved-head": "adalora adamss beft boft c3a deft delora fourierft frod glora gralora hira hra ia3 lily loha "
    "lokr ln-tuning miss oft osf peanut psoft pvera randlora road shira supertuning tinylora unilora vblora vera "
    "waveft",
    "all-biases": "pvera adalora boft c3a deft delora fourierft frod gralora hra miss oft randlora tinylora unilora "
    "vblora vera waveft",
    "drawn": "frod lily osf peanut pvera supertuning unilora loha lokr boft deft delora glora gralora hira "
    "hra miss oft psoft randlora road shira vera waveft",
    "expression": "adalora boft c3a delora fourierft gralora hira hra ia3 loha lokr miss oft randlora road shira "
    "vblora vera waveft",
    "transposed": "adalora deft fourierft frod gralora hira pvera randlora tinylora unilora vblora waveft",
    "conv2": "adalora boft hira hra ia3 loha lokr oft",
    "conv2-of-one": "adalora boft hira hra ia3 loha lokr oft",
    "conv2-dilated": "adalora hira ia3 loha lokr",
    "conv2-circular": "adalora hira ia3 loha lokr",
    "conv2-grouped": "ia3 loha lokr",
    "conv1": "hira loha lokr",
    "conv3": "hira ia3",
    "embedding": "hira oft",
    "scaled-embedding": "hira oft",
    "tokens-classified": "lokr ia3 prompt p-tuning",
    "texts-classified": "prompt p-tuning",
}
"""Types by the variants that they take."""
OWN: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "adalora": {
        "rslora": {"use_rslora": True},
        "alpha": {"lora_alpha": 17},
    },
    "boft": {
        "blocks": {"boft_block_size": 0, "boft_block_num": 4},
        "block-of-8": {"boft_block_size": 8, "boft_n_butterfly_factor": 2},
    },
    "c3a": {
        "block-pattern": {"block_size_pattern": {"q_proj": 8}},
        "gaussian": {"init_weights": "gaussian"},
        "kaiming": {"init_weights": "kaiming_uniform"},
        "zeros": {"init_weights": True},
    },
    "deft": {
        "qr": {"decomposition_method": "qr"},
        "para": {"para": True},
        "para-alpha": {"para": True, "alpha": 9},
        "qr-alpha": {"decomposition_method": "qr", "alpha": 9},
        "drawn-scale": {"init_weights": False, "init_scale": 0.5},
        "qr-para": {"decomposition_method": "qr", "para": True},
    },
    "delora": {
        "rank-pattern": {"rank_pattern": {"q_proj": 2}},
        "lambda-pattern": {"lambda_pattern": {"up_proj": 7}},
        "both-patterns": {"rank_pattern": {"q_proj": 2}, "lambda_pattern": {"q_proj": 7}},
    },
    "frod": {
        "keeps-no-projection": {"save_projection": False},
        "regularised": {"regularization_alpha": 0.1},
        "seed": {"projection_prng_key": 5},
        "denser": {"sparse_rate": 0.2},
    },
    "fourierft": {
        "frequency-pattern": {"n_frequency_pattern": {"q_proj": 11}},
        "seed": {"random_loc_seed": 5},
        "zeros": {"init_weights": True, "scaling": 3.0},
    },
    "glora": {
        "vectors": {"config_A_B": "vector", "config_C": "vector", "config_D_E": "vector"},
        "constants": {"config_A_B": "constant", "config_C": "none"},
        "vector-and-lora": {"config_A_B": "vector", "config_D_E": "vector"},
        "without-d-e": {"config_D_E": "none"},
        "without-a-b": {"config_A_B": "none"},
    },
    "gralora": {
        "of-four": {"gralora_k": 4},
        "alpha": {"alpha": 5},
        "hybrid-of-four": {"gralora_k": 4, "hybrid_r": 4},
    },
    "hira": {"rank-pattern": {"rank_pattern": {"q_proj": 2}}, "gaussian": {"init_weights": "gaussian"}},
    "hra": {"odd-rank": {"r": 3}},
    "ia3": {
        "fed-conv2": {"trait": "conv2", "target_modules": ["layer"], "feedforward_modules": ["layer"]},
    },
    "lily": {
        "stride": {"stride_A": 2},
        "four-experts": {"num_B": 4},
        "scaled": {"scaling": 2.5},
        "stride-scaled": {"stride_A": 2, "scaling": 0.5},
    },
    "loha": {
        "rank-pattern": {"rank_pattern": {"q_proj": 2}},
        "alpha-pattern": {"alpha_pattern": {"up_proj": 11}},
        "both-patterns": {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"q_proj": 11}},
        "effective-conv2": {"trait": "conv2", "target_modules": ["layer"], "use_effective_conv2d": True},
    },
    "lokr": {
        "rank-pattern": {"rank_pattern": {"q_proj": 1}},
        "alpha-pattern": {"alpha_pattern": {"up_proj": 11}},
        "both-patterns": {"rank_pattern": {"q_proj": 1}, "alpha_pattern": {"q_proj": 11}},
        "full-rank": {"r": 64, "alpha": 5},
        "factor": {"decompose_factor": 4},
        "lycoris": {"init_weights": "lycoris"},
        "both-full": {"r": 64, "decompose_both": True},
        "effective-conv2": {"trait": "conv2", "target_modules": ["layer"], "use_effective_conv2d": True},
        "both-conv2": {
            "trait": "conv2",
            "target_modules": ["layer"],
            "use_effective_conv2d": True,
            "decompose_both": True,
        },
    },
    "miss": {"odd-rank": {"r": 6}},
    "oft": {
        "constrained": {"coft": True, "eps": 1e-2},
        "shared": {"block_share": True},
        "constrained-shared": {"coft": True, "eps": 1e-2, "block_share": True},
        "terms": {"use_cayley_neumann": True, "num_cayley_neumann_terms": 3},
        "cayley": {"use_cayley_neumann": False},
        "by-rank": {"r": 4, "oft_block_size": 0},
    },
    "osf": {"rank-pattern": {"rank_pattern": {"q_proj": 4}}, "fraction": {"effective_rank": 0.25}},
    "peanut": {
        "deep": {"depth": 2},
        "tanh": {"act_fn": "tanh"},
        "scaled": {"scaling": 2.5},
        "deep-scaled": {"depth": 1, "scaling": 0.5, "act_fn": "gelu"},
    },
    "psoft": {
        "lowrank-steps": {"psoft_svd": "lowrank", "psoft_svd_lowrank_niter": 3},
        "neumann-bounded": {"use_cayley_neumann": True, "cayley_neumann_eps": 0.1},
        "neumann-terms": {"use_cayley_neumann": True, "num_cayley_neumann_terms": 3},
        "lowrank": {"psoft_svd": "lowrank"},
        "pissa": {"ab_svd_init": "pissa_init"},
        "not-orthogonal": {"psoft_orth": False},
        "without-b": {"psoft_mag_b": False},
        "without-a": {"psoft_mag_a": False},
        "without-magnitudes": {"psoft_mag_a": False, "psoft_mag_b": False},
        "neumann": {"use_cayley_neumann": True},
        "alpha": {"psoft_alpha": 4},
    },
    "pvera": {
        "keeps-no-projection": {"save_projection": False},
        "initial": {"d_initial": 0.4},
        "seed": {"projection_prng_key": 5},
    },
    "randlora": {
        "seed": {"projection_prng_key": 5},
        "sparse": {"sparse": True},
        "very-sparse": {"very_sparse": True},
        "keeps-no-projection": {"save_projection": False},
        "alpha": {"randlora_alpha": 40},
    },
    "road": {"road-2": {"variant": "road_2"}, "road-4-of-16": {"variant": "road_4", "group_size": 16}},
    "supertuning": {
        "smallest": {"select_top": False},
        "low-rank": {"r": 2, "lora_alpha": 3.0, "dropout": "lora_dropout"},
        "derived-indices": {"save_precomputed_indices": False},
    },
    "tinylora": {
        "uniform": {"init_weights": "uniform", "init_v_bound": 0.5},
        "tied": {"weight_tying": 0.5},
        "tied-all": {"weight_tying": 1.0},
        "keeps-no-projection": {"save_projection": False},
        "seed": {"projection_seed": 5},
    },
    "unilora": {
        "keeps-indices": {"save_indices": True},
        "seed": {"proj_seed": 5},
        "bound": {"init_theta_d_bound": 0.5},
    },
    "vblora": {
        "bounds": {"init_vector_bank_bound": 0.5, "init_logits_std": 1.0},
        "top-3": {"topk": 3},
        "top-3-alone": {"topk": 3, "save_only_topk_weights": True},
    },
    "vera": {"initial": {"d_initial": 0.4}, "seed": {"projection_prng_key": 5}},
    "waveft": {
        "seed": {"random_loc_seed": 5},
        "frequency-pattern": {"n_frequency_pattern": {"q_proj": 11}},
        "without-inverse": {"use_idwt": False},
        **{
            family: {"wavelet_family": family, "use_idwt": True}
            for family in ("db2", "db5", "sym4", "sym7", "coif1", "coif3")
        },
        "proportional": {"proportional_parameters": True},
        "proportional-db2": {"proportional_parameters": True, "wavelet_family": "db2"},
        "drawn-scaled": {"init_weights": False, "scaling": 3.0},
    },
    "ln-tuning": {
        "one": {"target_modules": ["post_attention_layernorm"]},
        "expression": {"target_modules": ".*layernorm"},
    },
    "trainable-tokens": {
        "tied": {"trait": "tied"},
        "scaled": {"trait": "scaled embedding"},
        "drawn": {"init_weights": False},
    },
    "p-tuning": {
        "lstm": {"encoder_reparameterization_type": "LSTM"},
        "deeper": {"encoder_reparameterization_type": "LSTM", "encoder_num_layers": 1},
    },
    "prefix": {"zero": {"init_weights": "zero"}},
    "prompt": {
        "of-vocabulary": {"prompt_tuning_init": "SAMPLE_VOCAB"},
    },
}
"""Variants of one type each."""
OF_LORA: Mapping[str, Mapping[str, Any]] = {
    "rslora": {"use_rslora": True, "r": 3},
    "dora": {"use_dora": True},
    "bias": {"lora_bias": True, "target_modules": ["q_proj", "v_proj"]},
    "first layer": {"layers_to_transform": [0]},
    "excluded": {"exclude_modules": ["layers.1.self_attn.q_proj"]},
    "orthogonal": {"init_lora_weights": "orthogonal"},
    "patterns": {"rank_pattern": {"o_proj": 2}, "alpha_pattern": {"q_proj": 9}},
}
"""Options that a second adapter of LoRA may have, on the layers of the first one."""
