"""Processors of scores and criteria of a stop of Transformers' `generate`, by the names of `contracts.utilities`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.stops import PIECES, WORDS
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import Gone, find_name
from seatrial.targets.common.tiny import tiny_tokenizer


def _class(name: str) -> Any:
    try:
        return find_name("transformers", [f"transformers.generation:{name}", f"transformers:{name}"])
    except Gone as error:
        raise NotServed(str(error)) from error


def processed(name: str, options: Mapping[str, Any], ids: Tensor, scores: Tensor) -> Tensor:
    """Return what a processor makes of scores."""
    given = dict(options)
    if "encoder_input_ids" in given:
        given["encoder_input_ids"] = torch.tensor([given["encoder_input_ids"]] * len(ids))
        if name == "EncoderNoRepeatNGramLogitsProcessor" and len(ids) > 1:
            rows = [processed(name, options, ids[row, None], scores[row, None]) for row in range(len(ids))]
            return torch.cat(rows)
    try:
        made = _class(name)(**given)
    except TypeError as error:
        raise NotServed(str(error)) from error
    found: Tensor = made(ids, scores)
    return found


def guided(scores: Tensor, scale: float) -> Tensor:
    """Return scores with guidance; its processor is given no ids that it reads."""
    ids = torch.zeros(len(scores) // 2, 1, dtype=torch.long)
    found: Tensor = _class("ClassifierFreeGuidanceLogitsProcessor")(guidance_scale=scale)(ids, scores)
    return found


def allowed(
    ids: Tensor, scores: Tensor, beams: int, tokens: Mapping[tuple[int, int], Sequence[int]]
) -> Tensor:
    """Return scores of the tokens that a function allows."""

    def listed(prompt: int, own: Tensor) -> list[int]:
        return list(tokens[prompt, int(own[-1])])

    found: Tensor = _class("PrefixConstrainedLogitsProcessor")(listed, beams)(ids, scores)
    return found


@cache
def _pieces() -> Any:
    """Return a tokenizer whose tokens are the pieces."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    # Releases before 5 find the texts of tokens behind the letters a to f.
    parts = (*PIECES, *(letter for letter in "cdef" if letter not in PIECES))
    core = Tokenizer(models.BPE(vocab={piece: place for place, piece in enumerate(parts)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    made: Any = transformers.PreTrainedTokenizerFast
    return made(tokenizer_object=core)


def stopped(rows: Sequence[Sequence[str]], strings: Sequence[str]) -> list[bool]:
    """Return which rows strings stop; each row is a batch, as rows have unequal numbers of pieces."""
    criteria = _class("StopStringCriteria")(tokenizer=_pieces(), stop_strings=list(strings))
    return [bool(criteria(torch.tensor([[PIECES.index(piece) for piece in row]]), None)[0]) for row in rows]


def stopped_by_bytes(rows: Sequence[bytes], strings: Sequence[str]) -> list[bool]:
    """Return which rows strings stop; each token is a byte."""
    tokenizer = tiny_tokenizer()
    criteria = _class("StopStringCriteria")(tokenizer=tokenizer, stop_strings=list(strings))
    letters = {byte: tokenizer.encode(chr(byte), add_special_tokens=False) for byte in range(128)}
    for word in WORDS:
        ids = tokenizer.encode(word, add_special_tokens=False)
        letters.update({byte: [token] for byte, token in zip(word.encode(), ids, strict=True)})
    ids_of = [[letters[byte][0] for byte in row] for row in rows]
    return [bool(criteria(torch.tensor([ids]), None)[0]) for ids in ids_of]


def ended(name: str, options: Mapping[str, Any], ids: Tensor) -> list[bool]:
    """Return which rows a criterion stops."""
    found: list[bool] = _class(name)(**options)(ids, None).tolist()
    return found


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "processed scores": processed,
    "allowed scores": allowed,
    "guided scores": guided,
    "stopped by strings": stopped,
    "stopped by bytes": stopped_by_bytes,
    "stopped": ended,
}
