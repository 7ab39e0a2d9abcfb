"""Types of PEFT with one option, or a pair, at other values than the defaults; all for a thorough run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from seatrial.targets.common.known import KnownFailure
from seatrial.targets.peft import known as known_failures
from seatrial.targets.peft.bases import Trait
from seatrial.targets.peft.kinds import PeftAdapters
from seatrial.targets.peft.lora import TRANSPOSED

SAVED_HEAD = {"modules_to_save": ["lm_head"]}
COMMON: Mapping[str, Mapping[str, Any]] = {
    "excluded": {"target_modules": "all-linear", "exclude_modules": ["k_proj", "gate_proj"]},
    "one-layer": {"layers_to_transform": [1], "layers_pattern": "layers"},
    "saved-head": SAVED_HEAD,
    "all-biases": {"bias": "all"},
    "drawn": {"init_weights": False},
    "expression": {"target_modules": r".*layers\.0\.(self_attn\.(q|o)_proj|mlp\.up_proj)"},
    "transposed": {"trait": "conv1d", "target_modules": TRANSPOSED, "fan_in_fan_out": True},
    "one-layer-saved-head": {"layers_to_transform": [0], **SAVED_HEAD},
    "conv2": {"trait": "conv2", "target_modules": ["layer"]},
    "conv2-of-one": {"trait": "conv2 of one", "target_modules": ["layer"]},
    "conv1": {"trait": "conv1", "target_modules": ["layer"]},
    "embedding": {"target_modules": ["embed_tokens", "q_proj"]},
}
"""Variants that many types have, by name."""
TAKES: Mapping[str, str] = {
    "excluded": "adalora boft deft delora fourierft hira hra lily loha lokr miss oft peanut psoft vblora waveft",
    "one-layer": "adalora adamss boft c3a deft delora fourierft frod gralora hira hra lily loha lokr miss oft peanut "
    "psoft pvera randlora tinylora unilora vblora vera waveft",
    "one-layer-saved-head": "boft delora fourierft hra loha lokr miss oft randlora vblora vera waveft",
    "saved-head": "adalora adamss beft boft c3a deft delora fourierft frod glora gralora hira hra ia3 lily loha "
    "lokr ln-tuning miss oft osf peanut psoft pvera randlora road shira supertuning tinylora unilora vblora vera "
    "waveft",
    "all-biases": "adalora delora oft",
    "drawn": "loha lokr boft deft delora glora gralora hira hra miss oft psoft randlora road shira "
    "vera waveft",
    "expression": "adalora boft c3a delora fourierft gralora hira hra ia3 loha lokr miss oft randlora road shira "
    "vblora vera waveft",
    "transposed": "adalora deft fourierft frod gralora hira pvera randlora tinylora unilora vblora waveft",
    "conv2": "boft hira hra loha lokr oft",
    "conv2-of-one": "hira loha lokr",
    "conv1": "hira loha lokr",
    "embedding": "hira",
}
"""Types by the variants that they take."""
OWN: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "adalora": {"rslora": {"use_rslora": True}, "alpha": {"lora_alpha": 17}},
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
        "lowrank": {"psoft_svd": "lowrank"},
        "pissa": {"ab_svd_init": "pissa_init"},
        "not-orthogonal": {"psoft_orth": False},
        "without-b": {"psoft_mag_b": False},
        "without-a": {"psoft_mag_a": False},
        "without-magnitudes": {"psoft_mag_a": False, "psoft_mag_b": False},
        "neumann": {"use_cayley_neumann": True},
        "alpha": {"psoft_alpha": 4},
    },
    "pvera": {"keeps-no-projection": {"save_projection": False}, "initial": {"d_initial": 0.4}},
    "randlora": {
        "sparse": {"sparse": True},
        "very-sparse": {"very_sparse": True},
        "keeps-no-projection": {"save_projection": False},
        "alpha": {"randlora_alpha": 40},
    },
    "road": {"road-2": {"variant": "road_2"}, "road-4-of-16": {"variant": "road_4", "group_size": 16}},
    "supertuning": {
        "smallest": {"select_top": False},
        "low-rank": {"r": 2, "lora_alpha": 3.0},
        "derived-indices": {"save_precomputed_indices": False},
    },
    "tinylora": {
        "tied": {"weight_tying": 0.5},
        "tied-all": {"weight_tying": 1.0},
        "keeps-no-projection": {"save_projection": False},
        "seed": {"projection_seed": 5},
    },
    "unilora": {"keeps-indices": {"save_indices": True}, "seed": {"proj_seed": 5}},
    "vblora": {
        "top-3": {"topk": 3},
        "top-3-alone": {"topk": 3, "save_only_topk_weights": True},
    },
    "vera": {"initial": {"d_initial": 0.4}, "seed": {"projection_prng_key": 5}},
    "waveft": {
        "frequency-pattern": {"n_frequency_pattern": {"q_proj": 11}},
        "without-inverse": {"use_idwt": False},
        "db2": {"wavelet_family": "db2"},
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
    "p-tuning": {"lstm": {"encoder_reparameterization_type": "LSTM"}},
    "prefix": {"zero": {"init_weights": "zero"}},
}
"""Variants of one type each."""
BREAKS: Mapping[str, Sequence[KnownFailure]] = {
    "adalora-rslora": [known_failures.ADALORA_RSLORA],
    "adalora-all-biases": [known_failures.TRAINS_FOR_INFERENCE],
    "delora-all-biases": [known_failures.TRAINS_FOR_INFERENCE],
    "oft-all-biases": [known_failures.TRAINS_FOR_INFERENCE],
    "glora-saved-head": [known_failures.SAVED_IN_A_MIXED_BATCH],
    "road-saved-head": [known_failures.SAVED_IN_A_MIXED_BATCH],
    "hira-rank-pattern": [known_failures.HIRA_RANKS],
    "ln-tuning-saved-head": [known_failures.SAVED_STAYS_WRAPPED],
    "frod-transposed": [known_failures.FROD_TRANSPOSED],
    "oft-conv2": [known_failures.OFT_CONVOLUTION],
    "oft-constrained": [known_failures.OFT_CONSTRAINED],
    "oft-constrained-shared": [known_failures.OFT_CONSTRAINED],
    "psoft-lowrank": [known_failures.DERIVED_IN_BFLOAT16],
    "trainable-tokens-tied": [known_failures.TIED_TOKENS_SECOND],
    "supertuning-derived-indices": [known_failures.DERIVED_IN_BFLOAT16],
}
"""What a variant is known to break in addition to its type, by its name."""


class _Varied(PeftAdapters):
    """See `contracts.adapters.VariedAdapters`."""

    plain_type: ClassVar[type[PeftAdapters]]

    def unvaried(self) -> PeftAdapters:
        return self.plain_type()


def varied(types: Mapping[str, type[Any]]) -> dict[str, type[PeftAdapters]]:
    """Return the variants of types by name, the type's name first."""
    found = {}
    for suffix, names in TAKES.items():
        for name in names.split():
            found[f"{name}-{suffix}"] = _varied(types[name], COMMON[suffix], f"{name}-{suffix}")
    for name, variants in OWN.items():
        for suffix, options in variants.items():
            found[f"{name}-{suffix}"] = _varied(types[name], options, f"{name}-{suffix}")
    return found


