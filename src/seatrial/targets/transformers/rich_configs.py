"""Configurations in which every part of a small text model acts, and random numbers that no seed draws."""

from __future__ import annotations

import copy
import random
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from seatrial.targets.transformers.class_configs import RICH, parts_of

PADDING = 3
"""The id of padding: another one than 0, from which positions count in some models."""
START_OF_DECODER = 5
"""Another id than that of a start of a text."""
SPLIT = 1.618033988749895
"""Its multiples modulo 1 are spread evenly: they stand for random numbers."""
OWN: Mapping[str, Mapping[str, Any]] = {
    "albert": {"num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2},
    "bert": {"position_embedding_type": "relative_key_query"},
    "big_bird": {"attention_type": "block_sparse", "block_size": 1, "num_random_blocks": 1, "rescale_embeddings": True},
    "convbert": {"conv_kernel_size": 3, "head_ratio": 2, "num_groups": 2, "embedding_size": 16},
    "deberta": {
        "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 5,
        "position_biased_input": False, "talking_head": True,
    },
    "deberta-v2": {
        "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 12, "position_buckets": 4,
        "share_att_key": True, "norm_rel_ebd": "layer_norm", "position_biased_input": False, "conv_kernel_size": 3,
        "conv_act": "gelu",
    },
    "electra": {"embedding_size": 16, "position_embedding_type": "relative_key", "summary_last_dropout": 0.3},
    "esm": {
        "token_dropout": True, "mask_token_id": 7, "position_embedding_type": "rotary", "emb_layer_norm_before": True,
    },
    "flaubert": {"causal": True, "n_langs": 2, "pre_norm": True, "layerdrop": 0.4},
    "funnel": {
        "block_sizes": [2, 1], "block_repeats": [1, 2], "pooling_type": "max", "attention_type": "factorized",
        "separate_cls": True, "truncate_seq": False, "pool_q_only": False,
    },
    "gpt2": {
        "scale_attn_by_inverse_layer_idx": True, "summary_type": "mean", "summary_use_proj": True, "n_inner": 40,
        "reorder_and_upcast_attn": True,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 3, "num_layers": 2},
    "ibert": {"quant_mode": True},
    "led": {"attention_window": 2},
    "longformer": {"attention_window": 2},
    "longt5": {
        "encoder_attention_type": "transient-global", "local_radius": 2, "global_block_size": 3,
        "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12,
    },
    "lxmert": {"x_layers": 1, "l_layers": 1, "r_layers": 1},
    "mobilebert": {"trigram_input": False, "use_bottleneck": True, "key_query_shared_bottleneck": False},
    "mpnet": {"relative_attention_num_buckets": 8},
    "mra": {"approx_mode": "sparse", "block_per_row": 1, "initial_prior_first_n_blocks": 1},
    "mt5": {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12, "is_gated_act": True},
    "nllb-moe": {
        "num_experts": 4, "expert_capacity": 2, "second_expert_policy": "all", "batch_prioritized_routing": True,
        "normalize_router_prob_before_dropping": True, "encoder_sparse_step": 1, "decoder_sparse_step": 1,
        "router_bias": True, "router_ignore_padding_tokens": True, "moe_eval_capacity_token_fraction": 0.3,
    },
    "nystromformer": {"num_landmarks": 4, "segment_means_seq_len": 12, "conv_kernel_size": 3},
    "openai-gpt": {"summary_type": "mean"},
    "pegasus_x": {"num_global_tokens": 2, "block_size": 4, "stagger_local_blocks": True},
    "prophetnet": {
        "ngram": 3, "num_buckets": 6, "relative_max_distance": 8, "disable_ngram_loss": False, "eps": 0.2,
    },
    "rembert": {"input_embedding_size": 16, "output_embedding_size": 24},
    "roberta": {"position_embedding_type": "relative_key"},
    "roformer": {"rotary_value": True, "embedding_size": 16},
    "squeezebert": {"q_groups": 2, "k_groups": 2, "v_groups": 2, "post_attention_groups": 2},
    "switch_transformers": {
        "num_experts": 4, "expert_capacity": 2, "encoder_sparse_step": 1, "decoder_sparse_step": 1,
        "router_bias": True, "router_ignore_padding_tokens": True, "num_sparse_encoder_layers": 2,
        "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12,
    },
    "t5": {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12, "is_gated_act": True},
    "umt5": {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12},
    "xlm": {"causal": True, "n_langs": 2, "use_lang_emb": True, "sinusoidal_embeddings": True, "summary_type": "mean"},
    "xlm-roberta": {"position_embedding_type": "relative_key_query"},
    "xlnet": {
        "mem_len": 5, "reuse_len": 3, "clamp_len": 3, "summary_type": "mean", "same_length": True,
    },
    "yoso": {"use_expectation": True, "hash_code_len": 4, "num_hash": 4},
}  # fmt: skip
"""By the type of a configuration: numbers at which relative positions, windows, capacities and groups act."""
GROUPS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "decoder": RICH["a decoder with an encoder"],
    "layers": RICH["seven layers"],
    "second": RICH["every second layer"],
    "experts": {
        **RICH["experts in groups"], "topk_method": "group_limited_greedy", "router_aux_loss_coef": 0.5,
        "router_z_loss_coef": 0.3, "aux_loss_coef": 0.5, "aux_loss_alpha": 0.5,
    },
}  # fmt: skip
"""Options by the name of a group; a configuration gets those that it knows."""


