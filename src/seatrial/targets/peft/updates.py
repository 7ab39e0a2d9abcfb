"""What PEFT's layers keep, as updates that the float64 oracle computes; numbers come from the options."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from seatrial.relations.contracts.adapters import WeightUpdate
from seatrial.relations.oracles.adapters import orthogonal, rotation, scaling


def has_updates(config: Any) -> bool:
    """Return whether `updates_of` knows a closed form of adapters with these options."""
    return _form(config) is not None


def _form(config: Any) -> Callable[[Any, str, Any, str], WeightUpdate] | None:
    kind = str(getattr(config.peft_type, "value", config.peft_type))
    return None if _has_variant(config) else FORMS.get(kind)


def updates_of(model: Any, config: Any, name: str) -> list[WeightUpdate] | None:
    """Return the update of every layer that an adapter is on; None for a type without a closed form here."""
    make = _form(config)
    if make is None:
        return None
    made = []
    for path, layer in model.base_model.model.named_modules():
        if hasattr(layer, "base_layer") and hasattr(layer, "adapter_layer_names") and _is_on(layer, name):
            made.append(
                make(layer, ".".join(part for part in path.split(".") if part != "base_layer"), config, name)
            )
    return made


VARIANTS = ("alora_invocation_tokens", "arrow_config")


def _has_variant(config: Any) -> bool:
    saved = [
        *(getattr(config, "modules_to_save", None) or ()),
        *(getattr(config, "trainable_token_indices", None) or ()),
    ]
    biases = getattr(config, "bias", "none") not in ("none", False)
    saved += list(getattr(config, "target_parameters", None) or ())
    return bool(saved) or biases or any(getattr(config, option, None) for option in VARIANTS)


def _is_on(layer: Any, name: str) -> bool:
    return any(name in getattr(layer, kept, {}) for kept in layer.adapter_layer_names)


def _option(config: Any, pattern: str, path: str, default: float) -> float:
    """Return a number by the pattern of the options that fits a module's path; the default where none does."""
    return by_pattern(getattr(config, pattern, None) or {}, path, default)


def by_pattern(numbers: Mapping[str, float], path: str, default: float) -> float:
    """Return the number of the first pattern that fits a module's path; the default where none does."""
    for key, value in numbers.items():
        if re.fullmatch(rf"(.*\.)?({key})", path):
            return float(value)
    return default


def _is_transposed(layer: Any) -> bool:
    plain = layer.get_base_layer()
    return type(plain).__name__ == "Conv1D" or isinstance(plain, torch.nn.Embedding)


def _low_rank(layer: Any, path: str, config: Any, name: str) -> WeightUpdate:
    rank = _option(config, "rank_pattern", path, config.r)
    alpha = _option(config, "alpha_pattern", path, config.lora_alpha)
    if name in layer.lora_embedding_A:
        factors = {"A": layer.lora_embedding_A[name], "B": layer.lora_embedding_B[name]}
    else:
        factors = {"A": _whole(layer.lora_A[name]), "B": _whole(layer.lora_B[name])}
    if getattr(config, "kasa_config", None):
        factors["core"] = layer.lora_diag[name]
    scale = scaling(rank=int(rank), alpha=alpha, rank_stabilised=bool(config.use_rslora))
    bias = {}
    if getattr(config, "lora_bias", False):
        bias[f"{path}.bias"] = layer.lora_B[name].bias.detach() * scale
    kept = "in_proj_weight" if type(layer).__name__ == "MultiheadAttention" else "weight"
    return WeightUpdate(
        weight=f"{path}.{kept}",
        form="diagonal core" if "core" in factors else "low rank",
        factors=_detached(factors),
        scaling=scale,
        magnitude=layer.lora_magnitude_vector[name].weight.detach() if config.use_dora else None,
        transposed=_is_transposed(layer),
        bias=bias,
    )


def _whole(factor: Any) -> torch.Tensor:
    """Return the matrix of a factor, of BD-LoRA one of blocks on the diagonal."""
    weight: torch.Tensor = factor.weight
    blocks = getattr(factor, "nblocks", 1)
    return torch.block_diag(*weight.chunk(blocks)) if blocks > 1 else weight  # type: ignore[no-untyped-call]


