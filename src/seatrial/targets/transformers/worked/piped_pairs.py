"""Worked examples of text generation in pipelines for pairs of options: a tokenizer, `generate` and decoded ids."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch

from seatrial.relations.cases.pairwise import names_of, pairwise
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.small_models import model_class as of_name
from seatrial.targets.transformers.worked.pipes import (
    ASKED,
    END,
    PAD,
    START,
    TURN,
    decoder,
    letters,
    written_text,
)
from seatrial.targets.transformers.worked.plain_decoding import refused

TEXTS = ("hello", "the cat sat", "a")
LONG = "abcdefghij" * 7
CHAT = [{"role": "user", "content": "hi"}]
SAID = [{"role": "system", "content": "be kind"}, *CHAT, {"role": "assistant", "content": "yes"}, *CHAT]
BEGUN = [*CHAT, {"role": "assistant", "content": "wel"}]
LONGEST, NUM_NEW = 60, 5
"""The largest length of the tokenizer, and how many ids are asked for."""
Factor = Mapping[str, Any]
FACTORS: Mapping[str, Factor] = {
    "given": {"a text": TEXTS[1], "texts": list(TEXTS), "a generator": "generator", "a chat": CHAT,
              "a begun chat": BEGUN,
              "chats": [CHAT, SAID, BEGUN], "a long text": LONG, "a list of one": [TEXTS[0]]},
    "batch": {"by default": None, "batches of two": 2, "a batch of three": 3},
    "answers": {"greedy": {}, "two beams": {"num_beams": 2}, "two answers": {"num_beams": 2, "num_return_sequences": 2},
                "the surest": {"do_sample": True, "top_k": 1}, "penalized": {"repetition_penalty": 1.8},
                "three answers": {"num_beams": 3, "num_return_sequences": 3, "length_penalty": 0.5}},
    "form": {"as it is": {}, "whole": {"return_full_text": True}, "new text": {"return_full_text": False},
             "ids": {"return_tensors": True}, "text": {"return_text": True}},
    "limit": {"new ids": "max_new_tokens", "a length": "max_length", "an object": "object"},
    "where": {"in the call": "call", "at the start": "start", "both": "both"},
    "prefix": {"no prefix": {}, "a prefix": {"prefix": "ab"}},
    "stop": {"no stop": None, "a letter": 1, "letters": 2, "several": [2, 1]},
    "long": {"nothing": {}, "a hole": {"handle_long_generation": "hole"}},
    "cut": {"whole prompts": {}, "cut prompts": {"tokenizer_encode_kwargs": {"truncation": True, "max_length": 4}}},
    "final": {"no word": {}, "continued": {"continue_final_message": True},
              "answered": {"continue_final_message": False}},
    "specials": {"skipped": {}, "kept": {"skip_special_tokens": False}},
    "end": {"its end": None, "a letter ends": "letter"},
}  # fmt: skip


def _since(case: Mapping[str, Any]) -> str:
    """Return the first release that takes the options of a case, and strings that stop for more than their ids."""
    if case["stop"]:
        return "5.24"
    return "5.24" if case["limit"] == "object" and case["where"] == "start" else "4.57"


def _talks(given: Any) -> bool:
    first = given[0] if isinstance(given, list) else given
    return isinstance(first, dict | list)


def _allowed(row: Mapping[str, int]) -> bool:
    chosen = {name: list(FACTORS[name].values())[index] for name, index in row.items()}
    chats = _talks(chosen["given"])
    length = chosen["limit"] == "max_length"
    return not (
        (chats and (chosen["prefix"] or chosen["long"] or chosen["cut"] or length))
        or (not chats and chosen["final"])
        or (chosen["given"] == LONG and not (chosen["long"] or chosen["cut"]))
        or (chosen["long"] and (chosen["prefix"] or chosen["cut"] or length))
        or (chosen["limit"] == "object" and chosen["where"] == "both")
        or ("return_tensors" in chosen["form"] and chosen["specials"])
        or (chosen["stop"] and chosen["end"])
        # A length is for the tokenizer too, which does not cut by it.
        or (length and (chosen["cut"] or chosen["batch"]))
    )


def _cases() -> Iterator[tuple[str, dict[str, Any]]]:
    names = {name: list(values) for name, values in FACTORS.items()}
    given: dict[str, dict[str, int]] = {}
    for row in pairwise({name: len(values) for name, values in FACTORS.items()}, lambda row: True):
        for order in (list(row), list(row)[::-1]):
            found = dict(row)
            for name in order:
                if _allowed(found):
                    break
                if name != "given":
                    found[name] = 0
            if _allowed(found):
                given[names_of(found, names)] = found
    for what, row in given.items():
        yield what, {name: list(FACTORS[name].values())[index] for name, index in row.items()}


@cache
def _model() -> Any:
    return decoder()


def _prompt(tokenizer: Any, one: Any, case: Mapping[str, Any]) -> tuple[list[int], bool]:
    """Return the ids of a text or a chat, and whether the last message of the chat is continued."""
    if isinstance(one, str):
        ids = tokenizer(case["prefix"].get("prefix", "") + one)["input_ids"]
        ids = ids[:4] if case["cut"] else ids
        kept = LONGEST - NUM_NEW
        return (ids[-kept:] if case["long"] and len(ids) > kept else ids), False
    going = case["final"].get("continue_final_message", one[-1]["role"] == "assistant")
    text = "".join(f"{START}{turn['role']}\n{turn['content']}{TURN}" for turn in one)
    text = text.removesuffix(TURN) if going else f"{text}{START}assistant\n"
    return tokenizer(text)["input_ids"], going


def _stops(case: Mapping[str, Any], written: str) -> list[str]:
    """Return strings of the first answer: its second letter, or its second and third."""
    kinds = case["stop"] if isinstance(case["stop"], list) else [case["stop"]]
    return [written[1 : 1 + size] for size in kinds]


def _due(case: Mapping[str, Any], items: Sequence[Any], options: Mapping[str, Any], stops: Sequence[str],
         ends: Any) -> list[Any]:  # fmt: skip
    """Return the answers by a tokenizer, `generate` on each prompt alone, and decoded ids."""
    tokenizer, model, found = letters(padding_side="left"), copy.copy(_model()), list[Any]()
    form, skip = case["form"], case["specials"].get("skip_special_tokens", True)
    specials = {tokenizer.convert_tokens_to_ids(one) for one in (PAD, END, START, TURN)}
    for one in items:
        ids, going = _prompt(tokenizer, one, case)
        limit = {"max_new_tokens": NUM_NEW}
        if case["limit"] == "max_length":
            limit = {"max_new_tokens": 16 + len(case["prefix"].get("prefix", "")) - len(ids)}
        more: dict[str, Any] = {"eos_token_id": ends, "pad_token_id": 0}
        if stops:
            more |= {"stop_strings": stops, "tokenizer": tokenizer}
        rows = model.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            **{"do_sample": False, **options, **limit, **more},
        ).tolist()  # fmt: skip
        answers: list[Any] = []
        for row in rows:
            if "return_tensors" in form:
                answers.append({"generated_token_ids": row})
                continue
            new = [token for token in row[len(ids) :] if not (skip and token in specials)]
            text = tokenizer.backend_tokenizer.decode(new, skip_special_tokens=False)
            if form.get("return_full_text") is False:
                answers.append({"generated_text": text})
            elif isinstance(one, str):
                answers.append({"generated_text": one + text})
            elif going:
                last = {**one[-1], "content": one[-1]["content"] + text}
                answers.append({"generated_text": [*one[:-1], last]})
            else:
                answers.append({"generated_text": [*one, {"role": "assistant", "content": text}]})
        found.append(answers)
    return found


def _ids_of(row: Sequence[int]) -> list[int]:
    """Return a row without the padding of its batch, on either side; beams pad with the end where padding is 0."""
    ids = [token for token in row if token != 0]
    while ids and ids[-1] == 1:
        ids.pop()
    while len(ids) > 1 and ids[-1] == ids[-2]:
        ids.pop()
    return ids


def _unpadded(value: Any, strip: bool) -> Any:
    """Return an answer without the ids or the marks of padding."""
    if isinstance(value, list):
        return [_unpadded(one, strip) for one in value]
    if isinstance(value, Mapping):
        return {
            name: _ids_of(one) if name == "generated_token_ids"
            else _text_of(one, strip) if name == "generated_text" else one
            for name, one in value.items()
        }  # fmt: skip
    return value


def _text_of(value: Any, strip: bool) -> Any:
    if isinstance(value, str):
        return value.replace(PAD, "") if strip else value
    return [{**one, "content": one["content"].replace(PAD, "")} if strip else one for one in value]


def _faults(case: Mapping[str, Any], made: Any) -> list[str]:
    """Return where a pipeline does not give the answers by hand."""
    given = case["given"]
    several = given == "generator" or (isinstance(given, list) and not isinstance(given[0], dict))
    items = list(TEXTS) if given == "generator" else list(given) if several else [given]
    tokenizer, model = letters(padding_side="left"), copy.copy(_model())
    model.generation_config = copy.deepcopy(model.generation_config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = _due(
            {**case, "form": {"return_full_text": False}, "specials": {}}, items, case["answers"], [], None
        )
        written = plain[0][0]["generated_text"]
        stops = _stops(case, written) if case["stop"] else []
        ends: Any = tokenizer.convert_tokens_to_ids(END)
        options: dict[str, Any] = {"do_sample": False, **case["answers"]}
        if case["end"]:
            ends = tokenizer(written[2:3])["input_ids"][0]
            options["eos_token_id"] = ends
        if case["limit"] == "object":
            own = {"eos_token_id": ends, **options, "max_new_tokens": NUM_NEW, "pad_token_id": 0}
            options = {"generation_config": of_name("GenerationConfig")(**own)}
        else:
            options |= (
                {"max_new_tokens": NUM_NEW} if case["limit"] == "max_new_tokens" else {"max_length": 16}
            )
        options |= {**case["form"], **case["prefix"], **case["long"], **case["cut"], **case["final"],
                    **case["specials"]}  # fmt: skip
        if case["batch"]:
            options["batch_size"] = case["batch"]
        if stops:
            options["stop_sequence"] = stops if len(stops) > 1 else stops[0]
        at_start = options if case["where"] == "start" else {}
        if case["where"] == "both":
            at_start = {
                "max_new_tokens": 2,
                "num_beams": 4,
                "repetition_penalty": 5.0,
                "return_full_text": False,
            }
            at_start = {name: one for name, one in at_start.items() if name in options}
        try:
            pipe = made(model=model, tokenizer=tokenizer, **ASKED, **at_start)
            asked = (one for one in items) if given == "generator" else given
            more = {} if case["where"] == "start" else options
            found = pipe(asked, **more)
            found = written_text(list(found) if given == "generator" else found)
            again = (
                written_text(list(pipe(list(items), **more)))
                if several
                else written_text(pipe(given, **more))
            )
        except (ValueError, NotImplementedError) as error:
            raise refused(error) from error
        due = _due(case, items, {**case["answers"]}, stops, ends)
    strip = not case["specials"].get("skip_special_tokens", True)
    due = [_unpadded(one, strip) for one in due]
    right = due if several else due[0]
    return [
        f"{what}: {str(one)[:150]}, {str(right)[:150]} is due"
        for what, one in (("the answer", _unpadded(found, strip)), ("asked again", _unpadded(again, strip)))
        if one != right
    ]


PIPED_ROWS: Sequence[Row] = [
    Row(
        "combinations", "transformers.pipelines.text_generation:TextGenerationPipeline", f"pairs: {name}",
        partial(_faults, case), [], since=_since(case),
    )
    for name, case in _cases()
]  # fmt: skip