def _varied(plain: type[PeftAdapters], options: Mapping[str, Any], name: str) -> type[PeftAdapters]:
    given = dict(options)
    trait: Trait = given.pop("trait", plain.kind.trait)
    if "init_ia3_weights" in plain.kind.options and "init_weights" in given:
        given["init_ia3_weights"] = given.pop("init_weights")
    kind = dataclasses.replace(
        plain.kind,
        options={**plain.kind.options, **given},
        trait=trait,
        dropout=plain.kind.dropout,
        spec=_spec_of(plain, given, trait),
    )
    return type(
        f"{plain.kind.config}Varied",
        (_Varied, plain),
        {
            "plain_type": plain,
            "kind": kind,
            "known_failures": (
                *plain.known_failures,
                *BREAKS.get(name, ()),
                *known_failures.moving(given),
            ),
            "thorough": True,
            "__module__": __name__,
        },
    )


def _spec_of(plain: type[PeftAdapters], given: Mapping[str, Any], trait: Trait) -> Any:
    """Return what a variant claims, by what its options are about."""
    spec = plain.kind.spec
    refuses, more = list(spec.refuses), list(spec.also_trains)
    changed: dict[str, Any] = {}
    if given.get("modules_to_save"):
        refuses.append("two at once")
        more += [f"{module}.modules_to_save" for module in given["modules_to_save"]]
    if given.get("bias", "none") != "none":
        more.append("bias")
        changed["disables_all"] = False
    if given.get("init_weights", True) is False:
        changed["starts_as_base"] = False
    if trait in ("conv1", "conv2", "conv2 of one"):
        refuses.append("checkpointing")
        changed["closed_form"] = False  # the oracle has none of their factors
    if given.get("para") or given.get("r") == 3:
        changed["starts_as_base"] = (
            False  # DeFT removes a part of the weight; HRA needs pairs of equal vectors
        )
    if given.get("config_A_B") == "none":
        changed["weights"] = frozenset()  # biases alone
    return dataclasses.replace(spec, refuses=tuple(refuses), also_trains=tuple(more), **changed)
