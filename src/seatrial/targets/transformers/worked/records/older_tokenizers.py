"""What tokenizer classes of releases of 4 make of texts over tiny vocabularies: in Python and fast, on record."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from packaging.version import Version

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import release
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.records.answers import given, rows_of
from seatrial.targets.transformers.worked.tiny_vocabularies import BLANK, KINDS, specials_of
from seatrial.targets.transformers.worked.tokenizers import answers, words_of

RECORD = "older_tokenizers_record"
FRAMED: Mapping[str, Any] = {"cls_token": "<c>", "sep_token": "<s2>", "mask_token": "<m>", "pad_token": "<p>"}
NAMED: Mapping[str, Any] = {"bos_token": "<b>", "eos_token": "<e>", "pad_token": "<p>", "unk_token": "<u>"}
SPACED: Mapping[str, Any] = {"add_prefix_space": True}
SIDES: Mapping[str, Any] = {"padding_side": "left", "truncation_side": "left"}
ENDS: Mapping[str, Any] = {"add_bos_token": True, "add_eos_token": True}
OF_WORDS: Sequence[Mapping[str, Any]] = (
    {"do_lower_case": False}, {"strip_accents": False}, {"tokenize_chinese_chars": False}, FRAMED, SIDES,
)  # fmt: skip
OF_BYTES: Sequence[Mapping[str, Any]] = (SPACED, NAMED, FRAMED, SIDES)
WORDS = ("Bert", "DistilBert", "Electra", "Lxmert", "MobileBert", "ConvBert", "Funnel", "MPNet", "LayoutLM", "Splinter",
         "SqueezeBert", "DPRQuestionEncoder", "DPRContextEncoder")  # fmt: skip
BYTES = ("GPT2", "Roberta", "Bart", "Blenderbot", "LED", "Longformer", "Mvp", "Deberta", "CodeGen", "Qwen2")
LANGUAGES: Sequence[Mapping[str, Any]] = ({"src_lang": "de_DE", "tgt_lang": "fr_XX"},)
CODES: Sequence[Mapping[str, Any]] = (
    {"src_lang": "deu_Latn", "tgt_lang": "fra_Latn"},
    {"legacy_behaviour": True},
)
IN_PYTHON: Mapping[str, tuple[str, Sequence[Mapping[str, Any]]]] = {
    **dict.fromkeys(WORDS, ("word file", OF_WORDS)),
    **dict.fromkeys(BYTES, ("byte files", OF_BYTES)),
    "Bertweet": ("counted files", ({"normalization": True},)), "BlenderbotSmall": ("cut files", ()),
    "ByT5": ("nothing", ({"extra_ids": 3},)), "CLIP": ("clip files", (NAMED,)), "CTRL": ("cut files", ()),
    "Canine": ("nothing", ()), "Clvp": ("byte files", (SPACED,)), "Dia": ("nothing", ({"offset": 3},)),
    "Esm": ("lined file", ()), "Herbert": ("end files", (FRAMED,)), "OpenAIGPT": ("end files", ({"unk_token": "<u>"},)),
    "Perceiver": ("nothing", (SIDES,)), "Phobert": ("counted files", ()), "ProphetNet": ("word file", (OF_WORDS[0],)),
    "Wav2Vec2CTC": ("letter file", ({"do_lower_case": True}, {"word_delimiter_token": "-"},
                                    {"replace_word_delimiter_char": "_"})),
    "Whisper": ("byte files", (SPACED, {"language": "german", "task": "translate"}, {"predict_timestamps": True})),
}  # fmt: skip
"""Kinds of vocabularies by class, and options, each tried in turn after none."""
FAST: Mapping[str, tuple[str, Sequence[Mapping[str, Any]]]] = {
    **{name: pair for name, pair in IN_PYTHON.items() if name in (*WORDS, *BYTES)},
    "CLIP": ("clip files", (NAMED,)), "Herbert": ("end files", (FRAMED,)), "OpenAIGPT": ("end files", ()),
    "Whisper": IN_PYTHON["Whisper"],
    "Llama": ("metaspace core", (ENDS, {"add_bos_token": False}, NAMED, SIDES)),
    "CodeLlama": ("metaspace core", (ENDS, {"suffix_first": True})),
    "Gemma": ("metaspace core", (ENDS, NAMED)), "Cohere": ("byte core", (ENDS, SPACED)),
    "GPTNeoX": ("byte core", (ENDS, SPACED, NAMED)), "Bloom": ("byte core", (SPACED, SIDES)),
    "Nougat": ("byte core", (SIDES,)),
    **dict.fromkeys(("MBart", "MBart50", "XLMRoberta", "Barthez"), ("unigram core", LANGUAGES)),
    "Nllb": ("unigram core", CODES), "SeamlessM4T": ("unigram core", ({"src_lang": "deu", "tgt_lang": "eng"},)),
    **dict.fromkeys(
        ("Albert", "BigBird", "Camembert", "FNet", "RemBert", "Reformer", "DebertaV2", "XGLM", "XLNet", "Udop"),
        ("unigram core", (FRAMED,)),
    ),
    "T5": ("unigram core", ({"extra_ids": 3},)), "Pegasus": ("unigram core", ({"offset": 4},)),
}  # fmt: skip
"""Of fast classes; a core is one of the package tokenizers, without what a class adds."""


def _clip_files(specials: Mapping[str, str]) -> dict[str, Any]:
    from seatrial.targets.transformers.worked import tiny_vocabularies as tiny

    vocabulary = tiny.byte_word_ends(specials)["vocab"]
    return {
        "vocab_file": tiny._file("vocab.json", json.dumps(vocabulary)),
        "merges_file": tiny._merges_file(tiny.END_PAIRS),
    }


def _core(kind: str, specials: Mapping[str, str]) -> dict[str, Any]:
    """Return a tokenizer of the package tokenizers."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    if kind == "unigram":
        found = KINDS["unigram"](specials)["vocab"]
        at = next(
            (number for number, (piece, _) in enumerate(found) if piece == specials.get("unk_token")), 0
        )
        core = tokenizers.Tokenizer(models.Unigram(found, unk_id=at))
    else:
        found = KINDS[kind](specials)
        options: dict[str, Any] = {"byte_fallback": True, "fuse_unk": True} if kind == "metaspace" else {}
        core = tokenizers.Tokenizer(models.BPE(vocab=found["vocab"], merges=found["merges"], **options))
    if kind == "bytes":
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        core.decoder = decoders.ByteLevel()
    else:
        core.pre_tokenizer = pre_tokenizers.Metaspace(replacement=BLANK, prepend_scheme="always")
        core.decoder = decoders.Metaspace(replacement=BLANK, prepend_scheme="always")
    return {"tokenizer_object": core}


