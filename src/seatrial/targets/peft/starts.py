"""Values that new adapters of PEFT have, as the configuration classes and the papers describe them, by tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from seatrial.relations.contracts.adapters import Spread
from seatrial.relations.not_served import NotServed

Start = Callable[[Any, Tensor], Spread]
"""The mean and the standard deviation by the configuration and the tensor; the deviation is 0 where all are equal."""


def _uniform(config: Any, value: Tensor) -> Spread:
    """Return the spread of Kaiming's uniform draw with a slope of the root of 5, as that of a linear layer."""
    return Spread(0.0, 1 / math.sqrt(3 * math.prod(value.shape[1:])))


def _pairs(config: Any, value: Tensor) -> Spread:
    """Return the same of half the columns, which come twice."""
    if value.shape[1] % 2:
        raise NotServed("vectors in pairs have an even number")
    return _uniform(config, value[:, ::2])


def _normal(deviation: float, mean: float = 0.0) -> Start:
    return lambda config, value: Spread(mean, deviation)


def _by_rank(config: Any, value: Tensor) -> Spread:
    return Spread(0.0, 1 / value.shape[0])


def _option(name: str) -> Start:
    return lambda config, value: Spread(float(getattr(config, name)), 0.0)


def _within(name: str) -> Start:
    return lambda config, value: Spread(0.0, getattr(config, name) / math.sqrt(3))


def _projection(config: Any, value: Tensor) -> Spread:
    """Return the spread of Kaiming's uniform draw of a projection that does not train."""
    return Spread(0.0, math.sqrt(2 / value.shape[1]))


def _each_uniform(config: Any, value: Tensor) -> Spread:
    """Return the spread of Kaiming's uniform draw of each of several transposed factors [N, inputs, outputs]."""
    return Spread(0.0, 1 / math.sqrt(3 * value.shape[1]))


def _circulant(config: Any, value: Tensor) -> Spread:
    """Return the spread of Xavier's uniform draw for kernels [outputs / D, inputs / D, D]."""
    rows, columns, width = value.shape
    return Spread(0.0, math.sqrt(2 / ((rows + columns) * width)))


