"""Worked examples of what stops Transformers' `generate`, and of streamers of its texts."""

from __future__ import annotations

import asyncio
import contextlib
import io
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from seatrial.relations.contracts.worked import Refused
from seatrial.targets.common.target import find_name
from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.scores import ids_of

PLACE = "transformers.generation.stopping_criteria"
STREAMS = "transformers.generation.streamers"


def _class(name: str) -> Any:
    return find_name("transformers", [f"{PLACE}:{name}"])


def _lengths(made: Any) -> list[list[bool]]:
    criteria = made(max_length=4, max_position_embeddings=2)
    return [criteria(torch.zeros(2, length, dtype=torch.long), None).tolist() for length in (1, 3, 4, 5)]


def _times(made: Any) -> list[list[bool]]:
    now, ids = time.time(), ids_of([1], [2])
    return [
        made(max_time=100.0)(ids, None).tolist(),
        made(max_time=100.0, initial_timestamp=now - 90)(ids, None).tolist(),
        made(max_time=100.0, initial_timestamp=now - 110)(ids, None).tolist(),
        made(max_time=0.5, initial_timestamp=now + 50)(ids, None).tolist(),
    ]


def _ends(made: Any) -> list[list[bool]]:
    ids = ids_of([5, 1, 3], [1, 5, 1], [5, 5, 2], [1, 1, 5])
    return [made(end)(ids, None).tolist() for end in (1, [1, 2], [3], torch.tensor([2, 5]))]


def _several_ends(made: Any) -> list[list[bool]]:
    """Return which rows end within their last one, two and three ids."""
    ids = ids_of([5, 1, 3], [1, 5, 5], [5, 5, 1], [5, 5, 5])
    return [made([1, 2])(ids, None, new_token_length=number).tolist() for number in (1, 2, 3)]


def _confidence(made: Any) -> list[bool]:
    """Return whether an assistant stops after an id of probability 0.25, whose step is the last."""
    scores = (torch.tensor([[0.75, 0.25]]).log(), torch.tensor([[0.25, 0.75]]).log())
    bounds = (0.2, 0.3, 0.7, 0.8)
    return [bool(made(bound)(ids_of([1, last]), scores)) for last in (0, 1) for bound in bounds]


def _together(made: Any) -> list[Any]:
    """Return which rows a list of criteria stops, what criteria are given, and the length of the list."""
    seen = []

    class Stops(_class("StoppingCriteria")):  # type: ignore[misc]
        def __init__(self, rows: Sequence[bool]) -> None:
            self.rows = rows

        def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
            seen.append([input_ids.shape[1], scores, kwargs])
            return torch.tensor(self.rows)

    ids = ids_of([1, 2], [3, 4], [5, 6])
    limit = _class("MaxLengthCriteria")
    both = made([Stops([True, False, False]), Stops([False, False, True])])
    return [
        both(ids, "scores", extra=1).tolist(),
        seen,
        made([])(ids, None).tolist(),
        made([limit(9), *both])(ids, None).tolist(),
        made([*both, limit(2)])(ids, None).tolist(),
        [made([]).max_length, made([*both, limit(9), limit(4)]).max_length],
    ]


def _validated(function: Any) -> list[Any]:
    """Return the length of criteria that are given one, whether those given change, and warnings of another length."""
    made, limit = _class("StoppingCriteriaList"), _class("MaxLengthCriteria")
    empty, same, other = made([]), made([limit(5)]), made([limit(4)])
    found = []
    for criteria in (empty, same, other):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found.append([function(criteria, 5).max_length, len(criteria), len(said)])
    return found


class Words:
    """A tokenizer without a core whose tokens are words."""

    def __init__(self, *words: str) -> None:
        self.words = ["a", "b", "c", "d", "e", "f", *words]

    def get_vocab(self) -> dict[str, int]:
        return {word: place for place, word in enumerate(self.words)}

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        return {"input_ids": [self.words.index(letter) for letter in text]}

    def _convert_id_to_token(self, place: int) -> str:
        return self.words[place]

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        return "".join(tokens)


def _stopped(made: Any, words: Words, stops: Any, *rows: Sequence[str]) -> list[bool]:
    criteria = made(tokenizer=words, stop_strings=stops)
    return [bool(criteria(ids_of([words.words.index(one) for one in row]), None)[0]) for row in rows]


def _strings(made: Any) -> list[list[bool]]:
    """Return which rows stop: a string in place of a list, a vocabulary in another order, an older string again."""
    one, other = Words("st", "op", "stop"), Words("stop", "op", "st")
    rows = (["st", "op"], ["op", "st"], ["stop"], ["stop", "a"], ["a", "stop"], ["op"], ["st", "a", "op"])
    return [
        _stopped(made, one, "stop", *rows),
        _stopped(made, other, ["stop"], *rows),
        _stopped(made, one, ["opst"], *rows),
        _stopped(made, one, ["stop", "opst"], *rows),
        _stopped(made, one, "stop", *rows),
    ]