CORES = {"metaspace core": "metaspace", "byte core": "bytes", "unigram core": "unigram"}


def _made(made: Any, kind: str, options: Mapping[str, Any]) -> Any:
    specials = specials_of(made, options)
    if kind in CORES:
        return made(**{**_core(CORES[kind], specials), **options})
    files = _clip_files(specials) if kind == "clip files" else KINDS[kind](specials)
    return made(**{**files, **options})


def _tables(kind: str) -> tuple[str, Sequence[Mapping[str, Any]]]:
    fast = kind.endswith("Fast")
    return (FAST if fast else IN_PYTHON)[kind.removesuffix("Fast").removesuffix("Tokenizer")]


def _cases(made: Any) -> Iterator[str]:
    """Yield cases: options of the class, and the same after it was saved and loaded."""
    for options in ({}, *_tables(made.__name__)[1]):
        yield json.dumps(options)
    for options in ({}, *_tables(made.__name__)[1]):
        yield json.dumps({"saved": options})


def _ask(made: Any, case: str) -> Any:
    """Return answers of a tokenizer; of one that was saved and loaded those that are others than before."""
    if Version(release("transformers")) >= Version("5"):
        raise NotServed("classes of releases of 4")
    asked = json.loads(case)
    tokenizer = _made(made, _tables(made.__name__)[0], asked.get("saved", asked))
    if "saved" not in asked:
        return _answers(tokenizer)
    due, folder = _answers(tokenizer), new_folder()
    tokenizer.save_pretrained(folder)
    found = _answers(made.from_pretrained(folder))
    return {name: value for name, value in found.items() if value != due[name]}


def _answers(tokenizer: Any) -> dict[str, Any]:
    """Return answers of a tokenizer, and what it puts around ids by its own methods."""
    ids: tuple[list[int], list[int]] = ([17, 18, 19], [20, 21])
    found = answers(tokenizer)
    try:
        found["words"] = words_of(tokenizer)
    except Exception as error:  # noqa: BLE001  fast classes of bytes refuse with one of their own
        found["words"] = type(error).__name__
    for number in (1, 2):
        rows = ids[:number]
        for name, call in (
            ("frame", tokenizer.build_inputs_with_special_tokens),
            ("types", tokenizer.create_token_type_ids_from_sequences),
            ("mask", tokenizer.get_special_tokens_mask),
        ):
            try:
                found[f"{name} of {number}"] = call(*rows)
            except (
                AssertionError,
                TypeError,
            ) as error:  # of fast classes, which know them of whole rows alone
                found[f"{name} of {number}"] = type(error).__name__
    framed = tokenizer("abc", "12")["input_ids"]
    found["own mask"] = tokenizer.get_special_tokens_mask(framed, already_has_special_tokens=True)
    if getattr(tokenizer, "_switch_to_target_mode", None) is not None:
        found["target"] = tokenizer(text_target="abc d")["input_ids"]
    return found


def places_of(kind: str) -> str:
    """Return where a class is."""
    return f"transformers:{kind}"


def kinds_now() -> list[str]:
    """Return the names of the classes."""
    return [f"{name}Tokenizer" for name in IN_PYTHON] + [f"{name}TokenizerFast" for name in FAST]


def given_now() -> dict[str, Any]:
    """Return what the installed release gives."""
    return given({name: places_of(name) for name in kinds_now()}, _cases, _ask)


OLDER_ROWS: Sequence[Row] = rows_of(RECORD, places_of, _ask, "texts", "texts")
