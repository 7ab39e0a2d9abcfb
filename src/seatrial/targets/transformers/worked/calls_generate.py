"""Calls of `generate` of several kinds of models with many options, whose sequences and scores are on record."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import Gone
from seatrial.targets.transformers.small_models import model_class as of_name
from seatrial.targets.transformers.worked.calls_caches import _short as short
from seatrial.targets.transformers.worked.pipes import drawn, tokens, words
from seatrial.targets.transformers.worked.recorded_calls import Call, refusal, rows_of

VOCABULARY, PAD, START, END = 40, 0, 1, 2
SIZES: Mapping[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "pad_token_id": PAD,
    "bos_token_id": START, "eos_token_id": END, "tie_word_embeddings": False,
}  # fmt: skip
IDS = torch.tensor([[5, 9, 11, 4, 7], [PAD, PAD, 7, 8, 21], [PAD, 30, 30, 12, 30]])
MASK = (IDS != PAD).long()
KEPT: Mapping[str, Any] = {
    "input_ids": IDS, "attention_mask": MASK, "max_new_tokens": 6, "do_sample": False, "return_dict_in_generate": True,
    "output_scores": True,
}  # fmt: skip


def _causal(**options: Any) -> Any:
    return drawn("LlamaForCausalLM", **{**SIZES, **options})


def _encoding(**options: Any) -> Any:
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2,
             "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "vocab_size": VOCABULARY,
             "max_position_embeddings": 64, "pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END,
             "decoder_start_token_id": START, "forced_eos_token_id": None}  # fmt: skip
    return drawn("BartForConditionalGeneration", **{**sizes, **options})


def _states(**options: Any) -> Any:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4, "expand": 2,
             "time_step_rank": 4, "pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END}  # fmt: skip
    return drawn("MambaForCausalLM", **sizes)


def _hybrid(**options: Any) -> Any:
    return drawn("JambaForCausalLM", **{
        **SIZES, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "num_experts_per_tok": 1,
        "expert_layer_period": 2, "expert_layer_offset": 1, "use_mamba_kernels": False, "mamba_d_state": 4,
        "mamba_dt_rank": 4, "num_hidden_layers": 2,
    })  # fmt: skip


def _windows(**options: Any) -> Any:
    return drawn(
        "Gemma2ForCausalLM", **{**SIZES, "sliding_window": 3, "head_dim": 8, "query_pre_attn_scalar": 8}
    )


MODELS: Mapping[str, Callable[..., Any]] = {
    "causal": _causal, "encoding": _encoding, "states": _states, "hybrid": _hybrid, "windows": _windows,
}  # fmt: skip


def _fields(model: Any, found: Any) -> Any:
    """Return the fields of a result: sequences as they are, sums of scores, sizes of states."""
    if isinstance(found, Tensor):
        return found.tolist()
    shown: dict[str, Any] = {}
    for name, value in found.items():
        if name in ("sequences", "beam_indices"):
            shown[name] = value.tolist()
        elif name in ("scores", "logits"):
            shown[name] = [_sum(one) for one in value]
        elif isinstance(value, Tensor):
            shown[name] = [round(float(one), 4) for one in value] if value.dim() == 1 else short(value)
        elif isinstance(value, tuple):
            shown[name] = _sizes(value)
    if found.get("scores"):
        moves = refusal(lambda: model.compute_transition_scores(
            found["sequences"], found["scores"], found.get("beam_indices"), normalize_logits=True))  # fmt: skip
        shown["moves"] = moves if isinstance(moves, str) else _sum(moves)
    return shown


def _sum(value: Tensor) -> list[Any]:
    shape, total = short(value.clamp(min=-50, max=50))
    return [shape, round(total / value.numel() ** 0.5, 4) + 0.0]


def _sizes(value: Any) -> Any:
    if isinstance(value, Tensor):
        return " ".join(map(str, value.shape))
    return [_sizes(one) for one in value] if isinstance(value, tuple | list) else None


def _written(kind: str, cases: Mapping[str, Mapping[str, Any]], mixin: Any) -> Any:
    """Return what a model writes with each set of options."""
    try:
        model = MODELS[kind]()
    except (Gone, TypeError) as error:
        raise NotServed(str(error)) from error
    found = {}
    for name, options in cases.items():
        given = {**KEPT, **options}
        found[name] = refusal(lambda given=given: _fields(model, model.generate(**_made(model, kind, given))))
    if all(isinstance(one, str) for one in found.values()):
        raise NotServed(f"it writes nothing: {next(iter(found.values()))}")
    return found


def _made(model: Any, kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options whose values are models, embeddings and functions, by their names."""
    given: dict[str, Any] = copy.deepcopy(dict(options))
    if "watermark" in given:
        given["watermarking_config"] = of_name("WatermarkingConfig")(**given.pop("watermark"))
    if kind == "encoding":  # padding is on the right
        given["input_ids"], given["attention_mask"] = IDS.flip(1), MASK.flip(1)
    if "embeds" in given:
        ids = given.pop("input_ids")
        given["inputs_embeds"] = model.get_input_embeddings()(ids).detach()
        if given.pop("embeds") == "with ids":
            given["input_ids"] = ids
    if "of" in given:
        rows = given.pop("of")
        given["input_ids"], given["attention_mask"] = given["input_ids"][rows], given["attention_mask"][rows]
    if "assistant" in given:
        given["assistant_model"] = MODELS[kind](**given.pop("assistant"))
        given["assistant_model"].generation_config.num_assistant_tokens = 3
        given["assistant_model"].generation_config.assistant_confidence_threshold = 0.0
    if "allowed" in given:
        allowed = given.pop("allowed")
        given["prefix_allowed_tokens_fn"] = lambda row, ids: [*range(3 + (row % 2), VOCABULARY, allowed)]
    if "stop" in given:
        stop = given.pop("stop")
        given["stopping_criteria"] = [lambda ids, scores, **more: (ids[:, -1] % stop) == 0]
    if "process" in given:
        change = given.pop("process")
        given["logits_processor"] = [
            lambda ids, scores: scores + change * torch.arange(scores.shape[-1]) / 10
        ]
    return given