ZERO, ONE = _normal(0.0), _normal(0.0, 1.0)
OWN: Mapping[str, Mapping[str, Start]] = {
    "LoraConfig": {
        "lora_A": _uniform,
        "lora_B": ZERO,
        "lora_embedding_A": ZERO,
        "lora_embedding_B": _normal(1.0),
    },
    "AdaLoraConfig": {"lora_A": _normal(0.02), "lora_B": _normal(0.02), "lora_E": ZERO},
    "LoHaConfig": {"hada_w1_a": _uniform, "hada_w1_b": _uniform, "hada_w2_a": _uniform, "hada_w2_b": ZERO},
    "LoKrConfig": {
        "lokr_w1": ZERO,
        "lokr_w1_a": ZERO,
        "lokr_w1_b": _uniform,
        "lokr_w2": _uniform,
        "lokr_w2_a": _uniform,
        "lokr_w2_b": _uniform,
    },
    "VeraConfig": {
        "vera_lambda_d": _option("d_initial"),
        "vera_lambda_b": ZERO,
        "vera_A": _projection,
        "vera_B": _projection,
    },
    "PveraConfig": {"pvera_lambda_d": _option("d_initial"), "pvera_lambda_b": ZERO},
    "IA3Config": {"ia3_l": ONE},
    "VBLoRAConfig": {
        "vblora_logits_A": lambda config, value: Spread(0.0, config.init_logits_std),
        "vblora_logits_B": lambda config, value: Spread(0.0, config.init_logits_std),
        "vblora_vector_bank": _within("init_vector_bank_bound"),
    },
    "UniLoraConfig": {"unilora_theta_d": _within("init_theta_d_bound")},
    "HRAConfig": {"hra_u": _pairs},
    "RandLoraConfig": {
        "randlora_A": _normal(1.0),
        "randlora_B": _normal(1.0),
        "randlora_lambda": ZERO,
        "randlora_gamma": lambda config, value: Spread(1 / max(value.shape), 0.0),
    },
    "DeloraConfig": {"delora_A": _uniform, "delora_B": ZERO},
    "HiraConfig": {
        "hira_A": _uniform,
        "hira_B": ZERO,
        "hira_embedding_A": ZERO,
        "hira_embedding_B": _normal(1.0),
    },
    "RoadConfig": {"road_theta": ZERO, "road_alpha": ONE},
    "WaveFTConfig": {"waveft_spectrum": ZERO},
    "ShiraConfig": {"shira_weight": ZERO},
    "FourierFTConfig": {"fourierft_spectrum": _normal(1.0)},
    "OFTConfig": {"oft_R": ZERO, "oft_embedding_R": ZERO},
    "BOFTConfig": {"boft_R": ZERO, "boft_s": ONE},
    "LilyConfig": {"lily_A": _uniform, "lily_router": _uniform, "lily_B": ZERO},
    "TinyLoraConfig": {"tinylora_v": ZERO},
    "PromptTuningConfig": {"embedding": _normal(1.0)},
    "C3AConfig": {"c3a_kernel": _circulant},
    "MissConfig": {"miss_block": ZERO},
    "GraloraConfig": {
        "gralora_A": _each_uniform,
        "gralora_B": ZERO,
        "gralora_A_general": _uniform,
        "gralora_B_general": ZERO,
    },
    "BeftConfig": {"beft_bias": ZERO},
    "FrodConfig": {"frod_lambda_s_values": ZERO},
    "PeanutConfig": {
        "peanut_A": _uniform,
        "peanut_encoders": _uniform,
        "peanut_decoders": _uniform,
        "peanut_B": ZERO,
    },
}
"""By the configuration class and a part of the tensor's name, with the default of the option about the start."""
CHOSEN: Mapping[tuple[str, Any], Mapping[str, Start]] = {
    ("LoraConfig", "gaussian"): {**OWN["LoraConfig"], "lora_A": _by_rank},
    ("HiraConfig", "gaussian"): {**OWN["HiraConfig"], "hira_A": _by_rank},
    ("C3AConfig", "gaussian"): {"c3a_kernel": _normal(1.0)},
    ("C3AConfig", "kaiming_uniform"): {
        "c3a_kernel": lambda config, value: Spread(0.0, 1 / math.sqrt(3 * value.shape[1] * value.shape[2]))
    },
    ("C3AConfig", True): {"c3a_kernel": ZERO},
    ("C3AConfig", False): {"c3a_kernel": _circulant},
    ("MissConfig", "bat"): {"miss_block": ZERO},
    ("MissConfig", "mini"): {"miss_block": ZERO},
    ("PeanutConfig", False): dict.fromkeys(
        ("peanut_A", "peanut_encoders", "peanut_decoders", "peanut_B"), _uniform
    ),
    ("GraloraConfig", False): {
        "gralora_A": _each_uniform,
        "gralora_B": _each_uniform,
        "gralora_A_general": _uniform,
        "gralora_B_general": _uniform,
    },
    ("TinyLoraConfig", "uniform"): {"tinylora_v": _within("init_v_bound")},
    ("LoHaConfig", False): dict.fromkeys(OWN["LoHaConfig"], _uniform),
    ("LoKrConfig", False): dict.fromkeys(OWN["LoKrConfig"], _uniform),
    ("DeloraConfig", False): dict.fromkeys(OWN["DeloraConfig"], _uniform),
    ("LilyConfig", False): dict.fromkeys(OWN["LilyConfig"], _uniform),
    ("OFTConfig", False): dict.fromkeys(OWN["OFTConfig"], _normal(0.1)),
    ("BOFTConfig", False): {"boft_R": _normal(0.1), "boft_s": _normal(0.1, 1.0)},
    ("RoadConfig", False): {"road_theta": _normal(0.5), "road_alpha": _normal(0.5, 1.0)},
    ("FourierFTConfig", True): {"fourierft_spectrum": ZERO},
}
"""The same with another value of that option."""
ABOUT_STARTS = ("init_lora_weights", "init_ia3_weights", "init_weights", "prompt_tuning_init")
FORMS = ("use_bdlora", "kasa_config", "ensure_weight_tying")
"""Options of LoRA whose factors start in another way, or as those of a layer they are tied to."""


def starts_of(kind: Any, model: Any, config: Any) -> dict[str, Spread]:
    """Return the spread of each tensor of a new adapter of a kind, where a description says it.

    Raises:
        NotServed: none says it.
    """
    chosen = [kind.options[name] for name in ABOUT_STARTS if name in kind.options]
    table = CHOSEN.get((kind.config, chosen[0]), {}) if chosen else OWN.get(kind.config, {})
    if not table or any(kind.options.get(name) for name in FORMS):
        raise NotServed("no description of the start of this kind is known here")
    found = {}
    trains = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
    for name, value in (*trains, *model.named_buffers()):
        parts = [part for part in name.split(".") if part in table]
        # Buffers of indices are no part of what is drawn.
        if parts and "bias" not in name and value.is_floating_point():
            found[name] = table[parts[-1]](config, value)
    return found
