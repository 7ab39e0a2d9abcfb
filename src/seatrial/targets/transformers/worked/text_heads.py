"""Worked examples of models of text and pictures or sounds: rows of text alone, by the text part's own causal model."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import error_line
from seatrial.targets.common.known import KnownFailure, before, since
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.family_drawn import draw_by_names_alone
from seatrial.targets.transformers.small_models import VOCABULARY, fresh_model, model_class, small_config
from seatrial.targets.transformers.worked.every_class import configuration

LARGEST = 20_000_000
"""Parameters of a model that is made."""
OPTIONS: Mapping[str, float] = {
    "embedding_multiplier": 1.3,
    "final_logit_softcapping": 2.0,
    "lm_head_multiplier": 1.7,
    "logit_scale": 0.4,
    "logits_scaling": 3.0,
    "scale_emb": 1.3,
}
"""Of a text's configuration, what acts on embeddings and on logits; a text has some of them."""
IDS = range(3, 48)
OWN = ""
"""The text that a class has without further options."""
ALONE = (
    "Aria", "AudioFlamingo3", "AyaVision", "Cohere2Vision", "CohereCompass", "DeepseekVL", "Exaone4_5_",
    "Gemma3", "Gemma4", "Gemma4Unified", "GlmAsr", "GotOcr2", "HyperCLOVAXVisionV2", "Idefics2", "Idefics3",
    "InternVL", "Lfm2Vl", "Lfm3Vl", "LightOnOcr", "Llava", "LlavaNext", "LlavaNextVideo",
    "LlavaOnevision", "MiniCPMV4_6", "MiniMaxM3Sparse", "Mistral3", "MusicFlamingo", "Ovis2", "PaliGemma",
    "QianfanOCR", "Qwen2Audio", "Qwen3ASR", "Qwen3_5", "Qwen3_5Moe", "Qwen4Exp", "SmolVLM", "VideoLlama3",
    "VideoLlava", "VipLlava", "Voxtral",
)  # fmt: skip
"""Beginnings of the names of classes, with the text that each has without further options."""
TEXTS: Sequence[tuple[str, str]] = (
    *((name, OWN) for name in ALONE),
    ("GraniteSpeech", "granite"),
    ("LlavaNext", "granite"),
    ("PaliGemma", "gemma2"),
)
"""Those, and kinds of text that published models have."""
SIZES = {"hidden_dim": 32, "dim_head": 8, "vocab_size_per_layer_input": VOCABULARY}
"""Of parts, besides those of every small model."""
SECTIONS = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
IGNORED = KnownFailure(
    "the head of the whole ignores options of the text", finding="Transformers: options that are ignored"
)
IGNORED_LATER = replace(IGNORED, releases=since("transformers", "5.9"))
UNCAPPED = KnownFailure(
    "the cap of the text's logits is left out",
    finding="Transformers: the cap of logits in PaliGemma 2",
    releases=before("transformers", "5.23"),
)
KNOWN: Mapping[tuple[str, str], KnownFailure] = {
    ("AyaVision", OWN): IGNORED,
    ("Cohere2Vision", OWN): IGNORED,
    ("Gemma3", OWN): IGNORED,
    ("GraniteSpeech", "granite"): IGNORED_LATER,
    ("LlavaNext", "granite"): IGNORED,
    ("PaliGemma", "gemma2"): UNCAPPED,
}


def configured(kind: str, text_kind: str) -> Any:
    """Return a small configuration whose text has other values of `OPTIONS`."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = configuration(kind)
    if text_kind:
        config.text_config = small_config(CONFIG_MAPPING[text_kind])
    if hasattr(config, "projector_config"):
        config.projector_config = small_config(type(config.projector_config))
    text, encoder = config.text_config, getattr(config, "encoder_config", None)
    if kind == "cohere_compass":
        text.rope_parameters = {name: dict(SECTIONS) for name in text.layer_types}
    for part, options in ((text, OPTIONS), (text, SIZES), (encoder, SIZES)):
        for name, value in options.items():
            if hasattr(part, name):
                setattr(part, name, value)
    return config


def _parts(whole: Any) -> Iterator[Any]:
    """Yield what may be the decoder of a whole model's text."""
    yield whole.get_decoder()
    for one in (whole, getattr(whole, "model", None)):
        for name in ("language_model", "text_model"):
            part = getattr(one, name, None)
            yield from (found for found in (part, getattr(part, "model", None)) if found is not None)


def _same_text(whole: Any) -> Any:
    """Return the causal language model of a whole model's text, with the same weights."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    config = copy.deepcopy(whole.config.text_config)
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise NotServed(f"no causal language model of {config.model_type}")
    found = fresh_model(model_class(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]), config, LARGEST)
    base = found.get_decoder()
    names = {*base.state_dict()}
    part = next((one for one in _parts(whole) if names <= {*one.state_dict()}), None)
    if part is None:
        raise NotServed("no part has the weights of the text")
    base.load_state_dict({name: value for name, value in part.state_dict().items() if name in names})
    head = whole.get_output_embeddings()
    found.get_output_embeddings().weight = nn.Parameter(head.weight.detach().clone())
    return found.eval()


def _unlike(text_kind: str, made: Any) -> list[str]:
    """Return the largest difference of logits of rows of one token, which no mask and no position changes."""
    try:
        whole = fresh_model(made, configured(made.config_class.model_type, text_kind), LARGEST).eval()
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:  # refused when it is made
        raise NotServed(error_line(error)) from error
    draw_by_names_alone(whole)
    text = _same_text(whole)
    ids = torch.tensor(IDS)[:, None]
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    takes = inspect.signature(whole.forward).parameters
    types = {name: torch.zeros_like(ids) for name in ("token_type_ids", "mm_token_type_ids") if name in takes}
    with torch.no_grad():
        due = text(**given, use_cache=False).logits
        found = whole(**given, **types, use_cache=False, return_dict=False)[0][..., : due.shape[-1]]
    gap = float((found - due).abs().max())
    return [] if gap <= 1e-4 else [f"logits of up to {float(due.abs().max()):.3g} differ by {gap:.3g}"]


# Sources: the documentation of each option, of the configuration of the text.
TEXT_HEAD_ROWS: Sequence[Row] = tuple(
    Row(
        "formulas",
        f"transformers:{name}ForConditionalGeneration",
        f"rows of text alone{', ' if text_kind else ''}{text_kind}",
        partial(_unlike, text_kind),
        [],
        since="4.57.6",
        known=KNOWN.get((name, text_kind)),
    )
    for name, text_kind in TEXTS
)