def _drops(name: str) -> float:
    """Return a share of its own for each option of dropout."""
    return round(0.1 + (zlib.crc32(name.encode()) % 100) / 400, 4)


def drop_values(part: Any) -> bool:
    """Give each option of dropout of a part of a configuration a share of its own; return whether there are any."""
    names = [name for name, value in vars(part).items() if isinstance(value, float) and _is_drop(name)]
    for name in names:
        setattr(part, name, _drops(name))
    return bool(names)


def _is_drop(name: str) -> bool:
    return "drop" in name or "jitter" in name


def rich_config(config: Any, group: str, *, noisy: bool) -> Any:
    """Return a copy of a small configuration with the options of a group, and those of its kind.

    Args:
        config: of the small model.
        group: a name of `GROUPS`.
        noisy: whether it drops values, layers and experts in training.

    Raises:
        LookupError: it has no option of the group.
        Exception: it refuses them.
    """
    found = copy.deepcopy(config)
    changed = group == "plain"
    for part in parts_of(found).values():
        known = part.to_dict()
        kept = known.get("model_type")
        given = OWN.get(kept, {}) if group == "plain" else {}
        given = {name: value for name, value in {**GROUPS[group], **given}.items() if name in known}
        changed |= any(known[name] != value for name, value in given.items() if value is not None)
        if given:
            _rebuild(part, given)
        if noisy:
            drop_values(part)
        if isinstance(known.get("pad_token_id"), int):
            part.pad_token_id = PADDING
    if getattr(found, "is_encoder_decoder", False):
        found.decoder_start_token_id = START_OF_DECODER
    if not changed:
        raise LookupError(f"no option of {group}")
    return found


def _rebuild(part: Any, given: Mapping[str, Any]) -> None:
    """Give a part of a configuration options, and what its class computes of them."""
    if not any(value is None for value in given.values()) and "num_hidden_layers" not in given:
        for name, value in given.items():
            setattr(part, name, copy.deepcopy(value))
        return
    left_out = ("model_type", "transformers_version", "torch_dtype", "dtype", "architectures")
    whole = {name: value for name, value in part.to_dict().items() if name not in left_out and name[0] != "_"}
    part.__dict__.update(vars(type(part)(**{**whole, **copy.deepcopy(dict(given))})))


class _Even:
    """Numbers between 0 and 1 that stand for random ones."""

    def __init__(self) -> None:
        self._num = 0

    def numbers(self, *shape: int) -> Tensor:
        """Return the next numbers in a shape."""
        size = torch.Size(shape).numel()
        places = torch.arange(self._num + 1, self._num + 1 + size, dtype=torch.float64)
        self._num += size
        return (places * SPLIT).remainder(1.0).reshape(shape).float()


@contextmanager
def even_noise() -> Iterator[None]:
    """Replace dropout by known factors, which grow with its share, and random numbers by evenly spread ones."""
    even = _Even()

    def dropped(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or not p:
            return input
        places = torch.arange(input.numel()).reshape(input.shape)
        return input * (1.0 + p * torch.cos(1.7 * places))

    def rand(*shape: Any, **options: Any) -> Tensor:
        given = shape[0] if shape and isinstance(shape[0], (tuple, list, torch.Size)) else shape
        return even.numbers(*given)

    def uniform_(value: Tensor, start: float = 0.0, end: float = 1.0, **options: Any) -> Tensor:
        return value.copy_(start + (end - start) * even.numbers(*value.shape))

    def rand_like(value: Tensor, **options: Any) -> Tensor:
        return even.numbers(*value.shape)

    before = random.getstate()
    random.seed(0)
    try:
        with (
            patch.object(torch.nn.functional, "dropout", dropped),
            patch.object(torch, "rand", rand),
            patch.object(torch, "rand_like", rand_like),
            patch.object(Tensor, "uniform_", uniform_),
        ):
            yield
    finally:
        random.setstate(before)
