"""Worked examples of `generate` while a model trains: computing activations again changes no token, with any cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.small_models import PAD, fresh_model, media, model_class
from seatrial.targets.transformers.worked.every_class import classes, configuration, drawn_model

LARGEST, NUM_NEW, CLOSE = 6_000_000, 5, 1e-3
IDS = ((5, 16, 7, 28, 9, 11, 30, 4), (15, 33, 8, 21, 40, 6, 17, 3))
CACHES = ("dynamic", "dynamic_full", "static", "sliding_window", "hybrid")


def _made(kind: str) -> Any:
    """Return a small model of a kind that generates, without dropout, in training mode.

    Raises:
        NotServed: no small one is made.
    """
    names = [
        name
        for name in classes().get(kind, ())
        if name.endswith(("ForCausalLM", "LMHeadModel", "Generation"))
    ]
    if not names:
        raise NotServed(f"no {kind} generates")
    model = drawn_model(lambda: fresh_model(model_class(names[0]), configuration(kind), LARGEST))
    if not model.can_generate() or not getattr(model, "supports_gradient_checkpointing", False):
        raise NotServed("it does not generate, or does not compute activations again")
    for name in ("forced_bos_token_id", "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens"):
        setattr(model.generation_config, name, None)
    model.generation_config.num_beams = 1
    return model.train()


def _generated(model: Any, kind: str, **options: Any) -> Tensor:
    """Return [NUM_NEW, B, V] logits."""
    ids = torch.tensor(IDS)
    found = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), **media(kind, len(IDS)), max_new_tokens=NUM_NEW,
        min_new_tokens=NUM_NEW, do_sample=False, disable_compile=True, eos_token_id=[10_000], pad_token_id=PAD,
        return_dict_in_generate=True, output_logits=True, **options,
    )  # fmt: skip
    return torch.stack(found.logits)


def _called(model: Any, kind: str, grad: bool) -> Tensor:
    """Return the logits of one call."""
    ids = torch.tensor(IDS)
    more = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    with torch.set_grad_enabled(grad):
        found: Tensor = model(
            input_ids=ids, attention_mask=torch.ones_like(ids), **media(kind, len(IDS)), **more
        ).logits
    return found.detach()


def _far(found: Tensor, due: Tensor) -> bool:
    return found.shape != due.shape or not bool((found - due).abs().max() <= CLOSE)


WAYS: Mapping[str, Mapping[str, Any]] = {
    "no cache": {"use_cache": False},
    "a cache": {"use_cache": True},
    **{f"a cache {name}": {"use_cache": True, "cache_implementation": name} for name in CACHES},
}


def _results(model: Any, kind: str) -> dict[str, Tensor]:
    """Return the logits of `generate` with each cache and of calls, where nothing is raised."""
    calls: dict[str, Callable[[], Tensor]] = {
        name: partial(_generated, model, kind, **options) for name, options in WAYS.items()
    }
    for grad in (False, True):
        calls[f"a call, gradients {grad}"] = partial(_called, model, kind, grad)
    found = {}
    for name, call in calls.items():
        try:
            found[name] = call()
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):  # not by this model
            continue
    return found


def _trains(kind: str, mixin: Any) -> list[str]:
    """Return where logits change when activations are computed again: of each cache, of none, of calls."""
    model = _made(kind)
    due = _results(model, kind)
    if not {*due} & {*WAYS}:
        raise NotServed("it does not generate from ids alone")
    model.gradient_checkpointing_enable()
    found = _results(model, kind)
    return [name for name, right in due.items() if name in found and _far(found[name], right)]


KINDS: Sequence[str] = (
    "afmoe", "apertus", "aria", "audioflamingo3", "aya_vision", "bamba", "bart", "bert", "big_bird",
    "bigbird_pegasus", "biogpt", "bitnet", "blip-2", "bloom", "cohere", "cohere2", "cohere2_vision", "deepseek_v4",
    "diffllama", "doge", "dory", "electra", "ernie4_5_moe", "exaone4", "falcon", "falcon_mamba", "flex_olmo",
    "fuyu", "gemma", "gemma2", "gemma3", "gemma3_text", "git", "glm", "glm4_moe", "glmasr", "got_ocr2", "gpt-sw3",
    "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gpt_oss", "granite", "granitemoe", "granitemoehybrid", "helium",
    "hunyuan_v1_dense", "idefics3", "internvl", "jamba", "led", "lfm2", "llama", "llama4_text", "llava", "longt5",
    "m2m_100", "mamba", "marian", "mbart", "minimax", "mistral", "mistral3", "mixtral", "mllama", "moshi",
    "modernbert-decoder", "mpt", "mt5", "musicflamingo", "nemotron", "olmo2", "olmo_hybrid", "olmoe", "opt", "ovis2",
    "paligemma", "pegasus", "persimmon", "phi", "phi3", "plbart", "prophetnet", "qwen2", "qwen2_audio", "qwen2_moe",
    "qwen3", "qwen3_moe", "qwen3_next", "qwen3_vl", "recurrent_gemma", "rembert", "roberta", "roformer", "rwkv",
    "smollm3", "smolvlm", "stablelm", "starcoder2", "switch_transformers", "t5gemma", "trocr", "umt5",
    "video_llava", "voxtral", "whisper", "xglm", "xlstm",
)  # fmt: skip
NO_CACHE = KnownFailure(
    "each token of a cache sees itself alone", finding="Transformers: GPT-2 that generates while it trains"
)
# Sources: the documentation of gradient_checkpointing_enable, and of GenerationConfig: neither changes a result.
CHECKPOINTED_ROWS: Sequence[Row] = tuple(
    Row(
        "inputs",
        "transformers:GenerationMixin",
        f"activations of {kind} that are computed again",
        partial(_trains, kind),
        [],
        since="5.24",
        known=NO_CACHE if kind in ("gpt2", "gpt-sw3") else None,
    )
    for kind in KINDS
)
