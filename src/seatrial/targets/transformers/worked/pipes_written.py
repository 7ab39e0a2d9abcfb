"""Calls of Transformers' pipelines that generate, and of what all pipelines share, whose results are on record."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from seatrial.targets.common.trainers import new_folder
from seatrial.targets.transformers.small_models import model_class as of_name
from seatrial.targets.transformers.worked.losses import numbers
from seatrial.targets.transformers.worked.pipes import (
    ASKED,
    decoder,
    drawn,
    encoder,
    letters,
    tokens,
    words,
    written_text,
)
from seatrial.targets.transformers.worked.recorded_calls import Call, refusal, rows_of

GREEDY: Mapping[str, Any] = {"do_sample": False, "max_new_tokens": 5}
PROMPTS = ["hello", "the cat sat", "a"]
CHAT = [{"role": "user", "content": "hi"}]
BEGUN = [*CHAT, {"role": "assistant", "content": "wel"}]


def _writer(made: Any, **options: Any) -> Any:
    side = options.pop("padding_side", "right")
    return made(model=decoder(), tokenizer=letters(padding_side=side), **ASKED, **options)


def _asked(pipe: Any, calls: Mapping[str, tuple[Any, Mapping[str, Any]]], first: Mapping[str, Any]) -> Any:
    return {
        name: refusal(lambda given=given, more=more: written_text(pipe(given, **{**first, **more})))
        for name, (given, more) in calls.items()
    }


def _texts(made: Any) -> Any:
    """Return texts of prompts: whole or new, ids, several, batches, prefixes, stops and lengths."""
    pipe = _writer(made)
    calls: dict[str, tuple[Any, Mapping[str, Any]]] = {
        "one": (PROMPTS[0], {}), "list": (PROMPTS, {}), "batch": (PROMPTS, {"batch_size": 3}),
        "batch of two": (PROMPTS, {"batch_size": 2, "return_full_text": False}),
        "new": (PROMPTS[1], {"return_full_text": False}), "ids": (PROMPTS[1], {"return_tensors": True}),
        "ids of a batch": (PROMPTS, {"return_tensors": True, "batch_size": 3}),
        "beams": (PROMPTS[0], {"num_beams": 3, "num_return_sequences": 2}),
        "beams of a batch": (PROMPTS, {"num_beams": 2, "num_return_sequences": 2, "batch_size": 2}),
        "prefix": (PROMPTS[0], {"prefix": "well "}), "prefix, new": (PROMPTS[0], {"prefix": "well ",
                                                                                 "return_full_text": False}),
        "prefix, length": (PROMPTS[0], {"prefix": "ab", "max_length": 9, "max_new_tokens": None}),
        "length": (PROMPTS[0], {"max_length": 8, "max_new_tokens": None}),
        "cut": (PROMPTS[1], {"truncation": True, "max_length": 4, "max_new_tokens": 3}),
        "cut, of the tokenizer": (PROMPTS[1], {"tokenizer_encode_kwargs": {"truncation": True, "max_length": 3}}),
        "hole": ("abcdefghij" * 7, {"handle_long_generation": "hole", "return_tensors": True}),
        "hole too wide": ("abcdefghij" * 7, {"handle_long_generation": "hole", "max_new_tokens": 90}),
        "other hole": (PROMPTS[0], {"handle_long_generation": "cut"}), "empty": ("", {}),
        "text and ids": (PROMPTS[0], {"return_full_text": True, "return_tensors": True}),
        "text and whole": (PROMPTS[0], {"return_full_text": True, "return_text": True}),
        "logits": (PROMPTS[0], {"return_dict_in_generate": True, "output_logits": True, "max_new_tokens": 2}),
        "of a configuration": (PROMPTS[0], {"generation_config": of_name("GenerationConfig")(max_new_tokens=2)}),
    }  # fmt: skip
    found = _asked(pipe, calls, GREEDY)
    whole = pipe(PROMPTS[0], **GREEDY, return_full_text=False)[0]["generated_text"]
    found["stop"] = [
        refusal(lambda stop=stop: pipe(PROMPTS[0], **GREEDY, stop_sequence=stop)[0]["generated_text"])
        for stop in (whole[1], [whole[2], whole[3]])
    ]
    found["side"] = pipe.tokenizer.padding_side
    return found


def _set_texts(made: Any) -> Any:
    """Return texts of a pipeline with options of its own, which calls replace, and what it takes by default."""
    found = []
    for options in ({"max_new_tokens": 3, "do_sample": False}, {"do_sample": False, "max_length": 14},
                    {"do_sample": False, "max_length": 14, "prefix": "ab"},
                    {"do_sample": False, "num_beams": 2, "num_return_sequences": 2, "max_new_tokens": 2},
                    {"do_sample": False, "max_new_tokens": 4, "prefix": "ab", "return_full_text": False},
                    {"batch_size": 2, **GREEDY}):  # fmt: skip
        pipe = _writer(made, **options)
        found.append(
            [pipe(PROMPTS[0]), pipe(PROMPTS[0], max_new_tokens=1, num_return_sequences=1), pipe(PROMPTS[:2])]
        )
        found.append([pipe._batch_size, sorted(pipe._preprocess_params), sorted(pipe._postprocess_params)])
    pipe = _writer(made)
    seen: list[Any] = []
    generate = pipe.model.generate

    def noted(**given: Any) -> Any:
        config = given.get("generation_config")
        values = {name: given.get(name, getattr(config, name, None)) for name in (
            "do_sample", "temperature", "max_new_tokens", "pad_token_id")}  # fmt: skip
        seen.append(values)
        return generate(**{**given, "max_new_tokens": 1})

    pipe.model.generate = noted
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        pipe("a")
        pipe("a", max_new_tokens=2)
        pipe("a", do_sample=False)
    return [found, seen]


def _talks(made: Any) -> Any:
    """Return continued chats: a new message, the last one continued, several, of a generator, in batches, as ids."""
    pipe = _writer(made)
    calls: dict[str, tuple[Any, Mapping[str, Any]]] = {
        "one": (CHAT, {}), "begun": (BEGUN, {}), "begun, another": (BEGUN, {"continue_final_message": False}),
        "continued": (CHAT, {"continue_final_message": True}), "two": ([CHAT, BEGUN], {}),
        "batch": ([CHAT, [*CHAT, *CHAT]], {"batch_size": 2}), "new": (CHAT, {"return_full_text": False}),
        "ids": (BEGUN, {"return_tensors": True}), "new of begun": (BEGUN, {"return_full_text": False}),
        "several": (CHAT, {"num_beams": 2, "num_return_sequences": 2}), "specials": (CHAT, {
            "skip_special_tokens": False, "add_special_tokens": True}),
        "tuple": (tuple(CHAT), {}),
    }  # fmt: skip
    found = _asked(pipe, calls, GREEDY)

    def talks() -> Iterator[Any]:
        yield CHAT
        yield BEGUN

    found["generator"] = written_text(list(pipe(talks(), **GREEDY)))
    found["messages"] = refusal(lambda: written_text(list(pipe((one for one in CHAT), **GREEDY))))
    return found


def _collated(made: Any) -> Any:
    """Return batches of rows of each kind of tensor, padded on each side, and what is refused."""
    rows = [{
        "input_ids": torch.arange(3, 3 + size)[None], "attention_mask": torch.ones(1, size, dtype=torch.long),
        "token_type_ids": torch.ones(1, size, dtype=torch.long), "special_tokens_mask": torch.zeros(1, size),
        "p_mask": torch.zeros(1, size, dtype=torch.long), "input_values": torch.ones(1, size),
        "input_features": numbers(1, 2, size), "pixel_values": numbers(1, 1, 2, 2), "other": torch.ones(1, size, 2),
        "number": torch.tensor([size]), "text": str(size),
    } for size in (2, 4, 3)]  # fmt: skip
    found = []
    table: Sequence[tuple[Any, Any]] = (
        (SimpleNamespace(pad_token_id=9, padding_side="left"), None),
        (SimpleNamespace(pad_token_id=9, padding_side="right"), SimpleNamespace(padding_value=-1.0)),
        (None, SimpleNamespace(padding_value=-1.0, padding_side="left")),
        (SimpleNamespace(pad_token_id=9, padding_side="left"), SimpleNamespace(padding_value=2, padding_side="left")),
        (SimpleNamespace(pad_token_id=9, padding_side="right"), SimpleNamespace(padding_value=2, padding_side="left")),
        (SimpleNamespace(pad_token_id=None, padding_side="right"), None), (None, None),
    )  # fmt: skip
    for tokenizer, extractor in table:

        def collate(tokenizer: Any = tokenizer, extractor: Any = extractor) -> Any:
            kept = set(rows[0]) - (set() if extractor is not None else {"input_values", "pixel_values"})
            given = [
                {name: one for name, one in row.items() if name in kept - {"input_features"}} for row in rows
            ]
            return dict(sorted(made(tokenizer, extractor)(given).items()))

        found.append(refusal(collate))
    collate = made(*table[1])
    found.append(refusal(lambda: collate([{"input_features": numbers(1, 2, 3, 1)}] * 2)))
    found.append(refusal(lambda: collate([{"input_ids": rows[0]["input_ids"]}, {"other": 1}])))
    return found


def _iterated(made: Any) -> Any:
    """Return rows that batches are taken apart into: tensors, dictionaries, outputs, states of layers, single rows."""

    found: list[Any] = []
    for batch in (torch.arange(4).reshape(2, 2), {"ids": torch.arange(4).reshape(2, 2), "text": ["a", "b"]},
                  {"ids": torch.arange(2)[:, None], "hidden_states": (torch.zeros(2, 1), torch.ones(2, 1)),
                   "none": None}):  # fmt: skip
        pages = [batch, batch]
        shifted = made(pages, lambda one, more: one, {"more": 1}, loader_batch_size=2)
        found.append([written_text(_listed(one)) for one in shifted])
    found.append(list(made([1, 2, 3], lambda one, more: one * more, {"more": 3})))
    found.append([len(made([1, 2], lambda one: one, {}))])
    return found


def _listed(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: _listed(one) for name, one in value.items()}
    return [_listed(one) for one in value] if isinstance(value, list | tuple) else value


def _packed(made: Any) -> Any:
    """Return parts that are put together by what says of the last, from batches and from single items."""
    parts = [{"n": n, "is_last": last} for n, last in enumerate((False, True, True, False, False, True))]
    found = [list(made([dict(one) for one in parts], lambda one: one, {}))]
    batches = [
        {"n": torch.tensor([0, 1]), "is_last": [False, True]}, {"n": torch.tensor([2, 3]), "is_last": [False, False]},
        {"n": torch.tensor([4]), "is_last": [True]},
    ]  # fmt: skip
    got = list(made(batches, lambda one: one, {}, loader_batch_size=2))
    return [*found, [[_listed(one) for one in row] for row in got]]


def _chunked(made: Any) -> Any:
    return list(
        made([2, 0, 3], lambda size, more: (10 * size + part + more for part in range(size)), {"more": 100})
    )


def _placed(made: Any) -> Any:
    """Return what a pipeline of a task has: its class, model, tokenizer, precision, device and options."""
    found = []
    model = encoder("SequenceClassification", num_labels=2)
    model.config.id2label = {0: "no", 1: "yes"}
    for given in ({"task": "text-classification"}, {"task": "sentiment-analysis", "top_k": None},
                  {"task": "feature-extraction"}, {"task": "no-such"},
                  {"task": "text-classification", "device": "cpu", "batch_size": 4}):  # fmt: skip

        def name(given: Any = given) -> Any:
            pipe = made(**given, model=model, tokenizer=words())
            return [type(pipe).__name__, pipe.task, str(pipe.device), str(pipe.dtype), pipe._batch_size,
                    pipe.model is model, sorted(map(str, pipe._postprocess_params))]  # fmt: skip

        found.append(refusal(name))
    folder = new_folder()
    pipe = made("text-classification", model=model, tokenizer=words(), device=-1)
    pipe.save_pretrained(folder)
    loaded = made("text-classification", model=folder, device=-1)
    half = made("text-classification", model=folder, device=-1, dtype=torch.float16)
    found.append(
        [pipe("hello world"), loaded("hello world"), str(loaded.dtype), str(half.dtype), half.model.training]
    )
    found.append(sorted(json.loads((Path(folder) / "config.json").read_text())["id2label"]))
    found.append(
        [type(made(model=folder, task="ner", device=-1)).__name__, loaded.predict("a"), loaded.transform("b")]
    )
    return found


def _seq2seq(made: Any) -> Any:
    """Return texts that an encoder and a decoder write: one, lists, batches, ids, prefixes, several, stops."""
    model = drawn(
        "BartForConditionalGeneration", d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, vocab_size=len(tokens()), pad_token_id=0,
        bos_token_id=2, eos_token_id=3, decoder_start_token_id=2, forced_eos_token_id=None, max_position_embeddings=64,
    )  # fmt: skip
    pipe = made(model=model, tokenizer=words(), **ASKED)
    calls: dict[str, tuple[Any, Mapping[str, Any]]] = {
        "one": ("hello world", {}), "list": (["hello world", "the cat sat"], {}),
        "batch": (["hello", "the cat sat on the mat"], {"batch_size": 2}), "ids": ("hello", {"return_tensors": True}),
        "several": ("hello", {"num_beams": 2, "num_return_sequences": 2}),
        "several of a list": (["hello", "a cat"], {"num_beams": 2, "num_return_sequences": 2}),
        "cut": ("my name is sarah " * 20, {"truncation": True}), "stop": ("hello", {"stop_sequence": "cat"}),
        "greedy": ("hello", {"num_beams": 1, "max_new_tokens": 3}), "cleaned": ("hello", {
            "clean_up_tokenization_spaces": True}), "lengths": ("hello", {"min_length": 4, "max_length": 9}),
    }  # fmt: skip
    found = [_asked(pipe, calls, {"do_sample": False, "max_new_tokens": 4})]
    pipe.prefix = "the "
    return [*found, pipe("hello", max_new_tokens=4, do_sample=False)]


CALLS: Sequence[Call] = (
    Call("calls", "transformers:TextGenerationPipeline", "texts of prompts", _texts),
    Call("calls", "transformers:TextGenerationPipeline", "options of the pipeline", _set_texts),
    Call("calls", "transformers:TextGenerationPipeline", "continued chats", _talks),
    Call("calls", "transformers.pipelines.base:pad_collate_fn", "batches of rows", _collated),
    Call("calls", "transformers.pipelines.pt_utils:PipelineIterator", "rows of batches", _iterated),
    Call("calls", "transformers.pipelines.pt_utils:PipelinePackIterator", "parts together", _packed),
    Call("calls", "transformers.pipelines.pt_utils:PipelineChunkIterator", "parts of each", _chunked),
    Call("calls", "transformers:pipeline", "tasks and files", _placed),
    Call("calls", "transformers:Text2TextGenerationPipeline", "texts of texts", _seq2seq),
    Call("calls", "transformers:SummarizationPipeline", "summaries", _seq2seq),
    Call("calls", "transformers:TranslationPipeline", "translations", _seq2seq),
)  # fmt: skip
PIPE_WRITTEN_ROWS = rows_of(CALLS)