BEAMS: Mapping[str, Mapping[str, Any]] = {
    "two": {"num_beams": 2}, "four, all": {"num_beams": 4, "num_return_sequences": 4},
    "early": {"num_beams": 3, "early_stopping": True, "num_return_sequences": 3, "eos_token_id": [4, 11, 30, 7, 8]},
    "late": {"num_beams": 3, "early_stopping": "never", "num_return_sequences": 3, "eos_token_id": [4, 11, 30, 7, 8]},
    "ends": {"num_beams": 3, "num_return_sequences": 2, "eos_token_id": [4, 11, 30, 7, 8]},
    "no penalty": {"num_beams": 3, "length_penalty": 0.0, "eos_token_id": [4, 11, 30, 7], "num_return_sequences": 2},
    "penalty": {"num_beams": 3, "length_penalty": 2.0, "eos_token_id": [4, 11, 30, 7], "early_stopping": "never"},
    "negative penalty": {"num_beams": 3, "length_penalty": -1.0, "eos_token_id": [4, 11, 30, 7],
                         "early_stopping": "never"},
    "least": {"num_beams": 2, "min_new_tokens": 4, "eos_token_id": [4, 11, 30, 7, 8]},
    "least length": {"num_beams": 2, "min_length": 8, "eos_token_id": [4, 11, 30, 7, 8]},
    "repeated": {"num_beams": 3, "repetition_penalty": 1.7, "no_repeat_ngram_size": 2},
    "words": {"num_beams": 2, "bad_words_ids": [[4], [11, 12], [30]], "sequence_bias": [[[7], -3.0], [[8, 9], 4.0]]},
    "forced": {"num_beams": 2, "forced_eos_token_id": 9, "forced_bos_token_id": 6},
    "suppressed": {"num_beams": 2, "suppress_tokens": [4, 30], "begin_suppress_tokens": [11, 7]},
    "decayed": {"num_beams": 2, "exponential_decay_length_penalty": (2, 1.6), "eos_token_id": [4, 11]},
    "normal": {"num_beams": 2, "renormalize_logits": True, "repetition_penalty": 1.5},
    "allowed": {"num_beams": 2, "allowed": 3}, "stopped": {"num_beams": 2, "stop": 5},
    "processed": {"num_beams": 2, "process": 1.0, "output_logits": True},
    "no cache": {"num_beams": 2, "use_cache": False}, "static": {"num_beams": 2, "cache_implementation": "static"},
    "static, all": {"num_beams": 3, "num_return_sequences": 3, "cache_implementation": "static"},
    "in parts": {"num_beams": 2, "prefill_chunk_size": 2}, "embeddings": {"num_beams": 2, "embeds": True},
    "embeddings and ids": {"num_beams": 2, "embeds": "with ids"},
    "states": {"num_beams": 2, "output_hidden_states": True, "output_attentions": True, "max_new_tokens": 3},
    "one token": {"num_beams": 3, "max_new_tokens": 1, "num_return_sequences": 3},
    "length": {"num_beams": 2, "max_new_tokens": None, "max_length": 8},
    "surest": {"num_beams": 2, "do_sample": True, "top_k": 1, "temperature": 0.7},
    "low memory": {"num_beams": 2, "low_memory": True}, "groups": {"num_beams": 4, "num_beam_groups": 2,
                                                                  "diversity_penalty": 0.5},
    "constrained": {"num_beams": 3, "force_words_ids": [[9, 10]]}, "eighths": {
        "num_beams": 2, "cache_implementation": "quantized", "cache_config": {"backend": "fp8"}},
    "marked": {"num_beams": 2, "watermark": {"greenlist_ratio": 0.5, "bias": 3.0, "seeding_scheme": "lefthash",
                                                       "hashing_key": 15, "context_width": 1}},
}  # fmt: skip
GREEDY: Mapping[str, Mapping[str, Any]] = {
    "plain": {"output_logits": True}, "surest": {"do_sample": True, "top_k": 1, "num_return_sequences": 2},
    "ends": {"eos_token_id": [4, 11, 30, 7, 8]}, "static": {"cache_implementation": "static"},
    "in parts": {"prefill_chunk_size": 2}, "in parts, static": {"prefill_chunk_size": 3,
                                                               "cache_implementation": "static"},
    "embeddings": {"embeds": True}, "no cache": {"use_cache": False}, "stopped": {"stop": 5},
    "states": {"output_hidden_states": True, "output_attentions": True, "max_new_tokens": 3},
    "guided": {"guidance_scale": 1.7, "negative_prompt_ids": IDS.flip(0),
               "negative_prompt_attention_mask": MASK.flip(0)},
    "guided alone": {"guidance_scale": 1.7}, "all options": {
        "repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 3, "suppress_tokens": [4],
        "bad_words_ids": [[9]], "eos_token_id": [7, 30], "renormalize_logits": True, "remove_invalid_values": True},
    "encoder's": {"encoder_repetition_penalty": 2.0, "encoder_no_repeat_ngram_size": 2},
    "nothing asked": {"return_dict_in_generate": False, "output_scores": False}, "kept": {"logits_to_keep": 1},
    "dola": {"dola_layers": "low"}, "contrastive": {"penalty_alpha": 0.6, "top_k": 4}, "eighths": {
        "cache_implementation": "quantized", "cache_config": {"backend": "fp8"}},
    "long": {"max_new_tokens": 14}, "no mask": {"attention_mask": None, "eos_token_id": None, "min_new_tokens": 2},
}  # fmt: skip
DRAFTS: Mapping[str, Mapping[str, Any]] = {
    "itself": {"assistant": {}, "output_logits": True},
    "smaller": {"assistant": {"num_hidden_layers": 1}},
    "ends": {"assistant": {}, "eos_token_id": [4, 11, 30, 7, 8], "min_new_tokens": 3},
    "looked up": {"prompt_lookup_num_tokens": 2, "max_matching_ngram_size": 2},
    "looked up, ends": {"prompt_lookup_num_tokens": 3, "eos_token_id": [4, 11, 30]},
    "surest": {"assistant": {}, "do_sample": True, "top_k": 1},
    "penalized": {"assistant": {}, "repetition_penalty": 1.6, "no_repeat_ngram_size": 2},
    "states": {"assistant": {}, "output_hidden_states": True, "output_attentions": True,
                       "max_new_tokens": 5},
    "early exit": {"assistant_early_exit": 1}, "length": {
        "assistant": {}, "max_new_tokens": None, "max_length": 8},
    "static": {"assistant": {}, "cache_implementation": "static"},
    "of two rows": {"assistant": {}, "o": [0, 2]},
    "weighted": {"assistant": {"num_hidden_layers": 1}, "assistant_ensemble_weight": 0.5},
}  # fmt: skip
ASSISTED: Mapping[str, Mapping[str, Any]] = {
    f"{name}, {row}": {"of": [row], "max_new_tokens": 9, **options}
    for row in (0, 2)
    for name, options in DRAFTS.items()
}