def _diagonal_core(layer: Any, path: str, config: Any, name: str) -> WeightUpdate:
    factors = {"A": layer.lora_A[name], "B": layer.lora_B[name], "core": layer.lora_E[name]}
    return WeightUpdate(
        weight=f"{path}.weight",
        form="diagonal core",
        factors=_detached(factors),
        scaling=config.lora_alpha / config.init_r,
        transposed=_is_transposed(layer),
    )


def _scaling(config: Any, path: str) -> float:
    """Return alpha by rank of a layer, as the patterns of LoHa and LoKr say."""
    rank = _option(config, "rank_pattern", path, config.r)
    return _option(config, "alpha_pattern", path, config.alpha) / rank


def _hadamard(layer: Any, path: str, config: Any, name: str) -> WeightUpdate:
    kept = {"left_a": "hada_w1_a", "left_b": "hada_w1_b", "right_a": "hada_w2_a", "right_b": "hada_w2_b"}
    return WeightUpdate(
        weight=f"{path}.weight",
        form="hadamard",
        factors=_detached({role: getattr(layer, place)[name] for role, place in kept.items()}),
        scaling=_scaling(config, path),
        transposed=_is_transposed(layer),
    )


def _kronecker(layer: Any, path: str, config: Any, name: str) -> WeightUpdate:
    factors = {}
    for role, place in (("left", "lokr_w1"), ("right", "lokr_w2")):
        whole = getattr(layer, place)
        factors[role] = (
            whole[name]
            if name in whole
            else getattr(layer, f"{place}_a")[name].double() @ getattr(layer, f"{place}_b")[name].double()
        )
    return WeightUpdate(
        weight=f"{path}.weight",
        form="kronecker",
        factors=_detached(factors),
        scaling=_scaling(config, path),
        transposed=_is_transposed(layer),
    )


def _rescaled(layer: Any, path: str, config: Any, name: str) -> WeightUpdate:
    """Return the update of a layer whose outputs, or inputs where it is a feed-forward one, are multiplied."""
    scale = layer.ia3_l[name].detach()
    feeds = any(path.endswith(part) for part in config.feedforward_modules or ())
    plain = layer.get_base_layer()
    bias = {}
    if not feeds and plain.bias is not None:
        bias[f"{path}.bias"] = plain.bias.detach().double() * (scale.double().flatten() - 1)
    return WeightUpdate(
        weight=f"{path}.weight",
        form="columns" if feeds else "rows",
        factors={"scale": scale},
        transposed=_is_transposed(layer),
        bias=bias,
    )


def _vectors(layer: Any, path: str, config: Any, name: str) -> WeightUpdate:
    rows, columns = (layer.out_features, layer.in_features)
    factors = {
        "A": layer.vera_A[name][:, :columns],
        "B": layer.vera_B[name][:rows],
        "d": layer.vera_lambda_d[name],
        "b": layer.vera_lambda_b[name],
    }
    return WeightUpdate(
        weight=f"{path}.weight", form="vectors", factors=_detached(factors), transposed=_is_transposed(layer)
    )


def _spectrum(layer: Any, path: str, config: Any, name: str) -> WeightUpdate:
    factors = {"values": layer.fourierft_spectrum[name], "places": layer.indices[name]}
    return WeightUpdate(
        weight=f"{path}.weight",
        form="spectrum",
        factors=_detached(factors),
        scaling=config.scaling,
        transposed=_is_transposed(layer),
    )


def _wavelets(layer: Any, path: str, config: Any, name: str) -> WeightUpdate:
    from peft.tuners.waveft.wavelet import Wavelet

    factors = {"values": layer.waveft_spectrum[name], "places": layer.waveft_indices[name]}
    if config.use_idwt:
        factors["low"] = torch.tensor(Wavelet(config.wavelet_family).rec_lo, dtype=torch.float64)
    return WeightUpdate(
        weight=f"{path}.weight",
        form="wavelets" if config.use_idwt else "places",
        factors=_detached(factors),
        scaling=config.scaling,
        transposed=_is_transposed(layer),
    )


