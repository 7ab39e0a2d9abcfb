"""Worked examples of what Transformers' tokenizers clean up of decoded texts, and of options of chats."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations, product
from typing import Any

from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.processors import text_processors
from seatrial.targets.transformers.worked.tiny_vocabularies import tokenizer_of
from seatrial.targets.transformers.worked.tokenizers import TABLE, class_name

TEXT = "x = [1 , 2] . is n't ' a ' it 's we 've 'm ! ?"
CLEANED = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"), (" 's", "'s"),
    (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip
"""What is written in place of what, in this order, by the documentation of `clean_up_tokenization`."""
FORCED = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
KINDS = ("BPE", "Unigram", "WordLevel", "WordPiece")


def _cleaned(text: str) -> str:
    for old, new in CLEANED:
        text = text.replace(old, new)
    return text


def _core(kind: str) -> Any:
    """Return a tokenizer of letters that is of a kind, and decodes to what was encoded."""
    import tokenizers

    signs = ["?", *sorted({*TEXT} - {"?"})]
    vocabulary = {sign: number for number, sign in enumerate(signs)}
    made: Mapping[str, Any] = {
        "BPE": lambda: tokenizers.models.BPE(vocab=vocabulary, merges=[]),
        "Unigram": lambda: tokenizers.models.Unigram([(sign, -1.0) for sign in signs], 0, False),
        "WordLevel": lambda: tokenizers.models.WordLevel(vocab=vocabulary, unk_token="?"),
        "WordPiece": lambda: tokenizers.models.WordPiece(vocab=vocabulary, unk_token="?"),
    }
    core: Any = tokenizers.Tokenizer(made[kind]())
    core.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    core.decoder = tokenizers.decoders.Fuse()
    return core


def _decoded(made: Any) -> list[str]:
    """Return where texts are not cleaned up as the tokenizer and the call say; those of byte pairs never are."""
    wrong = []
    for kind, own, given in product(KINDS, (None, False, True), (None, False, True)):
        tokenizer = made(
            tokenizer_object=_core(kind), **({} if own is None else {"clean_up_tokenization_spaces": own})
        )
        options: dict[str, Any] = {} if given is None else {"clean_up_tokenization_spaces": given}
        cleans = bool(own if given is None else given) and kind != "BPE"
        due, ids = _cleaned(TEXT) if cleans else TEXT, tokenizer(TEXT)["input_ids"]
        found = {
            "decode": tokenizer.decode(ids, **options),
            "batch_decode": tokenizer.batch_decode([ids, ids], **options)[1],
            "decode of rows": tokenizer.decode([ids, ids], **options)[0],
            "without special tokens": tokenizer.decode(ids, skip_special_tokens=True, **options),
        }
        wrong += [f"{kind}, {own}, {given}, {name}: {text!r}" for name, text in found.items() if text != due]
    forced = made(tokenizer_object=_core("BPE"), clean_up_tokenization_spaces=True, **{FORCED: True})
    if forced.decode(forced(TEXT)["input_ids"]) != _cleaned(TEXT):
        wrong.append("byte pairs that are to be cleaned up are not")
    return wrong[:4]


def _of_class(kind: str, made: Any) -> list[str]:
    """Return where a class cleans up texts that it is to clean up, and is of byte pairs, or does not, and is not."""
    wrong = []
    plain = tokenizer_of(made, kind, {})
    core = getattr(plain, "backend_tokenizer", None)
    if core is None:
        return []
    pairs = type(core.model).__name__ == "BPE" and not getattr(plain, FORCED, False)
    cleaning = tokenizer_of(made, kind, {"clean_up_tokenization_spaces": True})
    for tokenizer, own in ((plain, False), (cleaning, True)):
        ids = tokenizer(TEXT)["input_ids"]
        raw = tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=False)
        for given in (None, False, True):
            options: dict[str, Any] = {} if given is None else {"clean_up_tokenization_spaces": given}
            if own is False and given is None:
                continue  # each class has a choice of its own
            cleans = bool(own if given is None else given) and not pairs
            found = tokenizer.decode(ids, **options)
            if found != (_cleaned(raw) if cleans else raw):
                wrong.append(f"{own}, {given}: {found!r} of {raw!r}")
    return wrong


CHAT = [{"role": "user", "content": "abcdefgh"}, {"role": "assistant", "content": "ijklmnop"}]
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{{ more }}"
OPTIONS: Mapping[str, Any] = {
    "truncation": True, "max_length": 12, "padding": "max_length", "return_tensors": None, "add_special_tokens": False,
    "padding_side": "left", "return_token_type_ids": True, "return_special_tokens_mask": True,
}  # fmt: skip


def _chat_options(made: Any) -> list[str]:
    """Return where options of a chat count otherwise outside `processor_kwargs` than within."""
    processor, wrong = text_processors()(tiny_tokenizer(padding_side="right"), chat_template=TEMPLATE), []

    def found(inside: Mapping[str, Any], **outside: Any) -> dict[str, list[Any]]:
        made = processor.apply_chat_template(
            copy.deepcopy([CHAT, CHAT[:1]]),
            tokenize=True,
            return_dict=True,
            processor_kwargs=copy.deepcopy(dict(inside)),
            **outside,
        )
        return {name: [list(map(int, row)) for row in value] for name, value in made.items()}

    for more in ({}, {"more": "Q"}):
        due = found(OPTIONS, **more)
        for number in (1, 2, 4, len(OPTIONS)):
            for names in combinations(OPTIONS, number):
                inside = {name: value for name, value in OPTIONS.items() if name not in names}
                outside = {name: OPTIONS[name] for name in names}
                if found(inside, **outside, **more) != due:
                    wrong.append(f"{sorted(names)} outside, {more}")
    return wrong[:4]


def _nested(made: Any) -> list[Any]:
    """Return ids where options of texts are within, as a part or not, and another one is outside them."""
    processor = text_processors()(tiny_tokenizer(padding_side="right"), chat_template=TEMPLATE)
    found = []
    for inside in (
        {"truncation": True, "max_length": 5},
        {"text_kwargs": {"truncation": True, "max_length": 5}},
    ):
        for outside in ({}, {"padding": False}, {"add_special_tokens": False}, {"more": "Q"}):
            ids = processor.apply_chat_template(
                [CHAT], tokenize=True, return_dict=True, processor_kwargs=inside, **outside
            )["input_ids"]
            found.append([len(row) for row in ids])
    return found


def _classes() -> Iterator[Row]:
    for name, (kind, _) in TABLE.items():
        yield Row(
            "texts",
            f"transformers:{class_name(name)}",
            "texts that are cleaned up",
            partial(_of_class, kind),
            [],
            since="5.20.2",
        )


FAST, PROCESSOR = "transformers:PreTrainedTokenizerFast", "transformers:ProcessorMixin"
# Sources: the documentation of decode (clean_up_tokenization_spaces) and of apply_chat_template (processor_kwargs).
DECODED_ROWS: Sequence[Row] = (
    Row("texts", FAST, "texts that are cleaned up", _decoded, [], since="5.17"),
    *_classes(),
    Row("texts", PROCESSOR, "options of a chat within and outside", _chat_options, [], since="5.22"),
    Row("texts", PROCESSOR, "options of a chat, nested", _nested, [[5]] * 8, since="5.22"),
)