def _healed(mixin: Any) -> Any:
    """Return prompts whose last token is replaced by one that begins with it."""
    tokenizer = words(bos_token="[CLS]")
    model = drawn("LlamaForCausalLM", **{**SIZES, "vocab_size": len(tokens()), "pad_token_id": 0, "bos_token_id": 2,
                                         "eos_token_id": 3})  # fmt: skip
    rows = [
        tokenizer(one, add_special_tokens=False)["input_ids"] for one in ("the cat s", "my n", "w", "hello")
    ]
    found = [refusal(lambda row=row: model.heal_tokens(torch.tensor([row]), tokenizer)) for row in rows]
    found.append(refusal(lambda: model.heal_tokens(torch.tensor([rows[0]]))))
    found.append(refusal(lambda: model.generate(torch.tensor([rows[0]]), token_healing=True, tokenizer=tokenizer,
                                                max_new_tokens=2, do_sample=False)))  # fmt: skip
    return found


def _own(mixin: Any) -> Any:
    """Return what a function of the caller's own is given in the place of a decoding method."""
    seen: list[Any] = []

    def decode(model: Any, input_ids: Any, logits_processor: Any = None, stopping_criteria: Any = None,
               generation_config: Any = None, mine: Any = None, **more: Any) -> Any:  # fmt: skip
        parts = [[type(one).__name__ for one in part] for part in (logits_processor, stopping_criteria)]
        seen.append([*parts, generation_config.max_length, mine, sorted(more)])
        return input_ids

    given: Mapping[str, Any] = {
        "input_ids": IDS,
        "attention_mask": MASK,
        "max_new_tokens": 3,
        "custom_generate": decode,
    }
    model = _causal()
    options: Sequence[Mapping[str, Any]] = (
        {}, {"mine": 3}, {"num_return_sequences": 2, "do_sample": True}, {"repetition_penalty": 1.5, "top_k": 3},
        {"num_beams": 2}, {"eos_token_id": [4], "min_new_tokens": 2},
    )  # fmt: skip
    for more in options:
        seen.append(refusal(lambda more=more: model.generate(**given, **more)))
    return seen