def _letters(made: Any) -> list[list[bool]]:
    """Return which rows stop after strings of one letter, of a letter twice, and of parts that overlap."""
    words = Words("aa", "aab", "ba", "abab")
    return [
        _stopped(made, words, "a", ["b"], ["b", "a"], ["ba"], ["aab"], ["a", "b"]),
        _stopped(
            made,
            words,
            "aab",
            ["a", "a", "b"],
            ["aa", "b"],
            ["a", "aab"],
            ["a", "b"],
            ["aab", "a"],
            ["aa", "a"],
        ),
        _stopped(
            made, words, "aaa", ["aa", "a"], ["a", "aa"], ["aa"], ["a", "a"], ["aa", "aab"], ["b", "aa", "aa"]
        ),
        _stopped(
            made,
            words,
            "abab",
            ["abab"],
            ["a", "ba", "b"],
            ["ba", "ba", "b"],
            ["a", "b", "b"],
            ["ab"[0], "ba"],
        ),
    ]


def _batches(made: Any) -> list[bool]:
    """Return which rows of a batch stop, one with an id beyond the vocabulary."""
    words = Words("st", "op")
    criteria = made(tokenizer=words, stop_strings=["stop", "b"])
    rows = (["a", "st", "op"], ["st", "a", "op"], ["op", "st", "st"], ["st", "op", "b"], ["st", "op", "a"])
    ids = ids_of(*([words.words.index(one) for one in row] for row in rows), [6, 7, 90])
    found: list[bool] = criteria(ids, None).tolist()
    return found


def _no_tokens(made: Any) -> None:
    made(tokenizer=Words("st"), stop_strings=["zz"])


def _pieces(streamer: Any, texts: Sequence[str]) -> Iterator[list[int]]:
    for text in texts:
        yield streamer.tokenizer.encode(text, add_special_tokens=False)


def _put(made: Any, texts: Sequence[str], **options: Any) -> list[str]:
    """Return what is given after each text is put, and after the end."""
    pieces: list[str] = []

    class Watched(made):  # type: ignore[misc]
        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            pieces.append(text + ("|" if stream_end else ""))

    streamer = Watched(tiny_tokenizer(), **options)
    for number, ids in enumerate(_pieces(streamer, texts)):
        streamer.put(torch.tensor([ids] if number == 0 else ids))
    streamer.end()
    return pieces


def _texts(made: Any) -> dict[str, list[str]]:
    plain: Mapping[str, tuple[Sequence[str], Mapping[str, Any]]] = {
        "words": (["one", " two", " th", "ree", " ", "four"], {}),
        "lines": (["one\n", "two ", "th", "ree\n", "\n", "a"], {}),
        "signs": (["a+", "b c", "+d", " e", " +"], {}),
        "signs of Chinese": (["日", "本", "a", "中"], {}),
        "a prompt that is left out": (["one", " two", " three"], {"skip_prompt": True}),
        "special tokens": (["a<eos>", " b"], {}),
        "special tokens that are left out": (["a<eos>", " b"], {"skip_special_tokens": True}),
    }
    return {name: _put(made, texts, **options) for name, (texts, options) in plain.items()}


def _twice(made: Any) -> list[str]:
    """Return the pieces of two prompts of one streamer that leaves prompts out."""
    pieces: list[str] = []

    class Watched(made):  # type: ignore[misc]
        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            pieces.append(text + ("|" if stream_end else ""))

    streamer = Watched(tiny_tokenizer(), skip_prompt=True)
    for _ in range(2):
        for ids in _pieces(streamer, ["prompt", " a+", "b"]):
            streamer.put(torch.tensor(ids))
        streamer.end()
    return pieces


def _printed(made: Any) -> str:
    streamer, said = made(tiny_tokenizer()), io.StringIO()
    with contextlib.redirect_stdout(said):
        for ids in _pieces(streamer, ["one two", " th+", "x"]):
            streamer.put(torch.tensor(ids))
        streamer.end()
    return said.getvalue()


def _two_rows(made: Any) -> None:
    made(tiny_tokenizer()).put(ids_of([5], [6]))


def _iterated(made: Any) -> list[Any]:
    """Return the pieces that are iterated, and the error of a piece that does not come in time."""
    streamer = made(tiny_tokenizer(), skip_prompt=True, timeout=0.01)
    for ids in _pieces(streamer, ["prompt", " a", "b "]):
        streamer.put(torch.tensor(ids))
    streamer.end()
    found: list[Any] = ["".join(streamer)]
    try:
        next(streamer)
    except Exception as error:  # noqa: BLE001  which one is asked
        found.append(type(error).__name__)
    return found


def _awaited(made: Any) -> list[Any]:
    async def read() -> list[Any]:
        streamer = made(tiny_tokenizer(), skip_prompt=True, timeout=0.05)
        for ids in _pieces(streamer, ["prompt", " a", "b "]):
            streamer.put(torch.tensor(ids))
        streamer.end()
        found: list[Any] = ["".join([piece async for piece in streamer])]
        try:
            await anext(streamer)
        except Exception as error:  # noqa: BLE001  which one is asked
            found.append(type(error).__name__)
        return found

    return asyncio.run(read())