def _rotated(layer: Any, path: str, config: Any, name: str) -> WeightUpdate:
    """Return the update of RoAd: one, two or four numbers of each kind for a pair of outputs."""
    theta, alpha = layer.road_theta[name].detach().double(), layer.road_alpha[name].detach().double()
    group, plain = config.group_size, layer.get_base_layer()
    if config.variant == "road_1":
        # Both numbers of a pair share theirs.
        theta, alpha = (one.reshape(-1, 1, group // 2).expand(-1, 2, -1).flatten() for one in (theta, alpha))
    if config.variant == "road_4":
        theta, alpha = theta.reshape(-1, 2, group), alpha.reshape(-1, 2, group)
        first = (alpha[:, 0] * theta[:, 0].cos()).flatten()
        second = (alpha[:, 1] * theta[:, 1].sin()).flatten()
    else:
        first, second = alpha * theta.cos(), alpha * theta.sin()
    bias = {}
    if plain.bias is not None:
        own = plain.bias.detach().double()
        bias[f"{path}.bias"] = rotation(first, second, group) @ own - own
    return WeightUpdate(
        weight=f"{path}.weight",
        form="rotated outputs",
        factors={"first": first, "second": second, "group": torch.tensor(group)},
        transposed=_is_transposed(layer),
        bias=bias,
    )


def _reflected(layer: Any, path: str, config: Any, name: str) -> WeightUpdate:
    vectors = layer.hra_u[name].detach()
    return WeightUpdate(
        weight=f"{path}.weight",
        form="reflected inputs",
        factors={"vectors": orthogonal(vectors) if config.apply_GS else vectors},
        transposed=_is_transposed(layer),
    )


def _modulated(layer: Any, path: str, config: Any, name: str) -> WeightUpdate:
    kept = "hira_embedding_" if name in getattr(layer, "hira_embedding_A", {}) else "hira_"
    factors = {role: getattr(layer, f"{kept}{role}")[name] for role in ("A", "B")}
    return WeightUpdate(
        weight=f"{path}.weight",
        form="modulated",
        factors=_detached(factors),
        transposed=_is_transposed(layer),
    )


def _places(layer: Any, path: str, config: Any, name: str) -> WeightUpdate:
    factors = {"values": layer.shira_weight[name], "places": layer.shira_indices[name]}
    return WeightUpdate(
        weight=f"{path}.weight", form="places", factors=_detached(factors), transposed=_is_transposed(layer)
    )


def _normalised(layer: Any, path: str, config: Any, name: str) -> WeightUpdate:
    factors = {
        "A": layer.delora_A[name],
        "B": layer.delora_B[name],
        "weights": layer.delora_lambda[name],
    }
    return WeightUpdate(
        weight=f"{path}.weight",
        form="normalised",
        factors=_detached(factors),
        scaling=1 / _option(config, "rank_pattern", path, config.r),
        transposed=_is_transposed(layer),
    )


def _circulant(layer: Any, path: str, config: Any, name: str) -> WeightUpdate:
    return WeightUpdate(
        weight=f"{path}.weight",
        form="circulant",
        factors=_detached({"kernel": layer.c3a_kernel[name]}),
        transposed=_is_transposed(layer),
    )


def _mean_vectors(layer: Any, path: str, config: Any, name: str) -> WeightUpdate:
    """Return the update of PVeRA in evaluation: that of the means, the first half of what `d` and `A` have."""
    rank, columns = layer.pvera_B[name].shape[1], layer.in_features
    factors = {
        "A": layer.pvera_A[name][:rank, :columns],
        "B": layer.pvera_B[name][: layer.out_features],
        "d": layer.pvera_lambda_d[name][:rank],
        "b": layer.pvera_lambda_b[name],
    }
    return WeightUpdate(
        weight=f"{path}.weight", form="vectors", factors=_detached(factors), transposed=_is_transposed(layer)
    )


def _detached(factors: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {role: factor.detach() for role, factor in factors.items()}


FORMS: Mapping[str, Callable[[Any, str, Any, str], WeightUpdate]] = {
    "LORA": _low_rank,
    "ADALORA": _diagonal_core,
    "LOHA": _hadamard,
    "LOKR": _kronecker,
    "IA3": _rescaled,
    "VERA": _vectors,
    "FOURIERFT": _spectrum,
    "ROAD": _rotated,
    "HRA": _reflected,
    "HIRA": _modulated,
    "SHIRA": _places,
    "DELORA": _normalised,
    "C3A": _circulant,
    "PVERA": _mean_vectors,
    "WAVEFT": _wavelets,
}
"""By PEFT's name of the type."""
