"""Worked examples of pipelines that later releases have not, for pairs of options: spans and texts by hand."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.answered_pairs import (
    GIVEN,
    SHARED,
    TEXTS,
    Table,
    answers_of,
    compared,
    items_of,
    rows_of_pairs,
    run_alone,
)
from seatrial.targets.transformers.worked.pipes import SIZES, drawn, encoder, tokens, words

QUESTION, CONTEXT = "where is sarah", "my name is sarah and she lives in london on the mat"
SPANS: Table = {
    "given": {"one": {"question": QUESTION, "context": CONTEXT},
              "two": [{"question": QUESTION, "context": CONTEXT}, {"question": "hello", "context": TEXTS[2]}]},
    **SHARED,
    "top": {"the best": {}, "three": {"top_k": 3}, "two": {"top_k": 2}},
    "impossible": {"possible": {}, "impossible": {"handle_impossible_answer": True}},
    "longest": {"fifteen": {}, "two ids": {"max_answer_len": 2}},
    "words": {"whole words": {}, "parts": {"align_to_words": False}},
}  # fmt: skip


def _spans_of(model: Any, tokenizer: Any, one: Mapping[str, str], case: Mapping[str, Any]) -> Any:
    given = tokenizer(one["question"], one["context"], return_offsets_mapping=True)
    sides, offsets = given.sequence_ids(0), given.pop("offset_mapping")
    whole, top = not case["words"], case["top"].get("top_k", 1)
    found = run_alone(model, given)
    known = torch.tensor([side == 1 or place == 0 for place, side in enumerate(sides)])
    starts, ends = (
        row[0].double().masked_fill(~known, -torch.inf).softmax(-1)
        for row in (found.start_logits, found.end_logits)
    )
    none = float(starts[0] * ends[0])
    pairs = [
        (float(starts[first] * ends[last]), first, last)
        for first, last in itertools.combinations_with_replacement(range(len(sides)), 2)
        if sides[first] == 1 and sides[last] == 1 and last - first < case["longest"].get("max_answer_len", 15)
    ]
    answers: dict[str, dict[str, Any]] = {}
    for score, first, last in sorted(pairs, reverse=True)[: 2 * top + 10 if whole else top]:
        begin, end = offsets[first][0], offsets[last][1]
        if whole:
            begin = one["context"].rfind(" ", 0, begin + 1) + 1
            after = one["context"].find(" ", end)
            end = len(one["context"]) if after < 0 else after
        text = one["context"][begin:end]
        answers.setdefault(text, {"score": 0.0, "start": begin, "end": end, "answer": text})
        answers[text]["score"] += score
    listed = list(answers.values())
    if case["impossible"]:
        listed.append({"score": none, "start": 0, "end": 0, "answer": ""})
    listed = sorted(listed, key=lambda one: -float(one["score"]))[:top]
    return listed[0] if len(listed) == 1 else listed


def _spans(case: Mapping[str, Any], made: Any) -> list[str]:
    """Return where answers are not the likeliest spans of each context alone."""
    model, tokenizer = encoder("QuestionAnswering"), words()
    items, several = items_of(case["given"])
    due = [_spans_of(model, tokenizer, one, case) for one in items]
    options = {**case["top"], **case["impossible"], **case["longest"], **case["words"]}
    return compared(answers_of(made, model, tokenizer, case, options), due if several else due[0])


WRITTEN: Table = {
    "given": GIVEN,
    **SHARED,
    "answers": {"greedy": {"num_beams": 1}, "two beams": {"num_beams": 2},
                "two answers": {"num_beams": 2, "num_return_sequences": 2},
                "penalized": {"num_beams": 1, "repetition_penalty": 1.6}},
    "form": {"text": {}, "ids": {"return_tensors": True}},
    "limit": {"five": {"max_new_tokens": 5}, "two": {"max_new_tokens": 2}, "no end before": {"max_new_tokens": 6,
                                                                                           "min_new_tokens": 4}},
}  # fmt: skip


def _written(case: Mapping[str, Any], made: Any) -> list[str]:
    """Return where texts are not those that `generate` gives for each text alone."""
    model, tokenizer = drawn(
        "BartForConditionalGeneration", d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=SIZES[
            "max_position_embeddings"], vocab_size=len(tokens()), pad_token_id=0, bos_token_id=2, eos_token_id=3,
        decoder_start_token_id=2, forced_eos_token_id=None, forced_bos_token_id=None,
    ), words()  # fmt: skip
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    items, several = items_of(case["given"])
    options = {"do_sample": False, **case["answers"], **case["limit"]}
    due: list[Any] = []
    for one in items:
        ids = torch.tensor([tokenizer(one)["input_ids"]])
        rows = model.generate(ids, attention_mask=torch.ones_like(ids), **options).tolist()
        due.append([
            {"generated_token_ids": [token for token in row if token != 0]} if case["form"]
            else {"generated_text": tokenizer.decode(row, skip_special_tokens=True)}
            for row in rows
        ])  # fmt: skip
    if several and case["given"] != "generator" and len(due[0]) == 1:
        due = [one[0] for one in due]
    found = answers_of(made, model, tokenizer, case, {**options, **case["form"]})
    first, again = (_plain(one) for one in found)
    return compared((first, again), due if several else due[0])


def _plain(value: Any) -> Any:
    """Return an answer whose ids are lists without padding."""
    if isinstance(value, Tensor):
        return [one for one in value.tolist() if one != 0]
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value


SPANNED_ROWS: Sequence[Row] = [
    *rows_of_pairs("question_answering:QuestionAnsweringPipeline", "spans", _spans, SPANS),
    *rows_of_pairs("text2text_generation:Text2TextGenerationPipeline", "texts", _written, WRITTEN),
]