def _drafts(made: Any) -> str:
    """Return what is printed of a draft that a text replaces, and of one that the end takes away."""
    streamer, said = made(tiny_tokenizer()), io.StringIO()
    draft = torch.tensor([tiny_tokenizer().encode("dr", add_special_tokens=False)])
    with contextlib.redirect_stdout(said):
        streamer.put_draft(draft)
        for ids in _pieces(streamer, ["one two "]):
            streamer.put(torch.tensor(ids))
        streamer.put_draft(draft[0])
        streamer.end()
    return said.getvalue().replace("\x1b", "^")


def _row(name: str, what: str, call: Callable[[Any], Any], right: Any, since: str = "4.57") -> Row:
    place = STREAMS if "Streamer" in name else PLACE
    return Row("inputs", f"{place}:{name}", what, call, right, since=since)


NO, YES = False, True
# Sources: the documentation of each class, StopStringCriteria's examples among them.
STOP_ROWS: Sequence[Row] = (
    _row("MaxLengthCriteria", "a limit", _lengths, [[NO, NO], [NO, NO], [YES, YES], [YES, YES]]),
    _row("MaxTimeCriteria", "a time", _times, [[NO, NO], [NO, NO], [YES, YES], [NO, NO]]),
    _row(
        "EosTokenCriteria", "ends in every form", _ends,
        [[NO, YES, NO, NO], [NO, YES, YES, NO], [YES, NO, NO, NO], [NO, NO, YES, YES]],
    ),
    _row(
        "EosTokenCriteria", "ends of several new ids", _several_ends,
        [[NO, NO, YES, NO], [YES, NO, YES, NO], [YES, YES, YES, NO]], since="5.16",
    ),
    _row("ConfidenceCriteria", "the probability of the last id", _confidence, [NO, YES, YES, YES, NO, NO, NO, YES]),
    _row(
        "StoppingCriteriaList", "criteria together", _together,
        [[YES, NO, YES], [[2, "scores", {"extra": 1}]] * 2 + [[2, None, {}]] * 4, [NO] * 3, [YES, NO, YES], [YES] * 3,
         [None, 9]],
    ),
    _row("validate_stopping_criteria", "a length that is added", _validated, [[5, 0, 0], [5, 1, 0], [4, 1, 1]]),
    _row(
        "StopStringCriteria", "strings in turn", _strings,
        [[YES, NO, YES, NO, YES, NO, NO], [YES, NO, YES, NO, YES, NO, NO], [NO, YES, NO, NO, NO, NO, NO],
         [YES, YES, YES, NO, YES, NO, NO], [YES, NO, YES, NO, YES, NO, NO]],
    ),
    _row(
        "StopStringCriteria", "letters that repeat", _letters,
        [[NO, YES, YES, YES, NO], [YES, YES, YES, NO, NO, NO], [YES, YES, NO, NO, YES, YES],
         [YES, YES, YES, NO, NO]],
    ),
    _row("StopStringCriteria", "rows of a batch", _batches, [YES, NO, NO, YES, NO, NO]),
    _row("StopStringCriteria", "a string of no tokens", _no_tokens, Refused("stop string"), "5.19"),
    _row(
        "TextStreamer", "pieces of texts", _texts,
        {
            "words": ["one", " two", " th", "ree", " ", "four", "|"],
            "lines": ["one\n", "two ", "th", "ree\n", "\n", "a", "|"],
            "signs": ["", "a+b ", "", "c+d ", "e ", "+|"],
            "signs of Chinese": ["日", "本", "a", "中", "|"],
            "a prompt that is left out": [" two", " three", "|"],
            "special tokens": ["", "a<eos> ", "b|"],
            "special tokens that are left out": ["a", " b", "|"],
        }, since="5.24",
    ),
    _row(
        "TextStreamer", "pieces of texts with signs", lambda made: _put(made, ["a+", "b c", "+d", " e", " +"]),
        ["", "a+b ", "", "c+d ", "e ", "+|"],
    ),
    _row("TextStreamer", "two texts in turn", _twice, [" ", "", "a+b|"] * 2),
    _row("TextStreamer", "a text that is printed", _printed, "one two th+x\n"),
    _row("TextStreamer", "a batch", _two_rows, Refused("batch size 1")),
    _row("TextIteratorStreamer", "pieces and a time limit", _iterated, [" ab ", "Empty"]),
    _row("AsyncTextIteratorStreamer", "pieces and a time limit", _awaited, [" ab ", "TimeoutError"]),
    _row(
        "TextDiffusionStreamer", "drafts that are replaced", _drafts,
        "^7^[33mdr^[0m^8^[Jone two ^7^[33mdr^[0m^8^[J\n",
    ),
)  # fmt: skip
