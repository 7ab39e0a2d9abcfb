"""What distinguishes the decoder-only architectures that the lean and the static decoder serve.

Widths, biases, window lengths, multipliers and caps come from the live module and its configuration; a trait says what
these do not show.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import nn


class NormNames(NamedTuple):
    """Attributes of a decoder layer that hold its norms; None: there is no norm at this place."""

    attention: str | None = "input_layernorm"
    attention_out: str | None = None
    mlp: str | None = "post_attention_layernorm"
    mlp_out: str | None = None


LLAMA_NORMS = NormNames()


@dataclass(frozen=True)
class Traits:
    """One architecture; the defaults are those of Llama."""

    norms: NormNames = LLAMA_NORMS
    is_parallel: bool = False
    """Attention and MLP read the same norm, and both outputs are added at once."""
    has_centred_norms: bool = False
    """Layer norms (arXiv 1607.06450) in place of root-mean-square norms."""
    norm_offset: float = 0.0
    """Added to the weight of a norm."""
    norm_rounds_last: bool = False
    """The norm multiplies by its weight in float32, and rounds to the type of the model after that."""
    has_interleaved_rotary: bool = False
    """The rotary embedding pairs neighbours (0, 1), (2, 3), not the two halves of a head."""
    rotates_full_layers: bool = True
    """False: in a model with windows, layers without one have no rotary embedding."""
    windows_all_layers: bool = False
    """Every layer has the window, regardless of `layer_types`."""
    caps_scores: bool = False
    """Attention scores are capped by `attn_logit_softcapping`."""
    is_checked: bool = True
    """Whether the decoder is compared with the model's own forward before it is used (see `lean_check`)."""


_AFTER = NormNames(None, "post_attention_layernorm", None, "post_feedforward_layernorm")
_AROUND = NormNames(
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)
_AROUND_GLM = NormNames(
    "input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"
)
_GEMMA = Traits(norm_offset=1.0, norm_rounds_last=True)

ARCHITECTURES: dict[str, Traits] = {
    "LlamaForCausalLM": Traits(is_checked=False),
    "MistralForCausalLM": Traits(windows_all_layers=True, is_checked=False),
    "Qwen2ForCausalLM": Traits(is_checked=False),
    "Qwen3ForCausalLM": Traits(is_checked=False),
    "SeedOssForCausalLM": Traits(is_checked=False),
    "ArceeForCausalLM": Traits(),
    "CohereForCausalLM": Traits(
        NormNames(mlp=None), is_parallel=True, has_centred_norms=True, has_interleaved_rotary=True
    ),
    "Cohere2ForCausalLM": Traits(
        NormNames(mlp=None),
        is_parallel=True,
        has_centred_norms=True,
        has_interleaved_rotary=True,
        rotates_full_layers=False,
    ),
    "CwmForCausalLM": Traits(),
    "Ernie4_5ForCausalLM": Traits(has_interleaved_rotary=True),
    "Exaone4ForCausalLM": Traits(_AFTER, rotates_full_layers=False),
    "GemmaForCausalLM": _GEMMA,
    "Gemma2ForCausalLM": replace(_GEMMA, norms=_AROUND, caps_scores=True),
    "Gemma3ForCausalLM": replace(_GEMMA, norms=_AROUND),
    "GlmForCausalLM": Traits(has_interleaved_rotary=True),
    "Glm4ForCausalLM": Traits(_AROUND_GLM, has_interleaved_rotary=True),
    "GraniteForCausalLM": Traits(),
    "HeliumForCausalLM": Traits(norm_rounds_last=True, has_interleaved_rotary=True),
    "MinistralForCausalLM": Traits(),
    "NemotronForCausalLM": Traits(has_centred_norms=True, norm_offset=1.0),
    "Olmo2ForCausalLM": Traits(_AFTER, norm_rounds_last=True),
    "Olmo3ForCausalLM": Traits(_AFTER, norm_rounds_last=True),
    "PhiForCausalLM": Traits(NormNames(mlp=None), is_parallel=True, has_centred_norms=True),
    "Phi3ForCausalLM": Traits(windows_all_layers=True),
    "SmolLM3ForCausalLM": Traits(),
    "StableLmForCausalLM": Traits(has_centred_norms=True),
    "Starcoder2ForCausalLM": Traits(windows_all_layers=True, has_centred_norms=True),
    "VaultGemmaForCausalLM": replace(
        _GEMMA, norms=NormNames(mlp="pre_feedforward_layernorm"), caps_scores=True
    ),
}
"""By the name of the class in Transformers."""

LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})


def traits_of(model: nn.Module) -> Traits | None:
    """Return the traits of a model of Transformers; None for other classes, subclasses among them."""
    kind = type(model)
    return ARCHITECTURES.get(kind.__name__) if kind.__module__.startswith("transformers.models.") else None


def layer_type(config: Any, number: int) -> str:
    """Return "full_attention" or "sliding_attention"."""
    types = getattr(config, "layer_types", None)
    return "full_attention" if types is None else types[number]


def layer_window(config: Any, number: int, traits: Traits) -> int | None:
    """Return how many tokens a layer attends to, the newest included; None for all."""
    if traits.windows_all_layers or layer_type(config, number) == "sliding_attention":
        return config.sliding_window
    return None


def rotates(config: Any, number: int, traits: Traits, attention: nn.Module) -> bool:
    """Return whether a layer turns queries and keys by their positions."""
    if not traits.rotates_full_layers and config.sliding_window is not None:
        return layer_type(config, number) == "sliding_attention"
    return bool(getattr(attention, "use_rope", True))
