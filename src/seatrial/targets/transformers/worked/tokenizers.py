"""Worked examples of Transformers' tokenizer classes: what each makes of texts over a tiny vocabulary, on record.

`python -m seatrial.targets.transformers.worked.tokenizers` prints what the installed release gives, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import Gone, find_name
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.tiny_vocabularies import tokenizer_of

RECORD = Path(__file__).with_name("recorded_tokenizers.json")
TEXTS = ("Hello world", " two  spaces ", "don't, 12 3.5!", "é日 café", "a\nb\n\nc", "Ünï HE KHe ab.")
ABSENT = "absent"
"""An answer that a tokenizer with options does not give."""
WORDS = ("abc", "d two", "12")
ENDS: Mapping[str, Any] = {"add_bos_token": True, "add_eos_token": True}
SPLIT: Mapping[str, Any] = {"split_special_tokens": True}
NAMED: Mapping[str, Any] = {"bos_token": "<b>", "eos_token": "<e>", "pad_token": "<p>", "unk_token": "<u>"}
FRAMED: Mapping[str, Any] = {**NAMED, "cls_token": "<c>", "sep_token": "<s2>", "mask_token": "<m>"}
SIDES: Mapping[str, Any] = {"padding_side": "left", "truncation_side": "left"}
UNSPACED: Mapping[str, Any] = {"add_prefix_space": False}
SPACED: Mapping[str, Any] = {"add_prefix_space": True}
UNTRIMMED: Mapping[str, Any] = {"trim_offsets": False}
CASED: Mapping[str, Any] = {"do_lower_case": False}
LOWER: Mapping[str, Any] = {"do_lower_case": True}
ACCENTS: Mapping[str, Any] = {"keep_accents": True}
BERT = (
    CASED,
    {"strip_accents": False},
    {"strip_accents": True, **CASED},
    {"tokenize_chinese_chars": False},
    FRAMED,
)
LANGUAGES = ({"src_lang": "de_DE", "tgt_lang": "fr_XX"},)
TABLE: Mapping[str, tuple[str, Sequence[Mapping[str, Any]]]] = {
    "Albert": ("unigram, padding first", (CASED, ACCENTS, UNTRIMMED, FRAMED)),
    "Bert": ("words", (*BERT, SPLIT, SIDES)),
    "BertTokenizerLegacy": ("word file", (CASED, {"do_basic_tokenize": False}, {"never_split": ["hello"]})),
    "BertJapanese": ("word file", (LOWER, {"subword_tokenizer_type": "character"})),
    "Bertweet": ("counted files", ({"normalization": True},)),
    "BlenderbotSmall": ("cut files", ()),
    "ByT5": ("nothing", ({"extra_ids": 3},)),
    "CLIP": ("byte ends", (NAMED,)),
    "CTRL": ("cut files", ()),
    "Camembert": ("unigram", (UNSPACED, FRAMED)),
    "Clvp": ("byte files", ({"add_prefix_space": True},)),
    "CodeGen": ("bytes", (SPACED, NAMED, {"return_token_type_ids": True})),
    "CodeLlama": ("metaspace", (ENDS, {"suffix_first": True}, {"fill_token": "<F>"})),
    "Cohere": ("bytes", (SPACED, ENDS, FRAMED)),
    "ConvBert": ("words", (CASED,)),
    "DPRReader": ("words", (LOWER,)),
    "Deberta": ("bytes", (SPACED, FRAMED)),
    "DebertaV2": ("unigram, padding first", (LOWER, {"split_by_punct": True}, UNSPACED, FRAMED)),
    "Dia": ("nothing", ({"offset": 3},)),
    "DistilBert": ("words", (CASED,)),
    "Esm": ("lined file", ()),
    "Esmc": ("nothing", ()),
    "FNet": ("unigram, padding first", (CASED, ACCENTS)),
    "Funnel": ("words", (*BERT[:2], {"clean_text": False}, {"wordpieces_prefix": "**"}, FRAMED)),
    "GPT2": ("bytes", (SPACED, ENDS, {"add_bos_token": True}, NAMED, SPLIT, {**SIDES, "pad_token": "<p>"})),
    "GPTNeoX": ("bytes", (SPACED, UNTRIMMED, ENDS, NAMED)),
    "Gemma": ("metaspace", (ENDS, {"add_bos_token": False}, NAMED, SPLIT, {"padding_side": "right"})),
    "Herbert": ("ends", (FRAMED,)),
    "Llama": ("metaspace", (
        UNSPACED, {"legacy": True}, ENDS, {"add_bos_token": True}, {"add_eos_token": True}, NAMED, SPLIT,
        {"padding_side": "right"}, {"clean_up_tokenization_spaces": True}, {"extra_special_tokens": ["<x>", "wo"]},
    )),
    "Luke": ("bytes", (SPACED, FRAMED, {"max_entity_length": 5})),
    "MBart": ("unigram", (*LANGUAGES, FRAMED)),
    "MBart50": ("unigram", (*LANGUAGES, FRAMED)),
    "MPNet": ("words", (CASED, FRAMED)),
    "Nllb": ("metaspace", ({"src_lang": "deu_Latn", "tgt_lang": "fra_Latn"}, {"legacy_behaviour": True}, FRAMED)),
    "Nougat": ("bytes", (NAMED,)),
    "OpenAIGPT": ("ends", ({"unk_token": "<u>"},)),
    "Pegasus": ("unigram, as T5", (NAMED, {"offset": 4})),
    "Perceiver": ("nothing", (SIDES,)),
    "Phobert": ("counted files", ()),
    "ProphetNet": ("word file", (CASED,)),
    "Qwen2": ("bytes", (SPACED, ENDS, {**ENDS, "bos_token": "<b>"}, NAMED, SPLIT, SIDES)),
    "Qwen3_5": ("bytes", (SPACED, NAMED)),
    "Reformer": ("metaspace", (NAMED,)),
    "Roberta": ("bytes", (SPACED, UNTRIMMED, FRAMED, SIDES)),
    "SeamlessM4T": ("spoken", ({"src_lang": "deu", "tgt_lang": "eng"}, FRAMED)),
    "Siglip2": ("metaspace", (ENDS, NAMED)),
    "Splinter": ("words", (CASED, {"question_token": "[Q]"}, {"padding_side": "left"})),
    "T5": ("unigram, as T5", ({"extra_ids": 3}, NAMED, {"extra_ids": 0})),
    "Tipsv2": ("metaspace", (CASED, NAMED)),
    "VideoPrism": ("unigram, as T5", (NAMED,)),
    "Wav2Vec2CTC": ("letter file", (LOWER, {"word_delimiter_token": "-"}, {"replace_word_delimiter_char": "_"})),
    "Whisper": ("bytes", (
        SPACED, {"language": "german", "task": "translate"}, {"predict_timestamps": True}, {"language": "de"},
    )),
    "XGLM": ("unigram", (UNSPACED, FRAMED)),
    "XLMRoberta": ("unigram", (UNSPACED, FRAMED)),
    "XLNet": ("unigram, unknown first", (LOWER, ACCENTS, {"remove_space": False}, FRAMED)),
}  # fmt: skip
"""Kinds of vocabularies by class, and options, each tried in turn after none."""


def class_name(name: str) -> str:
    return name if "Tokenizer" in name else f"{name}Tokenizer"


def _tokens(tokenizer: Any, ids: Sequence[int]) -> str:
    """Return the tokens of ids in one text; a token that is no text is written as its id."""
    tokens = tokenizer.convert_ids_to_tokens(list(ids))
    return " ".join(
        str(number) if token is None else token for token, number in zip(tokens, ids, strict=True)
    )


def answers(tokenizer: Any) -> dict[str, Any]:
    """Return what a tokenizer makes of texts, pairs, batches and words, how it decodes, and what it is."""
    found: dict[str, Any] = {}
    rows = [tokenizer(text)["input_ids"] for text in TEXTS]
    found["texts"] = [_tokens(tokenizer, row) for row in rows]
    found["ids"] = rows[2]
    plain = tokenizer(TEXTS[0], add_special_tokens=False)["input_ids"]
    found["plain"] = _tokens(tokenizer, plain)
    found["decoded"] = [tokenizer.decode(row) for row in rows[:4]]
    found["shown"] = tokenizer.decode(rows[5], skip_special_tokens=True)
    found["string"] = tokenizer.convert_tokens_to_string(tokenizer.convert_ids_to_tokens(plain))
    special = tokenizer.eos_token or tokenizer.sep_token or tokenizer.unk_token
    inner = tokenizer(f"ab {special} c{special}d", add_special_tokens=False)["input_ids"]
    found["with a special token"] = _tokens(tokenizer, inner)
    found["without it"] = tokenizer.decode(inner, skip_special_tokens=True)
    pair = tokenizer(
        "abc d", "12", return_token_type_ids=True, return_special_tokens_mask=True, return_attention_mask=True
    )
    found["pair"] = {name: list(pair[name]) for name in sorted(pair)}
    found["fields"] = sorted(tokenizer("a"))
    if tokenizer.pad_token is not None:
        batch = tokenizer(list(TEXTS[:2]), padding="max_length", max_length=5, truncation=True)
        found["batch"] = batch["input_ids"]
        found["batch masks"] = batch.get("attention_mask")
    if tokenizer.is_fast:
        found["offsets"] = tokenizer(TEXTS[1], return_offsets_mapping=True)["offset_mapping"]
    found["numbers"] = [
        len(tokenizer),
        tokenizer.num_special_tokens_to_add(),
        tokenizer.num_special_tokens_to_add(True),
    ]
    found["sides"] = [tokenizer.padding_side, tokenizer.truncation_side]
    found["special"] = {
        name: token for name, token in sorted(tokenizer.special_tokens_map.items()) if isinstance(token, str)
    }
    found["unknown"] = _token_id(tokenizer, "日日")
    return found


def _token_id(tokenizer: Any, token: str) -> Any:
    try:
        return tokenizer.convert_tokens_to_ids(token)
    except (KeyError, TypeError, ValueError):  # of a class whose tokens are letters
        return "none"


def words_of(tokenizer: Any) -> Any:
    """Return the tokens of a text that is in words already; None where the class does not take one."""
    try:
        return _tokens(tokenizer, tokenizer(list(WORDS), is_split_into_words=True)["input_ids"])
    except (AssertionError, ValueError, AttributeError):
        return None


def _answered(kind: str, options: Mapping[str, Any], made: Any) -> dict[str, Any]:
    tokenizer = tokenizer_of(made, kind, options)
    return {**answers(tokenizer), "words": words_of(tokenizer)}


@cache
def record() -> Mapping[str, Sequence[Any]]:
    """Return by class and options the oldest release with these answers, and those that differ from no options."""
    found: Mapping[str, Sequence[Any]] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def _asked() -> Iterator[tuple[str, str, str, Mapping[str, Any]]]:
    """Yield the key of the record, the class, the kind and the options of each tokenizer."""
    for name, (kind, table) in TABLE.items():
        for options in ({}, *table):
            said = ", ".join(f"{one}={value}" for one, value in options.items()) or "no options"
            yield f"{class_name(name)}: {said}", class_name(name), kind, options


def _rows() -> Iterator[Row]:
    for key, name, kind, options in _asked():
        since, own = record()[key]
        plain = record()[f"{name}: no options"][1]
        right = {what: answer for what, answer in {**plain, **own}.items() if answer != ABSENT}
        call: Callable[[Any], Any] = partial(_answered, kind, options)
        yield Row("texts", f"transformers:{name}", key.partition(": ")[2], call, right, since=since)


TOKENIZER_ROWS: Sequence[Row] = tuple(_rows())


def main() -> None:
    """Print what the installed release gives."""
    found: dict[str, Any] = {}
    for key, name, kind, options in _asked():
        try:
            found[key] = _answered(kind, options, find_name("transformers", [f"transformers:{name}"]))
        except (Gone, NotServed, ImportError) as error:
            print(f"{key}: {error}", file=sys.stderr)
        except Exception as error:  # noqa: BLE001  what a release cannot do is not on record
            print(f"{key}: {type(error).__name__} {error}", file=sys.stderr)
    json.dump(found, sys.stdout, ensure_ascii=False)


if __name__ == "__main__":
    main()