def _guarded(mixin: Any) -> Any:
    """Return which calls are refused, and how."""
    model, encodes = _causal(), _encoding()
    ids = IDS[:1]
    calls: Sequence[tuple[Any, Mapping[str, Any]]] = (
        (model, {"input_ids": ids, "num_return_sequences": 2}), (model, {"input_ids": ids, "not_known": 3}),
        (model, {"input_ids": ids, "num_beams": 2, "num_return_sequences": 3}), (model, {"input_ids": ids, "top": 1}),
        (model, {"input_ids": ids, "max_length": 3}), (model, {"input_ids": ids, "stop_strings": "a"}),
        (model, {"input_ids": ids, "max_new_tokens": 0}), (model, {"input_ids": ids, "streamer": 1, "num_beams": 2}),
        (model, {"input_ids": ids, "assistant_model": encodes}),
        (encodes, {"input_ids": ids, "assistant_model": model}),
        (model, {"inputs": ids, "input_ids": ids}), (model, {"input_ids": ids.float()}),
        (encodes, {"inputs_embeds": 1}),
        (model, {"input_ids": ids, "cache_implementation": "no such"}), (encodes, {"pixel_values": ids}),
        (model, {"input_ids": ids, "generation_config": of_name("GenerationConfig")(num_beams=2, max_new_tokens=2)}),
        (model, {"input_ids": ids, "generation_config": of_name("GenerationConfig")(top_k=3), "do_sample": False}),
        (model, {"input_ids": ids, "cache_implementation": "static", "use_cache": False}),
        (model, {"input_ids": ids, "prompt_lookup_num_tokens": 3, "num_beams": 2}),
        (encodes, {"input_ids": ids, "decoder_input_ids": torch.tensor([[5]]), "num_beams": 2, "max_new_tokens": 3}),
        (encodes, {"input_ids": ids, "decoder_input_ids": torch.tensor([[START, 5]]), "max_new_tokens": 3,
                   "decoder_attention_mask": torch.tensor([[1, 1]])}),
    )  # fmt: skip
    return [
        refusal(lambda one=one, given=given: one.generate(**{"do_sample": False, **given}))
        for one, given in calls
    ]


PLACE = "transformers.generation.utils:GenerationMixin"
TABLES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "beams": BEAMS,
    "one": GREEDY,
    "candidates": ASSISTED,
}
CALLS: Sequence[Call] = (
    *(Call("inputs", PLACE, f"rows of a model, {kind}, {table}", partial(_written, kind, cases))
      for kind in MODELS for table, cases in TABLES.items()
      if table != "candidates" or kind not in ("states", "hybrid")),
    Call("inputs", PLACE, "last tokens that are replaced", _healed),
    Call("inputs", PLACE, "methods of the caller's own", _own),
    Call("inputs", PLACE, "calls that are refused", _guarded),
)  # fmt: skip
GENERATE_CALL_ROWS = rows_of(CALLS)
