"""Decoding and files of Transformers' tokenizers, by the names of `contracts.utilities`."""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from packaging.version import Version

from seatrial.relations.laws.utilities.texts import MARK, READ
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import find_name, release
from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.common.trainers import new_folder

LISTS = ("additional_special_tokens", "extra_special_tokens")
"""The names of further special tokens in the files of releases of 4 and of 5."""


@cache
def _words(*, cleans: bool) -> Any:
    """Return a tokenizer whose letters are words: of byte pairs, later releases clean no text."""
    import transformers
    from tokenizers import Tokenizer, decoders, models

    vocabulary = {token: place for place, token in enumerate([MARK, *string.printable])}
    core = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token=MARK))
    core.decoder = decoders.Fuse()
    made: Any = transformers.PreTrainedTokenizerFast
    return made(tokenizer_object=core, mask_token=MARK, clean_up_tokenization_spaces=cleans)


def decoded(rows: Sequence[Sequence[str]], own: bool, options: Mapping[str, Any]) -> list[str]:
    """Return texts; several rows are decoded together."""
    tokenizer = _words(cleans=own)
    ids = [tokenizer.convert_tokens_to_ids(list(row)) for row in rows]
    if len(ids) == 1:
        return [tokenizer.decode(ids[0], **options)]
    return list(tokenizer.batch_decode(ids, **options))


def decoded_together(rows: Sequence[Sequence[str]], own: bool, options: Mapping[str, Any]) -> list[str]:
    """Return texts of rows that `decode` gets together, which it takes since 5.0."""
    if Version(release("transformers")) < Version("5"):
        raise NotServed("decode of this release takes one row")
    tokenizer = _words(cleans=own)
    return list(tokenizer.decode([tokenizer.convert_tokens_to_ids(list(row)) for row in rows], **options))


def kept(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a tokenizer makes of a text after it was saved and loaded."""
    given = {name: value for name, value in options.items() if name not in ("special", "plain", "older")}
    first = tiny_tokenizer()
    first.add_tokens(list(options.get("plain", ())))
    special = list(options.get("special", ()))
    tokens = {"pad_token": first.pad_token, "eos_token": first.eos_token}
    tokenizer = type(first)(
        tokenizer_object=first.backend_tokenizer, **{**tokens, LISTS[0]: special, **given}
    )
    folder = new_folder()
    tokenizer.save_pretrained(folder)
    if options.get("older"):
        _write_older(Path(folder) / "tokenizer_config.json")
    loaded = type(tokenizer).from_pretrained(folder)
    ids = loaded(READ, add_special_tokens=False)["input_ids"]
    return {
        "tokens": loaded.convert_ids_to_tokens(ids),
        "text": loaded.decode(ids),
        "text without special tokens": loaded.decode(ids, skip_special_tokens=True),
        "special": sorted({*loaded.all_special_tokens} - {*tokens.values(), given.get("pad_token")}),
        **{name: getattr(loaded, name) for name in given},
    }


def _write_older(path: Path) -> None:
    """Name further special tokens as releases of 4 do, which write an empty table under the later name."""
    written = json.loads(path.read_text(encoding="utf-8"))
    named = [token for name in LISTS for token in written.get(name) or ()]
    path.write_text(json.dumps({**written, LISTS[0]: named, LISTS[1]: {}}), encoding="utf-8")


def rendered(template: str, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> str:
    """Return the text of a conversation."""
    found: str = tiny_tokenizer().apply_chat_template(
        list(messages), chat_template=template, tokenize=False, **options
    )
    return found


def streamed(text: str, prompt: str, skip: bool) -> str:
    """Return the pieces of `TextIteratorStreamer` together, one token after the other."""
    import torch

    tokenizer = tiny_tokenizer()
    made: Any = find_name("transformers", ["transformers:TextIteratorStreamer"])
    streamer = made(tokenizer, skip_prompt=skip)
    first = tokenizer.encode(prompt, add_special_tokens=False)
    streamer.put(torch.tensor([first], dtype=torch.long))
    for token in tokenizer.encode(text, add_special_tokens=False):
        streamer.put(torch.tensor([token]))
    streamer.end()
    return "".join(streamer)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "decoded": decoded,
    "decoded together": decoded_together,
    "saved tokenizer": kept,
    "rendered chat": rendered,
    "streamed text": streamed,
}
