"""Tokenizers of Transformers on texts whose letters are tokens, by the names of `contracts.utilities`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from seatrial.relations.laws.utilities.encodings import BETWEEN, FIRST, PADDING
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import find_name
from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.common.trainers import new_folder

SIDES = ("padding_side", "truncation_side")
OWN = (*SIDES, "model_max_length")
"""Options of the tokenizer itself; a call takes the others."""
LIMIT = 10**30
"""Of a tokenizer without a longest text."""


@cache
def _tokenizer(*, framed: bool) -> Any:
    """Return a tokenizer whose letters are tokens; framed: with tokens before, between and after texts."""
    from tokenizers import processors

    tokenizer = tiny_tokenizer(padding_side="right")
    if framed:
        tokenizer.add_special_tokens({"cls_token": FIRST, "sep_token": BETWEEN, "pad_token": PADDING})
        ids = [(token, tokenizer.convert_tokens_to_ids(token)) for token in (FIRST, BETWEEN)]
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{FIRST} $A {BETWEEN}", pair=f"{FIRST} $A {BETWEEN} $B:1 {BETWEEN}:1", special_tokens=ids
        )
    return tokenizer


def _set(tokenizer: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Set the tokenizer's own options; return the others."""
    for name in SIDES:
        setattr(tokenizer, name, options.get(name, "right"))
    tokenizer.model_max_length = options.get("model_max_length", LIMIT)
    return {name: value for name, value in options.items() if name not in OWN}


def _shown(tokenizer: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return encodings as lists, with tokens in place of ids."""
    rows = [[_letter(one) for one in tokenizer.convert_ids_to_tokens(row)] for row in found["input_ids"]]
    return {**{name: list(value) for name, value in found.items()}, "input_ids": rows}


def _letter(token: str) -> str:
    return "\n" if token == "Ċ" else token


def encoded(texts: Sequence[tuple[str, str | None]], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch's tokens, masks and types."""
    tokenizer = _tokenizer(framed=True)
    given = _set(tokenizer, options)
    firsts, seconds = [list(column) for column in zip(*texts, strict=True)]
    pairs = (firsts,) if seconds[0] is None else (firsts, seconds)
    found = tokenizer(*pairs, return_token_type_ids=True, return_special_tokens_mask=True, **given)
    return _shown(tokenizer, found)


def padded(rows: Sequence[Mapping[str, list[Any]]], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return rows padded by `pad`."""
    tokenizer = _tokenizer(framed=True)
    given = _set(tokenizer, options)
    with_ids = [{**row, "input_ids": tokenizer.convert_tokens_to_ids(row["input_ids"])} for row in rows]
    return _shown(tokenizer, tokenizer.pad(with_ids, **given))


def chat(turns: Sequence[Sequence[tuple[str, str]]], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tokens of conversations, and which the assistant says."""
    tokenizer = _tokenizer(framed=False)
    given = _set(tokenizer, options)
    messages = [[{"role": role, "content": content} for role, content in one] for one in turns]
    one = len(messages) == 1
    found = tokenizer.apply_chat_template(
        messages[0] if one else messages,
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=not options.get("continue_final_message"),
        **given,
    )
    return _shown(tokenizer, {name: [found[name]] if one else found[name] for name in sorted(found)})


def byte_pairs(merges: Sequence[tuple[str, str]], word: str) -> list[str]:
    """Return the parts of a word by a tokenizer read from files."""
    return [str(one) for one in _of_files(tuple(merges)).tokenize(word)]


@cache
def _of_files(merges: tuple[tuple[str, str], ...]) -> Any:
    folder = Path(new_folder())
    parts = sorted({*"abcdex", *("".join(pair) for pair in merges)})
    vocabulary = {part: number for number, part in enumerate(["<|endoftext|>", *parts])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges), ""]
    (folder / "merges.txt").write_text("\n".join(lines), encoding="utf-8")
    found: Any = find_name("transformers", ["transformers:GPT2TokenizerFast", "transformers:GPT2Tokenizer"])
    return found.from_pretrained(folder)


def _served(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose unknown options are those that a release does not have."""

    def called(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except TypeError as error:
            if "unexpected keyword" in str(error):
                raise NotServed(str(error)) from error
            raise

    return called


def _schema(function: Any) -> dict[str, Any]:
    read: Any = find_name("transformers", ["transformers.utils:get_json_schema"])
    found: dict[str, Any] = read(function)["function"]
    return found


def _sorted(value: Any) -> Any:
    """Return a schema with the types of a union in order."""
    if isinstance(value, dict):
        return {
            name: sorted(one) if name == "type" and isinstance(one, list) else _sorted(one)
            for name, one in value.items()
        }
    return value


def schema_of(hint: Any) -> Any:
    """Return the schema of an argument of a type."""

    def called(value: Any) -> None:
        """Do nothing."""

    called.__annotations__ = {"value": hint}
    called.__doc__ = "Do nothing.\n\nArgs:\n    value: It."
    found = _schema(called)["parameters"]["properties"]["value"]
    return _sorted({name: one for name, one in found.items() if name != "description"})


def tool(written: str, hints: Mapping[str, Any], needed: Sequence[str]) -> dict[str, Any]:
    """Return the schema of a function."""

    def weather(city: Any, days: Any, unit: Any) -> None:
        """Do nothing."""

    weather.__doc__, weather.__annotations__ = written, dict(hints)
    weather.__defaults__ = (None,) * (len(hints) - len(needed))
    return _schema(weather)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "encoded": _served(encoded),
    "padded encodings": _served(padded),
    "chat": _served(chat),
    "byte pairs": byte_pairs,
    "schema of a type": schema_of,
    "schema of a tool": tool,
}
